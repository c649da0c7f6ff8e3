//! Marks of people whom a channel has reached with a message, so that channels that wait for their time are cancelled. A mark is written
//! together with the record of a success that stops other channels, and kept by the day of its message, so that a day goes as a whole.

use crate::offline_recipients::OfflinePushContext;
use tidings_domain::{
    chat_rows::{marks_before, notified_mark_key},
    leadership::Term,
    model::*,
    store::*,
    stored_names,
};
use tidings_protocol::http::PolicyChannel;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
const HOUR_MS: u64 = 60 * 60 * 1_000;
/// Marks are kept for so many days after their message: longer than any channel waits.
const DAYS_KEPT: u64 = 32;
/// Marks that are removed in one write.
const ROWS_PER_WRITE: usize = 500;

/// The row that says that the channel has reached the user with the message that was sent then.
pub(crate) fn mark(sent_at: u64, position: Position, user: UserNo, channel: PolicyChannel) -> RowChange {
    let key = notified_mark_key(sent_at / DAY_MS, position, user);
    RowChange { key, value: Some(stored_names::channel(channel).into()) }
}

/// The channels that have reached these users with a message, in the same order.
pub(crate) fn marks_of(
    context: &OfflinePushContext,
    entry: &StoredEntry,
    users: &[UserNo],
) -> StoreResult<Vec<Option<PolicyChannel>>> {
    let key = |user: &UserNo| notified_mark_key(entry.at / DAY_MS, entry.position, *user);
    let keys: Vec<_> = users.iter().map(key).collect();
    let rows = context.store.rows_of(RowSpace::Chat, &keys)?;
    let channel = |row: Option<Vec<u8>>| {
        let name = row?;
        PolicyChannel::ALL.into_iter().find(|channel| stored_names::channel(*channel).as_bytes() == name)
    };
    Ok(rows.into_iter().map(channel).collect())
}

/// Removes some of the marks that are too old, once an hour; answers whether there may be more.
pub(crate) fn remove_old_marks(
    context: &OfflinePushContext,
    term: Term,
    now_ms: u64,
    removed_at: &mut Option<u64>,
) -> StoreResult<bool> {
    let hour = Some(now_ms / HOUR_MS);
    if *removed_at == hour {
        return Ok(false);
    }
    let (from, to) = marks_before((now_ms / DAY_MS).saturating_sub(DAYS_KEPT));
    let rows = context.store.rows(RowSpace::Chat, &from, &to, ROWS_PER_WRITE)?;
    let is_last = rows.len() < ROWS_PER_WRITE;
    let changes: Vec<_> = rows.into_iter().map(|(key, _)| RowChange { key, value: None }).collect();
    if !changes.is_empty() {
        context.store.write_rows(term, RowSpace::Chat, changes)?;
    }
    if is_last {
        *removed_at = hour;
    }
    Ok(!is_last)
}
