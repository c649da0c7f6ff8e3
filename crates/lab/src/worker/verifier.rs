//! The verifier: proves that every receiver got every entry, once, in order and unchanged, at millions a second.
//!
//! An entry's bytes are the same for all receivers. So the entry that the first receiver of a `(conversation, seq)` gets is
//! parsed and checked in full, and its bytes are added to a reference log; for every later receiver a whole batch takes
//! one comparison of memory with the log, from that receiver's position on. Only a batch that does not match is parsed,
//! to find the fault.

use crate::verification::{
    Findings,
    order::{Arrival, ReceivedNumbers},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap};
use tidings_client::wire::split_messages_frame;
use xxhash_rust::xxh3::xxh3_64;

/// Stands for an entry that is not a message of this run, such as a notice about members.
pub(crate) const NO_MESSAGE: u32 = u32::MAX;

/// The fields of an entry that are checked.
#[derive(Debug, Deserialize)]
pub(crate) struct EntryView<'a> {
    /// Empty in a compact entry: that of the entry before.
    #[serde(borrow, default)]
    pub(crate) conversation: Cow<'a, str>,
    /// 0 in a compact entry: one more than that of the entry before.
    #[serde(default)]
    pub(crate) seq: u64,
    #[serde(borrow, default)]
    pub(crate) from: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) client_msg_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) body: &'a RawValue,
}

impl<'a> EntryView<'a> {
    /// The entry with what it leaves out, as the entry before it has it: its conversation and `seq`.
    fn behind(mut self, before: Option<(Cow<'a, str>, u64)>) -> Result<Self, String> {
        if !self.conversation.is_empty() && self.seq > 0 {
            return Ok(self);
        }
        let (conversation, seq) = before.ok_or("nothing is before it, and it has no conversation or no seq")?;
        if self.conversation.is_empty() {
            self.conversation = conversation;
        }
        if self.seq == 0 {
            self.seq = seq + 1;
        }
        Ok(self)
    }
}

/// The messages that were sent, and so are expected.
pub(crate) trait ExpectedMessages {
    /// Checks an entry that no receiver has got before: the message that it is, or [`NO_MESSAGE`]; `Err` when it differs
    /// from the message that was sent. `raw` is the whole entry.
    fn identify(&mut self, receiver: usize, entry: &EntryView<'_>, raw: &str) -> Result<u32, String>;
    /// Compares an entry with what other receivers got for it; `is_same`: it has the same bytes.
    fn compare(&mut self, _receiver: usize, _entry: &EntryView<'_>, raw: &str, is_same: bool) -> Result<(), String> {
        if is_same { Ok(()) } else { Err(format!("differs from what others got: {raw}")) }
    }
    /// Whether every entry that this receiver gets now must be looked at, also one with the bytes that others got.
    fn examines_all(&self, _receiver: usize) -> bool {
        false
    }
    /// Records the delivery of a message to one receiver.
    fn record_delivery(&mut self, message: u32, now: u64);
}

#[derive(Debug, Clone, Copy)]
struct EntryEnd {
    /// The offset in the whole log at which the entry and its comma end.
    end: u64,
    message: u32,
}

#[derive(Debug)]
struct ReferenceLog {
    conversation: String,
    /// The last `seq` before this run; the log starts after it.
    base_seq: u64,
    /// Entries as they arrived, each followed by a comma.
    bytes: Vec<u8>,
    /// How many bytes were removed at the front, since every receiver has passed them.
    trimmed: u64,
    entry_ends: Vec<EntryEnd>,
    /// Of each entry, if entries are compared with those of other load clients.
    digests: Option<Vec<u64>>,
    /// Entries that arrived before one with a lower `seq`.
    ahead: BTreeMap<u64, (Box<[u8]>, u32)>,
    receivers: Vec<u32>,
}

impl ReferenceLog {
    fn next_seq(&self) -> u64 {
        self.base_seq + 1 + self.entry_ends.len() as u64
    }

    fn end_before(&self, seq: u64) -> Option<u64> {
        match (seq - self.base_seq - 1) as usize {
            0 => Some(0),
            index => self.entry_ends.get(index - 1).map(|entry_end| entry_end.end),
        }
    }

    /// The bytes and the message of an entry that arrived before; no bytes if they were trimmed.
    fn find(&self, seq: u64) -> Option<(Option<&[u8]>, u32)> {
        if let Some((bytes, message)) = self.ahead.get(&seq) {
            return Some((Some(bytes), *message));
        }
        let entry_end = self.entry_ends.get((seq - self.base_seq - 1) as usize)?;
        let start = self.end_before(seq)?;
        let range = start.checked_sub(self.trimmed).map(|s| s as usize..(entry_end.end - 1 - self.trimmed) as usize);
        Some((range.and_then(|range| self.bytes.get(range)), entry_end.message))
    }

    fn add(&mut self, seq: u64, raw: &[u8], message: u32) {
        if seq != self.next_seq() {
            self.ahead.insert(seq, (raw.into(), message));
            return;
        }
        self.append(raw, message);
        while let Some((raw, message)) = self.ahead.remove(&self.next_seq()) {
            self.append(&raw, message);
        }
    }

    fn append(&mut self, raw: &[u8], message: u32) {
        if let Some(digests) = &mut self.digests {
            digests.push(xxh3_64(raw));
        }
        // With one receiver no later batch is compared: the bytes need not be kept.
        if self.receivers.len() > 1 {
            self.bytes.extend_from_slice(raw);
            self.bytes.push(b',');
            self.entry_ends.push(EntryEnd { end: self.trimmed + self.bytes.len() as u64, message });
        } else {
            self.trimmed += raw.len() as u64 + 1;
            self.entry_ends.push(EntryEnd { end: self.trimmed, message });
        }
    }
}

/// An entry as the receivers of one load client got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryDigest {
    pub(crate) seq: u64,
    pub(crate) message: u32,
    pub(crate) digest: u64,
}

#[derive(Debug)]
struct ReceiverState {
    log: usize,
    seqs: ReceivedNumbers,
}

/// A log is trimmed when it holds this many bytes.
const TRIM_BYTES: usize = 64 * 1024 * 1024;

/// The entries that every receiver has got so far, and their faults.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    logs: Vec<ReferenceLog>,
    receivers: Vec<ReceiverState>,
    keeps_digests: bool,
    pub(crate) findings: Findings,
}

impl Verifier {
    /// Keeps a digest of every entry from now on, for the comparison with other load clients.
    pub(crate) fn keep_digests(&mut self) {
        self.keeps_digests = true;
    }

    /// The entries of a conversation from `seq` on, in order, with those behind gaps.
    pub(crate) fn entries_from(&self, conversation: usize, seq: u64) -> impl Iterator<Item = EntryDigest> {
        let log = &self.logs[conversation];
        let known = log.entry_ends.iter().zip(log.digests.iter().flatten()).zip(log.base_seq + 1..);
        let known =
            known.map(|((entry_end, digest), seq)| EntryDigest { seq, message: entry_end.message, digest: *digest });
        let digest = |(seq, (raw, message)): (&u64, &(Box<[u8]>, u32))| EntryDigest {
            seq: *seq,
            message: *message,
            digest: xxh3_64(raw),
        };
        let skipped = seq.saturating_sub(log.base_seq + 1) as usize;
        known.skip(skipped).chain(log.ahead.range(seq..).map(digest))
    }

    /// Adds a conversation whose next entry will be `base_seq + 1`.
    pub(crate) fn add_conversation(&mut self, conversation: String, base_seq: u64) -> usize {
        self.logs.push(ReferenceLog {
            conversation,
            base_seq,
            bytes: Vec::new(),
            trimmed: 0,
            entry_ends: Vec::new(),
            digests: self.keeps_digests.then(Vec::new),
            ahead: BTreeMap::new(),
            receivers: Vec::new(),
        });
        self.logs.len() - 1
    }

    /// Adds a receiver that must get every entry of one conversation.
    pub(crate) fn add_receiver(&mut self, conversation: usize) -> usize {
        let log = &mut self.logs[conversation];
        log.receivers.push(self.receivers.len() as u32);
        self.receivers.push(ReceiverState { log: conversation, seqs: ReceivedNumbers::from(log.base_seq + 1) });
        self.receivers.len() - 1
    }

    /// Deliveries that are missing: entries that another receiver has got, and gaps.
    #[cfg(test)]
    pub(super) fn missing_count(&self) -> usize {
        let missing = |state: &ReceiverState| {
            let end = self.logs[state.log].next_seq().max(state.seqs.next());
            state.seqs.missing_below(end).count()
        };
        self.receivers.iter().map(missing).sum()
    }

    pub(crate) fn receivers(&self) -> usize {
        self.receivers.len()
    }

    /// The last `seq` up to which the receiver has every entry.
    pub(crate) fn last_contiguous_seq(&self, receiver: usize) -> u64 {
        self.receivers[receiver].seqs.first_missing() - 1
    }

    /// The next `seq` of each conversation, by the receiver that is furthest.
    pub(crate) fn heads(&self) -> Vec<u64> {
        self.logs.iter().map(ReferenceLog::next_seq).collect()
    }

    /// Receivers that lack an entry below these heads.
    pub(crate) fn lagging_receivers(&self, heads: &[u64]) -> u64 {
        let lags = |receiver: &&ReceiverState| {
            heads.get(receiver.log).is_some_and(|head| receiver.seqs.first_missing() < *head)
        };
        self.receivers.iter().filter(lags).count() as u64
    }

    /// Verifies a `messages` frame. Returns its cursor, or `None` if it does not parse.
    pub(crate) fn receive_batch<'a>(
        &mut self,
        receiver: usize,
        payload: &'a [u8],
        expected: &mut impl ExpectedMessages,
        now: u64,
    ) -> Option<Cow<'a, [u8]>> {
        if !expected.examines_all(receiver)
            && let Some(batch) = split_messages_frame(payload)
            && self.receive_matching_batch(receiver, batch.entries, expected, now)
        {
            return Some(Cow::Borrowed(batch.cursor));
        }
        #[derive(Deserialize)]
        struct Messages<'a> {
            #[serde(borrow)]
            cursor: Cow<'a, str>,
            #[serde(borrow)]
            entries: Vec<&'a RawValue>,
        }
        match serde_json::from_slice::<Messages<'_>>(payload) {
            Ok(messages) => {
                let mut before = None;
                for raw in messages.entries {
                    before = self.receive_next_entry(receiver, raw.get(), before, false, expected, now);
                }
                Some(match messages.cursor {
                    Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                    Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                })
            }
            Err(error) => {
                self.findings.altered(format!("receiver {receiver}: a batch that does not parse: {error}"));
                None
            }
        }
    }

    /// The fast path: verifies a batch that equals the log from the receiver's position on. Returns false for any other.
    fn receive_matching_batch(
        &mut self,
        receiver: usize,
        entries: &[u8],
        expected: &mut impl ExpectedMessages,
        now: u64,
    ) -> bool {
        let receiver = &mut self.receivers[receiver];
        let log = &mut self.logs[receiver.log];
        let Some(start) = log.end_before(receiver.seqs.next()) else { return false };
        let Some(from) = start.checked_sub(log.trimmed) else { return false };
        let from = from as usize;
        let Some(known) = log.bytes.get(from..from + entries.len() + 1) else { return false };
        if &known[..entries.len()] != entries || known[entries.len()] != b',' {
            return false;
        }
        // The match must end where an entry ends, or the batch was cut inside one.
        let end = start + known.len() as u64;
        let first = (receiver.seqs.next() - log.base_seq - 1) as usize;
        let Some(count) = log.entry_ends[first..].iter().position(|entry_end| entry_end.end >= end) else {
            return false;
        };
        if log.entry_ends[first + count].end != end {
            return false;
        }
        for entry_end in &log.entry_ends[first..=first + count] {
            if entry_end.message != NO_MESSAGE {
                expected.record_delivery(entry_end.message, now);
            }
        }
        receiver.seqs.receive_next(count as u64 + 1);
        true
    }

    /// Verifies one entry, parsed in full. `is_backfill`: it answers a request for a gap, so it is not out of order.
    pub(crate) fn receive_entry(
        &mut self,
        receiver: usize,
        raw: &str,
        is_backfill: bool,
        expected: &mut impl ExpectedMessages,
        now: u64,
    ) {
        self.receive_next_entry(receiver, raw, None, is_backfill, expected, now);
    }

    /// The same behind the entry `before` in its frame, on which a compact one leans. Returns the conversation and `seq` of this one.
    fn receive_next_entry<'a>(
        &mut self,
        receiver: usize,
        raw: &'a str,
        before: Option<(Cow<'a, str>, u64)>,
        is_backfill: bool,
        expected: &mut impl ExpectedMessages,
        now: u64,
    ) -> Option<(Cow<'a, str>, u64)> {
        let entry = serde_json::from_str::<EntryView<'a>>(raw).map_err(|error| error.to_string());
        match entry.and_then(|entry| entry.behind(before)) {
            Ok(entry) => {
                self.receive_parsed(receiver, raw, &entry, is_backfill, expected, now);
                Some((entry.conversation, entry.seq))
            }
            Err(why) => {
                self.findings.altered(format!("receiver {receiver}: an entry that does not parse: {why}: {raw}"));
                None
            }
        }
    }

    fn receive_parsed(
        &mut self,
        receiver: usize,
        raw: &str,
        entry: &EntryView<'_>,
        is_backfill: bool,
        expected: &mut impl ExpectedMessages,
        now: u64,
    ) {
        let state = &mut self.receivers[receiver];
        let log = &mut self.logs[state.log];
        let seq = entry.seq;
        // Entries from before the run, or of other conversations, are not verified.
        if entry.conversation != log.conversation || seq <= log.base_seq {
            return;
        }
        match state.seqs.receive(seq) {
            Arrival::InOrder => {}
            Arrival::Behind(_) if is_backfill => {}
            Arrival::Behind(last) => self.findings.out_of_order(format!("receiver {receiver}: {seq} after {last}")),
            Arrival::Again => return self.findings.doubled(format!("receiver {receiver}: {seq} again")),
        }
        let checked = match log.find(seq) {
            Some((known, message)) => {
                let is_same = known.is_none_or(|known| known == raw.as_bytes());
                expected.compare(receiver, entry, raw, is_same).map(|()| message)
            }
            None => {
                let message = expected.identify(receiver, entry, raw);
                log.add(seq, raw.as_bytes(), *message.as_ref().unwrap_or(&NO_MESSAGE));
                message
            }
        };
        match checked {
            Ok(NO_MESSAGE) => {}
            Ok(message) => expected.record_delivery(message, now),
            Err(what) => self.findings.altered(format!("receiver {receiver}: {seq} {what}")),
        }
    }

    /// The server named a range that it will not send by itself: its entries are missing until they are fetched.
    pub(crate) fn mark_missing_to(&mut self, receiver: usize, seq: u64) {
        self.receivers[receiver].seqs.expect_below(seq + 1);
    }

    /// Frees the bytes of logs that every receiver has passed. Cheap when there is little to free.
    pub(crate) fn trim(&mut self) {
        for log in &mut self.logs {
            if log.bytes.len() < TRIM_BYTES {
                continue;
            }
            let receivers = &self.receivers;
            let passed = log.receivers.iter().map(|reader| receivers[*reader as usize].seqs.next()).min();
            if let Some(end) = passed.and_then(|seq| log.end_before(seq)) {
                log.bytes.drain(..(end - log.trimmed) as usize);
                log.trimmed = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::DeliveryFaults;

    /// Expects the texts `m1`, `m2`, … and counts deliveries.
    #[derive(Default)]
    struct NumberedTexts(u64);

    impl ExpectedMessages for NumberedTexts {
        fn identify(&mut self, _receiver: usize, entry: &EntryView<'_>, _raw: &str) -> Result<u32, String> {
            if entry.body.get() == format!("\"m{}\"", entry.seq) {
                Ok(entry.seq as u32)
            } else {
                Err("is not what was sent".into())
            }
        }
        fn record_delivery(&mut self, _message: u32, _now: u64) {
            self.0 += 1;
        }
    }

    fn entry(seq: u64, text: &str) -> String {
        format!(
            r#"{{"conversation":"g","seq":{seq},"kind":"message","at":1,"from":"a","type":"text","body":"{text}"}}"#
        )
    }

    fn frame(seqs: &[u64]) -> Vec<u8> {
        let entries: Vec<String> = seqs.iter().map(|seq| entry(*seq, &format!("m{seq}"))).collect();
        format!(r#"{{"t":"messages","cursor":"1.0.0.0","entries":[{}]}}"#, entries.join(",")).into_bytes()
    }

    /// Delivers its frames to each receiver and returns (deliveries, missing, faults).
    fn check(frames: &[&[Vec<u8>]]) -> (u64, usize, DeliveryFaults) {
        let mut verifier = Verifier::default();
        let log = verifier.add_conversation("g".into(), 0);
        let mut texts = NumberedTexts::default();
        for _ in frames {
            verifier.add_receiver(log);
        }
        for (receiver, frames) in frames.iter().enumerate() {
            for frame in *frames {
                verifier.receive_batch(receiver, frame, &mut texts, 0).unwrap();
            }
        }
        (texts.0, verifier.missing_count(), verifier.findings.faults)
    }

    #[test]
    fn a_clean_run_balances_however_entries_are_batched() {
        let clean = check(&[
            &[frame(&[1, 2, 3]), frame(&[4])],
            &[frame(&[1]), frame(&[2]), frame(&[3, 4])],
            &[frame(&[1, 2, 3, 4])],
        ]);
        assert_eq!(clean, (12, 0, DeliveryFaults::default()));
    }

    #[test]
    fn a_lost_entry_is_found_in_the_middle_and_at_the_end() {
        assert_eq!(check(&[&[frame(&[1, 2, 3])], &[frame(&[1, 3])]]), (5, 1, DeliveryFaults::default()));
        assert_eq!(check(&[&[frame(&[1, 2, 3])], &[frame(&[1, 2])]]), (5, 1, DeliveryFaults::default()));
        assert_eq!(
            check(&[&[frame(&[1, 3])]]),
            (2, 1, DeliveryFaults::default()),
            "also when no other receiver got it"
        );
    }

    #[test]
    fn a_doubled_entry_is_found() {
        let (delivered, lacking, faults) = check(&[&[frame(&[1, 2])], &[frame(&[1, 2]), frame(&[2])]]);
        assert_eq!((delivered, lacking, faults.doubled), (4, 0, 1));
    }

    #[test]
    fn entries_out_of_order_are_found() {
        let (delivered, lacking, faults) = check(&[&[frame(&[1, 2, 3])], &[frame(&[2, 1, 3])]]);
        assert_eq!((delivered, lacking, faults.out_of_order), (6, 0, 1));
        let (delivered, lacking, faults) = check(&[&[frame(&[2, 1, 3])], &[frame(&[1, 2, 3])]]);
        assert_eq!((delivered, lacking, faults.out_of_order), (6, 0, 1), "also by the first receiver");
    }

    #[test]
    fn an_altered_text_is_found_for_the_first_receiver_and_for_later_ones() {
        let altered = format!(r#"{{"t":"messages","cursor":"1.0.0.0","entries":[{}]}}"#, entry(1, "mX")).into_bytes();
        assert_eq!(check(&[std::slice::from_ref(&altered)]).2.altered, 1);
        assert_eq!(check(&[&[frame(&[1])], &[altered]]).2.altered, 1);
    }

    #[test]
    fn a_batch_cut_inside_an_entry_does_not_match_the_log() {
        let mut verifier = Verifier::default();
        let log = verifier.add_conversation("g".into(), 0);
        let mut texts = NumberedTexts::default();
        verifier.add_receiver(log);
        verifier.add_receiver(log);
        verifier.receive_batch(0, &frame(&[1]), &mut texts, 0).unwrap();
        let cut = br#"{"t":"messages","cursor":"1.0.0.0","entries":[{"conversation":"g"]}"#;
        assert!(verifier.receive_batch(1, cut, &mut texts, 0).is_none());
        assert_eq!((texts.0, verifier.findings.faults.altered), (1, 1));
    }

    #[test]
    fn digests_tell_what_differs_also_behind_a_gap() {
        let digests = |seqs: &[u64], text: &str| {
            let mut verifier = Verifier::default();
            verifier.keep_digests();
            let log = verifier.add_conversation("g".into(), 0);
            verifier.add_receiver(log);
            for seq in seqs {
                verifier.receive_entry(0, &entry(*seq, text), false, &mut NumberedTexts::default(), 0);
            }
            verifier.entries_from(0, 2).map(|entry| (entry.seq, entry.digest)).collect::<Vec<_>>()
        };
        let all = digests(&[1, 2, 3, 4], "same");
        assert_eq!(all.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(digests(&[1, 2, 4], "same"), [all[0], all[2]]);
        assert_eq!(digests(&[2, 1, 3, 4], "same"), all);
        assert!(digests(&[1, 2], "other")[0].1 != all[0].1);
    }
}
