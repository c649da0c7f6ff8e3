//! This node's lease as the leader: whether it still counts, by this node's clock.

use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tidings_domain::store::Term;

/// For so long the leader counts on what showed that nobody can have taken over: seven tenths, as of a lease, of the time after
/// which another node succeeds a leader whose sign is gone.
pub(super) const EVIDENCE_COUNTS: Duration = Duration::from_millis(840);

/// This node's lease as the leader. Read often, and therefore without a lock.
pub(super) struct LeaderLease {
    started: Instant,
    /// By our own clock, in milliseconds since `started`.
    until_ms: AtomicU64,
    /// 0: this node does not lead.
    term: AtomicU64,
    /// Until when it is certain that no other node has taken over because this one's sign of life was gone; see
    /// [`super::life_signs`]. By our own clock, in milliseconds since `started`; `u64::MAX` in a store without such signs.
    evidence_until_ms: AtomicU64,
    /// When the sign was set last. It counts after the next renewal.
    sign_set_at: Mutex<Option<Instant>>,
    /// Whether it counts.
    sign_counts: AtomicBool,
}

impl LeaderLease {
    /// `has_life_signs`: the store has signs of life, without which the lease alone counts.
    pub(super) fn new(has_life_signs: bool) -> Self {
        LeaderLease {
            started: Instant::now(),
            until_ms: AtomicU64::new(0),
            term: AtomicU64::new(0),
            evidence_until_ms: AtomicU64::new(if has_life_signs { 0 } else { u64::MAX }),
            sign_set_at: Mutex::default(),
            sign_counts: AtomicBool::new(false),
        }
    }

    pub(super) fn set(&self, term: Option<Term>, until: Instant) {
        // The term goes first: a reader that sees the new end sees the term that it belongs to.
        self.term.store(term.map_or(0, |term| term.0), Ordering::Release);
        let until_ms = until.saturating_duration_since(self.started).as_millis() as u64;
        self.until_ms.store(if term.is_some() { until_ms } else { 0 }, Ordering::Release);
    }

    pub(super) fn is_valid(&self) -> bool {
        let now = self.started.elapsed().as_millis() as u64;
        now < self.until_ms.load(Ordering::Acquire) && now < self.evidence_until_ms.load(Ordering::Acquire)
    }

    /// A look or a renewal that was sent at this time showed that nobody had taken over.
    pub(super) fn take_evidence(&self, sent: Instant) {
        let until = (sent + EVIDENCE_COUNTS).saturating_duration_since(self.started);
        self.evidence_until_ms.fetch_max(until.as_millis() as u64, Ordering::AcqRel);
    }

    /// The lead was renewed, by a statement that was sent at this time.
    pub(super) fn on_renewal(&self, sent: Instant) {
        self.take_evidence(sent);
        if self.sign_set_at.lock().is_some_and(|set| set < sent) {
            self.sign_counts.store(true, Ordering::Release);
        }
    }

    pub(super) fn term(&self) -> Option<Term> {
        Some(Term(self.term.load(Ordering::Acquire))).filter(|term| *term != Term::ALONE)
    }

    /// The sign was set, by a look that was answered at this time.
    pub(super) fn sign_was_set(&self, answered: Instant) {
        self.sign_counts.store(false, Ordering::Release);
        *self.sign_set_at.lock() = Some(answered);
    }

    pub(super) fn sign_counts(&self) -> bool {
        self.sign_counts.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// A lead whose lease runs for hours, in a store with signs of life.
    fn leading() -> LeaderLease {
        let lease = LeaderLease::new(true);
        lease.set(Some(Term(1)), Instant::now() + 2 * HOUR);
        lease
    }

    #[test]
    fn a_lead_counts_only_while_something_shows_that_nobody_has_taken_over() {
        let lease = leading();
        assert!(!lease.is_valid(), "nothing has shown it yet");
        lease.take_evidence(Instant::now() + HOUR);
        assert!(lease.is_valid());
        // Late answers to earlier looks take nothing back.
        lease.take_evidence(lease.started);
        assert!(lease.is_valid());
    }

    #[test]
    fn without_signs_of_life_the_lease_alone_counts() {
        let lease = LeaderLease::new(false);
        lease.set(Some(Term(1)), Instant::now() + HOUR);
        lease.on_renewal(Instant::now());
        assert!(lease.is_valid());
        assert_eq!(lease.evidence_until_ms.load(Ordering::Acquire), u64::MAX);
    }

    #[test]
    fn a_sign_that_was_set_anew_counts_after_the_next_renewal() {
        let lease = leading();
        let set = Instant::now();
        lease.sign_was_set(set);
        lease.on_renewal(set);
        assert!(!lease.sign_counts(), "the renewal may have been stored before the sign was set");
        lease.on_renewal(set + HOUR);
        assert!(lease.sign_counts());
    }
}
