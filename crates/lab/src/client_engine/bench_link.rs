//! A load client's process and its bench: commands come as JSON lines on standard input, reports go to standard output.

use super::reactor::Reactor;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, BufRead, Write},
    sync::mpsc,
};

/// The bench waits for the answer to each command before it sends the next: a few places are enough.
const COMMANDS_MAX: usize = 4;

/// The commands, each of which ends the reactor's wait. The channel is closed when the bench has ended.
pub(crate) fn commands<T: DeserializeOwned + Send + 'static>(reactor: &Reactor) -> io::Result<mpsc::Receiver<T>> {
    let waker = reactor.waker()?;
    let (commands, inbox) = mpsc::sync_channel(COMMANDS_MAX);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Some(command) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else { break };
            if commands.send(command).is_err() {
                break;
            }
            let _ = waker.wake();
        }
        // Who takes commands ends when it sees the closed channel.
        drop(commands);
        let _ = waker.wake();
    });
    Ok(inbox)
}

/// Writes a line to the bench. If the bench has ended, standard input ends as well, so errors need no handling here.
pub(crate) fn report(report: &impl Serialize) {
    let mut out = io::stdout().lock();
    let _ = serde_json::to_writer(&mut out, report);
    let _ = out.write_all(b"\n").and_then(|()| out.flush());
}
