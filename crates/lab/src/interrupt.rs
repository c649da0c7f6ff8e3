//! Ctrl-C: a run that measures ends early, writes the report that it has, marked as partial, and stops what it started.

use signal_hook::{consts::signal::SIGINT, flag};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

/// Signals are the process's, so this is one of the few things that it has only once.
static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on SIGINT only sets the flag that [`requested`] reads.
pub(crate) fn install() -> std::io::Result<()> {
    let requested = REQUESTED.get_or_init(|| Arc::new(AtomicBool::new(false)));
    flag::register(SIGINT, requested.clone())?;
    Ok(())
}

/// Whether Ctrl-C is the bench's to handle. A terminal sends it to the whole group of processes, so the server and the load
/// clients of such a bench must not be in its group: they have to serve and to report until the bench ends them.
pub(crate) fn is_installed() -> bool {
    REQUESTED.get().is_some()
}

/// Whether the run is to end early.
pub(crate) fn requested() -> bool {
    REQUESTED.get().is_some_and(|requested| requested.load(Ordering::Relaxed))
}
