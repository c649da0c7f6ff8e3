//! The retry queue: events that the webhook did not take, and behind each the later events of its conversation, so
//! that a conversation's events come in their order while other conversations go on.
//!
//! The events are rows in the store ([`notification_rows`](crate::notification_rows)). Memory has their keys alone: an
//! event is read again when it is tried. The queue is bounded; while it is full, the list of commits waits as it does
//! for a webhook that is down.

use super::events::Event;
use crate::{
    log::Whom,
    notification_rows::{NotificationKind, NotificationRowId, RowForm, rows},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};
use tidings_domain::store::{NotificationKey, NotificationTable, Store, StoreResult, StoredNotification};

/// Events in the queue. Above, no new entry is expanded until some are delivered or dead. A round that has begun may
/// exceed it.
const EVENTS_MAX: usize = 10_000;
/// Conversations in the queue, likewise.
const CONVERSATIONS_MAX: usize = 1_000;
/// Rows in one read while the queue is loaded.
const READ_AT_ONCE: usize = 100;

/// An event in the queue: they are in the order of their ids, which is that of their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RetryKey {
    event: u64,
    pub(super) row: NotificationKey,
}

impl RetryKey {
    fn of(row: NotificationKey) -> RetryKey {
        RetryKey { event: event_id(row), row }
    }
}

/// The events of one conversation in the queue.
struct ConversationRetries {
    keys: BTreeSet<RetryKey>,
    due: Instant,
}

impl ConversationRetries {
    fn has(&self, event: u64) -> bool {
        let first = RetryKey { event, row: NotificationKey { table: NotificationTable::DeadLetters, id: 0 } };
        self.keys.range(first..).next().is_some_and(|key| key.event == event)
    }
}

#[derive(Default)]
pub(super) struct RetryQueue {
    conversations: BTreeMap<Arc<str>, ConversationRetries>,
    /// Conversations in the order in which they are due.
    due: BTreeSet<(Instant, Arc<str>)>,
    events: usize,
}

/// The fields of a stored event that are needed to queue it.
#[derive(Default, Deserialize)]
struct StoredEvent<'a> {
    #[serde(default)]
    id: u64,
    #[serde(borrow)]
    entry: StoredEventEntry<'a>,
    #[serde(default)]
    recipients: Vec<String>,
}

#[derive(Default, Deserialize)]
struct StoredEventEntry<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    at: u64,
}

impl RetryQueue {
    /// Loads the queue that another leader, or this node before a restart, has left; all conversations are due.
    pub(super) fn load(store: &dyn Store, now: Instant) -> StoreResult<RetryQueue> {
        let mut queue = RetryQueue::default();
        let mut after = None;
        loop {
            let rows = rows(store, NotificationKind::Retry, after, READ_AT_ONCE)?;
            let Some(last) = rows.last() else { return Ok(queue) };
            after = Some(last.key);
            for row in &rows {
                queue.insert(event_of(row).conversation, RetryKey::of(row.key), now);
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

    /// Queues an event; answers the key under which it is to be stored.
    pub(super) fn put(&mut self, event: &Event, due: Instant, form: RowForm) -> NotificationKey {
        let waiting = self.conversations.get(&event.conversation);
        let is_taken = |id: &u64| waiting.is_some_and(|waiting| waiting.has(*id));
        // Two events of one entry may have one id, if they are of unacknowledged messages.
        let id = (0..=event.id).rev().find(|id| !is_taken(id)).unwrap_or(event.id);
        let key = RetryKey::of(NotificationRowId::Retry(id).key(form));
        self.insert(event.conversation.clone(), key, due);
        key.row
    }

    fn insert(&mut self, conversation: Arc<str>, key: RetryKey, due: Instant) {
        let waiting = self.conversations.entry(conversation.clone()).or_insert_with(|| {
            self.due.insert((due, conversation));
            ConversationRetries { keys: BTreeSet::new(), due }
        });
        self.events += usize::from(waiting.keys.insert(key));
    }

    /// The conversation that is due first, with its first event.
    pub(super) fn due(&self, now: Instant) -> Option<(Arc<str>, RetryKey)> {
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

    /// Removes an event; the next one of its conversation is due at once.
    pub(super) fn remove(&mut self, conversation: &Arc<str>, key: RetryKey, now: Instant) {
        let Some(waiting) = self.conversations.get_mut(conversation) else { return };
        self.events -= usize::from(waiting.keys.remove(&key));
        if waiting.keys.is_empty() {
            self.due.remove(&(waiting.due, conversation.clone()));
            self.conversations.remove(conversation);
        } else {
            self.postpone(conversation, now);
        }
    }

    /// Makes all conversations due, since the webhook is back.
    pub(super) fn make_all_due(&mut self, now: Instant) {
        self.due.clear();
        for (conversation, waiting) in &mut self.conversations {
            waiting.due = now;
            self.due.insert((now, conversation.clone()));
        }
    }
}

/// The id of the event of a row with this key.
pub(super) fn event_id(key: NotificationKey) -> u64 {
    match NotificationRowId::of(key) {
        NotificationRowId::DeadLetter(event) | NotificationRowId::Retry(event) => event,
        NotificationRowId::Unacknowledged { number, .. } => number,
    }
}

/// The event of a row.
pub(super) fn event_of(row: &StoredNotification) -> Event {
    let stored: Option<StoredEvent<'_>> = serde_json::from_str(&row.event).ok();
    let StoredEvent { id, entry, recipients } =
        stored.unwrap_or_else(|| StoredEvent { id: event_id(row.key), ..StoredEvent::default() });
    Event {
        id,
        conversation: entry.conversation.as_ref().into(),
        json: RawValue::from_string(row.event.clone()).unwrap_or_else(|_| RawValue::NULL.to_owned()),
        seq: entry.seq,
        sent_at: entry.at,
        recipients: recipients.into_iter().map(Whom::Id).collect(),
        marks: Vec::new(),
    }
}
