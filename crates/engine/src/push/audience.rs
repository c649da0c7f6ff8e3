//! A push to many while it runs: four sets of devices, and which pieces of them are not stored yet.

use super::{
    DeviceNo, DeviceSet, PushFrame,
    rows::{PushRow, Set, Stage},
};
use roaring::RoaringBitmap;
use std::{collections::BTreeSet, sync::Arc};
use tidings_protocol::http::{DeviceState, PushCounts};

/// Devices of one piece: its bitmap is 2 KiB, below the longest row.
const CHUNK_BITS: u32 = 14;
const CHUNK_DEVICES: u32 = 1 << CHUNK_BITS;
/// Up to so many devices a piece is a list of two bytes each.
const LISTED_MAX: u64 = CHUNK_DEVICES as u64 / 16;

/// The sets, also as they are read back once the push has ended.
#[derive(Debug, Default, Clone)]
pub(super) struct Sets([RoaringBitmap; 4]);

impl Sets {
    pub(super) fn of(&self, set: Set) -> &RoaringBitmap {
        &self.0[set as usize]
    }

    /// Those that it still waits for.
    pub(super) fn pending(&self) -> RoaringBitmap {
        self.of(Set::Targets) - (self.of(Set::Acknowledged) | self.of(Set::Collapsed))
    }

    pub(super) fn waits_for(&self, device: DeviceNo) -> bool {
        let is_in = |set| self.of(set).contains(device.0);
        is_in(Set::Targets) && !is_in(Set::Acknowledged) && !is_in(Set::Collapsed)
    }

    /// What an end makes of those that it still waited for.
    pub(super) fn counts(&self, stage: Stage, online: &RoaringBitmap) -> PushCounts {
        let left = self.pending();
        let open = matches!(stage, Stage::Running | Stage::Preparing | Stage::Scheduled);
        PushCounts {
            targets: self.of(Set::Targets).len(),
            pending: if open { left.len() } else { 0 },
            offline: if open { left.difference_len(online) } else { 0 },
            delivered: self.of(Set::Delivered).len(),
            acknowledged: self.of(Set::Acknowledged).len(),
            expired: if stage == Stage::Expired { left.len() } else { 0 },
            collapsed: self.of(Set::Collapsed).len(),
            cancelled: if stage == Stage::Cancelled { left.len() } else { 0 },
        }
    }

    pub(super) fn state(&self, device: DeviceNo, stage: Stage) -> DeviceState {
        let is_in = |set| self.of(set).contains(device.0);
        match stage {
            _ if is_in(Set::Acknowledged) => DeviceState::Acknowledged,
            _ if is_in(Set::Collapsed) => DeviceState::Collapsed,
            Stage::Expired => DeviceState::Expired,
            Stage::Cancelled => DeviceState::Cancelled,
            _ if is_in(Set::Delivered) => DeviceState::Delivered,
            _ => DeviceState::Pending,
        }
    }

    /// Takes a stored piece in.
    pub(super) fn put_chunk(&mut self, set: Set, chunk: u32, bytes: &[u8]) {
        let first = chunk << CHUNK_BITS;
        let found = &mut self.0[set as usize];
        match bytes.split_first() {
            Some((0, list)) => {
                let offsets = list.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
                found.extend(offsets.map(|offset| first + offset));
            }
            Some((_, bits)) => *found |= RoaringBitmap::from_lsb0_bytes(first, bits),
            None => {}
        }
    }

    /// A piece as it is stored; no bytes for an empty one.
    fn chunk(&self, set: Set, chunk: u32) -> Vec<u8> {
        let (first, last) = (chunk << CHUNK_BITS, (chunk << CHUNK_BITS) + (CHUNK_DEVICES - 1));
        let all = self.of(set);
        let devices = all.range(first..=last);
        match all.range_cardinality(first..=last) {
            0 => Vec::new(),
            1..=LISTED_MAX => {
                let offsets = devices.flat_map(|device| ((device - first) as u16).to_be_bytes());
                std::iter::once(0).chain(offsets).collect()
            }
            _ => {
                let mut bytes = vec![0; 1 + CHUNK_DEVICES as usize / 8];
                bytes[0] = 1;
                for offset in devices.map(|device| (device - first) as usize) {
                    bytes[1 + offset / 8] |= 1 << (offset % 8);
                }
                bytes
            }
        }
    }
}

/// A set that a shard looks into.
#[derive(Debug)]
pub(super) struct Receivers(pub(super) RoaringBitmap);

impl DeviceSet for Receivers {
    fn contains(&self, device: DeviceNo) -> bool {
        self.0.contains(device.0)
    }
}

/// A running push to many.
#[derive(Debug)]
pub(super) struct Audience {
    pub(super) frame: Arc<PushFrame>,
    pub(super) high: bool,
    pub(super) collapse_key: Option<String>,
    /// Among those with the same key the highest is the newest.
    pub(super) order: u64,
    pub(super) sets: Sets,
    /// As many as `sets.pending()` has, counted along: it is asked for every turn.
    open: u64,
    dirty: BTreeSet<(Set, u32)>,
}

impl Audience {
    pub(super) fn new(frame: Arc<PushFrame>, high: bool, collapse_key: Option<String>, order: u64, sets: Sets) -> Self {
        let open = sets.pending().len();
        Audience { frame, high, collapse_key, order, sets, open, dirty: BTreeSet::new() }
    }

    /// A fresh one: its targets are not stored yet.
    pub(super) fn to(
        frame: Arc<PushFrame>,
        high: bool,
        collapse_key: Option<String>,
        order: u64,
        targets: RoaringBitmap,
    ) -> Self {
        let dirty = chunks_of(&targets).map(|chunk| (Set::Targets, chunk)).collect();
        let open = targets.len();
        let sets = Sets([targets, RoaringBitmap::new(), RoaringBitmap::new(), RoaringBitmap::new()]);
        Audience { frame, high, collapse_key, order, sets, open, dirty }
    }

    pub(super) fn is_done(&self) -> bool {
        self.open == 0
    }

    pub(super) fn insert(&mut self, set: Set, device: DeviceNo) -> bool {
        // Who has it after a newer one took its place does not count twice.
        let counts = match set {
            Set::Delivered => self.sets.of(Set::Targets).contains(device.0),
            _ => self.sets.waits_for(device),
        };
        let new = counts && self.sets.0[set as usize].insert(device.0);
        self.open -= u64::from(new && set != Set::Delivered);
        if new {
            self.dirty.insert((set, device.0 >> CHUNK_BITS));
        }
        new
    }

    /// Newer ones take this one's place on these devices.
    pub(super) fn collapse(&mut self, devices: &RoaringBitmap) -> u64 {
        let gone = self.sets.pending() & devices;
        self.dirty.extend(chunks_of(&gone).map(|chunk| (Set::Collapsed, chunk)));
        self.sets.0[Set::Collapsed as usize] |= &gone;
        self.open -= gone.len();
        gone.len()
    }

    /// What this one, read from the store, does not know yet of what the same one in memory does.
    pub(super) fn take_reports(&mut self, known: &Audience) {
        for set in [Set::Delivered, Set::Acknowledged, Set::Collapsed] {
            let new = (known.sets.of(set) & self.sets.of(Set::Targets)) - self.sets.of(set);
            self.dirty.extend(chunks_of(&new).map(|chunk| (set, chunk)));
            self.sets.0[set as usize] |= new;
        }
        self.open = self.sets.pending().len();
    }

    /// A device that is no more is nobody's target.
    pub(super) fn forget(&mut self, device: DeviceNo) {
        self.open -= u64::from(self.sets.waits_for(device));
        for set in Set::ALL {
            if self.sets.0[set as usize].remove(device.0) {
                self.dirty.insert((set, device.0 >> CHUNK_BITS));
            }
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// At most `limit` pieces that are to be stored. They are not dirty any more; if they cannot be
    /// stored, hand them back to [`Audience::not_stored`].
    pub(super) fn take_dirty(&mut self, push: u64, limit: usize) -> Vec<PushRow> {
        let taken: Vec<_> = self.dirty.iter().take(limit).copied().collect();
        taken
            .into_iter()
            .map(|(set, chunk)| {
                self.dirty.remove(&(set, chunk));
                PushRow::Chunk { push, set, chunk, bytes: self.sets.chunk(set, chunk) }
            })
            .collect()
    }

    pub(super) fn not_stored(&mut self, set: Set, chunk: u32) {
        self.dirty.insert((set, chunk));
    }
}

/// The pieces that hold any of these.
fn chunks_of(devices: &RoaringBitmap) -> impl Iterator<Item = u32> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let chunk = devices.range(from..).next()? >> CHUNK_BITS;
        // Numbers of devices end far below the last piece.
        from = chunk.saturating_add(1) << CHUNK_BITS;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::rows::PUSH_ROW_BYTES_MAX;

    #[test]
    fn sets_come_back_from_their_pieces() {
        let mut targets: RoaringBitmap = (0..40_000).chain([70_000, 1_000_000, 16_383]).collect();
        targets.optimize();
        let frame = PushFrame { push: 1, expires_at: 0, miop: Default::default(), json: Default::default() };
        let mut audience = Audience::to(Arc::new(frame), false, None, 1, targets.clone());
        for device in (0..60_000).step_by(3) {
            audience.insert(Set::Acknowledged, DeviceNo(device));
        }
        let mut sets = Sets::default();
        let rows = audience.take_dirty(1, usize::MAX);
        assert!(!audience.is_dirty());
        for row in rows {
            let PushRow::Chunk { set, chunk, bytes, .. } = row else { panic!("another row") };
            assert!(bytes.len() < PUSH_ROW_BYTES_MAX - 32, "{} bytes", bytes.len());
            sets.put_chunk(set, chunk, &bytes);
        }
        assert_eq!(sets.of(Set::Targets), &targets);
        let acknowledged: RoaringBitmap = (0..40_000).step_by(3).collect();
        assert_eq!(sets.of(Set::Acknowledged), &acknowledged, "only targets count");
        assert_eq!(sets.pending().len(), 40_002 - acknowledged.len());
    }
}
