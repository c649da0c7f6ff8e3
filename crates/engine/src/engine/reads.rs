//! Reading: who may read, and unread counts.

use crate::{
    Engine,
    lists::line::ListLine,
    unread_counts::{UnreadCount, UnreadRange, count_unread},
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::{not_a_member, store_refusal},
};
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
    /// so that a count cannot drift. Mentions are counted behind a capped count, too.
    pub(crate) fn unread(&self, user: &Arc<User>, lines: &[ListLine]) -> Result<Vec<UnreadCount>, Refusal> {
        let nos: Vec<_> = lines.iter().map(|line| line.state.conversation).collect();
        let details = self.directory.conversations(&nos).map_err(store_refusal)?;
        let range = |(line, details): (&ListLine, Option<Arc<Conversation>>)| {
            let is_importing = details.is_some_and(|details| details.is_importing());
            let counted_after = if is_importing { line.state.head.last_seq } else { line.counted_after() };
            UnreadRange::behind(&line.state, counted_after)
        };
        let ranges = lines.iter().zip(details).map(range).collect();
        let mut counts = count_unread(&*self.store, user, ranges).map_err(store_refusal)?;
        let capped = lines.iter().zip(&mut counts).filter(|(_, count)| count.capped);
        self.count_mentions_behind(user, capped.map(|(line, count)| (&line.state, count)).collect())?;
        Ok(counts)
    }
}
