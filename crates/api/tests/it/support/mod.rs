//! A real server on a free port with a store in memory, for the tests of the HTTP API.
#![allow(unreachable_pub)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};
use tidings_api::{
    Api, ApiConfig, OnlineBackup, SessionGateway,
    auth::{ApiKeys, TokenVerifier},
    listener::{Listener, ListenerConfig, StopHandle},
    request_service::RequestService,
};
use tidings_client::{http::HttpClient, token::sign};
use tidings_domain::{
    clock::{Clock, SystemClock},
    store::Store,
};
use tidings_engine::{
    Engine, EngineParts, access::TokenClaims, config::EngineConfig, presence::compare::SessionSource,
};
use tidings_gateway::{BodyFraming, MaybeTlsSocket, SessionConfig, SessionServer, VerifyToken};
use tidings_listen::{ClientAddress, OutboundBudget, OutboundBudgetConfig, Throttle, throttle::ThrottleConfig};
use tidings_notifications::{
    NotificationParts, Notifications,
    webhook::{Webhook, WebhookDelivery, WebhookError},
    webhook_push::WebhookPushConfig,
};
use tidings_popups::PopupsConfig;
use tidings_protocol::{error::Refusal, event_stream::StreamPost, http::Problem};
use tidings_push::Register;
use tidings_testkit::{ManualClock, MemoryStore};
use tokio::sync::oneshot;

/// How long anything that must happen may take on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Longer than any test takes: a test that is not about a time-out must not run into one.
const FOREVER: Duration = Duration::from_secs(86_400);

/// A free port.
pub const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub const API_KEY: &str = "the-key-of-the-app";
pub const TOKEN_KEY: &str = "the secret that the app signs with";

pub struct Server {
    pub address: SocketAddr,
    pub engine: Arc<Engine>,
    pub notifications: Arc<Notifications>,
    pub service: RequestService,
    /// The time by which failed authentications are counted.
    pub throttle_clock: Arc<ManualClock>,
    stop: Option<StopHandle>,
    /// The handles of further listeners.
    stops: Vec<StopHandle>,
    session_server: Arc<SessionServer>,
    runtime: tokio::runtime::Runtime,
}

struct SessionServerAdapter(Arc<SessionServer>);

impl SessionGateway for SessionServerAdapter {
    fn adopt(&self, socket: MaybeTlsSocket, already_read: Vec<u8>, client: ClientAddress) {
        self.0.adopt(socket, tidings_gateway::Protocol::WebSocket, already_read, client);
    }

    fn adopt_stream(&self, socket: MaybeTlsSocket, is_chunked: bool, bind: Vec<u8>, client: ClientAddress) {
        let framing = if is_chunked { BodyFraming::Chunked } else { BodyFraming::UntilClose };
        self.0.adopt(socket, tidings_gateway::Protocol::EventStream(framing), bind, client);
    }

    fn post(&self, post: StreamPost) -> oneshot::Receiver<Result<u64, Refusal>> {
        self.0.post(post)
    }

    fn truth(&self) -> Arc<dyn SessionSource> {
        self.0.clone()
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }
}

struct SessionTokens(Arc<TokenVerifier>);

impl VerifyToken for SessionTokens {
    fn verify(&self, token: &str) -> Result<TokenClaims, Refusal> {
        self.0.verify(token)
    }
}

/// A webhook that accepts every event.
struct TakesAll;

impl Webhook for TakesAll {
    fn deliver(&self, _: &WebhookDelivery) -> Result<(), WebhookError> {
        Ok(())
    }
}

struct NoBackup;

impl OnlineBackup for NoBackup {
    fn back_up(&self, folder: &std::path::Path) -> Result<u64, String> {
        assert!(folder.starts_with("/backups"));
        Ok(42)
    }
}

/// What a server is made of.
pub struct ServerParts {
    pub config: ApiConfig,
    pub engine: EngineConfig,
    pub throttle: Option<ThrottleConfig>,
    pub outbound: Arc<OutboundBudget>,
    pub clock: Arc<dyn Clock>,
    pub store: Arc<dyn Store>,
}

impl Default for ServerParts {
    fn default() -> Self {
        ServerParts {
            config: ApiConfig { backup_dir: Some("/backups".into()), ..ApiConfig::default() },
            engine: EngineConfig::default(),
            throttle: None,
            outbound: OutboundBudget::new(OutboundBudgetConfig::default()),
            clock: Arc::new(WithinAnHour),
            store: Arc::new(MemoryStore::default()),
        }
    }
}

impl Server {
    pub fn start() -> Self {
        Server::with(ApiConfig { backup_dir: Some("/backups".into()), ..ApiConfig::default() })
    }

    pub fn with(config: ApiConfig) -> Self {
        Server::of(config, EngineConfig::default(), None)
    }

    /// With settings of its own, and failed authentications counted by address if there is a throttle.
    pub fn of(config: ApiConfig, engine: EngineConfig, throttle: Option<ThrottleConfig>) -> Self {
        Server::with_budget(config, engine, throttle, OutboundBudget::new(OutboundBudgetConfig::default()))
    }

    /// The same with this memory for unread responses.
    pub fn with_budget(
        config: ApiConfig,
        engine: EngineConfig,
        throttle: Option<ThrottleConfig>,
        outbound: Arc<OutboundBudget>,
    ) -> Self {
        let parts = ServerParts { config, engine, throttle, outbound, ..ServerParts::default() };
        Server::of_parts(parts)
    }

    /// With all parts of its own.
    pub fn of_parts(parts: ServerParts) -> Self {
        let ServerParts { config, engine, throttle, outbound, clock, store } = parts;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let guard = runtime.enter();
        let sessions = SessionConfig {
            shards: 1,
            bind_timeout: FOREVER,
            heartbeat: FOREVER,
            probe_after: FOREVER,
            ..SessionConfig::default()
        };
        let (prepared, wakes) = SessionServer::prepare(sessions).unwrap();
        let (engine, receivers) = Engine::start(EngineParts {
            config: EngineConfig {
                shards: 1,
                commit_time_max: FOREVER,
                popups: PopupsConfig { undurable_max: FOREVER, ..PopupsConfig::default() },
                ..engine
            },
            clock,
            store,
            wakes,
            cluster: None,
        });
        let webhook = Some((Arc::new(TakesAll) as Arc<dyn Webhook>, WebhookPushConfig::default()));
        let parts = NotificationParts { webhook, ..NotificationParts::default() };
        let notifications = Notifications::start(&engine, parts);
        // Popups are read from the store by a thread of their own.
        engine.popups.flush().unwrap();
        let tokens = Arc::new(TokenVerifier::new(Some(TOKEN_KEY), None).unwrap());
        let session_tokens = Arc::new(SessionTokens(tokens.clone()));
        let session_server = prepared.start(engine.clone(), notifications.clone(), receivers, session_tokens).unwrap();
        let keys = ApiKeys::new([API_KEY.to_owned(), "a-second-key".to_owned()]);
        let sessions = Arc::new(SessionServerAdapter(session_server.clone()));
        let api =
            Api::new(engine.clone(), notifications.clone(), keys, tokens, sessions, Some(Arc::new(NoBackup)), config);
        let api = api.with_outbound_budget(outbound);
        let throttle_clock = Arc::new(ManualClock::default());
        let api = match throttle {
            Some(config) => api.with_throttle(Arc::new(Throttle::new(config, throttle_clock.clone()))),
            None => api,
        };
        let service = RequestService::new(Arc::new(api));
        let listener = Listener::bind(ListenerConfig::open(LOCAL), service.clone()).unwrap();
        let address = listener.address();
        let stop = Some(listener.start());
        drop(guard);
        Server {
            address,
            engine,
            notifications,
            service,
            throttle_clock,
            stop,
            stops: Vec::new(),
            session_server,
            runtime,
        }
    }

    /// Opens another listener, and returns its address.
    pub fn listen(&mut self, config: ListenerConfig, service: RequestService) -> SocketAddr {
        let _guard = self.runtime.enter();
        let listener = Listener::bind(config, service).unwrap();
        let address = listener.address();
        self.stops.push(listener.start());
        address
    }

    /// Opens another listener, which accepts only once this has connected: what the client has sent by then is there at once.
    pub fn listen_once_connected<T>(&mut self, connect: impl FnOnce(SocketAddr) -> T) -> T {
        let _guard = self.runtime.enter();
        let listener = Listener::bind(ListenerConfig::open(LOCAL), self.service.clone()).unwrap();
        let connected = connect(listener.address());
        self.stops.push(listener.start());
        connected
    }

    /// A client with the API key.
    pub fn app(&self) -> HttpClient {
        HttpClient::new(self.address, API_KEY)
    }

    pub fn with_credential(&self, credential: &str) -> HttpClient {
        HttpClient::new(self.address, credential)
    }

    /// A client with a user's token.
    pub fn user(&self, user: &str) -> HttpClient {
        HttpClient::new(self.address, token(user))
    }

    /// Users alice, bob, carol; a group `g` of alice (its owner) and bob.
    pub fn with_people(self) -> Self {
        let mut app = self.app();
        let users = r#"{"users":[{"id":"alice","name":"Alice"},{"id":"bob"},{"id":"carol"}]}"#;
        check(&mut app, "PUT", "/v1/users", users, 200, r#"{"created":3,"updated":0}"#);
        let group = r#"{"id":"g","kind":"group","name":"G","owner":"alice","members":["bob"]}"#;
        expect_status(&mut app, "POST", "/v1/conversations", group, 201);
        self
    }

    /// Binds a device, which leaves at once.
    pub fn register(&self, user: &str, device_id: &str) {
        let register = Register {
            shard: 0,
            session: u64::MAX,
            user: self.engine.directory.require_user(user).unwrap().no,
            device_id: device_id.into(),
            device_kind: "phone".into(),
            app_version: None,
            since: 0,
        };
        self.engine.push.register(register).unwrap();
        self.engine.push.settle().unwrap();
    }

    /// Writes raw bytes and returns what comes back until the server closes or is silent.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may close before everything is written, which a test may expect.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        loop {
            match stream.read(&mut part) {
                Ok(0) | Err(_) => return String::from_utf8_lossy(&answer).into_owned(),
                Ok(count) => answer.extend_from_slice(&part[..count]),
            }
        }
    }

    /// Stops the listener; returns whether all its connections ended in time.
    pub fn finish(&mut self) -> bool {
        let stop = self.stop.take().unwrap();
        self.runtime.block_on(stop.finish(PATIENCE))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for stop in self.stops.drain(..).chain(self.stop.take()) {
            self.runtime.block_on(stop.finish(Duration::from_secs(10)));
        }
        self.runtime.block_on(self.session_server.drain(Duration::from_secs(1)));
        self.service.api().stored_keys.stop();
        self.notifications.stop();
        self.engine.stop();
    }
}

/// The system's clock, set back to the beginning of its hour: no test reaches the next hour, whose counts would be separate.
struct WithinAnHour;

impl Clock for WithinAnHour {
    fn now_ms(&self) -> u64 {
        const HOUR_MS: u64 = 60 * 60 * 1_000;
        static PUT_BACK_MS: LazyLock<u64> = LazyLock::new(|| SystemClock.now_ms() % HOUR_MS);
        let put_back_ms = *PUT_BACK_MS;
        SystemClock.now_ms() - put_back_ms
    }

    fn monotonic(&self) -> Instant {
        SystemClock.monotonic()
    }
}

pub fn now_ms() -> u64 {
    WithinAnHour.now_ms()
}

pub fn token(user: &str) -> String {
    sign(TOKEN_KEY, user, Duration::from_secs(24 * 60 * 60))
}

/// Checks that the OpenAPI description allows this status for this operation. Paths that are no operation are not checked.
#[track_caller]
fn check_described(method: &str, path: &str, status: u16) {
    static DESCRIPTION: LazyLock<serde_json::Value> =
        LazyLock::new(|| serde_json::to_value(tidings_api::routes::openapi()).unwrap());
    let asked: Vec<&str> = path.split('?').next().unwrap().split('/').collect();
    let is_asked = |named: &str| {
        let named: Vec<&str> = named.split('/').collect();
        named.len() == asked.len()
            && named.iter().zip(&asked).all(|(named, asked)| named.starts_with('{') || named == asked)
    };
    let paths = DESCRIPTION["paths"].as_object().unwrap();
    // Literal paths first: `popups/decide` before `popups/{popup}`.
    let item = paths.iter().filter(|(named, _)| is_asked(named)).max_by_key(|(named, _)| !named.contains('{'));
    let Some(operation) = item.and_then(|(_, item)| item.get(method.to_lowercase())) else { return };
    let described = operation["responses"].as_object().unwrap();
    assert!(described.contains_key(&status.to_string()), "{method} {path}: {status} is not described");
}

/// Sends a request, checks the status, and returns the body verbatim.
#[track_caller]
pub fn check(http: &mut HttpClient, method: &str, path: &str, body: &str, status: u16, answer: &str) {
    assert_eq!(expect_status(http, method, path, body, status), answer, "{method} {path}");
}

/// Sends a request, checks the status, and returns the body.
#[track_caller]
pub fn expect_status(http: &mut HttpClient, method: &str, path: &str, body: &str, status: u16) -> String {
    let answer = http.exchange(method, path, body.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, status, "{method} {path}: {text}");
    check_described(method, path, status);
    text
}

/// Sends a request that must be refused with this code, and with a detail that contains `names`.
#[track_caller]
pub fn check_refused(http: &mut HttpClient, method: &str, path: &str, body: &str, code: &str, names: &str) -> Problem {
    let answer = http.exchange(method, path, body.as_bytes()).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    let problem: Problem = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{method} {path}: {e}: {text}"));
    assert_eq!(problem.code.as_str(), code, "{method} {path}: {text}");
    assert_eq!((problem.status, answer.status), (problem.code.http_status(), problem.code.http_status()));
    check_described(method, path, answer.status);
    assert_eq!(problem.problem_type, format!("urn:tidings:error:{code}"));
    assert!(problem.detail.contains(names), "{method} {path}: {:?} does not name {names:?}", problem.detail);
    problem
}
