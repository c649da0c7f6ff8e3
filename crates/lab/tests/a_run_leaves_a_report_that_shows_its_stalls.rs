//! A run leaves a page, JSON and CSV. A stall of the server shows in them where it was: in the series at its time, and in the
//! percentiles at its share. The lab's own lag makes a run invalid, a missed threshold and Ctrl-C have exit codes of their own, and
//! a run that was ended early is marked as partial.
//!
//! The lab starts the same binary again as its load client, `bench worker`, and so does this test to send it Ctrl-C.
// Slow: left out by `make test-quick`.

#![allow(clippy::unwrap_used)]

#[path = "support/message_server.rs"]
mod message_server;

use clap::Parser;
use message_server::{Fault, STALL, serve, serve_and_tell};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    path::Path,
    process::{Child, ExitCode, Stdio},
    sync::mpsc,
};

#[derive(Parser)]
enum Command {
    Bench(tidings_lab::BenchArgs),
}

const FAILED_EXIT: i32 = 1;
const INVALID: i32 = 3;
const THRESHOLD_MISSED: i32 = 5;
const INTERRUPTED: i32 = 130;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let Command::Bench(args) = Command::parse();
        // An exit code does not tell its number, but its debug output does; it is that of the run.
        let code = tidings_lab::run(args);
        std::process::exit(number_of(code));
    }
    a_stall_shows_where_it_was();
    the_labs_own_lag_makes_a_run_invalid();
    a_missed_threshold_has_its_exit_code();
    a_run_that_is_ended_early_is_marked();
    a_folder_that_cannot_be_written_is_known_before_the_run();
}

fn number_of(code: ExitCode) -> i32 {
    (0..=255).find(|number| ExitCode::from(*number) == code).map_or(-1, i32::from)
}

/// Starts `bench group` against a server with this fault.
fn start(fault: Fault, folder: &Path, options: &str) -> Child {
    start_at(&serve(fault)[0], folder, options)
}

fn start_at(url: &str, folder: &Path, options: &str) -> Child {
    let line = format!(
        "bench group --url {url} --api-key secret-key --token-key t --members 3 --senders 8 --patience 60s {options} --report"
    );
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(line.split_whitespace()).arg(folder).stdout(Stdio::null()).spawn().unwrap()
}

fn run(fault: Fault, options: &str) -> (i32, Value, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let code = start(fault, folder.path(), options).wait().unwrap().code().unwrap();
    (code, report(folder.path()), folder)
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap()
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(0.0)).collect()
}

fn a_stall_shows_where_it_was() {
    // 200 messages a second: message 300 is due at 1.5 s, in the seventh bin of a quarter of a second.
    const AT_MESSAGE: u64 = 301;
    const BIN: usize = 6;
    let stall_ms = STALL.as_secs_f64() * 1e3;
    // That nothing else was as slow is up to the machine; what the stall must show does not depend on it.
    let is_seen_alone = (0..10).any(|_| {
        let (code, report, folder) = run(Fault::Stall(AT_MESSAGE), "--rate 200 --duration 3s --lag-max 60s");
        assert_eq!(code, 0, "{report:#}");
        let outcome = &report["outcome"];
        let series = &outcome["series"];
        assert_eq!(series["bin_s"], 0.25);
        let max = numbers(&series["max"]);
        // The series has two significant digits.
        assert!(max[BIN] >= stall_ms * 0.99, "at its time: {max:?}");
        let delivered: f64 = numbers(&series["delivered"]).iter().sum();
        assert_eq!(delivered, 1800.0, "600 messages to three members each");
        // 40 of 600 messages were due while nothing went on: the slowest 1 % of all waited for 170 ms and more.
        let latency = |name: &str| outcome["latency"][name].as_f64().unwrap();
        assert!(latency("max") >= stall_ms && latency("p99") >= 0.8 * stall_ms, "{:#}", outcome["latency"]);
        let curve = outcome["latency_curve"].as_array().unwrap();
        assert!(
            curve.iter().any(|point| point[0].as_f64().unwrap() < 99.5 && point[1].as_f64().unwrap() > 0.8 * stall_ms)
        );
        // The stall is the server's: the lab did not lag for it.
        let csv = std::fs::read_to_string(folder.path().join("series.csv")).unwrap();
        assert_eq!(csv.lines().count(), max.len() + 1);
        let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert!(page.contains("uPlot") && !page.contains("secret-key") && !report.to_string().contains("secret-key"));
        let elsewhere = max.iter().enumerate().filter(|(bin, _)| *bin != BIN).map(|(_, max)| *max).fold(0.0, f64::max);
        let lag = numbers(&series["lag_max"]).into_iter().fold(0.0, f64::max);
        elsewhere < stall_ms * 0.75
            && latency("p50") < stall_ms / 4.0
            && latency("p90") < stall_ms * 0.5
            && lag < stall_ms / 2.0
    });
    assert!(is_seen_alone, "in ten runs the stall was never alone");
}

fn the_labs_own_lag_makes_a_run_invalid() {
    let (code, report, _) = run(Fault::None, "--rate 200 --duration 250ms --lag-max 0ms");
    assert_eq!((code, report["run"]["verdict"].as_str()), (INVALID, Some("invalid")));
    let criteria = report["run"]["criteria"].as_array().unwrap();
    assert!(criteria.iter().any(|criterion| criterion["name"] == "the lab's own lag" && criterion["met"] == false));
    // A fault of the server is one also then.
    let (code, report, _) = run(Fault::DuplicateEntry, "--rate 200 --duration 250ms --lag-max 0ms");
    assert_eq!((code, report["run"]["verdict"].as_str()), (FAILED_EXIT, Some("failed")));
}

fn a_missed_threshold_has_its_exit_code() {
    let options = "--rate 200 --duration 250ms --lag-max 60s --threshold errors<=0% --threshold";
    let (code, report, _) = run(Fault::None, &format!("{options} p50<0"));
    assert_eq!((code, report["run"]["verdict"].as_str()), (THRESHOLD_MISSED, Some("threshold missed")));
    assert_eq!(run(Fault::None, &format!("{options} max<60000")).0, 0);
}

fn a_run_that_is_ended_early_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    // After twenty messages the load goes on, and the run has an hour to go.
    let (tell, told) = mpsc::sync_channel(1);
    let urls = serve_and_tell(Fault::None, move |number| {
        if number == 20 {
            tell.send(()).unwrap();
        }
    });
    let mut bench = start_at(&urls[0], folder.path(), "--rate 200 --duration 60m --lag-max 60s");
    told.recv().unwrap();
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(INTERRUPTED));
    let report = report(folder.path());
    assert_eq!((&report["run"]["partial"], report["run"]["verdict"].as_str()), (&Value::Bool(true), Some("partial")));
    let outcome = &report["outcome"];
    assert_eq!((&outcome["interrupted"], &outcome["delivered"]), (&Value::Bool(true), &outcome["expected"]));
    assert!(outcome["committed"].as_u64().unwrap() >= 20);
}

fn a_folder_that_cannot_be_written_is_known_before_the_run() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut bench = start(Fault::None, &file.path().join("below"), "--rate 1 --duration 60m");
    assert_eq!(bench.wait().unwrap().code(), Some(2));
}
