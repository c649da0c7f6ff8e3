//! One thing that a run is held to, and whether it kept it.

use super::Verdict;
use serde::{Serialize, Serializer, ser::SerializeStruct};

/// One thing that a run is held to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Check {
    pub(crate) name: String,
    /// The part of the run, where it has several.
    pub(crate) part: String,
    pub(crate) bound: String,
    pub(crate) value: String,
    /// What this check alone makes of the run.
    pub(crate) verdict: Verdict,
}

impl Check {
    fn new(name: &str, bound: impl Into<String>, met: bool, missed: Verdict) -> Self {
        let verdict = if met { Verdict::Passed } else { missed };
        Check { name: name.to_owned(), part: String::new(), bound: bound.into(), value: String::new(), verdict }
    }

    /// What the server must keep in every run.
    pub(crate) fn of_server(name: &str, bound: impl Into<String>, met: bool) -> Self {
        Check::new(name, bound, met, Verdict::Failed)
    }

    /// What the lab must keep for the figures to be the server's.
    pub(crate) fn of_lab(name: &str, bound: impl Into<String>, met: bool) -> Self {
        Check::new(name, bound, met, Verdict::LabFellBehind)
    }

    /// A bound that the user has set.
    pub(crate) fn of_threshold(bound: String, met: bool) -> Self {
        Check::new("threshold", bound, met, Verdict::ThresholdMissed)
    }

    pub(crate) fn part(self, part: impl Into<String>) -> Self {
        Check { part: part.into(), ..self }
    }

    pub(crate) fn value(self, value: impl Into<String>) -> Self {
        Check { value: value.into(), ..self }
    }

    pub(crate) fn is_met(&self) -> bool {
        self.verdict == Verdict::Passed
    }

    pub(crate) fn is_threshold(&self) -> bool {
        self.name == "threshold"
    }

    /// Why it is not met, in a sentence.
    pub(crate) fn sentence(&self) -> String {
        let place = if self.part.is_empty() { String::new() } else { format!(" of {}", self.part) };
        let value = if self.value.is_empty() { "not so" } else { &self.value };
        let end = match self.verdict {
            Verdict::LabFellBehind => " The figures are the lab's limit and say nothing about the server.",
            _ => "",
        };
        format!("{}{place}: {}; measured: {value}.{end}", self.name, self.bound)
    }
}

/// As reports have it.
impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut check = serializer.serialize_struct("Check", 6)?;
        check.serialize_field("name", &self.name)?;
        check.serialize_field("part", &self.part)?;
        check.serialize_field("bound", &self.bound)?;
        check.serialize_field("value", &self.value)?;
        check.serialize_field("met", &self.is_met())?;
        check.serialize_field("verdict", self.verdict.name())?;
        check.end()
    }
}
