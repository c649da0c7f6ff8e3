//! Which rows of a page may be taken, and which of them side by side.

use crate::row::{Before, Place, Row};
use std::collections::BTreeMap;

/// What is done one after another: the rows of a conversation, or a row that is in no order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Conversation(String),
    Row(i64),
}

/// The rows of a page that may be taken now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    /// By subject, in their order.
    pub(crate) subjects: Vec<(Subject, Vec<Row>)>,
    /// A row waits for one that waits and is not on the page: it committed late, and is found by reading from the start.
    pub(crate) has_late: bool,
}

/// Of rows that wait, those whose turn it is. `is_taken`: a subject that is not free.
pub(crate) fn turns(rows: Vec<Row>, is_taken: impl Fn(&Subject) -> bool) -> Turns {
    let mut turns = Turns::default();
    let mut conversations: BTreeMap<String, Vec<(i64, Row)>> = BTreeMap::new();
    for row in rows {
        match row.place.clone() {
            Some(Place { conversation, place }) => conversations.entry(conversation).or_default().push((place, row)),
            None => turns.subjects.push((Subject::Row(row.id), vec![row])),
        }
    }
    for (conversation, mut rows) in conversations {
        let subject = Subject::Conversation(conversation);
        if is_taken(&subject) {
            continue;
        }
        rows.sort_by_key(|(place, _)| *place);
        let mut turn: Vec<Row> = Vec::new();
        let mut last = None;
        for (place, row) in rows {
            let follows = match last {
                Some(last) => place == last + 1,
                None => row.before == Before::Finished,
            };
            if !follows {
                turns.has_late |= last.is_none() && row.before == Before::Waiting;
                break;
            }
            last = Some(place);
            // A repeated change of members undoes what came after it: it is written back before the next row is taken.
            let is_last = row.operation == "members";
            turn.push(row);
            if is_last {
                break;
            }
        }
        if !turn.is_empty() {
            turns.subjects.push((subject, turn));
        }
    }
    turns.subjects.retain(|(subject, _)| !is_taken(subject));
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: i64, conversation: &str, place: i64, before: Before) -> Row {
        let operation = if conversation == "m" { "members" } else { "send" };
        let place = (!conversation.is_empty()).then(|| Place { conversation: conversation.into(), place });
        Row { id, key: id.to_string(), operation: operation.into(), place, before, request: "{}".into() }
    }

    fn taken(rows: Vec<Row>) -> (Vec<Vec<i64>>, bool) {
        let turns = turns(rows, |subject| *subject == Subject::Conversation("busy".into()));
        let ids = |(_, rows): (Subject, Vec<Row>)| rows.iter().map(|row| row.id).collect();
        (turns.subjects.into_iter().map(ids).collect(), turns.has_late)
    }

    #[test]
    fn rows_are_taken_by_place_and_not_by_number() {
        let rows =
            vec![row(1, "a", 2, Before::Waiting), row(2, "a", 1, Before::Finished), row(3, "b", 7, Before::Finished)];
        assert_eq!(taken(rows), (vec![vec![2, 1], vec![3]], false));
    }

    #[test]
    fn a_row_waits_for_the_one_before_it() {
        // 5 has waited since before the page; 6 was refused; a place is missing before 9.
        let rows = vec![row(1, "late", 6, Before::Waiting), row(2, "bad", 7, Before::Refused)];
        assert_eq!(taken(rows), (vec![], true));
        let rows = vec![row(1, "a", 8, Before::Finished), row(2, "a", 10, Before::Waiting)];
        assert_eq!(taken(rows), (vec![vec![1]], false));
    }

    #[test]
    fn a_busy_conversation_is_left_alone_and_what_is_in_no_order_waits_for_nobody() {
        let rows =
            vec![row(1, "busy", 1, Before::Finished), row(2, "", 0, Before::Finished), row(3, "", 0, Before::Finished)];
        assert_eq!(taken(rows), (vec![vec![2], vec![3]], false));
    }

    #[test]
    fn nothing_is_taken_behind_a_change_of_members_before_that_is_written_back() {
        let rows = vec![row(1, "m", 1, Before::Finished), row(2, "m", 2, Before::Waiting)];
        assert_eq!(taken(rows), (vec![vec![1]], false));
    }
}
