//! Redis servers for tests, from the system's packages: a single server, or a cluster of three primaries with a replica each.
//! They store nothing, run in a temporary folder on free ports, and end with their owner or with the test's process.

use socket2::{Domain, Socket, Type};
use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc::sync_channel,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(300);
/// When a silent primary counts as failed: so late that none does that runs, however slowly.
const NODE_TIMEOUT_MS: &str = "60000";
/// The same in tests that let a primary fail.
const FAILING_NODE_TIMEOUT_MS: &str = "5000";
/// The same while the cluster forms: servers then exchange what they know more often.
const FORMING_NODE_TIMEOUT_MS: &str = "1500";
const PRIMARIES: usize = 3;

/// Waits until the condition holds, and fails the test if that takes too long.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port that no other process gets while this value lives, even while no server listens on it. The socket is bound without
/// `SO_REUSEADDR`, which is set afterwards: that lets in only a server that sets the option too, as Redis does.
pub(crate) struct Port {
    pub(crate) number: u16,
    _held: Socket,
}

impl Port {
    pub(crate) fn take() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.set_reuse_address(true).unwrap();
        Port { number: socket.local_addr().unwrap().as_socket().unwrap().port(), _held: socket }
    }
}

pub(crate) struct RedisServer {
    folder: tempfile::TempDir,
    pub(crate) port: Port,
    bus_port: Port,
    settings: Vec<String>,
    /// 0 while the server does not run.
    pid: AtomicU32,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl RedisServer {
    /// A single server without a cluster, with settings such as `["--maxclients", "10"]`.
    pub(crate) fn start(settings: &[&str]) -> Self {
        let server = Self {
            folder: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
            port: Port::take(),
            bus_port: Port::take(),
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            pid: AtomicU32::new(0),
            running: Mutex::new(None),
        };
        server.go();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.number)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::SeqCst)
    }

    pub(crate) fn runs(&self) -> bool {
        self.pid() != 0
    }

    /// Starts the server, empty, and returns when it answers.
    pub(crate) fn go(&self) {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "redis-server", "--save", "", "--appendonly", "no"]);
        command.args(["--bind", "127.0.0.1", "--port", &self.port.number.to_string()]);
        command.args(["--cluster-port", &self.bus_port.number.to_string(), "--dir"]).arg(self.folder.path());
        command.args(&self.settings).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (started, pid) = sync_channel(1);
        // The thread waits as long as the server runs: the death signal is sent when the spawning thread ends.
        let waits = std::thread::spawn(move || {
            let mut child = command.spawn().expect("setpriv and redis-server are installed");
            started.send(child.id()).unwrap();
            child.wait().unwrap();
        });
        self.pid.store(pid.recv().unwrap(), Ordering::SeqCst);
        wait_until("redis-server answers", || {
            assert!(!waits.is_finished(), "redis-server ended by itself");
            self.ask(&["PING"]) == "PONG"
        });
        *self.running.lock().unwrap() = Some(waits);
    }

    /// `kill -9`. Returns when the process is gone.
    pub(crate) fn kill(&self) {
        if self.runs() {
            self.signal("KILL");
        }
        if let Some(waits) = self.running.lock().unwrap().take() {
            waits.join().unwrap();
        }
        self.pid.store(0, Ordering::SeqCst);
    }

    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).expect("it runs");
        let signal = match signal {
            "KILL" => rustix::process::Signal::KILL,
            "STOP" => rustix::process::Signal::STOP,
            _ => rustix::process::Signal::CONT,
        };
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The output of `redis-cli`, without the final newline. A paused server never answers.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &self.port.number.to_string()]).args(words).stderr(Stdio::null());
        let out = cli.stdin(Stdio::null()).output().expect("redis-cli is installed").stdout;
        String::from_utf8_lossy(&out).trim_end().to_owned()
    }

    /// A field of `INFO` or `CLUSTER INFO`.
    pub(crate) fn field(&self, command: &[&str], name: &str) -> String {
        let answer = self.ask(command);
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    }

    /// The number of client connections, without the one that asks and those of replicas.
    pub(crate) fn clients(&self) -> usize {
        let list = self.ask(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count();
        let subscribed = self.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        (list + subscribed.lines().filter(|line| !line.is_empty()).count()).saturating_sub(1)
    }

    /// The CPU time that the server has used, in seconds.
    #[allow(dead_code, reason = "the bench reads it")]
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let field = |name| self.field(&["INFO", "cpu"], name).parse::<f64>().unwrap_or_default();
        field("used_cpu_sys") + field("used_cpu_user")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Servers 0, 1 and 2 start as primaries of a third of the slots each; 3, 4 and 5 as their replicas.
pub(crate) struct RedisCluster {
    pub(crate) servers: Vec<RedisServer>,
}

impl RedisCluster {
    pub(crate) fn start() -> Self {
        Self::start_with(NODE_TIMEOUT_MS)
    }

    /// A cluster in which a replica takes over from a primary that is silent for seconds.
    pub(crate) fn failing_over() -> Self {
        Self::start_with(FAILING_NODE_TIMEOUT_MS)
    }

    fn start_with(node_timeout_ms: &str) -> Self {
        let all = [
            ["--cluster-enabled", "yes"],
            ["--cluster-node-timeout", node_timeout_ms],
            ["--cluster-replica-validity-factor", "0"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        let cluster = Self { servers: (0..2 * PRIMARIES).map(|_| RedisServer::start(all.as_flattened())).collect() };
        cluster.form(node_timeout_ms);
        cluster
    }

    fn set_node_timeout(&self, ms: &str) {
        for server in &self.servers {
            assert_eq!(server.ask(&["CONFIG", "SET", "cluster-node-timeout", ms]), "OK");
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(RedisServer::url).collect()
    }

    fn form(&self, node_timeout_ms: &str) {
        self.set_node_timeout(FORMING_NODE_TIMEOUT_MS);
        let first = &self.servers[0];
        for (index, server) in self.servers.iter().enumerate() {
            server.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < PRIMARIES {
                let (from, to) = (16_384 * index / PRIMARIES, 16_384 * (index + 1) / PRIMARIES - 1);
                server.ask(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
            }
            let (port, bus_port) = (server.port.number.to_string(), server.bus_port.number.to_string());
            first.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]);
        }
        let all = self.servers.len().to_string();
        for server in &self.servers {
            wait_until("all know all", || server.field(&["CLUSTER", "INFO"], "cluster_known_nodes") == all);
        }
        for server in &self.servers {
            wait_until("all are well", || server.field(&["CLUSTER", "INFO"], "cluster_state") == "ok");
        }
        // Before there are replicas, which would take over from a slow primary.
        self.set_node_timeout(node_timeout_ms);
        for index in PRIMARIES..self.servers.len() {
            let primary = self.servers[index - PRIMARIES].ask(&["CLUSTER", "MYID"]);
            let replicate = ["CLUSTER", "REPLICATE", &primary];
            wait_until("the replica knows its primary", || self.servers[index].ask(&replicate) == "OK");
        }
        self.wait_until_whole();
    }

    /// Waits until every running server reports a healthy cluster, running servers serve every slot, and every replica is
    /// connected to its primary.
    pub(crate) fn wait_until_whole(&self) {
        let whole = |server: &RedisServer| {
            let role = server.field(&["INFO", "replication"], "role");
            let follows = role == "master" || server.field(&["INFO", "replication"], "master_link_status") == "up";
            follows && server.field(&["CLUSTER", "INFO"], "cluster_state") == "ok" && self.served_by_running(server)
        };
        let running = || self.servers.iter().filter(|server| server.runs());
        wait_until("the cluster is whole", || running().all(whole));
    }

    fn served_by_running(&self, server: &RedisServer) -> bool {
        let nodes = server.ask(&["CLUSTER", "NODES"]);
        let fine = |line: &str| {
            let mut words = line.split(' ');
            let (address, flags) = (words.nth(1).unwrap_or_default(), words.next().unwrap_or_default());
            let port = address.split('@').next().and_then(|at| at.rsplit(':').next()).unwrap_or_default();
            let owns = words.count() > 5;
            !(flags.contains("master") && owns)
                || (!flags.contains("fail") && self.server(port).is_some_and(RedisServer::runs))
        };
        nodes.lines().all(fine)
    }

    fn server(&self, port: &str) -> Option<&RedisServer> {
        self.servers.iter().find(|server| server.port.number.to_string() == port)
    }

    /// The primary with a subscriber of the channel that ends so.
    pub(crate) fn owner_of(&self, channel_end: &str) -> &RedisServer {
        let listens = |server: &&RedisServer| {
            server.runs()
                && server.ask(&["PUBSUB", "SHARDCHANNELS"]).lines().any(|channel| channel.ends_with(channel_end))
        };
        self.servers.iter().find(listens).expect("somebody listens")
    }

    pub(crate) fn kill_all(&self) {
        self.servers.iter().for_each(RedisServer::kill);
    }

    /// Starts all servers again, empty. They remember which server owns which slots.
    pub(crate) fn start_all(&self) {
        for server in self.servers.iter().filter(|server| !server.runs()) {
            server.go();
        }
        self.wait_until_whole();
    }
}
