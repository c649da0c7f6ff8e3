//! Which conversations' notifications devices of users may still show, so that reading and recalls take them away: an index in
//! memory of the rows that the providers' workers write, and what was read or recalled since the notification stage looked last.

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{VecDeque, hash_map::Entry};
use tidings_domain::model::{ConversationNo, UserNo};

/// Conversations of users in the index. Full: each read is looked up in the store.
const SHOWN_MAX: usize = 200_000;
/// Reads that wait for the stage. Full: the stage looks at all rows instead.
const READ_MAX: usize = 50_000;
/// Messages that were recalled last, of which a provider may be accepting a notification just now.
const RECALLED_MAX: usize = 10_000;

type OfUser = (UserNo, ConversationNo);

/// Tells apart what was noted of a user and conversation before and after a look at the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted(u32);

#[derive(Default)]
struct State {
    /// While this node leads.
    is_on: bool,
    /// All rows are in the index.
    is_complete: bool,
    shown: FxHashMap<ConversationNo, FxHashMap<UserNo, Noted>>,
    /// Users of all conversations.
    shown_count: usize,
    /// The last number of a note.
    last_noted: u32,
    recalled: FxHashSet<(ConversationNo, u64)>,
    /// In the order in which they are forgotten.
    recalled_order: VecDeque<(ConversationNo, u64)>,
    read: FxHashSet<OfUser>,
    has_missed: bool,
}

impl State {
    fn is_shown(&self, user: UserNo, conversation: ConversationNo) -> bool {
        self.shown.get(&conversation).is_some_and(|users| users.contains_key(&user))
    }

    /// Has the stage look at what the user's devices show of the conversation.
    fn look_at(&mut self, user: UserNo, conversation: ConversationNo) {
        if self.read.len() < READ_MAX {
            self.read.insert((user, conversation));
        } else {
            self.has_missed = true;
        }
    }
}

#[derive(Default)]
pub struct ShownIndex(Mutex<State>);

impl ShownIndex {
    /// This node leads, and is about to read all rows.
    pub fn begin(&self) {
        *self.0.lock() = State { is_on: true, ..State::default() };
    }

    /// This node does not lead any more.
    pub fn end(&self) {
        *self.0.lock() = State::default();
    }

    /// All rows are noted as shown.
    pub fn note_complete(&self) {
        let mut state = self.0.lock();
        state.is_complete = state.shown_count < SHOWN_MAX;
    }

    /// A device of the user shows a message.
    pub fn note_shown(&self, user: UserNo, conversation: ConversationNo, seq: u64) {
        let mut state = self.0.lock();
        if state.is_on && (state.shown_count < SHOWN_MAX || state.is_shown(user, conversation)) {
            state.last_noted = state.last_noted.wrapping_add(1);
            let noted = Noted(state.last_noted);
            let is_new = state.shown.entry(conversation).or_default().insert(user, noted).is_none();
            state.shown_count += usize::from(is_new);
        } else {
            state.is_complete = false;
        }
        if state.recalled.contains(&(conversation, seq)) {
            state.look_at(user, conversation);
        }
    }

    /// What was noted last of the user and conversation.
    pub fn noted(&self, user: UserNo, conversation: ConversationNo) -> Option<Noted> {
        self.0.lock().shown.get(&conversation)?.get(&user).copied()
    }

    /// No device shows it any more, according to rows that were read after `before` was noted. What was noted meanwhile stays.
    pub fn forget(&self, user: UserNo, conversation: ConversationNo, before: Noted) {
        let mut state = self.0.lock();
        let Entry::Occupied(mut users) = state.shown.entry(conversation) else { return };
        if users.get().get(&user) != Some(&before) {
            return;
        }
        users.get_mut().remove(&user);
        if users.get().is_empty() {
            users.remove();
        }
        state.shown_count -= 1;
    }

    /// The user has read in the conversation. By far most reads are of what nothing is shown of.
    pub fn note_read(&self, user: UserNo, conversation: ConversationNo) {
        let mut state = self.0.lock();
        if state.is_on && (!state.is_complete || state.is_shown(user, conversation)) {
            state.look_at(user, conversation);
        }
    }

    /// A message was recalled: whoever is shown something of its conversation may be shown the message.
    pub(crate) fn note_recalled(&self, conversation: ConversationNo, seq: u64) {
        let mut state = self.0.lock();
        if !state.is_on {
            return;
        }
        if state.recalled.insert((conversation, seq)) {
            state.recalled_order.push_back((conversation, seq));
        }
        if state.recalled_order.len() > RECALLED_MAX
            && let Some(oldest) = state.recalled_order.pop_front()
        {
            state.recalled.remove(&oldest);
        }
        if !state.is_complete {
            state.has_missed = true;
            return;
        }
        let users: Vec<UserNo> =
            state.shown.get(&conversation).into_iter().flat_map(FxHashMap::keys).copied().collect();
        users.into_iter().for_each(|user| state.look_at(user, conversation));
    }

    /// What was read may have been missed: the stage looks at all rows.
    pub fn note_missed(&self) {
        self.0.lock().has_missed = true;
    }

    /// Takes some of what was read since, and whether more was read than found room.
    pub fn take_read(&self, most: usize) -> (Vec<OfUser>, bool) {
        let mut state = self.0.lock();
        let taken: Vec<OfUser> = state.read.iter().take(most).copied().collect();
        for of_user in &taken {
            state.read.remove(of_user);
        }
        (taken, std::mem::take(&mut state.has_missed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEN: UserNo = UserNo(1);
    const ROOM: ConversationNo = ConversationNo(2);

    fn complete_index() -> ShownIndex {
        let index = ShownIndex::default();
        index.begin();
        index.note_complete();
        index
    }

    #[test]
    fn what_is_stored_while_the_rows_are_read_is_not_forgotten() {
        let index = complete_index();
        index.note_shown(BEN, ROOM, 1);
        let noted = index.noted(BEN, ROOM).expect("it was noted");
        // The rows are read here, and a worker stores one.
        index.note_shown(BEN, ROOM, 2);
        index.forget(BEN, ROOM, noted);
        index.note_read(BEN, ROOM);
        assert_eq!(index.take_read(10).0, [(BEN, ROOM)]);
    }

    #[test]
    fn reads_of_what_no_device_shows_are_not_looked_at() {
        let index = complete_index();
        index.note_shown(BEN, ROOM, 1);
        let noted = index.noted(BEN, ROOM).expect("it was noted");
        index.forget(BEN, ROOM, noted);
        index.note_read(BEN, ROOM);
        assert_eq!((index.noted(BEN, ROOM), index.take_read(10).0), (None, Vec::new()));
    }
}
