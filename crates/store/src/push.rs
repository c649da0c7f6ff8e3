//! The rows of push, in a space of their own, so that the rows of a million devices do not lie between conversations.
//!
//! A key is a byte for its kind, its numbers big-endian, then its text: keys sort by kind, numbers and text. A row is its
//! version and its fields, with the key's fields once more, so that a check can compare the row with its key.

use crate::{embedded::EmbeddedStore, errors::store_error, kv::*, rows::*};
use tidings_domain::{push_store::*, request_digest::RequestDigest, store::*};

/// The bytes of a key.
pub(crate) fn push_key(key: &PushKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(24);
    let kind: u8 = match key {
        PushKey::Counters => 0,
        PushKey::Device(_) => 1,
        PushKey::LastBound(_) => 2,
        PushKey::ClientPushId(_) => 3,
        PushKey::Push(_) => 4,
        PushKey::Part(..) => 5,
        PushKey::RecoveryIndex(..) => 6,
        PushKey::Timer(..) => 7,
        PushKey::Target(..) => 8,
        PushKey::Pending(..) => 9,
        PushKey::Collapse(..) => 10,
        PushKey::Chunk(..) => 11,
        PushKey::Fallback(..) => 12,
        PushKey::FallbackTimer(..) => 13,
        PushKey::Notes(_) => 14,
    };
    bytes.push(kind);
    let long = |number: u64, bytes: &mut Vec<u8>| bytes.extend_from_slice(&number.to_be_bytes());
    let short = |number: u32, bytes: &mut Vec<u8>| bytes.extend_from_slice(&number.to_be_bytes());
    match key {
        PushKey::Counters => {}
        PushKey::Device(device) | PushKey::LastBound(device) => short(device.0, &mut bytes),
        PushKey::ClientPushId(name) => bytes.extend_from_slice(name.as_bytes()),
        PushKey::Push(push) => long(*push, &mut bytes),
        PushKey::Part(push, part) => {
            long(*push, &mut bytes);
            short(*part, &mut bytes);
        }
        PushKey::RecoveryIndex(mark, push) => {
            bytes.push(*mark as u8);
            long(*push, &mut bytes);
        }
        PushKey::Timer(at, push) | PushKey::FallbackTimer(at, push) | PushKey::Notes((at, push)) => {
            long(*at, &mut bytes);
            long(*push, &mut bytes);
        }
        PushKey::Target(push, device) => {
            long(*push, &mut bytes);
            short(device.0, &mut bytes);
        }
        PushKey::Pending(device, push) => {
            short(device.0, &mut bytes);
            long(*push, &mut bytes);
        }
        PushKey::Collapse(device, collapse_key) => {
            short(device.0, &mut bytes);
            bytes.extend_from_slice(collapse_key.as_bytes());
        }
        PushKey::Chunk(push, set, chunk) => {
            long(*push, &mut bytes);
            bytes.push(*set as u8);
            short(*chunk, &mut bytes);
        }
        PushKey::Fallback(push, part, chunk) => {
            long(*push, &mut bytes);
            bytes.push(part.number());
            short(*chunk, &mut bytes);
        }
    }
    bytes
}

/// The bytes of a row. The engine keeps rows within the limit, so a longer one is a bug.
pub(crate) fn push_value(row: &PushRow) -> StoreResult<Vec<u8>> {
    let mut value = encode(row);
    if let PushRow::ClientPushId { request: Some(request), .. } = row {
        value.extend(request.0);
    }
    match value.len() {
        0..=PUSH_ROW_BYTES_MAX => Ok(value),
        length => Err(StoreError::Unavailable(format!("a row of {length} bytes: {:?}", row.key()))),
    }
}

/// Decodes a row of [`push_value`]. Earlier versions wrote no digest of a request behind a row, and pass over it.
pub(crate) fn decode_push_row(bytes: &[u8]) -> StoreResult<PushRow> {
    let (mut row, behind) = decode_with_rest(bytes)?;
    if let PushRow::ClientPushId { request, .. } = &mut row {
        *request = RequestDigest::from_stored(behind);
    }
    Ok(row)
}

impl PushStore for EmbeddedStore {
    fn write_push(&self, _: Term, changes: &[PushChange]) -> StoreResult<()> {
        let mut batch = Batch::default();
        for change in changes {
            match change {
                PushChange::Put(row) => batch.put(Space::Push, push_key(&row.key()), push_value(row)?),
                PushChange::Delete(key) => batch.remove(Space::Push, push_key(key)),
            }
        }
        if batch.writes.is_empty() { Ok(()) } else { self.write_rows_batch(batch) }
    }

    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        let row = self.kv()?.get(Space::Push, &push_key(key)).map_err(store_error)?;
        row.map(|row| decode_push_row(&row)).transpose()
    }

    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>> {
        let (low, high) = (push_key(from), push_key(to));
        Self::scan_values(&*self.kv()?, Space::Push, &low, &high, limit, Order::Ascending, |_, row| {
            decode_push_row(row)
        })
    }
}
