//! The load lab: what wrk2 is to HTTP, for messaging. It tests a server as a black box, through its public listeners.
//!
//! Load comes from open-loop schedules, latency counts from the planned send time, and counts must balance: every
//! receiver is verified entry by entry, and a run in which an entry was lost, doubled, reordered or altered fails. The lab
//! knows nothing of how the server works, and links none of it. In reading order:
//! - [`args`]: the commands; [`options`]: the options that they share;
//! - `group`, `broadcast`, `replay`, `streams`, `direct`, `isolation`, `crash`, `chaos`, `cluster_cost`, `growth`: one file or folder per command;
//! - `server`, `setup`, `load_client`: the server under test, its users and groups, the load client's process as the bench sees it;
//! - `worker_protocol`: the commands and reports between a bench and its load client;
//! - [`worker`]: the load client itself, on one core;
//! - `mix`: edits, recalls, reactions and receipts beside plain messages, and the model that clients' views are held to;
//! - [`devices`], `device_worker`: benches with devices, and their load client;
//! - [`popups`]: benches with popup decisions and events, with a load client of their own;
//! - `topology`: a cluster as local processes;
//! - `ws_interop`: our WebSocket framing and our client, for `interop/` to test against other implementations;
//! - `bare_server`: a loop that only writes, the baseline of broadcasts;
//! - `latency`: histograms and percentiles;
//! - `timeline`, `corpus`, `report`, `process`: reading a timeline back, recorded chats, printed and JSON reports, the operating system.

pub mod args;
mod bare_server;
mod broadcast;
mod chaos;
mod cluster_cost;
mod corpus;
mod crash;
mod device_worker;
pub mod devices;
mod direct;
mod group;
mod growth;
mod isolation;
mod latency;
mod load_client;
mod mix;
pub mod options;
pub mod popups;
mod process;
mod replay;
mod report;
mod server;
mod setup;
mod streams;
mod timeline;
mod topology;
pub mod worker;
mod worker_protocol;
mod ws_interop;

pub use args::BenchArgs;
pub use latency::Percentiles;
pub use mix::counts::MixCounts;
pub use topology::command::{ClusterArgs, run as run_cluster};
pub use worker_protocol::{Outcome, ReceiptCounts};

use args::Bench;
use std::process::ExitCode;

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

/// How a bench ended. Each verdict has its own exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Passed = 0,
    /// The lab could not keep its schedule: the figures are the lab's limit, not the server's.
    LabFellBehind = 3,
    /// The server failed: a count does not balance.
    Failed = 1,
}

impl Verdict {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match (outcome.balances(), outcome.lab_fell_behind()) {
            (false, _) => Verdict::Failed,
            (true, true) => Verdict::LabFellBehind,
            (true, false) => Verdict::Passed,
        }
    }

    /// The worse of two verdicts: a failure of the server outweighs a lab that fell behind.
    pub(crate) fn and(self, other: Verdict) -> Verdict {
        if self == Verdict::Failed || other == Verdict::Failed {
            return Verdict::Failed;
        }
        self.max(other)
    }
}

/// Runs a bench. The exit code is 0 if it passed, 1 if the server failed, 2 for wrong usage, 3 if the lab fell behind.
pub fn run(args: BenchArgs) -> ExitCode {
    let result = match args.bench {
        Bench::Worker => return worker::main(),
        Bench::DeviceWorker => return device_worker::main(),
        Bench::BareAccept(bare) => return devices::bare_accept_main(&bare),
        Bench::BareServer(bare) => return bare_server::main(&bare),
        Bench::WsEcho => return ws_interop::echo(),
        Bench::WsProbe(args) => return ws_interop::probe(&args),
        Bench::Group(args) => group::run(&args),
        Bench::Broadcast(args) => broadcast::run(&args),
        Bench::Replay(args) => replay::run(&args),
        Bench::Streams(args) => streams::run(&args),
        Bench::Direct(args) => direct::run(&args),
        Bench::Isolation(args) => isolation::run(&args),
        Bench::Crash(args) => crash::run(&args),
        Bench::Chaos(args) => chaos::run(&args),
        Bench::ClusterCost(args) => cluster_cost::run(&args),
        Bench::Growth(args) => growth::run(&args),
        Bench::Connect(args) => devices::connect::run(&args),
        Bench::Storm(args) => devices::storm::run(&args),
        Bench::Failover(args) => devices::failover::run(&args),
        Bench::Exceptions(args) => devices::exceptions::run(&args),
        Bench::Scenario(args) => devices::scenario::run(&args),
        Bench::Popup(args) => popups::home_page::run(&args),
        Bench::PopupGrowth(args) => popups::growth::run(&args),
        Bench::PopupCaps(args) => popups::caps::run(&args),
        Bench::PopupCrash(args) => popups::crash::run(&args),
        Bench::Push(args) => devices::push::run(&args),
    };
    exit_code(result)
}

pub(crate) fn exit_code(result: Result<Verdict, LabError>) -> ExitCode {
    match result {
        Ok(verdict) => {
            if verdict == Verdict::LabFellBehind {
                eprintln!("the lab could not keep up with its own schedule: these figures are its limit");
            }
            ExitCode::from(verdict as u8)
        }
        Err(LabError::Usage(what)) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
        Err(error @ LabError::Environment(_)) => {
            eprintln!("{error}");
            ExitCode::from(3)
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
    }
}
