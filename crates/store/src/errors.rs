//! Errors of the embedded store: why a data folder does not open, and what callers of the store learn of the engine's
//! errors.

use crate::{
    damage::{DamageReport, RESTORE},
    kv::KvError,
};
use std::path::PathBuf;
use tidings_domain::store::StoreError;

/// Why a data folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    #[error("the data folder has format {found}, this version knows {known}")]
    Format { found: u32, known: u32 },
    #[error(
        "the gate {0:?} is open in the data folder, and this program does not know it: a newer program has written what this one \
         cannot read. Start the newer program, or restore a backup from before"
    )]
    UnknownGate(String),
    /// Acknowledged data is damaged or missing.
    #[error("{0}")]
    Damaged(DamageReport),
    /// The files hold what was written to them, and still the engine does not open them or lacks a row that it needs.
    #[error(
        "{0}; `tidings check` verifies the whole folder; if it finds nothing to repair, restore a backup ({RESTORE})"
    )]
    Engine(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// An error of the engine while the folder is opened or repaired.
pub(crate) fn open_error(error: KvError) -> OpenError {
    match error {
        KvError::Io(error) => OpenError::Io(error),
        other => OpenError::Engine(other.to_string()),
    }
}

/// An error of the engine while the store serves.
pub(crate) fn store_error(error: KvError) -> StoreError {
    match error {
        KvError::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => StoreError::DiskFull,
        KvError::Io(error) => StoreError::Unavailable(error.to_string()),
        KvError::Engine(error) => StoreError::Unavailable(error),
        KvError::Damaged(what) => StoreError::Damaged(what),
        KvError::Stopped => StoreError::Unavailable(error.to_string()),
    }
}
