//! The index of an account's conversations must agree with their newest entries and assignments.

use super::CheckReport;
use std::collections::{BTreeSet, HashMap, HashSet};
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{self, number_in},
    desks::{Assignment, Whose},
    model::*,
    store::{StoreError, StoreResult},
};

/// The account, the part of its index, and the position of a row.
type Place = (u64, u64, Position);

/// What entries say of accounts' conversations, and what the rows do.
#[derive(Default)]
pub(super) struct AccountConversations {
    /// The account of each conversation, and the position of its newest entry.
    newest: HashMap<u64, (u64, Position)>,
    /// Conversations of which each entry is one of a bulk send.
    unlisted: HashSet<u64>,
    /// Of each conversation in the lists, its agent.
    assigned: HashMap<u64, Option<UserNo>>,
    indexed: HashMap<u64, BTreeSet<Place>>,
}

impl AccountConversations {
    /// Takes note of an entry. Those of one conversation come in their order.
    pub(super) fn note_entry(&mut self, no: u64, entry: &StoredEntry) {
        if let Some(EntryDesk { account, for_customer, .. }) = entry.content.desk() {
            let is_first = self.newest.insert(no, (account.0, entry.position)).is_none();
            if !for_customer {
                self.unlisted.remove(&no);
            } else if is_first {
                self.unlisted.insert(no);
            }
        }
    }

    /// Takes note of a row of the index, or of an assignment.
    pub(super) fn note_row(&mut self, key: &[u8], row: &[u8]) -> StoreResult<()> {
        let number = |place| number_in(key, place).ok_or_else(|| StoreError::Damaged("a key of a desk's row".into()));
        if ChatRowKind::Assignment.has(key) {
            let assignment: Option<Assignment> = chat_rows::decode(Some(row))?;
            self.assigned.insert(number(0)?, assignment.and_then(|assignment| assignment.agent).map(|agent| agent.no));
            return Ok(());
        }
        let place = (number(0)?, number(1)?, !number(2)?);
        self.indexed.entry(number(3)?).or_default().insert(place);
        Ok(())
    }

    /// Compares both.
    pub(super) fn check(mut self, report: &mut CheckReport) {
        for (no, (account, newest)) in self.newest {
            // Retention may have left of a listed conversation what bulk sends sent.
            let Some(agent) = self.assigned.remove(&no) else {
                if !self.unlisted.contains(&no) {
                    self.indexed.remove(&no);
                    report.fault(format_args!(
                        "conversation {no} has entries of account {account}, and is not in its list"
                    ));
                }
                continue;
            };
            let whose = agent.map_or(Whose::Nobodys, Whose::Agents);
            let expected = [Whose::Anyones, whose].map(|whose| (account, whose.number(), newest));
            if self.indexed.remove(&no).unwrap_or_default() != BTreeSet::from(expected) {
                report.fault(format_args!(
                    "conversation {no} is not in the list of account {account} by its newest entry and its agent"
                ));
            }
        }
        for no in self.indexed.keys().chain(self.assigned.keys()) {
            report.fault(format_args!("conversation {no} is in the list of an account, and has no entry of one"));
        }
    }
}
