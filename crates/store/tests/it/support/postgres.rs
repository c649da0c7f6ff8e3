//! A PostgreSQL server of the tests' own, from the system's packages. It lives in a temporary folder and is reached through a
//! socket there. It ends with the last test that holds it, or with the test's process, however that ends.

use parking_lot::Mutex;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tidings_store::{PostgresOptions, PostgresStore};

const START_TIMEOUT: Duration = Duration::from_secs(300);
/// A time-out that no test reaches, however slow the machine is.
pub(crate) const NO_TIMEOUT: Duration = Duration::from_secs(600);

/// A server. Its superuser is `postgres`.
pub(crate) struct PostgresServer {
    folder: tempfile::TempDir,
    programs: PathBuf,
    settings: Vec<String>,
    /// The port of TCP if the server listens there, and in any case the end of its socket's name.
    port: String,
    /// The unprivileged user that the server runs as if the tests run as root.
    user: Option<(u32, u32)>,
    running: Mutex<Option<JoinHandle<()>>>,
    databases: AtomicU32,
}

/// A store on the database, with partitions of one day and connections for a few threads.
pub(crate) fn open_at(url: &str) -> PostgresStore {
    PostgresStore::open(options_at(url)).unwrap()
}

pub(crate) fn options_at(url: &str) -> PostgresOptions {
    PostgresOptions {
        outbox: true,
        connections: 4,
        part_days: 1,
        // A test of one of these sets it. In all others a slow machine must not look like a database that is away.
        acquire_timeout: NO_TIMEOUT,
        connect_timeout: NO_TIMEOUT,
        statement_timeout: NO_TIMEOUT,
        lock_timeout: NO_TIMEOUT,
        idle_in_transaction_timeout: NO_TIMEOUT,
        silent_after: NO_TIMEOUT,
        ..PostgresOptions::new(url)
    }
}

static SHARED: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());

impl PostgresServer {
    /// The server that the tests of one binary share; for tests that neither stop nor configure it.
    pub(crate) fn shared() -> Arc<PostgresServer> {
        let mut shared = SHARED.lock();
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(PostgresServer::start(&["fsync=off", "synchronous_commit=on", "full_page_writes=off"]));
        *shared = Arc::downgrade(&server);
        server
    }

    pub(crate) fn start(settings: &[&str]) -> PostgresServer {
        let server = PostgresServer::prepare(settings);
        let mut initdb = server.command("initdb");
        initdb.arg("-D").arg(server.data()).args(["-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"]);
        run(initdb.arg("--locale=C"));
        server.launch();
        server
    }

    /// Starts a standby that the primary's commits wait for from now on.
    pub(crate) fn synchronous_standby(&self, settings: &[&str]) -> PostgresServer {
        let standby = self.standby(settings);
        let primary = self.url("postgres");
        self.sql(&primary, "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql(&primary, "SELECT pg_reload_conf()");
        self.wait_for_standbys("sync_state = 'sync'", 1);
        standby
    }

    /// Starts a standby that commits do not wait for.
    pub(crate) fn standby(&self, settings: &[&str]) -> PostgresServer {
        let standby = PostgresServer::prepare(settings);
        let mut copy = standby.command("pg_basebackup");
        copy.args(["-U", "postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-h"]).arg(self.folder.path());
        run(copy.env("PGPORT", &self.port).arg("-D").arg(standby.data()));
        let others = self.standbys("state = 'streaming'");
        standby.launch();
        self.wait_for_standbys("state = 'streaming'", others + 1);
        standby
    }

    /// Waits until a standby has replayed all that this server has committed.
    pub(crate) fn wait_for_replay(&self, standby: &PostgresServer) {
        let newest = self.sql(&self.url("postgres"), "SELECT pg_current_wal_flush_lsn()");
        let has_replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{newest}'");
        let deadline = Instant::now() + START_TIMEOUT;
        while standby.sql(&standby.url("postgres"), &has_replayed) != "t" {
            assert!(Instant::now() < deadline, "the standby does not follow");
        }
    }

    fn standbys(&self, state: &str) -> u64 {
        let count = format!("SELECT count(*) FROM pg_stat_replication WHERE {state}");
        self.sql(&self.url("postgres"), &count).parse().unwrap()
    }

    fn wait_for_standbys(&self, state: &str, wanted: u64) {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.standbys(state) != wanted {
            assert!(Instant::now() < deadline, "the standby does not follow");
        }
    }

    /// Makes a standby the primary.
    pub(crate) fn promote(&self) {
        run(self.command("pg_ctl").args(["promote", "-w", "-D"]).arg(self.data()));
    }

    /// The url of a database that is on either of two servers, whichever takes writes.
    pub(crate) fn url_with(&self, other: &PostgresServer, database: &str) -> String {
        let hosts = [self, other].map(|server| server.folder.path().display().to_string().replace('/', "%2F"));
        let [one, two] = hosts;
        format!("postgres://postgres@{one},{two}/{database}?target_session_attrs=read-write")
    }

    /// Makes the folder of a server, and chooses the user that runs it.
    fn prepare(settings: &[&str]) -> PostgresServer {
        let programs = programs();
        let user = rustix::process::getuid().is_root().then(postgres_user);
        // In memory where possible: the disk is not tested here.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        if let Some((user, group)) = user {
            chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let port = settings.iter().find_map(|setting| setting.strip_prefix("port=")).unwrap_or("5432").to_owned();
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let running = Mutex::new(None);
        PostgresServer { folder, programs, settings, port, user, running, databases: AtomicU32::new(0) }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// One of the server's programs, as the server's user.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command.env("PGPORT", &self.port);
        command.current_dir(self.folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Starts the server, and returns when it answers.
    pub(crate) fn launch(&self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.answers() {
            assert!(Instant::now() < deadline, "no answer; see {}", self.folder.path().join("log").display());
            let mut running = self.running.lock();
            // After a kill, processes of the old server may keep the new one from starting for a moment.
            if running.as_ref().is_none_or(JoinHandle::is_finished) {
                *running = Some(self.spawn());
            }
            drop(running);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The thread waits as long as the server runs: the death signal is bound to the thread that spawned it.
    fn spawn(&self) -> JoinHandle<()> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "SIGINT"]);
        if let Some((user, group)) = self.user {
            command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
        }
        command.arg(self.programs.join("postgres")).arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        let common = ["listen_addresses=", "shared_buffers=32MB", "max_connections=1000", "logging_collector=off"];
        for setting in common.into_iter().chain(self.settings.iter().map(String::as_str)) {
            command.args(["-c", setting]);
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        std::thread::spawn(move || {
            let _ = command.spawn().unwrap().wait();
        })
    }

    fn answers(&self) -> bool {
        let mut ready = self.command("pg_isready");
        ready.args(["-q", "-U", "postgres", "-h"]).arg(self.folder.path()).status().unwrap().success()
    }

    /// The folder of its socket.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// A database that commits in so many orders.
    pub(crate) fn database_in_orders(&self, orders: u16) -> String {
        let url = self.database();
        drop(PostgresStore::open(PostgresOptions { orders, ..options_at(&url) }).unwrap());
        url
    }

    /// A new, empty database; answers its url.
    pub(crate) fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        run(self.command("createdb").args(["-U", "postgres", "-h"]).arg(self.folder.path()).arg(&name));
        self.url(&name)
    }

    /// Writes a file that belongs to the server's user.
    pub(crate) fn write_file(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let file = self.folder.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((user, group)) = self.user {
            chown(&file, Some(user), Some(group)).unwrap();
        }
        file
    }

    pub(crate) fn url(&self, database: &str) -> String {
        let socket = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{socket}:{}/{database}", self.port)
    }

    /// Runs statements as the superuser; answers their output.
    pub(crate) fn sql(&self, url: &str, sql: &str) -> String {
        let mut psql = self.command("psql");
        let output =
            psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]).stdout(Stdio::piped());
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Waits until a session of this database has this wait event in `pg_stat_activity`.
    pub(crate) fn wait_for_event(&self, url: &str, event: &str) {
        let waits = format!("wait_event = '{event}' AND datname = current_database()");
        let deadline = Instant::now() + START_TIMEOUT;
        while self.sql(url, &format!("SELECT count(*) FROM pg_stat_activity WHERE {waits}")) == "0" {
            assert!(Instant::now() < deadline, "no session waits for {event}");
        }
    }

    /// Holds the locks of this statement until the returned value is dropped.
    pub(crate) fn hold(&self, url: &str, lock: &str) -> HeldLock {
        let mut psql = self.command("psql");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = HeldLock(psql.spawn().unwrap());
        writeln!(held.0.stdin.as_mut().unwrap(), "BEGIN; {lock}; \\echo held").unwrap();
        let mut output = BufReader::new(held.0.stdout.take().unwrap()).lines();
        assert!(output.any(|line| line.unwrap() == "held"), "the statement took no lock");
        held
    }

    /// Kills the server, as a loss of power would end it; only the operating system's buffers survive.
    pub(crate) fn kill(&self) {
        self.end("KILL");
    }

    /// Shuts the server down cleanly; its connections are closed.
    pub(crate) fn stop(&self) {
        self.end("INT");
    }

    fn end(&self, signal: &str) {
        let Some(running) = self.running.lock().take() else { return };
        if let Ok(text) = fs::read_to_string(self.data().join("postmaster.pid")) {
            let pid = text.lines().next().unwrap_or_default().to_owned();
            let _ = Command::new("kill").args(["-s", signal, &pid]).stderr(Stdio::null()).status();
        }
        running.join().unwrap();
    }
}

/// A transaction that holds its locks.
pub(crate) struct HeldLock(Child);

impl Drop for HeldLock {
    fn drop(&mut self) {
        // psql ends at the end of its input, and its transaction is rolled back.
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(command: &mut Command) {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The folder of the newest installed version's programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    let newest = newest.expect("PostgreSQL is not installed: `make setup` says how");
    Path::new("/usr/lib/postgresql").join(newest.to_string()).join("bin")
}

/// The user and group `postgres` of Debian: the server refuses to run as root.
fn postgres_user() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:")).expect("there is no user postgres");
    let mut numbers = line.split(':').skip(2).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
