//! The worker: one thread that owns devices, running pushes and what is on its way to the store.

use super::{
    DeviceNo, PushConfig, PushFrame, PushParts,
    audience::Audience,
    devices::Devices,
    draft::Draft,
    handout::Handout,
    inbox::Inbox,
    jobs::Job,
    notes::Note,
    outgoing::{BACKLOG_MAX, Outgoing},
    rows::{PushKey, PushRow, StoredPush},
};
use crate::{
    clock::Clock,
    cluster::lead::Lead,
    metrics::Metrics,
    store::{Store, StoreError, StoreResult, Term},
};
use quick_cache::unsync::Cache;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the worker sleeps when nothing is said to it: starts and ends are at most so late.
const TICK: Duration = Duration::from_millis(100);
/// The same while a shard's queue is full.
const SHARD_FULL_TICK: Duration = Duration::from_millis(2);
/// The wait after a store that failed.
const STORE_FAILED_TICK: Duration = Duration::from_secs(1);
/// Frames of pushes to named devices that are kept encoded.
const FRAMES_CACHED: usize = 4_096;
/// Writes in one turn that are not urgent: acknowledgements, ends, removals.
const WRITES_PER_TURN: usize = 8;

struct Closing(Arc<Inbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

pub(crate) struct Worker {
    pub(super) config: PushConfig,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) devices: Devices,
    /// Running pushes to many, by number.
    pub(super) audiences: BTreeMap<u64, Audience>,
    pub(super) last_push: u64,
    pub(super) next_device: u32,
    pub(super) scheduled: usize,
    /// What devices have of pushes that name them, not stored yet.
    pub(super) notes: BTreeMap<(DeviceNo, u64), Note>,
    /// Devices whose last bind is not stored yet.
    pub(super) bound: BTreeSet<DeviceNo>,
    /// Devices that were handed a part of what waits for them.
    pub(super) handouts: FxHashMap<DeviceNo, Handout>,
    /// Devices that are to be handed what waits for them, or the next part of it.
    pub(super) due: FxHashSet<DeviceNo>,
    /// Pushes that are being ended or removed, and how far that has come.
    pub(super) jobs: BTreeMap<u64, Job>,
    /// Pushes to many whose collapse key is being applied to what waits by name, and the next device.
    pub(super) collapsing: BTreeMap<u64, u32>,
    pub(super) frames: Cache<u64, Arc<PushFrame>>,
    pub(super) outgoing: Outgoing,
    lead: Lead,
    pub(super) term: Term,
    /// The store has told.
    is_over: bool,
    inbox: Arc<Inbox>,
    flushed_at: Instant,
    failed_at: Option<Instant>,
}

impl Worker {
    pub(super) fn run(parts: PushParts, inbox: Arc<Inbox>) {
        // However this ends: nobody may wait for an answer that does not come.
        let _closing = Closing(inbox.clone());
        let mut over = None;
        while let Some(term) = parts.lead.wait(over, || inbox.is_stopping()) {
            if parts.lead.is_shared() {
                inbox.set_away(false);
            }
            let mut worker = Worker::new(&parts, inbox.clone(), term);
            if worker.serve() {
                return;
            }
            over = worker.is_over.then_some(term);
            tracing::info!("push goes on at another node");
            inbox.set_away(true);
            worker.outgoing.end(|| inbox.is_stopping());
        }
    }

    fn new(parts: &PushParts, inbox: Arc<Inbox>, term: Term) -> Worker {
        Worker {
            config: parts.config.clone(),
            store: parts.store.clone(),
            clock: parts.clock.clone(),
            metrics: parts.metrics.clone(),
            lead: parts.lead.clone(),
            term,
            is_over: false,
            devices: Devices::default(),
            audiences: BTreeMap::new(),
            last_push: 0,
            next_device: 0,
            scheduled: 0,
            notes: BTreeMap::new(),
            bound: BTreeSet::new(),
            handouts: FxHashMap::default(),
            due: FxHashSet::default(),
            jobs: BTreeMap::new(),
            collapsing: BTreeMap::new(),
            frames: Cache::new(FRAMES_CACHED),
            outgoing: Outgoing::new(parts.shards.clone()),
            inbox,
            flushed_at: Instant::now(),
            failed_at: None,
        }
    }

    /// Until the end, or until another node leads; answers whether it is the end.
    fn serve(&mut self) -> bool {
        // Who binds and pushes meanwhile waits in the inbox.
        while let Err(error) = self.recover() {
            tracing::warn!(%error, "push could not read what is stored; it tries again");
            if self.inbox.is_stopping_within(STORE_FAILED_TICK) {
                return true;
            }
            if self.is_over() {
                return false;
            }
        }
        while self.turn() {
            if self.is_over() {
                return false;
            }
        }
        true
    }

    /// Whether another node leads, as this one has heard or the store has told.
    fn is_over(&self) -> bool {
        self.is_over || self.lead.term() != Some(self.term)
    }

    /// One turn; answers whether there is another.
    fn turn(&mut self) -> bool {
        let patience = match () {
            () if self.outgoing.len() > 0 => SHARD_FULL_TICK,
            () if self.has_more() => Duration::ZERO,
            () => TICK,
        };
        let waiting = self.inbox.take(patience, self.outgoing.len() < BACKLOG_MAX);
        self.metrics.push_notes_dropped.inc_by(waiting.notes_dropped);
        for (push, devices) in waiting.written {
            self.written(push, &devices);
        }
        for (device, pushes) in waiting.acknowledged {
            self.acknowledged(device, &pushes);
        }
        for (device, session) in waiting.left {
            if self.devices.left(device, session) {
                self.handouts.remove(&device);
            }
        }
        self.register_all(waiting.registers);
        self.accept_all(waiting.accepts);
        for ask in waiting.asks {
            ask(self);
        }
        self.hand_out_due();
        if waiting.stopping {
            self.settle();
            self.outgoing.drain();
            return false;
        }
        let result = self.turn_of_store();
        self.note_failure(result);
        self.outgoing.drain();
        true
    }

    /// What is due and what is to be stored, a bounded piece of it.
    fn turn_of_store(&mut self) -> StoreResult<()> {
        if self.failed_at.is_some_and(|at| at.elapsed() < STORE_FAILED_TICK) {
            return Ok(());
        }
        self.look_at_timers()?;
        self.work_on_jobs(WRITES_PER_TURN)?;
        self.work_on_collapses(WRITES_PER_TURN)?;
        if self.flushed_at.elapsed() >= self.config.flush_interval || self.has_more() {
            let all = self.flush(WRITES_PER_TURN)?;
            if all {
                self.flushed_at = Instant::now();
            }
        }
        self.failed_at = None;
        Ok(())
    }

    pub(super) fn note_failure(&mut self, result: StoreResult<()>) {
        if let Err(error) = result {
            self.is_over |= matches!(error, StoreError::TermIsOver);
            if self.failed_at.is_none() {
                tracing::warn!(%error, "push could not store; it tries again");
            }
            self.failed_at = Some(Instant::now());
        }
    }

    /// More than a turn's worth is to be stored already.
    fn has_more(&self) -> bool {
        let much =
            !self.jobs.is_empty() || !self.collapsing.is_empty() || self.notes.len() > 1_000 || !self.due.is_empty();
        much && self.failed_at.is_none()
    }

    /// Does and stores all that is due by now.
    pub(super) fn settle(&mut self) {
        let result = (|| {
            loop {
                self.look_at_timers()?;
                self.work_on_collapses(usize::MAX)?;
                if self.jobs.is_empty() {
                    break;
                }
                self.work_on_jobs(usize::MAX)?;
            }
            self.hand_out_due();
            while !self.flush(usize::MAX)? {}
            Ok(())
        })();
        self.note_failure(result);
        self.outgoing.drain();
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Stores a draft; what it makes wait for devices counts from then on.
    pub(super) fn store_draft(&mut self, draft: Draft<'_>) -> StoreResult<()> {
        let written = draft.write(self.term);
        self.is_over |= matches!(written, Err(StoreError::TermIsOver));
        written?;
        for (device, by) in draft.pending {
            self.devices.change_pending(device, by);
        }
        Ok(())
    }

    pub(super) fn stored_push(&self, push: u64) -> StoreResult<Option<StoredPush>> {
        match self.store.push_row(&PushKey::Push(push))? {
            Some(PushRow::Push(stored)) => Ok(Some(stored)),
            Some(_) => Err(StoreError::Damaged("a push's row is of another kind".into())),
            None => Ok(None),
        }
    }
}
