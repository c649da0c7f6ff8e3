//! A member who edits, recalls, reacts and reads while the server is killed, and whose client keeps a view over all kills.
//!
//! The client resumes from its cursor after each kill, and repeats what was not answered with the same ids.

use super::senders::{ANSWER_TIMEOUT, ServerLocation};
use crate::{
    client_engine::session::user_token,
    latency::{new_histogram, record},
    mix::{
        REACTION_KEYS,
        counts::MixCounts,
        form::{DeliveredEntry, Form, body_hash},
        member_views::MemberViews,
        model::{Answer, MessageModel},
        operation::{Kind, Operation, REFERENCE_BASE},
        share::MixShare,
    },
};
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};
use tidings_client::{ClientError, session::Session};
use tidings_protocol::{
    entry::Entry,
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::{HistoryPage, HistoryQuery},
    limits::HISTORY_PAGE_MAX,
};

/// Unanswered operations of one client, so that a kill finds several.
const PIPELINE: usize = 8;
/// The messages that operations choose from.
const RECENT_MAX: usize = 60;
/// Edits of one message: well below the server's limit.
const EDITS_MAX: usize = 20;
/// The most operations that are owed.
const OWED_MAX: f64 = 100.0;
/// The longest wait for a frame before the loop looks whether it should end.
const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// How long after the last kill a view may lack what was acknowledged: reactions are told with some delay.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Whose operations these are, and where.
#[derive(Debug, Clone)]
pub(super) struct MixerConfig {
    pub(super) conversation: String,
    pub(super) user: String,
    /// Names the client's device, and its operations.
    pub(super) name: String,
    pub(super) share: MixShare,
    pub(super) seed: u64,
}

/// A client with its view, and the model of its operations.
pub(super) struct Mixer {
    pub(super) config: MixerConfig,
    clock: Instant,
    random: StdRng,
    owed: f64,
    operations: Vec<Operation>,
    unanswered: Vec<u32>,
    pub(super) models: HashMap<u64, MessageModel>,
    views: MemberViews,
    /// The user's own messages, with the hash of what they were sent with.
    recent: VecDeque<(u64, u64)>,
    cursor: Option<String>,
    /// The newest entry, and which before it are missing.
    newest_seq: u64,
    missing: BTreeSet<u64>,
    /// The newest mark that was acknowledged.
    pub(super) read_seq: u64,
    pub(super) acknowledged: Histogram<u64>,
    pub(super) counts: MixCounts,
}

impl Mixer {
    pub(super) fn new(config: MixerConfig) -> Self {
        Mixer {
            random: StdRng::seed_from_u64(config.seed),
            config,
            clock: Instant::now(),
            owed: 0.0,
            operations: Vec::new(),
            unanswered: Vec::new(),
            models: HashMap::new(),
            views: MemberViews::default(),
            recent: VecDeque::new(),
            cursor: None,
            newest_seq: 0,
            missing: BTreeSet::new(),
            read_seq: 0,
            acknowledged: new_histogram(),
            counts: MixCounts::default(),
        }
    }

    /// Acts until it is told to stop and everything is answered and shown, or for too long after that.
    pub(super) fn run(mut self, server: &ServerLocation) -> Mixer {
        let mut stopped_at: Option<Instant> = None;
        while stopped_at.is_none_or(|at| at.elapsed() < SETTLE_TIMEOUT) {
            if self.run_session(server, &mut stopped_at).is_ok() {
                break;
            }
            if server.stopping() {
                stopped_at.get_or_insert_with(Instant::now);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.finish();
        self
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Returns when all is over; fails when the connection does.
    fn run_session(&mut self, server: &ServerLocation, stopped_at: &mut Option<Instant>) -> Result<(), ClientError> {
        let asked_at = self.now();
        let token = user_token(server.token_key(), &self.config.user);
        let cursor = self.cursor.clone();
        let mut session = Session::open(server.address(), &token, &self.config.name, cursor.as_deref())?;
        let bound = session.bound.clone().ok_or_else(|| ClientError::Protocol("bound without a frame".into()))?;
        if bound.resume.reset {
            self.counts.lost += 1;
            self.counts.add_problem(format!("{}: the server has another history now", self.config.name));
        }
        let mut is_resuming = cursor.as_deref() == Some(&bound.cursor);
        self.cursor = Some(bound.cursor);
        for range in bound.resume.ranges {
            if range.conversation != self.config.conversation {
                continue;
            }
            if self.newest_seq == 0 {
                self.newest_seq = range.from_seq - 1;
            }
            self.note_gap_to(range.to_seq);
            self.ask_history(&mut session, range.from_seq, range.to_seq)?;
        }
        for number in self.unanswered.clone() {
            self.write(&mut session, number)?;
        }
        let mut last_answer = Instant::now();
        loop {
            if server.stopping() {
                let stopped_at = *stopped_at.get_or_insert_with(Instant::now);
                if self.is_settled() || stopped_at.elapsed() > SETTLE_TIMEOUT {
                    return Ok(());
                }
            } else {
                self.plan(&mut session)?;
            }
            if self.unanswered.is_empty() {
                last_answer = Instant::now();
            }
            match session.next(POLL_TIMEOUT)? {
                Some(ServerFrame::Messages { cursor, entries }) => {
                    let asked_at = if std::mem::take(&mut is_resuming) { asked_at } else { 0 };
                    entries.iter().for_each(|entry| self.receive(entry, asked_at));
                    self.cursor = Some(cursor);
                }
                Some(ServerFrame::History { reference, page, .. }) => {
                    self.receive_page(&mut session, reference.unwrap_or_default(), &page, asked_at)?;
                }
                Some(frame) => {
                    last_answer = Instant::now();
                    self.receive_answer(frame, &mut session)?;
                }
                None if last_answer.elapsed() > ANSWER_TIMEOUT => {
                    return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
                }
                None => {}
            }
        }
    }

    fn receive_answer(&mut self, frame: ServerFrame, session: &mut Session) -> Result<(), ClientError> {
        match frame {
            ServerFrame::Sent { results } => {
                for sent in results {
                    self.acknowledge(sent.reference, sent.receipt.seq);
                }
            }
            ServerFrame::Ok { reference } => self.acknowledge(Some(reference), 0),
            ServerFrame::Receipts { marks, moved, .. } => {
                self.counts.receipts_seen += marks.len() as u64 + moved.iter().map(|moved| moved.count).sum::<u64>();
            }
            ServerFrame::Error { reference: Some(reference), code, message, retry, .. } => {
                if let Some(number) = self.number_of(reference) {
                    self.refuse(number, code, &message, retry, session)?;
                }
            }
            ServerFrame::Error { code, message, retry_after_ms, .. } => {
                return Err(ClientError::Ended { code: code.as_str().into(), message, retry_after_ms });
            }
            _ => {}
        }
        Ok(())
    }

    // What the client shows.

    fn note_gap_to(&mut self, seq: u64) {
        if seq > self.newest_seq {
            self.missing.extend(self.newest_seq + 1..=seq);
            self.newest_seq = seq;
        }
    }

    fn ask_history(&self, session: &mut Session, from_seq: u64, to_seq: u64) -> Result<(), ClientError> {
        session.write(&ClientFrame::History {
            // The answer repeats the reference, which is thus the end of the range.
            reference: Some(to_seq),
            conversation: self.config.conversation.clone(),
            query: HistoryQuery {
                from_seq: Some(from_seq),
                to_seq: Some(to_seq),
                limit: Some(HISTORY_PAGE_MAX),
                ..HistoryQuery::default()
            },
        })
    }

    fn receive_page(
        &mut self,
        session: &mut Session,
        to_seq: u64,
        page: &HistoryPage,
        asked_at: u64,
    ) -> Result<(), ClientError> {
        page.entries.iter().for_each(|entry| self.receive(entry, asked_at));
        match page.entries.last() {
            Some(last) if page.more => self.ask_history(session, last.seq + 1, to_seq),
            _ => Ok(()),
        }
    }

    /// Takes an entry that was asked for at this time, or that came live (0).
    fn receive(&mut self, entry: &Entry, asked_at: u64) {
        if entry.conversation != self.config.conversation {
            return;
        }
        if self.newest_seq == 0 {
            // The first entry of a client without a cursor.
            self.newest_seq = entry.seq - 1;
        }
        if entry.seq > self.newest_seq {
            self.note_gap_to(entry.seq);
            self.missing.remove(&entry.seq);
        } else if !self.missing.remove(&entry.seq) {
            self.counts.doubled += 1;
            return self.counts.add_problem(format!("{}: {} again", self.config.name, entry.seq));
        }
        match DeliveredEntry::of(entry) {
            Ok(handed) => self.show(entry, handed, asked_at),
            Err(what) => self.count_altered(entry.seq, &what),
        }
    }

    fn show(&mut self, entry: &Entry, handed: DeliveredEntry, asked_at: u64) {
        if let DeliveredEntry::Message(form) = &handed {
            let checked = self.models.get(&entry.seq).map(|model| model.check_handed(form, asked_at));
            match checked {
                Some(Ok(())) => {}
                Some(Err(fault)) => self.counts.count(&fault, &format!("{}: message {}", self.config.name, entry.seq)),
                // Others in this conversation change nothing.
                None if *form != Form::original(form.body) => self.count_altered(entry.seq, "was changed by nobody"),
                None => self.note_message(entry, form.body),
            }
        }
        if self.operation_of(entry).is_some() {
            self.counts.deliveries += 1;
        }
        self.views.record_first(entry.seq, handed);
    }

    fn note_message(&mut self, entry: &Entry, body: u64) {
        self.owed = (self.owed + self.config.share.per_message()).min(OWED_MAX);
        if entry.from.as_deref() == Some(&self.config.user) {
            self.recent.push_back((entry.seq, body));
            if self.recent.len() > RECENT_MAX {
                self.recent.pop_front();
            }
        }
    }

    fn count_altered(&mut self, seq: u64, what: &str) {
        self.counts.altered += 1;
        self.counts.add_problem(format!("{}: {seq} {what}", self.config.name));
    }

    // What the client does.

    fn plan(&mut self, session: &mut Session) -> Result<(), ClientError> {
        while self.owed >= 1.0 && self.unanswered.len() < PIPELINE && !self.recent.is_empty() {
            let (seq, original) = self.recent[self.random.random_range(0..self.recent.len())];
            let key = REACTION_KEYS[self.random.random_range(0..REACTION_KEYS.len())];
            let dice = self.random.random_range(0..100);
            let number = self.operations.len();
            let model = self.models.entry(seq).or_insert_with(|| MessageModel::new(original));
            let may_change = !model.is_changing() && !model.may_be_recalled();
            let newest = self.missing.first().map_or(self.newest_seq, |first| first - 1);
            let is_reading =
                self.unanswered.iter().any(|n| matches!(self.operations[*n as usize].kind, Kind::Read { .. }));
            let kind = match dice {
                0..30 if may_change && model.edits() < EDITS_MAX => {
                    let body = format!("{{\"text\":\"edit {number} of {}\"}}", self.config.name);
                    Kind::Edit { seq, number: model.begin_edit(body_hash(&body)), body }
                }
                30..40 if may_change => {
                    model.begin_recall();
                    Kind::Recall { seq }
                }
                40..75 if !model.may_be_recalled() && !model.is_reacting(0, key) => {
                    let remove = model.has_given(0, key);
                    model.begin_reaction(0, key, remove);
                    Kind::React { seq, key, remove }
                }
                75.. if !is_reading && newest > self.read_seq => Kind::Read { seq: newest },
                // Taken: another choice comes with the next frame.
                _ => return Ok(()),
            };
            self.owed -= 1.0;
            let operation = Operation::new(kind, 0, self.now());
            if let Some(stored) = operation.stored_frame(self.cursor.as_deref().unwrap_or_default().as_bytes()) {
                self.counts.stored_told += 1;
                session.write_text(&stored)?;
            }
            self.operations.push(operation);
            self.unanswered.push(number as u32);
            self.write(session, number as u32)?;
        }
        Ok(())
    }

    fn write(&mut self, session: &mut Session, number: u32) -> Result<(), ClientError> {
        let operation = &mut self.operations[number as usize];
        self.counts.repeated += u64::from(operation.sends > 0);
        operation.sends += 1;
        session.write_text(&operation.frame(number, &self.config.name, &self.config.conversation))
    }

    fn number_of(&self, reference: u64) -> Option<u32> {
        let number = reference.checked_sub(REFERENCE_BASE)? as u32;
        self.unanswered.contains(&number).then_some(number)
    }

    fn acknowledge(&mut self, reference: Option<u64>, seq: u64) {
        let Some(number) = reference.and_then(|reference| self.number_of(reference)) else { return };
        let (now, operation) = (self.now(), &self.operations[number as usize]);
        record(&mut self.acknowledged, operation.due, now);
        match operation.kind {
            Kind::Edit { .. } => self.counts.edits += 1,
            Kind::Recall { .. } => self.counts.recalls += 1,
            Kind::React { .. } => self.counts.reactions += 1,
            Kind::Read { seq } => {
                self.counts.receipts_accepted += 1;
                self.read_seq = self.read_seq.max(seq);
            }
        }
        self.answer(number, Answer::Done { at: now, seq });
    }

    fn refuse(
        &mut self,
        number: u32,
        code: ErrorCode,
        why: &str,
        retry: bool,
        session: &mut Session,
    ) -> Result<(), ClientError> {
        if retry {
            self.counts.count_refusal(code.as_str());
            std::thread::sleep(Duration::from_millis(5));
            return self.write(session, number);
        }
        let seq = self.operations[number as usize].kind.seq();
        let is_recalled = self.models.get(&seq).is_some_and(MessageModel::may_be_recalled);
        if code == ErrorCode::MessageRecalled && is_recalled {
            self.counts.overtaken += 1;
        } else {
            self.counts.refused += 1;
            self.counts.add_problem(format!("{}: message {seq}: {}: {why}", self.config.name, code.as_str()));
        }
        self.answer(number, Answer::Refused);
        Ok(())
    }

    fn answer(&mut self, number: u32, answer: Answer) {
        self.unanswered.retain(|other| *other != number);
        let operation = &mut self.operations[number as usize];
        operation.answer = answer;
        let Some(model) = self.models.get_mut(&operation.kind.seq()) else { return };
        match &operation.kind {
            Kind::Edit { number, .. } => model.answer_edit(*number, answer),
            Kind::Recall { .. } => model.answer_recall(answer),
            Kind::React { key, .. } => model.answer_reaction(0, key, answer),
            Kind::Read { .. } => {}
        }
    }

    // What must be in the end.

    /// The operation whose own entry this is.
    pub(super) fn operation_of(&self, entry: &Entry) -> Option<u32> {
        let id = entry.client_msg_id.as_deref()?.strip_prefix(self.config.name.as_str())?;
        let number: u32 = id.strip_prefix("-x")?.parse().ok()?;
        (u64::from(number) < self.operations.len() as u64).then_some(number)
    }

    /// The edits and recalls that were acknowledged, each with the `seq` of its answer.
    pub(super) fn acknowledged_entries(&self) -> Vec<(u32, u64)> {
        let entry = |(number, operation): (usize, &Operation)| match operation.answer {
            Answer::Done { seq, .. } if seq > 0 => Some((number as u32, seq)),
            _ => None,
        };
        self.operations.iter().enumerate().filter_map(entry).collect()
    }

    fn is_settled(&self) -> bool {
        self.unanswered.is_empty()
            && self.missing.is_empty()
            && self.counts.deliveries >= self.acknowledged_entries().len() as u64
            && self.views.compare(&self.models, 1, None)
    }

    fn finish(&mut self) {
        let mut counts = std::mem::take(&mut self.counts);
        counts.unanswered = self.unanswered.len() as u64;
        counts.lost += self.missing.len() as u64;
        counts.deliveries_expected = self.acknowledged_entries().len() as u64;
        self.views.compare(&self.models, 1, Some(&mut counts));
        self.counts = counts;
    }
}
