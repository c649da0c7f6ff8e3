//! File descriptors: a reserve is kept, so that at the limit a connection can still be accepted and refused, and the
//! store, the log and the HTTP listener can still open what they need.

use parking_lot::Mutex;
use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Without a refusal for this long, the shortage is over: at the limit, refusals and closings alternate.
const SHORTAGE_OVER_AFTER: Duration = Duration::from_secs(10);

/// How near the process is to its limit of file descriptors.
pub struct Descriptors {
    /// Sockets of devices have descriptors below this.
    device_limit: u64,
    refused: AtomicU64,
    /// When the last connection was refused, while the shortage lasts.
    last_refusal: Mutex<Option<Instant>>,
}

impl Descriptors {
    /// `limit`: how many descriptors this process may open; `reserve`: how many of them are not for devices.
    pub fn new(limit: u64, reserve: u64) -> Self {
        Descriptors {
            device_limit: limit.saturating_sub(reserve).max(1),
            refused: AtomicU64::new(0),
            last_refusal: Mutex::new(None),
        }
    }

    /// Whether a device's socket may stay. Its descriptor tells: the kernel gives out the lowest number that is free
    /// (POSIX, `open`), so that number N means that N others are open.
    pub fn admits(&self, socket: &impl AsRawFd) -> bool {
        u64::try_from(socket.as_raw_fd()).is_ok_and(|number| number < self.device_limit)
    }

    /// Counts a refused connection. The log says so once per shortage.
    pub fn count_refused(&self, now: Instant) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if self.last_refusal.lock().replace(now).is_none() {
            tracing::warn!(
                device_limit = self.device_limit,
                "file descriptors run out: new device connections are refused"
            );
        }
    }

    /// Counts an admitted connection. When none was refused for a while, the shortage is over: the log says so, and so
    /// does the answer.
    pub fn count_admitted(&self, now: Instant) -> bool {
        let mut last_refusal = self.last_refusal.lock();
        let over = last_refusal.is_some_and(|last| now.saturating_duration_since(last) >= SHORTAGE_OVER_AFTER);
        if over {
            *last_refusal = None;
            tracing::info!(refused = self.refused(), "file descriptors suffice again");
        }
        over
    }

    /// How many connections were refused since the start.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A descriptor that is closed when no other is left, so that a waiting connection can be accepted and refused.
pub struct ReserveDescriptor(Option<File>);

impl Default for ReserveDescriptor {
    fn default() -> Self {
        Self::new()
    }
}

impl ReserveDescriptor {
    pub fn new() -> Self {
        ReserveDescriptor(File::open("/dev/null").ok())
    }

    /// Closes the descriptor, so that accept can have it.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// Opens the descriptor again; false when other code has used it up meanwhile.
    pub fn reclaim(&mut self) -> bool {
        if self.0.is_none() {
            *self = Self::new();
        }
        self.0.is_some()
    }
}

/// Whether accept failed because no descriptor is left, in this process or in the system.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sockets_below_the_device_limit_are_admitted() {
        let socket = File::open("/dev/null").unwrap();
        let number = socket.as_raw_fd() as u64;
        assert!(Descriptors::new(number + 11, 10).admits(&socket));
        assert!(!Descriptors::new(number + 10, 10).admits(&socket));
    }

    #[test]
    fn a_shortage_is_logged_once_and_ends_once() {
        let descriptors = Descriptors::new(100, 10);
        let start = Instant::now();
        descriptors.count_refused(start);
        descriptors.count_refused(start + SHORTAGE_OVER_AFTER / 2);
        assert!(!descriptors.count_admitted(start + SHORTAGE_OVER_AFTER), "the last refusal is not long ago");
        assert!(descriptors.count_admitted(start + SHORTAGE_OVER_AFTER * 2));
        assert!(!descriptors.count_admitted(start + SHORTAGE_OVER_AFTER * 3), "the shortage is over already");
        assert_eq!(descriptors.refused(), 2);
    }
}
