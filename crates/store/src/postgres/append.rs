//! The common batch, of nothing but entries: locked, decided, written and committed in one round trip. The database itself
//! decides here what [`tidings_domain::decide`] decides for other batches. Beyond the common case (an id whose first entry
//! retention removed, a send that another node stores at this moment, a missing partition) a constraint fails, and the batch
//! is tried again as any other.

use super::{
    clock::recently_left,
    connection::{Call, Connection, bigint, number},
    entries::{Contents, count_entries, count_entries_in, qualified_id_sql, write_entries},
    failure::Failure,
    partitions::Partitions,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use tidings_domain::{model::*, request_digest::RequestDigest, store::*};

/// The entries of a batch that has nothing else.
pub(crate) struct AppendBatch<'a>(Vec<(ConversationNo, &'a NewEntry)>);

impl<'a> AppendBatch<'a> {
    pub(crate) fn of(batch: &'a [Proposal]) -> Option<AppendBatch<'a>> {
        let entry = |proposal: &'a Proposal| match proposal {
            // An answer needs the message that it answers, mentions are indexed, and slow mode has rows of its own.
            Proposal::Append { conversation, entry }
                if entry.details.is_none()
                    && entry.request.refusal.is_none()
                    && entry.request.slow_mode_ms.is_none()
                    && entry.mentioned_ids().next().is_none()
                    && !entry.mentions_all() =>
            {
                Some((*conversation, entry))
            }
            _ => None,
        };
        batch.iter().map(entry).collect::<Option<Vec<_>>>().map(AppendBatch)
    }

    /// Commits the batch; answers the outcomes and the highest position that was given out, if any was.
    /// `order`: the one whose positions it takes, if there are several.
    pub(crate) async fn commit(
        &self,
        connection: &Connection,
        order: Option<i16>,
        partitions: &Partitions,
        outbox: bool,
        now_ms: u64,
    ) -> Result<(Vec<Outcome>, Option<Position>), Failure> {
        let heads: BTreeSet<i64> = self.0.iter().map(|(conversation, _)| bigint(conversation.0)).collect();
        let heads: Vec<i64> = heads.into_iter().collect();
        let conversations: Vec<i64> = self.0.iter().map(|(conversation, _)| bigint(conversation.0)).collect();
        let entries = self.0.iter().map(|(conversation, entry)| (*conversation, *entry, None));
        let Contents { rows, senders, client_msg_ids, requests, authors, pushed } = &Contents::of(entries, outbox);
        let (now, days) = (bigint(now_ms), bigint(partitions.days()));
        let mut append =
            Call::new(APPEND, &[&conversations, senders, client_msg_ids, rows, pushed, &now, &days, authors, requests]);
        if let Some(order) = &order {
            append.sql = APPEND_IN_ORDER;
            append.params.push(order);
        }
        let answers = connection
            .pipeline(&[
                Call::new("BEGIN", &[]),
                Call::new(
                    "SELECT conversation FROM heads WHERE conversation = ANY($1) ORDER BY conversation FOR UPDATE",
                    &[&heads],
                ),
                append,
                Call::new("COMMIT", &[]),
            ])
            .await?;
        let mut placed = FxHashMap::default();
        let mut highest = None;
        for row in &answers[2] {
            let conversation = ConversationNo(number(row, 1));
            let [seq, at, position] = [2, 3, 4].map(|column| number(row, column));
            let duplicate = row.get(5);
            let appended = Appended { conversation, seq, at, position, duplicate };
            let request = row.get::<_, Option<&[u8]>>(6).and_then(RequestDigest::from_stored);
            placed.insert(number(row, 0), FirstResult { appended, request });
            highest = highest.max(Some(position).filter(|_| !duplicate));
        }
        let there = answers[1].iter().map(|row| ConversationNo(number(row, 0))).collect();
        Ok((self.outcomes(&placed, &there), highest))
    }

    /// The outcome of each entry. `placed`: the entries that have a sequence, by their ordinal in the batch; `there`: the
    /// conversations that exist.
    fn outcomes(&self, placed: &FxHashMap<u64, FirstResult>, there: &FxHashSet<ConversationNo>) -> Vec<Outcome> {
        let mut sends: FxHashMap<(ConversationNo, UserNo, &str), FirstResult> = FxHashMap::default();
        let outcome = |(index, (conversation, entry)): (usize, &(ConversationNo, &'a NewEntry))| {
            let send = entry.idempotency_key().map(|(author, id)| (*conversation, author, id));
            let mut first = placed.get(&(index as u64 + 1)).copied();
            match (first, send) {
                (Some(first), Some(send)) => {
                    let appended = Appended { duplicate: true, ..first.appended };
                    sends.insert(send, FirstResult { appended, ..first });
                }
                // A send without a sequence may be a retry of an earlier one in this batch.
                (None, Some(send)) => first = sends.get(&send).copied(),
                _ => {}
            }
            match first.map(|first| first.answer(&entry.request)) {
                Some(answer) => answer.map_or_else(Outcome::Rejected, Outcome::Appended),
                None if there.contains(conversation) => Outcome::Rejected(Rejection::NotAMember),
                None => Outcome::Rejected(Rejection::NoSuchConversation),
            }
        };
        self.0.iter().enumerate().map(outcome).collect()
    }
}

/// The heads are locked by now, so this statement sees the newest state of their conversations. `first`: sends that have a
/// result already. `taken`: the other sends, without those of senders who have just left, each with the id under which its result
/// is kept. `place`: their offset in the batch. Next to another condition rows are counted, since the planner may turn
/// an `EXISTS` there into a hash of the whole table; `OFFSET 0` has it find each head by its key.
macro_rules! append {
    ($counters:literal, $where:literal, $parts:expr, $in_turn:literal) => {
        concat!(
            "WITH sent AS MATERIALIZED (SELECT * FROM \
       unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::boolean[], $8::bigint[], $9::bytea[]) \
       WITH ORDINALITY AS s (conversation, sender, client_msg_id, content, pushed, author, request, ordinal)), \
     first AS MATERIALIZED (SELECT s.ordinal, d.conversation, d.seq, d.at, d.position, d.request FROM sent s \
       JOIN dedupe d ON d.sender = s.sender AND d.client_msg_id = ANY (ARRAY[s.client_msg_id, ",
            qualified_id_sql!("s"),
            "]) AND d.conversation = s.conversation \
       WHERE EXISTS (SELECT FROM chapters c WHERE c.conversation = d.conversation AND c.first_seq <= d.seq)), \
     taken AS (SELECT s.ordinal, s.conversation, s.sender, s.content, s.pushed, s.request, h.last_seq, h.last_at, \
       CASE WHEN row_number() OVER (PARTITION BY s.sender, s.client_msg_id ORDER BY s.ordinal) > 1 OR 0 < \
         (SELECT count(*) FROM dedupe d WHERE d.sender = s.sender AND d.client_msg_id = s.client_msg_id) \
         THEN ",
            qualified_id_sql!("s"),
            " ELSE s.client_msg_id END AS client_msg_id, \
       row_number() OVER (PARTITION BY s.conversation, s.sender, s.client_msg_id ORDER BY s.ordinal) AS turn \
       FROM sent s CROSS JOIN LATERAL \
         (SELECT last_seq, last_at, left_at FROM heads WHERE conversation = s.conversation OFFSET 0) h \
       WHERE NOT EXISTS (SELECT FROM first f WHERE f.ordinal = s.ordinal) \
       AND (NOT ",
            recently_left!(),
            " OR s.author IS NULL OR 0 < \
         (SELECT count(*) FROM members m WHERE m.conversation = s.conversation AND m.user_no = s.author))), \
     numbered AS MATERIALIZED (SELECT t.*, \
       last_seq + row_number() OVER (PARTITION BY conversation ORDER BY ordinal) AS seq, \
       greatest(last_at, $6::bigint) AS at, row_number() OVER (ORDER BY ordinal) AS place \
       FROM taken t WHERE turn = 1 OR sender IS NULL), \
     base AS (UPDATE ",
            $counters,
            " SET position = position + (SELECT count(*) FROM numbered) \
       WHERE ",
            $where,
            "EXISTS (SELECT FROM numbered) \
       RETURNING position - (SELECT count(*) FROM numbered) AS position), \
     fresh AS MATERIALIZED (SELECT n.*, base.position + n.place AS position, \
       (1 + n.at / 86400000 / $7::bigint)::integer AS part FROM base, numbered n), ",
            write_entries!($parts, $in_turn),
            "SELECT ordinal, conversation, seq, at, position, false, request FROM fresh \
     UNION ALL SELECT ordinal, conversation, seq, at, position, true, request FROM first"
        )
    };
}
const APPEND: &str = append!("counters", "", count_entries!(), "");
const APPEND_IN_ORDER: &str =
    append!("orders", "ord = $10 AND ", count_entries_in!("$10"), " ORDER BY sender, client_msg_id");
