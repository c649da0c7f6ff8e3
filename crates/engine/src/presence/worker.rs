//! The thread that announces changes and stores when users were last seen.

use super::{Change, Presence, observer::PresenceState};
use crate::{Core, worker_thread::WorkerThread};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tidings_domain::{function::Function, metrics::Metrics, model::UserNo, store::Proposal};

/// The pause between announcements. Of several changes of a user in between, only the last is announced.
const ROUND: Duration = Duration::from_millis(500);
/// Last-seen times in one commit: a storm causes many, and commits of chat must come in between.
const LAST_SEEN_PER_COMMIT: usize = 2_000;
/// Commits of last-seen times between two announcements.
const COMMITS_PER_ROUND: usize = 20;
/// Last-seen times in one commit when the server stops: nothing else commits then, and there may be a million.
const LAST_SEEN_PER_LAST_COMMIT: usize = 20_000;

/// What the thread that announces changes works with.
pub(crate) struct Announcer {
    pub core: Core,
    pub presence: Arc<Presence>,
    /// Whether this node knows of no other one.
    pub is_only_node: Box<dyn Fn() -> bool + Send + Sync>,
}

/// The engine's handle of the thread.
pub(crate) struct PresenceWorker {
    announcer: WorkerThread<Sender<()>>,
}

impl PresenceWorker {
    pub(crate) fn start(announcer: Announcer) -> PresenceWorker {
        PresenceWorker { announcer: WorkerThread::start("presence", 1, move |asked| announcer.run(&asked)) }
    }

    /// Announces and stores all changes that are due, and waits until that is done.
    pub(crate) fn settle(&self) {
        self.announcer.order_and_wait(|done| done);
    }

    /// Stores the pending last-seen times, and ends the thread.
    pub(crate) fn stop(&self) {
        self.announcer.stop();
    }
}

impl Announcer {
    fn run(&self, asked: &Receiver<Sender<()>>) {
        loop {
            let asked = asked.recv_timeout(ROUND);
            let stopping = matches!(asked, Err(RecvTimeoutError::Disconnected));
            // A user of this node may soon have a session on another one: other nodes announce it after the grace.
            let ends = stopping && (self.is_only_node)();
            self.announce(ends);
            if ends || self.core.leads.of(Function::Presence).leads() {
                self.store_last_seen(ends);
            }
            match asked {
                Ok(done) => drop(done.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn announce(&self, stopping: bool) {
        let now_ms = self.core.clock.now_ms();
        for node in self.presence.nodes.expired(now_ms) {
            let name = self.presence.nodes.record(node).map_or_else(String::new, |node| node.name);
            tracing::warn!(name, "a node's lease is over; its sessions do not count as online");
            self.core.metrics.presence_leases_expired.inc();
        }
        // Locked before the changes are taken, so that no watcher gets a state older than one it has.
        let notifying = self.presence.notifying.lock();
        let changes = self.presence.take_changes(now_ms, stopping, &self.core.metrics);
        if changes.is_empty() {
            return;
        }
        self.presence.notify_watchers(&changes, &self.core.directory, &self.core.shards);
        drop(notifying);
        self.core.metrics.presence_changes.inc_by(changes.len() as u64);
        if let Some(observer) = self.presence.observer.get() {
            let state = |change: &Change| PresenceState {
                online: change.online,
                active: change.online && self.presence.counts_as_active(change.user),
                at: change.at,
                announced_at: now_ms,
            };
            let states: Vec<_> = changes.iter().map(|change| (change.user, state(change))).collect();
            observer.announced(&states);
        }
        self.presence.put_unsaved(changes.iter().filter(|change| !change.online).map(|c| (c.user, c.at)));
    }

    /// Stores pending last-seen times; those that cannot be stored now are tried again in the next round.
    fn store_last_seen(&self, stopping: bool) {
        let (most, commits) =
            if stopping { (LAST_SEEN_PER_LAST_COMMIT, usize::MAX) } else { (LAST_SEEN_PER_COMMIT, COMMITS_PER_ROUND) };
        for _ in 0..commits {
            let part: Vec<(UserNo, u64)> =
                self.presence.unsaved.lock().iter().take(most).map(|(user, at)| (*user, *at)).collect();
            if part.is_empty() {
                return;
            }
            if let Err(refusal) = self.core.committer.propose_blocking(Proposal::SetLastSeen(part.clone())) {
                tracing::debug!(%refusal, "last-seen times were not stored");
                return;
            }
            let mut unsaved = self.presence.unsaved.lock();
            for (user, _) in part {
                unsaved.remove(&user);
            }
        }
    }
}

impl Presence {
    fn take_changes(&self, now_ms: u64, stopping: bool, metrics: &Metrics) -> Vec<Change> {
        let mut pending = self.changes.lock();
        let holds_ends = self.has_unheard_node.load(Ordering::Relaxed);
        let mut changes = pending.take_due(now_ms, self.config.grace_ms, holds_ends);
        if stopping {
            changes.extend(pending.take_offline());
        }
        metrics.presence_coalesced.inc_by(std::mem::take(&mut pending.coalesced));
        changes
    }
}
