//! The sides of a comparison: one report, or a folder with a report per round.

use crate::{
    LabError,
    result::parts::{Part, parts_of},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A report of more bytes is none of ours.
const REPORT_BYTES_MAX: u64 = 64 << 20;
/// Rounds of a side: more than anybody runs.
const ROUNDS_MAX: usize = 1_000;

/// Whether less of a figure is better, or more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Direction {
    Less,
    More,
}

/// A figure that is compared.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Direction,
    of: fn(&Part<'_>) -> Option<f64>,
}

pub(super) const FIGURES: [Figure; 9] = [
    Figure { name: "rate", unit: "/s", better: Direction::More, of: |part| part.rate() },
    Figure { name: "p50", unit: "ms", better: Direction::Less, of: |part| part.number(&["latency", "p50"]) },
    Figure { name: "p90", unit: "ms", better: Direction::Less, of: |part| part.number(&["latency", "p90"]) },
    Figure { name: "p99", unit: "ms", better: Direction::Less, of: |part| part.number(&["latency", "p99"]) },
    Figure { name: "p99.9", unit: "ms", better: Direction::Less, of: |part| part.number(&["latency", "p99_9"]) },
    Figure { name: "p100", unit: "ms", better: Direction::Less, of: |part| part.number(&["latency", "max"]) },
    Figure { name: "errors", unit: "%", better: Direction::Less, of: |part| part.error_percent() },
    Figure { name: "server CPU", unit: "cores", better: Direction::Less, of: |part| part.server_cores() },
    Figure {
        name: "server memory",
        unit: "MiB",
        better: Direction::Less,
        of: |part| Some(part.number(&["server_rss_bytes"])? / 1_048_576.0),
    },
];

#[derive(Debug)]
pub(super) struct Round {
    pub(super) name: String,
    pub(super) bench: String,
    pub(super) verdict: String,
    pub(super) machine: String,
    pub(super) is_unoptimised: bool,
    document: Value,
}

impl Round {
    fn of(name: String, document: Value) -> Result<Self, LabError> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (bench, run) = (text(&document["bench"]), &document["run"]);
        if bench.is_empty() || !run.is_object() {
            return Err(LabError::Usage(format!("{name} is not a report of tidings bench")));
        }
        let machine = &run["machine"];
        Ok(Round {
            bench,
            verdict: text(&run["verdict"]),
            machine: format!("{} cores, {}", machine["cores"], text(&machine["cpu"])),
            is_unoptimised: run["doubts"].to_string().contains("without optimisation"),
            name,
            document,
        })
    }

    /// The figures of a run that failed, was invalid or ended early say nothing about the server.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.verdict.as_str(), "passed" | "threshold missed")
    }
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: String,
    pub(super) rounds: Vec<Round>,
}

impl Side {
    pub(super) fn read(path: &Path) -> Result<Self, LabError> {
        let rounds = report_files(path)?.iter().map(|file| read_round(file)).collect::<Result<Vec<_>, _>>()?;
        // A report is best known by its folder.
        let named = if path.ends_with("report.json") { path.parent().unwrap_or(path) } else { path };
        let name = named.file_stem().or(path.file_stem()).map_or_else(|| "here".into(), |name| name.to_string_lossy());
        Ok(Side { name: name.into_owned(), rounds })
    }

    pub(super) fn usable(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(|round| round.is_usable())
    }

    pub(super) fn part_titles(&self) -> Vec<String> {
        self.rounds
            .first()
            .map_or_else(Vec::new, |round| parts_of(&round.document).into_iter().map(|part| part.title).collect())
    }

    /// A figure of one part in each usable round that has it. Parts are told by their place: in steps their titles differ.
    pub(super) fn values(&self, part: usize, figure: &Figure) -> Vec<f64> {
        self.usable().filter_map(|round| (figure.of)(parts_of(&round.document).get(part)?)).collect()
    }

    pub(super) fn commit(&self) -> &str {
        self.rounds.first().and_then(|round| round.document["run"]["commit"].as_str()).unwrap_or("unknown")
    }

    /// What the page shows of a side: its rounds in a line each, and of the round in the middle by p99 the curves.
    pub(super) fn json(&self) -> Value {
        let p99 = |round: &Round| parts_of(&round.document).first().and_then(|part| part.number(&["latency", "p99"]));
        let mut usable: Vec<&Round> = self.usable().collect();
        usable.sort_by(|one, other| p99(one).unwrap_or(0.0).total_cmp(&p99(other).unwrap_or(0.0)));
        let parts: Vec<Value> = usable.get(usable.len().saturating_sub(1) / 2).map_or_else(Vec::new, |middle| {
            let plotted = |part: &Part<'_>| {
                let of = |name: &str| part.get(name).cloned().unwrap_or(Value::Null);
                json!({ "title": part.title, "latency_curve": of("latency_curve"), "series": of("series"), "samples": of("samples") })
            };
            parts_of(&middle.document).iter().map(plotted).collect()
        });
        let rounds: Vec<Value> = (self.rounds.iter())
            .map(|round| json!({ "name": round.name, "verdict": round.verdict, "command": round.document["run"]["command"] }))
            .collect();
        json!({ "name": self.name, "commit": self.commit(), "rounds": rounds, "plotted": parts })
    }
}

/// The report files of a side, in the order of their names.
fn report_files(path: &Path) -> Result<Vec<PathBuf>, LabError> {
    let wrong = |why: &dyn std::fmt::Display| LabError::Usage(format!("{}: {why}", path.display()));
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    // Rounds come first: beside them the folder may have a report about all of them.
    let mut rounds = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| wrong(&error))? {
        let file = entry.map_err(|error| wrong(&error))?.path().join("report.json");
        if file.is_file() {
            rounds.push(file);
        }
    }
    rounds.sort();
    rounds.truncate(ROUNDS_MAX);
    let own = path.join("report.json");
    if !rounds.is_empty() {
        Ok(rounds)
    } else if own.is_file() {
        Ok(vec![own])
    } else {
        Err(wrong(&"has no report.json, and no folder with one"))
    }
}

fn read_round(file: &Path) -> Result<Round, LabError> {
    let wrong = |why: &dyn std::fmt::Display| LabError::Usage(format!("{}: {why}", file.display()));
    let length = std::fs::metadata(file).map_err(|error| wrong(&error))?.len();
    if length > REPORT_BYTES_MAX {
        return Err(wrong(&format!("has {length} bytes, and is not a report")));
    }
    let document =
        serde_json::from_slice(&std::fs::read(file).map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
    let folder = file.parent().and_then(Path::file_name).filter(|_| file.ends_with("report.json"));
    let name = folder.or(file.file_name()).map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Round::of(name, document)
}
