//! All that receivers are expected to get: plain messages, and the operations of the mix.

use super::{
    mixed_traffic::MixedTraffic,
    sent_messages::SentMessages,
    verifier::{EntryView, ExpectedMessages, NO_MESSAGE},
};
use crate::mix::form::{DeliveredEntry, Form};
use tidings_protocol::entry::Entry;

/// Marks the number of an operation among the numbers of messages.
const OPERATION: u32 = 1 << 31;

/// Plain messages and the mix, for the verifier.
pub(crate) struct Traffic<'a> {
    pub(crate) sent: &'a mut SentMessages,
    pub(crate) mix: &'a mut MixedTraffic,
}

fn read(raw: &str) -> Result<(Entry, DeliveredEntry), String> {
    let entry: Entry = serde_json::from_str(raw).map_err(|error| format!("is not an entry: {error}"))?;
    let handed = DeliveredEntry::of(&entry)?;
    Ok((entry, handed))
}

impl ExpectedMessages for Traffic<'_> {
    fn identify(&mut self, receiver: usize, entry: &EntryView<'_>, raw: &str) -> Result<u32, String> {
        if !self.mix.is_on() {
            return self.sent.identify(entry, false);
        }
        let (whole, handed) = read(raw)?;
        let operation = entry.client_msg_id.as_deref().and_then(|id| self.mix.operation_of(id));
        let identified = match operation {
            Some(number) => self.mix.identify(number, &whole).map(|()| OPERATION | number),
            None => self.mix.check_handed(receiver, entry.seq, &handed).and_then(|()| {
                let is_changed = matches!(&handed, DeliveredEntry::Message(form) if *form != Form::original(form.body));
                self.sent.identify(entry, is_changed)
            }),
        };
        self.mix.views.record_first(entry.seq, handed);
        identified
    }

    fn compare(&mut self, receiver: usize, entry: &EntryView<'_>, raw: &str, is_same: bool) -> Result<(), String> {
        if !self.mix.is_on() || (is_same && !self.mix.is_answering(receiver)) {
            return if is_same { Ok(()) } else { Err(format!("differs from what others got: {raw}")) };
        }
        let (whole, handed) = read(raw)?;
        let checked = match entry.client_msg_id.as_deref().and_then(|id| self.mix.operation_of(id)) {
            Some(number) => self.mix.check_operation(number, &whole),
            None => self.mix.check_handed(receiver, entry.seq, &handed).and_then(|()| match handed {
                // Who sent it, and where, and an unchanged body, are as they were.
                DeliveredEntry::Message(ref form) => self.sent.check_again(entry, *form != Form::original(form.body)),
                _ => Ok(()),
            }),
        };
        self.mix.views.record_other(receiver, entry.seq, handed);
        checked
    }

    fn examines_all(&self, receiver: usize) -> bool {
        self.mix.is_on() && self.mix.is_answering(receiver)
    }

    fn record_delivery(&mut self, message: u32, now: u64) {
        match message & OPERATION {
            0 => self.sent.record_delivery(message, now),
            _ if message == NO_MESSAGE => {}
            _ => self.mix.record_delivery(message & !OPERATION),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mix::{form::body_hash, model::MessageModel},
        verification::DeliveryFaults,
        worker::{sent_messages::MessageBodies, verifier::Verifier},
        worker_protocol::{Conversation, MixConfig},
    };

    const RECALLED_AT: u64 = 50;
    const LATER: u64 = 100;

    /// Two receivers, and a message of the first one at 1 whose recall at 2 was acknowledged.
    struct Run {
        verifier: Verifier,
        sent: SentMessages,
        mix: MixedTraffic,
    }

    impl Run {
        fn new() -> Self {
            let mut verifier = Verifier::default();
            let log = verifier.add_conversation("g".into(), 0);
            (0..2).for_each(|_| _ = verifier.add_receiver(log));
            let mut sent = SentMessages::new("t".into(), &[Conversation { id: "g".into(), base_seq: 0 }]);
            sent.start_phase(MessageBodies::generated(33, &["a".into()], &[]), 0, None);
            let message = sent.plan(0, 0);
            sent.acknowledge(message, 1, 1);
            let config = MixConfig { per_message: 1.0, moderators: 1, seed: 1 };
            let mut mix = MixedTraffic::new(config, "t", "g", vec!["a".into(), "b".into()]);
            mix.models.insert(1, MessageModel::new(body_hash(&sent.body_text(message))));
            mix.add_recall(1, 0, 10);
            mix.acknowledge(0, 2, RECALLED_AT);
            Run { verifier, sent, mix }
        }

        fn receive(&mut self, receiver: usize, entries: &[String]) {
            let frame = format!(r#"{{"t":"messages","cursor":"1.0.0.0","entries":[{}]}}"#, entries.join(","));
            let mut traffic = Traffic { sent: &mut self.sent, mix: &mut self.mix };
            let cursor = self.verifier.receive_batch(receiver, frame.as_bytes(), &mut traffic, LATER);
            assert!(cursor.is_some());
        }

        /// The receiver is handed what it asked for at this time.
        fn resume(&mut self, receiver: usize, asked_at: u64, entries: &[String]) {
            self.mix.begin_answer(receiver, asked_at);
            self.receive(receiver, entries);
            self.mix.end_of_answer(receiver);
        }

        fn message(&self) -> String {
            let (start, body) = (START, self.sent.body_text(0));
            format!(r#"{start},"seq":1,"kind":"message","from":"a","client_msg_id":"t-0","body":{body}}}"#)
        }

        fn finish(mut self) -> (DeliveryFaults, crate::mix::counts::MixCounts) {
            self.mix.finish_phase();
            (self.verifier.findings.faults, self.mix.take_counts().unwrap_or_default())
        }
    }

    const START: &str = r#"{"conversation":"g","at":1,"type":"text""#;

    fn tombstone() -> String {
        format!(
            r#"{START},"seq":1,"kind":"message","from":"a","client_msg_id":"t-0","body":null,"recalled":{{"at":1}}}}"#
        )
    }

    fn recall() -> String {
        format!(r#"{START},"seq":2,"kind":"recall","from":"a","client_msg_id":"t-x0","body":null,"target":1}}"#)
    }

    #[test]
    fn a_receiver_that_resumes_is_handed_the_tombstone() {
        let mut run = Run::new();
        let live = [run.message(), recall()];
        run.receive(0, &live);
        run.resume(1, LATER, &[tombstone(), recall()]);
        let (faults, counts) = run.finish();
        assert_eq!(faults, DeliveryFaults::default());
        assert!(counts.balances() && counts.deliveries == 2, "{counts:?}");
    }

    #[test]
    fn a_body_in_the_answer_after_its_recall_is_a_fault_even_if_others_got_these_bytes() {
        let mut run = Run::new();
        let live = [run.message(), recall()];
        run.receive(0, &live);
        run.resume(1, LATER, &live);
        let (faults, counts) = run.finish();
        assert_eq!((faults.altered, counts.shown_after_recall), (1, 1));
        let mut run = Run::new();
        run.receive(0, &live);
        run.resume(1, RECALLED_AT, &live);
        assert!(run.finish().1.balances(), "asked for before the acknowledgement");
    }

    #[test]
    fn a_recall_that_one_receiver_never_got_is_found() {
        let mut run = Run::new();
        let live = [run.message(), recall()];
        run.receive(0, &live);
        run.receive(1, &live[..1]);
        let missing = run.verifier.missing_count();
        let (_, counts) = run.finish();
        assert_eq!((missing, counts.deliveries, counts.deliveries_expected), (1, 1, 2));
        assert!(!counts.balances());
    }

    #[test]
    fn a_message_that_stands_elsewhere_than_acknowledged_is_found() {
        let mut run = Run::new();
        let moved = run.message().replace(r#""seq":1"#, r#""seq":3"#);
        run.receive(0, &[moved]);
        assert_eq!(run.finish().0.altered, 1);
    }

    #[test]
    fn an_operation_that_was_done_twice_is_found() {
        let mut run = Run::new();
        let again = recall().replace(r#""seq":2"#, r#""seq":3"#);
        let live = [run.message(), recall(), again];
        run.receive(0, &live);
        let (faults, counts) = run.finish();
        assert_eq!((faults.altered, counts.doubled), (1, 1));
    }
}
