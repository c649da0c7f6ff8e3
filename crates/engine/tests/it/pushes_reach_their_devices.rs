//! The rules of push, one by one, at a shard without sockets.

use crate::fake_shard::Shard;
use crate::support::{NOON, Troubled};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};
use tidings_domain::{
    push_store::{PushChange, PushKey, PushRow, PushStore},
    store::{Store, Term},
    user_limiter::PerMinute,
};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_push::PushConfig;
use tidings_testkit::MemoryStore;

const DAY: u64 = 24 * 60 * 60 * 1_000;

fn shard() -> Shard {
    shard_with(PushConfig::default())
}

fn shard_with(push: PushConfig) -> Shard {
    let config = EngineConfig { shards: 1, push, ..EngineConfig::default() };
    let shard = Shard::new(config, Arc::new(MemoryStore::default()));
    shard.world.users(&["ann", "bob", "cat"]);
    shard
}

#[test]
fn a_push_is_handed_out_at_once_or_on_bind_until_it_is_acknowledged() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    shard.bind("ann/tv-1");
    shard.leave("ann/tv-1");
    let push = shard.push(json!({"users": ["ann", "nobody"]}), json!({}));
    assert_eq!((push.targets, push.unknown, push.state), (2, 1, PushState::Running));
    assert_eq!(shard.handed("ann/phone-1"), [push.push]);
    let counts = shard.status(push.push).counts;
    assert_eq!((counts.pending, counts.offline, counts.delivered), (2, 1, 1));
    shard.bind("ann/tv-1");
    assert_eq!(shard.handed("ann/tv-1"), [push.push]);
    shard.acknowledge("ann/tv-1", &[push.push]);
    for name in ["ann/tv-1", "ann/phone-1"] {
        shard.leave(name);
        shard.bind(name);
    }
    assert_eq!(shard.handed("ann/tv-1"), [] as [u64; 0], "it has acknowledged the push");
    assert_eq!(shard.handed("ann/phone-1"), [push.push], "again: it has not acknowledged the push");
    shard.acknowledge("ann/phone-1", &[push.push, 99, push.push]);
    let status = shard.status(push.push);
    assert_eq!(status.state, PushState::Completed);
    assert_eq!((status.counts.targets, status.counts.acknowledged, status.counts.pending), (2, 2, 0));
}

#[test]
fn a_push_to_all_reaches_the_devices_bound_before_it() {
    let mut shard = shard();
    for name in ["ann/phone-1", "bob/phone-1", "cat/tv-1"] {
        shard.bind(name);
    }
    shard.leave("bob/phone-1");
    let push = shard.push(json!({"all": true}), json!({})).push;
    shard.bind("cat/phone-9");
    shard.bind("bob/phone-1");
    assert_eq!(shard.handed("ann/phone-1"), [push]);
    assert_eq!(shard.handed("cat/tv-1"), [push]);
    assert_eq!(shard.handed("bob/phone-1"), [push], "it was away");
    assert_eq!(shard.handed("cat/phone-9"), [] as [u64; 0], "it came later");
    shard.acknowledge("cat/phone-9", &[push]);
    shard.acknowledge("ann/phone-1", &[push]);
    let counts = shard.status(push).counts;
    assert_eq!((counts.targets, counts.delivered, counts.acknowledged, counts.pending), (3, 3, 1, 2));
    let states = shard.states(push);
    assert_eq!(states["ann/phone-1"], DeviceState::Acknowledged);
    assert_eq!(states["bob/phone-1"], DeviceState::Delivered);
    shard.acknowledge("bob/phone-1", &[push]);
    shard.acknowledge("cat/tv-1", &[push]);
    let status = shard.status(push);
    assert_eq!((status.state, status.counts.acknowledged), (PushState::Completed, 3));
    assert_eq!(shard.states(push).len(), 3, "its sets are read back");
}

#[test]
fn tags_and_kinds_choose_devices_and_a_dry_run_counts_them() {
    let mut shard = shard();
    for name in ["ann/phone-1", "ann/tv-1", "bob/phone-1"] {
        shard.bind(name);
    }
    shard.leave("bob/phone-1");
    let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
    let engine = shard.world.engine.clone();
    engine.push.set_device_tags("ann", "phone-1", tags(&["news", "de"])).unwrap();
    engine.push.set_device_tags("bob", "phone-1", tags(&["news", "fr"])).unwrap();
    let reach = |to: serde_json::Value| {
        let request = json!({"to": to, "body": 1}).to_string();
        let reach = engine.push.reach(engine.push.prepare(serde_json::from_str(&request).unwrap()).unwrap()).unwrap();
        (reach.devices, reach.online)
    };
    assert_eq!(reach(json!({"tags": {"any": ["news"]}})), (2, 1));
    assert_eq!(reach(json!({"tags": {"any": ["de", "fr"], "all": ["news"]}})), (2, 1));
    assert_eq!(reach(json!({"tags": {"all": ["news", "de"]}})), (1, 1));
    assert_eq!(reach(json!({"tags": {"any": ["none"]}})), (0, 0));
    assert_eq!(reach(json!({"all": true, "kinds": ["tv"]})), (1, 1));
    assert_eq!(reach(json!({"users": ["ann"], "kinds": ["phone"]})), (1, 1));
    assert_eq!(reach(json!({"devices": [{"user": "bob", "device_id": "phone-1"}]})), (1, 0));
    let push = shard.push(json!({"tags": {"any": ["news"]}}), json!({}));
    assert_eq!(push.targets, 2);
    assert_eq!(shard.handed("ann/phone-1"), [push.push]);
    assert_eq!(shard.handed("ann/tv-1"), [] as [u64; 0]);
}

#[test]
fn the_newest_push_with_a_collapse_key_replaces_the_older_ones() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    shard.bind("bob/phone-1");
    shard.leave("ann/phone-1");
    let key = json!({"collapse_key": "score"});
    let named = shard.push(json!({"users": ["ann"]}), key.clone()).push;
    let other = shard.push(json!({"users": ["ann"]}), json!({"collapse_key": "news"})).push;
    let newer = shard.push(json!({"users": ["ann"]}), key.clone()).push;
    assert_eq!(shard.status(named).counts.collapsed, 1);
    let many = shard.push(json!({"all": true}), key.clone()).push;
    assert_eq!(shard.handed("bob/phone-1"), [many]);
    shard.bind("ann/phone-1");
    assert_eq!(shard.handed("ann/phone-1"), [other, many]);
    assert_eq!(shard.status(newer).counts.collapsed, 1, "a push to all replaces a named one");
    shard.acknowledge("bob/phone-1", &[many]);
    let newest = shard.push(json!({"users": ["ann", "bob"]}), key.clone()).push;
    shard.acknowledge("bob/phone-1", &[newest]);
    let counts = shard.status(many).counts;
    assert_eq!((counts.acknowledged, counts.collapsed), (1, 1), "{counts:?}");
    assert_eq!(shard.status(newest).counts.pending, 1);
}

#[test]
fn a_backlog_is_handed_out_in_batches_high_priority_first() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    shard.leave("ann/phone-1");
    let normal: Vec<u64> = (0..70).map(|_| shard.push(json!({"users": ["ann"]}), json!({})).push).collect();
    let high = shard.push(json!({"users": ["ann"]}), json!({"priority": "high"})).push;
    shard.bind("ann/phone-1");
    let first = shard.handed("ann/phone-1");
    assert_eq!((first.len(), first[0], first[1]), (32, high, normal[0]));
    shard.acknowledge("ann/phone-1", &first[1..]);
    assert_eq!(shard.handed("ann/phone-1"), [] as [u64; 0], "one of the batch is not acknowledged");
    shard.acknowledge("ann/phone-1", &[high]);
    let second = shard.handed("ann/phone-1");
    assert_eq!(second, normal[31..63]);
    shard.acknowledge("ann/phone-1", &second);
    assert_eq!(shard.handed("ann/phone-1"), normal[63..]);
}

/// Named pushes, pushes to many, collapsed ones, and backlogs in batches: whatever is acknowledged at once changes the same as it
/// would device by device and push by push.
#[test]
fn acknowledgements_that_are_reported_together_change_the_same_as_one_by_one() {
    const NAMES: [&str; 4] = ["ann/phone-1", "ann/tv-1", "bob/phone-1", "cat/phone-1"];
    for seed in 0..6_u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut shards = [shard(), shard()];
        let pushes = shards.each_mut().map(|shard| {
            NAMES.iter().for_each(|name| shard.bind(name));
            shard.leave("ann/phone-1");
            let mut pushes: Vec<u64> = (0..40).map(|_| shard.push(json!({"users": ["ann"]}), json!({})).push).collect();
            for key in ["a", "a", "b"] {
                pushes.push(shard.push(json!({"all": true}), json!({"collapse_key": key})).push);
            }
            pushes.push(shard.push(json!({"users": ["ann", "bob", "cat"]}), json!({"collapse_key": "b"})).push);
            shard.bind("ann/phone-1");
            pushes
        });
        assert_eq!(pushes[0], pushes[1]);
        for round in 0..4 {
            let (mut some, unknown) = (Vec::new(), 1_000);
            for _ in 0..random.random_range(1..60) {
                let push = pushes[0].get(random.random_range(0..50)).copied().unwrap_or(unknown);
                some.push((NAMES[random.random_range(0..NAMES.len())], push));
            }
            let [one_by_one, together] = &mut shards;
            some.iter().for_each(|(name, push)| one_by_one.acknowledge(name, &[*push]));
            let some: Vec<_> = some.iter().map(|(name, push)| (*name, std::slice::from_ref(push))).collect();
            together.report_all_acknowledged(&some);
            together.settle();
            for push in &pushes[0] {
                let [one, other] = shards.each_ref().map(|shard| (shard.states(*push), shard.status(*push).counts));
                assert_eq!(one, other, "push {push} in round {round} of seed {seed}");
            }
            for name in NAMES {
                let handed = shards.each_mut().map(|shard| {
                    let mut handed = shard.handed(name);
                    handed.sort_unstable();
                    handed
                });
                assert_eq!(handed[0], handed[1], "{name} in round {round} of seed {seed}");
            }
        }
        let left = shards.each_mut().map(|shard| {
            NAMES.map(|name| {
                shard.leave(name);
                shard.bind(name);
                shard.handed(name)
            })
        });
        assert_eq!(left[0], left[1], "what comes again, with seed {seed}");
    }
}

#[test]
fn a_push_that_starts_beside_a_backlog_is_handed_out_once() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    shard.leave("ann/phone-1");
    let missed: Vec<u64> = (0..40).map(|_| shard.push(json!({"users": ["ann"]}), json!({})).push).collect();
    shard.bind("ann/phone-1");
    assert_eq!(shard.handed("ann/phone-1"), missed[..32]);
    let named = shard.push(json!({"users": ["ann"]}), json!({})).push;
    let to_many = shard.push(json!({"all": true}), json!({})).push;
    assert_eq!(shard.handed("ann/phone-1"), [named, to_many], "both start at once");
    shard.acknowledge("ann/phone-1", &missed[..32]);
    assert_eq!(shard.handed("ann/phone-1"), missed[32..], "without those that the session was handed at their start");
    shard.acknowledge("ann/phone-1", &missed[32..]);
    shard.leave("ann/phone-1");
    shard.bind("ann/phone-1");
    assert_eq!(shard.handed("ann/phone-1"), [named, to_many], "the new session was not handed them");
}

#[test]
fn a_push_expires_on_devices_that_did_not_bind_in_time() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    shard.bind("bob/phone-1");
    shard.leave("ann/phone-1");
    let named = shard.push(json!({"users": ["ann", "bob"]}), json!({"ttl_s": 60})).push;
    let many = shard.push(json!({"all": true}), json!({"ttl_s": 60})).push;
    shard.acknowledge("bob/phone-1", &[named, many]);
    shard.at(NOON + 59_999);
    assert_eq!(shard.status(named).state, PushState::Running);
    shard.at(NOON + 60_000);
    for push in [named, many] {
        let status = shard.status(push);
        let counts = status.counts;
        assert_eq!(status.state, PushState::Expired);
        assert_eq!((counts.targets, counts.acknowledged, counts.expired, counts.pending), (2, 1, 1, 0), "{push}");
        assert_eq!(status.ended_at, Some(NOON + 60_000));
    }
    shard.bind("ann/phone-1");
    assert_eq!(shard.handed("ann/phone-1"), [] as [u64; 0]);
    let cards = shard.world.engine.push.user_devices("ann").unwrap().devices;
    assert_eq!(cards[0].pending, 0);
    shard.at(NOON + 60_000 + 7 * DAY);
    for push in [named, many] {
        assert_eq!(shard.world.engine.push.status(push).unwrap_err().code, ErrorCode::NotFound);
    }
}

#[test]
fn a_scheduled_push_starts_at_its_time_and_finds_its_devices_then() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    let at = NOON + 5_000;
    let named = json!({"devices": [{"user": "bob", "device_id": "phone-1"}, {"user": "ann", "device_id": "phone-1"}]});
    let named = shard.push(named, json!({"send_at": at, "ttl_s": 10}));
    let many = shard.push(json!({"all": true}), json!({"send_at": at}));
    let cancelled = shard.push(json!({"all": true}), json!({"send_at": at}));
    assert_eq!((named.state, named.targets, named.expires_at), (PushState::Scheduled, 0, at + 10_000));
    assert_eq!(shard.world.engine.push.cancel(cancelled.push).unwrap().state, PushState::Cancelled);
    assert_eq!(shard.handed("ann/phone-1"), [] as [u64; 0]);
    shard.bind("bob/phone-1");
    shard.at(NOON - DAY);
    assert_eq!(shard.status(named.push).state, PushState::Scheduled, "a clock that goes back starts nothing");
    shard.at(at);
    let both = [named.push, many.push];
    assert_eq!(shard.handed("ann/phone-1"), both);
    assert_eq!(shard.handed("bob/phone-1"), both);
    assert_eq!(shard.status(named.push).counts.targets, 2);
    assert_eq!(shard.status(cancelled.push).state, PushState::Cancelled);
    let past = shard.push(json!({"users": ["ann"]}), json!({"send_at": 1}));
    assert_eq!(past.state, PushState::Running);
}

#[test]
fn a_cancelled_push_is_handed_to_no_further_device() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    shard.bind("bob/phone-1");
    shard.leave("ann/phone-1");
    for to in [json!({"users": ["ann", "bob"]}), json!({"all": true})] {
        let push = shard.push(to, json!({"collapse_key": "k"})).push;
        shard.acknowledge("bob/phone-1", &[push]);
        shard.world.engine.push.cancel(push).unwrap();
        shard.bind("ann/phone-1");
        assert_eq!(shard.handed("ann/phone-1"), [] as [u64; 0]);
        let status = shard.status(push);
        assert_eq!((status.state, status.counts.cancelled, status.counts.acknowledged), (PushState::Cancelled, 1, 1));
        assert_eq!(shard.states(push)["ann/phone-1"], DeviceState::Cancelled);
        shard.world.engine.push.cancel(push).unwrap();
        shard.leave("ann/phone-1");
    }
    let done = shard.push(json!({"users": ["cat"]}), json!({})).push;
    assert_eq!(shard.world.engine.push.cancel(done).unwrap_err().code, ErrorCode::Conflict);
    // Every target has acknowledged the push.
    let arrived = shard.push(json!({"users": ["bob"]}), json!({})).push;
    shard.acknowledge("bob/phone-1", &[arrived]);
    assert_eq!(shard.status(arrived).state, PushState::Completed);
    assert_eq!(shard.world.engine.push.cancel(arrived).unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(shard.status(arrived).state, PushState::Completed);
}

#[test]
fn a_retry_answers_with_the_first_result() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    let more = json!({"client_push_id": "order-7"});
    let first = shard.push(json!({"users": ["ann"]}), more.clone());
    let again = shard.push(json!({"users": ["ann"]}), more);
    assert_eq!(again, PushAccepted { duplicate: true, ..first.clone() });
    assert_eq!(shard.handed("ann/phone-1"), [first.push]);
}

#[test]
fn full_queues_refuse_pushes_and_full_devices_are_counted() {
    let bounds = PushConfig { pending_per_device: 2, running_to_many: 1, scheduled: 1, ..PushConfig::default() };
    let mut shard = shard_with(bounds);
    shard.bind("ann/phone-1");
    shard.leave("ann/phone-1");
    let key = json!({"collapse_key": "k"});
    shard.push(json!({"users": ["ann"]}), json!({}));
    let second = shard.push(json!({"users": ["ann"]}), key.clone()).push;
    let third = shard.push(json!({"users": ["ann"]}), json!({}));
    assert_eq!((third.targets, third.refused_full, third.state), (0, 1, PushState::Completed));
    assert_eq!(shard.push(json!({"users": ["ann"]}), key).targets, 1, "it replaces a pending one");
    assert_eq!(shard.status(second).counts.collapsed, 1);
    let request = |more: serde_json::Value| {
        let mut request = json!({"to": {"all": true}, "body": 1});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    shard.try_push(request(json!({}))).unwrap();
    let refusal = shard.try_push(request(json!({}))).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::QueueFull);
    assert!(refusal.detail.contains("limited to 1") && refusal.retry_after_ms.is_some());
    let later = json!({"send_at": NOON + 1_000});
    shard.try_push(request(later.clone())).unwrap();
    assert_eq!(shard.try_push(request(later)).unwrap_err().code, ErrorCode::QueueFull);
    shard.at(NOON + 1_000);
    assert_eq!(shard.status(5).state, PushState::Running);
}

#[test]
fn a_removed_device_gets_nothing_and_binds_again_as_a_new_one() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    let before = shard.phones["ann/phone-1"].device;
    shard.leave("ann/phone-1");
    let named = shard.push(json!({"users": ["ann"]}), json!({})).push;
    let many = shard.push(json!({"all": true}), json!({})).push;
    shard.world.engine.remove_device("ann", "phone-1").unwrap();
    assert!(shard.world.engine.push.user_devices("ann").unwrap().devices.is_empty());
    shard.bind("ann/phone-1");
    assert_ne!(shard.phones["ann/phone-1"].device, before, "the number is not free yet");
    assert_eq!(shard.handed("ann/phone-1"), [] as [u64; 0]);
    assert_eq!(shard.status(named).counts.cancelled, 1);
    assert_eq!((shard.status(many).counts.targets, shard.status(many).state), (0, PushState::Completed));
}

#[test]
fn pushes_and_binds_are_refused_while_the_store_fails() {
    let store = Arc::new(Troubled::default());
    let quiet = PushConfig { flush_interval: Duration::from_secs(3_600), ..PushConfig::default() };
    let mut shard = Shard::new(EngineConfig { shards: 1, push: quiet, ..EngineConfig::default() }, store.clone());
    shard.world.users(&["ann"]);
    shard.bind("ann/phone-1");
    store.fail_push(1);
    let request = json!({"to": {"users": ["ann"]}, "body": 1});
    assert_eq!(shard.try_push(request.clone()).unwrap_err().code, ErrorCode::StoreUnavailable);
    assert_eq!(shard.handed("ann/phone-1"), [] as [u64; 0], "what is not stored is not handed out");
    store.fail_push(1);
    shard.ask_to_bind("ann/phone-2");
    shard.settle();
    assert_eq!(shard.refused.pop().unwrap().code, ErrorCode::StoreUnavailable);
    shard.bind("ann/phone-2");
    let push = shard.try_push(request).unwrap().push;
    assert_eq!(shard.handed("ann/phone-2"), [push]);
    store.fail_push(1);
    shard.acknowledge("ann/phone-2", &[push]);
    shard.settle();
    assert_eq!(shard.status(push).counts.acknowledged, 1, "an acknowledgement is kept until it is stored");
}

#[test]
fn a_push_accepted_during_a_bind_is_handed_out_once() {
    let store = Arc::new(Troubled::default());
    let mut shard = Shard::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store.clone());
    shard.world.users(&["ann", "bob"]);
    shard.bind("ann/phone-1");
    shard.bind("bob/phone-1");
    let engine = shard.world.engine.clone();
    let asked = |user: &str| {
        let request = json!({"to": {"users": [user]}, "body": 1}).to_string();
        let push = engine.push.prepare(serde_json::from_str(&request).unwrap()).unwrap();
        let mut accept: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(engine.push.accept(push));
        // Once polled, it waits in the queue.
        assert!(accept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        accept
    };
    let open = store.close_push_gate();
    let first = asked("bob");
    store.wait_for_pushes();
    // Both wait while bob's push is stored, and are taken in the same turn.
    shard.ask_to_bind("ann/phone-1");
    let second = asked("ann");
    drop(open);
    shard.world.wait(first).unwrap();
    let push = shard.world.wait(second).unwrap().push;
    assert_eq!(shard.handed("ann/phone-1"), [push]);
}

#[test]
fn a_new_device_beyond_the_limit_replaces_the_one_that_bound_longest_ago() {
    let mut shard = shard();
    for n in 0..=100 {
        shard.at(NOON + n * 1_000);
        shard.bind(&format!("ann/phone-{n}"));
        shard.leave(&format!("ann/phone-{n}"));
    }
    let devices = shard.world.engine.push.user_devices("ann").unwrap().devices;
    assert_eq!(devices.len(), 100);
    assert!(devices.iter().all(|device| device.device_id != "phone-0"));
}

#[test]
fn a_bad_push_request_is_refused_with_the_name_of_its_field() {
    let shard = shard();
    let refused = |request: serde_json::Value| {
        let request = serde_json::from_str(&request.to_string()).unwrap();
        let refusal = shard.world.engine.push.prepare(request).unwrap_err();
        (refusal.code, refusal.detail)
    };
    let ann = json!({"users": ["ann"]});
    let cases = [
        (json!({"to": {}, "body": 1}), ErrorCode::InvalidField, "to:"),
        (json!({"to": {"users": ["ann"], "all": true}, "body": 1}), ErrorCode::InvalidField, "to:"),
        (json!({"to": {"tags": {}}, "body": 1}), ErrorCode::InvalidField, "to.tags"),
        (json!({"to": {"users": vec!["ann"; 10_001]}, "body": 1}), ErrorCode::LimitExceeded, "10000"),
        (json!({"to": ann, "body": "x".repeat(4_096)}), ErrorCode::LimitExceeded, "body"),
        (json!({"to": ann, "body": 1, "ttl_s": 0}), ErrorCode::InvalidField, "ttl_s"),
        (json!({"to": ann, "body": 1, "ttl_s": 2_419_201}), ErrorCode::LimitExceeded, "ttl_s"),
        (json!({"to": ann, "body": 1, "send_at": u64::MAX}), ErrorCode::LimitExceeded, "send_at"),
        (json!({"to": ann, "body": 1, "collapse_key": "a b"}), ErrorCode::InvalidField, "collapse_key"),
        (json!({"to": ann, "body": 1, "client_push_id": ""}), ErrorCode::InvalidField, "client_push_id"),
        (json!({"to": ann, "body": 1, "type": "x".repeat(33)}), ErrorCode::LimitExceeded, "type"),
    ];
    for (request, code, names) in cases {
        let (found, detail) = refused(request);
        assert!(found == code && detail.contains(names), "{found}: {detail}");
    }
}

#[test]
fn devices_that_bind_at_once_stay_within_the_users_limit() {
    let store = Arc::new(Troubled::default());
    let push = PushConfig { new_devices: PerMinute { count: 0, burst: 0 }, ..PushConfig::default() };
    let config = EngineConfig { shards: 1, push, ..EngineConfig::default() };
    let mut shard = Shard::new(config, store.clone());
    shard.world.users(&["ann", "bob"]);
    (0..60).for_each(|n| shard.ask_to_bind(&format!("ann/old-{n}")));
    shard.settle();
    assert_eq!(shard.phones.len(), 60);
    let names: Vec<String> = shard.phones.keys().cloned().collect();
    names.iter().for_each(|name| shard.leave(name));
    // All of these wait while a push is stored, and are taken in one turn.
    let open = store.close_push_gate();
    let request = json!({"to": {"users": ["bob"]}, "body": 1}).to_string();
    let prepared = shard.world.engine.push.prepare(serde_json::from_str(&request).unwrap()).unwrap();
    let engine = shard.world.engine.clone();
    let mut first = Box::pin(async move { engine.push.accept(prepared).await });
    let _ = Pin::new(&mut first).poll(&mut Context::from_waker(Waker::noop()));
    store.wait_for_pushes();
    (0..250).for_each(|n| shard.ask_to_bind(&format!("ann/new-{n}")));
    drop(open);
    shard.world.wait(first).unwrap();
    shard.settle();
    let devices = shard.world.engine.push.user_devices("ann").unwrap().devices;
    assert_eq!(devices.len(), 100);
    assert!(devices.iter().all(|device| device.device_id.starts_with("new")), "the older ones were removed");
}

#[test]
fn new_devices_of_a_user_are_rate_limited() {
    let mut shard = shard_with(PushConfig { new_devices: PerMinute { count: 1, burst: 3 }, ..PushConfig::default() });
    for n in 0..3 {
        shard.bind(&format!("ann/phone-{n}"));
    }
    shard.ask_to_bind("ann/phone-3");
    shard.settle();
    let refusal = shard.refused.pop().expect("one too many");
    assert_eq!(refusal.code, ErrorCode::RateLimited);
    assert!(refusal.retry_after_ms.is_some_and(|wait| wait > 0 && wait <= 60_000), "{refusal:?}");
    // A known device binds as often as it likes, and other users have limits of their own.
    for _ in 0..10 {
        shard.leave("ann/phone-1");
        shard.bind("ann/phone-1");
    }
    shard.bind("bob/phone-1");
}

#[test]
fn a_removed_devices_number_is_given_again_once_no_push_refers_to_it() {
    let mut shard = shard();
    shard.bind("ann/phone-1");
    let first = shard.phones["ann/phone-1"].device;
    let push = shard.push(json!({"users": ["ann"]}), json!({"ttl_s": 60})).push;
    shard.world.engine.remove_device("ann", "phone-1").unwrap();
    shard.settle();
    shard.bind("bob/phone-1");
    assert_ne!(shard.phones["bob/phone-1"].device, first, "the push is still stored");
    assert_eq!(shard.handed("bob/phone-1"), [] as [u64; 0]);
    // The push is purged a week after it ended.
    shard.at(NOON + DAY);
    shard.at(NOON + 9 * DAY);
    assert!(shard.world.engine.push.status(push).is_err());
    shard.bind("cat/phone-1");
    assert_eq!(shard.phones["cat/phone-1"].device, first);
    let push = shard.push(json!({"users": ["cat"]}), json!({})).push;
    assert_eq!(shard.handed("cat/phone-1"), [push]);
    assert_eq!(shard.states(push).into_keys().collect::<Vec<_>>(), ["cat/phone-1"]);
}

/// A crash between the writes of a large push leaves an older push of its collapse key pending.
#[test]
fn an_older_push_of_a_collapse_key_is_not_handed_out_after_a_crash() {
    let store = Arc::new(MemoryStore::default());
    let config = || EngineConfig { shards: 1, ..EngineConfig::default() };
    let (device, old, new);
    {
        let mut shard = Shard::new(config(), store.clone());
        shard.world.users(&["ann"]);
        shard.bind("ann/phone-1");
        device = shard.phones["ann/phone-1"].device;
        shard.leave("ann/phone-1");
        old = shard.push(json!({"users": ["ann"]}), json!({"collapse_key": "k"})).push;
        shard.world.engine.push.settle().unwrap();
        let rows = [PushKey::Pending(device, old), PushKey::Target(old, device)];
        let rows: Vec<_> = rows.iter().map(|key| PushChange::Put(store.push_row(key).unwrap().unwrap())).collect();
        new = shard.push(json!({"users": ["ann"]}), json!({"collapse_key": "k"})).push;
        shard.world.engine.push.settle().unwrap();
        assert_eq!(shard.states(old)["ann/phone-1"], DeviceState::Collapsed);
        drop(shard);
        store.write_push(Term::ALONE, &rows).unwrap();
    }
    let mut shard = Shard::new(config(), store);
    assert_eq!(shard.states(old)["ann/phone-1"], DeviceState::Pending);
    shard.bind("ann/phone-1");
    assert_eq!(shard.handed("ann/phone-1"), [new]);
    shard.world.engine.push.settle().unwrap();
    assert_eq!(shard.states(old)["ann/phone-1"], DeviceState::Collapsed);
}

#[test]
fn the_list_of_pushes_has_each_once_and_the_newest_first_over_any_gaps() {
    let store = Arc::new(MemoryStore::default());
    let config = || EngineConfig { shards: 1, ..EngineConfig::default() };
    let listed = |shard: &Shard, limit: usize| {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page =
                shard.world.engine.push.pushes(&PushListQuery { after, limit, ..PushListQuery::default() }).unwrap();
            assert!(page.pushes.len() == limit || page.next.is_none(), "only the last page is short");
            all.extend(page.pushes);
            match page.next {
                Some(next) => after = Some(next),
                None => return all,
            }
        }
    };
    let mut sent = Vec::new();
    {
        let mut shard = Shard::new(config(), store.clone());
        shard.world.users(&["ann"]);
        shard.bind("ann/phone-1");
        assert_eq!(listed(&shard, 10), []);
        // Every third is purged, a week after its end.
        for n in 0..60 {
            let ttl = if n % 3 == 0 { 60 } else { 28 * 24 * 60 * 60 };
            sent.push((n, shard.push(json!({"users": ["ann"]}), json!({"type": format!("n{n}"), "ttl_s": ttl})).push));
        }
        shard.at(NOON + DAY);
        shard.at(NOON + 9 * DAY);
        sent.retain(|(n, push)| shard.world.engine.push.status(*push).is_ok() || n % 3 != 0);
        assert_eq!(sent.len(), 40);
        shard.world.engine.push.settle().unwrap();
    }
    // As after a restore, which leaves a gap of four billion numbers.
    let counters = PushRow::Counters { push: 1 << 33, device: 1, epoch: store.epoch() };
    store.write_push(Term::ALONE, &[PushChange::Put(counters)]).unwrap();
    let mut shard = Shard::new(config(), store);
    shard.at(NOON + 9 * DAY);
    for n in 60..65 {
        sent.push((n, shard.push(json!({"users": ["ann"]}), json!({"type": format!("n{n}")})).push));
    }
    let expected: Vec<_> = sent.iter().rev().map(|(n, push)| (*push, format!("n{n}"))).collect();
    for limit in [1, 2, 3, 7, 44, 45, 46, 100] {
        let found: Vec<_> = listed(&shard, limit).into_iter().map(|one| (one.push, one.content_type)).collect();
        assert_eq!(found, expected, "in pages of {limit}");
    }
    let too_many = PushListQuery { limit: 101, ..PushListQuery::default() };
    assert_eq!(shard.world.engine.push.pushes(&too_many).unwrap_err().code, ErrorCode::LimitExceeded);
}

#[test]
fn the_list_of_pushes_is_narrowed_by_state_type_and_time() {
    let config = EngineConfig { shards: 1, ..EngineConfig::default() };
    let mut shard = Shard::new(config, Arc::new(MemoryStore::default()));
    shard.world.users(&["ann"]);
    shard.bind("ann/phone-1");
    // Many of no interest stand before and behind those that are.
    let mut sent = Vec::new();
    for n in 0..2_500_u64 {
        let content_type = if n % 1_100 == 7 { "rare" } else { "common" };
        shard.at(NOON + n);
        // Most have no device to wait for.
        let user = if n % 3 == 0 { "ann" } else { "nobody" };
        let push = shard.push(json!({"users": [user]}), json!({"type": content_type, "ttl_s": 3_600})).push;
        sent.push((push, content_type, NOON + n));
        if n % 900 == 0 {
            shard.world.engine.push.cancel(push).unwrap();
        }
    }
    shard.world.engine.push.settle().unwrap();
    let engine = &shard.world.engine;
    let states: Vec<PushState> = sent.iter().map(|(push, ..)| engine.push.status(*push).unwrap().state).collect();
    let of_states = [None, Some(PushState::Running), Some(PushState::Cancelled), Some(PushState::Completed)];
    let of_types = [None, Some("rare"), Some("none")];
    for (state, content_type, since) in of_states
        .into_iter()
        .flat_map(|state| of_types.map(|content_type| (state, content_type)))
        .flat_map(|(state, content_type)| [None, Some(NOON + 1_200)].map(|since| (state, content_type, since)))
    {
        let expected = sent.iter().zip(&states).rev().filter(|((_, known_type, at), known)| {
            state.is_none_or(|state| state == **known)
                && content_type.is_none_or(|wanted| wanted == *known_type)
                && since.is_none_or(|since| *at >= since)
        });
        let expected: Vec<u64> = expected.map(|((push, ..), _)| *push).collect();
        for limit in [1, 30, 100] {
            if expected.len() > 500 && limit == 1 {
                continue;
            }
            let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
            loop {
                let content_type = content_type.map(str::to_owned);
                let page = engine.push.pushes(&PushListQuery { state, content_type, since, after, limit }).unwrap();
                assert!(page.pushes.len() <= limit);
                found.extend(page.pushes.into_iter().map(|push| push.push));
                pages += 1;
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{state:?}, {content_type:?}, {since:?}, in pages of {limit}");
            assert!(pages <= expected.len().div_ceil(limit) + 3, "{pages} pages");
        }
    }
}
