//! What waits for another attempt: events that the webhook did not take, and behind each those of its conversation, so
//! that a conversation's events come in their order while others go on.
//!
//! The rows stand in the store beside the dead letters, under keys above all of theirs. In memory are keys alone: an event
//! is read again when it is tried. All of it is bounded; above, the list of commits waits as it does for a webhook that
//! is down.

use super::events::Event;
use crate::store::{DeadNotification, Store, StoreResult};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

/// Ids from here on are of events that wait, those below of dead letters: a position is below 2^49.
pub(super) const WAITING: u64 = 1 << 62;
/// And from here on of events that a node has noted for the one that leads.
pub(super) const UNHEARD: u64 = WAITING | 1 << 61;
/// Of those, with this bit, for users whose silent session stays: that they have one says nothing.
pub(super) const STAYS: u64 = 1 << 60;
/// Events and conversations that may wait. Above, nothing new is begun until some were taken or given up.
const EVENTS_MAX: usize = 10_000;
const CONVERSATIONS_MAX: usize = 1_000;
/// Of these a round may put some beyond the limit: what it has begun it ends.
const READ_AT_ONCE: usize = 100;

struct Waiting {
    /// In the order of their positions.
    keys: BTreeSet<u64>,
    due: Instant,
}

#[derive(Default)]
pub(super) struct Parking {
    conversations: BTreeMap<Arc<str>, Waiting>,
    /// By time, for the next one that is due.
    due: BTreeSet<(Instant, Arc<str>)>,
    events: usize,
}

/// What is read of an event that was kept.
#[derive(Deserialize)]
struct Kept<'a> {
    #[serde(default)]
    id: u64,
    #[serde(borrow)]
    entry: KeptEntry<'a>,
    #[serde(default)]
    recipients: Vec<String>,
}

#[derive(Deserialize)]
struct KeptEntry<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
}

impl Parking {
    /// What waited when another node led, or this one ran before; all of it is due.
    pub(super) fn load(store: &dyn Store) -> StoreResult<Parking> {
        let mut parking = Parking::default();
        let now = Instant::now();
        let mut after = WAITING - 1;
        loop {
            let mut rows = store.dead_notifications(Some(after), READ_AT_ONCE)?;
            rows.retain(|row| row.id < UNHEARD);
            let Some(last) = rows.last() else { return Ok(parking) };
            after = last.id;
            for row in &rows {
                parking.insert(event_of(row).conversation, row.id, now);
            }
        }
    }

    pub(super) fn events(&self) -> usize {
        self.events
    }

    pub(super) fn has_room(&self) -> bool {
        self.events < EVENTS_MAX && self.conversations.len() < CONVERSATIONS_MAX
    }

    pub(super) fn holds(&self, conversation: &str) -> bool {
        self.conversations.contains_key(conversation)
    }

    /// Answers the key under which it is kept.
    pub(super) fn put(&mut self, event: &Event, due: Instant) -> u64 {
        let mut key = WAITING | event.id;
        // Two events of one entry may have one id: those of sessions that did not answer.
        while self.conversations.get(&event.conversation).is_some_and(|waiting| waiting.keys.contains(&key)) {
            key -= 1;
        }
        self.insert(event.conversation.clone(), key, due);
        key
    }

    fn insert(&mut self, conversation: Arc<str>, key: u64, due: Instant) {
        let waiting = self.conversations.entry(conversation.clone()).or_insert_with(|| {
            self.due.insert((due, conversation));
            Waiting { keys: BTreeSet::new(), due }
        });
        self.events += usize::from(waiting.keys.insert(key));
    }

    /// The conversation that was due first, with its first event.
    pub(super) fn due(&self, now: Instant) -> Option<(Arc<str>, u64)> {
        let (_, conversation) = self.due.first().filter(|(due, _)| *due <= now)?;
        let key = self.conversations.get(conversation)?.keys.first()?;
        Some((conversation.clone(), *key))
    }

    pub(super) fn postpone(&mut self, conversation: &Arc<str>, until: Instant) {
        if let Some(waiting) = self.conversations.get_mut(conversation) {
            self.due.remove(&(waiting.due, conversation.clone()));
            waiting.due = until;
            self.due.insert((until, conversation.clone()));
        }
    }

    /// An event waits no more; the next of its conversation is due at once.
    pub(super) fn taken(&mut self, conversation: &Arc<str>, key: u64) {
        let Some(waiting) = self.conversations.get_mut(conversation) else { return };
        self.events -= usize::from(waiting.keys.remove(&key));
        if waiting.keys.is_empty() {
            self.due.remove(&(waiting.due, conversation.clone()));
            self.conversations.remove(conversation);
        } else {
            self.postpone(conversation, Instant::now());
        }
    }

    /// The webhook is back: nobody waits for longer than that.
    pub(super) fn all_due(&mut self) {
        let now = Instant::now();
        self.due.clear();
        for (conversation, waiting) in &mut self.conversations {
            waiting.due = now;
            self.due.insert((now, conversation.clone()));
        }
    }
}

/// The event of a row.
pub(super) fn event_of(row: &DeadNotification) -> Event {
    let kept: Option<Kept<'_>> = serde_json::from_str(&row.event).ok();
    let (id, conversation) =
        kept.map_or((row.id & !(UNHEARD | STAYS), "".into()), |kept| (kept.id, kept.entry.conversation));
    let conversation = Arc::from(&*conversation);
    let json = RawValue::from_string(row.event.clone()).unwrap_or_else(|_| RawValue::NULL.to_owned());
    Event { id, conversation, json }
}

pub(super) fn recipients_of(row: &DeadNotification) -> Vec<String> {
    serde_json::from_str::<Kept<'_>>(&row.event).map(|kept| kept.recipients).unwrap_or_default()
}

/// What nodes have noted, at most `limit`.
pub(super) fn noted_unheard(store: &dyn Store, limit: usize) -> StoreResult<Vec<DeadNotification>> {
    store.dead_notifications(Some(UNHEARD - 1), limit)
}
