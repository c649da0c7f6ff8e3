//! What is wrong with the files of a data folder, and what an operator can do about it.

use std::fmt;

/// What an operator can do about a fault, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Remedy {
    /// A repair mends the file, and no data is lost.
    #[serde(rename = "mend")]
    LosslessRepair,
    /// A repair keeps what can still be read, and reports what is lost.
    #[serde(rename = "lose")]
    LossyRepair,
    /// No repair can help; only a backup can.
    #[serde(rename = "restore")]
    RestoreBackup,
}

/// A file that is missing, damaged, or where it does not belong.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FileFault {
    /// The file's path in the data folder.
    pub file: String,
    pub what: String,
    pub remedy: Remedy,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.what)
    }
}

/// Where the documentation describes a restore step by step.
pub(crate) const RESTORE: &str = "docs/operations/single-server.md#restore";

/// All faults that keep a folder from being opened. Its text names the first fault and the dearest remedy of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamageReport(pub Vec<FileFault>);

impl fmt::Display for DamageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.0.first() {
            write!(f, "{first}")?;
        }
        if let more @ 1.. = self.0.len().saturating_sub(1) {
            write!(f, " (and {more} more)")?;
        }
        let remedy = self.0.iter().map(|fault| fault.remedy).max();
        match remedy {
            Some(Remedy::LosslessRepair) => {
                write!(f, "; `tidings check --repair` mends the folder without loss, `tidings check` lists all faults")
            }
            Some(Remedy::LossyRepair) => write!(
                f,
                "; `tidings check` lists all faults. Restore a backup ({RESTORE}), or keep what can still be read: \
                 `tidings check --repair` reports exactly what is lost"
            ),
            _ => write!(f, "; `tidings check` lists all faults. No repair can help: restore a backup ({RESTORE})"),
        }
    }
}
