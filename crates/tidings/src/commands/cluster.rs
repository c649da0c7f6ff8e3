//! `tidings cluster`: starts a cluster of local processes and waits until it is asked to stop.

use crate::settings::Settings;
use anyhow::{Context, Result};
use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tidings_lab::ClusterArgs;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) fn run(args: &ClusterArgs) -> Result<ExitCode> {
    Settings::check_variables(args.settings())?;
    let stopping = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build();
    let runtime = runtime.context("starting the runtime that waits for signals")?;
    let _inside = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let tell = stopping.clone();
    runtime.spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tell.store(true, Ordering::Relaxed);
    });
    // On this thread: the processes of the cluster end with the thread that started them.
    Ok(tidings_lab::run_cluster(args, || stopping.load(Ordering::Relaxed)))
}
