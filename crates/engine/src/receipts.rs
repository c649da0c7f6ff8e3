//! How far users' clients have come, gathered until the next round of [`crate::receipts_worker`]: positions to be stored, and
//! moves to be told to live members.
//!
//! Receipts are derived and never stored per message: a member has read what the read mark covers, and has what the stored
//! positions cover. What is gathered here may be lost with the process: a client tells its cursor again.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use tidings_domain::model::*;
use tidings_protocol::frames::ReceiptKind;

/// Users whose positions wait to be stored. Full: the cursors of further users are passed over; their clients tell newer ones.
const STORED_USERS_MAX: usize = 200_000;
/// Moves that wait to be told. Full: further ones are not told, and are seen when receipts are read.
const MOVES_MAX: usize = 100_000;

/// A member of a conversation has come farther.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptMove {
    pub conversation: ConversationNo,
    pub user: UserNo,
    pub what: ReceiptKind,
    /// The newest entry that was covered before; `None`: another node knows it, and tells it.
    pub before: Option<u64>,
    /// The newest entry that is covered now.
    pub seq: u64,
}

/// The moves of a conversation's members.
pub(crate) type PendingMoves = FxHashMap<(UserNo, ReceiptKind), PendingMove>;

/// All moves of a member since the last round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingMove {
    pub before: Option<u64>,
    pub seq: u64,
    /// This node committed the move, and tells it to the others.
    pub is_local: bool,
}

#[derive(Default)]
struct PendingStored {
    /// The epoch of all these positions.
    epoch: u64,
    users: FxHashMap<UserNo, [Position; LANES]>,
}

#[derive(Default)]
struct AllMoves {
    of: FxHashMap<ConversationNo, PendingMoves>,
    count: usize,
}

/// What waits for the next round.
#[derive(Default)]
pub(crate) struct Receipts {
    stored: Mutex<PendingStored>,
    moves: Mutex<AllMoves>,
}

impl Receipts {
    /// A client of the user has stored all up to the cursor. Of several devices the farthest counts.
    pub(crate) fn note_stored(&self, user: UserNo, cursor: &Cursor) {
        let mut pending = self.stored.lock();
        if pending.epoch != cursor.epoch {
            *pending = PendingStored { epoch: cursor.epoch, ..PendingStored::default() };
        }
        let is_full = pending.users.len() >= STORED_USERS_MAX;
        match pending.users.entry(user) {
            Entry::Occupied(mut known) => {
                known.get_mut().iter_mut().zip(cursor.positions).for_each(|(known, told)| *known = told.max(*known));
            }
            Entry::Vacant(new) if !is_full => drop(new.insert(cursor.positions)),
            Entry::Vacant(_) => {}
        }
    }

    /// The positions of a user that are not stored yet.
    pub(crate) fn pending_stored(&self, user: UserNo, epoch: u64) -> [Position; LANES] {
        let pending = self.stored.lock();
        let known = pending.users.get(&user).filter(|_| pending.epoch == epoch);
        known.copied().unwrap_or_default()
    }

    /// Takes the positions of at most so many users. Those of another epoch are dropped: they count another history.
    pub(crate) fn take_stored(&self, most: usize, epoch: u64) -> Vec<(UserNo, [Position; LANES])> {
        let mut pending = self.stored.lock();
        if pending.epoch != epoch {
            pending.users.clear();
        }
        let taken: Vec<UserNo> = pending.users.keys().take(most).copied().collect();
        taken.into_iter().filter_map(|user| pending.users.remove_entry(&user)).collect()
    }

    /// Takes note of a move that this node has committed, or, without the entry before it, another one.
    pub(crate) fn note(&self, told: ReceiptMove) {
        let is_local = told.before.is_some();
        self.moves.lock().add(told, is_local);
    }

    /// Takes note of moves that another node tells of.
    pub(crate) fn note_remote(&self, told: Vec<ReceiptMove>) {
        let mut moves = self.moves.lock();
        told.into_iter().for_each(|told| moves.add(told, false));
    }

    pub(crate) fn take_moves(&self) -> FxHashMap<ConversationNo, PendingMoves> {
        std::mem::take(&mut *self.moves.lock()).of
    }

    /// What waits, by the names of the metrics, with the limits.
    pub(crate) fn depths(&self) -> [(&'static str, usize, usize); 2] {
        let (stored, moves) = (self.stored.lock().users.len(), self.moves.lock().count);
        [("receipts_stored", stored, STORED_USERS_MAX), ("receipts_told", moves, MOVES_MAX)]
    }
}

impl AllMoves {
    fn add(&mut self, told: ReceiptMove, is_local: bool) {
        if self.count >= MOVES_MAX {
            return;
        }
        let ReceiptMove { conversation, user, what, before, seq } = told;
        match self.of.entry(conversation).or_default().entry((user, what)) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.seq = known.seq.max(seq);
                known.before = [known.before, before].into_iter().flatten().min();
                known.is_local |= is_local;
            }
            Entry::Vacant(new) => {
                new.insert(PendingMove { before, seq, is_local });
                self.count += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: UserNo = UserNo(1);
    const ROOM: ConversationNo = ConversationNo(7);

    #[test]
    fn the_farthest_cursor_of_a_users_devices_counts_in_each_lane() {
        let receipts = Receipts::default();
        receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [5, 1, 0] });
        receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [4, 2, 0] });
        assert_eq!(receipts.take_stored(10, 3), [(ANN, [5, 2, 0])]);
        assert_eq!(receipts.take_stored(10, 3), []);
    }

    #[test]
    fn positions_of_another_epoch_are_dropped() {
        let receipts = Receipts::default();
        receipts.note_stored(ANN, &Cursor { epoch: 3, positions: [9, 9, 9] });
        receipts.note_stored(UserNo(2), &Cursor { epoch: 4, positions: [1, 1, 1] });
        assert_eq!(receipts.take_stored(10, 5), [], "the store has another history by now");
        receipts.note_stored(ANN, &Cursor { epoch: 5, positions: [1, 0, 0] });
        assert_eq!(receipts.take_stored(10, 5), [(ANN, [1, 0, 0])]);
    }

    #[test]
    fn moves_of_one_member_become_one() {
        let receipts = Receipts::default();
        let read = |before, seq| ReceiptMove { conversation: ROOM, user: ANN, what: ReceiptKind::Read, before, seq };
        [read(Some(2), 3), read(Some(3), 6), read(None, 4)].into_iter().for_each(|told| receipts.note(told));
        let moves = receipts.take_moves();
        let expected = PendingMove { before: Some(2), seq: 6, is_local: true };
        assert_eq!(moves[&ROOM][&(ANN, ReceiptKind::Read)], expected);
        receipts.note_remote(vec![read(Some(6), 7)]);
        assert!(!receipts.take_moves()[&ROOM][&(ANN, ReceiptKind::Read)].is_local);
        assert!(receipts.take_moves().is_empty());
    }

    #[test]
    fn users_and_moves_beyond_the_bounds_are_passed_over() {
        let receipts = Receipts::default();
        let told = |user, seq| ReceiptMove { conversation: ROOM, user, what: ReceiptKind::Read, before: None, seq };
        for user in (0..STORED_USERS_MAX as u64 + 9).map(UserNo) {
            receipts.note_stored(user, &Cursor { epoch: 0, positions: [1, 1, 1] });
            receipts.note(told(user, 1));
        }
        assert_eq!(receipts.depths().map(|(_, depth, _)| depth), [STORED_USERS_MAX, MOVES_MAX]);
        receipts.note_stored(UserNo(0), &Cursor { epoch: 0, positions: [2, 1, 1] });
        let stored = receipts.take_stored(usize::MAX, 0);
        assert!(stored.contains(&(UserNo(0), [2, 1, 1])), "a user who is known already goes on");
    }
}
