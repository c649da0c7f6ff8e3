//! Failures of statements: what is certain after one, and what callers of the store are told.

use tidings_domain::store::StoreError;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Why a statement failed, and so whether anything may have been stored.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The database answered with an error: the statement's transaction was not committed.
    Database { code: SqlState, message: String },
    /// The connection broke: the statements sent last may or may not have been executed.
    Disconnected(String),
    /// The database ended the connection, and its transaction before: nothing was stored.
    RolledBack(String),
    /// No answer came in time: the statements may or may not be executed. The connection must be closed.
    TimedOut,
    /// No connection could be made: no statement was sent.
    NotConnected(String),
    /// The tables or a row need a newer program than this one.
    Incompatible(String),
}

impl Failure {
    /// Whether the connection must not be used again.
    pub(crate) fn breaks_connection(&self) -> bool {
        matches!(self, Failure::Disconnected(_) | Failure::RolledBack(_) | Failure::TimedOut)
    }

    pub(crate) fn is(&self, state: &SqlState) -> bool {
        matches!(self, Failure::Database { code, .. } if code == state)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        // The error's detail is left out: it quotes stored rows.
        match error.as_db_error() {
            Some(error) if *error.code() == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
                Failure::RolledBack(format!("{} ({})", error.message(), error.code().code()))
            }
            Some(error) if ends_connection(error) => {
                Failure::Disconnected(format!("{} ({})", error.message(), error.code().code()))
            }
            Some(error) => Failure::Database { code: error.code().clone(), message: error.message().to_owned() },
            None => Failure::Disconnected(with_cause(&error)),
        }
    }
}

/// Whether a connection is useless after this error: the database ends it, or the server has become a standby, or the
/// statements were prepared for tables that have changed since.
fn ends_connection(error: &DbError) -> bool {
    matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        || [&SqlState::READ_ONLY_SQL_TRANSACTION, &SqlState::FEATURE_NOT_SUPPORTED].contains(&error.code())
}

/// An error and its cause.
pub(crate) fn with_cause(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Database { code, .. } if code == SqlState::DISK_FULL => StoreError::DiskFull,
            Failure::Database { code, message }
                if code == SqlState::DATA_CORRUPTED || code == SqlState::INDEX_CORRUPTED =>
            {
                StoreError::Damaged(format!("PostgreSQL: {message} ({})", code.code()))
            }
            Failure::Database { code, message } => {
                StoreError::Unavailable(format!("PostgreSQL: {message} ({})", code.code()))
            }
            Failure::Disconnected(why) | Failure::RolledBack(why) => {
                StoreError::Unavailable(format!("the connection to PostgreSQL broke: {why}"))
            }
            Failure::TimedOut => StoreError::Unavailable("PostgreSQL did not answer in time".into()),
            Failure::NotConnected(why) => StoreError::Unavailable(format!("no connection to PostgreSQL: {why}")),
            Failure::Incompatible(why) => StoreError::Unavailable(why),
        }
    }
}

/// The failure without what it means for the caller.
pub(crate) fn failure_text(failure: &Failure) -> String {
    match failure {
        Failure::Database { message, code } => format!("{message} ({})", code.code()),
        Failure::Disconnected(why)
        | Failure::RolledBack(why)
        | Failure::NotConnected(why)
        | Failure::Incompatible(why) => why.clone(),
        Failure::TimedOut => "no answer in time".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_error(code: SqlState) -> StoreError {
        Failure::Database { code, message: "why".into() }.into()
    }

    #[test]
    fn full_disks_and_damage_have_errors_of_their_own() {
        assert!(matches!(store_error(SqlState::DISK_FULL), StoreError::DiskFull));
        assert!(matches!(store_error(SqlState::INDEX_CORRUPTED), StoreError::Damaged(_)));
        assert!(matches!(store_error(SqlState::DATA_CORRUPTED), StoreError::Damaged(_)));
        for code in [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED, SqlState::TOO_MANY_CONNECTIONS] {
            assert!(matches!(store_error(code.clone()), StoreError::Unavailable(why) if why.contains(code.code())));
        }
    }
}
