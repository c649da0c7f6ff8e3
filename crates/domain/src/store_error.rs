//! The errors of the `Store` port and of its part for push.

/// Why a call of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing of the batch was stored; the caller may retry once the disk has room.
    #[error("the disk is full")]
    DiskFull,
    /// The store did not acknowledge the call. A commit may have been stored, which shows after a restart or reconnect;
    /// any other write was not stored. The caller may retry.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A write other than a commit was stored, or was not, or will be at any moment. The caller must call
    /// [`fence_writes`](crate::store::Store::fence_writes) and then read what is stored.
    #[error("the store may have taken it: {0}")]
    OutcomeUnknown(String),
    /// Stored bytes cannot be understood: an operator must act (`tidings check`).
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The requested part of the commit log is pruned: the node was away for longer than changes are kept.
    #[error("{0}")]
    Pruned(String),
    /// The term of the write is over: another node leads now, or will. Nothing was stored.
    #[error("another node leads")]
    StaleTerm,
}

/// The result of a call of the store.
pub type StoreResult<T> = Result<T, StoreError>;
