//! One device as everybody else sees it: what it is told, and what it tells.

use super::super::truth::Stand;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Where nodes are, and what one needs there.
#[derive(Debug)]
pub(in crate::chaos) struct Doors {
    /// Of each node the door for HTTP and WebSocket, and the one for devices.
    pub(in crate::chaos) nodes: Vec<(SocketAddr, SocketAddr)>,
    pub(in crate::chaos) api_key: String,
    pub(in crate::chaos) token_key: String,
    /// The guests, and the group of theirs in which they may watch each other.
    pub(in crate::chaos) guests: Vec<String>,
    pub(in crate::chaos) group: String,
}

/// How a device connects.
#[derive(Debug, Clone, Copy)]
pub(super) enum Via {
    Miop { chats: bool },
    WebSocket,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) user: String,
    pub(super) device: &'static str,
    pub(super) via: Via,
    /// The node that it comes to first.
    pub(super) home: usize,
    wanted: AtomicBool,
    called_home: AtomicBool,
    /// Whether its session lasts as long as its connection: over MIOP it is the leader's, and ends with the lead.
    lasts: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when it has a session.
    bound: Option<Instant>,
    /// It connects, or ends its session.
    is_busy: bool,
    changes: u64,
    pushes: bool,
    /// Pushes came to it once, so that they are kept for it.
    is_known: bool,
    breaks: BTreeMap<String, u64>,
}

impl Slot {
    pub(super) fn new(user: &str, device: &'static str, via: Via, home: usize) -> Self {
        Slot {
            user: user.to_owned(),
            device,
            via,
            home,
            wanted: AtomicBool::new(true),
            called_home: AtomicBool::new(false),
            lasts: AtomicBool::new(true),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn want(&self, wanted: bool) {
        // Under the lock, so that nobody sees a device at rest whose wish has just changed.
        let _state = self.state();
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Another node may come to lead.
    pub(super) fn lead_may_move(&self, may_move: bool) {
        self.lasts.store(!may_move || matches!(self.via, Via::WebSocket), Ordering::Relaxed);
    }

    pub(super) fn go_home(&self) {
        self.called_home.store(true, Ordering::Relaxed);
    }

    /// Whether it was called home since it was asked last.
    pub(super) fn take_call(&self) -> bool {
        self.called_home.swap(false, Ordering::Relaxed)
    }

    pub(super) fn is_as_wanted(&self) -> bool {
        let state = self.state();
        // Who was called and has not heard it yet may have to go.
        let is_called = self.called_home.load(Ordering::Relaxed);
        !state.is_busy && !is_called && state.bound.is_some() == self.is_wanted()
    }

    pub(super) fn is_pushed_to(&self) -> bool {
        let state = self.state();
        state.bound.is_some() && state.pushes
    }

    /// Since when it has a session that lasts.
    pub(super) fn bound_since(&self) -> Option<Instant> {
        self.state().bound.filter(|_| self.lasts.load(Ordering::Relaxed))
    }

    pub(super) fn is_known(&self) -> bool {
        self.state().is_known
    }

    pub(super) fn breaks(&self) -> BTreeMap<String, u64> {
        self.state().breaks.clone()
    }

    /// It connects, or is about to end its session: whatever nodes say may be so.
    pub(super) fn is_busy(&self) {
        self.state().is_busy = true;
    }

    pub(super) fn is_at_rest(&self) {
        self.state().is_busy = false;
    }

    pub(super) fn is_bound(&self, pushes: bool) {
        let mut state = self.state();
        (state.bound, state.pushes, state.is_busy) = (Some(Instant::now()), pushes, false);
        state.is_known |= pushes;
        state.changes += 1;
    }

    pub(super) fn has_ended(&self) {
        let mut state = self.state();
        (state.bound, state.is_busy) = (None, false);
        state.changes += 1;
    }

    pub(super) fn broke(&self, why: String) {
        *self.state().breaks.entry(why).or_default() += 1;
    }

    /// Adds this device to what is true of its user.
    pub(super) fn tell(&self, stand: &mut Stand) {
        let state = self.state();
        stand.changes += state.changes;
        stand.changing |= state.is_busy || state.bound.is_some() != self.is_wanted();
        if let Some(since) = state.bound {
            stand.devices.insert(self.device.to_owned());
            if self.lasts.load(Ordering::Relaxed) {
                stand.since = Some(stand.since.map_or(since, |other| other.min(since)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_the_leaders_lasts_only_while_the_lead_does() {
        let phone = Slot::new("ann", "phone", Via::Miop { chats: false }, 0);
        let web = Slot::new("ann", "web", Via::WebSocket, 0);
        let since = |slot: &Slot, may_move: bool| {
            slot.is_bound(true);
            slot.lead_may_move(may_move);
            let mut stand = Stand::default();
            slot.tell(&mut stand);
            assert_eq!((stand.since, stand.devices.len()), (slot.bound_since(), 1));
            stand.since.is_some()
        };
        assert!(since(&phone, false) && since(&web, false) && since(&web, true));
        assert!(!since(&phone, true));
    }
}
