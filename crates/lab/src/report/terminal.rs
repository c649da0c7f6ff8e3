//! The printer of results on the terminal.

use crate::{
    latency::Percentiles,
    result::{Block, PrintedMeasurement, RunResult, Table},
};
use std::fmt::{Display, Write};

const PERCENTILES: &str = "  ms             p50       p90       p99     p99.9    p99.99      p100";
/// Latencies whose median is below this are printed with three decimals.
const FINE_BELOW_MS: f64 = 1.0;

/// Prints what of a result was not printed yet.
pub(crate) fn print_new(result: &mut RunResult) {
    for block in result.take_blocks() {
        print!("{block}");
    }
}

impl Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Block::Measured(measurement) => write!(f, "{measurement}"),
            Block::Note { about, text } if about.is_empty() => writeln!(f, "{text}"),
            Block::Note { about, text } => writeln!(f, "{about:<14} {text}"),
            Block::Problem(text) => writeln!(f, "  ! {text}"),
            Block::Table(table) => write!(f, "{table}"),
        }
    }
}

impl Display for PrintedMeasurement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for (about, text) in &self.lines {
            writeln!(f, "  {about:<12} {text}")?;
        }
        if !self.percentiles.is_empty() {
            writeln!(f, "{PERCENTILES}")?;
        }
        for (name, p) in &self.percentiles {
            let Percentiles { p50, p90, p99, p99_9, p99_99, max, .. } = p;
            let decimals = if *p50 < FINE_BELOW_MS { 3 } else { 2 };
            write!(f, "  {name:<12}")?;
            for (place, value) in [p50, p90, p99, p99_9, p99_99, max].into_iter().enumerate() {
                // A latency of many seconds is wider, and stands apart from the name all the same.
                match place {
                    0 => write!(f, " {value:>7.decimals$}")?,
                    _ => write!(f, "  {value:>8.decimals$}")?,
                }
            }
            f.write_char('\n')?;
        }
        for remark in &self.remarks {
            writeln!(f, "  {remark}")?;
        }
        for problem in &self.problems {
            writeln!(f, "  ! {problem}")?;
        }
        Ok(())
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = 0..self.columns.len();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).chain([&self.columns[column]]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = columns.map(width).collect();
        for row in [&self.columns].into_iter().chain(&self.rows) {
            f.write_str(" ")?;
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, " {cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Layout, Measurement};
    use serde_json::json;

    #[test]
    fn a_measurement_is_printed_with_its_figures_in_their_places() {
        const LAYOUT: Layout = Layout {
            lines: &[("deliveries", "{delivered} of {expected}"), ("mix", "edits {mix.edits}")],
            percentiles: &[("delivered", "latency"), ("acknowledged", "acknowledged")],
        };
        let latency = Percentiles { p50: 1.5, p90: 2.0, p99: 3.0, p99_9: 4.0, p99_99: 5.0, max: 6.25, mean: 1.0 };
        let figures = json!({ "delivered": 9, "expected": 10, "latency": latency, "problems": ["one is lost"] });
        let printed = Measurement::of("a group", &figures).layout(&LAYOUT).printed().to_string();
        let expected = [
            "a group",
            "  deliveries   9 of 10",
            PERCENTILES,
            "  delivered       1.50      2.00      3.00      4.00      5.00      6.25",
            "  ! one is lost",
        ];
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn columns_of_a_table_are_as_wide_as_their_cells() {
        let mut table = Table::of("ms|p50|p99 ratio");
        table.row("nothing else", ["1.00".into(), "1.00".into()]);
        table.row("group", ["12345.00".into(), "2.50".into()]);
        let expected = "  ms                 p50  p99 ratio\n  nothing else      1.00       1.00\n  group         12345.00       2.50\n";
        assert_eq!(table.to_string(), expected);
    }
}
