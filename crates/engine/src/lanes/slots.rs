//! The slots of a lane: a limited number, shared fairly by senders. An item holds one from before its commit to the end
//! of stage 1.

use crate::fairness::{AdmissionError, FlowKey};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

/// A slot of a lane, reserved before the commit and freed by dropping.
#[derive(Debug)]
pub struct LaneSlot {
    slots: Arc<LaneSlots>,
    /// The cells of the sketch in which the slot counts for its flow; absent: it counts for none.
    counted_in: Option<[u16; 2]>,
}

impl Drop for LaneSlot {
    fn drop(&mut self) {
        self.slots.taken.fetch_sub(1, Ordering::Relaxed);
        if let Some(cells) = self.counted_in {
            for cell in self.slots.cells(cells) {
                cell.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Cells in a row of the sketch.
const CELLS: usize = 4_096;

/// Counts the slots of a lane that are taken, in all and by flow.
///
/// The count by flow is a count-min sketch of two rows: a flow adds to one cell of each row, chosen by its hash, and
/// holds as many slots as the lower of the two cells says, or fewer. Two flows count as one only when they share both
/// cells: with 10,000 other flows, the chance that one of them does is 1 in 1,700.
#[derive(Debug)]
pub(super) struct LaneSlots {
    taken: AtomicUsize,
    cells: [Box<[AtomicU32]>; 2],
    seed: u64,
}

impl LaneSlots {
    pub(super) fn new() -> Arc<LaneSlots> {
        let cells = || (0..CELLS).map(|_| AtomicU32::new(0)).collect();
        Arc::new(LaneSlots { taken: AtomicUsize::new(0), cells: [cells(), cells()], seed: rand::random() })
    }

    fn cells_of(&self, flow_key: FlowKey) -> [u16; 2] {
        let (kind, no) = match flow_key {
            FlowKey::User(user) => (1, user.0),
            FlowKey::Conversation(conversation) => (2, conversation.0),
            FlowKey::Bulk => (3, 0),
            FlowKey::Server => (4, 0),
        };
        // SplitMix64: all bits of the number show in all bits of the hash.
        let mut hash = no.wrapping_mul(4).wrapping_add(kind) ^ self.seed;
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash ^= hash >> 31;
        [hash as u16 % CELLS as u16, (hash >> 32) as u16 % CELLS as u16]
    }

    fn cells(&self, at: [u16; 2]) -> impl Iterator<Item = &AtomicU32> {
        self.cells.iter().zip(at).map(|(cells, at)| &cells[usize::from(at)])
    }

    /// Reserves a slot, unless all are taken or the flow holds as many as are free.
    pub(super) fn reserve(self: &Arc<Self>, limit: usize, flow_key: FlowKey) -> Result<LaneSlot, AdmissionError> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let cells = self.cells_of(flow_key);
        let held = self.cells(cells).map(|cell| cell.fetch_add(1, Ordering::Relaxed)).min().unwrap_or(0) as usize;
        // From here on, dropping the slot takes back both counts.
        let slot = LaneSlot { slots: self.clone(), counted_in: Some(cells) };
        match limit.saturating_sub(taken) {
            0 => Err(AdmissionError::Full),
            free if held > 0 && held >= free => Err(AdmissionError::ShareExceeded { held }),
            _ => Ok(slot),
        }
    }

    /// Reserves a slot, even above the limit, that counts for no flow.
    pub(super) fn reserve_over_limit(self: &Arc<Self>) -> LaneSlot {
        self.taken.fetch_add(1, Ordering::Relaxed);
        LaneSlot { slots: self.clone(), counted_in: None }
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_domain::model::UserNo;

    #[test]
    fn a_flow_is_refused_once_it_holds_as_many_slots_as_are_free() {
        let slots = LaneSlots::new();
        let mut held = Vec::new();
        let mut fill = |no: u64| {
            let before = held.len();
            while let Ok(slot) = slots.reserve(90, FlowKey::User(UserNo(no))) {
                held.push(slot);
            }
            held.len() - before
        };
        assert_eq!(fill(1), 45);
        assert_eq!(fill(2), 23);
        assert_eq!(fill(1), 0);
        assert!(matches!(slots.reserve(90, FlowKey::User(UserNo(1))), Err(AdmissionError::ShareExceeded { held: 45 })));
        for other in 3..12 {
            assert!(slots.reserve(90, FlowKey::User(UserNo(other))).is_ok(), "flow {other}");
        }
        assert_eq!(slots.taken.load(Ordering::Relaxed), held.len(), "a refused reservation holds no slot");
        drop(held);
        assert_eq!(slots.taken.load(Ordering::Relaxed), 0);
        assert!(slots.cells.iter().flatten().all(|cell| cell.load(Ordering::Relaxed) == 0));
    }
}
