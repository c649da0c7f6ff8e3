//! The report as one JSON document: the figures of the run, and beside them the verdict with its reasons, the machine, the commit
//! and the command.

use super::{
    files,
    junit::TestSuite,
    machine::{self, MachineCounters},
    output_args::OutputArgs,
    terminal,
};
use crate::{
    LabError, interrupt, process,
    result::{RunResult, Verdict, parts::parts_of, thresholds},
};
use serde_json::{Value, json};
use std::time::Instant;

/// Options whose values are secrets.
const SECRET_OPTIONS: [&str; 3] = ["--api-key", "--token-key", "--agent-token"];

/// A report that is written when the bench has finished.
#[derive(Debug)]
pub(crate) struct RunReport<'a> {
    output: &'a OutputArgs,
    id: String,
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
            id: process::run_tag(),
            started_at_ms: process::unix_ms(),
            started: Instant::now(),
            machine: machine::describe(),
            before: MachineCounters::read(),
        })
    }

    /// What distinguishes the run from all others.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Prints what was not printed yet, holds the figures to the user's bounds, and writes the report.
    pub(crate) fn finish(self, mut result: RunResult) -> Result<(Verdict, TestSuite), LabError> {
        let (kernel, mut doubts) = MachineCounters::read().since(&self.before);
        if cfg!(debug_assertions) {
            doubts.push("The program was built without optimisation: compare these figures with nothing.".into());
        }
        terminal::print_new(&mut result);
        let (mut figures, mut checks) = result.into_parts();
        checks.extend(thresholds::judge_all(&self.output.thresholds, &parts_of(&figures)));
        let mut verdict = checks.iter().fold(Verdict::Passed, |verdict, check| verdict.and(check.verdict));
        if interrupt::requested() {
            verdict = verdict.and(Verdict::Interrupted);
        }
        for check in checks.iter().filter(|check| check.is_threshold()) {
            let answer = if check.is_met() { "met" } else { "MISSED" };
            println!("threshold      {}: {} ({}), {answer}", check.bound, check.value, check.part);
        }
        let is_comparison = figures["bench"] == "compare";
        let (sentence, seconds) =
            (if is_comparison { comparison_sentence(verdict) } else { verdict.sentence() }, self.started.elapsed());
        let command = command_line(std::env::args());
        figures["run"] = json!({
            "verdict": verdict.name(), "exit_code": verdict as u8, "sentence": sentence, "partial": interrupt::requested(),
            "criteria": checks, "doubts": doubts,
            "id": self.id, "started_at": self.started_at_ms, "seconds": seconds.as_secs_f64(),
            "command": command, "version": env!("CARGO_PKG_VERSION"), "commit": machine::commit(),
            "machine": self.machine, "kernel": kernel,
        });
        if let Some(file) = &self.output.json {
            files::write_json(file, &figures)?;
        }
        if let Some(folder) = &self.output.report {
            files::write_report(folder, &figures)?;
            println!("report         {}", folder.join(files::PAGE).display());
        }
        let name = figures["scenario"].as_str().or(figures["bench"].as_str()).unwrap_or("run");
        let suite = TestSuite {
            name: name.to_owned(),
            checks,
            seconds: seconds.as_secs_f64(),
            started_at_ms: self.started_at_ms,
            command,
            broken_off: (verdict == Verdict::Interrupted).then(|| verdict.sentence().to_owned()),
        };
        Ok((verdict, suite))
    }

    /// What is told of a run that ended with an error.
    pub(crate) fn break_off(&self, name: &str, error: &LabError) -> TestSuite {
        TestSuite {
            name: name.to_owned(),
            checks: Vec::new(),
            seconds: self.started.elapsed().as_secs_f64(),
            started_at_ms: self.started_at_ms,
            command: command_line(std::env::args()),
            broken_off: Some(error.to_string()),
        }
    }
}

fn comparison_sentence(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Failed => "A round failed: the server lost, doubled or altered something.",
        Verdict::LabFellBehind => "Some rounds are invalid or partial, and left out.",
        _ => "Every round that is compared passed.",
    }
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
}
