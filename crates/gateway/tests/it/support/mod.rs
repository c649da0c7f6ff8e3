//! A complete server on a free port, with a store in memory, and sessions that check what they receive.
#![allow(unreachable_pub)]

pub mod gated_store;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_api::{
    Api, ApiConfig, SessionGateway,
    auth::{ApiKeys, NodeTokenSigner, TokenVerifier},
    listener::{Listener, ListenerConfig, StopHandle},
    request_service::RequestService,
};
use tidings_client::{
    ClientError,
    http::{HttpClient, HttpResponse},
    session::Session,
    token::sign,
};
use tidings_domain::{
    bus::Bus,
    clock::SystemClock,
    commit_log::{CommitLog, NodeDetails, NodeInfo},
    model::Actor,
    store::Store,
};
use tidings_engine::{
    Engine, EngineParts,
    access::TokenClaims,
    cluster::ClusterParts,
    config::EngineConfig,
    presence::{PresenceConfig, compare::SessionSource},
};
use tidings_gateway::{BodyFraming, MaybeTlsSocket, SessionConfig, SessionServer, VerifyToken};
use tidings_listen::{ClientAddress, Throttle, throttle::ThrottleConfig};
use tidings_notifications::{NotificationParts, Notifications, webhook::Webhook, webhook_push::WebhookPushConfig};
use tidings_popups::PopupsConfig;
use tidings_protocol::{
    entry::Entry,
    error::{ErrorCode, Refusal},
    event_stream::StreamPost,
    frames::{Attention, Bind, Bound, ClientFrame, Sent, ServerFrame},
    http::*,
};
use tidings_testkit::{LocalBus, MemoryStore};
use tokio::sync::oneshot;

pub const API_KEY: &str = "the-key-of-the-app";
pub const TOKEN_KEY: &str = "the secret that the app signs with";
/// How long an expected event may take on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub struct Server {
    pub address: SocketAddr,
    pub engine: Arc<Engine>,
    pub notifications: Arc<Notifications>,
    pub session_server: Arc<SessionServer>,
    pub runtime: tokio::runtime::Runtime,
    pub service: RequestService,
    stop: Option<StopHandle>,
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

/// Longer than any test takes on any machine: tests that are not about time-outs must not run into them.
pub const FOREVER: Duration = Duration::from_secs(86_400);

/// Blocking threads for the store, as many as a server has.
pub const BLOCKING_THREADS: usize = 32;

/// Two shards, so that a connection has to move to its user's.
pub fn session_config() -> SessionConfig {
    SessionConfig {
        shards: 2,
        heartbeat: FOREVER,
        probe_after: FOREVER,
        bind_timeout: FOREVER,
        closing_timeout: FOREVER,
        unbound_min: FOREVER,
        ..SessionConfig::default()
    }
}

impl Server {
    pub fn start() -> Self {
        Server::with(session_config(), Arc::new(MemoryStore::default()))
    }

    /// A node of a cluster on one store.
    pub fn node(name: &str, store: &Arc<MemoryStore>, bus: &LocalBus) -> Self {
        Server::node_on(name, store, store.clone(), Arc::new(bus.clone()), Duration::from_secs(10))
    }

    /// The same, with its connections to the other nodes.
    pub fn node_on(
        name: &str,
        store: &Arc<MemoryStore>,
        log: Arc<dyn CommitLog>,
        bus: Arc<dyn Bus>,
        lease: Duration,
    ) -> Self {
        Server::node_that_knows(NodeDetails::of_this_program(), name, store, log, bus, lease)
    }

    /// The same, of a version that knows these gates.
    pub fn node_that_knows(
        details: NodeDetails,
        name: &str,
        store: &Arc<MemoryStore>,
        log: Arc<dyn CommitLog>,
        bus: Arc<dyn Bus>,
        lease: Duration,
    ) -> Self {
        Server::node_that_balances(details, name, store, (log, bus), (lease, Duration::MAX))
    }

    /// The same, with the time after which functions move.
    pub fn node_that_balances(
        details: NodeDetails,
        name: &str,
        store: &Arc<MemoryStore>,
        (log, bus): (Arc<dyn CommitLog>, Arc<dyn Bus>),
        (lease, balance_after): (Duration, Duration),
    ) -> Self {
        let (address, link) = Default::default();
        let (version, roles) = ("1".into(), "all".into());
        let boot_id = rand::random();
        let node_info = NodeInfo { name: name.into(), boot_id, address, link, version, roles, details };
        let cluster = ClusterParts {
            log,
            bus,
            node: node_info,
            lease,
            may_lead: true,
            balance_after,
            recent_bytes_max: 1 << 20,
            fingerprints: Default::default(),
        };
        Server::of(session_config(), store.clone(), Some(cluster), None, EngineConfig::default())
    }

    /// A node of a cluster with a webhook.
    pub fn node_with_webhook(
        name: &str,
        sessions: SessionConfig,
        store: &Arc<MemoryStore>,
        bus: &LocalBus,
        webhook: Arc<dyn Webhook>,
    ) -> Self {
        let (address, link) = Default::default();
        let (version, roles) = ("1".into(), "all".into());
        let node_info = NodeInfo {
            name: name.into(),
            boot_id: rand::random(),
            address,
            link,
            version,
            roles,
            details: NodeDetails::of_this_program(),
        };
        let (log, bus, lease) = (store.clone(), Arc::new(bus.clone()), Duration::from_secs(10));
        let cluster = ClusterParts {
            log,
            bus,
            node: node_info,
            lease,
            may_lead: true,
            balance_after: Duration::MAX,
            recent_bytes_max: 1 << 20,
            fingerprints: Default::default(),
        };
        Server::of(sessions, store.clone(), Some(cluster), Some(webhook), EngineConfig::default())
    }

    pub fn with_webhook(sessions: SessionConfig, store: Arc<dyn Store>, webhook: Arc<dyn Webhook>) -> Self {
        Server::of(sessions, store, None, Some(webhook), EngineConfig::default())
    }

    pub fn with(sessions: SessionConfig, store: Arc<dyn Store>) -> Self {
        Server::with_engine(sessions, store, EngineConfig::default())
    }

    pub fn with_engine(sessions: SessionConfig, store: Arc<dyn Store>, engine: EngineConfig) -> Self {
        Server::of(sessions, store, None, None, engine)
    }

    fn of(
        sessions: SessionConfig,
        store: Arc<dyn Store>,
        cluster: Option<ClusterParts>,
        webhook: Option<Arc<dyn Webhook>>,
        engine: EngineConfig,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(BLOCKING_THREADS)
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.enter();
        let shards = sessions.shards;
        let (prepared, wakes) = SessionServer::prepare(sessions).unwrap();
        let (engine, receivers) = Engine::start(EngineParts {
            config: EngineConfig {
                shards,
                sessions_per_kind: 3,
                commit_time_max: FOREVER,
                popups: PopupsConfig { undurable_max: FOREVER, ..PopupsConfig::default() },
                presence: PresenceConfig { grace_ms: 50, ..PresenceConfig::default() },
                ..engine
            },
            clock: Arc::new(SystemClock),
            store,
            wakes,
            cluster,
        });
        let outbox = WebhookPushConfig { secret: "secret".into(), ..WebhookPushConfig::default() };
        let webhook = webhook.map(|webhook| (webhook, outbox));
        let parts = NotificationParts { webhook, ..NotificationParts::default() };
        let notifications = Notifications::start(&engine, parts);
        // A thread of their own reads popups from the store.
        if engine.cluster.is_none() {
            engine.popups.flush().unwrap();
        }
        let nodes = NodeTokenSigner::new("the secret of the nodes");
        let mut tokens = TokenVerifier::new(Some(TOKEN_KEY), None).unwrap();
        tokens.trust_nodes(&nodes);
        let tokens = Arc::new(tokens);
        let session_tokens = Arc::new(SessionTokens(tokens.clone()));
        let session_server = prepared.start(engine.clone(), notifications.clone(), receivers, session_tokens).unwrap();
        let keys = ApiKeys::new([API_KEY.to_owned()]);
        let doorway = Arc::new(SessionServerAdapter(session_server.clone()));
        let api = Api::new(engine.clone(), notifications.clone(), keys, tokens, doorway, None, ApiConfig::default());
        let api = api.with_throttle(Arc::new(Throttle::new(ThrottleConfig::default(), Arc::new(SystemClock))));
        api.connect_to_leaders(nodes);
        let service = RequestService::new(Arc::new(api));
        let open = ListenerConfig::open(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = Listener::bind(open, service.clone()).unwrap();
        let address = listener.address();
        let stop = Some(listener.start());
        if let Some(cluster) = &engine.cluster {
            cluster.nodes.announce_addresses(format!("http://{address}"), String::new());
        }
        drop(guard);
        Server { address, engine, notifications, session_server, runtime, service, stop }
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.handle().block_on(future)
    }

    pub fn app(&self) -> HttpClient {
        HttpClient::new(self.address, API_KEY)
    }

    pub fn users(&self, ids: &[&str]) {
        let users = ids.iter().map(|id| UserUpsert { id: (*id).into(), ..UserUpsert::default() }).collect();
        self.wait(self.engine.upsert_users(users)).unwrap();
    }

    /// A group or official account; the first member is its owner.
    pub fn conversation(&self, kind: ConversationKind, id: &str, members: &[&str]) {
        let new = CreateConversation {
            id: Some(id.into()),
            kind,
            name: None,
            avatar: None,
            attributes: None,
            owner: Some(members[0].into()),
            members: members[1..].iter().map(|m| (*m).into()).collect(),
            receipts: None,
            history: None,
            mention_all: None,
            blocks: None,
            reactions: None,
            posting: None,
            slow_mode_s: None,
            join_requests: None,
            expires: None,
        };
        self.wait(self.engine.create_conversation(&Actor::App, new)).unwrap();
    }

    pub fn group(&self, id: &str, members: &[&str]) {
        self.conversation(ConversationKind::Group, id, members);
    }

    /// Sends a message of a user through the engine; a direct conversation is opened when there is none.
    pub fn say(&self, from: &str, conversation: &str, text: &str) -> SendReceipt {
        self.wait(self.engine.send(&Actor::App, message_to(from, conversation, text))).unwrap()
    }

    pub fn change_members(&self, conversation: &str, add: &[&str], remove: &[&str]) {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let change = ChangeMembers { add: ids(add), remove: ids(remove), role: None };
        self.wait(self.engine.change_members(&Actor::App, conversation, change)).unwrap();
    }

    pub fn open(&self, user: &str, device: &str) -> Session {
        Session::open(self.address, &token(user), device, None).unwrap()
    }

    pub fn resume(&self, user: &str, device: &str, cursor: &str) -> Session {
        Session::open(self.address, &token(user), device, Some(cursor)).unwrap()
    }

    /// How many devices of the user are online. Waits until a node that has just started has heard from the others.
    pub fn online(&self, user: &str) -> usize {
        let mut devices = None;
        until("the node knows who is online", || {
            devices = self.engine.presence_of(&[user.into()]).ok().map(|online| online[0].devices.len());
            devices.is_some()
        });
        devices.unwrap()
    }

    pub fn stop_accepting(&mut self) {
        if let Some(stop) = self.stop.take() {
            self.runtime.block_on(stop.finish(Duration::from_secs(5)));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_accepting();
        self.runtime.block_on(self.session_server.drain(Duration::from_millis(200)));
        self.notifications.stop();
        self.engine.stop();
    }
}

pub fn token(user: &str) -> String {
    sign(TOKEN_KEY, user, Duration::from_secs(24 * 60 * 60))
}

pub fn raw(text: &str) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(text).unwrap()
}

pub fn message(text: &str) -> NewMessage {
    NewMessage {
        client_msg_id: None,
        content_type: "text".into(),
        body: raw(text),
        mentions: vec![],
        silent: false,
        skip_push: false,
        reply_to: None,
        expires: None,
    }
}

pub fn message_to(from: &str, conversation: &str, text: &str) -> SendRequest {
    SendRequest {
        conversation: Some(conversation.into()),
        to: None,
        from: Some(from.into()),
        client_msg_id: None,
        content_type: "text".into(),
        body: raw(text),
        mentions: vec![],
        silent: false,
        skip_push: false,
        reply_to: None,
        expires: None,
    }
}

pub fn text_of(entry: &Entry) -> String {
    serde_json::from_str(entry.body.get()).unwrap()
}

pub fn bind_frame(token: &str, device: &str, cursor: Option<&str>) -> ClientFrame {
    ClientFrame::Bind(Bind {
        token: token.into(),
        device_id: device.into(),
        device_kind: "web".into(),
        app_version: None,
        cursor: cursor.map(str::to_owned),
        push: false,
        attention: Attention::Foreground,
        compact: false,
    })
}

/// The next frame but for lines of the user's list, which come whenever one has changed; there must be one.
#[track_caller]
pub fn next(session: &mut Session) -> ServerFrame {
    loop {
        match any_next(session) {
            ServerFrame::Conversation { .. } => {}
            frame => return frame,
        }
    }
}

/// The next frame; there must be one.
#[track_caller]
pub fn any_next(session: &mut Session) -> ServerFrame {
    session.next(PATIENCE).unwrap().expect("a frame in time")
}

/// The next `count` entries; other frames are skipped.
#[track_caller]
pub fn entries(session: &mut Session, count: usize) -> Vec<Entry> {
    let mut all = Vec::new();
    while all.len() < count {
        if let ServerFrame::Messages { entries, .. } = next(session) {
            all.extend(entries);
        }
    }
    assert_eq!(all.len(), count, "more than what was sent: {all:?}");
    all
}

/// The frames before the answer to a ping: frames arrive in order, so that nothing else is on its way.
#[track_caller]
pub fn frames_until_pong(session: &mut Session) -> Vec<ServerFrame> {
    session.write(&ClientFrame::Ping { reference: Some(u64::MAX) }).unwrap();
    let mut frames = Vec::new();
    loop {
        match next(session) {
            ServerFrame::Pong { reference: Some(u64::MAX) } => return frames,
            frame => frames.push(frame),
        }
    }
}

/// The answer to a send; entries that come before it are skipped.
#[track_caller]
pub fn sent(session: &mut Session) -> Sent {
    loop {
        if let ServerFrame::Sent { mut results } = next(session) {
            assert_eq!(results.len(), 1);
            return results.remove(0);
        }
    }
}

/// The answer to a session's own send, and the session's copy of the message, in whichever order they come.
#[track_caller]
pub fn sent_and_entry(session: &mut Session) -> (Sent, Entry) {
    let (mut answer, mut entry) = (None, None);
    loop {
        match next(session) {
            ServerFrame::Sent { mut results } => answer = results.pop(),
            ServerFrame::Messages { mut entries, .. } => entry = entries.pop(),
            _ => {}
        }
        if let (Some(_), Some(_)) = (&answer, &entry) {
            return (answer.unwrap(), entry.unwrap());
        }
    }
}

#[track_caller]
pub fn error(session: &mut Session) -> (Option<u64>, ErrorCode, String) {
    loop {
        if let ServerFrame::Error { reference, code, message, .. } = next(session) {
            return (reference, code, message);
        }
    }
}

/// Reads to the end of the session: the frames before it and the close code.
#[track_caller]
pub fn end(session: &mut Session) -> (Vec<ServerFrame>, u16) {
    let mut frames = Vec::new();
    loop {
        match session.next(PATIENCE) {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => panic!("the session goes on after {frames:?}"),
            Err(ClientError::Closed { code, .. }) => return (frames, code),
            Err(error) => panic!("the session ended without a goodbye: {error}; after {frames:?}"),
        }
    }
}

/// The session ends with this refusal: an error frame last, then the close code that goes with it.
#[track_caller]
pub fn check_end(session: &mut Session, refusal: ErrorCode) {
    check_end_with(session, refusal, refusal.close_code());
}

/// The same with a close code of the WebSocket protocol.
#[track_caller]
pub fn check_end_with(session: &mut Session, refusal: ErrorCode, expected: u16) {
    let (frames, close) = end(session);
    match frames.last() {
        Some(ServerFrame::Error { code, .. }) => assert_eq!(*code, refusal),
        other => panic!("the last frame was {other:?}"),
    }
    assert_eq!(close, expected);
}

/// Retries while the answer is a 503, as every caller should: nothing was done then. On a busy machine a thread may be stopped
/// for longer than the server lets a request wait.
#[track_caller]
pub fn answered(mut ask: impl FnMut() -> HttpResponse) -> HttpResponse {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask();
        if answer.status != 503 || Instant::now() >= deadline {
            return answer;
        }
    }
}

/// Waits until `holds` is true.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

pub fn bound(session: &Session) -> &Bound {
    session.bound.as_ref().unwrap()
}

/// The entries that a device has: every conversation from its first entry on, checked as they arrive.
#[derive(Default, Debug, PartialEq)]
pub struct Inbox(pub HashMap<String, Vec<String>>);

impl Inbox {
    /// Adds the next entries, which must come without a hole, a duplicate or a swap.
    #[track_caller]
    pub fn take(&mut self, entries: &[Entry]) {
        for entry in entries {
            let timeline = self.0.entry(entry.conversation.clone()).or_default();
            assert_eq!(entry.seq, timeline.len() as u64 + 1, "in {}", entry.conversation);
            timeline.push(text_of(entry));
        }
    }

    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}
