//! The settings of a node in a cluster, on a database that the nodes share.

use super::{
    Role, Settings,
    link::SECRET_BYTES_MIN,
    macros::{Value, settings},
};
use anyhow::{Context, Result, bail};
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use tidings_bus_redis::{ConfigError, RedisBusConfig};
use tidings_domain::commit_log::{NodeDetails, NodeInfo};

settings! {
    /// Several alike nodes on the database of `[store] url`. Each has a name of its own.
    Cluster {
        /// This node's name among the others, such as its host's. Unset: this node has the database to itself.
        name: Option<String> = None,
        /// Redis 7 (or Valkey), which carries messages between nodes: some nodes of a Redis Cluster, or one server.
        /// `redis://user:password@host:port`, `rediss://` for TLS, without a path. Nothing is stored there, and several installations
        /// may share it: each hears its own messages alone.
        redis: Vec<String> = Vec::new(),
        /// The prefix of channel names, for a Redis user that may use these channels alone. The same on all nodes.
        redis_prefix: String = RedisBusConfig::default().prefix,
        /// The authorities that sign the certificates of Redis (PEM). Unset: those that the system trusts.
        redis_ca_file: Option<PathBuf> = None,
        /// Open connections to Redis: one to listen, one for each primary that another node's channel is on.
        redis_connections_max: usize = RedisBusConfig::default().connections_max,
        /// New connections to Redis in a second: after a restart of Redis all nodes come back at once.
        redis_connect_per_second: u32 = RedisBusConfig::default().connect_per_second,
        /// Bytes that may wait to be sent to other nodes. Above: messages are dropped; those nodes read them from the database.
        redis_queue_bytes_max: usize = RedisBusConfig::default().queue_bytes_max,
        /// Bytes of messages kept in memory for clients that come back soon; older messages are read from the database.
        recent_bytes_max: usize = 64 << 20,
        /// Where other nodes reach this node's HTTP API, such as `http://10.0.0.1:8080`; its host is advertised for links too. Unset:
        /// `http_listen`, if that is one address.
        advertise: Option<String> = None,
        /// The secret that the nodes share, of 16 bytes or more.
        secret: Option<String> = None,
        /// A node that is silent for longer no longer counts; if it was the leader, another node takes over.
        lease_ms: u64 = 10_000,
    }
}

/// Shorter leases end while a database restarts.
const LEASE_MS_MIN: u64 = 1_000;
const NAME_BYTES_MAX: usize = 64;

impl Settings {
    pub(super) fn check_cluster(&self) -> Result<()> {
        let cluster = &self.cluster;
        let Some(name) = cluster.name.as_deref().filter(|name| !name.is_empty()) else {
            if !cluster.redis.is_empty() {
                bail!(
                    "[cluster] redis is set, but name is not: each node needs a name of its own. Set TIDINGS_CLUSTER_NAME"
                );
            }
            return Ok(());
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
            bail!("[cluster] name: up to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'");
        }
        if self.postgres_options().is_none() {
            bail!("[cluster] name is set, but no [store] url: a data folder has one owner. Set TIDINGS_STORE_URL");
        }
        if cluster.redis.is_empty() {
            bail!("[cluster] redis is not set: nodes could not hear each other. Set TIDINGS_CLUSTER_REDIS");
        }
        let is_redis = |url: &reqwest::Url| matches!(url.scheme(), "redis" | "rediss") && url.has_host();
        if !cluster.redis.iter().all(|url| reqwest::Url::parse(url).is_ok_and(|url| is_redis(&url))) {
            // The error does not show the address: it may hold a password.
            bail!(
                "[cluster] redis: each address must be like redis://user:password@10.0.0.31:6379 (rediss:// for TLS)"
            );
        }
        if let Some(index) = cluster.redis.iter().position(|url| tidings_bus_redis::names_database(url)) {
            bail!("[cluster] redis: {}", ConfigError::NamesDatabase(index));
        }
        if cluster.secret.as_deref().unwrap_or_default().len() < SECRET_BYTES_MIN {
            bail!(
                "[cluster] secret must be set, and have at least {SECRET_BYTES_MIN} bytes. Set TIDINGS_CLUSTER_SECRET"
            );
        }
        if let Some(advertise) = &cluster.advertise {
            let url = reqwest::Url::parse(advertise).ok();
            if !url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
                bail!("[cluster] advertise: an address such as http://10.0.0.1:8080");
            }
        }
        if cluster.advertise.is_none() && self.http_listen.ip().is_unspecified() {
            bail!(
                "[cluster] advertise is not set, and {} is not an address that others can use. Set TIDINGS_CLUSTER_ADVERTISE",
                self.http_listen
            );
        }
        if cluster.lease_ms < LEASE_MS_MIN {
            bail!("[cluster] lease_ms must be at least {LEASE_MS_MIN}");
        }
        Ok(())
    }

    pub(crate) fn cluster_node(&self) -> Option<NodeInfo> {
        Some(NodeInfo {
            name: self.cluster.name.clone().filter(|name| !name.is_empty())?,
            boot_id: rand::random(),
            // Filled in once the listeners are open.
            address: String::new(),
            link: String::new(),
            version: env!("CARGO_PKG_VERSION").into(),
            roles: self.role.show().1.trim_matches('"').into(),
            details: NodeDetails::of_this_program(),
        })
    }

    /// The address at which other nodes reach this node's HTTP API, which listens at `http`.
    pub(crate) fn advertised(&self, http: SocketAddr) -> Result<reqwest::Url> {
        let address = match &self.cluster.advertise {
            Some(advertise) => advertise.clone(),
            None => format!("http://{http}"),
        };
        reqwest::Url::parse(&address).with_context(|| format!("[cluster] advertise {address:?}"))
    }

    pub(crate) fn cluster_lease(&self) -> Duration {
        Duration::from_millis(self.cluster.lease_ms)
    }

    /// Switches off all sessions, for a node of the role `worker`.
    pub(crate) fn hold_no_sessions(&mut self) {
        self.session.connections_max = 0;
        self.miop_listen.clear();
        self.miop_tls_listen.clear();
    }

    /// Whether this node may be the leader.
    pub(crate) fn may_lead(&self) -> bool {
        matches!(self.role, Role::All | Role::Worker)
    }

    pub(crate) fn redis_config(&self) -> Result<RedisBusConfig> {
        let cluster = &self.cluster;
        let read = |file: &PathBuf| std::fs::read(file).with_context(|| format!("reading {}", file.display()));
        Ok(RedisBusConfig {
            urls: cluster.redis.clone(),
            prefix: cluster.redis_prefix.clone(),
            ca_pem: cluster.redis_ca_file.as_ref().map(read).transpose()?,
            connections_max: cluster.redis_connections_max,
            connect_per_second: cluster.redis_connect_per_second,
            queue_bytes_max: cluster.redis_queue_bytes_max,
            ..RedisBusConfig::default()
        })
    }
}
