//! Load from many machines: the load clients of several agents as one.
//!
//! They take the commands of one load client and give its reports. This splits the population over the agents, has all begin
//! a phase at one moment, ends it when every receiver of every agent has everything, and adds up what they hand over.
//!
//! In reading order: [`connection`], the line to an agent; [`split`], who gets what; [`phase_run`], a phase while it runs;
//! [`ledger`], what was sent and received over all agents; [`merge`], the outcome of all.

pub(crate) mod connection;
mod ledger;
mod merge;
mod phase_run;
pub(crate) mod split;

use crate::{
    LabError,
    agent::{
        machine::Machine,
        wire::{CoordinatorLine, LoadClientKind},
    },
    clock::{ClockOffset, machine_ns},
    options::AgentsArgs,
    phase_part::{AgentOutcome, PhasePart, Slots},
    process,
    worker_protocol::{Content, LoadModel, Outcome, Participants, Phase, WorkerCommand, WorkerConfig, WorkerReport},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use connection::{AgentConnection, AgentEvent, WAIT};
use ledger::{AgentPart, MergedLedger};
use phase_run::{Next, PhaseRun, RunningPart};
use serde_json::value::{RawValue, to_raw_value};
use split::{Capacity, Share};
use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    time::{Duration, Instant},
};

/// Events that may wait to be read: agents report four times a second, and faster only while they hand over.
const EVENTS_MAX: usize = 1024;
/// A phase begins so much later than it is announced, so that every agent has heard of it.
const LEAD: Duration = Duration::from_millis(200);
/// All connections must be open within this; a load client gives up by itself after two minutes.
const OPEN_TIMEOUT: Duration = Duration::from_secs(150);
/// A phase must be made ready within this, its content read included.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// A chunk of a file on its way to an agent.
const FILE_CHUNK_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct LoadGenerators {
    agents: Vec<AgentConnection>,
    events: Receiver<(usize, AgentEvent<WorkerReport>)>,
    timeout: Duration,
    lag_max_ms: f64,
    config: WorkerConfig,
    shares: Vec<Share>,
    weights: Vec<f64>,
    phases: u32,
    /// The phase that runs.
    run: Option<PhaseRun>,
}

impl LoadGenerators {
    /// Connects to all agents and has each start a load client.
    pub(crate) fn connect(args: &AgentsArgs, lag_max: Duration) -> Result<Self, LabError> {
        let (sender, events) = sync_channel(EVENTS_MAX);
        Ok(LoadGenerators {
            agents: AgentConnection::open_all(args, LoadClientKind::Messages, &sender)?,
            events,
            timeout: args.agent_timeout,
            lag_max_ms: lag_max.as_secs_f64() * 1e3,
            config: WorkerConfig::default(),
            shares: Vec::new(),
            weights: Vec::new(),
            phases: 0,
            run: None,
        })
    }

    /// Carries out a command for one load client with all of them.
    pub(crate) fn send(&mut self, command: &WorkerCommand) -> Result<(), LabError> {
        match command {
            WorkerCommand::Open(config) => self.open(config),
            WorkerCommand::Run(phase) => self.begin(phase),
            command => self.send_to_all(command),
        }
    }

    /// The next report of all load clients as one.
    pub(crate) fn receive(&mut self) -> Result<WorkerReport, LabError> {
        let Some(mut run) = self.run.take() else {
            let seconds = self.gather("open its connections", OPEN_TIMEOUT, |event| match event {
                AgentEvent::Report(report) => match *report {
                    WorkerReport::Opened { seconds } => Some(seconds),
                    _ => None,
                },
                _ => None,
            })?;
            return Ok(WorkerReport::Opened { seconds: seconds.into_iter().fold(0.0, f64::max) });
        };
        loop {
            match self.events.recv_timeout(WAIT) {
                Ok((agent, event)) => {
                    if let AgentEvent::Report(report) = self.check(agent, event)? {
                        run.take(agent, *report).map_err(|why| self.agents[agent].failed(&why))?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(LabError::Environment("all agents are gone".into())),
            }
            // An agent that is silent itself is noticed before.
            let load_client_timeout = self.timeout * 2;
            if let Some(agent) = run.silent_since(load_client_timeout) {
                let why = format!("its load client has reported nothing for {} s", load_client_timeout.as_secs_f64());
                return Err(self.agents[agent].failed(&why));
            }
            match run.next() {
                Next::Wait => {}
                Next::EndRound(sender) => self.agents[sender].send(&line_of(&WorkerCommand::EndRound)?)?,
                Next::Finish => self.send_to_all(&WorkerCommand::Finish)?,
                Next::ShowProgress => {
                    let progress = run.progress();
                    self.run = Some(run);
                    return Ok(WorkerReport::Progress(progress));
                }
                Next::Merge => return self.finish(run),
            }
        }
    }

    /// Splits the population, prints who gets what, and has all connections opened.
    fn open(&mut self, config: &WorkerConfig) -> Result<(), LabError> {
        if config.participants.mix.per_message > 0.0 {
            return Err(LabError::Usage("--mix needs one load client: leave out --agents".into()));
        }
        AgentConnection::check_reach(&self.agents, &config.addresses, "--url")?;
        let is_loopback = config.addresses.iter().all(|address| address.ip().is_loopback());
        let machines: Vec<&Machine> = self.agents.iter().map(|agent| &agent.machine).collect();
        let capacities: Vec<Capacity> = split::capacities(&machines, config.addresses.len(), is_loopback);
        self.shares = split::shares(&config.participants, &capacities)?;
        self.weights = capacities.iter().map(|capacity| capacity.weight).collect();
        self.config = config.clone();
        for (agent, share) in self.agents.iter().zip(&self.shares) {
            agent.print_share(&format!("{} receivers, {} senders", share.receivers.len(), share.senders()));
        }
        let run_tag = process::run_tag();
        for (agent, share) in self.agents.iter().zip(&self.shares) {
            let all = &config.participants;
            let participants = Participants {
                receivers: share.receivers.iter().map(|index| all.receivers[*index].clone()).collect(),
                http_senders: share.http_senders,
                ws_senders: all.ws_senders[share.ws_senders.clone()].to_vec(),
                ..all.clone()
            };
            let config = WorkerConfig { participants, run_tag: Some(run_tag.clone()), ..config.clone() };
            agent.send(&line_of(&WorkerCommand::Open(config))?)?;
        }
        Ok(())
    }

    /// Has all agents make their part of the phase ready, and then begin it at one moment.
    fn begin(&mut self, phase: &Phase) -> Result<(), LabError> {
        let slots = self.slots_of(phase)?;
        let files = self.upload_content(phase)?;
        for (number, (agent, slots)) in self.agents.iter().zip(&slots).enumerate() {
            let mut own = phase.clone();
            if let (Content::Corpus { file, .. }, Some(files)) = (&mut own.content, &files) {
                *file = PathBuf::from(&files[number]);
            }
            share_window(&mut own.model, *slots);
            let part = PhasePart { phase: self.phases, slots: *slots };
            agent.send(&line_of(&WorkerCommand::Prepare(own, part))?)?;
        }
        self.phases += 1;
        self.gather("make the phase ready", PREPARE_TIMEOUT, |event| match event {
            AgentEvent::Report(report) => matches!(*report, WorkerReport::Prepared).then_some(()),
            _ => None,
        })?;
        let clocks = self.measure_clocks()?;
        let slowest = clocks.iter().map(|clock| clock.error_ns).max().unwrap_or(0);
        let at_ns = machine_ns() + LEAD.as_nanos() as u64 + 4 * slowest;
        for (agent, clock) in self.agents.iter().zip(&clocks) {
            agent.send(&line_of(&WorkerCommand::Begin { at_ns: clock.on_other(at_ns) })?)?;
        }
        let run = self.new_run(&slots, &clocks);
        self.run = Some(match phase.model {
            LoadModel::Rounds { .. } => run.in_rounds_of(only_sender(&slots).unwrap_or(0)),
            _ => run,
        });
        Ok(())
    }

    fn new_run(&self, slots: &[Slots], clocks: &[ClockOffset]) -> PhaseRun {
        let conversations = self.config.participants.conversations.len();
        let agents = self.agents.iter().zip(&self.shares).zip(slots).map(|((agent, share), slots)| {
            let mut receivers = vec![0; conversations.max(1)];
            for index in &share.receivers {
                receivers[self.config.participants.receivers[*index].conversation] += 1;
            }
            AgentPart { address: agent.address.clone(), slots: *slots, receivers }
        });
        let ledger = MergedLedger::new(agents.collect(), conversations);
        let parts = self.agents.iter().zip(&self.shares).zip(clocks).map(|((agent, share), clock)| {
            let outcome = AgentOutcome {
                address: agent.address.clone(),
                machine: serde_json::to_value(&agent.machine).unwrap_or_default(),
                receivers: share.receivers.len() as u64,
                senders: share.senders() as u64,
                ..AgentOutcome::default()
            };
            RunningPart::new(*clock, outcome)
        });
        let receivers = (self.config.participants.receivers.len() / conversations.max(1)) as u64;
        PhaseRun::new(parts.collect(), ledger, receivers, Duration::from_millis(self.config.patience_ms))
    }

    /// Which messages each agent sends.
    fn slots_of(&self, phase: &Phase) -> Result<Vec<Slots>, LabError> {
        let senders = match &phase.content {
            Content::Generated { senders, .. } | Content::FirstMessages { senders, .. } => senders.len(),
            // A recorded chat keeps its order: one agent sends it.
            Content::Corpus { .. } => 1,
        };
        let by_session = self.config.participants.ws_senders.len();
        if by_session > 0 && by_session != senders {
            return Err(LabError::Usage(format!(
                "{senders} users send over {by_session} sessions, which agents cannot split"
            )));
        }
        let slots = split::slots(&self.shares, &self.weights, senders);
        if matches!(phase.model, LoadModel::Rounds { .. }) && only_sender(&slots).is_none() {
            return Err(LabError::Usage("one message at a time takes one sender over agents".into()));
        }
        Ok(slots)
    }

    /// Brings a recorded chat to all agents, which have no files of this machine; returns where it lies on each.
    fn upload_content(&mut self, phase: &Phase) -> Result<Option<Vec<String>>, LabError> {
        let Content::Corpus { file, .. } = &phase.content else { return Ok(None) };
        let bytes = read_file(file)?;
        let chunks: Vec<&[u8]> = bytes.chunks(FILE_CHUNK_BYTES).collect();
        for (number, chunk) in chunks.iter().enumerate() {
            for agent in &self.agents {
                let is_last = number + 1 == chunks.len();
                agent.send(&CoordinatorLine::File { data: STANDARD.encode(chunk), is_last })?;
            }
        }
        let paths = self.gather("store the recorded chat", PREPARE_TIMEOUT, |event| match event {
            AgentEvent::Stored(path) => Some(path),
            _ => None,
        })?;
        Ok(Some(paths))
    }

    /// Measures how far each agent's clock is ahead of this one.
    fn measure_clocks(&self) -> Result<Vec<ClockOffset>, LabError> {
        let check = |agent, event| self.check(agent, event);
        let agents = self.agents.iter().enumerate();
        agents.map(|(number, agent)| agent.measure_clock(number, &self.events, self.timeout, check)).collect()
    }

    /// Measures clocks and machines once more, judges the ledgers, and adds everything up.
    fn finish(&mut self, mut run: PhaseRun) -> Result<WorkerReport, LabError> {
        let clocks = self.measure_clocks()?;
        self.agents.iter().try_for_each(|agent| agent.send(&CoordinatorLine::Inspect))?;
        let machines = self.gather("describe its machine", self.timeout, |event| match event {
            AgentEvent::Machine(machine) => Some(machine),
            _ => None,
        })?;
        let rounds = run.take_rounds();
        let (ledger, mut finished, clock_error_ms) = run.finish(&clocks);
        for (finished, machine) in finished.iter_mut().zip(machines) {
            finished.agent.load_after = machine.load;
        }
        let planned: Vec<u64> = finished.iter().map(|finished| finished.part.outcome.planned).collect();
        let verdict = ledger.judge(&planned);
        let outcome = merge::merge(finished, verdict, clock_error_ms, self.lag_max_ms);
        Ok(WorkerReport::Done(Box::new(Outcome { rounds, ..outcome })))
    }

    fn send_to_all(&self, command: &WorkerCommand) -> Result<(), LabError> {
        let line = line_of(command)?;
        self.agents.iter().try_for_each(|agent| agent.send(&line))
    }

    /// An event, unless it ends the run: an agent that is gone, or a load client that failed.
    fn check(&self, agent: usize, event: AgentEvent<WorkerReport>) -> Result<AgentEvent<WorkerReport>, LabError> {
        match event {
            AgentEvent::Gone(why) => Err(self.agents[agent].failed(&why)),
            AgentEvent::Report(report) => match *report {
                WorkerReport::Failed { why } => {
                    Err(LabError::Worker(format!("agent {}: {why}", self.agents[agent].address)))
                }
                report => Ok(AgentEvent::Report(Box::new(report))),
            },
            event => Ok(event),
        }
    }

    /// Waits until every agent has given an answer, in any order.
    fn gather<T>(
        &mut self,
        what: &str,
        timeout: Duration,
        answer: impl Fn(AgentEvent<WorkerReport>) -> Option<T>,
    ) -> Result<Vec<T>, LabError> {
        let asked = Instant::now();
        let mut answers: Vec<Option<T>> = self.agents.iter().map(|_| None).collect();
        while let Some(missing) = answers.iter().position(Option::is_none) {
            if asked.elapsed() > timeout {
                return Err(self.agents[missing].failed(&format!("did not {what} within {} s", timeout.as_secs())));
            }
            if let Ok((agent, event)) = self.events.recv_timeout(WAIT)
                && let Some(answer) = answer(self.check(agent, event)?)
            {
                answers[agent] = Some(answer);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

/// The one agent that sends, if only one does.
fn only_sender(slots: &[Slots]) -> Option<usize> {
    let mut senders = (0..slots.len()).filter(|agent| slots[*agent].count > 0);
    senders.next().filter(|_| senders.next().is_none())
}

fn read_file(file: &Path) -> Result<Vec<u8>, LabError> {
    std::fs::read(file).map_err(|error| LabError::Usage(format!("{}: {error}", file.display())))
}

fn line_of(command: &WorkerCommand) -> Result<CoordinatorLine, LabError> {
    let command: Box<RawValue> = to_raw_value(command).map_err(std::io::Error::from)?;
    Ok(CoordinatorLine::Command(command))
}

/// Each agent keeps its part of a closed loop's window.
fn share_window(model: &mut LoadModel, slots: Slots) {
    if let LoadModel::ClosedLoop { window, .. } | LoadModel::ClosedLoopOnce { window } = model {
        *window = (*window * slots.count as usize / (slots.all as usize).max(1)).max(1);
    }
}
