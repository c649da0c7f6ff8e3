//! `tidings plan`: the cores, nodes and memory that a load takes, computed from what its parts took where they were measured.
//!
//! The model is a sum: each operation has a cost in CPU time, and what is written to a session costs by the write. What it leaves
//! out, where its numbers come from and how far it was off where it was tried is on the page `docs/operations/capacity.md`.

use anyhow::Result;
use std::{fmt::Write, process::ExitCode};

/// Microseconds of CPU time that operations take.
mod cost {
    /// A commit of the embedded store with its fsync, and the threads that it wakes. Messages that arrive meanwhile share the next one.
    pub(super) const COMMIT: f64 = 680.0;
    /// A message: its request over HTTP, its decision and its answer.
    pub(super) const MESSAGE: f64 = 60.0;
    /// One write to a session's connection, with what the kernel does for it.
    pub(super) const WRITE: f64 = 8.4;
    /// A session that logs in over WebSocket with a signed token.
    pub(super) const LOGIN: f64 = 75.0;
    /// A decision about a popup over a kept connection: nothing due, and shown.
    pub(super) const POPUP_NOTHING: f64 = 9.0;
    pub(super) const POPUP_SHOWN: f64 = 24.0;
    /// A push that one device is sent and acknowledges.
    pub(super) const PUSHED: f64 = 15.0;
    /// A heartbeat of a device, through a gateway.
    pub(super) const HEARTBEAT: f64 = 28.0;

    /// What an operation takes in a cluster: on the node where it comes in, on each other node, and in PostgreSQL.
    pub(super) struct InCluster {
        pub(super) entry: f64,
        pub(super) each_other: f64,
        pub(super) postgres: f64,
    }
    pub(super) const DIRECT: InCluster = InCluster { entry: 97.0, each_other: 12.0, postgres: 84.0 };
    pub(super) const GROUP: InCluster = InCluster { entry: 97.0, each_other: 12.0, postgres: 140.0 };
    pub(super) const COMING: InCluster = InCluster { entry: 312.0, each_other: 19.0, postgres: 130.0 };
    /// A popup's question on a node that does not lead `popups`, beside the decision on that node.
    pub(super) const POPUP_FORWARDED: f64 = 16.0;
}

/// Bytes of memory.
mod memory {
    pub(super) const IDLE_SERVER: f64 = 80.0 * 1024.0 * 1024.0;
    pub(super) const QUEUES: f64 = 300.0 * 1024.0 * 1024.0;
    pub(super) const SESSION: f64 = 1_900.0;
    pub(super) const DEVICE: f64 = 1_430.0;
    pub(super) const TLS: f64 = 8_400.0;
    /// Of the kernel, on the server's side.
    pub(super) const SOCKET: f64 = 4_500.0;
    pub(super) const POPUP_USER: f64 = 170.0;
}

/// A session's connection is written to at most so often a second: what comes meanwhile is one write.
const WRITES_PER_SESSION_MAX: f64 = 300.0;
/// Beyond about so many messages a second those that arrive during a commit share the next one.
const COMMITS_MAX: f64 = 500.0;
/// More messages a second than these have not been measured on a cluster: all of its commits pass one row of PostgreSQL.
const CLUSTER_MESSAGES_MAX: f64 = 12_000.0;
/// A cluster of fewer nodes cannot spare one.
const NODES_MIN: u32 = 3;
const NODES_MAX: u32 = 64;

/// Estimate the cores, nodes and memory that a load takes, from what its parts took where they were measured
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Plan {
    /// Sessions that are connected at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    sessions: u64,
    /// Devices that are connected over MIOP at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    devices: u64,
    /// The share of sessions and devices that connect with TLS to the server itself, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=100))]
    tls: u64,
    /// Seconds between two heartbeats of a session or device
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    heartbeat: u64,
    /// Logins a second at the busiest time
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    logins: f64,
    /// Direct messages a second, each to one session
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    direct: f64,
    /// Messages to groups and official accounts a second
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    group: f64,
    /// The members of such a group who are connected, on average over its messages
    #[arg(long, value_name = "N", default_value_t = 50)]
    members_online: u64,
    /// Pushes a second, each device that is sent one counted
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    pushes: f64,
    /// Questions for a popup a second
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    popups: f64,
    /// The share of these questions that are answered with a popup, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u64).range(..=100))]
    shown: u64,
    /// Users whom popups know
    #[arg(long, value_name = "N", default_value_t = 0)]
    popup_users: u64,
    /// The cores of a node
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    cores: u32,
    /// How busy these cores may be at the busiest time, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100))]
    busy: u64,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && (0.0..=1e9).contains(rate));
    rate.ok_or_else(|| "a number from 0 to 1000000000".into())
}

/// What one server takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Single {
    pub(crate) cores: f64,
    pub(crate) bytes: f64,
}

/// What a cluster takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cluster {
    pub(crate) nodes: u32,
    /// Of all nodes together.
    pub(crate) cores: f64,
    pub(crate) postgres_cores: f64,
    /// Of each node, when one is away.
    pub(crate) bytes: f64,
}

impl Plan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        print!("{}", self.text());
        Ok(ExitCode::SUCCESS)
    }

    fn messages(&self) -> f64 {
        self.direct + self.group
    }

    fn deliveries(&self) -> f64 {
        self.direct + self.group * self.members_online as f64
    }

    /// Writes to sessions a second: deliveries that come to a session within a few milliseconds are one.
    fn writes(&self) -> f64 {
        let per_session = self.deliveries() / (self.sessions as f64).max(1.0);
        self.deliveries() / (1.0 + per_session / WRITES_PER_SESSION_MAX)
    }

    /// Microseconds a second of what costs the same on one server and on a node of a cluster.
    fn common(&self) -> f64 {
        let heartbeats = (self.sessions + self.devices) as f64 / self.heartbeat as f64;
        let shown = self.popups * self.shown as f64 / 100.0;
        heartbeats * cost::HEARTBEAT
            + self.pushes * cost::PUSHED
            + shown * cost::POPUP_SHOWN
            + (self.popups - shown) * cost::POPUP_NOTHING
    }

    pub(crate) fn single(&self) -> Single {
        let messages = self.messages();
        let commits = messages / (1.0 + messages / COMMITS_MAX);
        let us = commits * cost::COMMIT
            + messages * cost::MESSAGE
            + self.writes() * cost::WRITE
            + self.logins * cost::LOGIN
            + self.common();
        Single { cores: us / 1e6, bytes: self.bytes(1.0) }
    }

    /// The memory of a server with this share of all connections.
    fn bytes(&self, share: f64) -> f64 {
        let connections = (self.sessions + self.devices) as f64;
        let held = self.sessions as f64 * memory::SESSION
            + self.devices as f64 * memory::DEVICE
            + connections * (memory::SOCKET + memory::TLS * self.tls as f64 / 100.0);
        memory::IDLE_SERVER + memory::QUEUES + held * share + self.popup_users as f64 * memory::POPUP_USER
    }

    /// Microseconds a second of all nodes of a cluster.
    fn cluster_us(&self, nodes: u32) -> f64 {
        let others = f64::from(nodes - 1);
        let each = |rate: f64, cost: &cost::InCluster| rate * (cost.entry + cost.each_other * others);
        // A direct message's own write is in its cost.
        let direct_share = self.direct / self.deliveries().max(1.0);
        let forwarded = self.popups * others / f64::from(nodes);
        each(self.direct, &cost::DIRECT)
            + each(self.group, &cost::GROUP)
            + each(self.logins, &cost::COMING)
            + self.writes() * (1.0 - direct_share) * cost::WRITE
            + forwarded * cost::POPUP_FORWARDED
            + self.common()
    }

    /// The smallest cluster that is not busier than allowed while one of its nodes is away; `None`: more nodes do not help.
    pub(crate) fn cluster(&self) -> Option<Cluster> {
        let per_node = f64::from(self.cores) * self.busy as f64 / 100.0;
        let fits = |nodes: &u32| self.cluster_us(*nodes) / 1e6 <= per_node * f64::from(nodes - 1);
        let nodes = (NODES_MIN..=NODES_MAX).find(fits)?;
        let postgres_us = self.direct * cost::DIRECT.postgres
            + self.group * cost::GROUP.postgres
            + self.logins * cost::COMING.postgres;
        Some(Cluster {
            nodes,
            cores: self.cluster_us(nodes) / 1e6,
            postgres_cores: postgres_us / 1e6,
            bytes: self.bytes(1.0 / f64::from(nodes - 1)),
        })
    }

    fn text(&self) -> String {
        let gib = |bytes: f64| bytes / (1024.0 * 1024.0 * 1024.0);
        let busy = self.busy as f64 / 100.0;
        let mut text = String::new();
        let mut line = |line: String| {
            // Writing to memory cannot fail.
            let _ = writeln!(text, "{line}");
        };
        let single = self.single();
        // Of so many cores, of which a part is busy.
        let whole = |cores: f64| match (cores / busy).ceil().max(1.0) {
            1.0 => "1 core".to_owned(),
            cores => format!("{cores} cores"),
        };
        line(format!(
            "one server      {:.2} cores busy: a machine of {}, {:.1} GiB of memory",
            single.cores,
            whole(single.cores),
            gib(single.bytes)
        ));
        match self.cluster() {
            Some(Cluster { nodes, cores, postgres_cores, bytes }) => {
                line(format!(
                    "a cluster       {cores:.2} cores busy on {nodes} nodes of {} cores, which carry it while one of them is away; {:.1} GiB of memory each",
                    self.cores,
                    gib(bytes)
                ));
                let postgres = whole(postgres_cores);
                line(format!(
                    "its PostgreSQL  {postgres_cores:.2} cores busy: {postgres}, and as many for the standby"
                ));
            }
            None => line(format!(
                "a cluster       no number of nodes of {} cores carries this: each node has a share in every message. Take larger nodes",
                self.cores
            )),
        }
        if self.messages() > CLUSTER_MESSAGES_MAX {
            line(format!(
                "                beyond what was measured: a cluster has committed up to {CLUSTER_MESSAGES_MAX} messages a second, on one PostgreSQL"
            ));
        }
        line("Estimates from what was measured on one kind of machine: docs/operations/capacity.md says how, and how far off they were. Try yours with `tidings bench`.".into());
        text
    }
}
