//! What waits for the hook's say before it goes to the committer's queues.
//!
//! ```text
//! submit ── bounded queues ──▶ a request at a time, up to `requests_max` ──▶ hook ── answer ──▶ lines ──▶ commit queues
//! ```
//! Nobody waits here with a thread: a caller waits for its reply, as it does for the commit. A question holds no slot of a lane, and
//! its queues are not those of the committer, so that a slow hook takes no room from what it is not asked about. What waits while
//! requests are under way goes together in the next one.
//!
//! Answers may overtake each other, and what needs none would overtake what waits. So each sender has a line of what it has
//! submitted, which leaves from its front only.

mod answers;
mod questions;

use super::{
    CommitRequest, Intake, Origin,
    queue::{BatchLimits, CommitQueue, OPERATIONS, QUEUES, TakeOutcome},
    replies::ReplyBatch,
    size_of_proposal,
};
use crate::{
    access::check_not_suspended,
    directory::Directory,
    fairness::{AdmissionError, FlowKey},
    hook::{HookCall, HookConfig, HookOperation},
    shards::Shards,
    streams::Streams,
    worker_thread::WorkerThread,
};
use answers::Answer;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Instant,
};
use tidings_domain::{
    clock::Clock,
    failure_log::FailureLog,
    gates::{Gate, OpenGates},
    metrics::Metrics,
    model::*,
    refusals::store_refusal,
    store::{MemberAct, MessageChange, Proposal, Store},
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::Notify;

/// Bytes of bodies after which a request to the hook is closed.
const CALL_BYTES_MAX: usize = 1024 * 1024;
/// When a caller may try again whom the hook could not be asked for.
const RETRY_AFTER_MS: u64 = 1_000;

/// What [`Hook::start`] needs.
pub(super) struct HookParts {
    pub config: HookConfig,
    pub intake: Intake,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub directory: Arc<Directory>,
    pub shards: Arc<Shards>,
    pub streams: Arc<Streams>,
    pub metrics: Arc<Metrics>,
    pub gates: Arc<OpenGates>,
}

/// The line of a sender in one queue.
type LineKey = (usize, FlowKey);

/// A request that the hook is asked about.
struct Question {
    /// Names it to the hook, and its place in its line.
    id: u64,
    operation: HookOperation,
    request: CommitRequest,
    line: LineKey,
    /// The request holds a slot of its lane when it goes on.
    takes_slot: bool,
    since: Instant,
}

/// A request whose question is answered, and what the answer is.
type Answered = (Question, Result<(), Refusal>);

/// A place in a line; without a request while that waits for its answer.
struct Place {
    id: u64,
    answered: Option<Box<Answered>>,
}

#[derive(Default)]
struct Lines {
    lines: FxHashMap<LineKey, VecDeque<Place>>,
    last_id: u64,
}

pub(super) struct Hook {
    parts: HookParts,
    queue: CommitQueue<Question>,
    lines: Mutex<Lines>,
    /// Notified when all lines are empty.
    idle: Notify,
    /// One for each request that may be under way.
    permits: (Sender<()>, Receiver<()>),
    failures: FailureLog,
    thread: OnceLock<WorkerThread>,
}

/// Allows one request to be under way, until it is dropped.
struct Permit(Sender<()>);

impl Drop for Permit {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

/// What the hook may be asked about a proposal.
fn operation_of(proposal: &Proposal) -> Option<HookOperation> {
    match proposal {
        Proposal::Append { .. } | Proposal::OpenDirect { .. } => Some(HookOperation::Send),
        Proposal::ChangeMessage { change: MessageChange::Edit { .. } | MessageChange::EndStream { .. }, .. } => {
            Some(HookOperation::Edit)
        }
        Proposal::React { add: true, .. } => Some(HookOperation::React),
        Proposal::CreateConversation(_) => Some(HookOperation::Create),
        // A mute, a ban, an invite and a request change no member, or are a moderator's say.
        Proposal::ChangeMembers { add, remove, heir, act, .. } => {
            let is_of_moderators = matches!(act.as_deref(), Some(MemberAct::Restrict { .. }));
            let changes = !add.is_empty() || !remove.is_empty() || heir.is_some();
            (changes && !is_of_moderators).then_some(HookOperation::Members)
        }
        Proposal::UpdateConversation { .. } | Proposal::PutUsers(_) => Some(HookOperation::Profile),
        // What takes something back, what a user keeps for itself, what accounts do, and what the server records.
        Proposal::ChangeMessage {
            change: MessageChange::Recall | MessageChange::Expire | MessageChange::Pin { .. },
            ..
        }
        | Proposal::React { add: false, .. }
        | Proposal::SetDesk { .. }
        | Proposal::Erase(_)
        | Proposal::SetLegalHold { .. }
        | Proposal::Assign { .. }
        | Proposal::MarkRead { .. }
        | Proposal::SetMute { .. }
        | Proposal::SetPreferences { .. }
        | Proposal::SetDoNotDisturb { .. }
        | Proposal::SetReceipts { .. }
        | Proposal::SetSuspension { .. }
        | Proposal::SetBlock { .. }
        | Proposal::Report { .. }
        | Proposal::SetReport { .. }
        | Proposal::SetNotificationPreferences { .. }
        | Proposal::SetPushToken { .. }
        | Proposal::Kick { .. }
        | Proposal::Revoke { .. }
        | Proposal::TellReactions { .. }
        | Proposal::CheckpointStream { .. }
        | Proposal::SetStored(_)
        | Proposal::SetLastSeen(_)
        | Proposal::SetNotificationCounts(_)
        | Proposal::SetApiKeyUse(_)
        | Proposal::AddFeedNotes(_)
        | Proposal::AdvanceOutbox { .. }
        | Proposal::DeleteStoredNotifications { .. } => None,
    }
}

/// The kind of the conversation that a request is about.
fn kind_of(request: &CommitRequest) -> Option<ConversationKind> {
    match (&request.proposal, &request.conversation) {
        (Proposal::CreateConversation(new), _) => Some(new.kind),
        (_, conversation) => conversation.as_ref().map(|conversation| conversation.kind),
    }
}

impl Hook {
    pub(super) fn start(parts: HookParts) -> Arc<Hook> {
        let requests_max = parts.config.requests_max.max(1);
        let permits = bounded(requests_max);
        (0..requests_max).for_each(|_| drop(Permit(permits.0.clone())));
        let hook = Arc::new(Hook {
            queue: CommitQueue::new(parts.config.waiting_max, 1),
            parts,
            lines: Mutex::default(),
            idle: Notify::new(),
            permits,
            failures: FailureLog::new(
                "the hook fails; what it is asked about is allowed or refused as [hook] closed says",
            ),
            thread: OnceLock::new(),
        });
        let worker = hook.clone();
        let _ = hook.thread.set(WorkerThread::start("hook", 1, move |_| worker.run()));
        hook
    }

    /// What the hook is to be asked about this request, if anything. A request that may only be a retry stores nothing new.
    pub(super) fn is_asked(&self, request: &CommitRequest) -> Option<HookOperation> {
        let asks = match request.by {
            Origin::User(_) => true,
            Origin::AppServer => self.parts.config.app_servers,
            Origin::Server => false,
        };
        if !asks || entry_of(&request.proposal).is_some_and(|entry| entry.request.refusal.is_some()) {
            return None;
        }
        let (operation, kind) = (operation_of(&request.proposal)?, kind_of(request));
        let opens = matches!(request.proposal, Proposal::OpenDirect { .. }).then_some(HookOperation::Create);
        [Some(operation), opens].into_iter().flatten().find(|operation| self.parts.config.on.has(*operation, kind))
    }

    /// Has a request wait for the hook's answer.
    ///
    /// # Errors
    /// `queue_full`, `draining`; `hook_unavailable`: no more questions can wait, and the operation is refused then. The request and
    /// its reply are dropped: the caller must answer.
    pub(super) fn submit(&self, operation: HookOperation, mut request: CommitRequest) -> Result<(), Refusal> {
        let takes_slot = request.slot.take().is_some();
        let lane =
            request.conversation.as_ref().filter(|_| takes_slot).map(|conversation| conversation.lane() as usize);
        let line = (lane.unwrap_or(OPERATIONS), request.flow_key);
        let bytes = size_of_proposal(&request.proposal);
        let since = self.parts.clock.monotonic();
        let mut state = self.lines.lock();
        state.last_id += 1;
        let id = state.last_id;
        let mut question = Some(Question { id, operation, request, line, takes_slot, since });
        let places = |state: &Lines| state.lines.get(&line).map_or(0, VecDeque::len);
        let admitted = match self.queue.put(line.0, line.1, bytes, &mut question) {
            Err(AdmissionError::Full) if places(&state) > self.queue.limit() => {
                Err(AdmissionError::ShareExceeded { held: places(&state) })
            }
            admitted => admitted,
        };
        match (admitted, question) {
            (Ok(()), _) => state.lines.entry(line).or_default().push_back(Place { id, answered: None }),
            (Err(AdmissionError::Full), Some(question)) => {
                let answered = self.judge(question, Err("too many questions wait for it".into()));
                answered.1.clone()?;
                match state.lines.get_mut(&line) {
                    Some(places) => places.push_back(Place { id, answered: Some(Box::new(answered)) }),
                    None => return self.pass(&mut Some(answered.0)),
                }
            }
            (Err(why), _) => return Err(super::admission_refusal(why, "the queue for the hook")),
        }
        Ok(())
    }

    fn run(self: Arc<Self>) {
        let (proposals, bytes) = (self.parts.config.batch_max.max(1), CALL_BYTES_MAX);
        let limits = BatchLimits { proposals, bytes, bulk_proposals: proposals, bulk_bytes: bytes };
        while self.permits.1.recv().is_ok() {
            let permit = Permit(self.permits.0.clone());
            let mut questions = Vec::new();
            match self.queue.take(limits, None, |taken| questions.push(taken.work)) {
                TakeOutcome::Taken | TakeOutcome::TimedOut => self.ask(questions, permit),
                TakeOutcome::Stopped => break,
            }
        }
        // What is under way is answered before the committer stops.
        for _ in 0..self.parts.config.requests_max.max(1) {
            let _ = self.permits.1.recv();
        }
    }

    /// Asks the hook, but for questions that are too old, and for retries of what is stored.
    fn ask(self: &Arc<Self>, questions: Vec<Question>, permit: Permit) {
        let now = self.parts.clock.monotonic();
        let is_late =
            |question: &Question| now.saturating_duration_since(question.since) > self.parts.config.time_limit;
        let (late, questions): (Vec<_>, Vec<_>) = questions.into_iter().partition(is_late);
        let late = late.into_iter().map(|question| self.judge(question, Err("it was not asked in time".into())));
        self.settle(late.collect());
        let (retries, questions) = self.without_retries(questions);
        self.settle(retries);
        if questions.is_empty() {
            return;
        }
        self.parts.metrics.hook_asked.inc_by(questions.len() as u64);
        let body = questions::encode(&questions, &self.parts.directory);
        let (hook, began) = (self.clone(), Instant::now());
        let on_answer = Box::new(move |answer| {
            hook.parts.metrics.hook_seconds.observe(began.elapsed().as_secs_f64());
            hook.on_answer(questions, answer);
            drop(permit);
        });
        self.parts.config.transport.send(HookCall::new(body, on_answer));
    }

    /// The retries of what is stored, which get the first result without a question; and the other questions.
    fn without_retries(&self, questions: Vec<Question>) -> (Vec<Answered>, Vec<Question>) {
        let requests: Vec<_> = questions.iter().map(|question| request_of(&question.request.proposal)).collect();
        let with_id: Vec<_> = requests.iter().flatten().copied().collect();
        if with_id.is_empty() {
            return (Vec::new(), questions);
        }
        // A store that cannot be read refuses the commit, too.
        let mut stored = self.parts.store.are_stored(&with_id).unwrap_or_default().into_iter();
        let is_retry: Vec<bool> =
            requests.iter().map(|request| request.is_some() && stored.next().unwrap_or(false)).collect();
        let mut is_retry = is_retry.into_iter();
        let (retries, questions): (Vec<_>, Vec<_>) =
            questions.into_iter().partition(|_| is_retry.next().unwrap_or(false));
        let retry = |mut question: Question| {
            // Its first result may be removed before the commit looks for it.
            if let Some(entry) = entry_of_mut(&mut question.request.proposal) {
                entry.request.refusal = Some(Box::new(unavailable("the first result of this request is gone")));
            }
            (question, Ok(()))
        };
        (retries.into_iter().map(retry).collect(), questions)
    }

    fn on_answer(&self, questions: Vec<Question>, answer: Result<Vec<u8>, String>) {
        let ids: Vec<u64> = questions.iter().map(|question| question.id).collect();
        let answers = answer.and_then(|answer| answers::read(&answer, &ids));
        self.failures.note(&answers);
        let answered = match answers {
            Ok(answers) => {
                questions.into_iter().zip(answers).map(|(question, answer)| self.judge(question, answer)).collect()
            }
            Err(why) => questions.into_iter().map(|question| self.judge(question, Err(why.clone()))).collect(),
        };
        self.settle(answered);
    }

    /// What becomes of a request by the hook's answer; without a good one, by what is set for that.
    fn judge(&self, mut question: Question, answer: Result<Answer, String>) -> Answered {
        let Question { operation, request, .. } = &mut question;
        let (operation, metrics) = (*operation, &self.parts.metrics);
        let judged = answer.and_then(|answer| match answer {
            Answer::Hide if !self.parts.gates.is_open(Gate::MessageHook) => {
                Err("messages can be hidden once all nodes run a version that knows it".into())
            }
            answer => answers::apply(answer, request),
        });
        let result = match judged {
            Ok(answers::Applied::Allowed) => {
                metrics.hook_allowed.inc();
                Ok(())
            }
            Ok(answers::Applied::Replaced) => {
                metrics.hook_replaced.inc();
                Ok(())
            }
            Ok(answers::Applied::Hidden) => {
                metrics.hook_hidden.inc();
                Ok(())
            }
            Ok(answers::Applied::Refused(refusal)) => {
                metrics.hook_refused.inc();
                Err(refusal)
            }
            Err(why) => {
                metrics.hook_failed.inc();
                tracing::debug!(operation = operation.name(), why, "the hook has failed");
                let is_closed = self.parts.config.closed.has(operation, kind_of(request));
                if is_closed { Err(unavailable(&why)) } else { Ok(()) }
            }
        };
        let result = result.and_then(|()| self.check_again(request));
        (question, result)
    }

    /// While the app server was asked, the user may have been suspended or erased, and the conversation deleted.
    fn check_again(&self, request: &CommitRequest) -> Result<(), Refusal> {
        let directory = &self.parts.directory;
        let by = if let Origin::User(user) = request.by { Some(user) } else { None };
        let author = entry_of(&request.proposal).and_then(|entry| Some(entry.author()?.no));
        for user in by.into_iter().chain(author.filter(|author| Some(*author) != by)) {
            if let Some(user) = directory.user(user).map_err(store_refusal)? {
                check_not_suspended(&user, self.parts.clock.now_ms())?;
            }
        }
        let Some(conversation) = &request.conversation else { return Ok(()) };
        let now = directory.conversation(conversation.no).map_err(store_refusal)?;
        now.map_or(Ok(()), |now| super::check_open(&now, &request.proposal))
    }

    /// Takes answers to their places in the lines, and passes on what is in front.
    fn settle(&self, answered: Vec<Answered>) {
        if answered.is_empty() {
            return;
        }
        let mut refused = Vec::new();
        let mut state = self.lines.lock();
        for answered in answered {
            let (line, id) = (answered.0.line, answered.0.id);
            let Some(places) = state.lines.get_mut(&line) else { continue };
            if let Ok(at) = places.binary_search_by_key(&id, |place| place.id) {
                places[at].answered = Some(Box::new(answered));
            }
            while let Some(Place { answered: Some(_), .. }) = places.front() {
                let Some(answered) = places.pop_front().and_then(|place| place.answered) else { continue };
                let (question, result) = *answered;
                let mut question = Some(question);
                if let Err(refusal) = result.and_then(|()| self.pass(&mut question)) {
                    refused.extend(question.map(|question| (question.request, refusal)));
                }
            }
            if places.is_empty() {
                state.lines.remove(&line);
            }
        }
        if state.lines.is_empty() {
            self.idle.notify_waiters();
        }
        drop(state);
        // Not under the lock: a reply may wait for a shard, which submits.
        let mut replies = ReplyBatch::new(&self.parts.shards);
        for (CommitRequest { proposal, reply, .. }, refusal) in refused {
            self.parts.streams.on_failure(&proposal);
            replies.answer(reply, Err(refusal), None);
        }
        replies.send();
    }

    /// Hands a request to the committer; one that is refused is left where it was.
    fn pass(&self, question: &mut Option<Question>) -> Result<(), Refusal> {
        let Some(Question { request, takes_slot, .. }) = question.as_mut() else { return Ok(()) };
        if *takes_slot && let Some(conversation) = &request.conversation {
            request.slot = Some(self.parts.intake.reserve(conversation, request.flow_key)?);
        }
        let Some(Question { id, operation, request, line, takes_slot, since }) = question.take() else { return Ok(()) };
        let mut request = Some(request);
        let passed = self.parts.intake.put(&mut request);
        *question = request.map(|request| Question { id, operation, request, line, takes_slot, since });
        passed
    }

    /// Waits until every question is answered.
    pub(super) async fn answered(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.lines.lock().lines.is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Takes no more questions, and waits until those that it has are answered.
    pub(super) fn stop(&self) {
        self.queue.stop();
        if let Some(thread) = self.thread.get() {
            thread.stop();
        }
    }

    pub(super) fn set_queue_gauges(&self, metrics: &Metrics) {
        let depth = self.lines.lock().lines.values().map(VecDeque::len).sum();
        metrics.set_queue("hook", depth, self.queue.limit() * QUEUES);
    }
}

/// The refusal of an operation about which the hook could not be asked.
fn unavailable(why: &str) -> Refusal {
    let detail = format!("the app server's hook gave no answer ({why}); nothing was stored");
    Refusal::new(ErrorCode::HookUnavailable, detail).retry_after(RETRY_AFTER_MS)
}

/// The entry that a proposal appends for its author.
fn entry_of(proposal: &Proposal) -> Option<&NewEntry> {
    match proposal {
        Proposal::Append { entry, .. } | Proposal::OpenDirect { entry, .. } | Proposal::ChangeMessage { entry, .. } => {
            Some(entry)
        }
        _ => None,
    }
}

fn entry_of_mut(proposal: &mut Proposal) -> Option<&mut NewEntry> {
    match proposal {
        Proposal::Append { entry, .. } | Proposal::OpenDirect { entry, .. } | Proposal::ChangeMessage { entry, .. } => {
            Some(entry)
        }
        _ => None,
    }
}

/// What the first result of a request is kept by, if it may have one.
fn request_of(proposal: &Proposal) -> Option<(ConversationNo, UserNo, &str)> {
    let (Proposal::Append { conversation, entry } | Proposal::ChangeMessage { conversation, entry, .. }) = proposal
    else {
        return None;
    };
    entry.idempotency_key().map(|(author, id)| (*conversation, author, id))
}
