//! All settings: flags override `TIDINGS_…` variables, variables override the file, the file overrides the defaults.

mod cluster;
mod component_configs;
mod disclosure;
mod fingerprints;
mod flags;
mod hook;
mod link;
mod listeners;
mod macros;
mod offline_push;
mod outbox;
mod popups;
mod ranges;
mod store;
mod tokens;
mod validation;

pub(crate) use flags::{SettingArgs, help};
pub(crate) use link::Role;
pub(crate) use listeners::ListenerContext;

use anyhow::{Context, Result, anyhow, bail};
use cluster::Cluster;
use hook::Hook;
use ipnet::IpNet;
use link::Link;
use listeners::{AdmissionSettings, Cors, Tls};
use macros::{SettingDescription, flag, one_of, settings};
use offline_push::{ApnsSettings, FcmSettings, HuaweiSettings, Notifications, WebPushSettings};
use outbox::OutboxSourceSettings;
use popups::Popups;
use std::{net::SocketAddr, path::PathBuf};
use store::Store;
use tidings_api::ApiConfig;
use tidings_engine::{
    config::{EngineConfig, MessagesConfig},
    presence::PresenceConfig,
    streams::StreamsConfig,
};
use tidings_gateway::SessionConfig;
use tidings_listen::OutboundBudgetConfig;
use tidings_push::PushConfig;
use tokens::{Limits, TokenSettings};

/// The settings file that is read by default, if it exists.
pub(crate) const FILE: &str = "tidings.toml";

/// When file descriptors are short, HTTP gets a quarter of them, up to so many connections, or a sixteenth if that is more.
const HTTP_CONNECTIONS_KEPT: usize = 1_024;

settings! {
    /// The settings of a server.
    Settings {
        /// `all`: everything. `api`: everything but the leader's work (webhooks, push, popups). `worker`: the leader's work
        /// alone, and no sessions. `gateway`: only devices' connections, for the core that `[link] to` names.
        role: Role = Role::All,
        /// Where HTTP and WebSocket clients connect. Port 0 picks a free one; `<data_dir>/listening` tells which.
        http_listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)),
        /// Where devices connect (MIOP).
        miop_listen: Vec<SocketAddr> = vec![SocketAddr::from(([127, 0, 0, 1], 8081))],
        /// Where devices connect with TLS; none: nowhere.
        miop_tls_listen: Vec<SocketAddr> = Vec::new(),
        /// Where HTTPS and secure WebSocket clients connect; none: nowhere.
        http_tls_listen: Vec<SocketAddr> = Vec::new(),
        /// Where only health and metrics are answered, beside `http_listen`, with a connection limit of its own; none: nowhere. Without TLS and
        /// PROXY headers.
        health_listen: Vec<SocketAddr> = Vec::new(),
        /// Every connection, at any address, begins with a load balancer's PROXY header (version 1 or 2); others are closed.
        proxy_protocol: bool = false,
        /// The networks of the load balancers whose PROXY headers are trusted, such as `10.0.0.0/8`.
        proxy_protocol_from: Vec<IpNet> = Vec::new(),
        /// The folder that holds all stored data.
        data_dir: PathBuf = "data".into(),
        /// The API key of app servers: it allows everything.
        api_key: Option<String> = None,
        /// Further keys that are valid beside `api_key`, so that one can be replaced without a pause.
        api_keys: Vec<String> = Vec::new(),
        /// The secret that user tokens are signed with (HS256).
        token_key: Option<String> = None,
        /// A JWKS file with the public keys of user tokens (RS256, ES256, EdDSA).
        jwks_file: Option<PathBuf> = None,
        /// Names of users' `attributes` that every user may see; the others are for the user and for app servers alone.
        public_attributes: Vec<String> = Vec::new(),
        /// The folder that backups may be written to. Unset: `tidings backup` works only while the server is stopped.
        backup_dir: Option<PathBuf> = None,
        /// Open HTTP connections; one that became a WebSocket no longer counts. Full: the longest idle connection without an accepted credential
        /// is closed for the next, or else that of a user's token; without such a connection the next gets 503. A few more are accepted for
        /// health, metrics and requests with an API key.
        http_connections_max: usize = ApiConfig::default().connections_max,
        /// Of these, connections of one address (IPv6: of one /64; behind a load balancer with PROXY headers: the client's); 0: half, and all for
        /// this machine itself. Full: as above, among that address's own. Behind a remote load balancer without such headers: set it to
        /// `http_connections_max`.
        http_connections_per_address_max: usize = ApiConfig::default().connections_per_address_max,
        /// Of these, connections of one user, by token; 0: an eighth. Above: the user's own idle connections are closed, and requests on further
        /// ones are refused with `rate_limited`.
        http_connections_per_user_max: usize = ApiConfig::default().connections_per_user_max,
        /// Memory for all request bodies that are being read, in bytes; long bodies may use three quarters of it. Full: refused with
        /// `queue_full`.
        http_body_bytes_max: usize = ApiConfig::default().body_bytes_max,
        /// Memory for what clients have not read, in bytes: answers, messages and pushes of sessions, and responses of HTTP, beyond what the
        /// kernel holds. Full: the connection that has left bytes unread for longest is closed.
        unread_bytes_max: usize = OutboundBudgetConfig::default().bytes_max,
        /// Of these, bytes of one user's connections. Above: as before, among those of the user; the only one stays.
        unread_bytes_per_user_max: usize = OutboundBudgetConfig::default().user_bytes_max,
        /// Reads (history, lists, sync) that run at once. Full: refused with `queue_full`.
        http_reads_max: usize = ApiConfig::default().reads_max,
        /// Threads that serve HTTP; 0: one per core.
        http_threads: usize = 0,
        /// Whether the kernel may back memory with huge pages (Linux, 2 MB each). A server with gigabytes of caches runs a little faster with
        /// them; any other takes several times the memory, since a whole page is taken where a thread or session needs a part.
        huge_pages: bool = false,
        /// How long a stop may take: to finish requests, tell clients to connect again, and close everything.
        drain_deadline_ms: u64 = 10_000,
        /// An OpenTelemetry collector that traces are sent to (OTLP over HTTP), such as `http://127.0.0.1:4318`.
        otlp_endpoint: Option<String> = None,
        /// The share of traces that is sent; 1.0: all.
        otlp_sample_ratio: f64 = 0.01,
        tables {
            log: Log,
            tls: Tls,
            cors: Cors,
            tokens: TokenSettings,
            limits: Limits,
            admission: AdmissionSettings,
            link: Link,
            session: Session,
            presence: Presence,
            messages: Messages,
            streams: Streams,
            engine: Engine,
            store: Store,
            cluster: Cluster,
            push: Push,
            popups: Popups,
            retention: Retention,
            events: Events,
            webhook: Webhook,
            hook: Hook,
            notifications: Notifications,
            apns: ApnsSettings,
            fcm: FcmSettings,
            huawei: HuaweiSettings,
            web_push: WebPushSettings,
        }
        lists {
            outbox_source: OutboxSourceSettings,
        }
    }
}

settings! {
    /// What is logged, and how. Message bodies, keys and tokens never are.
    Log {
        /// `text` or `json`: a line for each event, on standard error. Plain in either are the addresses on standard output
        /// (`listening …`), which are for other programs to read, and the last words of a program that ends (`tidings: …`).
        format: LogFormat = LogFormat::Text,
        /// `off`, `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,tidings_api=debug`.
        level: String = "info,fjall=warn,lsm_tree=warn".into(),
    }
}

settings! {
    /// The connections that clients hold.
    Session {
        /// A client sends something at least this often; half as much again of silence ends the session.
        heartbeat_ms: u64 = SessionConfig::default().heartbeat.as_millis() as u64,
        /// The shortest interval that a device may ask for, in seconds.
        heartbeat_s_min: u64 = SessionConfig::default().heartbeat_min.as_secs(),
        /// The longest interval that a device may ask for, in seconds. Devices themselves find out if their network drops idle connections sooner.
        heartbeat_s_max: u64 = SessionConfig::default().heartbeat_max.as_secs(),
        /// A session that has been silent for this long is probed when it is handed messages.
        probe_after_ms: u64 = SessionConfig::default().probe_after.as_millis() as u64,
        /// A probed session that does not answer within this time is closed: the messages that it was handed go out by offline push. 0: no
        /// probes.
        probe_timeout_ms: u64 = SessionConfig::default().probe_timeout.as_millis() as u64,
        /// A quiet event stream is sent a comment this often, so that proxies keep it open. Below their shortest time-out.
        keep_alive_ms: u64 = SessionConfig::default().keep_alive.as_millis() as u64,
        /// A connection that has not bound by then is closed.
        bind_timeout_ms: u64 = SessionConfig::default().bind_timeout.as_millis() as u64,
        /// Bytes waiting for one session. Above: closed with `slow_reader`; it resumes from its cursor.
        buffer_bytes: usize = SessionConfig::default().session_buffer_bytes,
        /// Requests of one session that may run at once (history, read marks). Above: `rate_limited`.
        requests_max: u8 = SessionConfig::default().session_requests,
        /// Reads of all sessions (history, presence) that wait or run. Full: refused with `queue_full`.
        reads_max: usize = SessionConfig::default().session_reads,
        /// Connections, bound or not. Above: the one that has not bound for longest is closed for the next; without such a connection the next
        /// is closed at once.
        connections_max: usize = SessionConfig::default().connections_max,
        /// Of these, connections of one address that have not bound (IPv6: of one /64; behind a load balancer with PROXY headers: the
        /// client's); 0: half, and all for this machine itself. Above: as before, among that address's own.
        unbound_per_address_max: usize = SessionConfig::default().unbound_per_address_max,
        /// A session that was written to less than this ago gathers more messages before the next write, in microseconds.
        flush_interval_us: u64 = SessionConfig::default().flush_interval.as_micros() as u64,
        /// Sessions of one user and device kind. Above: the oldest gets `replaced` and is closed.
        per_device_kind_max: usize = EngineConfig::default().sessions_per_kind,
        /// Sessions of one user, of all device kinds and on all nodes. Above: the oldest gets `replaced` and is closed.
        per_user_max: usize = EngineConfig::default().sessions_per_user,
    }
}

settings! {
    /// The sizes of queues and caches. Each is a bound; a full queue refuses before anything is stored.
    Engine {
        /// Threads that own sessions; each user belongs to one. 0: one per core.
        shards: usize = 0,
        /// Messages of a lane that wait to be committed; as many operations besides. One sender may have at most as many waiting
        /// as there are free places. Full: refused with `queue_full`.
        commit_queue: usize = EngineConfig::default().commit_queue,
        /// Most messages in one commit.
        commit_batch: usize = EngineConfig::default().commit_batch,
        /// While a commit takes longer than this, new messages are refused with `store_unavailable` instead of waiting behind it.
        commit_time_max_ms: u64 = EngineConfig::default().commit_time_max.as_millis() as u64,
        /// Messages per lane between accept and fan-out, shared by senders in the same way. Full: refused with `queue_full`.
        lane_queue: usize = EngineConfig::default().lane_queue,
        /// Fan-outs per lane waiting at a shard. Full: the lane waits, and fills.
        shard_queue: usize = EngineConfig::default().shard_queue,
        /// Users, conversations and memberships kept in memory, each.
        cache_entries: usize = EngineConfig::default().cache_entries,
        /// Messages that one user may send in a second by token, with all else that others are told of: edits, recalls, reactions,
        /// pins, new conversations, changes of members, roles and details. 0: no limit. App servers are not limited. The default is
        /// more than a person types or taps, and so little that a flood of a hundred users is a tenth of what one core commits.
        sends_per_second: u32 = 20,
        /// Messages that a user may send at once after a quiet time, such as those that an app gathered while it was offline.
        sends_burst: u32 = 100,
    }
}

settings! {
    /// For how long senders may edit and recall their messages, by token. The owner and admins of a group or official account may at
    /// any time, and so may app servers.
    Messages {
        /// Since the message was sent, in direct conversations. 0: never.
        direct_edit_window_ms: u64 = MessagesConfig::default().edit_window[0].as_millis() as u64,
        /// As above, in groups. 0: never.
        group_edit_window_ms: u64 = MessagesConfig::default().edit_window[1].as_millis() as u64,
        /// As above, in official accounts. 0: never.
        official_edit_window_ms: u64 = MessagesConfig::default().edit_window[2].as_millis() as u64,
        /// Since the message was sent, in direct conversations. 0: never.
        direct_recall_window_ms: u64 = MessagesConfig::default().recall_window[0].as_millis() as u64,
        /// As above, in groups. 0: never.
        group_recall_window_ms: u64 = MessagesConfig::default().recall_window[1].as_millis() as u64,
        /// As above, in official accounts. 0: never.
        official_recall_window_ms: u64 = MessagesConfig::default().recall_window[2].as_millis() as u64,
        /// Whether the bodies that edits replace are kept, for as long as their message. Those of a recalled message are removed.
        edit_history: bool = false,
        /// A recalled body has left the store's files, too, this many hours after the recall and the time that the store then takes
        /// to rewrite its files. 0: whenever the store happens to overwrite it. See docs/operations/recalled-messages.md.
        purge_after_hours: u64 = 168,
    }
}

settings! {
    /// Messages that grow, such as the answer of a language model.
    Streams {
        /// Messages that grow at once at this node. Full: the next is refused with `queue_full`.
        open_max: usize = StreamsConfig::default().open_max,
        /// Of these, messages that one user began by token; app servers are not limited.
        open_per_user_max: usize = StreamsConfig::default().open_per_user_max,
        /// Of these, messages in one conversation.
        open_per_conversation_max: usize = StreamsConfig::default().open_per_conversation_max,
        /// Memory for the texts of all of them. Full: further chunks are refused with `queue_full`. Copies of other nodes' messages take as
        /// much again at most; beyond that, clients of this node get such messages when they end.
        bytes_max: usize = StreamsConfig::default().bytes_max,
        /// A message to which nothing is appended for this long is ended as interrupted.
        timeout_ms: u64 = StreamsConfig::default().timeout.as_millis() as u64,
        /// Chunks that one user may append in a second by token. 0: no limit.
        appends_per_second: u32 = StreamsConfig::default().appends_per_second,
    }
}

settings! {
    /// Data to devices.
    Push {
        /// Pending pushes to one device by name. Above: the device does not get the next push, and the answer counts it.
        pending_per_device_max: usize = PushConfig::default().pending_per_device,
        /// Pushes to all or by tags that run at once. Above: refused with `queue_full`; scheduled ones wait.
        running_to_many_max: usize = PushConfig::default().running_to_many,
        /// Scheduled pushes. Above: refused with `queue_full`.
        scheduled_max: usize = PushConfig::default().scheduled,
        /// How long the state of a push is kept after its end, in days.
        kept_days: u64 = PushConfig::default().retention.as_secs() / (24 * 60 * 60),
        /// How often acknowledgements are stored: pushes whose acknowledgements a crash loses are sent again.
        flush_interval_ms: u64 = PushConfig::default().flush_interval.as_millis() as u64,
    }
}

settings! {
    /// How long messages are kept. Unset: for ever.
    Retention {
        /// Messages older than this many days are removed. Nothing is removed while even the newest message is older by more than
        /// a week: then this machine's clock is more likely wrong.
        age_days_max: Option<u64> = None,
        /// The oldest messages are removed above this many bytes, as stored before compression.
        bytes_max: Option<u64> = None,
        /// How often old messages are removed, in minutes; the first time after one interval.
        interval_minutes: u64 = 10,
    }
}

settings! {
    /// The feed of events, `GET /v1/events`: all that is committed, for search, moderation, bots and archives.
    Events {
        /// How long events are kept, in days; 0: there is no feed. The leader's setting counts. What retention removes of messages is gone
        /// from the feed, too.
        keep_days: u64 = 3,
        /// Which events are in the feed beside those of chat: `push`, `device`, `notification`, `popup.exposure`, `popup.event`. Each is one more row
        /// that is written; `notification` needs `[notifications] log_days`.
        also: Vec<String> = vec!["push".into(), "device".into()],
    }
}

settings! {
    /// Offline push: for users who are not connected, the server calls your own server, which notifies them.
    Webhook {
        /// The address that notifications are posted to. Unset: no offline push.
        url: Option<String> = None,
        /// Signs every call: HMAC-SHA256 over time stamp and body.
        secret: Option<String> = None,
        /// A call that takes longer has failed.
        timeout_ms: u64 = 10_000,
        /// Attempts before an event becomes a dead letter, which can be listed and replayed.
        attempts_max: u32 = 10,
        /// The first wait after a failed attempt; it doubles each time, with jitter.
        backoff_min_ms: u64 = 1_000,
        /// The longest wait between attempts.
        backoff_max_ms: u64 = 300_000,
        /// Whether the webhook is also told who comes online and goes offline, several users in a call.
        presence: bool = false,
    }
}

settings! {
    /// Who is online.
    Presence {
        /// A user counts as offline after having no session for this long.
        grace_ms: u64 = PresenceConfig::default().grace_ms,
        /// Watched users over all sessions, each counted once for each session that watches. Above: refused with `queue_full`.
        watches_max: usize = PresenceConfig::default().watches_max,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

one_of!(LogFormat { "text": LogFormat::Text, "json": LogFormat::Json });

impl Settings {
    /// Every setting with its default, in the order of the sample file.
    pub(crate) fn describe() -> Vec<SettingDescription> {
        Settings::default().described()
    }

    /// Every setting with its present value.
    fn described(&self) -> Vec<SettingDescription> {
        let mut all = Vec::new();
        self.describe_into("", &mut all);
        all
    }

    /// The sample file: every setting with its documentation and default.
    pub(crate) fn sample() -> String {
        let mut text = String::from(
            "# The settings of Tidings, with their defaults. `tidings config` prints this file.\n\
             # A flag (--http-listen) overrides a variable (TIDINGS_HTTP_LISTEN), a variable overrides this file.\n",
        );
        let mut table = "";
        for setting in Settings::describe() {
            if setting.table != table {
                table = setting.table;
                text.push_str(&format!("\n[{table}]"));
            }
            text.push('\n');
            for line in &setting.doc {
                text.push_str(&format!("# {line}\n"));
            }
            let mark = if setting.is_set { "" } else { "# " };
            text.push_str(&format!("{mark}{} = {}\n", setting.name, setting.value));
        }
        text.push_str(&OutboxSourceSettings::sample());
        text
    }

    /// Puts the sources together: `file` is a file's text, `variable` looks up the environment, `flags` are (table,
    /// name, text).
    fn gather(
        file: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
        flags: &[(String, String, String)],
    ) -> Result<Settings> {
        let mut settings: Settings = file.map(toml::from_str).transpose()?.unwrap_or_default();
        for setting in Settings::describe() {
            let name = setting.variable();
            if let Some(text) = variable(&name) {
                settings.set_any(setting.table, setting.name, &text).with_context(|| name.clone())?;
            }
        }
        settings.gather_outbox_sources(&variable)?;
        for (table, name, text) in flags {
            settings.set_any(table, name, text).with_context(|| format!("--{}", flag(table, name)))?;
        }
        Ok(settings)
    }

    fn set_any(&mut self, table: &str, name: &str, text: &str) -> Result<()> {
        let set = match table {
            "" => self.set(name, text),
            "log" => self.log.set(name, text),
            "tls" => self.tls.set(name, text),
            "cors" => self.cors.set(name, text),
            "tokens" => self.tokens.set(name, text),
            "limits" => self.limits.set(name, text),
            "admission" => self.admission.set(name, text),
            "link" => self.link.set(name, text),
            "session" => self.session.set(name, text),
            "presence" => self.presence.set(name, text),
            "engine" => self.engine.set(name, text),
            "store" => self.store.set(name, text),
            "cluster" => self.cluster.set(name, text),
            "messages" => self.messages.set(name, text),
            "streams" => self.streams.set(name, text),
            "push" => self.push.set(name, text),
            "popups" => self.popups.set(name, text),
            "retention" => self.retention.set(name, text),
            "events" => self.events.set(name, text),
            "webhook" => self.webhook.set(name, text),
            "hook" => self.hook.set(name, text),
            "notifications" => self.notifications.set(name, text),
            "apns" => self.apns.set(name, text),
            "fcm" => self.fcm.set(name, text),
            "huawei" => self.huawei.set(name, text),
            "web_push" => self.web_push.set(name, text),
            _ => None,
        };
        set.ok_or_else(|| anyhow!("no such setting"))?.map_err(|why| anyhow!(why))
    }

    /// Refuses settings with which the server cannot run.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_ranges()?;
        self.check_log()?;
        self.check_addresses()?;
        self.check_link()?;
        if self.role == Role::Gateway {
            return Ok(());
        }
        if self.all_api_keys().next().is_none() {
            bail!("no api_key is set: app servers could not call. Set TIDINGS_API_KEY, or try `tidings serve --dev`");
        }
        if self.token_key.as_deref().unwrap_or_default().is_empty()
            && self.jwks_file.is_none()
            && self.tokens.jwks_url.is_none()
        {
            bail!(
                "neither token_key nor jwks_file nor [tokens] jwks_url is set: no user could connect. Set TIDINGS_TOKEN_KEY"
            );
        }
        if self.webhook.url.is_some() && self.webhook.secret.as_deref().unwrap_or_default().is_empty() {
            bail!("[webhook] url needs a secret: without one your server could not verify that a call is ours");
        }
        self.check_hook()?;
        self.check_outbox_sources()?;
        self.events_also()?;
        self.check_providers()?;
        self.check_tokens()?;
        self.check_store()?;
        self.check_cluster()?;
        self.check_listeners()
    }

    /// Lowers the connection limits until they fit the limit of file descriptors: a store that cannot open a file is worse
    /// than a refused connection.
    pub(crate) fn fit_connections(&mut self, descriptors: u64) {
        let room = descriptors.saturating_sub(self.admission.descriptors_reserved).max(2);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        if self.http_connections_max.saturating_add(self.session.connections_max) <= room {
            return;
        }
        // Most descriptors are for devices: HTTP callers are few machines with few connections.
        let callers = (room / 16).max((room / 4).min(HTTP_CONNECTIONS_KEPT));
        self.http_connections_max = self.http_connections_max.min(callers).max(1);
        self.session.connections_max = self.session.connections_max.min(room - self.http_connections_max);
        tracing::warn!(
            descriptors,
            http_connections_max = self.http_connections_max,
            session_connections_max = self.session.connections_max,
            "connections are limited to what the file descriptors allow; raise the limit (ulimit -n)"
        );
    }

    pub(crate) fn all_api_keys(&self) -> impl Iterator<Item = String> {
        self.api_key.iter().chain(&self.api_keys).filter(|key| !key.is_empty()).cloned()
    }
}

#[cfg(test)]
mod tests;
