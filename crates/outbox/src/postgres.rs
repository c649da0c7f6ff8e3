//! An outbox in PostgreSQL.

use crate::{
    database::{COUNTED_MAX, Counts, PAGE_ROWS, REFUSED_SHOWN, SourceConfig, SourceError, SourceResult, statement},
    row::{Before, Outcome, Place, Row},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{future::poll_fn, path::Path, str::FromStr, sync::Arc, time::Duration};
use tidings_protocol::http::RefusedOutboxRow;
use tokio::{sync::Notify, task::JoinHandle};
use tokio_postgres::{AsyncMessage, Client, Config, Statement, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// A notification may be lost, behind a pooler for example: the table is looked at this often all the same.
const POLL: Duration = Duration::from_secs(1);
/// How long bytes may go unacknowledged until the connection counts as broken.
const TCP_SILENCE_MAX: Duration = Duration::from_secs(8);

/// The planner has no statistics of a table that was empty a minute ago. A commit that is not on the disk proves nothing about others.
const SESSION: &str = "SET enable_seqscan = off; SET jit = off; SET statement_timeout = '30s'; SET lock_timeout = '10s'; \
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; \
    LISTEN tidings_outbox";
const CLAIM: &str = "UPDATE tidings_outbox_reader SET owner = $1, beat = beat + 1";
const KEEP: &str = "UPDATE tidings_outbox_reader SET beat = beat + 1 WHERE owner = $1";
const READ: &str = "SELECT o.id, o.key::text, o.operation, o.conversation, o.place, o.request::text, \
        (SELECT p.state FROM tidings_outbox p WHERE p.conversation = o.conversation AND p.place = o.place - 1) \
    FROM tidings_outbox o WHERE o.state = 'waiting' AND o.id > $1 \
        AND NOT EXISTS (SELECT 1 FROM tidings_outbox r WHERE r.state = 'refused' AND r.conversation = o.conversation) \
    ORDER BY o.id LIMIT $2";
const READ_NEXT: &str = "SELECT o.id, o.key::text, o.operation, o.conversation, o.place, o.request::text, \
        (SELECT p.state FROM tidings_outbox p WHERE p.conversation = o.conversation AND p.place = o.place - 1) \
    FROM unnest($1::text[], $2::bigint[]) AS f (conversation, place) JOIN tidings_outbox o \
        ON o.conversation = f.conversation AND o.place > f.place AND o.place <= f.place + $3 AND o.state = 'waiting'";
const FINISH: &str = "UPDATE tidings_outbox o SET state = f.state, result = f.result::json, code = f.code, detail = f.detail, \
        finished_at = clock_timestamp() \
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) AS f (id, state, result, code, detail) \
    WHERE o.id = f.id AND o.state = 'waiting'";
const COUNTS: &str = "SELECT \
    (SELECT count(*) FROM (SELECT 1 FROM tidings_outbox WHERE state = 'waiting' LIMIT $1) AS w), \
    (SELECT count(*) FROM (SELECT 1 FROM tidings_outbox WHERE state = 'refused' LIMIT $1) AS r), \
    (SELECT (extract(epoch FROM clock_timestamp() - o.created_at) * 1000)::bigint FROM tidings_outbox o WHERE o.state = 'waiting' \
        AND NOT EXISTS (SELECT 1 FROM tidings_outbox r WHERE r.state = 'refused' AND r.conversation = o.conversation) \
        ORDER BY o.id LIMIT 1)";
const REFUSED: &str = "SELECT id, operation, conversation, code, detail, \
        (extract(epoch FROM finished_at) * 1000)::bigint FROM tidings_outbox WHERE state = 'refused' ORDER BY id LIMIT $1";
const REMOVE_OLD: &str = "DELETE FROM tidings_outbox WHERE id IN (SELECT id FROM tidings_outbox \
    WHERE state IN ('done', 'skipped') AND finished_at < clock_timestamp() - make_interval(secs => $1::bigint) \
    ORDER BY finished_at LIMIT $2)";

pub(crate) struct PostgresSource {
    client: Client,
    statements: Statements,
    /// Notified of rows, and of the connection's end.
    wake: Arc<Notify>,
    driver: JoinHandle<()>,
}

struct Statements {
    claim: Statement,
    keep: Statement,
    read: Statement,
    read_next: Statement,
    finish: Statement,
    counts: Statement,
    refused: Statement,
    remove_old: Statement,
}

impl Drop for PostgresSource {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl PostgresSource {
    pub(crate) async fn connect(config: &SourceConfig) -> SourceResult<PostgresSource> {
        // The driver's error quotes nothing of the url.
        let mut options = Config::from_str(&config.url).map_err(|error| SourceError::Url(error.to_string()))?;
        let tls = tls_of(&mut options, config.tls_ca_file.as_deref())?;
        let silence_max = TCP_SILENCE_MAX;
        options.tcp_user_timeout(silence_max).keepalives_idle(silence_max / 2).keepalives_interval(silence_max / 4);
        if options.get_application_name().is_none() {
            options.application_name("tidings-outbox");
        }
        let (client, mut connection) = options.connect(tls).await?;
        let wake = Arc::new(Notify::new());
        let woken = wake.clone();
        let driver = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if matches!(message, AsyncMessage::Notification(_)) {
                    woken.notify_one();
                }
            }
            woken.notify_one();
        });
        client.batch_execute(&statement(config, SESSION)).await?;
        let prepare = async |sql| client.prepare(&statement(config, sql)).await;
        let statements = Statements {
            claim: prepare(CLAIM).await?,
            keep: prepare(KEEP).await?,
            read: prepare(READ).await?,
            read_next: prepare(READ_NEXT).await?,
            finish: prepare(FINISH).await?,
            counts: prepare(COUNTS).await?,
            refused: prepare(REFUSED).await?,
            remove_old: prepare(REMOVE_OLD).await?,
        };
        Ok(PostgresSource { client, statements, wake, driver })
    }

    pub(crate) async fn claim(&self, owner: &str) -> SourceResult<()> {
        self.client.execute(&self.statements.claim, &[&owner]).await?;
        Ok(())
    }

    pub(crate) async fn keep(&self, owner: &str) -> SourceResult<bool> {
        Ok(self.client.execute(&self.statements.keep, &[&owner]).await? == 1)
    }

    pub(crate) async fn read(&self, after: i64) -> SourceResult<Vec<Row>> {
        let rows = self.client.query(&self.statements.read, &[&after, &(PAGE_ROWS as i64)]).await?;
        Ok(rows.into_iter().map(waiting_row).collect::<Result<_, _>>()?)
    }

    pub(crate) async fn read_next(&self, behind: &[Place], each: i64) -> SourceResult<Vec<Row>> {
        let conversations: Vec<&str> = behind.iter().map(|place| place.conversation.as_str()).collect();
        let places: Vec<i64> = behind.iter().map(|place| place.place).collect();
        let rows = self.client.query(&self.statements.read_next, &[&conversations, &places, &each]).await?;
        Ok(rows.into_iter().map(waiting_row).collect::<Result<_, _>>()?)
    }

    pub(crate) async fn finish(&self, outcomes: &[Outcome]) -> SourceResult<()> {
        let ids: Vec<i64> = outcomes.iter().map(|outcome| outcome.id).collect();
        let states: Vec<&str> = outcomes.iter().map(Outcome::state).collect();
        let results: Vec<Option<&str>> = outcomes.iter().map(|outcome| outcome.result.as_deref().ok()).collect();
        let codes: Vec<Option<&str>> = outcomes.iter().map(Outcome::code).collect();
        let details: Vec<Option<String>> = outcomes.iter().map(Outcome::detail).collect();
        self.client.execute(&self.statements.finish, &[&ids, &states, &results, &codes, &details]).await?;
        Ok(())
    }

    pub(crate) async fn counts(&self) -> SourceResult<Counts> {
        let counts = self.client.query_one(&self.statements.counts, &[&COUNTED_MAX]).await?;
        let refused = self.client.query(&self.statements.refused, &[&REFUSED_SHOWN]).await?;
        let shown = |row: tokio_postgres::Row| -> Result<RefusedOutboxRow, tokio_postgres::Error> {
            Ok(RefusedOutboxRow {
                id: row.try_get(0)?,
                operation: row.try_get(1)?,
                conversation: row.try_get(2)?,
                code: row.try_get::<_, Option<String>>(3)?.unwrap_or_default(),
                detail: row.try_get::<_, Option<String>>(4)?.unwrap_or_default(),
                at: row.try_get::<_, Option<i64>>(5)?.and_then(|at| u64::try_from(at).ok()).unwrap_or_default(),
            })
        };
        Ok(Counts {
            waiting: counts.try_get(0)?,
            refused: counts.try_get(1)?,
            lag_ms: counts.try_get::<_, Option<i64>>(2)?.unwrap_or_default(),
            refused_rows: refused.into_iter().map(shown).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) async fn remove_old(&self, seconds: i64, rows: i64) -> SourceResult<u64> {
        Ok(self.client.execute(&self.statements.remove_old, &[&seconds, &rows]).await?)
    }

    pub(crate) async fn wait(&self) {
        let _ = tokio::time::timeout(POLL, self.wake.notified()).await;
    }
}

/// A row of [`READ`] or [`READ_NEXT`].
fn waiting_row(row: tokio_postgres::Row) -> Result<Row, tokio_postgres::Error> {
    let conversation: Option<String> = row.try_get(3)?;
    let place: Option<i64> = row.try_get(4)?;
    Ok(Row {
        id: row.try_get(0)?,
        key: row.try_get(1)?,
        operation: row.try_get(2)?,
        place: conversation.zip(place).map(|(conversation, place)| Place { conversation, place }),
        before: Before::of_state(row.try_get(6)?),
        request: row.try_get(5)?,
    })
}

/// A connection is either plain or encrypted with a verified certificate, as that of the store is.
fn tls_of(options: &mut Config, ca_file: Option<&Path>) -> SourceResult<MakeRustlsConnect> {
    let mut roots = RootCertStore::empty();
    if options.get_ssl_mode() == SslMode::Require {
        roots = trusted_roots(ca_file).map_err(SourceError::Tls)?;
    } else {
        options.ssl_mode(SslMode::Disable);
    }
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| SourceError::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(client))
}

fn trusted_roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => {
            for certificate in CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())? {
                let certificate = certificate.map_err(|error| error.to_string())?;
                roots.add(certificate).map_err(|error| error.to_string())?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    if roots.is_empty() { Err("there are none".into()) } else { Ok(roots) }
}
