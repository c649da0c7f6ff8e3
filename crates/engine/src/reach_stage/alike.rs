//! Messages of a conversation that are alike. A round has hundreds of a busy group, and the same people are to be told of each by the
//! same roads: what is decided for the first of them holds for the others, and vendors get one row for all of them, since a
//! notification takes the place of the one before.

use super::decision::{Decision, DecisionScope};
use crate::{
    json_len::digits,
    offline_recipients::OfflineRecipients,
    reach_trace::RecordRows,
    road_jobs::{JobRoad, JobRow, OLDER_BYTES_MAX, SPAN_OF_MESSAGES_MAX},
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
    /// The sender, if conditions of the policy may ask for it.
    sender: Option<UserNo>,
}

/// The messages of a round that are alike.
#[derive(Default)]
pub(super) struct AlikeMessages(FxHashMap<Likeness, Option<Alike>>);

/// What was decided for some messages.
struct Alike {
    /// It holds for messages from one `seq` through another: between them no member joined or read.
    from: u64,
    through: u64,
    /// Who is told by some road.
    told: FxHashSet<UserNo>,
    rows_of_vendors: Vec<JobRow>,
    /// The rows of roads that tell of each message.
    rows: Vec<JobRow>,
    records: Option<RecordRows>,
    /// The messages that vendors have no row for yet, the oldest first.
    messages: Vec<OutboxItem>,
    /// Bytes of these in a row.
    bytes: usize,
}

impl AlikeMessages {
    /// Takes a message to those that are like it; answers whether it could: otherwise it is to be decided by itself.
    pub(super) fn take(
        &mut self,
        scope: DecisionScope<'_>,
        found: &OfflineRecipients,
        changes: &mut Vec<RowChange>,
    ) -> StoreResult<bool> {
        let content = &found.entry.content;
        if !scope.policy.may_decide_alike() || !content.mentions.is_empty() || !found.has_round_members() {
            return Ok(false);
        }
        let sender = content.sender.as_ref().map(|sender| sender.no);
        let likeness = Likeness {
            conversation: found.conversation.no,
            content_type: content.content_type.clone(),
            sender: sender.filter(|_| scope.policy.has_conditions()),
        };
        let seq = found.entry.seq;
        let known = match self.0.entry(likeness) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                if let Some(alike) = known.as_mut().filter(|alike| !(alike.from..=alike.through).contains(&seq)) {
                    alike.finish_rows(changes);
                    *known = Alike::decide(scope, found)?;
                }
                known
            }
            Entry::Vacant(place) => place.insert(Alike::decide(scope, found)?),
        };
        // Who sent a message is not told of it.
        let Some(alike) = known.as_mut().filter(|alike| sender.is_none_or(|sender| !alike.told.contains(&sender))) else {
            return Ok(false);
        };
        alike.add(found.message(), changes);
        Ok(true)
    }

    /// The rows that are left.
    pub(super) fn finish(self, changes: &mut Vec<RowChange>) {
        self.0.into_values().flatten().for_each(|mut alike| alike.finish_rows(changes));
    }
}

impl Alike {
    /// Decides for this message and those that are like it; `None`: what is decided depends on more.
    fn decide(scope: DecisionScope<'_>, found: &OfflineRecipients) -> StoreResult<Option<Alike>> {
        let seq = found.entry.seq;
        let Some(through) = found.alike_through() else { return Ok(None) };
        let mut entry = found.entry.clone();
        if !scope.policy.has_conditions() {
            entry.content.sender = None;
        }
        let template = found.of_entry(entry);
        let mut decision = Decision::new(scope, &template);
        let Some(page) = template.next_page(scope.context)? else { return Ok(None) };
        let records = template.record_rows(scope.context, 0, decision.decide_page(page)?);
        let (rows, _) = decision.finish_rows();
        let told = rows.iter().flat_map(|row| row.job.people()).collect();
        if rows.iter().any(|row| matches!(row.road, JobRoad::Later(_))) {
            return Ok(None);
        }
        let (rows_of_vendors, rows) = rows.into_iter().partition(|row| matches!(row.road, JobRoad::Vendor(_)));
        let (messages, bytes) = Default::default();
        Ok(Some(Alike { from: seq, through, told, rows_of_vendors, rows, records, messages, bytes }))
    }

    fn add(&mut self, message: OutboxItem, changes: &mut Vec<RowChange>) {
        for row in &mut self.rows {
            (row.position, row.job.seq) = (message.position, message.seq);
            changes.push(row.change());
        }
        if let Some(records) = &self.records {
            records.add_to((message.conversation, message.seq), changes);
        }
        if self.rows_of_vendors.is_empty() {
            return;
        }
        if let (Some(first), Some(last)) = (self.messages.first(), self.messages.last()) {
            let bytes = self.bytes + digits(message.seq - last.seq) + 1;
            match bytes > OLDER_BYTES_MAX || message.position - first.position > SPAN_OF_MESSAGES_MAX {
                true => self.finish_rows(changes),
                false => self.bytes = bytes,
            }
        }
        self.messages.push(message);
    }

    /// The rows of vendors for the messages that have none yet.
    fn finish_rows(&mut self, changes: &mut Vec<RowChange>) {
        let messages = std::mem::take(&mut self.messages);
        self.bytes = 0;
        let Some(newest) = messages.last() else { return };
        let seqs: Vec<u64> = messages.iter().map(|message| message.seq).collect();
        for row in &mut self.rows_of_vendors {
            row.position = newest.position;
            row.job.set_messages(&seqs);
            changes.push(row.change());
        }
    }
}
