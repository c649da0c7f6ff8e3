//! The fencing of writes outside commits. Each write names a fencing token: the number of the term in the database, and the
//! boot id of the leader. A write whose answer was lost may still be on its way to the database. So before the next write,
//! the number is raised: that waits for a write that is under way in the database, and fences off one that arrives later.
//!
//! The engine does not see the raised numbers: its lead goes on, and so does its term.

use super::{
    Params, PostgresStore,
    clock::now_ms,
    connection::{bigint, number},
};
use parking_lot::Mutex;
use tidings_domain::{
    function::Function,
    store::{StoreError, StoreResult, Term},
};
use tokio_postgres::Row;

/// The distance between two raised numbers of one term, so that the terms that other nodes begin are not taken for them.
const STRIDE: u64 = 1 << 20;
/// How often one call tries a write. Each attempt but the first follows another writer that has raised the number.
const ATTEMPTS_MAX: usize = 4;

const RAISE: &str = "UPDATE leader SET term = $2::bigint WHERE boot_id = $3::bigint AND term >= $1::bigint \
     AND term < $2::bigint AND (term - $1::bigint) % $4::bigint = 0 AND (function = $5 OR NOT is_split) \
     RETURNING term, boot_id, is_split";
/// A process without a cluster begins a term of its own for all functions, under the boot id of whichever node led last.
const BEGIN_ALONE: &str = concat!(
    "WITH begun AS (UPDATE leader SET term = greatest((SELECT max(term) FROM leader) + 1, ",
    now_ms!(),
    ") RETURNING function, term, boot_id, is_split) SELECT term, boot_id, is_split FROM begun WHERE function = 'push'"
);

/// The fencing token that a write names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct FencingToken {
    /// The term's number in the database; 0: not begun.
    number: u64,
    /// A boot id, as the database holds it.
    leader: i64,
}

/// What is known of the terms of a function.
#[derive(Clone, Default)]
struct State {
    /// The boot id of this process, once it has renewed its lease.
    own_boot_id: i64,
    /// The term's number as the engine knows it.
    number: u64,
    token: FencingToken,
    /// How often the number was raised, or may have been.
    raised: u64,
    /// A write whose answer was lost may still arrive at the database.
    is_write_pending: bool,
}

/// The states of all functions. While one row stands for all of them, that of the first one stands for all, too.
#[derive(Default)]
struct States {
    is_split: bool,
    by_function: [State; Function::COUNT],
}

impl States {
    fn of(&mut self, function: Function) -> &mut State {
        &mut self.by_function[if self.is_split { function as usize } else { 0 }]
    }

    /// Each function has a row of its own in the database, with the number, and the writes under way, of the one before.
    fn note_split(&mut self) {
        if !self.is_split {
            self.is_split = true;
            self.by_function = std::array::from_fn(|_| self.by_function[0].clone());
        }
    }
}

#[derive(Default)]
pub(super) struct Terms(Mutex<States>);

impl Terms {
    /// Takes a function's leader and the term's number that the database named at a heartbeat; answers the term as the engine
    /// knows it.
    pub(super) fn on_heartbeat(&self, own_boot_id: i64, leader: i64, term: Term, is_split: bool) -> Term {
        let mut states = self.0.lock();
        if is_split {
            states.note_split();
        }
        let state = states.of(term.function);
        let is_raised = |by: u64| by.is_multiple_of(STRIDE) && by / STRIDE <= state.raised;
        let is_known = state.own_boot_id == own_boot_id
            && state.number != 0
            && term.number.checked_sub(state.number).is_some_and(is_raised);
        if leader != own_boot_id {
            // Another node led in between: no later number may be taken for one of this process's old term.
            *state = State { own_boot_id, ..State::default() };
            term
        } else if is_known {
            // Another number was read before the last raise, or a database that has gone back has lost that raise. The
            // next raise makes both right.
            state.is_write_pending |= term.number != state.token.number;
            Term { number: state.number, ..term }
        } else {
            let token = FencingToken { number: term.number, leader };
            *state = State { own_boot_id, number: term.number, token, ..State::default() };
            term
        }
    }

    fn mark_write_pending(&self, term: Term) {
        let mut states = self.0.lock();
        let state = states.of(term.function);
        state.is_write_pending |= state.number == term.number;
    }
}

impl PostgresStore {
    /// Writes in a term, by a statement that takes the token's number and boot id and the function's name and answers whether the
    /// token is current.
    ///
    /// # Errors
    /// - [`StoreError::StaleTerm`]: another node leads, and no row was written;
    /// - [`StoreError::Unavailable`]: no row was written;
    /// - otherwise the error of the statement.
    pub(super) fn write_in_term(
        &self,
        term: Term,
        write: impl Fn(i64, i64, &str) -> StoreResult<bool>,
    ) -> StoreResult<()> {
        let mut refused = None;
        // A write that waited while functions got rows of their own is refused once, and finds its function's row then.
        let mut may_have_split = !self.terms.0.lock().is_split;
        for _ in 0..ATTEMPTS_MAX {
            let token = self.fencing_token(term, refused)?;
            if refused == Some(token) && !std::mem::take(&mut may_have_split) {
                return Err(StoreError::StaleTerm);
            }
            match write(bigint(token.number), token.leader, term.function.name()) {
                Ok(true) => return Ok(()),
                // No row was written. Another write of this process may have raised the number meanwhile.
                Ok(false) => refused = Some(token),
                Err(error) => {
                    if matches!(error, StoreError::OutcomeUnknown(_)) {
                        self.terms.mark_write_pending(term);
                    }
                    return Err(error);
                }
            }
        }
        Err(StoreError::Unavailable("other processes keep writing in the place of this one".into()))
    }

    /// Fences off the term's writes whose answers were lost: from here on each is stored or never will be.
    pub(super) fn fence_open_writes(&self, term: Term) -> StoreResult<()> {
        self.fencing_token(term, None).map(drop)
    }

    /// The token for the next write. `refused`: a token that the database has just refused.
    fn fencing_token(&self, term: Term, refused: Option<FencingToken>) -> StoreResult<FencingToken> {
        let mut states = self.terms.0.lock();
        let state = states.of(term.function);
        if term.is_alone() {
            let is_begun = state.number == 0 && state.token.number != 0;
            if !is_begun || state.is_write_pending || Some(state.token) == refused {
                let own_boot_id = state.own_boot_id;
                let (token, is_split) = self.change_leader(BEGIN_ALONE, &[])?.ok_or(StoreError::StaleTerm)?;
                *states = States { is_split, ..States::default() };
                *states.of(term.function) = State { own_boot_id, token, ..State::default() };
            }
        } else if term.number != state.number {
            // The term of a lead that is over, or that never was: the database refuses it.
            return Ok(FencingToken { number: term.number, leader: state.own_boot_id });
        } else if state.is_write_pending {
            // An earlier raise whose answer was lost may be done, or arrive later: this number is higher in any case.
            state.raised += 1;
            let raised = bigint(term.number + state.raised * STRIDE);
            let own_boot_id = state.own_boot_id;
            let params: Params<'_> =
                &[&bigint(term.number), &raised, &own_boot_id, &bigint(STRIDE), &term.function.name()];
            let (token, is_split) = self.change_leader(RAISE, params)?.ok_or(StoreError::StaleTerm)?;
            if is_split {
                // Only this function's row was raised.
                states.note_split();
            }
            let state = states.of(term.function);
            (state.token, state.is_write_pending) = (token, false);
        }
        Ok(states.of(term.function).token)
    }

    /// Changes the leader's row; answers the new token and whether each function has a row, or `None` if another node leads.
    fn change_leader(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Option<(FencingToken, bool)>> {
        let token = |row: &Row| (FencingToken { number: number(row, 0), leader: row.get(1) }, row.get(2));
        match self.write_statement(sql, params) {
            Ok(rows) => Ok(rows.first().map(token)),
            // The write that needs the token was not sent: its outcome is known.
            Err(StoreError::OutcomeUnknown(why)) => Err(StoreError::Unavailable(why)),
            Err(error) => Err(error),
        }
    }
}
