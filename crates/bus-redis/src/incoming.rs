//! Received frames: checked for gaps, reassembled, and handed to the handler.

use crate::{
    frame::{self, Frame, FrameError, Kind, MESSAGE_BYTES_MAX},
    metrics::BusMetrics,
};
use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
};
use tidings_domain::{bus::MessageHandler, installation::InstallationId};

/// Senders' queues that are remembered. A new one takes the place of the one that was silent for longest; if that one sends
/// again, its first message counts as one after a gap.
const QUEUES_MAX: usize = 1_024;
/// The bytes of all messages in reassembly. A message that would exceed them is given up.
const REASSEMBLY_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

pub(crate) struct Incoming {
    /// Frames of others are not taken. `None`: frames without an installation are.
    installation: Option<InstallationId>,
    handler: Arc<dyn MessageHandler>,
    metrics: Arc<BusMetrics>,
    /// Once set, the handler is not called again.
    stopped: Arc<AtomicBool>,
    queues: Mutex<ReceivedQueues>,
}

/// The receiving side of the senders' queues.
#[derive(Default)]
struct ReceivedQueues {
    by_id: HashMap<u64, ReceivedQueue>,
    reassembly_bytes: usize,
    /// Counts frames, to find the queue that was silent for longest.
    frames: u64,
}

#[derive(Default)]
struct ReceivedQueue {
    next_sequence: u64,
    /// The value of [`ReceivedQueues::frames`] at the queue's last frame.
    last_frame: u64,
    /// The fragments so far, and the size of the whole message.
    reassembly: Option<(BytesMut, usize)>,
}

/// What a frame comes to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// A message was lost.
    gap: bool,
    messages: SmallVec<[Bytes; 1]>,
}

impl Incoming {
    pub(crate) fn new(
        installation: Option<InstallationId>,
        handler: Arc<dyn MessageHandler>,
        metrics: Arc<BusMetrics>,
        stopped: Arc<AtomicBool>,
    ) -> Self {
        Self { installation, handler, metrics, stopped, queues: Mutex::default() }
    }

    /// Takes what came over the channel. Returns a heartbeat, which the subscription must judge.
    pub(crate) fn on_frame(&self, bytes: Bytes) -> Option<Frame> {
        let frame = match Frame::decode(bytes, self.installation) {
            Ok(frame) => frame,
            Err(FrameError::Unreadable) => {
                BusMetrics::add(&self.metrics.unreadable, 1);
                self.on_gap();
                return None;
            }
            // No message for this node was lost.
            Err(FrameError::Foreign) => {
                BusMetrics::add(&self.metrics.foreign, 1);
                return None;
            }
        };
        if frame.kind == Kind::Heartbeat {
            return Some(frame);
        }
        // Held until the handler has the messages: two connections may overlap for a moment, and the order must stay.
        let mut queues = self.queues.lock();
        let outcome = queues.on_frame(frame);
        if outcome.gap {
            self.on_gap();
        }
        for message in outcome.messages {
            if self.stopped.load(Relaxed) {
                break;
            }
            BusMetrics::add(&self.metrics.heard, 1);
            BusMetrics::add(&self.metrics.heard_bytes, message.len());
            self.handler.on_message(message);
        }
        None
    }

    pub(crate) fn on_gap(&self) {
        if !self.stopped.load(Relaxed) {
            BusMetrics::add(&self.metrics.missed, 1);
            self.handler.on_gap();
        }
    }
}

impl ReceivedQueues {
    fn on_frame(&mut self, frame: Frame) -> Outcome {
        self.frames += 1;
        if self.by_id.len() >= QUEUES_MAX && !self.by_id.contains_key(&frame.queue) {
            self.evict_longest_silent();
        }
        // A queue counts from 1: if its first frame here has a later number, frames before it are lost.
        let new = || ReceivedQueue { next_sequence: 1, ..ReceivedQueue::default() };
        let queue = self.by_id.entry(frame.queue).or_insert_with(new);
        queue.last_frame = self.frames;
        if frame.sequence < queue.next_sequence {
            return Outcome::default();
        }
        let mut outcome = Outcome { gap: frame.sequence > queue.next_sequence, ..Outcome::default() };
        if outcome.gap || !matches!(frame.kind, Kind::Middle | Kind::Last) {
            let given_up = queue.reassembly.take();
            self.reassembly_bytes -= given_up.as_ref().map_or(0, |(_, whole)| *whole);
            outcome.gap |= given_up.is_some();
        }
        queue.next_sequence = frame.sequence + u64::from(frame.kind != Kind::Notice);
        let mut content = frame.content;
        match frame.kind {
            Kind::Whole => outcome.messages.push(content),
            Kind::Bundle => match frame::unbundle(content) {
                Some(messages) => {
                    queue.next_sequence = frame.sequence + messages.len() as u64;
                    outcome.messages = messages.into();
                }
                None => outcome.gap = true,
            },
            Kind::First => {
                let whole = content.try_get_u32_le().map_or(usize::MAX, |whole| whole as usize);
                if whole > MESSAGE_BYTES_MAX || self.reassembly_bytes + whole > REASSEMBLY_BYTES_MAX {
                    outcome.gap = true;
                } else {
                    self.reassembly_bytes += whole;
                    let mut joined = BytesMut::with_capacity(whole);
                    joined.extend_from_slice(&content);
                    queue.reassembly = Some((joined, whole));
                }
            }
            // If earlier fragments are missing, the gap was reported already.
            Kind::Middle | Kind::Last => {
                let Some((joined, whole)) = &mut queue.reassembly else { return outcome };
                let (ends, whole) = (frame.kind == Kind::Last, *whole);
                joined.extend_from_slice(&content);
                // Sequence numbers show a fragment too few or too many. Sizes that disagree are an error of the sender.
                let fits = if ends { joined.len() == whole } else { joined.len() < whole };
                if ends || !fits {
                    let joined = queue.reassembly.take().map(|(joined, _)| joined.freeze());
                    self.reassembly_bytes -= whole;
                    outcome.messages.extend(joined.filter(|_| fits));
                    outcome.gap |= !fits;
                }
            }
            Kind::Notice | Kind::Heartbeat => {}
        }
        outcome
    }

    fn evict_longest_silent(&mut self) {
        let longest_silent = self.by_id.iter().min_by_key(|(_, queue)| queue.last_frame).map(|(id, _)| *id);
        if let Some(queue) = longest_silent.and_then(|id| self.by_id.remove(&id)) {
            self.reassembly_bytes -= queue.reassembly.map_or(0, |(_, whole)| whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FRAGMENT_BYTES_MAX, OutgoingFrame};

    const HERE: Option<InstallationId> = Some(InstallationId(7));

    fn frames_of(messages: impl IntoIterator<Item = (u64, Bytes)>) -> Vec<Bytes> {
        let written = |frame: OutgoingFrame| {
            let mut out = Vec::new();
            frame.write(HERE, &mut out).expect("writing to a vector");
            out.into()
        };
        OutgoingFrame::pack(1, messages).into_iter().map(written).collect()
    }

    fn frames(sequence: u64, message: &Bytes) -> Vec<Bytes> {
        frames_of([(sequence, message.clone())])
    }

    /// Takes frames of queue 1. Returns the number of gaps, and the messages.
    fn run(queues: &mut ReceivedQueues, frames: impl IntoIterator<Item = Bytes>) -> (usize, Vec<Bytes>) {
        let outcomes: Vec<Outcome> =
            frames.into_iter().map(|bytes| queues.on_frame(Frame::decode(bytes, HERE).expect("decodable"))).collect();
        let gaps = outcomes.iter().filter(|outcome| outcome.gap).count();
        (gaps, outcomes.into_iter().flat_map(|outcome| outcome.messages).collect())
    }

    #[test]
    fn a_gap_is_reported_once_and_no_message_comes_twice() {
        let small = Bytes::from_static(b"small");
        let mut queues = ReceivedQueues::default();
        let mut at = |sequence| run(&mut queues, frames(sequence, &small));
        let expected = vec![small.clone()];
        assert_eq!(at(1), (0, expected.clone()));
        assert_eq!(at(2), (0, expected.clone()));
        assert_eq!(at(2), (0, vec![]), "again");
        assert_eq!(at(5), (1, expected.clone()), "after a gap");
        assert_eq!(at(3), (0, vec![]), "too late");
        assert_eq!(at(6), (0, expected));
        let notice = |sequence| Frame { kind: Kind::Notice, queue: 1, sequence, content: Bytes::new() };
        assert!(!queues.on_frame(notice(7)).gap, "nothing is missing before the next");
        assert!(queues.on_frame(notice(9)).gap);
        assert!(!queues.on_frame(notice(9)).gap);
        assert!(queues.on_frame(Frame { queue: 2, ..notice(2) }).gap, "a queue whose first frames were lost");
    }

    #[test]
    fn a_bundle_counts_as_its_messages_in_the_sequence() {
        let message = |n: u64| Bytes::from(n.to_string());
        let bundle = |numbers: std::ops::Range<u64>| frames_of(numbers.map(|n| (n, message(n))));
        let expected = |numbers: std::ops::Range<u64>| numbers.map(message).collect::<Vec<_>>();
        let mut queues = ReceivedQueues::default();
        assert_eq!(bundle(1..4).len(), 1);
        assert_eq!(run(&mut queues, bundle(1..4)), (0, expected(1..4)));
        assert_eq!(run(&mut queues, bundle(1..4)), (0, vec![]), "again");
        assert_eq!(run(&mut queues, bundle(4..6)), (0, expected(4..6)));
        assert_eq!(run(&mut queues, bundle(8..10)), (1, expected(8..10)), "after a gap");
        let broken = Frame { kind: Kind::Bundle, queue: 1, sequence: 10, content: Bytes::from_static(b"123") };
        assert_eq!(queues.on_frame(broken), Outcome { gap: true, ..Outcome::default() });
        assert_eq!(run(&mut queues, bundle(12..14)), (1, expected(12..14)));
    }

    #[test]
    fn a_large_message_is_handed_over_whole_or_not_at_all() {
        let large: Bytes = (0..3 * FRAGMENT_BYTES_MAX + 1).map(|byte| (byte / 7) as u8).collect();
        let fragments = frames(1, &large);
        assert_eq!(fragments.len(), 4);
        let mut queues = ReceivedQueues::default();
        assert!(run(&mut queues, fragments.clone()) == (0, vec![large.clone()]));
        for lost in 0..4 {
            let mut queues = ReceivedQueues::default();
            let mut some = fragments.clone();
            some.remove(lost);
            some.extend(frames(5, &Bytes::from_static(b"next")));
            assert!(run(&mut queues, some) == (1, vec![Bytes::from_static(b"next")]), "fragment {lost}");
            assert_eq!(queues.reassembly_bytes, 0);
        }
    }

    #[test]
    fn messages_in_reassembly_are_bounded_in_bytes_and_number() {
        let first = |queue: u64, whole: usize| {
            let content = Bytes::copy_from_slice(&(whole as u32).to_le_bytes());
            Frame { kind: Kind::First, queue, sequence: 1, content }
        };
        let mut queues = ReceivedQueues::default();
        assert!(queues.on_frame(first(0, MESSAGE_BYTES_MAX + 1)).gap);
        assert!((1..=4).all(|queue| !queues.on_frame(first(queue, MESSAGE_BYTES_MAX)).gap));
        assert!(queues.on_frame(first(5, 1)).gap);
        // A new queue evicts the one that was silent for longest, with its unfinished message.
        (6..=QUEUES_MAX as u64).for_each(|queue| drop(queues.on_frame(first(queue, 0))));
        assert_eq!((queues.by_id.len(), queues.reassembly_bytes), (QUEUES_MAX, 4 * MESSAGE_BYTES_MAX));
        queues.on_frame(first(10_000, 0));
        assert_eq!((queues.by_id.len(), queues.reassembly_bytes), (QUEUES_MAX, 3 * MESSAGE_BYTES_MAX));
    }
}
