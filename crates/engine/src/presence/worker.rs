//! The thread that announces changes, and the one that calls the webhook.

use super::Change;
use crate::{
    engine::Engine,
    model::UserNo,
    outbox::{Webhook, WebhookDelivery, sign},
    store::Proposal,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::json;
use std::{
    sync::{Arc, OnceLock},
    thread::JoinHandle,
    time::Duration,
};

/// Between announcements: what changes meanwhile is told once.
const ROUND: Duration = Duration::from_millis(500);
/// Last-seen times in one commit: a storm's are many, and chat's commits go between them.
const LAST_SEEN_PER_COMMIT: usize = 500;
/// Changes in one call of the webhook.
const CHANGES_PER_CALL: usize = 500;
/// Users whose latest state waits for the webhook. Above, further ones are not told: the app asks.
const WAITING_MAX: usize = 100_000;
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The engine's hold on the threads.
#[derive(Default)]
pub(crate) struct PresenceWorker {
    threads: OnceLock<Threads>,
}

struct Threads {
    stop: Mutex<Vec<Sender<()>>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

/// Who calls the webhook for presence, and with which secret.
type Hook = (Arc<dyn Webhook>, String);

/// Latest states that the webhook has not taken.
type Waiting = Arc<Mutex<FxHashMap<UserNo, (bool, u64)>>>;

impl PresenceWorker {
    pub(crate) fn start(engine: &Arc<Engine>, hook: Option<Hook>) {
        let waiting = Waiting::default();
        let (mut stops, mut joins) = (Vec::new(), Vec::new());
        let mut spawn = |name: &str, run: Box<dyn FnOnce(Receiver<()>) + Send>| {
            let (stop, stopped) = bounded(1);
            stops.push(stop);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(stopped));
            joins.extend(thread.inspect_err(|error| tracing::error!(%error, "no thread for presence")));
        };
        let (announcer, calls) = (engine.clone(), hook.as_ref().map(|_| waiting.clone()));
        spawn("presence", Box::new(move |stopped| announce(&announcer, calls.as_ref(), &stopped)));
        if let Some((webhook, secret)) = hook {
            let engine = engine.clone();
            spawn("presence-hook", Box::new(move |stopped| call(&engine, &*webhook, &secret, &waiting, &stopped)));
        }
        let _ = engine.presence_worker.threads.set(Threads { stop: Mutex::new(stops), joins: Mutex::new(joins) });
    }

    /// Stores the last-seen times that are known, and ends.
    pub(crate) fn stop(&self) {
        let Some(threads) = self.threads.get() else { return };
        threads.stop.lock().clear();
        for thread in std::mem::take(&mut *threads.joins.lock()) {
            let _ = thread.join();
        }
    }
}

fn announce(engine: &Engine, calls: Option<&Waiting>, stopped: &Receiver<()>) {
    loop {
        let stopping = !matches!(stopped.recv_timeout(ROUND), Err(RecvTimeoutError::Timeout));
        let changes = engine.take_presence_changes(stopping);
        if !changes.is_empty() {
            engine.tell_watchers(&changes);
            if let Some(waiting) = calls {
                let mut waiting = waiting.lock();
                for change in &changes {
                    if waiting.len() < WAITING_MAX || waiting.contains_key(&change.user) {
                        waiting.insert(change.user, (change.online, change.at));
                    } else {
                        engine.metrics.presence_dropped.inc();
                    }
                }
            }
            store_last_seen(engine, &changes);
        }
        if stopping {
            return;
        }
    }
}

fn store_last_seen(engine: &Engine, changes: &[Change]) {
    let gone: Vec<(UserNo, u64)> = changes.iter().filter(|c| !c.online).map(|c| (c.user, c.at)).collect();
    for part in gone.chunks(LAST_SEEN_PER_COMMIT) {
        // It is a convenience: what cannot be stored now is not worth a retry.
        if let Err(refusal) = engine.committer.propose_blocking(Proposal::SetLastSeen(part.to_vec())) {
            tracing::debug!(%refusal, "last-seen times were not stored");
        }
    }
}

fn call(engine: &Engine, webhook: &dyn Webhook, secret: &str, waiting: &Waiting, stopped: &Receiver<()>) {
    let mut pause = ROUND;
    loop {
        if !matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
            return;
        }
        pause = ROUND;
        loop {
            let part: Vec<(UserNo, (bool, u64))> = {
                let mut waiting = waiting.lock();
                let keys: Vec<UserNo> = waiting.keys().take(CHANGES_PER_CALL).copied().collect();
                let part = keys.iter().filter_map(|key| waiting.remove(key).map(|state| (*key, state))).collect();
                if waiting.is_empty() {
                    *waiting = FxHashMap::default();
                }
                part
            };
            if part.is_empty() {
                break;
            }
            if let Err(error) = webhook.deliver(&delivery(engine, secret, &part)) {
                tracing::debug!(%error, "the webhook did not take presence changes; it is told again");
                let mut waiting = waiting.lock();
                for (user, state) in part {
                    // What came meanwhile is newer.
                    waiting.entry(user).or_insert(state);
                }
                pause = (pause * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
                break;
            }
        }
    }
}

fn delivery(engine: &Engine, secret: &str, part: &[(UserNo, (bool, u64))]) -> WebhookDelivery {
    let changes: Vec<_> = part
        .iter()
        .filter_map(|(no, (online, at))| {
            let user = engine.directory.user(*no).ok()??;
            Some(json!({ "user": user.id, "online": online, "at": at }))
        })
        .collect();
    let body = json!({ "events": [{ "type": "presence", "changes": changes }] }).to_string().into_bytes();
    let timestamp = engine.clock.now_ms() / 1_000;
    let signature = sign(secret, timestamp, &body);
    WebhookDelivery { body, timestamp, signature }
}

impl Engine {
    /// Changes that are due for announcement; when the server stops, all that are known.
    pub fn take_presence_changes(&self, stopping: bool) -> Vec<Change> {
        let now_ms = self.clock.now_ms();
        let presence = &self.presence;
        presence.nodes.tell_time(now_ms);
        let mut pending = presence.changes.lock();
        let mut changes = pending.take(now_ms, presence.config.grace_ms);
        if stopping {
            changes.extend(pending.take_all());
        }
        let coalesced = std::mem::take(&mut pending.coalesced);
        drop(pending);
        self.metrics.presence_changes.inc_by(changes.len() as u64);
        self.metrics.presence_coalesced.inc_by(coalesced);
        changes
    }
}
