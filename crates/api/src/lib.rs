//! The HTTP API: JSON for app servers, and for apps beside their connection.
//!
//! ```text
//! accept ─▶ connection ─▶ RequestService ─┬─ POST /v1/messages: straight to the engine
//!                                         ├─ GET /v1/connect: 101, then the socket goes to the gateway
//!                                         ├─ GET /v1/stream: 200, then the socket goes to the gateway
//!                                         └─ everything else: the router
//! ```
//! This crate turns requests into calls of the engine, of push and of popups, and refusals into problem details. It decides
//! nothing: the engine says who may do what, and the gateway serves the WebSockets.
//!
//! In reading order: [`Api`] (what handlers share), [`auth`] (who is calling), [`api_keys`] (keys that are made over HTTP, and which
//! operation needs which scope), [`extract`] (a request's parts, strictly read),
//! [`problem`] (refusals as responses), [`routes`] (the operations), [`websocket_upgrade`] (the handshake of a WebSocket), `handover` (from HTTP to a session),
//! [`request_service`] (one request), `bodies` (request bodies within a memory budget), `bulk_turns` (large ones beside short ones), [`cors`] (which origins may call from a browser),
//! [`listener`] (connections from accept to close), `connection_setup` (PROXY header and TLS before HTTP), [`metrics`] (what is
//! measured) and [`exposition`] (its text formats), `connection_stream` (the stream under HTTP, and how it is closed),
//! `parse_error_responses` (problem details for what is no request), [`forward`] (requests for the leader), `pipelines` (what is forwarded most, many at once on a connection), `fast_path`
//! (what is asked most, without router and HTTP library), [`InternalRequests`] (requests without a connection), `audit` (who changed what), `page_files` (the pages that are compiled in), [`chat_page`]
//! (the page at `/` in development mode), `console` (the page at `/console`).

pub mod api_keys;
mod archive_stream;
mod audit;
pub mod auth;
mod bodies;
mod body_reclaim;
mod bulk_turns;
pub mod chat_page;
mod connection_setup;
mod connection_stream;
mod console;
pub mod cors;
pub mod exposition;
pub mod extract;
mod fast_path;
pub mod forward;
mod handover;
mod internal_requests;
pub mod listener;
pub mod metrics;
mod page_files;
mod page_stream;
mod parse_error_responses;
mod pipelines;
pub mod problem;
pub mod request_service;
pub mod routes;
mod unread_responses;
pub mod websocket_upgrade;

pub use internal_requests::InternalRequests;

use crate::{
    api_keys::{
        CallingKey, StoredKeys,
        permissions::{self, OperationName},
    },
    auth::{ApiKeys, NODE_ITSELF, NODE_SCOPES, TokenVerifier},
    bodies::BodyBudget,
    bulk_turns::BulkTurns,
    chat_page::ChatPage,
    cors::Cors,
    forward::Forwarder,
    metrics::HttpMetrics,
    routes::SettingView,
};
use axum::http::{HeaderMap, header};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tidings_domain::model::Actor;
use tidings_engine::{
    Engine,
    access::{Caller, Operation},
    presence::compare::SessionSource,
};
use tidings_listen::{
    Client, ClientAddress, ConnectionActivity, ConnectionSlots, ConnectionSlotsConfig, MaybeTlsSocket, OutboundBudget,
    OutboundBudgetConfig, Throttle, ThrottleKey,
};
use tidings_notifications::Notifications;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::StreamPost,
    http::OutboxSources,
};
use tokio::sync::{Semaphore, oneshot};

/// The gateway, as this crate sees it: it takes over connections that have become sessions.
pub trait SessionGateway: Send + Sync + 'static {
    /// Takes over the connection, with the bytes that were read beyond the request. Closes it when the gateway is full.
    fn adopt(&self, socket: MaybeTlsSocket, already_read: Vec<u8>, client: ClientAddress);

    /// Takes over a connection whose response is an event stream; the head is written. `bind` is the session's first frame, as a line.
    fn adopt_stream(&self, socket: MaybeTlsSocket, is_chunked: bool, bind: Vec<u8>, client: ClientAddress);

    /// Hands frames to the session of an event stream. Answers the number of the newest request that the session has taken.
    fn post(&self, post: StreamPost) -> oneshot::Receiver<Result<u64, Refusal>>;

    /// The sessions whose connections this process and its gateways hold.
    fn truth(&self) -> Arc<dyn SessionSource>;

    /// Whether the gateway has room for one more connection; without room the upgrade is refused.
    fn has_room(&self) -> bool;
}

/// Copies the data folder while it is in use.
pub trait OnlineBackup: Send + Sync + 'static {
    /// Writes a consistent copy to a folder that does not exist yet. Returns the copy's size in bytes.
    ///
    /// # Errors
    /// The copy could not be written; the text says why.
    fn back_up(&self, folder: &std::path::Path) -> Result<u64, String>;
}

/// The readers of outboxes, as this crate sees them.
pub trait OutboxView: Send + Sync + 'static {
    /// How each source fares.
    fn sources(&self) -> OutboxSources;
}

/// Reads from the store that run at once. Further ones wait, up to [`ApiConfig::reads_max`].
pub const CONCURRENT_READS_MAX: usize = 16;
/// Uploads of lists of users at once: each is up to 80 MiB, held in memory while it is read.
const UPLOADS_MAX: usize = 2;

/// Connections beyond the limit, on which only health, metrics and requests with an API key are answered: operators need those most when
/// the server is full, and app servers must not be shut out by users.
pub const CONNECTIONS_RESERVED: usize = 32;

/// Settings of the HTTP API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// Open HTTP connections; one that became a WebSocket or an event stream no longer counts. Full: the longest idle connection without an accepted
    /// credential is closed for the next, or else that of a user's token; without such a connection the next gets 503 and is closed, unless it
    /// shows an API key.
    pub connections_max: usize,
    /// Of these, connections of one address (IPv6: of one /64); 0: half of them, and all for this machine itself. Full: as above, among
    /// that address's own.
    pub connections_per_address_max: usize,
    /// Of these, connections of one user, by token; 0: an eighth of them. Above: the user's own idle connections are closed, and requests
    /// on further ones are refused with `rate_limited`.
    pub connections_per_user_max: usize,
    /// How long a connection without an API key may be idle before it can be closed for another.
    pub idle_min: Duration,
    /// Memory for all request bodies that are being read, in bytes. Full: refused with `queue_full`.
    pub body_bytes_max: usize,
    /// Reads that wait or run at once. Full: refused with `queue_full`.
    pub reads_max: usize,
    /// Where backups may be written. Absent: no backup is made on request.
    pub backup_dir: Option<PathBuf>,
    /// The origins whose pages may call from a browser. Absent: none.
    pub cors: Option<Cors>,
    /// Whether requests of popups and handshakes of WebSockets are answered before the HTTP library. Off: to measure what that gives.
    pub fast_path: bool,
}

impl Default for ApiConfig {
    fn default() -> Self {
        ApiConfig {
            connections_max: 20_000,
            connections_per_address_max: 0,
            connections_per_user_max: 0,
            idle_min: Duration::from_secs(1),
            body_bytes_max: 256 << 20,
            reads_max: 256,
            backup_dir: None,
            cors: None,
            fast_path: true,
        }
    }
}

impl ApiConfig {
    fn slots(&self) -> ConnectionSlotsConfig {
        let connections_max = self.connections_max;
        let (per_address_max, per_local_address_max) = match self.connections_per_address_max {
            // Connections from this machine are most likely a reverse proxy's, and not an attack.
            0 => (connections_max.div_ceil(2), connections_max),
            some => (some, some),
        };
        let per_user_max = match self.connections_per_user_max {
            0 => connections_max.div_ceil(8),
            some => some,
        };
        let (reserve, idle_min) = (CONNECTIONS_RESERVED, self.idle_min);
        ConnectionSlotsConfig {
            connections_max,
            per_address_max,
            per_local_address_max,
            per_user_max,
            reserve,
            idle_min,
        }
    }
}

/// The HTTP API: what all handlers share.
pub struct Api {
    pub engine: Arc<Engine>,
    pub notifications: Arc<Notifications>,
    pub keys: ApiKeys,
    pub stored_keys: Arc<StoredKeys>,
    pub tokens: Arc<TokenVerifier>,
    pub sessions: Arc<dyn SessionGateway>,
    pub backup: Option<Arc<dyn OnlineBackup>>,
    pub config: ApiConfig,
    /// The limit of connections, and who has them.
    pub(crate) slots: Arc<ConnectionSlots>,
    pub(crate) bodies: Arc<BodyBudget>,
    pub(crate) bulk: BulkTurns,
    /// The memory for responses that callers have not read, with all other connections of the process.
    pub(crate) outbound: Arc<OutboundBudget>,
    pub(crate) http_metrics: HttpMetrics,
    /// Counts failed authentications by address. Absent: they are not counted.
    pub(crate) throttle: Option<Arc<Throttle>>,
    /// Reads that wait or run.
    reads: Arc<Semaphore>,
    running_reads: Arc<Semaphore>,
    /// Uploads of lists of users, which are large. Full: refused with `queue_full`.
    pub(crate) uploads: Semaphore,
    /// Absent: this node is in no cluster and does everything itself.
    forwarder: Option<Arc<Forwarder>>,
    /// Present in development mode alone.
    pub(crate) chat_page: Option<Arc<ChatPage>>,
    /// Absent: there are none.
    pub(crate) outbox: Option<Arc<dyn OutboxView>>,
    /// The settings that the server runs with, as operators may see them.
    pub(crate) settings: Vec<SettingView>,
}

impl Api {
    pub fn new(
        engine: Arc<Engine>,
        notifications: Arc<Notifications>,
        keys: ApiKeys,
        tokens: Arc<TokenVerifier>,
        sessions: Arc<dyn SessionGateway>,
        backup: Option<Arc<dyn OnlineBackup>>,
        config: ApiConfig,
    ) -> Self {
        let [reads, running_reads] = [config.reads_max, CONCURRENT_READS_MAX].map(|max| Arc::new(Semaphore::new(max)));
        let forwarder = Forwarder::of(&engine).map(Arc::new);
        let (slots, bodies) = (ConnectionSlots::new(config.slots()), BodyBudget::new(config.body_bytes_max));
        let stored_keys = StoredKeys::start(&engine);
        let (uploads, http_metrics) = (Semaphore::new(UPLOADS_MAX), HttpMetrics::new());
        Api {
            engine,
            notifications,
            keys,
            stored_keys,
            tokens,
            sessions,
            backup,
            config,
            slots,
            bodies,
            bulk: BulkTurns::new(),
            outbound: OutboundBudget::new(OutboundBudgetConfig::default()),
            http_metrics,
            throttle: None,
            reads,
            running_reads,
            uploads,
            forwarder,
            chat_page: None,
            outbox: None,
            settings: Vec::new(),
        }
    }

    /// The same API that shows these settings to operators. They hold no secret.
    #[must_use]
    pub fn with_settings(mut self, settings: Vec<SettingView>) -> Self {
        self.settings = settings;
        self
    }

    /// The same API that counts failed authentications by address, and refuses addresses with too many of them for a while.
    #[must_use]
    pub fn with_throttle(mut self, throttle: Arc<Throttle>) -> Self {
        self.throttle = Some(throttle);
        self
    }

    /// The same API whose unread responses count against this budget.
    #[must_use]
    pub fn with_outbound_budget(mut self, budget: Arc<OutboundBudget>) -> Self {
        self.outbound = budget;
        self
    }

    /// The same API that shows these outboxes.
    #[must_use]
    pub fn with_outbox(mut self, outbox: Arc<dyn OutboxView>) -> Self {
        self.outbox = Some(outbox);
        self
    }

    /// The same API that serves the chat page at `/`. In development mode alone: whoever reaches the page acts as its users.
    #[must_use]
    pub fn with_chat_page(mut self, page: ChatPage) -> Self {
        self.chat_page = Some(Arc::new(page));
        self
    }

    /// The caller that the `Authorization` header names, if an API key with which it calls allows the operation. The connection of the
    /// request is the caller's from here on.
    ///
    /// # Errors
    /// `unauthorized` or `token_expired`, `forbidden` if the key lacks the scope, `not_found` if the token's user does not exist, or
    /// `rate_limited` if the user has too many connections.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        asked: OperationName<'_>,
        activity: Option<&ConnectionActivity>,
    ) -> Result<Caller, Refusal> {
        self.authenticate_header(credential_of(headers), asked, activity)
    }

    /// The same, if the caller's token may do this.
    pub(crate) fn authenticate_for(
        &self,
        headers: &HeaderMap,
        asked: OperationName<'_>,
        operation: Operation,
        activity: Option<&ConnectionActivity>,
    ) -> Result<Caller, Refusal> {
        let caller = self.authenticate(headers, asked, activity)?;
        caller.scopes.check(operation)?;
        Ok(caller)
    }

    /// The same from the header's value.
    pub(crate) fn authenticate_header(
        &self,
        credential: Option<&[u8]>,
        asked: OperationName<'_>,
        activity: Option<&ConnectionActivity>,
    ) -> Result<Caller, Refusal> {
        let identity = self.identify(credential, activity)?;
        match &identity {
            Identity::StoredKey(key) => permissions::check(&key.scopes, asked)?,
            Identity::Node => permissions::check(&NODE_SCOPES, asked)?,
            Identity::ConfiguredKey | Identity::User(_) => {}
        }
        Ok(identity.caller())
    }

    /// The caller of a request that another node answers, which checks what the caller may do.
    ///
    /// # Errors
    /// As [`Api::authenticate`], but for `forbidden`.
    pub(crate) fn check_credential(
        &self,
        credential: Option<&[u8]>,
        activity: Option<&ConnectionActivity>,
    ) -> Result<Actor, Refusal> {
        self.identify(credential, activity).map(|identity| identity.caller().actor)
    }

    /// The API key with which an operation of keys is called, if it allows that.
    ///
    /// # Errors
    /// As [`Api::authenticate`]; `forbidden` for a user's token.
    pub(crate) fn authenticate_key(
        &self,
        headers: &HeaderMap,
        asked: OperationName<'_>,
        activity: Option<&ConnectionActivity>,
    ) -> Result<Arc<CallingKey>, Refusal> {
        let key = self.identify(credential_of(headers), activity)?.key().ok_or_else(needs_key)?;
        permissions::check(&key.scopes, asked)?;
        Ok(key)
    }

    /// Whose credential it is. The connection is the caller's from here on.
    fn identify(&self, credential: Option<&[u8]>, activity: Option<&ConnectionActivity>) -> Result<Identity, Refusal> {
        let credential = credential.ok_or_else(|| unauthorized("an API key or a token"))?;
        let secret = bearer(credential)?;
        let (identity, client) = if let Some(key) = self.key_identity(secret)? {
            (key, Client::AppServer)
        } else {
            let claims = self.tokens.verify(secret)?;
            // Another node calls for its users, whom it holds to their shares, or for itself.
            let is_by_node = claims.signed_by_node;
            if is_by_node && claims.user == NODE_ITSELF {
                (Identity::Node, Client::AppServer)
            } else {
                let user = self.engine.directory.require_user(&claims.user)?;
                claims.check_user(&user, self.engine.clock.now_ms())?;
                let client = if is_by_node { Client::AppServer } else { Client::User(user.no.0) };
                (Identity::User(Caller { actor: Actor::User(user), scopes: claims.scopes }), client)
            }
        };
        if activity.is_none_or(|activity| activity.set_client(client)) {
            Ok(identity)
        } else {
            let why = "this user has as many HTTP connections as one user may, and all are busy";
            Err(Refusal::new(ErrorCode::RateLimited, why).retry_after(1_000))
        }
    }

    /// Whose API key it is; `None`: it is none, but perhaps a token.
    fn key_identity(&self, secret: &str) -> Result<Option<Identity>, Refusal> {
        if self.keys.contain(secret) {
            return Ok(Some(Identity::ConfiguredKey));
        }
        Ok(self.stored_keys.find(secret)?.map(Identity::StoredKey))
    }

    /// The API key of an `Authorization` header; `None`: it has none that is valid.
    pub(crate) fn key_of(&self, headers: &HeaderMap) -> Option<Arc<CallingKey>> {
        let secret = bearer(credential_of(headers)?).ok()?;
        self.key_identity(secret).ok().flatten()?.key()
    }

    /// Whether this is a key of the settings: such a key neither expires nor is revoked while the process runs.
    pub(crate) fn is_configured_key(&self, credential: &[u8]) -> bool {
        bearer(credential).is_ok_and(|secret| self.keys.contain(secret))
    }

    /// Whether this is an API key that is let in whatever else happens.
    pub(crate) fn is_unguessable_key(&self, credential: Option<&[u8]>) -> bool {
        let secret = credential.and_then(|credential| bearer(credential).ok());
        secret.is_some_and(|secret| {
            self.keys.contain_unguessable(secret) || matches!(self.stored_keys.find(secret), Ok(Some(_)))
        })
    }

    /// Refuses a caller from an address with too many failed authentications. Tokens are always verified, since nobody guesses
    /// a signature: users who share an address with an attacker keep their sessions. So are API keys that nobody guesses: an app
    /// server works on behind the address from which somebody tries keys. All other credentials are refused unseen, so that keys
    /// that can be guessed are not guessed any faster.
    pub(crate) fn check_throttle(&self, throttle_key: ThrottleKey, credential: Option<&[u8]>) -> Result<(), Refusal> {
        let wait_ms = self.throttle.as_ref().and_then(|throttle| throttle.wait_ms(throttle_key));
        let (Some(wait_ms), Some(credential)) = (wait_ms, credential) else { return Ok(()) };
        if looks_like_token(credential) || self.is_unguessable_key(Some(credential)) {
            Ok(())
        } else {
            Err(too_many_failures(wait_ms))
        }
    }

    /// Counts a failed authentication. Returns a refusal if the address has too many.
    pub(crate) fn count_auth_failure(&self, throttle_key: ThrottleKey) -> Option<Refusal> {
        self.throttle.as_ref().and_then(|throttle| throttle.count_failure(throttle_key)).map(too_many_failures)
    }

    /// Counts a refusal if it is a failed authentication. Returns the refusal for the caller: this one, or that the address has
    /// too many.
    pub(crate) fn count_if_auth_failure(&self, throttle_key: ThrottleKey, refusal: Refusal) -> Refusal {
        let is_failure = refusal.code == ErrorCode::Unauthorized;
        is_failure.then(|| self.count_auth_failure(throttle_key)).flatten().unwrap_or(refusal)
    }

    /// Runs a read on a thread that may wait for the disk.
    ///
    /// # Errors
    /// `queue_full` if too many reads wait, or the error of the read.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Arc<Engine>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.read_of(self.engine.clone(), read).await
    }

    /// The same of notifications.
    pub async fn read_notifications<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Arc<Notifications>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.read_of(self.notifications.clone(), read).await
    }

    /// The same of API keys, and their changes.
    pub(crate) async fn with_keys<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Arc<StoredKeys>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.read_of(self.stored_keys.clone(), call).await
    }

    async fn read_of<H: Send + 'static, T: Send + 'static>(
        &self,
        handle: H,
        read: impl FnOnce(&H) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let Ok(slot) = self.reads.clone().try_acquire_owned() else {
            let detail = format!("reads at once are limited to {}", self.config.reads_max);
            return Err(Refusal::new(ErrorCode::QueueFull, detail).retry_after(1_000));
        };
        let turn = self.running_reads.clone().acquire_owned().await.map_err(|closed| internal(&closed))?;
        run(handle, move |handle| {
            // The read goes on when its caller goes away, so the read itself holds the permits.
            let _held = (slot, turn);
            read(handle)
        })
        .await
    }

    /// The metrics as OpenMetrics text.
    pub fn metrics(&self) -> String {
        self.engine.refresh_gauges();
        let reads_running = self.config.reads_max - self.reads.available_permits();
        self.engine.metrics.set_queue("http_reads", reads_running, self.config.reads_max);
        self.engine.metrics.set_queue("http_connections", self.slots.open(), self.slots.connections_max());
        self.engine.metrics.set_queue("http_body_bytes", self.bodies.held(), self.bodies.most());
        self.engine.metrics.set_queue("outbound_bytes", self.outbound.held(), self.outbound.bytes_max());
        self.http_metrics.render(&self.engine.metrics, &self.slots)
    }
}

/// Whose credential a request shows.
enum Identity {
    ConfiguredKey,
    StoredKey(Arc<CallingKey>),
    /// Another node of the cluster, which calls for itself.
    Node,
    User(Caller),
}

impl Identity {
    fn caller(self) -> Caller {
        match self {
            Identity::ConfiguredKey | Identity::StoredKey(_) | Identity::Node => Caller::APP,
            Identity::User(caller) => caller,
        }
    }

    fn key(self) -> Option<Arc<CallingKey>> {
        match self {
            Identity::ConfiguredKey => Some(Arc::new(CallingKey::configured())),
            Identity::StoredKey(key) => Some(key),
            Identity::Node | Identity::User(_) => None,
        }
    }
}

fn credential_of(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION).map(|credential| credential.as_bytes())
}

/// The refusal of a user's token where an API key is needed.
pub(crate) fn needs_key() -> Refusal {
    Refusal::new(ErrorCode::Forbidden, "this operation needs an API key, not a user's token")
}

async fn run<H: Send + 'static, T: Send + 'static>(
    handle: H,
    read: impl FnOnce(&H) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(move || read(&handle)).await {
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

/// Whether a credential has the three parts of a token.
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

/// The refusal for a defect of the server. The cause goes to the log; the caller gets only a reference to find it there.
pub(crate) fn internal(cause: &dyn std::fmt::Display) -> Refusal {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let reference = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    tracing::error!(reference, cause = %cause, "a request met a defect");
    Refusal::new(ErrorCode::Internal, format!("a defect of the server; its log has it as reference={reference}"))
}
