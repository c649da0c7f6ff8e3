//! The places of a lane, from before the commit to the end of stage 1: so many in all, and shared by who sends.

use crate::commit::queue::{NoPlace, Party};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

/// A place in a lane's queue, taken before the commit and freed by dropping.
#[derive(Debug)]
pub struct LaneSlot {
    slots: Arc<LaneSlots>,
    /// Where it is counted for its party; absent: for none.
    counted: Option<[u16; 2]>,
}

impl Drop for LaneSlot {
    fn drop(&mut self) {
        self.slots.taken.fetch_sub(1, Ordering::Relaxed);
        if let Some(cells) = self.counted {
            for cell in self.slots.cells(cells) {
                cell.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Cells in which places are counted by party.
const CELLS: usize = 4_096;

/// The places of a lane that are taken, from before the commit on, in all and by party. A party is counted in two cells
/// chosen by its hash, and has as many as the lower of them says: two parties are taken for one only when both are
/// shared, which of 10,000 others one does in 1,700 cases.
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

    fn cells_of(&self, party: Party) -> [u16; 2] {
        let (kind, no) = match party {
            Party::User(user) => (1, user.0),
            Party::Conversation(conversation) => (2, conversation.0),
            Party::Bulk => (3, 0),
            Party::Server => (4, 0),
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

    /// A place, unless all are taken or the party holds as many as are left.
    pub(super) fn reserve(self: &Arc<Self>, limit: usize, party: Party) -> Result<LaneSlot, NoPlace> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        let cells = self.cells_of(party);
        let held = self.cells(cells).map(|cell| cell.fetch_add(1, Ordering::Relaxed)).min().unwrap_or(0) as usize;
        // From here on it is given back by dropping.
        let slot = LaneSlot { slots: self.clone(), counted: Some(cells) };
        match limit.saturating_sub(taken) {
            0 => Err(NoPlace::Full),
            free if held > 0 && held >= free => Err(NoPlace::Share { held }),
            _ => Ok(slot),
        }
    }

    /// A place, even above the limit, that counts for nobody.
    pub(super) fn reserve_over_limit(self: &Arc<Self>) -> LaneSlot {
        self.taken.fetch_add(1, Ordering::Relaxed);
        LaneSlot { slots: self.clone(), counted: None }
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::UserNo;

    #[test]
    fn a_party_holds_no_more_places_than_are_left_for_others() {
        let slots = LaneSlots::new();
        let mut held = Vec::new();
        let mut fill = |no: u64| {
            let before = held.len();
            while let Ok(slot) = slots.reserve(90, Party::User(UserNo(no))) {
                held.push(slot);
            }
            held.len() - before
        };
        assert_eq!(fill(1), 45);
        assert_eq!(fill(2), 23);
        assert_eq!(fill(1), 0);
        assert!(matches!(slots.reserve(90, Party::User(UserNo(1))), Err(NoPlace::Share { held: 45 })));
        for other in 3..12 {
            assert!(slots.reserve(90, Party::User(UserNo(other))).is_ok(), "party {other}");
        }
        assert_eq!(slots.taken.load(Ordering::Relaxed), held.len(), "what was refused holds nothing");
        drop(held);
        assert_eq!(slots.taken.load(Ordering::Relaxed), 0);
        assert!(slots.cells.iter().flatten().all(|cell| cell.load(Ordering::Relaxed) == 0));
    }
}
