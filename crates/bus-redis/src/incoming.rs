//! What comes in: joined, checked for holes, handed to the ear.

use crate::{
    frame::{self, Frame, Kind, MESSAGE_BYTES_MAX},
    metrics::BusMetrics,
};
use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
};
use tidings_engine::cluster::bus::MessageHandler;

/// Lanes that are remembered. The one that was silent for longest is forgotten for another; were it to speak again, its first
/// message would count as one after a hole.
const LANES_MAX: usize = 1_024;
/// What unfinished messages may hold, together; above it the message is given up.
const JOINING_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

pub(crate) struct Incoming {
    handler: Arc<dyn MessageHandler>,
    metrics: Arc<BusMetrics>,
    /// Once set, the ear hears nothing more.
    stopped: Arc<AtomicBool>,
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    by_id: HashMap<u64, Lane>,
    joining_bytes: usize,
    /// Counts frames, to know who was silent for longest.
    turn: u64,
}

#[derive(Default)]
struct Lane {
    next: u64,
    turn: u64,
    /// The parts that came, and how many bytes are to come together.
    joining: Option<(BytesMut, usize)>,
}

/// What becomes of one frame.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    missed: bool,
    messages: SmallVec<[Bytes; 1]>,
}

impl Incoming {
    pub(crate) fn new(handler: Arc<dyn MessageHandler>, metrics: Arc<BusMetrics>, stopped: Arc<AtomicBool>) -> Self {
        Self { handler, metrics, stopped, lanes: Mutex::default() }
    }

    /// Takes what came over the channel. Answers a beat, which is for the one that sends it.
    pub(crate) fn take(&self, bytes: Bytes) -> Option<Frame> {
        let Some(frame) = Frame::read(bytes) else {
            BusMetrics::add(&self.metrics.unreadable, 1);
            self.missed();
            return None;
        };
        if frame.kind == Kind::Beat {
            return Some(frame);
        }
        // The lock stays until the ear has it: two connections may overlap for a moment, and order is promised.
        let mut lanes = self.lanes.lock();
        let outcome = lanes.take(frame);
        if outcome.missed {
            self.missed();
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

    pub(crate) fn missed(&self) {
        if !self.stopped.load(Relaxed) {
            BusMetrics::add(&self.metrics.missed, 1);
            self.handler.on_gap();
        }
    }
}

impl Lanes {
    fn take(&mut self, frame: Frame) -> Outcome {
        self.turn += 1;
        if self.by_id.len() >= LANES_MAX && !self.by_id.contains_key(&frame.lane) {
            self.forget_the_most_silent();
        }
        // A lane counts from 1: who begins later has sent something before.
        let lane = self.by_id.entry(frame.lane).or_insert_with(|| Lane { next: 1, ..Lane::default() });
        lane.turn = self.turn;
        if frame.sequence < lane.next {
            return Outcome::default();
        }
        let mut outcome = Outcome { missed: frame.sequence > lane.next, ..Outcome::default() };
        if outcome.missed || !matches!(frame.kind, Kind::More | Kind::Last) {
            let given_up = lane.joining.take();
            self.joining_bytes -= given_up.as_ref().map_or(0, |(_, whole)| *whole);
            outcome.missed |= given_up.is_some();
        }
        lane.next = frame.sequence + u64::from(frame.kind != Kind::Notice);
        let mut content = frame.content;
        match frame.kind {
            Kind::Whole => outcome.messages.push(content),
            Kind::Bundle => match frame::unbundle(content) {
                Some(messages) => {
                    lane.next = frame.sequence + messages.len() as u64;
                    outcome.messages = messages.into();
                }
                None => outcome.missed = true,
            },
            Kind::First => {
                let whole = content.try_get_u32_le().map_or(usize::MAX, |whole| whole as usize);
                if whole > MESSAGE_BYTES_MAX || self.joining_bytes + whole > JOINING_BYTES_MAX {
                    outcome.missed = true;
                } else {
                    self.joining_bytes += whole;
                    let mut joined = BytesMut::with_capacity(whole);
                    joined.extend_from_slice(&content);
                    lane.joining = Some((joined, whole));
                }
            }
            // Without the parts before, what is missed was told already.
            Kind::More | Kind::Last => {
                let Some((joined, whole)) = &mut lane.joining else { return outcome };
                let (ends, whole) = (frame.kind == Kind::Last, *whole);
                joined.extend_from_slice(&content);
                // A part too few or too many is told by its number; sizes that disagree are a fault of the sender.
                let fits = if ends { joined.len() == whole } else { joined.len() < whole };
                if ends || !fits {
                    let joined = lane.joining.take().map(|(joined, _)| joined.freeze());
                    self.joining_bytes -= whole;
                    outcome.messages.extend(joined.filter(|_| fits));
                    outcome.missed |= !fits;
                }
            }
            Kind::Notice | Kind::Beat => {}
        }
        outcome
    }

    fn forget_the_most_silent(&mut self) {
        let most_silent = self.by_id.iter().min_by_key(|(_, lane)| lane.turn).map(|(id, _)| *id);
        if let Some(lane) = most_silent.and_then(|id| self.by_id.remove(&id)) {
            self.joining_bytes -= lane.joining.map_or(0, |(_, whole)| whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Outgoing, PART_BYTES};

    fn frames_of(waiting: impl IntoIterator<Item = (u64, Bytes)>) -> Vec<Bytes> {
        let written = |frame: Outgoing| {
            let mut out = Vec::new();
            frame.write(&mut out).expect("a vector takes it");
            out.into()
        };
        Outgoing::pack(1, waiting).into_iter().map(written).collect()
    }

    fn frames(sequence: u64, message: &Bytes) -> Vec<Bytes> {
        frames_of([(sequence, message.clone())])
    }

    /// Takes frames of lane 1; answers how often something was missed, and the messages.
    fn run(lanes: &mut Lanes, frames: impl IntoIterator<Item = Bytes>) -> (usize, Vec<Bytes>) {
        let outcomes: Vec<Outcome> =
            frames.into_iter().map(|bytes| lanes.take(Frame::read(bytes).expect("readable"))).collect();
        let missed = outcomes.iter().filter(|outcome| outcome.missed).count();
        (missed, outcomes.into_iter().flat_map(|outcome| outcome.messages).collect())
    }

    #[test]
    fn a_hole_is_told_once_and_nothing_comes_twice() {
        let small = Bytes::from_static(b"small");
        let mut lanes = Lanes::default();
        let mut at = |sequence| run(&mut lanes, frames(sequence, &small));
        let heard = vec![small.clone()];
        assert_eq!(at(1), (0, heard.clone()));
        assert_eq!(at(2), (0, heard.clone()));
        assert_eq!(at(2), (0, vec![]), "again");
        assert_eq!(at(5), (1, heard.clone()), "after a hole");
        assert_eq!(at(3), (0, vec![]), "too late");
        assert_eq!(at(6), (0, heard));
        let notice = |sequence| Frame { kind: Kind::Notice, lane: 1, sequence, content: Bytes::new() };
        assert!(!lanes.take(notice(7)).missed, "nothing is missing before the next");
        assert!(lanes.take(notice(9)).missed);
        assert!(!lanes.take(notice(9)).missed);
        assert!(lanes.take(Frame { lane: 2, ..notice(2) }).missed, "a lane that was not heard from the start");
    }

    #[test]
    fn a_bundle_counts_as_its_messages() {
        let message = |n: u64| Bytes::from(n.to_string());
        let bundle = |numbers: std::ops::Range<u64>| frames_of(numbers.map(|n| (n, message(n))));
        let heard = |numbers: std::ops::Range<u64>| numbers.map(message).collect::<Vec<_>>();
        let mut lanes = Lanes::default();
        assert_eq!(bundle(1..4).len(), 1);
        assert_eq!(run(&mut lanes, bundle(1..4)), (0, heard(1..4)));
        assert_eq!(run(&mut lanes, bundle(1..4)), (0, vec![]), "again");
        assert_eq!(run(&mut lanes, bundle(4..6)), (0, heard(4..6)));
        assert_eq!(run(&mut lanes, bundle(8..10)), (1, heard(8..10)), "after a hole");
        let broken = Frame { kind: Kind::Bundle, lane: 1, sequence: 10, content: Bytes::from_static(b"123") };
        assert_eq!(lanes.take(broken), Outcome { missed: true, ..Outcome::default() });
        assert_eq!(run(&mut lanes, bundle(12..14)), (1, heard(12..14)));
    }

    #[test]
    fn a_large_message_comes_whole_or_not_at_all() {
        let large: Bytes = (0..3 * PART_BYTES + 1).map(|byte| (byte / 7) as u8).collect();
        let parts = frames(1, &large);
        assert_eq!(parts.len(), 4);
        let mut lanes = Lanes::default();
        assert!(run(&mut lanes, parts.clone()) == (0, vec![large.clone()]));
        for lost in 0..4 {
            let mut lanes = Lanes::default();
            let mut some = parts.clone();
            some.remove(lost);
            some.extend(frames(5, &Bytes::from_static(b"next")));
            assert!(run(&mut lanes, some) == (1, vec![Bytes::from_static(b"next")]), "part {lost}");
            assert_eq!(lanes.joining_bytes, 0);
        }
    }

    #[test]
    fn unfinished_messages_are_bounded() {
        let first = |lane: u64, whole: usize| {
            let content = Bytes::copy_from_slice(&(whole as u32).to_le_bytes());
            Frame { kind: Kind::First, lane, sequence: 1, content }
        };
        let mut lanes = Lanes::default();
        assert!(lanes.take(first(0, MESSAGE_BYTES_MAX + 1)).missed);
        assert!((1..=4).all(|lane| !lanes.take(first(lane, MESSAGE_BYTES_MAX)).missed));
        assert!(lanes.take(first(5, 1)).missed);
        // Whoever comes when all are remembered pushes out the most silent, with what it left unfinished.
        (6..=LANES_MAX as u64).for_each(|lane| drop(lanes.take(first(lane, 0))));
        assert_eq!((lanes.by_id.len(), lanes.joining_bytes), (LANES_MAX, 4 * MESSAGE_BYTES_MAX));
        lanes.take(first(10_000, 0));
        assert_eq!((lanes.by_id.len(), lanes.joining_bytes), (LANES_MAX, 3 * MESSAGE_BYTES_MAX));
    }
}
