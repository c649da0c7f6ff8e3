//! The lines of the live view.

use super::block::{Block, LastSecond, WorkLength};
use console::{Style, measure_text_width, truncate_str};
use std::time::{Duration, Instant};

/// What the lines must fit into.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) has_colours: bool,
}

/// Columns of a sparkline, at least and at most, and of what stands beside it.
const SPARKLINE_MIN: usize = 8;
const SPARKLINE_MAX: usize = 60;
const BESIDE_SPARKLINE: usize = 42;
/// Columns of a progress bar.
const BAR: usize = 20;
/// The eighths of a character, from the lowest; a value of 0 has the lowest, too.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The lines for all work that runs: five for each chunk if there is room, else one.
pub(super) fn draw<'a>(blocks: impl Iterator<Item = &'a Block> + Clone, now: Instant, space: Space) -> Vec<String> {
    // The cursor stands in the line below.
    let rows = space.rows.saturating_sub(1).max(1);
    let mut lines: Vec<String> = blocks.clone().flat_map(|block| whole(block, now, space)).collect();
    if lines.len() > rows {
        lines = blocks.map(|block| one_line(block, now, space)).collect();
    }
    if lines.len() > rows {
        let hidden = lines.len() - (rows - 1);
        lines.truncate(rows - 1);
        lines.push(format!("and {hidden} more"));
    }
    // The last column stays empty: a character there makes some terminals begin another line.
    lines.iter().map(|line| truncate_str(line, space.columns.saturating_sub(1), "…").into_owned()).collect()
}

fn whole(block: &Block, now: Instant, space: Space) -> Vec<String> {
    let Space { columns, .. } = space;
    let mut lines = vec![head(block, now, space)];
    if block.has_series() {
        let width = columns.saturating_sub(BESIDE_SPARKLINE).clamp(SPARKLINE_MIN, SPARKLINE_MAX);
        let last = block.last_second();
        let planned = block.rates(width, |bin| bin.planned);
        // Some servers answer nothing: what was sent stands for it.
        let has_answers = block.counts.is_none_or(|counts| counts.done > 0);
        let (name, achieved, rate) = if has_answers {
            ("answered", block.rates(width, |bin| bin.acknowledged), last.done)
        } else {
            ("sent", block.rates(width, |bin| bin.sent), last.sent)
        };
        let highest = highest(&planned).max(self::highest(&achieved));
        let delivered = match last.delivered {
            0.0 => String::new(),
            delivered => format!("  delivered {}/s", count(delivered)),
        };
        let p99s = block.p99s(width);
        lines.push(row("planned", &sparkline(&planned, highest), width, &format!("{}/s", count(last.planned))));
        lines.push(row(name, &sparkline(&achieved, highest), width, &format!("{}/s{delivered}", count(rate))));
        lines.push(row("p99", &sparkline(&p99s, self::highest(&p99s)), width, &latency(&last)));
    }
    if block.counts.is_some() {
        lines.push(format!("  {}", troubles(block, space)));
    }
    lines
}

fn one_line(block: &Block, now: Instant, space: Space) -> String {
    let mut parts = vec![head(block, now, space)];
    if block.has_series() {
        let last = block.last_second();
        parts.push(format!("{} of {}/s", count(last.done.max(last.sent)), count(last.planned)));
        parts.push(latency(&last));
    }
    if block.counts.is_some() {
        parts.push(troubles(block, space));
    }
    parts.join("  ")
}

/// The title, and how far the work is.
fn head(block: &Block, now: Instant, space: Space) -> String {
    let elapsed = block.elapsed(now);
    let far = match block.length {
        WorkLength::Time(length) if elapsed > length => {
            format!("{}  {}  waiting for what is under way", bar(1.0), clock(elapsed))
        }
        WorkLength::Time(length) => {
            format!("{}  {} of {}", bar(block.progress(now).unwrap_or(0.0)), clock(elapsed), clock(length))
        }
        WorkLength::Messages(all) => {
            let done = block.counts.map_or(0, |counts| counts.done.max(counts.sent));
            format!("{}  {done} of {all}  {}", bar(block.progress(now).unwrap_or(0.0)), clock(elapsed))
        }
        WorkLength::Unknown => clock(elapsed),
    };
    let counts = match block.counts {
        // Without a curve the counts say the most.
        Some(counts) if !block.has_series() => {
            format!("  sent {}  answered {}  delivered {}", counts.sent, counts.done, counts.delivered)
        }
        _ => String::new(),
    };
    let note = if block.note.is_empty() { String::new() } else { format!("  {}", block.note) };
    let title = Style::new().bold().force_styling(space.has_colours).apply_to(&block.title);
    format!("{title}  {far}{note}{counts}")
}

fn row(name: &str, sparkline: &str, width: usize, figures: &str) -> String {
    let filler = " ".repeat(width.saturating_sub(measure_text_width(sparkline)));
    format!("  {name:<9} {sparkline}{filler}  {figures}")
}

fn latency(last: &LastSecond) -> String {
    let ms = |value: Option<f64>| value.map_or("-".into(), milliseconds);
    format!("p99 {}  p50 {} ms", ms(last.p99), ms(last.p50))
}

fn troubles(block: &Block, space: Space) -> String {
    let counts = block.counts.unwrap_or_default();
    let late = if block.has_series() {
        format!("  late {} ms", milliseconds(block.last_second().late_ms))
    } else {
        String::new()
    };
    let errors = format!("errors {}", counts.errors);
    let errors = match counts.errors {
        0 => errors,
        _ => Style::new().red().force_styling(space.has_colours).apply_to(errors).to_string(),
    };
    format!("{errors}{late}  lagging {}  reconnects {}", counts.lagging, counts.reconnects)
}

fn bar(share: f64) -> String {
    let full = (share * BAR as f64) as usize;
    format!("{}{} {:>3.0} %", "█".repeat(full), "░".repeat(BAR - full), (share * 100.0).floor())
}

fn highest(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().copied().fold(0.0, f64::max)
}

/// One character for each value, the highest of which is a full block; a space where there is no value.
fn sparkline(values: &[Option<f64>], highest: f64) -> String {
    let level = |value: f64| {
        let share = if highest > 0.0 { value / highest } else { 0.0 };
        LEVELS[((share * LEVELS.len() as f64).ceil() as usize).clamp(1, LEVELS.len()) - 1]
    };
    values.iter().map(|value| value.map_or(' ', level)).collect()
}

fn count(value: f64) -> String {
    if value > 0.0 && value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn milliseconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{live::LiveCounts, series::SeriesRecorder};

    const MS: u64 = 1_000_000;
    const SPACE: Space = Space { columns: 100, rows: 24, has_colours: false };

    /// Ten seconds at a rate that rises from 100 to 1,000 a second, each message delivered to three receivers after 2 ms; what
    /// is due in the fifth second waits for its end.
    fn recorded() -> Block {
        let mut recorder = SeriesRecorder::new(0);
        let (mut sent, mut at) = (0, 0);
        while at < 10_000 * MS {
            let arrives = if at / 1000 / MS == 4 { 5_000 * MS } else { at + 2 * MS };
            recorder.planned(at);
            recorder.sent(at + MS / 2, MS / 2);
            recorder.acknowledged(arrives);
            (0..3).for_each(|_| recorder.delivered(at, arrives));
            sent += 1;
            at += 10 * MS - 9 * MS * (at / MS) / 10_000;
        }
        let mut block = Block::new("rising: family", WorkLength::Time(Duration::from_secs(20)));
        block.take_change(Duration::from_secs(10), recorder.take_change());
        block.set_counts(LiveCounts { sent, done: sent, delivered: 3 * sent, lagging: 1, ..LiveCounts::default() });
        block
    }

    fn lines(blocks: &[Block], space: Space) -> Vec<String> {
        // The moment at which the blocks were told last: nothing has elapsed since.
        draw(blocks.iter(), Instant::now() - Duration::from_secs(1), space)
    }

    #[test]
    fn a_recorded_series_has_the_curves_of_the_report() {
        let block = recorded();
        let lines = lines(&[block], SPACE);
        assert_eq!(lines[0], "rising: family  ██████████░░░░░░░░░░  50 %  0:10 of 0:20");
        let curve = |line: &str| line.chars().skip(12).take_while(|level| *level != ' ').collect::<Vec<_>>();
        let (planned, answered, p99) = (curve(&lines[1]), curve(&lines[2]), curve(&lines[3]));
        assert_eq!((planned.len(), answered.len(), p99.len()), (40, 40, 40), "{lines:#?}");
        assert!(planned.is_sorted() && planned[0] < '▃' && planned.ends_with(&['█']), "{planned:?}");
        // Nothing is answered in the fifth second, and all of it at its end; the latency stands where it was due.
        assert_eq!((answered[17], answered[20]), ('▁', '█'), "{answered:?}");
        assert_eq!((p99[15], p99[16], p99[21]), ('▁', '█', '▁'), "{p99:?}");
        assert!(lines[1].contains("planned") && lines[3].contains("p99 2.0"), "{lines:#?}");
        assert!(lines[3].ends_with("p50 2.01 ms") || lines[3].ends_with("p50 2.00 ms"), "{}", lines[3]);
        assert_eq!(lines[4], "  errors 0  late 0.50 ms  lagging 1  reconnects 0");
    }

    #[test]
    fn lines_fit_into_any_terminal() {
        for (columns, rows) in [(200, 50), (80, 24), (30, 4), (10, 2), (1, 1)] {
            let blocks: Vec<Block> = (0..7).map(|_| recorded()).collect();
            let lines = lines(&blocks, Space { columns, rows, has_colours: true });
            assert!(lines.len() < rows.max(2), "{} lines in {rows}", lines.len());
            for line in &lines {
                assert!(measure_text_width(line) < columns.max(2), "{line}");
            }
        }
        let seven: Vec<Block> = (0..7).map(|_| recorded()).collect();
        let lines = lines(&seven, SPACE);
        assert_eq!(lines.len(), 7, "one line each: {lines:#?}");
        assert!(lines.iter().all(|line| line.contains("rising") && line.contains('%')));
    }

    #[test]
    fn errors_are_red_where_there_are_colours() {
        let mut block = recorded();
        block.set_counts(LiveCounts { errors: 3, ..LiveCounts::default() });
        let with = lines(&[block], Space { has_colours: true, ..SPACE });
        assert!(with[4].contains("\u{1b}[31merrors 3\u{1b}[0m"), "{:?}", with[4]);
        let mut block = recorded();
        block.set_counts(LiveCounts { errors: 3, ..LiveCounts::default() });
        assert!(lines(&[block], SPACE).iter().all(|line| !line.contains('\u{1b}')));
    }

    #[test]
    fn work_without_a_series_tells_its_counts() {
        let mut block = Block::new("the flood", WorkLength::Messages(40));
        assert_eq!(lines(&[block], SPACE), ["the flood  ░░░░░░░░░░░░░░░░░░░░   0 %  0 of 40  0:00"]);
        block = Block::new("the flood", WorkLength::Unknown);
        block.set_counts(LiveCounts { sent: 9, done: 8, delivered: 24, ..LiveCounts::default() });
        let drawn = lines(&[block], SPACE);
        assert_eq!(drawn[0], "the flood  0:00  sent 9  answered 8  delivered 24");
        assert_eq!(drawn.len(), 2);
    }
}
