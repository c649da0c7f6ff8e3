//! The recipients of a stored event, which is tried once more: those who may not be notified any more are left out.

use super::{WebhookPushContext, retry_queue::event_id};
use crate::{log::Record, offline_recipients::OfflineRecipients};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tidings_domain::{
    model::ConversationNo,
    store::{StoreResult, StoredNotification},
};
use tidings_protocol::http::{NotificationOutcome, PolicyChannel};

/// A stored event, once each recipient was looked at.
pub(super) struct Recheck {
    /// The row with those who may still be notified; `None`: nobody may.
    pub(super) row: Option<StoredNotification>,
    pub(super) left_out: Vec<Record>,
    /// The message; `None`: its conversation is not there any more.
    pub(super) message: Option<(ConversationNo, u64)>,
    /// The event's id.
    pub(super) event: u64,
}

/// The fields of an event that say whom it is for. The recipients are a part of the event's text.
#[derive(Deserialize)]
struct StoredEvent<'a> {
    id: u64,
    #[serde(borrow)]
    entry: StoredEventEntry<'a>,
    #[serde(borrow)]
    recipients: &'a RawValue,
}

#[derive(Deserialize)]
struct StoredEventEntry<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
    seq: u64,
}

/// Asks of each recipient of a row whether the webhook may still be notified of the message for them.
pub(super) fn recheck(context: &WebhookPushContext, row: StoredNotification) -> StoreResult<Recheck> {
    let text = row.event.as_str();
    let parsed = serde_json::from_str::<StoredEvent<'_>>(text).ok();
    let ids = parsed.as_ref().and_then(|event| serde_json::from_str::<Vec<Cow<'_, str>>>(event.recipients.get()).ok());
    let (Some(StoredEvent { id: event, entry, recipients }), Some(ids)) = (parsed, ids) else {
        // A newer version may have stored it.
        let event = event_id(row.key);
        return Ok(Recheck { row: Some(row), left_out: Vec::new(), message: None, event });
    };
    let Some(conversation) = context.directory.conversation_by_id(&entry.conversation)? else {
        return Ok(Recheck { row: None, left_out: Vec::new(), message: None, event });
    };
    let message = Some((conversation.no, entry.seq));
    let found = OfflineRecipients::of(context, conversation.no, entry.seq)?;
    let (mut left, mut left_out) = (Vec::with_capacity(ids.len()), Vec::new());
    for id in &ids {
        let Some(user) = context.directory.user_by_id(id)? else { continue };
        let outcome = match &found {
            None => Some(NotificationOutcome::Recalled),
            // The event does not say whether its recipients had a session, and the webhook is called either way.
            Some(found) => found.why_not(context, &user, PolicyChannel::Webhook, true)?.map(|why| why.outcome),
        };
        match outcome {
            Some(outcome) => left_out.push(Record::of_user(user.no, outcome)),
            None => left.push(id),
        }
    }
    let row = match left.len() {
        0 => None,
        count if count == ids.len() => Some(row),
        _ => {
            let names = serde_json::to_string(&left).unwrap_or_default();
            let from = recipients.get().as_ptr() as usize - text.as_ptr() as usize;
            let event = [&text[..from], &names, &text[from + recipients.get().len()..]].concat();
            Some(StoredNotification { event, ..row })
        }
    };
    Ok(Recheck { row, left_out, message, event })
}
