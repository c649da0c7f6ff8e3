//! A cluster as local processes: PostgreSQL with a synchronous standby, a Redis Cluster of six, and nodes.
//!
//! All processes have their data in one folder and end with the lab, however it ends. In reading order: [`place`] is a
//! process's address and namespace, [`placed_command`] starts it there, [`network`] is the network, which can be partitioned; [`postgres`], [`redis`]
//! and [`node`] are the kinds of processes, [`resp`] is a client of Redis, [`cost`] is what a message costs all of
//! them, [`command`] is `tidings cluster`, and [`broker`] a
//! server that others wrote. Faults are injected by `chaos`.

pub(crate) mod broker;
pub(crate) mod command;
pub(crate) mod cost;
mod network;
mod node;
mod place;
mod placed_command;
mod postgres;
mod redis;
mod resp;

use crate::{
    LabError,
    managed_process::ManagedProcess,
    process,
    server::{Target, key_or_random, random_key},
};
use network::Network;
use node::Node;
use place::Place;
use postgres::Postgres;
pub(crate) use postgres::ShutdownMode;
use redis::RedisCluster;
use rustix::process::Signal;
use std::{net::SocketAddr, os::unix::fs::PermissionsExt, path::PathBuf};

/// The options of a topology.
#[derive(Debug, Clone, Default)]
pub(crate) struct TopologySpec {
    pub(crate) nodes: usize,
    /// Whether each process gets its own network namespace, so that it can be partitioned; takes root.
    pub(crate) with_partitions: bool,
    /// The folder of all data; a temporary one unless given.
    pub(crate) folder: Option<PathBuf>,
    /// Settings of all nodes beside those that join them, as environment variables.
    pub(crate) environment: Vec<(String, String)>,
    /// The program that nodes run at first; this program unless given, and after every restart.
    pub(crate) program: Option<PathBuf>,
}

/// What a node is partitioned from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionScope {
    Everything,
    Redis,
    Postgres,
}

/// A running cluster. The order of the fields is the order in which they are dropped.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<Node>,
    pub(crate) redis: RedisCluster,
    /// The primary is `databases[primary]`, the other its standby.
    databases: [Postgres; 2],
    primary: usize,
    network: Network,
    redis_place: Place,
    former_program: Option<PathBuf>,
    pub(crate) api_key: String,
    pub(crate) token_key: String,
    /// Dropped, and so removed, last. Absent: the folder was given, and stays.
    _temporary: Option<tempfile::TempDir>,
    folder: PathBuf,
}

impl Topology {
    /// Starts all processes, and returns when every node is ready. The calling thread must outlive the topology.
    pub(crate) fn start(spec: &TopologySpec) -> Result<Self, LabError> {
        let temporary_folder = match spec.folder {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("tidings-cluster-").tempdir()?),
        };
        let folder = match (&spec.folder, &temporary_folder) {
            (Some(folder), _) => {
                std::fs::create_dir_all(folder)?;
                folder.canonicalize()?
            }
            (None, Some(temporary_folder)) => temporary_folder.path().to_owned(),
            (None, None) => return Err(LabError::Environment("has no folder".into())),
        };
        // PostgreSQL runs as another user, who must be able to reach its own folder in this one.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711))?;
        let mut network = if spec.with_partitions { Network::with_partitions()? } else { Network::on_loopback() };
        let password = random_key();
        let database = |name, network: &mut Network| {
            Postgres::prepare(name, network.place()?, folder.join(format!("postgres-{name}")), &password)
        };
        let mut databases = [database("one", &mut network)?, database("two", &mut network)?];
        databases[0].create()?;
        let [primary, standby] = &mut databases;
        standby.follow(primary)?;
        let redis_place = network.place()?;
        let redis = RedisCluster::start(redis_place, &folder)?;
        let key = |name| key_or_random(&spec.environment, name);
        let (api_key, token_key) = (key("TIDINGS_API_KEY"), key("TIDINGS_TOKEN_KEY"));
        let seeds: Vec<String> = redis.addresses().map(|address| format!("redis://{address}")).collect();
        // No rate limit per user, unless the settings have one: a few users send the load of thousands.
        let mut environment = vec![("TIDINGS_ENGINE_SENDS_PER_SECOND".to_owned(), "0".to_owned())];
        environment.extend(spec.environment.iter().cloned());
        let [one, two] = &databases;
        for (name, value) in [
            ("TIDINGS_API_KEY", api_key.clone()),
            ("TIDINGS_TOKEN_KEY", token_key.clone()),
            ("TIDINGS_STORE_URL", Postgres::url(&[one, two])),
            ("TIDINGS_CLUSTER_REDIS", seeds.join(",")),
            ("TIDINGS_CLUSTER_SECRET", key("TIDINGS_CLUSTER_SECRET")),
        ] {
            environment.push((name.to_owned(), value));
        }
        let mut nodes = Vec::new();
        for number in 0..spec.nodes {
            let mut environment = environment.clone();
            environment.push(("TIDINGS_CLUSTER_NAME".to_owned(), node_name(number)));
            nodes.push(Node::prepare(number, network.place()?, &folder, environment)?);
        }
        let mut topology = Topology {
            nodes,
            redis,
            databases,
            primary: 0,
            network,
            redis_place,
            former_program: spec.program.clone(),
            api_key,
            token_key,
            _temporary: temporary_folder,
            folder,
        };
        // One after another: the first creates the database's tables.
        for number in 0..spec.nodes {
            topology.nodes[number].spawn(spec.program.as_deref())?;
            topology.wait_for_node(number)?;
        }
        Ok(topology)
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Its nodes as a server under test.
    pub(crate) fn target(&self) -> Target {
        let (api_key, token_key) = (self.api_key.clone(), self.token_key.clone());
        Target::Running { addresses: self.addresses(), api_key, token_key }
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Node::http).collect()
    }

    pub(crate) fn database_url(&self) -> String {
        Postgres::url(&[&self.databases[0], &self.databases[1]])
    }

    pub(crate) fn database(&self) -> &Postgres {
        &self.databases[self.primary]
    }

    /// Whether some nodes run this program and others the former one.
    pub(crate) fn has_two_versions(&self) -> bool {
        let new = self.nodes.iter().filter(|node| node.runs_this_program()).count();
        new != 0 && new != self.nodes.len()
    }

    /// Whether nodes may run another program than this one.
    pub(crate) fn may_run_another_version(&self) -> bool {
        self.former_program.is_some()
    }

    /// The process ids of the nodes that run.
    pub(crate) fn node_pids(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().filter_map(Node::pid)
    }

    /// Starts a node as the program that nodes ran at first, without waiting until it is ready.
    pub(crate) fn spawn_former_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].spawn(self.former_program.as_deref())
    }

    /// Starts a node without waiting until it is ready.
    pub(crate) fn spawn_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].spawn(None)
    }

    pub(crate) fn wait_for_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].wait_until_ready()
    }

    pub(crate) fn kill_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].process.kill()
    }

    /// Stops a node, and waits until it has drained.
    pub(crate) fn stop_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].process.drain()
    }

    /// Kills a Redis server that serves slots (`kill -9`); the cluster should promote its replica.
    pub(crate) fn kill_redis_primary(&mut self, choice: usize) -> Result<SocketAddr, LabError> {
        let primaries = self.redis.primaries();
        let Some(number) = primaries.get(choice % primaries.len().max(1)).copied() else {
            return Err(LabError::Environment("Redis has no primary".into()));
        };
        self.redis.kill(number)?;
        Ok(self.redis.address(number))
    }

    pub(crate) fn kill_redis(&mut self) -> Result<(), LabError> {
        self.redis.kill_all()
    }

    /// Starts the Redis servers that do not run, empty, and waits until the cluster is healthy.
    pub(crate) fn start_redis(&mut self) -> Result<(), LabError> {
        self.redis.start_all()?;
        self.redis.wait_until_healthy()
    }

    pub(crate) fn stop_database(&mut self, mode: ShutdownMode) -> Result<(), LabError> {
        self.databases[self.primary].stop(mode)
    }

    pub(crate) fn start_database(&mut self) -> Result<(), LabError> {
        self.databases[self.primary].start()
    }

    /// Kills the primary and promotes the standby. Until [`renew_standby`](Self::renew_standby) there is no standby.
    pub(crate) fn fail_over(&mut self) -> Result<(), LabError> {
        self.databases[self.primary].kill()?;
        self.primary = 1 - self.primary;
        self.databases[self.primary].promote()
    }

    fn primary_and_standby(&mut self) -> (&mut Postgres, &mut Postgres) {
        let [one, two] = &mut self.databases;
        if self.primary == 0 { (one, two) } else { (two, one) }
    }

    /// Makes the former primary the standby, with a new copy of the data.
    pub(crate) fn renew_standby(&mut self) -> Result<(), LabError> {
        let (primary, standby) = self.primary_and_standby();
        standby.follow(primary)
    }

    /// Stops or continues the processes that write to the databases' disks.
    pub(crate) fn freeze_disks(&self, frozen: bool) {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        for pid in self.databases.iter().flat_map(Postgres::writers) {
            process::signal(pid, signal);
        }
    }

    /// Stops a node's process (SIGSTOP), or continues it.
    pub(crate) fn freeze_node(&self, number: usize, frozen: bool) -> Result<(), LabError> {
        let pid =
            self.nodes[number].pid().ok_or_else(|| LabError::Environment(format!("node {number} does not run")))?;
        process::signal(pid, if frozen { Signal::STOP } else { Signal::CONT });
        Ok(())
    }

    pub(crate) fn partition_node(&self, number: usize, from: PartitionScope) -> Result<(), LabError> {
        self.partitioned_places(number, from)
            .into_iter()
            .try_for_each(|place| self.network.partition(self.nodes[number].place, place))
    }

    pub(crate) fn heal_node(&self, number: usize, from: PartitionScope) -> Result<(), LabError> {
        self.partitioned_places(number, from)
            .into_iter()
            .try_for_each(|place| self.network.heal(self.nodes[number].place, place))
    }

    /// The places that a node does not reach while it is partitioned.
    fn partitioned_places(&self, number: usize, from: PartitionScope) -> Vec<Place> {
        let databases = self.databases.iter().map(Postgres::place);
        match from {
            PartitionScope::Redis => vec![self.redis_place],
            PartitionScope::Postgres => databases.collect(),
            PartitionScope::Everything => {
                let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != number);
                let others = others.map(|(_, node)| node.place);
                databases.chain([self.redis_place, self.network.host()]).chain(others).collect()
            }
        }
    }

    /// Processes that ended without being told to, with the end of their logs.
    pub(crate) fn unexpected_ends(&mut self) -> Vec<String> {
        let nodes = self.nodes.iter_mut().map(|node| &mut node.process);
        let databases = self.databases.iter_mut().map(|database| &mut database.process);
        nodes.chain(databases).chain(self.redis.processes()).filter_map(ManagedProcess::unexpected_end).collect()
    }

    /// Stops all processes in order: the nodes drain first, then Redis and PostgreSQL end.
    pub(crate) fn stop(mut self) -> Result<(), LabError> {
        self.nodes.iter_mut().try_for_each(|node| node.process.drain())?;
        self.redis.kill_all()?;
        let (primary, standby) = self.primary_and_standby();
        // The standby is stopped last: the primary's last commit may wait for it.
        primary.stop(ShutdownMode::Fast)?;
        standby.stop(ShutdownMode::Fast)
    }
}

/// `a`, `b`, …
pub(crate) fn node_name(number: usize) -> String {
    match u8::try_from(number) {
        Ok(number) if number < 26 => char::from(b'a' + number).to_string(),
        _ => format!("node-{number}"),
    }
}
