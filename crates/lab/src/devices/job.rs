//! What the bench and its device workers say to each other: one JSON line per command or report.

use super::tally::Tally;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The protocol that devices connect by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    Miop,
    Miops,
    Ws,
}

impl std::fmt::Display for Via {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Via::Miop => "miop",
            Via::Miops => "miops",
            Via::Ws => "ws",
        })
    }
}

/// Parent to worker. All are answered by `Done`, except `Open` by `Opened`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceCommand {
    Open(Box<OpenDevices>),
    /// Binds every device that is not bound, so many a second or as fast as it goes; done when all are bound or
    /// have given up, or after `within_ms`.
    Connect {
        per_second: Option<f64>,
        within_ms: u64,
    },
    /// Measures connecting anew from here on, without connecting anything.
    Measure,
    /// Closes every connection at that time of the monotonic clock and connects all again at once.
    Storm {
        at_ns: u64,
        within_ms: u64,
    },
    /// Waits until every bound device has that push, or none more got it for the whole of `patience_ms`.
    AwaitPush {
        number: usize,
        patience_ms: u64,
    },
    /// Sends no more heartbeats until every one that was sent is answered or `within_ms` have passed.
    Settle {
        within_ms: u64,
    },
    /// Sends no more heartbeats at all, and lets a connection that ends stay closed.
    Silence,
    /// Says how things stand.
    Count,
}

/// The devices of one worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OpenDevices {
    /// The doors that devices may use.
    pub(crate) doors: Vec<SocketAddr>,
    pub(crate) via: Via,
    /// The server's certificate in PEM, the only one that is accepted.
    pub(crate) certificate: Option<String>,
    pub(crate) token_key: String,
    /// Users and devices are named `<tag>-<number>`.
    pub(crate) tag: String,
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Loopback connections come from `127.<a>.<b>.*`, addresses that no other worker uses.
    pub(crate) source: (u8, u8),
    pub(crate) heartbeat_s: u64,
    /// Connections that may be on their way to bound at a time.
    pub(crate) under_way_max: usize,
    /// A connection that is not bound within this is given up and tried again.
    pub(crate) attempt_ms: u64,
    /// A device that failed so often in a row gives up.
    pub(crate) attempts_max: u32,
    /// Devices numbered below this begin at the first door, the others at the rest; unset: all in turn.
    pub(crate) crowd_at_first_door: Option<usize>,
    /// The other side answers every bind alike and echoes nothing.
    pub(crate) bare: bool,
    /// Says nothing after connecting, and does not come back.
    pub(crate) mute: bool,
    /// Keep to this core.
    pub(crate) core: Option<usize>,
}

/// Worker to parent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceReport {
    Opened,
    /// Every so often while a command is under way.
    Progress {
        live: u64,
        attempts: u64,
        given_up: u64,
    },
    Done(Box<Tally>),
    Failed {
        why: String,
    },
}
