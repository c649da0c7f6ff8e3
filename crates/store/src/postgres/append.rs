//! The common batch, of nothing but entries: locked, decided, written and committed in one round trip. The database itself
//! decides here what [`tidings_domain::decide`] decides for other batches. Beyond the common case (an id whose first entry
//! retention removed, a send that another node stores at this moment, a missing partition) a constraint fails, and the batch
//! is tried again as any other.

use super::{
    clock::recently_left,
    connection::{Call, Connection, bigint, number},
    entries::{
        Contents, count_entries, count_entries_in, ids_sql, kept_by, put_outbox, qualified_id_sql, write_entries,
    },
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
        let (sent, repeats) = self.sent();
        let conversations: Vec<i64> = sent.iter().map(|at| bigint(self.0[*at].0.0)).collect();
        let entries = sent.iter().map(|at| (self.0[*at].0, self.0[*at].1, None));
        let Contents { rows, senders, client_msg_ids, requests, authors, pushed } = &Contents::of(entries, outbox);
        let (now, days) = (bigint(now_ms), bigint(partitions.days()));
        let is_pushed = usize::from(pushed.contains(&true));
        let mut append = Call::new(
            APPEND[is_pushed],
            &[&conversations, senders, client_msg_ids, rows, pushed, &now, &days, authors, requests, &repeats],
        );
        if let Some(order) = &order {
            append.sql = APPEND_IN_ORDER[is_pushed];
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
            placed.insert(sent[number(row, 0) as usize - 1], FirstResult { appended, request });
            highest = highest.max(Some(position).filter(|_| !duplicate));
        }
        let there = answers[1].iter().map(|row| ConversationNo(number(row, 0))).collect();
        Ok((self.outcomes(&placed, &there), highest))
    }

    /// The places of the entries without retries of earlier ones, and which of these have an id that the batch has before, of the same author
    /// in another conversation. Those are kept under the qualified id, also where the earlier entry turns out to take none: they are looked
    /// up under both.
    fn sent(&self) -> (Vec<usize>, Vec<bool>) {
        let (mut sends, mut ids) = (FxHashSet::default(), FxHashSet::default());
        let sent = |(place, (conversation, entry)): (usize, &(ConversationNo, &'a NewEntry))| {
            let Some((author, id)) = entry.idempotency_key() else { return Some((place, false)) };
            let kept_by = kept_by(*conversation, author);
            let is_first = sends.insert((*conversation, kept_by, id));
            is_first.then(|| (place, !ids.insert((kept_by, id))))
        };
        self.0.iter().enumerate().filter_map(sent).unzip()
    }

    /// The outcome of each entry. `placed`: the entries that have a sequence, by their places in the batch; `there`: the
    /// conversations that exist.
    fn outcomes(&self, placed: &FxHashMap<usize, FirstResult>, there: &FxHashSet<ConversationNo>) -> Vec<Outcome> {
        let mut sends: FxHashMap<(ConversationNo, UserNo, &str), FirstResult> = FxHashMap::default();
        let outcome = |(index, (conversation, entry)): (usize, &(ConversationNo, &'a NewEntry))| {
            let send = entry.idempotency_key().map(|(author, id)| (*conversation, author, id));
            let mut first = placed.get(&index).copied();
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

/// The heads are locked by now, so this statement sees the newest state of their conversations.
///
/// - `kept`: what is kept under the ids of the sends, plain (form 1) and qualified (form 2), of whatever conversation.
/// - `first`: the first results among these, of sends that have their answer with it.
/// - `numbered`: the other sends, without those of senders who have just left. `place`: their offset in the batch.
///
/// `OFFSET 0` has each row found by its whole key, whatever the planner believes of the tables' sizes. Rows are counted where they need only
/// exist, since the planner may turn an `EXISTS` next to another condition into a hash of the whole table.
macro_rules! append {
    ($take:literal, $parts:expr, $in_turn:literal, $outbox:expr) => {
        concat!(
            "WITH sent AS MATERIALIZED (SELECT * FROM \
       unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::boolean[], $8::bigint[], $9::bytea[], $10::boolean[]) \
       WITH ORDINALITY AS s (conversation, sender, client_msg_id, content, pushed, author, request, repeats, ordinal)), \
     kept AS MATERIALIZED (SELECT s.ordinal, s.conversation AS sent_to, i.form, d.* FROM sent s CROSS JOIN LATERAL ",
            ids_sql!("s"),
            " CROSS JOIN LATERAL (SELECT conversation, seq, at, position, request FROM dedupe \
         WHERE sender = s.sender AND client_msg_id = i.id OFFSET 0) d), \
     first AS MATERIALIZED (SELECT * FROM kept k WHERE conversation = sent_to AND 0 < \
       (SELECT count(*) FROM chapters c WHERE c.conversation = k.conversation AND c.first_seq <= k.seq)), \
     numbered AS MATERIALIZED (SELECT s.ordinal, s.conversation, s.sender, s.content, s.pushed, s.request, \
       CASE WHEN s.repeats OR s.ordinal IN (SELECT ordinal FROM kept WHERE form = 1) THEN ",
            qualified_id_sql!("s"),
            " ELSE s.client_msg_id END AS client_msg_id, \
       h.last_seq + row_number() OVER (PARTITION BY s.conversation ORDER BY s.ordinal) AS seq, \
       greatest(h.last_at, $6::bigint) AS at, row_number() OVER (ORDER BY s.ordinal) AS place \
       FROM sent s CROSS JOIN LATERAL \
         (SELECT last_seq, last_at, left_at FROM heads WHERE conversation = s.conversation OFFSET 0) h \
       WHERE s.ordinal NOT IN (SELECT ordinal FROM first) \
       AND (NOT ",
            recently_left!(),
            " OR s.author IS NULL OR 0 < \
         (SELECT count(*) FROM members m WHERE m.conversation = s.conversation AND m.user_no = s.author))), \
     base AS MATERIALIZED (SELECT ",
            $take,
            "n.count) AS position FROM (SELECT count(*) FROM numbered) n WHERE n.count > 0), \
     fresh AS MATERIALIZED (SELECT n.*, base.position + n.place AS position, \
       (1 + n.at / 86400000 / $7::bigint)::integer AS part FROM base, numbered n), ",
            write_entries!($parts, $in_turn, $outbox),
            "SELECT ordinal, conversation, seq, at, position, false, request FROM fresh \
     UNION ALL SELECT ordinal, conversation, seq, at, position, true, request FROM first"
        )
    };
}
/// The statement in a database of one order, without and with entries that await offline push.
const APPEND: [&str; 2] = [
    append!("take_positions(", count_entries!(), "", ""),
    append!("take_positions(", count_entries!(), "", put_outbox!()),
];
macro_rules! append_in_order {
    ($outbox:expr) => {
        append!("take_positions_of($11, ", count_entries_in!("$11"), " ORDER BY sender, client_msg_id", $outbox)
    };
}
const APPEND_IN_ORDER: [&str; 2] = [append_in_order!(""), append_in_order!(put_outbox!())];
