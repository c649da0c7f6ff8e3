//! What all connections of the worker share: the verifier, the ledger, and the messages waiting to be sent.

use super::{ledger::Ledger, pauses::Pauses, verify::Verifier};
use crate::job::Refused;
use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

#[derive(Debug)]
pub(crate) struct Desk {
    clock: Instant,
    pub(crate) token_key: String,
    pub(crate) verifier: Verifier,
    pub(crate) ledger: Ledger,
    /// Due and not yet sent, in order.
    pub(crate) ready: VecDeque<u32>,
    /// Sent or ready, and not yet answered for good.
    pub(crate) unanswered: u64,
    /// Whether refusals "for the moment" are sent again.
    pub(crate) retry: bool,
    pub(crate) retried: u64,
    pub(crate) refused: u64,
    /// After a refusal for the moment, nothing is sent before this time.
    pub(crate) paused_until: u64,
    pub(crate) bound: usize,
    pub(crate) heartbeat_ms: u64,
    /// Whether there are other servers to go to with what one refused.
    pub(crate) has_others: bool,
    pub(crate) pauses: Pauses,
    pub(crate) refused_by_code: Refused,
    /// Refusals in words, and how often each.
    refusals: HashMap<String, u64>,
}

/// The pause after a refusal for the moment. Servers ask for a second or so; a lab that seeks the
/// highest rate probes sooner.
const PAUSE_NS: u64 = 50_000_000;

impl Desk {
    pub(crate) fn new(token_key: String, ledger: Ledger) -> Self {
        Desk {
            clock: Instant::now(),
            token_key,
            verifier: Verifier::default(),
            ledger,
            ready: VecDeque::new(),
            unanswered: 0,
            retry: false,
            retried: 0,
            refused: 0,
            paused_until: 0,
            bound: 0,
            heartbeat_ms: 30_000,
            has_others: false,
            pauses: Pauses::default(),
            refused_by_code: Refused::default(),
            refusals: HashMap::new(),
        }
    }

    /// Nanoseconds since the worker started.
    pub(crate) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    pub(crate) fn bound(&mut self, heartbeat_ms: u64) {
        self.bound += 1;
        self.heartbeat_ms = self.heartbeat_ms.min(heartbeat_ms.max(100));
    }

    pub(crate) fn plan(&mut self, due: u64) {
        let message = self.ledger.plan(due);
        self.ready.push_back(message);
        self.unanswered += 1;
    }

    pub(crate) fn acknowledge(&mut self, message: u32, seq: u64, now: u64) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.ledger.acknowledge(message, seq, now);
    }

    pub(crate) fn refuse(&mut self, messages: &[u32], for_the_moment: bool, code: &str, why: &str) {
        *self.refusals.entry(format!("{code}: {why}")).or_default() += messages.len() as u64;
        *self.refused_by_code.entry(code.to_owned()).or_default() += messages.len() as u64;
        if for_the_moment {
            self.paused_until = self.now() + PAUSE_NS;
        }
        if for_the_moment && self.retry {
            self.again(messages);
        } else {
            self.refused += messages.len() as u64;
            self.unanswered = self.unanswered.saturating_sub(messages.len() as u64);
        }
    }

    /// Sends again, before anything newer, with the same `client_msg_id`.
    pub(crate) fn again(&mut self, messages: &[u32]) {
        self.retried += messages.len() as u64;
        self.ready.extend(messages);
        // Several senders may have been refused in any order; their messages go out in the planned order.
        self.ready.make_contiguous().sort_unstable();
    }

    /// Takes the refusals in words.
    pub(crate) fn take_refusals(&mut self) -> Vec<String> {
        self.refusals.drain().take(10).map(|(why, count)| format!("refused {count} times: {why}")).collect()
    }
}
