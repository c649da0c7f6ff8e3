//! A conversation of a user's list: its state, and what the user has set for it.

use tidings_domain::{chat_rows::Preferences, model::*, store::ConversationState};
use tidings_protocol::http::ListFilter;

/// A conversation of a user's list, with what the user has set for it.
#[derive(Debug, Clone)]
pub(crate) struct ListLine {
    pub(crate) state: ConversationState,
    pub(crate) preferences: Preferences,
}

/// The place of a line: pinned ones first, then the latest active.
pub(crate) type Place = (bool, Position, u64);

impl ListLine {
    pub(crate) fn place(&self) -> Place {
        (self.preferences.pinned_at != 0, self.state.head.last_position, self.state.conversation.0)
    }

    /// The last entry that does not count as unread.
    pub(crate) fn counted_after(&self) -> u64 {
        let Membership { read_seq, joined_seq, .. } = self.state.membership;
        read_seq.max(joined_seq).max(self.preferences.cleared_seq)
    }

    pub(crate) fn may_be_unread(&self) -> bool {
        self.state.head.last_seq > self.counted_after() || self.preferences.marked_unread
    }

    /// Whether the line may be in a list with this filter, before its entries are looked at.
    pub(crate) fn may_pass(&self, filter: Option<ListFilter>) -> bool {
        let is_archived = self.preferences.archived;
        let is_surely_hidden = self.preferences.hidden_at.is_some_and(|at| self.state.head.last_seq <= at);
        match filter {
            // Hidden ones, too: they are in no other list.
            Some(ListFilter::Archived) => is_archived,
            Some(ListFilter::Unread | ListFilter::Mentions) => {
                !is_archived && !is_surely_hidden && self.may_be_unread()
            }
            None => !is_archived && !is_surely_hidden,
        }
    }
}
