//! Stage 1: per conversation. Three lanes, each with a queue and a worker of its own.
//!
//! A worker takes the items that its lane has gathered, encodes each entry once, puts the entries of one
//! conversation together in one block, and hands every shard one fan-out: a receiver then costs
//! a pointer per block, not per message.

mod slots;

use crate::{
    countdown_latch::CountdownLatch,
    delivery::{Block, Chunk, Fanout, LooksBack, Recipients, Step},
    directory::Directory,
    entry_view::{CompactEntries, encode_entry},
    fairness::{AdmissionError, FlowKey},
    live_audience::MembersHold,
    shards::Shards,
    streams::{StreamKey, Streams, Touch},
    visibility::{Floors, HiddenMessages, View, oldest_target},
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
pub use slots::LaneSlot;
use slots::LaneSlots;
use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Instant,
};
use tidings_domain::{end_reason::required, metrics::Metrics, model::*};

/// Encoded bytes after which a fan-out is closed: bounds the largest frame that a session writes.
const FANOUT_BYTES_MAX: usize = 256 * 1024;
/// Entries after which a fan-out is closed.
const FANOUT_ENTRIES_MAX: usize = 512;

/// A committed change of a conversation, on its way to live sessions.
#[derive(Debug)]
pub struct LaneItem {
    pub conversation: Arc<Conversation>,
    /// Members who join: they see the entry and all later ones.
    pub joined: Vec<UserNo>,
    /// Of members who join or leave, in a cluster.
    pub hold: Option<MembersHold>,
    /// Members who leave: they see the entry and none after it.
    pub left: Vec<UserNo>,
    pub entry: Option<StoredEntry>,
    /// The slot that the item holds in the lane until stage 1 has handed it to the shards.
    pub slot: Option<LaneSlot>,
    /// When the committer began with its batch.
    pub at: Instant,
}

/// An element of a lane's queue.
enum LaneWork {
    Items(Vec<LaneItem>),
    /// Every item up to this position is in the queue before the barrier. Each of these shards counts the latch down when it
    /// has applied those items.
    Barrier {
        position: Position,
        shards: Range<usize>,
        latch: Arc<CountdownLatch>,
    },
    /// The text of a message has grown.
    Stream(StreamKey),
}

/// A lane's queue. The channel is unbounded; the slots bound it, since every item of an existing conversation holds one.
/// Three things hold none: a message that grows, which is in the queue once at most; a barrier, but a thread of the
/// runtime waits for each, and those threads are bounded; and the item of a conversation that was created, whose callers
/// wait for its commit but not for the lane.
struct LaneQueue {
    sender: Mutex<Option<Sender<LaneWork>>>,
    slots: Arc<LaneSlots>,
    /// Items that the worker has yet to hand to the shards.
    queued: Arc<AtomicUsize>,
}

pub struct Lanes {
    queues: [LaneQueue; LANES],
    limit: usize,
    shards: Arc<Shards>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Lanes {
    /// Starts the workers. `limit`: the items of each lane between accept and the end of stage 1.
    pub(crate) fn start(
        limit: usize,
        shards: Arc<Shards>,
        directory: &Arc<Directory>,
        streams: &Arc<Streams>,
        metrics: Arc<Metrics>,
    ) -> Arc<Lanes> {
        let mut workers = Vec::new();
        let queues = Lane::ALL.map(|lane| {
            #[expect(clippy::disallowed_methods, reason = "bounded by the slots of the lane: see LaneQueue")]
            let (sender, inbox) = channel();
            let queued = Arc::new(AtomicUsize::new(0));
            let (shards, directory) = (shards.clone(), directory.clone());
            let (streams, metrics) = (streams.clone(), metrics.clone());
            let worker = Worker { lane, inbox, queued: queued.clone(), shards, directory, streams, metrics };
            let name = format!("lane-{}", lane.name());
            let thread = std::thread::Builder::new().name(name.clone()).spawn(move || worker.run());
            workers.push(required(&name, thread));
            LaneQueue { sender: Mutex::new(Some(sender)), slots: LaneSlots::new(), queued }
        });
        Arc::new(Lanes { queues, limit, shards, workers: Mutex::new(workers) })
    }

    /// Reserves a slot of the lane for an item of the flow.
    ///
    /// # Errors
    /// All slots are taken, or the flow holds as many as are free.
    pub(crate) fn reserve(&self, lane: Lane, flow_key: FlowKey) -> Result<LaneSlot, AdmissionError> {
        self.queues[lane as usize].slots.reserve(self.limit, flow_key)
    }

    /// Puts a batch's items into the queues of their lanes, in order.
    pub(crate) fn enqueue(&self, lane_items: Vec<LaneItem>) {
        let mut by_lane: [Vec<LaneItem>; LANES] = Default::default();
        for item in lane_items {
            by_lane[item.conversation.lane() as usize].push(item);
        }
        for (queue, items) in self.queues.iter().zip(by_lane) {
            if !items.is_empty()
                && let Some(sender) = &*queue.sender.lock()
            {
                queue.queued.fetch_add(items.len(), Ordering::Relaxed);
                let _ = sender.send(LaneWork::Items(items));
            }
        }
    }

    /// Reserves a slot even above the limit: for items that other nodes have committed.
    pub(crate) fn reserve_over_limit(&self, lane: Lane) -> LaneSlot {
        self.queues[lane as usize].slots.reserve_over_limit()
    }

    /// Whether every lane has fewer items queued than its limit. Slots of items that are not yet in a queue do not
    /// count: those items may wait for the very caller that asks here.
    pub(crate) fn has_room(&self) -> bool {
        self.queues.iter().all(|queue| queue.queued.load(Ordering::Relaxed) < self.limit)
    }

    /// Puts a message whose text has grown behind all items that are queued.
    pub(crate) fn enqueue_stream(&self, touch: Touch) {
        if let Some(sender) = &*self.queues[touch.lane as usize].sender.lock() {
            let _ = sender.send(LaneWork::Stream(touch.key));
        }
    }

    /// Puts a barrier behind all items of these lanes up to `position`. The latch opens when this shard, or every one, has
    /// applied them.
    pub(crate) fn barrier(&self, position: Position, lanes: &[Lane], shard: Option<usize>) -> Arc<CountdownLatch> {
        let shards = shard.map_or(0..self.shards.count(), |shard| shard..shard + 1);
        let latch = CountdownLatch::new(shards.len() * lanes.len());
        for lane in lanes {
            if let Some(sender) = &*self.queues[*lane as usize].sender.lock() {
                let _ = sender.send(LaneWork::Barrier { position, shards: shards.clone(), latch: latch.clone() });
            }
        }
        latch
    }

    /// Slots that are taken in each lane, and how many a lane has.
    pub(crate) fn depths(&self) -> ([usize; LANES], usize) {
        (self.queues.each_ref().map(|q| q.slots.taken()), self.limit)
    }

    /// Fans out the items that are queued, then ends the workers.
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
    queued: Arc<AtomicUsize>,
    shards: Arc<Shards>,
    directory: Arc<Directory>,
    streams: Arc<Streams>,
    metrics: Arc<Metrics>,
}

impl Worker {
    fn run(self) {
        let mut builder = FanoutBuilder::new(self.lane, self.directory.clone());
        while let Ok(mut work) = self.inbox.recv() {
            loop {
                match work {
                    LaneWork::Items(items) => {
                        for item in items {
                            builder.add(item);
                            if builder.is_full() {
                                self.hand_over(&mut builder);
                            }
                        }
                    }
                    LaneWork::Stream(key) => {
                        if let Some((chunk, conversation)) = self.streams.take_chunk(key) {
                            builder.add_chunk(chunk, &conversation);
                        }
                        if builder.is_full() {
                            self.hand_over(&mut builder);
                        }
                    }
                    LaneWork::Barrier { position, shards, latch } => {
                        self.hand_over(&mut builder);
                        self.barrier(position, shards, latch);
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

    fn barrier(&self, position: Position, shards: Range<usize>, latch: Arc<CountdownLatch>) {
        let steps = vec![Step::Barrier(latch)];
        let fanout = Arc::new(Fanout { lane: self.lane, through: position, steps, committed_at: Instant::now() });
        for shard in shards {
            self.shards.fan_out(shard, fanout.clone());
        }
    }

    fn hand_over(&self, builder: &mut FanoutBuilder) {
        let items = std::mem::take(&mut builder.items);
        if let Some(fanout) = builder.finish() {
            self.fan_out(fanout);
        }
        self.queued.fetch_sub(items, Ordering::Relaxed);
    }

    fn fan_out(&self, (fanout, entries, slots): (Fanout, usize, Vec<LaneSlot>)) {
        self.metrics.lane(self.lane).entries.inc_by(entries as u64);
        let _span = tracing::debug_span!("fan_out", lane = self.lane.name(), entries).entered();
        if self.lane == Lane::Direct {
            self.fan_out_by_user(fanout);
        } else {
            let fanout = Arc::new(fanout);
            for shard in 0..self.shards.count() {
                self.shards.fan_out(shard, fanout.clone());
            }
        }
        drop(slots);
    }

    /// A direct message concerns the shards of its two users and no other; one with an account also those of the agents.
    fn fan_out_by_user(&self, fanout: Fanout) {
        let Fanout { lane, through, steps, committed_at } = fanout;
        let mut by_shard: Vec<Vec<Step>> = vec![Vec::new(); self.shards.count()];
        for step in steps {
            let recipients = match &step {
                Step::Block { block, .. } => Some(&block.recipients),
                Step::Chunk(chunk) => Some(&chunk.recipients),
                Step::Join { .. } | Step::Leave { .. } | Step::Barrier(_) => None,
            };
            match recipients {
                Some(Recipients::Pair(a, b)) => {
                    let (first, second) = (self.shards.shard_of(*a), self.shards.shard_of(*b));
                    if first != second {
                        by_shard[second].push(step.clone());
                    }
                    by_shard[first].push(step);
                }
                Some(Recipients::Users(users)) => {
                    let shards: BTreeSet<usize> = users.iter().map(|user| self.shards.shard_of(*user)).collect();
                    shards.into_iter().for_each(|shard| by_shard[shard].push(step.clone()));
                }
                Some(Recipients::Audience) | None => {}
            }
        }
        for (shard, steps) in by_shard.into_iter().enumerate() {
            if !steps.is_empty() {
                self.shards.fan_out(shard, Arc::new(Fanout { lane, through, steps, committed_at }));
            }
        }
    }
}

/// Whom of a conversation with an account a block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Side {
    /// Everybody: of every other conversation, too.
    All,
    /// The user, who does not learn which agent answers.
    Customer,
    /// Those who act for the account.
    Inside,
}

/// What those may see for whom a block is, if they may see the whole conversation.
fn view_of(side: Side, conversation: &Conversation) -> View {
    let hides_followers = conversation.kind == ConversationKind::Official;
    let hidden = HiddenMessages::None;
    View { hides_agents: side == Side::Customer, hides_followers, hidden, ..View::WHOLE }
}

/// A block to which entries are still added.
struct OpenBlock {
    conversation: Arc<Conversation>,
    side: Side,
    first_seq: u64,
    json: Vec<u8>,
    compact: CompactEntries,
    entries: u32,
    /// The entries that concern earlier messages, if members may see different parts of the conversation.
    looks_back: Option<Box<LooksBack>>,
}

enum OpenStep {
    Block(OpenBlock),
    Done(Step),
}

/// Builds a fan-out, and encodes each entry once.
struct FanoutBuilder {
    lane: Lane,
    steps: Vec<OpenStep>,
    /// The index in `steps` of each conversation's open block.
    open: FxHashMap<(ConversationNo, Side), usize>,
    directory: Arc<Directory>,
    slots: Vec<LaneSlot>,
    /// Items added since the last fan-out.
    items: usize,
    entries: usize,
    bytes: usize,
    through: Position,
    oldest: Option<Instant>,
}

impl FanoutBuilder {
    fn new(lane: Lane, directory: Arc<Directory>) -> Self {
        FanoutBuilder {
            lane,
            directory,
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

    fn add(&mut self, item: LaneItem) {
        let LaneItem { conversation, joined, hold, left, entry, slot, at } = item;
        self.items += 1;
        self.oldest.get_or_insert(at);
        self.slots.extend(slot);
        if !joined.is_empty() {
            // An entry after the join must not be put into a block before it.
            self.close(conversation.no);
            // The notice of the join is the first entry that they see.
            let joined_seq = entry.as_ref().map(|notice| notice.seq - 1);
            let conversation = conversation.no;
            self.steps.push(OpenStep::Done(Step::Join {
                conversation,
                users: joined.into(),
                joined_seq,
                hold: hold.clone(),
            }));
        }
        if let Some(entry) = entry {
            self.append(&conversation, entry);
        }
        if !left.is_empty() {
            self.close(conversation.no);
            let id = conversation.id.as_str().into();
            self.steps.push(OpenStep::Done(Step::Leave {
                conversation: conversation.no,
                id,
                users: left.into(),
                hold,
            }));
        }
    }

    fn add_chunk(&mut self, mut chunk: Chunk, conversation: &Conversation) {
        chunk.floors = self.directory.floors(conversation);
        if let Recipients::Pair(a, b) = chunk.recipients {
            chunk.recipients = self.recipients(Some((a, b)), Side::All);
        }
        // An entry after the chunk must not be put into a block before it.
        self.close(chunk.conversation);
        self.bytes += chunk.json.len();
        self.steps.push(OpenStep::Done(Step::Chunk(Arc::new(chunk))));
    }

    fn close(&mut self, conversation: ConversationNo) {
        for side in [Side::All, Side::Customer, Side::Inside] {
            self.open.remove(&(conversation, side));
        }
    }

    fn append(&mut self, conversation: &Arc<Conversation>, entry: StoredEntry) {
        self.entries += 1;
        self.through = entry.position;
        // Sessions read imported messages from the history: they are no news, and may be hundreds of thousands.
        if entry.content.kind == EntryKind::Message && entry.content.is_imported() {
            return;
        }
        match self.directory.desks.sides(conversation.pair) {
            Some(_) if entry.content.desk().is_some_and(|desk| desk.for_customer) => {
                self.append_for(Side::Customer, conversation, entry)
            }
            Some(sides) if !sides.desk.desk.shows_agents => {
                self.append_for(Side::Inside, conversation, entry.clone());
                self.append_for(Side::Customer, conversation, entry);
            }
            Some(_) | None => self.append_for(Side::All, conversation, entry),
        }
    }

    fn append_for(&mut self, side: Side, conversation: &Arc<Conversation>, entry: StoredEntry) {
        let view = view_of(side, conversation);
        let at = *self.open.entry((conversation.no, side)).or_insert_with(|| {
            let (conversation, json) = (conversation.clone(), Vec::with_capacity(512));
            let (first_seq, compact, entries, looks_back) = (entry.seq, CompactEntries::default(), 0, None);
            let block = OpenBlock { conversation, side, first_seq, json, compact, entries, looks_back };
            self.steps.push(OpenStep::Block(block));
            self.steps.len() - 1
        });
        let (OpenStep::Block(block), Some(shown)) = (&mut self.steps[at], view.show(&entry)) else { return };
        let before = block.json.len();
        block.json.push(b',');
        encode_entry(&mut block.json, &conversation.id, &shown);
        block.compact.add(&shown, &block.json, before);
        block.entries += 1;
        self.bytes += block.json.len() - before;
        let floors = oldest_target(&entry).and_then(|_| self.directory.floors(conversation));
        // Its sender gets an encoding of their own.
        let floors = floors.or_else(|| entry.content.is_hidden().then(Floors::none));
        if let Some(floors) = floors {
            let looks_back = block.looks_back.take().unwrap_or_else(|| LooksBack::of(&conversation.id, view).into());
            let bytes = before..block.json.len();
            block.looks_back = Some(looks_back.with(floors, bytes, entry).into());
        }
    }

    /// Who gets a block: the agents are those of this moment, so that one who was removed gets nothing more.
    fn recipients(&self, pair: Option<(UserNo, UserNo)>, side: Side) -> Recipients {
        let Some((a, b)) = pair else { return Recipients::Audience };
        let Some(sides) = self.directory.desks.sides(pair) else { return Recipients::Pair(a, b) };
        let mut users = if side == Side::Customer { vec![] } else { sides.insiders() };
        users.extend((side != Side::Inside).then_some(sides.customer));
        Recipients::Users(users.into())
    }

    /// The fan-out, its number of entries, and the slots that are free once the shards have it.
    fn finish(&mut self) -> Option<(Fanout, usize, Vec<LaneSlot>)> {
        if self.steps.is_empty() {
            self.slots.clear();
            return None;
        }
        let steps: Vec<OpenStep> = self.steps.drain(..).collect();
        let steps = steps.into_iter().map(|step| match step {
            OpenStep::Done(step) => step,
            OpenStep::Block(OpenBlock { conversation, side, first_seq, json, compact, entries, looks_back }) => {
                let recipients = self.recipients(conversation.pair, side);
                // Of a block that looks back some readers get other entries, which the next must not lean on.
                let compact = compact.finish().filter(|_| looks_back.is_none());
                let block = Block { conversation: conversation.no, recipients, entries, json: json.into(), compact };
                Step::Block { block: Arc::new(block), first_seq, looks_back: looks_back.map(Arc::from) }
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
