//! What happens while a phase runs, as marks for its plots: faults, and jumps of a rate.

use crate::{
    LabError, interrupt,
    scenario::{
        plan::{
            fault::{Fault, Happening},
            phase::Load,
        },
        server::ScenarioServer,
    },
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Changes of a rate that are marked on a plot, at most.
const RATE_MARKS_MAX: usize = 12;

/// Injects each fault at its time; returns marks for the plots.
pub(super) fn inject(server: &mut ScenarioServer, faults: &[&Fault], began: Instant) -> Result<Vec<Value>, LabError> {
    let mut marks = Vec::new();
    for fault in faults {
        while began.elapsed() < fault.at && !interrupt::requested() {
            std::thread::sleep((fault.at.saturating_sub(began.elapsed())).min(Duration::from_millis(50)));
        }
        if interrupt::requested() {
            break;
        }
        marks.push(json!({ "at": began.elapsed().as_secs_f64(), "name": fault.kind.name() }));
        let opened_seconds = server.suffer(fault)?.map(|time| time.as_secs_f64());
        if fault.kind != Happening::GatewayKilled {
            let at = began.elapsed().as_secs_f64();
            marks.push(json!({ "at": at, "name": "reverted", "opened_seconds": opened_seconds }));
        }
    }
    Ok(marks)
}

/// The moments at which a rate jumps, as marks.
pub(super) fn rate_marks(load: &Load) -> Vec<Value> {
    let Load::Planned(profile) = load else { return Vec::new() };
    let jumps = profile.jumps();
    if jumps.len() > RATE_MARKS_MAX {
        return Vec::new();
    }
    jumps.into_iter().map(|(at, rate)| json!({ "at": at, "name": format!("{rate:.0}/s") })).collect()
}
