//! The columns of entries, and the parts of a statement that write them.

use super::connection::bigint;
use crate::rows::encode_content;
use tidings_domain::model::*;

/// The columns of entries that do not depend on their sequence and position.
pub(crate) struct Contents<'a> {
    pub rows: Vec<Vec<u8>>,
    /// The dedupe keys of entries with a client message id: senders and ids.
    pub senders: Vec<Option<i64>>,
    pub client_msg_ids: Vec<Option<&'a str>>,
    /// The senders of all entries, also of those without a client message id.
    pub authors: Vec<Option<i64>>,
    /// Which of them await offline push.
    pub pushed: Vec<bool>,
}

impl<'a> Contents<'a> {
    pub(crate) fn of(entries: impl Iterator<Item = &'a NewEntry>, outbox: bool) -> Contents<'a> {
        let mut columns =
            Contents { rows: vec![], senders: vec![], client_msg_ids: vec![], authors: vec![], pushed: vec![] };
        for entry in entries {
            let send = entry.idempotency_key();
            let may_be_pushed = entry.kind == EntryKind::Message && !entry.silent && !entry.skip_push;
            columns.rows.push(encode_content(entry));
            columns.senders.push(send.map(|(author, _)| bigint(author.0)));
            columns.client_msg_ids.push(send.map(|(_, id)| id));
            columns.authors.push(entry.sender.as_ref().map(|sender| bigint(sender.no.0)));
            columns.pushed.push(outbox && may_be_pushed);
        }
        columns
    }
}

/// Writes the entries of `fresh`: rows with their conversation, seq, at, part, position and the columns of [`Contents`]. A
/// send that another node stored meanwhile violates the unique key of `dedupe`, so that the whole batch fails.
macro_rules! write_entries {
    () => {
        "e AS (INSERT INTO entries (conversation, seq, part, position, at, content) \
           SELECT conversation, seq, part, position, at, content FROM fresh), \
         d AS (INSERT INTO dedupe (sender, client_msg_id, conversation, seq, at, position) \
           SELECT sender, client_msg_id, conversation, seq, at, position FROM fresh WHERE sender IS NOT NULL), \
         o AS (INSERT INTO outbox (position, conversation, seq) \
           SELECT position, conversation, seq FROM fresh WHERE pushed), \
         h AS (UPDATE heads SET last_seq = x.seq, last_at = x.at, last_position = x.position FROM \
           (SELECT conversation, max(seq) AS seq, max(at) AS at, max(position) AS position FROM fresh \
            GROUP BY conversation) x WHERE heads.conversation = x.conversation), \
         c AS (INSERT INTO chapters (conversation, part, first_seq) \
           SELECT conversation, part, min(seq) FROM fresh GROUP BY conversation, part ON CONFLICT DO NOTHING), \
         p AS (INSERT INTO parts (part, entries, bytes, last_position) \
           SELECT part, count(*), sum(length(content)), max(position) FROM fresh GROUP BY part \
           ON CONFLICT (part) DO UPDATE SET entries = parts.entries + excluded.entries, \
             bytes = parts.bytes + excluded.bytes, last_position = excluded.last_position) "
    };
}
pub(crate) use write_entries;
