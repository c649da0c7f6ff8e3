//! New connections: at a pace, and no more than so many.

use crate::{
    config::{ConfigError, RedisBusConfig},
    map::Address,
    metrics::BusMetrics,
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
    bucket: Mutex<Bucket>,
    room: Arc<Semaphore>,
    metrics: Arc<BusMetrics>,
}

/// A connection, and its place among those that may be open.
pub(crate) struct Connection {
    pub(crate) redis: MultiplexedConnection,
    metrics: Arc<BusMetrics>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.metrics.connections_open.fetch_sub(1, Relaxed);
    }
}

impl Dialer {
    pub(crate) fn new(config: &RedisBusConfig, metrics: Arc<BusMetrics>) -> Result<Self, ConfigError> {
        let seeds = config.seeds()?;
        // The library takes the process' own; nothing happens if one is chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self {
            seeds,
            config: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(config.connect_timeout))
                .set_response_timeout(Some(config.publish_timeout)),
            connect_timeout: config.connect_timeout,
            bucket: Mutex::new(Bucket::new(config.connect_per_second, Instant::now())),
            room: Arc::new(Semaphore::new(config.connections_max)),
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

    /// `push` gets what the server sends without being asked, and is told when the connection ends.
    pub(crate) async fn dial(&self, to: &Address, push: impl AsyncPushSender) -> Result<Connection, String> {
        let delayed = |why: &str| {
            BusMetrics::add(&self.metrics.connections_delayed, 1);
            format!("{to}: {why}")
        };
        let place = self.room.clone().try_acquire_owned();
        let place = place.map_err(|_| delayed("as many connections are open as may be (connections_max)"))?;
        if !self.bucket.lock().take(Instant::now()) {
            return Err(delayed("waits for its turn to connect (connect_per_second)"));
        }
        // The library's time-out ends with the handshake of TCP; a server that hangs after it is waited for here.
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
        Ok(Connection { redis, metrics: self.metrics.clone(), _place: place })
    }

    /// How to reach a server that the cluster told of: as its seeds, at its own address.
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

/// Gives so many tokens in a second, and holds no more than those of one second.
struct Bucket {
    per_second: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
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
    fn a_bucket_keeps_the_pace() {
        let start = Instant::now();
        let mut bucket = Bucket::new(4, start);
        let mut taken_at = |ms| (0..10).filter(|_| bucket.take(start + Duration::from_millis(ms))).count();
        assert_eq!(taken_at(0), 4, "as many at once as in a second");
        assert_eq!([200, 250, 500, 1_000].map(&mut taken_at), [0, 1, 1, 2]);
        assert_eq!(taken_at(60_000), 4, "no more after a long rest");
    }
}
