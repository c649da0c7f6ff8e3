//! Where members have read on, or have left, of the conversations that somebody watches for that: nothing is kept of others.

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use tidings_domain::model::ConversationNo;

#[derive(Default)]
pub(crate) struct ReadMoves {
    /// Whether anything is watched: all that a read costs otherwise.
    watches: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: FxHashSet<ConversationNo>,
    /// Some of the watched ones.
    moved: FxHashSet<ConversationNo>,
}

impl ReadMoves {
    /// Watches these conversations instead of others, and has each looked at once.
    pub(crate) fn watch_only(&self, conversations: impl Iterator<Item = ConversationNo>) {
        let mut state = self.state.lock();
        state.watched = conversations.collect();
        state.moved = state.watched.clone();
        self.watches.store(!state.watched.is_empty(), Ordering::Release);
    }

    /// Watches another conversation, and has it looked at once.
    pub(crate) fn watch(&self, conversation: ConversationNo) {
        let mut state = self.state.lock();
        state.watched.insert(conversation);
        state.moved.insert(conversation);
        self.watches.store(true, Ordering::Release);
    }

    /// Watches a conversation no longer.
    pub(crate) fn forget(&self, conversation: ConversationNo) {
        let mut state = self.state.lock();
        state.watched.remove(&conversation);
        state.moved.remove(&conversation);
        self.watches.store(!state.watched.is_empty(), Ordering::Release);
    }

    /// A member has read on in the conversation, or has left it.
    pub(crate) fn note(&self, conversation: ConversationNo) {
        if self.watches.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            if state.watched.contains(&conversation) {
                state.moved.insert(conversation);
            }
        }
    }

    /// Anything may have happened.
    pub(crate) fn note_all(&self) {
        if self.watches.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            state.moved = state.watched.clone();
        }
    }

    /// Some of the conversations in which somebody has read on since they were taken last.
    pub(crate) fn take(&self, limit: usize) -> Vec<ConversationNo> {
        if !self.watches.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let some: Vec<ConversationNo> = state.moved.iter().copied().take(limit).collect();
        for conversation in &some {
            state.moved.remove(conversation);
        }
        some
    }
}
