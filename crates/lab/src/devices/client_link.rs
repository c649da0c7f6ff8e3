//! One load client with devices as the bench sees it: a process of this machine, or one that an agent has started.

use super::worker_protocol::{DeviceCommand, DeviceReport};
use crate::{
    LabError,
    agent::wire::CoordinatorLine,
    load_client::{NO_REPORT, WorkerProcess, next_report},
    load_generators::connection::{AgentConnection, AgentEvent},
};
use serde_json::value::to_raw_value;
use std::{io::BufReader, process::ChildStdout, sync::mpsc::SyncSender};

/// What load clients say, each with its number.
pub(super) type Events = SyncSender<(usize, AgentEvent<DeviceReport>)>;

pub(super) enum ClientLink {
    Process(WorkerProcess),
    Agent(AgentConnection),
}

impl ClientLink {
    pub(super) fn start_process(number: usize, events: Events) -> Result<Self, LabError> {
        let (process, output) = WorkerProcess::start("device-worker")?;
        std::thread::spawn(move || forward_reports(number, output, &events));
        Ok(ClientLink::Process(process))
    }

    pub(super) fn send(&mut self, command: &DeviceCommand) -> Result<(), LabError> {
        match self {
            ClientLink::Agent(agent) => {
                let command = to_raw_value(command).map_err(std::io::Error::from)?;
                agent.send(&CoordinatorLine::Command(command))
            }
            ClientLink::Process(process) => process.send(command),
        }
    }

    /// The run ends for want of this client: a process of the lab's own has failed, an agent has vanished.
    pub(super) fn gone(&self, why: &str) -> LabError {
        match self {
            ClientLink::Process(_) => LabError::Worker(why.to_owned()),
            ClientLink::Agent(agent) => agent.failed(why),
        }
    }

    /// It says itself that it cannot go on.
    pub(super) fn failed(&self, why: &str) -> LabError {
        match self {
            ClientLink::Process(_) => LabError::Worker(why.to_owned()),
            ClientLink::Agent(agent) => LabError::Worker(format!("agent {}: {why}", agent.address)),
        }
    }

    /// Of a process of this machine.
    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            ClientLink::Process(process) => Some(process.pid()),
            ClientLink::Agent(_) => None,
        }
    }

    /// Lets it end. Its end is waited for when it is dropped, so that several end at once.
    pub(super) fn close(&mut self) {
        if let ClientLink::Process(process) = self {
            process.close();
        }
    }
}

fn forward_reports(number: usize, mut output: BufReader<ChildStdout>, events: &Events) {
    while let Some(report) = next_report(&mut output) {
        let report = report.unwrap_or_else(|why| DeviceReport::Failed { why });
        if events.send((number, AgentEvent::Report(Box::new(report)))).is_err() {
            return;
        }
    }
    // The worker has ended: at the end of a run, when no report is read any more, or by a crash.
    let _ = events.send((number, AgentEvent::Gone(NO_REPORT.into())));
}
