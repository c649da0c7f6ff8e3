//! Commands and reports between a bench and its load clients with devices, which are worker processes: one JSON line each.

use super::device_counts::DeviceCounts;
use crate::{client_engine::device::DeviceProtocol, rate_profile::RateProfile};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A command to a worker. The worker answers with `Done`, and `Open` with `Opened`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceCommand {
    Open(Box<DeviceWorkerConfig>),
    /// Binds every device that is not bound, at a rate (open loop) or as fast as the server binds them (closed loop); done
    /// when all are bound or have given up, or after `within_ms`.
    Connect {
        per_second: Option<f64>,
        within_ms: u64,
    },
    /// Devices come when they are due, and each goes after `stay_ms`, or stays; a connect that fails is not tried again. Done when
    /// all that were due by then are bound or have failed, or `within_ms` after the end of the profile.
    Visit {
        profile: RateProfile,
        at_ns: u64,
        stay_ms: Option<u64>,
        within_ms: u64,
    },
    /// Closes every connection.
    Disconnect,
    /// Starts a new measurement of connects.
    ResetMeasurement,
    /// Closes every connection at that time of the monotonic clock, and connects all devices again at once.
    Storm {
        at_ns: u64,
        within_ms: u64,
    },
    /// Waits until every bound device has that push, or until no further device got it for `patience_ms`.
    AwaitPush {
        number: usize,
        patience_ms: u64,
    },
    /// Pauses heartbeats until each that was sent is answered, or `within_ms` have passed.
    Settle {
        within_ms: u64,
    },
    /// Stops heartbeats for good; a connection that ends then is not opened again.
    StopHeartbeats,
    /// Reports the current counts.
    ReportCounts,
}

/// The devices of one worker.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DeviceWorkerConfig {
    /// The listeners that devices connect to.
    pub(crate) listeners: Vec<SocketAddr>,
    pub(crate) via: DeviceProtocol,
    /// The server's certificate in PEM, the only one that devices accept.
    pub(crate) certificate: Option<String>,
    pub(crate) token_key: String,
    /// Users and devices are named `<tag>-<number>`.
    pub(crate) tag: String,
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Which worker this is, of how many: of visits that are due, it has every so-manieth.
    pub(crate) worker: (usize, usize),
    /// On the loopback, connections have source addresses `127.<a>.<b>.*`, which no other worker uses.
    pub(crate) source: (u8, u8),
    pub(crate) heartbeat_s: u64,
    /// The most devices that may be connecting at a time.
    pub(crate) connecting_max: usize,
    /// An attempt that does not lead to a bind within this is ended and retried.
    pub(crate) attempt_ms: u64,
    /// A device gives up after so many consecutive failures.
    pub(crate) attempts_max: u32,
    /// Devices with numbers below this connect to the first listener, all others to the other listeners; unset: to all in turn.
    pub(crate) first_listener_devices: Option<usize>,
    /// The server is the baseline, which answers every bind alike and no heartbeat.
    pub(crate) bare: bool,
    /// Devices send nothing after connecting, and do not reconnect.
    pub(crate) never_binds: bool,
    /// The core that the worker is pinned to.
    pub(crate) core: Option<usize>,
    /// How far the clock of the worker's machine is ahead of the bench's: all times that both speak of are the bench's.
    pub(crate) clock_ahead_ns: i64,
}

/// A report of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceReport {
    Opened,
    /// Sent four times a second while a command is carried out.
    Progress {
        live: u64,
        attempts: u64,
        given_up: u64,
    },
    Done(Box<DeviceCounts>),
    Failed {
        why: String,
    },
}
