//! Messages of a conversation that are alike. A round has hundreds of a busy group, and the same people are to be notified of each by the
//! same channels: what is decided for the first of them holds for the others, and providers get one row for all of them, since a
//! notification takes the place of the one before.

use super::decision::{Decision, DecisionScope};
use crate::{
    channel_jobs::{Due, JobRow},
    json_len::digits,
    log::RecordRows,
    message_runs::{OLDER_BYTES_MAX, SPAN_OF_MESSAGES_MAX, newest_and_older},
    offline_recipients::OfflineRecipients,
    policy::CompiledPolicy,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;
use tidings_domain::{
    model::*,
    store::{OutboxItem, RowChange, StoreResult},
};

/// What messages that are alike have in common.
#[derive(PartialEq, Eq, Hash)]
struct Likeness {
    conversation: ConversationNo,
    content_type: String,
    /// The sender, if conditions of the policy may ask for it, who blocks the sender is not notified, or the sender would be notified
    /// of messages of others.
    sender: Option<UserNo>,
}

/// The messages of a round that are alike.
pub(super) struct AlikeMessages {
    /// What the policy of the round allows, and whether it has conditions.
    is_allowed: bool,
    has_conditions: bool,
    known: FxHashMap<Likeness, Option<Alike>>,
}

/// What was decided for some messages.
struct Alike {
    /// It holds for messages from one `seq` through another: between them no member joined or read.
    from: u64,
    through: u64,
    /// Who is notified by some channel.
    notified: FxHashSet<UserNo>,
    rows_of_providers: Vec<JobRow>,
    /// The rows of channels that tell of each message.
    rows: Vec<JobRow>,
    records: Option<RecordRows>,
    /// The messages that have no rows yet, but for those of [`Alike::rows`]; the oldest first.
    messages: Vec<OutboxItem>,
    /// Bytes of these in a row.
    bytes: usize,
}

impl AlikeMessages {
    pub(super) fn new(policy: &CompiledPolicy) -> AlikeMessages {
        let (is_allowed, has_conditions) = (policy.may_decide_alike(), policy.has_conditions());
        AlikeMessages { is_allowed, has_conditions, known: FxHashMap::default() }
    }

    /// Takes a message to those that are like it; answers whether it could: otherwise it is to be decided by itself.
    pub(super) fn take(
        &mut self,
        scope: DecisionScope<'_>,
        found: &OfflineRecipients,
        changes: &mut Vec<RowChange>,
    ) -> StoreResult<bool> {
        let content = &found.entry.content;
        if !self.is_allowed || !content.mentions.is_empty() || !found.has_round_members() {
            return Ok(false);
        }
        let sender = content.sender.as_ref().map(|sender| sender.no);
        if !self.has_conditions && found.conversation.blocks_mode() == BlocksMode::Ignore {
            let Some(alike) = self.of(scope, found, None, changes)? else { return Ok(false) };
            if sender.is_none_or(|sender| !alike.notified.contains(&sender)) {
                alike.add(found.message(), changes);
                return Ok(true);
            }
        }
        let Some(alike) = self.of(scope, found, sender, changes)? else { return Ok(false) };
        alike.add(found.message(), changes);
        Ok(true)
    }

    /// What is decided for messages that are like this one; `None`: what is decided depends on more.
    fn of(
        &mut self,
        scope: DecisionScope<'_>,
        found: &OfflineRecipients,
        sender: Option<UserNo>,
        changes: &mut Vec<RowChange>,
    ) -> StoreResult<Option<&mut Alike>> {
        let (conversation, content_type) = (found.conversation.no, found.entry.content.content_type.clone());
        let known = match self.known.entry(Likeness { conversation, content_type, sender }) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Alike::decide(scope, found, sender.is_some())?),
        };
        if let Some(alike) = known
            && !(alike.from..=alike.through).contains(&found.entry.seq)
        {
            alike.finish_rows(changes);
            *known = Alike::decide(scope, found, sender.is_some())?;
        }
        Ok(known.as_mut())
    }

    /// The rows that are left.
    pub(super) fn finish(self, changes: &mut Vec<RowChange>) {
        self.known.into_values().flatten().for_each(|mut alike| alike.finish_rows(changes));
    }
}

impl Alike {
    /// Decides for this message and those that are like it, by the same sender or by any.
    fn decide(scope: DecisionScope<'_>, found: &OfflineRecipients, by_sender: bool) -> StoreResult<Option<Alike>> {
        let seq = found.entry.seq;
        let Some(through) = found.alike_through() else { return Ok(None) };
        let mut entry = found.entry.clone();
        entry.content.sender = entry.content.sender.filter(|_| by_sender);
        let template = found.of_entry(entry);
        let mut decision = Decision::new(scope, &template);
        let Some(page) = template.next_page(scope.context, scope.policy)? else { return Ok(None) };
        let records = template.record_rows(scope.context, 0, decision.decide_page(page)?);
        let (rows, _) = decision.finish_rows();
        let notified = rows.iter().flat_map(|row| row.job.people()).collect();
        if rows.iter().any(|row| !matches!(row.due, Due::Now(_))) {
            return Ok(None);
        }
        let (rows_of_providers, rows) =
            rows.into_iter().partition(|row| matches!(row.due, Due::Now(channel) if channel.provider().is_some()));
        let (messages, bytes) = Default::default();
        Ok(Some(Alike { from: seq, through, notified, rows_of_providers, rows, records, messages, bytes }))
    }

    fn add(&mut self, message: OutboxItem, changes: &mut Vec<RowChange>) {
        for row in &mut self.rows {
            (row.position, row.job.seq) = (message.position, message.seq);
            changes.push(row.change());
        }
        if let (Some(first), Some(last)) = (self.messages.first(), self.messages.last()) {
            let bytes = self.bytes + digits(message.seq - last.seq) + 1;
            if bytes > OLDER_BYTES_MAX || message.position - first.position > SPAN_OF_MESSAGES_MAX {
                self.finish_rows(changes)
            } else {
                self.bytes = bytes
            }
        }
        self.messages.push(message);
    }

    /// The rows that are one for all messages since the last time.
    fn finish_rows(&mut self, changes: &mut Vec<RowChange>) {
        let messages = std::mem::take(&mut self.messages);
        self.bytes = 0;
        let Some(OutboxItem { position, conversation, .. }) = messages.last().copied() else { return };
        let seqs: Vec<u64> = messages.iter().map(|message| message.seq).collect();
        let (newest, older) = newest_and_older(&seqs);
        if let Some(records) = &self.records {
            records.add_to((conversation, newest), &older, changes);
        }
        for row in &mut self.rows_of_providers {
            row.position = position;
            (row.job.seq, row.job.older) = (newest, older.clone());
            changes.push(row.change());
        }
    }
}
