//! Where the live view is drawn: standard error, if that is a terminal that can move its cursor.
//!
//! The lines are drawn over those before, and removed when the last task is over, so that tables and errors begin
//! where the view began. A signal that ends the process removes them first.

use super::{
    block::Block,
    drawing::{Space, draw},
};
use crate::{interrupt, lock::lock, report::OutputArgs};
use console::{Term, colors_enabled_stderr, is_dumb, measure_text_width};
use signal_hook::{
    consts::signal::{SIGINT, SIGTERM},
    flag, low_level,
};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const REDRAW: Duration = Duration::from_millis(500);
/// How soon a signal is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// A process has one terminal, so this is one of the few things that it has only once.
static TERMINAL: OnceLock<Arc<Terminal>> = OnceLock::new();

struct Terminal {
    /// What runs, in the order in which it began. Held for moments only: load clients' reports wait for it.
    blocks: Mutex<(u64, BTreeMap<u64, Block>)>,
    /// What is drawn. Held while the terminal takes it, which may be for as long as somebody has stopped its output; locked
    /// before `blocks`.
    screen: Mutex<Screen>,
    /// Nothing is drawn, so that a signal can end the process at once.
    is_clean: Arc<AtomicBool>,
    ending: [(i32, Arc<AtomicBool>); 2],
}

/// From now on work is shown, if the options allow it and standard error is a terminal.
pub(crate) fn enable(output: &OutputArgs) -> io::Result<()> {
    let term = Term::buffered_stderr();
    let is_wanted = !output.quiet && output.json.is_none();
    if !is_wanted || !term.is_term() || is_dumb() || TERMINAL.get().is_some() {
        return Ok(());
    }
    let terminal = Arc::new(Terminal {
        blocks: Mutex::default(),
        screen: Mutex::new(Screen { term, widths: Vec::new() }),
        is_clean: Arc::new(AtomicBool::new(true)),
        ending: [SIGINT, SIGTERM].map(|signal| (signal, Arc::default())),
    });
    for (signal, ends) in &terminal.ending {
        // Of a bench that ends early Ctrl-C is no end, but the way to its report.
        if *signal != SIGINT || !interrupt::is_installed() {
            flag::register_conditional_default(*signal, terminal.is_clean.clone())?;
            flag::register(*signal, ends.clone())?;
        }
    }
    let drawn = TERMINAL.get_or_init(|| terminal).clone();
    std::thread::Builder::new().name("live-view".into()).spawn(move || drawn.run())?;
    Ok(())
}

/// Whether anybody sees what runs: if not, load clients need not tell their series.
pub(super) fn is_enabled() -> bool {
    TERMINAL.get().is_some()
}

pub(super) fn add(block: Block) -> Option<u64> {
    let terminal = TERMINAL.get()?;
    let mut blocks = lock(&terminal.blocks);
    blocks.0 += 1;
    let number = blocks.0;
    blocks.1.insert(number, block);
    Some(number)
}

pub(super) fn update(number: u64, change: impl FnOnce(&mut Block)) {
    if let Some(terminal) = TERMINAL.get()
        && let Some(block) = lock(&terminal.blocks).1.get_mut(&number)
    {
        change(block);
    }
}

/// Removes the lines of work that is over before anything else is printed.
pub(super) fn remove(number: u64) {
    if let Some(terminal) = TERMINAL.get() {
        lock(&terminal.blocks).1.remove(&number);
        terminal.redraw();
    }
}

impl Terminal {
    fn run(&self) {
        let mut next = Instant::now();
        loop {
            std::thread::sleep(LOOK);
            if let Some((signal, _)) = self.ending.iter().find(|(_, ends)| ends.load(Ordering::Relaxed)) {
                lock(&self.screen).show(&[]);
                // It fails for signals that cannot end a process, and these can.
                let _ = low_level::emulate_default_handler(*signal);
            }
            if Instant::now() >= next {
                next = Instant::now() + REDRAW;
                self.redraw();
            }
        }
    }

    fn redraw(&self) {
        let mut screen = lock(&self.screen);
        let space = screen.space();
        let lines = draw(lock(&self.blocks).1.values(), Instant::now(), space);
        if !lines.is_empty() {
            self.is_clean.store(false, Ordering::SeqCst);
        }
        screen.show(&lines);
        if lines.is_empty() {
            self.is_clean.store(true, Ordering::SeqCst);
        }
    }
}

/// The lines on the terminal. The cursor stands in the line below them, so that the `^C` that terminals write does no harm.
struct Screen {
    term: Term,
    /// Of the lines that are drawn, in columns.
    widths: Vec<usize>,
}

impl Screen {
    fn space(&self) -> Space {
        let (rows, columns) = self.term.size();
        Space { columns: columns.into(), rows: rows.into(), has_colours: colors_enabled_stderr() }
    }

    /// Draws these lines over those before; without any only removes them.
    fn show(&mut self, lines: &[String]) {
        if lines.is_empty() && self.widths.is_empty() {
            return;
        }
        // In a window that has become narrower a line takes several rows.
        let columns = self.space().columns.max(1);
        let rows: usize = self.widths.iter().map(|width| width.div_ceil(columns).max(1)).sum();
        let mut frame = String::from("\r");
        if rows > 0 {
            frame.push_str(&format!("\x1b[{rows}A"));
        }
        for line in lines {
            frame.push_str(line);
            frame.push_str("\x1b[K\n");
        }
        frame.push_str("\x1b[J");
        self.widths = lines.iter().map(|line| measure_text_width(line)).collect();
        // A terminal that has gone takes the view with it, and nothing else.
        let _ = self.term.write_str(&frame).and_then(|()| self.term.flush());
    }
}
