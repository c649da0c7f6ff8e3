//! Compares history and read marks, as the server tells them in the end, with what a mixer's operations make of them.

use super::mixer::Mixer;
use crate::mix::form::{DeliveredEntry, Form};
use std::collections::HashMap;
use tidings_client::{
    ClientError,
    http::{HttpClient, path_segment},
};
use tidings_protocol::{entry::Entry, http::ConversationPage};

impl Mixer {
    /// Compares the whole timeline of the mixer's conversation.
    pub(super) fn compare_history(&mut self, entries: &[Entry]) {
        let mut stands_at: HashMap<u32, u64> = HashMap::new();
        for entry in entries {
            self.counts.history_compared += 1;
            match DeliveredEntry::of(entry) {
                Ok(DeliveredEntry::Message(form)) => self.compare_message(entry.seq, &form),
                Ok(_) => {}
                Err(what) => self.count_difference(entry.seq, &what),
            }
            let Some(number) = self.operation_of(entry) else { continue };
            if let Some(first) = stands_at.insert(number, entry.seq) {
                self.counts.doubled += 1;
                self.counts.add_problem(format!("operation {number} stands at {first} and at {}", entry.seq));
            }
        }
        for (number, seq) in self.acknowledged_entries() {
            if stands_at.get(&number) != Some(&seq) {
                self.counts.lost += 1;
                let place = stands_at.get(&number);
                self.counts.add_problem(format!("operation {number}, acknowledged as {seq}, is at {place:?}"));
            }
        }
    }

    fn compare_message(&mut self, seq: u64, form: &Form) {
        match self.models.get(&seq).map(|model| model.check_final(form)) {
            Some(Ok(())) => {}
            Some(Err(fault)) => self.counts.count(&fault, &format!("history: message {seq}")),
            None if *form != Form::original(form.body) => self.count_difference(seq, "was changed by nobody"),
            None => {}
        }
    }

    fn count_difference(&mut self, seq: u64, what: &str) {
        self.counts.altered += 1;
        self.counts.add_problem(format!("history: {seq} {what}"));
    }

    /// Compares the user's read mark with the newest one that was acknowledged.
    pub(super) fn compare_read_mark(&mut self, http: &mut HttpClient) -> Result<(), ClientError> {
        if self.read_seq == 0 {
            return Ok(());
        }
        let user = path_segment(&self.config.user);
        let page: ConversationPage = http.get(&format!("/v1/users/{user}/conversations?limit=200"))?;
        let line = page.conversations.iter().find(|line| line.id == self.config.conversation);
        let told = line.map(|line| line.read_seq);
        self.counts.marks_compared += 1;
        // A mark whose answer was lost may be ahead of those that were acknowledged.
        if told.is_none_or(|told| told < self.read_seq) {
            self.counts.lost += 1;
            let what = format!("{} has read up to {}, and the server says {told:?}", self.config.name, self.read_seq);
            self.counts.add_problem(what);
        }
        Ok(())
    }
}
