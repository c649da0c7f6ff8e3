//! One measured part of a run: its figures, and what it is held to.

use super::{
    Check, Threshold, Verdict,
    line::{PrintedMeasurement, fill, find},
    parts::Part,
};
use crate::latency::Percentiles;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Which figures of a kind of measurement are printed, and how. What is printed is always a figure, so that every report has it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Layout {
    /// What each line is about, and its text with the names of figures: see [`fill`].
    pub(crate) lines: &'static [(&'static str, &'static str)],
    /// Latencies by their names among the figures.
    pub(crate) percentiles: &'static [(&'static str, &'static str)],
}

/// One measured part of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measurement {
    figures: Map<String, Value>,
    layout: Layout,
    remarks: Vec<String>,
    checks: Vec<Check>,
    /// Connections that break, and the like, are what this run is about, and are not printed.
    hides_problems: bool,
}

impl Measurement {
    /// These figures, which are an object.
    pub(crate) fn of(title: &str, figures: &impl Serialize) -> Self {
        let figures = match json!(figures) {
            Value::Object(figures) => figures,
            _ => Map::new(),
        };
        Measurement { figures, ..Measurement::default() }.titled(title)
    }

    /// Has it under this title, which its checks name.
    pub(crate) fn titled(mut self, title: &str) -> Self {
        self.figures.insert("title".into(), title.into());
        self.checks.iter_mut().filter(|check| !check.name.starts_with("the agent")).for_each(|check| {
            check.part = title.to_owned();
        });
        self
    }

    pub(crate) fn layout(self, layout: &Layout) -> Self {
        Measurement { layout: *layout, ..self }
    }

    /// One more figure.
    pub(crate) fn set(mut self, name: &str, value: impl Serialize) -> Self {
        self.figures.insert(name.to_owned(), json!(value));
        self
    }

    /// A line that is no figure.
    pub(crate) fn remark(mut self, text: impl Into<String>) -> Self {
        self.remarks.push(text.into());
        self
    }

    /// Prints what is wrong only if it is a fault.
    pub(crate) fn hide_problems(self) -> Self {
        Measurement { hides_problems: true, ..self }
    }

    pub(crate) fn check(mut self, check: Check) -> Self {
        let part = if check.part.is_empty() { self.title().to_owned() } else { check.part.clone() };
        self.checks.push(check.part(part));
        self
    }

    /// Is held to nothing: what something is compared with.
    pub(crate) fn without_checks(self) -> Self {
        Measurement { checks: Vec::new(), ..self }
    }

    /// Keeps of its checks those that say something about the lab: what failed is what a search was to find.
    pub(crate) fn without_failures(mut self) -> Self {
        self.checks.retain(|check| check.verdict != Verdict::Failed);
        self
    }

    /// That the lab is late is no fault here: the load only keeps the server busy, or nothing of it is measured in time.
    pub(crate) fn may_be_late(mut self) -> Self {
        self.checks.retain(|check| check.verdict != Verdict::LabFellBehind);
        self
    }

    /// Entries must reach every receiver once, in order and unaltered. `balances`: whether they did, by the verifier's own account.
    pub(crate) fn balance(self, balances: bool) -> Self {
        let value = self.part().balance().unwrap_or_default();
        let bound = "every receiver has every entry once, in order, unaltered";
        self.set("balances", balances).check(Check::of_server("deliveries", bound, balances).value(value))
    }

    /// The lab must have kept its own schedule.
    pub(crate) fn punctual(self, lateness: &Percentiles, lag_max_ms: f64) -> Self {
        // Some runs measure nothing in time.
        if lag_max_ms > f64::from(u32::MAX) {
            return self;
        }
        let lag = lateness.p99;
        let check = Check::of_lab("the lab's own lag", format!("p99 ≤ {lag_max_ms} ms"), lag <= lag_max_ms);
        self.check(check.value(format!("{lag:.2} ms")))
    }

    /// Holds it to bounds of its own.
    pub(crate) fn thresholds<'a>(mut self, thresholds: impl Iterator<Item = &'a Threshold>) -> Self {
        let checks: Vec<Check> = thresholds.map(|threshold| threshold.judge(&self.part())).collect();
        self.checks.extend(checks);
        self
    }

    pub(crate) fn title(&self) -> &str {
        self.figures.get("title").and_then(Value::as_str).unwrap_or_default()
    }

    /// A line with figures of it.
    pub(crate) fn filled(&self, line: &str) -> String {
        fill(line, &self.figures).unwrap_or_default()
    }

    pub(crate) fn part(&self) -> Part<'_> {
        Part::of(self.title(), &self.figures)
    }

    /// What its checks alone make of the run.
    pub(crate) fn verdict(&self) -> Verdict {
        self.checks.iter().fold(Verdict::Passed, |verdict, check| verdict.and(check.verdict))
    }

    pub(crate) fn printed(&self) -> PrintedMeasurement {
        let lines = self.layout.lines.iter();
        let lines = lines.filter_map(|(about, line)| Some(((*about).to_owned(), fill(line, &self.figures)?)));
        let percentiles = self.layout.percentiles.iter().filter_map(|(name, path)| {
            let percentiles: Percentiles = serde_json::from_value(find(&self.figures, path)?.clone()).ok()?;
            (percentiles != Percentiles::default()).then(|| ((*name).to_owned(), percentiles))
        });
        let problems = find(&self.figures, "problems").filter(|_| !self.hides_problems);
        let problems = problems.and_then(Value::as_array).into_iter().flatten();
        PrintedMeasurement {
            title: self.title().to_owned(),
            lines: lines.collect(),
            percentiles: percentiles.collect(),
            remarks: self.remarks.clone(),
            problems: problems.filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    pub(crate) fn into_parts(self) -> (Value, Vec<Check>) {
        (Value::Object(self.figures), self.checks)
    }
}
