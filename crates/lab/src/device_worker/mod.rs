//! The load client with devices: one thread that holds up to some 19,000 devices. It takes commands as JSON lines on its
//! standard input.
//!
//! In reading order: `mod.rs` takes commands; `device_pool` drives the devices, `device_pool/receive` handles what they
//! receive, `device_pool/visits` has those that come and go; `device` is one device; `connect_schedule` and `backoff` say when and where devices connect;
//! `push_verifier` counts which device got which push.

mod backoff;
mod connect_schedule;
mod device;
mod device_pool;
mod push_verifier;

use crate::{
    LabError,
    client_engine::{
        bench_link::{commands, report},
        reactor::Reactor,
    },
    clock::machine_ns,
    devices::worker_protocol::{DeviceCommand, DeviceReport},
    process,
};
use connect_schedule::ConnectSchedule;
use device_pool::DevicePool;
use std::{
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

/// The interval between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// The longest time without a look for commands.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// The hidden `bench device-worker` command.
pub(crate) fn main() -> ExitCode {
    match run_commands() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&DeviceReport::Failed { why: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

/// The command that is being carried out.
enum Task {
    None,
    Storm { at_ns: u64, within: Duration },
    Connect { until: Instant },
    Visit { from: Instant, until: Instant },
    Settle { until: Instant },
    AwaitPush { number: usize, patience: Duration, got: u64, changed: Instant },
}

fn run_commands() -> Result<(), LabError> {
    let mut reactor = Reactor::new()?;
    let inbox = commands(&reactor)?;
    let Ok(DeviceCommand::Open(config)) = inbox.recv() else { return Ok(()) };
    if let Some(core) = config.core {
        process::pin_to_core(core)?;
    }
    let mut pool = DevicePool::new(*config)?;
    report(&DeviceReport::Opened);
    let mut task = Task::None;
    let mut last_report = Instant::now();
    loop {
        match inbox.try_recv() {
            Ok(command) => task = start_task(command, &mut pool, &mut reactor),
            Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            Err(mpsc::TryRecvError::Empty) => {}
        }
        pool.poll_once(&mut reactor, POLL_TIMEOUT)?;
        task = advance_task(task, &mut pool, &mut reactor);
        if !matches!(task, Task::None) && last_report.elapsed() > PROGRESS_EVERY {
            last_report = Instant::now();
            let counts = &pool.counts;
            report(&DeviceReport::Progress { live: counts.live, attempts: counts.attempts, given_up: counts.given_up });
        }
    }
}

fn start_task(command: DeviceCommand, pool: &mut DevicePool, reactor: &mut Reactor) -> Task {
    match command {
        DeviceCommand::Open(_) => Task::None,
        DeviceCommand::Connect { per_second, within_ms } => {
            let now = machine_ns();
            pool.reset_measurement(now);
            pool.schedule = ConnectSchedule::at_rate(now, per_second, pool.take_unconnected());
            Task::Connect { until: Instant::now() + Duration::from_millis(within_ms) }
        }
        DeviceCommand::Storm { at_ns, within_ms } => {
            Task::Storm { at_ns: pool.of_here(at_ns), within: Duration::from_millis(within_ms) }
        }
        DeviceCommand::Settle { within_ms } => {
            pool.settling = true;
            Task::Settle { until: Instant::now() + Duration::from_millis(within_ms) }
        }
        DeviceCommand::AwaitPush { number, patience_ms } => {
            let patience = Duration::from_millis(patience_ms);
            Task::AwaitPush { number, patience, got: 0, changed: Instant::now() }
        }
        DeviceCommand::Visit { profile, at_ns, stay_ms, within_ms } => {
            let at_ns = pool.of_here(at_ns);
            pool.visit(at_ns, &profile, stay_ms);
            let lasts =
                Duration::from_nanos(at_ns.saturating_sub(machine_ns())) + Duration::from_secs_f64(profile.seconds());
            // The phase lasts as long as its profile, whether or not the last visitors are there before.
            Task::Visit {
                from: Instant::now() + lasts,
                until: Instant::now() + lasts + Duration::from_millis(within_ms),
            }
        }
        DeviceCommand::Disconnect => {
            pool.disconnect_all(reactor);
            report_counts(pool)
        }
        DeviceCommand::ResetMeasurement => {
            pool.reset_measurement(machine_ns());
            report_counts(pool)
        }
        DeviceCommand::StopHeartbeats => {
            pool.heartbeats_stopped = true;
            report_counts(pool)
        }
        DeviceCommand::ReportCounts => report_counts(pool),
    }
}

fn advance_task(task: Task, pool: &mut DevicePool, reactor: &mut Reactor) -> Task {
    match task {
        Task::Storm { at_ns, within } if machine_ns() >= at_ns => {
            pool.reset_measurement(at_ns);
            pool.disconnect_all(reactor);
            pool.schedule = ConnectSchedule::at_once(at_ns, pool.take_unconnected());
            Task::Connect { until: Instant::now() + within }
        }
        Task::Connect { until } if pool.is_connected() || Instant::now() > until => report_connects(pool),
        Task::Visit { from, until } if Instant::now() > from && pool.have_all_come() || Instant::now() > until => {
            report_connects(pool)
        }
        Task::Settle { until } if pool.heartbeats_pending() == 0 || Instant::now() > until => {
            let settled = report_counts(pool);
            pool.settling = false;
            settled
        }
        Task::AwaitPush { number, patience, got, changed } => {
            let now = pool.devices_with(number);
            if now >= pool.counts.live || changed.elapsed() > patience {
                return report_counts(pool);
            }
            let changed = if now == got { changed } else { Instant::now() };
            Task::AwaitPush { number, patience, got: now, changed }
        }
        other => other,
    }
}

/// The counts of a command that connects.
fn report_connects(pool: &DevicePool) -> Task {
    report(&DeviceReport::Done(Box::new(pool.counts_with_series())));
    Task::None
}

fn report_counts(pool: &DevicePool) -> Task {
    report(&DeviceReport::Done(Box::new(pool.current_counts())));
    Task::None
}
