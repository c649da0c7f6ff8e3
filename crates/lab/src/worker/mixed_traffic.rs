//! The operations beside plain messages (`--mix`): which are due, on whose session each is sent, and what became of them.
//!
//! Receivers edit and recall messages of their own, and as moderators those of others; they react, and say how far they
//! have read. An operation stays with its receiver until it is answered, over as many connections as that takes. There is
//! one conversation.

use super::{receivers::Receivers, sent_messages::SentMessages, verifier::Verifier};
use crate::{
    latency::Latencies,
    mix::{
        REACTION_KEYS,
        counts::MixCounts,
        form::{DeliveredEntry, body_hash},
        member_views::MemberViews,
        model::{Answer, MessageModel},
        operation::{Kind, Operation, REFERENCE_BASE},
    },
    problems::Problems,
    worker_protocol::MixConfig,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::{HashMap, VecDeque};
use tidings_protocol::{entry::Entry, error::ErrorCode};

/// The messages that operations choose from: recent ones, so that each takes several and their windows are open.
const RECENT_MAX: usize = 500;
/// Edits of one message: well below the server's limit.
const EDITS_MAX: usize = 20;
/// How often a choice that is taken is made anew.
const ATTEMPTS: usize = 8;
/// The most operations that are owed: without acknowledged messages there is nothing to change.
const OWED_MAX: f64 = 100.0;
/// The backoff after a retryable refusal.
const REFUSAL_BACKOFF_NS: u64 = 50_000_000;

#[derive(Debug)]
pub(crate) struct MixedTraffic {
    config: MixConfig,
    tag: String,
    conversation: String,
    random: StdRng,
    owed: f64,
    operations: Vec<Operation>,
    /// The first operation of the phase.
    phase_start: usize,
    /// Operations to be sent, again or for the first time.
    queue: VecDeque<u32>,
    backoff_until: u64,
    receivers: HashMap<String, usize>,
    /// Acknowledged messages of the phase, by number and `seq`.
    recent: VecDeque<(u32, u64)>,
    pub(super) models: HashMap<u64, MessageModel>,
    pub(super) views: MemberViews,
    /// By receiver: the newest `seq` that it said it had read, and whether that is acknowledged.
    pub(super) read_marks: Vec<(u64, bool)>,
    /// By receiver: when it asked for what it is being handed; 0: what it is handed comes live.
    asked_at: Vec<u64>,
    unanswered: u64,
    answered: u64,
    acknowledged: Latencies,
    pub(super) counts: MixCounts,
}

impl MixedTraffic {
    pub(crate) fn new(config: MixConfig, tag: &str, conversation: &str, users: Vec<String>) -> Self {
        MixedTraffic {
            random: StdRng::seed_from_u64(config.seed),
            config,
            tag: tag.to_owned(),
            conversation: conversation.to_owned(),
            owed: 0.0,
            operations: Vec::new(),
            phase_start: 0,
            queue: VecDeque::new(),
            backoff_until: 0,
            read_marks: vec![(0, true); users.len()],
            asked_at: vec![0; users.len()],
            receivers: users.into_iter().enumerate().map(|(index, user)| (user, index)).collect(),
            recent: VecDeque::new(),
            models: HashMap::new(),
            views: MemberViews::default(),
            unanswered: 0,
            answered: 0,
            acknowledged: Latencies::default(),
            counts: MixCounts::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.config.per_message > 0.0
    }

    /// Starts a phase: counts begin at 0. Messages of earlier phases keep their models, and are changed no more.
    pub(crate) fn start_phase(&mut self) {
        self.phase_start = self.operations.len();
        self.recent.clear();
        self.queue.clear();
        (self.owed, self.unanswered, self.answered) = (0.0, 0, 0);
        self.acknowledged = Latencies::default();
        self.counts = MixCounts::default();
    }

    /// A plain message was acknowledged: it may be changed from now on.
    pub(crate) fn note_message(&mut self, message: u32, seq: u64) {
        if self.is_on() {
            self.recent.push_back((message, seq));
            if self.recent.len() > RECENT_MAX {
                self.recent.pop_front();
            }
        }
    }

    /// Plans what is due beside one plain message that was planned.
    pub(crate) fn plan(&mut self, now: u64, sent: &SentMessages, verifier: &Verifier) {
        self.owed = (self.owed + self.config.per_message).min(OWED_MAX);
        while self.is_on() && self.owed >= 1.0 {
            let planned = match self.random.random_range(0..100) {
                0..30 => self.plan_edit(now, sent),
                30..40 => self.plan_recall(now, sent),
                40..75 => self.plan_reaction(now, sent),
                _ => self.plan_read(now, verifier),
            };
            if !planned {
                return;
            }
            self.owed -= 1.0;
        }
    }

    /// A recent message and its model, if `wanted` finds it fit.
    fn choose(&mut self, sent: &SentMessages, wanted: impl Fn(&MessageModel) -> bool) -> Option<(u32, u64)> {
        for _ in 0..ATTEMPTS {
            if self.recent.is_empty() {
                return None;
            }
            let (message, seq) = self.recent[self.random.random_range(0..self.recent.len())];
            let model =
                self.models.entry(seq).or_insert_with(|| MessageModel::new(body_hash(&sent.body_text(message))));
            if wanted(model) {
                return Some((message, seq));
            }
        }
        None
    }

    /// Who changes the message: its sender, if the sender is online, or a moderator.
    fn changer(&mut self, sent: &SentMessages, message: u32) -> usize {
        let sender = self.receivers.get(&sent.sender_id(message)).copied();
        match sender.filter(|_| self.random.random_ratio(2, 3)) {
            Some(sender) => sender,
            None => self.random.random_range(0..self.config.moderators),
        }
    }

    fn add(&mut self, kind: Kind, actor: usize, due: u64) {
        self.operations.push(Operation::new(kind, actor, due));
        self.queue.push_back(self.operations.len() as u32 - 1);
        self.unanswered += 1;
    }

    fn plan_edit(&mut self, now: u64, sent: &SentMessages) -> bool {
        let fit = |model: &MessageModel| !model.is_changing() && !model.may_be_recalled() && model.edits() < EDITS_MAX;
        let Some((message, seq)) = self.choose(sent, fit) else { return false };
        let actor = self.changer(sent, message);
        self.add_edit(seq, actor, now);
        true
    }

    fn add_edit(&mut self, seq: u64, actor: usize, now: u64) {
        let body = format!("{{\"text\":\"edit {} of {}\"}}", self.operations.len(), self.tag);
        let Some(model) = self.models.get_mut(&seq) else { return };
        let number = model.begin_edit(body_hash(&body));
        self.add(Kind::Edit { seq, number, body }, actor, now);
    }

    fn plan_recall(&mut self, now: u64, sent: &SentMessages) -> bool {
        let fit = |model: &MessageModel| !model.is_changing() && !model.may_be_recalled();
        let Some((message, seq)) = self.choose(sent, fit) else { return false };
        let actor = self.changer(sent, message);
        // Now and then another member edits the message at the same moment: one of the two is first.
        if self.random.random_ratio(1, 4) {
            let racing = self.random.random_range(0..self.config.moderators);
            self.add_edit(seq, racing, now);
        }
        self.add_recall(seq, actor, now);
        true
    }

    pub(super) fn add_recall(&mut self, seq: u64, actor: usize, now: u64) {
        let Some(model) = self.models.get_mut(&seq) else { return };
        model.begin_recall();
        self.add(Kind::Recall { seq }, actor, now);
    }

    fn plan_reaction(&mut self, now: u64, sent: &SentMessages) -> bool {
        let user = self.random.random_range(0..self.read_marks.len());
        let key = REACTION_KEYS[self.random.random_range(0..REACTION_KEYS.len())];
        let fit = |model: &MessageModel| !model.may_be_recalled() && !model.is_reacting(user, key);
        let Some((_, seq)) = self.choose(sent, fit) else { return false };
        let Some(model) = self.models.get_mut(&seq) else { return false };
        let remove = model.has_given(user, key);
        model.begin_reaction(user, key, remove);
        self.add(Kind::React { seq, key, remove }, user, now);
        true
    }

    fn plan_read(&mut self, now: u64, verifier: &Verifier) -> bool {
        for _ in 0..ATTEMPTS {
            let receiver = self.random.random_range(0..self.read_marks.len());
            let seq = verifier.last_contiguous_seq(receiver);
            let (marked, is_answered) = self.read_marks[receiver];
            if is_answered && seq > marked {
                self.read_marks[receiver] = (seq, false);
                self.add(Kind::Read { seq }, receiver, now);
                return true;
            }
        }
        false
    }

    /// Sends the queued operations whose receivers have a session.
    pub(crate) fn dispatch(&mut self, receivers: &mut impl Receivers, now: u64) {
        if now < self.backoff_until {
            return;
        }
        for _ in 0..self.queue.len() {
            let Some(number) = self.queue.pop_front() else { return };
            let operation = &mut self.operations[number as usize];
            if !receivers.is_live(operation.actor) {
                self.queue.push_back(number);
                continue;
            }
            receivers.expect_answer(operation.actor, number);
            let stored = operation.stored_frame(receivers.cursor(operation.actor));
            self.counts.repeated += u64::from(operation.sends > 0);
            operation.sends += 1;
            let (actor, frame) = (operation.actor, operation.frame(number, &self.tag, &self.conversation));
            receivers.queue_frame(actor, &frame);
            if let Some(stored) = stored {
                self.counts.stored_told += 1;
                receivers.queue_frame(actor, &stored);
            }
        }
    }

    /// The connection of these operations broke before they were answered.
    pub(crate) fn requeue(&mut self, operations: &[u32]) {
        self.queue.extend(operations);
    }

    fn number_of(&self, reference: u64) -> Option<u32> {
        let number = reference.checked_sub(REFERENCE_BASE)?;
        (number < self.operations.len() as u64).then_some(number as u32)
    }

    /// The operation of a reference in an answer.
    pub(crate) fn take_answered(&self, reference: u64, operations: &mut Vec<u32>) -> Option<u32> {
        let number = self.number_of(reference)?;
        let place = operations.iter().position(|other| *other == number)?;
        Some(operations.swap_remove(place))
    }

    /// Records an acknowledgement; `seq` is 0 if the operation has no entry of its own.
    pub(crate) fn acknowledge(&mut self, number: u32, seq: u64, now: u64) {
        let operation = &self.operations[number as usize];
        if operation.delivered_seq != 0 && operation.delivered_seq != seq {
            let what = format!("operation {number}: acknowledged as {seq}, delivered as {}", operation.delivered_seq);
            self.counts.altered += 1;
            self.counts.problems.note(what);
        }
        self.acknowledged.record(operation.due, now);
        *match operation.kind {
            Kind::Edit { .. } => &mut self.counts.edits,
            Kind::Recall { .. } => &mut self.counts.recalls,
            Kind::React { .. } => &mut self.counts.reactions,
            Kind::Read { .. } => &mut self.counts.receipts_accepted,
        } += 1;
        self.answer(number, Answer::Done { at: now, seq });
    }

    /// Records a refusal: the operation is sent again if that may help.
    pub(crate) fn refuse(&mut self, number: u32, retryable: bool, code: ErrorCode, why: &str, now: u64) {
        if retryable {
            self.counts.count_refusal(code.as_str());
            self.backoff_until = now + REFUSAL_BACKOFF_NS;
            return self.queue.push_back(number);
        }
        let seq = self.operations[number as usize].kind.seq();
        let is_overtaken =
            code == ErrorCode::MessageRecalled && self.models.get(&seq).is_some_and(MessageModel::may_be_recalled);
        if is_overtaken {
            self.counts.overtaken += 1;
        } else {
            self.counts.refused += 1;
            self.counts.count_refusal(code.as_str());
            let what = &self.operations[number as usize].kind;
            self.counts.problems.note(format!("{what:?} was refused: {}: {why}", code.as_str()));
        }
        self.answer(number, Answer::Refused);
    }

    fn answer(&mut self, number: u32, answer: Answer) {
        let operation = &mut self.operations[number as usize];
        operation.answer = answer;
        let seq = operation.kind.seq();
        match (&operation.kind, self.models.get_mut(&seq)) {
            (Kind::Read { .. }, _) => self.read_marks[operation.actor].1 = true,
            (Kind::Edit { number, .. }, Some(model)) => model.answer_edit(*number, answer),
            (Kind::Recall { .. }, Some(model)) => model.answer_recall(answer),
            (Kind::React { key, .. }, Some(model)) => model.answer_reaction(operation.actor, key, answer),
            (_, None) => {}
        }
        if number as usize >= self.phase_start {
            self.unanswered -= 1;
            self.answered += 1;
        }
    }

    /// The receiver is handed what it asked for at this time, until [`end_of_answer`](Self::end_of_answer).
    pub(crate) fn begin_answer(&mut self, receiver: usize, asked_at: u64) {
        self.asked_at[receiver] = asked_at;
    }

    pub(crate) fn end_of_answer(&mut self, receiver: usize) {
        self.asked_at[receiver] = 0;
    }

    /// Whether the receiver is being handed an answer, of which every entry must be looked at.
    pub(crate) fn is_answering(&self, receiver: usize) -> bool {
        self.asked_at.get(receiver).is_some_and(|asked_at| *asked_at > 0)
    }

    /// The operation whose own entry has this `client_msg_id`.
    pub(super) fn operation_of(&self, client_msg_id: &str) -> Option<u32> {
        let number = client_msg_id.strip_prefix(self.tag.as_str())?.strip_prefix("-x")?.parse().ok()?;
        (u64::from(number) < self.operations.len() as u64).then_some(number)
    }

    /// Checks an operation's own entry, which no receiver has got before.
    pub(super) fn identify(&mut self, number: u32, entry: &Entry) -> Result<(), String> {
        let operation = &mut self.operations[number as usize];
        if operation.delivered_seq != 0 {
            self.counts.doubled += 1;
            return Err(format!("is the operation that stood at {}", operation.delivered_seq));
        }
        operation.delivered_seq = entry.seq;
        if let Answer::Done { seq, .. } = operation.answer
            && seq != entry.seq
        {
            return Err(format!("was acknowledged as {seq}"));
        }
        self.check_operation(number, entry)
    }

    /// Checks that the operation's own entry is what was asked for.
    pub(super) fn check_operation(&self, number: u32, entry: &Entry) -> Result<(), String> {
        let operation = &self.operations[number as usize];
        if self.receivers.get(entry.from.as_deref().unwrap_or_default()) != Some(&operation.actor) {
            return Err(format!("is an operation of {:?}", entry.from));
        }
        match (&operation.kind, DeliveredEntry::of(entry)?) {
            (Kind::Recall { seq }, DeliveredEntry::Recall { target }) if *seq == target => Ok(()),
            (Kind::Edit { seq, body, .. }, DeliveredEntry::Edit { target, body: handed, .. }) if *seq == target => {
                let model = self.models.get(seq);
                let is_obsolete = model.is_some_and(|model| model.edits() > 1 || model.may_be_recalled());
                if handed == body_hash(body) || (entry.body.get() == "null" && is_obsolete) {
                    Ok(())
                } else {
                    Err(format!("has another body than was sent: {}", entry.body.get()))
                }
            }
            (kind, handed) => Err(format!("is {handed:?} instead of {kind:?}")),
        }
    }

    /// Checks what a receiver is handed of a message or of reactions.
    pub(super) fn check_handed(&mut self, receiver: usize, seq: u64, handed: &DeliveredEntry) -> Result<(), String> {
        let asked_at = self.asked_at.get(receiver).copied().unwrap_or(0);
        let form = match handed {
            DeliveredEntry::Message(form) => form,
            DeliveredEntry::Reactions(changes) if changes.keys().any(|seq| !self.models.contains_key(seq)) => {
                return Err("changes the reactions of a message that nobody reacted to".into());
            }
            _ => return Ok(()),
        };
        let Some(model) = self.models.get(&seq) else {
            let is_changed = form.version != 1 || form.is_recalled || !form.reactions.is_empty();
            return if is_changed { Err("was changed by nobody".into()) } else { Ok(()) };
        };
        model.check_handed(form, asked_at).map_err(|fault| {
            self.counts.count(&fault, &format!("receiver {receiver}: message {seq}"));
            fault.what
        })
    }

    pub(super) fn record_delivery(&mut self, number: u32) {
        if number as usize >= self.phase_start {
            self.counts.deliveries += 1;
        }
    }

    pub(crate) fn record_receipts(&mut self, seen: u64) {
        self.counts.receipts_seen += seen;
    }

    /// Operations that hold the closed loop's window: those that are not answered yet.
    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// Grows with every answer and delivery.
    pub(crate) fn progress(&self) -> u64 {
        self.answered + self.counts.deliveries
    }

    /// Entries of edits and recalls that the receivers must get in this phase.
    fn deliveries_expected(&self) -> u64 {
        let has_entry = |operation: &&Operation| {
            let is_done = matches!(operation.answer, Answer::Done { seq, .. } if seq > 0);
            is_done || operation.delivered_seq > 0
        };
        (self.operations[self.phase_start..].iter().filter(has_entry).count() * self.read_marks.len()) as u64
    }

    /// Whether every operation is answered, and every view agrees with the models.
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_on()
            || (self.unanswered == 0
                && self.counts.deliveries >= self.deliveries_expected()
                && self.views.compare(&self.models, self.read_marks.len(), None))
    }

    /// Counts the faults of the views at the end of a phase.
    pub(crate) fn finish_phase(&mut self) {
        let mut counts = std::mem::take(&mut self.counts);
        counts.unanswered = self.unanswered;
        counts.deliveries_expected = self.deliveries_expected();
        counts.acknowledged = self.acknowledged.percentiles();
        self.views.compare(&self.models, self.read_marks.len(), Some(&mut counts));
        self.counts = counts;
    }

    /// The counts of the phase, if there is a mix.
    pub(crate) fn take_counts(&mut self) -> Option<MixCounts> {
        self.is_on().then(|| std::mem::take(&mut self.counts))
    }

    /// The edits and recalls that were acknowledged.
    pub(super) fn acknowledged_entries(&self) -> Vec<u32> {
        let has_entry =
            |(_, operation): &(usize, &Operation)| matches!(operation.answer, Answer::Done { seq, .. } if seq > 0);
        self.operations.iter().enumerate().filter(has_entry).map(|(number, _)| number as u32).collect()
    }

    /// A message of the phase that some receivers have read and others have not: its sender and `seq`.
    pub(super) fn median_mark(&self, sent: &SentMessages) -> Option<(String, u64)> {
        let mut marks: Vec<u64> = self.read_marks.iter().map(|(marked, _)| *marked).collect();
        marks.sort_unstable();
        let median = *marks.get(marks.len() / 2)?;
        let is_known = self.read_marks.iter().all(|(_, is_answered)| *is_answered);
        let (message, seq) = self.recent.iter().min_by_key(|(_, seq)| seq.abs_diff(median)).filter(|_| is_known)?;
        Some((sent.sender_id(*message), *seq))
    }

    pub(super) fn user_of(&self, receiver: usize) -> &str {
        self.receivers.iter().find(|(_, index)| **index == receiver).map_or("", |(user, _)| user)
    }

    pub(super) fn conversation(&self) -> &str {
        &self.conversation
    }
}
