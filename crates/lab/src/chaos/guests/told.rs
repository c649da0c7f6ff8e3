//! What sessions that watch were told of guests who were there.

use super::slot::Slot;
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// A fault is one of many, or of few: more say nothing.
const KEPT_MAX: usize = 1_000;

/// Told to be offline, while a device was there.
#[derive(Debug)]
struct Once {
    user: String,
    /// Since when.
    since: Instant,
    at: Instant,
    node: usize,
}

#[derive(Debug, Default)]
pub(super) struct Told {
    kept: Mutex<Vec<Once>>,
    /// Changes in this step, whatever they said.
    changes: AtomicU64,
}

impl Told {
    fn kept(&self) -> MutexGuard<'_, Vec<Once>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session on this node was told how these users are.
    pub(super) fn take(&self, changes: Vec<(String, bool)>, slots: &[Slot], node: usize) {
        self.changes.fetch_add(changes.len() as u64, Ordering::Relaxed);
        for (user, _) in changes.into_iter().filter(|(_, online)| !online) {
            let devices = slots.iter().filter(|slot| slot.user == user);
            let since = devices.filter_map(Slot::bound_since).min();
            let mut kept = self.kept();
            if let Some(since) = since
                && kept.len() < KEPT_MAX
            {
                kept.push(Once { user, since, at: Instant::now(), node });
            }
        }
    }

    /// Those who had been there since before the harm.
    pub(super) fn since(&self, harmed: Instant) -> Vec<String> {
        let kept = self.kept();
        let stayed = kept.iter().filter(|once| once.since <= harmed && once.at >= harmed);
        let after = |once: &Once| once.at.saturating_duration_since(harmed).as_secs_f64();
        stayed
            .map(|once| format!("{} to a session on node {} after {:.1} s", once.user, once.node, after(once)))
            .collect()
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(super) fn forget(&self) {
        self.kept().clear();
        self.changes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::slot::Via, *};

    #[test]
    fn only_who_is_there_since_before_the_harm_was_told_of_by_mistake() {
        let slots = [Slot::new("ann", "web", Via::WebSocket, 0), Slot::new("bob", "web", Via::WebSocket, 0)];
        slots[0].is_bound(true);
        let harmed = Instant::now();
        slots[1].is_bound(true);
        let told = Told::default();
        let of = |user: &str, online| vec![(user.to_owned(), online)];
        told.take(of("ann", true), &slots, 0);
        told.take(of("bob", false), &slots, 0);
        assert_eq!(told.since(harmed), Vec::<String>::new(), "online, or here only since the harm");
        told.take(of("ann", false), &slots, 2);
        assert!(told.since(harmed)[0].starts_with("ann to a session on node 2"), "{:?}", told.since(harmed));
        slots[0].has_ended();
        told.forget();
        told.take(of("ann", false), &slots, 0);
        assert_eq!(told.since(harmed), Vec::<String>::new(), "gone");
    }
}
