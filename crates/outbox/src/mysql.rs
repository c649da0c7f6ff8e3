//! An outbox in MariaDB or MySQL.

use crate::{
    database::{COUNTED_MAX, Counts, PAGE_ROWS, REFUSED_SHOWN, SourceConfig, SourceError, SourceResult, statement},
    row::{Before, Outcome, Place, Row},
};
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts, prelude::Queryable};
use serde::Serialize;
use std::time::Duration;
use tidings_protocol::http::RefusedOutboxRow;

/// Each statement sees what is committed by then, and locks nothing between rows, where the app's transactions insert.
const SESSION_ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
const SESSION_TIMES: &str = "SET SESSION innodb_lock_wait_timeout = 10, time_zone = '+00:00'";
const CLAIM: &str = "UPDATE tidings_outbox_reader SET owner = ?, beat = beat + 1";
const KEEP: &str = "UPDATE tidings_outbox_reader SET beat = beat + 1 WHERE owner = ?";
const READ: &str = "SELECT o.id, o.`key`, o.operation, o.conversation, o.place, o.request, \
        (SELECT p.state FROM tidings_outbox p WHERE p.conversation = o.conversation AND p.place = o.place - 1) \
    FROM tidings_outbox o WHERE o.state = 'waiting' AND o.id > ? \
        AND NOT EXISTS (SELECT 1 FROM tidings_outbox r WHERE r.state = 'refused' AND r.conversation = o.conversation) \
    ORDER BY o.id LIMIT ?";
const READ_NEXT: &str = "SELECT o.id, o.`key`, o.operation, o.conversation, o.place, o.request, \
        (SELECT p.state FROM tidings_outbox p WHERE p.conversation = o.conversation AND p.place = o.place - 1) \
    FROM JSON_TABLE(?, '$[*]' COLUMNS (conversation VARCHAR(160) CHARACTER SET utf8mb4 PATH '$.conversation', \
        place BIGINT PATH '$.place')) AS f \
    STRAIGHT_JOIN tidings_outbox o FORCE INDEX (tidings_outbox_place) \
        ON o.conversation = f.conversation AND o.place > f.place AND o.place <= f.place + ? AND o.state = 'waiting'";
/// By the primary key, row by row: another index would have it wait for the locks of the app's transactions that are under way.
const FINISH: &str = "UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$.id', \
        state VARCHAR(8) PATH '$.state', result LONGTEXT CHARACTER SET utf8mb4 PATH '$.result', \
        code VARCHAR(64) PATH '$.code', detail TEXT CHARACTER SET utf8mb4 PATH '$.detail')) AS f \
    STRAIGHT_JOIN tidings_outbox o FORCE INDEX (PRIMARY) ON o.id = f.id \
    SET o.state = f.state, o.result = f.result, o.code = f.code, o.detail = f.detail, o.finished_at = UTC_TIMESTAMP(3) \
    WHERE o.state = 'waiting'";
const COUNTS: &str = "SELECT \
    (SELECT COUNT(*) FROM (SELECT 1 FROM tidings_outbox WHERE state = 'waiting' LIMIT ?) AS w), \
    (SELECT COUNT(*) FROM (SELECT 1 FROM tidings_outbox WHERE state = 'refused' LIMIT ?) AS r), \
    (SELECT TIMESTAMPDIFF(MICROSECOND, o.created_at, UTC_TIMESTAMP(3)) DIV 1000 FROM tidings_outbox o WHERE o.state = 'waiting' \
        AND NOT EXISTS (SELECT 1 FROM tidings_outbox r WHERE r.state = 'refused' AND r.conversation = o.conversation) \
        ORDER BY o.id LIMIT 1)";
const REFUSED: &str = "SELECT id, operation, conversation, code, detail, \
        CAST(UNIX_TIMESTAMP(finished_at) * 1000 AS SIGNED) FROM tidings_outbox WHERE state = 'refused' ORDER BY id LIMIT ?";
const REMOVE_OLD: &str = "DELETE FROM tidings_outbox WHERE state = ? AND finished_at < UTC_TIMESTAMP(3) - INTERVAL ? SECOND \
    ORDER BY finished_at LIMIT ?";

type ReadRow = (i64, String, String, Option<String>, Option<i64>, String, Option<String>);
type RefusedRow = (i64, String, Option<String>, Option<String>, Option<String>, Option<i64>);

pub(crate) struct MysqlSource {
    connection: Conn,
    config: SourceConfig,
}

/// An outcome as [`FINISH`] reads it.
#[derive(Serialize)]
struct Finished<'a> {
    id: i64,
    state: &'a str,
    result: Option<&'a str>,
    code: Option<&'a str>,
    detail: Option<String>,
}

impl MysqlSource {
    pub(crate) async fn connect(config: &SourceConfig) -> SourceResult<MysqlSource> {
        let url = match config.url.strip_prefix("mariadb://") {
            Some(rest) => format!("mysql://{rest}"),
            None => config.url.clone(),
        };
        // The driver's error may quote a part of the url.
        let options = Opts::from_url(&url).map_err(|_| {
            SourceError::Url(
                "it is not of the form mysql://user:password@host:3306/database, or has an unknown parameter".into(),
            )
        })?;
        let tls = options.ssl_opts().cloned().map(|tls| match &config.tls_ca_file {
            Some(file) => tls.with_root_certs(vec![file.clone().into()]).with_disable_built_in_roots(true),
            None => SslOpts::default(),
        });
        let connection = Conn::new(OptsBuilder::from_opts(options).ssl_opts(tls)).await?;
        let mut source = MysqlSource { connection, config: config.clone() };
        source.connection.query_drop(SESSION_ISOLATION).await?;
        source.connection.query_drop(SESSION_TIMES).await?;
        Ok(source)
    }

    fn sql(&self, sql: &str) -> String {
        statement(&self.config, sql)
    }

    pub(crate) async fn claim(&mut self, owner: &str) -> SourceResult<()> {
        Ok(self.connection.exec_drop(self.sql(CLAIM), (owner,)).await?)
    }

    pub(crate) async fn keep(&mut self, owner: &str) -> SourceResult<bool> {
        self.connection.exec_drop(self.sql(KEEP), (owner,)).await?;
        Ok(self.connection.affected_rows() == 1)
    }

    pub(crate) async fn read(&mut self, after: i64) -> SourceResult<Vec<Row>> {
        let rows: Vec<ReadRow> = self.connection.exec(self.sql(READ), (after, PAGE_ROWS)).await?;
        Ok(rows.into_iter().map(waiting_row).collect())
    }

    pub(crate) async fn read_next(&mut self, behind: &[Place], each: i64) -> SourceResult<Vec<Row>> {
        let behind = serde_json::to_string(behind).unwrap_or_default();
        let rows: Vec<ReadRow> = self.connection.exec(self.sql(READ_NEXT), (behind, each)).await?;
        Ok(rows.into_iter().map(waiting_row).collect())
    }

    pub(crate) async fn finish(&mut self, outcomes: &[Outcome]) -> SourceResult<()> {
        let finished = outcomes.iter().map(|outcome| Finished {
            id: outcome.id,
            state: outcome.state(),
            result: outcome.result.as_deref().ok(),
            code: outcome.code(),
            detail: outcome.detail(),
        });
        let finished = serde_json::to_string(&finished.collect::<Vec<_>>()).unwrap_or_default();
        Ok(self.connection.exec_drop(self.sql(FINISH), (finished,)).await?)
    }

    pub(crate) async fn counts(&mut self) -> SourceResult<Counts> {
        let counts: Option<(i64, i64, Option<i64>)> =
            self.connection.exec_first(self.sql(COUNTS), (COUNTED_MAX, COUNTED_MAX)).await?;
        let (waiting, refused, lag_ms) = counts.unwrap_or_default();
        let refused_rows: Vec<RefusedRow> = self.connection.exec(self.sql(REFUSED), (REFUSED_SHOWN,)).await?;
        let shown = |(id, operation, conversation, code, detail, at): RefusedRow| RefusedOutboxRow {
            id,
            operation,
            conversation,
            code: code.unwrap_or_default(),
            detail: detail.unwrap_or_default(),
            at: at.and_then(|at| u64::try_from(at).ok()).unwrap_or_default(),
        };
        let refused_rows = refused_rows.into_iter().map(shown).collect();
        Ok(Counts { waiting, refused, lag_ms: lag_ms.unwrap_or_default(), refused_rows })
    }

    pub(crate) async fn remove_old(&mut self, seconds: i64, rows: i64) -> SourceResult<u64> {
        let mut removed = 0;
        for state in ["done", "skipped"] {
            self.connection.exec_drop(self.sql(REMOVE_OLD), (state, seconds, rows)).await?;
            removed += self.connection.affected_rows();
        }
        Ok(removed)
    }

    pub(crate) async fn wait(&self) {
        let poll: Duration = self.config.poll;
        tokio::time::sleep(poll).await;
    }
}

/// A row of [`READ`] or [`READ_NEXT`].
fn waiting_row((id, key, operation, conversation, place, request, before): ReadRow) -> Row {
    Row {
        id,
        key,
        operation,
        place: conversation.zip(place).map(|(conversation, place)| Place { conversation, place }),
        before: Before::of_state(before.as_deref()),
        request,
    }
}
