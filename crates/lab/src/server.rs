//! The server under test: one that runs already, or one that the bench starts on a temporary folder.

use crate::{
    LabError, interrupt,
    managed_process::{ManagedProcess, READY_TIMEOUT},
    options::TargetArgs,
    process,
    reserved_port::ReservedPort,
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

/// The server under test.
#[derive(Debug)]
pub(crate) enum Target {
    /// A server that runs already: at least one address; several are nodes of one cluster.
    Running { addresses: Vec<SocketAddr>, api_key: String, token_key: String },
    /// A server that the bench started.
    Own(Box<OwnServer>),
}

impl Target {
    /// The server that `--url` names, or one that is started.
    pub(crate) fn resolve(args: &TargetArgs) -> Result<Self, LabError> {
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

    /// The address of the server, or of the first of several.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            // There is at least one: splitting `--url` yields at least one part.
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

    /// The process id of a server that the bench started.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Target::Running { .. } => None,
            Target::Own(own) => own.pid(),
        }
    }

    /// Stops a server that the bench started, and checks its folder. A server that ran already is left alone.
    pub(crate) fn finish(self) -> Result<Option<StoreCheck>, LabError> {
        match self {
            Target::Running { .. } => Ok(None),
            Target::Own(mut own) => {
                own.stop()?;
                own.check().map(Some)
            }
        }
    }
}

/// The result of `tidings check` on the folder after the run.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct StoreCheck {
    pub(crate) passed: bool,
    #[serde(rename = "said")]
    pub(crate) output: String,
}

/// A server process on a temporary folder.
#[derive(Debug)]
pub(crate) struct OwnServer {
    /// Before its folder, which goes when the process has ended.
    process: ManagedProcess,
    folder: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) api_key: String,
    pub(crate) token_key: String,
    /// Settings beside those that every bench gives its server, as environment variables.
    environment: Vec<(String, String)>,
    /// How many files the process may open; unset: as many as the bench.
    descriptors: Option<u64>,
    /// The core that the process is pinned to.
    core: Option<usize>,
    /// Where it listens for HTTP and for MIOP, at each start: clients find it again.
    ports: [ReservedPort; 2],
}

impl OwnServer {
    pub(crate) fn start() -> Result<Self, LabError> {
        OwnServer::start_with(Vec::new(), None)
    }

    pub(crate) fn start_with(environment: Vec<(String, String)>, descriptors: Option<u64>) -> Result<Self, LabError> {
        OwnServer::start_as(environment, descriptors, None)
    }

    /// `core`: the only one that it runs on, for runs whose load client has another.
    pub(crate) fn start_as(
        environment: Vec<(String, String)>,
        descriptors: Option<u64>,
        core: Option<usize>,
    ) -> Result<Self, LabError> {
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ports = [ReservedPort::any(localhost)?, ReservedPort::any(localhost)?];
        let folder = tempfile::Builder::new().prefix("tidings-bench-").tempdir()?;
        let mut server = OwnServer {
            process: ManagedProcess::new("process", folder.path().join("server.log")),
            folder,
            address: ports[0].at,
            api_key: key_or_random(&environment, "TIDINGS_API_KEY"),
            token_key: key_or_random(&environment, "TIDINGS_TOKEN_KEY"),
            environment,
            descriptors,
            core,
            ports,
        };
        std::fs::create_dir_all(server.data_dir())?;
        server.launch()?;
        Ok(server)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// What the server logs.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.process.log().to_owned()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The address of one of the server's listeners.
    pub(crate) fn listen_address(&self, listener: &str) -> Option<SocketAddr> {
        read_listen_address(&self.data_dir().join("listening"), listener)
    }

    /// Starts the process and waits until it is ready; returns how long that took.
    pub(crate) fn launch(&mut self) -> Result<Duration, LabError> {
        let started = Instant::now();
        self.spawn()?;
        self.wait_until_ready()?;
        Ok(started.elapsed())
    }

    /// Starts the process without waiting until it is ready.
    pub(crate) fn spawn(&mut self) -> Result<(), LabError> {
        let listening = self.data_dir().join("listening");
        // The file of a server that was killed names ports that it no longer has.
        let _ = std::fs::remove_file(&listening);
        let program = std::env::current_exe()?;
        let mut command = match self.descriptors {
            None => Command::new(program),
            // The shell sets the limit and then becomes the server.
            Some(descriptors) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")).arg(program);
                shell
            }
        };
        command
            .arg("serve")
            .env("TIDINGS_HTTP_LISTEN", self.ports[0].at.to_string())
            .env("TIDINGS_MIOP_LISTEN", self.ports[1].at.to_string())
            .env("TIDINGS_DATA_DIR", self.data_dir())
            .env("TIDINGS_API_KEY", &self.api_key)
            .env("TIDINGS_TOKEN_KEY", &self.token_key)
            // No rate limit per user: a few users send the load of thousands.
            .env("TIDINGS_ENGINE_SENDS_PER_SECOND", "0")
            .envs(self.environment.iter().cloned())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        if interrupt::is_installed() {
            command.process_group(0);
        }
        match self.core {
            None => self.process.start(command),
            Some(core) => process::run_on_core(core, || self.process.start(command))?,
        }
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let (listening, mut ready) = (self.data_dir().join("listening"), None);
        self.process.wait_until(READY_TIMEOUT, LabError::Server, || {
            ready = read_listen_address(&listening, "http").filter(|at| HttpClient::new(*at, "").is_ready());
            ready.is_some()
        })?;
        self.address = ready.unwrap_or(self.address);
        Ok(())
    }

    /// Kills the process (`kill -9`), and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<(), LabError> {
        self.process.kill()
    }

    /// Sends SIGTERM, and waits until the server has drained and ended.
    pub(crate) fn stop(&mut self) -> Result<(), LabError> {
        self.process.drain()
    }

    /// Runs `tidings check` on the folder of the stopped server.
    pub(crate) fn check(&self) -> Result<StoreCheck, LabError> {
        let result = Command::new(std::env::current_exe()?)
            .arg("check")
            .arg(self.data_dir())
            .env("TIDINGS_DATA_DIR", self.data_dir())
            .current_dir(self.folder.path())
            .output()?;
        let output = format!("{}{}", String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
        Ok(StoreCheck { passed: result.status.success(), output: output.trim().to_owned() })
    }
}

/// The address that a server's `listen_address` file gives for one of its listeners.
pub(crate) fn read_listen_address(file: &Path, listener: &str) -> Option<SocketAddr> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(listener)?.strip_prefix('='))?.trim().parse().ok()
}

pub(crate) fn random_key() -> String {
    format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>())
}

/// The last non-empty setting of that name, or a new random key.
pub(crate) fn key_or_random(settings: &[(String, String)], name: &str) -> String {
    let given = settings.iter().rfind(|(known, value)| known == name && !value.is_empty());
    given.map_or_else(random_key, |(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_the_settings_is_used_and_a_missing_one_is_random() {
        let settings = [("TIDINGS_API_KEY", "a"), ("TIDINGS_API_KEY", "b"), ("TIDINGS_TOKEN_KEY", "")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(key_or_random(&settings, "TIDINGS_API_KEY"), "b");
        assert_eq!(key_or_random(&settings, "TIDINGS_TOKEN_KEY").len(), 64);
    }
}
