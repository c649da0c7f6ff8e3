//! Lines of users' lists that have changed otherwise than by an entry, gathered until they are sent to the users' sessions.

use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::sync::OnceLock;
use tidings_domain::{commit_log::Change, model::*};

/// Lines, and conversations with other details, that wait. Full: further ones are not sent; clients see them when they read
/// the list.
const LINES_MAX: usize = 50_000;
const DETAILS_MAX: usize = 5_000;

/// A conversation in a user's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ListLineNo {
    pub user: UserNo,
    pub conversation: ConversationNo,
}

/// Whether a user has a session on this node.
type IsHere = Box<dyn Fn(UserNo) -> bool + Send + Sync>;

/// What waits.
#[derive(Default)]
pub(crate) struct ListChanges {
    /// Lines of users without a session are not gathered: a session that begins later reads the list as it is then.
    is_here: OnceLock<IsHere>,
    lines: Mutex<FxHashSet<ListLineNo>>,
    details: Mutex<FxHashSet<ConversationNo>>,
}

impl ListChanges {
    /// Sets how it is known who has a session on this node. Before, nobody has one.
    pub(crate) fn set_presence(&self, is_here: IsHere) {
        let _ = self.is_here.set(is_here);
    }

    fn is_here(&self, user: UserNo) -> bool {
        self.is_here.get().is_some_and(|is_here| is_here(user))
    }

    /// Takes note of what a commit has changed, on whichever node.
    pub(crate) fn note_change(&self, change: &Change) {
        match change {
            Change::Mute { conversation, user } | Change::Read { conversation, user, .. } => {
                self.note(ListLineNo { user: *user, conversation: *conversation });
            }
            Change::Members { conversation, joined, changed, .. } => {
                for user in joined.iter().chain(changed) {
                    self.note(ListLineNo { user: *user, conversation: *conversation });
                }
            }
            Change::Conversation(conversation) => {
                let mut details = self.details.lock();
                if details.len() < DETAILS_MAX {
                    details.insert(*conversation);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn note(&self, line: ListLineNo) {
        if !self.is_here(line.user) {
            return;
        }
        let mut lines = self.lines.lock();
        if lines.len() < LINES_MAX {
            lines.insert(line);
        }
    }

    pub(crate) fn take_changed_details(&self) -> FxHashSet<ConversationNo> {
        std::mem::take(&mut *self.details.lock())
    }

    /// Takes at most so many lines. Those of users who have gone meanwhile are dropped.
    pub(crate) fn take_lines(&self, most: usize) -> Vec<ListLineNo> {
        let mut waiting = std::mem::take(&mut *self.lines.lock());
        waiting.retain(|line| self.is_here(line.user));
        let taken: Vec<ListLineNo> = waiting.iter().take(most).copied().collect();
        for line in &taken {
            waiting.remove(line);
        }
        waiting.into_iter().for_each(|line| self.note(line));
        taken
    }

    /// What waits, by the name of the metric, with the limit.
    pub(crate) fn depth(&self) -> (&'static str, usize, usize) {
        ("list_changes", self.lines.lock().len(), LINES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_users_who_are_elsewhere_are_dropped_and_the_rest_waits_its_turn() {
        let changes = ListChanges::default();
        changes.set_presence(Box::new(|user| user.0 % 2 == 1));
        let read = |user| Change::Read { conversation: ConversationNo(7), user: UserNo(user), seq: 3 };
        (0..9).map(read).for_each(|change| changes.note_change(&change));
        changes.note_change(&read(1));
        assert_eq!(changes.take_lines(3).len(), 3, "of four");
        assert_eq!(changes.take_lines(3).len(), 1);
        assert_eq!(changes.take_lines(3), []);
    }

    #[test]
    fn lines_beyond_the_bound_are_passed_over() {
        let changes = ListChanges::default();
        changes.set_presence(Box::new(|_| true));
        let joined = (0..LINES_MAX as u64 + 9).map(UserNo).collect();
        let (left, changed) = (vec![], vec![]);
        changes.note_change(&Change::Members { conversation: ConversationNo(7), joined, left, changed });
        assert_eq!(changes.depth().1, LINES_MAX);
    }
}
