//! Which live users of this node have cleared a part of a conversation, so that entries which are handed out live show them
//! nothing of it.
//!
//! A user is registered before what the user has set is read, and forgotten with the last session. A change in between
//! makes a mark stale, and the lane that next needs the mark reads it again: an entry that is committed after the change shows
//! nothing of what was cleared.

use parking_lot::Mutex;
use roaring::RoaringTreemap;
use rustc_hash::{FxHashMap, FxHashSet};
use tidings_domain::{
    model::{ConversationNo, UserNo},
    store::StoreResult,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Up to this `seq`.
    Cleared(u64),
    /// To be read again; the number tells two changes apart.
    Stale(u64),
}

#[derive(Default)]
struct State {
    /// The numbers of live users: a bitmap takes about two bytes for each.
    live: RoaringTreemap,
    /// Of live users, the conversations that have marks of theirs. Few have cleared anything.
    conversations: FxHashMap<UserNo, FxHashSet<ConversationNo>>,
    marks: FxHashMap<ConversationNo, Vec<(UserNo, Mark)>>,
    changes: u64,
}

impl State {
    fn put(&mut self, user: UserNo, conversation: ConversationNo, mark: Mark) {
        if !self.live.contains(user.0) {
            return;
        }
        self.conversations.entry(user).or_default().insert(conversation);
        let marks = self.marks.entry(conversation).or_default();
        match marks.iter_mut().find(|(of, _)| *of == user) {
            Some((_, known)) => *known = mark,
            None => marks.push((user, mark)),
        }
    }

    fn remove(&mut self, user: UserNo, conversation: ConversationNo) {
        if let Some(marks) = self.marks.get_mut(&conversation) {
            marks.retain(|(of, _)| *of != user);
            if marks.is_empty() {
                self.marks.remove(&conversation);
            }
        }
    }

    fn mark(&self, user: UserNo, conversation: ConversationNo) -> Option<Mark> {
        let marks = self.marks.get(&conversation)?;
        marks.iter().find(|(of, _)| *of == user).map(|(_, mark)| *mark)
    }
}

#[derive(Default)]
pub(crate) struct ClearedMarks(Mutex<State>);

impl ClearedMarks {
    /// The user's marks are about to be read.
    pub(crate) fn begin(&self, user: UserNo) {
        self.0.lock().live.insert(user.0);
    }

    /// What was read: for each conversation of which the user has cleared a part, up to which `seq`. What has changed meanwhile
    /// stays stale.
    pub(crate) fn note_read(&self, user: UserNo, cleared: impl Iterator<Item = (ConversationNo, u64)>) {
        let mut state = self.0.lock();
        for (conversation, seq) in cleared.filter(|(_, seq)| *seq > 0) {
            if !matches!(state.mark(user, conversation), Some(Mark::Stale(_))) {
                state.put(user, conversation, Mark::Cleared(seq));
            }
        }
    }

    /// The user has set something for the conversation.
    pub(crate) fn note_changed(&self, user: UserNo, conversation: ConversationNo) {
        let mut state = self.0.lock();
        state.changes += 1;
        let mark = Mark::Stale(state.changes);
        state.put(user, conversation, mark);
    }

    /// Every user may have set something for every conversation: the marks that are known are read anew.
    pub(crate) fn note_all_changed(&self) {
        let mut state = self.0.lock();
        let known: Vec<(UserNo, ConversationNo)> = state
            .marks
            .iter()
            .flat_map(|(conversation, marks)| marks.iter().map(|(user, _)| (*user, *conversation)))
            .collect();
        for (user, conversation) in known {
            state.changes += 1;
            let mark = Mark::Stale(state.changes);
            state.put(user, conversation, mark);
        }
    }

    /// The user has no session here any more.
    pub(crate) fn forget(&self, user: UserNo) {
        let mut state = self.0.lock();
        state.live.remove(user.0);
        for conversation in state.conversations.remove(&user).into_iter().flatten() {
            state.remove(user, conversation);
        }
    }

    /// The live users who have cleared a part of the conversation, and up to which `seq`. `read` reads a stale mark from the
    /// store; of one that cannot be read everything counts as cleared.
    pub(crate) fn of(
        &self,
        conversation: ConversationNo,
        read: impl Fn(UserNo) -> StoreResult<u64>,
    ) -> Vec<(UserNo, u64)> {
        let marks = match self.0.lock().marks.get(&conversation) {
            Some(marks) => marks.clone(),
            None => return Vec::new(),
        };
        let seq_of = |(user, mark): (UserNo, Mark)| {
            let seq = match mark {
                Mark::Cleared(seq) => seq,
                Mark::Stale(_) => match read(user) {
                    Ok(seq) => {
                        self.settle(user, conversation, mark, seq);
                        seq
                    }
                    Err(error) => {
                        tracing::warn!(%error, "what a user has cleared cannot be read: the user is shown less");
                        u64::MAX
                    }
                },
            };
            (seq > 0).then_some((user, seq))
        };
        marks.into_iter().filter_map(seq_of).collect()
    }

    /// Replaces a stale mark by what was read, unless it has changed again.
    fn settle(&self, user: UserNo, conversation: ConversationNo, stale: Mark, seq: u64) {
        let mut state = self.0.lock();
        if state.mark(user, conversation) != Some(stale) {
            return;
        }
        if seq > 0 {
            state.put(user, conversation, Mark::Cleared(seq));
        } else {
            state.remove(user, conversation);
            if let Some(conversations) = state.conversations.get_mut(&user) {
                conversations.remove(&conversation);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidings_domain::store::StoreError;

    const ADA: UserNo = UserNo(1);
    const ROOM: ConversationNo = ConversationNo(7);

    fn never(_: UserNo) -> StoreResult<u64> {
        Err(StoreError::Unavailable("not to be read".into()))
    }

    #[test]
    fn a_mark_that_changed_is_read_again_and_only_then() {
        let marks = ClearedMarks::default();
        marks.note_changed(ADA, ROOM);
        assert_eq!(marks.of(ROOM, never), [], "a user without a session");
        marks.begin(ADA);
        marks.note_changed(ADA, ROOM);
        marks.note_read(ADA, [(ROOM, 3)].into_iter());
        assert_eq!(marks.of(ROOM, |_| Ok(5)), [(ADA, 5)], "what was read is older than the change");
        assert_eq!(marks.of(ROOM, never), [(ADA, 5)]);
        marks.note_changed(ADA, ROOM);
        assert_eq!(marks.of(ROOM, never), [(ADA, u64::MAX)], "nothing is shown that may be cleared");
        assert_eq!(marks.of(ROOM, |_| Ok(0)), []);
        marks.note_read(ADA, [(ROOM, 3)].into_iter());
        marks.forget(ADA);
        assert!(
            marks.0.lock().marks.is_empty()
                && marks.0.lock().live.is_empty()
                && marks.0.lock().conversations.is_empty()
        );
    }
}
