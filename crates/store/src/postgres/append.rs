//! The common batch, of nothing but entries: locked, decided, written and committed in one round trip. The
//! database decides here what [`super::decide`] decides elsewhere; what it meets beyond the common case (an id whose
//! first entry retention removed, a send that another node stores at this moment, a missing part) breaks a
//! constraint, and the batch is tried again the other way.

use super::{
    connection::{Call, Connection, Failure, number, stored},
    parts::Parts,
    write::{Contents, left_lately},
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use tidings_engine::{model::*, store::*};

/// The entries of a batch that has nothing else.
pub(crate) struct Appends<'a>(Vec<(ConversationNo, &'a NewEntry)>);

impl<'a> Appends<'a> {
    pub(crate) fn of(batch: &'a [Proposal]) -> Option<Appends<'a>> {
        let entry = |proposal: &'a Proposal| match proposal {
            Proposal::Append { conversation, entry } => Some((*conversation, entry)),
            _ => None,
        };
        batch.iter().map(entry).collect::<Option<Vec<_>>>().map(Appends)
    }

    /// Answers the outcomes and the highest position that was given out, if any was.
    pub(crate) async fn commit(
        &self,
        connection: &Connection,
        parts: &Parts,
        outbox: bool,
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, Option<Position>), Failure> {
        let heads: BTreeSet<i64> = self.0.iter().map(|(conversation, _)| stored(conversation.0)).collect();
        let heads: Vec<i64> = heads.into_iter().collect();
        let conversations: Vec<i64> = self.0.iter().map(|(conversation, _)| stored(conversation.0)).collect();
        let Contents { rows, senders, client_msg_ids, authors, pushed } =
            &Contents::of(self.0.iter().map(|(_, e)| *e), outbox);
        let (now, days) = (stored(now_ms), stored(parts.days()));
        let answers = connection
            .together(&[
                Call::new("BEGIN", &[]),
                Call::new(
                    "SELECT conversation FROM heads WHERE conversation = ANY($1) ORDER BY conversation FOR UPDATE",
                    &[&heads],
                ),
                Call::new(APPEND, &[&conversations, senders, client_msg_ids, rows, pushed, &now, &days, authors]),
                Call::new("COMMIT", &[]),
            ])
            .await?;
        let mut placed = FxHashMap::default();
        let mut highest = None;
        for row in &answers[2] {
            let conversation = ConversationNo(number(row, 1));
            let [seq, at, position] = [2, 3, 4].map(|column| number(row, column));
            let duplicate = row.get(5);
            placed.insert(number(row, 0), Appended { conversation, seq, at, position, duplicate });
            highest = highest.max(Some(position).filter(|_| !duplicate));
        }
        let there = answers[1].iter().map(|row| ConversationNo(number(row, 0))).collect();
        Ok((self.outcomes(&placed, &there), highest))
    }

    /// What became of each, from what has a place in a timeline by its ordinal, in the conversations that are there.
    fn outcomes(&self, placed: &FxHashMap<u64, Appended>, there: &FxHashSet<ConversationNo>) -> Vec<Outcome> {
        let mut sends: FxHashMap<(UserNo, &str), Appended> = FxHashMap::default();
        let outcome = |(index, (conversation, entry)): (usize, &(ConversationNo, &'a NewEntry))| {
            let send = entry.sender.as_ref().map(|sender| sender.no).zip(entry.client_msg_id.as_deref());
            let mut first = placed.get(&(index as u64 + 1)).copied();
            match (first, send) {
                (Some(first), Some(send)) => drop(sends.insert(send, Appended { duplicate: true, ..first })),
                // One that was not placed may repeat an earlier one of this batch.
                (None, Some(send)) => first = sends.get(&send).copied(),
                _ => {}
            }
            match first {
                Some(first) if first.conversation == *conversation => Outcome::Appended(first),
                Some(_) => Outcome::Refused(Refused::ClientMsgIdReused),
                None if there.contains(conversation) => Outcome::Refused(Refused::NotAMember),
                None => Outcome::Refused(Refused::NoSuchConversation),
            }
        };
        self.0.iter().enumerate().map(outcome).collect()
    }
}

/// What entries change once they have their places: rows of `fresh` with their conversation, seq, at, part, position
/// and the columns of [`Contents`]. A send that another node stored meanwhile breaks the unique key of `dedupe`, and
/// with it the whole batch.
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

/// Heads are locked by now, so what this statement sees of their conversations is the newest. `first`: sends that
/// have a result already. `taken`: the others, but of those who have just left. `place`: where the others stand in the batch.
const APPEND: &str = concat!(
    "WITH sent AS MATERIALIZED (SELECT * FROM \
       unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::boolean[], $8::bigint[]) \
       WITH ORDINALITY AS s (conversation, sender, client_msg_id, content, pushed, author, ordinal)), \
     first AS MATERIALIZED (SELECT s.ordinal, d.conversation, d.seq, d.at, d.position FROM sent s \
       JOIN dedupe d ON d.sender = s.sender AND d.client_msg_id = s.client_msg_id \
       WHERE EXISTS (SELECT FROM chapters c WHERE c.conversation = d.conversation AND c.first_seq <= d.seq)), \
     taken AS (SELECT s.*, h.last_seq, h.last_at, \
       row_number() OVER (PARTITION BY s.sender, s.client_msg_id ORDER BY s.ordinal) AS turn \
       FROM sent s JOIN heads h ON h.conversation = s.conversation \
       WHERE NOT EXISTS (SELECT FROM first f WHERE f.ordinal = s.ordinal) \
       AND (NOT ",
    left_lately!(),
    " OR s.author IS NULL OR EXISTS \
         (SELECT FROM members m WHERE m.conversation = s.conversation AND m.user_no = s.author))), \
     numbered AS MATERIALIZED (SELECT t.*, \
       last_seq + row_number() OVER (PARTITION BY conversation ORDER BY ordinal) AS seq, \
       greatest(last_at, $6::bigint) AS at, row_number() OVER (ORDER BY ordinal) AS place \
       FROM taken t WHERE turn = 1 OR sender IS NULL), \
     base AS (UPDATE counters SET position = position + (SELECT count(*) FROM numbered) \
       WHERE EXISTS (SELECT FROM numbered) \
       RETURNING position - (SELECT count(*) FROM numbered) AS position), \
     fresh AS MATERIALIZED (SELECT n.*, base.position + n.place AS position, \
       (1 + n.at / 86400000 / $7::bigint)::integer AS part FROM base, numbered n), ",
    write_entries!(),
    "SELECT ordinal, conversation, seq, at, position, false FROM fresh \
     UNION ALL SELECT ordinal, conversation, seq, at, position, true FROM first"
);
