//! What was published to one topic, and what each of its receivers got: every delivery is held against what was sent. For
//! servers that others wrote, which have no `seq`.

use crate::{
    live::LiveCounts,
    problems::Problems,
    verification::{
        Findings,
        order::{Arrival, ReceivedNumbers},
        tally::Tally,
    },
    worker_protocol::Outcome,
};
use std::io::Write;

/// What a marker begins with.
const MARKER: &str = "lab.";

/// What payloads of a phase begin with: a text of letters, digits and dots, which is the same in JSON. The message's number, that of
/// its sender and that among the sender's messages follow: `lab.RUN.PHASE.NUMBER.SENDER.OF_SENDER.`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marking {
    pub(crate) run: String,
    pub(crate) phase: u32,
}

/// Who gets what is published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Audience {
    #[default]
    Everybody,
    /// What sender `n` publishes is for receiver `n` alone.
    Pairs,
}

/// A message that was published.
struct Published {
    planned: u64,
    sender: u32,
    /// Its number among the sender's messages.
    of_sender: u32,
    /// How many receivers do not have it yet.
    missing: u32,
    refused: bool,
    answered: bool,
}

/// What a payload says that it is.
#[derive(Debug, PartialEq)]
enum Identity {
    Message(usize),
    /// A message of an earlier phase of the run.
    Earlier,
    Unknown,
}

/// Senders' messages keep their order at each receiver. No order is asked of messages of different senders: MQTT and NATS
/// promise none.
#[derive(Default)]
pub(crate) struct Ledger {
    marking: Marking,
    audience: Audience,
    /// How many receivers a message has.
    per_message: u32,
    body_bytes: usize,
    published: Vec<Published>,
    /// The messages of each sender.
    sent_by: Vec<Vec<u32>>,
    /// By receiver and sender, of pairs by receiver: the numbers among the sender's messages.
    received: Vec<ReceivedNumbers>,
    /// Messages that were not refused and that some receiver does not have yet.
    pub(crate) outstanding: usize,
    pub(crate) tally: Tally,
    pub(crate) findings: Findings,
    scratch: Vec<u8>,
}

/// When a message was due, when its sender was free, and when it is sent, in nanoseconds of the clock of all times.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SendTimes {
    pub(crate) planned: u64,
    pub(crate) free_since: u64,
    pub(crate) now: u64,
}

impl Ledger {
    /// `start` is when the phase begins, in nanoseconds of the clock of all times.
    pub(crate) fn new(marking: Marking, start: u64, receivers: usize, senders: usize, body_bytes: usize) -> Self {
        let audience = (Audience::Everybody, receivers as u32);
        Ledger::of(marking, start, audience, (receivers * senders, senders), body_bytes)
    }

    /// Of so many pairs, each a sender and a receiver.
    pub(crate) fn of_pairs(marking: Marking, start: u64, pairs: usize, body_bytes: usize) -> Self {
        Ledger::of(marking, start, (Audience::Pairs, 1), (pairs, pairs), body_bytes)
    }

    fn of(
        marking: Marking,
        start: u64,
        (audience, per_message): (Audience, u32),
        (places, senders): (usize, usize),
        body_bytes: usize,
    ) -> Self {
        Ledger {
            marking,
            audience,
            per_message,
            body_bytes,
            sent_by: vec![Vec::new(); senders],
            received: vec![ReceivedNumbers::from(0); places],
            tally: Tally::from(start),
            ..Ledger::default()
        }
    }

    /// Makes the payload of a message that is sent now and could have been since `free_since`, when it was due or its sender was
    /// free: what lies between is the lab's own lag. Returns the number of the message.
    pub(crate) fn publish(&mut self, sender: usize, times: SendTimes, payload: &mut Vec<u8>) -> u32 {
        let SendTimes { planned, free_since, now } = times;
        let number = self.published.len() as u32;
        let of_sender = self.sent_by[sender].len() as u32;
        self.sent_by[sender].push(number);
        let missing = self.per_message;
        self.published.push(Published {
            planned,
            sender: sender as u32,
            of_sender,
            missing,
            refused: false,
            answered: false,
        });
        self.outstanding += usize::from(missing > 0);
        self.tally.times.begun(planned, now, now.saturating_sub(free_since));
        payload.clear();
        self.put_payload(number as usize, payload);
        number
    }

    fn put_payload(&self, number: usize, out: &mut Vec<u8>) {
        let Published { sender, of_sender, .. } = self.published[number];
        let Marking { run, phase } = &self.marking;
        // Writing to a Vec cannot fail.
        let _ = write!(out, "{MARKER}{run}.{phase}.{number}.{sender}.{of_sender}.");
        let filler = b'a' + (number % 26) as u8;
        let length = self.body_bytes.max(out.len());
        out.resize(length, filler);
    }

    /// The server has taken the message.
    pub(crate) fn answer(&mut self, number: u32, now: u64) {
        let published = &mut self.published[number as usize];
        if !std::mem::replace(&mut published.answered, true) {
            self.tally.acknowledge(published.planned, now);
        }
    }

    /// The server has refused the message. If a receiver gets it all the same, all must.
    pub(crate) fn refuse(&mut self, number: u32, code: &str, why: &str) {
        let published = &mut self.published[number as usize];
        if !std::mem::replace(&mut published.refused, true) {
            self.tally.refused += 1;
            self.tally.note_refusal(code, 1);
            if published.missing == self.per_message && published.missing > 0 {
                self.outstanding -= 1;
            }
            self.findings.problems.note(format!("refused message {number}: {why}"));
        }
    }

    /// Takes a delivery to one receiver.
    pub(crate) fn deliver(&mut self, receiver: usize, payload: &[u8], now: u64) {
        let number = match self.identify(payload) {
            Identity::Message(number) => number,
            Identity::Earlier => {
                let what = format!("receiver {receiver} got a message of an earlier phase once that was over");
                return self.findings.doubled(what);
            }
            Identity::Unknown => {
                let shown = String::from_utf8_lossy(&payload[..payload.len().min(60)]);
                let bytes = payload.len();
                let what = format!("receiver {receiver} got a payload of {bytes} bytes that nobody sent: {shown}");
                return self.findings.altered(what);
            }
        };
        let Published { sender, of_sender, .. } = self.published[number];
        if self.audience == Audience::Pairs && sender as usize != receiver {
            return self.findings.altered(format!("receiver {receiver} got a message that is for receiver {sender}"));
        }
        let place = match self.audience {
            Audience::Everybody => receiver * self.sent_by.len() + sender as usize,
            Audience::Pairs => receiver,
        };
        let what = |how| format!("receiver {receiver} got message {of_sender} of sender {sender} {how}");
        match self.received[place].receive(of_sender.into()) {
            Arrival::InOrder => {}
            Arrival::Behind(_) => self.findings.out_of_order(what("after a later one")),
            Arrival::Again => return self.findings.doubled(what("twice")),
        }
        let published = &mut self.published[number];
        self.tally.deliver(published.planned, now);
        // It was no longer waited for.
        if published.refused && published.missing == self.per_message {
            self.outstanding += 1;
        }
        published.missing -= 1;
        if published.missing == 0 {
            self.outstanding -= 1;
            self.tally.end_round(published.planned);
        }
    }

    /// The message that a payload is, if this run published exactly these bytes.
    fn identify(&mut self, payload: &[u8]) -> Identity {
        let text = std::str::from_utf8(payload).ok().and_then(|text| text.strip_prefix(MARKER));
        let mut parts = text.unwrap_or_default().split('.');
        if parts.next() != Some(&self.marking.run) {
            return Identity::Unknown;
        }
        let number: Option<usize> = match parts.next().and_then(|phase| phase.parse::<u32>().ok()) {
            Some(of) if of < self.marking.phase => return Identity::Earlier,
            Some(of) if of == self.marking.phase => parts.next().and_then(|number| number.parse().ok()),
            _ => None,
        };
        let Some(number) = number.filter(|number| *number < self.published.len()) else { return Identity::Unknown };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        self.put_payload(number, &mut scratch);
        let is_whole = scratch == payload;
        self.scratch = scratch;
        if is_whole { Identity::Message(number) } else { Identity::Unknown }
    }

    /// What changes while something still happens.
    pub(crate) fn progress(&self) -> (u64, u64, u64) {
        (self.tally.delivered, self.tally.acknowledged, self.tally.refused)
    }

    pub(crate) fn published(&self) -> u64 {
        self.published.len() as u64
    }

    pub(crate) fn counts(&self) -> LiveCounts {
        LiveCounts {
            sent: self.published(),
            done: self.tally.acknowledged,
            delivered: self.tally.delivered,
            errors: self.tally.refused + self.findings.faults.total(),
            ..LiveCounts::default()
        }
    }

    /// The outcome of the phase; with `is_rounds`, of each message the time to its last receiver.
    pub(crate) fn outcome(mut self, is_rounds: bool) -> Outcome {
        let sent = self.published();
        if let Some((receiver, sender, number)) = self.first_missing() {
            let what = format!("receiver {receiver} never got message {number} of sender {sender}");
            self.findings.problems.note(what);
        }
        if !is_rounds {
            self.tally.rounds.clear();
        }
        let committed = self.published.iter().filter(|message| self.is_expected(message)).count() as u64;
        let receivers = u64::from(self.per_message);
        Outcome { planned: sent, sent, ..self.tally.outcome(committed, receivers, &mut self.findings) }
    }

    /// Whether all receivers must get it: the server has not refused it, or somebody has got it all the same.
    fn is_expected(&self, message: &Published) -> bool {
        !message.refused || message.missing < self.per_message
    }

    /// A message that a receiver lacks.
    fn first_missing(&self) -> Option<(usize, usize, u64)> {
        self.received.iter().enumerate().find_map(|(place, received)| {
            let (receiver, sender) = match self.audience {
                Audience::Everybody => (place / self.sent_by.len(), place % self.sent_by.len()),
                Audience::Pairs => (place, place),
            };
            let sent = &self.sent_by[sender];
            let mut missing = received.missing_below(sent.len() as u64);
            let number = missing.find(|number| self.is_expected(&self.published[sent[*number as usize] as usize]))?;
            Some((receiver, sender, number))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marking(phase: u32) -> Marking {
        Marking { run: "r1".into(), phase }
    }

    /// 200,000 messages to five receivers, a million deliveries, as `deliver` makes of them; it may hand on any.
    fn run(mut deliver: impl FnMut(&mut Ledger, usize, usize, &[u8])) -> Outcome {
        let mut ledger = Ledger::new(marking(2), 1_000, 5, 3, 48);
        let mut payload = Vec::new();
        for message in 0..200_000 {
            let times = SendTimes { planned: 1_000, free_since: 1_000, now: 1_000 };
            ledger.publish(message % 3, times, &mut payload);
            for receiver in 0..5 {
                deliver(&mut ledger, message, receiver, &payload);
            }
        }
        ledger.outcome(false)
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

    #[test]
    fn a_message_of_a_pair_is_for_its_receiver_alone() {
        let (mut ledger, mut payload) = (Ledger::of_pairs(marking(0), 0, 3, 0), Vec::new());
        for pair in [0, 2, 2, 1] {
            ledger.publish(pair, SendTimes::default(), &mut payload);
            ledger.deliver(pair, &payload, 10);
        }
        assert_eq!(ledger.outstanding, 0);
        ledger.publish(1, SendTimes::default(), &mut payload);
        ledger.deliver(0, &payload, 20);
        let outcome = ledger.outcome(false);
        assert_eq!((outcome.expected, outcome.delivered, outcome.lost, outcome.altered), (5, 4, 1, 1));
        let named = ["receiver 0 got a message that is for receiver 1", "receiver 1 never got message 1 of sender 1"];
        assert_eq!(outcome.problems, named);
    }

    #[test]
    fn a_refused_message_is_nobodys_loss_unless_somebody_gets_it() {
        let mut ledger = Ledger::new(marking(0), 0, 2, 1, 0);
        let mut payloads = [Vec::new(), Vec::new(), Vec::new()];
        for payload in &mut payloads {
            ledger.publish(0, SendTimes::default(), payload);
        }
        ledger.refuse(0, "http_503", "busy");
        ledger.refuse(1, "http_503", "busy");
        ledger.answer(2, 10);
        assert_eq!(ledger.outstanding, 1);
        ledger.deliver(0, &payloads[1], 10);
        assert_eq!(ledger.outstanding, 2, "the other receiver must get it now");
        (0..2).for_each(|receiver| ledger.deliver(receiver, &payloads[2], 20));
        let outcome = ledger.outcome(false);
        assert_eq!((outcome.sent, outcome.refused, outcome.committed), (3, 2, 2));
        assert_eq!((outcome.expected, outcome.delivered, outcome.lost), (4, 3, 1));
        assert_eq!(outcome.problems.last().map(String::as_str), Some("receiver 1 never got message 1 of sender 0"));
    }

    #[test]
    fn a_message_of_an_earlier_phase_or_of_another_run_is_told_apart() {
        let (mut earlier, mut payload) = (Ledger::new(marking(0), 0, 1, 1, 40), Vec::new());
        earlier.publish(0, SendTimes::default(), &mut payload);
        let mut ledger = Ledger::new(marking(1), 0, 1, 1, 40);
        ledger.deliver(0, &payload, 10);
        ledger.deliver(0, &[&b"lab.other"[..], &payload[5..]].concat(), 10);
        let outcome = ledger.outcome(false);
        assert_eq!((outcome.doubled, outcome.altered), (1, 1), "{:?}", outcome.problems);
    }
}
