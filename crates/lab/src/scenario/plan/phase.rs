//! The phases of a scenario: which tasks run at once, how long, and at which rates.

pub(crate) use super::goal::{Goal, Search};
pub(crate) use super::load::Load;
use super::{
    goal::{searched, thresholds},
    load::{check_load, positive, profile_of},
    population::{Members, Population},
};
use crate::{
    result::Threshold,
    scenario::{
        file::{PhaseFile, WorkFile},
        values::{DeviceTask, RateFile, ShareOfMaxFile},
    },
    toml_file::{Mistake, Time, value},
};
use std::{collections::BTreeMap, time::Duration};
use toml::Spanned;

/// A phase of which everything goes together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Phase {
    pub(crate) name: String,
    /// Before anything is measured, the work runs for so long at the rates with which it begins.
    pub(crate) warm_up: Duration,
    pub(crate) works: Vec<Work>,
    pub(crate) search: Option<Search>,
}

/// Who does a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worker {
    Population(String),
    Script(String),
}

impl Worker {
    pub(crate) fn name(&self) -> &str {
        match self {
            Worker::Population(name) | Worker::Script(name) => name,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    pub(crate) name: String,
    pub(crate) worker: Worker,
    pub(crate) load: Load,
    /// Messages in one request.
    pub(crate) batch: usize,
    /// It begins so much before the other work of its phase, and ends as much later.
    pub(crate) around: Duration,
    /// Otherwise a message that is refused fails the run.
    pub(crate) may_be_refused: bool,
    /// The same rounds are run on a loop that only writes, too.
    pub(crate) beside_bare_loop: bool,
    /// So many times the load the lab must keep up on a loop that only writes.
    pub(crate) lab_sustains: Option<f64>,
    pub(crate) thresholds: Vec<Threshold>,
}

impl Phase {
    /// Whether it has this work done as fast as it goes.
    pub(crate) fn finds_the_most_of(&self, worker: &Worker) -> bool {
        self.works.iter().any(|work| work.worker == *worker && matches!(work.load, Load::Max { .. }))
    }
}

const WINDOW: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(200);
/// The lease of a gateway, and as long again.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(30);
/// Shares are written with few digits.
const SHARES_ROUNDING: f64 = 0.001;

fn time(written: &Option<Spanned<Time>>, usual: Duration) -> Duration {
    value(written).map_or(usual, |time| time.0)
}

/// What the works of a phase are checked against.
struct PhaseFrame<'a> {
    populations: &'a BTreeMap<String, Population>,
    scripts: &'a [&'a String],
    /// How long the phase, or each step of a search, lasts; unset: as long as its work takes.
    lasts: Option<Duration>,
    rate: Option<&'a Spanned<RateFile>>,
    works: usize,
    searches: bool,
}

impl Phase {
    pub(crate) fn of(
        written: &Spanned<PhaseFile>,
        populations: &BTreeMap<String, Population>,
        scripts: &[&String],
    ) -> Result<Self, Mistake> {
        let file = written.get_ref();
        let name = file.name.get_ref().clone();
        if file.work.is_empty() {
            return Err(Mistake::at(file.name.span(), "a phase needs at least one `[[phase.work]]`"));
        }
        let mut searches =
            searched(&file.rate).into_iter().chain(file.work.iter().filter_map(|work| searched(&work.get_ref().rate)));
        let search = searches.next().map(|rate| Search::of(rate, file.duration.as_ref())).transpose()?;
        if let Some(other) = searches.next() {
            return Err(Mistake::at(other.span(), "one rate of a phase can be searched for, and here are two"));
        }
        let duration = value(&file.duration).map(|duration| duration.0);
        if let Some(duration) = &file.duration
            && duration.get_ref().0.is_zero()
        {
            return Err(Mistake::at(duration.span(), "must be above 0"));
        }
        let frame = PhaseFrame {
            populations,
            scripts,
            lasts: search.as_ref().map(|search| search.each).or(duration),
            rate: file.rate.as_ref(),
            works: file.work.len(),
            searches: search.is_some(),
        };
        let mut works: Vec<Work> = Vec::new();
        let mut shares = 0.0;
        for written in &file.work {
            let mut work = frame.work(written, &file.name)?;
            if works.iter().any(|other| other.worker == work.worker) {
                return Err(Mistake::at(
                    written.span(),
                    format!("`{}` works in this phase already", work.worker.name()),
                ));
            }
            work.thresholds.extend(thresholds(&file.thresholds));
            shares += value(&written.get_ref().share).unwrap_or(0.0);
            works.push(work);
        }
        if shares > 0.0 && (shares - 1.0).abs() > SHARES_ROUNDING {
            return Err(Mistake::at(
                file.name.span(),
                format!("the shares of this phase add up to {shares}, not to 1"),
            ));
        }
        Ok(Phase { name, warm_up: time(&file.warm_up, Duration::ZERO), works, search })
    }
}

impl PhaseFrame<'_> {
    fn work(&self, written: &Spanned<WorkFile>, phase: &Spanned<String>) -> Result<Work, Mistake> {
        let file = written.get_ref();
        let worker = match (&file.population, &file.script) {
            (Some(name), None) => {
                if self.populations.contains_key(name.get_ref()) {
                    Worker::Population(name.get_ref().clone())
                } else {
                    return Err(unknown("population", name, self.populations.keys()));
                }
            }
            (None, Some(name)) => {
                if self.scripts.contains(&name.get_ref()) {
                    Worker::Script(name.get_ref().clone())
                } else {
                    return Err(unknown("script", name, self.scripts.iter().copied()));
                }
            }
            _ => return Err(Mistake::at(written.span(), "work needs either `population` or `script`")),
        };
        let load = match &worker {
            Worker::Script(_) => {
                let none = file.rate.is_none() && file.share.is_none() && file.rounds.is_none();
                if none {
                    Load::Script
                } else {
                    return Err(Mistake::at(written.span(), "a script has no rate: its steps say what is due"));
                }
            }
            Worker::Population(name) => {
                let load = self.load(written, phase)?;
                check_load(&load, &self.populations[name], self.searches, written)?;
                load
            }
        };
        let batch = match &file.batch {
            Some(batch) if *batch.get_ref() == 0 => return Err(Mistake::at(batch.span(), "must be at least 1")),
            batch => value(batch).unwrap_or(1),
        };
        let name = file.name.clone().unwrap_or_else(|| worker.name().to_owned());
        let beside_bare_loop = value(&file.beside_bare_loop).unwrap_or(false);
        if let Some(beside) = file.beside_bare_loop.as_ref().filter(|_| beside_bare_loop)
            && !self.can_run_on_bare_loop(&worker, &load)
        {
            let what = "only `rounds` of a group or an official account, and devices that reconnect, can be run on a bare loop";
            return Err(Mistake::at(beside.span(), what));
        }
        let lab_sustains =
            file.lab_sustains.as_ref().map(|factor| self.lab_sustains(factor, &worker, &load)).transpose()?;
        let may_be_refused = file.may_be_refused.unwrap_or(true);
        let thresholds = thresholds(&file.thresholds);
        let around = time(&file.around, Duration::ZERO);
        Ok(Work { name, worker, load, batch, around, may_be_refused, beside_bare_loop, lab_sustains, thresholds })
    }

    fn lab_sustains(&self, factor: &Spanned<f64>, worker: &Worker, load: &Load) -> Result<f64, Mistake> {
        let members = self.populations.get(worker.name()).map(|population| &population.members);
        let is_steady = match load {
            Load::Planned(profile) => profile.is_constant(),
            load => matches!(load, Load::Max { .. }),
        };
        if !matches!(members, Some(Members::Conversation(..))) || !is_steady {
            let what =
                "only a group or an official account at a constant rate, or at `\"max\"`, can be run on a bare loop";
            return Err(Mistake::at(factor.span(), what));
        }
        match factor.get_ref() {
            factor if factor.is_finite() && *factor >= 1.0 => Ok(*factor),
            _ => Err(Mistake::at(factor.span(), "must be at least 1")),
        }
    }

    fn can_run_on_bare_loop(&self, worker: &Worker, load: &Load) -> bool {
        let Worker::Population(name) = worker else { return false };
        let members = self.populations.get(name).map(|population| &population.members);
        matches!(
            (members, load),
            (Some(Members::Conversation(..)), Load::Rounds { .. }) | (Some(Members::Devices(_)), Load::Reconnect)
        )
    }

    /// What devices do beside being pushed to.
    fn device_task(&self, file: &WorkFile, phase: &Spanned<String>) -> Result<Option<Load>, Mistake> {
        let Some(does) = &file.does else { return Ok(None) };
        Ok(Some(match (does.get_ref(), &file.rate) {
            (DeviceTask::Push, _) => return Ok(None),
            (DeviceTask::Bind, None) => Load::Bind { per_second: None },
            (DeviceTask::Bind, Some(rate)) => match rate.get_ref() {
                RateFile::Max => Load::Bind { per_second: None },
                RateFile::Constant(per_second) => Load::Bind { per_second: Some(positive(*per_second, &rate.span())?) },
                _ => return Err(Mistake::at(rate.span(), "devices bind at a constant rate, or at `\"max\"`")),
            },
            (_, Some(rate)) => {
                return Err(Mistake::at(rate.span(), "only devices that bind, or are pushed to, have a rate"));
            }
            (DeviceTask::Stay, None) => match self.lasts {
                Some(lasts) => Load::Stay { lasts },
                None => return Err(Mistake::at(phase.span(), "a phase in which devices stay needs `duration`")),
            },
            (DeviceTask::Reconnect, None) => Load::Reconnect,
            (DeviceTask::Outlive, None) => Load::Outlive {
                pause: time(&file.pause, PAUSE),
                forgotten_within: time(&file.forgotten_within, FORGOTTEN_WITHIN),
            },
        }))
    }

    fn load(&self, written: &Spanned<WorkFile>, phase: &Spanned<String>) -> Result<Load, Mistake> {
        let file = written.get_ref();
        if let Some(load) = self.device_task(file, phase)? {
            return Ok(load);
        }
        let given = [file.rate.is_some(), file.share.is_some(), file.rounds.is_some(), file.replay.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Mistake::at(written.span(), "work has one of `rate`, `share`, `rounds` and `replay`"));
        }
        if let Some(rounds) = &file.rounds {
            if *rounds.get_ref() == 0 {
                return Err(Mistake::at(rounds.span(), "must be at least 1"));
            }
            let pause = time(&file.pause, PAUSE);
            let at_least = match (file.until_end, self.lasts) {
                (Some(true), None) => {
                    return Err(Mistake::at(phase.span(), "rounds with `until_end` need the `duration` of the phase"));
                }
                (Some(true), Some(lasts)) => lasts,
                _ => Duration::ZERO,
            };
            return Ok(Load::Rounds { rounds: *rounds.get_ref(), pause, at_least });
        }
        if let Some(replay) = &file.replay {
            let window = value(&file.window).unwrap_or(WINDOW).max(1);
            return match replay.get_ref() {
                RateFile::Max => Ok(Load::Replay { speed: None, window }),
                RateFile::Constant(speed) => {
                    Ok(Load::Replay { speed: Some(positive(*speed, &replay.span())?), window })
                }
                _ => {
                    Err(Mistake::at(replay.span(), "a chat is replayed at \"max\", or so many times as fast as it was"))
                }
            };
        }
        if let Some(pause) = &file.pause {
            return Err(Mistake::at(pause.span(), "`pause` stands between `rounds`"));
        }
        let (rate, work_share) = match (&file.rate, &file.share, self.rate) {
            (Some(rate), ..) => (rate, 1.0),
            (None, Some(share), Some(rate)) => {
                if *share.get_ref() > 0.0 && *share.get_ref() <= 1.0 {
                    (rate, *share.get_ref())
                } else {
                    return Err(Mistake::at(share.span(), "a share is above 0 and at most 1"));
                }
            }
            (None, Some(share), None) => return Err(Mistake::at(share.span(), "the phase has no `rate` to share")),
            (None, None, Some(rate)) if self.works == 1 => (rate, 1.0),
            (None, None, _) => return Err(Mistake::at(written.span(), "work needs `rate`, `share` or `rounds`")),
        };
        if let RateFile::UntilItBreaks(_) | RateFile::Highest(_) = rate.get_ref() {
            return Ok(Load::Searched { share: work_share });
        }
        let Some(lasts) = self.lasts else {
            return Err(Mistake::at(phase.span(), "a phase with a rate needs `duration`"));
        };
        let window = value(&file.window).unwrap_or(WINDOW).max(1);
        let around = time(&file.around, Duration::ZERO);
        if let Some(around) = &file.around
            && !matches!(rate.get_ref(), RateFile::Max | RateFile::ShareOfMax(_) | RateFile::Constant(_))
        {
            let what = "only work at a rate that does not change begins before other work";
            return Err(Mistake::at(around.span(), what));
        }
        match rate.get_ref() {
            RateFile::Max => Ok(Load::Max { window, lasts: lasts + 2 * around }),
            RateFile::ShareOfMax(ShareOfMaxFile { share, each }) => {
                let alone = each.map(|each| each.0);
                if *share > 0.0 && *share <= 1.0 && alone.is_none_or(|alone| !alone.is_zero()) {
                    let share = share * work_share;
                    Ok(Load::ShareOfMax { share, window, alone, lasts: lasts + 2 * around })
                } else {
                    Err(Mistake::at(rate.span(), "`share` is above 0 and at most 1, `each` above 0"))
                }
            }
            rate_file => {
                let seconds = (lasts + 2 * around).as_secs_f64();
                Ok(Load::Planned(profile_of(rate_file, &rate.span(), seconds)?.scaled(work_share)))
            }
        }
    }
}

fn unknown<'a>(what: &str, name: &Spanned<String>, known: impl Iterator<Item = &'a String>) -> Mistake {
    let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
    let known = if known.is_empty() { "there is none".to_owned() } else { format!("there are {}", known.join(", ")) };
    Mistake::at(name.span(), format!("there is no {what} `{}`; {known}", name.get_ref()))
}
