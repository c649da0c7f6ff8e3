//! What the tables must agree in with each other, whatever the folder says: as the check of a folder does for its rows.

use super::{CopyError, target::Target};

/// A sentence, and the statement that counts the rows of which it is true.
const FAULTS: &[(&str, &str)] = &[
    (
        "conversations have no head, or heads no conversation",
        "SELECT count(*) FROM conversations c FULL JOIN heads h ON h.conversation = c.no WHERE c.no IS NULL OR h.conversation IS NULL",
    ),
    (
        "heads are not at the newest entry of their timeline",
        "SELECT count(*) FROM heads h FULL JOIN (SELECT conversation, max(seq) AS seq, max(at) AS at, max(position) AS position \
           FROM entries GROUP BY conversation) e ON e.conversation = h.conversation \
         WHERE h.conversation IS NULL OR (h.last_seq, h.last_at, h.last_position) <> \
           (coalesce(e.seq, 0), coalesce(e.at, 0), coalesce(e.position, 0))",
    ),
    (
        "timelines have a hole",
        "SELECT count(*) FROM (SELECT FROM entries GROUP BY conversation HAVING count(*) <> max(seq) - min(seq) + 1) AS t",
    ),
    ("positions are given twice", "SELECT count(*) - count(DISTINCT position) FROM entries"),
    (
        "beginnings of parts of a timeline are not those of their entries",
        "SELECT count(*) FROM chapters c FULL JOIN (SELECT conversation, part, min(seq) AS seq FROM entries \
           GROUP BY conversation, part) e ON e.conversation = c.conversation AND e.part = c.part \
         WHERE c.first_seq IS DISTINCT FROM e.seq",
    ),
    (
        "parts of the timeline have other sums than their entries",
        "SELECT count(*) FROM parts p FULL JOIN (SELECT part, count(*) AS entries, sum(length(content)) AS bytes, \
           max(position) AS position FROM entries GROUP BY part) e ON e.part = p.part \
         WHERE (p.entries, p.bytes, p.last_position) IS DISTINCT FROM (e.entries, e.bytes, e.position)",
    ),
    (
        "memberships are not in the list of their user, or the other way round",
        "SELECT count(*) FROM members m FULL JOIN places p ON p.user_no = m.user_no AND p.conversation = m.conversation \
         WHERE m.user_no IS NULL OR p.user_no IS NULL",
    ),
    (
        "read marks are beyond the newest entry",
        "SELECT count(*) FROM members m JOIN heads h ON h.conversation = m.conversation WHERE m.read_seq > h.last_seq",
    ),
    (
        "first results name another entry than there is",
        "SELECT count(*) FROM dedupe d LEFT JOIN entries e ON e.conversation = d.conversation AND e.seq = d.seq \
         WHERE (d.position, d.at) IS DISTINCT FROM (e.position, e.at)",
    ),
];

/// The faults of the database, as sentences.
pub(super) fn faults(target: &Target) -> Result<Vec<String>, CopyError> {
    let mut found = Vec::new();
    target.plan_for_whole_tables()?;
    for (what, count) in FAULTS {
        match target.number(count)? {
            0 => {}
            count => found.push(format!("the database: {what} ({count})")),
        }
    }
    Ok(found)
}
