//! Sends of one message to some of an official account's followers: accepted at once, then done bit by bit by the leader.
//!
//! Each follower gets the message in the follower's own conversation with the account, under an id made of the send's number
//! and the follower: after a crash, a part that is done again sends nothing twice. A send is two kinds of rows: what is to
//! be sent, cut into parts and written once, and how far it has come.

use serde::{Deserialize, Serialize};
use tidings_domain::{
    chat_rows,
    request_digest::RequestDigest,
    store::{ROW_BYTES_MAX, RowChange, RowSpace, Store, StoreError, StoreResult, Term},
};
use tidings_protocol::http::{BulkSend, BulkStatus, CreateBulkSend};

/// Sends that run at once. Full: the next is refused with `queue_full`.
pub(crate) const RUNNING_MAX: usize = 100;
/// How long an ended send can be looked up.
const KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1_000;
const ROWS_AT_ONCE: usize = 1_000;

/// How far a send has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub view: BulkSend,
    /// The number of the last member who has had a turn; of a list of users, how many have.
    pub cursor: u64,
    /// What a retry with the same `client_bulk_id` must ask for as well; absent: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestDigest>,
}

impl Progress {
    pub(crate) fn is_running(&self) -> bool {
        self.view.status == BulkStatus::Running
    }

    pub(crate) fn end(&mut self, status: BulkStatus, now_ms: u64) {
        (self.view.status, self.view.ended_at) = (status, Some(now_ms));
    }
}

/// All sends, lowest number first.
pub(crate) fn all(store: &dyn Store) -> StoreResult<Vec<Progress>> {
    let (mut from, to) = (chat_rows::bulk_progress_key(0), chat_rows::bulk_progress_key(u64::MAX));
    let mut found = Vec::new();
    loop {
        let rows = store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
        for (_, row) in &rows {
            found.push(decode(row)?);
        }
        match rows.last() {
            Some((last, _)) if rows.len() == ROWS_AT_ONCE => from = [&last[..], &[0]].concat(),
            _ => return Ok(found),
        }
    }
}

pub(crate) fn progress(store: &dyn Store, id: u64) -> StoreResult<Option<Progress>> {
    store.row(RowSpace::Chat, &chat_rows::bulk_progress_key(id))?.map(|row| decode(&row)).transpose()
}

fn decode(row: &[u8]) -> StoreResult<Progress> {
    serde_json::from_slice(row).map_err(|error| StoreError::Damaged(format!("a bulk send: {error}")))
}

/// What is to be sent.
pub(crate) fn definition(store: &dyn Store, id: u64) -> StoreResult<CreateBulkSend> {
    let (mut from, to) = (chat_rows::bulk_part_key(id, 0), chat_rows::bulk_part_key(id, u64::MAX));
    let mut text = Vec::new();
    loop {
        let rows = store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
        let Some((last, _)) = rows.last() else { break };
        from = [&last[..], &[0]].concat();
        rows.iter().for_each(|(_, part)| text.extend_from_slice(part));
    }
    serde_json::from_slice(&text).map_err(|error| StoreError::Damaged(format!("bulk send {id}: {error}")))
}

/// Stores a new send.
pub(crate) fn create(store: &dyn Store, term: Term, progress: &Progress, new: &CreateBulkSend) -> StoreResult<()> {
    let id = progress.view.id;
    let text = chat_rows::encode(new);
    let parts = (0..)
        .zip(text.chunks(ROW_BYTES_MAX))
        .map(|(part, bytes)| RowChange { key: chat_rows::bulk_part_key(id, part), value: Some(bytes.to_vec()) });
    store.write_rows(term, RowSpace::Chat, parts.chain([row_of(progress)]).collect())
}

/// Stores how far a send has come; what it sends is forgotten once it has ended.
pub(crate) fn put(store: &dyn Store, term: Term, progress: &Progress) -> StoreResult<()> {
    let mut changes = vec![row_of(progress)];
    if !progress.is_running() {
        let id = progress.view.id;
        let (from, to) = (chat_rows::bulk_part_key(id, 0), chat_rows::bulk_part_key(id, u64::MAX));
        let parts = store.rows(RowSpace::Chat, &from, &to, usize::MAX >> 1)?;
        changes.extend(parts.into_iter().map(|(key, _)| RowChange { key, value: None }));
    }
    store.write_rows(term, RowSpace::Chat, changes)
}

/// Removes sends that ended long ago.
pub(crate) fn forget_old(store: &dyn Store, term: Term, all: &[Progress], now_ms: u64) -> StoreResult<()> {
    let is_old = |progress: &&Progress| progress.view.ended_at.is_some_and(|at| at.saturating_add(KEPT_MS) < now_ms);
    let old = all.iter().filter(is_old).map(|progress| RowChange { key: row_of(progress).key, value: None });
    let old: Vec<_> = old.collect();
    if old.is_empty() { Ok(()) } else { store.write_rows(term, RowSpace::Chat, old) }
}

fn row_of(progress: &Progress) -> RowChange {
    RowChange { key: chat_rows::bulk_progress_key(progress.view.id), value: Some(chat_rows::encode(progress)) }
}
