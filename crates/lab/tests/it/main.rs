//! The load lab, by what can be observed: a module for each behaviour.
//!
//! The lab starts its own program again as its load clients, agents and servers. Here this binary is that program, so it has a
//! `main` of its own in place of libtest's, and libtest's arguments and output from `libtest-mimic`.
#![allow(clippy::unwrap_used)]

mod a_described_server_is_verified;
mod a_run_leaves_a_report_that_shows_its_stalls;
mod agents_share_a_load;
mod broker_faults_fail_a_run;
mod comparisons_say_what_rounds_allow;
mod device_faults_fail_a_run;
mod junit_has_what_a_run_was_held_to;
mod message_faults_fail_a_run;
mod popup_faults_fail_a_run;
mod the_live_view_follows_a_run;

mod support {
    pub(crate) mod agents;
    pub(crate) mod fault_proxy;
    pub(crate) mod foreign_server;
    pub(crate) mod http;
    pub(crate) mod lab;
    pub(crate) mod message_server;
    pub(crate) mod pseudo_terminal;
    pub(crate) mod tls_proxy;
    pub(crate) mod trials;
}

use clap::Parser;
use libtest_mimic::Arguments;
use std::process::ExitCode;

/// How many trials run at once unless `--test-threads` says otherwise. They wait for schedules and time-outs more than they
/// compute, so that cores are no measure.
const TRIALS_AT_ONCE: usize = 8;

#[derive(Parser)]
enum CommandLine {
    Bench(tidings_lab::BenchArgs),
}

fn main() -> ExitCode {
    if let Some(code) = run_as_tidings() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TRIALS_AT_ONCE);
    let trials = [
        a_described_server_is_verified::trials(),
        agents_share_a_load::trials(),
        broker_faults_fail_a_run::trials(),
        comparisons_say_what_rounds_allow::trials(),
        device_faults_fail_a_run::trials(),
        junit_has_what_a_run_was_held_to::trials(),
        message_faults_fail_a_run::trials(),
        popup_faults_fail_a_run::trials(),
        the_live_view_follows_a_run::trials(),
        // With a trial that runs alone: as the last one it keeps no thread from other trials.
        a_run_leaves_a_report_that_shows_its_stalls::trials(),
    ];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}

/// Does what `tidings` does where the lab starts it, or a trial starts the lab; nothing where libtest's arguments are given.
fn run_as_tidings() -> Option<ExitCode> {
    match std::env::args().nth(1)?.as_str() {
        "bench" => {
            let CommandLine::Bench(args) = CommandLine::parse();
            Some(tidings_lab::run(args))
        }
        // The names of trials may be filtered by these words, so they are commands only to a lab that was told a fault.
        "serve" if popup_faults_fail_a_run::is_server() => {
            popup_faults_fail_a_run::serve_process();
            Some(ExitCode::SUCCESS)
        }
        // `tidings check`: the folder of that server is always right.
        "check" if popup_faults_fail_a_run::is_server() => Some(ExitCode::SUCCESS),
        _ => None,
    }
}
