//! The folder's rows, as rows of the tables.
//!
//! Every space and every kind of rows is named here by a `match` without an arm for the rest, so that a new one is not left behind:
//! it does not compile until it is said what becomes of it. A row of a kind that this program does not know is an error.

use super::{
    batch::Batch,
    table::{Table, Value},
};
use crate::{
    errors::store_error,
    event_log::LoggedBatch,
    first_results::{DEDUPE, decode_first_result},
    kv::*,
    postgres::{
        connection::bigint,
        entries::{kept_by, qualified_id},
        load::MUTED_FOR_GOOD,
        partitions::Partitions,
    },
    reads::{OutboxProgress, read_head, read_outbox_progress, read_parts},
    rows::*,
};
use tidings_domain::{model::*, store::*};

/// Where in the folder a copy has come: behind this key of this space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The space's place in [`Space::ALL`]; their number: at the end.
    pub(super) space: usize,
    /// Empty: at the space's beginning.
    pub(super) after: Vec<u8>,
}

impl Place {
    pub(super) const START: Place = Place { space: 0, after: Vec::new() };
}

/// What reads the folder's rows.
pub(super) struct Source<'a> {
    kv: &'a dyn KvRead,
    partitions: &'a Partitions,
    outbox: OutboxProgress,
    rows_max: usize,
}

impl<'a> Source<'a> {
    pub(super) fn new(kv: &'a dyn KvRead, partitions: &'a Partitions, rows_max: usize) -> StoreResult<Source<'a>> {
        Ok(Source { kv, partitions, outbox: read_outbox_progress(kv)?, rows_max: rows_max.max(1) })
    }

    /// Reads the rows behind a place. `take` gets them in batches, each with the place behind it; its error ends the scan.
    pub(super) fn batches<E: From<StoreError>>(
        &self,
        from: &Place,
        take: &mut dyn FnMut(Batch, Place) -> Result<(), E>,
    ) -> Result<(), E> {
        for (place, space) in Space::ALL.into_iter().enumerate().skip(from.space) {
            let mut low = Vec::new();
            if place == from.space && !from.after.is_empty() {
                low = [&from.after[..], &[0]].concat();
            }
            let mut batch = Batch::default();
            let mut failed: Option<E> = None;
            let scanned = self.kv.scan(space, &low, LAST_KEY, Order::Ascending, &mut |key, row| {
                let read = self.add_row(space, key, row, &mut batch).map_err(E::from);
                failed = match read {
                    Ok(()) if batch.is_full(self.rows_max) => {
                        take(std::mem::take(&mut batch), Place { space: place, after: key.to_vec() }).err()
                    }
                    read => read.err(),
                };
                failed.is_none()
            });
            scanned.map_err(|error| E::from(store_error(error)))?;
            failed.map_or(Ok(()), Err)?;
            take(batch, Place { space: place + 1, after: Vec::new() })?;
        }
        Ok(())
    }

    fn add_row(&self, space: Space, key: &[u8], row: &[u8], batch: &mut Batch) -> StoreResult<()> {
        let value = || [Value::Bytes(key.to_vec()), Value::Bytes(row.to_vec())];
        match space {
            Space::Meta => return self.add_meta(key, row, batch),
            Space::Timeline => return self.add_entry(key, row, batch),
            // With their entries.
            Space::Bodies => {}
            Space::Dedupe => return add_first_result(key, row, batch),
            Space::Push => batch.push(Table::PushRows, value()),
            Space::Popups => batch.push(Table::PopupRows, value()),
        }
        Ok(())
    }

    fn add_meta(&self, key: &[u8], row: &[u8], batch: &mut Batch) -> StoreResult<()> {
        let in_key = |at: usize| number_at(key, at).ok_or_else(|| damaged(format_args!("the key {key:02x?}")));
        let in_row = || number_at(row, 0).ok_or_else(|| damaged(format_args!("the row under {key:02x?}")));
        let big = |number: u64| Value::Big(bigint(number));
        let kind = MetaKind::of(key).ok_or_else(|| {
            let kind = String::from_utf8_lossy(&key[..key.len().min(1)]);
            damaged(format_args!(
                "a row of the kind {kind:?}, which this program does not know; was it written by a newer one?"
            ))
        })?;
        match kind {
            MetaKind::User => {
                let no = in_key(1)?;
                let user = decode_user(UserNo(no), row)?;
                let revoked = self.kv.get(Space::Meta, &key_of(MetaKind::Revoked, no)).map_err(store_error)?;
                let revoked_at = revoked.and_then(|row| number_at(&row, 0)).unwrap_or(0);
                let row = [big(no), Value::Text(user.id), Value::Bytes(row.to_vec()), big(revoked_at)];
                batch.push(Table::Users, row);
            }
            MetaKind::LastSeen => batch.push(Table::LastSeen, [big(in_key(1)?), big(in_row()?)]),
            MetaKind::Conversation => {
                let no = in_key(1)?;
                let card = decode_conversation(ConversationNo(no), row)?;
                batch.push(Table::Conversations, [big(no), Value::Text(card.id), Value::Bytes(row.to_vec())]);
                let Head { last_seq, last_at, last_position, .. } = read_head(self.kv, ConversationNo(no))?;
                batch.push(Table::Heads, [no, last_seq, last_at, last_position].map(big));
            }
            MetaKind::Member => batch.push(Table::Members, member(in_key(1)?, in_key(9)?, row)?),
            MetaKind::UserConversation => {
                let place = [big(in_key(1)?), Value::Small(key[9].into()), big(in_key(10)?)];
                batch.push(Table::Places, place);
            }
            MetaKind::OutboxItems => {
                for item in numbers(row).chunks_exact(3).filter(|item| item[0] > self.outbox.through) {
                    batch.push(Table::Outbox, [item[0], item[1], item[2]].map(big));
                }
            }
            MetaKind::DeadLetter => {
                batch.push(Table::DeadNotifications, [big(in_key(1)?), Value::Bytes(row.to_vec())]);
            }
            MetaKind::Retry => {
                batch.push(Table::NotificationRetries, [big(in_key(1)?), Value::Bytes(row.to_vec())]);
            }
            MetaKind::Unacknowledged => {
                batch.push(Table::UnacknowledgedMessages, [big(in_key(1)?), Value::Bytes(row.to_vec())]);
            }
            // Of a value in several rows the first stands for all.
            MetaKind::LogRecords if in_key(9)? == 0 => self.add_log_records(in_key(1)?, row, batch)?,
            MetaKind::LogRecords => {}
            MetaKind::Chat => {
                batch.push(Table::ChatRows, [Value::Bytes(key[1..].to_vec()), Value::Bytes(row.to_vec())]);
            }
            // With the user or conversation of that number.
            MetaKind::UserId | MetaKind::Revoked | MetaKind::ConversationId => {}
            // What the entries that are there say: the first of each conversation, and the bytes of each part of the timeline.
            MetaKind::FirstSeq | MetaKind::DayBytes => {}
            // In the tables of one row: `target` writes them.
            MetaKind::Epoch | MetaKind::Counters | MetaKind::OutboxProgress | MetaKind::LogStart => {}
            // A new database has all gates open, as has a folder that this program's server opens.
            MetaKind::Gate => {}
        }
        Ok(())
    }

    fn add_entry(&self, key: &[u8], row: &[u8], batch: &mut Batch) -> StoreResult<()> {
        let (Some(conversation), Some(seq)) = (number_at(key, 0), number_at(key, 8)) else {
            return Err(damaged("an entry's key"));
        };
        let of = ConversationNo(conversation);
        let entry = decode_entry(seq, row, |count| read_parts(self.kv, of, seq, count))?;
        let (part, content) = (self.partitions.of(entry.kept_since()), encode_content(&entry.content));
        batch.note_entry(conversation, seq, part, entry.position, content.len());
        let [conversation, seq, position, at] =
            [conversation, seq, entry.position, entry.at].map(|number| Value::Big(bigint(number)));
        batch.push(Table::Entries, [conversation, seq, Value::Int(part), position, at, Value::Bytes(content)]);
        Ok(())
    }

    /// The changes in a batch of the log; its entries are in their timelines.
    fn add_log_records(&self, last: Position, first_part: &[u8], batch: &mut Batch) -> StoreResult<()> {
        let mut value = first_part.to_vec();
        for part in 1.. {
            let row = self.kv.get(Space::Meta, &key(MetaKind::LogRecords, &[last, part])).map_err(store_error)?;
            let Some(row) = row else { break };
            value.extend(row);
        }
        let logged: LoggedBatch = decode(&value)?;
        for record in logged.records {
            if let Some(change) = record.change {
                let [position, at] = [record.position, logged.at].map(|number| Value::Big(bigint(number)));
                batch.push(Table::Changes, [position, at, Value::Bytes(change)]);
            }
        }
        Ok(())
    }
}

fn key_of(kind: MetaKind, number: u64) -> Vec<u8> {
    key(kind, &[number])
}

fn member(conversation: u64, user: u64, row: &[u8]) -> StoreResult<[Value; 7]> {
    let membership = decode::<MembershipRow>(row)?.membership();
    let muted_until = match membership.mute {
        MuteState::Off => 0,
        MuteState::Until(end) => bigint(end),
        MuteState::Forever => MUTED_FOR_GOOD,
    };
    let Membership { joined_at, joined_seq, read_seq, .. } = membership;
    let [conversation, user, joined_at, joined_seq, read_seq] =
        [conversation, user, joined_at, joined_seq, read_seq].map(|number| Value::Big(bigint(number)));
    let role = Value::Small(membership.stored_role().into());
    Ok([conversation, user, role, joined_at, joined_seq, read_seq, Value::Big(muted_until)])
}

/// Under the id that is qualified by the conversation wherever there is an author: an author may have used an id in several
/// conversations, and the rows that the database itself writes are looked for under both.
fn add_first_result(key: &[u8], row: &[u8], batch: &mut Batch) -> StoreResult<()> {
    let first = decode_first_result(row)?;
    let Appended { conversation, seq, at, position, .. } = first.appended;
    let author_at = if key.first() == Some(&DEDUPE) { 9 } else { 0 };
    let author = number_at(key, author_at).map(UserNo);
    let id = key.get(author_at + 8..).and_then(|id| std::str::from_utf8(id).ok());
    let (Some(author), Some(id)) = (author, id) else { return Err(damaged("the key of a first result")) };
    let kept_as = if author == UserNo::NOBODY { id.to_owned() } else { qualified_id(conversation, id) };
    let request = first.request.map_or(Value::Null, |digest| Value::Bytes(digest.0.to_vec()));
    let [of, seq, at, position] = [conversation.0, seq, at, position].map(|number| Value::Big(bigint(number)));
    let by = Value::Big(kept_by(conversation, author));
    batch.push(Table::Dedupe, [by, Value::Text(kept_as), of, seq, at, position, request]);
    Ok(())
}
