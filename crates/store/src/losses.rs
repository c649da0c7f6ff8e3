//! Finding which conversations lost which sequences. The witnesses are the acknowledgement logs, dedupe rows, read marks
//! and the timelines' own holes.

use crate::{
    ack_log::AckedState, check::scan_meta, embedded::EmbeddedStore, errors::store_error, kv::*, reads::*, rows::*,
};
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
};
use tidings_domain::{model::*, store::*};

/// The lost sequences of one conversation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LostSeqs {
    /// The conversation's id; `None` if its row is lost too and no log names it.
    pub conversation: Option<String>,
    /// The conversation's number in the store.
    pub number: u64,
    /// Ranges as first and last sequence, oldest first.
    pub seqs: Vec<(u64, u64)>,
}

impl LostSeqs {
    /// How many sequences are lost.
    pub fn count(&self) -> u64 {
        self.seqs.iter().map(|(first, last)| last - first + 1).sum()
    }
}

impl fmt::Display for LostSeqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.conversation {
            Some(id) => write!(f, "conversation {id:?} lost seq ")?,
            None => write!(f, "conversation number {} (its id is lost too) lost seq ", self.number)?,
        }
        for (at, (first, last)) in self.seqs.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first} to {last}")? }
        }
        Ok(())
    }
}

/// The lost sequences, and the rows that refer to lost entries.
pub(crate) struct Losses {
    pub seqs: Vec<LostSeqs>,
    /// Keys of the dedupe rows of lost entries.
    pub dedupe_keys: Vec<Vec<u8>>,
    /// Keys of memberships whose read mark lies beyond the last entry, each with the row that it must have.
    pub read_marks: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Where the timelines end, and their holes, by conversation number.
#[derive(Default)]
struct TimelineExtents {
    last_seqs: BTreeMap<u64, u64>,
    holes: BTreeMap<u64, Vec<RangeInclusive<u64>>>,
}

fn read_extents(kv: &dyn KvRead) -> StoreResult<TimelineExtents> {
    let mut first_seqs = BTreeMap::new();
    scan_meta(kv, MetaKind::FirstSeq, |key, row| first_seqs.extend(number_at(key, 1).zip(number_at(row, 0))))?;
    let mut found = TimelineExtents::default();
    kv.scan(Space::Timeline, &[], LAST_KEY, Order::Ascending, &mut |key, _| {
        if let (Some(no), Some(seq)) = (number_at(key, 0), number_at(key, 8)) {
            let due = match found.last_seqs.insert(no, seq) {
                Some(before) => before + 1,
                None => first_seqs.get(&no).copied().unwrap_or(1),
            };
            if due < seq {
                found.holes.entry(no).or_default().push(due..=seq - 1);
            }
        }
        true
    })
    .map_err(store_error)?;
    // A timeline that is gone altogether ended before the first sequence that retention had left.
    for (no, first_seq) in first_seqs {
        found.last_seqs.entry(no).or_insert(first_seq.saturating_sub(1));
    }
    Ok(found)
}

/// Compares the timelines with what the other witnesses say about their ends.
pub(crate) fn find(store: &EmbeddedStore, acked: &AckedState) -> StoreResult<Losses> {
    let kv = store.kv()?;
    let kv = &*kv.snapshot();
    let timelines = read_extents(kv)?;
    let is_there =
        |no: u64, seq: u64| kv.get(Space::Timeline, &entry_key(ConversationNo(no), seq)).map(|row| row.is_some());
    let mut expected_last_seqs = acked.last_seqs.clone();
    let mut expect = |no: u64, seq: u64| {
        let newest = expected_last_seqs.entry(no).or_default();
        *newest = seq.max(*newest);
    };
    let mut dedupe_keys = Vec::new();
    let mut failed = None;
    kv.scan(Space::Dedupe, &[], LAST_KEY, Order::Ascending, &mut |key, row| {
        if let [no, seq, ..] = numbers(row)[..] {
            match is_there(no, seq) {
                Ok(true) => {}
                Ok(false) => {
                    expect(no, seq);
                    dedupe_keys.push(key.to_vec());
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.is_none()
    })
    .map_err(store_error)?;
    if let Some(error) = failed {
        return Err(store_error(error));
    }
    let mut read_marks = Vec::new();
    scan_meta(kv, MetaKind::Member, |key, row| {
        let no = number_at(key, 1).unwrap_or(0);
        let last_seq = timelines.last_seqs.get(&no).copied().unwrap_or(0);
        if let Ok(row) = decode::<MembershipRow>(row) {
            let membership = row.membership();
            if membership.read_seq > last_seq {
                expect(no, membership.read_seq);
                let mended = Membership { read_seq: last_seq, ..membership };
                read_marks.push((key.to_vec(), encode(&MembershipRow::of(&mended))));
            }
        }
    })?;
    let conversations: BTreeSet<u64> = expected_last_seqs.keys().chain(timelines.holes.keys()).copied().collect();
    let mut seqs = Vec::new();
    for number in conversations {
        let last_seq = timelines.last_seqs.get(&number).copied().unwrap_or(0);
        let mut ranges: Vec<_> = timelines.holes.get(&number).into_iter().flatten().cloned().collect();
        let expected = expected_last_seqs.get(&number).filter(|expected| **expected > last_seq);
        ranges.extend(expected.map(|expected| last_seq + 1..=*expected));
        if ranges.is_empty() {
            continue;
        }
        let details = read_conversation(kv, ConversationNo(number))?;
        let conversation = details.map(|details| details.id).or_else(|| acked.ids.get(&number).cloned());
        let ranges = ranges.into_iter().map(|range| (*range.start(), *range.end())).collect();
        seqs.push(LostSeqs { conversation, number, seqs: ranges });
    }
    Ok(Losses { seqs, dedupe_keys, read_marks })
}

/// Rows mended in one batch.
const ROWS_PER_BATCH: usize = 1_000;

/// Removes the dedupe rows of lost entries, so that a retry stores the message again, and sets read marks back to the last
/// entry.
pub(crate) fn mend_rows(store: &EmbeddedStore, losses: &Losses) -> StoreResult<()> {
    let removed = losses.dedupe_keys.iter().map(|key| Write { space: Space::Dedupe, key: key.clone(), value: None });
    let marks = losses.read_marks.iter().map(|(key, row)| Write {
        space: Space::Meta,
        key: key.clone(),
        value: Some(row.clone()),
    });
    let writes: Vec<Write> = removed.chain(marks).collect();
    writes
        .chunks(ROWS_PER_BATCH)
        .try_for_each(|writes| store.write_cleanup(Batch { writes: writes.to_vec() }, None, &FxHashMap::default()))
}
