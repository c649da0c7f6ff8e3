//! The server under test: one that runs already, or one that the bench starts on a folder of its own.

use crate::{
    LabError,
    args::{TargetArgs, key_or_random},
    process,
};
use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

/// Opening a folder of ten million messages takes seconds; a debug build is slower.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Draining and closing the store.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A server to be loaded.
#[derive(Debug)]
pub(crate) enum Target {
    /// At least one address; several are nodes of one cluster.
    Running {
        addresses: Vec<SocketAddr>,
        api_key: String,
        token_key: String,
    },
    Own(Box<OwnServer>),
}

impl Target {
    /// The server that the options name, or a new one.
    pub(crate) fn find(args: &TargetArgs) -> Result<Self, LabError> {
        let Some(url) = &args.url else { return Ok(Target::Own(Box::new(OwnServer::start()?))) };
        let addresses = url.split(',').map(|url| {
            let authority = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
            let address = authority.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
            address.ok_or_else(|| LabError::Usage(format!("--url {url}: no such address")))
        });
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let need = |what: &Option<String>, name| {
            what.clone().ok_or_else(|| LabError::Usage(format!("--url also needs {name}")))
        };
        Ok(Target::Running {
            addresses,
            api_key: need(&args.api_key, "--api-key")?,
            token_key: need(&args.token_key, "--token-key")?,
        })
    }

    /// The server, or the first of several.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            // There is at least one: a url is never nothing.
            Target::Running { addresses, .. } => addresses[0],
            Target::Own(own) => own.address,
        }
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Target::Running { addresses, .. } => addresses.clone(),
            Target::Own(own) => vec![own.address],
        }
    }

    pub(crate) fn keys(&self) -> (&str, &str) {
        match self {
            Target::Running { api_key, token_key, .. } => (api_key, token_key),
            Target::Own(own) => (&own.api_key, &own.token_key),
        }
    }

    pub(crate) fn http(&self) -> HttpClient {
        HttpClient::new(self.address(), self.keys().0)
    }

    /// The process id, of a server of our own.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Target::Running { .. } => None,
            Target::Own(own) => own.pid(),
        }
    }

    /// Ends a server of our own and checks its folder. A server that ran already is left alone.
    pub(crate) fn finish(self) -> Result<Option<Check>, LabError> {
        match self {
            Target::Running { .. } => Ok(None),
            Target::Own(mut own) => {
                own.stop()?;
                own.check().map(Some)
            }
        }
    }
}

/// What `tidings check` said about the folder after the run.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Check {
    pub(crate) passed: bool,
    pub(crate) said: String,
}

/// A server process on a temporary folder.
#[derive(Debug)]
pub(crate) struct OwnServer {
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub(crate) address: SocketAddr,
    pub(crate) api_key: String,
    pub(crate) token_key: String,
    /// Settings beyond those of every bench.
    environment: Vec<(String, String)>,
    /// Files that the process may open; unset: as many as the bench.
    descriptors: Option<u64>,
    /// The only core that it may use.
    core: Option<usize>,
}

impl OwnServer {
    pub(crate) fn start() -> Result<Self, LabError> {
        OwnServer::start_with(Vec::new(), None)
    }

    pub(crate) fn start_with(environment: Vec<(String, String)>, descriptors: Option<u64>) -> Result<Self, LabError> {
        OwnServer::start_as(environment, descriptors, None)
    }

    /// With one core for itself, when the load has the other.
    pub(crate) fn start_on_core(environment: Vec<(String, String)>, core: usize) -> Result<Self, LabError> {
        OwnServer::start_as(environment, None, Some(core))
    }

    fn start_as(
        environment: Vec<(String, String)>,
        descriptors: Option<u64>,
        core: Option<usize>,
    ) -> Result<Self, LabError> {
        let mut server = OwnServer {
            folder: tempfile::Builder::new().prefix("tidings-bench-").tempdir()?,
            child: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            api_key: key_or_random(&environment, "TIDINGS_API_KEY"),
            token_key: key_or_random(&environment, "TIDINGS_TOKEN_KEY"),
            environment,
            descriptors,
            core,
        };
        std::fs::create_dir_all(server.data_dir())?;
        server.launch()?;
        Ok(server)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Where one of its doors listens.
    pub(crate) fn listening(&self, door: &str) -> Option<SocketAddr> {
        read_listening(&self.data_dir().join("listening"), door)
    }

    /// Starts the process and waits until it is ready; returns how long that took.
    pub(crate) fn launch(&mut self) -> Result<Duration, LabError> {
        let started = Instant::now();
        self.spawn()?;
        self.wait_until_ready()?;
        Ok(started.elapsed())
    }

    /// Starts the process without waiting for anything.
    pub(crate) fn spawn(&mut self) -> Result<(), LabError> {
        let listening = self.data_dir().join("listening");
        // What a killed server left behind names a port that is no longer its.
        let _ = std::fs::remove_file(&listening);
        let log = std::fs::File::create(self.folder.path().join("server.log"))?;
        let program = std::env::current_exe()?;
        let mut command = match self.descriptors {
            None => Command::new(program),
            // A limit that the process is born with: the shell sets it and becomes the server.
            Some(descriptors) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")).arg(program);
                shell
            }
        };
        command
            .arg("serve")
            .env("TIDINGS_HTTP_LISTEN", "127.0.0.1:0")
            .env("TIDINGS_MIOP_LISTEN", "127.0.0.1:0")
            .env("TIDINGS_DATA_DIR", self.data_dir())
            .env("TIDINGS_API_KEY", &self.api_key)
            .env("TIDINGS_TOKEN_KEY", &self.token_key)
            // Few users send what thousands would.
            .env("TIDINGS_ENGINE_SENDS_PER_SECOND", "0")
            .envs(self.environment.iter().cloned())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = match self.core {
            None => command.spawn(),
            Some(core) => process::on_core(core, || command.spawn())?,
        };
        self.child = Some(child?);
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let listening = self.data_dir().join("listening");
        let started = Instant::now();
        let Some(child) = &mut self.child else { return Err(LabError::Server("was not started".into())) };
        loop {
            if let Some(address) = read_listening(&listening, "http") {
                self.address = address;
                if HttpClient::new(address, "").is_ready() {
                    return Ok(());
                }
            }
            if let Some(status) = child.try_wait()? {
                return Err(LabError::Server(format!("ended with {status}: {}", log_tail(self.folder.path()))));
            }
            if started.elapsed() > READY_TIMEOUT {
                return Err(LabError::Server(format!("was not ready in time: {}", log_tail(self.folder.path()))));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// `kill -9`, and waits for the end.
    pub(crate) fn kill(&mut self) -> Result<(), LabError> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the drain.
    pub(crate) fn stop(&mut self) -> Result<(), LabError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        process::terminate(child.id());
        let asked = Instant::now();
        while child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_TIMEOUT {
                return Err(LabError::Server("did not end after SIGTERM".into()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        self.child = None;
        Ok(())
    }

    /// `tidings check` on the folder of a stopped server.
    pub(crate) fn check(&self) -> Result<Check, LabError> {
        let output = Command::new(std::env::current_exe()?)
            .arg("check")
            .arg(self.data_dir())
            .env("TIDINGS_DATA_DIR", self.data_dir())
            .current_dir(self.folder.path())
            .output()?;
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Ok(Check { passed: output.status.success(), said: said.trim().to_owned() })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // Reached with a process only when the bench failed; its folder goes next.
        let _ = self.kill();
    }
}

/// The address that a server's `listening` file gives for one of its doors.
pub(crate) fn read_listening(file: &Path, door: &str) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(door)?.strip_prefix('='))?.trim().parse().ok()
}

fn log_tail(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join("server.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

pub(crate) fn random_key() -> String {
    format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>())
}
