//! Rounds in three figures.

use serde_json::{Value, json};

/// The times of all rounds to the last receiver, in milliseconds.
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) worst: f64,
    pub(crate) best: f64,
}

impl Summary {
    pub(crate) fn of(rounds: &[f64]) -> Self {
        let mut rounds = rounds.to_vec();
        rounds.sort_by(f64::total_cmp);
        let at = |index: usize| rounds.get(index).copied().unwrap_or(f64::NAN);
        Summary { median: at(rounds.len() / 2), worst: at(rounds.len().saturating_sub(1)), best: at(0) }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "median": self.median, "worst": self.worst, "best": self.best })
    }
}
