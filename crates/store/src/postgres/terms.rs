//! The fencing of writes outside commits. Each write names a fencing token: the number of the term in the database, and the
//! boot id of the leader. A write whose answer was lost may still be on its way to the database. So before the next write,
//! the number is raised: that waits for a write that is under way in the database, and fences off one that arrives later.
//!
//! The engine does not see the raised numbers: its lead goes on, and so does its term.
//!
//! A function has a row of its own in `leader`, or shares that of the first one. A row is split while nodes lead: a write that waits
//! for the row meanwhile finds that it is not its function's any more, and is refused.

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

/// Whether a row of `leader` is that of this function's lease.
macro_rules! is_lease_of {
    ($function:literal) => {
        concat!("(function = ", $function, " OR NOT is_split OR ", $function, " = ANY (also_for))")
    };
}
pub(super) use is_lease_of;

const RAISE: &str = concat!(
    "UPDATE leader SET term = $2::bigint WHERE boot_id = $3::bigint AND term >= $1::bigint \
     AND term < $2::bigint AND (term - $1::bigint) % $4::bigint = 0 AND ",
    is_lease_of!("$5"),
    " RETURNING term, boot_id, function, is_split, also_for"
);
/// A process without a cluster begins a term of its own for all functions, under the boot id of whichever node led last.
const BEGIN_ALONE: &str = concat!(
    "WITH begun AS (UPDATE leader SET term = greatest((SELECT max(term) FROM leader) + 1, ",
    now_ms!(),
    ") RETURNING function, term, boot_id, is_split, also_for) \
     SELECT term, boot_id, function, is_split, also_for FROM begun WHERE function = 'push'"
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

/// A row of `leader` as it was changed.
struct LeaderRow {
    token: FencingToken,
    function: String,
    is_split: bool,
    also_for: Vec<String>,
}

impl LeaderRow {
    fn of(row: &Row) -> LeaderRow {
        let token = FencingToken { number: number(row, 0), leader: row.get(1) };
        LeaderRow { token, function: row.get(2), is_split: row.get(3), also_for: row.get(4) }
    }

    /// Whether it shows that this function has a row of its own.
    fn shows_row_of(&self, function: Function) -> bool {
        let is_first = self.function == Function::ALL[0].name();
        self.function == function.name()
            || is_first && self.is_split && !self.also_for.iter().any(|other| other == function.name())
    }
}

/// The states of all functions. That of the first one is also that of all without a row of their own.
#[derive(Default)]
struct States {
    has_row: [bool; Function::COUNT],
    by_function: [State; Function::COUNT],
}

impl States {
    fn has_row(&self, function: Function) -> bool {
        function == Function::ALL[0] || self.has_row[function as usize]
    }

    fn of(&mut self, function: Function) -> &mut State {
        let place = if self.has_row(function) { function as usize } else { 0 };
        &mut self.by_function[place]
    }

    /// The function has a row of its own in the database, with the number, and the writes under way, of the one before.
    fn note_row_of(&mut self, function: Function) {
        if !self.has_row(function) {
            self.has_row[function as usize] = true;
            self.by_function[function as usize] = self.by_function[0].clone();
        }
    }

    fn note_rows_shown_by(&mut self, row: &LeaderRow) {
        Function::ALL.into_iter().filter(|function| row.shows_row_of(*function)).for_each(|one| self.note_row_of(one));
    }
}

#[derive(Default)]
pub(super) struct Terms(Mutex<States>);

impl Terms {
    /// These functions have rows of their own. Noted before the leaders, so that none takes over what has become of the first.
    pub(super) fn note_rows_of(&self, functions: &[Function]) {
        let mut states = self.0.lock();
        functions.iter().for_each(|function| states.note_row_of(*function));
    }

    /// Takes a function's leader and the term's number that the database named at a heartbeat; answers the term as the engine
    /// knows it.
    pub(super) fn on_heartbeat(&self, own_boot_id: i64, leader: i64, term: Term) -> Term {
        let mut states = self.0.lock();
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
        // A write that waited while its function got a row of its own is refused once, and finds that row then.
        let mut may_have_split = !self.terms.0.lock().has_row(term.function);
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
                let row = self.change_leader(BEGIN_ALONE, &[])?.ok_or(StoreError::StaleTerm)?;
                *states = States::default();
                states.note_rows_shown_by(&row);
                *states.of(term.function) = State { own_boot_id, token: row.token, ..State::default() };
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
            let row = self.change_leader(RAISE, params)?.ok_or(StoreError::StaleTerm)?;
            // Only this row was raised.
            states.note_rows_shown_by(&row);
            let state = states.of(term.function);
            (state.token, state.is_write_pending) = (row.token, false);
        }
        Ok(states.of(term.function).token)
    }

    /// Changes the row of a lease; answers it, or `None` if another node leads.
    fn change_leader(&self, sql: &'static str, params: Params<'_>) -> StoreResult<Option<LeaderRow>> {
        match self.write_statement(sql, params) {
            Ok(rows) => Ok(rows.first().map(LeaderRow::of)),
            // The write that needs the token was not sent: its outcome is known.
            Err(StoreError::OutcomeUnknown(why)) => Err(StoreError::Unavailable(why)),
            Err(error) => Err(error),
        }
    }
}
