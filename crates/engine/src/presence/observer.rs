//! The port by which changes of presence leave the engine: who tells the app of them is above it.

use tidings_domain::model::UserNo;

/// A user's presence as this node has announced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresenceState {
    pub online: bool,
    pub active: bool,
    pub at: u64,
    /// When this node announced the change.
    pub announced_at: u64,
}

/// Takes the changes that this node announces. Every node of a cluster keeps them, and the one that leads hands them on.
pub trait PresenceObserver: Send + Sync {
    fn announced(&self, changes: &[(UserNo, PresenceState)]);

    /// When the oldest change was announced that is not handed on.
    fn oldest_pending(&self) -> Option<u64>;

    /// Discards changes that were announced before this time: another node has handed them on.
    fn discard_before(&self, announced_at: u64);
}
