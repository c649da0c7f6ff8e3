//! What the webhook is told of one entry: who is offline and wants to know, in parts of bounded size.
//!
//! An event's id is its entry's position and the number of the part. After a crash the same entry is
//! expanded again, when others may be offline: the same id then names other recipients. Who must not
//! tell anybody twice remembers (conversation, seq, recipient), which the event spells out.

use crate::{
    engine::Engine,
    lanes::encode_entry,
    model::*,
    store::{End, OutboxItem, StoreResult},
    users::{attributes_value, window_covers},
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use std::{collections::VecDeque, sync::Arc};

/// Members looked at together.
const MEMBERS_AT_ONCE: usize = 1_000;
const PARTS_BITS: u32 = 12;
/// Of these numbers the last are for events of one recipient whose session did not answer.
pub(super) const UNHEARD_PARTS: u64 = 1 << 10;

/// An event and its id.
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) conversation: Arc<str>,
    pub(super) json: Box<RawValue>,
}

/// The events of one entry, made one after the other: a conversation of a million followers never
/// stands in memory as a whole.
pub(super) struct Expansion {
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

impl Expansion {
    /// `None` when there is nothing to show any more: retention removed the entry.
    pub(super) fn of(
        engine: &Engine,
        item: &OutboxItem,
        recipients_per_event: usize,
    ) -> StoreResult<Option<Expansion>> {
        let Some(conversation) = engine.directory.conversation(item.conversation)? else { return Ok(None) };
        let found = engine.store.entries(item.conversation, item.seq, item.seq, 1, End::Oldest)?;
        let Some(entry) = found.into_iter().next() else { return Ok(None) };
        let sender = entry.content.sender.as_ref().map(|s| engine.directory.user(s.no)).transpose()?.flatten();
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
        // No more parts than an id can count.
        let parts = (1 << PARTS_BITS) - UNHEARD_PARTS;
        let recipients_per_event = recipients_per_event.max((conversation.member_count / parts) as usize + 1);
        Ok(Some(Expansion {
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

    /// The next part, until there is none.
    pub(super) fn next(&mut self, engine: &Engine) -> StoreResult<Option<Event>> {
        while self.recipients.len() < self.recipients_per_event && !self.all_seen {
            self.look(engine)?;
        }
        if self.recipients.is_empty() {
            return Ok(None);
        }
        let count = self.recipients.len().min(self.recipients_per_event);
        let (part, recipients) = (self.part, self.recipients.drain(..count).collect());
        self.part += 1;
        Ok(self.event(part, recipients))
    }

    /// The event for one member alone, whoever is online, if this one wants to know.
    pub(super) fn only_for(&mut self, engine: &Engine, user: &User) -> StoreResult<Option<Event>> {
        let (now_ms, no) = (engine.clock.now_ms(), user.no);
        let membership = engine.store.membership(self.conversation.no, no)?;
        let wants = membership.is_some_and(|membership| self.is_news(no, &membership, now_ms));
        if !wants || user.do_not_disturb.as_ref().is_some_and(|window| window_covers(window, now_ms)) {
            return Ok(None);
        }
        let part = (1 << PARTS_BITS) - 1 - no.0 % UNHEARD_PARTS;
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

    /// Whether the entry is news to a member who has not said otherwise.
    fn is_news(&self, user: UserNo, membership: &Membership, now_ms: u64) -> bool {
        let sender = self.entry.content.sender.as_ref().map(|sender| sender.no);
        Some(user) != sender
            && membership.joined_seq < self.entry.seq
            && membership.read_seq < self.entry.seq
            && !membership.mute.is_muted(now_ms)
    }

    /// The next members without a session that messages come to who have not read it, muted it, or asked for quiet now.
    fn look(&mut self, engine: &Engine) -> StoreResult<()> {
        let now_ms = engine.clock.now_ms();
        let page = engine.store.members(self.conversation.no, self.after, MEMBERS_AT_ONCE)?;
        self.after = page.last().map(|(user, _)| *user);
        self.all_seen = page.len() < MEMBERS_AT_ONCE;
        for (no, membership) in &page {
            if !self.is_news(*no, membership, now_ms) || engine.presence.has_chat_session(*no) {
                continue;
            }
            let Some(user) = engine.directory.user(*no)? else { continue };
            if !user.do_not_disturb.as_ref().is_some_and(|window| window_covers(window, now_ms)) {
                self.recipients.push_back(user.id.clone());
            }
        }
        Ok(())
    }
}
