//! The worker: one thread that owns the devices, the running pushes and the reports that are not stored yet.
//!
//! This file is its turn. What a turn is made of stands in the files below, each with its part of [`Worker`]. In reading
//! order:
//! - `inbox`: the worker's queues;
//! - `accept`, `start`: a push becomes durable, then it reaches its targets; `backlog`: pushes that a device has missed;
//! - `registration`: a session's device becomes known; `device_numbers`: the numbers of devices;
//! - `collapse`: the newest push with a key replaces older ones; `delivery_reports`: what devices were written and have
//!   acknowledged; `jobs`: scheduled starts, ends and purges;
//! - `fallbacks`: devices that have not acknowledged a push in time;
//! - `operations`: what the operations of the HTTP API ask; `recovery`: memory is rebuilt from the store.

mod accept;
mod backlog;
mod collapse;
mod delivery_reports;
mod device_numbers;
mod fallbacks;
mod inbox;
mod jobs;
mod operations;
mod recovery;
mod registration;
mod start;

pub(crate) use accept::state_of;
pub(crate) use inbox::{Accept, Inbox, Queues};
pub(crate) use operations::has_ended;

use crate::{
    PushConfig, PushFrame, PushParts, PushReports,
    audience::Audience,
    devices::{Devices, SessionEnd},
    draft::Draft,
    outgoing::{OUTGOING_MAX, Outgoing},
    remote::{LocalSessions, PeerEvent},
    reports::{by_push, devices_of},
};
use backlog::BacklogBatch;
use delivery_reports::DeliveryReport;
use device_numbers::DeviceNumbers;
use jobs::Job;
use quick_cache::unsync::Cache;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    clock::Clock,
    failure_log::FailureLog,
    feed_note::{FeedNote, NotesRow},
    feed_notes::FeedNotes,
    leadership::Leadership,
    metrics::Metrics,
    push_store::{DeviceNo, PushKey, PushRow, PushStage, StoredPush},
    store::{Store, StoreError, StoreResult, Term},
    user_limiter::UserLimiter,
};
use tidings_protocol::http::{EventType, PushEvent};

/// How long the worker sleeps when nothing comes in: starts and ends are at most so late.
const TICK: Duration = Duration::from_millis(100);
/// The same while a shard's queue is full.
const SHARD_FULL_TICK: Duration = Duration::from_millis(2);
/// The wait after the store failed.
const STORE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Frames of named pushes that are kept encoded.
const FRAMES_CACHED: usize = 4_096;
/// Local sessions registered anew in one turn.
const REGISTERS_PER_TURN: usize = 4_096;
/// Writes in one turn that are not urgent: reports, ends, purges.
const WRITES_PER_TURN: usize = 8;

/// What the worker knows of the store. Each transition is labelled where it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreState {
    /// Memory and store agree.
    InSync,
    /// A write may be stored or not. Nothing is written, and no push is accepted, until the state has been read anew.
    OutcomeUnknown {
        /// When the last try to read it failed.
        reload_failed_at: Option<Instant>,
    },
    /// The store has refused the term: another node leads.
    TermOver,
}

pub(crate) struct Worker {
    config: PushConfig,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    feed_notes: Arc<FeedNotes>,
    metrics: Arc<Metrics>,
    devices: Devices,
    /// Running pushes to many, by number.
    audiences: BTreeMap<u64, Audience>,
    last_push: u64,
    numbers: DeviceNumbers,
    /// How many new devices each user had lately.
    new_devices: UserLimiter,
    /// How many pushes wait for their start.
    scheduled: usize,
    /// Reports on targets of named pushes that are not stored yet.
    reports: BTreeMap<(DeviceNo, u64), DeliveryReport>,
    /// Devices whose last bind is not stored yet.
    last_bound_dirty: BTreeSet<DeviceNo>,
    /// The batch that each device was handed last, while more of its backlog is left.
    backlogs: FxHashMap<DeviceNo, BacklogBatch>,
    /// Devices that are to be handed the next batch of their backlog.
    backlogs_due: FxHashSet<DeviceNo>,
    /// Pushes that are being ended or purged.
    jobs: BTreeMap<u64, Job>,
    /// Pushes to many that still have to collapse older named pushes, each with the next device.
    collapsing: BTreeMap<u64, u32>,
    frames: Cache<u64, Arc<PushFrame>>,
    outgoing: Outgoing,
    local_sessions: LocalSessions,
    /// Local sessions that are to be registered with this worker, by id.
    unregistered: Vec<u64>,
    lead: Leadership,
    term: Term,
    store_state: StoreState,
    inbox: Arc<Inbox>,
    flushed_at: Instant,
    /// When the store failed last, if it has not worked since.
    store_failed_at: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(parts: &PushParts, inbox: Arc<Inbox>, term: Term, local_sessions: LocalSessions) -> Worker {
        Worker {
            config: parts.config.clone(),
            store: parts.store.clone(),
            clock: parts.clock.clone(),
            feed_notes: parts.feed_notes.clone(),
            metrics: parts.metrics.clone(),
            lead: parts.lead.clone(),
            term,
            store_state: StoreState::InSync,
            devices: Devices::default(),
            audiences: BTreeMap::new(),
            last_push: 0,
            numbers: DeviceNumbers::default(),
            new_devices: UserLimiter::per_minute(parts.config.new_devices, parts.clock.clone()),
            scheduled: 0,
            reports: BTreeMap::new(),
            last_bound_dirty: BTreeSet::new(),
            backlogs: FxHashMap::default(),
            backlogs_due: FxHashSet::default(),
            jobs: BTreeMap::new(),
            collapsing: BTreeMap::new(),
            frames: Cache::new(FRAMES_CACHED),
            outgoing: Outgoing::new(parts.shards.clone(), parts.transport.clone(), parts.metrics.clone()),
            unregistered: local_sessions.ids().collect(),
            local_sessions,
            inbox,
            flushed_at: Instant::now(),
            store_failed_at: None,
        }
    }

    /// Runs until the server stops or another node leads; answers whether the server stops.
    pub(crate) fn serve(&mut self) -> bool {
        // Registrations and pushes wait in the inbox meanwhile.
        let failures = FailureLog::new("push could not read what is stored; it tries again");
        while let Err(error) = self.recover() {
            failures.failed(&error);
            if self.inbox.is_stopping_within(STORE_RETRY_AFTER) {
                return true;
            }
            if self.has_lost_lead() {
                return false;
            }
        }
        failures.succeeded();
        self.outgoing.peers.announce_leader();
        while self.turn() {
            if self.has_lost_lead() {
                return false;
            }
        }
        true
    }

    /// Ends a term whose lead is lost. Answers this node's sessions, and the term if the store has refused it.
    pub(crate) fn lose_lead(mut self) -> (LocalSessions, Option<Term>) {
        self.outgoing.hand_over_answers(|| self.inbox.is_stopping());
        let refused = (self.store_state == StoreState::TermOver).then_some(self.term);
        (self.local_sessions, refused)
    }

    /// Whether another node leads, as far as this node or the store knows.
    fn has_lost_lead(&self) -> bool {
        self.store_state == StoreState::TermOver || self.lead.term() != Some(self.term)
    }

    /// One turn; answers whether there is another.
    fn turn(&mut self) -> bool {
        let timeout = match () {
            () if self.outgoing.len() > 0 => SHARD_FULL_TICK,
            () if self.has_work_left() => Duration::ZERO,
            () => TICK,
        };
        let queues = self.inbox.take(timeout, self.outgoing.len() < OUTGOING_MAX);
        self.reconcile();
        self.metrics.push_notes_dropped.inc_by(queues.reports_dropped);
        let PushReports { written, acknowledged } = queues.reports;
        by_push(written, |push, reports| self.written(push, &devices_of(reports)));
        by_push(acknowledged, |push, reports| self.acknowledged(push, &devices_of(reports)));
        for (shard, session, device) in queues.ended_sessions {
            self.local_sessions.remove(shard, session);
            if let Some(device) = device {
                self.session_ended(device, shard, session);
            }
        }
        self.take_peer_messages(&queues.peer_messages);
        if self.outgoing.len() < OUTGOING_MAX {
            self.register_local_sessions();
        }
        if self.inbox.has_peers() {
            for register in &queues.registers {
                self.local_sessions.put(register.clone());
            }
        }
        self.register_all(&queues.registers);
        // Before pushes are accepted: these devices would be handed a push that starts now, and again with their backlog.
        self.send_due_backlogs();
        self.accept_all(queues.accepts);
        for ask in queues.asks {
            ask(self);
        }
        if queues.stopping {
            self.settle();
            self.outgoing.drain(Instant::now());
            return false;
        }
        let result = self.do_due_writes();
        self.note_failure(result);
        self.outgoing.drain(Instant::now());
        true
    }

    fn take_peer_messages(&mut self, messages: &[Vec<u8>]) {
        let now = Instant::now();
        let peers = &mut self.outgoing.peers;
        let events: Vec<PeerEvent> = messages.iter().flat_map(|message| peers.on_message(message, now)).collect();
        for event in events {
            match event {
                PeerEvent::Written { push, devices } => self.written(push, &devices),
                PeerEvent::Acknowledged { push, devices } => self.acknowledged(push, &devices),
                PeerEvent::SessionEnded { destination, device, session } => {
                    self.session_ended(device, destination, session);
                }
                PeerEvent::Disconnected(destination) => self.end_sessions_at(destination),
            }
        }
        let registers = self.outgoing.peers.take_registers();
        self.register_all(&registers);
        for destination in self.outgoing.peers.take_disconnected(now) {
            self.end_sessions_at(destination);
        }
    }

    fn session_ended(&mut self, device: DeviceNo, destination: usize, session: u64) {
        match self.devices.end_session(device, destination, session) {
            SessionEnd::NotCurrent => {}
            SessionEnd::Offline => drop(self.backlogs.remove(&device)),
            SessionEnd::Replaced => {
                self.backlogs.remove(&device);
                self.backlogs_due.insert(device);
            }
        }
    }

    fn end_sessions_at(&mut self, destination: usize) {
        for (device, session) in self.devices.sessions_at(destination) {
            self.session_ended(device, destination, session);
        }
    }

    /// Registers local sessions that had another leader before, or whose registration failed.
    fn register_local_sessions(&mut self) {
        if self.unregistered.is_empty() || self.store_failed_lately() {
            return;
        }
        let first = self.unregistered.len().saturating_sub(REGISTERS_PER_TURN);
        let some = self.unregistered.split_off(first);
        let registers: Vec<_> = some.into_iter().filter_map(|id| self.local_sessions.register(id).cloned()).collect();
        self.register_all(&registers);
    }

    fn store_failed_lately(&self) -> bool {
        self.store_failed_at.is_some_and(|at| at.elapsed() < STORE_RETRY_AFTER)
    }

    /// Does a bounded part of what is due and what is to be stored.
    fn do_due_writes(&mut self) -> StoreResult<()> {
        if self.store_state != StoreState::InSync || self.store_failed_lately() {
            return Ok(());
        }
        self.fire_timers()?;
        self.work_on_jobs(WRITES_PER_TURN)?;
        self.work_on_collapses(WRITES_PER_TURN)?;
        if self.flushed_at.elapsed() >= self.config.flush_interval || self.has_work_left() {
            let all = self.flush(WRITES_PER_TURN)?;
            if all {
                self.flushed_at = Instant::now();
            }
        }
        self.store_failed_at = None;
        Ok(())
    }

    /// After a write whose outcome is unknown: reads the state as it is stored, before anything else is taken in.
    fn reconcile(&mut self) {
        let StoreState::OutcomeUnknown { reload_failed_at } = self.store_state else { return };
        if reload_failed_at.is_some_and(|at| at.elapsed() < STORE_RETRY_AFTER) {
            return;
        }
        let reloaded = self.reload();
        if reloaded.is_err() {
            // OutcomeUnknown => OutcomeUnknown: wait before the next try.
            self.store_state = StoreState::OutcomeUnknown { reload_failed_at: Some(Instant::now()) };
        }
        self.note_failure(reloaded);
    }

    fn note_failure(&mut self, result: StoreResult<()>) {
        if let Err(error) = result {
            if matches!(error, StoreError::StaleTerm) {
                // InSync or OutcomeUnknown => TermOver: the next leader reads what is stored.
                self.store_state = StoreState::TermOver;
            }
            if self.store_failed_at.is_none() {
                tracing::warn!(%error, "push could not store; it tries again");
            }
            self.store_failed_at = Some(Instant::now());
        }
    }

    /// Whether there is more to do than one turn does, so that the next turn begins at once.
    fn has_work_left(&self) -> bool {
        let has_work = !self.jobs.is_empty()
            || !self.collapsing.is_empty()
            || self.reports.len() > 1_000
            || !self.backlogs_due.is_empty()
            || !self.unregistered.is_empty();
        has_work && self.store_failed_at.is_none()
    }

    /// Does and stores everything that is due by now.
    pub(crate) fn settle(&mut self) {
        let result = (|| {
            if let StoreState::OutcomeUnknown { .. } = self.store_state {
                self.reload()?;
            }
            loop {
                self.fire_timers()?;
                self.work_on_collapses(usize::MAX)?;
                if self.jobs.is_empty() {
                    break;
                }
                self.work_on_jobs(usize::MAX)?;
            }
            self.send_due_backlogs();
            while !self.flush(usize::MAX)? {}
            Ok(())
        })();
        self.note_failure(result);
        self.outgoing.drain(Instant::now());
    }

    fn now(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The feed of events has the pushes whose rows change.
    fn note_pushes(&self, draft: &mut Draft<'_>) {
        if !self.feed_notes.wants(EventType::Push) {
            return;
        }
        let accepted = draft.pushes().filter(|push| push.stage != PushStage::Preparing);
        let notes =
            accepted.map(|push| FeedNote::new(EventType::Push, &push.push.to_string(), self.now(), &event_of(push)));
        for NotesRow { no, bytes } in self.feed_notes.rows(notes.collect()) {
            draft.put(PushRow::Notes { no, bytes });
        }
    }

    /// Stores a draft. Its changes to the devices' counts of pending pushes take effect only once it is stored.
    fn store_draft(&mut self, mut draft: Draft<'_>) -> StoreResult<()> {
        self.check_in_sync()?;
        self.note_pushes(&mut draft);
        let written = draft.write(self.term);
        match &written {
            // InSync => OutcomeUnknown: the draft was made from memory, and so would the next one be.
            Err(StoreError::OutcomeUnknown(_)) => {
                self.store_state = StoreState::OutcomeUnknown { reload_failed_at: None };
            }
            // InSync => TermOver.
            Err(StoreError::StaleTerm) => self.store_state = StoreState::TermOver,
            _ => {}
        }
        written?;
        for (device, by) in draft.pending {
            self.devices.change_pending(device, by);
        }
        Ok(())
    }

    /// Refuses while memory may differ from the store: an answer from memory could be wrong.
    fn check_in_sync(&self) -> StoreResult<()> {
        match self.store_state {
            StoreState::InSync => Ok(()),
            StoreState::OutcomeUnknown { .. } => {
                Err(StoreError::Unavailable("the outcome of an earlier write is not known yet".into()))
            }
            StoreState::TermOver => Err(StoreError::StaleTerm),
        }
    }

    fn stored_push(&self, push: u64) -> StoreResult<Option<StoredPush>> {
        match self.store.push_row(&PushKey::Push(push))? {
            Some(PushRow::Push(stored)) => Ok(Some(stored)),
            Some(_) => Err(StoreError::Damaged("a push's row is of another kind".into())),
            None => Ok(None),
        }
    }
}

/// A push as the feed of events has it.
fn event_of(push: &StoredPush) -> PushEvent {
    PushEvent {
        push: push.push,
        state: state_of(push.stage),
        client_push_id: push.client_push_id.clone(),
        content_type: push.content_type.clone(),
        accepted_at: push.accepted_at,
        send_at: push.send_at,
        started_at: push.started_at,
        ended_at: push.ended_at,
        targets: push.targets,
    }
}
