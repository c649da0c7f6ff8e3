//! File descriptors: a reserve is kept, so that at the limit accept can still say no, and the store, the log and the
//! HTTP door can still open what they need.

use parking_lot::Mutex;
use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Without a refusal for this long, the shortage is over: at the limit, refusals and closings alternate.
const QUIET: Duration = Duration::from_secs(10);

/// Who watches how near the process is to its limit.
pub struct Descriptors {
    /// Sockets of devices have numbers below this.
    line: u64,
    refused: AtomicU64,
    /// When the last one was refused, while the shortage lasts.
    short_since: Mutex<Option<Instant>>,
}

impl Descriptors {
    /// `limit`: how many this process may open; `reserve`: how many of them are not for devices.
    pub fn new(limit: u64, reserve: u64) -> Self {
        Descriptors {
            line: limit.saturating_sub(reserve).max(1),
            refused: AtomicU64::new(0),
            short_since: Mutex::new(None),
        }
    }

    /// Whether a device's socket may stay. Its number tells: the kernel gives out the lowest that is free (POSIX,
    /// `open`), so that number N means that N others are open.
    pub fn leave_room_for(&self, socket: &impl AsRawFd) -> bool {
        u64::try_from(socket.as_raw_fd()).is_ok_and(|number| number < self.line)
    }

    /// One was refused. The log says so once.
    pub fn count_refused(&self, now: Instant) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if self.short_since.lock().replace(now).is_none() {
            tracing::warn!(line = self.line, "file descriptors run out: new device connections are refused");
        }
    }

    /// One was let in. When none was refused for a while the log says once that it is over.
    pub fn count_admitted(&self, now: Instant) -> bool {
        let mut short_since = self.short_since.lock();
        let over = short_since.is_some_and(|last| now.saturating_duration_since(last) >= QUIET);
        if over {
            *short_since = None;
            tracing::info!(refused = self.refused(), "file descriptors suffice again");
        }
        over
    }

    /// How many were refused since the start.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A descriptor that is given up when there is no other, so that a waiting connection can be accepted and told.
pub struct Reserve(Option<File>);

impl Default for Reserve {
    fn default() -> Self {
        Self::new()
    }
}

impl Reserve {
    pub fn new() -> Self {
        Reserve(File::open("/dev/null").ok())
    }

    /// Gives it up.
    pub fn give_up(&mut self) {
        self.0 = None;
    }

    /// Takes it back; false when somebody else was faster.
    pub fn take_back(&mut self) -> bool {
        if self.0.is_none() {
            *self = Self::new();
        }
        self.0.is_some()
    }
}

/// Whether accept failed because no descriptor is left, in this process or in the system.
pub fn ran_out(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_socket_may_stay_below_the_line() {
        let socket = File::open("/dev/null").unwrap();
        let number = socket.as_raw_fd() as u64;
        assert!(Descriptors::new(number + 11, 10).leave_room_for(&socket));
        assert!(!Descriptors::new(number + 10, 10).leave_room_for(&socket));
    }

    #[test]
    fn a_shortage_begins_once_and_ends_once() {
        let descriptors = Descriptors::new(100, 10);
        let start = Instant::now();
        descriptors.count_refused(start);
        descriptors.count_refused(start + QUIET / 2);
        assert!(!descriptors.count_admitted(start + QUIET), "the last refusal is not long ago");
        assert!(descriptors.count_admitted(start + QUIET * 2));
        assert!(!descriptors.count_admitted(start + QUIET * 3), "it is over already");
        assert_eq!(descriptors.refused(), 2);
    }
}
