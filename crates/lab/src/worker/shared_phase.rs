//! A phase that this load client shares with others: their messages, as far as its own receivers have got them.
//!
//! A message's id carries its number and when it was due, so that a load client can check the entry and knows its latency
//! without asking the one that sent it. Whether the message was acknowledged, and whether others got the same, the ledgers tell.

use crate::{latency::Latencies, phase_part::PhasePart};
use std::{collections::HashMap, io::Write};

/// Marks the number of a message that another load client sent.
pub(super) const OTHERS: u32 = 1 << 30;

#[derive(Debug, Default)]
pub(crate) struct SharedPhase {
    pub(super) part: PhasePart,
    start_ns: u64,
    /// The next `seq` of each conversation before the phase.
    pub(super) heads: Vec<u64>,
    /// The messages of others, by their number in the phase.
    by_number: HashMap<u64, u32>,
    messages: Vec<OthersMessage>,
    /// The first of them: messages of earlier phases have lower numbers.
    first: u32,
    /// Deliveries before their planned time, since two clocks differ, and the earliest of them.
    pub(super) negative: u64,
    pub(super) early_max_ns: u64,
    /// How late the loop came round.
    pub(super) loop_lag: Latencies,
}

#[derive(Debug, Clone, Copy)]
struct OthersMessage {
    number: u64,
    due_ns: u64,
    seq: u64,
}

/// What the id of a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageName {
    phase: u32,
    pub(super) number: u64,
    /// After the start of the phase.
    due_us: u64,
}

impl MessageName {
    /// Reads what stands behind the tag of the run.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut fields = text.splitn(3, '.');
        let name = MessageName {
            phase: fields.next()?.parse().ok()?,
            number: fields.next()?.parse().ok()?,
            due_us: fields.next()?.parse().ok()?,
        };
        Some(name)
    }
}

impl SharedPhase {
    pub(super) fn new(part: PhasePart, start_ns: u64, heads: Vec<u64>) -> Self {
        SharedPhase { part, start_ns, heads, ..SharedPhase::default() }
    }

    /// The same phase, after an earlier one of the run: a receiver may still get messages of that one.
    pub(super) fn after(self, before: Option<&SharedPhase>) -> Self {
        SharedPhase { first: before.map_or(0, |before| before.first + before.messages.len() as u32), ..self }
    }

    fn message(&self, message: u32) -> Option<&OthersMessage> {
        self.messages.get((message & !OTHERS).checked_sub(self.first)? as usize)
    }

    /// Writes what stands behind the tag of the run in the id of a message.
    pub(super) fn put_name(&self, number: u64, due_ns: u64, out: &mut Vec<u8>) {
        // Writing to a vector does not fail.
        let _ = write!(out, "{}.{number}.{}", self.part.phase, due_ns.saturating_sub(self.start_ns) / 1_000);
    }

    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    pub(super) fn is_of_phase(&self, name: MessageName) -> bool {
        name.phase == self.part.phase
    }

    /// Records that a message of another load client was delivered first, at this `seq`.
    pub(super) fn identify(&mut self, name: MessageName, seq: u64) -> Result<u32, String> {
        if let Some(known) = self.by_number.get(&name.number) {
            let stood_at = self.message(*known).map_or(0, |known| known.seq);
            return Err(format!("is the message that stood at {stood_at}"));
        }
        let index = u32::try_from(self.messages.len()).ok().and_then(|count| self.first.checked_add(count));
        let message =
            OTHERS | index.filter(|index| *index < OTHERS).ok_or("is one message more than a run can have")?;
        let due_ns = self.start_ns.saturating_add(name.due_us.saturating_mul(1_000));
        self.messages.push(OthersMessage { number: name.number, due_ns, seq });
        self.by_number.insert(name.number, message);
        Ok(message)
    }

    /// The number in the phase of a message of another load client.
    pub(super) fn number_of(&self, message: u32) -> Option<u64> {
        Some(self.message(message)?.number)
    }

    pub(super) fn due_ns(&self, message: u32) -> Option<u64> {
        Some(self.message(message)?.due_ns)
    }

    /// A message came at `now` that is due at `due`, by two clocks.
    pub(super) fn compare_clocks(&mut self, due: u64, now: u64) {
        let early = due.saturating_sub(now);
        self.negative += u64::from(early > 0);
        self.early_max_ns = self.early_max_ns.max(early);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase_part::Slots;

    fn phase() -> SharedPhase {
        let part = PhasePart { phase: 3, slots: Slots { first: 0, count: 1, all: 2 } };
        SharedPhase::new(part, 1_000_000, vec![1])
    }

    fn name(text: &str) -> Option<MessageName> {
        MessageName::read(text)
    }

    #[test]
    fn a_name_says_what_was_written() {
        let phase = phase();
        let mut out = Vec::new();
        phase.put_name(17, 3_500_999, &mut out);
        assert_eq!(name(&String::from_utf8_lossy(&out)), Some(MessageName { phase: 3, number: 17, due_us: 2_500 }));
        for wrong in ["", "3", "3.1", "3.1.x", "3.1.2.4", "-3.1.2", "3.99999999999999999999.1"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_message_of_another_is_known_once() {
        let mut phase = phase();
        let name = MessageName { phase: 3, number: 17, due_us: 2_500 };
        let message = phase.identify(name, 40).unwrap_or_default();
        assert_eq!((phase.number_of(message), phase.due_ns(message)), (Some(17), Some(3_500_000)));
        assert!(phase.identify(name, 41).is_err_and(|why| why.contains("stood at 40")));
        assert!(!phase.is_of_phase(MessageName { phase: 2, ..name }));
        // A receiver that gets it in the next phase has no latency of that phase.
        let mut next = self::phase().after(Some(&phase));
        assert_eq!((next.number_of(message), next.due_ns(message)), (None, None));
        let another = next.identify(MessageName { number: 18, ..name }, 42).unwrap_or_default();
        assert_eq!((next.number_of(another), phase.number_of(another)), (Some(18), None));
    }

    #[test]
    fn a_delivery_before_its_time_is_counted() {
        let mut phase = phase();
        for now in [2_000_000, 1_999_999, 1_500_000, 2_499_999] {
            phase.compare_clocks(2_000_000, now);
        }
        assert_eq!((phase.negative, phase.early_max_ns), (2, 500_000));
    }
}
