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
//! [`door`] (one request), `bodies` (what it brings, within bounds), [`cors`] (which pages may ask), [`listener`] (connections, and how
//! they end), `entrance` (what comes before HTTP on one), [`figures`] (what is measured), [`exposition`] (in the format asked for),
//! `read_ahead` (the stream under HTTP, and how it is closed), `unparsed` (what is no request at all), [`forward`] (what another node
//! does), `express` (a way past all that
//! for the one question that is asked most).

pub mod auth;
mod bodies;
pub mod connect;
pub mod cors;
pub mod door;
mod entrance;
pub mod exposition;
mod express;
pub mod extract;
pub mod figures;
pub mod forward;
mod lent;
pub mod listener;
pub mod problem;
mod read_ahead;
pub mod routes;
mod stream;
mod unparsed;

use crate::{
    auth::{ApiKeys, Tokens},
    bodies::Bodies,
    cors::Cors,
    figures::Figures,
    forward::Forwarder,
};
use axum::http::{HeaderMap, header};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tidings_engine::{
    Engine,
    engine::Actor,
    pass::{Caller, Scope},
    presence::compare::SessionTruth,
};
use tidings_listen::{Carrier, Origin, Places, PlacesConfig, Throttle};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::Semaphore;

/// Where a connection goes once it has become a WebSocket.
pub trait Sessions: Send + Sync + 'static {
    /// Takes the connection and what was read beyond the request; closes it when there is no room.
    fn adopt(&self, carrier: Carrier, already_read: Vec<u8>, origin: Origin);

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

/// Connections beyond the limit, on which only health and metrics are asked for: they must be seen when it matters.
pub const CONNECTIONS_RESERVED: usize = 32;

/// Settings of the door.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Open HTTP connections; one that became a WebSocket counts no more. Full: the oldest that is idle and has shown no credential
    /// gives way; without one 503 and closed.
    pub connections_max: usize,
    /// Of these, those of one address (of IPv6: one /64); 0: half of them, and all for this machine's own. Full: as above, among its own.
    pub connections_per_address_max: usize,
    /// A connection that has shown no credential may be idle for so long before it gives way to another.
    pub stranger_idle_min: Duration,
    /// What all request bodies that are being read hold in memory, in bytes. Full: refused with `queue_full`.
    pub body_bytes_max: usize,
    /// Reads that run at once. Full: refused with `queue_full`.
    pub reads_max: usize,
    /// Where backups may be written. Absent: none are made on request.
    pub backup_dir: Option<PathBuf>,
    /// Whose pages may call from a browser. Absent: nobody's.
    pub cors: Option<Cors>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        ApiConfig {
            connections_max: 20_000,
            connections_per_address_max: 0,
            stranger_idle_min: Duration::from_secs(1),
            body_bytes_max: 256 << 20,
            reads_max: 256,
            backup_dir: None,
            cors: None,
        }
    }
}

impl ApiConfig {
    fn places(&self) -> PlacesConfig {
        let most = self.connections_max;
        let (of_one_address, of_this_machine) = match self.connections_per_address_max {
            // What comes from this machine is a reverse proxy, most likely, and not an attack.
            0 => (most.div_ceil(2), most),
            some => (some, some),
        };
        let (reserve, idle_min) = (CONNECTIONS_RESERVED, self.stranger_idle_min);
        PlacesConfig { most, of_one_address, of_this_machine, reserve, idle_min }
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
    /// Those of connections.
    pub(crate) places: Arc<Places>,
    pub(crate) bodies: Arc<Bodies>,
    pub(crate) figures: Figures,
    /// Failed authentications by address. Absent: they are not counted.
    pub(crate) throttle: Option<Arc<Throttle>>,
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
        let (places, bodies) = (Places::new(config.places()), Bodies::new(config.body_bytes_max));
        let (uploads, figures) = (Semaphore::new(UPLOADS_MAX), Figures::new());
        Api {
            engine,
            keys,
            tokens,
            sessions,
            backup,
            config,
            places,
            bodies,
            figures,
            throttle: None,
            reads,
            reading,
            uploads,
            forwarder,
        }
    }

    /// Counts failed authentications by address, and has addresses with too many of them wait.
    #[must_use]
    pub fn throttled(mut self, throttle: Arc<Throttle>) -> Self {
        self.throttle = Some(throttle);
        self
    }

    /// Who is calling, by the `Authorization` header.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        self.authenticate_header(headers.get(header::AUTHORIZATION).map(|credential| credential.as_bytes()))
    }

    /// The same for what needs a scope.
    pub(crate) fn authenticate_for(&self, headers: &HeaderMap, scope: Scope) -> Result<Caller, Refusal> {
        let caller = self.authenticate(headers)?;
        caller.scopes.check(scope)?;
        Ok(caller)
    }

    /// The same, by the header's value.
    pub(crate) fn authenticate_header(&self, credential: Option<&[u8]>) -> Result<Caller, Refusal> {
        let credential = credential.ok_or_else(|| unauthorized("an API key or a token"))?;
        let secret = bearer(credential)?;
        if self.keys.contain(secret) {
            return Ok(Caller::APP);
        }
        let pass = self.tokens.verify(secret)?;
        let user = self.engine.directory.require_user(&pass.user)?;
        pass.check_revoked(&user)?;
        Ok(Caller { actor: Actor::User(user), scopes: pass.scopes })
    }

    /// Refuses who has guessed too often. A token is no guess: it is looked at whoever brings it, so that those who share
    /// an address with somebody who guesses keep their sessions.
    pub(crate) fn check_origin(&self, origin: Origin, credential: Option<&[u8]>) -> Result<(), Refusal> {
        let wait_ms = self.throttle.as_ref().and_then(|throttle| throttle.wait_ms(origin));
        match wait_ms.filter(|_| credential.is_some_and(|credential| !looks_like_token(credential))) {
            Some(wait_ms) => Err(too_many_failures(wait_ms)),
            None => Ok(()),
        }
    }

    /// Counts a failure; answers with what the caller is told if there were too many.
    pub(crate) fn too_many_failures(&self, origin: Origin) -> Option<Refusal> {
        self.throttle.as_ref().and_then(|throttle| throttle.count_failure(origin)).map(too_many_failures)
    }

    /// Counts a refusal if it was for a credential that is not good. Answers with what the caller is told.
    pub(crate) fn count_failure(&self, origin: Origin, refusal: Refusal) -> Refusal {
        let is_failure = refusal.code == ErrorCode::Unauthorized;
        is_failure.then(|| self.too_many_failures(origin)).flatten().unwrap_or(refusal)
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

    /// The metrics as OpenMetrics text.
    pub fn metrics(&self) -> String {
        self.engine.refresh_gauges();
        let reads_running = self.config.reads_max - self.reads.available_permits();
        self.engine.metrics.queue("http_reads", reads_running, self.config.reads_max);
        self.engine.metrics.queue("http_connections", self.places.taken(), self.places.most());
        self.engine.metrics.queue("http_body_bytes", self.bodies.held(), self.bodies.most());
        self.figures.render(&self.engine.metrics, &self.places)
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

/// The secret of an `Authorization` header.
fn bearer(credential: &[u8]) -> Result<&str, Refusal> {
    let credential = std::str::from_utf8(credential).map_err(|_| unauthorized("a header that is text"))?;
    credential
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, secret)| secret.trim())
        .ok_or_else(|| unauthorized("the scheme Bearer"))
}

/// Whether it has the three parts of a token.
fn looks_like_token(credential: &[u8]) -> bool {
    credential.iter().filter(|byte| **byte == b'.').count() == 2
}

fn too_many_failures(wait_ms: u64) -> Refusal {
    let why = "too many credentials from this address were not good; wait before the next";
    Refusal::new(ErrorCode::RateLimited, why).retry_after(wait_ms)
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
