//! One node of the cluster: a Tidings server whose ports stay the same over restarts.

use super::{place::Place, placed_command};
use crate::{
    LabError,
    managed_process::{ManagedProcess, READY_TIMEOUT},
    reserved_port::ReservedPort,
};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tidings_client::http::HttpClient;

/// The longest wait for one answer about readiness.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Node {
    pub(super) place: Place,
    folder: PathBuf,
    http: ReservedPort,
    miop: ReservedPort,
    link: ReservedPort,
    pub(super) process: ManagedProcess,
    /// Whether the process runs this program, not another one.
    runs_this_program: bool,
    environment: Vec<(String, String)>,
}

impl Node {
    /// `environment`: the settings that all nodes have in common.
    pub(super) fn prepare(
        number: usize,
        place: Place,
        folder: &Path,
        mut environment: Vec<(String, String)>,
    ) -> Result<Self, LabError> {
        let folder = folder.join(format!("node-{number}"));
        std::fs::create_dir_all(&folder)?;
        let (http, miop) = (place.reserve(8080)?, place.reserve(8081)?);
        let link = place.reserve(8090)?;
        let mut set = |name: &str, value: String| environment.push((name.to_owned(), value));
        set("TIDINGS_HTTP_LISTEN", http.at.to_string());
        set("TIDINGS_MIOP_LISTEN", miop.at.to_string());
        set("TIDINGS_LINK_LISTEN", link.at.to_string());
        set("TIDINGS_DATA_DIR", folder.join("data").display().to_string());
        set("TIDINGS_CLUSTER_ADVERTISE", format!("http://{}", http.at));
        let process = ManagedProcess::new(format!("node {number}"), folder.join("log"));
        Ok(Node { place, folder, http, miop, link, process, runs_this_program: true, environment })
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

    /// Where gateways attach.
    pub(crate) fn link(&self) -> SocketAddr {
        self.link.at
    }

    /// Whether the node runs this program, not another one.
    pub(super) fn runs_this_program(&self) -> bool {
        self.runs_this_program
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Starts the process, of this program or another one, without waiting until it is ready.
    pub(super) fn spawn(&mut self, program: Option<&Path>) -> Result<(), LabError> {
        self.runs_this_program = program.is_none();
        let program = match program {
            Some(program) => program.canonicalize()?,
            None => std::env::current_exe()?,
        };
        let mut command = placed_command::command(self.place, None, "KILL", &program);
        command.arg("serve").envs(self.environment.iter().cloned()).current_dir(&self.folder);
        self.process.start(command)
    }

    pub(super) fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let mut asking = HttpClient::new(self.http(), "");
        asking.set_timeout(ASK_TIMEOUT);
        self.process.wait_until(READY_TIMEOUT, LabError::Environment, || asking.is_ready())
    }
}
