//! Phases that search a rate: until it breaks, or the highest that keeps its bounds.

use super::{Stage, title_of};
use crate::{
    LabError, interrupt,
    scenario::{
        plan::phase::{Load, Phase, Search, Work},
        search::{HighestRate, Next},
        trouble::Trouble,
        works::WorkResult,
    },
};
use serde_json::{Value, json};
use std::time::Duration;

impl Stage<'_> {
    /// Raises the rate step by step until something breaks, and says what, and which step was the last good one.
    pub(super) fn search_break(&mut self, phase: &Phase, search: &Search, rates: &[f64]) -> Result<Value, LabError> {
        let (mut steps, mut good, mut broke) = (Vec::new(), None, None);
        for (number, rate) in rates.iter().enumerate() {
            let works: Vec<(&Work, Load, String)> = (phase.works.iter())
                .map(|work| {
                    let title = format!("{}, step {} at {rate:.0}/s: {}", phase.name, number + 1, work.name);
                    (work, work.load.at_step(*rate, search.each), title)
                })
                .collect();
            let (results, _) = self.run_at_once(&works, &[])?;
            let mut values = Vec::new();
            for (WorkResult { measured, trouble }, (work, ..)) in results.into_iter().zip(&works) {
                let told = trouble.clone().or_else(|| Trouble::of_thresholds(&search.thresholds, &measured));
                if let (Some(told), None) = (told, &broke) {
                    broke = Some(json!({ "step": number + 1, "rate": rate, "work": work.name, "by": told,
                        "sentence": told.to_string() }));
                }
                // What ends a search is its result. Only what must never happen fails the run.
                let ends_search = matches!(&trouble, Some(trouble) if !matches!(trouble, Trouble::Balance(_)));
                values.push(self.result.record(if ends_search { measured.without_failures() } else { measured }));
            }
            steps.push(json!({ "rate": rate, "works": values }));
            if broke.is_some() || interrupt::requested() {
                break;
            }
            good = Some(json!({ "step": number + 1, "rate": rate }));
        }
        let sentence = match (&good, &broke) {
            (Some(good), Some(broke)) => {
                format!("last good step {} at {}/s; broke by {}", good["step"], good["rate"], broke["sentence"])
            }
            (None, Some(broke)) => format!("no step was good; broke by {}", broke["sentence"]),
            (_, None) => "nothing broke".to_owned(),
        };
        self.result.note("the search", sentence);
        Ok(json!({ "name": phase.name, "steps": steps, "last_good": good, "broke": broke }))
    }

    /// Searches the highest rate that keeps the bounds, and proves it at full length.
    pub(super) fn search_highest(
        &mut self,
        phase: &Phase,
        search: &Search,
        from: f64,
        proof: Duration,
    ) -> Result<Value, LabError> {
        let (mut state, mut next) = (HighestRate::default(), Next::Trial(from));
        let mut trials = Vec::new();
        let mut found = json!({ "name": phase.name });
        loop {
            let (rate, lasts, is_proof) = match next {
                Next::Trial(rate) => (rate, search.each, false),
                Next::Proof(rate) => (rate, proof, true),
                Next::Over => break,
            };
            let works: Vec<(&Work, Load, String)> = (phase.works.iter())
                .map(|work| (work, work.load.at_step(rate, lasts), title_of(phase, work)))
                .collect();
            let (results, _) = self.run_at_once(&works, &[])?;
            let keeps = |WorkResult { measured, trouble }: &WorkResult| {
                !matches!(trouble, Some(Trouble::Refusals(_) | Trouble::Balance(_)))
                    && Trouble::of_thresholds(&search.thresholds, measured).is_none()
            };
            let is_broken = results.iter().any(|result| matches!(result.trouble, Some(Trouble::Balance(_))));
            // A trial that was cut short has not met anything.
            let met = results.iter().all(keeps) && !interrupt::requested();
            next = match is_proof {
                false => state.after_trial(rate, met),
                true => HighestRate::after_proof(rate, met),
            };
            if is_broken || interrupt::requested() {
                next = Next::Over;
            }
            let is_last = is_proof && next == Next::Over;
            let mut figures = Vec::new();
            for WorkResult { measured, .. } in results {
                let line = "{latency.p99:2} ms  max {latency.max:2} ms  refused {refused}";
                let (length, met) = (lasts.as_secs_f64(), if met { "met" } else { "missed" });
                println!("  {rate:>9.0}/s  {length:.0} s  p99 {}  {met}", measured.filled(line));
                // What a trial misses is what it is for. Only what must never happen fails the run.
                figures.push(match (is_last, is_broken) {
                    (true, _) => {
                        let title = format!("{}, highest rate that keeps the bounds: {rate:.0}/s", measured.title());
                        self.result.record(measured.titled(&title))
                    }
                    (false, true) => self.result.record(measured),
                    (false, false) => measured.into_parts().0,
                });
            }
            if is_last {
                (found["rate"], found["works"]) = (json!(rate), json!(figures));
            } else if !is_proof {
                trials.push(json!({ "rate": rate, "met": met, "works": figures }));
            }
        }
        found["trials"] = json!(trials);
        Ok(found)
    }
}
