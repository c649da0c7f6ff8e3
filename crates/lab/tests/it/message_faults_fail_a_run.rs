//! Runs the lab against a small server with injected faults: each fault must fail the run, and a server without a fault must
//! pass.
// Slow: left out by `make test-quick`.

use crate::support::{
    lab::{self, FAILED, INVALID, PASSED},
    message_server::{Fault, serve},
    trials::trial,
};
use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for fault in [
        Fault::None,
        Fault::LoseEntry,
        Fault::DuplicateEntry,
        Fault::ReorderEntries,
        Fault::AlterEntry,
        Fault::WithholdFromAll,
    ] {
        for batch in [Batch(1), Batch(4)] {
            trials.push(trial!(a_fault_fails_a_group(fault, batch)));
        }
    }
    for fault in [Fault::None, Fault::LoseEntry] {
        trials.push(trial!(a_fault_fails_a_scenario(fault)));
    }
    for fault in [
        Fault::None,
        Fault::Disconnect,
        Fault::ResumeSkipsEntries,
        Fault::ResumeRepeatsEntries,
        Fault::DifferentOrders,
        Fault::CommitTwice,
    ] {
        trials.push(trial!(a_fault_fails_a_group_on_two_nodes(fault)));
    }
    trials
}

/// How many messages a request sends.
#[derive(Debug, Clone, Copy)]
struct Batch(u32);

/// The exit code of a run against a server with this fault.
fn expected(fault: Fault) -> i32 {
    // A connection that ends and resumes is no fault.
    if matches!(fault, Fault::None | Fault::Disconnect) { PASSED } else { FAILED }
}

fn a_fault_fails_a_group(fault: Fault, Batch(batch): Batch) {
    // Where something is lost for good it is waited for in vain, so the patience is short; but not so short that a busy machine
    // ends the run before the fault.
    let patience = match fault {
        Fault::LoseEntry | Fault::WithholdFromAll | Fault::AlterEntry => "3s",
        _ => "60s",
    };
    let ended = lab::run(&format!(
        "group --url {} --api-key k --token-key t --members 3 --senders 2 --rate 400 --duration 250ms --patience {patience} \
         --batch {batch}",
        serve(fault)[0]
    ));
    assert_eq!(without_lateness(ended.code), expected(fault));
}

/// The same server under a scenario: what a receiver does not get fails the run.
fn a_fault_fails_a_scenario(fault: Fault) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    let text = "name = \"a\"\nabout = \"A.\"\n[population.g]\nkind = \"group\"\nmembers = 3\nsenders = 2\n\
                [[phase]]\nname = \"p\"\nduration = \"500ms\"\n[[phase.work]]\npopulation = \"g\"\n\
                rate = { ramp = { from = 50, to = 150 } }\n";
    std::fs::write(&file, text).unwrap();
    let patience = if expected(fault) == PASSED { "60s" } else { "3s" };
    let (file, url) = (file.display(), &serve(fault)[0]);
    let ended = lab::run(&format!("run {file} --url {url} --api-key k --token-key t --patience {patience}"));
    assert_eq!(without_lateness(ended.code), expected(fault));
}

fn a_fault_fails_a_group_on_two_nodes(fault: Fault) {
    let urls = serve(fault).join(",");
    let patience = if expected(fault) == PASSED { "60s" } else { "3s" };
    let ended = lab::run(&format!(
        "group --url {urls} --api-key k --token-key t --members 6 --senders 2 --rate 100 --duration 1s --patience {patience}"
    ));
    assert_eq!(without_lateness(ended.code), expected(fault));
}

/// The exit code without lateness: a lab that fell behind on a busy machine has still found that all counts balance.
fn without_lateness(code: i32) -> i32 {
    if code == INVALID { PASSED } else { code }
}
