//! What a connection's requests report to its slot.

use super::{
    ConnectionSlots,
    table::{APP_SERVER, BUSY, EVICTED, IDLE, SlotState, Usage},
};
use crate::client::Client;
use std::sync::{Arc, atomic::Ordering};

/// What a connection's requests report: that one has begun or ended, and that a credential was accepted.
#[derive(Clone)]
pub struct ConnectionActivity {
    pub(super) slots: Arc<ConnectionSlots>,
    pub(super) state: Arc<SlotState>,
}

impl ConnectionActivity {
    /// A request has begun: its connection is not evicted before the request is answered. False: the connection was
    /// evicted already, and the request must not be carried out.
    pub fn begin_request(&self) -> bool {
        if self.state.phase.load(Ordering::Acquire) == APP_SERVER {
            return true;
        }
        let begun = self.state.change(IDLE, BUSY);
        if begun {
            self.slots.table.lock().remove_idle(&self.state);
        }
        begun
    }

    /// The request was answered.
    pub fn end_request(&self) {
        if self.state.phase.load(Ordering::Acquire) == BUSY {
            let mut table = self.slots.table.lock();
            if self.state.change(BUSY, IDLE) {
                table.add_idle(&self.state);
            }
        }
    }

    /// A credential of this client was accepted on the connection. False: the user has as many connections as one may, none of them
    /// is idle, and the request must be refused.
    pub fn set_client(&self, client: Client) -> bool {
        match client {
            Client::Unauthenticated => true,
            Client::AppServer => {
                if self.state.phase.load(Ordering::Acquire) != APP_SERVER {
                    self.set_app_server();
                }
                true
            }
            Client::User(user) => self.state.user() == Some(user) || self.set_user(user),
        }
    }

    /// Whose connection it is.
    pub fn client(&self) -> Client {
        match self.state.user() {
            _ if self.state.phase.load(Ordering::Acquire) == APP_SERVER => Client::AppServer,
            Some(user) => Client::User(user),
            None => Client::Unauthenticated,
        }
    }

    /// The connection is never evicted from here on.
    fn set_app_server(&self) {
        let mut table = self.slots.table.lock();
        table.remove_idle(&self.state);
        if self.state.change(BUSY, APP_SERVER) || self.state.change(IDLE, APP_SERVER) {
            table.leave_user(&self.state);
        }
    }

    fn set_user(&self, user: u64) -> bool {
        let (slots, state) = (&self.slots, &self.state);
        // Whoever is asked for between an app server and its users decides who uses the connection.
        if state.is_reserved() || [APP_SERVER, EVICTED].contains(&state.phase.load(Ordering::Acquire)) {
            return true;
        }
        let mut table = slots.table.lock();
        let has_room = Usage::has_room(table.users.get(&user), slots.config.per_user_max);
        if !has_room && !slots.evict_oldest_of_user(&mut table, user) {
            return false;
        }
        let was_idle = state.phase.load(Ordering::Acquire) == IDLE;
        table.remove_idle(state);
        table.leave_user(state);
        table.users.entry(user).or_default().open += 1;
        state.user.store(user.saturating_add(1), Ordering::Release);
        if was_idle {
            table.add_idle(state);
        }
        true
    }
}
