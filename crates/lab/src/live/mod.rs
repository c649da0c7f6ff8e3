//! The live view: a few lines on the terminal that follow what runs, with the curves that the report will have.
//!
//! It measures nothing by itself. Whatever runs tells it the bins of its time series that have changed, and the view draws
//! those twice a second; a [collector](crate::otlp) gets the same bins. In reading order: [`block`], what is known of one task;
//! [`drawing`], the lines that are made of it; [`terminal`], where they are drawn and removed again.

mod block;
mod drawing;
mod terminal;

pub(crate) use block::{LiveCounts, WorkLength};
pub(crate) use terminal::enable;

use crate::{
    otlp,
    process::monotonic_ns,
    series::{SeriesChange, SeriesRecorder},
    worker_protocol::{Phase, Progress},
};
use block::Block;
use std::time::Duration;

/// How often a recorder of this process tells what has changed.
const TELL_NS: u64 = 250_000_000;

/// The phase with its series told while it runs, if anybody sees it. Only for a phase whose reports are read from its beginning:
/// they would fill the pipe to a bench that reads them later, and the load client would wait for it.
pub(crate) fn shown(phase: Phase) -> Phase {
    Phase { tell_series: terminal::is_enabled() || otlp::is_enabled(), ..phase }
}

/// A task in the live view, for as long as this lives. Without a view and a collector it does nothing.
#[derive(Debug)]
pub(crate) struct LiveBlock {
    /// Its number in the view.
    number: Option<u64>,
    /// As a collector knows it.
    exported: Option<String>,
    next_tell_ns: u64,
}

impl LiveBlock {
    pub(crate) fn begin(title: &str, length: WorkLength) -> Self {
        LiveBlock {
            number: terminal::add(Block::new(title, length)),
            exported: otlp::is_enabled().then(|| title.to_owned()),
            next_tell_ns: 0,
        }
    }

    /// Of work that is too short to be shown.
    pub(crate) fn hidden() -> Self {
        LiveBlock { number: None, exported: None, next_tell_ns: 0 }
    }

    /// Takes a load client's report over.
    pub(crate) fn show(&self, progress: &Progress) {
        self.export(&progress.series);
        self.update(|block| {
            let at = Duration::try_from_secs_f64(progress.seconds).unwrap_or_default();
            block.take_change(at, progress.series.clone());
            block.set_counts(LiveCounts {
                errors: progress.refused.values().sum::<u64>() + progress.faults,
                sent: progress.sent,
                done: progress.committed,
                delivered: progress.delivered,
                lagging: progress.lagging,
                reconnects: progress.reconnects,
            });
        });
    }

    /// Takes over what a recorder of this process has got since it was asked last, four times a second at most.
    pub(crate) fn show_series(
        &mut self,
        start_ns: u64,
        series: &mut SeriesRecorder,
        counts: impl FnOnce() -> LiveCounts,
    ) {
        let is_seen = self.number.is_some() || self.exported.is_some();
        let now_ns = if is_seen { monotonic_ns() } else { return };
        if now_ns < self.next_tell_ns {
            return;
        }
        self.next_tell_ns = now_ns + TELL_NS;
        let (change, counts) = (series.take_change(), counts());
        self.export(&change);
        self.update(|block| {
            block.take_change(Duration::from_nanos(now_ns.saturating_sub(start_ns)), change);
            block.set_counts(counts);
        });
    }

    /// The work is over: what its recorder has got since it was asked last goes to the collector. The view goes anyway.
    pub(crate) fn export_rest(&self, series: &mut SeriesRecorder) {
        if self.exported.is_none() {
            return;
        }
        while let change = series.take_change()
            && !change.is_empty()
        {
            self.export(&change);
        }
    }

    fn export(&self, change: &SeriesChange) {
        if let Some(title) = &self.exported {
            otlp::take_change(title, change);
        }
    }

    /// Says in words how far the work is.
    pub(crate) fn note(&self, what: String) {
        self.update(|block| block.set_note(what));
    }

    fn update(&self, change: impl FnOnce(&mut Block)) {
        if let Some(number) = self.number {
            terminal::update(number, change);
        }
    }
}

impl Drop for LiveBlock {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            terminal::remove(number);
        }
    }
}
