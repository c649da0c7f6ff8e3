//! Single records of the embedded store, read through whatever reads its rows: the engine, a batch that is being made, a
//! folder that is checked.

use crate::{commit::Counters, embedded::store_error, kv::*, rows::*};
use tidings_engine::{model::*, store::*};

pub(crate) fn read_counters(kv: &dyn KvRead) -> StoreResult<Counters> {
    match kv.get(Space::Meta, b"n").map_err(store_error)? {
        Some(row) => Counters::of_row(&row).ok_or_else(|| damaged("the counters' row")),
        None => Ok(Counters::default()),
    }
}

pub(crate) fn read_user(kv: &dyn KvRead, no: UserNo) -> StoreResult<Option<User>> {
    let row = kv.get(Space::Meta, &key(b'U', &[no.0])).map_err(store_error)?;
    let Some(row) = row else { return Ok(None) };
    // A row of its own: programs that do not know of it write the user's row anew and leave this one.
    let revoked = kv.get(Space::Meta, &key(b'v', &[no.0])).map_err(store_error)?;
    let revoked_at = revoked.and_then(|row| number_at(&row, 0)).unwrap_or(0);
    Ok(Some(User { revoked_at, ..decode::<UserRow>(&row)?.user(no) }))
}

pub(crate) fn read_conversation(kv: &dyn KvRead, no: ConversationNo) -> StoreResult<Option<Conversation>> {
    let row = kv.get(Space::Meta, &key(b'C', &[no.0])).map_err(store_error)?;
    row.map(|row| Ok(decode::<ConversationRow>(&row)?.conversation(no))).transpose()
}

pub(crate) fn read_membership(
    kv: &dyn KvRead,
    conversation: ConversationNo,
    user: UserNo,
) -> StoreResult<Option<Membership>> {
    let row = kv.get(Space::Meta, &key(b'm', &[conversation.0, user.0])).map_err(store_error)?;
    row.map(|row| Ok(decode::<MembershipRow>(&row)?.membership())).transpose()
}

/// A conversation's head, from its newest entry: one look at the end of the timeline.
pub(crate) fn read_head(kv: &dyn KvRead, no: ConversationNo) -> StoreResult<Head> {
    let first_row = kv.get(Space::Meta, &key(b'f', &[no.0])).map_err(store_error)?;
    let first_seq = first_row.and_then(|row| number_at(&row, 0)).unwrap_or(1);
    let mut head = Ok(Head { first_seq, ..Head::default() });
    kv.scan(Space::Timeline, &entry_key(no, 0), &entry_key(no, u64::MAX), Order::Down, &mut |key, row| {
        let seq = number_at(key, 8).unwrap_or(0);
        // The body is not needed; one that is split is not fetched.
        head = decode_entry(seq, row, |_| Ok(b"\0\0\0\x02[]".to_vec())).map(|entry| Head {
            last_seq: seq,
            last_at: entry.at,
            last_position: entry.position,
            first_seq,
        });
        false
    })
    .map_err(store_error)?;
    head
}

/// The parts of a split body, joined.
pub(crate) fn read_parts(kv: &dyn KvRead, no: ConversationNo, seq: u64, count: u16) -> StoreResult<Vec<u8>> {
    let mut whole = Vec::new();
    for part in 0..count {
        let row = kv.get(Space::Bodies, &part_key(no, seq, part)).map_err(store_error)?;
        whole.extend(row.ok_or_else(|| damaged(format_args!("entry {seq}: part {part} of its body is missing")))?);
    }
    Ok(whole)
}

/// How far the outbox's consumer has got, and where the rows that are left begin: what was removed
/// before that is not walked over again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutboxMark {
    pub through: Position,
    pub first_row: Position,
}

pub(crate) fn read_outbox_mark(kv: &dyn KvRead) -> StoreResult<OutboxMark> {
    let row = kv.get(Space::Meta, b"O").map_err(store_error)?;
    match row.as_deref().map(numbers).as_deref() {
        None => Ok(OutboxMark::default()),
        Some([through, first_row]) => Ok(OutboxMark { through: *through, first_row: *first_row }),
        Some(_) => Err(damaged("the outbox's mark")),
    }
}

/// Keys of outbox rows whose every item is at or before `through`, and the mark after their removal.
pub(crate) fn outbox_rows_done(
    kv: &dyn KvRead,
    before: OutboxMark,
    through: Position,
) -> StoreResult<(Vec<Vec<u8>>, OutboxMark)> {
    let mut done = Vec::new();
    let mut first_row = through + 1;
    kv.scan(Space::Meta, &key(b'o', &[before.first_row]), &key(b'o', &[through]), Order::Up, &mut |key, row| {
        let newest = row.len().checked_sub(24).and_then(|at| number_at(row, at));
        if newest.is_none_or(|newest| newest <= through) {
            done.push(key.to_vec());
        } else {
            // Rows do not overlap, so only the last one can reach beyond.
            first_row = number_at(key, 1).unwrap_or(first_row);
        }
        true
    })
    .map_err(store_error)?;
    Ok((done, OutboxMark { through, first_row }))
}
