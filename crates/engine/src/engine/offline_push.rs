//! Offline push, for callers: dead letters, and messages that a session did not acknowledge.

use crate::{engine::Engine, offline_recipients::OfflinePushContext, outbox, vendor_push::VendorPush};
use std::sync::Arc;
use tidings_domain::{model::*, refusals::store_refusal};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{
        DeadLetterPage, Replayed, SelectVendorDeadLetters, VendorDeadLetterPage, VendorDeadLettersDeleted,
        VendorDeadLettersReplayed,
    },
};

/// A session that has not answered, or has not acknowledged in time, what it was handed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentSession {
    /// The session's number at this node.
    pub session: u64,
    /// Whether the session goes on.
    pub stays: bool,
    /// Whether its client tells what it has stored.
    pub acknowledges: bool,
}

impl Engine {
    /// Whether messages to offline users go to a webhook or to vendors.
    pub fn has_offline_push(&self) -> bool {
        self.reach_stage.is_some()
    }

    /// Pushes offline the messages between `since` and `until` that a session of this node was sent and did not
    /// acknowledge, unless somebody looks at another session of the user, or, for a session that goes on and whose client
    /// acknowledges, unless another client of the user has stored them. Blocks.
    ///
    /// # Errors
    /// `store_unavailable` and `queue_full`: nothing was stored.
    pub fn push_unacknowledged(
        &self,
        user: &Arc<User>,
        SilentSession { session, stays, acknowledges }: SilentSession,
        since: &Cursor,
        until: [Position; LANES],
    ) -> Result<(), Refusal> {
        if !self.has_offline_push() {
            return Ok(());
        }
        let mut since = *since;
        if stays && acknowledges {
            let stored = self.stored_positions(user.no).map_err(store_refusal)?;
            since.positions.iter_mut().zip(stored).for_each(|(since, stored)| *since = stored.max(*since));
        } else if self.presence.is_active_elsewhere(user.no, session) {
            return Ok(());
        }
        let (_, handed) = self.read_inbox_entries(user.no, Some(&since), until)?;
        match &self.reach_stage {
            Some(reach_stage) => reach_stage.store_unacknowledged(user, stays, handed),
            None => Ok(()),
        }
    }

    /// A page of the notifications that vendors did not take, the oldest first. Blocks.
    ///
    /// # Errors
    /// `conflict` without a vendor; `not_found` for an unknown user; `limit_exceeded`; `store_unavailable`.
    pub fn vendor_dead_letters(
        &self,
        after: Option<u64>,
        limit: usize,
        select: &SelectVendorDeadLetters,
    ) -> Result<VendorDeadLetterPage, Refusal> {
        self.require_vendors()?.dead_letters(after, limit, select)
    }

    /// Has vendors try again what they did not take. A notification whose user has read the message meanwhile, has muted the
    /// conversation or is otherwise not to be told any more is removed. At the leader. Blocks.
    ///
    /// # Errors
    /// `conflict` without a vendor; `not_found` for an unknown dead letter or user; `invalid_field`; `limit_exceeded`;
    /// `node_unavailable` at a node that does not lead; `store_unavailable`: some may be replayed.
    pub fn replay_vendor_dead_letters(
        &self,
        select: &SelectVendorDeadLetters,
    ) -> Result<VendorDeadLettersReplayed, Refusal> {
        self.require_vendors()?.replay_dead_letters(select)
    }

    /// Deletes what vendors did not take. At the leader. Blocks.
    ///
    /// # Errors
    /// As [`Engine::replay_vendor_dead_letters`].
    pub fn delete_vendor_dead_letters(
        &self,
        select: &SelectVendorDeadLetters,
    ) -> Result<VendorDeadLettersDeleted, Refusal> {
        self.require_vendors()?.delete_dead_letters(select)
    }

    fn require_vendors(&self) -> Result<&VendorPush, Refusal> {
        self.vendor_push.as_ref().ok_or_else(|| Refusal::new(ErrorCode::Conflict, "no vendor is set up"))
    }

    pub(super) fn offline_push_context(&self) -> &OfflinePushContext {
        &self.reach_context
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
