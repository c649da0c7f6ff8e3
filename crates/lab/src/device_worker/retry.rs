//! When and where a device tries again.

use rand::RngExt;

/// The first wait after a failure, and the longest; each failure in a row doubles it.
const FIRST_MS: u64 = 100;
const LONGEST_MS: u64 = 10_000;

/// Why an attempt or a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The name under which it is counted.
    pub(crate) cause: String,
    pub(crate) next: Next,
}

/// What the device does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The same door after the usual wait.
    Same,
    /// Nobody is behind that door: the next of the list.
    Elsewhere,
    /// What the server asked for: not sooner than this, at that door if it named one.
    After { ms: u64, door: Option<u16> },
    /// The same would be refused again.
    Never,
}

impl Ending {
    pub(crate) fn new(cause: impl Into<String>, next: Next) -> Self {
        Ending { cause: cause.into(), next }
    }

    pub(crate) fn of(error: &std::io::Error) -> Self {
        use std::io::ErrorKind::*;
        match error.kind() {
            ConnectionRefused => Ending::new("refused", Next::Elsewhere),
            TimedOut | HostUnreachable | NetworkUnreachable => Ending::new("timeout", Next::Elsewhere),
            ConnectionReset | BrokenPipe | ConnectionAborted => Ending::new("reset", Next::Same),
            UnexpectedEof => Ending::new("closed", Next::Same),
            InvalidData => Ending::new("not the protocol", Next::Never),
            _ => Ending::new(format!("{error}"), Next::Same),
        }
    }
}

/// The wait before the next attempt. Random, so that those who failed together do not return together.
pub(crate) fn wait_ms(failures: u16, next: Next) -> u64 {
    let usual = (FIRST_MS << failures.saturating_sub(1).min(16)).min(LONGEST_MS);
    let mut random = rand::rng();
    match next {
        // The server spread its answers itself, or not: a little more than asked for is always allowed.
        Next::After { ms, .. } => ms + random.random_range(0..=(ms / 2).max(usual / 2)),
        _ => random.random_range(usual / 2..=usual),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_never_shorter_than_asked_for() {
        for failures in 1..40 {
            assert!((50..=10_000).contains(&wait_ms(failures, Next::Same)));
            assert!(wait_ms(failures, Next::After { ms: 3_000, door: None }) >= 3_000);
        }
        assert!(wait_ms(20, Next::Same) >= 5_000);
    }
}
