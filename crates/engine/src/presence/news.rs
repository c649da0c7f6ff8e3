//! What other nodes are yet to be told of this core's own sessions, and the sum by which they notice what
//! they did not hear.

use super::Device;
use crate::model::UserNo;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Changes that wait. Above, all are let go, and the others ask for everything.
const WAITING_MAX: usize = 65_536;

/// A session that came or went, as other nodes are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Delta {
    Arrived(Arrived),
    Left { user: UserNo, session: u64, at: u64 },
}

/// Its form is that of the first version, since nodes of two versions run side by side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrived {
    pub user: UserNo,
    pub session: u64,
    pub device_id: Arc<str>,
    /// With [`PUSH_ONLY`] behind it for a session that no messages come to: a node that does not know of such takes it
    /// for a kind of its own.
    pub device_kind: Arc<str>,
    pub since: u64,
}

/// No kind of a device ends with it.
pub(super) const PUSH_ONLY: char = '\0';

impl Arrived {
    pub(crate) fn of(user: UserNo, device: Device) -> Arrived {
        let Device { session, device_id, device_kind, since, chat, .. } = device;
        let device_kind = if chat { device_kind } else { format!("{device_kind}{PUSH_ONLY}").into() };
        Arrived { user, session, device_id, device_kind, since }
    }
}

/// How many sessions there are, and the sum of their prints: the same at two nodes when both have the same sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub count: u64,
    pub sum: u64,
}

impl Tally {
    pub(super) fn add(&mut self, user: UserNo, session: u64, since: u64) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(print(user, session, since));
    }

    pub(super) fn remove(&mut self, user: UserNo, session: u64, since: u64) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(print(user, session, since));
    }
}

fn print(user: UserNo, session: u64, since: u64) -> u64 {
    let mut bytes = [0; 24];
    for (place, number) in bytes.chunks_exact_mut(8).zip([user.0, session, since]) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    xxh3_64(&bytes)
}

#[derive(Default)]
struct Waiting {
    deltas: Vec<Delta>,
    tally: Tally,
    overflowed: bool,
}

/// The queue between the shards, which register sessions, and the thread that tells other nodes.
pub(crate) struct News {
    waiting: Mutex<Waiting>,
    wake: (Sender<()>, Receiver<()>),
}

/// What the queue held.
pub(crate) struct Taken {
    pub deltas: Vec<Delta>,
    /// Of all sessions, with these changes.
    pub tally: Tally,
    /// Changes before these were let go.
    pub overflowed: bool,
}

impl Default for News {
    fn default() -> Self {
        News { waiting: Mutex::default(), wake: bounded(1) }
    }
}

impl News {
    /// Called under the lock of the user's stripe: what the registry shows is here by then.
    pub(super) fn put(&self, delta: Delta, change: impl FnOnce(&mut Tally)) {
        let mut waiting = self.waiting.lock();
        change(&mut waiting.tally);
        if waiting.deltas.len() >= WAITING_MAX {
            waiting.deltas = Vec::new();
            waiting.overflowed = true;
        }
        waiting.deltas.push(delta);
        if waiting.deltas.len() == 1 {
            // Full: it is awake.
            let _ = self.wake.0.try_send(());
        }
    }

    pub(crate) fn take(&self) -> Taken {
        let mut waiting = self.waiting.lock();
        let (deltas, overflowed) = (std::mem::take(&mut waiting.deltas), std::mem::take(&mut waiting.overflowed));
        Taken { deltas, tally: waiting.tally, overflowed }
    }

    /// Hears when something waits.
    pub(crate) fn woken(&self) -> Receiver<()> {
        self.wake.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_tells_sessions_apart_and_not_their_order() {
        let (mut here, mut there) = (Tally::default(), Tally::default());
        let sessions = [(UserNo(1), 1, 7), (UserNo(1), 2, 7), (UserNo(2), 1, 7)];
        sessions.iter().for_each(|(user, session, since)| here.add(*user, *session, *since));
        sessions.iter().rev().for_each(|(user, session, since)| there.add(*user, *session, *since));
        assert_eq!(here, there);
        there.remove(UserNo(1), 2, 7);
        there.add(UserNo(2), 2, 7);
        assert_ne!(here, there, "as many, but others");
    }

    #[test]
    fn too_much_at_once_is_let_go_and_the_sum_still_holds() {
        let news = News::default();
        for session in 0..WAITING_MAX as u64 + 3 {
            news.put(Delta::Left { user: UserNo(1), session, at: 0 }, |tally| tally.add(UserNo(1), session, 0));
        }
        let taken = news.take();
        assert_eq!((taken.deltas.len(), taken.overflowed, taken.tally.count), (3, true, WAITING_MAX as u64 + 3));
        assert!(!news.take().overflowed);
    }
}
