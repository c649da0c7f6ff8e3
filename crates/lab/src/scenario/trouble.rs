//! What broke at a step of a search.

use crate::result::{Measurement, Threshold};
use serde::Serialize;

/// The reason why a step is not a good one. The first that applies is told, in this order.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "cause", content = "what", rename_all = "snake_case")]
pub(crate) enum Trouble {
    /// Something was lost, doubled, reordered or altered.
    Balance(String),
    /// The server has no descriptor left.
    Descriptors(String),
    LostConnections(u64),
    Refusals(String),
    /// The lab is the limit, not the server.
    Lab(String),
    Threshold(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Balance(what) => write!(f, "the balance: {what}"),
            Trouble::Descriptors(what) => write!(f, "the server's descriptors: {what}"),
            Trouble::LostConnections(count) => write!(f, "connections: {count} ended"),
            Trouble::Refusals(what) => write!(f, "the server refuses: {what}"),
            Trouble::Lab(what) => write!(f, "the lab itself: {what}"),
            Trouble::Threshold(what) => write!(f, "a threshold: {what}"),
        }
    }
}

impl Trouble {
    /// The first of these bounds that the figures miss.
    pub(crate) fn of_thresholds(thresholds: &[Threshold], measured: &Measurement) -> Option<Trouble> {
        let part = measured.part();
        let missed = thresholds.iter().map(|threshold| threshold.judge(&part)).find(|check| !check.is_met())?;
        Some(Trouble::Threshold(format!("{}, was {}", missed.bound, missed.value)))
    }
}
