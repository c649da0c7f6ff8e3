//! The real program, in a process and a folder of its own for each test.
#![allow(unreachable_pub)]

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    time::Duration,
};
use tidings_client::{http::HttpClient, session::Session, token::sign};

pub const API_KEY: &str = "the-key-of-the-app";
pub const TOKEN_KEY: &str = "the secret that the app signs with";

/// The exit code of a bench that fell behind its schedule, as it may on a busy machine: its figures do not count, its balances do.
pub const FELL_BEHIND: i32 = 3;

/// Whether a bench with this exit code found every count in balance.
pub fn balances(code: Option<i32>) -> bool {
    matches!(code, Some(0 | FELL_BEHIND))
}

pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// The program, with this folder's settings and none of the caller's.
    pub fn program(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidings"));
        command
            .args(arguments)
            .env_clear()
            .env("TIDINGS_HTTP_LISTEN", "127.0.0.1:0")
            .env("TIDINGS_MIOP_LISTEN", "127.0.0.1:0")
            .env("TIDINGS_DATA_DIR", self.data())
            // A session that a test leaves alone on a slow machine stays.
            .env("TIDINGS_SESSION_HEARTBEAT_MS", "1800000")
            .env("TIDINGS_SESSION_PROBE_TIMEOUT_MS", "0")
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.program(arguments).output().unwrap()
    }

    pub fn serve(&self) -> Server {
        let mut command = self.program(&[
            "serve",
            "--backup-dir",
            self.path().join("backups").to_str().unwrap(),
            "--drain-deadline-ms",
            // A stop that is late fails: no client of these tests keeps one waiting.
            "30000",
        ]);
        Server::start(command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY))
    }
}

pub struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub address: SocketAddr,
}

impl Server {
    /// The address of another listener, from the `listening` file.
    pub fn listener(&self, folder: &Folder, name: &str) -> SocketAddr {
        let listening = std::fs::read_to_string(folder.data().join("listening")).unwrap();
        let address = listening.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        address.unwrap_or_else(|| panic!("no {name} in {listening:?}")).parse().unwrap()
    }

    /// Starts the server and waits until it prints its addresses.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening http=").unwrap_or_else(|| panic!("it said {line:?}"));
        Server { child, stdout, address: address.parse().unwrap() }
    }

    pub fn http(&self) -> HttpClient {
        HttpClient::new(self.address, API_KEY)
    }

    pub fn session(&self, user: &str, cursor: Option<&str>) -> Session {
        let token = sign(TOKEN_KEY, user, Duration::from_secs(24 * 60 * 60));
        Session::open(self.address, &token, "d1", cursor).unwrap()
    }

    pub fn resident_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the process to end; returns its exit status and the rest of its output.
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
