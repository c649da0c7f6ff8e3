//! A server that others wrote, for comparison: mosquitto or nats-server, on a port and in a folder of its own.

use super::{place::Place, placed_command};
use crate::{LabError, managed_process::ManagedProcess, reserved_port::ReservedPort};
use serde::Deserialize;
use std::{
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// A kind of server that others wrote, by its program as scenarios name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum BrokerKind {
    #[serde(rename = "mosquitto")]
    Mosquitto,
    #[serde(rename = "nats-server")]
    Nats,
}

impl BrokerKind {
    /// The program, which is also the name of Debian's package.
    pub(crate) fn program(self) -> &'static str {
        match self {
            BrokerKind::Mosquitto => "mosquitto",
            BrokerKind::Nats => "nats-server",
        }
    }

    /// The driver that it is spoken to with.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            BrokerKind::Mosquitto => "mqtt",
            BrokerKind::Nats => "nats",
        }
    }

    /// The settings beside the address, all others being the program's own.
    pub(crate) fn settings(self) -> &'static str {
        match self {
            BrokerKind::Mosquitto => {
                "allow_anonymous true, persistence false, max_queued_messages 0, set_tcp_nodelay true"
            }
            BrokerKind::Nats => "as it comes",
        }
    }

    /// Where the program is. Debian puts servers where only administrators look.
    fn path(self) -> Result<PathBuf, LabError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
        let found = folders.map(|folder| folder.join(self.program())).find(|file| file.is_file());
        let name = self.program();
        found.ok_or_else(|| {
            LabError::Usage(format!("{name} is not installed; on Debian, as root: apt-get install {name}"))
        })
    }

    /// The version that the program names.
    pub(crate) fn version(self) -> Result<String, LabError> {
        let flag = if self == BrokerKind::Mosquitto { "-h" } else { "--version" };
        let output = Command::new(self.path()?).arg(flag).output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let words = text.split_whitespace().map(|word| word.trim_start_matches('v'));
        let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
        Ok(words.into_iter().find(is_version).unwrap_or("?").to_owned())
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Broker {
    process: ManagedProcess,
    port: ReservedPort,
    _folder: tempfile::TempDir,
}

impl Broker {
    pub(crate) fn start(kind: BrokerKind) -> Result<Self, LabError> {
        let program = kind.path()?;
        let folder = tempfile::Builder::new().prefix("tidings-bench-").tempdir()?;
        let port = Place::loopback().reserve(0)?;
        let mut process = ManagedProcess::new(kind.program(), folder.path().join("log"));
        process.start(command(kind, &program, folder.path(), port.at)?)?;
        process.wait_until(Duration::from_secs(60), LabError::Environment, || TcpStream::connect(port.at).is_ok())?;
        Ok(Broker { process, port, _folder: folder })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.at
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().unwrap_or(0)
    }
}

fn command(kind: BrokerKind, program: &Path, folder: &Path, at: SocketAddr) -> Result<Command, LabError> {
    let mut command = placed_command::command(Place::loopback(), None, "KILL", program);
    command.current_dir(folder);
    match kind {
        BrokerKind::Mosquitto => {
            let mut text = format!("listener {} {}\n", at.port(), at.ip());
            text += "allow_anonymous true\npersistence false\nmax_queued_messages 0\nset_tcp_nodelay true\nlog_type error\n";
            if rustix::process::geteuid().is_root() {
                // Else it becomes a user who may not read this folder.
                text += "user root\n";
            }
            let file = folder.join("mosquitto.conf");
            std::fs::write(&file, text)?;
            command.arg("-c").arg(file);
        }
        BrokerKind::Nats => {
            command.args(["--addr", &at.ip().to_string(), "--port", &at.port().to_string()]);
        }
    }
    Ok(command)
}
