//! Reads of single rows of the embedded store, from the live engine or from a snapshot.

use crate::{errors::store_error, kv::*, rows::*};
use tidings_domain::{
    chat_rows::{UserSettings, settings_key},
    model::*,
    store::*,
};

pub(crate) fn read_counters(kv: &dyn KvRead) -> StoreResult<Counters> {
    match kv.get(Space::Meta, &MetaKind::Counters.only_key()).map_err(store_error)? {
        Some(row) => Counters::of_row(&row).ok_or_else(|| damaged("the counters' row")),
        None => Ok(Counters::default()),
    }
}

pub(crate) fn read_user(kv: &dyn KvRead, no: UserNo) -> StoreResult<Option<User>> {
    let row = kv.get(Space::Meta, &key(MetaKind::User, &[no.0])).map_err(store_error)?;
    let Some(row) = row else { return Ok(None) };
    // The time of revocation has a row of its own: an older version that rewrites the user's row leaves it alone.
    let revoked = kv.get(Space::Meta, &key(MetaKind::Revoked, &[no.0])).map_err(store_error)?;
    let revoked_at = revoked.and_then(|row| number_at(&row, 0)).unwrap_or(0);
    let settings = kv.get(Space::Meta, &chat_key(&settings_key(no))).map_err(store_error)?;
    let user = User { revoked_at, ..decode_user(no, &row)? };
    Ok(Some(UserSettings::decode(settings.as_deref())?.of_user(user)))
}

pub(crate) fn read_conversation(kv: &dyn KvRead, no: ConversationNo) -> StoreResult<Option<Conversation>> {
    let row = kv.get(Space::Meta, &key(MetaKind::Conversation, &[no.0])).map_err(store_error)?;
    row.map(|row| decode_conversation(no, &row)).transpose()
}

pub(crate) fn read_membership(
    kv: &dyn KvRead,
    conversation: ConversationNo,
    user: UserNo,
) -> StoreResult<Option<Membership>> {
    let row = kv.get(Space::Meta, &key(MetaKind::Member, &[conversation.0, user.0])).map_err(store_error)?;
    row.map(|row| Ok(decode::<MembershipRow>(&row)?.membership())).transpose()
}

/// A conversation's head, from its newest entry.
pub(crate) fn read_head(kv: &dyn KvRead, no: ConversationNo) -> StoreResult<Head> {
    let first_row = kv.get(Space::Meta, &key(MetaKind::FirstSeq, &[no.0])).map_err(store_error)?;
    let first_seq = first_row.and_then(|row| number_at(&row, 0)).unwrap_or(1);
    let mut head = Ok(Head { first_seq, ..Head::default() });
    kv.scan(Space::Timeline, &entry_key(no, 0), &entry_key(no, u64::MAX), Order::Descending, &mut |key, row| {
        let seq = number_at(key, 8).unwrap_or(0);
        // The body is not needed: instead of the parts of a split one, an empty body is decoded.
        head = decode_entry(seq, row, |_| Ok(EMPTY_PARTS.to_vec())).map(|entry| Head {
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

/// A split body, joined from its parts.
pub(crate) fn read_parts(kv: &dyn KvRead, no: ConversationNo, seq: u64, count: u16) -> StoreResult<Vec<u8>> {
    let mut whole = Vec::new();
    for part in 0..count {
        let row = kv.get(Space::Bodies, &part_key(no, seq, part)).map_err(store_error)?;
        whole.extend(row.ok_or_else(|| damaged(format_args!("entry {seq}: part {part} of its body is missing")))?);
    }
    Ok(whole)
}

/// How far the outbox's consumer has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutboxProgress {
    /// The consumer is done with all items up to this position.
    pub through: Position,
    /// Where the first row begins that was not removed: scans start here, so that they do not pass over the removed rows.
    pub first_row: Position,
}

pub(crate) fn read_outbox_progress(kv: &dyn KvRead) -> StoreResult<OutboxProgress> {
    let row = kv.get(Space::Meta, &MetaKind::OutboxProgress.only_key()).map_err(store_error)?;
    match row.as_deref().map(numbers).as_deref() {
        None => Ok(OutboxProgress::default()),
        Some([through, first_row]) => Ok(OutboxProgress { through: *through, first_row: *first_row }),
        Some(_) => Err(damaged("the row of the outbox's progress")),
    }
}

/// Keys of outbox rows whose every item is at or before `through`, and the progress after their removal.
pub(crate) fn consumed_outbox_rows(
    kv: &dyn KvRead,
    before: OutboxProgress,
    through: Position,
) -> StoreResult<(Vec<Vec<u8>>, OutboxProgress)> {
    let mut consumed = Vec::new();
    let mut first_row = through + 1;
    kv.scan(
        Space::Meta,
        &key(MetaKind::OutboxItems, &[before.first_row]),
        &key(MetaKind::OutboxItems, &[through]),
        Order::Ascending,
        &mut |key, row| {
            let newest = row.len().checked_sub(24).and_then(|at| number_at(row, at));
            if newest.is_none_or(|newest| newest <= through) {
                consumed.push(key.to_vec());
            } else {
                // Rows do not overlap, so only the last row can have items behind `through`.
                first_row = number_at(key, 1).unwrap_or(first_row);
            }
            true
        },
    )
    .map_err(store_error)?;
    Ok((consumed, OutboxProgress { through, first_row }))
}
