//! An engine without sockets, and a store that can be held up or made to fail.
#![allow(unreachable_pub)]

pub mod lost_answers;
pub mod side_log;

use crossbeam_channel::{Receiver, Sender, bounded};
use lost_answers::{LostAnswers, Write};
use parking_lot::Mutex;
use side_log::MemorySideLog;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_domain::{
    bus::Bus,
    commit_log::{CommitLog, NodeDetails, NodeInfo},
    model::*,
    push_store::*,
    store::*,
    stored_id::StoredId,
};
use tidings_engine::{
    Engine, EngineParts,
    cluster::ClusterParts,
    config::EngineConfig,
    shards::{ShardReceivers, Wake},
};
use tidings_popups::PopupsConfig;
use tidings_protocol::http::*;
use tidings_testkit::{ManualClock, MemoryStore};

/// Nothing here takes a second on an idle machine; this is for one that is not.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Of nodes of which none is to be taken for gone, however long its threads are kept from running.
pub const LONG_LEASE: Duration = Duration::from_secs(600);
/// 2026-03-01 12:00 UTC.
pub const NOON: u64 = 1_772_366_400_000;

struct Asleep;

impl Wake for Asleep {
    fn wake(&self) {}
}

pub struct World {
    pub engine: Arc<Engine>,
    pub clock: Arc<ManualClock>,
    pub receivers: Vec<ShardReceivers>,
    runtime: tokio::runtime::Runtime,
}

impl World {
    pub fn new(config: EngineConfig, store: Arc<dyn Store>) -> World {
        World::of(config, store, None)
    }

    /// One of several nodes on one store.
    pub fn node_on(
        name: &str,
        store: &Arc<MemoryStore>,
        log: Arc<dyn CommitLog>,
        bus: Arc<dyn Bus>,
        lease: Duration,
    ) -> World {
        World::node_with(PopupsConfig::default(), name, store.clone(), log, bus, (lease, Duration::MAX))
    }

    /// The same by its own way to the store, with the time after which functions move.
    pub fn node_with(
        popups: PopupsConfig,
        name: &str,
        store: Arc<dyn Store>,
        log: Arc<dyn CommitLog>,
        bus: Arc<dyn Bus>,
        (lease, balance_after): (Duration, Duration),
    ) -> World {
        let (address, link) = (format!("http://{name}"), String::new());
        let (version, roles) = ("1".into(), "all".into());
        let node_info = NodeInfo {
            name: name.into(),
            boot_id: rand::random(),
            address,
            link,
            version,
            roles,
            details: NodeDetails::of_this_program(),
        };
        let cluster = ClusterParts {
            log,
            bus,
            node: node_info,
            lease,
            may_lead: true,
            balance_after,
            recent_bytes_max: 1 << 20,
            fingerprints: Default::default(),
        };
        let events_keep = Duration::from_secs(86_400);
        World::of(EngineConfig { shards: 1, popups, events_keep, ..EngineConfig::default() }, store, Some(cluster))
    }

    fn of(config: EngineConfig, store: Arc<dyn Store>, cluster: Option<ClusterParts>) -> World {
        let config = patient(config);
        let clock = Arc::new(ManualClock::default());
        clock.set(NOON);
        let wakes = vec![Arc::new(Asleep) as Arc<dyn Wake>];
        let parts = EngineParts { config, clock: clock.clone(), store, wakes, cluster };
        let (engine, receivers) = Engine::start(parts);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        World { engine, clock, receivers, runtime }
    }

    /// Waits until the node knows what was committed: callers are answered before that.
    pub fn settle(&self) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while self.engine.directory.current() < self.engine.store.last_position() {
            assert!(std::time::Instant::now() < deadline, "the node does not know what was committed");
            std::thread::yield_now();
        }
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.handle().block_on(future)
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(future)
    }

    pub fn users(&self, ids: &[&str]) {
        let users = ids.iter().map(|id| UserUpsert { id: (*id).into(), ..UserUpsert::default() }).collect();
        self.wait(self.engine.upsert_users(users)).unwrap();
    }

    pub fn user(&self, id: &str) -> Arc<User> {
        self.engine.directory.require_user(id).unwrap()
    }

    /// The first member is the owner.
    pub fn conversation(&self, kind: ConversationKind, id: &str, members: &[&str]) {
        // A direct conversation has no owner, and its id of its members.
        let owners = usize::from(kind != ConversationKind::Direct);
        let new = CreateConversation {
            id: (owners == 1).then(|| id.into()),
            kind,
            name: None,
            avatar: None,
            attributes: None,
            owner: (owners == 1).then(|| members[0].into()),
            members: members[owners..].iter().map(|m| (*m).into()).collect(),
            receipts: None,
            history: None,
            mention_all: None,
            blocks: None,
            reactions: None,
            posting: None,
            slow_mode_s: None,
            join_requests: None,
            expires: None,
        };
        self.wait(self.engine.create_conversation(&Actor::App, new)).unwrap();
    }

    /// Takes what the lanes hand out, as a shard would: without it they fill.
    pub fn take_fanouts(&self) {
        for receivers in &self.receivers {
            receivers.lanes.iter().for_each(|lane| while lane.try_recv().is_ok() {});
        }
    }
}

/// Refuses nobody because a commit takes long, because a lane is behind, or because an exposure waits for long to be stored,
/// unless a test wants that: who does it may be kept from running.
pub fn patient(mut config: EngineConfig) -> EngineConfig {
    let default = EngineConfig::default();
    let patient = |time: &mut Duration, default: Duration| {
        if *time == default {
            *time = PATIENCE;
        }
    };
    patient(&mut config.commit_time_max, default.commit_time_max);
    patient(&mut config.popups.undurable_max, default.popups.undurable_max);
    if config.lane_queue == default.lane_queue {
        config.lane_queue = 1 << 16;
    }
    config
}

/// Has a node look now who is there and who leads, not only when a part of its lease is over.
pub fn look_around(engine: &Engine) {
    let nodes = &engine.cluster.as_ref().unwrap().nodes;
    nodes.announce_addresses(nodes.me().address.clone(), nodes.me().link.clone());
}

impl Drop for World {
    fn drop(&mut self) {
        // Nobody hands out any more: the lanes must not wait for it.
        self.receivers.clear();
        self.engine.stop();
    }
}

pub fn message(from: &str, conversation: &str, text: &str) -> SendRequest {
    SendRequest {
        conversation: Some(conversation.into()),
        to: None,
        from: Some(from.into()),
        client_msg_id: Some(text.into()),
        content_type: "text".into(),
        body: serde_json::value::to_raw_value(text).unwrap(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        reply_to: None,
        expires: None,
    }
}

/// A store in memory whose commits wait at a gate, or fail a number of times.
pub struct Troubled {
    inner: Arc<MemoryStore>,
    pub lost_answers: LostAnswers,
    pub side_log: MemorySideLog,
    popup_reads: AtomicUsize,
    push_reads: AtomicUsize,
    gate: Mutex<Option<Receiver<()>>>,
    entered: (Sender<()>, Receiver<()>),
    failures: AtomicUsize,
    push_failures: AtomicUsize,
    row_failures: AtomicUsize,
    push_gate: Mutex<Option<Receiver<()>>>,
    pushes_entered: (Sender<()>, Receiver<()>),
    row_gate: Mutex<Option<Receiver<()>>>,
    rows_entered: (Sender<()>, Receiver<()>),
    rows_written: (Sender<()>, Receiver<()>),
}

impl Default for Troubled {
    fn default() -> Self {
        Troubled::on(Arc::default())
    }
}

impl Troubled {
    /// One node's way to a store.
    pub fn on(inner: Arc<MemoryStore>) -> Self {
        let (lost_answers, side_log) = Default::default();
        let [gate, push_gate, row_gate] = [(); 3].map(|()| Mutex::new(None));
        let [entered, pushes_entered, rows_entered, rows_written] = [(); 4].map(|()| bounded(1));
        let [failures, push_failures, row_failures, popup_reads, push_reads] = [(); 5].map(|()| AtomicUsize::new(0));
        Troubled {
            inner,
            lost_answers,
            side_log,
            popup_reads,
            push_reads,
            gate,
            entered,
            failures,
            push_failures,
            row_failures,
            push_gate,
            pushes_entered,
            row_gate,
            rows_entered,
            rows_written,
        }
    }

    /// How often rows of popups were read so far, each time one or many.
    pub fn popup_reads(&self) -> usize {
        self.popup_reads.load(Ordering::SeqCst)
    }

    /// How often rows of push were read so far.
    pub fn push_reads(&self) -> usize {
        self.push_reads.load(Ordering::SeqCst)
    }

    fn read(&self, space: RowSpace) -> &MemoryStore {
        self.lost_answers.read(&self.inner);
        if space == RowSpace::Popups {
            self.popup_reads.fetch_add(1, Ordering::SeqCst);
        }
        &self.inner
    }

    fn read_push(&self) -> &MemoryStore {
        self.lost_answers.read(&self.inner);
        self.push_reads.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

impl Troubled {
    /// From now on every commit waits until the returned end is dropped.
    pub fn close_gate(&self) -> Sender<()> {
        let (open, gate) = bounded(0);
        *self.gate.lock() = Some(gate);
        // Of a commit that passed a gate before, after it was opened.
        let _ = self.entered.1.try_recv();
        open
    }

    /// Waits until a commit stands at the gate.
    pub fn wait_for_commit(&self) {
        self.entered.1.recv_timeout(PATIENCE).unwrap();
    }

    /// The next commits find a full disk.
    pub fn fail(&self, times: usize) {
        self.failures.store(times, Ordering::SeqCst);
    }
}

impl Troubled {
    /// The next writes of push find a full disk.
    pub fn fail_push(&self, times: usize) {
        self.push_failures.store(times, Ordering::SeqCst);
    }

    /// From now on every write of push waits until the returned end is dropped.
    pub fn close_push_gate(&self) -> Sender<()> {
        let (open, gate) = bounded(0);
        *self.push_gate.lock() = Some(gate);
        let _ = self.pushes_entered.1.try_recv();
        open
    }

    /// Waits until a write of push stands at the gate.
    pub fn wait_for_pushes(&self) {
        self.pushes_entered.1.recv_timeout(PATIENCE).unwrap();
    }

    /// From now on every write of popups waits until the returned end is dropped.
    pub fn close_row_gate(&self) -> Sender<()> {
        let (open, gate) = bounded(0);
        *self.row_gate.lock() = Some(gate);
        let _ = self.rows_entered.1.try_recv();
        open
    }

    /// Waits until a write of popups stands at the gate.
    pub fn wait_for_rows(&self) {
        self.rows_entered.1.recv_timeout(PATIENCE).unwrap();
    }

    /// Waits for the next write of popups.
    pub fn wait_until_rows_are_written(&self) {
        self.rows_written.1.recv_timeout(PATIENCE).unwrap();
    }

    pub fn forget_rows_written(&self) {
        let _ = self.rows_written.1.try_recv();
    }

    /// The next writes of popups find a full disk.
    pub fn fail_rows(&self, times: usize) {
        self.row_failures.store(times, Ordering::SeqCst);
    }
}

impl Store for Troubled {
    fn fence_writes(&self, _: Term) -> StoreResult<()> {
        self.lost_answers.fence(&self.inner);
        Ok(())
    }
    fn commit(&self, batch: &[Proposal], now_ms: u64) -> StoreResult<Vec<Outcome>> {
        let gate = self.gate.lock().clone();
        if let Some(gate) = gate {
            let _ = self.entered.0.try_send(());
            let _ = gate.recv();
        }
        let left = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(StoreError::DiskFull);
        }
        self.inner.commit(batch, now_ms)
    }
    fn log_after(&self, after: Position, limit: usize) -> StoreResult<tidings_domain::log_records::LogPage> {
        self.inner.log_after(after, limit)
    }
    fn find_ids(
        &self,
        of: NamedKind,
        prefix: Option<StoredId<'_>>,
        after: Option<StoredId<'_>>,
        limit: usize,
    ) -> StoreResult<Vec<(String, u64)>> {
        self.inner.find_ids(of, prefix, after, limit)
    }
    fn stored_seqs(&self, requests: &[(ConversationNo, UserNo, &str)]) -> StoreResult<Vec<Option<u64>>> {
        self.inner.stored_seqs(requests)
    }
    fn log_start(&self) -> StoreResult<Option<Position>> {
        self.inner.log_start()
    }
    fn last_numbers(&self) -> StoreResult<tidings_domain::store::LastNumbers> {
        self.inner.last_numbers()
    }
    fn epoch(&self) -> u64 {
        self.inner.epoch()
    }
    fn last_position(&self) -> Position {
        self.inner.last_position()
    }
    fn find_user(&self, id: StoredId<'_>) -> StoreResult<Option<UserNo>> {
        self.inner.find_user(id)
    }
    fn user(&self, no: UserNo) -> StoreResult<Option<User>> {
        self.inner.user(no)
    }
    fn last_seen(&self, no: UserNo) -> StoreResult<Option<u64>> {
        self.inner.last_seen(no)
    }
    fn find_conversation(&self, id: StoredId<'_>) -> StoreResult<Option<ConversationNo>> {
        self.inner.find_conversation(id)
    }
    fn conversation(&self, no: ConversationNo) -> StoreResult<Option<Conversation>> {
        self.inner.conversation(no)
    }
    fn head(&self, no: ConversationNo) -> StoreResult<Head> {
        self.inner.head(no)
    }
    fn membership(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Option<Membership>> {
        self.inner.membership(conversation, user)
    }
    fn members(&self, c: ConversationNo, after: Option<UserNo>, n: usize) -> StoreResult<Vec<(UserNo, Membership)>> {
        self.inner.members(c, after, n)
    }
    fn conversations_of(&self, user: UserNo, direct: bool, n: usize) -> StoreResult<Vec<UserConversation>> {
        self.inner.conversations_of(user, direct, n)
    }
    fn entries(&self, c: ConversationNo, a: u64, b: u64, n: usize, from: End) -> StoreResult<Vec<StoredEntry>> {
        self.inner.entries(c, a, b, n, from)
    }
    fn seq_at(&self, conversation: ConversationNo, at_ms: u64) -> StoreResult<u64> {
        self.inner.seq_at(conversation, at_ms)
    }
    fn outbox(&self, after: Position, limit: usize) -> StoreResult<Vec<OutboxItem>> {
        self.inner.outbox(after, limit)
    }
    fn outbox_position(&self) -> StoreResult<Position> {
        self.inner.outbox_position()
    }
    fn stored_notifications(
        &self,
        table: NotificationTable,
        after: Option<u64>,
        limit: usize,
    ) -> StoreResult<Vec<StoredNotification>> {
        self.inner.stored_notifications(table, after, limit)
    }
    fn retain_but(&self, retention: Retention, except: &[ConversationNo], now_ms: u64) -> StoreResult<u64> {
        self.inner.retain_but(retention, except, now_ms)
    }
    fn retain_in(&self, conversation: ConversationNo, retention: Retention, now_ms: u64) -> StoreResult<RetainedIn> {
        self.inner.retain_in(conversation, retention, now_ms)
    }
    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}

impl PushStore for Troubled {
    fn write_push(&self, term: Term, changes: &[PushChange]) -> StoreResult<()> {
        let gate = self.push_gate.lock().clone();
        if let Some(gate) = gate {
            let _ = self.pushes_entered.0.try_send(());
            let _ = gate.recv();
        }
        let left = |left: usize| left.checked_sub(1);
        if self.push_failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(StoreError::DiskFull);
        }
        self.lost_answers.write(&self.inner, Write::Push(term, changes.to_vec()))
    }
    fn push_row(&self, key: &PushKey) -> StoreResult<Option<PushRow>> {
        self.read_push().push_row(key)
    }
    fn push_rows(&self, from: &PushKey, to: &PushKey, limit: usize) -> StoreResult<Vec<PushRow>> {
        self.read_push().push_rows(from, to, limit)
    }
    fn push_rows_of(&self, keys: &[PushKey]) -> StoreResult<Vec<Option<PushRow>>> {
        self.read_push().push_rows_of(keys)
    }
}

impl RowStore for Troubled {
    fn write_rows(&self, term: Term, space: RowSpace, changes: Vec<RowChange>) -> StoreResult<()> {
        let gate = self.row_gate.lock().clone();
        if let Some(gate) = gate {
            let _ = self.rows_entered.0.try_send(());
            let _ = gate.recv();
        }
        let left = |left: usize| left.checked_sub(1);
        if self.row_failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(StoreError::DiskFull);
        }
        let written = self.lost_answers.write(&self.inner, Write::Rows(term, space, changes));
        let _ = self.rows_written.0.try_send(());
        written
    }
    fn row(&self, space: RowSpace, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.read(space).row(space, key)
    }
    fn rows(&self, space: RowSpace, from: &[u8], to: &[u8], limit: usize) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        self.read(space).rows(space, from, to, limit)
    }
    fn rows_of(&self, space: RowSpace, keys: &[Vec<u8>]) -> StoreResult<Vec<Option<Vec<u8>>>> {
        self.read(space).rows_of(space, keys)
    }
    fn has_side_log(&self) -> bool {
        self.side_log.is_enabled()
    }
    fn append_to_side_log(&self, changes: &[RowChange]) -> StoreResult<()> {
        self.side_log.append(changes)
    }
    fn rotate_side_log(&self) {
        self.side_log.rotate();
    }
    fn truncate_rotated_side_log(&self) -> StoreResult<()> {
        self.side_log.truncate_rotated();
        Ok(())
    }
    fn read_side_log(&self) -> StoreResult<Vec<RowChange>> {
        Ok(self.side_log.all())
    }
    fn truncate_side_log(&self) -> StoreResult<()> {
        self.side_log.truncate();
        Ok(())
    }
}

/// Histories of one store. A resume looks at all conversations, so that more would make it slow.
pub const HISTORIES_PER_STORE: usize = 100;

/// Runs as many random histories as the variable `HISTORIES` says, or `default`. Each store has a seed of its own, the first one
/// `first_seed` or what the variable `FIRST_SEED` says, so that a long run goes on where it was stopped. Several stores run
/// at once, since most of a history's time is spent waiting for its store.
pub fn run_histories(
    default: usize,
    first_seed: u64,
    run: impl Fn(u64, usize, Arc<dyn Store>) + Sync,
    store: impl Fn() -> Arc<dyn Store> + Sync,
) {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    let count = number("HISTORIES").map_or(default, |count| count as usize);
    let first_seed = number("FIRST_SEED").unwrap_or(first_seed);
    let chunks = (0..count).step_by(HISTORIES_PER_STORE).map(|first| (count - first).min(HISTORIES_PER_STORE));
    let chunks = Mutex::new((first_seed..).zip(chunks));
    let work = || {
        loop {
            let next = chunks.lock().next();
            let Some((seed, histories)) = next else { break };
            run(seed, histories, store());
        }
    };
    std::thread::scope(|scope| (0..STORES_AT_ONCE).for_each(|_| drop(scope.spawn(work))));
}

/// Stores whose random histories run at the same time.
const STORES_AT_ONCE: usize = 4;
