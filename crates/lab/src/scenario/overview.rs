//! The same work in several phases side by side: what it costs to have other work beside it.

use super::plan::Plan;
use crate::result::{Table, filled};
use serde_json::Value;

/// The ratio of the 99th percentiles of a work in two phases.
pub(crate) fn ratio(first: &Value, other: &Value) -> f64 {
    let p99 = |work: &Value| work["latency"]["p99"].as_f64().unwrap_or_default();
    p99(other) / p99(first).max(1e-3)
}

/// How many cores the server and the load clients of all these works kept busy while the first of them ran.
pub(crate) fn cores(works: &[Value]) -> f64 {
    let of = |work: &Value, name: &str| {
        work[name].as_f64().unwrap_or_default() / work["seconds"].as_f64().unwrap_or_default().max(1e-9)
    };
    let clients: f64 = works.iter().map(|work| of(work, "client_cpu_seconds")).sum();
    clients + works.first().map_or(0.0, |work| of(work, "server_cpu_seconds"))
}

/// A table for each population that works in several phases.
pub(super) fn tables(plan: &Plan, phases: &[Value]) -> Vec<Table> {
    let mut tables = Vec::new();
    for (name, _) in plan.populations.iter().filter(|(_, population)| population.sends_messages()) {
        let in_phase = |(phase, figures): (&super::plan::phase::Phase, &Value)| {
            let place = phase.works.iter().position(|work| work.worker.name() == name)?;
            let mut works = figures["works"].as_array().cloned()?;
            // It comes first, before what is beside it.
            works.swap(0, place);
            works[0]["latency"]["p50"].is_number().then(|| (phase.name.clone(), works))
        };
        let rows: Vec<(String, Vec<Value>)> = plan.phases.iter().zip(phases).filter_map(in_phase).collect();
        if let [(_, first), _, ..] = &rows[..] {
            let mut table = Table::of(&format!("{name}, ms|p50|p99|p100|p99 ratio|refused|cores|a second|others"));
            for (phase, works) in &rows {
                let latency =
                    ["{latency.p50:2}", "{latency.p99:2}", "{latency.max:2}"].map(|cell| filled(cell, &works[0]));
                let rate = |work: &Value| work["messages_per_second"].as_f64().unwrap_or_default();
                let others = works[1..].iter().map(rate).fold(0.0, |sum, rate| sum + rate);
                let rest = [
                    format!("{:.2}", ratio(&first[0], &works[0])),
                    filled("{refused}", &works[0]),
                    format!("{:.2}", cores(works)),
                    format!("{:.0}", rate(&works[0])),
                    format!("{others:.0}"),
                ];
                table.row(phase, latency.into_iter().chain(rest));
            }
            tables.push(table);
        }
    }
    tables
}
