//! Presence changes for the app's webhook: the latest state of each user, sent again until the webhook takes it. Best
//! effort: an app that missed changes (a restart, too many changes) learns of it, and queries the state.

use crate::webhook::{Webhook, WebhookDelivery, sign};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::{
    collections::{VecDeque, hash_map::Entry},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};
use tidings_domain::{function::Function, leadership::Leadership, metrics::Metrics, model::UserNo};
use tidings_engine::{
    Engine,
    presence::observer::{PresenceObserver, PresenceState},
    worker_thread::WorkerThread,
};

/// Changes in one call.
const CHANGES_PER_CALL: usize = 500;
/// Users with a pending state. Above, the oldest state is dropped and counted.
const PENDING_MAX: usize = 100_000;
/// The pause between calls. Of several changes of a user in between, only the last is sent.
const ROUND: Duration = Duration::from_millis(500);
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The latest states that the webhook has not taken, in the order in which their users' first pending change was
/// announced.
#[derive(Default)]
struct PendingStates {
    states: FxHashMap<UserNo, PresenceState>,
    /// The users of `states`.
    order: VecDeque<UserNo>,
    /// States dropped since the last call that was taken.
    dropped: u64,
    dropped_at: u64,
}

impl PendingStates {
    /// Queues a state; answers how many states were dropped for it.
    fn put(&mut self, user: UserNo, state: PresenceState) -> u64 {
        if self.states.insert(user, state).is_some() {
            return 0;
        }
        self.order.push_back(user);
        let dropped = self.drop_oldest();
        if dropped > 0 {
            self.dropped_at = state.announced_at;
        }
        dropped
    }

    /// When the first state in the queue was announced.
    fn oldest(&self) -> Option<u64> {
        self.states.get(self.order.front()?).map(|state| state.announced_at)
    }

    /// Discards states that were announced before this time: another node has sent them.
    fn discard_before(&mut self, announced_at: u64) {
        while self.oldest().is_some_and(|oldest| oldest < announced_at)
            && let Some(user) = self.order.pop_front()
        {
            self.states.remove(&user);
        }
        if self.dropped_at < announced_at {
            self.dropped = 0;
        }
        if self.order.is_empty() {
            (self.states, self.order) = Default::default();
        }
    }

    fn drop_oldest(&mut self) -> u64 {
        let mut dropped = 0;
        while self.order.len() > PENDING_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.states.remove(&oldest);
            dropped += 1;
        }
        self.dropped += dropped;
        dropped
    }

    fn take(&mut self) -> WebhookCall {
        let users = self.order.drain(..self.order.len().min(CHANGES_PER_CALL));
        let changes = users.filter_map(|user| self.states.remove(&user).map(|state| (user, state))).collect();
        if self.order.is_empty() {
            (self.states, self.order) = Default::default();
        }
        WebhookCall { changes, dropped: std::mem::take(&mut self.dropped), reset: false }
    }

    /// Puts the states of a failed call back, except those of users with a newer one. Answers how many states were
    /// dropped.
    fn put_back(&mut self, call: WebhookCall) -> u64 {
        for (user, state) in call.changes.into_iter().rev() {
            if let Entry::Vacant(entry) = self.states.entry(user) {
                entry.insert(state);
                self.order.push_front(user);
            }
        }
        self.dropped += call.dropped;
        self.drop_oldest()
    }
}

/// The content of one call.
struct WebhookCall {
    changes: Vec<(UserNo, PresenceState)>,
    dropped: u64,
    reset: bool,
}

#[derive(Serialize)]
struct Body {
    events: [Event; 1],
}

#[derive(Serialize)]
struct Event {
    event: &'static str,
    /// The server has started: a user who is not reported online from here on is offline.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reset: bool,
    /// The number of users whose change was dropped: the app must query their state.
    #[serde(skip_serializing_if = "is_none")]
    dropped: u64,
    changes: Vec<ChangeView>,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

#[derive(Serialize)]
struct ChangeView {
    user: String,
    online: bool,
    active: bool,
    at: u64,
}

/// The states that wait, as the engine sees them.
struct Waiting {
    pending: Mutex<PendingStates>,
    metrics: Arc<Metrics>,
    lead: Leadership,
}

impl PresenceObserver for Waiting {
    fn announced(&self, changes: &[(UserNo, PresenceState)]) {
        let mut pending = self.pending.lock();
        let dropped = changes.iter().map(|(user, state)| pending.put(*user, *state)).sum();
        if self.lead.leads() {
            self.metrics.presence_dropped.inc_by(dropped);
        }
    }

    fn oldest_pending(&self) -> Option<u64> {
        self.pending.lock().oldest()
    }

    fn discard_before(&self, announced_at: u64) {
        self.pending.lock().discard_before(announced_at);
    }
}

/// The handle of the thread.
pub(crate) struct PresenceWebhook(WorkerThread);

impl PresenceWebhook {
    /// `secret` signs the calls.
    pub(crate) fn start(engine: &Arc<Engine>, webhook: Arc<dyn Webhook>, secret: &str) -> PresenceWebhook {
        let (metrics, lead) = (engine.metrics.clone(), engine.leadership(Function::Presence));
        let waiting = Arc::new(Waiting { pending: Mutex::default(), metrics, lead });
        engine.presence.set_observer(waiting.clone());
        let worker = Worker { webhook, secret: secret.to_owned(), engine: engine.clone(), waiting };
        PresenceWebhook(WorkerThread::start("presence-hook", 1, move |stopped| worker.run(&stopped)))
    }

    pub(crate) fn stop(&self) {
        self.0.stop();
    }
}

/// The thread that calls the webhook.
struct Worker {
    webhook: Arc<dyn Webhook>,
    secret: String,
    engine: Arc<Engine>,
    waiting: Arc<Waiting>,
}

impl Worker {
    fn run(&self, stopped: &Receiver<Infallible>) {
        let mut reset = true;
        let mut pause = Duration::ZERO;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
            if !self.waiting.lead.leads() {
                // Only one node calls, or the app would get changes in no order.
                pause = ROUND;
                continue;
            }
            // The successor of another leader continues its work, and sends the states that it may not have sent.
            reset &= !self.engine.presence.succeeds_a_leader();
            pause = match self.call(&mut reset) {
                Ok(true) => Duration::ZERO,
                Ok(false) => ROUND,
                Err(()) => (pause * 2).clamp(BACKOFF_MIN, BACKOFF_MAX),
            };
        }
    }

    /// Makes a call; answers whether there was anything to send.
    fn call(&self, reset: &mut bool) -> Result<bool, ()> {
        let call = WebhookCall { reset: *reset, ..self.waiting.pending.lock().take() };
        if call.changes.is_empty() && call.dropped == 0 && !call.reset {
            return Ok(false);
        }
        match self.webhook.deliver(&self.delivery(&call)) {
            Ok(()) => {
                *reset = false;
                self.waiting.metrics.presence_hook_taken.inc_by(call.changes.len() as u64);
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(%error, "the webhook did not take presence changes; they will be sent again");
                let dropped = self.waiting.pending.lock().put_back(call);
                self.waiting.metrics.presence_dropped.inc_by(dropped);
                Err(())
            }
        }
    }

    fn delivery(&self, call: &WebhookCall) -> WebhookDelivery {
        let view = |(no, state): &(UserNo, PresenceState)| {
            let user = self.engine.directory.user(*no).ok()??;
            Some(ChangeView { user: user.id.clone(), online: state.online, active: state.active, at: state.at })
        };
        let changes = call.changes.iter().filter_map(view).collect();
        let event = Event { event: "presence", reset: call.reset, dropped: call.dropped, changes };
        let body = serde_json::to_vec(&Body { events: [event] }).unwrap_or_default();
        let timestamp = self.engine.clock.now_ms() / 1_000;
        let signature = sign(&self.secret, timestamp, &body);
        WebhookDelivery { body, timestamp, signature }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn online(at: u64) -> PresenceState {
        PresenceState { online: true, active: true, at, announced_at: at }
    }

    fn states_in(call: &WebhookCall) -> Vec<(u64, u64)> {
        call.changes.iter().map(|(user, state)| (user.0, state.at)).collect()
    }

    #[test]
    fn the_latest_state_of_each_user_keeps_the_place_of_the_first() {
        let mut waiting = PendingStates::default();
        for (user, at) in [(1, 10), (2, 20), (1, 30)] {
            waiting.put(UserNo(user), online(at));
        }
        let call = waiting.take();
        assert_eq!(states_in(&call), [(1, 30), (2, 20)]);
        waiting.put(UserNo(2), online(40));
        waiting.put_back(call);
        assert_eq!(states_in(&waiting.take()), [(1, 30), (2, 40)], "what is newer stays");
        assert_eq!((waiting.states.capacity(), waiting.order.capacity()), (0, 0));
    }

    #[test]
    fn states_that_another_node_has_sent_are_discarded() {
        let mut waiting = PendingStates::default();
        for (user, at) in [(1, 10), (2, 20), (1, 30), (3, 40)] {
            waiting.put(UserNo(user), online(at));
        }
        waiting.discard_before(30);
        assert_eq!(waiting.oldest(), Some(30), "the first in the queue has changed since");
        waiting.discard_before(40);
        assert_eq!(states_in(&waiting.take()), [(3, 40)]);
    }

    #[test]
    fn above_the_limit_the_oldest_state_is_dropped_and_counted_until_a_call_is_taken() {
        let mut waiting = PendingStates::default();
        let dropped: u64 = (0..PENDING_MAX as u64 + 3).map(|user| waiting.put(UserNo(user), online(user))).sum();
        assert_eq!((dropped, waiting.order.len(), waiting.states.len()), (3, PENDING_MAX, PENDING_MAX));
        let first = waiting.take();
        assert_eq!((first.changes.len(), first.changes[0].0, first.dropped), (CHANGES_PER_CALL, UserNo(3), 3));
        assert_eq!(waiting.put_back(first), 0);
        assert_eq!(waiting.take().dropped, 3, "until a call is taken");
    }
}
