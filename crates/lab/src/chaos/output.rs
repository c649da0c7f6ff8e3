//! What is printed of a step.

use super::observations::Observations;
use crate::{
    mix::counts,
    result::{Layout, Measurement, RunResult, filled},
    worker_protocol::Outcome,
};
use serde_json::json;
use std::collections::BTreeMap;

/// How many users who were told offline are printed; there may be hundreds.
const NAMES_MAX: usize = 5;

const LAYOUT: Layout = Layout {
    lines: &[
        (
            "messages",
            "committed {committed}  sent again {retried}  refused for good {refused}  refused for the moment {noticed.refused}",
        ),
        (
            "deliveries",
            "{delivered} of {expected}  lost {lost}  doubled {doubled}  out of order {out_of_order}  altered {altered}",
        ),
        (
            "noticed",
            "longest pause {noticed.pause_s:2} s  reconnects {noticed.reconnects}  disturbed for {noticed.disturbed_s:1} s  \
             {noticed.healed}",
        ),
        counts::EDITS,
        counts::ANSWERS,
        counts::REFUSALS,
        counts::VIEWS,
        counts::COMPARED,
    ],
    percentiles: &[],
};

/// The messages of a step, with what the clients noticed.
pub(super) fn measured(title: &str, outcome: &Outcome, observations: &Observations) -> Measurement {
    let impact = &observations.impact;
    let healed = match observations.healed {
        true => format!("well {:.1} s after it was undone", impact.healed_s),
        false => "NOT well again".to_owned(),
    };
    let noticed = json!({
        "refused": impact.refused, "pause_s": impact.pause_ms / 1e3, "reconnects": impact.reconnects,
        "disturbed_s": impact.disturbed_s, "healed": healed,
    });
    let measured = outcome.measured(title).set("noticed", noticed).layout(&LAYOUT);
    if outcome.balances() && outcome.refused == 0 { measured.hide_problems() } else { measured }
}

/// Has everything beside the messages printed.
pub(super) fn tell(
    result: &mut RunResult,
    observations: &Observations,
    disconnects: &BTreeMap<String, u64>,
    ended: &[String],
) {
    let Observations { presence, pushes, without_pushes, features, .. } = observations;
    let late = if pushes.two_versions { "still to come" } else { "lost" };
    let without = match without_pushes {
        0 => String::new(),
        devices => format!("  (not expected of {devices} devices that are told so)"),
    };
    let pushed = "accepted {accepted} of {asked}  asked again {asked_again}  reached {reached} of {expected}  LATE {lost}  left out \
                  {left_out}  again {copies.again}  repeated {copies.repeated}  doubled {copies.doubled}  altered {copies.altered}";
    let of_features = "reactions {reactions}  pins {pins}  messages grown {grown}  cut short {cut_short}  wrong on a node {problem_count}";
    let lines = [
        ("presence", presence.in_words()),
        ("pushes", filled(&pushed.replace("LATE", late), pushes) + &without),
        ("features", filled(of_features, features)),
        ("clients", filled("lost connections: {disconnects}", &json!({ "disconnects": disconnects }))),
    ];
    let lines = lines.map(|(about, text)| (about.to_owned(), text)).to_vec();
    let mark = if presence.offline_forbidden { "" } else { "allowed: " };
    let told = presence.told_offline.iter().take(NAMES_MAX).map(|told| format!("{mark}told offline: {told}"));
    let ended = ended.iter().map(|end| format!("ended: {end}"));
    let problems = presence.wrong.iter().chain(&pushes.problems).chain(&features.problems).cloned();
    result.lines("beside the messages", lines, &problems.chain(told).chain(ended).collect::<Vec<_>>());
}
