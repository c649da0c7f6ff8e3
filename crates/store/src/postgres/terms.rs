//! In which term this process writes, as the database numbers it. A write whose answer was lost may still be on its way, on a
//! connection that nobody waits for any more: before the next one, the term's number is raised. That waits for a write
//! that is under way in the database, and what arrives later is one of a term that is over.
//!
//! The engine knows nothing of it: its lead goes on, and so does its term.

use super::{
    Params, PostgresStore,
    connection::{number, stored},
    write::now_ms,
};
use parking_lot::Mutex;
use tidings_engine::store::{StoreError, StoreResult, Term};
use tokio_postgres::Row;

/// Numbers of one term are so far apart: those that others begin meanwhile are not taken for one of them.
const STRIDE: u64 = 1 << 20;
/// So often a write is tried in one call: each time, another writer's doubts have raised the number.
const TRIES: usize = 4;

const RAISE: &str = "UPDATE leader SET term = $2::bigint WHERE boot_id = $3::bigint AND term >= $1::bigint \
     AND term < $2::bigint AND (term - $1::bigint) % $4::bigint = 0 RETURNING term, boot_id";
/// A process without others begins a term of its own: it writes as whoever leads.
const BEGIN_ALONE: &str =
    concat!("UPDATE leader SET term = greatest(term + 1, ", now_ms!(), ") RETURNING term, boot_id");

/// What a write is to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Fence {
    number: u64,
    /// A boot id, as the database holds it.
    leader: i64,
}

#[derive(Default)]
struct State {
    /// This process, once it has beaten.
    me: i64,
    /// As the engine names it.
    term: Term,
    /// As the database does; `number` 0: not begun.
    fence: Fence,
    /// How often it was raised, or may have been.
    raised: u64,
    /// Something may be on its way.
    is_unsure: bool,
}

#[derive(Default)]
pub(super) struct Terms(Mutex<State>);

impl Terms {
    /// The leader and its term's number, as the database says: the term as the engine knows it.
    pub(super) fn heard(&self, me: i64, leader: Option<i64>, term: Term) -> Term {
        let mut state = self.0.lock();
        let is_raised = |by: u64| by.is_multiple_of(STRIDE) && by / STRIDE <= state.raised;
        let is_known =
            state.me == me && state.term != Term::ALONE && term.0.checked_sub(state.term.0).is_some_and(is_raised);
        match leader {
            Some(leader) if leader == me && is_known => {
                // Read before it was raised, or lost by a database that has gone back: raised once more it is right again.
                state.is_unsure |= term.0 != state.fence.number;
                state.term
            }
            Some(leader) if leader == me => {
                *state = State { me, term, fence: Fence { number: term.0, leader }, ..State::default() };
                term
            }
            // Who has heard of another lead takes nothing for its own that comes after it.
            Some(_) => {
                *state = State { me, ..State::default() };
                term
            }
            None => term,
        }
    }

    fn doubt(&self, term: Term) {
        let mut state = self.0.lock();
        state.is_unsure |= state.term == term;
    }
}

impl PostgresStore {
    /// Writes in a term by a statement that is told its number and whose it is, and answers whether that is so still.
    pub(super) fn write_in_term(&self, term: Term, write: impl Fn(i64, i64) -> StoreResult<bool>) -> StoreResult<()> {
        let mut before = None;
        for _ in 0..TRIES {
            let fence = self.fence(term, before)?;
            if before == Some(fence) {
                return Err(StoreError::TermIsOver);
            }
            match write(stored(fence.number), fence.leader) {
                Ok(true) => return Ok(()),
                // Nothing was written. The number may have been raised meanwhile, for another's write.
                Ok(false) => before = Some(fence),
                Err(error) => {
                    if matches!(error, StoreError::Unsure(_)) {
                        self.terms.doubt(term);
                    }
                    return Err(error);
                }
            }
        }
        Err(StoreError::Unavailable("others keep writing in the place of this process".into()))
    }

    /// No write of the term whose answer was lost is done from here on.
    pub(super) fn settle_writes(&self, term: Term) -> StoreResult<()> {
        self.fence(term, None).map(drop)
    }

    /// What to write with. `over`: what turned out to be over.
    fn fence(&self, term: Term, over: Option<Fence>) -> StoreResult<Fence> {
        let mut state = self.terms.0.lock();
        if term == Term::ALONE {
            let is_begun = state.term == Term::ALONE && state.fence.number != 0;
            if !is_begun || state.is_unsure || Some(state.fence) == over {
                let fence = self.change_leader(BEGIN_ALONE, &[])?.ok_or(StoreError::TermIsOver)?;
                *state = State { me: state.me, fence, ..State::default() };
            }
        } else if term != state.term {
            // Of a lead that is over, or that never was.
            return Ok(Fence { number: term.0, leader: state.me });
        } else if state.is_unsure {
            // Whether a former try was done or not, and when: this one stands above it.
            state.raised += 1;
            let raised = stored(term.0 + state.raised * STRIDE);
            let fence = self.change_leader(RAISE, &[&stored(term.0), &raised, &state.me, &stored(STRIDE)])?;
            state.fence = fence.ok_or(StoreError::TermIsOver)?;
            state.is_unsure = false;
        }
        Ok(state.fence)
    }

    /// `None`: the lead is another's.
    fn change_leader(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Option<Fence>> {
        let fence = |row: &Row| Fence { number: number(row, 0), leader: row.get(1) };
        match self.write_aside(sql, params) {
            Ok(rows) => Ok(rows.first().map(fence)),
            // Of what is to be written after it nothing was sent.
            Err(StoreError::Unsure(why)) => Err(StoreError::Unavailable(why)),
            Err(error) => Err(error),
        }
    }
}
