//! One node: a server like the others, on a port that stays its own over restarts.

use super::{
    network::Place,
    part::{self, Part, Port},
};
use crate::LabError;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tidings_client::http::HttpClient;

/// A debug build on a busy machine.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// One question whether it is ready.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Node {
    pub(super) place: Place,
    folder: PathBuf,
    http: Port,
    miop: Port,
    part: Part,
    environment: Vec<(String, String)>,
}

impl Node {
    /// `environment`: what all nodes have in common.
    pub(super) fn prepare(
        number: usize,
        place: Place,
        folder: &Path,
        mut environment: Vec<(String, String)>,
    ) -> Result<Self, LabError> {
        let folder = folder.join(format!("node-{number}"));
        std::fs::create_dir_all(&folder)?;
        let (http, miop) = (Port::of(place, 8080)?, Port::of(place, 8081)?);
        let mut set = |name: &str, value: String| environment.push((name.to_owned(), value));
        set("TIDINGS_HTTP_LISTEN", http.at.to_string());
        set("TIDINGS_MIOP_LISTEN", miop.at.to_string());
        set("TIDINGS_DATA_DIR", folder.join("data").display().to_string());
        set("TIDINGS_CLUSTER_ADVERTISE", format!("http://{}", http.at));
        let part = Part::new(format!("node {number}"), folder.join("log"));
        Ok(Node { place, folder, http, miop, part, environment })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.http.at)
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.http.at
    }

    pub(crate) fn miop(&self) -> SocketAddr {
        self.miop.at
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.part.pid()
    }

    /// Starts the process without waiting for it: of another program, or of this one.
    pub(super) fn spawn(&mut self, program: Option<&Path>) -> Result<(), LabError> {
        let program = match program {
            Some(program) => program.canonicalize()?,
            None => std::env::current_exe()?,
        };
        let mut command = part::command(self.place, None, "KILL", &program);
        command.arg("serve").envs(self.environment.iter().cloned()).current_dir(&self.folder);
        self.part.start(command)
    }

    pub(super) fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let mut asking = HttpClient::new(self.http(), "");
        asking.set_timeout(ASK_TIMEOUT);
        self.part.wait_until(READY_TIMEOUT, || asking.is_ready())
    }

    pub(super) fn kill(&mut self) -> Result<(), LabError> {
        self.part.kill()
    }

    /// SIGTERM, and waits for the drain.
    pub(super) fn stop(&mut self) -> Result<(), LabError> {
        match self.part.stop(rustix::process::Signal::TERM, STOP_TIMEOUT)? {
            true => Ok(()),
            false => Err(LabError::Server(format!("did not end after SIGTERM: {}", self.part.last_words()))),
        }
    }

    pub(super) fn is_as_it_should(&mut self) -> Option<String> {
        match self.part.is_as_it_should() {
            true => None,
            false => Some(format!("{}: {}", self.part.name(), self.part.last_words())),
        }
    }
}
