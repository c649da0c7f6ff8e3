//! The load lab: what wrk2 is to HTTP, for messaging. It tests a server as a black box, through its public listeners.
//!
//! Load comes from open-loop schedules, latency counts from the planned send time, and counts must balance: every
//! receiver is verified entry by entry, and a run in which an entry was lost, doubled, reordered or altered fails. The lab
//! knows nothing of how the server works, and links none of it. In reading order:
//! - [`args`]: the commands; [`options`]: the options that they share;
//! - `group`, `broadcast`, `replay`, `streams`, `direct`, `isolation`, `popup`, `events`: commands that are scenarios with other values;
//! - `crash`, `chaos`, `leader`, `cluster_scale`: one file or folder per command;
//! - `reach`: whether every message reaches every member by exactly the channels that are due;
//! - `scenario`: the same and more, from files that say who takes part, what is due when, and what happens to the server;
//! - `compare`: reports of several versions or steps beside each other;
//! - `server`, `setup`, `load_client`, `message_clients`: the server under test, its users and groups, the load client's process as the bench
//!   sees it, and who sends and receives messages;
//! - `worker_protocol`: the commands and reports between a bench and its load client;
//! - `load_generators`: load clients on several machines as one; `agent`: such a machine; `phase_part`, `clock`: what both agree on;
//! - `client_engine`: the event loop and the protocols that every load client is built on;
//! - `worker`: the load client for messages, on one core;
//! - `mix`: edits, recalls, reactions and receipts beside plain messages, and the model that clients' views are held to;
//! - `device_commands`: benches with devices, which are scenarios; `devices`, `device_worker`: these as a bench sees them, and their load
//!   client;
//! - [`popups`]: popup decisions and events, with a load client of their own;
//! - `offline_push`: fakes of the app's webhook and of providers' services, and counts of what members who are offline are told;
//! - `topology`: a cluster as local processes;
//! - `ws_interop`: our WebSocket framing and our client, for `interop/` to test against other implementations;
//! - `bare_server`: a loop that only writes, the baseline of messages; `bare_load`: a load on it;
//! - `brokers`: the same load on servers that others wrote;
//! - `driver`: servers that others wrote, described by a file; `delivery_ledger`: the verifier of servers without a `seq`;
//! - `verification`: what all verifiers of messages share: order, acknowledgements against deliveries, counts;
//! - `rate_profile`: rates that change over time, and the planned times that follow; `schedule`: when the messages of a load are due;
//! - `latency`, `series`, `load_times`, `sampler`, `kernel`: histograms and percentiles, figures over time, both of one load, samples
//!   of the processes and of the kernel's counters;
//! - `live`: the curves of what runs, on the terminal; `otlp`: the same figures, sent to a collector;
//! - `result`: the one result that every run fills, with its measurements, checks and verdict; `outcome_figures`: that of messages;
//! - `report`: a result on the terminal, and as a page, as JSON, as CSV and for JUnit;
//! - `toml_file`: mistakes in users' files, shown with their line;
//! - `timeline`, `corpus`, `process`, `managed_process`, `interrupt`: reading a timeline back, recorded chats, the operating system, a process
//!   with its log, Ctrl-C;
//! - `problems`, `lock`: faults in words, mutexes.

/// Does the same with each of these counts: `counts!(sum += other: sent, lost)`.
macro_rules! counts {
    ($sum:ident $does:tt $other:ident: $($count:ident),+ $(,)?) => {
        $($sum.$count $does $other.$count;)+
    };
}

mod agent;
pub mod args;
mod bare_load;
mod bare_server;
mod broadcast;
mod brokers;
mod chaos;
mod client_engine;
mod clock;
mod cluster_scale;
mod compare;
mod corpus;
mod crash;
mod delivery_ledger;
mod device_commands;
mod device_worker;
mod devices;
mod direct;
mod driver;
mod events;
mod group;
mod interrupt;
mod isolation;
mod kernel;
mod latency;
mod leader;
mod live;
mod load_client;
mod load_generators;
mod load_times;
mod lock;
mod managed_process;
mod message_clients;
mod mix;
mod notifications;
pub mod offline_push;
pub mod options;
mod otlp;
mod outcome_figures;
mod phase_part;
mod popup;
pub mod popups;
mod problems;
mod process;
mod rate_profile;
mod replay;
mod report;
mod reserved_port;
mod result;
mod sampler;
pub mod scenario;
mod schedule;
mod series;
mod server;
mod setup;
mod streams;
mod timeline;
mod toml_file;
mod topology;
mod verification;
mod worker;
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
use report::{IndexRow, RunReport, TestSuite};
use result::{RunResult, Verdict};
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

/// Runs a bench. The exit code is 0 if it passed, 1 if the server failed, 2 for wrong usage, 3 if the run is invalid since the
/// lab fell behind, 4 if the processes around the server could not be set up, 5 if a threshold was missed, 130 after Ctrl-C.
pub fn run(args: BenchArgs) -> ExitCode {
    match &args.bench {
        Bench::Agent(args) => return agent::main(args),
        Bench::Worker => return worker::main(),
        Bench::DeviceWorker => return device_worker::main(),
        Bench::BareAccept(bare) => return devices::bare_accept::main(bare),
        Bench::BareServer(bare) => return bare_server::main(bare),
        Bench::WsEcho => return ws_interop::echo(),
        Bench::WsProbe(args) => return ws_interop::probe(args),
        Bench::Scenario(args) => return exit_code(scenario::show(args).map(|()| Verdict::Passed)),
        _ => {}
    }
    exit_code(run_and_report(&args))
}

fn run_and_report(args: &BenchArgs) -> Result<Verdict, LabError> {
    if args.bench.traits().ends_early {
        interrupt::install()?;
    }
    live::enable(&args.output)?;
    let mut suites = Vec::new();
    if let Bench::Run(run) = &args.bench
        && run.scenario == scenario::ALL
    {
        return run_all(run, &args.output, &mut suites);
    }
    let rounds = args.output.repeat;
    let Some(folder) = args.output.report.as_ref().filter(|_| rounds > 1) else {
        return match rounds {
            1 => run_once(&args.bench, &args.output, &mut suites),
            _ => Err(LabError::Usage("--repeat must be at least 1, and of more rounds --report keeps each".into())),
        };
    };
    let mut verdict = Verdict::Passed;
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        let report = Some(folder.join(format!("round-{round:03}")));
        let output = OutputArgs { report, json: None, ..args.output.clone() };
        verdict = verdict.and(run_once(&args.bench, &output, &mut suites)?);
        if verdict == Verdict::Failed || interrupt::requested() {
            break;
        }
    }
    Ok(verdict)
}

/// Runs every shipped scenario, each with a report in a folder of its own, and writes a page that leads to all of them.
fn run_all(run: &RunArgs, output: &OutputArgs, suites: &mut Vec<TestSuite>) -> Result<Verdict, LabError> {
    let Some(folder) = output.report.as_ref().filter(|_| output.repeat == 1 && output.json.is_none()) else {
        return Err(LabError::Usage("`bench run all` needs --report, and has neither --repeat nor --json".into()));
    };
    let mut rows: Vec<IndexRow> = Vec::new();
    for (name, about) in scenario::shipped() {
        if interrupt::requested() {
            break;
        }
        println!("\n== {name}");
        let bench = Bench::Run(RunArgs { scenario: name.into(), options: Vec::new(), ..run.clone() });
        let started = Instant::now();
        // One scenario that cannot be run, such as a cluster without PostgreSQL, does not keep the others from it.
        let finished = run_once(&bench, &OutputArgs { report: Some(folder.join(name)), ..output.clone() }, suites);
        let (verdict, sentence) = match finished {
            Ok(verdict) => (verdict, verdict.name().to_owned()),
            Err(error) => (Verdict::Failed, error.to_string()),
        };
        let seconds = started.elapsed().as_secs_f64();
        rows.push(IndexRow { name: name.into(), about, verdict, sentence, seconds });
        // After each, so that what was measured can be looked at whatever comes next.
        report::write_index(folder, &rows)?;
    }
    println!("\nreports        {}", folder.join(report::INDEX).display());
    for row in &rows {
        println!("  {:<26} {:>6.1} s  {}", row.name, row.seconds, row.sentence);
    }
    Ok(rows.iter().fold(Verdict::Passed, |verdict, row| verdict.and(row.verdict)))
}

/// Runs it, and writes what `--junit` is to have after each run: whatever comes next, it can be read.
fn run_once(bench: &Bench, output: &OutputArgs, suites: &mut Vec<TestSuite>) -> Result<Verdict, LabError> {
    if output.otlp.is_some() && !bench.traits().is_scenario {
        return Err(LabError::Usage("--otlp: this bench is no scenario, and has nothing to send while it runs".into()));
    }
    let report = RunReport::begin(output)?;
    // Dropped at the end, when the report is written: a collector that is away holds nothing up but the end of the process.
    let _exporter = output.otlp.as_deref().map(|url| otlp::Exporter::start(url, report.id())).transpose()?;
    let name = match bench {
        Bench::Run(run) => &run.scenario,
        _ => "bench",
    };
    let ended = run_bench(bench).map_err(|error| (report.break_off(name, &error), error));
    let (result, suite) = match ended {
        Ok(result) => {
            let (verdict, suite) = report.finish(result)?;
            (Ok(verdict), suite)
        }
        // A mistake in the options is no run.
        Err((_, error @ LabError::Usage(_))) => return Err(error),
        Err((suite, error)) => (Err(error), suite),
    };
    suites.push(suite);
    if let Some(file) = &output.junit {
        TestSuite::write_all(file, suites)?;
    }
    result
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
        let OutputArgs { report, json, junit, otlp, repeat, .. } = &bench.output;
        if report.is_some() || json.is_some() || junit.is_some() || otlp.is_some() || *repeat != 1 {
            let why = "`--report`, `--json`, `--junit`, `--otlp` and `--repeat` are options of the scenario's run, not of its commands";
            return Err(why.into());
        }
        if bench.bench.traits().is_part { Ok(ParsedCommand(bench)) } else { Err("this command loads no server".into()) }
    }

    pub(crate) fn run(&self) -> Result<RunResult, LabError> {
        run_bench(&self.0.bench)
    }

    pub(crate) fn thresholds(&self) -> &[result::Threshold] {
        &self.0.output.thresholds
    }
}

fn run_bench(bench: &Bench) -> Result<RunResult, LabError> {
    let traits = bench.traits();
    if traits.target.is_some_and(|target| !target.load_agents.agents.is_empty()) && !traits.takes_agents {
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
        Bench::ClusterScale(args) => cluster_scale::run(args),
        Bench::Connect(args) => device_commands::connect(args),
        Bench::Storm(args) => device_commands::storm(args),
        Bench::Failover(args) => device_commands::failover(args),
        Bench::Exceptions(args) => device_commands::exceptions(args),
        Bench::Run(args) => scenario::run(args),
        Bench::Popup(args) => popup::run(args),
        Bench::PopupCaps(args) => popups::caps::run(args),
        Bench::PopupCrash(args) => popups::crash::run(args),
        Bench::Push(args) => device_commands::push(args),
        Bench::Compare(args) => compare::run(args),
        Bench::Brokers(args) => brokers::run(args),
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
