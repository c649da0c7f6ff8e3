//! A Redis Cluster of six: three primaries with a replica each, nothing kept on disk.

use super::{
    network::Place,
    part::{self, Part, Port},
    resp::Redis,
};
use crate::{LabError, server::LOOK_AGAIN};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub(super) const PRIMARIES: usize = 3;
const SERVERS: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;
/// A primary that is silent for so long is taken to be gone, and its replica takes over.
const NODE_TIMEOUT_MS: u32 = 2_000;
const PATIENCE: Duration = Duration::from_secs(120);
/// They drop an introduction that takes longer than a silent primary is waited for.
const INTRODUCE_AGAIN: Duration = Duration::from_secs(5);

/// The first slot and the last.
pub(crate) type SlotRange = (i64, i64);

/// One server of the cluster.
#[derive(Debug)]
struct Server {
    part: Part,
    folder: PathBuf,
    port: Port,
    bus_port: Port,
}

#[derive(Debug)]
pub(crate) struct RedisCluster {
    place: Place,
    servers: Vec<Server>,
}

impl RedisCluster {
    /// Starts the servers and makes them a cluster.
    pub(super) fn start(place: Place, folder: &Path) -> Result<Self, LabError> {
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let folder = folder.join(format!("redis-{number}"));
            std::fs::create_dir_all(&folder)?;
            let (port, bus_port) = (Port::of(place, 7001 + number as u16)?, Port::of(place, 17_001 + number as u16)?);
            let part = Part::new(format!("Redis {number}"), folder.join("log"));
            servers.push(Server { part, folder, port, bus_port });
        }
        let mut cluster = RedisCluster { place, servers };
        cluster.start_all()?;
        cluster.meet()?;
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(|server| server.port.at)
    }

    fn launch(&mut self, number: usize) -> Result<(), LabError> {
        let server = &mut self.servers[number];
        let mut command = part::command(self.place, None, "KILL", Path::new("redis-server"));
        let (port, bus_port) = (server.port.number().to_string(), server.bus_port.number().to_string());
        let address = server.port.at.ip().to_string();
        command
            .current_dir(&server.folder)
            .args(["--port", &port, "--cluster-port", &bus_port, "--bind", &address])
            // The network is the run's own, or the loopback.
            .args(["--protected-mode", "no", "--daemonize", "no", "--save", "", "--appendonly", "no"])
            .args(["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"])
            .args(["--cluster-node-timeout", &NODE_TIMEOUT_MS.to_string()])
            // What is left of the cluster goes on when a part of its slots is gone.
            .args(["--cluster-require-full-coverage", "no", "--cluster-allow-pubsubshard-when-down", "yes"]);
        server.part.start(command)?;
        let address = server.port.at;
        server.part.wait_until(PATIENCE, || Redis::connect(address).and_then(|mut redis| redis.ask("PING")).is_ok())
    }

    /// Starts whoever does not run.
    pub(super) fn start_all(&mut self) -> Result<(), LabError> {
        for number in 0..self.servers.len() {
            if self.servers[number].part.pid().is_none() {
                self.launch(number)?;
            }
        }
        Ok(())
    }

    fn ask(&self, number: usize, line: &str) -> Result<String, LabError> {
        let mut redis = Redis::connect(self.address(number))?;
        Ok(redis.ask(line)?.text().to_owned())
    }

    /// Gives out the slots, introduces the servers to each other and gives each primary its replica.
    fn meet(&self) -> Result<(), LabError> {
        for number in 0..PRIMARIES {
            let (first, last) = (number * SLOTS / PRIMARIES, (number + 1) * SLOTS / PRIMARIES - 1);
            self.ask(number, &format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
        }
        for number in 0..SERVERS {
            self.ask(number, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
        }
        let first = &self.servers[0];
        let meet = format!("CLUSTER MEET {} {} {}", first.port.at.ip(), first.port.number(), first.bus_port.number());
        let mut introduced: Option<Instant> = None;
        self.wait("the servers do not know each other", |cluster| {
            if introduced.is_none_or(|at| at.elapsed() > INTRODUCE_AGAIN) {
                introduced = Some(Instant::now());
                let strangers = (1..SERVERS).filter(|number| !cluster.knows_all(*number));
                strangers.for_each(|number| _ = cluster.ask(number, &meet));
            }
            (0..SERVERS).all(|number| cluster.knows_all(number))
        })?;
        for number in PRIMARIES..SERVERS {
            let primary = self.ask(number - PRIMARIES, "CLUSTER MYID")?;
            self.ask(number, &format!("CLUSTER REPLICATE {primary}"))?;
        }
        Ok(())
    }

    fn knows_all(&self, number: usize) -> bool {
        let known = |line: &&str| line.contains(" connected") && !line.contains("handshake");
        self.ask(number, "CLUSTER NODES").is_ok_and(|nodes| nodes.lines().filter(known).count() == SERVERS)
    }

    /// Waits until all slots are served, by everybody's word, and each primary has a replica that follows.
    pub(super) fn wait_until_whole(&self) -> Result<(), LabError> {
        self.wait("the cluster is not whole", |cluster| {
            let mut followers = 0;
            for number in 0..SERVERS {
                let Ok(info) = cluster.ask(number, "CLUSTER INFO") else { return false };
                let Ok(role) = cluster.ask(number, "INFO replication") else { return false };
                let whole = format!("cluster_slots_ok:{SLOTS}");
                if !info.contains("cluster_state:ok") || !info.contains(&whole) {
                    return false;
                }
                followers += usize::from(role.contains("master_link_status:up"));
            }
            followers == SERVERS - PRIMARIES
        })
    }

    fn wait(&self, why: &str, mut done: impl FnMut(&Self) -> bool) -> Result<(), LabError> {
        let started = Instant::now();
        while !done(self) {
            if started.elapsed() > PATIENCE {
                let nodes = self.ask(0, "CLUSTER NODES").unwrap_or_default();
                return Err(LabError::Part(format!("Redis: {why}:\n{nodes}")));
            }
            std::thread::sleep(LOOK_AGAIN * 20);
        }
        Ok(())
    }

    /// The servers that serve slots now.
    pub(crate) fn primaries(&self) -> Vec<usize> {
        let is_primary = |number: &usize| {
            self.ask(*number, "INFO replication").is_ok_and(|role| role.contains("role:master"))
                && self.ask(*number, "CLUSTER NODES").is_ok_and(|nodes| {
                    nodes.lines().any(|line| line.contains("myself,master") && line.split(' ').count() > 8)
                })
        };
        (0..SERVERS).filter(is_primary).collect()
    }

    /// Where the primaries are, and from which slot to which each serves.
    pub(crate) fn primaries_with_slots(&self) -> Result<Vec<(SocketAddr, Vec<SlotRange>)>, LabError> {
        let mut primaries = Vec::new();
        for number in self.primaries() {
            let nodes = self.ask(number, "CLUSTER NODES")?;
            let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
            let range = |text: &str| {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                Some((first.parse().ok()?, last.parse().ok()?))
            };
            primaries.push((self.address(number), own.split(' ').skip(8).filter_map(range).collect()));
        }
        Ok(primaries)
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.servers.iter().filter_map(|server| server.part.pid())
    }

    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        self.servers[number].port.at
    }

    /// `kill -9` of one server.
    pub(super) fn kill(&mut self, number: usize) -> Result<(), LabError> {
        self.servers[number].part.kill()
    }

    /// `kill -9` of all; what they held is gone.
    pub(super) fn kill_all(&mut self) -> Result<(), LabError> {
        self.servers.iter_mut().try_for_each(|server| server.part.kill())
    }

    pub(super) fn is_as_it_should(&mut self) -> Option<String> {
        let ended = |server: &mut Server| !server.part.is_as_it_should();
        let gone = self.servers.iter_mut().position(ended)?;
        Some(format!("{}: {}", self.servers[gone].part.name(), self.servers[gone].part.last_words()))
    }
}
