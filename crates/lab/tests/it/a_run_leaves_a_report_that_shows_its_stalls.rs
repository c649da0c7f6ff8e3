//! A run leaves a page, JSON and CSV. A stall of the server shows in them where it was: in the series at its time, and in the
//! percentiles at its share. The lab's own lag makes a run invalid, a missed threshold and Ctrl-C have exit codes of their own, and
//! a run that was ended early is marked as partial.
// Slow: left out by `make test-quick`.

use crate::support::{
    lab::{Bench, Ended, FAILED, INTERRUPTED, INVALID, PASSED, THRESHOLD_MISSED, USAGE, command},
    message_server::{Fault, STALL, serve, serve_and_tell},
    trials::{self, trial},
};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{path::Path, sync::mpsc};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial!(the_labs_own_lag_makes_a_run_invalid(Fault::None)),
        trial!(the_labs_own_lag_makes_a_run_invalid(Fault::DuplicateEntry)),
        trial!(a_missed_threshold_has_its_exit_code),
        trial!(a_run_that_is_ended_early_is_marked),
        trial!(a_folder_that_cannot_be_written_is_known_before_the_run),
        // It looks for a stall of the server among the latencies, where those of a busy machine would hide it.
        trials::alone(module_path!(), "a_stall_shows_where_it_was", a_stall_shows_where_it_was),
    ]
}

/// Starts `bench group` against a server with this fault.
fn start(fault: Fault, folder: &Path, options: &str) -> Bench {
    start_at(&serve(fault)[0], folder, options)
}

fn start_at(url: &str, folder: &Path, options: &str) -> Bench {
    let mut bench = command(&format!(
        "group --url {url} --api-key secret-key --token-key t --members 3 --senders 8 --patience 60s {options} --report"
    ));
    bench.arg(folder);
    Bench::spawn(bench)
}

fn run(fault: Fault, options: &str) -> (Ended, Value, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let ended = start(fault, folder.path(), options).end();
    (ended, report(folder.path()), folder)
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap()
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap_or(0.0)).collect()
}

fn a_stall_shows_where_it_was() {
    // 200 messages a second: message 200 is due at 1 s, in the fifth bin of a quarter of a second.
    const AT_MESSAGE: u64 = 201;
    const BIN: usize = 4;
    let stall_ms = STALL.as_secs_f64() * 1e3;
    // That nothing else was as slow is up to the machine; what the stall must show does not depend on it.
    let is_seen_alone = (0..10).any(|_| {
        let (ended, report, folder) = run(Fault::Stall(AT_MESSAGE), "--rate 200 --duration 4s --lag-max 60s");
        assert_eq!(ended.code, PASSED, "{report:#}");
        let outcome = &report["outcome"];
        let series = &outcome["series"];
        assert_eq!(series["bin_s"], 0.25);
        let max = numbers(&series["max"]);
        // The series has two significant digits.
        assert!(max[BIN] >= stall_ms * 0.99, "at its time: {max:?}");
        let delivered: f64 = numbers(&series["delivered"]).iter().sum();
        assert_eq!(delivered, 2400.0, "800 messages to three members each");
        // 100 of 800 messages were due while nothing went on: the slowest 1 % of all waited for 460 ms and more.
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

/// A fault of the server is one also when the lab lagged.
fn the_labs_own_lag_makes_a_run_invalid(fault: Fault) {
    let (ended, report, _folder) = run(fault, "--rate 200 --duration 250ms --lag-max 0ms");
    let expected = if fault == Fault::None { (INVALID, Some("invalid")) } else { (FAILED, Some("failed")) };
    assert_eq!((ended.code, report["run"]["verdict"].as_str()), expected);
    let criteria = report["run"]["criteria"].as_array().unwrap();
    assert!(criteria.iter().any(|criterion| criterion["name"] == "the lab's own lag" && criterion["met"] == false));
}

fn a_missed_threshold_has_its_exit_code() {
    let options = "--rate 200 --duration 250ms --lag-max 60s --threshold errors<=0% --threshold";
    let (ended, report, _folder) = run(Fault::None, &format!("{options} p50<0"));
    assert_eq!((ended.code, report["run"]["verdict"].as_str()), (THRESHOLD_MISSED, Some("threshold missed")));
    let (ended, ..) = run(Fault::None, &format!("{options} max<60000"));
    assert_eq!(ended.code, PASSED);
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
    let bench = start_at(&urls[0], folder.path(), "--rate 200 --duration 60m --lag-max 60s");
    told.recv().unwrap();
    kill_process(Pid::from_raw(bench.pid() as i32).unwrap(), Signal::INT).unwrap();
    let ended = bench.end();
    assert_eq!(ended.code, INTERRUPTED);
    let report = report(folder.path());
    assert_eq!((&report["run"]["partial"], report["run"]["verdict"].as_str()), (&Value::Bool(true), Some("partial")));
    let outcome = &report["outcome"];
    assert_eq!((&outcome["interrupted"], &outcome["delivered"]), (&Value::Bool(true), &outcome["expected"]));
    assert!(outcome["committed"].as_u64().unwrap() >= 20);
}

fn a_folder_that_cannot_be_written_is_known_before_the_run() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let ended = start(Fault::None, &file.path().join("below"), "--rate 1 --duration 60m").end();
    assert_eq!(ended.code, USAGE);
}
