//! Which conversations' notifications devices of users may still show, so that reading takes them away: an index in memory of the
//! rows that the vendors' workers write, and what was read since the reach stage looked last.

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use tidings_domain::model::{ConversationNo, UserNo};

/// Conversations of users in the index. Full: each read is looked up in the store.
const SHOWN_MAX: usize = 200_000;
/// Reads that wait for the stage. Full: the stage looks at all rows instead.
const READ_MAX: usize = 50_000;

type OfUser = (UserNo, ConversationNo);

#[derive(Default)]
struct State {
    /// While this node leads.
    is_on: bool,
    /// All rows are in the index.
    is_complete: bool,
    shown: FxHashSet<OfUser>,
    read: FxHashSet<OfUser>,
    has_missed: bool,
}

#[derive(Default)]
pub(crate) struct ShownIndex(Mutex<State>);

impl ShownIndex {
    /// This node leads, and is about to read all rows.
    pub(crate) fn begin(&self) {
        *self.0.lock() = State { is_on: true, ..State::default() };
    }

    /// This node does not lead any more.
    pub(crate) fn end(&self) {
        *self.0.lock() = State::default();
    }

    /// All rows are noted as shown.
    pub(crate) fn note_complete(&self) {
        let mut state = self.0.lock();
        state.is_complete = state.shown.len() < SHOWN_MAX;
    }

    pub(crate) fn note_shown(&self, user: UserNo, conversation: ConversationNo) {
        let mut state = self.0.lock();
        if state.is_on && (state.shown.len() < SHOWN_MAX || state.shown.contains(&(user, conversation))) {
            state.shown.insert((user, conversation));
        } else {
            state.is_complete = false;
        }
    }

    /// No device shows it any more.
    pub(crate) fn forget(&self, user: UserNo, conversation: ConversationNo) {
        self.0.lock().shown.remove(&(user, conversation));
    }

    /// The user has read in the conversation. By far most reads are of what nothing is shown of.
    pub(crate) fn note_read(&self, user: UserNo, conversation: ConversationNo) {
        let mut state = self.0.lock();
        if !state.is_on || state.is_complete && !state.shown.contains(&(user, conversation)) {
            return;
        }
        if state.read.len() < READ_MAX {
            state.read.insert((user, conversation));
        } else {
            state.has_missed = true;
        }
    }

    /// Takes some of what was read since, and whether more was read than found room.
    pub(crate) fn take_read(&self, most: usize) -> (Vec<OfUser>, bool) {
        let mut state = self.0.lock();
        let taken: Vec<OfUser> = state.read.iter().take(most).copied().collect();
        for of_user in &taken {
            state.read.remove(of_user);
        }
        (taken, std::mem::take(&mut state.has_missed))
    }
}
