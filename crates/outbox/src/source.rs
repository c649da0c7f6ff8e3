//! A database with an outbox, as a reader uses it.

use crate::{
    database::{Counts, Database, SourceConfig, SourceError, SourceResult},
    mysql::MysqlSource,
    postgres::PostgresSource,
    row::{Outcome, Place, Row},
};
use std::time::Duration;

/// Rows that are removed in one statement.
const REMOVED_ROWS: i64 = 1_000;
/// A statement that takes longer has failed.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a source.
pub(crate) enum Source {
    Postgres(PostgresSource),
    Mysql(MysqlSource),
}

/// The statements are the same but for the placeholders and what the two call alike.
macro_rules! both {
    ($source:expr, $of:pat => $call:expr) => {
        in_time(async {
            match $source {
                Source::Postgres($of) => $call.await,
                Source::Mysql($of) => $call.await,
            }
        })
        .await
    };
}

impl Source {
    pub(crate) async fn connect(config: &SourceConfig) -> SourceResult<Source> {
        let connect = async {
            match Database::of_url(&config.url) {
                Some(Database::Postgres) => Ok(Source::Postgres(PostgresSource::connect(config).await?)),
                Some(Database::Mysql) => Ok(Source::Mysql(MysqlSource::connect(config).await?)),
                None => Err(SourceError::Url("it begins with neither postgres:// nor mysql://".into())),
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connect).await.unwrap_or(Err(SourceError::TimedOut))
    }

    /// Begins to follow: whoever has followed until now is told by [`Source::keep`].
    pub(crate) async fn claim(&mut self, owner: &str) -> SourceResult<()> {
        both!(self, source => source.claim(owner))
    }

    /// Commits a change of this reader's own. Call between reading rows and taking them: see the crate's page.
    ///
    /// # Errors
    /// [`SourceError::Displaced`]: another reader has begun.
    pub(crate) async fn keep(&mut self, owner: &str) -> SourceResult<()> {
        match both!(self, source => source.keep(owner))? {
            true => Ok(()),
            false => Err(SourceError::Displaced),
        }
    }

    /// Rows that wait and whose conversation waits for nobody's decision, in the order of their numbers: a page at most.
    pub(crate) async fn read(&mut self, after: i64) -> SourceResult<Vec<Row>> {
        both!(self, source => source.read(after))
    }

    /// Rows that wait right behind these, which are finished: so many of each.
    pub(crate) async fn read_next(&mut self, behind: &[Place], each: usize) -> SourceResult<Vec<Row>> {
        if behind.is_empty() {
            return Ok(Vec::new());
        }
        both!(self, source => source.read_next(behind, each as i64))
    }

    /// Writes back what became of rows.
    pub(crate) async fn finish(&mut self, outcomes: &[Outcome]) -> SourceResult<()> {
        if outcomes.is_empty() {
            return Ok(());
        }
        both!(self, source => source.finish(outcomes))
    }

    pub(crate) async fn counts(&mut self) -> SourceResult<Counts> {
        both!(self, source => source.counts())
    }

    /// Removes rows that were finished longer ago than this. Answers whether there may be more.
    pub(crate) async fn remove_old(&mut self, keep: Duration) -> SourceResult<bool> {
        let seconds = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX);
        let removed = both!(self, source => source.remove_old(seconds, REMOVED_ROWS))?;
        Ok(removed >= REMOVED_ROWS as u64)
    }

    /// Waits for rows, at most until the next time that they are to be asked for.
    pub(crate) async fn wait(&mut self) {
        match self {
            Source::Postgres(source) => source.wait().await,
            Source::Mysql(source) => source.wait().await,
        }
    }
}

async fn in_time<T>(work: impl Future<Output = SourceResult<T>>) -> SourceResult<T> {
    tokio::time::timeout(STATEMENT_TIMEOUT, work).await.unwrap_or(Err(SourceError::TimedOut))
}
