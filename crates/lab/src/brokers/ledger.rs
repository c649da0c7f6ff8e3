//! What was published, and what each receiver got of it: every delivery is held against what was sent.

use crate::{
    latency::{Percentiles, new_histogram, record},
    worker_protocol::Outcome,
};
use hdrhistogram::Histogram;
use std::collections::HashSet;

/// The number of the message, that of its sender, and that among the sender's messages: what a payload begins with.
const HEAD_BYTES: usize = 12;
/// A payload is at least as long.
pub(super) const BODY_BYTES_MIN: usize = HEAD_BYTES;

/// A message that was published.
struct Published {
    planned: u64,
    /// How many receivers do not have it yet.
    missing: u32,
}

/// Senders' messages keep their order at each receiver. No order is asked of messages of different senders: MQTT and NATS
/// promise none.
pub(super) struct Ledger {
    receivers: usize,
    body_bytes: usize,
    published: Vec<Published>,
    /// How many messages each sender has published.
    sent_by: Vec<u32>,
    /// By receiver and sender: the number of the next message.
    next: Vec<u32>,
    /// Numbers that were skipped: (receiver, sender, number).
    skipped: HashSet<(u32, u32, u32)>,
    /// Messages that some receiver does not have yet.
    pub(super) outstanding: usize,
    delivered: u64,
    doubled: u64,
    out_of_order: u64,
    altered: u64,
    latency: Histogram<u64>,
    lateness: Histogram<u64>,
    rounds: Vec<f64>,
    last_delivery: u64,
    problems: Vec<String>,
}

impl Ledger {
    pub(super) fn new(receivers: usize, senders: usize, body_bytes: usize) -> Self {
        Ledger {
            receivers,
            body_bytes: body_bytes.max(BODY_BYTES_MIN),
            published: Vec::new(),
            sent_by: vec![0; senders],
            next: vec![0; receivers * senders],
            skipped: HashSet::new(),
            outstanding: 0,
            delivered: 0,
            doubled: 0,
            out_of_order: 0,
            altered: 0,
            latency: new_histogram(),
            lateness: new_histogram(),
            rounds: Vec::new(),
            last_delivery: 0,
            problems: Vec::new(),
        }
    }

    /// The sender of the next message.
    pub(super) fn next_sender(&self) -> usize {
        self.published.len() % self.sent_by.len()
    }

    /// Makes the payload of the next message.
    pub(super) fn publish(&mut self, planned: u64, now: u64, payload: &mut Vec<u8>) {
        let (number, sender) = (self.published.len(), self.next_sender());
        let of_sender = self.sent_by[sender];
        self.sent_by[sender] += 1;
        self.published.push(Published { planned, missing: self.receivers as u32 });
        self.outstanding += 1;
        record(&mut self.lateness, planned, now);
        payload.clear();
        for part in [number as u32, sender as u32, of_sender] {
            payload.extend_from_slice(&part.to_le_bytes());
        }
        payload.resize(self.body_bytes, filler(number));
    }

    /// Takes a delivery to one receiver.
    pub(super) fn deliver(&mut self, receiver: usize, payload: &[u8], now: u64) {
        let Some((number, sender, of_sender)) = self.identify(payload) else {
            self.altered += 1;
            self.note(format!("receiver {receiver} got a payload of {} bytes that nobody sent", payload.len()));
            return;
        };
        let place = receiver * self.sent_by.len() + sender;
        let expected = self.next[place];
        let key = |number| (receiver as u32, sender as u32, number);
        if of_sender < expected {
            if self.skipped.remove(&key(of_sender)) {
                self.out_of_order += 1;
                self.note(format!("receiver {receiver} got message {of_sender} of sender {sender} after a later one"));
            } else {
                self.doubled += 1;
                self.note(format!("receiver {receiver} got message {of_sender} of sender {sender} twice"));
                return;
            }
        } else {
            self.skipped.extend((expected..of_sender).map(key));
            self.next[place] = of_sender + 1;
        }
        self.delivered += 1;
        self.last_delivery = now;
        let published = &mut self.published[number];
        record(&mut self.latency, published.planned, now);
        published.missing -= 1;
        if published.missing == 0 {
            self.outstanding -= 1;
            self.rounds.push(now.saturating_sub(published.planned) as f64 / 1e6);
        }
    }

    /// The numbers of a payload, if this run published exactly these bytes.
    fn identify(&self, payload: &[u8]) -> Option<(usize, usize, u32)> {
        let part = |at: usize| Some(u32::from_le_bytes(*payload.get(at..)?.first_chunk()?));
        let (number, sender, of_sender) = (part(0)? as usize, part(4)? as usize, part(8)?);
        let is_known = number < self.published.len() && sender == number % self.sent_by.len();
        let is_whole = payload.len() == self.body_bytes
            && of_sender as usize == number / self.sent_by.len()
            && payload[HEAD_BYTES..].iter().all(|byte| *byte == filler(number));
        (is_known && is_whole).then_some((number, sender, of_sender))
    }

    pub(super) fn note(&mut self, problem: String) {
        if self.problems.len() < 5 {
            self.problems.push(problem);
        }
    }

    /// The outcome of a phase that began at `start`; with `is_rounds`, of each message the time to its last receiver.
    pub(super) fn outcome(mut self, start: u64, is_rounds: bool) -> Outcome {
        let sent = self.published.len() as u64;
        let expected = sent * self.receivers as u64;
        if let Some((receiver, sender, number)) = self.first_missing() {
            self.note(format!("receiver {receiver} never got message {number} of sender {sender}"));
        }
        Outcome {
            planned: sent,
            sent,
            committed: sent,
            expected,
            delivered: self.delivered,
            lost: expected - self.delivered,
            doubled: self.doubled,
            out_of_order: self.out_of_order,
            altered: self.altered,
            seconds: self.last_delivery.saturating_sub(start).max(1) as f64 / 1e9,
            latency: Percentiles::of(&self.latency),
            lateness: Percentiles::of(&self.lateness),
            rounds: if is_rounds { self.rounds } else { Vec::new() },
            problems: self.problems,
            ..Outcome::default()
        }
    }

    fn first_missing(&self) -> Option<(usize, usize, u32)> {
        let skipped =
            self.skipped.iter().min().map(|(receiver, sender, number)| (*receiver as usize, *sender as usize, *number));
        let senders = self.sent_by.len();
        let behind = || {
            let place = (0..self.next.len()).find(|place| self.next[*place] < self.sent_by[place % senders])?;
            Some((place / senders, place % senders, self.next[place]))
        };
        skipped.or_else(behind)
    }
}

fn filler(number: usize) -> u8 {
    (number % 251) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 200,000 messages to five receivers, a million deliveries, as `deliver` makes of them; it may hand on any.
    fn run(mut deliver: impl FnMut(&mut Ledger, usize, usize, &[u8])) -> Outcome {
        let mut ledger = Ledger::new(5, 3, 20);
        let mut payload = Vec::new();
        for message in 0..200_000 {
            ledger.publish(1_000, 1_000, &mut payload);
            for receiver in 0..5 {
                deliver(&mut ledger, message, receiver, &payload);
            }
        }
        ledger.outcome(1_000, false)
    }

    const AT: (usize, usize) = (123_456, 3);

    #[test]
    fn a_run_without_faults_balances() {
        let outcome = run(|ledger, _, receiver, payload| ledger.deliver(receiver, payload, 2_000));
        assert!(outcome.balances(), "{outcome:?}");
        assert_eq!((outcome.delivered, outcome.problems), (1_000_000, vec![]));
    }

    #[test]
    fn one_delivery_of_a_million_that_is_dropped_is_found() {
        let outcome = run(|ledger, message, receiver, payload| {
            if (message, receiver) != AT {
                ledger.deliver(receiver, payload, 2_000);
            }
        });
        assert_eq!((outcome.lost, outcome.doubled, outcome.out_of_order), (1, 0, 0));
        assert_eq!(outcome.problems, ["receiver 3 never got message 41152 of sender 0"]);
    }

    #[test]
    fn one_delivery_of_a_million_that_comes_twice_is_found() {
        let outcome = run(|ledger, message, receiver, payload| {
            for _ in 0..1 + usize::from((message, receiver) == AT) {
                ledger.deliver(receiver, payload, 2_000);
            }
        });
        assert_eq!((outcome.lost, outcome.doubled, outcome.out_of_order), (0, 1, 0));
        assert_eq!(outcome.problems, ["receiver 3 got message 41152 of sender 0 twice"]);
    }

    #[test]
    fn two_deliveries_of_one_sender_that_are_swapped_are_found() {
        let mut held = None;
        let outcome = run(|ledger, message, receiver, payload| match message {
            _ if receiver != AT.1 => ledger.deliver(receiver, payload, 2_000),
            message if message == AT.0 => held = Some(payload.to_vec()),
            message if message == AT.0 + 3 => {
                ledger.deliver(receiver, payload, 2_000);
                ledger.deliver(receiver, &held.take().unwrap(), 2_000);
            }
            _ => ledger.deliver(receiver, payload, 2_000),
        });
        assert_eq!((outcome.lost, outcome.doubled, outcome.out_of_order), (0, 0, 1));
    }

    #[test]
    fn a_payload_with_one_other_byte_is_found() {
        let outcome = run(|ledger, message, receiver, payload| {
            let mut payload = payload.to_vec();
            payload[17] ^= u8::from((message, receiver) == AT);
            ledger.deliver(receiver, &payload, 2_000);
        });
        assert_eq!((outcome.altered, outcome.lost), (1, 1));
    }

    #[test]
    fn a_receiver_that_is_starved_is_found() {
        let outcome = run(|ledger, _, receiver, payload| {
            if receiver != 4 {
                ledger.deliver(receiver, payload, 2_000);
            }
        });
        assert_eq!(outcome.lost, 200_000);
        assert_eq!(outcome.problems, ["receiver 4 never got message 0 of sender 0"]);
    }
}
