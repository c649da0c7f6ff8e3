//! The statement that reads the entries that a user has missed, of all conversations at once.

use super::commit_orders::position_of;

macro_rules! as_it_is {
    ($position:literal) => {
        $position
    };
}

/// The newest entries of a range ($range has `conversation`, `from_seq` and `to_seq`), newest first. A partition is read only
/// if the newer ones did not have $limit entries.
macro_rules! newest {
    ($range:literal, $limit:literal) => {
        concat!(
            "(SELECT c.part, e.seq, e.position FROM (SELECT part, first_seq FROM chapters WHERE conversation = ",
            $range,
            ".conversation AND first_seq <= ",
            $range,
            ".to_seq AND first_seq >= coalesce((SELECT max(first_seq) FROM chapters WHERE conversation = ",
            $range,
            ".conversation AND first_seq <= ",
            $range,
            ".from_seq), 0)) c CROSS JOIN LATERAL (SELECT seq, position FROM entries WHERE part = c.part ",
            "AND conversation = ",
            $range,
            ".conversation AND seq BETWEEN ",
            $range,
            ".from_seq AND ",
            $range,
            ".to_seq ORDER BY seq DESC LIMIT ",
            $limit,
            ") e ORDER BY c.first_seq DESC, e.seq DESC LIMIT ",
            $limit,
            ")"
        )
    };
}

/// Parameters: tails as columns (conversation, first and last `seq` that may have been missed, the positions after and
/// until which entries count), the wanted number of entries, and of bytes. Result: a row for each tail with its range, and a
/// row for each entry.
///
/// - `search`: the ends of each range. No index leads from a conversation's position to its `seq`, so this is a binary
///   search. It starts at the newest end in steps that double, since the missed range is short beside the timeline.
/// - `newest`: the tails whose newest entry is the newest. If N entries are wanted, no more than N tails can have one.
/// - `pages`: the newest 8 entries of each such tail. The Nth newest of all of them is the `line`: no entry before that
///   position can be wanted.
/// - `deeper`: the tails whose 8 entries all lie after the line, so that older ones may too. These are at most N / 8 tails,
///   whatever the number of conversations.
/// - `picked`, `measured`: the newest N of all these entries, and their contents up to the wanted bytes.
///
/// Each read of the entries has a limit of its own. The planner is kept from sorting where it can, and would otherwise read
/// the whole timeline by its index of positions to have the entries in order.
macro_rules! missed {
    ($position:ident) => {
        concat!(
    "WITH RECURSIVE tails AS MATERIALIZED (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], ",
    "$5::bigint[]) WITH ORDINALITY AS t (conversation, floor_seq, newest_seq, after_position, until_position, n)), ",
    "search (n, conversation, sought, is_end, low, high, step) AS (",
    "SELECT n, conversation, CASE WHEN is_end THEN until_position ELSE after_position END, is_end, ",
    "floor_seq, newest_seq + 1, 1::bigint FROM tails CROSS JOIN (VALUES (false), (true)) AS ends (is_end) ",
    "UNION ALL SELECT s.n, s.conversation, s.sought, s.is_end, ",
    "CASE WHEN e.position > s.sought THEN s.low ELSE m.middle + 1 END, ",
    "CASE WHEN e.position > s.sought THEN m.middle ELSE s.high END, ",
    "CASE WHEN e.position > s.sought THEN least(s.step * 2, 1::bigint << 60) ELSE 1::bigint << 60 END ",
    "FROM search s CROSS JOIN LATERAL (SELECT greatest((s.low + s.high) / 2, s.high - s.step)) AS m (middle) ",
    "LEFT JOIN LATERAL (SELECT e.position FROM (SELECT part FROM chapters WHERE conversation = s.conversation ",
    "AND first_seq <= m.middle ORDER BY first_seq DESC LIMIT 1) c CROSS JOIN LATERAL (SELECT position FROM entries ",
    "WHERE part = c.part AND conversation = s.conversation AND seq = m.middle LIMIT 1) e) e ON true WHERE s.low < s.high), ",
    "ranges AS MATERIALIZED (SELECT n, conversation, min(low) FILTER (WHERE NOT is_end) AS from_seq, ",
    "min(low) FILTER (WHERE is_end) - 1 AS to_seq FROM search WHERE low >= high GROUP BY n, conversation), ",
    "newest AS MATERIALIZED (SELECT r.n, r.conversation, r.from_seq, r.to_seq FROM ranges r CROSS JOIN LATERAL ",
    newest!("r", "1"),
    " e WHERE r.from_seq <= r.to_seq ORDER BY ",
    $position!("e.position"),
    " DESC LIMIT $6), ",
    "pages AS MATERIALIZED (SELECT t.n, t.conversation, t.from_seq, e.part, e.seq, ",
    $position!("e.position"),
    " AS position ",
    "FROM newest t CROSS JOIN LATERAL ",
    newest!("t", "8"),
    " e), ",
    "line AS MATERIALIZED (SELECT coalesce((SELECT position FROM pages ORDER BY position DESC OFFSET $6 - 1 LIMIT 1), 0) ",
    "AS position), ",
    "deeper AS MATERIALIZED (SELECT n, conversation, from_seq, min(seq) - 1 AS to_seq FROM pages ",
    "GROUP BY n, conversation, from_seq HAVING count(*) = 8 AND min(position) > (SELECT position FROM line)), ",
    "picked AS MATERIALIZED (SELECT n, conversation, part, seq, position FROM ",
    "(SELECT n, conversation, part, seq, position FROM pages UNION ALL ",
    "SELECT t.n, t.conversation, e.part, e.seq, ",
    $position!("e.position"),
    " FROM deeper t CROSS JOIN LATERAL ",
    newest!("t", "$6"),
    " e) found ORDER BY position DESC LIMIT $6), ",
    "measured AS (SELECT p.n, e.seq, p.position, e.at, e.content, sum(octet_length(e.content)) ",
    "OVER (ORDER BY p.position DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before ",
    "FROM picked p CROSS JOIN LATERAL (SELECT seq, at, content FROM entries ",
    "WHERE part = p.part AND conversation = p.conversation AND seq = p.seq LIMIT 1) e) ",
    "SELECT n, from_seq AS a, to_seq AS b, NULL::bigint AS at, NULL::bytea AS content FROM ranges UNION ALL ",
    "SELECT n, seq, position, at, content FROM measured WHERE before IS NULL OR before < $7"
        )
    };
}
pub(super) const MISSED: &str = missed!(as_it_is);
/// The same in a database of several orders. The positions of the tails are local ones, and so those of the search.
pub(super) const MISSED_IN_ORDERS: &str = missed!(position_of);
