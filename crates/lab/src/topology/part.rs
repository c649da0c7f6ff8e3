//! One process of a topology: where it runs, as whom, and that it never outlives the lab.

use super::network::Place;
use crate::{LabError, process, server::LOOK_AGAIN};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    fs::{File, OpenOptions},
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A user that a process runs as: (user, group).
pub(super) type User = (u32, u32);

/// A program that is ready to be started.
///
/// Every wrapper becomes the next program without a fork, so that the child's id is the program's. The signal comes when
/// the *thread* ends that started the process: a topology is to be built and driven by one that lives longer.
pub(super) fn command(place: Place, user: Option<User>, death_signal: &str, program: &Path) -> Command {
    let mut command = match place.namespace() {
        None => Command::new("setpriv"),
        Some(holder) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{holder}/ns/net")).arg("setpriv");
            command
        }
    };
    command.args(["--pdeathsig", death_signal]);
    if let Some((user, group)) = user {
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}")).arg("--clear-groups");
    }
    // A group of its own: what a terminal sends to the lab is for the lab, which ends its parts in order.
    command.arg(program).stdin(Stdio::null()).process_group(0);
    command
}

/// Runs a program to its end; what it says on failure is the error.
pub(super) fn run(command: &mut Command) -> Result<String, LabError> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let program = command.get_args().fold(command.get_program().to_owned(), |mut line, argument| {
                line.push(" ");
                line.push(argument);
                line
            });
            Err(LabError::Part(format!("{}: {}", program.display(), said.trim())))
        }
    }
}

/// A process and its log.
#[derive(Debug)]
pub(super) struct Part {
    name: String,
    log: PathBuf,
    child: Option<Child>,
}

impl Part {
    pub(super) fn new(name: impl Into<String>, log: PathBuf) -> Self {
        Part { name: name.into(), log, child: None }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts what `command` says; its output is added to the log.
    pub(super) fn start(&mut self, mut command: Command) -> Result<(), LabError> {
        let log = self.open_log()?;
        self.child = Some(command.stdout(log.try_clone()?).stderr(log).spawn()?);
        Ok(())
    }

    fn open_log(&self) -> Result<File, LabError> {
        Ok(OpenOptions::new().create(true).append(true).open(&self.log)?)
    }

    /// Waits until `ready` says so; a process that ends instead is an error with its last words.
    pub(super) fn wait_until(&mut self, patience: Duration, mut ready: impl FnMut() -> bool) -> Result<(), LabError> {
        let started = Instant::now();
        while !ready() {
            if let Some(status) = self.ended()? {
                return Err(LabError::Part(format!("{} ended with {status}: {}", self.name, self.last_words())));
            }
            if started.elapsed() > patience {
                return Err(LabError::Part(format!("{} was not ready in time: {}", self.name, self.last_words())));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// How it ended, if it did without being asked.
    pub(super) fn ended(&mut self) -> Result<Option<std::process::ExitStatus>, LabError> {
        match &mut self.child {
            None => Ok(None),
            Some(child) => Ok(child.try_wait()?),
        }
    }

    /// Whether it runs, as far as anybody asked for.
    pub(super) fn is_as_it_should(&mut self) -> bool {
        matches!(self.ended(), Ok(None))
    }

    pub(super) fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// `kill -9`, and waits for the end.
    pub(super) fn kill(&mut self) -> Result<(), LabError> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Asks it to end with a signal, waits, and kills it when it does not listen. Returns whether it did.
    pub(super) fn stop(&mut self, signal: rustix::process::Signal, patience: Duration) -> Result<bool, LabError> {
        let Some(child) = &mut self.child else { return Ok(true) };
        process::signal(child.id(), signal);
        let asked = Instant::now();
        while child.try_wait()?.is_none() {
            if asked.elapsed() > patience {
                self.kill()?;
                return Ok(false);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        self.child = None;
        Ok(true)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A port that is a part's own from before its first start and over its restarts.
///
/// A socket that is bound and never listens holds it. It was bound without leave to share, which the system grants to one
/// only, also among labs that choose at the same moment; the leave is given afterwards, and lets the part in: every server asks
/// for it, so that it can be started again at once.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) at: SocketAddr,
    /// Absent in a namespace, whose ports nobody else takes.
    _held: Option<Socket>,
}

impl Port {
    /// `number` where the place has all ports for itself, otherwise one that is free.
    pub(super) fn of(place: Place, number: u16) -> Result<Self, LabError> {
        if place.namespace().is_some() {
            return Ok(Port { at: SocketAddr::new(place.address, number), _held: None });
        }
        let any = SocketAddr::new(place.address, 0);
        let socket = Socket::new(Domain::for_address(any), Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&any.into())?;
        socket.set_reuse_address(true)?;
        let at = socket.local_addr()?.as_socket().ok_or_else(|| LabError::Part("a port without a number".into()))?;
        Ok(Port { at, _held: Some(socket) })
    }

    pub(super) fn number(&self) -> u16 {
        self.at.port()
    }
}
