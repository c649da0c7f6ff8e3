//! The state that all connections of the worker share: the verifier, the sent messages, and those waiting to be sent.

use super::{
    delivery_gaps::DeliveryGaps, mixed_traffic::MixedTraffic, receipt_teller::ReceiptTeller,
    sent_messages::SentMessages, traffic::Traffic, verifier::Verifier,
};
use crate::clock;
use std::collections::{HashMap, VecDeque};

#[derive(Debug)]
pub(crate) struct SharedState {
    /// The machine's clock when this one began. Both are one clock: two that are read one after the other would differ by the
    /// time for which the process lost its core in between.
    machine_start_ns: u64,
    pub(crate) token_key: String,
    pub(crate) verifier: Verifier,
    pub(crate) sent_messages: SentMessages,
    pub(crate) mix: MixedTraffic,
    pub(crate) receipts: ReceiptTeller,
    /// Messages that are due and not yet sent, in order.
    pub(crate) send_queue: VecDeque<u32>,
    /// How many planned messages have no final answer yet.
    pub(crate) unanswered: u64,
    /// Whether messages that were refused with a retryable code are sent again.
    pub(crate) retry: bool,
    pub(crate) retried: u64,
    /// After a retryable refusal, no message is sent before this time.
    pub(crate) backoff_until: u64,
    pub(crate) bound: usize,
    pub(crate) heartbeat_ms: u64,
    /// Whether there are several servers, so that a message that one refuses is sent to another.
    pub(crate) has_other_servers: bool,
    /// Whether receivers ask for compact entries.
    pub(crate) compact: bool,
    pub(crate) delivery_gaps: DeliveryGaps,
    /// Refusals in words, with how often each happened.
    refusals: HashMap<String, u64>,
}

/// The backoff after a retryable refusal. Servers ask for about a second; a lab that searches the highest rate retries
/// sooner.
const REFUSAL_BACKOFF_NS: u64 = 50_000_000;
/// How many answered messages are sent once more by each connection that a killed server has ended.
const ANSWERED_AGAIN: usize = 3;

impl SharedState {
    pub(crate) fn new(
        token_key: String,
        sent_messages: SentMessages,
        mix: MixedTraffic,
        receipts: ReceiptTeller,
    ) -> Self {
        SharedState {
            machine_start_ns: clock::machine_ns(),
            token_key,
            verifier: Verifier::default(),
            sent_messages,
            mix,
            receipts,
            send_queue: VecDeque::new(),
            unanswered: 0,
            retry: false,
            retried: 0,
            backoff_until: 0,
            bound: 0,
            heartbeat_ms: 30_000,
            has_other_servers: false,
            compact: false,
            delivery_gaps: DeliveryGaps::default(),
            refusals: HashMap::new(),
        }
    }

    /// Nanoseconds since the worker started.
    pub(crate) fn now(&self) -> u64 {
        self.at_machine_ns(clock::machine_ns())
    }

    /// A moment of the machine's clock on this one.
    pub(crate) fn at_machine_ns(&self, machine_ns: u64) -> u64 {
        machine_ns.saturating_sub(self.machine_start_ns)
    }

    pub(crate) fn record_bind(&mut self, heartbeat_ms: u64) {
        self.bound += 1;
        self.heartbeat_ms = self.heartbeat_ms.min(heartbeat_ms.max(100));
    }

    /// Plans a message that was due `late_ns` ago.
    pub(crate) fn plan_message(&mut self, due: u64, late_ns: u64) {
        let message = self.sent_messages.plan(due, late_ns);
        self.send_queue.push_back(message);
        self.unanswered += 1;
        self.mix.plan(due, &self.sent_messages, &self.verifier);
    }

    pub(crate) fn acknowledge(&mut self, message: u32, seq: u64, now: u64) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.sent_messages.acknowledge(message, seq, now) {
            self.mix.note_message(message, seq);
        }
    }

    /// The verifier, and what it expects.
    pub(crate) fn verifier_and_traffic(&mut self) -> (&mut Verifier, Traffic<'_>) {
        (&mut self.verifier, Traffic { sent: &mut self.sent_messages, mix: &mut self.mix })
    }

    pub(crate) fn record_refusal(&mut self, messages: &[u32], retryable: bool, code: &str, why: &str) {
        *self.refusals.entry(format!("{code}: {why}")).or_default() += messages.len() as u64;
        self.sent_messages.tally.note_refusal(code, messages.len() as u64);
        if retryable {
            self.backoff_until = self.now() + REFUSAL_BACKOFF_NS;
        }
        if retryable && self.retry {
            self.requeue(messages);
        } else {
            self.sent_messages.tally.refused += messages.len() as u64;
            self.unanswered = self.unanswered.saturating_sub(messages.len() as u64);
        }
    }

    /// Queues messages again, before any newer ones; they keep their `client_msg_id`.
    pub(crate) fn requeue(&mut self, messages: &[u32]) {
        self.retried += messages.len() as u64;
        self.send_queue.extend(messages);
        // Several senders may have been refused in any order; messages are sent in the planned order.
        self.send_queue.make_contiguous().sort_unstable();
    }

    /// Sends the newest messages that were answered once more: an answer must not change when its server was killed. Only within a
    /// phase, whose messages are known.
    pub(crate) fn ask_again(&mut self) {
        if self.unanswered > 0 {
            let answered = self.sent_messages.newest_acknowledged(ANSWERED_AGAIN);
            self.unanswered += answered.len() as u64;
            self.requeue(&answered);
        }
    }

    /// Takes the refusals in words, for the run report.
    pub(crate) fn take_refusal_problems(&mut self) -> Vec<String> {
        self.refusals.drain().take(10).map(|(why, count)| format!("refused {count} times: {why}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        worker::sent_messages::MessageBodies,
        worker_protocol::{Conversation, MixConfig},
    };

    #[test]
    fn two_answers_to_one_send_must_agree() {
        let mut sent = SentMessages::new("t".into(), &[Conversation { id: "g".into(), base_seq: 0 }]);
        sent.start_phase(MessageBodies::generated(33, &["a".into()], &[]), 0, None);
        let mix = MixedTraffic::new(MixConfig::default(), "t", "g", Vec::new());
        let mut shared = SharedState::new(String::new(), sent, mix, ReceiptTeller::new(None, Vec::new(), &[]));
        (0..5).for_each(|due| shared.plan_message(due, 0));
        let sent: Vec<u32> = shared.send_queue.drain(..).collect();
        (1..5).for_each(|seq| shared.acknowledge(sent[seq - 1], seq as u64, 1));
        shared.ask_again();
        assert_eq!((shared.send_queue.make_contiguous(), shared.unanswered), (&mut [1, 2, 3][..], 4));
        for (seq, contradictions) in [(4, 0), (4, 0), (5, 1)] {
            shared.acknowledge(3, seq, 2);
            assert_eq!(shared.sent_messages.contradictions, contradictions);
        }
        assert_eq!((shared.sent_messages.tally.acknowledged, shared.unanswered), (4, 1));
    }
}
