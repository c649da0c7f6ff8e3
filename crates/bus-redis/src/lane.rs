//! One sender's way to one receiver: a queue, and the task that empties it.
//!
//! Open => Closed when publishing failed: what waits is dropped, and what comes meanwhile at once.
//! Closed => Open when a notice went through: it tells the receiver how much there was, so that a hole does not stay
//! unknown until the next message.

use crate::{
    frame::{self, Outgoing},
    map::Channel,
    metrics::BusMetrics,
    ways::Ways,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::Notify;

/// One pipeline: large enough to be cheap, small enough that it is answered in time.
const BATCH_BYTES_MAX: usize = 4 << 20;
const BATCH_MESSAGES_MAX: usize = 16_384;
/// What a waiting message costs beside its bytes.
const WAITING_COST: usize = 64;

pub(crate) struct Lane {
    id: u64,
    channel: Channel,
    queue: Mutex<Queue>,
    wake: Notify,
    /// When it was used last, in milliseconds of the bus' clock.
    pub(crate) used_ms: AtomicU64,
}

struct Queue {
    waiting: VecDeque<(u64, Bytes)>,
    next: u64,
    open: bool,
    /// Something was dropped that no later message has shown yet.
    owes_notice: bool,
    ended: bool,
}

/// What all lanes share.
pub(crate) struct Room {
    pub(crate) bytes_max: u64,
    pub(crate) metrics: Arc<BusMetrics>,
}

impl Room {
    fn take(&self, cost: u64) -> bool {
        let bytes = &self.metrics.queue_bytes;
        bytes.fetch_update(Relaxed, Relaxed, |now| Some(now + cost).filter(|then| *then <= self.bytes_max)).is_ok()
    }

    fn give_back(&self, cost: u64) {
        self.metrics.queue_bytes.fetch_sub(cost, Relaxed);
    }
}

fn cost(message: &Bytes) -> u64 {
    (message.len() + WAITING_COST) as u64
}

impl Lane {
    pub(crate) fn new(channel: Channel, used_ms: u64) -> Self {
        let queue = Queue { waiting: VecDeque::new(), next: 1, open: true, owes_notice: false, ended: false };
        let (wake, used_ms) = (Notify::new(), AtomicU64::new(used_ms));
        Self { id: rand::random(), channel, queue: Mutex::new(queue), wake, used_ms }
    }

    /// Whether it was taken.
    pub(crate) fn put(&self, message: Bytes, room: &Room) -> bool {
        let mut queue = self.queue.lock();
        let sequence = queue.next;
        queue.next += frame::parts(message.len());
        let taken = queue.open && !queue.ended && room.take(cost(&message));
        if taken {
            BusMetrics::add(&room.metrics.sent, 1);
            queue.waiting.push_back((sequence, message));
        } else {
            BusMetrics::add(&room.metrics.dropped, 1);
            queue.owes_notice = true;
        }
        drop(queue);
        self.wake.notify_one();
        taken
    }

    /// Ends the task when what waits is gone.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.wake.notify_one();
    }

    pub(crate) async fn run(&self, ways: &Ways, room: &Room, notice_every: Duration) {
        let mut routes = ways.routes();
        let mut fresh = true;
        loop {
            let (batch, messages, paid) = self.batch();
            if !batch.is_empty() {
                let published = ways.publish(&self.channel, &batch, fresh).await;
                room.give_back(paid);
                if published.is_err() {
                    BusMetrics::add(&room.metrics.dropped, messages);
                    self.close(room);
                }
                fresh = false;
                continue;
            }
            match self.notice() {
                Some(notice) => {
                    if ways.publish(&self.channel, &[notice], false).await.is_ok() {
                        self.queue.lock().open = true;
                        continue;
                    }
                    self.close(room);
                    tokio::select! {
                        _ = routes.changed() => {}
                        () = tokio::time::sleep(notice_every) => {}
                    }
                }
                None if self.queue.lock().ended => return,
                None => self.wake.notified().await,
            }
        }
    }

    /// What goes next; how many messages that are, and what they cost.
    fn batch(&self) -> (Vec<Outgoing>, usize, u64) {
        let mut queue = self.queue.lock();
        let (mut count, mut bytes) = (0, 0);
        for (_, message) in queue.waiting.iter().take(BATCH_MESSAGES_MAX) {
            bytes += message.len();
            if bytes > BATCH_BYTES_MAX && count > 0 {
                break;
            }
            count += 1;
        }
        let messages: Vec<(u64, Bytes)> = queue.waiting.drain(..count).collect();
        drop(queue);
        let paid = messages.iter().map(|(_, message)| cost(message)).sum();
        (Outgoing::pack(self.id, messages), count, paid)
    }

    fn notice(&self) -> Option<Outgoing> {
        let mut queue = self.queue.lock();
        let owes = std::mem::take(&mut queue.owes_notice);
        owes.then(|| Outgoing::notice(self.id, queue.next))
    }

    fn close(&self, room: &Room) {
        let mut queue = self.queue.lock();
        (queue.open, queue.owes_notice) = (false, true);
        let given_up = std::mem::take(&mut queue.waiting);
        BusMetrics::add(&room.metrics.dropped, given_up.len());
        room.give_back(given_up.iter().map(|(_, message)| cost(message)).sum());
    }
}
