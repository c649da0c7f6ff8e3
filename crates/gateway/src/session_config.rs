//! The settings of sessions.

use crate::{open_connections::OpenConnections, timer_wheel::ticks};
use std::{sync::Arc, time::Duration};
use tidings_listen::{OutboundBudget, OutboundBudgetConfig, UnboundConnections, UnboundConnectionsConfig};

/// A longer interval would not fit a session's state, and no network keeps an idle connection for a day.
const HEARTBEAT_S_MAX: u64 = 86_400;

/// Settings of sessions.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub shards: usize,
    /// A client sends something at least this often, unless it asks for another interval within the limits below. Silence
    /// of one and a half intervals closes the session.
    pub heartbeat: Duration,
    pub heartbeat_min: Duration,
    pub heartbeat_max: Duration,
    /// A session that is handed messages is probed when it has sent nothing for this long.
    pub probe_after: Duration,
    /// A probed session that sends nothing within this time counts as gone; 0: no session is probed.
    pub probe_timeout: Duration,
    /// Messages that a client has not acknowledged by then go out by offline push, if the client acknowledges messages at
    /// all; 0: they do not.
    pub ack_timeout: Duration,
    /// A quiet event stream is sent a comment this often.
    pub keep_alive: Duration,
    /// An unbound connection is closed after this.
    pub bind_timeout: Duration,
    /// How long the client of a closing connection may take to read the close frame and close its side.
    pub closing_timeout: Duration,
    /// Bytes that wait to be written to one session, shared ones included. Above: closed with `slow_reader`.
    pub session_buffer_bytes: usize,
    /// Requests of one session in flight at once (history, read marks). Above: `rate_limited`.
    pub session_requests: u8,
    /// Reads of all sessions (history, presence) that wait or run. Above: `queue_full`.
    pub session_reads: usize,
    /// The memory for bytes that clients have not read, with all other connections of the process.
    pub outbound_budget: Arc<OutboundBudget>,
    /// Connections of this server, bound or not. Above: the one that has been unbound for longest gives way; without such a connection
    /// the new one is closed at once with `queue_full`.
    pub connections_max: usize,
    /// Of these, connections of one address that have not bound (IPv6: of one /64); 0: half of them, and all for this machine itself.
    /// Above: as before, among that address's own.
    pub unbound_per_address_max: usize,
    /// How long a connection may take to bind before it can give way to another one.
    pub unbound_min: Duration,
    /// A session that was flushed less than this ago batches more entries before the next write.
    pub flush_interval: Duration,
}

impl SessionConfig {
    pub(crate) fn open_connections(&self) -> Arc<OpenConnections> {
        let (per_address_max, per_local_address_max) = match self.unbound_per_address_max {
            // Connections from this machine are most likely a reverse proxy's, and not an attack.
            0 => (self.connections_max.div_ceil(2), self.connections_max),
            some => (some, some),
        };
        let unbound_min = self.unbound_min;
        let unbound = UnboundConnectionsConfig { per_address_max, per_local_address_max, unbound_min };
        OpenConnections::new(self.connections_max, UnboundConnections::new(unbound))
    }

    /// The interval that is granted to a session, within the limits, in whole seconds as on the wire.
    pub(crate) fn granted_heartbeat_s(&self, asked_s: Option<u64>) -> u64 {
        let whole = |interval: Duration| interval.as_millis().div_ceil(1_000).max(1) as u64;
        let (least, most) = (whole(self.heartbeat_min), whole(self.heartbeat_max).min(HEARTBEAT_S_MAX));
        asked_s.unwrap_or(whole(self.heartbeat)).clamp(least.min(most), most)
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            shards: std::thread::available_parallelism().map_or(2, usize::from),
            heartbeat: Duration::from_secs(30),
            heartbeat_min: Duration::from_secs(10),
            heartbeat_max: Duration::from_secs(1_800),
            probe_after: Duration::from_secs(15),
            probe_timeout: Duration::from_secs(10),
            ack_timeout: Duration::from_secs(5),
            keep_alive: Duration::from_secs(15),
            bind_timeout: Duration::from_secs(10),
            closing_timeout: Duration::from_secs(5),
            session_buffer_bytes: 4 * 1024 * 1024,
            session_requests: 16,
            session_reads: 256,
            outbound_budget: OutboundBudget::new(OutboundBudgetConfig::default()),
            connections_max: 100_000,
            unbound_per_address_max: 0,
            unbound_min: Duration::from_secs(1),
            flush_interval: Duration::from_millis(2),
        }
    }
}

/// Ticks of silence after which a session is closed: its heartbeat interval and half as much again.
pub(crate) fn silence_max(heartbeat_ms: u32) -> u32 {
    ticks(Duration::from_millis(u64::from(heartbeat_ms) * 3 / 2))
}
