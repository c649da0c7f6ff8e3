//! Small runs of benches whose checks no other test runs: a crash with edits, recalls, reactions and receipts among the sends,
//! messages that grow, conversations with members who are offline, and one in which everybody says receipts. The lab starts the server itself.
// Slow: left out by `make test-quick`.
#![cfg(feature = "lab")]

use crate::support::balances;
use std::process::Command;

/// Runs a bench, which must pass; answers what it printed.
fn bench(line: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidings")).arg("bench").args(line.split(' ')).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{line}\n{printed}");
    assert!(balances(output.status.code()), "{line}: {:?}", output.status);
    printed.into_owned()
}

#[test]
fn changed_messages_survive_crashes() {
    let printed = bench("crash --kills 2 --conversations 2 --mix 30% --seed 1");
    assert!(!printed.contains("edits 0 "), "nothing was edited");
}

#[test]
fn messages_that_grow_reach_their_readers_whole() {
    let printed = bench("streams --streams 20 --readers 2 --rate 10 --duration 1s --chat-rate 20");
    assert!(printed.contains("whole at 40 of 40 readers  stored whole 20 of 20"), "not all texts are whole");
}

#[test]
fn members_who_are_offline_are_notified_by_webhook() {
    let printed = bench("group --members 10 --offline-share 50% --senders 2 --rate 20 --duration 2s");
    assert!(
        printed.contains("webhook      notified 200 of 200  lost 0  doubled 0  unentitled 0"),
        "members are not notified"
    );
}

#[test]
fn everybodys_receipts_balance() {
    let printed = bench("group --members 10 --senders 2 --rate 20 --duration 2s --receipts 500ms");
    assert!(printed.contains("of the last message: delivered 9, read 9 of 9"), "receipts are missing");
}

#[test]
fn members_who_are_offline_are_notified_by_providers() {
    let printed = bench("group --members 9 --offline-share 70% --offline-via both --senders 2 --rate 20 --duration 2s");
    assert!(printed.contains("webhook      notified 240 of 240  lost 0  doubled 0"), "members are not notified");
    for provider in ["apns", "fcm", "web_push"] {
        let line = printed.lines().find(|line| line.trim_start().starts_with(provider)).unwrap();
        assert!(line.contains(" of 80  lost 0  doubled 0") && !line.contains("notified 0 "), "{line}");
    }
}

#[test]
fn recipients_who_are_offline_are_notified() {
    let printed =
        bench("direct --pairs 4 --offline-share 50% --offline-via both --rate 20 --connections 4 --duration 2s");
    assert!(printed.contains("webhook      notified 20 of 20  lost 0  doubled 0"), "recipients are not notified");
    let printed = bench("broadcast --members 10 --offline-share 50% --rounds 4 --pause 50ms");
    assert!(printed.contains("webhook      notified 20 of 20  lost 0  doubled 0"), "followers are not notified");
    let line = "isolation --pairs 4 --members 6 --offline-share 50% --direct-rate 10 --duration 1s --floods official,user --share 0.02";
    let printed = bench(line);
    let told = printed.lines().find(|line| line.trim_start().starts_with("webhook")).unwrap();
    assert!(told.contains("lost 0  doubled 0  unentitled 0") && !told.contains("notified 0 "), "{told}");
}
