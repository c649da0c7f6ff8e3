//! What a load client hands over at the end of a phase that is shared: its histograms, and its ledger of what it sent and what
//! its receivers got, for the comparison with the ledgers of others.

use super::{report, sent_messages::SentMessages, verifier::Verifier};
use crate::{
    phase_part::{LEDGER_LINE_ENTRIES, LedgerLine, LoggedEntry},
    worker_protocol::{Outcome, PartOutcome, WorkerReport},
};

/// Reports the ledger, a line for each of its chunks, and then the outcome.
pub(super) fn hand_over(outcome: Outcome, sent: &SentMessages, verifier: &Verifier) {
    for line in lines(sent, verifier) {
        report(&WorkerReport::Ledger(line));
    }
    let mut part = PartOutcome { outcome, times: sent.tally.times.counts(), ..PartOutcome::default() };
    if let Some(phase) = &sent.shared_phase {
        part.loop_lag = phase.loop_lag.counts();
        (part.negative, part.early_max_ns) = (phase.negative, phase.early_max_ns);
    }
    report(&WorkerReport::PartDone(Box::new(part)));
}

fn lines(sent: &SentMessages, verifier: &Verifier) -> impl Iterator<Item = LedgerLine> {
    let acknowledged = sent.standings().chunks(LEDGER_LINE_ENTRIES).enumerate().map(|(chunk, standings)| {
        let seqs: Vec<u64> = standings.iter().map(|standing| standing.acknowledged().unwrap_or(0)).collect();
        LedgerLine::acknowledged((chunk * LEDGER_LINE_ENTRIES) as u64, &seqs)
    });
    let heads = sent.shared_phase.iter().flat_map(|shared| &shared.heads).enumerate();
    acknowledged.chain(heads.flat_map(|(conversation, head)| {
        let entries: Vec<LoggedEntry> = verifier
            .entries_from(conversation, *head)
            .map(|entry| LoggedEntry { seq: entry.seq, number: sent.number_of(entry.message), digest: entry.digest })
            .collect();
        let chunks = entries.chunks(LEDGER_LINE_ENTRIES).map(|chunk| LedgerLine::log(conversation, chunk));
        chunks.collect::<Vec<_>>()
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        phase_part::{PhasePart, Slots},
        worker::mixed_traffic::MixedTraffic,
        worker::{sent_messages::MessageBodies, shared_phase::SharedPhase, traffic::Traffic},
        worker_protocol::{Conversation, MixConfig},
    };

    /// A load client whose slot is the second of two, with one receiver.
    fn client() -> (SentMessages, Verifier, MixedTraffic) {
        let mut verifier = Verifier::default();
        verifier.keep_digests();
        let log = verifier.add_conversation("g".into(), 10);
        verifier.add_receiver(log);
        let mut sent = SentMessages::new("t".into(), &[Conversation { id: "g".into(), base_seq: 10 }]);
        let bodies = MessageBodies::generated(33, &["a".into(), "b".into()], &[]);
        let part = PhasePart { phase: 0, slots: Slots { first: 1, count: 1, all: 2 } };
        let shared_phase = SharedPhase::new(part, 0, vec![11]);
        sent.start_phase(bodies, 0, Some(shared_phase));
        (sent, verifier, MixedTraffic::new(MixConfig::default(), "t", "g", Vec::new()))
    }

    fn entry(seq: u64, number: u64) -> String {
        let from = ["a", "b"][number as usize % 2];
        let text = format!("{number} {:.<width$}", "", width = 12 - number.to_string().len());
        format!(
            r#"{{"conversation":"g","seq":{seq},"kind":"message","at":1,"from":"{from}","client_msg_id":"t-0.{number}.5","type":"text","body":{{"text":"{text}"}}}}"#
        )
    }

    #[test]
    fn a_ledger_names_own_messages_and_those_of_others() {
        let (mut sent, mut verifier, mut mix) = client();
        // The first of its own has the number 1, the second the number 3.
        let own = [sent.plan(5_000, 0), sent.plan(5_000, 0)];
        sent.acknowledge(own[1], 12, 9_000);
        let mut put = Vec::new();
        sent.put_message(own[1], &mut put, false);
        let put: serde_json::Value = serde_json::from_slice(&put).unwrap();
        let received: serde_json::Value = serde_json::from_str(&entry(12, 3)).unwrap();
        for field in ["conversation", "from", "client_msg_id", "body"] {
            assert_eq!(put[field], received[field], "{field}");
        }
        let mut traffic = Traffic { sent: &mut sent, mix: &mut mix };
        for (seq, number) in [(11, 2), (12, 3), (13, 5), (14, 4)] {
            verifier.receive_entry(0, &entry(seq, number), false, &mut traffic, 10_000);
        }
        assert_eq!((sent.tally.delivered, sent.delivered_own, verifier.findings.faults.altered), (3, 1, 1));
        let problems = &verifier.findings.problems;
        assert!(problems[0].contains("13 was never sent"), "{problems:?}");
        let lines: Vec<_> = lines(&sent, &verifier).collect();
        let [LedgerLine::Acknowledged { first: 0, seqs }, LedgerLine::Log { conversation: 0, entries }] = &lines[..]
        else {
            panic!("{lines:?}")
        };
        assert_eq!(LedgerLine::unpack_acknowledged(seqs).unwrap(), [0, 12]);
        let numbers: Vec<_> =
            LedgerLine::unpack_log(entries).unwrap().iter().map(|entry| (entry.seq, entry.number)).collect();
        assert_eq!(numbers, [(11, Some(2)), (12, Some(3)), (13, None), (14, Some(4))]);
    }
}
