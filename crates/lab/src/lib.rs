//! The load lab: what wrk2 is to HTTP, for messaging. It is a black-box user of a server, through its public doors.
//!
//! Open-loop schedules, latency from the planned send time, and counts that must balance: every
//! receiver is checked entry by entry, and a run that lost, doubled, reordered or altered anything fails. It
//! knows nothing of how the server works, and links none of it. In reading order:
//! - [`args`]: the commands and their options;
//! - `group`, `broadcast`, `replay`, `direct`, `isolation`, `crash`, `chaos`, `cluster_cost`, `growth`: one file or folder per command;
//! - `server`, `setup`, `load`: a server of the bench's own, users and groups, the worker process as the parent sees it;
//! - `job`: what parent and worker say to each other;
//! - [`worker`]: the load client itself, on one core;
//! - `popups`: decisions and events, with a client and commands of their own;
//! - `topology`: a cluster as local processes;
//! - `ws_strangers`: our WebSocket framing and our client, for `interop/` to hold against those of others;
//! - `bare`: a loop that only writes, the limit that broadcasts are held against;
//! - `timeline`, `corpus`, `report`, `process`: reading back, recorded chats, tables, the operating system.

pub mod args;
mod bare;
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
mod job;
mod load;
pub mod popups;
mod process;
mod replay;
mod report;
mod server;
mod setup;
mod timeline;
mod topology;
pub mod worker;
mod ws_strangers;

pub use args::BenchArgs;
pub use job::{Outcome, Percentiles};
pub use topology::command::{ClusterArgs, run as run_cluster};

use args::Bench;
use std::process::ExitCode;

/// Why a bench could not be run. What the server did wrong is no error but a verdict: see [`Verdict`].
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
    /// What stands around the server could not be set up or moved: no word about the server.
    #[error("{0}")]
    Part(String),
}

/// What a bench found. Each has an exit code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Passed = 0,
    /// The lab could not keep its schedule: the figures are its own limit.
    LabFellBehind = 3,
    /// A count does not balance.
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

    /// The graver of the two: a failure of the product stands above a lab that fell behind.
    pub(crate) fn and(self, other: Verdict) -> Verdict {
        if self == Verdict::Failed || other == Verdict::Failed {
            return Verdict::Failed;
        }
        self.max(other)
    }
}

/// Runs a bench and says how it ended: 0 passed, 1 the server failed, 2 usage, 3 the lab fell behind.
pub fn run(args: BenchArgs) -> ExitCode {
    let result = match args.bench {
        Bench::Worker => return worker::main(),
        Bench::DeviceWorker => return device_worker::main(),
        Bench::BareAccept(bare) => return devices::bare_accept_main(&bare),
        Bench::BareServer(bare) => return bare::main(&bare),
        Bench::WsEcho => return ws_strangers::echo(),
        Bench::WsProbe(args) => return ws_strangers::probe(&args),
        Bench::Group(args) => group::run(&args),
        Bench::Broadcast(args) => broadcast::run(&args),
        Bench::Replay(args) => replay::run(&args),
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
        Bench::Popup(args) => popups::home::run(&args),
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
        Err(error @ LabError::Part(_)) => {
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
    fn a_products_failure_stands_above_a_lab_that_fell_behind() {
        assert_eq!(Verdict::Passed.and(Verdict::LabFellBehind), Verdict::LabFellBehind);
        assert_eq!(Verdict::LabFellBehind.and(Verdict::Failed), Verdict::Failed);
        assert_eq!(Verdict::Failed.and(Verdict::LabFellBehind), Verdict::Failed);
    }
}
