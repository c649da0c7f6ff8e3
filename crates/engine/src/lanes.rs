//! Stage 1: per conversation. Three lanes, each with a queue and a worker of its own.
//!
//! A worker takes what its lane has gathered, encodes each entry once, puts the entries of one
//! conversation together in one block, and hands every shard one item: the cost per receiver is
//! then a pointer per block, not per message.

mod places;

use crate::{
    commit::queue::{NoPlace, Party},
    config::EngineConfig,
    delivery::{Block, Fanout, Recipients, Step},
    metrics::Metrics,
    model::*,
    shards::Shards,
};
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::{Condvar, Mutex};
pub use places::LaneSlot;
use places::Places;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::value::RawValue;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Encoded bytes after which a fan-out is closed: bounds the largest frame that a session writes.
const FANOUT_BYTES_MAX: usize = 256 * 1024;
/// Entries after which a fan-out is closed.
const FANOUT_ENTRIES_MAX: usize = 512;

/// Something committed, on its way to live sessions.
#[derive(Debug)]
pub struct Committed {
    pub conversation: Arc<Conversation>,
    /// Members who see the entry and what follows.
    pub joined: Vec<UserNo>,
    /// Members who see the entry and nothing after it.
    pub left: Vec<UserNo>,
    pub entry: Option<StoredEntry>,
    /// Its place in the lane, free again when stage 1 is through.
    pub slot: Option<LaneSlot>,
    /// When the committer took it up.
    pub at: Instant,
}

/// What a lane's worker is given.
enum LaneWork {
    Committed(Vec<Committed>),
    /// Everything up to here was given before: shards are told, and the latch when they know.
    Mark(Position, Arc<Latch>),
}

/// Opens when as many as it was made for have counted it down.
#[derive(Debug)]
pub struct Latch {
    left: Mutex<usize>,
    open: Condvar,
}

impl Latch {
    pub(crate) fn new(left: usize) -> Arc<Latch> {
        Arc::new(Latch { left: Mutex::new(left), open: Condvar::new() })
    }

    pub(crate) fn count_down(&self) {
        let mut left = self.left.lock();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.open.notify_all();
        }
    }

    /// Whether it opened in time.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut left = self.left.lock();
        let closed = |left: &mut usize| *left > 0;
        !self.open.wait_while_for(&mut left, closed, time).timed_out()
    }
}

/// Bounded by its slots: only what holds one is put in the channel.
struct LaneQueue {
    sender: Mutex<Option<Sender<LaneWork>>>,
    places: Arc<Places>,
    /// What the worker was given and is not through with.
    given: Arc<AtomicUsize>,
}

pub struct Lanes {
    queues: [LaneQueue; LANES],
    limit: usize,
    shards: Arc<Shards>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Lanes {
    pub(crate) fn start(config: &EngineConfig, shards: Shards, metrics: Arc<Metrics>) -> Arc<Lanes> {
        let shards = Arc::new(shards);
        let mut workers = Vec::new();
        let queues = Lane::ALL.map(|lane| {
            let (sender, inbox) = unbounded();
            let given = Arc::new(AtomicUsize::new(0));
            let worker = Worker { lane, inbox, given: given.clone(), shards: shards.clone(), metrics: metrics.clone() };
            match std::thread::Builder::new().name(format!("lane-{}", lane.name())).spawn(move || worker.run()) {
                Ok(thread) => workers.push(thread),
                Err(error) => tracing::error!(%error, "no lane thread"),
            }
            LaneQueue { sender: Mutex::new(Some(sender)), places: Places::new(), given }
        });
        Arc::new(Lanes { queues, limit: config.lane_queue, shards, workers: Mutex::new(workers) })
    }

    /// A place in the lane, if it has one left for the party.
    pub(crate) fn reserve(&self, lane: Lane, party: Party) -> Result<LaneSlot, NoPlace> {
        self.queues[lane as usize].places.take(self.limit, party)
    }

    /// Sorts a commit's entries into the lanes, keeping their order.
    pub(crate) fn accept(&self, committed: Vec<Committed>) {
        let mut by_lane: [Vec<Committed>; LANES] = Default::default();
        for item in committed {
            by_lane[item.conversation.lane() as usize].push(item);
        }
        for (queue, items) in self.queues.iter().zip(by_lane) {
            if !items.is_empty()
                && let Some(sender) = &*queue.sender.lock()
            {
                queue.given.fetch_add(items.len(), Ordering::Relaxed);
                let _ = sender.send(LaneWork::Committed(items));
            }
        }
    }

    /// A place in the lane, even above its limit: for what others have committed.
    pub(crate) fn take(&self, lane: Lane) -> LaneSlot {
        self.queues[lane as usize].places.take_anyway()
    }

    /// Whether no worker has more to do than it may. Places that are taken for what has yet to come to it do not count:
    /// they may be waiting for what asks for room here.
    pub(crate) fn have_room(&self) -> bool {
        self.queues.iter().all(|queue| queue.given.load(Ordering::Relaxed) < self.limit)
    }

    /// Has all shards take note that everything up to `position` came to the lanes before. The latch opens when they have.
    pub(crate) fn mark(&self, position: Position) -> Arc<Latch> {
        let latch = Latch::new(self.shards.count() * LANES);
        for queue in &self.queues {
            if let Some(sender) = &*queue.sender.lock() {
                let _ = sender.send(LaneWork::Mark(position, latch.clone()));
            }
        }
        latch
    }

    pub(crate) fn shards(&self) -> &Arc<Shards> {
        &self.shards
    }

    /// Places taken per lane, and how many there are.
    pub(crate) fn depths(&self) -> ([usize; LANES], usize) {
        (self.queues.each_ref().map(|q| q.places.taken()), self.limit)
    }

    /// Fans out what was committed, then ends the workers.
    pub(crate) fn stop(&self) {
        for queue in &self.queues {
            queue.sender.lock().take();
        }
        for worker in self.workers.lock().drain(..) {
            let _ = worker.join();
        }
    }
}

struct Worker {
    lane: Lane,
    inbox: Receiver<LaneWork>,
    given: Arc<AtomicUsize>,
    shards: Arc<Shards>,
    metrics: Arc<Metrics>,
}

impl Worker {
    fn run(self) {
        let mut builder = FanoutBuilder::new(self.lane);
        while let Ok(mut work) = self.inbox.recv() {
            loop {
                match work {
                    LaneWork::Committed(items) => {
                        for item in items {
                            builder.add(item);
                            if builder.is_full() {
                                self.hand_over(&mut builder);
                            }
                        }
                    }
                    LaneWork::Mark(position, latch) => {
                        self.hand_over(&mut builder);
                        self.mark(position, &latch);
                    }
                }
                match self.inbox.try_recv() {
                    Ok(more) => work = more,
                    Err(_) => break,
                }
            }
            self.hand_over(&mut builder);
        }
    }

    fn mark(&self, position: Position, latch: &Arc<Latch>) {
        let steps = vec![Step::Mark(latch.clone())];
        let fanout = Arc::new(Fanout { lane: self.lane, through: position, steps, committed_at: Instant::now() });
        for shard in 0..self.shards.count() {
            self.shards.fan_out(shard, fanout.clone());
        }
    }

    fn hand_over(&self, builder: &mut FanoutBuilder) {
        let items = std::mem::take(&mut builder.items);
        if let Some(fanout) = builder.finish() {
            self.fan_out(fanout);
        }
        self.given.fetch_sub(items, Ordering::Relaxed);
    }

    fn fan_out(&self, (fanout, entries, slots): (Fanout, usize, Vec<LaneSlot>)) {
        self.metrics.lane(self.lane).entries.inc_by(entries as u64);
        let _span = tracing::debug_span!("fan_out", lane = self.lane.name(), entries).entered();
        if self.lane == Lane::Direct {
            self.hand_over_by_user(fanout);
        } else {
            let fanout = Arc::new(fanout);
            for shard in 0..self.shards.count() {
                self.shards.fan_out(shard, fanout.clone());
            }
        }
        drop(slots);
    }

    /// A direct message concerns one or two shards; the others need not hear of it.
    fn hand_over_by_user(&self, fanout: Fanout) {
        let Fanout { lane, through, steps, committed_at } = fanout;
        let mut by_shard: Vec<Vec<Step>> = vec![Vec::new(); self.shards.count()];
        for step in steps {
            if let Step::Block(block) = &step
                && let Recipients::Pair(a, b) = block.recipients
            {
                let (first, second) = (self.shards.shard_of(a), self.shards.shard_of(b));
                if first != second {
                    by_shard[second].push(step.clone());
                }
                by_shard[first].push(step);
            }
        }
        for (shard, steps) in by_shard.into_iter().enumerate() {
            if !steps.is_empty() {
                self.shards.fan_out(shard, Arc::new(Fanout { lane, through, steps, committed_at }));
            }
        }
    }
}

/// A block that still grows.
struct OpenBlock {
    conversation: Arc<Conversation>,
    json: Vec<u8>,
    entries: u32,
}

enum OpenStep {
    Block(OpenBlock),
    Done(Step),
}

/// Builds a fan-out; the encoding happens here, once per entry.
struct FanoutBuilder {
    lane: Lane,
    steps: Vec<OpenStep>,
    /// The open block of each conversation, by its place in `steps`.
    open: FxHashMap<ConversationNo, usize>,
    slots: Vec<LaneSlot>,
    /// Added since the last fan-out.
    items: usize,
    entries: usize,
    bytes: usize,
    through: Position,
    oldest: Option<Instant>,
}

impl FanoutBuilder {
    fn new(lane: Lane) -> Self {
        FanoutBuilder {
            lane,
            steps: Vec::new(),
            open: FxHashMap::default(),
            slots: Vec::new(),
            items: 0,
            entries: 0,
            bytes: 0,
            through: 0,
            oldest: None,
        }
    }

    fn is_full(&self) -> bool {
        self.entries >= FANOUT_ENTRIES_MAX || self.bytes >= FANOUT_BYTES_MAX
    }

    fn add(&mut self, item: Committed) {
        let Committed { conversation, joined, left, entry, slot, at } = item;
        self.items += 1;
        self.oldest.get_or_insert(at);
        self.slots.extend(slot);
        if !joined.is_empty() {
            // What comes after the join must not stand in a block before it.
            self.open.remove(&conversation.no);
            self.steps.push(OpenStep::Done(Step::Join { conversation: conversation.no, users: joined.into() }));
        }
        if let Some(entry) = entry {
            self.append(&conversation, &entry);
        }
        if !left.is_empty() {
            self.open.remove(&conversation.no);
            let id = conversation.id.as_str().into();
            self.steps.push(OpenStep::Done(Step::Leave { conversation: conversation.no, id, users: left.into() }));
        }
    }

    fn append(&mut self, conversation: &Arc<Conversation>, entry: &StoredEntry) {
        let at = *self.open.entry(conversation.no).or_insert_with(|| {
            let block = OpenBlock { conversation: conversation.clone(), json: Vec::with_capacity(512), entries: 0 };
            self.steps.push(OpenStep::Block(block));
            self.steps.len() - 1
        });
        if let OpenStep::Block(block) = &mut self.steps[at] {
            let before = block.json.len();
            block.json.push(b',');
            encode_entry(&mut block.json, &conversation.id, entry);
            block.entries += 1;
            self.bytes += block.json.len() - before;
        }
        self.entries += 1;
        self.through = entry.position;
    }

    /// The fan-out, its number of entries, and the slots to free once it is handed over.
    fn finish(&mut self) -> Option<(Fanout, usize, Vec<LaneSlot>)> {
        if self.steps.is_empty() {
            self.slots.clear();
            return None;
        }
        let steps = self.steps.drain(..).map(|step| match step {
            OpenStep::Done(step) => step,
            OpenStep::Block(OpenBlock { conversation, json, entries }) => {
                let recipients = conversation.pair.map_or(Recipients::Audience, |(a, b)| Recipients::Pair(a, b));
                Step::Block(Arc::new(Block { conversation: conversation.no, recipients, entries, json: json.into() }))
            }
        });
        let fanout = Fanout {
            lane: self.lane,
            through: self.through,
            steps: steps.collect(),
            committed_at: self.oldest.take().unwrap_or_else(Instant::now),
        };
        self.open.clear();
        self.bytes = 0;
        Some((fanout, std::mem::take(&mut self.entries), std::mem::take(&mut self.slots)))
    }
}

/// Writes an entry as clients see it: the same JSON as [`tidings_protocol::entry::Entry`], straight
/// from what is stored.
pub fn encode_entry(out: &mut Vec<u8>, conversation: &str, entry: &StoredEntry) {
    #[derive(Serialize)]
    struct Wire<'a> {
        conversation: &'a str,
        seq: u64,
        kind: EntryKind,
        at: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        client_msg_id: Option<&'a str>,
        #[serde(rename = "type")]
        content_type: &'a str,
        body: &'a RawValue,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        mentions: &'a [String],
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        silent: bool,
    }
    let content = &entry.content;
    let parsed: Result<&RawValue, _> = serde_json::from_str(&content.body);
    let body = parsed.unwrap_or(RawValue::NULL);
    let wire = Wire {
        conversation,
        seq: entry.seq,
        kind: content.kind,
        at: entry.at,
        from: content.sender.as_ref().map(|s| s.id.as_str()),
        client_msg_id: content.client_msg_id.as_deref(),
        content_type: &content.content_type,
        body,
        mentions: &content.mentions,
        silent: content.silent,
    };
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(out, &wire);
}
