//! What a phase searches for by raising its rate.

use super::load::positive;
use crate::{
    result::Threshold,
    scenario::values::{Bound, RateFile, UntilItBreaksFile},
    toml_file::{Mistake, Time},
};
use std::{ops::Range, time::Duration};
use toml::Spanned;

/// Steps of a search: more would be a factor that is too small.
const STEPS_MAX: usize = 200;

/// Rates one after another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Search {
    pub(crate) goal: Goal,
    pub(crate) each: Duration,
    pub(crate) thresholds: Vec<Threshold>,
}

/// What is searched for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Goal {
    /// The first of these rates at which something breaks.
    Break(Vec<f64>),
    /// The highest rate that keeps the bounds; the first one is tried first. The rate that is found is proved for so long.
    Highest { from: f64, proof: Duration },
}

impl Search {
    pub(crate) fn first_rate(&self) -> f64 {
        match &self.goal {
            Goal::Break(rates) => rates.first().copied().unwrap_or_default(),
            Goal::Highest { from, .. } => *from,
        }
    }
}

pub(super) fn thresholds(bounds: &[Bound]) -> Vec<Threshold> {
    bounds.iter().map(|bound| bound.0.clone()).collect()
}

impl Search {
    /// `duration`: of the phase.
    pub(super) fn of(rate: &Spanned<RateFile>, duration: Option<&Spanned<Time>>) -> Result<Self, Mistake> {
        let span = &rate.span();
        let (each, goal, bounds) = match (rate.get_ref(), duration) {
            (RateFile::UntilItBreaks(file), duration) => {
                let rates = rising(file, span)?;
                if let Some(duration) = duration {
                    let what = "a phase that runs until it breaks lasts as long as its steps";
                    return Err(Mistake::at(duration.span(), what));
                }
                (file.each.0, Goal::Break(rates), &file.thresholds)
            }
            (RateFile::Highest(file), Some(duration)) => {
                let (from, proof) = (positive(file.from, span)?, duration.get_ref().0);
                (file.each.0, Goal::Highest { from, proof }, &file.thresholds)
            }
            _ => return Err(Mistake::at(span.clone(), "the highest rate is proved for the `duration` of the phase")),
        };
        if each.is_zero() {
            return Err(Mistake::at(span.clone(), "`each` must be above 0"));
        }
        Ok(Search { goal, each, thresholds: thresholds(bounds) })
    }
}

fn rising(file: &UntilItBreaksFile, span: &Range<usize>) -> Result<Vec<f64>, Mistake> {
    let mistake = |what: &str| Err(Mistake::at(span.clone(), what));
    let from = positive(file.from, span)?;
    if file.to.is_nan() || file.to < from || file.factor.is_nan() || file.factor <= 1.0 {
        return mistake("`to` must not be below `from`, and `factor` must be above 1");
    }
    let mut rates = vec![from];
    // The last step is at `to` itself.
    while let Some(last) = rates.last().copied().filter(|last| *last < file.to) {
        rates.push((last * file.factor).min(file.to));
        if rates.len() > STEPS_MAX {
            return mistake("this makes more than 200 steps: choose a greater `factor`");
        }
    }
    Ok(rates)
}

pub(super) fn searched(rate: &Option<Spanned<RateFile>>) -> Option<&Spanned<RateFile>> {
    rate.as_ref().filter(|rate| matches!(rate.get_ref(), RateFile::UntilItBreaks(_) | RateFile::Highest(_)))
}
