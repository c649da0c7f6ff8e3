//! What waits for room in the shards' push queues, and for other nodes: one that is busy holds up neither the worker nor another.
//!
//! A place is one of the shards, or behind them one of the other nodes.

use super::{
    DeviceNo, PushFrame, PushItem,
    audience::Receivers,
    devices::Devices,
    elsewhere::{Nodes, Road},
};
use crate::{metrics::Metrics, shards::Shards};
use roaring::RoaringBitmap;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_protocol::error::Refusal;

/// Items waiting here for all shards. Above: no more devices and pushes are taken in.
pub(super) const BACKLOG_MAX: usize = 8_192;
/// Sessions of one item.
const SESSIONS_PER_ITEM: usize = 1_000;
/// What is normal takes only so many places of a shard's queue, so that what is high never waits behind more.
const NORMAL_IN_QUEUE: usize = 32;
/// When a shard without room is looked at again.
const ROOM_EVERY: Duration = Duration::from_millis(2);

#[derive(Default)]
struct ShardQueues {
    /// Answers to those who bind: they go live with it.
    answers: VecDeque<PushItem>,
    high: VecDeque<PushItem>,
    normal: VecDeque<PushItem>,
}

pub(super) struct Outgoing {
    shards: Arc<Shards>,
    queues: Vec<ShardQueues>,
    len: usize,
    pub(super) nodes: Nodes,
}

impl Outgoing {
    pub(super) fn new(shards: Arc<Shards>, road: Option<Road>, metrics: Arc<Metrics>) -> Self {
        let queues = (0..shards.count()).map(|_| ShardQueues::default()).collect();
        let nodes = Nodes::new(road, shards.count(), metrics);
        Outgoing { shards, queues, len: 0, nodes }
    }

    /// What waits for the shards; what waits for a node has a bound of its own.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn answer(&mut self, place: usize, session: u64, result: Result<DeviceNo, Refusal>) {
        match place < self.queues.len() {
            true => self.put(place, PushItem::Registered { session, result }, |queues| &mut queues.answers),
            false => self.nodes.answer(place, session, result),
        }
    }

    pub(super) fn pending(&mut self, place: usize, session: u64, frames: Vec<Arc<PushFrame>>, high: bool) {
        match place < self.queues.len() {
            true => self.item(place, PushItem::Pending { session, frames }, high),
            false => self.nodes.pending(place, session, frames, high),
        }
    }

    pub(super) fn item(&mut self, shard: usize, item: PushItem, high: bool) {
        self.put(shard, item, |queues| if high { &mut queues.high } else { &mut queues.normal });
    }

    fn put(&mut self, shard: usize, item: PushItem, queue: impl FnOnce(&mut ShardQueues) -> &mut VecDeque<PushItem>) {
        if let Some(queues) = self.queues.get_mut(shard) {
            queue(queues).push_back(item);
            self.len += 1;
        }
    }

    /// To those of the devices that are connected.
    pub(super) fn put_named(&mut self, frame: &Arc<PushFrame>, high: bool, named: &[DeviceNo], devices: &Devices) {
        let mut sessions = vec![Vec::new(); self.nodes.places()];
        for (place, session) in named.iter().filter_map(|device| devices.session(*device)) {
            if let Some(of_place) = sessions.get_mut(place) {
                of_place.push(session);
            }
        }
        for (place, sessions) in sessions.into_iter().enumerate() {
            for sessions in sessions.chunks(SESSIONS_PER_ITEM).map(<[u64]>::to_vec) {
                match place < self.queues.len() {
                    true => self.item(place, PushItem::Sessions { frame: frame.clone(), sessions }, high),
                    false => self.nodes.sessions(place, frame, sessions, high),
                }
            }
        }
    }

    /// One item a shard, and a node: each walks its own sessions.
    pub(super) fn put_many(&mut self, frame: &Arc<PushFrame>, high: bool, receivers: RoaringBitmap, devices: &Devices) {
        if receivers.is_empty() {
            return;
        }
        for place in self.nodes.first_place()..self.nodes.places() {
            let there = devices.at(place).map(|there| &receivers & there).filter(|there| !there.is_empty());
            if let Some(there) = there {
                self.nodes.matching(place, frame, there, high);
            }
        }
        let receivers = Arc::new(Receivers(receivers));
        for shard in 0..self.queues.len() {
            let item = PushItem::Matching { frame: frame.clone(), devices: receivers.clone() };
            self.item(shard, item, high);
        }
    }

    /// Another node does push from here on: has every shard know, as soon as it has room.
    pub(super) fn end(&mut self, is_stopping: impl Fn() -> bool) {
        self.queues.iter_mut().for_each(|queues| *queues = ShardQueues::default());
        self.len = 0;
        for shard in 0..self.queues.len() {
            self.put(shard, PushItem::Over, |queues| &mut queues.answers);
        }
        while self.len > 0 && !is_stopping() {
            self.drain(Instant::now());
            std::thread::park_timeout(ROOM_EVERY);
        }
    }

    /// Hands over what there is room for.
    pub(super) fn drain(&mut self, now: Instant) {
        self.nodes.drain(now);
        for (shard, queues) in self.queues.iter_mut().enumerate() {
            let ShardQueues { answers, high, normal } = queues;
            for (queue, room) in [(answers, usize::MAX), (high, usize::MAX), (normal, NORMAL_IN_QUEUE)] {
                while let Some(item) = queue.pop_front() {
                    if let Err(item) = self.shards.try_push(shard, item, room) {
                        queue.push_front(item);
                        break;
                    }
                    self.len -= 1;
                }
            }
        }
    }
}
