//! The HTTP door: JSON for app servers and for what apps read outside their connection.
//!
//! ```text
//! accept ─▶ connection ─▶ Door ─┬─ POST /v1/messages: straight to the engine
//!                               ├─ GET /v1/connect: 101, then the socket leaves for the gateway
//!                               └─ everything else: the router
//! ```
//! It turns requests into calls of the engine and refusals into problem details. It decides nothing:
//! who may do what is the engine's to say, and what becomes of a WebSocket is the gateway's.
//!
//! In reading order: [`Api`] (what handlers share), [`auth`] (who is calling), [`extract`] (what they ask),
//! [`problem`] (how no is said), [`routes`] (the operations), [`connect`] (the way out to a WebSocket),
//! [`door`] (one request), [`listener`] (connections, and how they end), `entrance` (what comes before HTTP on one),
//! [`forward`] (what another node does), `express` (a way past all that for the one question that is asked most).

pub mod auth;
pub mod connect;
pub mod door;
mod entrance;
mod express;
pub mod extract;
pub mod forward;
pub mod listener;
pub mod problem;
pub mod routes;
mod stream;

use crate::{
    auth::{ApiKeys, Tokens},
    forward::Forwarder,
};
use axum::http::{HeaderMap, header};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tidings_engine::{Engine, engine::Actor, presence::compare::SessionTruth};
use tidings_listen::Carrier;
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::Semaphore;

/// Where a connection goes once it has become a WebSocket.
pub trait Sessions: Send + Sync + 'static {
    /// Takes the connection and what was read beyond the request; closes it when there is no room.
    fn adopt(&self, carrier: Carrier, already_read: Vec<u8>);

    /// What sessions there are, by those who hold their connections.
    fn truth(&self) -> Arc<dyn SessionTruth>;

    /// Whether there is room now: who would find none is told so before the upgrade.
    fn has_room(&self) -> bool;
}

/// Copies the data folder while it is in use.
pub trait BackUp: Send + Sync + 'static {
    /// Writes a consistent copy to a folder that does not exist yet; answers with its size in bytes.
    fn back_up(&self, folder: &std::path::Path) -> Result<u64, String>;
}

/// Reads from the store that run at once, of those that [`ApiConfig::reads_max`] lets in; the others wait for their turn.
pub const READS_RUNNING: usize = 16;
/// Lists of users are up to 80 MB, held while they are read.
const UPLOADS_MAX: usize = 2;

/// Settings of the door.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Open HTTP connections; one that became a WebSocket counts no more. Full: 503 and closed.
    pub connections_max: usize,
    /// Reads that run at once. Full: refused with `queue_full`.
    pub reads_max: usize,
    /// Where backups may be written. Absent: none are made on request.
    pub backup_dir: Option<PathBuf>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        ApiConfig { connections_max: 20_000, reads_max: 256, backup_dir: None }
    }
}

/// What all handlers share.
pub struct Api {
    pub engine: Arc<Engine>,
    pub keys: ApiKeys,
    pub tokens: Arc<Tokens>,
    pub sessions: Arc<dyn Sessions>,
    pub backup: Option<Arc<dyn BackUp>>,
    pub config: ApiConfig,
    /// Open HTTP connections.
    pub(crate) connections: Arc<AtomicUsize>,
    reads: Arc<Semaphore>,
    reading: Arc<Semaphore>,
    /// Lists of users, which are large, that are taken at once. Full: refused with `queue_full`.
    pub(crate) uploads: Semaphore,
    /// Absent: this node does all itself.
    forwarder: Option<Arc<Forwarder>>,
}

impl Api {
    pub fn new(
        engine: Arc<Engine>,
        keys: ApiKeys,
        tokens: Arc<Tokens>,
        sessions: Arc<dyn Sessions>,
        backup: Option<Arc<dyn BackUp>>,
        config: ApiConfig,
    ) -> Self {
        let [reads, reading] = [config.reads_max, READS_RUNNING].map(|places| Arc::new(Semaphore::new(places)));
        let forwarder = Forwarder::of(&engine).map(Arc::new);
        let (uploads, connections) = (Semaphore::new(UPLOADS_MAX), Arc::default());
        Api { engine, keys, tokens, sessions, backup, config, connections, reads, reading, uploads, forwarder }
    }

    /// Who is calling, by the `Authorization` header.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Actor, Refusal> {
        self.authenticate_header(headers.get(header::AUTHORIZATION).map(|credential| credential.as_bytes()))
    }

    /// The same, by the header's value.
    pub(crate) fn authenticate_header(&self, credential: Option<&[u8]>) -> Result<Actor, Refusal> {
        let credential = credential.ok_or_else(|| unauthorized("an API key or a token"))?;
        let credential = std::str::from_utf8(credential).map_err(|_| unauthorized("a header that is text"))?;
        let secret = credential
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, secret)| secret.trim())
            .ok_or_else(|| unauthorized("the scheme Bearer"))?;
        if self.keys.contain(secret) {
            return Ok(Actor::App);
        }
        let user = self.tokens.verify(secret)?;
        Ok(Actor::User(self.engine.directory.require_user(&user)?))
    }

    /// Runs a read on a thread that may wait for the disk.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Arc<Engine>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let Ok(place) = self.reads.clone().try_acquire_owned() else {
            let detail = format!("reads at once are limited to {}", self.config.reads_max);
            return Err(Refusal::new(ErrorCode::QueueFull, detail).retry_after(1_000));
        };
        let turn = self.reading.clone().acquire_owned().await.map_err(|closed| internal(&closed))?;
        run(self.engine.clone(), move |engine| {
            // A caller who goes away does not end what was begun: its places are taken until it has ended.
            let _held = (place, turn);
            read(engine)
        })
        .await
    }

    /// The metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.engine.refresh_gauges();
        let reads_running = self.config.reads_max - self.reads.available_permits();
        self.engine.metrics.queue("http_reads", reads_running, self.config.reads_max);
        let connections = self.connections.load(Ordering::Relaxed);
        self.engine.metrics.queue("http_connections", connections, self.config.connections_max);
        self.engine.metrics.render()
    }
}

async fn run<T: Send + 'static>(
    engine: Arc<Engine>,
    read: impl FnOnce(&Arc<Engine>) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(move || read(&engine)).await {
        Ok(result) => result,
        Err(error) => Err(internal(&error)),
    }
}

fn unauthorized(needs: &str) -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, format!("the Authorization header needs {needs}"))
}

/// A defect of ours. The log has the cause, the caller only a reference to find it by.
pub(crate) fn internal(cause: &dyn std::fmt::Display) -> Refusal {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let reference = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    tracing::error!(reference, cause = %cause, "a request met a defect");
    Refusal::new(ErrorCode::Internal, format!("a defect of the server; its log has it as reference={reference}"))
}
