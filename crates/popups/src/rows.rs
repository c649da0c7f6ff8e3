//! The rows that popups keep in the store. A key is a byte for the kind of row and then the parts below, in big-endian
//! order, so that ranges can be read. A value begins with a byte for its format.
//!
//! | kind | key | value |
//! | --- | --- | --- |
//! | 0 | | [`IdAllocator`] |
//! | 1 | popup | [`PopupHead`]: its id and its newest version's number |
//! | 2 | popup, version, part | [`StoredVersion`], split into parts |
//! | 3 | part | the settings, split into parts |
//! | 4 | segment's id | [`SegmentHead`] |
//! | 5 | list, chunk | users of a segment's list, eight bytes each |
//! | 6 | user, part | the user's frequency counters ([`super::frequency`]), split into parts |
//! | 7 | popup, hour, variant | the hour's counts |
//! | 8 | taken at, hash | [`StoredEvent`] |
//! | 9 | hash of user and event id | when the event was taken: a second event with this id is a duplicate |
//! | 10 | | when the last events were taken |
//! | 11 | journey | [`JourneyHead`]: its id and its newest version's number |
//! | 12 | journey, version, part | [`StoredVersion`] of a journey, split into parts |
//! | 13 | time, user | the id of a user whom a journey's timer concerns then |
//! | 14 | user | the id of a user who stands in a journey |
//! | 15 | popup, measurement, assigned at, user | [`StoredAssignment`] |
//! | 16 | time, boot | events on their way into the feed, in the form of [`tidings_domain::feed_note`] |

use super::UserKey;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidings_domain::feed_note::NotesRow;
use tidings_domain::store::{ROW_BYTES_MAX, RowChange, RowSpace, RowStore, StoreError, StoreResult};
use tidings_protocol::http::PopupEventKind;

pub(super) const SPACE: RowSpace = RowSpace::Popups;
/// The kinds of rows, as the first byte of their keys.
pub(super) mod kind {
    pub(crate) const ID_ALLOCATOR: u8 = 0;
    pub(crate) const POPUP: u8 = 1;
    pub(crate) const VERSION: u8 = 2;
    pub(crate) const SETTINGS: u8 = 3;
    pub(crate) const SEGMENT: u8 = 4;
    pub(crate) const SEGMENT_CHUNK: u8 = 5;
    pub(crate) const USER: u8 = 6;
    pub(crate) const COUNTS: u8 = 7;
    pub(crate) const EVENT: u8 = 8;
    pub(crate) const EVENT_ID: u8 = 9;
    pub(crate) const LAST_TAKEN: u8 = 10;
    pub(crate) const JOURNEY: u8 = 11;
    pub(crate) const JOURNEY_VERSION: u8 = 12;
    pub(crate) const WAKE: u8 = 13;
    pub(crate) const STANDING: u8 = 14;
    pub(crate) const ASSIGNMENT: u8 = 15;
    pub(crate) const FEED_NOTES: u8 = 16;
}

/// The format of every value that is written now.
const FORMAT: u8 = 1;
/// The longest part of a value that is split.
const PART_BYTES: usize = ROW_BYTES_MAX - 16;
/// Parts read at once.
const PARTS_AT_ONCE: usize = 1_024;
/// Users in one chunk of a segment's list.
pub(super) const CHUNK_USERS: usize = 380;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct IdAllocator {
    /// The highest number given to a popup. No number appears twice, or the counts and frequency counters of a deleted
    /// popup would become another's.
    pub(super) last_popup: u32,
    /// The same for segments' lists.
    pub(super) last_list: u32,
    /// Signs decisions, so that events can be reported only of decisions that were made here.
    pub(super) signing_key: [u8; 32],
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PopupHead {
    pub(super) id: String,
    pub(super) version: u32,
    /// The oldest version that is kept.
    pub(super) oldest: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JourneyHead {
    pub(super) id: String,
    pub(super) version: u32,
    /// The oldest version that is kept.
    pub(super) oldest: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredVersion {
    pub(super) version: u32,
    pub(super) updated_at: u64,
    pub(super) updated_by: Option<String>,
    /// The `PopupSpec`, or the `PopupJourneySpec`, as JSON text.
    pub(super) spec: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SegmentHead {
    pub(super) id: String,
    /// The number of the segment's list. An upload writes a list under a new number first; the head makes it the
    /// segment's.
    pub(super) list: u32,
    pub(super) users: u64,
    pub(super) updated_at: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredEvent {
    pub(super) id: String,
    pub(super) kind: u8,
    pub(super) popup: u32,
    /// The popup's id, for exports after the popup was deleted.
    pub(super) popup_id: String,
    pub(super) variant: String,
    pub(super) user: String,
    pub(super) decision: String,
    pub(super) at: u64,
    pub(super) button: Option<String>,
    pub(super) value: Option<f64>,
}

/// What only some kinds of events have. It stands behind the [`StoredEvent`] in the row, whose format is
/// [`DETAILED_FORMAT`] then; rows of other events are as they were before there were such kinds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct EventDetails {
    /// The name of a custom event.
    pub(super) name: String,
    /// Until when a popup is not shown.
    pub(super) until: u64,
    /// The properties of a custom event, as JSON text; empty for none.
    pub(super) properties: String,
}

/// The format of an event's row that has [`EventDetails`].
const DETAILED_FORMAT: u8 = 2;

pub(super) fn encode_event(event: &StoredEvent, details: Option<&EventDetails>) -> Vec<u8> {
    let mut row = encode(event);
    if let Some(details) = details {
        row[0] = DETAILED_FORMAT;
        // Serializing into memory cannot fail.
        row = postcard::to_extend(details, row).unwrap_or_default();
    }
    row
}

pub(super) fn decode_event(bytes: &[u8]) -> StoreResult<(StoredEvent, EventDetails)> {
    let Some((&DETAILED_FORMAT, row)) = bytes.split_first() else {
        return Ok((decode(bytes)?, EventDetails::default()));
    };
    let bad = |error: postcard::Error| damaged(&format_args!("an event: {error}"));
    let (event, rest) = postcard::take_from_bytes(row).map_err(bad)?;
    Ok((event, postcard::from_bytes(rest).map_err(bad)?))
}

/// A user's assignment in a popup that declares its conversion, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredAssignment {
    /// The user's id; empty if a crash came between the decision and this row, and the user has not converted since.
    pub(super) user: String,
    /// The number of the group: [`super::conversion::Group`].
    pub(super) group: u32,
    /// The variant that was shown, if it is known.
    pub(super) variant: String,
    /// When the user first converted; 0: not at all.
    pub(super) converted_at: u64,
    pub(super) conversions: u32,
    pub(super) value: f64,
}

/// Where an assignment is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AssignmentKey {
    pub(super) popup: u32,
    /// The number of the measurement: that of the declared conversion.
    pub(super) measurement: u32,
    pub(super) at: u64,
    pub(super) user: UserKey,
}

impl AssignmentKey {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let AssignmentKey { popup, measurement, at, user } = self;
        let (popup, measurement) = (popup.to_be_bytes(), measurement.to_be_bytes());
        key(kind::ASSIGNMENT, [&popup, &measurement, &at.to_be_bytes(), &user.0.to_be_bytes()])
    }

    pub(super) fn read(key: &[u8]) -> StoreResult<AssignmentKey> {
        let bad = || damaged(&"an assignment stands under another key");
        let key: &[u8; 33] = key.try_into().map_err(|_| bad())?;
        let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| key[at + byte]));
        Ok(AssignmentKey {
            popup: number(1),
            measurement: number(5),
            at: u64::from_be_bytes(std::array::from_fn(|byte| key[9 + byte])),
            user: UserKey(u128::from_be_bytes(std::array::from_fn(|byte| key[17 + byte]))),
        })
    }
}

/// The assignments of a popup, those of one measurement, or those of one from a time on: the beginning of their keys.
pub(super) fn assignments_prefix(popup: u32, measurement: Option<u32>, at: Option<u64>) -> Vec<u8> {
    let mut prefix = key(kind::ASSIGNMENT, [&popup.to_be_bytes()]);
    prefix.extend(measurement.iter().flat_map(|number| number.to_be_bytes()));
    prefix.extend(at.iter().flat_map(|at| at.to_be_bytes()));
    prefix
}

/// What is counted per hour of a popup's variant. The values are positions in the stored counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum CountKind {
    Shown = 0,
    Control = 1,
    Impression = 2,
    Click = 3,
    Button = 4,
    Dismiss = 5,
    Conversion = 6,
}

pub(super) const COUNT_KINDS: usize = 7;

impl CountKind {
    /// What an event of this kind is counted as, if it is.
    pub(super) fn of(kind: PopupEventKind) -> Option<CountKind> {
        Some(match kind {
            PopupEventKind::Impression => CountKind::Impression,
            PopupEventKind::Click => CountKind::Click,
            PopupEventKind::Button => CountKind::Button,
            PopupEventKind::Dismiss => CountKind::Dismiss,
            PopupEventKind::Conversion => CountKind::Conversion,
            PopupEventKind::Snooze | PopupEventKind::Custom => return None,
        })
    }
}

/// The kinds of events, in the order of their stored numbers, the first of which is [`FIRST_EVENT_KIND`].
pub(super) const EVENT_KINDS: [PopupEventKind; 7] = [
    PopupEventKind::Impression,
    PopupEventKind::Click,
    PopupEventKind::Button,
    PopupEventKind::Dismiss,
    PopupEventKind::Conversion,
    PopupEventKind::Snooze,
    PopupEventKind::Custom,
];

const FIRST_EVENT_KIND: u8 = CountKind::Impression as u8;

/// The number by which a kind of event is stored: that of its count, if it is counted.
pub(super) fn event_kind_number(kind: PopupEventKind) -> u8 {
    let at = EVENT_KINDS.iter().position(|known| *known == kind).unwrap_or_default();
    FIRST_EVENT_KIND + at as u8
}

pub(super) fn event_kind_of(number: u8) -> Option<PopupEventKind> {
    EVENT_KINDS.get(usize::from(number.checked_sub(FIRST_EVENT_KIND)?)).copied()
}

fn key<const N: usize>(kind: u8, parts: [&[u8]; N]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    key.push(kind);
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

/// The range of the rows of events on their way into the feed, from this number on.
pub fn feed_notes_from(number: u64) -> (Vec<u8>, Vec<u8>) {
    (key(kind::FEED_NOTES, [&number.to_be_bytes()]), vec![kind::FEED_NOTES + 1])
}

/// The row of these notes for the feed.
pub(super) fn feed_notes(NotesRow { no: (number, boot), bytes }: NotesRow) -> RowChange {
    put(key(kind::FEED_NOTES, [&number.to_be_bytes(), &boot.to_be_bytes()]), bytes)
}

pub(super) fn id_allocator_key() -> Vec<u8> {
    vec![kind::ID_ALLOCATOR]
}

pub(super) fn head_key(popup: u32) -> Vec<u8> {
    key(kind::POPUP, [&popup.to_be_bytes()])
}

pub(super) fn version_key(popup: u32, version: u32) -> Vec<u8> {
    key(kind::VERSION, [&popup.to_be_bytes(), &version.to_be_bytes()])
}

pub(super) fn settings_key() -> Vec<u8> {
    vec![kind::SETTINGS]
}

pub(super) fn segment_key(id: &str) -> Vec<u8> {
    key(kind::SEGMENT, [id.as_bytes()])
}

pub(super) fn chunk_key(list: u32, chunk: u32) -> Vec<u8> {
    key(kind::SEGMENT_CHUNK, [&list.to_be_bytes(), &chunk.to_be_bytes()])
}

pub(super) fn user_key(user: UserKey) -> Vec<u8> {
    key(kind::USER, [&user.0.to_be_bytes()])
}

pub(super) fn count_key(popup: u32, hour: u32, variant: &str) -> Vec<u8> {
    key(kind::COUNTS, [&popup.to_be_bytes(), &hour.to_be_bytes(), variant.as_bytes()])
}

pub(super) fn event_key(taken_at: u64, hash: EventIdHash) -> Vec<u8> {
    key(kind::EVENT, [&taken_at.to_be_bytes(), &hash.0.to_be_bytes()])
}

/// An event's id in a key: hashed together with the user, since event ids are unique per user only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EventIdHash(pub(super) u128);

pub(super) fn event_id_hash(user: &str, id: &str) -> EventIdHash {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(user.as_bytes());
    // No id contains this byte, so two different pairs never give the same input.
    hasher.update(&[0xFF]);
    hasher.update(id.as_bytes());
    EventIdHash(hasher.digest128())
}

pub(super) fn event_id_key(hash: EventIdHash) -> Vec<u8> {
    key(kind::EVENT_ID, [&hash.0.to_be_bytes()])
}

pub(super) fn last_taken_key() -> Vec<u8> {
    vec![kind::LAST_TAKEN]
}

pub(super) fn journey_key(journey: u32) -> Vec<u8> {
    key(kind::JOURNEY, [&journey.to_be_bytes()])
}

pub(super) fn journey_version_key(journey: u32, version: u32) -> Vec<u8> {
    key(kind::JOURNEY_VERSION, [&journey.to_be_bytes(), &version.to_be_bytes()])
}

/// The time at which a user is to be looked at, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Wake {
    pub(super) at: u64,
    pub(super) user: UserKey,
}

pub(super) fn wake_key(Wake { at, user }: Wake) -> Vec<u8> {
    key(kind::WAKE, [&at.to_be_bytes(), &user.0.to_be_bytes()])
}

pub(super) fn read_wake(key: &[u8]) -> StoreResult<Wake> {
    let parts = key.get(1..9).zip(key.get(9..25)).filter(|_| key.len() == 25);
    let parts = parts.and_then(|(at, user)| Some((at.try_into().ok()?, user.try_into().ok()?)));
    let (at, user) = parts.ok_or_else(|| damaged(&"a journey's timer stands under another key"))?;
    Ok(Wake { at: u64::from_be_bytes(at), user: UserKey(u128::from_be_bytes(user)) })
}

pub(super) fn standing_key(user: UserKey) -> Vec<u8> {
    key(kind::STANDING, [&user.0.to_be_bytes()])
}

/// Of several changes of a row the last one: stores take each row once in a write.
pub(super) fn last_of_each(changes: Vec<RowChange>) -> Vec<RowChange> {
    let mut seen = rustc_hash::FxHashSet::default();
    let mut last: Vec<RowChange> = changes.into_iter().rev().filter(|change| seen.insert(change.key.clone())).collect();
    last.reverse();
    last
}

/// A key behind all keys that begin with this prefix.
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
    // Serializing these types into memory cannot fail.
    postcard::to_extend(row, vec![FORMAT]).unwrap_or_default()
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> StoreResult<T> {
    match bytes.split_first() {
        Some((&FORMAT, row)) => postcard::from_bytes(row).map_err(|error| damaged(&format_args!("a row: {error}"))),
        Some((format, _)) => Err(damaged(&format_args!("a row of format {format}, written by a newer version?"))),
        None => Err(damaged(&"an empty row")),
    }
}

pub(super) fn damaged(what: &dyn std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("popups: {what}"))
}

/// Splits a value over rows with the keys `key part`; the first begins with the number of parts.
pub(super) fn put_long(changes: &mut Vec<RowChange>, key: &[u8], bytes: &[u8]) {
    let count = bytes.len().div_ceil(PART_BYTES).max(1) as u16;
    for part in 0..count {
        let start = usize::from(part) * PART_BYTES;
        let bytes = &bytes[start..(start + PART_BYTES).min(bytes.len())];
        let mut value = Vec::with_capacity(bytes.len() + 2);
        if part == 0 {
            value.extend_from_slice(&count.to_be_bytes());
        }
        value.extend_from_slice(bytes);
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

/// The same for several keys, in their order.
pub(super) fn read_longs<S: RowStore + ?Sized>(
    store: &S,
    keys: &[impl AsRef<[u8]>],
) -> StoreResult<Vec<Option<Vec<u8>>>> {
    let firsts: Vec<Vec<u8>> = keys.iter().map(|key| part_key(key.as_ref(), 0)).collect();
    let mut values = store.rows_of(SPACE, &firsts)?;
    // The parts behind the first ones: the position of their value, their number and their key.
    let mut rest = Vec::new();
    for (position, (key, value)) in keys.iter().zip(&mut values).enumerate() {
        let Some(bytes) = value else { continue };
        let Some((count, first)) = bytes.split_first_chunk::<2>() else {
            return Err(damaged(&"a part without a count"));
        };
        rest.extend((1..u16::from_be_bytes(*count)).map(|part| (position, part, part_key(key.as_ref(), part))));
        *bytes = first.to_vec();
    }
    for some in rest.chunks(PARTS_AT_ONCE) {
        let parts: Vec<Vec<u8>> = some.iter().map(|(.., key)| key.clone()).collect();
        for ((position, part, _), row) in some.iter().zip(store.rows_of(SPACE, &parts)?) {
            let row = row.ok_or_else(|| damaged(&format_args!("part {part} of a value is missing")))?;
            values[*position].get_or_insert_default().extend(row);
        }
    }
    Ok(values)
}

/// The most rows in one write: few, so that chat's commits never wait long.
pub(super) const ROWS_PER_WRITE: usize = 1_024;
