//! The settings of the bus.

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, TlsCertificates};
use std::time::Duration;
use tidings_domain::installation::InstallationId;

/// How a [`RedisBus`](crate::RedisBus) finds Redis, and its limits.
#[derive(Clone)]
pub struct RedisBusConfig {
    /// Some servers of one Redis Cluster (the others are found), or a single server.
    /// `redis://[user[:password]@]host[:port]`, `rediss://` for TLS. User, password and TLS of the first are used for all.
    pub urls: Vec<String>,
    /// The prefix of channel names. Up to 64 bytes, no braces.
    pub prefix: String,
    /// Keeps installations that share a Redis apart: a part of every channel name and every frame.
    pub installation: InstallationId,
    /// Certificates to trust, as PEM, instead of the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// Open connections in total: one to listen, and one for each primary that owns a channel of a node.
    pub connections_max: usize,
    /// New connections in a second, and in one burst. After a restart of Redis all nodes connect together, and a server that
    /// does all their handshakes at once answers none of them in time.
    pub connect_per_second: u32,
    /// Bytes that may wait to be published, counted once for each receiver. More are dropped.
    pub queue_bytes_max: usize,
    pub connect_timeout: Duration,
    /// A connection whose answer takes longer counts as broken.
    pub publish_timeout: Duration,
    /// How often this node sends a heartbeat to itself.
    pub heartbeat_every: Duration,
    /// If none comes back for so long, the subscription counts as dead.
    pub heartbeat_timeout: Duration,
    /// How long stopping waits until queued messages are published.
    pub stop_wait: Duration,
}

impl Default for RedisBusConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            prefix: "tidings".into(),
            installation: InstallationId::default(),
            ca_pem: None,
            connections_max: 16,
            connect_per_second: 10,
            queue_bytes_max: 64 << 20,
            connect_timeout: Duration::from_secs(1),
            publish_timeout: Duration::from_secs(1),
            heartbeat_every: Duration::from_secs(1),
            heartbeat_timeout: Duration::from_secs(3),
            stop_wait: Duration::from_millis(200),
        }
    }
}

/// Why a bus does not start. Only another configuration helps, except for `NoThreads`.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigError {
    NoUrls,
    /// The address with this index; addresses may hold a password, so they are not repeated.
    BadUrl(usize, String),
    /// The address with this index names a database of its server.
    NamesDatabase(usize),
    BadPrefix,
    BadCertificates(String),
    /// It takes one to listen and one to publish.
    TooFewConnections,
    NoConnectPace,
    /// The threads could not be started.
    NoThreads(String),
}

impl std::error::Error for ConfigError {}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoUrls => write!(f, "no address of Redis is given"),
            Self::BadUrl(index, why) => write!(f, "address {} of Redis cannot be read: {why}", index + 1),
            Self::NamesDatabase(index) => write!(
                f,
                "address {} of Redis names a database (the path behind host and port). Channels are the same in all databases of \
                 a server: leave the path out. Installations on one Redis are kept apart by the ids in their PostgreSQL",
                index + 1
            ),
            Self::BadPrefix => {
                write!(f, "the prefix has more than 64 bytes, or a brace, a space or a control character")
            }
            Self::BadCertificates(why) => write!(f, "the certificates to trust cannot be read: {why}"),
            Self::TooFewConnections => write!(f, "connections_max must be 2 or more"),
            Self::NoConnectPace => write!(f, "connect_per_second must be 1 or more"),
            Self::NoThreads(why) => write!(f, "threads could not be started: {why}"),
        }
    }
}

impl RedisBusConfig {
    /// The servers to connect to first, with all settings checked.
    pub(crate) fn seeds(&self) -> Result<Vec<ConnectionInfo>, ConfigError> {
        let bad = |c: char| matches!(c, '{' | '}') || c.is_whitespace() || c.is_control();
        if self.prefix.len() > 64 || self.prefix.contains(bad) {
            return Err(ConfigError::BadPrefix);
        }
        if self.connections_max < 2 {
            return Err(ConfigError::TooFewConnections);
        }
        if self.connect_per_second == 0 {
            return Err(ConfigError::NoConnectPace);
        }
        let seeds: Result<Vec<_>, _> = self.urls.iter().enumerate().map(|(index, url)| self.seed(index, url)).collect();
        let seeds = seeds?;
        if seeds.is_empty() { Err(ConfigError::NoUrls) } else { Ok(seeds) }
    }

    fn seed(&self, index: usize, url: &str) -> Result<ConnectionInfo, ConfigError> {
        let bad = |why: redis::RedisError| ConfigError::BadUrl(index, why.to_string());
        let info = url.into_connection_info().map_err(bad)?;
        if matches!(info.addr(), ConnectionAddr::Unix(_)) {
            return Err(ConfigError::BadUrl(index, "a bus between machines needs host and port".into()));
        }
        if names_database(url) {
            return Err(ConfigError::NamesDatabase(index));
        }
        // RESP3 has pushes on a connection that also takes commands.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        let Some(pem) = self.ca_pem.clone().filter(|_| url.starts_with("rediss://")) else {
            return Ok(info);
        };
        let trusted = TlsCertificates { client_tls: None, root_cert: Some(pem) };
        let client = Client::build_with_tls(info, trusted);
        client
            .map(|client| client.get_connection_info().clone())
            .map_err(|why| ConfigError::BadCertificates(why.to_string()))
    }
}

/// Whether a readable address of Redis has a path: `redis://host:port/1`. Publishing knows no databases, so that the path would
/// promise a separation that there is not.
pub fn names_database(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    rest.split_once('/').is_some_and(|(_, path)| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_cannot_work_is_refused_without_repeating_secrets() {
        let with = |change: fn(&mut RedisBusConfig)| {
            let mut config = RedisBusConfig { urls: vec!["redis://a:1".into()], ..Default::default() };
            change(&mut config);
            config.seeds().err()
        };
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|c| c.urls = vec!["rediss://user:secret@a:1".into()]), None);
        assert_eq!(with(|c| c.urls.clear()), Some(ConfigError::NoUrls));
        assert_eq!(with(|c| c.urls = vec!["redis://user:secret@a:1/".into()]), None);
        for url in ["redis://a:1/1", "redis://a/0", "rediss://user:secret@a:1/2?protocol=resp3"] {
            let config = RedisBusConfig { urls: vec!["redis://b".into(), url.into()], ..Default::default() };
            let refused = config.seeds().err();
            assert_eq!(refused, Some(ConfigError::NamesDatabase(1)), "{url}");
        }
        assert_eq!(with(|c| c.prefix = "a{b".into()), Some(ConfigError::BadPrefix));
        assert_eq!(with(|c| c.connections_max = 1), Some(ConfigError::TooFewConnections));
        assert_eq!(with(|c| c.connect_per_second = 0), Some(ConfigError::NoConnectPace));
        let bad = with(|c| c.urls.push("http://user:secret@b".into())).expect("refused");
        assert!(matches!(bad, ConfigError::BadUrl(1, _)));
        assert!(!bad.to_string().contains("secret"), "{bad}");
        assert!(matches!(
            with(|c| {
                c.urls = vec!["rediss://a:1".into()];
                c.ca_pem = Some(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec());
            }),
            Some(ConfigError::BadCertificates(_))
        ));
    }
}
