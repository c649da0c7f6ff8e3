//! A push to many while it runs: four sets of devices, and which chunks of them are not stored yet.

use super::{DeviceSet, PushFrame};
use roaring::RoaringBitmap;
use std::{collections::BTreeSet, sync::Arc};
use tidings_domain::{
    push_store::{AudienceSet, DeviceNo, PushKey, PushRow, PushStage},
    store::{Store, StoreResult},
};
use tidings_protocol::http::{DeviceState, PushCounts};

/// Devices of one chunk: its bitmap is 2 KiB, below the longest row.
const CHUNK_BITS: u32 = 14;
const CHUNK_DEVICES: u32 = 1 << CHUNK_BITS;
/// A chunk with up to so many devices is stored as a list of two bytes each, a fuller one as a bitmap.
const LISTED_MAX: u64 = CHUNK_DEVICES as u64 / 16;

/// The sets of a push to many, while it runs and as they are read back once it has ended.
#[derive(Debug, Default, Clone)]
pub(super) struct DeviceSets([RoaringBitmap; 4]);

impl DeviceSets {
    /// Reads the stored sets of a push to many.
    pub(super) fn read(store: &dyn Store, push: u64) -> StoreResult<DeviceSets> {
        let mut sets = DeviceSets::default();
        for set in AudienceSet::ALL {
            let (first, last) = (PushKey::Chunk(push, set, 0), PushKey::Chunk(push, set, u32::MAX));
            for row in store.push_rows(&first, &last, usize::MAX)? {
                if let PushRow::Chunk { chunk, bytes, .. } = row {
                    sets.put_chunk(set, chunk, &bytes);
                }
            }
        }
        Ok(sets)
    }

    /// Some chunks of the stored sets of a push to many.
    pub(super) fn read_chunks(store: &dyn Store, push: u64, chunks: &[u32]) -> StoreResult<DeviceSets> {
        let of_set = |set| chunks.iter().map(move |chunk| PushKey::Chunk(push, set, *chunk));
        let keys: Vec<PushKey> = AudienceSet::ALL.into_iter().flat_map(of_set).collect();
        let mut sets = DeviceSets::default();
        for row in store.push_rows_of(&keys)?.into_iter().flatten() {
            if let PushRow::Chunk { set, chunk, bytes, .. } = row {
                sets.put_chunk(set, chunk, &bytes);
            }
        }
        Ok(sets)
    }

    pub(super) fn of(&self, set: AudienceSet) -> &RoaringBitmap {
        &self.0[set as usize]
    }

    /// The targets that have not acknowledged the push.
    pub(super) fn pending(&self) -> RoaringBitmap {
        self.of(AudienceSet::Targets) - (self.of(AudienceSet::Acknowledged) | self.of(AudienceSet::Collapsed))
    }

    pub(super) fn is_pending(&self, device: DeviceNo) -> bool {
        let is_in = |set| self.of(set).contains(device.0);
        is_in(AudienceSet::Targets) && !is_in(AudienceSet::Acknowledged) && !is_in(AudienceSet::Collapsed)
    }

    /// Targets that are pending when the push ends count as expired or cancelled.
    pub(super) fn counts(&self, stage: PushStage, online: &RoaringBitmap) -> PushCounts {
        let left = self.pending();
        let open = matches!(stage, PushStage::Running | PushStage::Preparing | PushStage::Scheduled);
        PushCounts {
            targets: self.of(AudienceSet::Targets).len(),
            pending: if open { left.len() } else { 0 },
            offline: if open { left.difference_len(online) } else { 0 },
            delivered: self.of(AudienceSet::Delivered).len(),
            acknowledged: self.of(AudienceSet::Acknowledged).len(),
            expired: if stage == PushStage::Expired { left.len() } else { 0 },
            collapsed: self.of(AudienceSet::Collapsed).len(),
            cancelled: if stage == PushStage::Cancelled { left.len() } else { 0 },
        }
    }

    pub(super) fn state(&self, device: DeviceNo, stage: PushStage) -> DeviceState {
        let is_in = |set| self.of(set).contains(device.0);
        match stage {
            _ if is_in(AudienceSet::Acknowledged) => DeviceState::Acknowledged,
            _ if is_in(AudienceSet::Collapsed) => DeviceState::Collapsed,
            PushStage::Expired => DeviceState::Expired,
            PushStage::Cancelled => DeviceState::Cancelled,
            _ if is_in(AudienceSet::Delivered) => DeviceState::Delivered,
            _ => DeviceState::Pending,
        }
    }

    /// Adds a stored chunk.
    fn put_chunk(&mut self, set: AudienceSet, chunk: u32, bytes: &[u8]) {
        add_chunk(&mut self.0[set as usize], chunk, bytes);
    }

    /// A chunk as it is stored; no bytes for an empty one.
    fn chunk(&self, set: AudienceSet, chunk: u32) -> Vec<u8> {
        chunk_bytes(self.of(set), chunk)
    }
}

/// The chunk that a device is in.
pub(super) fn chunk_of(device: DeviceNo) -> u32 {
    device.0 >> CHUNK_BITS
}

/// Adds a stored chunk to a set.
pub(super) fn add_chunk(found: &mut RoaringBitmap, chunk: u32, bytes: &[u8]) {
    let first = chunk << CHUNK_BITS;
    match bytes.split_first() {
        Some((0, list)) => {
            let offsets = list.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            found.extend(offsets.map(|offset| first + offset));
        }
        Some((_, bits)) => *found |= RoaringBitmap::from_lsb0_bytes(first, bits),
        None => {}
    }
}

/// A chunk of a set as it is stored; no bytes for an empty one.
pub(super) fn chunk_bytes(all: &RoaringBitmap, chunk: u32) -> Vec<u8> {
    let (first, last) = (chunk << CHUNK_BITS, (chunk << CHUNK_BITS) + (CHUNK_DEVICES - 1));
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

/// The devices of a [`DeviceSet`] as a bitmap.
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
    /// Of two pushes with the same collapse key, the one with the higher order is the newer.
    pub(super) start_order: u64,
    pub(super) sets: DeviceSets,
    /// `sets.pending().len()`, kept up to date with every change: every turn reads it.
    pending_count: u64,
    /// Chunks that differ from what is stored.
    dirty: BTreeSet<(AudienceSet, u32)>,
}

impl Audience {
    pub(super) fn new(
        frame: Arc<PushFrame>,
        high: bool,
        collapse_key: Option<String>,
        start_order: u64,
        sets: DeviceSets,
    ) -> Self {
        let pending_count = sets.pending().len();
        Audience { frame, high, collapse_key, start_order, sets, pending_count, dirty: BTreeSet::new() }
    }

    /// The audience of a push that starts: its targets are not stored yet.
    pub(super) fn with_targets(
        frame: Arc<PushFrame>,
        high: bool,
        collapse_key: Option<String>,
        start_order: u64,
        targets: RoaringBitmap,
    ) -> Self {
        let dirty = chunks_of(&targets).map(|chunk| (AudienceSet::Targets, chunk)).collect();
        let pending_count = targets.len();
        let sets = DeviceSets([targets, RoaringBitmap::new(), RoaringBitmap::new(), RoaringBitmap::new()]);
        Audience { frame, high, collapse_key, start_order, sets, pending_count, dirty }
    }

    pub(super) fn is_done(&self) -> bool {
        self.pending_count == 0
    }

    /// Adds devices to a set; answers how many of them are new there.
    pub(super) fn insert(&mut self, set: AudienceSet, devices: &RoaringBitmap) -> u64 {
        let mut new = devices & self.sets.of(AudienceSet::Targets);
        if set == AudienceSet::Delivered {
            new -= self.sets.of(set);
        } else {
            // A device that acknowledges a push after it was collapsed there counts as collapsed only.
            new -= self.sets.of(AudienceSet::Acknowledged);
            new -= self.sets.of(AudienceSet::Collapsed);
            self.pending_count -= new.len();
        }
        self.dirty.extend(chunks_of(&new).map(|chunk| (set, chunk)));
        self.sets.0[set as usize] |= &new;
        new.len()
    }

    /// A newer push replaces this one on these devices; answers on how many it was pending.
    pub(super) fn collapse(&mut self, devices: &RoaringBitmap) -> u64 {
        let gone = self.sets.pending() & devices;
        self.dirty.extend(chunks_of(&gone).map(|chunk| (AudienceSet::Collapsed, chunk)));
        self.sets.0[AudienceSet::Collapsed as usize] |= &gone;
        self.pending_count -= gone.len();
        gone.len()
    }

    /// Adds to an audience that was read from the store the reports that are in memory and not stored yet.
    pub(super) fn merge_reports(&mut self, known: &Audience) {
        for set in [AudienceSet::Delivered, AudienceSet::Acknowledged, AudienceSet::Collapsed] {
            let new = (known.sets.of(set) & self.sets.of(AudienceSet::Targets)) - self.sets.of(set);
            self.dirty.extend(chunks_of(&new).map(|chunk| (set, chunk)));
            self.sets.0[set as usize] |= new;
        }
        self.pending_count = self.sets.pending().len();
    }

    /// A removed device is no target any more.
    pub(super) fn remove_device(&mut self, device: DeviceNo) {
        self.pending_count -= u64::from(self.sets.is_pending(device));
        for set in AudienceSet::ALL {
            if self.sets.0[set as usize].remove(device.0) {
                self.dirty.insert((set, device.0 >> CHUNK_BITS));
            }
        }
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes at most `limit` chunks that are to be stored, which are not dirty from then on. If the write fails, hand them
    /// back to [`Audience::mark_dirty`].
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

    pub(super) fn mark_dirty(&mut self, set: AudienceSet, chunk: u32) {
        self.dirty.insert((set, chunk));
    }
}

/// The chunks that hold any of these devices.
fn chunks_of(devices: &RoaringBitmap) -> impl Iterator<Item = u32> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let chunk = devices.range(from..).next()? >> CHUNK_BITS;
        // Device numbers end far below the last chunk.
        from = chunk.saturating_add(1) << CHUNK_BITS;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidings_domain::push_store::PUSH_ROW_BYTES_MAX;

    #[test]
    fn sets_read_back_from_their_chunks_are_equal() {
        let mut targets: RoaringBitmap = (0..40_000).chain([70_000, 1_000_000, 16_383]).collect();
        targets.optimize();
        let frame = PushFrame { push: 1, expires_at: 0, miop: Default::default(), json: Default::default() };
        let mut audience = Audience::with_targets(Arc::new(frame), false, None, 1, targets.clone());
        let devices: RoaringBitmap = (0..60_000).step_by(3).collect();
        audience.insert(AudienceSet::Acknowledged, &devices);
        let mut sets = DeviceSets::default();
        let rows = audience.take_dirty(1, usize::MAX);
        assert!(!audience.is_dirty());
        for row in rows {
            let PushRow::Chunk { set, chunk, bytes, .. } = row else { panic!("another row") };
            assert!(bytes.len() < PUSH_ROW_BYTES_MAX - 32, "{} bytes", bytes.len());
            sets.put_chunk(set, chunk, &bytes);
        }
        assert_eq!(sets.of(AudienceSet::Targets), &targets);
        let acknowledged: RoaringBitmap = (0..40_000).step_by(3).collect();
        assert_eq!(sets.of(AudienceSet::Acknowledged), &acknowledged, "only targets count");
        assert_eq!(sets.pending().len(), 40_002 - acknowledged.len());
    }

    proptest! {
        /// Sets of reports, some about devices that are no targets, change the same as report by report would.
        #[test]
        fn a_set_of_reports_counts_as_each_of_its_devices(
            targets in prop::collection::btree_set(0..40_000_u32, 0..60),
            steps in prop::collection::vec((0..3_u8, prop::collection::vec(0..60_usize, 0..30), 0..40_000_u32), 0..12),
        ) {
            let frame = PushFrame { push: 1, expires_at: 0, miop: Default::default(), json: Default::default() };
            let mut audience = Audience::with_targets(Arc::new(frame), false, None, 1, targets.iter().copied().collect());
            let (mut delivered, mut acknowledged, mut collapsed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            let numbers: Vec<u32> = targets.iter().copied().collect();
            for (step, chosen, stranger) in steps {
                let chosen = chosen.into_iter().filter_map(|at| numbers.get(at).copied());
                let devices: RoaringBitmap = chosen.chain([stranger]).collect();
                let (mut new, mut expected) = (0, 0);
                match step {
                    0 => {
                        new += audience.insert(AudienceSet::Delivered, &devices);
                        for device in devices.iter().filter(|device| targets.contains(device)) {
                            expected += u64::from(delivered.insert(device));
                        }
                    }
                    1 => {
                        new += audience.insert(AudienceSet::Acknowledged, &devices);
                        for device in devices.iter().filter(|device| targets.contains(device)) {
                            expected += u64::from(!collapsed.contains(&device) && acknowledged.insert(device));
                        }
                    }
                    _ => {
                        new += audience.collapse(&devices);
                        for device in devices.iter().filter(|device| targets.contains(device)) {
                            expected += u64::from(!acknowledged.contains(&device) && collapsed.insert(device));
                        }
                    }
                }
                prop_assert_eq!(new, expected);
                let left = targets.iter().filter(|device| !acknowledged.contains(device) && !collapsed.contains(device));
                prop_assert_eq!(audience.pending_count, left.count() as u64);
            }
            let all = [(AudienceSet::Delivered, &delivered), (AudienceSet::Acknowledged, &acknowledged)];
            for (set, expected) in all.into_iter().chain([(AudienceSet::Collapsed, &collapsed)]) {
                prop_assert_eq!(audience.sets.of(set), &expected.iter().copied().collect::<RoaringBitmap>());
            }
            let mut stored = DeviceSets::default();
            for row in audience.take_dirty(1, usize::MAX) {
                let PushRow::Chunk { set, chunk, bytes, .. } = row else { panic!("another row") };
                stored.put_chunk(set, chunk, &bytes);
            }
            prop_assert_eq!(stored.0, audience.sets.0, "every chunk that has changed is stored");
        }
    }
}
