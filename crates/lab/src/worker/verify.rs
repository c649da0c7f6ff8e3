//! Proving that every receiver got every entry, once, in order and unchanged, at millions a second.
//!
//! An entry's bytes are the same for all receivers. So the first receiver of a `(conversation, seq)` has it
//! parsed and checked in full, and its bytes become the log's; for all later receivers a whole batch is one
//! comparison of memory against the log from where that receiver stands. Only what does not match
//! is parsed again, to say what is wrong with it.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};
use tidings_client::wire::split_messages_frame;

/// An entry that is none of the messages this run sent, such as a change of members.
pub const NO_MESSAGE: u32 = u32::MAX;

/// What the checks read of an entry.
#[derive(Debug, Deserialize)]
pub struct EntryView<'a> {
    #[serde(borrow)]
    pub conversation: Cow<'a, str>,
    pub seq: u64,
    #[serde(borrow, default)]
    pub from: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub client_msg_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub body: &'a RawValue,
}

/// Who knows what was sent.
pub trait Judge {
    /// Checks an entry on its first sight and says which message it is, or [`NO_MESSAGE`]; `Err` when it is not
    /// what was sent.
    fn identify(&mut self, entry: &EntryView<'_>) -> Result<u32, String>;
    /// A receiver got this message.
    fn delivered(&mut self, message: u32, now: u64);
}

/// What went wrong, and how often.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    pub doubled: u64,
    pub out_of_order: u64,
    pub altered: u64,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Where the entry and its comma end, counted from the log's beginning.
    end: u64,
    message: u32,
}

#[derive(Debug)]
struct Log {
    conversation: String,
    /// The last `seq` before this run; the log starts after it.
    base_seq: u64,
    /// Entries as they came, each followed by a comma.
    bytes: Vec<u8>,
    /// How many bytes were cut off the front: every receiver has passed them.
    trimmed: u64,
    marks: Vec<Mark>,
    /// Entries that came before one of a lower `seq` did.
    ahead: BTreeMap<u64, (Box<[u8]>, u32)>,
    readers: Vec<u32>,
}

impl Log {
    fn next_seq(&self) -> u64 {
        self.base_seq + 1 + self.marks.len() as u64
    }

    fn end_before(&self, seq: u64) -> Option<u64> {
        match (seq - self.base_seq - 1) as usize {
            0 => Some(0),
            index => self.marks.get(index - 1).map(|mark| mark.end),
        }
    }

    /// The bytes and message of an entry that was seen before; no bytes if they were trimmed.
    fn known(&self, seq: u64) -> Option<(Option<&[u8]>, u32)> {
        if let Some((bytes, message)) = self.ahead.get(&seq) {
            return Some((Some(bytes), *message));
        }
        let mark = self.marks.get((seq - self.base_seq - 1) as usize)?;
        let start = self.end_before(seq)?;
        let range = start.checked_sub(self.trimmed).map(|s| s as usize..(mark.end - 1 - self.trimmed) as usize);
        Some((range.and_then(|range| self.bytes.get(range)), mark.message))
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
        // With one reader nothing is compared later: the bytes need not be kept.
        if self.readers.len() > 1 {
            self.bytes.extend_from_slice(raw);
            self.bytes.push(b',');
            self.marks.push(Mark { end: self.trimmed + self.bytes.len() as u64, message });
        } else {
            self.trimmed += raw.len() as u64 + 1;
            self.marks.push(Mark { end: self.trimmed, message });
        }
    }
}

#[derive(Debug)]
struct Receiver {
    log: usize,
    next_seq: u64,
    /// Passed over, and not yet come.
    missing: BTreeSet<u64>,
}

/// A log's bytes are trimmed when they have grown by this much.
const TRIM_BYTES: usize = 64 * 1024 * 1024;
/// Faults described in words; the rest are only counted.
const PROBLEMS_MAX: usize = 10;

/// What every receiver has got so far.
#[derive(Debug, Default)]
pub struct Verifier {
    logs: Vec<Log>,
    receivers: Vec<Receiver>,
    pub faults: Faults,
    pub problems: Vec<String>,
}

impl Verifier {
    /// Adds a conversation whose next entry will be `base_seq + 1`.
    pub fn add_conversation(&mut self, conversation: String, base_seq: u64) -> usize {
        self.logs.push(Log {
            conversation,
            base_seq,
            bytes: Vec::new(),
            trimmed: 0,
            marks: Vec::new(),
            ahead: BTreeMap::new(),
            readers: Vec::new(),
        });
        self.logs.len() - 1
    }

    /// Adds a receiver that is to get everything of one conversation.
    pub fn add_receiver(&mut self, conversation: usize) -> usize {
        let log = &mut self.logs[conversation];
        log.readers.push(self.receivers.len() as u32);
        self.receivers.push(Receiver { log: conversation, next_seq: log.base_seq + 1, missing: BTreeSet::new() });
        self.receivers.len() - 1
    }

    /// Entries that some receiver has not got although another has, or that it passed over.
    pub fn lacking(&self) -> u64 {
        self.receivers
            .iter()
            .map(|receiver| {
                let log = &self.logs[receiver.log];
                receiver.missing.len() as u64 + log.next_seq().saturating_sub(receiver.next_seq)
            })
            .sum()
    }

    pub(crate) fn receivers(&self) -> usize {
        self.receivers.len()
    }

    /// How far each conversation has come, by whoever is furthest.
    pub(crate) fn heads(&self) -> Vec<u64> {
        self.logs.iter().map(Log::next_seq).collect()
    }

    /// Receivers that have not got everything before these.
    pub(crate) fn lagging(&self, heads: &[u64]) -> u64 {
        let lags = |receiver: &&Receiver| {
            let head = heads.get(receiver.log).copied().unwrap_or(0);
            receiver.next_seq < head || receiver.missing.first().is_some_and(|seq| *seq < head)
        };
        self.receivers.iter().filter(lags).count() as u64
    }

    /// A `messages` frame. Returns its cursor, or `None` if it is not one.
    pub fn take_messages<'a>(
        &mut self,
        receiver: usize,
        payload: &'a [u8],
        judge: &mut impl Judge,
        now: u64,
    ) -> Option<Cow<'a, [u8]>> {
        if let Some(batch) = split_messages_frame(payload)
            && self.take_known(receiver, batch.entries, judge, now)
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
                for raw in messages.entries {
                    self.take_entry(receiver, raw.get(), false, judge, now);
                }
                Some(match messages.cursor {
                    Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                    Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                })
            }
            Err(error) => {
                self.faults.altered += 1;
                self.describe(format!("receiver {receiver}: a batch that does not parse: {error}"));
                None
            }
        }
    }

    /// The fast way: the whole batch is what the log holds from where the receiver stands.
    fn take_known(&mut self, receiver: usize, entries: &[u8], judge: &mut impl Judge, now: u64) -> bool {
        let receiver = &mut self.receivers[receiver];
        let log = &mut self.logs[receiver.log];
        let Some(start) = log.end_before(receiver.next_seq) else { return false };
        let Some(from) = start.checked_sub(log.trimmed) else { return false };
        let from = from as usize;
        let Some(known) = log.bytes.get(from..from + entries.len() + 1) else { return false };
        if &known[..entries.len()] != entries || known[entries.len()] != b',' {
            return false;
        }
        // The match must end where an entry ends, or the batch was cut inside one.
        let end = start + known.len() as u64;
        let first = (receiver.next_seq - log.base_seq - 1) as usize;
        let Some(count) = log.marks[first..].iter().position(|mark| mark.end >= end) else { return false };
        if log.marks[first + count].end != end {
            return false;
        }
        for mark in &log.marks[first..=first + count] {
            if mark.message != NO_MESSAGE {
                judge.delivered(mark.message, now);
            }
        }
        receiver.next_seq += count as u64 + 1;
        true
    }

    /// One entry, parsed in full. `filling`: it answers a request for what was missed, so its place is right.
    pub fn take_entry(&mut self, receiver: usize, raw: &str, filling: bool, judge: &mut impl Judge, now: u64) {
        let entry = match serde_json::from_str::<EntryView<'_>>(raw) {
            Ok(entry) => entry,
            Err(error) => {
                self.faults.altered += 1;
                return self.describe(format!("receiver {receiver}: an entry that does not parse: {error}: {raw}"));
            }
        };
        let state = &mut self.receivers[receiver];
        let log = &mut self.logs[state.log];
        let seq = entry.seq;
        // What lies before the run, or in a conversation that it does not watch, is not judged.
        if entry.conversation != log.conversation || seq <= log.base_seq {
            return;
        }
        let mut fault = None;
        if seq >= state.next_seq {
            state.missing.extend(state.next_seq..seq);
            state.next_seq = seq + 1;
        } else if state.missing.remove(&seq) {
            if !filling {
                self.faults.out_of_order += 1;
                fault = Some(format!("receiver {receiver}: {seq} after {}", state.next_seq - 1));
            }
        } else {
            self.faults.doubled += 1;
            return self.describe(format!("receiver {receiver}: {seq} again"));
        }
        match log.known(seq) {
            Some((known, message)) => {
                if known.is_some_and(|known| known != raw.as_bytes()) {
                    self.faults.altered += 1;
                    fault = Some(format!("receiver {receiver}: {seq} differs from what others got: {raw}"));
                } else if message != NO_MESSAGE {
                    judge.delivered(message, now);
                }
            }
            None => {
                let message = match judge.identify(&entry) {
                    Ok(message) => message,
                    Err(what) => {
                        self.faults.altered += 1;
                        fault = Some(format!("receiver {receiver}: {seq} {what}"));
                        NO_MESSAGE
                    }
                };
                log.add(seq, raw.as_bytes(), message);
                if message != NO_MESSAGE {
                    judge.delivered(message, now);
                }
            }
        }
        if let Some(fault) = fault {
            self.describe(fault);
        }
    }

    /// The server named a range that it will not send by itself; it is missing until it was fetched.
    pub fn skip_to(&mut self, receiver: usize, seq: u64) {
        let state = &mut self.receivers[receiver];
        if seq >= state.next_seq {
            state.missing.extend(state.next_seq..=seq);
            state.next_seq = seq + 1;
        }
    }

    /// Drops the bytes that every receiver has passed. Cheap when there is little to drop.
    pub fn trim(&mut self) {
        for log in &mut self.logs {
            if log.bytes.len() < TRIM_BYTES {
                continue;
            }
            let receivers = &self.receivers;
            let passed = log.readers.iter().map(|reader| receivers[*reader as usize].next_seq).min();
            if let Some(end) = passed.and_then(|seq| log.end_before(seq)) {
                log.bytes.drain(..(end - log.trimmed) as usize);
                log.trimmed = end;
            }
        }
    }

    fn describe(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem.chars().take(400).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Knows the texts `m1`, `m2`, … and counts.
    #[derive(Default)]
    struct Texts(u64);

    impl Judge for Texts {
        fn identify(&mut self, entry: &EntryView<'_>) -> Result<u32, String> {
            match entry.body.get() == format!("\"m{}\"", entry.seq) {
                true => Ok(entry.seq as u32),
                false => Err("is not what was sent".into()),
            }
        }
        fn delivered(&mut self, _message: u32, _now: u64) {
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

    /// Shows each receiver its frames and returns (deliveries, lacking, faults).
    fn check(frames: &[&[Vec<u8>]]) -> (u64, u64, Faults) {
        let mut verifier = Verifier::default();
        let log = verifier.add_conversation("g".into(), 0);
        let mut texts = Texts::default();
        for _ in frames {
            verifier.add_receiver(log);
        }
        for (receiver, frames) in frames.iter().enumerate() {
            for frame in *frames {
                verifier.take_messages(receiver, frame, &mut texts, 0).unwrap();
            }
        }
        (texts.0, verifier.lacking(), verifier.faults)
    }

    #[test]
    fn a_clean_run_balances_however_it_is_cut_into_batches() {
        let clean = check(&[
            &[frame(&[1, 2, 3]), frame(&[4])],
            &[frame(&[1]), frame(&[2]), frame(&[3, 4])],
            &[frame(&[1, 2, 3, 4])],
        ]);
        assert_eq!(clean, (12, 0, Faults::default()));
    }

    #[test]
    fn a_lost_entry_is_found_in_the_middle_and_at_the_end() {
        assert_eq!(check(&[&[frame(&[1, 2, 3])], &[frame(&[1, 3])]]), (5, 1, Faults::default()));
        assert_eq!(check(&[&[frame(&[1, 2, 3])], &[frame(&[1, 2])]]), (5, 1, Faults::default()));
        assert_eq!(check(&[&[frame(&[1, 3])]]), (2, 1, Faults::default()), "also when no other receiver got it");
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
    fn a_batch_cut_inside_an_entry_does_not_pass_as_known() {
        let mut verifier = Verifier::default();
        let log = verifier.add_conversation("g".into(), 0);
        let mut texts = Texts::default();
        verifier.add_receiver(log);
        verifier.add_receiver(log);
        verifier.take_messages(0, &frame(&[1]), &mut texts, 0).unwrap();
        let cut = br#"{"t":"messages","cursor":"1.0.0.0","entries":[{"conversation":"g"]}"#;
        assert!(verifier.take_messages(1, cut, &mut texts, 0).is_none());
        assert_eq!((texts.0, verifier.faults.altered), (1, 1));
    }
}
