//! Pushes with more devices than one write or one queue holds.

use crate::fake_shard::Shard;
use crate::support::{NOON, Troubled, World};
use serde_json::json;
use std::{sync::Arc, time::Instant};
use tidings_domain::{
    push_store::*,
    store::{Store, Term},
};
use tidings_engine::config::EngineConfig;
use tidings_protocol::http::*;
use tidings_push::{PushItem, Register};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

fn config() -> EngineConfig {
    EngineConfig { shards: 1, ..EngineConfig::default() }
}

/// Users `u0`, `u1`, … with a hundred devices each.
fn bind_devices(shard: &mut Shard, users: usize) -> Vec<String> {
    let users: Vec<String> = (0..users).map(|n| format!("u{n}")).collect();
    shard.world.users(&users.iter().map(String::as_str).collect::<Vec<_>>());
    for user in &users {
        (0..100).for_each(|n| shard.ask_to_bind(&format!("{user}/phone-{n}")));
    }
    shard.settle();
    assert_eq!(shard.phones.len(), users.len() * 100);
    users
}

#[test]
fn a_named_push_to_2_000_devices_is_one_push_with_few_reads() {
    let store = Arc::new(Troubled::default());
    let mut shard = Shard::new(config(), store.clone());
    let users = bind_devices(&mut shard, 20);
    let request = json!({"collapse_key": "k", "ttl_s": 60});
    let first = shard.push(json!({"users": users}), request.clone());
    assert_eq!(first.targets, 2_000);
    assert_eq!(shard.handed.len(), 2_000, "each device was handed it");
    shard.acknowledge("u3/phone-7", &[first.push]);
    let reads = store.push_reads();
    let second = shard.push(json!({"users": users}), request);
    let reads = store.push_reads() - reads;
    assert!(reads < 1_000, "{reads} reads to replace a push that is pending on 2,000 devices");
    let counts = shard.status(first.push).counts;
    assert_eq!((counts.collapsed, counts.acknowledged, counts.delivered), (1_999, 1, 2_000));
    assert_eq!(shard.status(second.push).counts.pending, 2_000);
    assert_eq!(shard.states(second.push).len(), 2_000);
    shard.at(NOON + 60_000);
    assert_eq!(shard.status(second.push).counts.expired, 2_000);
    shard.at(NOON + 60_000 + 7 * 24 * 60 * 60 * 1_000);
    let last = PushKey::Chunk(u64::MAX, AudienceSet::Collapsed, u32::MAX);
    let left = shard.world.engine.store.push_rows(&PushKey::ClientPushId(String::new()), &last, usize::MAX).unwrap();
    assert_eq!(left, [], "purged pushes leave no rows");
}

#[test]
fn a_full_shard_queue_delays_neither_other_work_nor_high_priority() {
    let mut shard = Shard::new(config(), Arc::new(MemoryStore::default()));
    bind_devices(&mut shard, 1);
    let engine = shard.world.engine.clone();
    let prepare = |to: serde_json::Value| {
        let request = json!({"to": to, "body": 1}).to_string();
        engine.push.prepare(serde_json::from_str(&request).unwrap()).unwrap()
    };
    // Nobody takes anything: the share of normal pushes in the shard's queue is full after some of these.
    let pushes: Vec<u64> = (0..100)
        .map(|_| shard.world.wait(engine.push.accept(prepare(json!({"users": ["u0"]})))).unwrap().push)
        .collect();
    engine.push.settle().unwrap();
    let room = shard.world.receivers[0].push.len();
    assert!(room < 100);
    let high = json!({"to": {"users": ["u0"]}, "body": 1, "priority": "high"}).to_string();
    let high = engine.push.prepare(serde_json::from_str(&high).unwrap()).unwrap();
    let high = shard.world.wait(engine.push.accept(high)).unwrap().push;
    engine.push.settle().unwrap();
    assert_eq!(engine.push.status(high).unwrap().counts.pending, 100, "the worker still answers");
    // No more than is queued now: further items follow as soon as there is room.
    let queued: Vec<PushItem> = shard.world.receivers[0].push.try_iter().take(room + 1).collect();
    let of = |item: &PushItem| match item {
        PushItem::Sessions { frame, .. } => frame.push,
        other => panic!("{other:?}"),
    };
    assert_eq!(queued.last().map(of), Some(high), "a high push does not wait behind all normal ones");
    let mut handed: Vec<u64> = queued.iter().map(of).collect();
    while handed.len() < 101 {
        engine.push.settle().unwrap();
        handed.extend(shard.world.receivers[0].push.try_iter().map(|item| of(&item)));
    }
    handed.retain(|push| *push != high);
    assert_eq!(handed, pushes);
}

#[test]
fn rows_of_a_push_that_was_not_accepted_are_purged_at_the_start() {
    let store = Arc::new(MemoryStore::default());
    {
        let mut shard = Shard::new(config(), store.clone());
        shard.world.users(&["ann"]);
        shard.bind("ann/phone-1");
        shard.push(json!({"users": ["ann"]}), json!({}));
    }
    let Some(PushRow::Push(accepted)) = store.push_row(&PushKey::Push(1)).unwrap() else { panic!("no push") };
    let device = DeviceNo(0);
    let pending =
        StoredPending { device, push: 2, high: false, expires_at: u64::MAX, collapse_key: None, start_order: 2 };
    let (state, delivered_at, ended_at) = (TargetState::Pending, None, None);
    let left = [
        PushRow::Counters { push: 2, device: 1, epoch: store.epoch() },
        PushRow::Push(StoredPush { push: 2, start_order: 2, stage: PushStage::Preparing, ..accepted }),
        PushRow::RecoveryIndex { index: RecoveryIndex::Preparing, push: 2 },
        PushRow::Part { push: 2, part: 0, bytes: b"1".to_vec() },
        PushRow::Pending(pending),
        PushRow::Target(StoredTarget { push: 2, device, state, delivered_at, ended_at }),
    ];
    store.write_push(Term::ALONE, &left.clone().map(PushChange::Put)).unwrap();
    let mut shard = Shard::new(config(), store.clone());
    shard.bind("ann/phone-1");
    assert_eq!(shard.handed("ann/phone-1"), [1], "push 2 was never accepted");
    for row in &left[1..] {
        assert_eq!(store.push_row(&row.key()).unwrap(), None);
    }
    assert_eq!(shard.world.engine.push.user_devices("ann").unwrap().devices[0].pending, 1);
    assert_eq!(shard.push(json!({"users": ["ann"]}), json!({})).push, 3, "its number is not given again");
}

/// Prints how fast devices are registered: a figure to watch, with no limit to hold.
#[test]
fn many_devices_are_registered_in_batches() {
    const USERS: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder.path().join("store"))).unwrap());
    let world = World::new(config(), store.clone());
    let users: Vec<String> = (0..USERS).map(|n| format!("u{n}")).collect();
    world.users(&users.iter().map(String::as_str).collect::<Vec<_>>());
    let began = Instant::now();
    let mut known = 0;
    for user in &users {
        let user = world.user(user).no;
        for n in 0..100_u64 {
            let device_id = format!("phone-{n}").into();
            let (device_kind, app_version) = ("phone".into(), None);
            let (shard, session, since) = (0, n, 0);
            let register = Register { shard, session, user, device_id, device_kind, app_version, since };
            world.engine.push.register(register).unwrap();
        }
        known += world.receivers[0].push.try_iter().count();
    }
    while known < USERS * 100 {
        world.engine.push.settle().unwrap();
        known += world.receivers[0].push.try_iter().count();
    }
    println!("{known} devices in {:?}", began.elapsed());
    let all: PushRequest = serde_json::from_str(r#"{"to": {"all": true}, "body": 1}"#).unwrap();
    let accepted = world.wait(world.engine.push.accept(world.engine.push.prepare(all).unwrap())).unwrap();
    assert_eq!(accepted.targets, USERS as u64 * 100);
}
