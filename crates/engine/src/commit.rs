//! The committer: gathers the proposals that arrived during the last fsync, commits them as one batch, answers their callers, and
//! hands the entries to the lanes. Where a store commits in several orders, each has queues and a thread of its own.
//!
//! ```text
//! accept ── bounded queues ──▶ gather ─▶ store.commit (one fsync) ─▶ caches ─▶ answers ─▶ hub.publish
//! ```
//! Proposals are gathered in fair turns, by lane and by sender ([`queue`]): a flood fills only its own share.
//!
//! Where the app server has a say before it ([`hook`]), a proposal waits for the answer before it is queued.
//!
//! A proposal that writes a timeline holds a slot of its lane from before the commit to the end of
//! stage 1: a full lane refuses senders early, and nothing is dropped after the commit.

mod hook;
mod openings;
mod queue;
mod replies;

use crate::{
    directory::Directory,
    fairness::{AdmissionError, FlowKey},
    hook::HookConfig,
    hub::{Batch, BatchItem, Hub},
    lanes::{LaneSlot, Lanes},
    send_limiter::{SendLimiter, is_told},
    shards::Shards,
    streams::{NewStream, Streams},
};
use hook::{Hook, HookParts};
use openings::follow_opened;
use parking_lot::Mutex;
use queue::{BatchLimits, CommitQueue, OPERATIONS, QUEUES, TakeOutcome, Taken};
pub(crate) use replies::receipt;
use replies::{ReplyBatch, lane_item};
use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_domain::{
    clock::Clock,
    commit_log::Change,
    end_reason::required,
    gates::OpenGates,
    metrics::Metrics,
    model::*,
    refusals::{STORE_RETRY_AFTER_MS, proposal_refusal, store_refusal},
    store::*,
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::oneshot::{self, error::RecvError};

/// Bytes of bodies after which a batch is closed: bounds one commit's memory and time.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The limits for bulk in a batch while direct messages are being sent by users who do not flood. A direct message waits for
/// the running commit and for its own, so that both must be short: the bulk of a batch may take about as long as the fsync
/// takes, or on PostgreSQL the round trips.
const BULK_PROPOSALS_BESIDE_DIRECT: RangeInclusive<usize> = 16..=128;
const BULK_BYTES_BESIDE_DIRECT: usize = 256 * 1024;
/// About what one proposal costs the committer. With bodies of 200 bytes the CPU time of its thread, in `/proc/PID/task`
/// during `tidings bench group --rate max`, was 9 to 14 microseconds a message.
const PROPOSAL_COST: Duration = Duration::from_micros(10);
/// The weight of the newest commit in the average time of an fsync.
const FSYNC_TIME_WEIGHT: f64 = 0.1;
/// How long after a direct message more of them are expected.
const DIRECT_ACTIVE_FOR: Duration = Duration::from_secs(1);
/// When a refused sender may try again: a few commits later.
const RETRY_AFTER_MS: u64 = 100;
/// How often the store is probed after a failed commit while no proposal comes: a node that is not ready gets none, and
/// would never find out that its store is back.
const STORE_PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The receiver of an outcome.
pub(crate) enum Reply {
    /// An HTTP request or a command of ours.
    Caller(oneshot::Sender<Result<Outcome, Refusal>>),
    /// A session of this node; its shard writes the answer.
    Session { shard: usize, session: u64, reference: Option<u64> },
}

/// Who asks for what a proposal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A user, by token.
    User(UserNo),
    AppServer,
    /// The server itself, which goes on with what was accepted before.
    Server,
}

impl Origin {
    pub(crate) fn of(actor: &Actor) -> Origin {
        actor.user().map_or(Origin::AppServer, |user| Origin::User(user.person()))
    }
}

/// A proposal on its way to the committer.
pub(crate) struct CommitRequest {
    pub proposal: Proposal,
    pub by: Origin,
    /// The flow whose share of the queue it takes.
    pub flow_key: FlowKey,
    /// The conversation whose timeline or membership it changes, if any.
    pub conversation: Option<Arc<Conversation>>,
    pub reply: Reply,
    pub slot: Option<LaneSlot>,
    /// Set for a message that grows.
    pub stream: Option<Box<NewStream>>,
}

/// An outcome that a thread waits for.
pub(crate) struct PendingOutcome(oneshot::Receiver<Result<Outcome, Refusal>>);

impl PendingOutcome {
    /// Blocks until the commit; a rejection is an outcome.
    pub(crate) fn wait(self) -> Result<Outcome, Refusal> {
        self.0.blocking_recv().map_err(|_| Refusal::new(ErrorCode::Internal, "the committer ended"))?
    }
}

/// What [`Committer::start`] needs.
pub(crate) struct CommitterParts {
    /// Places of each queue.
    pub queue_limit: usize,
    /// Most proposals in one commit.
    pub batch_max: usize,
    /// How many commits run side by side. One, where nodes are told of commits in the order in which they are made.
    pub orders: Orders,
    /// While a commit takes longer than this, new proposals are refused.
    pub commit_time_max: Duration,
    /// The rate of each user's proposals that others are notified of.
    pub rate: SendLimiter,
    /// Absent: nobody is asked before a commit.
    pub hook: Option<HookConfig>,
    pub gates: Arc<OpenGates>,
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub directory: Arc<Directory>,
    pub hub: Arc<dyn Hub>,
    pub lanes: Arc<Lanes>,
    pub shards: Arc<Shards>,
    pub streams: Arc<Streams>,
    pub metrics: Arc<Metrics>,
}

pub(crate) struct Committer {
    rate: SendLimiter,
    intake: Intake,
    hook: Option<Arc<Hook>>,
    metrics: Arc<Metrics>,
    /// One for each order.
    lines: Vec<Line>,
}

/// The commits of one order.
struct Line {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Milliseconds since 1970 of the last failed commit; 0 after a good one.
    failing_since: Arc<AtomicU64>,
    watchdog: Arc<CommitWatchdog>,
}

impl Line {
    fn readiness(&self) -> Result<(), String> {
        if self.thread.lock().as_ref().is_none_or(JoinHandle::is_finished) {
            return Err("the committer has ended".into());
        }
        if let Some(ran) = self.watchdog.overdue() {
            return Err(format!("a commit has waited for {} s", ran.as_secs()));
        }
        match self.failing_since.load(Ordering::Relaxed) {
            0 => Ok(()),
            since => Err(format!("commits have failed since {since}")),
        }
    }
}

/// The way to the committer's queues.
#[derive(Clone)]
struct Intake {
    /// One for each order.
    queues: Arc<[CommitQueue<CommitRequest>]>,
    orders: Orders,
    lanes: Arc<Lanes>,
}

impl Intake {
    /// The place of the queue, and of the line, that a proposal belongs to.
    fn line_of(&self, proposal: &Proposal) -> usize {
        usize::from(self.orders.of(proposal))
    }

    fn reserve(&self, conversation: &Conversation, flow_key: FlowKey) -> Result<LaneSlot, Refusal> {
        let lane = conversation.lane();
        self.lanes.reserve(lane, flow_key).map_err(|why| admission_refusal(why, &format!("the {} lane", lane.name())))
    }

    /// Queues a request; one that is refused is left where it was.
    fn put(&self, request: &mut Option<CommitRequest>) -> Result<(), Refusal> {
        let Some(CommitRequest { proposal, flow_key, slot, conversation, .. }) = request else { return Ok(()) };
        // A read mark goes to the user's own devices and takes no lane.
        let lane = slot.as_ref().and(conversation.as_ref()).map(|conversation| conversation.lane());
        let queue = lane.map_or(OPERATIONS, |lane| lane as usize);
        let (flow_key, bytes) = (*flow_key, size_of_proposal(proposal));
        self.queues[self.line_of(proposal)].put(queue, flow_key, bytes, request).map_err(|why| {
            let queue = lane.map_or("operations", Lane::name);
            admission_refusal(why, &format!("the {queue} commit queue"))
        })
    }
}

/// Detects a commit that takes too long. `since` is when the running commit began, in milliseconds after `base` and
/// plus 1; 0 while none runs.
struct CommitWatchdog {
    time_max: Duration,
    base: Instant,
    since: AtomicU64,
}

impl CommitWatchdog {
    fn begin(&self) {
        self.since.store(self.base.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// How long the running commit has run, if that is too long.
    fn overdue(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        let ran = self.base.elapsed().saturating_sub(Duration::from_millis(since));
        (ran > self.time_max).then_some(ran)
    }
}

impl Committer {
    pub(crate) fn start(parts: CommitterParts) -> Committer {
        let CommitterParts {
            queue_limit,
            batch_max,
            orders,
            commit_time_max,
            rate,
            hook,
            gates,
            store,
            clock,
            directory,
            hub,
            lanes,
            shards,
            streams,
            metrics,
        } = parts;
        let count = usize::from(orders.count());
        let queues: Arc<[_]> = (0..count).map(|_| CommitQueue::new(queue_limit, count)).collect();
        let intake = Intake { queues: queues.clone(), orders, lanes };
        let hook = hook.map(|config| {
            Hook::start(HookParts {
                config,
                intake: intake.clone(),
                store: store.clone(),
                clock: clock.clone(),
                directory: directory.clone(),
                shards: shards.clone(),
                streams: streams.clone(),
                metrics: metrics.clone(),
                gates,
            })
        });
        let start_line = |order| {
            let failing_since = Arc::new(AtomicU64::new(0));
            let watchdog =
                Arc::new(CommitWatchdog { time_max: commit_time_max, base: Instant::now(), since: AtomicU64::new(0) });
            let worker = Worker {
                order,
                orders,
                queues: queues.clone(),
                batch_max,
                store: store.clone(),
                clock: clock.clone(),
                directory: directory.clone(),
                hub: hub.clone(),
                shards: shards.clone(),
                streams: streams.clone(),
                metrics: metrics.clone(),
                failing_since: failing_since.clone(),
                watchdog: watchdog.clone(),
            };
            let thread = std::thread::Builder::new().name("committer".into()).spawn(move || worker.run());
            Line { thread: Mutex::new(Some(required("committer", thread))), failing_since, watchdog }
        };
        let lines = (0..orders.count()).map(start_line).collect();
        Committer { rate, intake, hook, metrics, lines }
    }

    /// Queues a request without waiting. Here, and nowhere else, what others are notified of takes a send from its user's rate, is
    /// asked of the hook, and is kept from a conversation whose history is being imported.
    ///
    /// # Errors
    /// `conversation_importing`, `conversation_deleted`, `rate_limited`, `queue_full`, `store_unavailable` or `draining`. The request and its reply are dropped: the caller must answer.
    pub(crate) fn submit(&self, request: CommitRequest) -> Result<(), Refusal> {
        if let Some(ran) = self.lines[self.intake.line_of(&request.proposal)].watchdog.overdue() {
            let detail = format!("the store has not answered for {} s; nothing of this was stored", ran.as_secs());
            return Err(Refusal::new(ErrorCode::StoreUnavailable, detail).retry_after(STORE_RETRY_AFTER_MS));
        }
        if let Some(conversation) = &request.conversation {
            check_open(conversation, &request.proposal)?;
        }
        if let Origin::User(user) = request.by
            && is_told(&request.proposal)
        {
            self.rate.check(user)?;
        }
        if let Some(hook) = &self.hook
            && let Some(operation) = hook.is_asked(&request)
        {
            return hook.submit(operation, request);
        }
        self.intake.put(&mut Some(request))
    }

    /// Reserves a slot of the conversation's lane.
    ///
    /// # Errors
    /// `queue_full`: the lane is full, or the flow's share of it.
    pub(crate) fn reserve(&self, conversation: &Conversation, flow_key: FlowKey) -> Result<LaneSlot, Refusal> {
        self.intake.reserve(conversation, flow_key)
    }

    /// Commits one proposal of a caller; the outcome is durable. `conversation` is the one whose timeline or members it
    /// changes, so that its live members learn of it.
    ///
    /// # Errors
    /// `rate_limited` for users; `queue_full`, `store_unavailable`, `draining`, or the refusal of the rejected proposal.
    pub(crate) async fn propose(
        &self,
        actor: &Actor,
        conversation: Option<&Arc<Conversation>>,
        proposal: Proposal,
    ) -> Result<Outcome, Refusal> {
        let by = Origin::of(actor);
        let flow_key = match by {
            Origin::User(user) => FlowKey::User(user),
            Origin::AppServer | Origin::Server => flow_of(&proposal),
        };
        let slot = conversation.map(|conversation| self.reserve(conversation, flow_key)).transpose()?;
        self.commit(CommitRequest::of(by, proposal, flow_key, conversation.cloned(), slot)).await
    }

    /// Commits a proposal that no other user is notified of: it takes no rate and no lane. `conversation`: as above.
    ///
    /// # Errors
    /// `queue_full`, `store_unavailable`, `draining`, or the refusal of the rejected proposal.
    pub(crate) async fn propose_untold(
        &self,
        conversation: Option<&Arc<Conversation>>,
        proposal: Proposal,
    ) -> Result<Outcome, Refusal> {
        debug_assert!(!is_told(&proposal), "{proposal:?}");
        let flow_key = flow_of(&proposal);
        self.commit(CommitRequest::of(Origin::Server, proposal, flow_key, conversation.cloned(), None)).await
    }

    /// Commits such proposals together: all are submitted before the first is waited for, so that they share batches.
    ///
    /// # Errors
    /// As above, of the first that fails; the others may be committed.
    pub(crate) async fn propose_all_untold(
        &self,
        proposals: Vec<(Option<Arc<Conversation>>, Proposal)>,
    ) -> Result<(), Refusal> {
        let mut answers = Vec::with_capacity(proposals.len());
        let mut refused = Ok(());
        for (conversation, proposal) in proposals {
            debug_assert!(!is_told(&proposal), "{proposal:?}");
            let flow_key = flow_of(&proposal);
            let (request, answer) = CommitRequest::of(Origin::Server, proposal, flow_key, conversation, None);
            match self.submit(request) {
                Ok(()) => answers.push(answer),
                Err(refusal) => {
                    refused = Err(refusal);
                    break;
                }
            }
        }
        for answer in answers {
            refused = refused.and(outcome_of(answer.await).map(drop));
        }
        refused
    }

    /// Queues a proposal of an import. It takes no lane: it stands with operations, of which a batch has few while messages are sent.
    ///
    /// # Errors
    /// `queue_full`, `store_unavailable`, `draining`.
    pub(crate) fn begin_import(
        &self,
        conversation: Option<&Arc<Conversation>>,
        proposal: Proposal,
    ) -> Result<oneshot::Receiver<Result<Outcome, Refusal>>, Refusal> {
        let (request, answer) = CommitRequest::of(Origin::Server, proposal, FlowKey::Bulk, conversation.cloned(), None);
        self.submit(request)?;
        Ok(answer)
    }

    async fn commit(
        &self,
        (request, answer): (CommitRequest, oneshot::Receiver<Result<Outcome, Refusal>>),
    ) -> Result<Outcome, Refusal> {
        self.submit(request)?;
        outcome_of(answer.await)
    }

    /// Commits a proposal of the server itself that changes no timeline, and blocks its thread until then.
    pub(crate) fn propose_blocking(&self, proposal: Proposal) -> Result<Outcome, Refusal> {
        let (request, answer) = CommitRequest::of(Origin::Server, proposal, FlowKey::Server, None, None);
        self.submit(request)?;
        outcome_of(answer.blocking_recv())
    }

    /// Queues a proposal of the server itself, for a thread that waits for several outcomes at once. `conversation` is the
    /// one whose live members learn of it.
    ///
    /// # Errors
    /// `queue_full`, `store_unavailable`, `draining`.
    pub(crate) fn begin(
        &self,
        conversation: Option<&Arc<Conversation>>,
        proposal: Proposal,
    ) -> Result<PendingOutcome, Refusal> {
        let flow_key = flow_of(&proposal);
        let slot = conversation.map(|conversation| self.reserve(conversation, flow_key)).transpose()?;
        let (request, outcome) = CommitRequest::of(Origin::Server, proposal, flow_key, conversation.cloned(), slot);
        self.submit(request)?;
        Ok(PendingOutcome(outcome))
    }

    /// The number of requests in each queue, and the limit.
    pub(crate) fn depths(&self) -> ([usize; QUEUES], usize) {
        let mut depths = [0; QUEUES];
        for queue in self.intake.queues.iter() {
            depths.iter_mut().zip(queue.depths()).for_each(|(sum, depth)| *sum += depth);
        }
        (depths, self.intake.queues.iter().map(CommitQueue::limit).sum())
    }

    /// # Errors
    /// Why nothing is committed: in one of several orders, if it is named.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        for (order, line) in self.lines.iter().enumerate() {
            line.readiness().map_err(|why| match self.lines.len() {
                1 => why,
                _ => format!("order {order}: {why}"),
            })?;
        }
        Ok(())
    }

    /// Waits until every request queued before is committed and answered.
    pub(crate) async fn flush(&self) {
        if let Some(hook) = &self.hook {
            hook.answered().await;
        }
        let reached: Vec<_> = self.intake.queues.iter().filter_map(CommitQueue::barrier).collect();
        for reached in reached {
            let _ = reached.await;
        }
    }

    /// Commits the queued requests, then ends the thread.
    pub(crate) fn stop(&self) {
        if let Some(hook) = &self.hook {
            hook.stop();
        }
        self.intake.queues.iter().for_each(CommitQueue::stop);
        for line in &self.lines {
            if let Some(thread) = line.thread.lock().take() {
                let _ = thread.join();
            }
        }
        self.set_queue_gauges(&self.metrics);
    }

    /// Sets the gauges of the queues.
    pub(crate) fn set_queue_gauges(&self, metrics: &Metrics) {
        let (depths, limit) = self.depths();
        metrics.set_queue("commit", depths.iter().sum(), limit * QUEUES);
        for (queue, depth) in depths.into_iter().enumerate() {
            let name = Lane::ALL.get(queue).map_or("operations", |lane| lane.name());
            metrics.set_queue(format!("commit_{name}"), depth, limit);
        }
        if let Some(hook) = &self.hook {
            hook.set_queue_gauges(metrics);
        }
    }
}

impl CommitRequest {
    /// A request, and the receiver of its outcome.
    fn of(
        by: Origin,
        proposal: Proposal,
        flow_key: FlowKey,
        conversation: Option<Arc<Conversation>>,
        slot: Option<LaneSlot>,
    ) -> (CommitRequest, oneshot::Receiver<Result<Outcome, Refusal>>) {
        let (reply, answer) = oneshot::channel();
        let (reply, stream) = (Reply::Caller(reply), None);
        (CommitRequest { proposal, by, flow_key, conversation, reply, slot, stream }, answer)
    }
}

/// The outcome that a caller is answered with; a rejection is a refusal.
fn outcome_of(answer: Result<Result<Outcome, Refusal>, RecvError>) -> Result<Outcome, Refusal> {
    match answer {
        Ok(Ok(Outcome::Rejected(rejection))) => Err(proposal_refusal(&rejection)),
        Ok(result) => result,
        Err(_) => Err(Refusal::new(ErrorCode::Internal, "the committer ended")),
    }
}

/// The flow of an operation: that of its user, if the proposal names one.
fn flow_of(proposal: &Proposal) -> FlowKey {
    let by = |notice: &Option<NewEntry>| notice.as_ref()?.sender.as_ref().map(|sender| FlowKey::User(sender.no));
    match proposal {
        Proposal::MarkRead { user, .. }
        | Proposal::SetMute { user, .. }
        | Proposal::SetDoNotDisturb { user, .. }
        | Proposal::SetReceipts { user, .. }
        | Proposal::SetNotificationPreferences { user, .. }
        | Proposal::SetPreferences { user, .. }
        | Proposal::SetPushToken { user, .. }
        | Proposal::Kick { user, .. } => FlowKey::User(*user),
        Proposal::UpdateConversation { conversation, notice, .. }
        | Proposal::ChangeMembers { conversation, notice, .. } => {
            by(notice).unwrap_or(FlowKey::Conversation(*conversation))
        }
        Proposal::Append { conversation, .. } | Proposal::SetDesk { account: conversation, .. } => {
            FlowKey::Conversation(*conversation)
        }
        Proposal::Assign { conversation, entry, .. } => {
            entry.author().map_or(FlowKey::Conversation(*conversation), |author| FlowKey::User(author.no))
        }
        Proposal::React { user, .. } => FlowKey::User(user.no),
        Proposal::TellReactions { conversation } => FlowKey::Conversation(*conversation),
        Proposal::OpenDirect { entry, .. } => entry.author().map_or(FlowKey::Server, |author| FlowKey::User(author.no)),
        Proposal::ChangeMessage { conversation, entry, .. } => {
            entry.author().map_or(FlowKey::Conversation(*conversation), |author| FlowKey::User(author.no))
        }
        Proposal::CreateConversation(new) => {
            let owner = new.members.iter().find(|(_, role)| *role == Role::Owner);
            owner.map_or(FlowKey::Server, |(user, _)| FlowKey::User(*user))
        }
        Proposal::Report { report, .. } => FlowKey::User(report.reporter),
        Proposal::SetBlock { user, .. } => FlowKey::User(*user),
        // A revocation or a suspension must not wait behind a flood of its user.
        Proposal::Revoke { .. }
        | Proposal::SetSuspension { .. }
        | Proposal::SetReport { .. }
        | Proposal::Erase(_)
        | Proposal::SetLegalHold { .. }
        | Proposal::PutUsers(_)
        | Proposal::SetStored(_)
        | Proposal::SetLastSeen(_)
        | Proposal::SetNotificationCounts(_)
        | Proposal::SetApiKeyUse(_)
        | Proposal::AddFeedNotes(_)
        | Proposal::AdvanceOutbox { .. }
        | Proposal::CheckpointStream { .. }
        | Proposal::DeleteStoredNotifications { .. } => FlowKey::Server,
    }
}

/// Refuses what would write between the messages that an import brings, and into what is being deleted, whoever asks for it.
fn check_open(conversation: &Conversation, proposal: &Proposal) -> Result<(), Refusal> {
    if conversation.is_deleted() {
        let is_deletion =
            matches!(proposal, Proposal::UpdateConversation { settings, .. } if settings.deleted.is_some());
        let why = "the conversation is being deleted: nothing is stored in it";
        return if is_deletion { Ok(()) } else { Err(Refusal::new(ErrorCode::ConversationDeleted, why)) };
    }
    if !conversation.is_importing() || writes_beside_import(proposal) {
        return Ok(());
    }
    let why = "the conversation's history is being imported: members read, and nobody sends before it is finished";
    Err(Refusal::new(ErrorCode::ConversationImporting, why))
}

/// Whether a proposal writes nothing of a timeline, or is of the import itself.
fn writes_beside_import(proposal: &Proposal) -> bool {
    match proposal {
        Proposal::Append { entry, .. } => entry.is_imported(),
        Proposal::UpdateConversation { settings, notice, .. } => settings.importing.is_some() || notice.is_none(),
        Proposal::ChangeMembers { notice, .. } => notice.is_none(),
        Proposal::OpenDirect { .. }
        | Proposal::ChangeMessage { .. }
        | Proposal::React { .. }
        | Proposal::SetDesk { .. }
        | Proposal::Assign { .. } => false,
        Proposal::TellReactions { .. }
        | Proposal::CheckpointStream { .. }
        | Proposal::PutUsers(_)
        | Proposal::CreateConversation(_)
        | Proposal::MarkRead { .. }
        | Proposal::SetMute { .. }
        | Proposal::SetPreferences { .. }
        | Proposal::SetDoNotDisturb { .. }
        | Proposal::SetReceipts { .. }
        | Proposal::SetNotificationPreferences { .. }
        | Proposal::SetPushToken { .. }
        | Proposal::Kick { .. }
        | Proposal::Revoke { .. }
        | Proposal::SetSuspension { .. }
        | Proposal::SetBlock { .. }
        | Proposal::Report { .. }
        | Proposal::SetReport { .. }
        | Proposal::Erase(_)
        | Proposal::SetLegalHold { .. }
        | Proposal::SetStored(_)
        | Proposal::SetLastSeen(_)
        | Proposal::SetNotificationCounts(_)
        | Proposal::SetApiKeyUse(_)
        | Proposal::AddFeedNotes(_)
        | Proposal::AdvanceOutbox { .. }
        | Proposal::DeleteStoredNotifications { .. } => true,
    }
}

/// The refusal for a proposal that a queue does not admit.
fn admission_refusal(why: AdmissionError, queue: &str) -> Refusal {
    let detail = match why {
        AdmissionError::Stopping => return Refusal::new(ErrorCode::Draining, "the server is stopping"),
        AdmissionError::Full => format!("{queue} is full; nothing was stored"),
        AdmissionError::ShareExceeded { held } => {
            format!("{held} of the same sender wait in {queue}, as many as have room there besides; nothing was stored")
        }
    };
    Refusal::new(ErrorCode::QueueFull, detail).retry_after(RETRY_AFTER_MS)
}

/// The average time of a commit without what its proposals cost: about that of its fsync, or of its round trips to
/// PostgreSQL.
#[derive(Default)]
struct FsyncTime(Duration);

impl FsyncTime {
    fn observe(&mut self, proposals: usize, commit_time: Duration) {
        let cost = PROPOSAL_COST.saturating_mul(u32::try_from(proposals).unwrap_or(u32::MAX));
        self.0 = self.0.mul_f64(1.0 - FSYNC_TIME_WEIGHT) + commit_time.saturating_sub(cost).mul_f64(FSYNC_TIME_WEIGHT);
    }

    /// How many proposals cost as much time as an fsync, within [`BULK_PROPOSALS_BESIDE_DIRECT`].
    fn proposals_meanwhile(&self) -> usize {
        let count = (self.0.as_nanos() / PROPOSAL_COST.as_nanos()) as usize;
        count.clamp(*BULK_PROPOSALS_BESIDE_DIRECT.start(), *BULK_PROPOSALS_BESIDE_DIRECT.end())
    }
}

/// The state of the thread that commits in an order.
struct Worker {
    order: u16,
    orders: Orders,
    queues: Arc<[CommitQueue<CommitRequest>]>,
    batch_max: usize,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    directory: Arc<Directory>,
    hub: Arc<dyn Hub>,
    shards: Arc<Shards>,
    streams: Arc<Streams>,
    metrics: Arc<Metrics>,
    failing_since: Arc<AtomicU64>,
    watchdog: Arc<CommitWatchdog>,
}

/// The parts of a request that are needed after the commit of its proposal.
type PendingReply = (Option<Arc<Conversation>>, Reply, Option<LaneSlot>, Option<Box<NewStream>>);

impl Worker {
    fn run(self) {
        let mut proposals = Vec::with_capacity(self.batch_max);
        let mut pending = Vec::with_capacity(self.batch_max);
        let mut last_direct: Option<Instant> = None;
        let mut fsync_time = FsyncTime::default();
        loop {
            let timeout = (self.failing_since.load(Ordering::Relaxed) != 0).then_some(STORE_PROBE_INTERVAL);
            let is_direct_active = last_direct.is_some_and(|at| at.elapsed() < DIRECT_ACTIVE_FOR);
            let mut has_direct = false;
            let taken = self.queues[usize::from(self.order)].take(
                self.batch_limits(is_direct_active, &fsync_time),
                timeout,
                |Taken { queue, is_last_of_few, work: request }| {
                    // Not of a flood: alone in its lane it delays nobody.
                    has_direct |= queue == Lane::Direct as usize && is_last_of_few;
                    proposals.push(request.proposal);
                    pending.push((request.conversation, request.reply, request.slot, request.stream));
                },
            );
            match taken {
                TakeOutcome::Taken if proposals.is_empty() => {}
                TakeOutcome::Taken => {
                    let (count, started) = (proposals.len(), Instant::now());
                    self.commit_in_parts(&mut proposals, &mut pending);
                    fsync_time.observe(count, started.elapsed());
                }
                TakeOutcome::TimedOut => self.probe_store(),
                TakeOutcome::Stopped => return,
            }
            if has_direct {
                last_direct = Some(Instant::now());
            }
        }
    }

    /// The limits of the next batch.
    fn batch_limits(&self, is_direct_active: bool, fsync_time: &FsyncTime) -> BatchLimits {
        let (proposals, bytes) = (self.batch_max.max(1), BATCH_BYTES_MAX);
        let (bulk_proposals, bulk_bytes) = if is_direct_active {
            (fsync_time.proposals_meanwhile().min(proposals), BULK_BYTES_BESIDE_DIRECT)
        } else {
            (proposals, bytes)
        };
        BatchLimits { proposals, bytes, bulk_proposals, bulk_bytes }
    }

    /// Probes the store with a commit that changes nothing: it succeeds when the store is available and has room. The
    /// embedded store writes nothing for it, so that a disk that still fails shows at the next commit.
    fn probe_store(&self) {
        let nothing = [Proposal::AdvanceOutbox { through: 0, dead: vec![] }];
        self.watchdog.begin();
        let tried = self.store.commit(&nothing, self.clock.now_ms());
        self.watchdog.end();
        if tried.is_ok() {
            self.failing_since.store(0, Ordering::Relaxed);
        }
    }

    /// Commits a batch, which has proposals of several of the store's orders only where this thread commits in all of them.
    fn commit_in_parts(&self, proposals: &mut Vec<Proposal>, pending: &mut Vec<PendingReply>) {
        let orders = self.store.orders();
        while self.orders != orders && !proposals.is_empty() {
            let order = orders.of(&proposals[0]);
            let part = proposals.iter().take_while(|proposal| orders.of(proposal) == order).count();
            let (mut rest, mut rest_pending) = (proposals.split_off(part), pending.split_off(part));
            self.commit(proposals, pending);
            proposals.append(&mut rest);
            pending.append(&mut rest_pending);
        }
        if !proposals.is_empty() {
            self.commit(proposals, pending);
        }
    }

    fn commit(&self, proposals: &mut Vec<Proposal>, pending: &mut Vec<PendingReply>) {
        let started = Instant::now();
        follow_opened(proposals, pending);
        let now_ms = self.clock.now_ms();
        let span = tracing::debug_span!("commit", proposals = proposals.len());
        self.watchdog.begin();
        let committed = span.in_scope(|| self.store.commit_in_order(proposals, now_ms));
        self.watchdog.end();
        match committed {
            Ok((outcomes, span)) => {
                self.metrics.commits.inc();
                self.metrics.commit_seconds.observe(started.elapsed().as_secs_f64());
                self.failing_since.store(0, Ordering::Relaxed);
                self.answer(proposals, pending, outcomes, span, started);
            }
            Err(error) => {
                self.metrics.commit_failures.inc();
                if self.failing_since.swap(now_ms.max(1), Ordering::Relaxed) == 0 {
                    tracing::error!(%error, "a commit failed; sends are refused until one succeeds");
                }
                self.directory.note_unknown_commit();
                let refusal = store_refusal(error);
                proposals.drain(..).for_each(|proposal| self.streams.on_failure(&proposal));
                let mut replies = ReplyBatch::new(&self.shards);
                for (_, reply, ..) in pending.drain(..) {
                    replies.answer(reply, Err(refusal.clone()), None);
                }
                replies.send();
            }
        }
    }

    fn answer(
        &self,
        proposals: &mut Vec<Proposal>,
        pending: &mut Vec<PendingReply>,
        outcomes: Vec<Outcome>,
        span: PositionRange,
        started: Instant,
    ) {
        let mut replies = ReplyBatch::new(&self.shards);
        let mut items = Vec::with_capacity(outcomes.len());
        let mut late: Vec<(Proposal, PendingReply)> = Vec::new();
        for ((proposal, (conversation, reply, slot, stream)), outcome) in
            proposals.drain(..).zip(pending.drain(..)).zip(outcomes)
        {
            let (proposal, conversation) = match (proposal, &outcome) {
                // Another message has opened the conversation meanwhile, perhaps in this batch.
                (Proposal::OpenDirect { entry, .. }, Outcome::Conversation { conversation, .. }) => {
                    let append = Proposal::Append { conversation: conversation.no, entry };
                    match check_open(conversation, &append) {
                        Ok(()) => {
                            late.push((append, (Some(Arc::new(conversation.clone())), reply, slot, stream)));
                        }
                        Err(refusal) => replies.answer(reply, Err(refusal), None),
                    }
                    continue;
                }
                (proposal, Outcome::Opened { conversation, .. }) => (proposal, Some(Arc::new(conversation.clone()))),
                (proposal, _) => (proposal, conversation),
            };
            match outcome.appended() {
                Some(appended) if appended.duplicate => self.metrics.duplicates.inc(),
                Some(_) => self.metrics.committed_entries.inc(),
                None => 0,
            };
            self.directory.invalidate_committed(&proposal, &outcome, conversation.as_ref());
            // Before the answer: the caller's next request may be a chunk.
            self.streams.on_outcome(&proposal, &outcome, conversation.as_ref(), stream);
            let details = conversation.clone();
            let change = Change::of(&proposal, &outcome);
            let lane_item = lane_item(proposal, conversation, &outcome, slot, started);
            if lane_item.is_some() || change.is_some() {
                let read_before = match &outcome {
                    Outcome::Read { before, .. } => Some(*before),
                    _ => None,
                };
                items.push(BatchItem { lane_item, change, read_before });
            }
            replies.answer(reply, Ok(outcome), details);
        }
        // Before the answers: a caller that has its answer finds the commit in the feed of events.
        self.directory.note_committed(span);
        replies.send();
        if !items.is_empty() {
            self.hub.publish(Batch { span, items });
        }
        // Before the next batch, so that messages of one sender stay in order. A conversation from before there were several orders
        // may be of another one than an opening.
        let (of_others, late): (Vec<_>, Vec<_>) =
            late.into_iter().partition(|(append, _)| self.orders.of(append) != self.order);
        for (append, reply) in of_others {
            self.commit(&mut vec![append], &mut vec![reply]);
        }
        if !late.is_empty() {
            let (mut appends, mut replies): (Vec<_>, Vec<_>) = late.into_iter().unzip();
            self.commit(&mut appends, &mut replies);
        }
    }
}

fn size_of_proposal(proposal: &Proposal) -> usize {
    match proposal {
        Proposal::Append { entry, .. } | Proposal::OpenDirect { entry, .. } | Proposal::ChangeMessage { entry, .. } => {
            entry.body.len() + 256
        }
        Proposal::CheckpointStream { body, .. } => body.len() + 256,
        Proposal::PutUsers(users) => users.len() * 256,
        Proposal::SetStored(users) => users.len() * 64,
        Proposal::ChangeMembers { add, remove, .. } => (add.len() + remove.len()) * 128,
        Proposal::CreateConversation(new) => new.members.len() * 128,
        _ => 256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_fsync_admits_more_bulk_proposals_beside_direct_ones() {
        let after = |commits: &[(usize, u64)]| {
            let mut time = FsyncTime::default();
            commits.iter().for_each(|(count, us)| time.observe(*count, Duration::from_micros(*us)));
            time.proposals_meanwhile()
        };
        assert_eq!(after(&[]), 16);
        assert_eq!(after(&[(1, 70); 100]), 16, "an fsync of 60 us");
        assert_eq!(after(&[(40, 1_000); 100]), 59, "an fsync of 600 us, and 40 proposals of 10 us");
        assert_eq!(after(&[(10, 8_000); 100]), 128);
        assert_eq!(after(&[(10_000, 1_000); 100]), 16, "many proposals in a short time");
    }
}
