//! Messages that a session was sent and did not acknowledge. The node that holds the session stores them; the leader
//! delivers them to the webhook.

use super::{Outbox, events::EventExpansion};
use crate::offline_recipients::{SESSION_STAYS, UNACKNOWLEDGED_IDS};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{DeadNotification, OutboxItem, Proposal},
};
use tidings_protocol::{entry::EntryKind, error::Refusal};

/// Events of one session. Of more messages only the newest are pushed; the app gets all when it is opened.
const EVENTS_MAX: usize = 100;

impl Outbox {
    /// Stores events of the messages among these entries, oldest first, that a session of this user was sent and did not
    /// acknowledge. `stays`: the session goes on. Blocks.
    ///
    /// # Errors
    /// `store_unavailable` and `queue_full`: nothing was stored.
    pub(crate) fn store_unacknowledged(
        &self,
        user: &User,
        stays: bool,
        handed: Vec<(Arc<Conversation>, StoredEntry)>,
    ) -> Result<(), Refusal> {
        let context = &*self.context;
        let is_pushed = |entry: &StoredEntry| {
            let content = &entry.content;
            content.kind == EntryKind::Message && !content.silent && !content.skip_push
        };
        let handed: Vec<_> = handed.into_iter().filter(|(_, entry)| is_pushed(entry)).collect();
        // Random ids, so that nodes that store events at the same time do not use the same ones.
        let chance = (rand::random::<u64>() >> 5) & !(EVENTS_MAX.next_power_of_two() as u64 - 1);
        let first = UNACKNOWLEDGED_IDS | chance | if stays { SESSION_STAYS } else { 0 };
        let mut rows = Vec::new();
        for (conversation, entry) in handed.iter().rev() {
            if rows.len() == EVENTS_MAX {
                break;
            }
            let item = OutboxItem { position: entry.position, conversation: conversation.no, seq: entry.seq };
            let Some(mut expansion) = EventExpansion::of(context, &item, 1).map_err(store_refusal)? else { continue };
            if let Some(event) = expansion.event_for(context, user).map_err(store_refusal)? {
                // This loop has the newest first; the ids put it last.
                let place = (EVENTS_MAX - 1 - rows.len()) as u64;
                rows.push(DeadNotification {
                    id: first | place,
                    failed_at: context.clock.now_ms(),
                    attempts: 0,
                    last_error: String::new(),
                    event: event.json.get().to_owned(),
                });
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        context.metrics.outbox_unheard.inc_by(rows.len() as u64);
        context.committer.propose_blocking(Proposal::AdvanceOutbox { through: 0, dead: rows }).map(|_| ())
    }
}
