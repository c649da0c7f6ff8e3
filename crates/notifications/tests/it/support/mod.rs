//! The engine's support for tests, with notifications above the engine.
#![allow(unreachable_pub)]

#[allow(dead_code)]
#[path = "../../../../engine/tests/it/support/mod.rs"]
mod of_engine;

pub use of_engine::*;
use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};
use tidings_domain::{
    commit_log::CommitLog,
    store::{NotificationTable, Store, StoredNotification},
};
use tidings_engine::config::EngineConfig;
use tidings_notifications::{
    NotificationParts, Notifications, NotificationsConfig, internal_channels::InternalChannelsConfig,
};
use tidings_testkit::{LocalBus, MemoryStore};

/// The engine's world, and what notifies its people.
pub struct World {
    below: of_engine::World,
    pub notifications: Arc<Notifications>,
}

impl World {
    pub fn new(config: EngineConfig, store: Arc<dyn Store>) -> World {
        World::with(config, store, NotificationParts::default())
    }

    pub fn with(config: EngineConfig, store: Arc<dyn Store>, parts: NotificationParts) -> World {
        World::above(of_engine::World::new(config, store), parts)
    }

    /// One of several nodes on one store.
    pub fn node(
        name: &str,
        store: &Arc<MemoryStore>,
        log: Arc<dyn CommitLog>,
        bus: &LocalBus,
        lease: Duration,
    ) -> World {
        World::node_with_parts(name, store, log, bus, lease, NotificationParts::default())
    }

    /// The same, with what notifies its people.
    pub fn node_with_parts(
        name: &str,
        store: &Arc<MemoryStore>,
        log: Arc<dyn CommitLog>,
        bus: &LocalBus,
        lease: Duration,
        parts: NotificationParts,
    ) -> World {
        World::above(of_engine::World::node_on(name, store, log, Arc::new(bus.clone()), lease), parts)
    }

    fn above(below: of_engine::World, parts: NotificationParts) -> World {
        let notifications = Notifications::start(&below.engine, parts);
        World { below, notifications }
    }

    pub fn stop(&self) {
        self.notifications.stop();
        self.below.engine.stop();
    }
}

impl Deref for World {
    type Target = of_engine::World;

    fn deref(&self) -> &of_engine::World {
        &self.below
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut of_engine::World {
        &mut self.below
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Nobody hands out any more: a push must not wait for it.
        self.below.receivers.clear();
        self.notifications.stop();
    }
}

/// What the store has in its tables of notifications.
pub fn stored(store: &dyn Store) -> Vec<StoredNotification> {
    let of = |table| store.stored_notifications(table, None, 100).unwrap();
    NotificationTable::ALL.into_iter().flat_map(of).collect()
}

/// No webhook and no providers, but these channels.
pub fn with_internal_channels(internal_channels: InternalChannelsConfig) -> NotificationParts {
    let config = NotificationsConfig { internal_channels, ..NotificationsConfig::default() };
    NotificationParts { config, ..NotificationParts::default() }
}
