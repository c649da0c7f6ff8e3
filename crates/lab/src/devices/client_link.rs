//! One load client with devices as the bench sees it: a process of this machine, or one that an agent has started.

use super::worker_protocol::{DeviceCommand, DeviceReport};
use crate::{
    LabError,
    agent::wire::CoordinatorLine,
    fleet::connection::{AgentConnection, AgentEvent},
    interrupt,
    load_client::{NO_REPORT, next_report},
};
use serde_json::value::to_raw_value;
use std::{
    io::{BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::SyncSender,
};

/// What load clients say, each with its number.
pub(super) type Events = SyncSender<(usize, AgentEvent<DeviceReport>)>;

pub(super) enum ClientLink {
    Process { child: Child, stdin: Option<ChildStdin> },
    Agent(AgentConnection),
}

impl ClientLink {
    pub(super) fn start_process(number: usize, events: Events) -> Result<Self, LabError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "device-worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if interrupt::is_installed() {
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let link = ClientLink::Process { child, stdin };
        let Some(stdout) = stdout else { return Err(LabError::Worker("has no output".into())) };
        std::thread::spawn(move || forward_reports(number, stdout, &events));
        Ok(link)
    }

    pub(super) fn send(&mut self, command: &DeviceCommand) -> Result<(), LabError> {
        match self {
            ClientLink::Agent(agent) => {
                let command = to_raw_value(command).map_err(std::io::Error::from)?;
                agent.send(&CoordinatorLine::Command(command))
            }
            ClientLink::Process { stdin: None, .. } => Err(LabError::Worker("has ended".into())),
            ClientLink::Process { stdin: Some(stdin), .. } => {
                let mut line = serde_json::to_vec(command).map_err(std::io::Error::from)?;
                line.push(b'\n');
                stdin.write_all(&line)?;
                Ok(stdin.flush()?)
            }
        }
    }

    /// The run ends for want of this client: a process of the lab's own has failed, an agent has vanished.
    pub(super) fn gone(&self, why: &str) -> LabError {
        match self {
            ClientLink::Process { .. } => LabError::Worker(why.to_owned()),
            ClientLink::Agent(agent) => agent.failed(why),
        }
    }

    /// It says itself that it cannot go on.
    pub(super) fn failed(&self, why: &str) -> LabError {
        match self {
            ClientLink::Process { .. } => LabError::Worker(why.to_owned()),
            ClientLink::Agent(agent) => LabError::Worker(format!("agent {}: {why}", agent.address)),
        }
    }

    /// Of a process of this machine.
    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            ClientLink::Process { child, .. } => Some(child.id()),
            ClientLink::Agent(_) => None,
        }
    }

    /// Lets it end. Its end is waited for when it is dropped, so that several end at once.
    pub(super) fn close(&mut self) {
        if let ClientLink::Process { stdin, .. } = self {
            // It ends when its input ends.
            *stdin = None;
        }
    }
}

impl Drop for ClientLink {
    fn drop(&mut self) {
        self.close();
        if let ClientLink::Process { child, .. } = self {
            let _ = child.wait();
        }
    }
}

fn forward_reports(number: usize, stdout: ChildStdout, events: &Events) {
    let mut output = BufReader::new(stdout);
    while let Some(report) = next_report(&mut output) {
        let report = report.unwrap_or_else(|why| DeviceReport::Failed { why });
        if events.send((number, AgentEvent::Report(Box::new(report)))).is_err() {
            return;
        }
    }
    // The worker has ended: at the end of a run, when no report is read any more, or by a crash.
    let _ = events.send((number, AgentEvent::Gone(NO_REPORT.into())));
}
