//! The open connections of a process, and those among them that have not bound: when there is no room for another, one of these gives
//! way.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use tidings_listen::{Unbound, UnboundConnections};

/// Shared by the listeners and the threads that serve the connections.
pub(crate) struct OpenConnections {
    open: AtomicUsize,
    most: usize,
    pub unbound: Arc<UnboundConnections>,
}

/// A connection that was counted. Its thread has not given it an id yet.
pub(crate) struct EnteredConnection {
    unbound: Unbound,
    /// 0: there is none yet.
    id: Arc<AtomicU64>,
}

impl OpenConnections {
    pub(crate) fn new(most: usize, unbound: Arc<UnboundConnections>) -> Arc<Self> {
        Arc::new(OpenConnections { open: AtomicUsize::new(0), most, unbound })
    }

    pub(crate) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether another connection would be accepted now.
    pub(crate) fn has_room(&self) -> bool {
        self.count() < self.most || self.unbound.can_evict()
    }

    /// Counts one more connection, which waits for its bind. `end` is called with the connection's id when it has to give way. `None`:
    /// there is no room.
    pub(crate) fn enter(
        &self,
        address: Option<IpAddr>,
        end: impl Fn(u64) + Send + Sync + 'static,
    ) -> Option<EnteredConnection> {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let entered = || {
            let id = Arc::new(AtomicU64::new(0));
            let known = id.clone();
            let end = move || match known.load(Ordering::SeqCst) {
                // The thread that gives the id looks whether the connection has given way.
                0 => {}
                id => end(id),
            };
            let unbound = self.unbound.wait_for_bind(address, Box::new(end))?;
            Some(EnteredConnection { unbound, id })
        };
        // The connection that gives way is still counted until its thread has closed it.
        let entered = (before < self.most || self.unbound.evict_oldest()).then(entered).flatten();
        if entered.is_none() {
            self.leave();
        }
        entered
    }

    /// A counted connection is closed.
    pub(crate) fn leave(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EnteredConnection {
    /// The connection has this id from now on. `None`: it has given way to another one already.
    pub(crate) fn begin(self, id: u64) -> Option<Box<Unbound>> {
        self.id.store(id, Ordering::SeqCst);
        (!self.unbound.is_evicted()).then(|| Box::new(self.unbound))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use parking_lot::Mutex;
    use std::time::Duration;
    use tidings_listen::UnboundConnectionsConfig;

    #[test]
    fn a_connection_that_gives_way_is_ended_once_it_has_an_id() {
        let config =
            UnboundConnectionsConfig { per_address_max: 9, per_local_address_max: 9, unbound_min: Duration::ZERO };
        let open = OpenConnections::new(2, UnboundConnections::new(config));
        let ended: Arc<Mutex<Vec<u64>>> = Arc::default();
        let enter = || {
            let ended = ended.clone();
            open.enter(None, move |id| ended.lock().push(id))
        };
        let (first, second) = (enter().unwrap(), enter().unwrap().begin(2).unwrap());
        let third = enter().unwrap();
        assert!(first.begin(1).is_none(), "it gave way before it had an id");
        let fourth = enter().unwrap();
        assert_eq!(*ended.lock(), [2]);
        // Both have bound.
        drop((second, third, fourth));
        open.leave();
        open.leave();
        assert_eq!(open.count(), 2);
        assert!(!open.has_room() && enter().is_none());
        assert_eq!(open.count(), 2);
    }
}
