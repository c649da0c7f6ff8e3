//! The thread that announces changes and stores when users were last seen.

use super::{
    Change, Presence,
    webhook::{PresenceState, WebhookWorker},
};
use crate::{commit::Committer, directory::Directory, shards::Shards, webhook::Webhook};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::{sync::Arc, thread::JoinHandle, time::Duration};
use tidings_domain::{clock::Clock, leadership::Leadership, metrics::Metrics, model::UserNo, store::Proposal};

/// The pause between announcements. Of several changes of a user in between, only the last is announced.
const ROUND: Duration = Duration::from_millis(500);
/// Last-seen times in one commit: a storm causes many, and commits of chat must come in between.
const LAST_SEEN_PER_COMMIT: usize = 2_000;
/// Commits of last-seen times between two announcements.
const COMMITS_PER_ROUND: usize = 20;
/// Last-seen times in one commit when the server stops: nothing else commits then, and there may be a million.
const LAST_SEEN_PER_LAST_COMMIT: usize = 20_000;

/// What [`PresenceWorker::start`] needs.
pub(crate) struct PresenceWorkerParts {
    pub presence: Arc<Presence>,
    pub directory: Arc<Directory>,
    pub committer: Arc<Committer>,
    pub shards: Arc<Shards>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub lead: Leadership,
    /// Whether this node knows of no other one.
    pub is_only_node: Box<dyn Fn() -> bool + Send + Sync>,
    /// The webhook that is told of changes, and the secret that signs its calls.
    pub webhook: Option<(Arc<dyn Webhook>, String)>,
}

/// The engine's handle of the threads.
pub(crate) struct PresenceWorker {
    rounds: Mutex<Option<Sender<Sender<()>>>>,
    stop_webhook: Mutex<Option<Sender<()>>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

impl PresenceWorker {
    pub(crate) fn start(parts: PresenceWorkerParts) -> PresenceWorker {
        let PresenceWorkerParts { presence, directory, committer, shards, clock, metrics, lead, is_only_node, webhook } =
            parts;
        let mut joins = Vec::new();
        let mut spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(run);
            joins.extend(thread.inspect_err(|error| tracing::error!(%error, "no thread for presence")));
        };
        let webhook_worker = webhook.map(|(webhook, secret)| WebhookWorker {
            webhook,
            secret,
            presence: presence.clone(),
            directory: directory.clone(),
            clock: clock.clone(),
            metrics: metrics.clone(),
            lead: lead.clone(),
        });
        let has_webhook = webhook_worker.is_some();
        let announcer =
            Announcer { presence, directory, committer, shards, clock, metrics, lead, is_only_node, has_webhook };
        let (rounds, asked) = bounded(1);
        spawn("presence", Box::new(move || announcer.run(&asked)));
        let (stop_webhook, stopped) = bounded(1);
        if let Some(worker) = webhook_worker {
            spawn("presence-hook", Box::new(move || worker.run(&stopped)));
        }
        PresenceWorker {
            rounds: Mutex::new(Some(rounds)),
            stop_webhook: Mutex::new(Some(stop_webhook)),
            joins: Mutex::new(joins),
        }
    }

    /// Announces and stores all changes that are due, and waits until that is done.
    pub(crate) fn settle(&self) {
        let rounds = self.rounds.lock().clone();
        let (done, is_done) = bounded(1);
        if rounds.is_some_and(|rounds| rounds.send(done).is_ok()) {
            let _ = is_done.recv();
        }
    }

    /// Stores the pending last-seen times, and ends the threads.
    pub(crate) fn stop(&self) {
        self.rounds.lock().take();
        self.stop_webhook.lock().take();
        for thread in std::mem::take(&mut *self.joins.lock()) {
            let _ = thread.join();
        }
    }
}

/// The thread that announces changes.
struct Announcer {
    presence: Arc<Presence>,
    directory: Arc<Directory>,
    committer: Arc<Committer>,
    shards: Arc<Shards>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    lead: Leadership,
    is_only_node: Box<dyn Fn() -> bool + Send + Sync>,
    has_webhook: bool,
}

impl Announcer {
    fn run(&self, asked: &Receiver<Sender<()>>) {
        loop {
            let asked = asked.recv_timeout(ROUND);
            let stopping = matches!(asked, Err(RecvTimeoutError::Disconnected));
            // A user of this node may soon have a session on another one: other nodes announce it after the grace.
            let ends = stopping && (self.is_only_node)();
            self.announce(ends);
            if ends || self.lead.leads() {
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
        self.presence.notify_watchers(&changes, &self.directory, &self.shards);
        drop(notifying);
        self.metrics.presence_changes.inc_by(changes.len() as u64);
        if self.has_webhook {
            let state = |change: &Change| PresenceState {
                online: change.online,
                active: change.online && self.presence.counts_as_active(change.user),
                at: change.at,
                announced_at: now_ms,
            };
            let states: Vec<_> = changes.iter().map(|change| (change.user, state(change))).collect();
            let mut pending = self.presence.for_webhook.lock();
            let dropped = states.into_iter().map(|(user, state)| pending.put(user, state)).sum();
            if self.lead.leads() {
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

impl Presence {
    fn take_changes(&self, now_ms: u64, stopping: bool, metrics: &Metrics) -> Vec<Change> {
        let mut pending = self.changes.lock();
        let mut changes = pending.take_due(now_ms, self.config.grace_ms);
        if stopping {
            changes.extend(pending.take_offline());
        }
        metrics.presence_coalesced.inc_by(std::mem::take(&mut pending.coalesced));
        changes
    }
}
