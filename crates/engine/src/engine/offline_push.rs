//! Offline push, for callers: dead letters, and messages that a session did not acknowledge.

use crate::{engine::Engine, outbox};
use std::sync::Arc;
use tidings_domain::model::*;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{DeadLetterPage, Replayed},
};

impl Engine {
    /// Whether messages to offline users go to a webhook or to vendors.
    pub fn has_offline_push(&self) -> bool {
        self.outbox.is_some() || self.vendor_push.is_some()
    }

    /// Pushes offline the messages between `since` and `until` that a session of this node was sent and did not
    /// acknowledge, unless the user has another session that receives messages. `stays`: the session goes on. Blocks.
    ///
    /// # Errors
    /// `store_unavailable` and `queue_full`: nothing was stored.
    pub fn push_unacknowledged(
        &self,
        user: &Arc<User>,
        (session, stays): (u64, bool),
        since: &Cursor,
        until: [Position; LANES],
    ) -> Result<(), Refusal> {
        if !self.has_offline_push() || self.presence.has_other_chat_session(user.no, session) {
            return Ok(());
        }
        let (_, handed) = self.read_inbox_entries(user.no, Some(since), until)?;
        if let Some(vendor_push) = &self.vendor_push {
            vendor_push.store_unacknowledged(user, stays, &handed)?;
        }
        match &self.outbox {
            Some(outbox) => outbox.store_unacknowledged(user, stays, handed),
            None => Ok(()),
        }
    }

    /// A page of the dead letters, oldest first.
    ///
    /// # Errors
    /// `limit_exceeded`; `store_unavailable`.
    pub fn dead_letters(&self, after: Option<u64>, limit: usize) -> Result<DeadLetterPage, Refusal> {
        outbox::dead_letters(&*self.store, after, limit)
    }

    /// Queues dead letters for another delivery: the named ones, or all. Each is tried once, by itself, so that
    /// one that fails holds up none of the others. A dead letter stays listed until it is delivered.
    ///
    /// # Errors
    /// `conflict` without a webhook; `not_found` for an unknown id; `queue_full`; `store_unavailable`.
    pub async fn replay_dead_letters(&self, ids: Option<Vec<u64>>) -> Result<Replayed, Refusal> {
        match &self.outbox {
            Some(outbox) => outbox.replay(ids),
            None => Err(Refusal::new(ErrorCode::Conflict, "no webhook is configured")),
        }
    }
}
