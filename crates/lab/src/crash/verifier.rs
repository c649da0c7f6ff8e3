//! Compares the stored timelines with the answers that senders got.

use super::senders::{SenderLog, body};
use crate::result::{Check, Layout, Measurement, filled};
use serde_json::json;
use std::collections::HashMap;
use tidings_protocol::entry::{Entry, EntryKind};

#[derive(Debug, Default)]
pub(super) struct CrashVerifier {
    acknowledged: u64,
    stored: u64,
    lost: u64,
    doubled: u64,
    moved: u64,
    holes: u64,
    altered: u64,
    contradictions: u64,
    retries: u64,
    asked_again: u64,
    problems: Vec<String>,
}

impl CrashVerifier {
    /// Compares a conversation's timeline with the answers that its senders got.
    pub(super) fn verify_conversation<'a>(
        &mut self,
        conversation: &str,
        entries: &[Entry],
        logs: impl Iterator<Item = &'a SenderLog>,
    ) {
        let mut stands_at: HashMap<&str, u64> = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            if entry.seq != index as u64 + 1 {
                self.holes += 1;
                self.problems.push(format!("{conversation}: place {} holds {}", index + 1, entry.seq));
            }
            let Some(id) = entry.client_msg_id.as_deref() else { continue };
            // Changes, and messages that were changed, are compared with the model of the mix.
            let is_as_sent = entry.kind == EntryKind::Message && entry.version.is_none() && entry.recalled.is_none();
            self.stored += 1;
            if is_as_sent && entry.body.get() != body(id).get() {
                self.altered += 1;
                self.problems.push(format!("{conversation}: {} holds another text", entry.seq));
            }
            if let Some(first) = stands_at.insert(id, entry.seq) {
                self.doubled += 1;
                self.problems.push(format!("{conversation}: {id} at {first} and at {}", entry.seq));
            }
        }
        for log in logs {
            self.retries += log.retries;
            self.asked_again += log.asked_again;
            self.contradictions += log.contradictions.len() as u64;
            self.problems.extend(log.contradictions.iter().cloned());
            for (id, seq) in &log.acknowledged {
                self.acknowledged += 1;
                match stands_at.get(id.as_str()) {
                    None => {
                        self.lost += 1;
                        self.problems.push(format!("{conversation}: {id}, acknowledged as {seq}, is lost"));
                    }
                    Some(place) if place != seq => {
                        self.moved += 1;
                        self.problems.push(format!("{conversation}: {id}, acknowledged as {seq}, is at {place}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn is_clean(&self) -> bool {
        self.lost + self.doubled + self.moved + self.holes + self.altered + self.contradictions == 0
    }

    pub(super) fn measured(&self, kills: usize, seed: u64, seconds: f64) -> Measurement {
        let figures = json!({
            "kills": kills, "seed": seed, "seconds": seconds, "acknowledged": self.acknowledged,
            "stored": self.stored, "lost": self.lost, "doubled": self.doubled, "moved": self.moved,
            "holes": self.holes, "altered": self.altered, "contradictions": self.contradictions,
            "retries": self.retries, "asked_again": self.asked_again,
            "problems": self.problems.iter().take(PROBLEMS_SHOWN).collect::<Vec<_>>(),
        });
        let bound = "every acknowledged message is stored once, unaltered, at the place that its answer named";
        let check = Check::of_server("messages", bound, self.is_clean());
        let value = filled(
            "{acknowledged} acknowledged, lost {lost}, doubled {doubled}, moved {moved}, holes {holes}",
            &figures,
        );
        Measurement::of(&format!("{kills} kills in {seconds:.1} s"), &figures).layout(&LAYOUT).check(check.value(value))
    }
}

const PROBLEMS_SHOWN: usize = 10;
const LAYOUT: Layout = Layout {
    lines: &[
        ("messages", "acknowledged {acknowledged}  stored {stored}  sent again {retries}  asked again {asked_again}"),
        (
            "stored",
            "lost {lost}  doubled {doubled}  moved {moved}  holes {holes}  altered {altered}  contradictions \
             {contradictions}",
        ),
    ],
    percentiles: &[],
};

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64, id: &str) -> Entry {
        let message = Entry::message("c".into(), seq, 1, "text".into(), body(id));
        Entry { client_msg_id: Some(id.into()), ..message }
    }

    fn verifier(entries: &[Entry], acknowledged: &[(&str, u64)]) -> CrashVerifier {
        let acknowledged = acknowledged.iter().map(|(id, seq)| (id.to_string(), *seq)).collect();
        let log = SenderLog { acknowledged, ..SenderLog::default() };
        let mut verifier = CrashVerifier::default();
        verifier.verify_conversation("c", entries, [&log].into_iter());
        verifier
    }

    #[test]
    fn a_timeline_must_hold_every_acknowledged_message_at_its_seq() {
        assert!(verifier(&[entry(1, "a"), entry(2, "b")], &[("a", 1), ("b", 2)]).is_clean());
        assert!(
            verifier(&[entry(1, "a"), entry(2, "b")], &[("a", 1)]).is_clean(),
            "stored without an answer is allowed"
        );
        assert_eq!(verifier(&[entry(1, "a")], &[("a", 1), ("b", 2)]).lost, 1);
        assert_eq!(verifier(&[entry(1, "a"), entry(2, "a")], &[("a", 1)]).doubled, 1);
        assert_eq!(verifier(&[entry(1, "a"), entry(3, "b")], &[]).holes, 1);
        assert_eq!(verifier(&[entry(1, "a"), entry(2, "b")], &[("a", 2)]).moved, 1);
        let altered = Entry { body: body("c"), ..entry(1, "a") };
        assert_eq!(verifier(std::slice::from_ref(&altered), &[("a", 1)]).altered, 1);
        assert!(verifier(&[Entry { version: Some(2), ..altered }], &[("a", 1)]).is_clean(), "the mix has edited it");
    }

    #[test]
    fn two_answers_to_one_send_must_agree() {
        let mut log = SenderLog::default();
        log.record_answer("a".into(), 1);
        log.record_answer("a".into(), 1);
        assert!(log.contradictions.is_empty());
        log.record_answer("a".into(), 2);
        assert_eq!(log.contradictions.len(), 1);
    }
}
