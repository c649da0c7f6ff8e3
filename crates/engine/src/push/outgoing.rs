//! What waits for room in the shards' push queues: a shard that is busy holds up neither the worker nor another shard.

use super::{DeviceNo, PushFrame, PushItem, audience::Receivers, devices::Devices};
use crate::shards::Shards;
use roaring::RoaringBitmap;
use std::{collections::VecDeque, sync::Arc, time::Duration};

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
}

impl Outgoing {
    pub(super) fn new(shards: Arc<Shards>) -> Self {
        let queues = (0..shards.count()).map(|_| ShardQueues::default()).collect();
        Outgoing { shards, queues, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn answer(&mut self, shard: usize, item: PushItem) {
        self.put(shard, item, |queues| &mut queues.answers);
    }

    pub(super) fn pending(&mut self, shard: usize, session: u64, frames: Vec<Arc<PushFrame>>, high: bool) {
        let item = PushItem::Pending { session, frames };
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
        let mut sessions = vec![Vec::new(); self.queues.len()];
        for (shard, session) in named.iter().filter_map(|device| devices.session(*device)) {
            if let Some(of_shard) = sessions.get_mut(shard) {
                of_shard.push(session);
            }
        }
        for (shard, sessions) in sessions.into_iter().enumerate() {
            for sessions in sessions.chunks(SESSIONS_PER_ITEM) {
                let item = PushItem::Sessions { frame: frame.clone(), sessions: sessions.to_vec() };
                self.put(shard, item, |queues| if high { &mut queues.high } else { &mut queues.normal });
            }
        }
    }

    /// One item a shard: each walks its own sessions.
    pub(super) fn put_many(&mut self, frame: &Arc<PushFrame>, high: bool, receivers: RoaringBitmap) {
        if receivers.is_empty() {
            return;
        }
        let devices = Arc::new(Receivers(receivers));
        for shard in 0..self.queues.len() {
            let item = PushItem::Matching { frame: frame.clone(), devices: devices.clone() };
            self.put(shard, item, |queues| if high { &mut queues.high } else { &mut queues.normal });
        }
    }

    /// Another node does push from here on: has every shard know, as soon as it has room.
    pub(super) fn end(&mut self, is_stopping: impl Fn() -> bool) {
        self.queues.iter_mut().for_each(|queues| *queues = ShardQueues::default());
        self.len = 0;
        for shard in 0..self.queues.len() {
            self.answer(shard, PushItem::Over);
        }
        while self.len > 0 && !is_stopping() {
            self.drain();
            std::thread::park_timeout(ROOM_EVERY);
        }
    }

    /// Hands over what there is room for.
    pub(super) fn drain(&mut self) {
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
