//! A MariaDB server of the tests' own, from the system's packages. It lives in a temporary folder and is reached through a socket there.
//! It ends with the last test that holds it, or with the test's process, however that ends.

use parking_lot::Mutex;
use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

const START_TIMEOUT: Duration = Duration::from_secs(300);

/// A server. Its superuser is `root`, without a password.
pub(crate) struct MariadbServer {
    folder: tempfile::TempDir,
    running: Mutex<Option<JoinHandle<()>>>,
    databases: AtomicU32,
}

static SHARED: Mutex<Weak<MariadbServer>> = Mutex::new(Weak::new());

impl MariadbServer {
    /// The server that the tests of one binary share; for tests that do not stop it.
    pub(crate) fn shared() -> Arc<MariadbServer> {
        let mut shared = SHARED.lock();
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(MariadbServer::start());
        *shared = Arc::downgrade(&server);
        server
    }

    pub(crate) fn start() -> MariadbServer {
        // In memory where possible: the disk is not tested here.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let server = MariadbServer { folder, running: Mutex::default(), databases: AtomicU32::new(0) };
        let mut install = program("mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.arg(format!("--datadir={}", server.path("data"))).args(server.user());
        run(&mut install, "");
        server.launch();
        server
    }

    /// Tests that run as root have it run as root: it owns its folder.
    fn user(&self) -> Option<&'static str> {
        rustix::process::getuid().is_root().then_some("--user=root")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Starts the server, and returns when it answers.
    pub(crate) fn launch(&self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.answers() {
            assert!(Instant::now() < deadline, "no answer; see {}", self.path("log"));
            let mut running = self.running.lock();
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
        command.args(["--pdeathsig", "SIGTERM"]).arg(find("mariadbd")).arg("--no-defaults");
        command.arg(format!("--datadir={}", self.path("data"))).arg(format!("--socket={}", self.path("socket")));
        command.arg(format!("--pid-file={}", self.path("pid"))).args(self.user());
        command.args([
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=16M",
            "--max-connections=200",
        ]);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        std::thread::spawn(move || {
            let _ = command.spawn().unwrap().wait();
        })
    }

    fn client(&self) -> Command {
        let mut command = program("mariadb");
        command.args(["--no-defaults", "--user=root"]).arg(format!("--socket={}", self.path("socket")));
        command
    }

    fn answers(&self) -> bool {
        let mut asked = self.client();
        asked.args(["-e", "SELECT 1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().unwrap().success()
    }

    /// A new, empty database; answers its url.
    pub(crate) fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        run(self.client().args(["-e", &format!("CREATE DATABASE {name}")]), "");
        format!("mysql://root@localhost/{name}?socket={}", self.path("socket"))
    }

    /// Runs a script in the database of a url.
    pub(crate) fn run_script(&self, url: &str, script: &str) {
        let name = url.rsplit('/').find_map(|part| part.strip_prefix("test")).unwrap_or_default();
        let name = format!("test{}", name.split('?').next().unwrap_or_default());
        run(self.client().arg(name), script);
    }

    /// Kills the server; only the operating system's buffers survive.
    pub(crate) fn kill(&self) {
        self.end("KILL");
    }

    fn end(&self, signal: &str) {
        let Some(running) = self.running.lock().take() else { return };
        if let Ok(pid) = fs::read_to_string(self.path("pid")) {
            let _ = Command::new("kill").args(["-s", signal, pid.trim()]).stderr(Stdio::null()).status();
        }
        running.join().unwrap();
    }
}

impl Drop for MariadbServer {
    fn drop(&mut self) {
        self.end("TERM");
    }
}

/// What is for administrators is not on everybody's path.
fn find(name: &str) -> String {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found =
        folders.into_iter().map(|folder| format!("{folder}/{name}")).find(|path| fs::exists(path).unwrap_or(false));
    found.unwrap_or_else(|| panic!("{name} is not installed: `make setup` says how"))
}

fn program(name: &str) -> Command {
    Command::new(find(name))
}

fn run(command: &mut Command, input: &str) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
