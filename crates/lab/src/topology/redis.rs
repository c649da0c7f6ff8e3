//! A Redis Cluster of six servers: three primaries with a replica each, without persistence.

use super::{place::Place, placed_command, resp};
use crate::{
    LabError,
    managed_process::{ManagedProcess, POLL_INTERVAL},
    reserved_port::ReservedPort,
};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub(super) const PRIMARIES: usize = 3;
const SERVERS: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;
/// A primary that is silent for so long counts as failed, and its replica takes over.
const NODE_TIMEOUT_MS: u32 = 2_000;
const PATIENCE: Duration = Duration::from_secs(120);
/// `CLUSTER MEET` is repeated after this: servers drop a handshake that takes longer than the node time-out.
const INTRODUCE_AGAIN: Duration = Duration::from_secs(5);

/// One server of the cluster.
#[derive(Debug)]
struct Server {
    process: ManagedProcess,
    folder: PathBuf,
    port: ReservedPort,
    bus_port: ReservedPort,
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
            let (port, bus_port) = (place.reserve(7001 + number as u16)?, place.reserve(17_001 + number as u16)?);
            let process = ManagedProcess::new(format!("Redis {number}"), folder.join("log"));
            servers.push(Server { process, folder, port, bus_port });
        }
        let mut cluster = RedisCluster { place, servers };
        cluster.start_all()?;
        cluster.form_cluster()?;
        cluster.wait_until_healthy()?;
        Ok(cluster)
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(|server| server.port.at)
    }

    fn launch(&mut self, number: usize) -> Result<(), LabError> {
        let server = &mut self.servers[number];
        let mut command = placed_command::command(self.place, None, "KILL", Path::new("redis-server"));
        let (port, bus_port) = (server.port.number().to_string(), server.bus_port.number().to_string());
        let address = server.port.at.ip().to_string();
        command
            .current_dir(&server.folder)
            .args(["--port", &port, "--cluster-port", &bus_port, "--bind", &address])
            // The servers are reachable only in the run's own network, or on the loopback.
            .args(["--protected-mode", "no", "--daemonize", "no", "--save", "", "--appendonly", "no"])
            .args(["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"])
            .args(["--cluster-node-timeout", &NODE_TIMEOUT_MS.to_string()])
            // The rest of the cluster must serve its slots when others are not served.
            .args(["--cluster-require-full-coverage", "no", "--cluster-allow-pubsubshard-when-down", "yes"]);
        server.process.start(command)?;
        let address = server.port.at;
        server.process.wait_until(PATIENCE, LabError::Environment, || resp::execute(address, "PING").is_ok())
    }

    /// Starts the servers that do not run.
    pub(super) fn start_all(&mut self) -> Result<(), LabError> {
        for number in 0..self.servers.len() {
            if self.servers[number].process.pid().is_none() {
                self.launch(number)?;
            }
        }
        Ok(())
    }

    fn execute(&self, number: usize, line: &str) -> Result<String, LabError> {
        Ok(resp::execute(self.address(number), line)?)
    }

    /// Assigns the slots, has the servers meet, and gives each primary its replica.
    fn form_cluster(&self) -> Result<(), LabError> {
        for number in 0..PRIMARIES {
            let (first, last) = (number * SLOTS / PRIMARIES, (number + 1) * SLOTS / PRIMARIES - 1);
            self.execute(number, &format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
        }
        for number in 0..SERVERS {
            self.execute(number, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
        }
        let first = &self.servers[0];
        let meet = format!("CLUSTER MEET {} {} {}", first.port.at.ip(), first.port.number(), first.bus_port.number());
        let mut introduced: Option<Instant> = None;
        self.wait("the servers do not know each other", |cluster| {
            if introduced.is_none_or(|at| at.elapsed() > INTRODUCE_AGAIN) {
                introduced = Some(Instant::now());
                let strangers = (1..SERVERS).filter(|number| !cluster.knows_all(*number));
                strangers.for_each(|number| _ = cluster.execute(number, &meet));
            }
            (0..SERVERS).all(|number| cluster.knows_all(number))
        })?;
        for number in PRIMARIES..SERVERS {
            let primary = self.execute(number - PRIMARIES, "CLUSTER MYID")?;
            self.execute(number, &format!("CLUSTER REPLICATE {primary}"))?;
        }
        Ok(())
    }

    fn knows_all(&self, number: usize) -> bool {
        let known = |line: &&str| line.contains(" connected") && !line.contains("handshake");
        self.execute(number, "CLUSTER NODES").is_ok_and(|nodes| nodes.lines().filter(known).count() == SERVERS)
    }

    /// Waits until every server reports that all slots are served, and each primary has a connected replica.
    pub(super) fn wait_until_healthy(&self) -> Result<(), LabError> {
        self.wait("the cluster is not whole", |cluster| {
            let mut followers = 0;
            for number in 0..SERVERS {
                let Ok(info) = cluster.execute(number, "CLUSTER INFO") else { return false };
                let Ok(role) = cluster.execute(number, "INFO replication") else { return false };
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
                let nodes = self.execute(0, "CLUSTER NODES").unwrap_or_default();
                return Err(LabError::Environment(format!("Redis: {why}:\n{nodes}")));
            }
            std::thread::sleep(POLL_INTERVAL * 20);
        }
        Ok(())
    }

    /// The numbers of the servers that serve slots now.
    pub(crate) fn primaries(&self) -> Vec<usize> {
        let is_primary = |number: &usize| {
            self.execute(*number, "INFO replication").is_ok_and(|role| role.contains("role:master"))
                && self.execute(*number, "CLUSTER NODES").is_ok_and(|nodes| {
                    nodes.lines().any(|line| line.contains("myself,master") && line.split(' ').count() > 8)
                })
        };
        (0..SERVERS).filter(is_primary).collect()
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.servers.iter().filter_map(|server| server.process.pid())
    }

    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        self.servers[number].port.at
    }

    /// Kills one server (`kill -9`).
    pub(super) fn kill(&mut self, number: usize) -> Result<(), LabError> {
        self.servers[number].process.kill()
    }

    /// Kills all servers (`kill -9`); their data is lost.
    pub(super) fn kill_all(&mut self) -> Result<(), LabError> {
        self.processes().try_for_each(ManagedProcess::kill)
    }

    pub(super) fn processes(&mut self) -> impl Iterator<Item = &mut ManagedProcess> {
        self.servers.iter_mut().map(|server| &mut server.process)
    }
}
