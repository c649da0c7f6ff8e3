//! When, and at which listener, a device connects again.

use rand::RngExt;

/// The first backoff after a failure, and the longest; each consecutive failure doubles it.
const FIRST_MS: u64 = 100;
const LONGEST_MS: u64 = 10_000;

/// Why an attempt or a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionEnd {
    /// The cause under which it is counted.
    pub(crate) cause: String,
    pub(crate) next: RetryTarget,
}

/// Whether the device connects again, and to which listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryTarget {
    /// The same listener after the usual backoff.
    SameListener,
    /// The next listener of the list: nothing answers at this one.
    NextListener,
    /// As the server asked: not sooner than this, at that listener if it named one.
    After { ms: u64, listener: Option<u16> },
    /// No retry: it would be refused again.
    Never,
}

impl ConnectionEnd {
    pub(crate) fn new(cause: impl Into<String>, next: RetryTarget) -> Self {
        ConnectionEnd { cause: cause.into(), next }
    }

    pub(crate) fn of(error: &std::io::Error) -> Self {
        use std::io::ErrorKind::*;
        match error.kind() {
            ConnectionRefused => ConnectionEnd::new("refused", RetryTarget::NextListener),
            TimedOut | HostUnreachable | NetworkUnreachable => ConnectionEnd::new("timeout", RetryTarget::NextListener),
            ConnectionReset | BrokenPipe | ConnectionAborted => ConnectionEnd::new("reset", RetryTarget::SameListener),
            UnexpectedEof => ConnectionEnd::new("closed", RetryTarget::SameListener),
            InvalidData => ConnectionEnd::new("not the protocol", RetryTarget::Never),
            _ => ConnectionEnd::new(format!("{error}"), RetryTarget::SameListener),
        }
    }
}

impl From<std::io::Error> for ConnectionEnd {
    fn from(error: std::io::Error) -> Self {
        ConnectionEnd::of(&error)
    }
}

/// The wait before the next attempt; in part random, so that devices that failed together do not retry together.
pub(crate) fn backoff_ms(failures: u16, next: RetryTarget) -> u64 {
    let usual = (FIRST_MS << failures.saturating_sub(1).min(16)).min(LONGEST_MS);
    let mut random = rand::rng();
    match next {
        // Waiting longer than the server asks for is always allowed.
        RetryTarget::After { ms, .. } => ms + random.random_range(0..=(ms / 2).max(usual / 2)),
        _ => random.random_range(usual / 2..=usual),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_and_is_never_shorter_than_the_server_asks() {
        for failures in 1..40 {
            assert!((50..=10_000).contains(&backoff_ms(failures, RetryTarget::SameListener)));
            assert!(backoff_ms(failures, RetryTarget::After { ms: 3_000, listener: None }) >= 3_000);
        }
        assert!(backoff_ms(20, RetryTarget::SameListener) >= 5_000);
    }
}
