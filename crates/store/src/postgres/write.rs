//! Writes a decided batch: one statement per table, whatever the number of rows.

use super::{
    checked_read::CheckedRead,
    clock::now_ms,
    commit_orders::local_through,
    connection::{Call, Connection, bigint, number},
    entries::{Contents, count_entries, count_entries_in, ids_sql, put_outbox, write_entries},
    failure::Failure,
    load::MUTED_FOR_GOOD,
    notification_tables::NotificationColumns,
    partitions::Partitions,
    staged_batch::{BATCH_RELATIVE, Changes, LoadedState},
};
use crate::rows::{encode_content, encode_conversation, encode_user, kind_byte};
use std::{borrow::Cow, collections::BTreeSet};
use tidings_domain::{chat_row_kind::ChatRowKind, desks::indexed, model::*};
use tokio_postgres::types::ToSql;

/// The rows to be written, as the columns that the statements take.
struct Columns<'a> {
    new_users: (Vec<i64>, Vec<&'a str>, Vec<Vec<u8>>),
    users: (Vec<i64>, Vec<Vec<u8>>),
    conversations: (Vec<i64>, Vec<&'a str>, Vec<Vec<u8>>),
    created: Vec<i64>,
    members: Members,
    members_gone: (Vec<i64>, Vec<i64>),
    left: Vec<i64>,
    places_joined: (Vec<i64>, Vec<i16>, Vec<i64>),
    places_left: (Vec<i64>, Vec<i16>, Vec<i64>),
    last_seen: (Vec<i64>, Vec<i64>),
    revoked: (Vec<i64>, Vec<i64>),
    forgotten: (Vec<i64>, Vec<i64>, Vec<&'a str>),
    erased: (Vec<i64>, Vec<&'a str>),
    expired_results: (Vec<i64>, Vec<&'a str>, Vec<i64>),
    entries: Entries<'a>,
    rewritten: Rewritten,
    chat_rows: (Vec<&'a [u8]>, Vec<&'a [u8]>),
    indexed: (Vec<&'a [u8]>, Vec<i64>, Vec<&'a [u8]>),
    chat_rows_gone: Vec<&'a [u8]>,
    logged: (Vec<i64>, Vec<&'a [u8]>),
    outbox_done: Option<i64>,
    notifications: NotificationColumns,
}

#[derive(Default)]
struct Members {
    conversations: Vec<i64>,
    users: Vec<i64>,
    roles: Vec<i16>,
    joined_at: Vec<i64>,
    joined_seq: Vec<i64>,
    read_seq: Vec<i64>,
    muted_until: Vec<i64>,
}

/// The columns of stored entries whose content has changed.
#[derive(Default)]
struct Rewritten {
    partitions: Vec<i32>,
    conversations: Vec<i64>,
    seqs: Vec<i64>,
    contents: Vec<Vec<u8>>,
}

impl Rewritten {
    fn of(state: &LoadedState, keys: &BTreeSet<(ConversationNo, u64)>) -> Rewritten {
        let mut columns = Rewritten::default();
        for (key, (part, entry)) in keys.iter().filter_map(|key| Some((key, state.entries.get(key)?))) {
            columns.partitions.push(*part);
            columns.conversations.push(bigint(key.0.0));
            columns.seqs.push(bigint(key.1));
            columns.contents.push(encode_content(&entry.content));
        }
        columns
    }
}

struct Entries<'a> {
    offsets: Vec<i64>,
    conversations: Vec<i64>,
    seqs: Vec<i64>,
    at: Vec<i64>,
    partitions: Vec<i32>,
    contents: Contents<'a>,
}

impl<'a> Columns<'a> {
    fn of(state: &'a LoadedState, changes: &'a Changes<'a>, partitions: &Partitions, outbox: bool) -> Columns<'a> {
        let users = changes.users.iter().filter_map(|no| state.users.get(no));
        let (new_users, users): (Vec<_>, Vec<_>) = users.partition(|user| changes.new_users.contains(&user.no));
        let conversations = changes.conversations.iter().filter_map(|no| state.conversations.get(no));
        let place = |(user, conversation): &(UserNo, ConversationNo)| {
            let kind = state.conversations.get(conversation).map_or(0, |card| kind_byte(card.kind));
            (bigint(user.0), i16::from(kind), bigint(conversation.0))
        };
        let places = |joined: bool| changes.joined.iter().filter(move |(_, is)| **is == joined).map(|(key, _)| key);
        let gone = changes.memberships.iter().filter(|key| !state.memberships.contains_key(key));
        Columns {
            new_users: unzip3(by_id(
                new_users.iter().map(|user| (bigint(user.no.0), user.id.as_str(), encode_user(user))),
            )),
            users: users.into_iter().map(|user| (bigint(user.no.0), encode_user(user))).unzip(),
            conversations: unzip3(by_id(
                conversations.map(|card| (bigint(card.no.0), card.id.as_str(), encode_conversation(card))),
            )),
            created: changes.created.iter().map(|no| bigint(no.0)).collect(),
            members: Members::of(state, &changes.memberships),
            members_gone: gone.map(|(conversation, user)| (bigint(conversation.0), bigint(user.0))).unzip(),
            left: changes.left.iter().map(|no| bigint(no.0)).collect(),
            places_joined: unzip3(places(true).map(place)),
            places_left: unzip3(places(false).map(place)),
            revoked: changes.revoked.iter().map(|(user, at)| (bigint(user.0), bigint(*at))).unzip(),
            last_seen: changes.last_seen.iter().map(|(user, at)| (bigint(user.0), bigint(*at))).unzip(),
            expired_results: unzip3(
                state.expired_results.iter().map(|(kept_by, id, position)| (*kept_by, id.as_str(), bigint(*position))),
            ),
            entries: Entries::of(changes, partitions, outbox),
            rewritten: Rewritten::of(state, &changes.rewritten),
            chat_rows: changes
                .chat_rows
                .iter()
                .filter(|key| in_index(key).is_none())
                .filter_map(|key| Some((key.as_slice(), state.chat_rows.get(key)?.as_slice())))
                .unzip(),
            indexed: unzip3(
                changes
                    .chat_rows
                    .iter()
                    .filter(|key| state.chat_rows.contains_key(*key))
                    .filter_map(|key| in_index(key)),
            ),
            chat_rows_gone: changes
                .chat_rows
                .iter()
                .filter(|key| !state.chat_rows.contains_key(*key) && in_index(key).is_none())
                .map(Vec::as_slice)
                .collect(),
            forgotten: unzip3(changes.forgotten.iter().map(|(of, by, id)| (bigint(of.0), *by, id.as_str()))),
            erased: changes.erased.iter().map(|(no, id)| (bigint(no.0), id.as_str())).unzip(),
            logged: changes.logged.iter().map(|(offset, change)| (bigint(*offset), change.as_slice())).unzip(),
            outbox_done: changes.outbox_done.map(bigint),
            notifications: NotificationColumns::of(&changes.notifications),
        }
    }
}

/// The parts of a key in the index of an account's conversations whose position is yet to be known: what is before it, its
/// offset in the batch, and what is behind it.
fn in_index(key: &[u8]) -> Option<(&[u8], i64, &[u8])> {
    let (position, _) = indexed(key).filter(|_| ChatRowKind::AccountIndex.has(key))?;
    let (before, rest) = key.split_at_checked(INDEX_POSITION_AT)?;
    (position & BATCH_RELATIVE != 0).then(|| (before, bigint(position & !BATCH_RELATIVE), &rest[8..]))
}

/// Where the position begins in a key of the index.
const INDEX_POSITION_AT: usize = 17;

/// Rows in the order of their ids: two nodes that create the same users at once, each under numbers of its own, wait for each
/// other at the ids, and must come to them in one order.
fn by_id<'a>(rows: impl Iterator<Item = (i64, &'a str, Vec<u8>)>) -> impl Iterator<Item = (i64, &'a str, Vec<u8>)> {
    let mut rows: Vec<_> = rows.collect();
    rows.sort_unstable_by_key(|(_, id, _)| *id);
    rows.into_iter()
}

fn unzip3<A, B, C>(rows: impl Iterator<Item = (A, B, C)>) -> (Vec<A>, Vec<B>, Vec<C>) {
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    for (a, b, c) in rows {
        columns.0.push(a);
        columns.1.push(b);
        columns.2.push(c);
    }
    columns
}

impl Members {
    fn of(state: &LoadedState, keys: &BTreeSet<(ConversationNo, UserNo)>) -> Members {
        let mut columns = Members::default();
        for (key, membership) in keys.iter().filter_map(|key| Some((key, state.memberships.get(key)?))) {
            columns.conversations.push(bigint(key.0.0));
            columns.users.push(bigint(key.1.0));
            columns.roles.push(i16::from(membership.stored_role()));
            columns.joined_at.push(bigint(membership.joined_at));
            columns.joined_seq.push(bigint(membership.joined_seq));
            columns.read_seq.push(bigint(membership.read_seq));
            columns.muted_until.push(match membership.mute {
                MuteState::Off => 0,
                MuteState::Until(end) => bigint(end),
                MuteState::Forever => MUTED_FOR_GOOD,
            });
        }
        columns
    }
}

impl<'a> Entries<'a> {
    fn of(changes: &'a Changes<'_>, partitions: &Partitions, outbox: bool) -> Entries<'a> {
        let entries = &changes.entries;
        Entries {
            offsets: entries.iter().map(|entry| bigint(entry.offset)).collect(),
            conversations: entries.iter().map(|entry| bigint(entry.conversation.0)).collect(),
            seqs: entries.iter().map(|entry| bigint(entry.seq)).collect(),
            at: entries.iter().map(|entry| bigint(entry.at)).collect(),
            partitions: entries.iter().map(|entry| partitions.of(entry.content.kept_since(entry.at))).collect(),
            contents: Contents::of(
                entries.iter().map(|entry| {
                    (entry.conversation, entry.content.as_ref(), entry.kept_as.as_deref().map(Cow::Borrowed))
                }),
                outbox,
            ),
        }
    }
}

/// Writes the batch and commits, in one round trip; answers the position before the batch's first one, if it takes any.
/// `order`: the one whose positions it takes, if there are several. `unlocked`: reads whose rows are not locked yet; they are
/// locked, and must return what they returned.
pub(crate) async fn write(
    connection: &Connection,
    order: Option<i16>,
    state: &LoadedState,
    unlocked: Option<&[CheckedRead<'_>]>,
    changes: &Changes<'_>,
    partitions: &Partitions,
    outbox: bool,
) -> Result<Option<Position>, Failure> {
    let columns = Columns::of(state, changes, partitions, outbox);
    let mut calls = Vec::new();
    if let Some(reads) = unlocked {
        calls.push(Call::new("BEGIN", &[]));
        calls.extend(reads.iter().filter_map(CheckedRead::check));
    }
    let Columns { users, new_users, conversations, members, entries, logged, .. } = &columns;
    // Before new users: one of them may have an id that is free from here on.
    if !columns.erased.0.is_empty() {
        calls.push(Call::new(RENAME_USERS, &[&columns.erased.0, &columns.erased.1]));
    }
    if !users.0.is_empty() {
        calls.push(Call::new(CHANGE_USERS, &[&users.0, &users.1]));
    }
    if !new_users.0.is_empty() {
        calls.push(Call::new(CREATE_USERS, &[&new_users.0, &new_users.1, &new_users.2]));
    }
    if !conversations.0.is_empty() {
        calls.push(Call::new(PUT_CONVERSATIONS, &[&conversations.0, &conversations.1, &conversations.2]));
    }
    if !columns.created.is_empty() {
        calls.push(Call::new("INSERT INTO heads (conversation) SELECT unnest($1::bigint[])", &[&columns.created]));
    }
    if !members.users.is_empty() {
        let Members { conversations, users, roles, joined_at, joined_seq, read_seq, muted_until } = members;
        let params: [&(dyn ToSql + Sync); 7] =
            [conversations, users, roles, joined_at, joined_seq, read_seq, muted_until];
        calls.push(Call::new(PUT_MEMBERS, &params));
    }
    if !columns.members_gone.0.is_empty() {
        calls.push(Call::new(DROP_MEMBERS, &[&columns.members_gone.0, &columns.members_gone.1]));
    }
    if !columns.left.is_empty() {
        calls.push(Call::new(NOTE_LEFT, &[&columns.left]));
    }
    for (sql, places) in [(PUT_PLACES, &columns.places_joined), (DROP_PLACES, &columns.places_left)] {
        if !places.0.is_empty() {
            calls.push(Call::new(sql, &[&places.0, &places.1, &places.2]));
        }
    }
    if !columns.last_seen.0.is_empty() {
        calls.push(Call::new(PUT_LAST_SEEN, &[&columns.last_seen.0, &columns.last_seen.1]));
    }
    if !columns.revoked.0.is_empty() {
        calls.push(Call::new(REVOKE, &[&columns.revoked.0, &columns.revoked.1]));
    }
    let (forgotten_of, forgotten_by, forgotten_ids) = &columns.forgotten;
    if !forgotten_ids.is_empty() {
        calls.push(Call::new(FORGET_RESULTS, &[forgotten_of, forgotten_by, forgotten_ids]));
    }
    if !columns.erased.0.is_empty() {
        calls.push(Call::new("DELETE FROM last_seen WHERE user_no = ANY($1)", &[&columns.erased.0]));
        calls.push(Call::new("DELETE FROM dedupe WHERE sender = ANY($1)", &[&columns.erased.0]));
    }
    columns.notifications.add_calls(&mut calls);
    let Rewritten { partitions: parts, conversations: rewritten_of, seqs: rewritten_seqs, contents } =
        &columns.rewritten;
    if !parts.is_empty() {
        calls.push(Call::new(REWRITE, &[parts, rewritten_of, rewritten_seqs, contents]));
    }
    if !columns.chat_rows.0.is_empty() {
        calls.push(Call::new(PUT_CHAT_ROWS, &[&columns.chat_rows.0, &columns.chat_rows.1]));
    }
    if !columns.chat_rows_gone.is_empty() {
        calls.push(Call::new("DELETE FROM chat_rows WHERE key = ANY($1)", &[&columns.chat_rows_gone]));
    }
    let (senders, client_msg_ids, result_positions) = &columns.expired_results;
    if !senders.is_empty() {
        calls.push(Call::new(DROP_RESULTS, &[senders, client_msg_ids, result_positions]));
    }
    // The next statement locks the counters until the commit. No statement after it waits.
    let append_call = calls.len();
    let count = bigint(changes.positions);
    if !entries.offsets.is_empty() {
        let Entries { offsets, conversations, seqs, at, partitions, contents } = entries;
        let Contents { rows, senders, client_msg_ids, requests, pushed, .. } = contents;
        let params: [&(dyn ToSql + Sync); 13] = [
            &count,
            offsets,
            conversations,
            seqs,
            at,
            partitions,
            rows,
            senders,
            client_msg_ids,
            pushed,
            &logged.0,
            &logged.1,
            requests,
        ];
        calls.push(Call::new(APPEND, &params));
    } else if count > 0 {
        calls.push(Call::new(LOG, &[&count, &logged.0, &logged.1]));
    }
    if let (Some(order), Some(call)) = (&order, calls.get_mut(append_call)) {
        call.sql = if call.sql == APPEND { APPEND_IN_ORDER } else { LOG_IN_ORDER };
        call.params.push(order);
    }
    if !columns.indexed.0.is_empty() {
        let (before, offsets, behind) = &columns.indexed;
        calls.push(Call::new(PUT_INDEX, &[&count, before, offsets, behind]));
    }
    if let Some(through) = &columns.outbox_done {
        calls.push(Call::new("UPDATE counters SET outbox_done = greatest(outbox_done, $1)", &[through]));
        calls.push(Call::new(if order.is_some() { EMPTY_OUTBOXES } else { EMPTY_OUTBOX }, &[through]));
    }
    calls.push(Call::new("COMMIT", &[]));
    let answers = connection.pipeline(&calls).await?;
    Ok((count > 0).then(|| answers[append_call].first().map_or(0, |row| number(row, 0))))
}

/// A number that is taken already violates the key: after a failover that lost commits another node may have reserved the same.
const CREATE_USERS: &str =
    "INSERT INTO users (no, id, card) SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[])";
const CHANGE_USERS: &str = "UPDATE users u SET card = k.card FROM unnest($1::bigint[], $2::bytea[]) AS k (no, card) \
     WHERE u.no = k.no";
const RENAME_USERS: &str = "UPDATE users u SET id = k.id, revoked_at = 0 FROM unnest($1::bigint[], $2::text[]) AS k (no, id) \
     WHERE u.no = k.no";
const PUT_CONVERSATIONS: &str = "INSERT INTO conversations (no, id, card) \
     SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[]) ON CONFLICT (no) DO UPDATE SET card = excluded.card, id = excluded.id";
const PUT_MEMBERS: &str = "INSERT INTO members (conversation, user_no, role, joined_at, joined_seq, read_seq, muted_until) \
     SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[]) \
     ON CONFLICT (conversation, user_no) DO UPDATE SET role = excluded.role, joined_at = excluded.joined_at, \
     joined_seq = excluded.joined_seq, read_seq = excluded.read_seq, muted_until = excluded.muted_until";
const DROP_MEMBERS: &str = "DELETE FROM members m USING unnest($1::bigint[], $2::bigint[]) AS k (conversation, user_no) \
     WHERE m.conversation = k.conversation AND m.user_no = k.user_no";
const NOTE_LEFT: &str = concat!("UPDATE heads SET left_at = ", now_ms!(), " WHERE conversation = ANY($1)");
const PUT_PLACES: &str = "INSERT INTO places (user_no, kind, conversation) \
     SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bigint[]) ON CONFLICT DO NOTHING";
const DROP_PLACES: &str = "DELETE FROM places p USING unnest($1::bigint[], $2::smallint[], $3::bigint[]) AS k (user_no, kind, conversation) \
     WHERE p.user_no = k.user_no AND p.kind = k.kind AND p.conversation = k.conversation";
const PUT_LAST_SEEN: &str = "INSERT INTO last_seen (user_no, at) SELECT * FROM unnest($1::bigint[], $2::bigint[]) \
     ON CONFLICT (user_no) DO UPDATE SET at = excluded.at";
const REVOKE: &str = "UPDATE users u SET revoked_at = greatest(u.revoked_at, k.before) \
     FROM unnest($1::bigint[], $2::bigint[]) AS k (no, before) WHERE u.no = k.no";
/// The heads of the conversations are locked, so that no other node changes the same entries.
const REWRITE: &str = "UPDATE entries e SET content = k.content \
     FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bytea[]) AS k (part, conversation, seq, content) \
     WHERE e.part = k.part AND e.conversation = k.conversation AND e.seq = k.seq";
const PUT_CHAT_ROWS: &str = "INSERT INTO chat_rows (key, value) SELECT * FROM unnest($1::bytea[], $2::bytea[]) \
     ON CONFLICT (key) DO UPDATE SET value = excluded.value";
/// Rows whose keys name positions of this batch, downwards: it has its positions now, and -1 - p has the bits of p the other
/// way round.
const PUT_INDEX: &str = "INSERT INTO chat_rows (key, value) \
     SELECT k.before || int8send(-1 - (c.position - $1 + k.place)) || k.behind, ''::bytea \
     FROM counters c, unnest($2::bytea[], $3::bigint[], $4::bytea[]) AS k (before, place, behind)";
const DROP_RESULTS: &str = "DELETE FROM dedupe d USING unnest($1::bigint[], $2::text[], $3::bigint[]) AS k (sender, client_msg_id, position) \
     WHERE d.sender = k.sender AND d.client_msg_id = k.client_msg_id AND d.position = k.position";
/// Whichever conversation took a plain id, the other rows of the author under it stay.
const FORGET_RESULTS: &str = concat!(
    "DELETE FROM dedupe d USING (SELECT k.conversation, k.sender, i.id \
       FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS k (conversation, sender, client_msg_id) CROSS JOIN LATERAL ",
    ids_sql!("k"),
    " OFFSET 0) k WHERE d.sender = k.sender AND d.client_msg_id = k.id AND d.conversation = k.conversation"
);
const EMPTY_OUTBOX: &str = "DELETE FROM outbox WHERE position <= $1";
/// The same through a position of the one commit order that is laid over several.
const EMPTY_OUTBOXES: &str = concat!(
    "DELETE FROM outbox b USING orders o WHERE b.position > o.ord::bigint << 48 AND b.position <= ",
    local_through!("o.ord", "$1::bigint")
);
/// Entries whose sequences are decided, and changes for the commit log.
macro_rules! append {
    ($take:literal, $parts:expr, $in_turn:literal) => {
        concat!(
    "WITH base AS MATERIALIZED (SELECT ", $take, "$1) AS position), \
     fresh AS MATERIALIZED (SELECT n.*, base.position + n.place AS position FROM base, \
       unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::bytea[], $8::bigint[], $9::text[], $10::boolean[], $13::bytea[]) \
       AS n (place, conversation, seq, at, part, content, sender, client_msg_id, pushed, request)), \
     l AS (INSERT INTO changes (position, at, change) SELECT base.position + n.place, ",
    now_ms!(),
    ", n.change \
       FROM base, unnest($11::bigint[], $12::bytea[]) AS n (place, change)), ",
    write_entries!($parts, $in_turn, put_outbox!()),
    "SELECT position FROM base"
        )
    };
}
const APPEND: &str = append!("take_positions(", count_entries!(), "");
const APPEND_IN_ORDER: &str =
    append!("take_positions_of($14, ", count_entries_in!("$14"), " ORDER BY sender, client_msg_id");
/// Changes for the commit log, of a batch without entries.
macro_rules! log {
    ($take:literal) => {
        concat!(
            "WITH base AS MATERIALIZED (SELECT ",
            $take,
            "$1) AS position), \
     l AS (INSERT INTO changes (position, at, change) SELECT base.position + n.place, ",
            now_ms!(),
            ", n.change \
       FROM base, unnest($2::bigint[], $3::bytea[]) AS n (place, change)) \
     SELECT position FROM base"
        )
    };
}
const LOG: &str = log!("take_positions(");
const LOG_IN_ORDER: &str = log!("take_positions_of($4, ");
