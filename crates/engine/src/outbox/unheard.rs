//! What a session was handed and did not answer for: noted in the store by the node that held the session, handed out by
//! the one that leads.

use super::{
    events::Expansion,
    parking::{STAYS, UNHEARD},
};
use crate::{
    commit::store_refusal,
    engine::Engine,
    model::*,
    store::{DeadNotification, OutboxItem, Proposal},
};
use std::sync::Arc;
use tidings_protocol::{entry::EntryKind, error::Refusal};

/// Of one session; who missed more is told of the newest, and gets all when the app is opened.
const EVENTS_MAX: usize = 100;

impl Engine {
    /// Whether who is offline is told by a webhook.
    pub fn pushes_offline(&self) -> bool {
        self.outbox.worker.get().is_some()
    }

    /// A session of this node was handed everything between `since` and `until`, and nothing was heard of it since: unless the
    /// user has another that messages come to, it goes out by offline push. `stays`: the session is not over. Blocks.
    pub fn push_unheard(
        &self,
        user: &Arc<User>,
        (session, stays): (u64, bool),
        since: &Cursor,
        until: [Position; LANES],
    ) -> Result<(), Refusal> {
        if !self.pushes_offline() || self.presence.has_other_chat_session(user.no, session) {
            return Ok(());
        }
        let (_, handed) = self.read_inbox_entries(user.no, Some(since), until)?;
        let is_pushed = |entry: &StoredEntry| {
            let content = &entry.content;
            content.kind == EntryKind::Message && !content.silent && !content.skip_push
        };
        let handed: Vec<_> = handed.into_iter().filter(|(_, entry)| is_pushed(entry)).collect();
        // Whichever node notes it, and however often: other keys each time.
        let chance = (rand::random::<u64>() >> 4) & !(EVENTS_MAX.next_power_of_two() as u64 - 1);
        let first = UNHEARD | chance | if stays { STAYS } else { 0 };
        let mut rows = Vec::new();
        for (conversation, entry) in handed.iter().rev() {
            if rows.len() == EVENTS_MAX {
                break;
            }
            let item = OutboxItem { position: entry.position, conversation: conversation.no, seq: entry.seq };
            let Some(mut expansion) = Expansion::of(self, &item, 1).map_err(store_refusal)? else { continue };
            if let Some(event) = expansion.only_for(self, user).map_err(store_refusal)? {
                // The newest comes first here, and is handed out last.
                let place = (EVENTS_MAX - 1 - rows.len()) as u64;
                rows.push(DeadNotification {
                    id: first | place,
                    failed_at: self.clock.now_ms(),
                    attempts: 0,
                    last_error: String::new(),
                    event: event.json.get().to_owned(),
                });
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.metrics.outbox_unheard.inc_by(rows.len() as u64);
        self.committer.propose_blocking(Proposal::AdvanceOutbox { through: 0, dead: rows }).map(|_| ())
    }
}
