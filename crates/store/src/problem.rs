//! What is wrong with a data folder's files, and what helps.

use std::fmt;

/// What an operator can do about a problem; the later ones cost more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// A repair mends it, and nothing is lost.
    Mend,
    /// A repair goes on with what is left, and tells what is lost.
    Lose,
    /// Nothing but a backup.
    Restore,
}

/// One file that is not as it was left.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Within the data folder.
    pub file: String,
    pub what: String,
    pub remedy: Remedy,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}

/// Where a restore is told step by step.
pub(crate) const RESTORE: &str = "docs/operations/single-server.md#restore";

/// All that keeps a folder from being opened, with what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage(pub Vec<Problem>);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.0.first() {
            write!(f, "{first}")?;
        }
        if let more @ 1.. = self.0.len().saturating_sub(1) {
            write!(f, " (and {more} more)")?;
        }
        let remedy = self.0.iter().map(|problem| problem.remedy).max();
        match remedy {
            Some(Remedy::Mend) => {
                write!(f, "; `tidings check --repair` mends it without loss, `tidings check` lists what is wrong")
            }
            Some(Remedy::Lose) => write!(
                f,
                "; `tidings check` lists what is wrong. Restore a backup ({RESTORE}), or go on with what is left: \
                 `tidings check --repair` tells exactly what is lost"
            ),
            _ => write!(f, "; `tidings check` lists what is wrong. No repair can help: restore a backup ({RESTORE})"),
        }
    }
}
