//! Thresholds: what a run's figures must keep beside the counts that always must balance.

use super::{Check, parts::Part};
use std::str::FromStr;

/// A bound of one figure, such as `p99<70`.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    figure: Figure,
    relation: Relation,
    value: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Figure {
    /// A percentile of the latency, by its name in the report.
    Latency(&'static str),
    /// Refused, lost, doubled, reordered and altered, in percent of what was planned or expected.
    Errors,
    /// Messages, or answers, a second.
    Rate,
    ServerCores,
    ServerMemory,
    /// The share of the time in which the server's store was at work.
    Store,
    /// How far offline push lagged behind at most, by the samples of the server's own gauges.
    OfflineLag,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Relation {
    Below,
    AtMost,
    Above,
    AtLeast,
}

/// The names of all figures, with what they are in the report and their unit.
const FIGURES: [(&str, Figure, &str); 13] = [
    ("p50", Figure::Latency("p50"), "ms"),
    ("p90", Figure::Latency("p90"), "ms"),
    ("p99", Figure::Latency("p99"), "ms"),
    ("p99.9", Figure::Latency("p99_9"), "ms"),
    ("p99.99", Figure::Latency("p99_99"), "ms"),
    ("max", Figure::Latency("max"), "ms"),
    ("mean", Figure::Latency("mean"), "ms"),
    ("errors", Figure::Errors, "%"),
    ("rate", Figure::Rate, "/s"),
    ("server-cpu", Figure::ServerCores, "cores"),
    ("server-memory", Figure::ServerMemory, "MiB"),
    ("store", Figure::Store, "%"),
    ("offline-lag", Figure::OfflineLag, "entries"),
];
/// Longer ones first: `<=` begins with `<`.
const RELATIONS: [(&str, Relation); 4] =
    [("<=", Relation::AtMost), (">=", Relation::AtLeast), ("<", Relation::Below), (">", Relation::Above)];

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let relation =
            RELATIONS.iter().find_map(|(sign, relation)| text.split_once(sign).map(|parts| (parts, *relation)));
        let Some(((name, value), relation)) = relation else {
            return Err("a figure, one of < <= > >=, and a number, such as p99<70".into());
        };
        let Some((_, figure, unit)) = FIGURES.iter().find(|(known, ..)| *known == name.trim()) else {
            let known: Vec<_> = FIGURES.iter().map(|(name, ..)| *name).collect();
            return Err(format!("no such figure; there are {}", known.join(", ")));
        };
        // The unit may be written: `p99<70ms`.
        let value = value.trim();
        let value = value.strip_suffix(unit).unwrap_or(value).trim();
        match value.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Threshold { figure: *figure, relation, value }),
            _ => Err(format!("{value} is not a number of {unit}")),
        }
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, _, unit) = FIGURES.iter().find(|(_, figure, _)| *figure == self.figure).unwrap_or(&FIGURES[0]);
        let sign = RELATIONS.iter().find(|(_, relation)| *relation == self.relation).map_or("", |(sign, _)| sign);
        write!(f, "{name} {sign} {} {unit}", self.value)
    }
}

impl Threshold {
    /// Holds a part of the run to it. A figure that the part does not have misses it: what was not measured was not kept.
    pub(crate) fn judge(&self, part: &Part<'_>) -> Check {
        let value = match self.figure {
            Figure::Latency(name) => part.number(&["latency", name]),
            Figure::Errors => part.error_percent(),
            Figure::Rate => part.rate(),
            Figure::ServerCores => part.server_cores(),
            Figure::Store => part.store_percent(),
            Figure::OfflineLag => part.offline_lag(),
            Figure::ServerMemory => part.number(&["server_rss_bytes"]).map(|bytes| bytes / 1_048_576.0),
        };
        let met = value.is_some_and(|value| match self.relation {
            Relation::Below => value < self.value,
            Relation::AtMost => value <= self.value,
            Relation::Above => value > self.value,
            Relation::AtLeast => value >= self.value,
        });
        Check::of_threshold(self.to_string(), met)
            .part(&*part.title)
            .value(value.map_or("not measured".into(), |value| format!("{value:.2}")))
    }
}

/// Holds every part to these bounds. A run that measured nothing has kept none of them.
pub(crate) fn judge_all(thresholds: &[Threshold], parts: &[Part<'_>]) -> Vec<Check> {
    let judge = |threshold: &Threshold| match parts {
        [] => vec![Check::of_threshold(threshold.to_string(), false).value("not measured")],
        parts => parts.iter().map(|part| threshold.judge(part)).collect(),
    };
    thresholds.iter().flat_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::parts::parts_of;
    use serde_json::json;

    fn met(threshold: &str) -> bool {
        let figures = json!({ "outcome": {
            "title": "t", "latency": { "p50": 1.0, "p99": 12.0, "mean": 2.5 }, "metrics": { "store_busy_seconds": 0.5 }, "planned": 1000, "refused": 10, "expected": 2000,
            "lost": 0, "committed": 990, "seconds": 2.0,
            "samples": { "at": [0.5, 1.0], "metrics": { "tidings_webhook_lag": [7, null], "tidings_queue_depth": [99, 0] } },
        }});
        #[allow(clippy::unwrap_used)]
        let threshold: Threshold = threshold.parse().unwrap();
        threshold.judge(&parts_of(&figures)[0]).is_met()
    }

    #[test]
    fn thresholds_are_held_against_the_figures() {
        for (threshold, expected) in [
            ("p99<12", false),
            ("p99<=12ms", true),
            ("p50 > 0.5", true),
            ("errors<1", false),
            ("errors<=1%", true),
            ("rate>=495", true),
            ("rate>495", false),
            ("server-cpu<2", false),
            ("mean<3ms", true),
            ("store<50%", true),
            ("store<10", false),
            ("offline-lag<=7", true),
            ("offline-lag<7 entries", false),
        ] {
            assert_eq!(met(threshold), expected, "{threshold}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [("p98<3", "p50, p90"), ("p99=3", "p99<70"), ("p99<x", "number"), ("p99<NaN", "number")] {
            let answer = text.parse::<Threshold>();
            assert!(answer.as_ref().is_err_and(|why| why.contains(part)), "{text}: {answer:?}");
        }
    }
}
