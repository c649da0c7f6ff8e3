//! Receipts of all receivers (`--receipts`): each says once in an interval what it has stored and read, as an app does that
//! gathers.

use super::{receivers::Receivers, verifier::Verifier};
use crate::worker_protocol::ReceiptCounts;
use std::time::Duration;
use tidings_protocol::frames::ClientFrame;

/// References of read marks begin here, above those of operations of the mix.
const REFERENCE_BASE: u64 = 1 << 41;

#[derive(Debug)]
pub(crate) struct ReceiptTeller {
    interval_ns: Option<u64>,
    conversations: Vec<String>,
    /// By receiver: its conversation, and how far it has said that it has read.
    marks: Vec<Mark>,
    next: usize,
    last_round_at: u64,
    counts: ReceiptCounts,
}

#[derive(Debug, Clone)]
struct Mark {
    conversation: usize,
    accepted_seq: u64,
    /// Said and not answered yet.
    asked_seq: Option<u64>,
}

impl ReceiptTeller {
    /// `receivers`: the conversation of each.
    pub(crate) fn new(interval: Option<Duration>, conversations: Vec<String>, receivers: &[usize]) -> Self {
        let mark = |conversation: &usize| Mark { conversation: *conversation, accepted_seq: 0, asked_seq: None };
        ReceiptTeller {
            interval_ns: interval.map(|interval| interval.max(Duration::from_millis(1)).as_nanos() as u64),
            conversations,
            marks: receivers.iter().map(mark).collect(),
            next: 0,
            last_round_at: 0,
            counts: ReceiptCounts::default(),
        }
    }

    pub(crate) fn start_phase(&mut self, now: u64) {
        self.counts = ReceiptCounts::default();
        self.last_round_at = now;
    }

    /// Lets as many receivers speak as needed for each to have its turn once in the interval.
    pub(crate) fn tell(&mut self, receivers: &mut impl Receivers, verifier: &Verifier, now: u64) {
        let Some(interval_ns) = self.interval_ns else { return };
        let all = self.marks.len();
        let count = (all as u64).saturating_mul(now - self.last_round_at) / interval_ns;
        if count == 0 {
            return;
        }
        self.last_round_at = now;
        for _ in 0..count.min(all as u64) {
            let receiver = self.next;
            self.next = (self.next + 1) % all;
            self.tell_of(receiver, receivers, verifier);
        }
    }

    fn tell_of(&mut self, receiver: usize, receivers: &mut impl Receivers, verifier: &Verifier) {
        let seq = verifier.last_contiguous_seq(receiver);
        let mark = &mut self.marks[receiver];
        if !receivers.is_live(receiver) || mark.asked_seq.is_some() || seq <= mark.accepted_seq {
            return;
        }
        let cursor = String::from_utf8_lossy(receivers.cursor(receiver)).into_owned();
        mark.asked_seq = Some(seq);
        let read = ClientFrame::Read {
            reference: Some(REFERENCE_BASE + receiver as u64),
            conversation: self.conversations[mark.conversation].clone(),
            seq,
        };
        for frame in [ClientFrame::Stored { cursor }, read] {
            // Our own frames always serialize.
            receivers.queue_frame(receiver, &serde_json::to_vec(&frame).unwrap_or_default());
        }
        self.counts.told += 1;
    }

    fn mark_of(&mut self, reference: u64) -> Option<&mut Mark> {
        self.marks.get_mut(reference.checked_sub(REFERENCE_BASE)? as usize)
    }

    /// Records the answer to a read mark; returns whether the reference is one.
    pub(crate) fn acknowledge(&mut self, reference: u64) -> bool {
        let Some(mark) = self.mark_of(reference) else { return false };
        mark.accepted_seq = mark.asked_seq.take().unwrap_or(mark.accepted_seq);
        self.counts.accepted += 1;
        true
    }

    /// Records the refusal of a read mark, which is said again; returns whether the reference is one.
    pub(crate) fn refuse(&mut self, reference: u64) -> bool {
        let Some(mark) = self.mark_of(reference) else { return false };
        mark.asked_seq = None;
        self.counts.refused += 1;
        true
    }

    /// The receiver's connection broke: what was not answered is said again.
    pub(crate) fn forget_unanswered(&mut self, receiver: usize) {
        self.marks[receiver].asked_seq = None;
    }

    pub(crate) fn record_seen(&mut self, marks: u64) {
        self.counts.frames_seen += 1;
        self.counts.marks_seen += marks;
    }

    /// Whether every receiver's mark covers all that the receiver has.
    pub(crate) fn is_settled(&self, verifier: &Verifier) -> bool {
        let covered = |(receiver, mark): (usize, &Mark)| mark.accepted_seq >= verifier.last_contiguous_seq(receiver);
        self.interval_ns.is_none() || self.marks.iter().enumerate().all(covered)
    }

    /// Grows with every answer.
    pub(crate) fn progress(&self) -> u64 {
        self.counts.accepted
    }

    /// The counts of the phase, if receivers say receipts.
    pub(crate) fn counts(&self) -> Option<ReceiptCounts> {
        self.interval_ns.map(|_| self.counts)
    }
}
