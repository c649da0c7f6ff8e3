//! The worker: one thread that owns devices, running pushes and what is on its way to the store.

use super::{
    DeviceNo, PushConfig, PushFrame, PushParts,
    audience::Audience,
    devices::{Devices, Left},
    draft::Draft,
    elsewhere::{FromNode, Held, Outpost},
    handout::Handout,
    inbox::Inbox,
    jobs::Job,
    notes::Note,
    numbers::Numbers,
    outgoing::{BACKLOG_MAX, Outgoing},
    rows::{PushKey, PushRow, StoredPush},
};
use crate::{
    clock::Clock,
    cluster::leadership::Leadership,
    limits::Allowances,
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
/// Sessions registered anew in one turn.
const REGISTERS_PER_TURN: usize = 4_096;
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
    pub(super) numbers: Numbers,
    /// How many new devices each user had lately.
    pub(super) new_devices: Allowances,
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
    /// Sessions of this node that stay when the lead goes.
    pub(super) held: Held,
    /// Those that are to be registered with this worker, by name.
    pub(super) unregistered: Vec<u64>,
    lead: Leadership,
    pub(super) term: Term,
    /// The store has told.
    is_over: bool,
    /// A write may have been stored or not: nothing is written until what is stored has been read anew.
    pub(super) is_unsure: bool,
    inbox: Arc<Inbox>,
    flushed_at: Instant,
    pub(super) failed_at: Option<Instant>,
    /// When what is stored could not be read anew.
    not_read_at: Option<Instant>,
}

impl Worker {
    pub(super) fn run(parts: PushParts, inbox: Arc<Inbox>) {
        // However this ends: nobody may wait for an answer that does not come.
        let _closing = Closing(inbox.clone());
        let (mut over, mut held) = (None, Held::default());
        let next_term = |over, held: &mut Held| match &parts.road {
            Some(road) => Outpost::new(&parts, road, &inbox, held).serve(over),
            None => parts.lead.wait_for_term(over, || inbox.is_stopping()),
        };
        while let Some(term) = next_term(over, &mut held) {
            if inbox.is_shared() {
                inbox.set_away(false);
            }
            let mut worker = Worker::new(&parts, inbox.clone(), term, std::mem::take(&mut held));
            if worker.serve() {
                return;
            }
            over = worker.is_over.then_some(term);
            tracing::info!("push goes on at another node");
            inbox.set_away(true);
            worker.outgoing.end(|| inbox.is_stopping());
            held = worker.held;
        }
    }

    fn new(parts: &PushParts, inbox: Arc<Inbox>, term: Term, held: Held) -> Worker {
        Worker {
            config: parts.config.clone(),
            store: parts.store.clone(),
            clock: parts.clock.clone(),
            metrics: parts.metrics.clone(),
            lead: parts.lead.clone(),
            term,
            is_over: false,
            is_unsure: false,
            devices: Devices::default(),
            audiences: BTreeMap::new(),
            last_push: 0,
            numbers: Numbers::default(),
            new_devices: Allowances::new(parts.config.new_devices),
            scheduled: 0,
            notes: BTreeMap::new(),
            bound: BTreeSet::new(),
            handouts: FxHashMap::default(),
            due: FxHashSet::default(),
            jobs: BTreeMap::new(),
            collapsing: BTreeMap::new(),
            frames: Cache::new(FRAMES_CACHED),
            outgoing: Outgoing::new(parts.shards.clone(), parts.road.clone(), parts.metrics.clone()),
            unregistered: held.names().collect(),
            held,
            inbox,
            flushed_at: Instant::now(),
            failed_at: None,
            not_read_at: None,
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
        self.outgoing.nodes.say_leads();
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
        self.find_out();
        self.metrics.push_notes_dropped.inc_by(waiting.notes_dropped);
        for (push, devices) in waiting.written {
            self.written(push, &devices);
        }
        for (device, pushes) in waiting.acknowledged {
            self.acknowledged(device, &pushes);
        }
        for (shard, session, device) in waiting.left {
            self.held.remove(shard, session);
            if let Some(device) = device {
                self.left(device, shard, session);
            }
        }
        self.hear_nodes(waiting.heard);
        if self.outgoing.len() < BACKLOG_MAX {
            self.register_held();
        }
        for register in waiting.registers.iter().filter(|register| register.stays && self.inbox.is_shared()) {
            self.held.put(register.clone());
        }
        self.register_all(&waiting.registers);
        // Before pushes come that devices get as they are there: they would be handed out once more.
        self.hand_out_due();
        self.accept_all(waiting.accepts);
        for ask in waiting.asks {
            ask(self);
        }
        if waiting.stopping {
            self.settle();
            self.outgoing.drain(Instant::now());
            return false;
        }
        let result = self.turn_of_store();
        self.note_failure(result);
        self.outgoing.drain(Instant::now());
        true
    }

    /// Takes what sessions of other nodes, and their devices, have said.
    fn hear_nodes(&mut self, heard: Vec<Vec<u8>>) {
        let now = Instant::now();
        for item in heard.iter().flat_map(|said| self.outgoing.nodes.hear(said, now)).collect::<Vec<_>>() {
            match item {
                FromNode::Written { push, devices } => self.written(push, &devices),
                FromNode::Acknowledged { device, pushes } => self.acknowledged(device, &pushes),
                FromNode::Left { place, device, session } => self.left(device, place, session),
                FromNode::Gone(place) => self.all_left(place),
            }
        }
        let registers = self.outgoing.nodes.take_registers();
        self.register_all(&registers);
        for place in self.outgoing.nodes.take_gone(now) {
            self.all_left(place);
        }
    }

    fn left(&mut self, device: DeviceNo, place: usize, session: u64) {
        match self.devices.left(device, place, session) {
            Left::Unknown => {}
            Left::Offline => drop(self.handouts.remove(&device)),
            Left::ForAnother => {
                self.handouts.remove(&device);
                self.due.insert(device);
            }
        }
    }

    /// Nothing at this place is pushed to any more.
    fn all_left(&mut self, place: usize) {
        for (device, session) in self.devices.sessions_at(place) {
            self.left(device, place, session);
        }
    }

    /// Registers sessions of this node that another one did push for, or that could not be when they asked.
    fn register_held(&mut self) {
        if self.unregistered.is_empty() || self.failed_at.is_some_and(|at| at.elapsed() < STORE_FAILED_TICK) {
            return;
        }
        let first = self.unregistered.len().saturating_sub(REGISTERS_PER_TURN);
        let some = self.unregistered.split_off(first);
        let registers: Vec<_> = some.into_iter().filter_map(|name| self.held.register(name).cloned()).collect();
        self.register_all(&registers);
    }

    /// What is due and what is to be stored, a bounded piece of it.
    fn turn_of_store(&mut self) -> StoreResult<()> {
        if self.is_unsure || self.failed_at.is_some_and(|at| at.elapsed() < STORE_FAILED_TICK) {
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

    /// After a write that may have been stored: what is stored counts, and is read before anything is taken in.
    fn find_out(&mut self) {
        if !self.is_unsure || self.not_read_at.is_some_and(|at| at.elapsed() < STORE_FAILED_TICK) {
            return;
        }
        let read = self.recover_anew();
        self.not_read_at = read.is_err().then(Instant::now);
        self.note_failure(read);
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
        let much = !self.jobs.is_empty()
            || !self.collapsing.is_empty()
            || self.notes.len() > 1_000
            || !self.due.is_empty()
            || !self.unregistered.is_empty();
        much && self.failed_at.is_none()
    }

    /// Does and stores all that is due by now.
    pub(super) fn settle(&mut self) {
        let result = (|| {
            if self.is_unsure {
                self.recover_anew()?;
            }
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
        self.outgoing.drain(Instant::now());
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Stores a draft; what it makes wait for devices counts from then on. It was made of what is in memory: after a write
    /// that may have been stored there is no other until memory and store are known to agree.
    pub(super) fn store_draft(&mut self, draft: Draft<'_>) -> StoreResult<()> {
        self.check_sure()?;
        let written = draft.write(self.term);
        self.is_over |= matches!(written, Err(StoreError::TermIsOver));
        self.is_unsure |= matches!(written, Err(StoreError::Unsure(_)));
        written?;
        for (device, by) in draft.pending {
            self.devices.change_pending(device, by);
        }
        Ok(())
    }

    /// Nothing may be answered for by what memory says while the store may say something else.
    pub(super) fn check_sure(&self) -> StoreResult<()> {
        match self.is_unsure {
            true => Err(StoreError::Unavailable("whether an earlier push was stored is being found out".into())),
            false => Ok(()),
        }
    }

    pub(super) fn stored_push(&self, push: u64) -> StoreResult<Option<StoredPush>> {
        match self.store.push_row(&PushKey::Push(push))? {
            Some(PushRow::Push(stored)) => Ok(Some(stored)),
            Some(_) => Err(StoreError::Damaged("a push's row is of another kind".into())),
            None => Ok(None),
        }
    }
}
