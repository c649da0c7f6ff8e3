//! The report as one JSON document: the figures of the bench, and beside them the verdict with its reasons, the machine, the commit
//! and the command.

use super::{
    files,
    machine::{self, MachineCounters},
    output_args::OutputArgs,
    parts::{Part, parts_of},
    thresholds::{Criterion, Threshold},
};
use crate::{Finished, LabError, Verdict, interrupt};
use serde_json::{Value, json};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Options whose values are secrets.
const SECRET_OPTIONS: [&str; 3] = ["--api-key", "--token-key", "--agent-token"];

/// A report that is written when the bench has finished.
#[derive(Debug)]
pub(crate) struct RunReport<'a> {
    output: &'a OutputArgs,
    started_at_ms: u64,
    started: Instant,
    machine: Value,
    before: MachineCounters,
}

impl<'a> RunReport<'a> {
    /// Makes the folder of the report now: a folder that cannot be written is better known before a run than after it.
    pub(crate) fn begin(output: &'a OutputArgs) -> Result<Self, LabError> {
        if let Some(folder) = &output.report {
            std::fs::create_dir_all(folder)
                .map_err(|error| LabError::Usage(format!("--report {}: {error}", folder.display())))?;
        }
        Ok(RunReport {
            output,
            started_at_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            started: Instant::now(),
            machine: machine::describe(),
            before: MachineCounters::read(),
        })
    }

    /// Judges the figures, and writes the report.
    pub(crate) fn finish(self, finished: Finished) -> Result<Verdict, LabError> {
        let Finished { verdict, mut figures } = finished;
        let (kernel, mut doubts) = MachineCounters::read().since(&self.before);
        if cfg!(debug_assertions) {
            doubts.push("The program was built without optimisation: compare these figures with nothing.".into());
        }
        let criteria = criteria(&figures, self.output);
        let mut verdict = verdict;
        if criteria.iter().any(|criterion| criterion.name == "threshold" && !criterion.met) {
            verdict = verdict.and(Verdict::ThresholdMissed);
        }
        if interrupt::requested() {
            verdict = verdict.and(Verdict::Interrupted);
        }
        for criterion in criteria.iter().filter(|criterion| criterion.name == "threshold") {
            let answer = if criterion.met { "met" } else { "MISSED" };
            println!("threshold      {}: {} ({}), {answer}", criterion.bound, criterion.value, criterion.part);
        }
        figures["run"] = json!({
            "verdict": name(verdict), "exit_code": verdict as u8, "sentence": if figures["bench"] == "compare" { comparison_sentence(verdict) } else { sentence(verdict) }, "partial": interrupt::requested(),
            "criteria": criteria, "doubts": doubts,
            "started_at": self.started_at_ms, "seconds": self.started.elapsed().as_secs_f64(),
            "command": command_line(std::env::args()), "version": env!("CARGO_PKG_VERSION"), "commit": machine::commit(),
            "machine": self.machine, "kernel": kernel,
        });
        if let Some(file) = &self.output.json {
            files::write_json(file, &figures)?;
        }
        if let Some(folder) = &self.output.report {
            files::write_report(folder, &figures)?;
            println!("report         {}", folder.join(files::PAGE).display());
        }
        Ok(verdict)
    }
}

/// The verdict in a word.
pub(crate) fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::ThresholdMissed => "threshold missed",
        Verdict::LabFellBehind => "invalid",
        Verdict::Interrupted => "partial",
        Verdict::Failed => "failed",
    }
}

fn sentence(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Every count balances and every threshold is met.",
        Verdict::ThresholdMissed => "Every count balances, but a figure missed its threshold.",
        Verdict::LabFellBehind => {
            "The lab could not keep its own schedule, so the figures are the lab's limit and say nothing about the server."
        }
        Verdict::Interrupted => "The run was ended early: what was planned until then is counted and verified.",
        Verdict::Failed => "The server failed: a count does not balance, or an answer was wrong.",
    }
}

fn comparison_sentence(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Failed => "A round failed: the server lost, doubled or altered something.",
        Verdict::LabFellBehind => "Some rounds are invalid or partial, and left out.",
        _ => "Every round that is compared passed.",
    }
}

/// What the run was held to, in the order of the report: counts, the folder, thresholds, the lab's own lag.
fn criteria(figures: &Value, output: &OutputArgs) -> Vec<Criterion> {
    let parts = parts_of(figures);
    let mut criteria: Vec<Criterion> = parts.iter().filter_map(balance_criterion).collect();
    if let Some(passed) = figures["check"]["passed"].as_bool() {
        criteria.push(Criterion {
            name: "stored data".into(),
            part: "the server's folder".into(),
            bound: "passes `tidings check`".into(),
            value: if passed { "passed" } else { "failed" }.into(),
            met: passed,
        });
    }
    for threshold in &output.thresholds {
        criteria.extend(parts.iter().map(|part| threshold.judge(part)));
        if parts.is_empty() {
            criteria.push(Criterion {
                name: "threshold".into(),
                part: String::new(),
                bound: threshold.to_string(),
                value: "not measured".into(),
                met: false,
            });
        }
    }
    for part in &parts {
        let own = part.get("thresholds").and_then(Value::as_array).into_iter().flatten();
        let own = own.filter_map(|bound| bound.as_str()?.parse::<Threshold>().ok());
        criteria.extend(own.map(|threshold| threshold.judge(part)));
    }
    criteria.extend(parts.iter().filter_map(lag_criterion));
    criteria.extend(parts.iter().flat_map(agent_criteria));
    criteria
}

fn balance_criterion(part: &Part<'_>) -> Option<Criterion> {
    let (value, met) = part.balance()?;
    let bound = "every receiver has every entry once, in order, unaltered".into();
    Some(Criterion { name: "deliveries".into(), part: part.title.clone(), bound, value, met })
}

fn lag_criterion(part: &Part<'_>) -> Option<Criterion> {
    let (lag, bound) = (part.number(&["lateness", "p99"])?, part.number(&["lag_max_ms"])?);
    Some(Criterion {
        name: "the lab's own lag".into(),
        part: part.title.clone(),
        bound: format!("p99 ≤ {bound} ms"),
        value: format!("{lag:.2} ms"),
        met: lag <= bound,
    })
}

/// With agents each is held to the same bound, so that one that could not keep up is not hidden behind the others.
fn agent_criteria(part: &Part<'_>) -> Vec<Criterion> {
    let bound = part.number(&["lag_max_ms"]);
    let agents = part.get("agents").and_then(Value::as_array).into_iter().flatten();
    let criterion = |agent: &Value| {
        let lag = ["lateness", "loop_lag"].iter().filter_map(|name| agent[name]["p99"].as_f64()).fold(0.0, f64::max);
        Some(Criterion {
            name: "the agent's own lag".into(),
            part: agent["address"].as_str()?.to_owned(),
            bound: format!("p99 ≤ {} ms", bound?),
            value: format!("{lag:.2} ms"),
            met: !agent["lagged"].as_bool()?,
        })
    };
    agents.filter_map(criterion).collect()
}

/// The command as it was given, without secrets.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut hide_next = false;
    for (index, argument) in arguments.enumerate() {
        let option = argument.split('=').next().unwrap_or_default();
        let is_secret = SECRET_OPTIONS.contains(&option);
        if std::mem::take(&mut hide_next) {
            shown.push("***".into());
        } else if index == 0 {
            // The program's name, without where it lies.
            shown.push(argument.rsplit('/').next().unwrap_or_default().to_owned());
        } else if is_secret && argument.contains('=') {
            shown.push(format!("{option}=***"));
        } else if argument.contains("_KEY=")
            || argument.contains("SECRET")
            || argument.contains("PASSWORD")
            || argument.contains("@")
        {
            // A setting such as `--set TIDINGS_API_KEY=…`, or an address with a password.
            shown.push(format!("{}=***", option.split("://").next().unwrap_or_default()));
        } else {
            hide_next = is_secret;
            shown.push(if argument.contains([' ', '<', '>', '&', '|', ';', '\'']) {
                format!("'{argument}'")
            } else {
                argument
            });
        }
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_its_secrets() {
        let line = "/opt/tidings bench group --url http://h:1 --api-key abc --token-key=def --agent-token mno --set TIDINGS_API_KEY=ghi \
                    --threshold p99<7 --set TIDINGS_STORE_URL=postgres://u:jkl@h/d";
        let told = command_line(line.split_whitespace().map(str::to_owned));
        for secret in ["abc", "def", "ghi", "jkl", "mno"] {
            assert!(!told.contains(secret), "{told}");
        }
        assert!(told.starts_with("tidings bench group --url http://h:1 --api-key *** --token-key=*** "), "{told}");
        assert!(told.contains("'p99<7'"), "{told}");
    }

    #[test]
    fn a_part_is_held_to_its_own_thresholds_and_others_are_not() {
        let part = |title: &str| json!({ "title": title, "latency": { "p50": 1.0, "p99": 80.0 } });
        let mut figures = json!({ "works": [part("a"), part("b")] });
        figures["works"][1]["thresholds"] = json!(["p99<70", "p50<2"]);
        let judged: Vec<_> = criteria(&figures, &OutputArgs::default())
            .into_iter()
            .map(|criterion| (criterion.part, criterion.bound, criterion.met))
            .collect();
        let expected = [("b", "p99 < 70 ms", false), ("b", "p50 < 2 ms", true)];
        assert_eq!(judged, expected.map(|(part, bound, met)| (part.to_owned(), bound.to_owned(), met)));
    }

    #[test]
    fn counts_lag_and_thresholds_are_what_a_run_is_held_to() {
        let figures = json!({ "outcome": {
            "title": "group", "latency": { "p50": 1.0, "p99": 80.0 }, "expected": 10, "delivered": 9, "lost": 1,
            "lateness": { "p99": 60.0 }, "lag_max_ms": 50.0,
            "agents": [{ "address": "a:1", "lateness": { "p99": 1.0 }, "loop_lag": { "p99": 70.0 }, "lagged": true }],
        }, "check": { "passed": true } });
        let output = OutputArgs {
            thresholds: vec!["p99<70".parse().unwrap_or_else(|why| panic!("{why}"))],
            ..OutputArgs::default()
        };
        let criteria = criteria(&figures, &output);
        assert_eq!(criteria.last().map(|last| (last.part.as_str(), last.value.as_str())), Some(("a:1", "70.00 ms")));
        let met: Vec<(String, bool)> = criteria.into_iter().map(|c| (c.name, c.met)).collect();
        let expected = [
            ("deliveries", false),
            ("stored data", true),
            ("threshold", false),
            ("the lab's own lag", false),
            ("the agent's own lag", false),
        ];
        assert_eq!(met, expected.map(|(name, met)| (name.to_owned(), met)));
    }
}
