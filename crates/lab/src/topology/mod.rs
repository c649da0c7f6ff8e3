//! A cluster as local processes: PostgreSQL with a synchronous standby, a Redis Cluster of six, and nodes.
//!
//! All of it lives in one folder and dies with the lab, however that ends. In reading order: [`part`] is one
//! process, [`network`] where it lives and what can be cut, [`postgres`], [`redis`] and [`node`] the kinds of parts, [`resp`] how
//! Redis is asked, [`command`] `tidings cluster`. What is done to a cluster under load is `chaos`'s.

pub(crate) mod command;
mod network;
mod node;
mod part;
mod postgres;
mod redis;
pub(crate) mod resp;

use crate::{LabError, args::key_or_random, process, server::random_key};
use network::{Network, Place};
use node::Node;
pub(crate) use postgres::Ending;
use postgres::Postgres;
use redis::RedisCluster;
pub(crate) use redis::SlotRange;
use rustix::process::Signal;
use std::{net::SocketAddr, os::unix::fs::PermissionsExt, path::PathBuf};

/// What a topology consists of.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    /// Each part in a network of its own, so that it can be cut off; takes root.
    pub(crate) with_cuts: bool,
    /// Where it lives; a temporary folder unless given.
    pub(crate) folder: Option<PathBuf>,
    /// Settings of all nodes beside those that join them.
    pub(crate) environment: Vec<(String, String)>,
    /// What nodes run when they are started first; this program unless given, and ever after.
    pub(crate) program: Option<PathBuf>,
}

/// Where something is that a node can be cut off from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Everything,
    Redis,
    Postgres,
}

/// A running cluster. Fields go in the order in which they are stopped.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<Node>,
    pub(crate) redis: RedisCluster,
    /// The primary is `databases[primary]`, the other its standby.
    databases: [Postgres; 2],
    primary: usize,
    network: Network,
    redis_place: Place,
    pub(crate) api_key: String,
    pub(crate) token_key: String,
    /// Goes last. Absent: the folder was given, and stays.
    _temporary: Option<tempfile::TempDir>,
    folder: PathBuf,
}

impl Topology {
    /// Starts everything, and returns when every node is ready. To be called on a thread that outlives it.
    pub(crate) fn start(plan: &Plan) -> Result<Self, LabError> {
        let temporary = match plan.folder {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("tidings-cluster-").tempdir()?),
        };
        let folder = match (&plan.folder, &temporary) {
            (Some(folder), _) => {
                std::fs::create_dir_all(folder)?;
                folder.canonicalize()?
            }
            (None, Some(temporary)) => temporary.path().to_owned(),
            (None, None) => return Err(LabError::Part("has no folder".into())),
        };
        // PostgreSQL's user must be able to reach its own folder in it, and no other.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711))?;
        let mut network = if plan.with_cuts { Network::with_cuts()? } else { Network::on_loopback() };
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
        let key = |name| key_or_random(&plan.environment, name);
        let (api_key, token_key) = (key("TIDINGS_API_KEY"), key("TIDINGS_TOKEN_KEY"));
        let seeds: Vec<String> = redis.addresses().map(|address| format!("redis://{address}")).collect();
        // Few users send what thousands would; who starts it may say otherwise.
        let mut environment = vec![("TIDINGS_ENGINE_SENDS_PER_SECOND".to_owned(), "0".to_owned())];
        environment.extend(plan.environment.iter().cloned());
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
        for number in 0..plan.nodes {
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
            api_key,
            token_key,
            _temporary: temporary,
            folder,
        };
        // One after another: the first makes the tables.
        for number in 0..plan.nodes {
            topology.nodes[number].spawn(plan.program.as_deref())?;
            topology.wait_for_node(number)?;
        }
        Ok(topology)
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
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

    /// The nodes that run.
    pub(crate) fn node_pids(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().filter_map(Node::pid)
    }

    pub(crate) fn can_cut(&self) -> bool {
        self.network.can_cut()
    }

    /// Starts it without waiting until it is ready.
    pub(crate) fn spawn_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].spawn(None)
    }

    pub(crate) fn wait_for_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].wait_until_ready()
    }

    pub(crate) fn kill_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].kill()
    }

    /// Tells it to end, and waits until it has drained.
    pub(crate) fn stop_node(&mut self, number: usize) -> Result<(), LabError> {
        self.nodes[number].stop()
    }

    /// `kill -9` of a server that serves slots; the cluster is to put its replica in its place.
    pub(crate) fn kill_redis_primary(&mut self, choice: usize) -> Result<SocketAddr, LabError> {
        let primaries = self.redis.primaries();
        let Some(number) = primaries.get(choice % primaries.len().max(1)).copied() else {
            return Err(LabError::Part("Redis has no primary".into()));
        };
        self.redis.kill(number)?;
        Ok(self.redis.address(number))
    }

    pub(crate) fn kill_redis(&mut self) -> Result<(), LabError> {
        self.redis.kill_all()
    }

    /// Starts the servers that do not run, empty, and waits until the cluster is whole.
    pub(crate) fn start_redis(&mut self) -> Result<(), LabError> {
        self.redis.start_all()?;
        self.redis.wait_until_whole()
    }

    pub(crate) fn stop_database(&mut self, ending: Ending) -> Result<(), LabError> {
        self.databases[self.primary].stop(ending)
    }

    pub(crate) fn start_database(&mut self) -> Result<(), LabError> {
        self.databases[self.primary].start()
    }

    /// The primary is lost, and the standby takes its place. Until [`renew_standby`](Self::renew_standby) there is none.
    pub(crate) fn fail_over(&mut self) -> Result<(), LabError> {
        self.databases[self.primary].kill()?;
        self.primary = 1 - self.primary;
        self.databases[self.primary].promote()
    }

    /// What was the primary comes back as the standby, with nothing of its own.
    pub(crate) fn renew_standby(&mut self) -> Result<(), LabError> {
        let [one, two] = &mut self.databases;
        let (primary, standby) = if self.primary == 0 { (one, two) } else { (two, one) };
        standby.follow(primary)
    }

    /// Stops, or lets go on, whoever writes to the databases' disks.
    pub(crate) fn freeze_disks(&self, frozen: bool) {
        let signal = if frozen { Signal::STOP } else { Signal::CONT };
        for pid in self.databases.iter().flat_map(Postgres::writers) {
            process::signal(pid, signal);
        }
    }

    /// Stops a node where it stands, or lets it go on.
    pub(crate) fn freeze_node(&self, number: usize, frozen: bool) -> Result<(), LabError> {
        let pid = self.nodes[number].pid().ok_or_else(|| LabError::Part(format!("node {number} does not run")))?;
        process::signal(pid, if frozen { Signal::STOP } else { Signal::CONT });
        Ok(())
    }

    pub(crate) fn cut_node(&self, number: usize, from: From) -> Result<(), LabError> {
        self.beyond(number, from).into_iter().try_for_each(|place| self.network.cut(self.nodes[number].place, place))
    }

    pub(crate) fn join_node(&self, number: usize, from: From) -> Result<(), LabError> {
        self.beyond(number, from).into_iter().try_for_each(|place| self.network.join(self.nodes[number].place, place))
    }

    /// What a node no longer reaches.
    fn beyond(&self, number: usize, from: From) -> Vec<Place> {
        let databases = self.databases.iter().map(Postgres::place);
        match from {
            From::Redis => vec![self.redis_place],
            From::Postgres => databases.collect(),
            From::Everything => {
                let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != number);
                let others = others.map(|(_, node)| node.place);
                databases.chain([self.redis_place, self.network.host()]).chain(others).collect()
            }
        }
    }

    /// What ended without being told to.
    pub(crate) fn unexpected_ends(&mut self) -> Vec<String> {
        let nodes = self.nodes.iter_mut().filter_map(Node::is_as_it_should);
        let databases = self.databases.iter_mut().filter_map(Postgres::is_as_it_should);
        nodes.chain(databases).chain(self.redis.is_as_it_should()).collect()
    }

    /// Stops everything in order: nodes drain, then what they rest on ends.
    pub(crate) fn stop(mut self) -> Result<(), LabError> {
        self.nodes.iter_mut().try_for_each(Node::stop)?;
        self.redis.kill_all()?;
        let [one, two] = &mut self.databases;
        let (primary, standby) = if self.primary == 0 { (one, two) } else { (two, one) };
        // The standby last: the primary's last commit may wait for it.
        primary.stop(Ending::Fast)?;
        standby.stop(Ending::Fast)
    }
}

/// `a`, `b`, …
pub(crate) fn node_name(number: usize) -> String {
    match u8::try_from(number) {
        Ok(number) if number < 26 => char::from(b'a' + number).to_string(),
        _ => format!("node-{number}"),
    }
}
