//! The load lab: what wrk2 is to HTTP, for messaging. It tests a server as a black box, through its public listeners.
//!
//! Load comes from open-loop schedules, latency counts from the planned send time, and counts must balance: every
//! receiver is verified entry by entry, and a run in which an entry was lost, doubled, reordered or altered fails. The lab
//! knows nothing of how the server works, and links none of it. In reading order:
//! - [`args`]: the commands; [`options`]: the options that they share;
//! - `group`, `broadcast`, `replay`, `streams`, `direct`, `isolation`, `crash`, `chaos`, `cluster_cost`, `growth`: one file or folder per command;
//! - `reach`: whether every message reaches every member by exactly the channels that are due;
//! - `scenario`: the same and more, from files that say who takes part, what is due when, and what happens to the server;
//! - `compare`: reports of several versions or steps beside each other;
//! - `server`, `setup`, `load_client`: the server under test, its users and groups, the load client's process as the bench sees it;
//! - `worker_protocol`: the commands and reports between a bench and its load client;
//! - `fleet`: load clients on several machines as one; `agent`: such a machine; `phase_part`, `clock`: what both agree on;
//! - `client_engine`: the event loop and the protocols that every load client is built on;
//! - [`worker`]: the load client for messages, on one core;
//! - `mix`: edits, recalls, reactions and receipts beside plain messages, and the model that clients' views are held to;
//! - [`devices`], `device_worker`: benches with devices, and their load client;
//! - [`popups`]: benches with popup decisions and events, with a load client of their own;
//! - `offline_push`: doubles of the app's webhook and of providers' services, and counts of what members who are offline are told;
//! - `topology`: a cluster as local processes;
//! - `ws_interop`: our WebSocket framing and our client, for `interop/` to test against other implementations;
//! - `bare_server`: a loop that only writes, the baseline of messages; `bare_load`: a load on it; `ceiling`: how much of it the lab keeps up;
//! - `brokers`: the same load on servers that others wrote;
//! - `driver`: servers that others wrote, described by a file; `delivery_ledger`: the verifier of servers without a `seq`;
//! - `rate_profile`: rates that change over time, and the planned times that follow;
//! - `latency`, `series`, `sampler`, `kernel`: histograms and percentiles, figures over time, samples of the processes and of the
//!   kernel's counters;
//! - `live`: the curves of what runs, on the terminal;
//! - `report`: printed tables, and the report of a run as a page, as JSON and as CSV;
//! - `toml_file`: mistakes in users' files, shown with their line;
//! - `timeline`, `corpus`, `process`, `interrupt`: reading a timeline back, recorded chats, the operating system, Ctrl-C.

mod agent;
pub mod args;
mod bare_load;
mod bare_server;
mod broadcast;
mod brokers;
mod ceiling;
mod chaos;
mod client_engine;
mod clock;
mod cluster_cost;
mod compare;
mod corpus;
mod crash;
mod delivery_ledger;
mod device_worker;
pub mod devices;
mod direct;
mod driver;
mod events;
mod fleet;
mod group;
mod growth;
mod interrupt;
mod isolation;
mod kernel;
mod latency;
mod leader;
mod live;
mod load_client;
mod mix;
mod notifications;
pub mod offline_push;
pub mod options;
mod phase_part;
pub mod popups;
mod process;
mod rate_profile;
mod replay;
mod report;
mod reserved_port;
mod sampler;
pub mod scenario;
mod series;
mod server;
mod setup;
mod streams;
mod timeline;
mod toml_file;
mod topology;
pub mod worker;
mod worker_protocol;
mod ws_interop;

pub use args::BenchArgs;
pub use latency::{Curve, Percentiles};
pub use mix::counts::MixCounts;
pub use phase_part::AgentOutcome;
pub use sampler::Samples;
pub use series::Series;
pub use topology::command::{ClusterArgs, run as run_cluster};
pub use worker_protocol::{Outcome, ReceiptCounts};

use args::{Bench, OutputArgs};
use clap::Parser;
use report::{IndexRow, RunReport};
use scenario::args::RunArgs;
use std::{process::ExitCode, time::Instant};

/// Why a bench could not be run to its end. A fault of the server under test is no error but a verdict: see [`Verdict`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Client(#[from] tidings_client::ClientError),
    #[error("the load worker failed: {0}")]
    Worker(String),
    #[error("the server {0}")]
    Server(String),
    /// A process or network around the server could not be set up or changed; this says nothing about the server.
    #[error("{0}")]
    Environment(String),
}

/// How a bench ended. Each verdict has its own exit code; wrong usage is 2, processes that could not be set up are 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed = 0,
    /// All counts balance, and a figure misses a `--threshold`.
    ThresholdMissed = 5,
    /// The run is invalid: the lab could not keep its schedule, so the figures are the lab's limit, not the server's.
    LabFellBehind = 3,
    /// Ctrl-C ended the run early.
    Interrupted = 130,
    /// The server failed: a count does not balance.
    Failed = 1,
}

/// From the best to the worst: a fault of the server is one also in a run that was ended early, or that measured nothing.
const BY_SEVERITY: [Verdict; 5] =
    [Verdict::Passed, Verdict::ThresholdMissed, Verdict::LabFellBehind, Verdict::Interrupted, Verdict::Failed];

/// What a bench hands back: its verdict, and every figure.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) verdict: Verdict,
    pub(crate) figures: serde_json::Value,
}

impl Verdict {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match (outcome.balances(), outcome.lab_lagged()) {
            (false, _) => Verdict::Failed,
            (true, true) => Verdict::LabFellBehind,
            (true, false) => Verdict::Passed,
        }
    }

    /// The worse of two verdicts.
    pub(crate) fn and(self, other: Verdict) -> Verdict {
        BY_SEVERITY.into_iter().rfind(|verdict| [self, other].contains(verdict)).unwrap_or(self)
    }
}

/// Runs a bench. The exit code is 0 if it passed, 1 if the server failed, 2 for wrong usage, 3 if the run is invalid since the
/// lab fell behind, 4 if the processes around the server could not be set up, 5 if a threshold was missed, 130 after Ctrl-C.
pub fn run(args: BenchArgs) -> ExitCode {
    match &args.bench {
        Bench::Agent(args) => return agent::main(args),
        Bench::Worker => return worker::main(),
        Bench::DeviceWorker => return device_worker::main(),
        Bench::BareAccept(bare) => return devices::bare_accept_main(bare),
        Bench::BareServer(bare) => return bare_server::main(bare),
        Bench::WsEcho => return ws_interop::echo(),
        Bench::WsProbe(args) => return ws_interop::probe(args),
        Bench::Scenario(args) => return exit_code(scenario::show(args).map(|()| Verdict::Passed)),
        _ => {}
    }
    exit_code(run_and_report(&args))
}

fn run_and_report(args: &BenchArgs) -> Result<Verdict, LabError> {
    if args.bench.ends_early() {
        interrupt::install()?;
    }
    live::enable(&args.output)?;
    if let Bench::Run(run) = &args.bench
        && run.scenario == scenario::ALL
    {
        return run_all(run, &args.output);
    }
    let rounds = args.output.repeat;
    let Some(folder) = args.output.report.as_ref().filter(|_| rounds > 1) else {
        return match rounds {
            1 => run_once(&args.bench, &args.output),
            _ => Err(LabError::Usage("--repeat must be at least 1, and of more rounds --report keeps each".into())),
        };
    };
    let mut verdict = Verdict::Passed;
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        let report = Some(folder.join(format!("round-{round:03}")));
        verdict = verdict.and(run_once(&args.bench, &OutputArgs { report, json: None, ..args.output.clone() })?);
        if verdict == Verdict::Failed || interrupt::requested() {
            break;
        }
    }
    Ok(verdict)
}

/// Runs every shipped scenario, each with a report in a folder of its own, and writes a page that leads to all of them.
fn run_all(run: &RunArgs, output: &OutputArgs) -> Result<Verdict, LabError> {
    let Some(folder) = output.report.as_ref().filter(|_| output.repeat == 1 && output.json.is_none()) else {
        return Err(LabError::Usage("`bench run all` needs --report, and has neither --repeat nor --json".into()));
    };
    let mut rows = Vec::new();
    let mut verdict = Verdict::Passed;
    for (name, about) in scenario::shipped() {
        if interrupt::requested() {
            break;
        }
        println!("\n== {name}");
        let bench = Bench::Run(RunArgs { scenario: name.into(), options: Vec::new(), ..run.clone() });
        let started = Instant::now();
        // One scenario that cannot be run, such as a cluster without PostgreSQL, does not keep the others from it.
        let finished = run_once(&bench, &OutputArgs { report: Some(folder.join(name)), ..output.clone() });
        let (one, sentence) = match finished {
            Ok(one) => (one, report::name(one).to_owned()),
            Err(error) => (Verdict::Failed, error.to_string()),
        };
        verdict = verdict.and(one);
        let seconds = started.elapsed().as_secs_f64();
        rows.push(IndexRow { name: name.into(), about, passed: one == Verdict::Passed, sentence, seconds });
        // After each, so that what was measured can be looked at whatever comes next.
        report::write_index(folder, &rows)?;
    }
    println!("\nreports        {}", folder.join(report::INDEX).display());
    for row in &rows {
        println!("  {:<26} {:>6.1} s  {}", row.name, row.seconds, row.sentence);
    }
    Ok(verdict)
}

fn run_once(bench: &Bench, output: &OutputArgs) -> Result<Verdict, LabError> {
    let report = RunReport::begin(output)?;
    let finished = run_bench(bench)?;
    report.finish(finished)
}

/// A bench with its options, as a scenario names it in one line.
#[derive(Debug)]
pub(crate) struct ParsedCommand(BenchArgs);

impl ParsedCommand {
    /// Reads a line such as `isolation --floods official`. The error is one line.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        #[derive(clap::Parser)]
        #[command(no_binary_name = true, disable_help_flag = true)]
        struct CommandLine {
            #[command(flatten)]
            bench: BenchArgs,
        }
        let parsed = CommandLine::try_parse_from(line.split_whitespace());
        let bench = parsed.map(|parsed| parsed.bench).map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        })?;
        if bench.output.report.is_some() || bench.output.json.is_some() || bench.output.repeat != 1 {
            return Err(
                "`--report`, `--json` and `--repeat` are options of the scenario's run, not of its commands".into()
            );
        }
        if bench.bench.can_be_part_of_a_scenario() {
            Ok(ParsedCommand(bench))
        } else {
            Err("this command loads no server".into())
        }
    }

    pub(crate) fn run(&self) -> Result<Finished, LabError> {
        run_bench(&self.0.bench)
    }

    pub(crate) fn thresholds(&self) -> &[report::Threshold] {
        &self.0.output.thresholds
    }
}

fn run_bench(bench: &Bench) -> Result<Finished, LabError> {
    if bench.target().is_some_and(|target| !target.load_agents.agents.is_empty()) && !bench.takes_agents() {
        return Err(LabError::Usage("--agents: this bench loads from this machine alone".into()));
    }
    match bench {
        Bench::Group(args) => group::run(args),
        Bench::Broadcast(args) => broadcast::run(args),
        Bench::Replay(args) => replay::run(args),
        Bench::Streams(args) => streams::run(args),
        Bench::Direct(args) => direct::run(args),
        Bench::Isolation(args) => isolation::run(args),
        Bench::Events(args) => events::run(args),
        Bench::Notifications(args) => notifications::run(args),
        Bench::Crash(args) => crash::run(args),
        Bench::Chaos(args) => chaos::run(args),
        Bench::Leader(args) => leader::run(args),
        Bench::ClusterCost(args) => cluster_cost::run(args),
        Bench::Growth(args) => growth::run(args),
        Bench::Connect(args) => devices::connect::run(args),
        Bench::Storm(args) => devices::storm::run(args),
        Bench::Failover(args) => devices::failover::run(args),
        Bench::Exceptions(args) => devices::exceptions::run(args),
        Bench::Run(args) => scenario::run(args),
        Bench::Popup(args) => popups::home_page::run(args),
        Bench::PopupGrowth(args) => popups::growth::run(args),
        Bench::PopupCaps(args) => popups::caps::run(args),
        Bench::PopupCrash(args) => popups::crash::run(args),
        Bench::Push(args) => devices::push::run(args),
        Bench::Compare(args) => compare::run(args),
        Bench::Brokers(args) => brokers::run(args),
        Bench::Ceiling(args) => ceiling::run(args),
        Bench::Agent(_)
        | Bench::Worker
        | Bench::DeviceWorker
        | Bench::BareAccept(_)
        | Bench::BareServer(_)
        | Bench::Scenario(_)
        | Bench::WsEcho
        | Bench::WsProbe(_) => Err(LabError::Usage("is a part of the lab, and no bench".into())),
    }
}

pub(crate) fn exit_code(result: Result<Verdict, LabError>) -> ExitCode {
    match result {
        Ok(verdict) => {
            match verdict {
                Verdict::LabFellBehind => {
                    eprintln!(
                        "invalid: the lab could not keep its own schedule, so these figures are not the server's"
                    );
                }
                Verdict::Interrupted => eprintln!("ended early: these figures are of a part of the run"),
                Verdict::ThresholdMissed => eprintln!("a threshold was missed"),
                Verdict::Passed | Verdict::Failed => {}
            }
            ExitCode::from(verdict as u8)
        }
        Err(LabError::Usage(what)) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
        Err(error @ LabError::Environment(_)) => {
            eprintln!("{error}");
            ExitCode::from(4)
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_server_outweighs_a_lab_that_fell_behind() {
        assert_eq!(Verdict::Passed.and(Verdict::LabFellBehind), Verdict::LabFellBehind);
        assert_eq!(Verdict::LabFellBehind.and(Verdict::Failed), Verdict::Failed);
        assert_eq!(Verdict::Failed.and(Verdict::LabFellBehind), Verdict::Failed);
        assert_eq!(Verdict::Interrupted.and(Verdict::ThresholdMissed), Verdict::Interrupted);
    }
}
