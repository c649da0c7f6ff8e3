//! Which conversations lost which sequences: what notes, retries, read marks and the timelines' own holes tell together.

use crate::{
    acknowledged::Acknowledged,
    check::scan_meta,
    embedded::{EmbeddedStore, store_error},
    kv::*,
    reads::*,
    rows::*,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
};
use tidings_engine::{model::*, store::*};

/// What one conversation lost.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LostSeqs {
    /// Nothing if the conversation itself went, and nothing tells its name.
    pub conversation: Option<String>,
    /// The store's own number of it.
    pub number: u64,
    /// First and last, oldest first.
    pub seqs: Vec<(u64, u64)>,
}

impl LostSeqs {
    pub fn count(&self) -> u64 {
        self.seqs.iter().map(|(first, last)| last - first + 1).sum()
    }
}

impl fmt::Display for LostSeqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.conversation {
            Some(id) => write!(f, "conversation {id:?} lost seq ")?,
            None => write!(f, "conversation number {} (its name is lost too) lost seq ", self.number)?,
        }
        for (at, (first, last)) in self.seqs.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first} to {last}")?,
            }
        }
        Ok(())
    }
}

/// What is lost, and the rows that name it.
pub(crate) struct Lost {
    pub seqs: Vec<LostSeqs>,
    /// Keys of dedupe rows.
    pub retries: Vec<Vec<u8>>,
    /// Keys and rows of memberships whose read mark lies beyond the last entry, as they must be.
    pub read_marks: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What is there of each timeline.
#[derive(Default)]
struct Timelines {
    last_seqs: BTreeMap<u64, u64>,
    holes: BTreeMap<u64, Vec<RangeInclusive<u64>>>,
}

fn read_timelines(kv: &dyn KvRead) -> StoreResult<Timelines> {
    let mut first_seqs = BTreeMap::new();
    scan_meta(kv, b'f', |key, row| first_seqs.extend(number_at(key, 1).zip(number_at(row, 0))))?;
    let mut found = Timelines::default();
    kv.scan(Space::Timeline, &[], LAST_KEY, Order::Up, &mut |key, _| {
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
    // Of a timeline that is gone altogether, retention tells where it began.
    for (no, first_seq) in first_seqs {
        found.last_seqs.entry(no).or_insert(first_seq.saturating_sub(1));
    }
    Ok(found)
}

/// Compares what is there with what must have been.
pub(crate) fn find(store: &EmbeddedStore, expected: &Acknowledged) -> StoreResult<Lost> {
    let kv = store.kv()?;
    let kv = &*kv.snapshot();
    let timelines = read_timelines(kv)?;
    let is_there =
        |no: u64, seq: u64| kv.get(Space::Timeline, &entry_key(ConversationNo(no), seq)).map(|row| row.is_some());
    let mut known = expected.last_seqs.clone();
    let mut knows = |no: u64, seq: u64| {
        let newest = known.entry(no).or_default();
        *newest = seq.max(*newest);
    };
    let mut retries = Vec::new();
    let mut failed = None;
    kv.scan(Space::Dedupe, &[], LAST_KEY, Order::Up, &mut |key, row| {
        if let [no, seq, ..] = numbers(row)[..] {
            match is_there(no, seq) {
                Ok(true) => {}
                Ok(false) => {
                    knows(no, seq);
                    retries.push(key.to_vec());
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
    scan_meta(kv, b'm', |key, row| {
        let no = number_at(key, 1).unwrap_or(0);
        let last_seq = timelines.last_seqs.get(&no).copied().unwrap_or(0);
        if let Ok(row) = decode::<MembershipRow>(row) {
            let membership = row.membership();
            if membership.read_seq > last_seq {
                knows(no, membership.read_seq);
                let mended = Membership { read_seq: last_seq, ..membership };
                read_marks.push((key.to_vec(), encode(&MembershipRow::of(&mended))));
            }
        }
    })?;
    let conversations: BTreeSet<u64> = known.keys().chain(timelines.holes.keys()).copied().collect();
    let mut seqs = Vec::new();
    for number in conversations {
        let last_seq = timelines.last_seqs.get(&number).copied().unwrap_or(0);
        let mut ranges: Vec<_> = timelines.holes.get(&number).into_iter().flatten().cloned().collect();
        ranges.extend(known.get(&number).filter(|known| **known > last_seq).map(|known| last_seq + 1..=*known));
        if ranges.is_empty() {
            continue;
        }
        let card = read_conversation(kv, ConversationNo(number))?;
        let conversation = card.map(|card| card.id).or_else(|| expected.ids.get(&number).cloned());
        let ranges = ranges.into_iter().map(|range| (*range.start(), *range.end())).collect();
        seqs.push(LostSeqs { conversation, number, seqs: ranges });
    }
    Ok(Lost { seqs, retries, read_marks })
}

/// Rows mended in one batch.
const ROWS_PER_BATCH: usize = 1_000;

/// Mends rows that name what is lost: a message that is sent again is stored again, and nobody has read what is not there.
pub(crate) fn mend(store: &EmbeddedStore, lost: &Lost) -> StoreResult<()> {
    let removed = lost.retries.iter().map(|key| Put { space: Space::Dedupe, key: key.clone(), value: None });
    let marks =
        lost.read_marks.iter().map(|(key, row)| Put { space: Space::Meta, key: key.clone(), value: Some(row.clone()) });
    let puts: Vec<Put> = removed.chain(marks).collect();
    puts.chunks(ROWS_PER_BATCH).try_for_each(|puts| store.write_aside(Batch { puts: puts.to_vec() }, None))
}
