//! What popups keep in the store, as bytes: a byte for the kind of row, its key in an order that
//! ranges can be read by, and values of the form that their first byte names.
//!
//! | kind | key | value |
//! | --- | --- | --- |
//! | 0 | | [`Numbers`] |
//! | 1 | popup | [`Head`]: its id, and which version stands |
//! | 2 | popup, version, part | [`Version`], cut into parts |
//! | 3 | part | the settings, cut into parts |
//! | 4 | segment's id | [`SegmentHead`] |
//! | 5 | list, chunk | users of a segment's list, eight bytes each |
//! | 6 | user, part | what the user was shown: [`super::marks`] |
//! | 7 | popup, hour, variant | counts |
//! | 8 | taken at, name | [`StoredEvent`] |
//! | 9 | name: a hash of user and event id | when it was taken: the event is known |
//! | 10 | | when the last events were taken |

use super::UserKey;
use crate::store::{ROW_BYTES_MAX, RowChange, RowSpace, RowStore, StoreError, StoreResult};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidings_protocol::http::PopupEventKind;

pub(super) const SPACE: RowSpace = RowSpace::Popups;
/// The form of every value that is written now.
const FORM: u8 = 1;
/// A part of a long value.
const PART_BYTES: usize = ROW_BYTES_MAX - 16;
/// Parts read at once.
const PARTS_AT_ONCE: usize = 1_024;
/// Users in one chunk of a segment's list.
pub(super) const CHUNK_USERS: usize = 380;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Numbers {
    /// The highest given out: none is given twice, or counts and marks of one popup would become another's.
    pub(super) popup: u32,
    pub(super) list: u32,
    /// Seals decisions, so that events can only be reported of what was decided here.
    pub(super) seal: [u8; 32],
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) version: u32,
    /// The oldest version that is kept.
    pub(super) oldest: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) version: u32,
    pub(super) updated_at: u64,
    pub(super) updated_by: Option<String>,
    /// The configuration as JSON text.
    pub(super) spec: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SegmentHead {
    pub(super) id: String,
    /// Which list stands: one that is being written has a number of its own, and no head.
    pub(super) list: u32,
    pub(super) users: u64,
    pub(super) updated_at: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredEvent {
    pub(super) id: String,
    pub(super) kind: u8,
    pub(super) popup: u32,
    /// The popup's id, for exports after it is gone.
    pub(super) popup_id: String,
    pub(super) variant: String,
    pub(super) user: String,
    pub(super) decision: String,
    pub(super) at: u64,
    pub(super) button: Option<String>,
    pub(super) value: Option<f64>,
}

/// What is counted of a popup's variant in an hour; the order is that of the stored numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Counted {
    Shown = 0,
    Control = 1,
    Impression = 2,
    Click = 3,
    Button = 4,
    Dismiss = 5,
    Conversion = 6,
}

pub(super) const COUNTED: usize = 7;

impl From<PopupEventKind> for Counted {
    fn from(kind: PopupEventKind) -> Self {
        match kind {
            PopupEventKind::Impression => Counted::Impression,
            PopupEventKind::Click => Counted::Click,
            PopupEventKind::Button => Counted::Button,
            PopupEventKind::Dismiss => Counted::Dismiss,
            PopupEventKind::Conversion => Counted::Conversion,
        }
    }
}

/// Events by their stored number.
pub(super) const EVENT_KINDS: [PopupEventKind; 5] = [
    PopupEventKind::Impression,
    PopupEventKind::Click,
    PopupEventKind::Button,
    PopupEventKind::Dismiss,
    PopupEventKind::Conversion,
];

fn key<const N: usize>(kind: u8, parts: [&[u8]; N]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(kind);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

pub(super) fn numbers_key() -> Vec<u8> {
    vec![0]
}

pub(super) fn head_key(popup: u32) -> Vec<u8> {
    key(1, [&popup.to_be_bytes()])
}

pub(super) fn version_key(popup: u32, version: u32) -> Vec<u8> {
    key(2, [&popup.to_be_bytes(), &version.to_be_bytes()])
}

pub(super) fn settings_key() -> Vec<u8> {
    vec![3]
}

pub(super) fn segment_key(id: &str) -> Vec<u8> {
    key(4, [id.as_bytes()])
}

pub(super) fn chunk_key(list: u32, chunk: u32) -> Vec<u8> {
    key(5, [&list.to_be_bytes(), &chunk.to_be_bytes()])
}

pub(super) fn user_key(user: UserKey) -> Vec<u8> {
    key(6, [&user.0.to_be_bytes()])
}

pub(super) fn count_key(popup: u32, hour: u32, variant: &str) -> Vec<u8> {
    key(7, [&popup.to_be_bytes(), &hour.to_be_bytes(), variant.as_bytes()])
}

pub(super) fn event_key(taken_at: u64, name: EventName) -> Vec<u8> {
    key(8, [&taken_at.to_be_bytes(), &name.0.to_be_bytes()])
}

/// An event's id as the store knows it: ids are each user's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EventName(pub(super) u128);

pub(super) fn event_name(user: &str, id: &str) -> EventName {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(user.as_bytes());
    // No id has this byte, so that no two pairs read the same.
    hasher.update(&[0xFF]);
    hasher.update(id.as_bytes());
    EventName(hasher.digest128())
}

pub(super) fn event_id_key(name: EventName) -> Vec<u8> {
    key(9, [&name.0.to_be_bytes()])
}

pub(super) fn last_taken_key() -> Vec<u8> {
    vec![10]
}

/// Past the last key that begins like this one.
pub(super) fn end_of(mut prefix: Vec<u8>) -> Vec<u8> {
    prefix.extend_from_slice(&[0xFF; 72]);
    prefix
}

pub(super) fn put(key: Vec<u8>, value: Vec<u8>) -> RowChange {
    RowChange { key, value: Some(value) }
}

pub(super) fn remove(key: Vec<u8>) -> RowChange {
    RowChange { key, value: None }
}

pub(super) fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    // Writing to memory cannot fail for these types.
    postcard::to_extend(row, vec![FORM]).unwrap_or_default()
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> StoreResult<T> {
    match bytes.split_first() {
        Some((&FORM, row)) => postcard::from_bytes(row).map_err(|error| damaged(&format_args!("a row: {error}"))),
        Some((form, _)) => Err(damaged(&format_args!("a row of form {form}, written by a newer version?"))),
        None => Err(damaged(&"an empty row")),
    }
}

pub(super) fn damaged(what: &dyn std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("popups: {what}"))
}

/// Cuts a value into rows `key part`; the first says how many there are.
pub(super) fn put_long(changes: &mut Vec<RowChange>, key: &[u8], bytes: &[u8]) {
    let count = bytes.len().div_ceil(PART_BYTES).max(1) as u16;
    for part in 0..count {
        let start = usize::from(part) * PART_BYTES;
        let piece = &bytes[start..(start + PART_BYTES).min(bytes.len())];
        let mut value = Vec::with_capacity(piece.len() + 2);
        if part == 0 {
            value.extend_from_slice(&count.to_be_bytes());
        }
        value.extend_from_slice(piece);
        changes.push(put(part_key(key, part), value));
    }
}

fn part_key(key: &[u8], part: u16) -> Vec<u8> {
    [key, &part.to_be_bytes()].concat()
}

/// Reads back what [`put_long`] wrote.
pub(super) fn read_long<S: RowStore + ?Sized>(store: &S, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
    Ok(read_longs(store, &[key])?.pop().flatten())
}

/// Of several keys, in the order asked for.
pub(super) fn read_longs<S: RowStore + ?Sized>(
    store: &S,
    keys: &[impl AsRef<[u8]>],
) -> StoreResult<Vec<Option<Vec<u8>>>> {
    let firsts: Vec<Vec<u8>> = keys.iter().map(|key| part_key(key.as_ref(), 0)).collect();
    let mut values = store.rows_of(SPACE, &firsts)?;
    // What follows the first parts, with the place of its value.
    let mut rest = Vec::new();
    for (place, (key, value)) in keys.iter().zip(&mut values).enumerate() {
        let Some(bytes) = value else { continue };
        let Some((count, first)) = bytes.split_first_chunk::<2>() else {
            return Err(damaged(&"a part without a count"));
        };
        rest.extend((1..u16::from_be_bytes(*count)).map(|part| (place, part, part_key(key.as_ref(), part))));
        *bytes = first.to_vec();
    }
    for some in rest.chunks(PARTS_AT_ONCE) {
        let parts: Vec<Vec<u8>> = some.iter().map(|(.., key)| key.clone()).collect();
        for ((place, part, _), row) in some.iter().zip(store.rows_of(SPACE, &parts)?) {
            let row = row.ok_or_else(|| damaged(&format_args!("part {part} of a value is missing")))?;
            values[*place].get_or_insert_default().extend(row);
        }
    }
    Ok(values)
}

/// Rows in one write: small, so that chat's commits never wait long.
pub(super) const ROWS_PER_WRITE: usize = 1_024;
