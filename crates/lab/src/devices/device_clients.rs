//! The load clients of a run with devices, each with a part of the devices: worker processes of this machine, or of agents.

use super::{
    client_link::{ClientLink, Events},
    device_counts::{DeviceCounts, LATENESS_MS_MAX},
    worker_protocol::{DeviceCommand, DeviceReport, DeviceWorkerConfig},
};
use crate::{
    LabError,
    agent::{machine::Machine, wire::LoadClientKind},
    clock::ClockOffset,
    live::{LiveBlock, WorkLength},
    load_client::NO_REPORT,
    load_generators::{
        connection::{AgentConnection, AgentEvent},
        split::{capacities, split_within},
    },
    options::AgentsArgs,
    phase_part::AgentOutcome,
    process,
};
use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::Duration,
};

/// The most devices per process: below the 20,000 files that a process may commonly open, with some to spare.
pub(crate) const DEVICES_PER_PROCESS: usize = 18_000;
/// A worker without a report for so long has failed: workers report progress four times a second.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Reports per worker that may wait to be read.
const REPORTS_MAX: usize = 64;
/// Load clients at most: all agents share the channel of their reports.
const WORKERS_MAX: usize = 256;

pub(crate) struct DeviceClients {
    workers: Vec<Worker>,
    reports: Receiver<(usize, AgentEvent<DeviceReport>)>,
    pub(crate) devices: usize,
}

struct Worker {
    link: ClientLink,
    devices: usize,
    /// Of an agent: its machine, and how far its clock is ahead of this one.
    agent: Option<(Machine, ClockOffset)>,
    /// As it counted at the end of the last command.
    counts: DeviceCounts,
}

impl DeviceClients {
    /// Starts `workers` processes, or has agents start as many as they need, each with its part of the devices; returns when all
    /// have signed their tokens.
    pub(crate) fn open(config: &DeviceWorkerConfig, workers: usize, agents: &AgentsArgs) -> Result<Self, LabError> {
        let (sender, reports) = sync_channel(REPORTS_MAX * workers.max(WORKERS_MAX));
        let mut clients = DeviceClients { workers: Vec::new(), reports, devices: config.count };
        if agents.agents.is_empty() {
            clients.start_processes(config, workers, &sender)?
        } else {
            clients.connect_agents(config, agents, &sender)?
        }
        drop(sender);
        let mut first = config.first;
        // Concurrent runs differ in the second byte of their source addresses, workers of one run in the third.
        let ((a, b), all) = (config.source, clients.workers.len());
        for (number, worker) in clients.workers.iter_mut().enumerate() {
            let source = (a, b.wrapping_add(number as u8));
            let part =
                DeviceWorkerConfig { first, count: worker.devices, worker: (number, all), source, ..config.clone() };
            let part = match &worker.agent {
                None => part,
                // Which cores of the agent's machine are free, this one does not know.
                Some((_, clock)) => DeviceWorkerConfig { core: None, clock_ahead_ns: clock.ahead_ns, ..part },
            };
            first += worker.devices;
            worker.link.send(&DeviceCommand::Open(Box::new(part)))?;
        }
        let mut opened = 0;
        while opened < clients.workers.len() {
            match clients.receive()? {
                (_, DeviceReport::Opened) => opened += 1,
                (_, other) => return Err(LabError::Worker(format!("reported {other:?} instead of opening"))),
            }
        }
        Ok(clients)
    }

    fn start_processes(
        &mut self,
        config: &DeviceWorkerConfig,
        workers: usize,
        events: &Events,
    ) -> Result<(), LabError> {
        for number in 0..workers {
            let devices = config.count / workers + usize::from(number < config.count % workers);
            let link = ClientLink::start_process(number, events.clone())?;
            self.workers.push(Worker { link, devices, agent: None, counts: DeviceCounts::default() });
        }
        Ok(())
    }

    /// Connects to all agents, splits the devices by what their machines have, and has each start its load clients.
    fn connect_agents(
        &mut self,
        config: &DeviceWorkerConfig,
        args: &AgentsArgs,
        events: &Events,
    ) -> Result<(), LabError> {
        let agents = AgentConnection::open_all(args, LoadClientKind::Devices, events)?;
        AgentConnection::check_reach(&agents, &config.listeners, "--url and --listeners")?;
        let is_loopback = config.listeners.iter().all(|listener| listener.ip().is_loopback());
        let machines: Vec<&Machine> = agents.iter().map(|agent| &agent.machine).collect();
        let capacities = capacities(&machines, config.listeners.len(), is_loopback);
        let weights: Vec<f64> = capacities.iter().map(|capacity| capacity.weight).collect();
        // An agent starts one load client for each 18,000: the more it has cores, the more it can hold.
        let bounds: Vec<usize> = (capacities.iter().zip(&machines))
            .map(|(capacity, machine)| {
                capacity.connections_max.min(DEVICES_PER_PROCESS) * machine.cores.max(1) as usize
            })
            .collect();
        let shares = split_within(config.count, &weights, &bounds)
            .ok_or_else(|| LabError::Usage(format!("{} devices: the agents hold {bounds:?}", config.count)))?;
        let mut more = Vec::new();
        for (agent, share) in agents.into_iter().zip(shares) {
            agent.print_share(&format!("{share} devices"));
            let clients = share.div_ceil(DEVICES_PER_PROCESS).max(1);
            more.extend((1..clients).map(|_| (agent.address.clone(), share / clients)));
            self.add_agent(agent, share / clients + share % clients)?;
        }
        // After the first load client of each agent, so that events have the numbers of their workers.
        for (address, devices) in more {
            let agent = AgentConnection::launch(self.workers.len(), &address, args, LoadClientKind::Devices, events)?;
            self.add_agent(agent, devices)?;
        }
        Ok(())
    }

    fn add_agent(&mut self, agent: AgentConnection, devices: usize) -> Result<(), LabError> {
        let machine = agent.machine.clone();
        let number = self.workers.len();
        // Another agent that is gone is told of by the next command.
        let check = |from, event| match event {
            AgentEvent::Gone(why) if from == number => Err(agent.failed(&why)),
            event => Ok(event),
        };
        let clock = agent.measure_clock(number, &self.reports, REPORT_TIMEOUT, check)?;
        let link = ClientLink::Agent(agent);
        self.workers.push(Worker { link, devices, agent: Some((machine, clock)), counts: DeviceCounts::default() });
        Ok(())
    }

    /// Has every worker carry out a command, shows progress, and adds up their counts.
    pub(crate) fn run(&mut self, title: &str, command: &DeviceCommand) -> Result<DeviceCounts, LabError> {
        self.begin(command)?;
        self.finish(title)
    }

    /// Sends a command to every worker and returns at once; [`finish`](Self::finish) waits for all.
    pub(crate) fn begin(&mut self, command: &DeviceCommand) -> Result<(), LabError> {
        self.workers.iter_mut().try_for_each(|worker| worker.link.send(command))
    }

    pub(crate) fn finish(&mut self, title: &str) -> Result<DeviceCounts, LabError> {
        let live = LiveBlock::begin(title, WorkLength::Unknown);
        let mut sum = DeviceCounts::default();
        let mut at = vec![(0, 0, 0); self.workers.len()];
        let mut waiting = self.workers.len();
        while waiting > 0 {
            match self.receive()? {
                (worker, DeviceReport::Progress { live: bound, attempts, given_up }) => {
                    at[worker] = (bound, attempts, given_up);
                    let all = at.iter().fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
                    live.note(format!("{} of {} bound, {} attempts, {} gave up", all.0, self.devices, all.1, all.2));
                }
                (worker, DeviceReport::Done(counts)) => {
                    sum.add(&counts);
                    self.workers[worker].counts = *counts;
                    waiting -= 1;
                }
                (_, DeviceReport::Opened) => {}
                (worker, DeviceReport::Failed { why }) => return Err(self.workers[worker].link.failed(&why)),
            }
        }
        drop(live);
        Ok(sum)
    }

    pub(crate) fn count(&mut self) -> Result<DeviceCounts, LabError> {
        self.begin(&DeviceCommand::ReportCounts)?;
        self.finish("counting")
    }

    /// What each agent did in the last command, and whether it kept up.
    pub(crate) fn agents(&self) -> Vec<AgentOutcome> {
        let mut outcomes: Vec<AgentOutcome> = Vec::new();
        let mut counts: Vec<DeviceCounts> = Vec::new();
        for worker in &self.workers {
            let (ClientLink::Agent(agent), Some((machine, clock))) = (&worker.link, &worker.agent) else { continue };
            let place = outcomes.iter().position(|outcome| outcome.address == agent.address).unwrap_or_else(|| {
                outcomes.push(AgentOutcome {
                    address: agent.address.clone(),
                    machine: serde_json::to_value(machine).unwrap_or_default(),
                    load_after: machine.load,
                    clock_offset_ms: clock.ahead_ns as f64 / 1e6,
                    clock_error_ms: clock.error_ns as f64 / 1e6,
                    ..AgentOutcome::default()
                });
                counts.push(DeviceCounts::default());
                outcomes.len() - 1
            });
            counts[place].add(&worker.counts);
        }
        for (outcome, counts) in outcomes.iter_mut().zip(&counts) {
            (outcome.receivers, outcome.expected) = (counts.devices, counts.devices);
            (outcome.planned, outcome.sent, outcome.delivered) = (counts.devices, counts.attempts, counts.live);
            outcome.lost = counts.devices.saturating_sub(counts.live);
            outcome.client_cpu_seconds = counts.client_cpu_seconds;
            (outcome.latency, outcome.lateness) = (counts.bind.percentiles(), counts.lateness.percentiles());
            outcome.lagged = outcome.lateness.p99 > LATENESS_MS_MAX || counts.client_failures > 0;
        }
        outcomes
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().filter_map(|worker| worker.link.pid()).collect()
    }

    /// Of processes of this machine.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.pids().into_iter().map(process::cpu_seconds).sum()
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    fn receive(&mut self) -> Result<(usize, DeviceReport), LabError> {
        loop {
            match self.reports.recv_timeout(REPORT_TIMEOUT) {
                Ok((worker, AgentEvent::Report(report))) => match *report {
                    DeviceReport::Failed { why } => return Err(self.workers[worker].link.failed(&why)),
                    report => return Ok((worker, report)),
                },
                Ok((worker, AgentEvent::Gone(why))) => return Err(self.workers[worker].link.gone(&why)),
                // Late answers to questions for the clock.
                Ok((_, AgentEvent::Pong { .. } | AgentEvent::Machine(_) | AgentEvent::Stored(_))) => {}
                Err(RecvTimeoutError::Timeout) => return Err(LabError::Worker("sent no report for a minute".into())),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LabError::Worker(NO_REPORT.into()));
                }
            }
        }
    }
}

impl Drop for DeviceClients {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.link.close());
    }
}
