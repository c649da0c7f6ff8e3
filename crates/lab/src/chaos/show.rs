//! What a step came to, in words.

use super::{presence::Presence, pushes::Pushes, watch::Noticed};
use crate::job::Outcome;
use std::collections::BTreeMap;

/// Names of those told offline; there may be hundreds.
const NAMES_MAX: usize = 5;

pub(super) fn messages(outcome: &Outcome, noticed: &Noticed, healed: bool) {
    println!(
        "  messages     committed {}  sent again {}  refused for good {}  refused for the moment {}",
        outcome.committed,
        outcome.retried,
        outcome.refused,
        in_words(&noticed.refused)
    );
    println!(
        "  deliveries   {} of {}  lost {}  doubled {}  out of order {}  altered {}",
        outcome.delivered, outcome.expected, outcome.lost, outcome.doubled, outcome.out_of_order, outcome.altered
    );
    println!(
        "  noticed      longest pause {:.2} s  reconnects {}  disturbed for {:.1} s  {}",
        noticed.pause_ms / 1e3,
        noticed.reconnects,
        noticed.disturbed_s,
        match healed {
            true => format!("well {:.1} s after it was undone", noticed.healed_s),
            false => "NOT well again".to_owned(),
        }
    );
    for problem in outcome.problems.iter().filter(|_| !outcome.balances() || outcome.refused > 0) {
        println!("  ! {problem}");
    }
}

pub(super) fn presence(presence: &Presence) {
    let right = match (presence.right_s, presence.since_ready_s) {
        (Some(right), Some(since_ready)) => {
            let within = if since_ready <= presence.bound_s { "within" } else { "NOT within" };
            format!(
                "right again after {right:.1} s, {since_ready:.1} s after every part was ready, {within} {:.1} s",
                presence.bound_s
            )
        }
        _ => format!("NOT right again within {:.1} s", presence.bound_s),
    };
    let told = presence.told_offline.len();
    let told = match (told, presence.nobody_may_be) {
        (0, _) => "nobody who stayed was told offline".to_owned(),
        (_, true) => format!("TOLD OFFLINE though they stayed: {told} times"),
        (_, false) => format!("told offline though they stayed: {told} times, their node's lease being over"),
    };
    println!("  presence     {right}  {told} (sessions were told {} changes)", presence.told_changes);
    for wrong in &presence.wrong {
        println!("  ! {wrong}");
    }
    for told in presence.told_offline.iter().take(NAMES_MAX) {
        let mark = if presence.nobody_may_be { '!' } else { '-' };
        println!("  {mark} told offline: {told}");
    }
}

/// `without`: devices that were told that no pushes come to them where they are.
pub(super) fn pushes(pushes: &Pushes, without: usize) {
    println!(
        "  pushes       accepted {} of {}  asked again {}  reached {} of {}  lost {}  left out {}  \
         again {}  repeated {}  doubled {}  altered {}{}",
        pushes.accepted,
        pushes.asked,
        in_words(&pushes.asked_again),
        pushes.reached,
        pushes.expected,
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

pub(super) fn guests(breaks: &BTreeMap<String, u64>) {
    println!("  guests       lost connections: {}", in_words(breaks));
}

fn in_words(counts: &BTreeMap<String, u64>) -> String {
    match counts.is_empty() {
        true => "none".to_owned(),
        false => counts.iter().map(|(code, count)| format!("{code} {count}")).collect::<Vec<_>>().join(", "),
    }
}
