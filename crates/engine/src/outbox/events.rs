//! The webhook events of one entry: its offline recipients, in events of bounded size.
//!
//! An event's id is its entry's position and the number of the part. After a crash the same entry is
//! expanded again, when other members may be offline: the same id then has other recipients. An app that must not
//! notify a user twice remembers (conversation, seq, recipient), which each event has.

use super::OutboxContext;
use crate::{
    attributes::attributes_value,
    entry_view::encode_entry,
    offline_recipients::{OfflineRecipients, RecipientPage},
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use std::{collections::VecDeque, sync::Arc};
use tidings_domain::{
    model::*,
    store::{OutboxItem, RowChange, StoreResult},
};

/// The bits of an event's id that are the number of its part.
const PARTS_BITS: u32 = 12;
/// The last part numbers are for events with one recipient, whose session did not acknowledge the entry.
pub(super) const UNACKNOWLEDGED_PARTS: u64 = 1 << 10;

/// An event for the webhook.
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) conversation: Arc<str>,
    pub(super) json: Box<RawValue>,
}

/// Expands one entry into its events, one after the other: the members of a conversation with a million followers are
/// never in memory all at once.
pub(super) struct EventExpansion {
    found: OfflineRecipients,
    card: Value,
    sender: Option<Value>,
    encoded: Option<Box<RawValue>>,
    recipients_per_event: usize,
    recipients: VecDeque<String>,
    part: u64,
    pages: u64,
    /// Rows that tell who is not told, and why.
    pub(super) records: Vec<RowChange>,
}

impl EventExpansion {
    /// `None` when there is nobody to be told any more: the message was recalled, or retention removed the entry.
    pub(super) fn of(
        context: &OutboxContext,
        item: &OutboxItem,
        recipients_per_event: usize,
    ) -> StoreResult<Option<EventExpansion>> {
        let Some(found) = OfflineRecipients::of(context, item.conversation, item.seq)? else { return Ok(None) };
        let OfflineRecipients { conversation, entry, .. } = &found;
        let sender = entry.content.sender.as_ref().map(|s| context.directory.user(s.no)).transpose()?.flatten();
        let sender = sender.map(|user| {
            let attributes = attributes_value(user.attributes.as_deref());
            json!({ "id": user.id, "name": user.name, "avatar": user.avatar, "attributes": attributes })
        });
        let card = json!({
            "id": conversation.id,
            "kind": conversation.kind,
            "name": conversation.name,
            "avatar": conversation.avatar,
        });
        let mut encoded = Vec::new();
        encode_entry(&mut encoded, &conversation.id, entry);
        let encoded = String::from_utf8(encoded).ok().and_then(|text| RawValue::from_string(text).ok());
        // Larger parts, if there would be more of them than an id has numbers for.
        let parts = (1 << PARTS_BITS) - UNACKNOWLEDGED_PARTS;
        let recipients_per_event = recipients_per_event.max((conversation.member_count / parts) as usize + 1);
        Ok(Some(EventExpansion {
            found,
            card,
            sender,
            encoded,
            recipients_per_event,
            recipients: VecDeque::new(),
            part: 0,
            pages: 0,
            records: Vec::new(),
        }))
    }

    /// The next event, or `None` after the last.
    pub(super) fn next(&mut self, context: &OutboxContext) -> StoreResult<Option<Event>> {
        while self.recipients.len() < self.recipients_per_event
            && let Some(RecipientPage { told, left_out }) = self.found.next_page(context)?
        {
            self.recipients.extend(told.iter().map(|user| user.id.clone()));
            self.found.record_left_out(context, self.pages, left_out, &mut self.records);
            self.pages += 1;
        }
        if self.recipients.is_empty() {
            return Ok(None);
        }
        let count = self.recipients.len().min(self.recipients_per_event);
        let (part, recipients) = (self.part, self.recipients.drain(..count).collect());
        self.part += 1;
        Ok(self.event(part, recipients))
    }

    /// The event for this one user, online or not, unless the user does not want to know of the entry.
    pub(super) fn event_for(&mut self, context: &OutboxContext, user: &User) -> StoreResult<Option<Event>> {
        if self.found.why_unwanted_by(context, user)?.is_some() {
            return Ok(None);
        }
        let part = (1 << PARTS_BITS) - 1 - user.no.0 % UNACKNOWLEDGED_PARTS;
        Ok(self.event(part, vec![user.id.clone()]))
    }

    fn event(&self, part: u64, recipients: Vec<String>) -> Option<Event> {
        #[derive(Serialize)]
        struct Wire<'a> {
            event: &'static str,
            id: u64,
            conversation: &'a Value,
            sender: &'a Option<Value>,
            entry: &'a Option<Box<RawValue>>,
            recipients: Vec<String>,
        }
        let wire = Wire {
            event: "message",
            id: self.found.entry.position << PARTS_BITS | part,
            conversation: &self.card,
            sender: &self.sender,
            entry: &self.encoded,
            recipients,
        };
        let conversation = self.found.conversation.id.as_str().into();
        serde_json::value::to_raw_value(&wire).ok().map(|json| Event { id: wire.id, conversation, json })
    }
}
