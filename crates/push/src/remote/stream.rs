//! One end of a stream: numbered packets out, kept until they are acknowledged; packets in, each taken once and in order.
//!
//! A lost packet is retransmitted with all that were sent after it: the receiver keeps no packet that came too early.

use super::wire::Header;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Bytes that may be unacknowledged. At 10 ms over the bus and back this is 50 MB/s.
const WINDOW_BYTES: usize = 512 * 1024;
/// When unacknowledged packets are retransmitted: first after `MIN`, then after twice as long each time, up to `MAX`.
const RETRANSMIT_AFTER_MIN: Duration = Duration::from_millis(250);
const RETRANSMIT_AFTER_MAX: Duration = Duration::from_secs(2);

pub(crate) struct PeerStream {
    /// The number of the last packet sent.
    sent: u64,
    unacked: VecDeque<(u64, Vec<u8>)>,
    unacked_bytes: usize,
    retransmit_after: Duration,
    retransmit_at: Instant,
    /// The number of the last packet received in order.
    received: u64,
    /// A packet has come since the last acknowledgement was sent.
    ack_due: bool,
}

/// What to do with a packet that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// The next packet: take its items.
    Next,
    /// No items, or a packet that came before, or too early.
    Ignored,
}

impl PeerStream {
    pub(crate) fn new(now: Instant) -> Self {
        PeerStream {
            sent: 0,
            unacked: VecDeque::new(),
            unacked_bytes: 0,
            retransmit_after: RETRANSMIT_AFTER_MIN,
            retransmit_at: now,
            received: 0,
            ack_due: false,
        }
    }

    pub(crate) fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    pub(crate) fn has_room(&self) -> bool {
        self.unacked_bytes < WINDOW_BYTES
    }

    /// Numbers a packet with items and keeps it; answers the encoded packet, which is to be sent now.
    pub(crate) fn send(&mut self, now: Instant, encode: impl FnOnce(Header) -> Vec<u8>) -> Vec<u8> {
        self.sent += 1;
        self.ack_due = false;
        let packet = encode(Header { number: self.sent, ack: self.received });
        if self.unacked.is_empty() {
            self.retransmit_after = RETRANSMIT_AFTER_MIN;
            self.retransmit_at = now + self.retransmit_after;
        }
        self.unacked_bytes += packet.len();
        self.unacked.push_back((self.sent, packet.clone()));
        packet
    }

    /// The header of a packet without items.
    pub(crate) fn ack_header(&mut self) -> Header {
        self.ack_due = false;
        Header { number: 0, ack: self.received }
    }

    /// Takes the acknowledgement in a packet's header. The packet itself may be received later.
    pub(crate) fn take_ack(&mut self, header: Header, now: Instant) {
        while let Some((number, packet)) = self.unacked.front()
            && *number <= header.ack
        {
            self.unacked_bytes -= packet.len();
            self.unacked.pop_front();
            self.retransmit_after = RETRANSMIT_AFTER_MIN;
            self.retransmit_at = now + self.retransmit_after;
        }
    }

    pub(crate) fn receive(&mut self, header: Header, now: Instant) -> Received {
        self.take_ack(header, now);
        self.ack_due |= header.number > 0;
        if header.number != self.received + 1 {
            return Received::Ignored;
        }
        self.received += 1;
        Received::Next
    }

    /// Whether a packet has come that no packet of this end has acknowledged.
    pub(crate) fn ack_due(&self) -> bool {
        self.ack_due
    }

    /// All unacknowledged packets if it is time to send them again, or none.
    pub(crate) fn retransmit(&mut self, now: Instant) -> impl Iterator<Item = &[u8]> {
        let is_due = !self.unacked.is_empty() && now >= self.retransmit_at;
        if is_due {
            self.retransmit_after = (self.retransmit_after * 2).min(RETRANSMIT_AFTER_MAX);
            self.retransmit_at = now + self.retransmit_after;
        }
        self.unacked.iter().take(if is_due { usize::MAX } else { 0 }).map(|(_, packet)| packet.as_slice())
    }

    /// The packets that may not have arrived, for the stream that follows this one.
    pub(crate) fn into_unacked(self) -> impl Iterator<Item = Vec<u8>> {
        self.unacked.into_iter().map(|(_, packet)| packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of the test is its header and one number.
    fn packet(header: Header, item: u64) -> Vec<u8> {
        [header.number, header.ack, item].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(packet: &[u8]) -> (Header, u64) {
        let mut words = packet.chunks(8).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)));
        let mut word = || words.next().unwrap_or_default();
        (Header { number: word(), ack: word() }, word())
    }

    proptest! {
        /// Whatever the bus loses in either direction, all items arrive once and in order as soon as it loses no more.
        #[test]
        fn lost_packets_arrive_late_once_and_in_order(steps in prop::collection::vec((any::<bool>(), 0..3_u8), 0..200)) {
            let mut now = Instant::now();
            let (mut sender, mut receiver) = (PeerStream::new(now), PeerStream::new(now));
            let (mut sent, mut received) = (0, Vec::new());
            let steps = steps.into_iter().chain([(false, 1); 3]);
            for (is_lost, step) in steps {
                let mut packets = Vec::new();
                match step {
                    0 => {
                        sent += 1;
                        packets.push(sender.send(now, |header| packet(header, sent)));
                    }
                    1 => {
                        now += RETRANSMIT_AFTER_MAX;
                        packets.extend(sender.retransmit(now).map(<[u8]>::to_vec));
                    }
                    _ => {}
                }
                for packet in packets.iter().filter(|_| !is_lost) {
                    let (header, item) = read(packet);
                    if receiver.receive(header, now) == Received::Next {
                        received.push(item);
                    }
                }
                if receiver.ack_due() && !is_lost {
                    let header = receiver.ack_header();
                    prop_assert_eq!(sender.receive(header, now), Received::Ignored);
                }
            }
            prop_assert_eq!(received, (1..=sent).collect::<Vec<_>>());
            prop_assert_eq!(sender.unacked_bytes(), 0);
        }
    }

    #[test]
    fn unacknowledged_bytes_stay_within_the_window_and_retransmits_back_off() {
        let now = Instant::now();
        let mut stream = PeerStream::new(now);
        while stream.has_room() {
            stream.send(now, |_| vec![0; 100_000]);
        }
        assert_eq!(stream.unacked_bytes(), 600_000);
        assert_eq!(stream.retransmit(now).count(), 0, "not yet");
        assert_eq!(stream.retransmit(now + RETRANSMIT_AFTER_MIN).count(), 6);
        assert_eq!(stream.retransmit(now + RETRANSMIT_AFTER_MIN).count(), 0, "the wait has doubled");
        stream.receive(Header { number: 0, ack: 5 }, now);
        assert!(stream.has_room());
    }

    #[test]
    fn an_acknowledgement_counts_before_its_packet_is_received() {
        let now = Instant::now();
        let mut stream = PeerStream::new(now);
        stream.send(now, |_| vec![0; 100]);
        let header = Header { number: 1, ack: 1 };
        stream.take_ack(header, now);
        assert_eq!((stream.retransmit(now + RETRANSMIT_AFTER_MAX).count(), stream.ack_due()), (0, false));
        // The packet itself is still the next one.
        assert_eq!((stream.receive(header, now), stream.receive(header, now)), (Received::Next, Received::Ignored));
    }
}
