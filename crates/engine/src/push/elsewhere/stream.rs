//! One end of a stream: packets out until they are confirmed, packets in each once and in order.
//!
//! What is lost is sent again with all that came after it: the other end keeps nothing that came too early.

use super::wire::Head;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Bytes that may be unconfirmed. At 10 ms over the bus and back this is 50 MB/s.
const WINDOW_BYTES: usize = 512 * 1024;
/// What is not confirmed within this is sent again, at first; then after twice as long each time, up to the last.
const PATIENCE_FIRST: Duration = Duration::from_millis(250);
const PATIENCE_LAST: Duration = Duration::from_secs(2);

pub(super) struct Stream {
    sent: u64,
    unconfirmed: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    patience: Duration,
    /// When the oldest packet is sent again.
    again_at: Instant,
    heard: u64,
    /// The other end does not know what this one has heard.
    owes: bool,
}

/// What a packet is to the end that it came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// The next one: take what it carries.
    Next,
    /// It carries nothing, or what has come before, or what comes too early.
    Nothing,
}

impl Stream {
    pub(super) fn new(now: Instant) -> Self {
        Stream {
            sent: 0,
            unconfirmed: VecDeque::new(),
            bytes: 0,
            patience: PATIENCE_FIRST,
            again_at: now,
            heard: 0,
            owes: false,
        }
    }

    pub(super) fn unconfirmed_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes < WINDOW_BYTES
    }

    /// Numbers a packet that carries something, and keeps it; what is to be sent now.
    pub(super) fn put(&mut self, now: Instant, encode: impl FnOnce(Head) -> Vec<u8>) -> Vec<u8> {
        self.sent += 1;
        self.owes = false;
        let packet = encode(Head { number: self.sent, heard: self.heard });
        if self.unconfirmed.is_empty() {
            self.patience = PATIENCE_FIRST;
            self.again_at = now + self.patience;
        }
        self.bytes += packet.len();
        self.unconfirmed.push_back((self.sent, packet.clone()));
        packet
    }

    /// The head of a packet that carries nothing.
    pub(super) fn bare(&mut self) -> Head {
        self.owes = false;
        Head { number: 0, heard: self.heard }
    }

    /// What the other end has heard, from the head of a packet that need not be taken yet.
    pub(super) fn confirmed(&mut self, head: Head, now: Instant) {
        while let Some((number, packet)) = self.unconfirmed.front()
            && *number <= head.heard
        {
            self.bytes -= packet.len();
            self.unconfirmed.pop_front();
            self.patience = PATIENCE_FIRST;
            self.again_at = now + self.patience;
        }
    }

    pub(super) fn take(&mut self, head: Head, now: Instant) -> Came {
        self.confirmed(head, now);
        self.owes |= head.number > 0;
        if head.number != self.heard + 1 {
            return Came::Nothing;
        }
        self.heard += 1;
        Came::Next
    }

    /// Whether a packet has come that was not confirmed since.
    pub(super) fn owes(&self) -> bool {
        self.owes
    }

    /// What is to be sent again now.
    pub(super) fn again(&mut self, now: Instant) -> impl Iterator<Item = &[u8]> {
        let is_time = !self.unconfirmed.is_empty() && now >= self.again_at;
        if is_time {
            self.patience = (self.patience * 2).min(PATIENCE_LAST);
            self.again_at = now + self.patience;
        }
        self.unconfirmed.iter().take(if is_time { usize::MAX } else { 0 }).map(|(_, packet)| packet.as_slice())
    }

    /// What may not have arrived, for the stream that comes after this one.
    pub(super) fn into_unconfirmed(self) -> impl Iterator<Item = Vec<u8>> {
        self.unconfirmed.into_iter().map(|(_, packet)| packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of the test is its head and one number.
    fn packet(head: Head, item: u64) -> Vec<u8> {
        [head.number, head.heard, item].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(packet: &[u8]) -> (Head, u64) {
        let mut words = packet.chunks(8).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        let mut word = || words.next().unwrap_or_default();
        (Head { number: word(), heard: word() }, word())
    }

    proptest! {
        /// Whatever the bus loses of either direction, all comes once and in order as soon as it loses no more.
        #[test]
        fn what_is_lost_comes_late_and_once(steps in prop::collection::vec((any::<bool>(), 0..3_u8), 0..200)) {
            let mut now = Instant::now();
            let (mut one, mut other) = (Stream::new(now), Stream::new(now));
            let (mut said, mut came) = (0, Vec::new());
            let steps = steps.into_iter().chain([(false, 1); 3]);
            for (is_lost, what) in steps {
                let mut packets = Vec::new();
                match what {
                    0 => {
                        said += 1;
                        packets.push(one.put(now, |head| packet(head, said)));
                    }
                    1 => {
                        now += PATIENCE_LAST;
                        packets.extend(one.again(now).map(<[u8]>::to_vec));
                    }
                    _ => {}
                }
                for packet in packets.iter().filter(|_| !is_lost) {
                    let (head, item) = read(packet);
                    if other.take(head, now) == Came::Next {
                        came.push(item);
                    }
                }
                if other.owes() && !is_lost {
                    let head = other.bare();
                    prop_assert_eq!(one.take(head, now), Came::Nothing);
                }
            }
            prop_assert_eq!(came, (1..=said).collect::<Vec<_>>());
            prop_assert_eq!(one.unconfirmed_bytes(), 0);
        }
    }

    #[test]
    fn no_more_than_the_window_is_under_way() {
        let now = Instant::now();
        let mut stream = Stream::new(now);
        while stream.has_room() {
            stream.put(now, |_| vec![0; 100_000]);
        }
        assert_eq!(stream.unconfirmed_bytes(), 600_000);
        assert_eq!(stream.again(now).count(), 0, "not yet");
        assert_eq!(stream.again(now + PATIENCE_FIRST).count(), 6);
        assert_eq!(stream.again(now + PATIENCE_FIRST).count(), 0, "patience has doubled");
        stream.take(Head { number: 0, heard: 5 }, now);
        assert!(stream.has_room());
    }

    #[test]
    fn what_is_confirmed_need_not_wait_until_its_packet_is_taken() {
        let now = Instant::now();
        let mut stream = Stream::new(now);
        stream.put(now, |_| vec![0; 100]);
        let head = Head { number: 1, heard: 1 };
        stream.confirmed(head, now);
        assert_eq!((stream.again(now + PATIENCE_LAST).count(), stream.owes()), (0, false));
        // The packet itself is still the next one.
        assert_eq!((stream.take(head, now), stream.take(head, now)), (Came::Next, Came::Nothing));
    }
}
