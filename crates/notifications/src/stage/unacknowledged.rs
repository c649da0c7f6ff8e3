//! Messages that a session was sent and did not acknowledge. The node that holds the session stores them; the stage decides them
//! again.

use super::{
    NotificationStage,
    decision::{Decision, DecisionScope, Parts},
    worker::Worker,
};
use crate::{
    gate::Unwanted,
    log::{Record, Source},
    notification_rows::{self, NotificationKind, NotificationRowId, RowForm, UNACKNOWLEDGED_NUMBERS},
    offline_recipients::{Candidate, OfflineRecipients, is_recalled},
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap, sync::Arc};
use tidings_domain::{leadership::Term, model::*, push_tokens::tokens_of, refusals::store_refusal, store::*};
use tidings_protocol::{
    error::Refusal,
    http::{NotificationOutcome, PolicyChannel},
};

/// The bit of the parts of records of what became of such messages.
const UNACKNOWLEDGED_RECORDS: u64 = 1 << 62;
/// Messages of one session. Of more only the newest are notified; the app gets all when it is opened.
const MESSAGES_MAX: usize = 100;
/// Rows taken at once.
const ROWS_AT_ONCE: usize = 100;

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

impl NotificationStage {
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
        let has_other = PolicyChannel::ALL
            .into_iter()
            .any(|channel| channel != PolicyChannel::Providers && self.channels.has(channel));
        if !has_other && !is_reachable().map_err(store_refusal)? {
            return Ok(());
        }
        let is_pushed = |entry: &StoredEntry| {
            let content = &entry.content;
            content.may_be_pushed() && !is_recalled(entry)
        };
        // Random ids, so that nodes that store messages at the same time do not use the same ones.
        let chance = rand::random_range(0..UNACKNOWLEDGED_NUMBERS) & !(MESSAGES_MAX.next_power_of_two() as u64 - 1);
        let form = RowForm::of(&context.gates);
        let key = |number| NotificationRowId::Unacknowledged { stays, for_all_channels: true, number }.key(form);
        let mut rows = Vec::new();
        for (conversation, entry) in handed.into_iter().rev().filter(|(_, entry)| is_pushed(entry)) {
            if rows.len() == MESSAGES_MAX {
                break;
            }
            let stored = Unacknowledged { user: user.no.0, conversation: conversation.no.0, seq: entry.seq };
            let found = OfflineRecipients::for_one(context, conversation, entry);
            if found.why_unwanted(context, user).map_err(store_refusal)?.is_some() {
                continue;
            }
            rows.push(StoredNotification {
                // This loop has the newest first; the ids put it last.
                key: key(chance | (MESSAGES_MAX - 1 - rows.len()) as u64),
                failed_at: context.clock.now_ms(),
                attempts: 0,
                last_error: String::new(),
                event: serde_json::to_string(&stored).unwrap_or_default(),
            });
        }
        if rows.is_empty() {
            return Ok(());
        }
        context.metrics.webhook_unheard.inc_by(rows.len() as u64);
        context.proposals.propose_blocking(Proposal::AdvanceOutbox { through: 0, dead: rows }).map(drop)
    }
}

impl Worker {
    /// The message of a stored row, and who is to be notified of it; `None`: it names none.
    fn unacknowledged_of(&self, row: &StoredNotification) -> StoreResult<Option<Unacknowledged>> {
        if matches!(NotificationRowId::of(row.key), NotificationRowId::Unacknowledged { for_all_channels: true, .. }) {
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
        let rows = notification_rows::rows(&*context.store, NotificationKind::Unacknowledged, None, ROWS_AT_ONCE)?;
        if rows.is_empty() {
            return Ok(false);
        }
        let mut found = Vec::new();
        // Of each conversation providers are notified of the newest message: a notification replaces the one before it.
        let mut newest: HashMap<(u64, u64), u64> = HashMap::new();
        for row in &rows {
            let Some(stored) = self.unacknowledged_of(row)? else { continue };
            let stays = matches!(NotificationRowId::of(row.key), NotificationRowId::Unacknowledged { stays: true, .. });
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
            let Some(profile) = context.directory.user(UserNo(user))? else { continue };
            let mut record = |place: u64, outcome| {
                let record = Record::of_user(UserNo(user), outcome);
                let source = Source::Search { part: UNACKNOWLEDGED_RECORDS | (user << 2) | place };
                context.trace.add((conversation, seq), source, at, [record], &mut changes);
            };
            record(0, NotificationOutcome::Unacknowledged);
            if let Some(Unwanted { outcome, .. }) = recipients.why_unwanted(&context, &profile)? {
                record(1, outcome);
                continue;
            }
            let is_older = newest.get(&(user, conversation.0)).is_some_and(|newest| seq < *newest);
            let Ok(mute) = recipients.mute_of(&context, &profile)? else { continue };
            let scope = DecisionScope {
                context: &context,
                channels: &self.channels,
                policy: &policy,
                now_ms,
                is_current: false,
            };
            let mut decision = Decision::new(scope, &recipients)
                .in_parts(Parts::Unacknowledged(user))
                .even_online(stays)
                .without_providers(is_older);
            decision.decide(&[Candidate { user: profile, mute, is_active: false, devices: None }])?;
            let records = decision.finish(&mut changes);
            let source = Source::Search { part: UNACKNOWLEDGED_RECORDS | (user << 2) | 2 };
            context.trace.add((conversation, seq), source, now_ms, records, &mut changes);
        }
        self.write(term, changes)?;
        let keys = rows.iter().map(|row| row.key).collect();
        // A refusal does no harm: they are taken again, and become the same rows.
        Ok(context.proposals.propose_blocking(Proposal::DeleteStoredNotifications { keys }).is_ok())
    }
}
