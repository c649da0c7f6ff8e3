//! Reading: who may read, and unread counts.

use crate::{
    engine::{Engine, list_line::ListLine, send::not_a_member},
    unread_counts::{UnreadCount, UnreadRange, count_unread},
};
use tidings_domain::{model::*, refusals::store_refusal};
use tidings_protocol::error::Refusal;

/// Entries of one conversation in one read, for a page of history: bounds the memory of a read.
pub(crate) const READ_AT_ONCE: usize = 100;

impl Engine {
    /// Refuses a user who is not a member of the conversation; app servers read everything.
    pub(crate) fn check_may_read(&self, actor: &Actor, conversation: &Conversation) -> Result<(), Refusal> {
        let Actor::User(user) = actor else { return Ok(()) };
        let is_member = match conversation.pair {
            Some((a, b)) => user.no == a || user.no == b,
            None => self.directory.membership(conversation.no, user.no).map_err(store_refusal)?.is_some(),
        };
        if is_member { Ok(()) } else { Err(not_a_member(&user.id, &conversation.id)) }
    }

    /// For each conversation, the messages of others that the user has not read. They are counted from the timelines,
    /// so that a count cannot drift.
    pub(crate) fn unread(&self, user: &User, lines: &[ListLine]) -> Result<Vec<UnreadCount>, Refusal> {
        let ranges = lines.iter().map(|line| UnreadRange::behind(&line.state, line.counted_after())).collect();
        count_unread(&*self.store, user, ranges).map_err(store_refusal)
    }
}
