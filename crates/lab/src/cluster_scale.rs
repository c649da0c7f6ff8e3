//! `bench cluster-scale`: what one operation costs each process of a cluster, in clusters of several sizes. More nodes are more
//! messages only if what a node does for the operations of others stays next to nothing.

use crate::{
    LabError, interrupt,
    offline_push::{
        fake_webhook::FakeWebhook,
        notice::{Notice, NoticeSink},
    },
    options::parse_setting,
    popups::catalogue::{Catalogue, HOME},
    process,
    result::{Check, RunResult, Table},
    setup,
    topology::{Topology, TopologySpec},
};
use clap::Args;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::NodesAnswer;

#[derive(Debug, Clone, Args)]
pub struct ClusterScaleArgs {
    /// The clusters, by how many nodes they have
    #[arg(long, value_delimiter = ',', default_value = "1,3,5")]
    pub nodes: Vec<usize>,
    /// The orders that their databases commit in
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub orders: Vec<u16>,
    /// How often each operation is done
    #[arg(long, default_value_t = 10_000)]
    pub requests: usize,
    /// Requests under way at once, each on a connection of its own
    #[arg(long, default_value_t = 16)]
    pub connections: usize,
    /// The program that nodes run; this one unless given
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
    /// A setting of all nodes, such as TIDINGS_LOG_LEVEL=debug
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
}

const USERS: usize = 2_000;
const GROUP: &str = "scale";
const GROUP_MEMBERS: usize = 300;
const POPUPS: usize = 200;
/// The costs of doing nothing are measured for so long, and taken off.
const IDLE: Duration = Duration::from_secs(5);
/// The wait after the last answer, in which other processes do what the operation has them do.
const SETTLE: Duration = Duration::from_secs(1);
/// The webhook has been notified of all messages so long after the last.
const NOTICES_WITHIN: Duration = Duration::from_secs(60);
/// How often an operation is measured until no function moves meanwhile.
const ATTEMPTS: usize = 5;
/// The functions of a new cluster have found their leaders after so long.
const LEADERS_WITHIN: Duration = Duration::from_secs(60);

/// What is done, and where: by the node that leads the function, or by one that does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    DirectMessage,
    GroupMessage,
    PopupAtTheLeader,
    PopupElsewhere,
    PushAtTheLeader,
    PushElsewhere,
    NotifiedMessage,
}

impl Operation {
    const ALL: [Operation; 7] = [
        Operation::DirectMessage,
        Operation::GroupMessage,
        Operation::PopupAtTheLeader,
        Operation::PopupElsewhere,
        Operation::PushAtTheLeader,
        Operation::PushElsewhere,
        Operation::NotifiedMessage,
    ];

    fn name(self) -> &'static str {
        match self {
            Operation::DirectMessage => "direct message",
            Operation::GroupMessage => "message to a group of 300, nobody there",
            Operation::PopupAtTheLeader => "popup decision at the leader",
            Operation::PopupElsewhere => "popup decision at another node",
            Operation::PushAtTheLeader => "push to a user at the leader",
            Operation::PushElsewhere => "push to a user at another node",
            Operation::NotifiedMessage => "direct message, the webhook notified",
        }
    }

    /// The leader whose work it is.
    fn function(self) -> Option<&'static str> {
        match self {
            Operation::DirectMessage | Operation::GroupMessage => None,
            Operation::PopupAtTheLeader | Operation::PopupElsewhere => Some("popups"),
            Operation::PushAtTheLeader | Operation::PushElsewhere | Operation::NotifiedMessage => Some("push"),
        }
    }

    /// Whether it comes in at a node that does not lead the function, if there is one.
    fn is_elsewhere(self) -> bool {
        matches!(self, Operation::PopupElsewhere | Operation::PushElsewhere | Operation::NotifiedMessage)
    }

    /// Whether a cluster of so many nodes shows it apart from the others.
    fn is_for(self, nodes: usize) -> bool {
        nodes > 1 || !self.is_elsewhere() || self.is_notified()
    }

    /// Whether it is for a cluster with a webhook: there every message would be notified.
    fn is_notified(self) -> bool {
        self == Operation::NotifiedMessage
    }

    fn request(self, number: usize) -> (&'static str, Value) {
        let user = |number: usize| format!("user-{}", number % USERS);
        match self {
            Operation::DirectMessage | Operation::NotifiedMessage => {
                let pair = number % (USERS / 2) * 2;
                ("/v1/messages", json!({ "from": user(pair), "to": user(pair + 1), "body": "hello" }))
            }
            Operation::GroupMessage => {
                let from = user(number % GROUP_MEMBERS);
                ("/v1/messages", json!({ "from": from, "conversation": GROUP, "body": "hello" }))
            }
            // Users of their own: to those who have seen popups, fewer are shown.
            Operation::PopupAtTheLeader | Operation::PopupElsewhere => {
                let user = user(number % (USERS / 2) * 2 + usize::from(self.is_elsewhere()));
                ("/v1/popups/decide", json!({ "user": user, "placement": HOME }))
            }
            Operation::PushAtTheLeader | Operation::PushElsewhere => {
                let to = json!({ "users": [user(number)] });
                ("/v1/push", json!({ "to": to, "type": "scale", "body": {}, "ttl_s": 60 }))
            }
        }
    }
}

pub(crate) fn run(args: &ClusterScaleArgs) -> Result<RunResult, LabError> {
    if args.nodes.contains(&0) || args.orders.contains(&0) || args.connections == 0 || args.requests == 0 {
        return Err(LabError::Usage("--nodes, --orders, --connections and --requests must be at least 1".into()));
    }
    interrupt::install()?;
    let mut result = RunResult::of("cluster-scale");
    let (mut table, mut rows) = (Table::of(COLUMNS), Vec::new());
    for orders in &args.orders {
        for nodes in &args.nodes {
            if interrupt::requested() {
                break;
            }
            for is_notified in [false, true] {
                let mut cluster = Cluster::start(args, *nodes, *orders, is_notified)?;
                let operations = Operation::ALL.into_iter().filter(|operation| operation.is_notified() == is_notified);
                for operation in operations.filter(|operation| operation.is_for(*nodes)) {
                    if interrupt::requested() {
                        break;
                    }
                    let cost = cluster.measure(args, operation)?;
                    table.row(operation.name(), cost.cells(*nodes, *orders));
                    rows.push(cost.figures(operation, *nodes, *orders));
                }
                result.check(cluster.end(format!("{nodes} nodes, {orders} orders"))?);
            }
        }
    }
    result.note("costs", "µs of CPU for one operation, without what the processes take when nothing is done");
    result.table(table);
    result.set_all(json!({ "requests": args.requests, "connections": args.connections, "costs": rows }));
    Ok(result)
}

/// How many notices the webhook of a cluster was sent.
#[derive(Default)]
struct Notices(AtomicUsize);

impl NoticeSink for Notices {
    fn note(&self, notices: &[Notice<'_>]) {
        self.0.fetch_add(notices.len(), Ordering::Relaxed);
    }

    fn fault(&self, problem: String) {
        eprintln!("  ! a call of the webhook cannot be read: {problem}");
    }
}

struct Cluster {
    topology: Topology,
    /// Set: messages to users who are not there are notified.
    webhook: Option<(FakeWebhook, Arc<Notices>)>,
    /// CPU of each process while nothing is done.
    idle: CpuTimes,
    http: HttpClient,
}

impl Cluster {
    fn start(args: &ClusterScaleArgs, nodes: usize, orders: u16, is_notified: bool) -> Result<Self, LabError> {
        let webhook = || {
            let notices = Arc::new(Notices::default());
            Ok::<_, LabError>((FakeWebhook::start(notices.clone())?, notices))
        };
        let webhook = is_notified.then(webhook).transpose()?;
        let mut environment = args.set.clone();
        environment.extend(webhook.iter().flat_map(|(webhook, _)| webhook.settings()));
        environment.push(("TIDINGS_STORE_ORDERS".into(), orders.to_string()));
        let spec = TopologySpec { nodes, environment, program: args.program.clone(), ..TopologySpec::default() };
        let topology = Topology::start(&spec)?;
        let mut http = HttpClient::new(topology.addresses()[0], topology.api_key.clone());
        let users = setup::numbered_ids("user", USERS);
        setup::create_users(&mut http, &users)?;
        setup::create_group(&mut http, GROUP, &users[..GROUP_MEMBERS])?;
        leaders(&topology, &mut http)?;
        // No pause between two popups: the more is shown, the more is counted and stored.
        Catalogue::write(&topology.target(), POPUPS, USERS as u32, 0, |number| users[number as usize].clone())?;
        let mut cluster = Cluster { topology, webhook, idle: CpuTimes::default(), http };
        let before = cluster.cpu_times();
        std::thread::sleep(IDLE);
        cluster.idle = cluster.cpu_times().since(&before).each(IDLE.as_secs_f64());
        Ok(cluster)
    }

    fn end(mut self, part: String) -> Result<Check, LabError> {
        let ended = self.topology.unexpected_ends();
        self.topology.stop()?;
        let check = Check::of_server("processes", "no process ends", ended.is_empty());
        Ok(check.part(part).value(ended.join("; ")))
    }

    fn notices(&self) -> usize {
        self.webhook.as_ref().map_or(0, |(_, notices)| notices.0.load(Ordering::Relaxed))
    }

    /// Waits until so many more notices have come than these.
    fn wait_for_notices(&self, had: usize, count: usize) -> Result<(), LabError> {
        let began = Instant::now();
        while self.webhook.is_some() && self.notices() < had + count {
            if began.elapsed() > NOTICES_WITHIN {
                let came = self.notices() - had;
                return Err(LabError::Server(format!("has sent {came} of {count} notices")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn cpu_times(&self) -> CpuTimes {
        let of = |pid: Option<u32>| pid.map_or(0.0, process::cpu_seconds);
        CpuTimes {
            nodes: self.topology.nodes.iter().map(|node| of(node.pid())).collect(),
            database: self.topology.database().cpu_seconds(),
            redis: self.topology.redis.pids().map(process::cpu_seconds).sum(),
        }
    }

    /// Measures once more where a function has moved to another node meanwhile, as functions of a new cluster do.
    fn measure(&mut self, args: &ClusterScaleArgs, operation: Operation) -> Result<Cost, LabError> {
        for _ in 0..ATTEMPTS {
            if let Some(cost) = self.measure_once(args, operation)? {
                return Ok(cost);
            }
        }
        Err(LabError::Server("moves its functions from node to node all the time".into()))
    }

    fn measure_once(&mut self, args: &ClusterScaleArgs, operation: Operation) -> Result<Option<Cost>, LabError> {
        let leaders = leaders(&self.topology, &mut self.http)?;
        let leader = operation.function().and_then(|function| leaders.iter().find(|(name, _)| name == function));
        let leader = leader.map(|(_, node)| *node);
        let count = self.topology.nodes.len();
        let entry = match leader {
            // Where there is one node, it is the other one, too.
            Some(leader) if operation.is_elsewhere() => (leader + 1) % count,
            Some(leader) => leader,
            None => 0,
        };
        let address = self.topology.addresses()[entry];
        let had = self.notices();
        // Each user once before it counts: conversations are opened, caches filled.
        if !requests(address, &self.topology.api_key, operation, 0..USERS, args.connections)? {
            std::thread::sleep(SETTLE);
            return Ok(None);
        }
        self.wait_for_notices(had, USERS)?;
        std::thread::sleep(SETTLE);
        let had = self.notices();
        let (before, began) = (self.cpu_times(), Instant::now());
        let measured = USERS..USERS + args.requests;
        let is_done = requests(address, &self.topology.api_key, operation, measured, args.connections)?;
        let seconds = began.elapsed().as_secs_f64();
        if is_done {
            self.wait_for_notices(had, args.requests)?;
        }
        std::thread::sleep(SETTLE);
        let (used, elapsed) = (self.cpu_times().since(&before), began.elapsed().as_secs_f64());
        if !is_done || self::leaders(&self.topology, &mut self.http)? != leaders {
            return Ok(None);
        }
        let busy = used.since(&self.idle.each(1.0 / elapsed)).each(args.requests as f64 / 1e6);
        let others = (0..count).filter(|node| *node != entry && Some(*node) != leader);
        let others: Vec<f64> = others.map(|node| busy.nodes[node]).collect();
        Ok(Some(Cost {
            entry: busy.nodes[entry],
            leader: leader.filter(|leader| *leader != entry).map(|leader| busy.nodes[leader]),
            others: (!others.is_empty()).then(|| {
                [others.iter().copied().fold(f64::MAX, f64::min), others.iter().copied().fold(f64::MIN, f64::max)]
            }),
            database: busy.database,
            redis: busy.redis,
            per_second: args.requests as f64 / seconds,
        }))
    }
}

/// Who leads what, once push and popups have leaders.
fn leaders(topology: &Topology, http: &mut HttpClient) -> Result<Vec<(String, usize)>, LabError> {
    let began = Instant::now();
    loop {
        let nodes: NodesAnswer = http.get("/v1/admin/nodes")?;
        let place = |address: &str| topology.nodes.iter().position(|node| node.url() == address);
        let led = nodes.nodes.iter().filter_map(|node| Some((place(&node.address)?, &node.functions)));
        let led: Vec<(String, usize)> =
            led.flat_map(|(place, functions)| functions.iter().map(move |name| (name.clone(), place))).collect();
        if ["push", "popups"].iter().all(|name| led.iter().any(|(led, _)| led == name)) {
            return Ok(led);
        }
        if began.elapsed() > LEADERS_WITHIN {
            return Err(LabError::Server("has no leaders of push and popups".into()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Does an operation so often, as fast as it goes. `false`: a function is moving to another node, and requests were refused.
fn requests(
    address: SocketAddr,
    api_key: &str,
    operation: Operation,
    numbers: std::ops::Range<usize>,
    connections: usize,
) -> Result<bool, LabError> {
    std::thread::scope(|scope| {
        let client = |first: usize| {
            let numbers = numbers.clone().skip(first).step_by(connections);
            scope.spawn(move || {
                let mut http = HttpClient::new(address, api_key.to_owned());
                for number in numbers {
                    let (path, body) = operation.request(number);
                    let answer = http.exchange("POST", path, body.to_string().as_bytes())?;
                    if answer.status == 503 {
                        return Ok(false);
                    }
                    if !(200..300).contains(&answer.status) {
                        let text = String::from_utf8_lossy(&answer.body).into_owned();
                        return Err(LabError::Server(format!("{}: {} {text}", operation.name(), answer.status)));
                    }
                }
                Ok(true)
            })
        };
        let clients: Vec<_> = (0..connections).map(client).collect();
        clients.into_iter().try_fold(true, |all, client| {
            let panicked = |_| Err(LabError::Environment("a thread of requests has panicked".into()));
            Ok(all & client.join().unwrap_or_else(panicked)?)
        })
    })
}

/// CPU seconds of the processes.
#[derive(Debug, Clone, Default)]
struct CpuTimes {
    nodes: Vec<f64>,
    database: f64,
    redis: f64,
}

impl CpuTimes {
    fn since(&self, before: &CpuTimes) -> CpuTimes {
        let each = self.nodes.iter().zip(&before.nodes);
        CpuTimes {
            nodes: each.map(|(now, then)| now - then).collect(),
            database: self.database - before.database,
            redis: self.redis - before.redis,
        }
    }

    fn each(&self, parts: f64) -> CpuTimes {
        CpuTimes {
            nodes: self.nodes.iter().map(|node| node / parts).collect(),
            database: self.database / parts,
            redis: self.redis / parts,
        }
    }
}

const COLUMNS: &str =
    "operation|nodes|orders|a second|where it comes in|the leader|other nodes, least|most|PostgreSQL|Redis";

/// Microseconds of CPU for one operation. A little less than nothing where a process took more while it was idle.
struct Cost {
    entry: f64,
    leader: Option<f64>,
    /// Of the other nodes the one that it costs least, and the one that it costs most: they lead other functions.
    others: Option<[f64; 2]>,
    /// The primary.
    database: f64,
    redis: f64,
    per_second: f64,
}

impl Cost {
    fn cells(&self, nodes: usize, orders: u16) -> Vec<String> {
        let cost = |us: Option<f64>| us.map_or("-".into(), |us| format!("{us:.1}"));
        let counts = [nodes.to_string(), orders.to_string(), format!("{:.0}", self.per_second)];
        let [least, most] = [0, 1].map(|place| self.others.map(|others| others[place]));
        let costs = [Some(self.entry), self.leader, least, most, Some(self.database), Some(self.redis)];
        counts.into_iter().chain(costs.map(cost)).collect()
    }

    fn figures(&self, operation: Operation, nodes: usize, orders: u16) -> Value {
        json!({
            "operation": operation.name(), "nodes": nodes, "orders": orders, "per_second": self.per_second,
            "entry_us": self.entry, "leader_us": self.leader, "others_us": self.others,
            "database_us": self.database, "redis_us": self.redis,
        })
    }
}
