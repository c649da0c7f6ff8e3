//! The changes of this core's sessions that other nodes are yet to be sent, and the digest by which nodes detect the
//! changes that they missed.

use super::PresenceSession;
use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidings_domain::model::UserNo;
use xxhash_rust::xxh3::xxh3_64;

/// Changes in the queue. Above, all are dropped, and the other nodes ask for a snapshot.
const QUEUE_MAX: usize = 65_536;

/// A change of a session, as other nodes are sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Delta {
    Arrived(SessionRecord),
    Left { user: UserNo, session: u64, at: u64 },
}

/// A registered session, as other nodes are sent it. Its encoding is that of the first version, since nodes of two
/// versions run side by side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    pub user: UserNo,
    pub session: u64,
    pub device_id: Arc<str>,
    /// Ends with [`PUSH_ONLY`] for a session that receives no messages, and with [`BACKGROUND`] for one that nobody looks at. A
    /// node of a version without such sessions takes it for another kind.
    pub device_kind: Arc<str>,
    pub since: u64,
}

/// Marks a session for pushes alone. No device kind ends with this character.
pub(super) const PUSH_ONLY: char = '\0';
/// Marks a session in the background, in the same way. It stands before [`PUSH_ONLY`].
pub(super) const BACKGROUND: char = '\u{1}';

impl SessionRecord {
    pub(crate) fn of(user: UserNo, entry: PresenceSession) -> SessionRecord {
        let PresenceSession { session, device_id, mut device_kind, since, chat, background, .. } = entry;
        if background {
            device_kind = format!("{device_kind}{BACKGROUND}").into();
        }
        if !chat {
            device_kind = format!("{device_kind}{PUSH_ONLY}").into();
        }
        SessionRecord { user, session, device_id, device_kind, since }
    }
}

/// A digest of a set of sessions: their number and the sum of their fingerprints. Two nodes with equal digests have the
/// same sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Digest {
    pub count: u64,
    pub sum: u64,
}

impl Digest {
    /// `stamp`: as the registry has it.
    pub(super) fn add(&mut self, user: UserNo, session: u64, stamp: u64) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(fingerprint(user, session, stamp));
    }

    pub(super) fn remove(&mut self, user: UserNo, session: u64, stamp: u64) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(fingerprint(user, session, stamp));
    }
}

fn fingerprint(user: UserNo, session: u64, stamp: u64) -> u64 {
    let mut bytes = [0; 24];
    for (place, number) in bytes.chunks_exact_mut(8).zip([user.0, session, stamp]) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    xxh3_64(&bytes)
}

#[derive(Default)]
struct State {
    deltas: Vec<Delta>,
    digest: Digest,
    overflowed: bool,
}

/// The queue between the shards, which register sessions, and the thread that tells other nodes.
pub(crate) struct DeltaQueue {
    state: Mutex<State>,
    wake: (Sender<()>, Receiver<()>),
}

/// The content of the queue.
pub(crate) struct DeltaBatch {
    pub deltas: Vec<Delta>,
    /// The digest of all sessions after these changes.
    pub digest: Digest,
    /// Whether changes before these were dropped.
    pub overflowed: bool,
}

impl Default for DeltaQueue {
    fn default() -> Self {
        DeltaQueue { state: Mutex::default(), wake: bounded(1) }
    }
}

impl DeltaQueue {
    /// Queues a change and updates the digest. The caller holds the lock of the user's stripe, so that the queue has
    /// every change that the registry shows.
    pub(super) fn put(&self, delta: Delta, change: impl FnOnce(&mut Digest)) {
        let mut state = self.state.lock();
        change(&mut state.digest);
        if state.deltas.len() >= QUEUE_MAX {
            state.deltas = Vec::new();
            state.overflowed = true;
        }
        state.deltas.push(delta);
        if state.deltas.len() == 1 {
            // Full: the receiver is awake already.
            let _ = self.wake.0.try_send(());
        }
    }

    pub(crate) fn take(&self) -> DeltaBatch {
        let mut state = self.state.lock();
        let (deltas, overflowed) = (std::mem::take(&mut state.deltas), std::mem::take(&mut state.overflowed));
        DeltaBatch { deltas, digest: state.digest, overflowed }
    }

    /// Receives when the queue is not empty any more.
    pub(crate) fn wakeups(&self) -> Receiver<()> {
        self.wake.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_the_sessions_and_not_on_their_order() {
        let (mut here, mut there) = (Digest::default(), Digest::default());
        let sessions = [(UserNo(1), 1, 7), (UserNo(1), 2, 7), (UserNo(2), 1, 7)];
        sessions.iter().for_each(|(user, session, since)| here.add(*user, *session, *since));
        sessions.iter().rev().for_each(|(user, session, since)| there.add(*user, *session, *since));
        assert_eq!(here, there);
        there.remove(UserNo(1), 2, 7);
        there.add(UserNo(2), 2, 7);
        assert_ne!(here, there, "as many, but others");
    }

    #[test]
    fn an_overflow_drops_all_changes_and_keeps_the_digest() {
        let queue = DeltaQueue::default();
        for session in 0..QUEUE_MAX as u64 + 3 {
            queue.put(Delta::Left { user: UserNo(1), session, at: 0 }, |digest| digest.add(UserNo(1), session, 0));
        }
        let taken = queue.take();
        assert_eq!((taken.deltas.len(), taken.overflowed, taken.digest.count), (3, true, QUEUE_MAX as u64 + 3));
        assert!(!queue.take().overflowed);
    }
}
