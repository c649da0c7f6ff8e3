//! Changes for the app's webhook: of each user the latest state, told again until it is taken. Best
//! effort: an app that was not told (a restart, too many changes) is told that it was not, and asks.

use crate::{
    engine::Engine,
    model::UserNo,
    outbox::{Webhook, WebhookDelivery, sign},
};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::{
    collections::{VecDeque, hash_map::Entry},
    time::Duration,
};

/// Changes in one call.
const CHANGES_PER_CALL: usize = 500;
/// Users whose latest state waits. Above, the oldest is dropped and counted.
pub(super) const WAITING_MAX: usize = 100_000;
/// Between calls: what changes meanwhile is told once.
const ROUND: Duration = Duration::from_millis(500);
const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub online: bool,
    pub at: u64,
    /// When it was announced here.
    pub noted: u64,
}

/// Latest states that the webhook has not taken, the longest waiting first.
#[derive(Default)]
pub(super) struct Waiting {
    states: FxHashMap<UserNo, State>,
    /// The same users.
    order: VecDeque<UserNo>,
    /// States dropped since the last call that was taken.
    dropped: u64,
    dropped_at: u64,
}

impl Waiting {
    /// Answers how many were dropped for it.
    pub(super) fn put(&mut self, user: UserNo, state: State) -> u64 {
        if self.states.insert(user, state).is_some() {
            return 0;
        }
        self.order.push_back(user);
        let dropped = self.drop_oldest();
        if dropped > 0 {
            self.dropped_at = state.noted;
        }
        dropped
    }

    /// When the longest waiting was announced.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.states.get(self.order.front()?).map(|state| state.noted)
    }

    /// Lets go what was announced before: another node has told it.
    pub(super) fn forget_before(&mut self, noted: u64) {
        while self.oldest().is_some_and(|oldest| oldest < noted)
            && let Some(user) = self.order.pop_front()
        {
            self.states.remove(&user);
        }
        if self.dropped_at < noted {
            self.dropped = 0;
        }
        if self.order.is_empty() {
            (self.states, self.order) = Default::default();
        }
    }

    fn drop_oldest(&mut self) -> u64 {
        let mut dropped = 0;
        while self.order.len() > WAITING_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.states.remove(&oldest);
            dropped += 1;
        }
        self.dropped += dropped;
        dropped
    }

    fn take(&mut self) -> Call {
        let users = self.order.drain(..self.order.len().min(CHANGES_PER_CALL));
        let changes = users.filter_map(|user| self.states.remove(&user).map(|state| (user, state))).collect();
        if self.order.is_empty() {
            (self.states, self.order) = Default::default();
        }
        Call { changes, dropped: std::mem::take(&mut self.dropped), reset: false }
    }

    /// What was not taken waits again, unless there is something newer of the user.
    fn give_back(&mut self, call: Call) -> u64 {
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

/// What one call tells.
struct Call {
    changes: Vec<(UserNo, State)>,
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
    /// The server has started: who is not told to be online from here on is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reset: bool,
    /// Users whose change was not told, the oldest first: the app asks how they are.
    #[serde(skip_serializing_if = "is_none")]
    dropped: u64,
    changes: Vec<Told>,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

#[derive(Serialize)]
struct Told {
    user: String,
    online: bool,
    at: u64,
}

/// The thread that calls.
pub(super) struct Hook<'a> {
    pub engine: &'a Engine,
    pub webhook: &'a dyn Webhook,
    pub secret: &'a str,
}

impl Hook<'_> {
    pub(super) fn run(&self, stopped: &Receiver<()>) {
        let mut reset = true;
        let mut pause = Duration::ZERO;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
            if !self.engine.is_leader() {
                // One node calls: of two, the app would hear in no order.
                pause = ROUND;
                continue;
            }
            // Who leads after another goes on where it was, with what it may not have told.
            reset &= !self.engine.presence.follows_a_leader();
            pause = match self.call(&mut reset) {
                Ok(true) => Duration::ZERO,
                Ok(false) => ROUND,
                Err(()) => (pause * 2).clamp(BACKOFF_MIN, BACKOFF_MAX),
            };
        }
    }

    /// Answers whether there was anything to tell.
    fn call(&self, reset: &mut bool) -> Result<bool, ()> {
        let call = Call { reset: *reset, ..self.engine.presence.untold.lock().take() };
        if call.changes.is_empty() && call.dropped == 0 && !call.reset {
            return Ok(false);
        }
        match self.webhook.deliver(&self.delivery(&call)) {
            Ok(()) => {
                *reset = false;
                self.engine.metrics.presence_hook_taken.inc_by(call.changes.len() as u64);
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(%error, "the webhook did not take presence changes; it is told again");
                let dropped = self.engine.presence.untold.lock().give_back(call);
                self.engine.metrics.presence_dropped.inc_by(dropped);
                Err(())
            }
        }
    }

    fn delivery(&self, call: &Call) -> WebhookDelivery {
        let told = |(no, state): &(UserNo, State)| {
            let user = self.engine.directory.user(*no).ok()??;
            Some(Told { user: user.id.clone(), online: state.online, at: state.at })
        };
        let changes = call.changes.iter().filter_map(told).collect();
        let event = Event { event: "presence", reset: call.reset, dropped: call.dropped, changes };
        let body = serde_json::to_vec(&Body { events: [event] }).unwrap_or_default();
        let timestamp = self.engine.clock.now_ms() / 1_000;
        let signature = sign(self.secret, timestamp, &body);
        WebhookDelivery { body, timestamp, signature }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn online(at: u64) -> State {
        State { online: true, at, noted: at }
    }

    fn told(call: &Call) -> Vec<(u64, u64)> {
        call.changes.iter().map(|(user, state)| (user.0, state.at)).collect()
    }

    #[test]
    fn of_each_user_the_latest_state_waits_in_the_order_of_their_first() {
        let mut waiting = Waiting::default();
        for (user, at) in [(1, 10), (2, 20), (1, 30)] {
            waiting.put(UserNo(user), online(at));
        }
        let call = waiting.take();
        assert_eq!(told(&call), [(1, 30), (2, 20)]);
        waiting.put(UserNo(2), online(40));
        waiting.give_back(call);
        assert_eq!(told(&waiting.take()), [(1, 30), (2, 40)], "what is newer stays");
        assert_eq!((waiting.states.capacity(), waiting.order.capacity()), (0, 0));
    }

    #[test]
    fn what_another_node_has_told_is_let_go() {
        let mut waiting = Waiting::default();
        for (user, at) in [(1, 10), (2, 20), (1, 30), (3, 40)] {
            waiting.put(UserNo(user), online(at));
        }
        waiting.forget_before(30);
        assert_eq!(waiting.oldest(), Some(30), "the first in the queue has changed since");
        waiting.forget_before(40);
        assert_eq!(told(&waiting.take()), [(3, 40)]);
    }

    #[test]
    fn when_too_many_wait_the_oldest_is_dropped_and_the_app_is_told_how_many() {
        let mut waiting = Waiting::default();
        let dropped: u64 = (0..WAITING_MAX as u64 + 3).map(|user| waiting.put(UserNo(user), online(user))).sum();
        assert_eq!((dropped, waiting.order.len(), waiting.states.len()), (3, WAITING_MAX, WAITING_MAX));
        let first = waiting.take();
        assert_eq!((first.changes.len(), first.changes[0].0, first.dropped), (CHANGES_PER_CALL, UserNo(3), 3));
        assert_eq!(waiting.give_back(first), 0);
        assert_eq!(waiting.take().dropped, 3, "until a call is taken");
    }
}
