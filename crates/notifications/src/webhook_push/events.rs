//! The webhook events: one for each row of the webhook, which names some members to be notified of one message.
//!
//! An event's id is its message's position and the number of the row. After a crash the same message may be decided again, when
//! other members are offline: the same id then has other recipients. An app that must not notify a user twice remembers
//! (conversation, seq, recipient), which each event has.

use super::WebhookPushContext;
use crate::{
    channel_jobs::{DeferredPeople, Job, JobPart},
    log::{Record, Whom},
    notified_marks,
    offline_recipients::{OfflineRecipients, RoundPeople},
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{RowChange, StoreResult},
};
use tidings_engine::{attributes::attributes_value, entry_view::encode_entry, visibility::View};
use tidings_protocol::http::{Channel, NotificationOutcome, PolicyChannel};

/// The bits of an event's id that are the number of its part.
const PARTS_BITS: u32 = 12;
/// The last part numbers are for messages that a session did not acknowledge.
const UNACKNOWLEDGED_EVENTS: u64 = 1 << 10;

/// Events that one row for later becomes at its time, usually at most.
const EVENTS_PER_LATER_ROW: u64 = 4;
/// How far the first events of one step and of the next are from each other. With this number the first events of any two of
/// four rules with five channels each are at least 146 apart, and those of eight rules 18.
const STEPS_APART: u64 = 73;

/// An event for the webhook.
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) conversation: Arc<str>,
    pub(super) json: Box<RawValue>,
    pub(super) seq: u64,
    /// When the message was sent, in milliseconds since 1970 UTC.
    pub(super) sent_at: u64,
    pub(super) recipients: Vec<Whom>,
    /// What says that the webhook has reached the recipients, if that stops other channels.
    pub(super) marks: Vec<RowChange>,
}

/// What becomes of a row: its event, if there is anybody to be notified still, and why others are not notified any more.
pub(super) struct JobEvent {
    pub(super) event: Option<Event>,
    pub(super) left_out: Vec<Record>,
    /// Those whose quiet hours have begun.
    pub(super) deferred: DeferredPeople,
}

/// The event of a row, for those who still want to know; the row has this part of the message.
pub(super) fn event_of_job(
    context: &WebhookPushContext,
    job: &Job,
    part: JobPart,
    people: &mut RoundPeople,
) -> StoreResult<JobEvent> {
    let (mut left_out, mut deferred) = (Vec::new(), DeferredPeople::of(Channel::Webhook));
    let Some(found) = OfflineRecipients::of(context, ConversationNo(job.conversation), job.seq)? else {
        left_out.extend(job.users().map(|user| record(user, NotificationOutcome::Recalled)));
        return Ok(JobEvent { event: None, left_out, deferred });
    };
    let (mut recipients, mut marks) = (Vec::with_capacity(job.users.len()), Vec::new());
    for no in job.users() {
        let Some((user, unwanted)) = people.find(context, &found, no, PolicyChannel::Webhook, job.even_online)? else {
            continue;
        };
        match unwanted {
            Some(unwanted) => match unwanted.deferred_to.filter(|_| part.deferred().is_some()) {
                Some(until) => {
                    left_out.push(record(no, NotificationOutcome::Deferred).until(until));
                    deferred.add_user(no, until);
                }
                None => left_out.push(record(no, unwanted.outcome)),
            },
            None => {
                recipients.push(user);
                if job.stops_others {
                    let StoredEntry { at, position, .. } = found.entry;
                    marks.push(notified_marks::mark(at, position, no, PolicyChannel::Webhook));
                }
            }
        }
    }
    let event = if recipients.is_empty() {
        None
    } else {
        event(context, &found, part, &recipients)?.map(|event| Event { marks, ..event })
    };
    Ok(JobEvent { event, left_out, deferred })
}

fn record(user: UserNo, outcome: NotificationOutcome) -> Record {
    Record::of_user(user, outcome)
}

/// The number of the row among the events of a message.
fn event_part(part: JobPart) -> u64 {
    let last = (1 << PARTS_BITS) - 1;
    match part.unacknowledged_user() {
        Some(user) => last - user % UNACKNOWLEDGED_EVENTS,
        None => {
            // Events of one row that waited are few. Those of different rows begin at different numbers.
            let (step, row, event) = part.place();
            (row * EVENTS_PER_LATER_ROW + event + step * STEPS_APART) % (last + 1 - UNACKNOWLEDGED_EVENTS)
        }
    }
}

fn event(
    context: &WebhookPushContext,
    found: &OfflineRecipients,
    part: JobPart,
    recipients: &[Arc<User>],
) -> StoreResult<Option<Event>> {
    #[derive(Serialize)]
    struct Wire<'a> {
        event: &'static str,
        id: u64,
        conversation: Value,
        sender: Option<Value>,
        entry: Option<&'a RawValue>,
        recipients: Vec<&'a str>,
    }
    let OfflineRecipients { conversation, entry, .. } = found;
    let sender = entry.content.sender.as_ref().map(|s| context.directory.user(s.no)).transpose()?.flatten();
    let sender = sender.map(|user| {
        let attributes = attributes_value(user.attributes());
        json!({ "id": user.id, "name": user.name, "avatar": user.avatar, "attributes": attributes })
    });
    let details = json!({
        "id": conversation.id,
        "kind": conversation.kind,
        "name": conversation.name,
        "avatar": conversation.avatar,
    });
    let mut encoded = Vec::new();
    // The app server may see everything; what it tells its users of is the message itself.
    if let Some(entry) = View::WHOLE.show(entry) {
        encode_entry(&mut encoded, &conversation.id, &entry);
    }
    let encoded = String::from_utf8(encoded).ok().and_then(|text| RawValue::from_string(text).ok());
    let wire = Wire {
        event: "message",
        id: entry.position << PARTS_BITS | event_part(part),
        conversation: details,
        sender,
        entry: encoded.as_deref(),
        recipients: recipients.iter().map(|user| &*user.id).collect(),
    };
    Ok(serde_json::value::to_raw_value(&wire).ok().map(|json| Event {
        id: wire.id,
        conversation: conversation.id.as_str().into(),
        json,
        seq: entry.seq,
        sent_at: entry.at,
        recipients: recipients.iter().map(|user| Whom::User(user.no.0)).collect(),
        marks: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn rows(first: JobPart, count: u64) -> impl Iterator<Item = JobPart> {
        std::iter::successors(Some(first), |part| Some(part.next())).take(count as usize)
    }

    #[test]
    fn events_of_one_message_have_numbers_of_their_own() {
        // Many events at once, and a few of another rule.
        let parts = rows(JobPart::of_step(0, 1, false), 500).chain(rows(JobPart::of_step(1, 2, false), 100));
        let numbers: HashSet<u64> = parts.map(event_part).collect();
        assert_eq!(numbers.len(), 600);
        // Some events of each channel of several rules.
        for (rules, count) in [(4, 146), (8, 18)] {
            let steps = (0..rules).flat_map(|rule| (0..5).map(move |channel| JobPart::of_step(rule, channel, false)));
            let numbers: HashSet<u64> = steps.flat_map(|first| rows(first, count)).map(event_part).collect();
            assert_eq!(numbers.len() as u64, rules as u64 * 5 * count);
        }
        // Rows that waited, of three events each.
        let waiting = std::iter::successors(Some(JobPart::FIRST), |part| Some(part.next_later())).take(500);
        let numbers: HashSet<u64> = waiting.flat_map(|first| rows(first, 3)).map(event_part).collect();
        assert_eq!(numbers.len(), 1_500);
        let users = (0..UNACKNOWLEDGED_EVENTS).map(|user| JobPart::unacknowledged(user, 0));
        let numbers: HashSet<u64> = users.map(event_part).collect();
        assert_eq!(numbers.len() as u64, UNACKNOWLEDGED_EVENTS);
        assert!(numbers.iter().all(|number| *number >= (1 << PARTS_BITS) - UNACKNOWLEDGED_EVENTS));
    }
}
