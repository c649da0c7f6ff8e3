//! The rows of consumers: what each is, how far it is, what waits for another attempt, and what was given up.

use super::deliveries::{AsideEvent, AsideRow};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidings_domain::{
    chat_rows::{event_consumer_key, event_consumer_row_key},
    store::{RowChange, RowSpace, Store, StoreError, StoreResult},
};
use tidings_protocol::{
    http::DeadEvent,
    limits::{DEAD_EVENTS_MAX, EVENT_CONSUMERS_MAX, EVENTS_ASIDE_MAX},
};

const CONSUMERS: u8 = 1;
const CURSORS: u8 = 2;
const ASIDE: u8 = 3;
const DEAD: u8 = 4;
/// Rows that are read at once.
const ROWS_AT_ONCE: usize = 1_000;
/// The longest error that is stored, in characters.
const ERROR_CHARS_MAX: usize = 500;

/// A consumer as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredConsumer {
    pub types: Vec<String>,
    pub created_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<StoredWebhook>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredWebhook {
    pub url: String,
    pub secret: String,
    /// The secret before, and until when requests are signed with it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<(String, u64)>,
    pub batch: u32,
    pub parallel: u32,
    pub timeout_ms: u64,
    pub give_up_s: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredAside {
    id: String,
    subject: String,
    before: String,
    attempts: u32,
    failed_since: u64,
    error: String,
}

fn read<T: DeserializeOwned>(row: &[u8]) -> StoreResult<T> {
    serde_json::from_slice(row).map_err(|error| StoreError::Damaged(format!("a consumer of events: {error}")))
}

fn put(key: Vec<u8>, value: &impl Serialize) -> RowChange {
    RowChange { key, value: Some(serde_json::to_vec(value).unwrap_or_default()) }
}

/// Names are of letters that sort below this.
const BEHIND_NAMES: &str = "\u{7f}";

/// All consumers, in the order of their names.
pub(super) fn consumers(store: &dyn Store) -> StoreResult<Vec<(String, StoredConsumer)>> {
    let (from, to) = (event_consumer_key(CONSUMERS, ""), event_consumer_key(CONSUMERS, BEHIND_NAMES));
    let rows = store.rows(RowSpace::Chat, &from, &to, EVENT_CONSUMERS_MAX)?;
    let name = |key: &[u8]| String::from_utf8_lossy(&key[2..key.len() - 1]).into_owned();
    rows.into_iter().map(|(key, row)| Ok((name(&key), read(&row)?))).collect()
}

pub(super) fn consumer(store: &dyn Store, name: &str) -> StoreResult<Option<StoredConsumer>> {
    store.row(RowSpace::Chat, &event_consumer_key(CONSUMERS, name))?.map(|row| read(&row)).transpose()
}

pub(super) fn put_consumer(name: &str, consumer: &StoredConsumer) -> RowChange {
    put(event_consumer_key(CONSUMERS, name), consumer)
}

pub(super) fn cursor(store: &dyn Store, name: &str) -> StoreResult<Option<String>> {
    store.row(RowSpace::Chat, &event_consumer_key(CURSORS, name))?.map(|row| read(&row)).transpose()
}

pub(super) fn put_cursor(name: &str, cursor: &str) -> RowChange {
    put(event_consumer_key(CURSORS, name), &cursor)
}

/// The rows of a part, from a number on.
fn numbered(store: &dyn Store, part: u8, name: &str, from: u64, limit: usize) -> StoreResult<Vec<(u64, Vec<u8>)>> {
    let (from, to) = (event_consumer_row_key(part, name, from), event_consumer_row_key(part, name, u64::MAX));
    let rows = store.rows(RowSpace::Chat, &from, &to, limit)?;
    let number = |key: &[u8]| key.last_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    Ok(rows.into_iter().map(|(key, row)| (number(&key), row)).collect())
}

/// The rows of a part, at most so many.
fn all_numbered(store: &dyn Store, part: u8, name: &str, limit: usize) -> StoreResult<Vec<(u64, Vec<u8>)>> {
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let rows = numbered(store, part, name, from, ROWS_AT_ONCE)?;
        let is_last = rows.len() < ROWS_AT_ONCE;
        from = rows.last().map_or(from, |(number, _)| number + 1);
        found.extend(rows);
        if is_last || found.len() >= limit {
            return Ok(found);
        }
    }
}

pub(super) fn aside(store: &dyn Store, name: &str) -> StoreResult<Vec<AsideRow>> {
    // Some more than the limit: a page that was read when there was room may be put aside as a whole.
    all_numbered(store, ASIDE, name, 2 * EVENTS_ASIDE_MAX)?
        .into_iter()
        .map(|(number, row)| aside_row(number, &row))
        .collect()
}

fn aside_row(number: u64, row: &[u8]) -> StoreResult<AsideRow> {
    let StoredAside { id, subject, before, attempts, failed_since, error } = read(row)?;
    let event = AsideEvent { number, id, before };
    Ok(AsideRow { event, subject: subject.into(), attempts, failed_since, error })
}

pub(super) fn put_aside(name: &str, row: &AsideRow) -> RowChange {
    let AsideRow { event, subject, attempts, failed_since, error } = row;
    let AsideEvent { number, id, before } = event.clone();
    let (subject, error) = (subject.to_string(), error.chars().take(ERROR_CHARS_MAX).collect());
    let stored = StoredAside { id, subject, before, attempts: *attempts, failed_since: *failed_since, error };
    put(event_consumer_row_key(ASIDE, name, number), &stored)
}

pub(super) fn remove_aside(name: &str, number: u64) -> RowChange {
    RowChange { key: event_consumer_row_key(ASIDE, name, number), value: None }
}

/// Dead letters with their numbers, the oldest first.
pub(super) fn dead(store: &dyn Store, name: &str) -> StoreResult<Vec<(u64, DeadEvent)>> {
    let rows = all_numbered(store, DEAD, name, DEAD_EVENTS_MAX)?;
    rows.into_iter().map(|(number, row)| Ok((number, read(&row)?))).collect()
}

/// A page of them, from a number on.
pub(super) fn dead_from(store: &dyn Store, name: &str, from: u64, limit: usize) -> StoreResult<Vec<(u64, DeadEvent)>> {
    let rows = numbered(store, DEAD, name, from, limit)?;
    rows.into_iter().map(|(number, row)| Ok((number, read(&row)?))).collect()
}

pub(super) fn put_dead(name: &str, number: u64, row: &AsideRow, at: u64) -> RowChange {
    let dead = DeadEvent {
        id: row.event.id.clone(),
        subject: row.subject.to_string(),
        after: row.event.before.clone(),
        at,
        attempts: row.attempts,
        error: row.error.chars().take(ERROR_CHARS_MAX).collect(),
    };
    put(event_consumer_row_key(DEAD, name, number), &dead)
}

/// A dead letter that is to be tried again, as if it had never failed.
pub(super) fn revived(number: u64, dead: DeadEvent) -> AsideRow {
    let DeadEvent { id, subject, after, .. } = dead;
    let event = AsideEvent { number, id, before: after };
    AsideRow { event, subject: subject.into(), attempts: 0, failed_since: 0, error: String::new() }
}

pub(super) fn remove_dead(name: &str, number: u64) -> RowChange {
    RowChange { key: event_consumer_row_key(DEAD, name, number), value: None }
}

/// The removal of some rows of a consumer that is no more, or is moved; `None`: there are none left.
pub(super) fn remove_some(store: &dyn Store, name: &str, with_dead: bool) -> StoreResult<Option<Vec<RowChange>>> {
    let mut changes = Vec::new();
    for part in if with_dead { &[ASIDE, DEAD][..] } else { &[ASIDE] } {
        let rows = numbered(store, *part, name, 0, ROWS_AT_ONCE)?;
        let removed = |(number, _)| RowChange { key: event_consumer_row_key(*part, name, number), value: None };
        changes.extend(rows.into_iter().map(removed));
    }
    Ok((!changes.is_empty()).then_some(changes))
}

/// The removal of the consumer itself.
pub(super) fn remove_consumer(name: &str) -> Vec<RowChange> {
    [CONSUMERS, CURSORS].map(|part| RowChange { key: event_consumer_key(part, name), value: None }).into()
}
