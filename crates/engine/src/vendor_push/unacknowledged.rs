//! Messages that a session was sent and did not acknowledge. The node that holds the session stores them; the leader makes them
//! notifications for vendors.

use super::{VendorPush, jobs::JobWriter, target_of};
use crate::{
    offline_recipients::{
        FOR_VENDORS, OfflinePushContext, OfflineRecipients, SESSION_STAYS, UNACKNOWLEDGED_IDS, unacknowledged_rows,
    },
    reach_trace::{Record, Source, Whom},
};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, sync::Arc};
use tidings_domain::{leadership::Term, model::*, push_tokens::tokens_of, refusals::store_refusal, store::*};
use tidings_protocol::{
    entry::EntryKind,
    error::Refusal,
    http::{PushVendor, ReachOutcome},
    limits::PUSH_TOKENS_PER_USER_MAX,
};

/// Messages of one session. Of more only the newest are told; they collapse by conversation anyway.
const MESSAGES_MAX: usize = 100;
/// Rows taken at once.
const ROWS_AT_ONCE: usize = 100;
/// Parts from here on are of such messages, one for each user.
const FIRST_PART: u64 = 1 << 62;

/// What a node has stored of one message.
#[derive(Serialize, Deserialize)]
struct Unacknowledged {
    user: u64,
    conversation: u64,
    seq: u64,
}

impl VendorPush {
    /// Stores the messages among these entries, oldest first, that a session of this user was sent and did not acknowledge.
    /// `stays`: the session goes on. Blocks.
    ///
    /// # Errors
    /// `store_unavailable` and `queue_full`: nothing was stored.
    pub(crate) fn store_unacknowledged(
        &self,
        user: &User,
        stays: bool,
        handed: &[(Arc<Conversation>, StoredEntry)],
    ) -> Result<(), Refusal> {
        let context = &*self.context;
        let tokens = tokens_of(&*context.store, user.no, 1).map_err(store_refusal)?;
        if tokens.is_empty() {
            return Ok(());
        }
        let is_pushed = |entry: &StoredEntry| {
            let content = &entry.content;
            content.kind == EntryKind::Message && !content.silent && !content.skip_push
        };
        // Of each conversation only the newest message: a notification replaces the one before it.
        let mut newest: HashMap<ConversationNo, u64> = HashMap::new();
        for (conversation, entry) in handed.iter().filter(|(_, entry)| is_pushed(entry)) {
            newest.insert(conversation.no, entry.seq);
        }
        // Random ids, so that nodes that store messages at the same time do not use the same ones.
        let chance = (rand::random::<u64>() >> 5) & !(MESSAGES_MAX.next_power_of_two() as u64 - 1);
        let first = UNACKNOWLEDGED_IDS | FOR_VENDORS | chance | if stays { SESSION_STAYS } else { 0 };
        let rows: Vec<DeadNotification> = (first..)
            .zip(newest)
            .take(MESSAGES_MAX)
            .map(|(id, (conversation, seq))| DeadNotification {
                id,
                failed_at: context.clock.now_ms(),
                attempts: 0,
                last_error: String::new(),
                event: serde_json::to_string(&Unacknowledged { user: user.no.0, conversation: conversation.0, seq })
                    .unwrap_or_default(),
            })
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        context.committer.propose_blocking(Proposal::AdvanceOutbox { through: 0, dead: rows }).map(drop)
    }
}

/// Makes what nodes have stored notifications for vendors; answers whether there was anything.
pub(super) fn take(context: &OfflinePushContext, vendors: &[PushVendor], term: Term) -> StoreResult<bool> {
    let rows = unacknowledged_rows(&*context.store, FOR_VENDORS, ROWS_AT_ONCE)?;
    if rows.is_empty() {
        return Ok(false);
    }
    let mut changes = Vec::new();
    for row in &rows {
        let Ok(stored) = serde_json::from_str::<Unacknowledged>(&row.event) else { continue };
        let (user, conversation) = (UserNo(stored.user), ConversationNo(stored.conversation));
        let stays = row.id & SESSION_STAYS != 0;
        // A user with a new session has got the message again.
        if !stays && context.presence.is_active(user) {
            continue;
        }
        let Some(found) = OfflineRecipients::of(context, conversation, stored.seq)? else { continue };
        let record = Record { whom: Whom::User(user.0), outcome: ReachOutcome::Unacknowledged, cause: None };
        let source = Source::Search { part: FIRST_PART | user.0 };
        context.trace.add((conversation, stored.seq), source, row.failed_at, [record], &mut changes);
        let tokens = tokens_of(&*context.store, user, PUSH_TOKENS_PER_USER_MAX)?;
        for vendor in vendors {
            let mut writer =
                JobWriter::new(*vendor, &found.entry, conversation, FIRST_PART | user.0 << 8).even_online(stays);
            for (_, token) in tokens.iter().filter(|(_, token)| token.token.vendor() == *vendor) {
                writer.add(target_of(token.clone()), &mut changes);
            }
            writer.finish(&mut changes);
        }
    }
    context.store.write_rows(term, RowSpace::Chat, changes)?;
    let ids = rows.iter().map(|row| row.id).collect();
    // A refusal does no harm: they are taken again, and become the same notifications.
    Ok(context.committer.propose_blocking(Proposal::DeleteDeadLetters { ids }).is_ok())
}
