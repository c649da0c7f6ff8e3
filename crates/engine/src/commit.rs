//! The one committer: gathers what arrived while the last fsync ran, commits it as one batch,
//! answers everybody, and hands the entries to the lanes.
//!
//! ```text
//! accept ── bounded queues ──▶ gather ─▶ store.commit (one fsync) ─▶ caches ─▶ answers ─▶ hub.publish
//! ```
//! What waits is gathered in fair turns, by lane and by who sends ([`queue`]): a flood fills its own places.
//!
//! A proposal that writes a timeline holds a slot of its lane from before the commit until stage 1
//! is through with it: a full lane refuses senders early, nothing is dropped after the commit.

mod answers;
pub(crate) mod queue;

use crate::{
    clock::Clock,
    cluster::{leadership::leader_unavailable, log::Change},
    config::EngineConfig,
    directory::Directory,
    hub::{Batch, Hub, BatchItem},
    lanes::{LaneSlot, Lanes},
    metrics::Metrics,
    model::*,
    store::*,
};
pub(crate) use answers::receipt;
use answers::{Replies, lane_item};
use parking_lot::Mutex;
use queue::{CommitQueue, Most, NoPlace, Party, QUEUES, REST, Taken};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::oneshot;

/// Bytes of bodies after which a batch is closed: bounds one commit's memory and time.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// So much of a batch may be other than direct messages while those are being sent: they wait for the commit that runs and
/// for their own, so that both must stay short. 128 group messages commit in about the time of the fsync itself.
const BULK_BESIDE_DIRECT: usize = 128;
const BULK_BYTES_BESIDE_DIRECT: usize = 256 * 1024;
/// For so long after a direct message others are expected.
const DIRECT_LATELY: Duration = Duration::from_secs(1);
/// When a refused sender may try again: a few commits later.
const RETRY_AFTER_MS: u64 = 100;
/// After a commit failed and while none is asked for, the store is tried so often: who is not ready is sent nothing, and
/// would never find out that it is again.
const TRY_STORE_EVERY: Duration = Duration::from_secs(5);
/// When to try again after the store failed: an operator has to act first.
const STORE_RETRY_AFTER_MS: u64 = 1_000;

/// Who waits for an outcome.
pub(crate) enum Reply {
    /// An HTTP request or a command of ours.
    Caller(oneshot::Sender<Result<Outcome, Refusal>>),
    /// A session of this node, by its token; the shard writes the answer.
    Session { shard: usize, session: u64, reference: Option<u64> },
}

pub(crate) struct Work {
    pub proposal: Proposal,
    /// Whose share of the queue it takes.
    pub party: Party,
    /// The conversation whose timeline or membership it changes, if it does.
    pub conversation: Option<Arc<Conversation>>,
    pub reply: Reply,
    pub slot: Option<LaneSlot>,
}

pub(crate) struct Committer {
    queue: Arc<CommitQueue<Work>>,
    lanes: Arc<Lanes>,
    metrics: Arc<Metrics>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Milliseconds since 1970 of the last failed commit; 0 after a good one.
    failing_since: Arc<AtomicU64>,
    under_way: Arc<UnderWay>,
}

/// Since when a commit runs: milliseconds behind `base`, 0 while none does.
struct UnderWay {
    time_max: Duration,
    base: Instant,
    since: AtomicU64,
}

impl UnderWay {
    fn begin(&self) {
        self.since.store(self.base.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// How long a commit has run that runs too long.
    fn overdue(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        let ran = self.base.elapsed().saturating_sub(Duration::from_millis(since));
        (ran > self.time_max).then_some(ran)
    }
}

/// The refusal that a caller sees for a store that could not answer.
pub fn store_refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::DiskFull => Refusal::new(ErrorCode::StoreUnavailable, "the disk is full; nothing was stored")
            .retry_after(STORE_RETRY_AFTER_MS),
        StoreError::StaleTerm => leader_unavailable(),
        other => Refusal::new(ErrorCode::StoreUnavailable, other.to_string()).retry_after(STORE_RETRY_AFTER_MS),
    }
}

/// The refusal that a caller sees for one proposal that the store turned down.
pub fn proposal_refusal(rejection: &Rejection) -> Refusal {
    match rejection {
        Rejection::NoSuchConversation => Refusal::new(ErrorCode::NotFound, "no such conversation"),
        Rejection::NoSuchUser(_) => Refusal::new(ErrorCode::NotFound, "no such user"),
        Rejection::NotAMember => Refusal::new(ErrorCode::NotAMember, "the user is not a member of the conversation"),
        Rejection::ClientMsgIdReused => Refusal::new(
            ErrorCode::ClientMsgIdReused,
            "this client_msg_id stands for a message in another conversation",
        ),
        Rejection::KindDiffers => Refusal::new(ErrorCode::Conflict, "the id is taken by a conversation of another kind"),
        Rejection::TooManyMembers { limit, would_be } => Refusal::limit("members of the conversation", *limit, *would_be),
    }
}

impl Committer {
    pub(crate) fn start(
        config: &EngineConfig,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        directory: Arc<Directory>,
        hub: Arc<dyn Hub>,
        lanes: Arc<Lanes>,
        metrics: Arc<Metrics>,
    ) -> Committer {
        let queue = Arc::new(CommitQueue::new(config.commit_queue));
        let failing_since = Arc::new(AtomicU64::new(0));
        let under_way =
            Arc::new(UnderWay { time_max: config.commit_time_max, base: Instant::now(), since: AtomicU64::new(0) });
        let worker = Worker {
            queue: queue.clone(),
            batch_max: config.commit_batch,
            store,
            clock,
            directory,
            hub,
            lanes: lanes.clone(),
            metrics: metrics.clone(),
            failing_since: failing_since.clone(),
            under_way: under_way.clone(),
        };
        let thread = std::thread::Builder::new().name("committer".into()).spawn(move || worker.run());
        let thread = Mutex::new(thread.inspect_err(|e| tracing::error!(error = %e, "no committer thread")).ok());
        Committer { queue, lanes, metrics, thread, failing_since, under_way }
    }

    /// Hands over work without waiting. On refusal the work's reply is dropped: the caller answers.
    pub(crate) fn submit(&self, work: Work) -> Result<(), Refusal> {
        if let Some(ran) = self.under_way.overdue() {
            let detail = format!("the store has not answered for {} s; nothing of this was stored", ran.as_secs());
            return Err(Refusal::new(ErrorCode::StoreUnavailable, detail).retry_after(STORE_RETRY_AFTER_MS));
        }
        // A read mark goes to the user's own devices and takes no lane.
        let lane = work.slot.as_ref().and(work.conversation.as_ref()).map(|conversation| conversation.lane());
        let queue = lane.map_or(REST, |lane| lane as usize);
        let bytes = size_of_proposal(&work.proposal);
        self.queue.put(queue, work.party, bytes, work).map_err(|why| {
            let queue = lane.map_or("operations", Lane::name);
            no_place(why, &format!("the {queue} commit queue"))
        })
    }

    /// A slot of the conversation's lane, or the refusal when the lane is full, or the party's share of it.
    pub(crate) fn reserve(&self, conversation: &Conversation, party: Party) -> Result<LaneSlot, Refusal> {
        let lane = conversation.lane();
        self.lanes.reserve(lane, party).map_err(|why| no_place(why, &format!("the {} lane", lane.name())))
    }

    /// Commits one proposal; the outcome is durable. `conversation` names the one whose timeline,
    /// members or read marks it changes, so that those concerned learn of it.
    pub(crate) async fn propose(
        &self,
        conversation: Option<&Arc<Conversation>>,
        proposal: Proposal,
    ) -> Result<Outcome, Refusal> {
        // A read mark goes to the user's own devices and takes no lane.
        let in_lane = conversation.filter(|_| !matches!(proposal, Proposal::MarkRead { .. }));
        let party = party_of(&proposal);
        let slot = in_lane.map(|c| self.reserve(c, party)).transpose()?;
        self.commit(Work::of(proposal, party, conversation.cloned(), slot)).await
    }

    /// The same for a user who has one opened that is not there yet.
    pub(crate) async fn propose_for(&self, user: UserNo, proposal: Proposal) -> Result<Outcome, Refusal> {
        self.commit(Work::of(proposal, Party::User(user), None, None)).await
    }

    async fn commit(
        &self,
        (work, answer): (Work, oneshot::Receiver<Result<Outcome, Refusal>>),
    ) -> Result<Outcome, Refusal> {
        self.submit(work)?;
        match answer.await {
            Ok(Ok(Outcome::Rejected(rejection))) => Err(proposal_refusal(&rejection)),
            Ok(result) => result,
            Err(_) => Err(Refusal::new(ErrorCode::Internal, "the committer ended")),
        }
    }

    /// The same from a thread of our own, for a proposal that changes no timeline.
    pub(crate) fn propose_blocking(&self, proposal: Proposal) -> Result<Outcome, Refusal> {
        let (work, answer) = Work::of(proposal, Party::Server, None, None);
        self.submit(work)?;
        match answer.blocking_recv() {
            Ok(Ok(Outcome::Rejected(rejection))) => Err(proposal_refusal(&rejection)),
            Ok(result) => result,
            Err(_) => Err(Refusal::new(ErrorCode::Internal, "the committer ended")),
        }
    }

    /// How many wait in each queue, and how many may.
    pub(crate) fn depths(&self) -> ([usize; QUEUES], usize) {
        (self.queue.depths(), self.queue.limit())
    }

    pub(crate) fn readiness(&self) -> Result<(), String> {
        if self.thread.lock().as_ref().is_none_or(JoinHandle::is_finished) {
            return Err("the committer has ended".into());
        }
        if let Some(ran) = self.under_way.overdue() {
            return Err(format!("a commit has waited for {} s", ran.as_secs()));
        }
        match self.failing_since.load(Ordering::Relaxed) {
            0 => Ok(()),
            since => Err(format!("commits have failed since {since}")),
        }
    }

    /// Waits until everything that was accepted before is committed and answered.
    pub(crate) async fn flush(&self) {
        if let Some(reached) = self.queue.barrier() {
            let _ = reached.await;
        }
    }

    /// Commits what was accepted, then ends the thread.
    pub(crate) fn stop(&self) {
        self.queue.stop();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.show_depths(&self.metrics);
    }

    /// Brings the gauges of the queues up to date.
    pub(crate) fn show_depths(&self, metrics: &Metrics) {
        let (depths, limit) = self.depths();
        metrics.set_queue("commit", depths.iter().sum(), limit * QUEUES);
        for (queue, depth) in depths.into_iter().enumerate() {
            let name = Lane::ALL.get(queue).map_or("operations", |lane| lane.name());
            metrics.set_queue(format!("commit_{name}"), depth, limit);
        }
    }
}

impl Work {
    /// For a caller who waits for the answer.
    fn of(
        proposal: Proposal,
        party: Party,
        conversation: Option<Arc<Conversation>>,
        slot: Option<LaneSlot>,
    ) -> (Work, oneshot::Receiver<Result<Outcome, Refusal>>) {
        let (reply, answer) = oneshot::channel();
        (Work { proposal, party, conversation, reply: Reply::Caller(reply), slot }, answer)
    }
}

/// Whose share an operation takes: that of the user who does it, as far as it tells.
fn party_of(proposal: &Proposal) -> Party {
    let by = |notice: &Option<NewEntry>| notice.as_ref()?.sender.as_ref().map(|sender| Party::User(sender.no));
    match proposal {
        Proposal::MarkRead { user, .. }
        | Proposal::SetMute { user, .. }
        | Proposal::SetDoNotDisturb { user, .. }
        | Proposal::Kick { user, .. } => Party::User(*user),
        Proposal::UpdateConversation { conversation, notice, .. }
        | Proposal::ChangeMembers { conversation, notice, .. } => {
            by(notice).unwrap_or(Party::Conversation(*conversation))
        }
        Proposal::Append { conversation, .. } => Party::Conversation(*conversation),
        Proposal::CreateConversation(new) => {
            let owner = new.members.iter().find(|(_, role)| *role == Role::Owner);
            owner.map_or(Party::Server, |(user, _)| Party::User(*user))
        }
        // A revocation does not wait behind what the user floods.
        Proposal::Revoke { .. }
        | Proposal::PutUsers(_)
        | Proposal::SetLastSeen(_)
        | Proposal::AdvanceOutbox { .. }
        | Proposal::DeleteDeadLetters { .. } => Party::Server,
    }
}

/// The refusal of who finds no place in a queue.
fn no_place(why: NoPlace, queue: &str) -> Refusal {
    let detail = match why {
        NoPlace::Stopping => return Refusal::new(ErrorCode::Draining, "the server is stopping"),
        NoPlace::Full => format!("{queue} is full; nothing was stored"),
        NoPlace::Share { held } => {
            format!("{held} of the same sender wait in {queue}, as many as have room there besides; nothing was stored")
        }
    };
    Refusal::new(ErrorCode::QueueFull, detail).retry_after(RETRY_AFTER_MS)
}

/// What the committer's thread owns.
struct Worker {
    queue: Arc<CommitQueue<Work>>,
    batch_max: usize,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    directory: Arc<Directory>,
    hub: Arc<dyn Hub>,
    lanes: Arc<Lanes>,
    metrics: Arc<Metrics>,
    failing_since: Arc<AtomicU64>,
    under_way: Arc<UnderWay>,
}

/// What of a work is needed after its proposal went to the store.
type Waiting = (Option<Arc<Conversation>>, Reply, Option<LaneSlot>);

impl Worker {
    fn run(self) {
        let mut proposals = Vec::with_capacity(self.batch_max);
        let mut waiting = Vec::with_capacity(self.batch_max);
        let mut last_direct: Option<Instant> = None;
        loop {
            let patience = (self.failing_since.load(Ordering::Relaxed) != 0).then_some(TRY_STORE_EVERY);
            let is_direct_lively = last_direct.is_some_and(|at| at.elapsed() < DIRECT_LATELY);
            let mut has_direct = false;
            let taken = self.queue.take(self.most(is_direct_lively), patience, |queue, work| {
                has_direct |= queue == Lane::Direct as usize;
                proposals.push(work.proposal);
                waiting.push((work.conversation, work.reply, work.slot));
            });
            match taken {
                Taken::Some if proposals.is_empty() => {}
                Taken::Some => self.commit(&mut proposals, &mut waiting),
                Taken::TimeIsOver => self.try_store(),
                Taken::Stopped => return,
            }
            if has_direct {
                last_direct = Some(Instant::now());
            }
        }
    }

    /// How much of a batch.
    fn most(&self, is_direct_lively: bool) -> Most {
        let (proposals, bytes) = (self.batch_max.max(1), BATCH_BYTES_MAX);
        let (bulk_proposals, bulk_bytes) = match is_direct_lively {
            true => (BULK_BESIDE_DIRECT.min(proposals), BULK_BYTES_BESIDE_DIRECT),
            false => (proposals, bytes),
        };
        Most { proposals, bytes, bulk_proposals, bulk_bytes }
    }

    /// A commit that changes nothing: it tells whether the store is there and has room. The embedded one writes nothing for it,
    /// so that a disk that still fails shows at the next commit.
    fn try_store(&self) {
        let nothing = [Proposal::AdvanceOutbox { through: 0, dead: vec![] }];
        self.under_way.begin();
        let tried = self.store.commit(&nothing, self.clock.now_ms());
        self.under_way.end();
        if tried.is_ok() {
            self.failing_since.store(0, Ordering::Relaxed);
        }
    }

    fn commit(&self, proposals: &mut Vec<Proposal>, waiting: &mut Vec<Waiting>) {
        let started = Instant::now();
        let now_ms = self.clock.now_ms();
        let span = tracing::debug_span!("commit", proposals = proposals.len());
        self.under_way.begin();
        let committed = span.in_scope(|| self.store.commit_in_order(proposals, now_ms));
        self.under_way.end();
        match committed {
            Ok((outcomes, span)) => {
                self.metrics.commits.inc();
                self.metrics.commit_seconds.observe(started.elapsed().as_secs_f64());
                self.failing_since.store(0, Ordering::Relaxed);
                self.answer(proposals, waiting, outcomes, span, started);
            }
            Err(error) => {
                self.metrics.commit_failures.inc();
                if self.failing_since.swap(now_ms.max(1), Ordering::Relaxed) == 0 {
                    tracing::error!(%error, "a commit failed; sends are refused until one succeeds");
                }
                let refusal = store_refusal(error);
                proposals.clear();
                let mut replies = Replies::new(&self.lanes);
                for (_, reply, _slot) in waiting.drain(..) {
                    replies.answer(reply, Err(refusal.clone()), None);
                }
                replies.send();
            }
        }
    }

    fn answer(
        &self,
        proposals: &mut Vec<Proposal>,
        waiting: &mut Vec<Waiting>,
        outcomes: Vec<Outcome>,
        span: PositionRange,
        started: Instant,
    ) {
        let mut replies = Replies::new(&self.lanes);
        let mut items = Vec::with_capacity(outcomes.len());
        for ((proposal, (conversation, reply, slot)), outcome) in
            proposals.drain(..).zip(waiting.drain(..)).zip(outcomes)
        {
            match &outcome {
                Outcome::Appended(appended) if appended.duplicate => self.metrics.duplicates.inc(),
                Outcome::Appended(_) => self.metrics.committed_entries.inc(),
                _ => 0,
            };
            self.directory.invalidate_committed(&proposal, &outcome, conversation.as_ref());
            let card = conversation.clone();
            let change = Change::of(&proposal, &outcome);
            let lane_item = lane_item(proposal, conversation, &outcome, slot, started);
            if lane_item.is_some() || change.is_some() {
                items.push(BatchItem { lane_item, change });
            }
            replies.answer(reply, Ok(outcome), card);
        }
        replies.send();
        if !items.is_empty() {
            self.hub.publish(Batch { span, items });
        }
    }
}

fn size_of_proposal(proposal: &Proposal) -> usize {
    match proposal {
        Proposal::Append { entry, .. } => entry.body.len() + 256,
        Proposal::PutUsers(users) => users.len() * 256,
        Proposal::ChangeMembers { add, remove, .. } => (add.len() + remove.len()) * 128,
        Proposal::CreateConversation(new) => new.members.len() * 128,
        _ => 256,
    }
}
