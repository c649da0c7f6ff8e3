//! Messages that a session was sent and did not acknowledge. The node that holds the session stores them; the stage decides them
//! again.

use super::{
    ReachStage,
    decision::{Decision, DecisionScope},
    worker::Worker,
};
use crate::{
    offline_recipients::{Candidate, OfflineRecipients, is_recalled},
    reach_gate::Unwanted,
    reach_trace::{Record, Source},
    road_jobs::{PARTS_PER_USER, UNACKNOWLEDGED_PARTS},
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap, sync::Arc};
use tidings_domain::{leadership::Term, model::*, push_tokens::tokens_of, refusals::store_refusal, store::*};
use tidings_protocol::{
    entry::EntryKind,
    error::Refusal,
    http::{PolicyRoad, ReachOutcome},
};

/// Ids from here on, among those of stored notifications, are of messages that a session did not acknowledge.
const UNACKNOWLEDGED_IDS: u64 = 3 << 61;
/// The bit of those ids whose silent session goes on: that the user has a session does not make them obsolete.
const SESSION_STAYS: u64 = 1 << 60;
/// The bit of those ids that are for all roads. Those of older versions of the server are for the webhook, and have an event.
const FOR_ALL_ROADS: u64 = 1 << 59;
/// Messages of one session. Of more only the newest are told; the app gets all when it is opened.
const MESSAGES_MAX: usize = 100;
/// Rows taken at once.
const ROWS_AT_ONCE: usize = 100;

/// The parts of the rows of one user that belong to one road.
const PARTS_PER_ROAD: u64 = 8;

/// What a node has stored of one message.
#[derive(Serialize, Deserialize)]
struct Unacknowledged {
    user: u64,
    conversation: u64,
    seq: u64,
}

/// The fields of a stored event that say which message it is of.
#[derive(Deserialize)]
struct StoredEvent<'a> {
    #[serde(borrow)]
    entry: StoredEventEntry<'a>,
    recipients: Vec<String>,
}

#[derive(Deserialize)]
struct StoredEventEntry<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
    seq: u64,
}

impl ReachStage {
    /// Stores the messages among these entries, oldest first, that a session of this user was sent and did not acknowledge.
    /// `stays`: the session goes on. Blocks.
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
        let is_reachable = || tokens_of(&*context.store, user.no, 1).map(|tokens| !tokens.is_empty());
        let has_other = PolicyRoad::ALL.into_iter().any(|road| road != PolicyRoad::Vendors && self.roads.has(road));
        if !has_other && !is_reachable().map_err(store_refusal)? {
            return Ok(());
        }
        let is_pushed = |entry: &StoredEntry| {
            let content = &entry.content;
            content.kind == EntryKind::Message && !content.silent && !content.skip_push && !is_recalled(entry)
        };
        // Random ids, so that nodes that store messages at the same time do not use the same ones.
        let chance = (rand::random::<u64>() >> 5) & !(MESSAGES_MAX.next_power_of_two() as u64 - 1);
        let first = UNACKNOWLEDGED_IDS | FOR_ALL_ROADS | chance | if stays { SESSION_STAYS } else { 0 };
        let mut rows = Vec::new();
        for (conversation, entry) in handed.into_iter().rev().filter(|(_, entry)| is_pushed(entry)) {
            if rows.len() == MESSAGES_MAX {
                break;
            }
            let stored = Unacknowledged { user: user.no.0, conversation: conversation.no.0, seq: entry.seq };
            let found = OfflineRecipients::for_one(conversation, entry);
            if found.why_unwanted(context, user).map_err(store_refusal)?.is_some() {
                continue;
            }
            rows.push(DeadNotification {
                // This loop has the newest first; the ids put it last.
                id: first | (MESSAGES_MAX - 1 - rows.len()) as u64,
                failed_at: context.clock.now_ms(),
                attempts: 0,
                last_error: String::new(),
                event: serde_json::to_string(&stored).unwrap_or_default(),
            });
        }
        if rows.is_empty() {
            return Ok(());
        }
        context.metrics.outbox_unheard.inc_by(rows.len() as u64);
        context.committer.propose_blocking(Proposal::AdvanceOutbox { through: 0, dead: rows }).map(drop)
    }
}

/// The stored messages; about [`ROWS_AT_ONCE`].
fn stored_rows(store: &dyn Store) -> StoreResult<Vec<DeadNotification>> {
    let mut found = Vec::new();
    for first in [0, SESSION_STAYS].map(|stays| UNACKNOWLEDGED_IDS | stays) {
        for first in [first, first | FOR_ALL_ROADS] {
            let rows = store.dead_notifications(Some(first - 1), ROWS_AT_ONCE)?;
            found.extend(rows.into_iter().take_while(|row| row.id < first + FOR_ALL_ROADS));
        }
    }
    Ok(found)
}

impl Worker {
    /// The message of a stored row, and who is to be told of it; `None`: it names none.
    fn unacknowledged_of(&self, row: &DeadNotification) -> StoreResult<Option<Unacknowledged>> {
        if row.id & FOR_ALL_ROADS != 0 {
            return Ok(serde_json::from_str(&row.event).ok());
        }
        let directory = &self.context.directory;
        let Ok(event) = serde_json::from_str::<StoredEvent<'_>>(&row.event) else { return Ok(None) };
        let Some(conversation) = directory.conversation_by_id(&event.entry.conversation)? else { return Ok(None) };
        let Some(user) = event.recipients.first() else { return Ok(None) };
        let user = directory.user_no(user)?;
        Ok(user.map(|user| Unacknowledged { user: user.0, conversation: conversation.no.0, seq: event.entry.seq }))
    }

    /// Decides what nodes have stored; answers whether there was anything.
    pub(super) fn take_unacknowledged(&mut self, term: Term) -> StoreResult<bool> {
        let context = self.context.clone();
        let rows = stored_rows(&*context.store)?;
        if rows.is_empty() {
            return Ok(false);
        }
        let mut found = Vec::new();
        // Of each conversation vendors are told of the newest message: a notification replaces the one before it.
        let mut newest: HashMap<(u64, u64), u64> = HashMap::new();
        for row in &rows {
            let Some(stored) = self.unacknowledged_of(row)? else { continue };
            let stays = row.id & SESSION_STAYS != 0;
            // A user with a new session has got the message again.
            if stays || !context.presence.is_active(UserNo(stored.user)) {
                let newest = newest.entry((stored.user, stored.conversation)).or_default();
                *newest = stored.seq.max(*newest);
                found.push((stored, stays, row.failed_at));
            }
        }
        let now_ms = self.due_time();
        let policy = context.policies.current();
        let mut changes = Vec::new();
        for (Unacknowledged { user, conversation, seq }, stays, at) in found {
            let conversation = ConversationNo(conversation);
            let Some(recipients) = OfflineRecipients::of(&context, conversation, seq)? else { continue };
            let Some(card) = context.directory.user(UserNo(user))? else { continue };
            let mut record = |place: u64, outcome| {
                let record = Record::of_user(UserNo(user), outcome);
                let source = Source::Search { part: UNACKNOWLEDGED_PARTS | (user << 2) | place };
                context.trace.add((conversation, seq), source, at, [record], &mut changes);
            };
            record(0, ReachOutcome::Unacknowledged);
            if let Some(Unwanted { outcome, .. }) = recipients.why_unwanted(&context, &card)? {
                record(1, outcome);
                continue;
            }
            let is_older = newest.get(&(user, conversation.0)).is_some_and(|newest| seq < *newest);
            let membership = recipients.membership_of(&context, &card)?;
            let Ok(mute) = membership else { continue };
            let scope =
                DecisionScope { context: &context, roads: &self.roads, policy: &policy, now_ms, is_current: false };
            let mut decision = Decision::new(scope, &recipients)
                .starting_at(UNACKNOWLEDGED_PARTS | (user * PARTS_PER_USER), PARTS_PER_ROAD)
                .even_online(stays)
                .without_vendors(is_older);
            decision.decide(&[Candidate { user: card, mute, is_active: false, devices: None }])?;
            let records = decision.finish(&mut changes);
            let source = Source::Search { part: UNACKNOWLEDGED_PARTS | (user << 2) | 2 };
            context.trace.add((conversation, seq), source, now_ms, records, &mut changes);
        }
        self.write(term, changes)?;
        let ids = rows.iter().map(|row| row.id).collect();
        // A refusal does no harm: they are taken again, and become the same rows.
        Ok(context.committer.propose_blocking(Proposal::DeleteDeadLetters { ids }).is_ok())
    }
}
