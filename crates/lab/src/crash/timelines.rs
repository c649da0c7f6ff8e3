//! Compares the stored timelines with what the load clients counted.

use crate::{
    problems::Problems,
    result::{Check, Layout, Measurement, filled},
};
use serde::Serialize;
use std::collections::HashMap;
use tidings_protocol::entry::{Entry, EntryKind};

/// All timelines, and their faults.
#[derive(Debug, Default, Serialize)]
pub(super) struct Timelines {
    /// What was acknowledged, or delivered without an answer.
    acknowledged: u64,
    stored: u64,
    lost: u64,
    doubled: u64,
    holes: u64,
    altered: u64,
    problems: Vec<String>,
}

impl Timelines {
    /// Adds the timelines of one load client, which has seen so many messages committed in them.
    pub(super) fn compare(&mut self, timelines: &[(&str, Vec<Entry>)], committed: u64) {
        let before = self.stored;
        timelines.iter().for_each(|(conversation, entries)| self.add(conversation, entries));
        let stored = self.stored - before;
        self.acknowledged += committed;
        if stored != committed {
            self.lost += stored.abs_diff(committed);
            let first = timelines.first().map_or("", |(conversation, _)| conversation);
            self.problems.note(format!("{first} and others: {stored} stored, {committed} acknowledged or delivered"));
        }
    }

    fn add(&mut self, conversation: &str, entries: &[Entry]) {
        let mut stands_at: HashMap<&str, u64> = HashMap::new();
        for (place, entry) in (1..).zip(entries) {
            if entry.seq != place {
                self.holes += 1;
                self.problems.note(format!("{conversation}: place {place} holds {}", entry.seq));
            }
            let Some(id) = entry.client_msg_id.as_deref() else { continue };
            if let Some(first) = stands_at.insert(id, entry.seq) {
                self.doubled += 1;
                self.problems.note(format!("{conversation}: {id} at {first} and at {}", entry.seq));
                continue;
            }
            if entry.kind != EntryKind::Message {
                continue;
            }
            self.stored += 1;
            // Messages that were changed are compared with the model of the mix.
            let is_as_sent = entry.version.is_none() && entry.recalled.is_none();
            let number = id.rsplit('-').next().unwrap_or_default();
            if is_as_sent && !entry.body.get().starts_with(&format!("{{\"text\":\"{number} ")) {
                self.altered += 1;
                self.problems.note(format!("{conversation}: {} holds another text", entry.seq));
            }
        }
    }

    fn is_clean(&self) -> bool {
        self.lost + self.doubled + self.holes + self.altered == 0
    }

    pub(super) fn measured(&self, title: &str) -> Measurement {
        let bound = "every acknowledged message is stored once, unaltered, and no place is empty";
        let check = Check::of_server("messages", bound, self.is_clean());
        let value = filled("{acknowledged} acknowledged, lost {lost}, doubled {doubled}, holes {holes}", self);
        Measurement::of(title, self).layout(&LAYOUT).check(check.value(value))
    }
}

const LAYOUT: Layout = Layout {
    lines: &[
        ("messages", "acknowledged {acknowledged}  stored {stored}"),
        ("stored", "lost {lost}  doubled {doubled}  holes {holes}  altered {altered}"),
    ],
    percentiles: &[],
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::value::RawValue;

    fn entry(seq: u64, number: u64) -> Entry {
        let body = RawValue::from_string(format!("{{\"text\":\"{number} ..\"}}")).unwrap_or_default();
        let message = Entry::message("c".into(), seq, 1, "text".into(), body);
        Entry { client_msg_id: Some(format!("t-{number}")), ..message }
    }

    fn compare(entries: Vec<Entry>, committed: u64) -> Timelines {
        let mut timelines = Timelines::default();
        timelines.compare(&[("c", entries)], committed);
        timelines
    }

    #[test]
    fn a_timeline_holds_every_committed_message_once() {
        assert!(compare(vec![entry(1, 7), entry(2, 8)], 2).is_clean());
        assert_eq!(compare(vec![entry(1, 7)], 2).lost, 1);
        assert_eq!(compare(vec![entry(1, 7), entry(2, 8)], 1).lost, 1, "stored, and neither answered nor delivered");
        assert_eq!(compare(vec![entry(1, 7), entry(2, 7)], 1).doubled, 1);
        assert_eq!(compare(vec![entry(1, 7), entry(3, 8)], 2).holes, 1);
        let altered = Entry { client_msg_id: Some("t-9".into()), ..entry(1, 7) };
        assert_eq!(compare(vec![altered.clone()], 1).altered, 1);
        assert!(compare(vec![Entry { version: Some(2), ..altered }], 1).is_clean(), "the mix has edited it");
    }
}
