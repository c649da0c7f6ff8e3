//! A store whose answers are lost: a write is stored, or is not, or is a while later, and the caller is not told which.
//! Every push that was accepted at last, perhaps as a duplicate, reaches its devices without a change of the lead; no device
//! gets another one's number; the counts are right. `DOUBT_SEED=…` runs one history again.
// Slow: left out by `make test-quick`.

use crate::fake_shard::Shard;
use crate::support::{
    NOON, Troubled,
    lost_answers::WriteFate::{self, *},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tidings_domain::push_store::*;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{error::ErrorCode, http::*};

const FATES: [WriteFate; 3] = [Stored, NotStored, StoredLate];
const NAMES: [&str; 6] = ["ann/phone-1", "ann/tv-1", "ben/phone-1", "cat/phone-1", "cat/tv-1", "dan/phone-1"];
const HISTORIES: u64 = 12;
const STEPS: usize = 120;

fn open(store: &Arc<Troubled>) -> Shard {
    Shard::new(EngineConfig { shards: 1, ..EngineConfig::default() }, store.clone())
}

fn start(devices: &[&str]) -> (Arc<Troubled>, Shard) {
    let store = Arc::new(Troubled::default());
    let mut shard = open(&store);
    shard.world.users(&["ann", "ben", "cat", "dan"]);
    devices.iter().for_each(|name| shard.bind(name));
    (store, shard)
}

fn request(to: Value, more: Value) -> Value {
    let mut request = json!({"to": to, "body": {"n": 1}});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// Retries until the push is accepted.
fn push_at_last(shard: &mut Shard, request: &Value) -> PushAccepted {
    (0..100).find_map(|_| shard.try_push(request.clone()).ok()).expect("accepted at last")
}

/// Runs once for each fate and each of the next four writes, whose answer is lost.
fn with_each_answer_lost(run: impl Fn(&dyn Fn(&Troubled), &str)) {
    for fated in FATES {
        for before in 0..4 {
            let lose = |store: &Troubled| {
                store.lost_answers.next((0..before).map(|_| None).chain([Some(fated)]));
            };
            run(&lose, &format!("{before} answers, then {fated:?}"));
        }
    }
}

/// The pushes that a device was handed, each perhaps more than once.
fn handed(shard: &mut Shard, name: &str) -> BTreeSet<u64> {
    shard.handed(name).into_iter().collect()
}

// ---- pushes

#[test]
fn a_push_that_was_accepted_at_a_retry_is_handed_out() {
    for to in [json!({"users": ["ann"]}), json!({"all": true})] {
        with_each_answer_lost(|lose, what| {
            let (store, mut shard) = start(&["ann/phone-1", "ben/phone-1"]);
            lose(&store);
            let push = push_at_last(&mut shard, &request(to.clone(), json!({"client_push_id": "p"})));
            assert_eq!(handed(&mut shard, "ann/phone-1"), [push.push].into(), "{what}");
            assert_eq!(handed(&mut shard, "ben/phone-1").len(), push.targets as usize - 1, "{what}");
            // A device that binds again is handed it, too.
            shard.leave("ann/phone-1");
            shard.bind("ann/phone-1");
            assert_eq!(handed(&mut shard, "ann/phone-1"), [push.push].into(), "{what}");
            shard.acknowledge("ann/phone-1", &[push.push]);
            shard.settle();
            let counts = shard.status(push.push).counts;
            assert_eq!((counts.acknowledged, counts.pending), (1, push.targets - 1), "{what}");
        });
    }
}

#[test]
fn a_scheduled_push_starts_once_and_is_handed_out() {
    for to in [json!({"users": ["ann"]}), json!({"all": true})] {
        with_each_answer_lost(|lose, what| {
            let (store, mut shard) = start(&["ann/phone-1", "ben/phone-1"]);
            let push = shard.push(to.clone(), json!({"send_at": NOON + 1_000})).push;
            lose(&store);
            shard.at(NOON + 1_000);
            settle(&mut shard);
            assert_eq!(handed(&mut shard, "ann/phone-1"), [push].into(), "{what}");
            assert_eq!(shard.status(push).state, PushState::Running, "{what}");
            check_pending(&shard, &store, what);
        });
    }
}

#[test]
fn an_accepted_large_push_is_not_purged() {
    for fated in FATES {
        for before in 0..6 {
            let (store, mut shard) = start(&[]);
            let names: Vec<_> = (0..3).map(|n| format!("u{n}")).collect();
            shard.world.users(&names.iter().map(String::as_str).collect::<Vec<_>>());
            for user in &names {
                (0..100).for_each(|n| shard.ask_to_bind(&format!("{user}/phone-{n}")));
            }
            shard.settle();
            store.lost_answers.next((0..before).map(|_| None).chain([Some(fated)]));
            let push = push_at_last(&mut shard, &request(json!({"users": names}), json!({"client_push_id": "p"})));
            settle(&mut shard);
            let what = format!("{before} answers, then {fated:?}");
            assert_eq!(push.targets, 300);
            let handed: BTreeSet<u64> = shard.handed.values().flatten().copied().collect();
            assert_eq!((shard.handed.len(), handed), (300, [push.push].into()), "{what}");
            assert_eq!(shard.status(push.push).counts.pending, 300, "{what}");
            check_pending(&shard, &store, &what);
        }
    }
}

#[test]
fn acknowledgements_are_counted_once() {
    with_each_answer_lost(|lose, what| {
        let (store, mut shard) = start(&["ann/phone-1", "ben/phone-1"]);
        let named = shard.push(json!({"users": ["ann", "ben"]}), json!({})).push;
        let many = shard.push(json!({"all": true}), json!({})).push;
        lose(&store);
        shard.acknowledge("ann/phone-1", &[named, many]);
        shard.acknowledge("ben/phone-1", &[many]);
        settle(&mut shard);
        let counts = shard.status(named).counts;
        assert_eq!((counts.acknowledged, counts.pending), (1, 1), "{what}");
        check_pending(&shard, &store, what);
        assert_eq!(shard.status(many).counts.acknowledged, 2, "{what}");
    });
}

#[test]
fn a_push_that_ran_out_of_time_is_expired() {
    with_each_answer_lost(|lose, what| {
        let (store, mut shard) = start(&["ann/phone-1", "ben/phone-1"]);
        let push = shard.push(json!({"users": ["ann", "ben"]}), json!({"ttl_s": 1})).push;
        shard.settle();
        lose(&store);
        shard.at(NOON + 1_000);
        settle(&mut shard);
        assert_eq!(shard.status(push).state, PushState::Expired, "{what}");
        assert_eq!(shard.status(push).counts.expired, 2, "{what}");
    });
}

#[test]
fn the_session_of_a_removed_device_is_told_so_and_binds_again() {
    with_each_answer_lost(|lose, what| {
        let (store, mut shard) = start(&["ann/phone-1", "ben/phone-1"]);
        lose(&store);
        while let Err(refusal) = shard.world.engine.remove_device("ann", "phone-1") {
            settle(&mut shard);
            if refusal.code == ErrorCode::NotFound {
                // The answer to the removal was lost: only the worker can tell the session.
                assert!(!shard.phones.contains_key("ann/phone-1"), "{what}");
                break;
            }
        }
        shard.phones.remove("ann/phone-1");
        bind_at_last(&mut shard, "ann/phone-1");
        let push = push_at_last(&mut shard, &request(json!({"users": ["ann"]}), json!({}))).push;
        assert!(handed(&mut shard, "ann/phone-1").contains(&push), "{what}");
    });
}

// ---- devices

/// Tries until the device is bound.
fn bind_at_last(shard: &mut Shard, name: &str) -> DeviceNo {
    for _ in 0..100 {
        shard.ask_to_bind(name);
        settle(shard);
        if let Some(phone) = shard.phones.get(name) {
            return phone.device;
        }
    }
    panic!("{name} is not bound: {:?}", shard.refused);
}

/// Settles until everything due is done and stored, whatever answers are lost.
fn settle(shard: &mut Shard) {
    (0..8).for_each(|_| shard.settle());
}

#[test]
fn a_device_number_is_never_given_twice() {
    for fated in FATES {
        let (store, mut shard) = start(&[]);
        store.lost_answers.next([Some(fated)]);
        // Several devices bind at once, and one of them again before the lead moves.
        ["ann/phone-1", "ben/phone-1", "cat/phone-1"].iter().for_each(|name| shard.ask_to_bind(name));
        shard.settle();
        let dan = bind_at_last(&mut shard, "dan/phone-1");
        check_devices(&store, &[("dan/phone-1", dan)].into());
        drop(shard);
        let mut shard = open(&store);
        let cat = bind_at_last(&mut shard, "cat/tv-1");
        let ann = bind_at_last(&mut shard, "ann/phone-1");
        check_devices(&store, &[("dan/phone-1", dan), ("cat/tv-1", cat), ("ann/phone-1", ann)].into());
        let push = shard.push(json!({"users": ["ann", "ben"]}), json!({})).push;
        assert_eq!(shard.handed("cat/tv-1"), [] as [u64; 0], "{fated:?}: it is another user's");
        assert_eq!(shard.handed("ann/phone-1"), [push]);
    }
}

/// Rows that an earlier version left behind: the counter is behind the devices.
#[test]
fn a_counter_that_fell_behind_gives_no_number_twice() {
    let (store, mut shard) = start(&["ann/phone-1", "ben/phone-1", "cat/phone-1"]);
    let Some(PushRow::Counters { push, epoch, .. }) = store.push_row(&PushKey::Counters).unwrap() else { panic!() };
    shard.settle();
    drop(shard);
    let behind = PushChange::Put(PushRow::Counters { push, device: 1, epoch });
    store.write_push(tidings_domain::store::Term::ALONE, &[behind]).unwrap();
    let mut shard = open(&store);
    let dan = bind_at_last(&mut shard, "dan/phone-1");
    assert_eq!(dan, DeviceNo(3));
    let push = shard.push(json!({"users": ["ben"]}), json!({})).push;
    assert_eq!(shard.handed("dan/phone-1"), [] as [u64; 0]);
    shard.bind("ben/phone-1");
    assert_eq!(shard.handed("ben/phone-1"), [push]);
}

fn rows(store: &Troubled, first: PushKey, last: PushKey) -> Vec<PushRow> {
    store.push_rows(&first, &last, usize::MAX).unwrap()
}

/// Each number is one device's, as stored and as its session was told.
fn check_devices(store: &Troubled, told: &BTreeMap<&str, DeviceNo>) {
    let mut numbers = BTreeMap::new();
    for row in rows(store, PushKey::Device(DeviceNo(0)), PushKey::Device(DeviceNo(u32::MAX))) {
        let PushRow::Device(device) = row else { panic!("another row") };
        let user = ["ann", "ben", "cat", "dan"][device.user as usize - 1];
        let name = format!("{user}/{}", device.device_id);
        assert_eq!(numbers.insert(name.clone(), device.no), None, "{name} appears twice");
    }
    for (name, device) in told {
        assert_eq!(numbers.get(*name), Some(device), "{name}");
    }
}

/// The count of pending pushes of each device is the number of its stored rows.
fn check_pending(shard: &Shard, store: &Troubled, what: &str) {
    let mut waiting = BTreeMap::<DeviceNo, u64>::new();
    for row in rows(store, PushKey::Pending(DeviceNo(0), 0), PushKey::Pending(DeviceNo(u32::MAX), u64::MAX)) {
        let PushRow::Pending(pending) = row else { panic!("another row") };
        *waiting.entry(pending.device).or_default() += 1;
    }
    for (name, phone) in &shard.phones {
        let (user, device_id) = name.split_once('/').unwrap();
        let cards = shard.world.engine.push.user_devices(user).unwrap().devices;
        let card = cards.iter().find(|card| card.device_id == device_id).unwrap();
        assert_eq!(card.pending, waiting.get(&phone.device).copied().unwrap_or(0), "{what}: {name}");
    }
}

// ---- histories

/// An accepted push: the devices that it must reach, and those that it may reach.
struct Accepted {
    must: BTreeSet<&'static str>,
    may: BTreeSet<&'static str>,
}

struct History {
    random: StdRng,
    store: Arc<Troubled>,
    shard: Shard,
    known: BTreeMap<&'static str, DeviceNo>,
    /// Devices that have tried to bind: they may be known.
    tried: BTreeSet<&'static str>,
    pushes: BTreeMap<u64, Accepted>,
    got: BTreeMap<&'static str, BTreeSet<u64>>,
    now: u64,
}

impl History {
    fn new(seed: u64) -> History {
        let (store, shard) = start(&[]);
        store.lost_answers.begin(seed, 0.3);
        History {
            random: StdRng::seed_from_u64(seed),
            store,
            shard,
            known: BTreeMap::new(),
            tried: BTreeSet::new(),
            pushes: BTreeMap::new(),
            got: BTreeMap::new(),
            now: NOON,
        }
    }

    fn step(&mut self) {
        let name = NAMES[self.random.random_range(0..NAMES.len())];
        match self.random.random_range(0..20) {
            0..=4 if !self.shard.phones.contains_key(name) => self.bind(name),
            0..=1 => self.shard.leave(name),
            2..=10 => self.push(),
            11..=13 => self.acknowledge(name),
            14..=16 => {
                self.now += self.random.random_range(1..2_000);
                self.shard.at(self.now);
            }
            17 if self.random.random_bool(0.2) => {
                self.shard = open(&self.store);
                self.shard.at(self.now);
            }
            _ => self.shard.settle(),
        }
        self.look();
    }

    fn bind(&mut self, name: &'static str) {
        self.tried.insert(name);
        self.shard.ask_to_bind(name);
        self.shard.settle();
        if let Some(phone) = self.shard.phones.get(name) {
            let before = self.known.insert(name, phone.device);
            assert!(before.is_none_or(|before| before == phone.device), "{name} is another device");
            let others = self.known.iter().filter(|(other, no)| **other != name && **no == phone.device).count();
            assert_eq!(others, 0, "{name} has another's number");
        }
    }

    fn push(&mut self) {
        let users: Vec<_> = ["ann", "ben", "cat", "dan"].into_iter().filter(|_| self.random.random_bool(0.4)).collect();
        let to = match self.random.random_bool(0.4) || users.is_empty() {
            true => json!({"all": true}),
            false => json!({ "users": users }),
        };
        let is_for = |name: &&&str| to.get("all").is_some() || users.contains(&name.split_once('/').unwrap().0);
        let later = if self.random.random_bool(0.3) { self.random.random_range(1..5_000) } else { 0 };
        let id: u64 = self.random.random();
        let more = json!({"client_push_id": id.to_string(), "send_at": self.now + later});
        let must = self.known.keys().filter(is_for).copied().collect();
        let accepted = push_at_last(&mut self.shard, &request(to.clone(), more));
        // A scheduled push is for the devices that are known when it starts.
        let may: BTreeSet<_> = match later {
            0 => self.tried.iter().filter(is_for).copied().collect(),
            _ => NAMES.iter().filter(is_for).copied().collect(),
        };
        assert!(
            self.pushes.insert(accepted.push, Accepted { must, may }).is_none(),
            "{} was given before",
            accepted.push
        );
    }

    fn acknowledge(&mut self, name: &'static str) {
        if self.shard.phones.contains_key(name) {
            let got: Vec<u64> = self.got.get(name).into_iter().flatten().copied().collect();
            self.shard.acknowledge(name, &got);
        }
    }

    /// No device is handed a push that is not for it.
    fn look(&mut self) {
        for name in NAMES {
            for push in self.shard.handed(name) {
                // A push that was stored and not answered yet is not known here.
                if let Some(pushed) = self.pushes.get(&push) {
                    assert!(pushed.may.contains(name), "{name} was handed push {push}");
                }
                self.got.entry(name).or_default().insert(push);
            }
        }
    }

    /// From here on every answer arrives. Online devices are handed all of their pushes without binding anew, the others when
    /// they bind.
    fn end(mut self) {
        self.store.lost_answers.end();
        settle(&mut self.shard);
        self.shard.at(self.now + 10_000);
        settle(&mut self.shard);
        self.look_and_acknowledge();
        self.check(&self.shard.phones.keys().cloned().collect());
        check_pending(&self.shard, &self.store, "at the end");
        check_devices(&self.store, &self.known);
        for name in NAMES {
            if !self.shard.phones.contains_key(name) {
                self.bind(name);
            }
        }
        self.look_and_acknowledge();
        self.check(&NAMES.iter().map(|name| (*name).to_owned()).collect());
        settle(&mut self.shard);
        for push in self.pushes.keys() {
            let counts = self.shard.status(*push).counts;
            assert_eq!((counts.acknowledged, counts.pending), (counts.targets, 0), "push {push}: {counts:?}");
        }
    }

    /// A backlog is handed out a batch at a time.
    fn look_and_acknowledge(&mut self) {
        for _ in 0..STEPS / 10 {
            self.look();
            NAMES.into_iter().for_each(|name| self.acknowledge(name));
        }
    }

    fn check(&self, names: &BTreeSet<String>) {
        for (push, pushed) in &self.pushes {
            for name in pushed.must.iter().filter(|name| names.contains(**name)) {
                let got = self.got.get(name).is_some_and(|got| got.contains(push));
                assert!(got, "push {push} was accepted and is not handed to {name}");
            }
        }
    }
}

#[test]
fn every_accepted_push_arrives_in_random_histories() {
    let run = |seed: u64| {
        println!("DOUBT_SEED={seed}");
        let mut history = History::new(seed);
        (0..STEPS).for_each(|_| history.step());
        assert!(history.store.lost_answers.count() > 0);
        history.end();
    };
    match std::env::var("DOUBT_SEED") {
        Ok(seed) => run(seed.parse().unwrap()),
        Err(_) => (0..HISTORIES).for_each(|_| run(rand::random())),
    }
}
