//! The counts and times of the messages of a phase; times are nanoseconds of one clock.

use super::Findings;
use crate::{
    load_times::LoadTimes,
    worker_protocol::{Outcome, RefusalCounts},
};

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) start: u64,
    /// Messages that the server has taken.
    pub(crate) acknowledged: u64,
    /// Messages that the server has refused for good.
    pub(crate) refused: u64,
    /// Also those that were then sent again.
    pub(crate) refused_by_code: RefusalCounts,
    pub(crate) delivered: u64,
    pub(crate) last_delivery: u64,
    pub(crate) times: LoadTimes,
    /// Per round: to the last receiver, in milliseconds.
    pub(crate) rounds: Vec<f64>,
}

impl Tally {
    pub(crate) fn from(start: u64) -> Self {
        Tally { start, last_delivery: start, times: LoadTimes::from(start), ..Tally::default() }
    }

    /// The server has taken a message.
    pub(crate) fn acknowledge(&mut self, due: u64, now: u64) {
        self.acknowledged += 1;
        self.times.acknowledged(due, now);
    }

    /// The server has refused so many messages, maybe for the moment.
    pub(crate) fn note_refusal(&mut self, code: &str, messages: u64) {
        *self.refused_by_code.entry(code.to_owned()).or_default() += messages;
    }

    /// One receiver has got a message.
    pub(crate) fn deliver(&mut self, due: u64, now: u64) {
        self.delivered += 1;
        self.last_delivery = now;
        self.times.delivered(due, now);
    }

    /// The last receiver has got the message of a round.
    pub(crate) fn end_round(&mut self, due: u64) {
        self.rounds.push(self.last_delivery.saturating_sub(due) as f64 / 1e6);
    }

    /// What it adds up to if so many messages were committed, each for so many receivers.
    pub(crate) fn outcome(&mut self, committed: u64, receivers: u64, findings: &mut Findings) -> Outcome {
        let expected = committed * receivers;
        let faults = findings.faults;
        Outcome {
            committed,
            expected,
            refused: self.refused,
            refused_by_code: std::mem::take(&mut self.refused_by_code),
            delivered: self.delivered,
            lost: expected.saturating_sub(self.delivered),
            doubled: faults.doubled,
            out_of_order: faults.out_of_order,
            altered: faults.altered,
            seconds: self.last_delivery.saturating_sub(self.start).max(1) as f64 / 1e9,
            rounds: std::mem::take(&mut self.rounds),
            problems: std::mem::take(&mut findings.problems),
            ..Outcome::of_times(&self.times)
        }
    }
}
