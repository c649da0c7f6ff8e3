//! The thread that announces changes and stores when users were last seen.

use super::{
    Change,
    webhook::{PresenceState, WebhookWorker},
};
use crate::{engine::Engine, outbox::Webhook};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::{
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::Duration,
};
use tidings_domain::{model::UserNo, store::Proposal};

/// The pause between announcements. Of several changes of a user in between, only the last is announced.
const ROUND: Duration = Duration::from_millis(500);
/// Last-seen times in one commit: a storm causes many, and commits of chat must come in between.
const LAST_SEEN_PER_COMMIT: usize = 2_000;
/// Commits of last-seen times between two announcements.
const COMMITS_PER_ROUND: usize = 20;
/// Last-seen times in one commit when the server stops: nothing else commits then, and there may be a million.
const LAST_SEEN_PER_LAST_COMMIT: usize = 20_000;

/// The engine's handle of the threads.
#[derive(Default)]
pub(crate) struct PresenceWorker {
    threads: OnceLock<Threads>,
}

struct Threads {
    rounds: Mutex<Option<Sender<Sender<()>>>>,
    stop_webhook: Mutex<Option<Sender<()>>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

impl PresenceWorker {
    /// Starts the threads. With a webhook and the secret that signs its calls, changes are sent to it too.
    pub(crate) fn start(engine: &Arc<Engine>, hook: Option<(Arc<dyn Webhook>, String)>) {
        let mut joins = Vec::new();
        let mut spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(run);
            joins.extend(thread.inspect_err(|error| tracing::error!(%error, "no thread for presence")));
        };
        let (rounds, asked) = bounded(1);
        let (announcer, has_webhook) = (engine.clone(), hook.is_some());
        spawn("presence", Box::new(move || announce(&announcer, has_webhook, &asked)));
        let (stop_webhook, stopped) = bounded(1);
        if let Some((webhook, secret)) = hook {
            let engine = engine.clone();
            let call = move || {
                WebhookWorker { engine: &engine, webhook: &*webhook, secret: &secret }.run(&stopped);
            };
            spawn("presence-hook", Box::new(call));
        }
        let (rounds, stop_webhook, joins) =
            (Mutex::new(Some(rounds)), Mutex::new(Some(stop_webhook)), Mutex::new(joins));
        let _ = engine.presence_worker.threads.set(Threads { rounds, stop_webhook, joins });
    }

    /// Stores the pending last-seen times, and ends the threads.
    pub(crate) fn stop(&self) {
        let Some(threads) = self.threads.get() else { return };
        threads.rounds.lock().take();
        threads.stop_webhook.lock().take();
        for thread in std::mem::take(&mut *threads.joins.lock()) {
            let _ = thread.join();
        }
    }
}

fn announce(engine: &Engine, has_webhook: bool, asked: &Receiver<Sender<()>>) {
    loop {
        let asked = asked.recv_timeout(ROUND);
        let stopping = matches!(asked, Err(RecvTimeoutError::Disconnected));
        // A user of this node may soon have a session on another one: other nodes announce it after the grace.
        let ends = stopping && engine.is_only_node();
        engine.announce_presence(has_webhook, ends);
        if ends || engine.is_leader() {
            engine.store_last_seen(ends);
        }
        match asked {
            Ok(done) => drop(done.send(())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Engine {
    /// Announces and stores all changes that are due, and waits until that is done; for tests, which hold the clock.
    pub fn settle_presence(&self) {
        let rounds = self.presence_worker.threads.get().and_then(|threads| threads.rounds.lock().clone());
        let (done, is_done) = bounded(1);
        if rounds.is_some_and(|rounds| rounds.send(done).is_ok()) {
            let _ = is_done.recv();
        }
    }

    fn announce_presence(&self, has_webhook: bool, stopping: bool) {
        let now_ms = self.clock.now_ms();
        for node in self.presence.nodes.expired(now_ms) {
            let name = self.presence.nodes.card(node).map_or_else(String::new, |card| card.name);
            tracing::warn!(name, "a node's lease is over; its sessions do not count as online");
            self.metrics.presence_leases_expired.inc();
        }
        // Locked before the changes are taken, so that no watcher gets a state older than one it has.
        let notifying = self.presence.notifying.lock();
        let changes = self.presence.take_changes(now_ms, stopping, &self.metrics);
        if changes.is_empty() {
            return;
        }
        self.notify_watchers(&changes);
        drop(notifying);
        self.metrics.presence_changes.inc_by(changes.len() as u64);
        if has_webhook {
            let mut pending = self.presence.for_webhook.lock();
            let state = |change: &Change| PresenceState { online: change.online, at: change.at, announced_at: now_ms };
            let dropped = changes.iter().map(|change| pending.put(change.user, state(change))).sum();
            if self.is_leader() {
                self.metrics.presence_dropped.inc_by(dropped);
            }
        }
        self.presence.put_unsaved(changes.iter().filter(|change| !change.online).map(|c| (c.user, c.at)));
    }

    /// Stores pending last-seen times; those that cannot be stored now are tried again in the next round.
    fn store_last_seen(&self, stopping: bool) {
        let (most, commits) = match stopping {
            false => (LAST_SEEN_PER_COMMIT, COMMITS_PER_ROUND),
            true => (LAST_SEEN_PER_LAST_COMMIT, usize::MAX),
        };
        for _ in 0..commits {
            let part: Vec<(UserNo, u64)> =
                self.presence.unsaved.lock().iter().take(most).map(|(user, at)| (*user, *at)).collect();
            if part.is_empty() {
                return;
            }
            if let Err(refusal) = self.committer.propose_blocking(Proposal::SetLastSeen(part.clone())) {
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

impl super::Presence {
    fn take_changes(&self, now_ms: u64, stopping: bool, metrics: &tidings_domain::metrics::Metrics) -> Vec<Change> {
        let mut pending = self.changes.lock();
        let mut changes = pending.take_due(now_ms, self.config.grace_ms);
        if stopping {
            changes.extend(pending.take_offline());
        }
        metrics.presence_coalesced.inc_by(std::mem::take(&mut pending.coalesced));
        changes
    }
}
