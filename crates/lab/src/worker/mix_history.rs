//! Compares what the server tells at the end of a phase with the models of the mix: history, read marks, receipts.

use super::{connection_pool::ConnectionPool, mixed_traffic::MixedTraffic, shared_state::SharedState};
use crate::{
    LabError,
    mix::form::{DeliveredEntry, Form},
    problems::Problems,
    worker_protocol::WorkerConfig,
};
use std::{collections::HashSet, time::Duration};
use tidings_client::{
    ClientError,
    http::{HttpClient, path_segment},
};
use tidings_protocol::{
    entry::Entry,
    error::ErrorCode,
    http::{ConversationPage, HistoryQuery, MessageReceipts},
    limits::HISTORY_PAGE_MAX,
};

/// The longest wait for one page; another server is asked then.
const PAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Reads all back from the first server that answers, while the sessions go on.
pub(super) fn compare(
    config: &WorkerConfig,
    pool: &mut ConnectionPool,
    shared: &mut SharedState,
) -> Result<(), LabError> {
    if !shared.mix.is_on() {
        return Ok(());
    }
    let base_seq = config.participants.conversations.first().map_or(0, |conversation| conversation.base_seq);
    let mut last_error = String::new();
    for address in &config.addresses {
        let mut http = HttpClient::new(*address, config.api_key.clone());
        http.set_timeout(PAGE_TIMEOUT);
        let read = compare_history(&mut http, base_seq, pool, shared).and_then(|()| {
            compare_read_marks(&mut http, pool, shared)?;
            Ok(compare_receipts(&mut http, shared)?)
        });
        match read {
            Ok(()) => return Ok(()),
            Err(error) => last_error = error.to_string(),
        }
    }
    Err(LabError::Worker(format!("no server answered the comparison with history: {last_error}")))
}

fn compare_history(
    http: &mut HttpClient,
    base_seq: u64,
    pool: &mut ConnectionPool,
    shared: &mut SharedState,
) -> Result<(), LabError> {
    let conversation = shared.mix.conversation().to_owned();
    let mut known = HashSet::new();
    let mut from_seq = base_seq + 1;
    loop {
        let query = HistoryQuery { from_seq: Some(from_seq), limit: Some(HISTORY_PAGE_MAX), ..HistoryQuery::default() };
        let page = http.history(&conversation, &query)?;
        for entry in &page.entries {
            shared.mix.compare_entry(entry, &mut known);
            from_seq = entry.seq + 1;
        }
        // Sessions are pinged, and batches of receivers go on.
        pool.poll_once(Duration::ZERO, shared)?;
        if page.entries.is_empty() || !page.more {
            shared.mix.find_lost_entries(&known);
            return Ok(());
        }
    }
}

/// Every receiver's read mark must be the newest one that was acknowledged, or beyond it the one without an answer.
fn compare_read_marks(
    http: &mut HttpClient,
    pool: &mut ConnectionPool,
    shared: &mut SharedState,
) -> Result<(), LabError> {
    for receiver in 0..shared.mix.read_marks.len() {
        let (marked, is_answered) = shared.mix.read_marks[receiver];
        if marked == 0 || !is_answered {
            continue;
        }
        let user = path_segment(shared.mix.user_of(receiver));
        let page: ConversationPage = http.get(&format!("/v1/users/{user}/conversations?limit=200"))?;
        let line = page.conversations.iter().find(|line| line.id == shared.mix.conversation());
        shared.mix.compare_read_mark(receiver, line.map(|line| line.read_seq));
        pool.poll_once(Duration::ZERO, shared)?;
    }
    Ok(())
}

/// Where the conversation shows receipts, a message must have as many as members have read it.
fn compare_receipts(http: &mut HttpClient, shared: &mut SharedState) -> Result<(), ClientError> {
    let Some((sender, seq)) = shared.mix.median_mark(&shared.sent_messages) else { return Ok(()) };
    let conversation = path_segment(shared.mix.conversation());
    let told: Result<MessageReceipts, ClientError> =
        http.get(&format!("/v1/conversations/{conversation}/messages/{seq}/receipts"));
    match told {
        Ok(receipts) => shared.mix.compare_receipts(&sender, seq, &receipts),
        // Larger conversations show none.
        Err(ClientError::Refused { problem, .. }) if problem.code == ErrorCode::Forbidden => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

impl MixedTraffic {
    /// Compares an entry of history: a message with its model, the own entry of an operation with the operation.
    fn compare_entry(&mut self, entry: &Entry, known: &mut HashSet<u32>) {
        self.counts.history_compared += 1;
        let handed = match DeliveredEntry::of(entry) {
            Ok(handed) => handed,
            Err(what) => return self.count_altered(entry.seq, &what),
        };
        if let DeliveredEntry::Message(form) = &handed {
            match self.models.get(&entry.seq) {
                Some(model) => {
                    if let Err(fault) = model.check_final(form) {
                        self.counts.count(&fault, &format!("history: message {}", entry.seq));
                    }
                }
                None if *form != Form::original(form.body) => self.count_altered(entry.seq, "was changed by nobody"),
                None => {}
            }
        }
        let Some(number) = entry.client_msg_id.as_deref().and_then(|id| self.operation_of(id)) else { return };
        if !known.insert(number) {
            self.counts.doubled += 1;
            self.counts.problems.note(format!("history: {} is operation {number} once more", entry.seq));
        }
        if let Err(what) = self.check_operation(number, entry) {
            self.count_altered(entry.seq, &what);
        }
    }

    fn count_altered(&mut self, seq: u64, what: &str) {
        self.counts.altered += 1;
        self.counts.problems.note(format!("history: {seq} {what}"));
    }

    /// Acknowledged edits and recalls must be in history, each as its own entry.
    fn find_lost_entries(&mut self, known: &HashSet<u32>) {
        for number in self.acknowledged_entries() {
            if !known.contains(&number) {
                self.counts.lost += 1;
                self.counts.problems.note(format!("history: operation {number} was acknowledged and is not there"));
            }
        }
    }

    fn compare_read_mark(&mut self, receiver: usize, told: Option<u64>) {
        let (marked, _) = self.read_marks[receiver];
        self.counts.marks_compared += 1;
        if told != Some(marked) {
            self.counts.lost += 1;
            let user = self.user_of(receiver).to_owned();
            self.counts.problems.note(format!("{user} has read up to {marked}, and the server says {told:?}"));
        }
    }

    fn compare_receipts(&mut self, sender: &str, seq: u64, told: &MessageReceipts) {
        let has_read = |receiver: &usize| self.read_marks[*receiver].0 >= seq && self.user_of(*receiver) != sender;
        let readers = (0..self.read_marks.len()).filter(has_read).count() as u64;
        if told.read != readers || told.delivered < told.read {
            self.counts.lost += 1;
            let what = format!("{readers} members have read message {seq}, and its receipts are {told:?}");
            self.counts.problems.note(what);
        }
    }
}
