//! When a user counts as online, for how long after the last session, and how differences are repaired. The tests
//! set the clock.

use crate::support::{NOON, Troubled, World};
use parking_lot::Mutex;
use std::{slice::from_ref, sync::Arc};
use tidings_domain::{
    model::{Actor, UserNo},
    store::Store,
};
use tidings_engine::{
    config::EngineConfig,
    presence::{
        NodeNo, PresenceSession,
        compare::{Correction, LiveSession, SessionSource},
    },
    shards::{Control, WatchUpdate},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{ConversationKind, PresenceComparison, UserPresence},
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const GRACE_MS: u64 = 5_000;
const LEASE_MS: u64 = 15_000;
const CORE: NodeNo = NodeNo(0);

fn world_on(store: Arc<dyn Store>) -> World {
    let world = World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store);
    world.users(&["ann", "ben", "cyd"]);
    world
}

fn world() -> World {
    world_on(Arc::new(MemoryStore::default()))
}

fn device(session: u64, node: NodeNo) -> PresenceSession {
    PresenceSession {
        session,
        node,
        device_id: format!("device {session}").into(),
        device_kind: "web".into(),
        since: NOON,
        chat: true,
        background: false,
    }
}

fn arrive(world: &World, id: &str, session: u64, node: NodeNo) {
    world.engine.presence.register(world.user(id).no, device(session, node));
}

fn leave(world: &World, id: &str, session: u64, now_ms: u64) {
    world.clock.set(now_ms);
    world.engine.presence.unregister(world.user(id).no, session, now_ms);
}

/// Sets the clock, and announces the changes that are due by then.
fn at(world: &World, now_ms: u64) {
    world.clock.set(now_ms);
    world.engine.settle_presence();
}

fn presence(world: &World, id: &str) -> UserPresence {
    world.engine.presence_of(&[id.to_owned()]).unwrap().remove(0)
}

/// The updates that sessions were sent: (session, watched user, online).
fn told(world: &World) -> Vec<(u64, String, bool)> {
    let mut all = Vec::new();
    while let Ok(control) = world.receivers[0].control.try_recv() {
        let Control::Presence(chunks) = control else { continue };
        for WatchUpdate { session, changes, .. } in chunks {
            all.extend(changes.into_iter().map(|change| (session, change.user.to_string(), change.online)));
        }
    }
    all.sort();
    all
}

fn open_direct(world: &World, a: &str, b: &str) {
    let new = serde_json::json!({ "kind": "direct", "members": [a, b] });
    world.wait(world.engine.create_conversation(&Actor::App, serde_json::from_value(new).unwrap())).unwrap();
}

#[test]
fn a_user_counts_as_online_through_the_grace_and_is_last_seen_at_the_end_of_the_last_session() {
    let world = world();
    assert_eq!(
        presence(&world, "ann"),
        UserPresence { user: "ann".into(), online: false, active: false, devices: vec![], last_seen: None }
    );
    arrive(&world, "ann", 1, CORE);
    let here = presence(&world, "ann");
    assert_eq!((here.online, here.devices[0].node.as_str(), here.last_seen), (true, "core", None));

    leave(&world, "ann", 1, NOON + 1_000);
    at(&world, NOON + GRACE_MS);
    let away = presence(&world, "ann");
    assert_eq!((away.online, away.devices.len(), away.last_seen), (true, 0, Some(NOON + 1_000)));
    at(&world, NOON + 1_000 + GRACE_MS);
    let gone = presence(&world, "ann");
    assert_eq!((gone.online, gone.last_seen), (false, Some(NOON + 1_000)));
}

#[test]
fn watchers_get_each_change_once_and_none_for_a_return_within_the_grace() {
    let world = world();
    open_direct(&world, "ann", "ben");
    let ann = world.user("ann");
    let watch = |users: &[&str]| {
        let users: Vec<String> = users.iter().map(|id| (*id).to_owned()).collect();
        world.engine.watch_presence(&ann, None, &users, (0, 77), Some(1))
    };
    assert_eq!(watch(&["cyd"]).unwrap_err().code, ErrorCode::Forbidden, "they share no conversation");
    watch(&["ben"]).unwrap();
    assert_eq!(told(&world), [(77, "ben".into(), false)], "the present state");

    arrive(&world, "ben", 1, CORE);
    at(&world, NOON + 1);
    assert_eq!(told(&world), [(77, "ben".into(), true)]);
    for flap in 0..100 {
        leave(&world, "ben", 1 + flap, NOON + 2);
        arrive(&world, "ben", 2 + flap, CORE);
    }
    leave(&world, "ben", 101, NOON + 3);
    at(&world, NOON + 4);
    watch(&["ben"]).unwrap();
    assert_eq!(told(&world), [(77, "ben".into(), true)], "asked within the grace: who comes back is not told again");
    arrive(&world, "ben", 102, CORE);
    at(&world, NOON + 20_000);
    assert_eq!(told(&world), []);

    leave(&world, "ben", 102, NOON + 30_000);
    at(&world, NOON + 30_000 + GRACE_MS);
    assert_eq!(told(&world), [(77, "ben".into(), false)]);
    world.engine.unwatch_all((0, 77));
    arrive(&world, "ben", 103, CORE);
    at(&world, NOON + 40_000);
    assert_eq!((told(&world), world.engine.presence.watches()), (vec![], 0));
}

#[test]
fn members_of_a_small_group_may_watch_each_other_and_strangers_may_not() {
    let world = world();
    world.conversation(ConversationKind::Group, "house", &["ann", "ben"]);
    let watch = |by: &str, of: &str| {
        let watching = world.engine.watch_presence(&world.user(by), Some("house"), &[of.to_owned()], (0, 7), None);
        watching.map_err(|refusal| refusal.code)
    };
    assert_eq!(watch("ann", "ben"), Ok(()));
    assert_eq!(watch("ann", "cyd"), Err(ErrorCode::Forbidden));
    assert_eq!(watch("cyd", "ben"), Err(ErrorCode::NotAMember));
}

#[test]
fn sessions_of_a_node_whose_lease_is_over_do_not_count() {
    let world = world();
    let nodes = &world.engine.presence.nodes;
    let east = nodes.attach("east", 1, "10.0.0.1:8081", NOON, LEASE_MS);
    arrive(&world, "ann", 1, east);
    arrive(&world, "ben", 2, east);
    arrive(&world, "ben", 3, CORE);
    at(&world, NOON + LEASE_MS);
    assert_eq!((presence(&world, "ann").online, world.engine.metrics.presence_leases_expired.get()), (true, 0));

    at(&world, NOON + LEASE_MS + 1);
    assert!(!presence(&world, "ann").online && presence(&world, "ben").online);
    assert_eq!(presence(&world, "ben").devices.len(), 1, "the session on the other node");
    at(&world, NOON + LEASE_MS + 2);
    assert_eq!(world.engine.metrics.presence_leases_expired.get(), 1, "told once");
    let listed = world.engine.nodes();
    let east_now = listed.iter().find(|node| node.name == "east").unwrap();
    assert_eq!((east_now.sessions, east_now.lease_left_ms), (2, Some(0)), "its sessions are still registered");

    nodes.renew(east, NOON + LEASE_MS + 10, LEASE_MS);
    assert!(presence(&world, "ann").online, "the node was only late");
    let successor = nodes.attach("east", 2, "10.0.0.1:8081", NOON + LEASE_MS + 20, LEASE_MS);
    nodes.detach(east);
    nodes.renew(east, NOON + LEASE_MS + 30, LEASE_MS);
    assert!(!presence(&world, "ann").online, "a ghost as soon as the successor has attached");
    arrive(&world, "ann", 4, successor);
    assert_eq!(presence(&world, "ann").devices.len(), 1);
}

#[test]
fn last_seen_survives_a_restart_even_within_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap());
    let world = world_on(open());
    arrive(&world, "ann", 1, CORE);
    arrive(&world, "ben", 2, CORE);
    leave(&world, "ann", 1, NOON + 1_000);
    at(&world, NOON + 60_000);
    leave(&world, "ben", 2, NOON + 60_500);
    drop(world);

    let world = world_on(open());
    let seen = ["ann", "ben", "cyd"].map(|id| presence(&world, id).last_seen);
    assert_eq!(seen, [Some(NOON + 1_000), Some(NOON + 60_500), None]);
}

#[test]
fn last_seen_is_stored_once_the_store_can_write_again() {
    let store = Arc::new(Troubled::default());
    let world = world_on(store.clone());
    let ann = world.user("ann").no;
    arrive(&world, "ann", 1, CORE);
    leave(&world, "ann", 1, NOON + 1);
    // For good, since rounds come by themselves, too.
    store.fail(usize::MAX);
    at(&world, NOON + 1 + GRACE_MS);
    assert_eq!(store.last_seen(ann).unwrap(), None, "the disk was full");
    assert_eq!(presence(&world, "ann").last_seen, Some(NOON + 1), "and the answer is right");
    store.fail(0);
    at(&world, NOON + 2 + GRACE_MS);
    assert_eq!(store.last_seen(ann).unwrap(), Some(NOON + 1));
}

/// Nodes that answer the lists of a test, one after the other, and the last one from then on.
#[derive(Default)]
struct FakeNodes {
    lists: Mutex<Vec<Vec<LiveSession>>>,
    corrections: Mutex<Vec<Correction>>,
}

impl FakeNodes {
    fn listing(lists: &[&[LiveSession]]) -> FakeNodes {
        let lists = lists.iter().rev().map(|list| list.to_vec()).collect();
        FakeNodes { lists: Mutex::new(lists), ..FakeNodes::default() }
    }
}

impl SessionSource for FakeNodes {
    fn sessions(&self, _: Option<UserNo>) -> Result<Vec<LiveSession>, Refusal> {
        let mut lists = self.lists.lock();
        Ok(if lists.len() > 1 { lists.pop().unwrap() } else { lists[0].clone() })
    }

    fn correct(&self, corrections: Vec<Correction>) -> Result<(), Refusal> {
        self.corrections.lock().extend(corrections);
        Ok(())
    }
}

fn live(world: &World, id: &str, session: u64, node: NodeNo) -> LiveSession {
    let PresenceSession { device_id, device_kind, since, chat, .. } = device(session, node);
    let user = world.user(id).no;
    LiveSession { shard: 0, session, node, user, device_id, device_kind, since, chat, background: false, held: true }
}

fn counts(found: &PresenceComparison) -> (u64, u64, u64, u64) {
    (found.ghosts, found.missing, found.wrong_node, found.repaired)
}

#[test]
fn a_comparison_names_ghosts_missing_sessions_and_wrong_nodes() {
    let world = world();
    let east = world.engine.presence.nodes.attach("east", 1, "", NOON, LEASE_MS);
    arrive(&world, "ann", 1, CORE);
    arrive(&world, "ann", 2, CORE);
    arrive(&world, "ben", 3, east);
    arrive(&world, "ben", 4, east);
    let unheld = LiveSession { held: false, ..live(&world, "ben", 4, east) };
    let list = [live(&world, "ann", 1, CORE), live(&world, "ben", 3, CORE), unheld, live(&world, "cyd", 5, east)];
    let fake = FakeNodes::listing(&[&list]);
    let found = world.engine.presence_comparison(&fake, false).unwrap();
    assert_eq!((found.registered, found.held, counts(&found)), (4, 3, (2, 1, 1, 0)));
    let mut named: Vec<_> = found.differences.iter().map(|d| (d.kind.as_str(), d.session.as_str())).collect();
    named.sort_unstable();
    assert_eq!(named, [("ghost", "2"), ("ghost", "4"), ("missing", "5"), ("wrong_node", "3")]);
    assert_eq!(*fake.corrections.lock(), [], "no repair was requested");

    assert_eq!(counts(&world.engine.presence_comparison(&fake, true).unwrap()), (2, 1, 1, 4));
    let mut corrected: Vec<_> = fake.corrections.lock().iter().map(|c| (c.session, c.held)).collect();
    corrected.sort_unstable();
    assert_eq!(corrected, [(2, false), (3, true), (4, false), (5, true)]);
    let metrics = &world.engine.metrics;
    assert_eq!((metrics.presence_differences.get(), metrics.presence_repaired.get()), (8, 4));
}

#[test]
fn a_change_between_the_two_passes_is_no_difference() {
    let world = world();
    arrive(&world, "ann", 1, CORE);
    let (ann, ben) = (live(&world, "ann", 1, CORE), live(&world, "ben", 2, CORE));
    // Only in the second list: the node did not know its session yet.
    let late = FakeNodes::listing(&[&[], from_ref(&ann)]);
    assert_eq!(counts(&world.engine.presence_comparison(&late, true).unwrap()), (0, 0, 0, 0));
    // Only in the first list: the session ended before it was registered.
    let gone = FakeNodes::listing(&[&[ann.clone(), ben.clone()], from_ref(&ann)]);
    assert_eq!(counts(&world.engine.presence_comparison(&gone, true).unwrap()), (0, 0, 0, 0));
    // Nothing differs: there is no second pass.
    let same = FakeNodes::listing(&[from_ref(&ann), &[ann.clone(), ben]]);
    let found = world.engine.presence_comparison(&same, true).unwrap();
    assert_eq!((counts(&found), same.lists.lock().len()), ((0, 0, 0, 0), 1));
}
