//! What is printed of a result: lines that name figures, tables, notes.

use crate::latency::Percentiles;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A piece of what is printed.
#[derive(Debug, Clone)]
pub(crate) enum Block {
    Measured(PrintedMeasurement),
    Note { about: String, text: String },
    Problem(String),
    Table(Table),
}

/// The lines of a measurement, with its figures in their places.
#[derive(Debug, Clone, Default)]
pub(crate) struct PrintedMeasurement {
    pub(crate) title: String,
    /// What each is about, and its text.
    pub(crate) lines: Vec<(String, String)>,
    pub(crate) percentiles: Vec<(String, Percentiles)>,
    pub(crate) remarks: Vec<String>,
    pub(crate) problems: Vec<String>,
}

/// Rows of figures below each other. The first column is text, the others are numbers.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// `columns`: their names, apart by `|`.
    pub(crate) fn of(columns: &str) -> Self {
        Table { columns: columns.split('|').map(str::to_owned).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows.push([name.to_owned()].into_iter().chain(cells).collect());
    }
}

/// Puts figures into a line such as `planned {planned}  late {lateness.p99:2} ms`: a name, or a path of names, and how it is written: with
/// so many decimals, as `MiB`, as a share in `%`. A figure that is unknown is `?`; a line whose first figure is unknown is none.
pub(super) fn fill(line: &str, figures: &Map<String, Value>) -> Option<String> {
    let (mut text, mut rest, mut is_first) = (String::new(), line, true);
    while let Some((before, behind)) = rest.split_once('{') {
        let (place, behind) = behind.split_once('}')?;
        let (path, form) = place.split_once(':').unwrap_or((place, ""));
        let value = find(figures, path);
        if std::mem::take(&mut is_first) && value.is_none() {
            return None;
        }
        text.push_str(before);
        text.push_str(&value.map_or_else(|| "?".to_owned(), |value| write(value, form)));
        rest = behind;
    }
    text.push_str(rest);
    Some(text)
}

/// The same with the figures of anything that has some.
pub(crate) fn filled(line: &str, figures: &impl Serialize) -> String {
    match json!(figures) {
        Value::Object(figures) => fill(line, &figures).unwrap_or_default(),
        _ => String::new(),
    }
}

pub(super) fn find<'a>(figures: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let mut names = path.split('.');
    let first = figures.get(names.next()?)?;
    names.try_fold(first, |value, name| value.get(name)).filter(|value| !value.is_null())
}

fn write(value: &Value, form: &str) -> String {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or(f64::NAN);
            match (form, form.parse::<usize>()) {
                (_, Ok(decimals)) => format!("{float:.decimals$}"),
                ("MiB", _) => format!("{:.0} MiB", float / 1_048_576.0),
                ("%", _) => format!("{:.1} %", 100.0 * float),
                _ if number.is_f64() => format!("{float:.2}"),
                _ => number.to_string(),
            }
        }
        Value::String(text) => text.clone(),
        Value::Object(counts) if counts.is_empty() => "none".to_owned(),
        Value::Object(counts) => {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_filled_with_the_figures_that_they_name() {
        let Value::Object(figures) = json!({
            "sent": 5, "seconds": 1.5, "share": 0.25, "bytes": 3 << 20, "cpu": null, "late": { "p99": 2.25 },
            "codes": { "full": 2, "gone": 1 }, "none": {},
        }) else {
            panic!("an object");
        };
        let cases = [
            ("sent {sent} in {seconds:2} s", Some("sent 5 in 1.50 s")),
            ("rate {share:%}  memory {bytes:MiB}", Some("rate 25.0 %  memory 3 MiB")),
            ("late {late.p99:1}  CPU {cpu}", Some("late 2.2  CPU ?")),
            ("CPU {cpu}  late {late.p99:1}", None),
            ("refused {codes}, broken {none}", Some("refused full 2, gone 1, broken none")),
            ("mix {mix.edits}  {mix.recalls}", None),
            ("no figure", Some("no figure")),
        ];
        for (line, expected) in cases {
            assert_eq!(fill(line, &figures).as_deref(), expected, "{line}");
        }
    }
}
