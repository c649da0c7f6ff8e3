//! A question that is asked once at a time, however many wait for an answer.

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Those who come while an answer is on its way share the next one. None takes an answer that was asked for before it came.
pub(crate) struct SharedRounds<T> {
    rounds: Mutex<Rounds<T>>,
    ended: Condvar,
}

/// `ended <= begun <= ended + 1`.
struct Rounds<T> {
    begun: u64,
    ended: u64,
    /// The answer of the last round.
    answer: Option<T>,
}

impl<T> Default for SharedRounds<T> {
    fn default() -> Self {
        SharedRounds { rounds: Mutex::new(Rounds { begun: 0, ended: 0, answer: None }), ended: Condvar::new() }
    }
}

impl<T: Clone> SharedRounds<T> {
    /// Asks, or takes the answer to another that asks after this call. The question may not panic: those who wait for the answer
    /// would wait for ever.
    pub(crate) fn join(&self, ask: impl Fn() -> T) -> T {
        let mut rounds = self.rounds.lock();
        let needed = rounds.begun + 1;
        loop {
            match &rounds.answer {
                Some(answer) if rounds.ended >= needed => return answer.clone(),
                _ if rounds.begun > rounds.ended => self.ended.wait(&mut rounds),
                _ => {
                    rounds.begun += 1;
                    rounds.answer = Some(MutexGuard::unlocked(&mut rounds, &ask));
                    rounds.ended = rounds.begun;
                    self.ended.notify_all();
                }
            }
        }
    }
}
