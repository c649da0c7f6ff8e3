//! The outbox: requests that the app's own transactions have written into the app's own database, so that a message exists if and only if
//! the transaction has committed.
//!
//! ```text
//! app ── BEGIN … tidings_send(…) … COMMIT ──▶ tidings_outbox ◀── read, write back ── reader ── AppServerRequests ──▶ the server
//! ```
//! The node that leads has one reader for each database. A row goes in as the same request of an app server over HTTP does, which is
//! behind the port [`AppServerRequests`]; this crate knows neither HTTP nor what becomes of a message.
//!
//! # Once
//! A row's `key` is the request's own id (`client_msg_id`, `client_push_id`): a row that is stored again after a crash, or by the next leader,
//! answers with the first result.
//!
//! # In order
//! `tidings_send` locks the row of the conversation until its transaction ends, and numbers what it writes: 1, 2, 3. So the rows of a
//! conversation commit in the order of their places, without a hole, and whoever sees a row can see all that are before it. A reader takes
//! a row once the one before it is finished.
//!
//! # If committed
//! A database may show rows of a transaction before they are safe on its disk. A reader commits a change of its own after it has read
//! rows, and before it takes any: what was committed before is then as safe as that. The same change fails if another reader has begun
//! meanwhile.
//!
//! In reading order: [`row`] (a row, and the request that it is), [`sql`] (the tables and functions), [`database`] (what the
//! databases have in common), [`source`] (what a reader asks one: [`postgres`], [`mysql`]), [`turns`] (which rows may be taken), [`walk`] (from where rows are read), [`reader`] (the loop).

mod database;
mod mysql;
mod postgres;
mod reader;
mod row;
mod source;
pub mod sql;
mod turns;
mod walk;

pub use database::{Database, SourceConfig};
pub use row::{OutboxOperation, OutboxRequest};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use reader::Reader;
use std::{sync::Arc, time::Duration};
use tidings_domain::{leadership::Leadership, metrics::Metrics};
use tidings_protocol::{
    error::Refusal,
    http::{OutboxSource, OutboxSources},
};
use tokio::{sync::watch, task::JoinSet, time::timeout};

/// Where rows go: the requests of app servers.
pub trait AppServerRequests: Send + Sync + 'static {
    /// Does what an app server's request with this body would do, for an app server with this API key. Answers the response's body.
    fn call<'a>(&'a self, api_key: &'a str, request: OutboxRequest) -> BoxFuture<'a, Result<String, Refusal>>;
}

/// What [`Outbox::start`] needs.
pub struct OutboxParts {
    pub leadership: Leadership,
    pub metrics: Arc<Metrics>,
    pub requests: Arc<dyn AppServerRequests>,
}

/// How each source fares, for all who ask.
#[derive(Clone, Default)]
pub struct OutboxBoard(Vec<Arc<Mutex<OutboxSource>>>);

impl OutboxBoard {
    /// Before anybody follows them.
    pub fn of(sources: &[SourceConfig]) -> OutboxBoard {
        OutboxBoard(sources.iter().map(|source| Arc::new(Mutex::new(OutboxSource::waiting(&source.name)))).collect())
    }

    /// All sources, in the order of the settings.
    pub fn sources(&self) -> OutboxSources {
        OutboxSources { sources: self.0.iter().map(|source| source.lock().clone()).collect() }
    }
}

/// The readers of all sources.
pub struct Outbox {
    stop: watch::Sender<bool>,
    /// Ended when it is dropped.
    readers: JoinSet<()>,
}

impl Outbox {
    /// Follows the sources while this node leads. `board` is of the same sources. Call within a runtime.
    pub fn start(parts: OutboxParts, sources: Vec<SourceConfig>, board: &OutboxBoard) -> Outbox {
        // Err: a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (stop, stopping) = watch::channel(false);
        let parts = Arc::new(parts);
        let reader = |(config, status): (SourceConfig, &Arc<Mutex<OutboxSource>>)| {
            Reader::new(parts.clone(), config, status.clone(), stopping.clone()).run()
        };
        let readers = sources.into_iter().zip(&board.0).map(reader).collect();
        Outbox { stop, readers }
    }

    /// Waits for the rows that are being stored, for so long at most, and ends the readers.
    pub async fn stop(self, deadline: Duration) {
        let _ = self.stop.send(true);
        let _ = timeout(deadline, self.readers.join_all()).await;
    }
}
