//! A node whose clock is wrong, or jumps, gives messages the store's time, says so, and is not ready while it is far off.

use crate::support::*;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::model::{Actor, ConversationKind};
use tidings_testkit::{LocalBus, MemoryStore};

const HOUR: u64 = 3_600_000;
/// Clocks are compared five times in a lease.
const LEASE: Duration = Duration::from_secs(3);

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn say(world: &World, id: &str) -> u64 {
    world.wait(world.engine.send(&Actor::App, message("ada", "g", id))).unwrap().at
}

#[test]
fn messages_keep_the_stores_time_when_a_nodes_clock_jumps_and_the_node_says_so() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    store.set_clock(NOON);
    let node = |name: &str| World::node_on(name, &store, store.clone(), Arc::new(bus.clone()), LEASE);
    let (wrong, right) = (node("wrong"), node("right"));
    wrong.users(&["ada", "ben"]);
    wrong.conversation(ConversationKind::Group, "g", &["ada", "ben"]);
    until("both are ready", || wrong.engine.readiness().is_ok() && right.engine.readiness().is_ok());
    assert_eq!((say(&wrong, "1"), say(&right, "2")), (NOON, NOON));

    wrong.clock.set(NOON + HOUR);
    assert_eq!((say(&wrong, "3"), say(&right, "4")), (NOON, NOON), "before the clocks are compared again");
    let refused = |part: &str| wrong.engine.readiness().is_err_and(|why| why.contains(part));
    until("the node is not ready", || refused("this machine's clock is 3600.0 s ahead of PostgreSQL's"));
    assert_eq!((say(&wrong, "5"), say(&right, "6")), (NOON, NOON));
    assert_eq!(wrong.engine.metrics.cluster.clock_ahead.get(), 3_600.0);
    assert!(right.engine.cluster.as_ref().unwrap().warnings().is_empty());

    wrong.clock.set(NOON - HOUR);
    until("it is behind", || refused("3600.0 s behind"));
    assert_eq!((say(&wrong, "7"), say(&right, "8")), (NOON, NOON));
    wrong.clock.set(NOON);
    until("it is ready again", || wrong.engine.readiness().is_ok());
    assert_eq!(say(&wrong, "9"), NOON);
}
