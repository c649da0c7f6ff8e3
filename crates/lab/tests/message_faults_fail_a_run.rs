//! Runs the lab against a small server with injected faults: each fault must fail the run, and a server without a fault must
//! pass. The lab starts the same binary again as its load client, `bench worker`.
// Slow: left out by `make test-quick`.

#![allow(clippy::unwrap_used)]

#[path = "support/message_server.rs"]
mod message_server;

use clap::Parser;
use message_server::{Fault, serve};
use std::process::ExitCode;

#[derive(Parser)]
enum Command {
    Bench(tidings_lab::BenchArgs),
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let Command::Bench(args) = Command::parse();
        let code = tidings_lab::run(args);
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
    for (fault, expected) in [
        (Fault::None, ExitCode::SUCCESS),
        (Fault::LoseEntry, ExitCode::from(1)),
        (Fault::DuplicateEntry, ExitCode::from(1)),
        (Fault::ReorderEntries, ExitCode::from(1)),
        (Fault::AlterEntry, ExitCode::from(1)),
        (Fault::WithholdFromAll, ExitCode::from(1)),
    ] {
        for batch in ["1", "4"] {
            let url = serve(fault)[0].clone();
            // A failing run waits in vain for a lost or altered message, so its patience is short.
            let patience = match fault {
                Fault::LoseEntry | Fault::WithholdFromAll => "300ms",
                Fault::AlterEntry => "2s",
                _ => "60s",
            };
            let line = format!(
                "lab bench group --url {url} --api-key k --token-key t --members 3 --senders 2 --rate 400 --duration \
                 250ms --patience {patience} --batch {batch}"
            );
            let Command::Bench(args) = Command::parse_from(line.split_whitespace());
            assert_eq!(without_lateness(tidings_lab::run(args)), expected, "{fault:?}, batches of {batch}");
        }
    }
    scenarios_fail_as_well();
    for (fault, expected) in [
        (Fault::None, ExitCode::SUCCESS),
        (Fault::Disconnect, ExitCode::SUCCESS),
        (Fault::ResumeSkipsEntries, ExitCode::from(1)),
        (Fault::ResumeRepeatsEntries, ExitCode::from(1)),
        (Fault::DifferentOrders, ExitCode::from(1)),
        (Fault::CommitTwice, ExitCode::from(1)),
    ] {
        let urls = serve(fault).join(",");
        let patience = if expected == ExitCode::SUCCESS { "60s" } else { "2s" };
        let line = format!(
            "lab bench group --url {urls} --api-key k --token-key t --members 6 --senders 2 --rate 100 --duration 1s \
             --patience {patience}"
        );
        let Command::Bench(args) = Command::parse_from(line.split_whitespace());
        assert_eq!(without_lateness(tidings_lab::run(args)), expected, "two nodes, {fault:?}");
    }
}

/// The same server under a scenario: what a receiver does not get fails the run.
fn scenarios_fail_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    let text = "name = \"a\"\nabout = \"A.\"\n[population.g]\nkind = \"group\"\nmembers = 3\nsenders = 2\n\
                [[phase]]\nname = \"p\"\nduration = \"500ms\"\n[[phase.work]]\npopulation = \"g\"\n\
                rate = { ramp = { from = 50, to = 150 } }\n";
    std::fs::write(&file, text).unwrap();
    for (fault, expected) in [(Fault::None, ExitCode::SUCCESS), (Fault::LoseEntry, ExitCode::from(1))] {
        let url = serve(fault)[0].clone();
        let patience = if expected == ExitCode::SUCCESS { "60s" } else { "300ms" };
        let file = file.display();
        let line = format!("lab bench run {file} --url {url} --api-key k --token-key t --patience {patience}");
        let Command::Bench(args) = Command::parse_from(line.split_whitespace());
        assert_eq!(without_lateness(tidings_lab::run(args)), expected, "scenario, {fault:?}");
    }
}

/// The exit code without lateness: a lab that fell behind on a busy machine has still found that all counts balance.
fn without_lateness(code: ExitCode) -> ExitCode {
    const FELL_BEHIND: u8 = 3;
    if code == ExitCode::from(FELL_BEHIND) { ExitCode::SUCCESS } else { code }
}
