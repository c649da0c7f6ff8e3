//! The messages to one receiver: a queue, and the task that publishes what is in it.
//!
//! Open => Closed when publishing fails: queued messages are dropped, and new ones at once.
//! Closed => Open when a notice went through: it carries the next sequence number, so that the receiver learns of the gap
//! even if no message follows.

use crate::{
    connection::ConnectionPool,
    frame::{self, OutgoingFrame},
    metrics::BusMetrics,
    slot_map::Channel,
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

/// One pipeline: large enough to be cheap, small enough that Redis answers it in time.
const BATCH_BYTES_MAX: usize = 4 << 20;
const BATCH_MESSAGES_MAX: usize = 16_384;
/// How long messages wait for others while nobody waits for any of them, and how many do at most.
const PAUSE: Duration = Duration::from_millis(10);
const WAITING_MAX: usize = 1_024;
/// What a queued message costs besides its bytes.
const MESSAGE_OVERHEAD: usize = 64;

pub(crate) struct PeerQueue {
    /// Names the queue to the receiver, which checks the sequence numbers of each queue by themselves.
    id: u64,
    channel: Channel,
    queue: Mutex<Queue>,
    wake: Notify,
    /// When a message was sent last, in milliseconds of the bus's clock.
    pub(crate) used_ms: AtomicU64,
    /// Since when nobody has listened to what is published, in milliseconds of the bus's clock; 0: somebody does, or it is not
    /// known.
    unheard_since_ms: AtomicU64,
}

/// A queue that was used within this time asks again and again whether anybody listens: after its last message its receiver may
/// have come or gone.
const PROBED_FOR_MS: u64 = 60_000;

struct Queue {
    /// By sequence number.
    messages: VecDeque<(u64, Bytes)>,
    next_sequence: u64,
    /// Somebody waits for one of the messages.
    urgent: bool,
    open: bool,
    /// A message was dropped, and no later one has shown the gap to the receiver.
    owes_notice: bool,
    ended: bool,
}

/// The bytes that all queues together may hold.
pub(crate) struct QueueBudget {
    pub(crate) bytes_max: u64,
    pub(crate) metrics: Arc<BusMetrics>,
}

impl QueueBudget {
    fn reserve(&self, cost: u64) -> bool {
        let bytes = &self.metrics.queue_bytes;
        bytes.fetch_update(Relaxed, Relaxed, |now| Some(now + cost).filter(|then| *then <= self.bytes_max)).is_ok()
    }

    fn release(&self, cost: u64) {
        self.metrics.queue_bytes.fetch_sub(cost, Relaxed);
    }
}

fn cost(message: &Bytes) -> u64 {
    (message.len() + MESSAGE_OVERHEAD) as u64
}

impl PeerQueue {
    pub(crate) fn new(channel: Channel, used_ms: u64) -> Self {
        let queue = Queue {
            messages: VecDeque::new(),
            next_sequence: 1,
            urgent: false,
            open: true,
            owes_notice: false,
            ended: false,
        };
        let (wake, used_ms, unheard_since_ms) = (Notify::new(), AtomicU64::new(used_ms), AtomicU64::new(0));
        Self { id: rand::random(), channel, queue: Mutex::new(queue), wake, used_ms, unheard_since_ms }
    }

    /// Since when nobody has listened, in milliseconds of the bus's clock.
    pub(crate) fn unheard_since_ms(&self) -> Option<u64> {
        Some(self.unheard_since_ms.load(Relaxed)).filter(|since| *since > 0)
    }

    /// Records whether anybody listened. A failure says nothing about the receiver.
    fn note_published(&self, published: &Result<bool, String>, now_ms: u64) {
        match published {
            // The first one counts.
            Ok(false) => _ = self.unheard_since_ms.compare_exchange(0, now_ms, Relaxed, Relaxed),
            Ok(true) | Err(_) => self.unheard_since_ms.store(0, Relaxed),
        }
    }

    /// Returns whether the message was queued. If not, it is dropped. `urgent`: somebody waits for it.
    pub(crate) fn push(&self, message: Bytes, urgent: bool, budget: &QueueBudget) -> bool {
        let mut queue = self.queue.lock();
        let sequence = queue.next_sequence;
        queue.next_sequence += frame::fragments(message.len());
        let is_queued = queue.open && !queue.ended && budget.reserve(cost(&message));
        if is_queued {
            BusMetrics::add(&budget.metrics.sent, 1);
            queue.messages.push_back((sequence, message));
        } else {
            BusMetrics::add(&budget.metrics.dropped, 1);
            queue.owes_notice = true;
        }
        queue.urgent |= urgent;
        // While messages wait for others, the task comes back by itself.
        let is_due = urgent || !is_queued || queue.messages.len() == 1 || queue.messages.len() >= WAITING_MAX;
        drop(queue);
        if is_due {
            self.wake.notify_one();
        }
        is_queued
    }

    /// Waits for more messages while nobody waits for those that there are.
    async fn gather(&self) {
        let until = tokio::time::Instant::now() + PAUSE;
        let may_wait = || {
            let queue = self.queue.lock();
            !queue.urgent && !queue.ended && (1..WAITING_MAX).contains(&queue.messages.len())
        };
        while may_wait() && tokio::time::timeout_at(until, self.wake.notified()).await.is_ok() {}
    }

    /// The task ends once the queue is empty.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.wake.notify_one();
    }

    /// Publishes what is queued, until [`Self::end`].
    pub(crate) async fn run(&self, pool: &ConnectionPool, budget: &QueueBudget, notice_every: Duration) {
        let now_ms = || pool.health().now_ms();
        let mut routes = pool.routes();
        let mut is_first = true;
        loop {
            self.gather().await;
            let (batch, messages, reserved) = self.take_batch();
            if !batch.is_empty() {
                // The first batch waits for the connection that it is the reason for.
                let published = pool.publish(&self.channel, &batch, is_first).await;
                self.note_published(&published, now_ms());
                budget.release(reserved);
                if published.is_err() {
                    BusMetrics::add(&budget.metrics.dropped, messages);
                    self.close(budget);
                }
                is_first = false;
                continue;
            }
            match self.take_notice() {
                Some(notice) => {
                    let published = pool.publish(&self.channel, &[notice], false).await;
                    self.note_published(&published, now_ms());
                    if published.is_ok() {
                        self.queue.lock().open = true;
                        continue;
                    }
                    self.close(budget);
                    tokio::select! {
                        _ = routes.changed() => {}
                        () = tokio::time::sleep(notice_every) => {}
                    }
                }
                None if self.queue.lock().ended => return,
                None if now_ms() > self.used_ms.load(Relaxed) + PROBED_FOR_MS => self.wake.notified().await,
                None => {
                    let is_idle = tokio::time::timeout(notice_every, self.wake.notified()).await.is_err();
                    if let Some(probe) = self.take_probe().filter(|_| is_idle) {
                        self.note_published(&pool.publish(&self.channel, &[probe], false).await, now_ms());
                    }
                }
            }
        }
    }

    /// The next frames, the number of messages in them, and what these had reserved of the budget.
    fn take_batch(&self) -> (Vec<OutgoingFrame>, usize, u64) {
        let mut queue = self.queue.lock();
        let (mut count, mut bytes) = (0, 0);
        for (_, message) in queue.messages.iter().take(BATCH_MESSAGES_MAX) {
            bytes += message.len();
            if bytes > BATCH_BYTES_MAX && count > 0 {
                break;
            }
            count += 1;
        }
        let messages: Vec<(u64, Bytes)> = queue.messages.drain(..count).collect();
        queue.urgent &= !queue.messages.is_empty();
        drop(queue);
        let reserved = messages.iter().map(|(_, message)| cost(message)).sum();
        (OutgoingFrame::pack(self.id, messages), count, reserved)
    }

    fn take_notice(&self) -> Option<OutgoingFrame> {
        let mut queue = self.queue.lock();
        let owes_notice = std::mem::take(&mut queue.owes_notice);
        owes_notice.then(|| OutgoingFrame::notice(self.id, queue.next_sequence))
    }

    /// A notice with the number of the next message, which says nothing to a receiver that has missed none. `None`: messages
    /// wait, and would be taken for lost.
    fn take_probe(&self) -> Option<OutgoingFrame> {
        let queue = self.queue.lock();
        queue.messages.is_empty().then(|| OutgoingFrame::notice(self.id, queue.next_sequence))
    }

    fn close(&self, budget: &QueueBudget) {
        let mut queue = self.queue.lock();
        (queue.open, queue.owes_notice) = (false, true);
        let given_up = std::mem::take(&mut queue.messages);
        BusMetrics::add(&budget.metrics.dropped, given_up.len());
        budget.release(given_up.iter().map(|(_, message)| cost(message)).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    fn queue() -> (Arc<PeerQueue>, Arc<QueueBudget>) {
        let budget = QueueBudget { bytes_max: 1 << 20, metrics: Arc::default() };
        (Arc::new(PeerQueue::new(Channel::of("t", None, "b"), 0)), Arc::new(budget))
    }

    /// How long the queue waits for more while these messages come, each after so many milliseconds; and how many go together.
    async fn gathers(messages: Vec<(u64, bool)>) -> (Duration, usize) {
        let (queue, budget) = queue();
        let (pushed, started) = (queue.clone(), Instant::now());
        tokio::spawn(async move {
            for (at_ms, urgent) in messages {
                tokio::time::sleep_until(started + Duration::from_millis(at_ms)).await;
                assert!(pushed.push(Bytes::from_static(b"message"), urgent, &budget));
            }
        });
        queue.wake.notified().await;
        queue.gather().await;
        (started.elapsed(), queue.take_batch().1)
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_nobody_waits_for_go_together_and_never_later_than_the_pause() {
        let pause = PAUSE.as_millis() as u64;
        assert_eq!(gathers(vec![(0, true)]).await, (Duration::ZERO, 1));
        assert_eq!(gathers(vec![(0, false)]).await, (PAUSE, 1));
        assert_eq!(gathers(vec![(0, false), (1, false), (pause - 1, false), (pause + 1, false)]).await, (PAUSE, 3));
        assert_eq!(gathers(vec![(0, false), (2, false), (3, true), (4, false)]).await, (Duration::from_millis(3), 3));
        let many = vec![(0, false); WAITING_MAX];
        assert_eq!(gathers(many).await, (Duration::ZERO, WAITING_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_ends_waits_for_nothing() {
        let (queue, budget) = queue();
        assert!(queue.push(Bytes::from_static(b"last"), false, &budget));
        queue.end();
        let started = Instant::now();
        queue.gather().await;
        assert_eq!((started.elapsed(), queue.take_batch().1), (Duration::ZERO, 1));
    }
}
