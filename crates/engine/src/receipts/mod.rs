//! Receipts: who has a message, and who has read it.
//!
//! A client says by a cursor what it has stored, and `requests` notes that here; a commit that moves a read mark is noted by
//! [`crate::hub`], on every node. So this file gathers positions to be stored, and moves to be sent to live members. Once a
//! second the thread of [`worker`] commits the positions and sends the moves, one frame for each conversation. Who asks for the
//! receipts of one message is answered by `requests`, from the read marks and the stored positions.
//!
//! Receipts are derived and never stored per message: a member has read what the read mark covers, and has what the stored
//! positions cover. What is gathered here may be lost with the process: a client tells its cursor again.

pub(crate) mod requests;
pub(crate) mod worker;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use tidings_domain::model::*;
use tidings_protocol::frames::ReceiptKind;

/// Users whose positions wait to be stored. Full: the cursors of further users are passed over; their clients tell newer ones.
const STORED_USERS_MAX: usize = 200_000;
/// Moves that wait to be sent. Full: further ones are not sent, and are seen when receipts are read.
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

    /// The positions of at most so many users, which wait until they are [done](Receipts::stored_done), so that a reader always finds them
    /// here or in the store. Those of another epoch are dropped: they count another history.
    pub(crate) fn waiting_stored(&self, most: usize, epoch: u64) -> Vec<(UserNo, [Position; LANES])> {
        let mut pending = self.stored.lock();
        if pending.epoch != epoch {
            pending.users.clear();
        }
        pending.users.iter().take(most).map(|(user, positions)| (*user, *positions)).collect()
    }

    /// These positions are in the store.
    pub(crate) fn stored_done(&self, stored: &[(UserNo, [Position; LANES])]) {
        let mut pending = self.stored.lock();
        for (user, positions) in stored {
            // Unless the user has come farther meanwhile.
            if pending.users.get(user) == Some(positions) {
                pending.users.remove(user);
            }
        }
    }

    /// Takes note of a move that this node has committed, or, without the entry before it, another one.
    pub(crate) fn note(&self, told: ReceiptMove) {
        let is_local = told.before.is_some();
        self.moves.lock().add(told, is_local);
    }

    /// Takes note of moves that another node reports.
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
#[path = "../../tests/units/receipts.rs"]
mod tests;
