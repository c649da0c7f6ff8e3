//! The webhook events of one entry: its offline recipients, in events of bounded size.
//!
//! An event's id is its entry's position and the number of the part. After a crash the same entry is
//! expanded again, when other members may be offline: the same id then has other recipients. An app that must not
//! notify a user twice remembers (conversation, seq, recipient), which each event has.

use super::OutboxContext;
use crate::{attributes::attributes_value, daily_window::window_covers, entry_view::encode_entry};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use std::{collections::VecDeque, sync::Arc};
use tidings_domain::{
    chat_rows,
    desks::{Assignment, assignment_key},
    model::*,
    store::{End, OutboxItem, RowSpace, StoreResult},
};

/// Members in one read.
const MEMBERS_AT_ONCE: usize = 1_000;
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
    conversation: Arc<Conversation>,
    entry: StoredEntry,
    card: Value,
    sender: Option<Value>,
    encoded: Option<Box<RawValue>>,
    recipients_per_event: usize,
    recipients: VecDeque<String>,
    part: u64,
    after: Option<UserNo>,
    all_seen: bool,
}

impl EventExpansion {
    /// `None` when there is nobody to be told any more: the message was recalled, or retention removed the entry.
    pub(super) fn of(
        context: &OutboxContext,
        item: &OutboxItem,
        recipients_per_event: usize,
    ) -> StoreResult<Option<EventExpansion>> {
        let Some(conversation) = context.directory.conversation(item.conversation)? else { return Ok(None) };
        let found = context.store.entries(item.conversation, item.seq, item.seq, 1, End::Oldest)?;
        let is_recalled = |entry: &StoredEntry| entry.content.details().recalled.is_some();
        let Some(entry) = found.into_iter().next().filter(|entry| !is_recalled(entry)) else { return Ok(None) };
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
        encode_entry(&mut encoded, &conversation.id, &entry);
        let encoded = String::from_utf8(encoded).ok().and_then(|text| RawValue::from_string(text).ok());
        // Larger parts, if there would be more of them than an id has numbers for.
        let parts = (1 << PARTS_BITS) - UNACKNOWLEDGED_PARTS;
        let recipients_per_event = recipients_per_event.max((conversation.member_count / parts) as usize + 1);
        Ok(Some(EventExpansion {
            conversation,
            entry,
            card,
            sender,
            encoded,
            recipients_per_event,
            recipients: VecDeque::new(),
            part: 0,
            after: None,
            all_seen: false,
        }))
    }

    /// The next event, or `None` after the last.
    pub(super) fn next(&mut self, context: &OutboxContext) -> StoreResult<Option<Event>> {
        while self.recipients.len() < self.recipients_per_event && !self.all_seen {
            self.load_recipients(context)?;
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
        let now_ms = context.clock.now_ms();
        // An agent is told for the account.
        let sides = context.directory.desks.sides(self.conversation.pair);
        let served = sides.filter(|sides| user.no != sides.customer && sides.desk.has_agent(user.no));
        let no = served.map_or(user.no, |sides| sides.desk.desk.user.no);
        let membership = context.store.membership(self.conversation.no, no)?;
        let wants = membership.is_some_and(|membership| self.is_unread_by(no, &membership, now_ms));
        if !wants || user.do_not_disturb.as_ref().is_some_and(|window| window_covers(window, now_ms)) {
            return Ok(None);
        }
        let part = (1 << PARTS_BITS) - 1 - no.0 % UNACKNOWLEDGED_PARTS;
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
            id: self.entry.position << PARTS_BITS | part,
            conversation: &self.card,
            sender: &self.sender,
            entry: &self.encoded,
            recipients,
        };
        let conversation = self.conversation.id.as_str().into();
        serde_json::value::to_raw_value(&wire).ok().map(|json| Event { id: wire.id, conversation, json })
    }

    /// Whether the member has not read the entry, did not send it, and has not muted the conversation.
    fn is_unread_by(&self, user: UserNo, membership: &Membership, now_ms: u64) -> bool {
        let sender = self.entry.content.sender.as_ref().map(|sender| sender.no);
        Some(user) != sender
            && membership.joined_seq < self.entry.seq
            && membership.read_seq < self.entry.seq
            && !membership.mute.is_muted(now_ms)
    }

    /// Reads the next members, and adds those who are offline and want to know: not muted, not read, no do-not-disturb
    /// now.
    fn load_recipients(&mut self, context: &OutboxContext) -> StoreResult<()> {
        let now_ms = context.clock.now_ms();
        let page = context.store.members(self.conversation.no, self.after, MEMBERS_AT_ONCE)?;
        self.after = page.last().map(|(user, _)| *user);
        self.all_seen = page.len() < MEMBERS_AT_ONCE;
        for (no, membership) in &page {
            if !self.is_unread_by(*no, membership, now_ms) {
                continue;
            }
            let people = self.people_of(context, *no)?;
            if people.iter().any(|person| context.presence.has_chat_session(*person)) {
                continue;
            }
            for person in people {
                let Some(user) = context.directory.user(person)? else { continue };
                if !user.do_not_disturb.as_ref().is_some_and(|window| window_covers(window, now_ms)) {
                    self.recipients.push_back(user.id.clone());
                }
            }
        }
        Ok(())
    }

    /// Who is to be told in a member's place: of an account the agent who has the conversation, or all agents if nobody has it.
    fn people_of(&self, context: &OutboxContext, member: UserNo) -> StoreResult<Vec<UserNo>> {
        let Some(desk) = context.directory.desks.of_user(member) else { return Ok(vec![member]) };
        let row = context.store.row(RowSpace::Chat, &assignment_key(self.conversation.no))?;
        let assignment: Option<Assignment> = chat_rows::decode(row.as_deref())?;
        let agent = assignment.and_then(|assignment| assignment.agent);
        Ok(match agent.filter(|agent| desk.has_agent(agent.no)) {
            Some(agent) => vec![agent.no],
            None => desk.agents.iter().map(|agent| agent.no).collect(),
        })
    }
}
