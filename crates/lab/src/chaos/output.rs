//! Prints the figures of a step.

use super::{
    client_monitor::ClientImpact, feature_traffic::FeatureResult, presence_verifier::PresenceResult,
    push_verifier::PushResult,
};
use crate::worker_protocol::Outcome;
use std::collections::BTreeMap;

/// How many users who were told offline are printed; there may be hundreds.
const NAMES_MAX: usize = 5;

pub(super) fn print_messages(outcome: &Outcome, impact: &ClientImpact, healed: bool) {
    println!(
        "  messages     committed {}  sent again {}  refused for good {}  refused for the moment {}",
        outcome.committed,
        outcome.retried,
        outcome.refused,
        format_counts(&impact.refused)
    );
    println!(
        "  deliveries   {} of {}  lost {}  doubled {}  out of order {}  altered {}",
        outcome.delivered, outcome.expected, outcome.lost, outcome.doubled, outcome.out_of_order, outcome.altered
    );
    println!(
        "  noticed      longest pause {:.2} s  reconnects {}  disturbed for {:.1} s  {}",
        impact.pause_ms / 1e3,
        impact.reconnects,
        impact.disturbed_s,
        if healed { format!("well {:.1} s after it was undone", impact.healed_s) } else { "NOT well again".to_owned() }
    );
    if let Some(mix) = &outcome.mix {
        mix.print();
    }
    for problem in outcome.problems.iter().filter(|_| !outcome.balances() || outcome.refused > 0) {
        println!("  ! {problem}");
    }
}

pub(super) fn print_features(features: &FeatureResult) {
    let FeatureResult { reactions, pins, grown, cut_short, problem_count, problems } = features;
    println!(
        "  features     reactions {reactions}  pins {pins}  messages grown {grown}  cut short {cut_short}  \
         wrong on a node {problem_count}"
    );
    for problem in problems {
        println!("  ! {problem}");
    }
}

pub(super) fn print_presence(presence: &PresenceResult) {
    let right = match (presence.right_s, presence.since_ready_s) {
        (Some(right), Some(since_ready)) => {
            let within = if since_ready <= presence.bound_s { "within" } else { "NOT within" };
            format!(
                "right again after {right:.1} s, {since_ready:.1} s after every part was ready, {within} {:.1} s",
                presence.bound_s
            )
        }
        _ if presence.two_versions => "not exact between the two versions".to_owned(),
        _ => format!("NOT right again within {:.1} s", presence.bound_s),
    };
    let count = presence.told_offline.len();
    let told_offline = match (count, presence.offline_forbidden) {
        (0, _) => "nobody who stayed was told offline".to_owned(),
        (_, true) => format!("TOLD OFFLINE though they stayed: {count} times"),
        (_, false) => format!("told offline though they stayed: {count} times, their node's lease being over"),
    };
    println!("  presence     {right}  {told_offline} (sessions were told {} changes)", presence.told_changes);
    for wrong in &presence.wrong {
        println!("  ! {wrong}");
    }
    for told in presence.told_offline.iter().take(NAMES_MAX) {
        let mark = if presence.offline_forbidden { '!' } else { '-' };
        println!("  {mark} told offline: {told}");
    }
}

/// `without`: the number of devices whose bind was answered with `"pushes": false`.
pub(super) fn print_pushes(pushes: &PushResult, without: usize) {
    println!(
        "  pushes       accepted {} of {}  asked again {}  reached {} of {}  {} {}  left out {}  \
         again {}  repeated {}  doubled {}  altered {}{}",
        pushes.accepted,
        pushes.asked,
        format_counts(&pushes.asked_again),
        pushes.reached,
        pushes.expected,
        if pushes.two_versions { "still to come" } else { "lost" },
        pushes.lost,
        pushes.left_out,
        pushes.copies.again,
        pushes.copies.repeated,
        pushes.copies.doubled,
        pushes.copies.altered,
        match without {
            0 => String::new(),
            devices => format!("  (not expected of {devices} devices that are told so)"),
        }
    );
    for problem in &pushes.problems {
        println!("  ! {problem}");
    }
}

pub(super) fn print_guests(breaks: &BTreeMap<String, u64>) {
    println!("  guests       lost connections: {}", format_counts(breaks));
}

fn format_counts(counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        "none".to_owned()
    } else {
        counts.iter().map(|(code, count)| format!("{code} {count}")).collect::<Vec<_>>().join(", ")
    }
}
