//! The load client: one process on one core that sends, receives and verifies, told what to do by JSON
//! lines on its standard input.
//!
//! In reading order: `mod.rs` takes commands; [`phase`] decides what is due and when a stretch of
//! load is over; [`fleet`] drives the sockets; [`connection`] reads what they bring; [`desk`] is
//! what connections share; [`ledger`] knows what was sent, [`verify`] what each receiver got.

mod connection;
mod desk;
mod fleet;
mod ledger;
mod pauses;
mod phase;
pub mod verify;

use crate::{
    job::{Command, Open, Report},
    process,
};
use desk::Desk;
use fleet::{Fleet, WAKER};
use ledger::Ledger;
pub(crate) use ledger::{histogram, record};
use std::{
    io::{self, BufRead, Write},
    process::ExitCode,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// Opening everything must be done within this.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);

/// The hidden `bench worker` command.
pub(crate) fn main() -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&Report::Failed { why: error.to_string() });
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to the parent. If it is gone, the end of standard input says so, too.
fn report(report: &Report) {
    let mut out = io::stdout().lock();
    let _ = serde_json::to_writer(&mut out, report);
    let _ = out.write_all(b"\n").and_then(|()| out.flush());
}

fn work() -> io::Result<()> {
    let poll = mio::Poll::new()?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    // Commands are few and each is answered before the next: a handful of places is plenty.
    let (commands, inbox) = mpsc::sync_channel(4);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Some(command) = line.ok().and_then(|line| serde_json::from_str::<Command>(&line).ok()) else { break };
            if commands.send(command).is_err() {
                break;
            }
            let _ = waker.wake();
        }
        // Ends with the sender: the loop below sees a closed channel.
        drop(commands);
        let _ = waker.wake();
    });
    let Ok(Command::Open(open)) = inbox.recv() else { return Ok(()) };
    if let Some(core) = open.core {
        process::keep_to_core(core)?;
    }
    if open.yielding {
        process::yield_to_others()?;
    }
    let mut desk = Desk::new(open.token_key.clone(), Ledger::new(process::run_tag(), &open.conversations));
    desk.has_others = open.addresses.len() > 1;
    let started = Instant::now();
    let mut fleet = open_all(&open, poll, &mut desk)?;
    report(&Report::Opened { seconds: started.elapsed().as_secs_f64() });
    let readers = (open.receivers.len() / open.conversations.len().max(1)) as u64;
    loop {
        match inbox.try_recv() {
            Ok(Command::Run(phase)) => {
                let outcome = phase::run(&phase, (readers, open.patience_ms), &inbox, &mut fleet, &mut desk)?;
                report(&Report::Done(Box::new(outcome)));
            }
            Ok(Command::Open(_)) | Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            Ok(Command::Spread) => {
                let started = Instant::now();
                fleet.spread(&mut desk);
                wait_until_open(&mut fleet, &mut desk)?;
                report(&Report::Opened { seconds: started.elapsed().as_secs_f64() });
            }
            // It came when the phase had ended by itself.
            Ok(Command::Enough) => {}
            Err(mpsc::TryRecvError::Empty) => fleet.turn(Duration::from_millis(100), &mut desk)?,
        }
    }
}

fn open_all(open: &Open, poll: mio::Poll, desk: &mut Desk) -> io::Result<Fleet> {
    let mut fleet = Fleet::new(open, poll, desk)?;
    wait_until_open(&mut fleet, desk)?;
    Ok(fleet)
}

fn wait_until_open(fleet: &mut Fleet, desk: &mut Desk) -> io::Result<()> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    while !fleet.is_open() {
        if Instant::now() > deadline {
            let why = desk.verifier.problems.join("; ");
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("not all connections opened: {why}")));
        }
        fleet.turn(Duration::from_millis(50), desk)?;
    }
    Ok(())
}
