//! The load client as the bench sees it: a worker process of its own, or those of several agents, with commands and reports.

use crate::{
    LabError, interrupt,
    live::{self, LiveBlock, WorkLength},
    load_generators::LoadGenerators,
    options::TargetArgs,
    process::{self, ServerProcesses},
    sampler::Sampler,
    server::Target,
    worker_protocol::{Outcome, Participants, Phase, Progress, WorkerCommand, WorkerConfig, WorkerReport},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    net::SocketAddr,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

/// Connections of one worker: below the 20,000 files that a process may commonly open.
const CONNECTIONS_MAX: usize = 19_900;

/// With several servers, a connection that receives nothing for so long is replaced by one to another server.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(4);

/// A running load client with all its connections open.
#[derive(Debug)]
pub(crate) struct LoadClient {
    link: WorkerLink,
    server: ServerProcesses,
    /// Where the server tells its metrics; unset for the bare server.
    metrics_address: Option<SocketAddr>,
    lag_max: Duration,
    /// Of the phase that runs.
    sampler: Option<Sampler>,
    length: WorkLength,
    /// How long it took until all connections were open.
    pub(crate) open_seconds: f64,
}

impl LoadClient {
    pub(crate) fn open(target: &Target, args: &TargetArgs, participants: Participants) -> Result<Self, LabError> {
        let (api_key, token_key) = target.keys();
        LoadClient::start(target.addresses(), target.pid().into(), (api_key, token_key), args, participants, false)
    }

    /// Opens connections to the bare server, whose receivers neither upgrade nor bind.
    pub(crate) fn open_bare(
        address: SocketAddr,
        pid: u32,
        args: &TargetArgs,
        participants: Participants,
    ) -> Result<Self, LabError> {
        LoadClient::start(vec![address], Some(pid).into(), ("", ""), args, participants, true)
    }

    fn start(
        addresses: Vec<SocketAddr>,
        server: ServerProcesses,
        (api_key, token_key): (&str, &str),
        args: &TargetArgs,
        participants: Participants,
        bare: bool,
    ) -> Result<Self, LabError> {
        let link = if args.load_agents.agents.is_empty() {
            let count = participants.connections();
            if count > CONNECTIONS_MAX {
                return Err(LabError::Usage(format!(
                    "{count} connections: one load client holds {CONNECTIONS_MAX}; more take --agents"
                )));
            }
            let (worker, output) = WorkerProcess::start("worker")?;
            WorkerLink::Process(worker, output)
        } else {
            WorkerLink::Agents(Box::new(LoadGenerators::connect(&args.load_agents, args.lag_max)?))
        };
        let is_remote = matches!(link, WorkerLink::Agents(_));
        let mut load = LoadClient {
            link,
            server,
            metrics_address: addresses.first().copied().filter(|_| !bare),
            lag_max: args.lag_max,
            sampler: None,
            length: WorkLength::Unknown,
            open_seconds: 0.0,
        };
        load.send(&WorkerCommand::Open(WorkerConfig {
            // With one server there is no other to connect to.
            silence_timeout_ms: (addresses.len() > 1).then_some(SILENCE_TIMEOUT.as_millis() as u64),
            addresses,
            api_key: api_key.into(),
            token_key: token_key.into(),
            bare,
            // A flood's worker has the lowest priority and may run on any core. Pinned to the core of the worker that
            // measures, it would delay that worker.
            // Agents' machines are theirs: they are pinned where it is asked for.
            core: if is_remote {
                args.client_core
            } else {
                (!participants.low_priority).then(|| args.client_core.unwrap_or_else(process::last_core))
            },
            patience_ms: args.patience.as_millis() as u64,
            participants,
            run_tag: None,
        }))?;
        match load.receive()? {
            WorkerReport::Opened { seconds } => {
                load.open_seconds = seconds;
                Ok(load)
            }
            other => Err(LabError::Worker(format!("reported {other:?} instead of opening"))),
        }
    }

    /// Spreads the connections evenly over all servers, as at first, and returns when they are open.
    pub(crate) fn rebalance(&mut self) -> Result<(), LabError> {
        self.send(&WorkerCommand::Rebalance)?;
        match self.receive()? {
            WorkerReport::Opened { .. } => Ok(()),
            other => Err(LabError::Worker(format!("reported {other:?} instead of opening"))),
        }
    }

    /// From the next phase on the figures are those of this process: the server has been started anew.
    pub(crate) fn follow_server(&mut self, server: ServerProcesses) {
        self.server = server;
    }

    /// Runs one phase and shows it in the live view.
    pub(crate) fn run(&mut self, title: &str, phase: Phase) -> Result<Outcome, LabError> {
        self.start_phase(live::shown(phase))?;
        self.finish_phase(title)
    }

    /// Starts a phase and returns at once; [`finish_phase`](Self::finish_phase) waits for its end.
    pub(crate) fn start_phase(&mut self, phase: Phase) -> Result<(), LabError> {
        self.length = WorkLength::of_model(&phase.model);
        self.sampler = Some(Sampler::start(self.server.clone(), self.metrics_address, self.link.pids()));
        self.send(&WorkerCommand::Run(phase))
    }

    pub(crate) fn finish_phase(&mut self, title: &str) -> Result<Outcome, LabError> {
        self.finish_phase_with(title, |_| false)
    }

    /// Waits for the end of a phase, and shows each report of progress. Once `observe` returns true for one, the worker
    /// plans no more messages.
    pub(crate) fn finish_phase_with(
        &mut self,
        title: &str,
        mut observe: impl FnMut(&Progress) -> bool,
    ) -> Result<Outcome, LabError> {
        let live = LiveBlock::begin(title, self.length);
        // After Ctrl-C the phases that are left end as soon as they begin: the run goes the way that it always goes, to its report.
        let mut stop_sent = interrupt::requested();
        if stop_sent {
            self.send(&WorkerCommand::StopPlanning)?;
        }
        loop {
            match self.receive()? {
                WorkerReport::Progress(progress) => {
                    live.show(&progress);
                    let stop = observe(&progress) || interrupt::requested();
                    if stop && !std::mem::replace(&mut stop_sent, true) {
                        self.send(&WorkerCommand::StopPlanning)?;
                    }
                }
                WorkerReport::Done(mut outcome) => {
                    outcome.title = title.to_owned();
                    outcome.interrupted = interrupt::requested();
                    outcome.lag_max_ms = self.lag_max.as_secs_f64() * 1e3;
                    if let Some(sampler) = self.sampler.take() {
                        (outcome.samples, outcome.server_cpu_seconds, outcome.server_rss_bytes) = sampler.finish();
                    }
                    return Ok(*outcome);
                }
                WorkerReport::Failed { why } => return Err(LabError::Worker(why)),
                // Those of parts are for agents alone.
                _ => {}
            }
        }
    }

    fn send(&mut self, command: &WorkerCommand) -> Result<(), LabError> {
        match &mut self.link {
            WorkerLink::Process(worker, _) => worker.send(command),
            WorkerLink::Agents(agents) => agents.send(command),
        }
    }

    fn receive(&mut self) -> Result<WorkerReport, LabError> {
        match &mut self.link {
            WorkerLink::Process(_, output) => match next_report(output) {
                None => Err(LabError::Worker(NO_REPORT.into())),
                Some(Err(why) | Ok(WorkerReport::Failed { why })) => Err(LabError::Worker(why)),
                Some(Ok(report)) => Ok(report),
            },
            WorkerLink::Agents(agents) => agents.receive(),
        }
    }
}

/// Where the load comes from.
#[derive(Debug)]
enum WorkerLink {
    Process(WorkerProcess, BufReader<ChildStdout>),
    Agents(Box<LoadGenerators>),
}

impl WorkerLink {
    /// The processes of this machine.
    fn pids(&self) -> Vec<u32> {
        match self {
            WorkerLink::Process(worker, _) => vec![worker.pid()],
            WorkerLink::Agents(_) => Vec::new(),
        }
    }
}

/// A load client's process on this machine. It ends when its input ends, which is waited for.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl WorkerProcess {
    /// Starts the hidden command of this name; returns what it writes, too.
    pub(crate) fn start(command: &str) -> Result<(Self, BufReader<ChildStdout>), LabError> {
        let mut process = Command::new(std::env::current_exe()?);
        process.args(["bench", command]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if interrupt::is_installed() {
            process.process_group(0);
        }
        let mut child = process.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let process = WorkerProcess { child, stdin };
        let Some(stdout) = stdout else { return Err(LabError::Worker("has no output".into())) };
        Ok((process, BufReader::new(stdout)))
    }

    pub(crate) fn send(&mut self, command: &impl Serialize) -> Result<(), LabError> {
        let Some(stdin) = &mut self.stdin else { return Err(LabError::Worker("has ended".into())) };
        let mut line = serde_json::to_vec(command).map_err(std::io::Error::from)?;
        line.push(b'\n');
        match stdin.write_all(&line).and_then(|()| stdin.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(LabError::Worker(NO_REPORT.into())),
            written => Ok(written?),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it end. Its end is waited for when it is dropped, so that several end at once.
    pub(crate) fn close(&mut self) {
        self.stdin = None;
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.close();
        let _ = self.child.wait();
    }
}

/// Why a worker whose output ended gave no figures.
pub(crate) const NO_REPORT: &str = "ended without a report";

/// The next report of a worker process, or why its line is not one. `None` once the output has ended: a worker that
/// is killed may leave a part of a line.
pub(crate) fn next_report<R: DeserializeOwned>(output: &mut impl BufRead) -> Option<Result<R, String>> {
    let mut line = Vec::new();
    output.read_until(b'\n', &mut line).ok()?;
    let report = serde_json::from_slice(line.strip_suffix(b"\n")?);
    Some(report.map_err(|error| format!("sent a report that does not parse: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_was_cut_off_is_none() {
        let mut output = &b"{\"failed\":{\"why\":\"w\"}}\nno report\n{\"failed\":{\"w"[..];
        let mut next = || next_report::<WorkerReport>(&mut output);
        assert!(matches!(next(), Some(Ok(WorkerReport::Failed { why })) if why == "w"));
        assert!(matches!(next(), Some(Err(why)) if why.starts_with("sent a report that does not parse")));
        assert!(next().is_none());
    }
}
