//! Opens connections, at a limited pace, and no more than so many at a time.

use crate::{
    config::{ConfigError, RedisBusConfig},
    metrics::BusMetrics,
    slot_map::Address,
};
use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo,
    aio::{AsyncPushSender, MultiplexedConnection},
};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) struct Dialer {
    seeds: Vec<ConnectionInfo>,
    config: AsyncConnectionConfig,
    connect_timeout: Duration,
    pace: Mutex<TokenBucket>,
    permits: Arc<Semaphore>,
    metrics: Arc<BusMetrics>,
}

/// A connection that counts towards `connections_max` until it is dropped.
pub(crate) struct LimitedConnection {
    pub(crate) redis: MultiplexedConnection,
    metrics: Arc<BusMetrics>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for LimitedConnection {
    fn drop(&mut self) {
        self.metrics.connections_open.fetch_sub(1, Relaxed);
    }
}

impl Dialer {
    pub(crate) fn new(config: &RedisBusConfig, metrics: Arc<BusMetrics>) -> Result<Self, ConfigError> {
        let seeds = config.seeds()?;
        // The library uses the process's default provider. Err: one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self {
            seeds,
            config: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(config.connect_timeout))
                .set_response_timeout(Some(config.publish_timeout)),
            connect_timeout: config.connect_timeout,
            pace: Mutex::new(TokenBucket::new(config.connect_per_second, Instant::now())),
            permits: Arc::new(Semaphore::new(config.connections_max)),
            metrics,
        })
    }

    pub(crate) fn seeds(&self) -> Vec<Address> {
        let address = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Address { host: host.clone(), port: *port })
            }
            _ => None,
        };
        self.seeds.iter().filter_map(address).collect()
    }

    /// Connects to a server. `push` gets what the server sends unasked, and is told when the connection ends.
    ///
    /// # Errors
    /// The connection failed, or a limit puts it off. The text is for operators.
    pub(crate) async fn dial(&self, to: &Address, push: impl AsyncPushSender) -> Result<LimitedConnection, String> {
        let delayed = |why: &str| {
            BusMetrics::add(&self.metrics.connections_delayed, 1);
            format!("{to}: {why}")
        };
        let permit = self.permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| delayed("as many connections are open as may be (connections_max)"))?;
        if !self.pace.lock().take(Instant::now()) {
            return Err(delayed("waits for its turn to connect (connect_per_second)"));
        }
        // The library's timeout covers only the TCP handshake. This one also covers a server that hangs after it.
        let config = self.config.clone().set_push_sender(push);
        let dialed = async { Client::open(self.at(to))?.get_multiplexed_async_connection_with_config(&config).await };
        let dialed = match tokio::time::timeout(self.connect_timeout, dialed).await {
            Ok(dialed) => dialed.map_err(|why| why.to_string()),
            Err(_) => Err("does not answer".into()),
        };
        let counter = if dialed.is_ok() { &self.metrics.connections_made } else { &self.metrics.connections_failed };
        BusMetrics::add(counter, 1);
        let redis = dialed.map_err(|why| format!("{to}: {why}"))?;
        BusMetrics::add(&self.metrics.connections_open, 1);
        Ok(LimitedConnection { redis, metrics: self.metrics.clone(), _permit: permit })
    }

    /// A server that the cluster has named is reached like the seeds, at its own address.
    fn at(&self, to: &Address) -> ConnectionInfo {
        let mut info = self.seeds[0].clone();
        let addr = match info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: to.host.clone(), port: to.port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(to.host.clone(), to.port),
        };
        info = info.set_addr(addr);
        info
    }
}

/// Refills so many tokens in a second, and holds at most the tokens of one second.
struct TokenBucket {
    per_second: f64,
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second: per_second.into(), tokens: per_second.into(), filled: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.filled).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + more).min(self.per_second);
        self.filled = now;
        let takes = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(takes));
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_bucket_limits_the_pace_and_the_burst() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(4, start);
        let mut taken_at = |ms| (0..10).filter(|_| bucket.take(start + Duration::from_millis(ms))).count();
        assert_eq!(taken_at(0), 4, "as many at once as in a second");
        assert_eq!([200, 250, 500, 1_000].map(&mut taken_at), [0, 1, 1, 2]);
        assert_eq!(taken_at(60_000), 4, "no more after a long rest");
    }
}
