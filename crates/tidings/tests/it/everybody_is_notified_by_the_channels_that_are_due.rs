//! Small runs of `bench notifications`: as it is, with kills, with a provider away, with the webhook after the providers; and the doubles' planted faults, each of which must fail the run.
// Slow: left out by `make test-quick`.
#![cfg(feature = "lab")]

use crate::support::balances;
use std::process::Command;

/// Runs a small bench with these options; answers its exit code and what it printed.
fn reach(options: &str) -> (Option<i32>, String) {
    let line = format!("notifications --users 60 --group-size 30 --rate 8 --seed 1 {options}");
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidings")).arg("bench").args(line.split_whitespace()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{line}\n{printed}");
    (output.status.code(), printed.into_owned())
}

fn check_passes(options: &str) -> String {
    let (code, printed) = reach(options);
    assert!(balances(code), "{options}: {code:?}");
    for channel in ["webhook", "apns", "fcm", "web_push"] {
        let line = printed.lines().find(|line| line.trim_start().starts_with(channel)).unwrap();
        assert!(!line.contains("notified 0 of"), "{line}");
    }
    printed
}

#[test]
fn every_message_reaches_everybody_once() {
    check_passes("--round 3s --rounds 2");
}

#[test]
fn kills_lose_nothing() {
    let printed = check_passes("--round 3s --rounds 2 --kill 1500ms");
    assert!(printed.contains("kills 4"), "the server was not killed");
}

#[test]
fn a_provider_that_is_away_is_waited_for_and_holds_nobody_up() {
    // Long enough that a slow machine, which takes seconds for a notice, is not taken for one that waits for the provider.
    check_passes("--round 10s --rounds 2 --provider-away 8s");
}

#[test]
fn the_webhook_tells_those_whom_no_provider_has_reached() {
    check_passes("--round 3s --rounds 1 --webhook-after 4");
}

#[test]
fn planted_faults_fail_the_run() {
    for (fault, named) in
        [("lost", "lost"), ("doubled", "doubled"), ("wrong-person", "not entitled"), ("too-early", "too early")]
    {
        let (code, printed) = reach(&format!("--round 3s --rounds 1 --patience 3s --plant {fault}"));
        assert_eq!(code, Some(1), "{fault}");
        let is_named = |line: &str| line.trim_start().starts_with("! ") && line.contains(named);
        assert!(printed.lines().any(is_named), "{fault} is not named");
    }
}
