//! Memory for bytes that clients have not read yet: one budget for all connections of a process, and a share of it for each user.
//!
//! A connection whose socket takes no more bytes keeps the rest in memory. What one connection may keep is its listener's matter; this
//! budget bounds them together. A connection reports what it keeps with its [`Holding`]. When a user's connections keep more than the
//! user's share, the one that has kept bytes for longest is closed; when all keep more than the budget, the one of all users that has.
//! The only connection of a user is never closed for the user's share, since nothing else of that user could be: its listener's own
//! bound holds. Connections of app servers are closed last.
//!
//! Bytes that many connections share, such as the entry of a group, are not reported: they are in memory once, however many wait for
//! them.

use crate::client::Client;
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Changes of less than this are not reported: a socket's own buffer is many times as large.
const REPORTED_BYTES_MIN: usize = 4 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboundBudgetConfig {
    /// Bytes that all connections keep.
    pub bytes_max: usize,
    /// Of these, bytes of one user's connections.
    pub user_bytes_max: usize,
}

impl Default for OutboundBudgetConfig {
    fn default() -> Self {
        OutboundBudgetConfig { bytes_max: 512 << 20, user_bytes_max: 16 << 20 }
    }
}

/// The budget of one process.
pub struct OutboundBudget {
    config: OutboundBudgetConfig,
    table: Mutex<Table>,
    closed: AtomicU64,
}

/// Has a connection closed. It is called without a lock, on any thread, and must not wait.
pub type CloseConnection = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Table {
    next: u64,
    holders: HashMap<u64, Holder>,
    /// Connections that keep bytes, in the order in which they are closed: those of app servers last.
    open: BTreeSet<(bool, Turn)>,
    users: HashMap<u64, UserShare>,
    /// All bytes.
    held: usize,
    /// Those of connections that are being closed: they are still in memory, and need no further connection to be closed.
    leaving: usize,
}

/// When a connection began to keep bytes, and its number.
type Turn = (u64, u64);

struct Holder {
    client: Client,
    bytes: usize,
    since: u64,
    /// Absent once the connection is being closed.
    close: Option<CloseConnection>,
}

/// The connections of one user that keep bytes and are not being closed.
#[derive(Default)]
struct UserShare {
    bytes: usize,
    open: BTreeSet<Turn>,
}

/// The bytes that one connection keeps; dropping it returns them.
pub struct Holding {
    budget: Arc<OutboundBudget>,
    number: u64,
    reported: usize,
}

impl std::fmt::Debug for OutboundBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboundBudget")
            .field("config", &self.config)
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

impl OutboundBudget {
    pub fn new(config: OutboundBudgetConfig) -> Arc<Self> {
        Arc::new(OutboundBudget { config, table: Mutex::default(), closed: AtomicU64::new(0) })
    }

    /// Bytes that connections keep now.
    pub fn held(&self) -> usize {
        self.table.lock().held
    }

    pub fn bytes_max(&self) -> usize {
        self.config.bytes_max
    }

    /// How many connections were closed because they kept bytes for too long.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// A connection may keep bytes from now on. `close` is called at most once, when others need the memory.
    pub fn hold(self: &Arc<Self>, client: Client, close: CloseConnection) -> Holding {
        let mut table = self.table.lock();
        let number = table.next();
        table.holders.insert(number, Holder { client, bytes: 0, since: 0, close: Some(close) });
        Holding { budget: self.clone(), number, reported: 0 }
    }

    fn set(&self, number: u64, bytes: usize) {
        let mut closing = Vec::new();
        let mut table = self.table.lock();
        table.set(number, bytes);
        while let Some(over) = table.next_to_close(number, self.config) {
            closing.extend(table.begin_close(over));
        }
        drop(table);
        self.closed.fetch_add(closing.len() as u64, Ordering::Relaxed);
        closing.into_iter().for_each(|close| close());
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn set(&mut self, number: u64, bytes: usize) {
        let now = self.next();
        let Some(holder) = self.holders.get_mut(&number) else { return };
        if holder.bytes == 0 {
            holder.since = now;
        }
        self.held = self.held - holder.bytes + bytes;
        if holder.close.is_none() {
            self.leaving = self.leaving - holder.bytes + bytes;
        }
        let before = std::mem::replace(&mut holder.bytes, bytes);
        let (client, turn, is_open) = (holder.client, (holder.since, number), holder.close.is_some());
        if is_open {
            self.count(client, turn, before, bytes);
        }
    }

    /// An open connection keeps so many bytes instead of `before`.
    fn count(&mut self, client: Client, turn: Turn, before: usize, bytes: usize) {
        let key = (client == Client::AppServer, turn);
        if bytes == 0 {
            self.open.remove(&key)
        } else {
            self.open.insert(key)
        };
        let Client::User(user) = client else { return };
        let share = self.users.entry(user).or_default();
        share.bytes = share.bytes - before + bytes;
        if bytes == 0 {
            share.open.remove(&turn)
        } else {
            share.open.insert(turn)
        };
        if share.open.is_empty() {
            self.users.remove(&user);
        }
    }

    /// The connection to close after this one has reported its bytes.
    fn next_to_close(&self, number: u64, config: OutboundBudgetConfig) -> Option<u64> {
        let share = match self.holders.get(&number)?.client {
            Client::User(user) => self.users.get(&user),
            _ => None,
        };
        if let Some(share) = share.filter(|share| share.bytes > config.user_bytes_max && share.open.len() > 1) {
            return share.open.first().map(|(_, number)| *number);
        }
        let is_over = self.held - self.leaving > config.bytes_max && self.open.len() > 1;
        self.open.first().filter(|_| is_over).map(|(_, (_, number))| *number)
    }

    fn begin_close(&mut self, number: u64) -> Option<CloseConnection> {
        let holder = self.holders.get_mut(&number)?;
        let (client, turn, bytes) = (holder.client, (holder.since, number), holder.bytes);
        let close = holder.close.take()?;
        self.leaving += bytes;
        self.count(client, turn, bytes, 0);
        Some(close)
    }

    fn remove(&mut self, number: u64) {
        self.set(number, 0);
        self.holders.remove(&number);
    }
}

impl Holding {
    /// Reports how many bytes the connection keeps now.
    pub fn set(&mut self, bytes: usize) {
        let is_released = bytes == 0 && self.reported > 0;
        if is_released || bytes.abs_diff(self.reported) >= REPORTED_BYTES_MIN {
            self.reported = bytes;
            self.budget.set(self.number, bytes);
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut table = self.budget.table.lock();
        table.remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    /// Connections by their names, and the names of those that were closed, in order.
    struct Connections {
        budget: Arc<OutboundBudget>,
        closed: Arc<Mutex<Vec<&'static str>>>,
    }

    impl Connections {
        fn new(bytes_max: usize, user_bytes_max: usize) -> Self {
            let budget = OutboundBudget::new(OutboundBudgetConfig { bytes_max, user_bytes_max });
            Connections { budget, closed: Arc::default() }
        }

        fn hold(&self, name: &'static str, client: Client, bytes: usize) -> Holding {
            let closed = self.closed.clone();
            let mut holding = self.budget.hold(client, Box::new(move || closed.lock().push(name)));
            holding.set(bytes);
            holding
        }

        #[track_caller]
        fn check(&self, closed: &[&str], held: usize) {
            assert_eq!((&self.closed.lock()[..], self.budget.held()), (closed, held));
        }
    }

    #[test]
    fn a_user_over_the_share_loses_the_connection_that_has_kept_bytes_for_longest() {
        let all = Connections::new(1_000 * KIB, 100 * KIB);
        let [ann, bob] = [1, 2].map(Client::User);
        let other = all.hold("other", bob, 60 * KIB);
        let mut first = all.hold("first", ann, 40 * KIB);
        let second = all.hold("second", ann, 40 * KIB);
        all.check(&[], 140 * KIB);
        first.set(70 * KIB);
        all.check(&["first"], 170 * KIB);
        // What the closed connection keeps until its thread has dropped it costs no other connection its life.
        let third = all.hold("third", ann, 50 * KIB);
        first.set(80 * KIB);
        all.check(&["first"], 230 * KIB);
        drop(first);
        all.check(&["first"], 150 * KIB);
        drop((second, third, other));
        all.check(&["first"], 0);
        assert!(all.budget.table.lock().users.is_empty() && all.budget.table.lock().open.is_empty());
    }

    #[test]
    fn a_connection_that_keeps_nothing_is_not_closed_for_one_that_does() {
        let all = Connections::new(1_000 * KIB, 100 * KIB);
        let ann = Client::User(1);
        let mut idle = all.hold("idle", ann, 0);
        let mut first = all.hold("first", ann, 60 * KIB);
        first.set(0);
        let _second = all.hold("second", ann, 60 * KIB);
        // The time counts from when it began to keep bytes, without a break.
        first.set(60 * KIB);
        all.check(&["second"], 120 * KIB);
        idle.set(10 * KIB);
        all.check(&["second"], 130 * KIB);
    }

    #[test]
    fn the_only_connection_of_a_user_may_keep_more_than_the_share() {
        let all = Connections::new(1_000 * KIB, 100 * KIB);
        let alone = all.hold("alone", Client::User(1), 300 * KIB);
        all.check(&[], 300 * KIB);
        let _second = all.hold("second", Client::User(1), 5 * KIB);
        all.check(&["alone"], 305 * KIB);
        drop(alone);
        all.check(&["alone"], 5 * KIB);
    }

    #[test]
    fn beyond_the_budget_users_connections_are_closed_before_those_of_app_servers() {
        let all = Connections::new(100 * KIB, 60 * KIB);
        let _app = all.hold("app", Client::AppServer, 50 * KIB);
        let _ann = all.hold("ann", Client::User(1), 40 * KIB);
        let _unknown = all.hold("unknown", Client::Unauthenticated, 30 * KIB);
        all.check(&["ann"], 120 * KIB);
        let _bob = all.hold("bob", Client::User(2), 40 * KIB);
        all.check(&["ann", "unknown"], 160 * KIB);
        let _app_too = all.hold("app too", Client::AppServer, 90 * KIB);
        all.check(&["ann", "unknown", "bob", "app"], 250 * KIB);
        assert_eq!(all.budget.closed(), 4);
    }
}
