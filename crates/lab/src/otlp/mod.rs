//! The figures of a run while it runs, sent to a collector by OTLP over HTTP: what `--otlp URL` asks for.
//!
//! It measures nothing by itself. The runner says which parts of a run begin and what they came to, whatever has a live view
//! tells the bins of its series that have changed, and samplers tell what the server uses. All of it goes to one thread, the
//! [`exporter`], which adds up the [`parts`] and sends them every second in the [`encoding`] of OTLP. Whoever tells it something never
//! waits for it: what does not fit into its queue is dropped and counted.

mod encoding;
mod exporter;
mod parts;

pub(crate) use exporter::Exporter;

use crate::{lock::lock, result::Measurement, series::SeriesChange};
use parts::{Report, ServerSample};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
    mpsc::SyncSender,
};

/// The queue of the exporter, and what found no room in it.
#[derive(Debug)]
struct Queue {
    reports: SyncSender<Report>,
    dropped: Arc<AtomicU64>,
}

/// A process makes one run at a time, and its parts are in threads of their own: so this is one of the few things that it has only
/// once.
static QUEUE: Mutex<Option<Queue>> = Mutex::new(None);

/// Whether figures are being exported.
pub(crate) fn is_enabled() -> bool {
    lock(&QUEUE).is_some()
}

/// From now on what begins is part of this scenario. `seed`: what its scripts draw from, if it has any.
pub(crate) fn begin_scenario(name: &str, seed: Option<u64>) {
    tell(|| Report::Scenario { name: name.to_owned(), seed });
}

/// A part of the run begins. What is told of series under this title belongs to it until it is over.
pub(crate) fn begin_part(title: &str) {
    tell(|| Report::Began { title: title.to_owned(), at_ns: parts::now_ns() });
}

/// A series has changed. Series that belong to no part of the run, such as those of what a part is compared with, are not sent.
pub(crate) fn take_change(title: &str, change: &SeriesChange) {
    if !change.is_empty() {
        tell(|| Report::Changed { title: title.to_owned(), change: change.clone() });
    }
}

/// A part of the run is over, and these are its figures.
pub(crate) fn end_part(title: &str, measured: &Measurement) {
    tell(|| Report::Ended { title: title.to_owned(), counters: parts::counters_of(&measured.part()) });
}

/// What the server uses at this moment.
pub(crate) fn take_sample(cores: Option<f64>, bytes: Option<u64>) {
    tell(|| Report::Sampled(ServerSample { cores, bytes, at_ns: parts::now_ns() }));
}

fn tell(report: impl FnOnce() -> Report) {
    if let Some(queue) = &*lock(&QUEUE)
        && queue.reports.try_send(report()).is_err()
    {
        queue.dropped.fetch_add(1, Ordering::Relaxed);
    }
}
