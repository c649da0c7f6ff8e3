//! The one result of every run: what was measured, and what it was held to, as data.
//!
//! A command or a task of a scenario fills it, and decides nothing else: a [`Measurement`] has the figures of one part of the run, a
//! [`Check`] one thing that the run was held to. The verdict is the worst of all checks. What is printed, written and
//! compared afterwards is read from here ([`report`](crate::report)).
//!
//! In reading order: [`verdict`], [`check`], [`measurement`] with the [lines](mod@line) that are printed of it; [`parts`], how reports and
//! comparisons read measurements; [`thresholds`], bounds that users set.

mod check;
mod line;
mod measurement;
pub(crate) mod parts;
mod summary;
pub(crate) mod thresholds;
mod verdict;

pub(crate) use check::Check;
pub(crate) use line::{Block, PrintedMeasurement, Table, filled};
pub(crate) use measurement::{Layout, Measurement};
pub(crate) use summary::Summary;
pub(crate) use thresholds::Threshold;
pub(crate) use verdict::Verdict;

use crate::server::StoreCheck;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The result of a run, as far as it has come.
#[derive(Debug, Default)]
pub(crate) struct RunResult {
    figures: Map<String, Value>,
    checks: Vec<Check>,
    /// What is still to be printed.
    blocks: Vec<Block>,
}

impl RunResult {
    pub(crate) fn of(bench: &str) -> Self {
        let mut result = RunResult::default();
        result.set("bench", bench);
        result
    }

    /// A figure of the run that is no part of a measurement.
    pub(crate) fn set(&mut self, name: &str, value: impl Serialize) {
        self.figures.insert(name.to_owned(), json!(value));
    }

    /// All entries of an object.
    pub(crate) fn set_all(&mut self, values: Value) {
        if let Value::Object(values) = values {
            self.figures.extend(values);
        }
    }

    /// Adds a measurement's checks, has it printed, and returns its figures, which belong somewhere among those of the run.
    pub(crate) fn record(&mut self, measurement: Measurement) -> Value {
        self.blocks.push(Block::Measured(measurement.printed()));
        self.record_unprinted(measurement)
    }

    /// The same for one of many, of which a line of its own tells.
    pub(crate) fn record_unprinted(&mut self, measurement: Measurement) -> Value {
        let (figures, checks) = measurement.into_parts();
        self.checks.extend(checks);
        figures
    }

    /// Records a measurement whose figures stand under this name.
    pub(crate) fn measure(&mut self, name: &str, measurement: Measurement) {
        let figures = self.record(measurement);
        self.figures.insert(name.to_owned(), figures);
    }

    /// Records a measurement whose figures are those of the whole run.
    pub(crate) fn measure_whole(&mut self, measurement: Measurement) {
        if let Value::Object(mut figures) = self.record(measurement) {
            figures.remove("title");
            self.figures.extend(figures);
        }
    }

    /// Lines that belong together, each with what it is about.
    pub(crate) fn lines(&mut self, title: &str, lines: Vec<(String, String)>, problems: &[String]) {
        let (title, problems) = (title.to_owned(), problems.to_vec());
        self.blocks.push(Block::Measured(PrintedMeasurement {
            title,
            lines,
            problems,
            ..PrintedMeasurement::default()
        }));
    }

    /// The result of a scenario as that of a command that is one, apart from the figures of its phases.
    pub(crate) fn of_command(mut self, name: &str) -> (Self, Value) {
        let phases = self.figures.remove("phases").unwrap_or_default();
        self.figures.retain(|name, _| !["scenario", "about"].contains(&name.as_str()));
        self.set("bench", name);
        (self, phases)
    }

    pub(crate) fn check(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// What `tidings check` said of the server's folder; nothing is known of a server that is not the run's own.
    pub(crate) fn store_check(&mut self, check: Option<StoreCheck>) {
        if let Some(check) = &check {
            let lines: Vec<String> =
                check.output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
            self.note("check", format!("{}: {}", if check.passed { "passed" } else { "FAILED" }, lines.join(", ")));
            self.check(
                Check::of_server("stored data", "passes `tidings check`", check.passed)
                    .part("the server's folder")
                    .value(if check.passed { "passed" } else { "failed" }),
            );
        }
        self.set("check", check);
    }

    /// A line for the reader, with what it is about.
    pub(crate) fn note(&mut self, about: &str, text: impl Into<String>) {
        self.blocks.push(Block::Note { about: about.to_owned(), text: text.into() });
    }

    pub(crate) fn problem(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Problem(text.into()));
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.blocks.push(Block::Table(table));
    }

    /// Takes over the result of a part of this run, which is named in its measurements and is held to these bounds. Returns its
    /// figures.
    pub(crate) fn take_over<'a>(
        &mut self,
        part: RunResult,
        rename: impl Fn(&str) -> String,
        thresholds: impl Iterator<Item = &'a Threshold> + Clone,
    ) -> Value {
        let mut figures = Value::Object(part.figures);
        parts::retitle(&mut figures, &rename);
        self.blocks.extend(part.blocks);
        self.checks.extend(part.checks.into_iter().map(|check| {
            let renamed = rename(&check.part);
            check.part(renamed)
        }));
        for part in parts::parts_of(&figures) {
            self.checks.extend(thresholds.clone().map(|threshold| threshold.judge(&part)));
        }
        figures
    }

    /// The worst of all checks.
    pub(crate) fn verdict(&self) -> Verdict {
        self.checks.iter().fold(Verdict::Passed, |verdict, check| verdict.and(check.verdict))
    }

    /// What was not printed yet.
    pub(crate) fn take_blocks(&mut self) -> Vec<Block> {
        std::mem::take(&mut self.blocks)
    }

    pub(crate) fn into_parts(self) -> (Value, Vec<Check>) {
        (Value::Object(self.figures), self.checks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_that_of_the_worst_check() {
        let mut result = RunResult::of("group");
        assert_eq!(result.verdict(), Verdict::Passed);
        result.check(Check::of_lab("late", "p99 ≤ 50 ms", false));
        assert_eq!(result.verdict(), Verdict::LabFellBehind);
        let measured = Measurement::of("part", &json!({ "lost": 1 }));
        result.measure("outcome", measured.check(Check::of_server("deliveries", "every receiver", false)));
        result.check(Check::of_server("presence", "no difference", true));
        assert_eq!(result.verdict(), Verdict::Failed);
        assert_eq!(result.into_parts().0["outcome"]["lost"], 1);
    }

    #[test]
    fn a_part_of_a_run_is_named_in_its_checks_and_held_to_its_thresholds() {
        let mut part = RunResult::of("group");
        let figures = json!({ "latency": { "p50": 1.0, "p99": 80.0 } });
        let measured = Measurement::of("ten", &figures).check(Check::of_server("deliveries", "every receiver", true));
        part.measure("outcome", measured);
        let mut whole = RunResult::of("run");
        #[allow(clippy::unwrap_used)]
        let bounds: Vec<Threshold> = vec!["p99<70".parse().unwrap()];
        let figures = whole.take_over(part, |title| format!("first: {title}"), bounds.iter());
        assert_eq!(figures["outcome"]["title"], "first: ten");
        assert_eq!(whole.verdict(), Verdict::ThresholdMissed);
        let (_, checks) = whole.into_parts();
        assert!(checks.iter().all(|check| check.part == "first: ten"), "{checks:?}");
    }
}
