//! Items that wait for room in the shards' push queues, and for other nodes: a busy shard or node holds up neither the
//! worker nor the others.
//!
//! A *destination* is a number: the shards come first, the other nodes behind them.

use super::{
    PushFrame, PushItem, ShardSink,
    audience::Receivers,
    devices::Devices,
    remote::{PeerTransport, Peers},
};
use roaring::RoaringBitmap;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{metrics::Metrics, push_store::DeviceNo};
use tidings_protocol::error::Refusal;

/// Items waiting here for all shards. Above: registrations and pushes stay in the inbox.
pub(super) const OUTGOING_MAX: usize = 8_192;
/// Sessions of one item.
const SESSIONS_PER_ITEM: usize = 1_000;
/// Normal pushes take only so many places of a shard's queue, so that a high one never waits behind more.
const NORMAL_IN_QUEUE: usize = 32;
/// How often a full shard queue is tried again.
const FULL_QUEUE_RETRY: Duration = Duration::from_millis(2);

#[derive(Default)]
struct ShardQueues {
    /// Answers to sessions that bind: they go live with the answer.
    answers: VecDeque<PushItem>,
    high: VecDeque<PushItem>,
    normal: VecDeque<PushItem>,
}

pub(super) struct Outgoing {
    shards: Arc<dyn ShardSink>,
    queues: Vec<ShardQueues>,
    len: usize,
    pub(super) peers: Peers,
}

impl Outgoing {
    pub(super) fn new(
        shards: Arc<dyn ShardSink>,
        transport: Option<Arc<dyn PeerTransport>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let queues = (0..shards.count()).map(|_| ShardQueues::default()).collect();
        let peers = Peers::new(transport, shards.count(), metrics);
        Outgoing { shards, queues, len: 0, peers }
    }

    /// Items that wait for the shards. Items that wait for a peer have a bound of their own.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn send_answer(&mut self, destination: usize, session: u64, result: Result<DeviceNo, Refusal>) {
        if destination < self.queues.len() {
            self.put(destination, PushItem::Registered { session, result }, |queues| &mut queues.answers)
        } else {
            self.peers.send_answer(destination, session, result)
        }
    }

    pub(super) fn send_pending(&mut self, destination: usize, session: u64, frames: Vec<Arc<PushFrame>>, high: bool) {
        if destination < self.queues.len() {
            self.send_item(destination, PushItem::Pending { session, frames }, high)
        } else {
            self.peers.send_pending(destination, session, frames, high)
        }
    }

    pub(super) fn send_item(&mut self, shard: usize, item: PushItem, high: bool) {
        self.put(shard, item, |queues| if high { &mut queues.high } else { &mut queues.normal });
    }

    fn put(&mut self, shard: usize, item: PushItem, queue: impl FnOnce(&mut ShardQueues) -> &mut VecDeque<PushItem>) {
        if let Some(queues) = self.queues.get_mut(shard) {
            queue(queues).push_back(item);
            self.len += 1;
        }
    }

    /// Sends a named push to those of its devices that are online.
    pub(super) fn send_named(&mut self, frame: &Arc<PushFrame>, high: bool, named: &[DeviceNo], devices: &Devices) {
        let mut by_destination = vec![Vec::new(); self.peers.destinations()];
        for (destination, session) in named.iter().filter_map(|device| devices.session(*device)) {
            if let Some(sessions) = by_destination.get_mut(destination) {
                sessions.push(session);
            }
        }
        for (destination, sessions) in by_destination.into_iter().enumerate() {
            for sessions in sessions.chunks(SESSIONS_PER_ITEM).map(<[u64]>::to_vec) {
                if destination < self.queues.len() {
                    self.send_item(destination, PushItem::Sessions { frame: frame.clone(), sessions }, high)
                } else {
                    self.peers.send_to_sessions(destination, frame, sessions, high)
                }
            }
        }
    }

    /// Sends a push to many: one item for each shard and peer, which walk their own sessions.
    pub(super) fn send_many(
        &mut self,
        frame: &Arc<PushFrame>,
        high: bool,
        receivers: RoaringBitmap,
        devices: &Devices,
    ) {
        if receivers.is_empty() {
            return;
        }
        for destination in self.peers.first_destination()..self.peers.destinations() {
            let at_peer = devices.online_at(destination).map(|online| &receivers & online);
            if let Some(at_peer) = at_peer.filter(|at_peer| !at_peer.is_empty()) {
                self.peers.send_to_matching(destination, frame, at_peer, high);
            }
        }
        let receivers = Arc::new(Receivers(receivers));
        for shard in 0..self.queues.len() {
            let item = PushItem::Matching { frame: frame.clone(), devices: receivers.clone() };
            self.send_item(shard, item, high);
        }
    }

    /// Another one speaks for this node's sessions from here on: drops what waits but the answers, and hands those over, however
    /// long the shards are busy. A session that got none would wait for ever.
    pub(super) fn hand_over_answers(&mut self, is_stopping: impl Fn() -> bool) {
        for queues in &mut self.queues {
            (queues.high, queues.normal) = Default::default();
        }
        self.len = self.queues.iter().map(|queues| queues.answers.len()).sum();
        while self.len > 0 && !is_stopping() {
            self.drain(Instant::now());
            std::thread::park_timeout(FULL_QUEUE_RETRY);
        }
    }

    /// Hands over the items that there is room for.
    pub(super) fn drain(&mut self, now: Instant) {
        self.peers.drain(now);
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
