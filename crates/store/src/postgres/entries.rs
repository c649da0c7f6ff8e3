//! The columns of entries, and the parts of a statement that write them.

use super::connection::bigint;
use crate::rows::encode_content;
use std::borrow::Cow;
use tidings_domain::model::*;

/// By whom a first result is kept: by its author, or by the conversation if there is none.
pub(crate) fn kept_by(conversation: ConversationNo, author: UserNo) -> i64 {
    match author {
        UserNo::NOBODY => -bigint(conversation.0),
        author => bigint(author.0),
    }
}

/// The id of a first result where the id alone is taken by another conversation. `qualified_id_sql!` is the same in SQL.
pub(crate) fn qualified_id(conversation: ConversationNo, client_msg_id: &str) -> String {
    format!("{}/{client_msg_id}", conversation.0)
}

/// The columns of entries that do not depend on their sequence and position.
#[derive(Default)]
pub(crate) struct Contents<'a> {
    pub rows: Vec<Vec<u8>>,
    /// Of entries with a client message id: by whom their first results are kept, the ids, and the digests of the requests.
    pub senders: Vec<Option<i64>>,
    pub client_msg_ids: Vec<Option<Cow<'a, str>>>,
    pub requests: Vec<Option<&'a [u8]>>,
    /// The senders of all entries, also of those without a client message id.
    pub authors: Vec<Option<i64>>,
    /// Which of them await offline push.
    pub pushed: Vec<bool>,
}

impl<'a> Contents<'a> {
    pub(crate) fn of(
        entries: impl Iterator<Item = (ConversationNo, &'a NewEntry, Option<Cow<'a, str>>)>,
        outbox: bool,
    ) -> Contents<'a> {
        let mut columns = Contents::default();
        for (conversation, entry, id) in entries {
            let send = entry.idempotency_key();
            let may_be_pushed = entry.may_be_pushed();
            columns.rows.push(encode_content(entry));
            columns.senders.push(send.map(|(author, _)| kept_by(conversation, author)));
            columns.client_msg_ids.push(id.or(send.map(|(_, id)| id.into())));
            columns.requests.push(entry.request.digest.as_ref().map(|digest| &digest.0[..]));
            columns.authors.push(entry.sender.as_ref().map(|sender| bigint(sender.no.0)));
            columns.pushed.push(outbox && may_be_pushed);
        }
        columns
    }
}

/// The id under which the first result of `$row` is kept where another conversation took the plain one: [`qualified_id`].
macro_rules! qualified_id_sql {
    ($row:literal) => {
        concat!("(", $row, ".conversation || '/' || ", $row, ".client_msg_id)")
    };
}
pub(crate) use qualified_id_sql;

/// The ids under which the first result of `$row` may be kept, as rows `i` of an id and its form: 1 the plain one, 2 the qualified one. Each is
/// looked up by itself, in a sub-select with `OFFSET 0`, which has it found by the whole key: otherwise the planner may read all results of
/// a sender, and compare their ids.
macro_rules! ids_sql {
    ($row:literal) => {
        concat!(
            "unnest(ARRAY[",
            $row,
            ".client_msg_id, ",
            crate::postgres::entries::qualified_id_sql!($row),
            "]) WITH ORDINALITY AS i (id, form)"
        )
    };
}
pub(crate) use ids_sql;

/// Writes which entries of `fresh` await offline push: part of [`write_entries`] where there are any.
macro_rules! put_outbox {
    () => {
        "o AS (INSERT INTO outbox (position, conversation, seq) \
           SELECT position, conversation, seq FROM fresh WHERE pushed), "
    };
}
pub(crate) use put_outbox;

/// Writes the entries of `fresh`: rows with their conversation, seq, at, part, position and the columns of [`Contents`]. A
/// send that another node stored meanwhile violates the unique key of `dedupe`, so that the whole batch fails. `$parts` counts them; `$in_turn` is the
/// order of the keys where no earlier lock keeps two transactions apart that store the same ids.
macro_rules! write_entries {
    ($parts:expr, $in_turn:literal, $outbox:expr) => {
        concat!(
        "e AS (INSERT INTO entries (conversation, seq, part, position, at, content) \
           SELECT conversation, seq, part, position, at, content FROM fresh), \
         d AS (INSERT INTO dedupe (sender, client_msg_id, conversation, seq, at, position, request) \
           SELECT sender, client_msg_id, conversation, seq, at, position, request FROM fresh WHERE sender IS NOT NULL",
            $in_turn,
            "), ", $outbox, "h AS (UPDATE heads SET last_seq = x.seq, last_at = x.at, last_position = x.position FROM \
           (SELECT conversation, max(seq) AS seq, max(at) AS at, max(position) AS position FROM fresh \
            GROUP BY conversation) x WHERE heads.conversation = x.conversation), \
         c AS (INSERT INTO chapters (conversation, part, first_seq) \
           SELECT conversation, part, min(seq) FROM fresh GROUP BY conversation, part ON CONFLICT DO NOTHING), \
         p AS (", $parts, ") "
        )
    };
}
pub(crate) use write_entries;

/// Counts the entries of `fresh` in a database of one order.
macro_rules! count_entries {
    () => {
        "INSERT INTO parts (part, entries, bytes, last_position) \
           SELECT part, count(*), sum(length(content)), max(position) FROM fresh GROUP BY part \
           ON CONFLICT (part) DO UPDATE SET entries = parts.entries + excluded.entries, \
             bytes = parts.bytes + excluded.bytes, last_position = excluded.last_position"
    };
}
pub(crate) use count_entries;

/// The same in the order `$ord`: transactions of different orders wait for no row of each other.
macro_rules! count_entries_in {
    ($ord:literal) => {
        concat!(
            "INSERT INTO order_parts (part, ord, entries, bytes) SELECT part, ",
            $ord,
            ", count(*), sum(length(content)) \
               FROM fresh GROUP BY part ON CONFLICT (part, ord) DO UPDATE SET \
               entries = order_parts.entries + excluded.entries, bytes = order_parts.bytes + excluded.bytes"
        )
    };
}
pub(crate) use count_entries_in;
