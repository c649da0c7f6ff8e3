//! Reads of many things, each in one statement instead of a round trip per thing.

use super::{
    PostgresStore,
    commit_orders::Globals,
    connection::{bigint, number},
    entries::{ids_sql, kept_by},
    load::membership,
    missed_statement::{MISSED, MISSED_IN_ORDERS},
    read::{entry_at, rows_max, user_at},
    read_place::Read,
};
use crate::rows::{decode_conversation, kind_byte, kind_of};
use std::{cmp::Reverse, collections::HashMap};
use tidings_domain::{chat_rows::settings_key, model::*, store::*};
use tokio_postgres::Row;

const CONVERSATION_STATES: &str = "SELECT p.conversation, p.kind, \
     coalesce(h.last_seq, 0), coalesce(h.last_at, 0), coalesce(h.last_position, 0), \
     coalesce((SELECT min(c.first_seq) FROM chapters c WHERE c.conversation = p.conversation), coalesce(h.last_seq, 0) + 1), \
     m.role, m.joined_at, m.joined_seq, m.read_seq, m.muted_until \
     FROM (SELECT conversation, kind FROM places WHERE user_no = $1 AND kind BETWEEN $2 AND $3 \
     ORDER BY kind, conversation LIMIT $4) p \
     JOIN members m ON m.conversation = p.conversation AND m.user_no = $1 \
     LEFT JOIN heads h ON h.conversation = p.conversation";
const HEADS: &str = "SELECT k.n, h.last_seq, h.last_at, h.last_position, \
     coalesce((SELECT min(c.first_seq) FROM chapters c WHERE c.conversation = h.conversation), h.last_seq + 1) \
     FROM unnest($1::bigint[]) WITH ORDINALITY AS k (conversation, n) JOIN heads h ON h.conversation = k.conversation";
const CARDS: &str = "SELECT c.no, c.card FROM unnest($1::bigint[]) AS k (no) JOIN conversations c ON c.no = k.no";
const USERS: &str = "SELECT k.n, u.card, u.revoked_at, s.value \
     FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS k (no, settings, n) \
     JOIN users u ON u.no = k.no LEFT JOIN chat_rows s ON s.key = k.settings";
const MEMBERSHIPS: &str = "SELECT k.n, m.role, m.joined_at, m.joined_seq, m.read_seq, m.muted_until \
     FROM unnest($2::bigint[]) WITH ORDINALITY AS k (conversation, n) \
     JOIN members m ON m.conversation = k.conversation AND m.user_no = $1";
const POSITIONS: &str = "SELECT k.n, e.position \
     FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS k (conversation, seq, n) \
     CROSS JOIN LATERAL (SELECT part FROM chapters WHERE conversation = k.conversation AND first_seq <= k.seq \
     ORDER BY first_seq DESC LIMIT 1) c \
     CROSS JOIN LATERAL (SELECT position FROM entries \
     WHERE part = c.part AND conversation = k.conversation AND seq = k.seq LIMIT 1) e";
/// As the loading of a batch finds first results: one whose entry is gone does not count.
const STORED_REQUESTS: &str = concat!(
    "SELECT k.n, d.seq, d.position FROM unnest($1::bigint[], $2::bigint[], $3::text[]) WITH ORDINALITY AS k (conversation, sender, client_msg_id, n) \
     CROSS JOIN LATERAL ",
    ids_sql!("k"),
    " CROSS JOIN LATERAL (SELECT * FROM dedupe WHERE sender = k.sender AND client_msg_id = i.id OFFSET 0) d \
     WHERE d.conversation = k.conversation AND EXISTS (SELECT FROM chapters c WHERE c.conversation = d.conversation AND c.first_seq <= d.seq)"
);
/// `before` sums the bytes of all entries before an entry, over all pages. The first entry of each page is returned in any
/// case.
const PAGES: &str = "SELECT n, seq, position, at, content FROM \
     (SELECT k.n, e.seq, e.position, e.at, e.content, row_number() OVER (PARTITION BY k.n ORDER BY e.seq) AS place, \
     sum(octet_length(e.content)) OVER (ORDER BY k.n, e.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
     FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) \
     WITH ORDINALITY AS k (conversation, from_seq, to_seq, rows_max, n) CROSS JOIN LATERAL \
     (SELECT e.seq, e.position, e.at, e.content FROM (SELECT part, first_seq FROM chapters \
     WHERE conversation = k.conversation AND first_seq <= k.to_seq AND first_seq >= coalesce((SELECT max(first_seq) \
     FROM chapters WHERE conversation = k.conversation AND first_seq <= k.from_seq), 0)) c CROSS JOIN LATERAL \
     (SELECT seq, position, at, content FROM entries WHERE part = c.part AND conversation = k.conversation \
     AND seq BETWEEN k.from_seq AND k.to_seq ORDER BY seq LIMIT k.rows_max) e \
     ORDER BY c.first_seq, e.seq LIMIT k.rows_max) e) found \
     WHERE place = 1 OR before < $5 ORDER BY n, seq";

/// A range of a tail: the tail's index, and the first and the last `seq`.
type TailRange = (usize, u64, u64);
/// Entries, each with the index of its range.
type RangedEntries = Vec<(usize, StoredEntry)>;

fn column(numbers: impl Iterator<Item = u64>) -> Vec<i64> {
    numbers.map(bigint).collect()
}

/// The index of the requested item that a row belongs to, from the row's first column.
fn index(row: &Row) -> usize {
    number(row, 0) as usize - 1
}

impl PostgresStore {
    pub(super) fn read_conversation_states(
        &self,
        user: UserNo,
        filter: ConversationFilter,
        limit: usize,
    ) -> StoreResult<Vec<ConversationState>> {
        let kind = |kind| i16::from(kind_byte(kind));
        let (first, last) = match filter {
            ConversationFilter::All => (kind(ConversationKind::Direct), i16::MAX),
            ConversationFilter::Direct => (kind(ConversationKind::Direct), kind(ConversationKind::Direct)),
            ConversationFilter::NonDirect => (kind(ConversationKind::Group), i16::MAX),
        };
        let rows = self.read(
            Read::ConversationStates,
            CONVERSATION_STATES,
            &[&bigint(user.0), &first, &last, &rows_max(limit)],
        )?;
        let globals = self.globals_in(&rows, 4)?;
        let state = |row: &Row| {
            let conversation = ConversationNo(number(row, 0));
            Ok(ConversationState {
                conversation,
                kind: kind_of(row.get::<_, i16>(1) as u8),
                head: self.head_at(conversation, row, 2, &globals)?,
                membership: membership(row, 6)?,
            })
        };
        rows.iter().map(state).collect()
    }

    pub(super) fn read_heads(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Head>> {
        let mut heads = vec![Head { first_seq: 1, ..Head::default() }; conversations.len()];
        if !conversations.is_empty() {
            let rows = self.read(Read::Heads, HEADS, &[&column(conversations.iter().map(|no| no.0))])?;
            let globals = self.globals_in(&rows, 3)?;
            for row in &rows {
                heads[index(row)] = self.head_at(conversations[index(row)], row, 1, &globals)?;
            }
        }
        Ok(heads)
    }

    pub(super) fn read_cards(&self, conversations: &[ConversationNo]) -> StoreResult<Vec<Option<Conversation>>> {
        if conversations.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.read(Read::Conversations, CARDS, &[&column(conversations.iter().map(|no| no.0))])?;
        let card = |row: &Row| {
            let no = ConversationNo(number(row, 0));
            Ok((no, decode_conversation(no, row.get(1))?))
        };
        let cards = rows.iter().map(card).collect::<StoreResult<HashMap<_, _>>>()?;
        Ok(conversations.iter().map(|no| cards.get(no).cloned()).collect())
    }

    pub(super) fn read_users(&self, users: &[UserNo]) -> StoreResult<Vec<Option<User>>> {
        let mut found = vec![None; users.len()];
        if !users.is_empty() {
            let settings: Vec<Vec<u8>> = users.iter().map(|no| settings_key(*no)).collect();
            for row in &self.read(Read::Users, USERS, &[&column(users.iter().map(|no| no.0)), &settings])? {
                found[index(row)] = Some(user_at(users[index(row)], row, 1)?);
            }
        }
        Ok(found)
    }

    pub(super) fn read_memberships(
        &self,
        user: UserNo,
        conversations: &[ConversationNo],
    ) -> StoreResult<Vec<Option<Membership>>> {
        let mut found = vec![None; conversations.len()];
        if !conversations.is_empty() {
            let asked = column(conversations.iter().map(|no| no.0));
            for row in &self.read(Read::Memberships, MEMBERSHIPS, &[&bigint(user.0), &asked])? {
                found[index(row)] = Some(membership(row, 1)?);
            }
        }
        Ok(found)
    }

    pub(super) fn read_positions(&self, entries: &[(ConversationNo, u64)]) -> StoreResult<Vec<Option<Position>>> {
        let mut positions = vec![None; entries.len()];
        if !entries.is_empty() {
            let (of, seqs) = (column(entries.iter().map(|(no, _)| no.0)), column(entries.iter().map(|(_, seq)| *seq)));
            let rows = self.read(Read::Positions, POSITIONS, &[&of, &seqs])?;
            let globals = self.globals_in(&rows, 1)?;
            rows.iter().for_each(|row| positions[index(row)] = globals.at(row, 1));
        }
        Ok(positions)
    }

    pub(super) fn read_stored_seqs(
        &self,
        requests: &[(ConversationNo, UserNo, &str)],
    ) -> StoreResult<Vec<Option<u64>>> {
        let mut stored = vec![None; requests.len()];
        if !requests.is_empty() {
            let of = column(requests.iter().map(|(conversation, ..)| conversation.0));
            let authors: Vec<i64> = requests.iter().map(|(of, author, _)| kept_by(*of, *author)).collect();
            let ids: Vec<&str> = requests.iter().map(|(.., id)| *id).collect();
            let rows = self.read(Read::StoredSeqs, STORED_REQUESTS, &[&of, &authors, &ids])?;
            let globals = self.globals_in(&rows, 2)?;
            rows.iter().for_each(|row| stored[index(row)] = globals.at(row, 2).map(|_| number(row, 1)));
        }
        Ok(stored)
    }

    pub(super) fn read_pages(&self, asked: &[PageRequest], bytes_max: usize) -> StoreResult<Vec<Vec<StoredEntry>>> {
        let mut pages = vec![Vec::new(); asked.len()];
        if !asked.is_empty() {
            let of = column(asked.iter().map(|ask| ask.conversation.0));
            let (from, to) = (column(asked.iter().map(|ask| ask.from_seq)), column(asked.iter().map(|ask| ask.to_seq)));
            let limits: Vec<_> = asked.iter().map(|ask| rows_max(ask.limit)).collect();
            let rows = self.read(Read::Pages, PAGES, &[&of, &from, &to, &limits, &rows_max(bytes_max)])?;
            let globals = self.globals_in(&rows, 2)?;
            for row in &rows {
                pages[index(row)].extend(entry_at(row, 1, &globals).transpose()?);
            }
        }
        Ok(pages)
    }

    /// Usually one statement. Further ones follow if the rows, which are longer than their bodies, reached the limit of
    /// bytes before the bodies did.
    pub(super) fn read_missed(&self, tails: &[Tail], query: MissedQuery) -> StoreResult<MissedEntries> {
        let mut entries: Vec<(usize, StoredEntry)> = Vec::new();
        // The ranges that are still to be read: at first whole tails.
        let mut left: Vec<_> = tails.iter().enumerate().map(|(n, tail)| (n, tail.floor_seq, tail.newest_seq)).collect();
        let mut bytes = 0;
        while !left.is_empty() && entries.len() < query.entries_max && bytes < query.bytes_max {
            let entries_max = query.entries_max - entries.len();
            // Room for the rest of each row beside its body.
            let bytes_max = (query.bytes_max - bytes).saturating_mul(2);
            let (ranges, mut found) = self.read_newest(tails, &left, entries_max, bytes_max)?;
            found.sort_unstable_by_key(|(_, entry)| Reverse(entry.position));
            let has_progressed = !found.is_empty();
            let mut ends: HashMap<usize, u64> = HashMap::new();
            for (at, entry) in found {
                if bytes >= query.bytes_max {
                    break;
                }
                bytes += entry.content.body.len();
                ends.insert(at, entry.seq - 1);
                entries.push((ranges[at].0, entry));
            }
            let end = |at: usize, to_seq: u64| ends.get(&at).copied().unwrap_or(to_seq);
            left = ranges.iter().enumerate().map(|(at, (tail, from, to))| (*tail, *from, end(at, *to))).collect();
            left.retain(|(_, from_seq, to_seq)| from_seq <= to_seq);
            if !has_progressed {
                break;
            }
        }
        Ok(MissedEntries { entries, remaining: if query.ranges { left } else { Vec::new() } })
    }

    /// Narrows these ranges to the entries that were missed, in their order; answers them with the newest entries of all of
    /// them together.
    fn read_newest(
        &self,
        tails: &[Tail],
        asked: &[TailRange],
        entries_max: usize,
        bytes_max: usize,
    ) -> StoreResult<(Vec<TailRange>, RangedEntries)> {
        let of = column(asked.iter().map(|(tail, ..)| tails[*tail].conversation.0));
        let (from, to) = (column(asked.iter().map(|range| range.1)), column(asked.iter().map(|range| range.2)));
        let ends = |end: fn(&Tail) -> Position| {
            let ends: Vec<_> = asked.iter().map(|(tail, ..)| (tails[*tail].conversation, end(&tails[*tail]))).collect();
            Ok::<_, StoreError>(column(self.locals(&ends)?.into_iter()))
        };
        let (after, until) = (ends(|tail| tail.after)?, ends(|tail| tail.until)?);
        let limits = (rows_max(entries_max), rows_max(bytes_max));
        let sql = if self.orders.are_one() { MISSED } else { MISSED_IN_ORDERS };
        let rows = self.read(Read::Missed, sql, &[&of, &from, &to, &after, &until, &limits.0, &limits.1])?;
        let mut ranges = vec![(0, 1, 0); asked.len()];
        let mut entries = Vec::new();
        for row in &rows {
            let at = index(row);
            match row.get::<_, Option<&[u8]>>(4) {
                Some(_) => {
                    let entry = entry_at(row, 1, &Globals::as_they_are()).transpose()?;
                    entries.extend(entry.map(|entry| (at, entry)));
                }
                None => ranges[at] = (asked[at].0, number(row, 1), number(row, 2)),
            }
        }
        Ok((ranges, entries))
    }
}
