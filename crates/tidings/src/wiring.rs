//! The parts put together: store, session server, engine, HTTP API. Built from the inside out, stopped from the outside in.

use crate::{
    join_cluster,
    listeners::Listeners,
    open_store,
    outbox::{self, OutboxRequests},
    settings::Settings,
    webhook::{HttpCaller, HttpWebhook},
};
use anyhow::{Context, Result};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidings_api::{
    Api, InternalRequests, SessionGateway,
    api_keys::StoredKeys,
    auth::{ApiKeys, NodeTokenSigner, TokenVerifier, remote_keys::RemoteKeys},
    chat_page::ChatPage,
    request_service::RequestService,
    routes::SettingView,
};
use tidings_domain::{clock::SystemClock, failure_log::FailureLog, function::Function};
use tidings_engine::{
    Engine, EngineParts, access::TokenClaims, config::EngineConfig, presence::compare::SessionSource,
};
use tidings_gateway::{
    BodyFraming, MaybeTlsSocket, SessionServer, VerifyToken, link_listener::LinkListener, miop_listener::ConnectionHost,
};
use tidings_listen::{ClientAddress, Throttle, ThrottleKey};
use tidings_notifications::{NotificationParts, Notifications, webhook::Webhook, webhook_push::WebhookPushConfig};
use tidings_outbox::{Outbox, OutboxBoard, OutboxParts};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::StreamPost,
};
use tokio::sync::oneshot;

/// A running server.
pub(crate) struct Server {
    engine: Arc<Engine>,
    notifications: Arc<Notifications>,
    session_server: Arc<SessionServer>,
    stored_keys: Arc<StoredKeys>,
    listeners: Listeners,
    link_listener: Option<LinkListener>,
    outbox: Outbox,
    housekeeping: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Starts every part, within this limit of file descriptors; with the chat page in development mode. `disclosed`: the settings
    /// as operators may see them. Call within the runtime.
    pub(crate) fn start(
        settings: &Settings,
        descriptors: u64,
        chat_page: Option<ChatPage>,
        disclosed: Vec<SettingView>,
    ) -> Result<Server> {
        let context = settings.listener_context(descriptors)?;
        let open_store::OpenedStore { store, backup, log } = open_store::open(settings)?;
        let (cluster, bus_metrics) =
            join_cluster::join(settings, log)?.map(|joined| (joined.parts, joined.metrics)).unzip();
        let outbound = settings.outbound_budget();
        let (prepared, wakes) =
            SessionServer::prepare(settings.session_config(outbound.clone())).context("preparing the sessions")?;
        let (engine, receivers) = Engine::start(EngineParts {
            config: EngineConfig { hook: settings.hook_config()?, ..settings.engine_config() },
            clock: Arc::new(SystemClock),
            store,
            wakes,
            cluster,
        });
        let config = settings.notifications_config();
        let parts = NotificationParts {
            config,
            webhook: webhook(settings)?,
            providers: settings.providers()?,
            webhook_caller: Some(Arc::new(HttpCaller::new()?)),
        };
        let notifications = Notifications::start(&engine, parts);
        if let Some(metrics) = bus_metrics {
            engine.metrics.register_collector(Box::new(metrics));
        }
        let key_set = settings
            .jwks_file
            .as_ref()
            .map(|file| std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display())));
        let throttle = context.throttle.clone();
        let tokens = TokenVerifier::new(settings.token_key.as_deref(), key_set.transpose()?.as_deref())?;
        let mut tokens = tokens.with_rules(settings.token_rules()?);
        if let Some(url) = &settings.tokens.jwks_url {
            let remote = RemoteKeys::new(url, Duration::from_secs(settings.tokens.jwks_refresh_s.max(1)));
            let remote = remote.context("[tokens] jwks_url")?;
            remote.start();
            tokens.use_remote_keys(remote);
        }
        let nodes = settings.cluster.secret.as_deref().filter(|_| engine.cluster.is_some()).map(NodeTokenSigner::new);
        nodes.iter().for_each(|nodes| tokens.trust_nodes(nodes));
        let tokens = Arc::new(tokens);
        let session_tokens = Arc::new(SessionTokens(tokens.clone(), throttle.clone()));
        let session_server = prepared.start(engine.clone(), notifications.clone(), receivers, session_tokens)?;
        let outbox_sources = settings.outbox_sources();
        let board = OutboxBoard::of(&outbox_sources);
        let mut api = Api::new(
            engine.clone(),
            notifications.clone(),
            ApiKeys::new(settings.all_api_keys()),
            tokens,
            Arc::new(SessionServerAdapter(session_server.clone())),
            backup,
            settings.api_config()?,
        )
        .with_throttle(throttle)
        .with_outbound_budget(outbound)
        .with_settings(disclosed)
        .with_outbox(outbox::shown(&board));
        if let Some(page) = chat_page {
            api = api.with_chat_page(page);
        }
        let stored_keys = api.stored_keys.clone();
        nodes.into_iter().for_each(|nodes| api.connect_to_leaders(nodes));
        let host = |_: &[SocketAddr]| Ok(session_server.clone() as Arc<dyn ConnectionHost>);
        let api = Arc::new(api);
        let listeners = Listeners::open(settings, context, &RequestService::new(api.clone()), host)?;
        let link_listener = settings.link_config().map(|config| {
            let address = config.listen;
            LinkListener::start(config, session_server.clone())
                .with_context(|| format!("listening on {address} (link; another address: --link-listen)"))
        });
        let link_listener = link_listener.transpose()?;
        if let Some(cluster) = &engine.cluster {
            let address = settings.advertised(listeners.http_address())?;
            let link = link_listener.as_ref().map(LinkListener::address);
            let link = link.zip(address.host_str()).map(|(link, host)| format!("{host}:{}", link.port()));
            let address = address.as_str().trim_end_matches('/').to_owned();
            cluster.nodes.announce_addresses(address, link.unwrap_or_default());
        }
        let outbox = OutboxParts {
            leadership: engine.leadership(Function::Outboxes),
            metrics: engine.metrics.clone(),
            requests: Arc::new(OutboxRequests(InternalRequests::new(api))),
        };
        let outbox = Outbox::start(outbox, outbox_sources, &board);
        let housekeeping = tokio::spawn(housekeeping(engine.clone(), notifications.clone(), settings.clone()));
        Ok(Server {
            listeners,
            link_listener,
            engine,
            notifications,
            session_server,
            stored_keys,
            outbox,
            housekeeping,
        })
    }

    pub(crate) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// A line `name=address` for each listener, plain HTTP first.
    pub(crate) fn listening(&self) -> String {
        let link = self.link_listener.as_ref().map(|listener| format!("link={}\n", listener.address()));
        self.listeners.listening() + &link.unwrap_or_default()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Stops accepting, finishes the requests, commits the accepted sends, tells clients to connect again, and closes everything.
    pub(crate) async fn stop(mut self, deadline: Duration) {
        let began = tokio::time::Instant::now();
        self.housekeeping.abort();
        // Its requests hold the engine, whose end closes the store.
        self.outbox.stop(deadline / 4).await;
        if let Some(listener) = &self.link_listener {
            listener.stop();
        }
        if !self.listeners.close(deadline / 2).await {
            tracing::warn!("some HTTP requests did not end in time");
        }
        // When keys were used is committed, which a draining engine refuses. A store that is away must not hold up the rest.
        let stored_keys = self.stored_keys;
        let stop_keys = tokio::task::spawn_blocking(move || stored_keys.stop());
        let _ = tokio::time::timeout(deadline.saturating_sub(began.elapsed()) / 4, stop_keys).await;
        self.engine.begin_drain();
        let left = deadline.saturating_sub(began.elapsed());
        if tokio::time::timeout(left / 2, self.engine.flush()).await.is_err() {
            tracing::warn!("the store did not commit everything in time; what is not committed was not acknowledged");
        }
        self.session_server.drain(deadline.saturating_sub(began.elapsed())).await;
        // Its answers hold the engine, whose end closes the store.
        self.listeners.close_health(HEALTH_CLOSES_WITHIN).await;
        let (engine, notifications) = (self.engine, self.notifications);
        // It joins threads, which may wait for the disk.
        let stop = move || {
            notifications.stop();
            engine.stop();
        };
        let _ = tokio::task::spawn_blocking(stop).await;
    }
}

/// The app's webhook, if the settings name one.
fn webhook(settings: &Settings) -> Result<Option<(Arc<dyn Webhook>, WebhookPushConfig)>> {
    let Some(url) = &settings.webhook.url else { return Ok(None) };
    let webhook = HttpWebhook::new(url, Duration::from_millis(settings.webhook.timeout_ms))?;
    Ok(Some((Arc::new(webhook), settings.webhook_push_config())))
}

/// How long a request for health or metrics may take at the end.
const HEALTH_CLOSES_WITHIN: Duration = Duration::from_millis(200);
/// How often running bulk sends are looked for.
const BULK_SENDS_EVERY: Duration = Duration::from_secs(1);
/// How often messages are looked for whose time has come.
const SCHEDULED_EVERY: Duration = Duration::from_millis(250);
/// How often erasures are looked for.
const ERASURES_EVERY: Duration = Duration::from_secs(1);
/// How often notes for the feed are looked for where there are new ones; elsewhere it is every so many times.
const NOTES_EVERY: Duration = Duration::from_millis(250);
const NOTES_LOOKS: u32 = 40;
/// How often events are removed that are older than they are kept.
const EVENTS_REMOVED_EVERY: Duration = Duration::from_secs(60);
/// How often recalls are looked for whose bodies have been in the store's files for long enough.
const PURGE_EVERY: Duration = Duration::from_secs(10 * 60);

/// What the leaders of functions do from time to time.
async fn housekeeping(engine: Arc<Engine>, notifications: Arc<Notifications>, settings: Settings) {
    let erasures = work_on_erasures(notifications.clone());
    let purge = purge_recalled_bodies(notifications, &settings);
    let (messages, events) = (remove_old_messages(engine.clone(), &settings), remove_old_events(engine.clone()));
    let (scheduled, notes) = (work_on_due_messages(engine.clone()), add_feed_notes(engine.clone()));
    tokio::join!(messages, events, purge, erasures, scheduled, notes, work_on_bulk_sends(engine));
}

/// Has bulk sends go on.
async fn work_on_bulk_sends(engine: Arc<Engine>) {
    let mut timer = interval_from_now(BULK_SENDS_EVERY);
    let failures = FailureLog::new("a bulk send waits; it is tried again");
    loop {
        timer.tick().await;
        loop {
            let worked = engine.work_on_bulk_sends().await;
            failures.note(&worked);
            if !matches!(worked, Ok(true)) {
                break;
            }
        }
    }
}

/// Has messages sent, and disappear, whose time has come.
async fn work_on_due_messages(engine: Arc<Engine>) {
    let mut timer = interval_from_now(SCHEDULED_EVERY);
    let failures = FailureLog::new("messages whose time has come wait; it is tried again");
    loop {
        timer.tick().await;
        loop {
            let worked = engine.work_on_due_messages().await;
            failures.note(&worked);
            if !matches!(worked, Ok(true)) {
                break;
            }
        }
    }
}

/// Has erasures go on.
async fn work_on_erasures(notifications: Arc<Notifications>) {
    let mut timer = interval_from_now(ERASURES_EVERY);
    let failures = FailureLog::new("an erasure waits; it is tried again");
    loop {
        timer.tick().await;
        let mut has_more = true;
        while has_more {
            let notifications = notifications.clone();
            let worked = tokio::task::spawn_blocking(move || notifications.work_on_erasures()).await;
            let worked = worked.unwrap_or_else(|error| Err(Refusal::new(ErrorCode::Internal, error.to_string())));
            failures.note(&worked);
            has_more = worked.unwrap_or(false);
        }
    }
}

/// Has what happened outside the commits of chat come into the feed.
async fn add_feed_notes(engine: Arc<Engine>) {
    let mut timer = interval_from_now(NOTES_EVERY);
    let failures = FailureLog::new("pushes, notifications and popups come into the feed of events later");
    let mut looks = 0_u32;
    loop {
        timer.tick().await;
        looks = looks.wrapping_add(1);
        // Another node, or this one before it was started, may have left some.
        let looks_anyway = looks % NOTES_LOOKS == 1;
        let mut has_more = looks_anyway || engine.has_new_feed_notes();
        while has_more {
            let added = engine.add_feed_notes(looks_anyway).await;
            failures.note(&added);
            has_more = added.unwrap_or(false);
        }
    }
}

/// Has recalled bodies leave the store's files in time.
async fn purge_recalled_bodies(notifications: Arc<Notifications>, settings: &Settings) {
    let age_min = Duration::from_secs(settings.messages.purge_after_hours * 60 * 60);
    if age_min.is_zero() {
        return;
    }
    let mut timer = interval_from_now(PURGE_EVERY);
    loop {
        timer.tick().await;
        let (notifications, began) = (notifications.clone(), std::time::Instant::now());
        match tokio::task::spawn_blocking(move || notifications.purge_recalled(age_min)).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => tracing::info!(took = ?began.elapsed(), "recalled messages have left the store's files"),
            Ok(Err(refusal)) => {
                tracing::warn!(%refusal, "recalled messages are still in the store's files; purging them is tried again")
            }
            Err(error) => tracing::error!(%error, "the purge of recalled messages met a defect"),
        }
    }
}

/// Removes the messages that retention no longer keeps.
async fn remove_old_messages(engine: Arc<Engine>, settings: &Settings) {
    // Also without a limit for all: conversations may have their own.
    let kept = settings.retention().unwrap_or_default();
    let mut timer = interval_from_now(Duration::from_secs(settings.retention.interval_minutes.max(1) * 60));
    loop {
        timer.tick().await;
        if !engine.leads(Function::Housekeeping) {
            continue;
        }
        let engine = engine.clone();
        match tokio::task::spawn_blocking(move || engine.remove_old(kept)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => tracing::info!(removed, "retention"),
            Ok(Err(refusal)) => tracing::warn!(%refusal, "retention failed; it is tried again"),
            Err(error) => tracing::error!(%error, "retention met a defect"),
        }
    }
}

/// Removes the events that the feed no longer keeps.
async fn remove_old_events(engine: Arc<Engine>) {
    let mut timer = interval_from_now(EVENTS_REMOVED_EVERY);
    let failures = FailureLog::new("old events could not be removed");
    loop {
        timer.tick().await;
        let mut has_more = true;
        while has_more {
            let engine = engine.clone();
            let removed = tokio::task::spawn_blocking(move || engine.remove_old_events()).await;
            let removed = removed.unwrap_or_else(|error| Err(Refusal::new(ErrorCode::Internal, error.to_string())));
            failures.note(&removed);
            has_more = removed.unwrap_or(false);
        }
    }
}

/// Ticks for the first time after one interval: the clock of a machine that has just started may not be right yet.
fn interval_from_now(interval: Duration) -> tokio::time::Interval {
    let mut timer = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    timer
}

/// The session server as the HTTP API sees it.
struct SessionServerAdapter(Arc<SessionServer>);

impl SessionGateway for SessionServerAdapter {
    fn adopt(&self, socket: MaybeTlsSocket, already_read: Vec<u8>, client: ClientAddress) {
        if !self.0.adopt(socket, tidings_gateway::Protocol::WebSocket, already_read, client) {
            tracing::debug!("no room for another connection");
        }
    }

    fn adopt_stream(&self, socket: MaybeTlsSocket, is_chunked: bool, bind: Vec<u8>, client: ClientAddress) {
        let framing = if is_chunked { BodyFraming::Chunked } else { BodyFraming::UntilClose };
        if !self.0.adopt(socket, tidings_gateway::Protocol::EventStream(framing), bind, client) {
            tracing::debug!("no room for another connection");
        }
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

/// The HTTP API's token verifier as the session server sees it.
struct SessionTokens(Arc<TokenVerifier>, Arc<Throttle>);

impl VerifyToken for SessionTokens {
    fn verify(&self, token: &str) -> Result<TokenClaims, Refusal> {
        self.0.verify(token)
    }

    fn count_failure(&self, throttle_key: ThrottleKey) -> Option<u64> {
        self.1.count_failure(throttle_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn retention_does_not_run_at_startup() {
        let mut timer = interval_from_now(Duration::from_secs(600));
        let is_due = std::future::poll_fn(|context| std::task::Poll::Ready(timer.poll_tick(context).is_ready()));
        assert!(!is_due.await);
    }
}
