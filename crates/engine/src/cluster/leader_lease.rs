//! This node's leases as a leader, one for each function: whether they still count, by this node's clock.

use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tidings_domain::{function::Function, store::Term};

/// For so long a leader counts on what showed that nobody can have taken over: seven tenths, as of a lease, of the time after
/// which another node succeeds a leader whose sign is gone.
pub(super) const EVIDENCE_COUNTS: Duration = Duration::from_millis(840);

/// This node's leases as a leader. Read often, and therefore without a lock.
pub(super) struct LeaderLeases {
    started: Instant,
    leases: [Lease; Function::COUNT],
    /// Until when it is certain that no other node has taken over because this one's sign of life was gone; see
    /// [`super::life_signs`]. By our own clock, in milliseconds since `started`; `u64::MAX` in a store without such signs.
    evidence_until_ms: AtomicU64,
    /// When the sign was set last. It counts after the next renewal.
    sign_set_at: Mutex<Option<Instant>>,
    /// Whether it counts.
    sign_counts: AtomicBool,
}

/// The lease of a function.
#[derive(Default)]
struct Lease {
    /// By our own clock, in milliseconds since `started`.
    until_ms: AtomicU64,
    /// The number of the term; 0: this node does not lead.
    term: AtomicU64,
}

impl LeaderLeases {
    /// `has_life_signs`: the store has signs of life, without which the leases alone count.
    pub(super) fn new(has_life_signs: bool) -> Self {
        LeaderLeases {
            started: Instant::now(),
            leases: Default::default(),
            evidence_until_ms: AtomicU64::new(if has_life_signs { 0 } else { u64::MAX }),
            sign_set_at: Mutex::default(),
            sign_counts: AtomicBool::new(false),
        }
    }

    pub(super) fn set(&self, term: Term, until: Instant) {
        let lease = &self.leases[term.function as usize];
        // The term goes first: a reader that sees the new end sees the term that it belongs to.
        lease.term.store(term.number, Ordering::Release);
        let until_ms = until.saturating_duration_since(self.started).as_millis() as u64;
        lease.until_ms.store(until_ms, Ordering::Release);
    }

    /// This node does not lead the function any more.
    pub(super) fn end(&self, function: Function) {
        self.leases[function as usize].term.store(0, Ordering::Release);
        self.suspend(function);
    }

    /// Nothing is decided for the function until its lease is set again, be it in the same term.
    pub(super) fn suspend(&self, function: Function) {
        self.leases[function as usize].until_ms.store(0, Ordering::Release);
    }

    pub(super) fn is_valid(&self, function: Function) -> bool {
        let now = self.started.elapsed().as_millis() as u64;
        let until_ms = self.leases[function as usize].until_ms.load(Ordering::Acquire);
        now < until_ms && now < self.evidence_until_ms.load(Ordering::Acquire)
    }

    /// A look or a renewal that was sent at this time showed that nobody had taken over.
    pub(super) fn take_evidence(&self, sent: Instant) {
        let until = (sent + EVIDENCE_COUNTS).saturating_duration_since(self.started);
        self.evidence_until_ms.fetch_max(until.as_millis() as u64, Ordering::AcqRel);
    }

    /// All leases of this node were renewed, by a statement that was sent at this time.
    pub(super) fn on_renewal(&self, sent: Instant) {
        self.take_evidence(sent);
        if self.sign_set_at.lock().is_some_and(|set| set < sent) {
            self.sign_counts.store(true, Ordering::Release);
        }
    }

    pub(super) fn term(&self, function: Function) -> Option<Term> {
        let number = self.leases[function as usize].term.load(Ordering::Acquire);
        (number != 0).then_some(Term { function, number })
    }

    pub(super) fn leads_any(&self) -> bool {
        Function::ALL.into_iter().any(|function| self.term(function).is_some())
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

    const PUSH: Term = Term { function: Function::Push, number: 1 };

    /// A lead whose lease runs for hours, in a store with signs of life.
    fn leading() -> LeaderLeases {
        let leases = LeaderLeases::new(true);
        leases.set(PUSH, Instant::now() + 2 * HOUR);
        leases
    }

    #[test]
    fn a_lead_counts_only_while_something_shows_that_nobody_has_taken_over() {
        let lease = leading();
        assert!(!lease.is_valid(Function::Push), "nothing has shown it yet");
        lease.take_evidence(Instant::now() + HOUR);
        assert!(lease.is_valid(Function::Push));
        // Late answers to earlier looks take nothing back.
        lease.take_evidence(lease.started);
        assert!(lease.is_valid(Function::Push));
    }

    #[test]
    fn functions_are_led_one_by_one() {
        let leases = leading();
        leases.on_renewal(Instant::now() + HOUR);
        let presence = Term { function: Function::Presence, number: 7 };
        assert!(!leases.is_valid(Function::Presence) && leases.term(Function::Presence).is_none());
        leases.set(presence, Instant::now() + HOUR);
        leases.suspend(Function::Push);
        assert!(leases.is_valid(Function::Presence) && !leases.is_valid(Function::Push));
        assert_eq!(leases.term(Function::Push), Some(PUSH), "the term may go on");
        leases.end(Function::Push);
        assert_eq!((leases.term(Function::Push), leases.term(Function::Presence)), (None, Some(presence)));
    }

    #[test]
    fn without_signs_of_life_the_lease_alone_counts() {
        let lease = LeaderLeases::new(false);
        lease.set(PUSH, Instant::now() + HOUR);
        lease.on_renewal(Instant::now());
        assert!(lease.is_valid(Function::Push));
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
