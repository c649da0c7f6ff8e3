//! The handle of a device: commands to its thread, and the state of its session.

use super::super::expected_presence::ExpectedUser;
use crate::lock::lock;
use std::{collections::BTreeMap, net::SocketAddr, sync::Mutex, time::Instant};
use tidings_client::http::HttpClient;

/// The nodes with their keys, and the guests.
#[derive(Debug)]
pub(in crate::chaos) struct GuestConfig {
    /// The addresses of each node for HTTP with WebSocket, and for MIOP.
    pub(in crate::chaos) nodes: Vec<(SocketAddr, SocketAddr)>,
    pub(in crate::chaos) api_key: String,
    pub(in crate::chaos) token_key: String,
    pub(in crate::chaos) guests: Vec<String>,
    /// The group of all guests, in which they may watch each other.
    pub(in crate::chaos) group: String,
}

impl GuestConfig {
    pub(in crate::chaos) fn http(&self, node: usize) -> HttpClient {
        HttpClient::new(self.nodes[node].0, self.api_key.clone())
    }
}

/// The protocol of a guest's device; over MIOP with or without chat.
#[derive(Debug, Clone, Copy)]
pub(super) enum GuestProtocol {
    Miop { chats: bool },
    WebSocket,
}

#[derive(Debug)]
pub(super) struct DeviceHandle {
    pub(super) user: String,
    pub(super) device: &'static str,
    pub(super) via: GuestProtocol,
    /// The node that the device connects to first.
    pub(super) home: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    wanted: bool,
    home_requested: bool,
    /// Whether the session lasts as long as its connection: over MIOP an earlier version may have it on the leader, where it ends
    /// when the leader changes.
    lasts: bool,
    /// When the session began.
    bound: Option<Instant>,
    /// The device is connecting or disconnecting.
    is_busy: bool,
    changes: u64,
    pushes: bool,
    /// The device was once bound with pushes, so that pushes are addressed to it.
    is_push_target: bool,
    disconnects: BTreeMap<String, u64>,
}

impl DeviceHandle {
    pub(super) fn new(user: &str, device: &'static str, via: GuestProtocol, home: usize) -> Self {
        let state = Mutex::new(State { wanted: true, lasts: true, ..State::default() });
        DeviceHandle { user: user.to_owned(), device, via, home, state }
    }

    pub(super) fn set_wanted(&self, wanted: bool) {
        lock(&self.state).wanted = wanted;
    }

    pub(super) fn is_wanted(&self) -> bool {
        lock(&self.state).wanted
    }

    /// Sets whether sessions over MIOP may move with the lead in this step.
    pub(super) fn set_sessions_may_move(&self, may_move: bool) {
        lock(&self.state).lasts = !may_move || matches!(self.via, GuestProtocol::WebSocket);
    }

    pub(super) fn request_home(&self) {
        lock(&self.state).home_requested = true;
    }

    /// Whether the device was told to return to its first node since the last call.
    pub(super) fn take_home_request(&self) -> bool {
        std::mem::take(&mut lock(&self.state).home_requested)
    }

    /// Whether the device is connected if it is wanted, and disconnected if not.
    pub(super) fn is_settled(&self) -> bool {
        let state = lock(&self.state);
        // A device that has still to return to its first node may have to disconnect.
        !state.is_busy && !state.home_requested && state.bound.is_some() == state.wanted
    }

    pub(super) fn receives_pushes(&self) -> bool {
        let state = lock(&self.state);
        state.bound.is_some() && state.pushes
    }

    /// When the session began, if it lasts as long as its connection.
    pub(super) fn bound_since(&self) -> Option<Instant> {
        let state = lock(&self.state);
        state.bound.filter(|_| state.lasts)
    }

    pub(super) fn is_push_target(&self) -> bool {
        lock(&self.state).is_push_target
    }

    pub(super) fn disconnects(&self) -> BTreeMap<String, u64> {
        lock(&self.state).disconnects.clone()
    }

    /// The device begins to connect or to disconnect: any answer about it may be right.
    pub(super) fn begin_change(&self) {
        lock(&self.state).is_busy = true;
    }

    pub(super) fn end_change(&self) {
        lock(&self.state).is_busy = false;
    }

    pub(super) fn record_bound(&self, pushes: bool) {
        let mut state = lock(&self.state);
        (state.bound, state.pushes, state.is_busy) = (Some(Instant::now()), pushes, false);
        state.is_push_target |= pushes;
        state.changes += 1;
    }

    pub(super) fn record_end(&self) {
        let mut state = lock(&self.state);
        (state.bound, state.is_busy) = (None, false);
        state.changes += 1;
    }

    pub(super) fn record_break(&self, why: String) {
        *lock(&self.state).disconnects.entry(why).or_default() += 1;
    }

    /// Adds this device to the expected presence of its user.
    pub(super) fn add_to(&self, user_state: &mut ExpectedUser) {
        let state = lock(&self.state);
        user_state.changes += state.changes;
        user_state.changing |= state.is_busy || state.bound.is_some() != state.wanted;
        if let Some(since) = state.bound {
            user_state.devices.insert(self.device.to_owned());
            if state.lasts {
                user_state.since = Some(user_state.since.map_or(since, |other| other.min(since)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miop_session_lasts_unless_an_earlier_version_may_move_it() {
        let phone = DeviceHandle::new("ann", "phone", GuestProtocol::Miop { chats: false }, 0);
        let web = DeviceHandle::new("ann", "web", GuestProtocol::WebSocket, 0);
        let since = |handle: &DeviceHandle, may_move: bool| {
            handle.record_bound(true);
            handle.set_sessions_may_move(may_move);
            let mut user_state = ExpectedUser::default();
            handle.add_to(&mut user_state);
            assert_eq!((user_state.since, user_state.devices.len()), (handle.bound_since(), 1));
            user_state.since.is_some()
        };
        assert!(since(&phone, false) && since(&web, false) && since(&web, true));
        assert!(!since(&phone, true));
    }
}
