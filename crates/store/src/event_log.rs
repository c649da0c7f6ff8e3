//! The commit log of a data folder: what the feed of events reads back, in commit order. A database keeps it in its own
//! tables, since nodes follow each other by it; a folder keeps it while events are kept, and for nothing else.
//!
//! All records of a batch are in one value, cut into rows that are short enough. Their keys have the batch's last position, so
//! that the first key beyond a reader's position is that of the batch in which it goes on. Of an entry there is only where it
//! stands: it is read when the event is.

use crate::{errors::store_error, kv::*, rows::*};
use serde::{Deserialize, Serialize};
use tidings_domain::{commit_log::*, model::*, store::*};

/// A batch in the log.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct LoggedBatch {
    /// When it was committed.
    pub at: u64,
    pub records: Vec<LoggedRecord>,
}

/// A record, with its change as [`encode`] writes one.
#[derive(Serialize, Deserialize)]
pub(crate) struct LoggedRecord {
    pub position: Position,
    pub entry: Option<(u64, u64)>,
    pub change: Option<Vec<u8>>,
}

/// The records of a batch that is being decided.
#[derive(Default)]
pub(crate) struct EventLog(Vec<LoggedRecord>);

impl EventLog {
    /// An entry was appended.
    pub(crate) fn note_entry(&mut self, position: Position, conversation: ConversationNo, seq: u64) {
        self.0.push(LoggedRecord { position, entry: Some((conversation.0, seq)), change: None });
    }

    /// Something else was changed, at the position of the entry that came with it or at one of its own.
    pub(crate) fn note_change(&mut self, position: Position, change: &Change) {
        let change = Some(encode(change));
        match self.0.last_mut().filter(|last| last.position == position) {
            Some(last) => last.change = change,
            None => self.0.push(LoggedRecord { position, entry: None, change }),
        }
    }

    /// Adds the rows to the batch.
    pub(crate) fn write(self, at: u64, batch: &mut Batch) {
        let EventLog(records) = self;
        let Some(last) = records.last().map(|record| record.position) else { return };
        let value = encode(&LoggedBatch { at, records });
        for (part, bytes) in value.chunks(VALUE_BYTES_MAX).enumerate() {
            batch.put(Space::Meta, key(MetaKind::LogRecords, &[last, part as u64]), bytes.to_vec());
        }
    }
}

/// Visits the batches whose last position is beyond `after`, with the keys of their rows, until `visit` answers false.
pub(crate) fn scan_batches(
    kv: &dyn KvRead,
    after: Position,
    mut visit: impl FnMut(LoggedBatch, Vec<Vec<u8>>) -> StoreResult<bool>,
) -> StoreResult<()> {
    let (low, high) =
        (key(MetaKind::LogRecords, &[after.saturating_add(1), 0]), key(MetaKind::LogRecords, &[u64::MAX, u64::MAX]));
    let mut value = Vec::new();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut result = Ok(true);
    let mut finish = |value: &mut Vec<u8>, keys: &mut Vec<Vec<u8>>| {
        if keys.is_empty() {
            return Ok(true);
        }
        visit(decode(&std::mem::take(value))?, std::mem::take(keys))
    };
    kv.scan(Space::Meta, &low, &high, Order::Ascending, &mut |key, row| {
        if number_at(key, 9) == Some(0) {
            result = finish(&mut value, &mut keys);
        }
        value.extend_from_slice(row);
        keys.push(key.to_vec());
        matches!(result, Ok(true))
    })
    .map_err(store_error)?;
    if result? {
        finish(&mut value, &mut keys)?;
    }
    Ok(())
}
