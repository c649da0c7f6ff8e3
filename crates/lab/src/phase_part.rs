//! A part of a phase: what one of several load clients does of it, and what it hands back to be merged.
//!
//! Message `n` of a phase is the same whoever sends it: its number gives its conversation, its sender and its text, and every
//! load client can check it. Who sends it follows from its number, too: see [`Slots`].

use crate::latency::Percentiles;
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The senders of a phase that belong to one part: message `n` is sent by slot `n % all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slots {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) all: u64,
}

impl Default for Slots {
    fn default() -> Self {
        Slots::ALL
    }
}

impl Slots {
    /// The slots of a load client that sends everything: its `n`-th message has the number `n`.
    pub(crate) const ALL: Slots = Slots { first: 0, count: 1, all: 1 };

    /// The number of the part's `nth` message; `None` if the part sends nothing.
    pub(crate) fn number(self, nth: u64) -> Option<u64> {
        (self.count > 0).then(|| nth / self.count * self.all + self.first + nth % self.count)
    }

    /// The inverse: which message of the part has this number; `None` if another part sends it.
    pub(crate) fn nth(self, number: u64) -> Option<u64> {
        let slot = (number % self.all).checked_sub(self.first).filter(|slot| *slot < self.count)?;
        Some(number / self.all * self.count + slot)
    }
}

/// What distinguishes a part of a phase from the others.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct PhasePart {
    /// Counts the phases of a run; late entries of an earlier phase are told by it.
    pub(crate) phase: u32,
    pub(crate) slots: Slots,
}

/// How far a part is, four times a second, and at once when it has planned and sent everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartProgress {
    pub(crate) all_planned: bool,
    /// The next message is not due yet, and nothing else is waited for.
    pub(crate) is_idle: bool,
    pub(crate) unanswered: u64,
    pub(crate) committed: u64,
    pub(crate) refused: u64,
    pub(crate) delivered: u64,
    pub(crate) planned: u64,
    /// When the last message was due, and when the last delivery came, in nanoseconds after the start of the phase.
    pub(crate) last_due_ns: u64,
    pub(crate) last_delivery_ns: u64,
    /// Whether the part's receivers have said all that they have to say.
    pub(crate) is_settled: bool,
}

/// Lines of a ledger that a part hands over at the end of a phase.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LedgerLine {
    /// The `seq` of the part's own messages from the `first` on, packed; 0: not acknowledged.
    Acknowledged { first: u64, seqs: String },
    /// Entries that the part's receivers of a conversation got, in the order of `seq`, packed.
    Log { conversation: usize, entries: String },
}

/// An entry that the receivers of a part got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoggedEntry {
    pub(crate) seq: u64,
    /// The number of the message; `None`: no message of the phase, or not what was sent.
    pub(crate) number: Option<u64>,
    /// Of the entry's bytes.
    pub(crate) digest: u64,
}

/// Entries or acknowledgements in one line, so that a line stays below two megabytes.
pub(crate) const LEDGER_LINE_ENTRIES: usize = 65_536;

/// The steps from one entry to the next: small numbers, which postcard writes in a byte or two; then the digest.
type PackedEntry = (i64, i64, [u8; 8]);

fn pack(values: &impl Serialize) -> String {
    // Vectors of numbers always serialize.
    STANDARD.encode(postcard::to_stdvec(values).unwrap_or_default())
}

fn unpack<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let bytes = STANDARD.decode(text).map_err(|error| error.to_string())?;
    postcard::from_bytes(&bytes).map_err(|error| error.to_string())
}

impl LedgerLine {
    pub(crate) fn acknowledged(first: u64, seqs: &[u64]) -> Self {
        let mut before = 0;
        let steps = seqs.iter().map(|seq| seq.wrapping_sub(std::mem::replace(&mut before, *seq)) as i64);
        LedgerLine::Acknowledged { first, seqs: pack(&steps.collect::<Vec<i64>>()) }
    }

    pub(crate) fn unpack_acknowledged(seqs: &str) -> Result<Vec<u64>, String> {
        let mut seq = 0_u64;
        let mut add = |step| {
            seq = seq.wrapping_add_signed(step);
            seq
        };
        Ok(unpack::<Vec<i64>>(seqs)?.into_iter().map(&mut add).collect())
    }

    pub(crate) fn log(conversation: usize, entries: &[LoggedEntry]) -> Self {
        let (mut seq, mut number) = (0_u64, 0_u64);
        let packed = entries.iter().map(|entry| {
            // 0 is no message.
            let entry_number = entry.number.map_or(0, |number| number + 1);
            let steps = (entry.seq.wrapping_sub(seq) as i64, entry_number.wrapping_sub(number) as i64);
            (seq, number) = (entry.seq, entry_number);
            (steps.0, steps.1, entry.digest.to_le_bytes())
        });
        LedgerLine::Log { conversation, entries: pack(&packed.collect::<Vec<PackedEntry>>()) }
    }

    pub(crate) fn unpack_log(entries: &str) -> Result<Vec<LoggedEntry>, String> {
        let (mut seq, mut number) = (0_u64, 0_u64);
        let packed: Vec<PackedEntry> = unpack(entries)?;
        let entry = |(seq_step, number_step, digest): PackedEntry| {
            (seq, number) = (seq.wrapping_add_signed(seq_step), number.wrapping_add_signed(number_step));
            LoggedEntry { seq, number: number.checked_sub(1), digest: u64::from_le_bytes(digest) }
        };
        Ok(packed.into_iter().map(entry).collect())
    }
}

/// One agent's share of a phase, in the report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentOutcome {
    pub address: String,
    /// Cores, descriptors, ports and load average of its machine, as it told them.
    pub machine: serde_json::Value,
    pub load_after: f64,
    pub receivers: u64,
    pub senders: u64,
    pub planned: u64,
    pub sent: u64,
    pub refused: u64,
    pub expected: u64,
    pub delivered: u64,
    pub lost: u64,
    pub doubled: u64,
    pub out_of_order: u64,
    pub altered: u64,
    pub reconnects: u64,
    pub client_cpu_seconds: f64,
    pub latency: Percentiles,
    pub lateness: Percentiles,
    /// How late the load client's loop came round, in milliseconds.
    pub loop_lag: Percentiles,
    /// The load client could not keep up, so that the run is invalid.
    pub lagged: bool,
    /// How far its clock was ahead of the coordinator's, which was corrected; how far that may be wrong; how far it moved.
    pub clock_offset_ms: f64,
    pub clock_error_ms: f64,
    pub clock_drift_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_share_all_numbers_without_rest() {
        let parts = [(0, 3), (3, 0), (3, 4)].map(|(first, count)| Slots { first, count, all: 7 });
        for number in 0..100 {
            let owners: Vec<_> = parts.iter().filter_map(|slots| Some((slots, slots.nth(number)?))).collect();
            assert_eq!(owners.len(), 1, "message {number}");
            let (slots, nth) = owners[0];
            assert_eq!(slots.number(nth), Some(number));
        }
        assert_eq!(parts[1].number(0), None);
        assert_eq!((Slots::ALL.number(41), Slots::ALL.nth(41)), (Some(41), Some(41)));
    }

    #[test]
    fn a_ledger_is_the_same_after_the_way() {
        let seqs = [5, 0, 7, 6, u64::MAX, 1];
        let LedgerLine::Acknowledged { first: 3, seqs: packed } = LedgerLine::acknowledged(3, &seqs) else { panic!() };
        assert_eq!(LedgerLine::unpack_acknowledged(&packed).as_deref(), Ok(seqs.as_slice()));
        let entries = [(9, Some(4), 1), (10, None, u64::MAX), (12, Some(0), 0)];
        let entries = entries.map(|(seq, number, digest)| LoggedEntry { seq, number, digest });
        let LedgerLine::Log { conversation: 2, entries: packed } = LedgerLine::log(2, &entries) else { panic!() };
        assert_eq!(LedgerLine::unpack_log(&packed).as_deref(), Ok(entries.as_slice()));
        assert!(LedgerLine::unpack_log("no base64").is_err() && LedgerLine::unpack_log("////").is_err());
    }

    #[test]
    fn a_ledger_is_compact() {
        let entry = |n: u64| LoggedEntry { seq: 1_000_000 + n, number: Some(500_000 + n), digest: u64::MAX - n };
        let entries: Vec<_> = (0..1000).map(entry).collect();
        let LedgerLine::Log { entries: packed, .. } = LedgerLine::log(0, &entries) else { panic!() };
        assert!(packed.len() < 14 * 1000, "{} bytes for a thousand entries", packed.len());
    }
}
