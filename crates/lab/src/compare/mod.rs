//! `bench compare`: reports of several versions or steps beside each other, over rounds.
//!
//! A side is a report, or a folder with one report per round. [`sides`] reads them, [`statistics`] says what the rounds allow to say.

mod sides;
mod statistics;

use crate::{
    LabError,
    result::{Check, RunResult, Table},
};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use sides::{Direction, FIGURES, Side};
use statistics::{Difference, Mean};
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Reports (`report.json`), or folders with one report per round, as `--repeat` writes them; the others are held against the first
    #[arg(required = true, num_args = 2..)]
    pub reports: Vec<PathBuf>,
}

/// One figure of one part, on all sides.
#[derive(Debug, Serialize)]
struct ComparedFigure {
    part: String,
    name: &'static str,
    unit: &'static str,
    /// By side; unset where a side does not have it.
    means: Vec<Option<Mean>>,
    /// Against the first side; unset for the first.
    differences: Vec<Option<Difference>>,
    /// By side: better, worse, or neither shown.
    verdicts: Vec<Option<Change>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    Better,
    Worse,
}

pub(crate) fn run(args: &CompareArgs) -> Result<RunResult, LabError> {
    let sides = args.reports.iter().map(|path| Side::read(path)).collect::<Result<Vec<_>, _>>()?;
    Ok(compare(&sides))
}

fn compare(sides: &[Side]) -> RunResult {
    let figures = compare_figures(sides);
    let mut sentences: Vec<String> = (1..sides.len()).map(|index| sentence(sides, index, &figures)).collect();
    let cautions = cautions(sides);
    if sides.iter().any(|side| side.usable().count() < 2) {
        sentences.push(
            "With one round a side nothing tells a difference from noise: repeat the runs (`--repeat 5`).".into(),
        );
    }
    let mut result = RunResult::of("compare");
    tell(&mut result, sides, &figures, &sentences, &cautions);
    for side in sides {
        for round in &side.rounds {
            let place = format!("{}, {}", side.name, round.name);
            let failed = Check::of_server("rounds", "the round did not fail", round.verdict != "failed");
            result.check(failed.part(&*place).value(&*round.verdict));
            let whole = !matches!(round.verdict.as_str(), "invalid" | "partial");
            let whole = Check::of_lab("rounds", "the round is valid and whole", whole);
            result.check(whole.part(place).value(&*round.verdict));
        }
    }
    result.set_all(json!({
        "sentences": sentences, "cautions": cautions, "compared": figures,
        "sides": sides.iter().map(Side::json).collect::<Vec<_>>(),
    }));
    result
}

fn compare_figures(sides: &[Side]) -> Vec<ComparedFigure> {
    let Some(first) = sides.first() else { return Vec::new() };
    let mut figures = Vec::new();
    for (part, title) in first.part_titles().into_iter().enumerate() {
        for figure in &FIGURES {
            let means: Vec<Option<Mean>> = sides.iter().map(|side| Mean::of(&side.values(part, figure))).collect();
            if means.iter().all(Option::is_none) {
                continue;
            }
            let difference = |mean: &Option<Mean>| Some(Difference::between(means[0].as_ref()?, mean.as_ref()?));
            let differences: Vec<_> = means
                .iter()
                .enumerate()
                .map(|(index, mean)| if index == 0 { None } else { difference(mean) })
                .collect();
            let judge = |difference: &Option<Difference>| {
                let difference = difference.filter(|difference| difference.is_shown)?;
                Some(match (figure.better, difference.difference < 0.0) {
                    (Direction::Less, true) | (Direction::More, false) => Change::Better,
                    _ => Change::Worse,
                })
            };
            let verdicts = differences.iter().map(judge).collect();
            let (name, unit) = (figure.name, figure.unit);
            figures.push(ComparedFigure { part: title.clone(), name, unit, means, differences, verdicts });
        }
    }
    figures
}

/// What can be said of a side against the first, in one sentence.
fn sentence(sides: &[Side], index: usize, figures: &[ComparedFigure]) -> String {
    let (first, side) = (&sides[0].name, &sides[index].name);
    if side == first {
        return format!("{side} is compared with itself.");
    }
    let several_parts = figures.iter().any(|figure| figure.part != figures[0].part);
    let told = |wanted: Change| -> Vec<String> {
        let of = |figure: &ComparedFigure| {
            let difference = figure.differences[index].filter(|_| figure.verdicts[index] == Some(wanted))?;
            let (before, after) = (figure.means[0]?.mean, figure.means[index]?.mean);
            let by = match difference.percent {
                Some(percent) => format!("{:.0} % {}", percent.abs(), if percent < 0.0 { "lower" } else { "higher" }),
                None => format!("{after:.2} instead of 0"),
            };
            let place = if several_parts { format!(" of {}", figure.part) } else { String::new() };
            Some(format!("{}{place} {by} ({after:.2} against {before:.2} {})", figure.name, figure.unit))
        };
        figures.iter().filter_map(of).collect()
    };
    let (better, worse) = (told(Change::Better), told(Change::Worse));
    match (better.is_empty(), worse.is_empty()) {
        (true, true) => format!("Between {first} and {side} no difference is shown beyond the spread of the rounds."),
        (false, true) => format!("{side} is better than {first}: {}.", better.join(", ")),
        (true, false) => format!("{side} is worse than {first}: {}.", worse.join(", ")),
        (false, false) => {
            format!("Against {first}, {side} has {}; but {}.", better.join(", "), worse.join(", "))
        }
    }
}

/// What makes the comparison doubtful.
fn cautions(sides: &[Side]) -> Vec<String> {
    let mut cautions = Vec::new();
    let mut differ = |what: &str, of: fn(&sides::Round) -> &str| {
        let mut all: Vec<&str> = sides.iter().flat_map(|side| &side.rounds).map(of).collect();
        all.sort_unstable();
        all.dedup();
        if all.len() > 1 {
            cautions.push(format!("{what}: {}.", all.join("; ")));
        }
    };
    differ("These are different benches", |round| &round.bench);
    differ("The machines differ", |round| &round.machine);
    for side in sides {
        for round in side.rounds.iter().filter(|round| !round.is_usable()) {
            cautions.push(format!("{}, {}: {}, and left out.", side.name, round.name, round.verdict));
        }
    }
    if sides.iter().flat_map(|side| &side.rounds).any(|round| round.is_unoptimised) {
        cautions.push("Some rounds are of a program that was built without optimisation.".into());
    }
    cautions
}

fn tell(result: &mut RunResult, sides: &[Side], figures: &[ComparedFigure], sentences: &[String], cautions: &[String]) {
    for (index, side) in sides.iter().enumerate() {
        let (usable, all) = (side.usable().count(), side.rounds.len());
        let text = format!("{}: {usable} of {all} rounds, commit {}", side.name, side.commit());
        result.note(&format!("side {}", index + 1), text);
    }
    for part in figures.chunk_by(|one, other| one.part == other.part) {
        let names: Vec<&str> =
            [part[0].part.as_str()].into_iter().chain(sides.iter().map(|side| &*side.name)).collect();
        let mut table = Table { columns: names.into_iter().map(str::to_owned).collect(), rows: Vec::new() };
        for figure in part {
            let cells = figure.means.iter().zip(&figure.verdicts).map(|(mean, change)| {
                let shown = match mean {
                    None => "–".to_owned(),
                    Some(Mean { mean, half_width: None, .. }) => format!("{mean:.2}"),
                    Some(Mean { mean, half_width: Some(half), .. }) => format!("{mean:.2} ± {half:.2}"),
                };
                match change {
                    None => shown,
                    Some(Change::Better) => shown + " better",
                    Some(Change::Worse) => shown + " worse",
                }
            });
            table.row(&format!("{}, {}", figure.name, figure.unit), cells);
        }
        result.table(table);
    }
    result.note("", "mean ± half of the 95 % confidence interval (Student's t over rounds; differences by Welch's)");
    cautions.iter().for_each(|caution| result.problem(&**caution));
    sentences.iter().for_each(|sentence| result.note("", &**sentence));
}
