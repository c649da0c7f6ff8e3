//! The one committer: gathers what arrived while the last fsync ran, commits it as one batch,
//! answers everybody, and hands the entries to the lanes.
//!
//! ```text
//! accept ── bounded queue ──▶ gather ─▶ store.commit (one fsync) ─▶ caches ─▶ answers ─▶ hub.publish
//! ```
//! A proposal that writes a timeline holds a slot of its lane from before the commit until stage 1
//! is through with it: a full lane refuses senders early, nothing is dropped after the commit.

use crate::{
    clock::Clock,
    cluster::{lead::another_leads, log::Change},
    config::EngineConfig,
    directory::Directory,
    hub::{Batch, Hub, Item},
    lanes::{Committed, LaneSlot, Lanes},
    metrics::Metrics,
    model::*,
    shards::SendReply,
    store::*,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::SendReceipt,
};
use tokio::sync::oneshot;

/// Bytes of bodies after which a batch is closed: bounds one commit's memory and time.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
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
    /// The conversation whose timeline or membership it changes, if it does.
    pub conversation: Option<Arc<Conversation>>,
    pub reply: Reply,
    pub slot: Option<LaneSlot>,
}

// The large variant is the common one; boxing it would cost an allocation per message.
#[allow(clippy::large_enum_variant)]
enum Command {
    Commit(Work),
    /// Answered once everything before it is committed, answered and published.
    Barrier(oneshot::Sender<()>),
    Stop,
}

pub(crate) struct Committer {
    queue: Sender<Command>,
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
        StoreError::TermIsOver => another_leads(),
        other => Refusal::new(ErrorCode::StoreUnavailable, other.to_string()).retry_after(STORE_RETRY_AFTER_MS),
    }
}

/// The refusal that a caller sees for one proposal that the store turned down.
pub fn proposal_refusal(refused: &Refused) -> Refusal {
    match refused {
        Refused::NoSuchConversation => Refusal::new(ErrorCode::NotFound, "no such conversation"),
        Refused::NoSuchUser(_) => Refusal::new(ErrorCode::NotFound, "no such user"),
        Refused::NotAMember => Refusal::new(ErrorCode::NotAMember, "the user is not a member of the conversation"),
        Refused::ClientMsgIdReused => Refusal::new(
            ErrorCode::ClientMsgIdReused,
            "this client_msg_id stands for a message in another conversation",
        ),
        Refused::KindDiffers => Refusal::new(ErrorCode::Conflict, "the id is taken by a conversation of another kind"),
        Refused::TooManyMembers { limit, would_be } => Refusal::limit("members of the conversation", *limit, *would_be),
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
        let (queue, inbox) = bounded(config.commit_queue);
        let failing_since = Arc::new(AtomicU64::new(0));
        let under_way =
            Arc::new(UnderWay { time_max: config.commit_time_max, base: Instant::now(), since: AtomicU64::new(0) });
        let worker = Worker {
            inbox,
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
        self.queue.try_send(Command::Commit(work)).map_err(|error| match error {
            TrySendError::Full(_) => Refusal::new(ErrorCode::QueueFull, "the commit queue is full; nothing was stored")
                .retry_after(RETRY_AFTER_MS),
            TrySendError::Disconnected(_) => Refusal::new(ErrorCode::Draining, "the server is stopping"),
        })
    }

    /// A slot of the conversation's lane, or the refusal when the lane is full.
    pub(crate) fn reserve(&self, conversation: &Conversation) -> Result<LaneSlot, Refusal> {
        let lane = conversation.lane();
        self.lanes.reserve(lane).ok_or_else(|| {
            Refusal::new(ErrorCode::QueueFull, format!("the {} lane is full; nothing was stored", lane.name()))
                .retry_after(RETRY_AFTER_MS)
        })
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
        let slot = in_lane.map(|c| self.reserve(c)).transpose()?;
        let (reply, answer) = oneshot::channel();
        self.submit(Work { proposal, conversation: conversation.cloned(), reply: Reply::Caller(reply), slot })?;
        match answer.await {
            Ok(Ok(Outcome::Refused(refused))) => Err(proposal_refusal(&refused)),
            Ok(result) => result,
            Err(_) => Err(Refusal::new(ErrorCode::Internal, "the committer ended")),
        }
    }

    /// The same from a thread of our own, for a proposal that changes no timeline.
    pub(crate) fn propose_blocking(&self, proposal: Proposal) -> Result<Outcome, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.submit(Work { proposal, conversation: None, reply: Reply::Caller(reply), slot: None })?;
        match answer.blocking_recv() {
            Ok(Ok(Outcome::Refused(refused))) => Err(proposal_refusal(&refused)),
            Ok(result) => result,
            Err(_) => Err(Refusal::new(ErrorCode::Internal, "the committer ended")),
        }
    }

    /// How many wait, and how many may.
    pub(crate) fn depth(&self) -> (usize, usize) {
        (self.queue.len(), self.queue.capacity().unwrap_or(0))
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
    pub(crate) async fn settle(&self) {
        let (reached, answer) = oneshot::channel();
        if self.queue.try_send(Command::Barrier(reached)).is_ok() {
            let _ = answer.await;
        }
    }

    /// Commits what was accepted, then ends the thread.
    pub(crate) fn stop(&self) {
        let _ = self.queue.send(Command::Stop);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        let (depth, limit) = self.depth();
        self.metrics.queue("commit", depth, limit);
    }
}

/// What the committer's thread owns.
struct Worker {
    inbox: Receiver<Command>,
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
        let mut barriers = Vec::new();
        let mut stopping = false;
        while !stopping {
            let first = match self.failing_since.load(Ordering::Relaxed) {
                0 => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => self.inbox.recv_timeout(TRY_STORE_EVERY),
            };
            let first = match first {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    self.try_store();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut next = Some(first);
            let mut bytes = 0;
            while let Some(command) = next.take() {
                match command {
                    Command::Stop => stopping = true,
                    Command::Barrier(reached) => barriers.push(reached),
                    Command::Commit(work) => {
                        bytes += size_of_proposal(&work.proposal);
                        proposals.push(work.proposal);
                        waiting.push((work.conversation, work.reply, work.slot));
                    }
                }
                if proposals.len() < self.batch_max && bytes < BATCH_BYTES_MAX {
                    next = self.inbox.try_recv().ok();
                }
            }
            if !proposals.is_empty() {
                self.commit(&mut proposals, &mut waiting);
            }
            for reached in barriers.drain(..) {
                let _ = reached.send(());
            }
        }
    }

    /// A commit that changes nothing: it tells whether the store is there and has room. The embedded one writes nothing for it,
    /// so that a disk that still fails shows at the next commit.
    fn try_store(&self) {
        let nothing = [Proposal::OutboxDone { through: 0, dead: vec![] }];
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
        span: Span,
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
            self.directory.forget_changed(&proposal, &outcome, conversation.as_ref());
            let card = conversation.clone();
            let change = Change::of(&proposal, &outcome);
            let committed = committed(proposal, conversation, &outcome, slot, started);
            if committed.is_some() || change.is_some() {
                items.push(Item { committed, change });
            }
            replies.answer(reply, Ok(outcome), card);
        }
        replies.send();
        if !items.is_empty() {
            self.hub.publish(Batch { span, items });
        }
    }
}

/// What live members must learn of an outcome, if anything.
fn committed(
    proposal: Proposal,
    conversation: Option<Arc<Conversation>>,
    outcome: &Outcome,
    slot: Option<LaneSlot>,
    at: Instant,
) -> Option<Committed> {
    let stored = |content: NewEntry, a: &Appended| StoredEntry { seq: a.seq, position: a.position, at: a.at, content };
    let quiet = |conversation, entry| Committed { conversation, joined: vec![], left: vec![], entry, slot: None, at };
    let mut committed = match (proposal, outcome) {
        (Proposal::Append { entry, .. }, Outcome::Appended(a)) if !a.duplicate => {
            quiet(conversation?, Some(stored(entry, a)))
        }
        (Proposal::ChangeMembers { notice, .. }, Outcome::MembersChanged { added, removed, notice: appended, .. }) => {
            let entry = notice.zip(appended.as_ref()).map(|(content, a)| stored(content, a));
            Committed { joined: added.clone(), left: removed.clone(), ..quiet(conversation?, entry) }
        }
        (Proposal::CreateConversation(new), Outcome::Conversation { conversation, created: true }) => {
            let joined = new.members.iter().map(|(user, _)| *user).collect();
            Committed { joined, ..quiet(Arc::new(conversation.clone()), None) }
        }
        (Proposal::UpdateConversation { notice: Some(notice), .. }, Outcome::Appended(a)) => {
            quiet(conversation?, Some(stored(notice, a)))
        }
        _ => return None,
    };
    committed.slot = slot;
    Some(committed)
}

/// Answers gathered per shard, so that a batch wakes each shard once.
struct Replies<'a> {
    lanes: &'a Lanes,
    by_shard: Vec<Vec<SendReply>>,
}

impl<'a> Replies<'a> {
    fn new(lanes: &'a Lanes) -> Self {
        Replies { lanes, by_shard: vec![Vec::new(); lanes.shards().count()] }
    }

    fn answer(&mut self, reply: Reply, result: Result<Outcome, Refusal>, conversation: Option<Arc<Conversation>>) {
        match reply {
            // The caller may have gone away (a closed HTTP connection); the commit stands.
            Reply::Caller(caller) => drop(caller.send(result)),
            Reply::Session { shard, session, reference } => {
                let result = result.and_then(|outcome| receipt(&outcome, conversation.as_deref()));
                self.by_shard[shard].push(SendReply { session, reference, result });
            }
        }
    }

    fn send(self) {
        for (shard, replies) in self.by_shard.into_iter().enumerate() {
            if !replies.is_empty() {
                self.lanes.shards().send_replies(shard, replies);
            }
        }
    }
}

/// The receipt of an append.
pub(crate) fn receipt(outcome: &Outcome, conversation: Option<&Conversation>) -> Result<SendReceipt, Refusal> {
    match (outcome, conversation) {
        (Outcome::Appended(a), Some(c)) => {
            Ok(SendReceipt { conversation: c.id.clone(), seq: a.seq, at: a.at, duplicate: a.duplicate })
        }
        (Outcome::Refused(refused), _) => Err(proposal_refusal(refused)),
        _ => Err(Refusal::new(ErrorCode::Internal, "an outcome of another kind")),
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
