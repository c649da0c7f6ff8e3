//! The device client: one thread that holds up to some 19,000 devices, told what to do by JSON lines on its
//! standard input.
//!
//! In reading order: `mod.rs` takes commands; `swarm` drives the devices; `device` is one of them; `swarm/hearing` is what it makes of what comes, `wire` what
//! it says and hears; `plan` and `retry` decide when it connects, `wheel` when anything else is due; `pushes`
//! knows who got what.

mod device;
mod plan;
mod pushes;
mod retry;
mod swarm;
mod wheel;
mod wire;

use crate::{
    devices::job::{DeviceCommand, DeviceReport},
    process::{self, monotonic_ns},
};
use plan::Plan;
use std::{
    io::{self, BufRead, Write},
    process::ExitCode,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};
use swarm::{Swarm, WAKER};

/// Between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Between two looks for a command.
const TURN: Duration = Duration::from_millis(100);

/// The hidden `bench device-worker` command.
pub(crate) fn main() -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&DeviceReport::Failed { why: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to the parent. If it is gone, the end of standard input says so, too.
fn report(report: &DeviceReport) {
    let mut out = io::stdout().lock();
    let _ = serde_json::to_writer(&mut out, report);
    let _ = out.write_all(b"\n").and_then(|()| out.flush());
}

/// What is under way.
enum Task {
    None,
    Storm { at_ns: u64, within: Duration },
    Connect { until: Instant },
    Settle { until: Instant },
    AwaitPush { number: usize, patience: Duration, got: u64, changed: Instant },
}

fn work() -> io::Result<()> {
    let poll = mio::Poll::new()?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    // Each command is answered before the next: a handful of places is plenty.
    let (commands, inbox) = mpsc::sync_channel(4);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Some(command) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            if commands.send(command).is_err() {
                break;
            }
            let _ = waker.wake();
        }
        // Ends with the sender: the loop below sees a closed channel.
        drop(commands);
        let _ = waker.wake();
    });
    let Ok(DeviceCommand::Open(open)) = inbox.recv() else { return Ok(()) };
    if let Some(core) = open.core {
        process::keep_to_core(core)?;
    }
    let mut swarm = Swarm::new(*open, poll)?;
    report(&DeviceReport::Opened);
    let mut task = Task::None;
    let mut told = Instant::now();
    loop {
        match inbox.try_recv() {
            Ok(command) => task = begin(command, &mut swarm),
            Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            Err(mpsc::TryRecvError::Empty) => {}
        }
        swarm.turn(TURN)?;
        task = go_on(task, &mut swarm);
        if !matches!(task, Task::None) && told.elapsed() > PROGRESS_EVERY {
            told = Instant::now();
            let count = &swarm.count;
            report(&DeviceReport::Progress { live: count.live, attempts: count.attempts, given_up: count.given_up });
        }
    }
}

fn begin(command: DeviceCommand, swarm: &mut Swarm) -> Task {
    match command {
        DeviceCommand::Open(_) => Task::None,
        DeviceCommand::Connect { per_second, within_ms } => {
            swarm.begin_measurement();
            swarm.plan = Plan::paced(monotonic_ns(), per_second, swarm.take_missing());
            Task::Connect { until: Instant::now() + Duration::from_millis(within_ms) }
        }
        DeviceCommand::Storm { at_ns, within_ms } => Task::Storm { at_ns, within: Duration::from_millis(within_ms) },
        DeviceCommand::Settle { within_ms } => {
            swarm.settling = true;
            Task::Settle { until: Instant::now() + Duration::from_millis(within_ms) }
        }
        DeviceCommand::AwaitPush { number, patience_ms } => {
            let patience = Duration::from_millis(patience_ms);
            Task::AwaitPush { number, patience, got: 0, changed: Instant::now() }
        }
        DeviceCommand::Measure => {
            swarm.begin_measurement();
            done(swarm)
        }
        DeviceCommand::Silence => {
            swarm.silent = true;
            done(swarm)
        }
        DeviceCommand::Count => done(swarm),
    }
}

fn go_on(task: Task, swarm: &mut Swarm) -> Task {
    match task {
        Task::Storm { at_ns, within } if monotonic_ns() >= at_ns => {
            swarm.begin_measurement();
            swarm.drop_all();
            swarm.plan = Plan::at_once(at_ns, swarm.take_missing());
            Task::Connect { until: Instant::now() + within }
        }
        Task::Connect { until } if swarm.is_connected() || Instant::now() > until => done(swarm),
        Task::Settle { until } if swarm.beats_pending() == 0 || Instant::now() > until => {
            let settled = done(swarm);
            swarm.settling = false;
            settled
        }
        Task::AwaitPush { number, patience, got, changed } => {
            let now = swarm.devices_with(number);
            if now >= swarm.count.live || changed.elapsed() > patience {
                return done(swarm);
            }
            let changed = if now == got { changed } else { Instant::now() };
            Task::AwaitPush { number, patience, got: now, changed }
        }
        other => other,
    }
}

fn done(swarm: &Swarm) -> Task {
    report(&DeviceReport::Done(Box::new(swarm.tally())));
    Task::None
}
