//! `bench compare` says better or worse only beyond the spread of the rounds, leaves out rounds that measured nothing, and refuses
//! files that are no reports. Its page needs nothing beside it.

use crate::support::{
    lab::{Bench, Ended, FAILED, INVALID, PASSED, USAGE, command},
    trials::trial,
};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial!(a_difference_beyond_the_spread_is_said_with_its_size),
        trial!(a_difference_within_the_spread_is_none),
        trial!(one_round_tells_nothing_and_that_is_said),
        trial!(invalid_rounds_are_left_out_and_failed_ones_fail_the_comparison),
        trial!(what_is_no_report_is_refused_as_wrong_usage),
    ]
}

/// Writes a side with a round for each p99 and verdict.
fn side(folder: &Path, name: &str, rounds: &[(f64, &str)]) -> PathBuf {
    for (index, (p99, verdict)) in rounds.iter().enumerate() {
        let round = folder.join(name).join(format!("round-{:03}", index + 1));
        std::fs::create_dir_all(&round).unwrap();
        let report = json!({
            "bench": "group",
            "outcome": {
                "title": "group of 3", "latency": { "p50": 1.0, "p90": 2.0, "p99": p99, "p99_9": 30.0, "max": 40.0 },
                "committed": 1000, "seconds": 1.0, "planned": 1000, "expected": 10, "delivered": 10, "lost": 0,
                "series": { "bin_s": 0.25, "planned": [1, 2], "p99": [1.0, null] }, "latency_curve": [[50.0, 1.0], [100.0, 40.0]],
            },
            "run": { "verdict": verdict, "command": "tidings bench group", "commit": name, "doubts": [], "machine": { "cores": 2, "cpu": "c" } },
        });
        std::fs::write(round.join("report.json"), report.to_string()).unwrap();
    }
    folder.join(name)
}

fn passed(p99: &[f64]) -> Vec<(f64, &'static str)> {
    p99.iter().map(|p99| (*p99, "passed")).collect()
}

/// Compares two sides; returns how that ended, and the report and the page of the comparison.
fn compare(first: &[(f64, &str)], second: &[(f64, &str)]) -> (Ended, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (side(folder.path(), "before", first), side(folder.path(), "after", second));
    let out = folder.path().join("out");
    let mut bench = command("compare");
    bench.arg(first).arg(second).arg("--report").arg(&out);
    let ended = Bench::spawn(bench).end();
    let report = serde_json::from_slice(&std::fs::read(out.join("report.json")).unwrap()).unwrap();
    (ended, report, std::fs::read_to_string(out.join("report.html")).unwrap())
}

fn said(report: &Value) -> String {
    report["sentences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sentence| sentence.as_str().unwrap())
        .collect::<Vec<_>>()
        .join(" ")
}

fn a_difference_beyond_the_spread_is_said_with_its_size() {
    let (ended, report, page) = compare(&passed(&[20.0, 20.5, 19.5]), &passed(&[10.0, 10.4, 9.6]));
    assert_eq!(ended.code, PASSED);
    assert_eq!(said(&report), "after is better than before: p99 50 % lower (10.00 against 20.00 ms).");
    assert!(page.contains("uPlot") && !page.contains("src=\"http"));
    let (_, report, _) = compare(&passed(&[10.0, 10.4, 9.6]), &passed(&[20.0, 20.5, 19.5]));
    assert_eq!(said(&report), "after is worse than before: p99 100 % higher (20.00 against 10.00 ms).");
}

fn a_difference_within_the_spread_is_none() {
    let (_, report, _) = compare(&passed(&[20.0, 30.0, 10.0]), &passed(&[12.0, 25.0, 9.0]));
    assert_eq!(said(&report), "Between before and after no difference is shown beyond the spread of the rounds.");
}

fn one_round_tells_nothing_and_that_is_said() {
    let (ended, report, _) = compare(&passed(&[20.0]), &passed(&[10.0]));
    assert_eq!(ended.code, PASSED);
    assert!(
        said(&report).contains("no difference is shown") && said(&report).contains("repeat the runs"),
        "{}",
        said(&report)
    );
}

fn invalid_rounds_are_left_out_and_failed_ones_fail_the_comparison() {
    let mut rounds = passed(&[20.0, 20.5, 19.5]);
    rounds.push((900.0, "invalid"));
    let (ended, report, _) = compare(&rounds, &passed(&[10.0, 10.4, 9.6]));
    assert_eq!(ended.code, INVALID);
    assert!(said(&report).contains("against 20.00 ms"), "{}", said(&report));
    assert!(report["cautions"].to_string().contains("round-004: invalid"), "{}", report["cautions"]);
    rounds.push((1.0, "failed"));
    assert_eq!(compare(&rounds, &passed(&[10.0, 10.4])).0.code, FAILED);
}

fn what_is_no_report_is_refused_as_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (text, other) = (folder.path().join("text.json"), folder.path().join("other.json"));
    std::fs::write(&text, "{").unwrap();
    std::fs::write(&other, r#"{"bench":"group"}"#).unwrap();
    for path in [empty, text, other, folder.path().join("missing.json")] {
        let mut bench = command("compare");
        bench.args([&path, &path]);
        assert_eq!(Bench::spawn(bench).end().code, USAGE, "{}", path.display());
    }
}
