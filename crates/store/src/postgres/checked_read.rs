//! A read whose rows a batch is decided over, in its three forms: as it is, under its lock, and as a check that it would still
//! return the same.

use super::{
    connection::{Call, Connection},
    failure::Failure,
    staged_batch::LoadedState,
};
use tidings_domain::store::StoreResult;
use tokio_postgres::{Row, error::SqlState, types::ToSql};

/// When a batch takes the locks of the rows that it was decided over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locking {
    /// In the round trip that commits: the database looks there whether the rows are still those that were loaded. A node
    /// that stops before has locked nothing.
    AtCommit,
    /// When they are loaded, because other nodes keep changing the same rows.
    First,
}

/// A parameter that lives until the batch is written.
pub(crate) type OwnedParam<'a> = Box<dyn ToSql + Sync + 'a>;
/// Takes a row into the state.
pub(crate) type RowReader = fn(&mut LoadedState, &Row) -> StoreResult<()>;

/// The rows of a batch, and the statements that read them.
#[derive(Default)]
pub(crate) struct Loaded<'a> {
    pub state: LoadedState,
    pub reads: Vec<CheckedRead<'a>>,
}

impl<'a> Loaded<'a> {
    pub(crate) async fn read_more(
        &mut self,
        connection: &Connection,
        statement: &'static ReadStatement,
        params: Vec<OwnedParam<'a>>,
        reader: RowReader,
    ) -> Result<(), Failure> {
        let mut read = CheckedRead::new(statement, params);
        // These rows are under the locks of others.
        let answers = connection.pipeline(&[read.call(Locking::AtCommit)]).await?;
        read.take(&answers[0], &mut self.state, reader)?;
        self.reads.push(read);
        Ok(())
    }
}

/// A read, and the digest of what it returned.
pub(crate) struct CheckedRead<'a> {
    statement: &'static ReadStatement,
    params: Vec<OwnedParam<'a>>,
    digest: i64,
}

impl<'a> CheckedRead<'a> {
    pub(crate) fn new(statement: &'static ReadStatement, params: Vec<OwnedParam<'a>>) -> CheckedRead<'a> {
        CheckedRead { statement, params, digest: 0 }
    }

    pub(crate) fn call(&self, locking: Locking) -> Call<'_> {
        let sql = match locking {
            Locking::AtCommit => self.statement.load,
            Locking::First => self.statement.lock_and_load,
        };
        Call { sql, params: self.borrowed_params() }
    }

    /// Locks the rows where they have a lock, and fails if another batch has changed what the read returned.
    pub(crate) fn check(&self) -> Option<Call<'_>> {
        let sql = self.statement.check?;
        let mut params = self.borrowed_params();
        params.push(&self.digest);
        Some(Call { sql, params })
    }

    fn borrowed_params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect()
    }

    pub(crate) fn take(&mut self, rows: &[Row], state: &mut LoadedState, reader: RowReader) -> Result<(), Failure> {
        for row in rows {
            if self.statement.check.is_some() {
                self.digest ^= row.get::<_, i64>(row.len() - 1);
            }
            reader(state, row).map_err(|error| Failure::Incompatible(error.to_string()))?;
        }
        Ok(())
    }
}

/// One read in its three forms.
pub(crate) struct ReadStatement {
    pub load: &'static str,
    pub lock_and_load: &'static str,
    /// `None`: what it returns never changes.
    pub check: Option<&'static str>,
}

/// A failed [`CheckedRead::check`] divides by zero: an error that no other of our statements can have.
pub(crate) const CHANGED_MEANWHILE: SqlState = SqlState::DIVISION_BY_ZERO;

/// A read, its lock (may be empty), and the parameter behind its own, which is the digest. `row::text` has all columns.
macro_rules! checked_read {
    ($digest:literal, $lock:literal, $($sql:tt)*) => {
        ReadStatement {
            load: concat!("SELECT r.*, hashtextextended(r::text, 0) FROM (", $($sql)*, ") r"),
            lock_and_load: concat!("SELECT r.*, hashtextextended(r::text, 0) FROM (", $($sql)*, $lock, ") r"),
            check: Some(concat!(
                "SELECT 1 / (coalesce(bit_xor(hashtextextended(r::text, 0)), 0) = ", $digest, "::bigint)::int FROM (",
                $($sql)*, $lock, ") r"
            )),
        }
    };
}
pub(crate) use checked_read;
