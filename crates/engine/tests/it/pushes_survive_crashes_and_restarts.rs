//! Random histories of binds, pushes, acknowledgements, ends, restarts and crashes, on the embedded store,
//! compared with a model in plain maps. `PUSH_SEED=…` runs one history again.
// Slow: left out by `make test-quick`.

use crate::fake_shard::Shard;
use crate::support::NOON;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};
use tidings_engine::config::EngineConfig;
use tidings_protocol::http::*;
use tidings_store::{EmbeddedOptions, EmbeddedStore};

const NAMES: [&str; 6] = ["ann/phone-1", "ann/tv-1", "bob/phone-1", "bob/tv-1", "cat/phone-1", "dan/phone-1"];
const HISTORIES: u64 = 6;
const STEPS: usize = 160;
/// Pushes in one batch of a backlog.
const BATCH: usize = 32;

fn open(folder: &Path) -> Shard {
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder)).unwrap();
    Shard::new(EngineConfig { shards: 1, ..EngineConfig::default() }, Arc::new(store))
}

/// A folder as a crash at this moment leaves it.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// Acknowledged shortly before a crash: the acknowledgement is stored or not.
    PerhapsAcknowledged,
    /// The same, and the push ended before that showed.
    Unknown,
    Acknowledged,
    Expired,
    Collapsed,
    Cancelled,
}

#[derive(Debug)]
struct Pushed {
    state: PushState,
    to: Vec<&'static str>,
    to_all: bool,
    high: bool,
    key: Option<&'static str>,
    send_at: u64,
    expires_at: u64,
    on: BTreeMap<&'static str, State>,
}

#[derive(Default)]
struct Model {
    known: BTreeSet<&'static str>,
    pushes: BTreeMap<u64, Pushed>,
}

impl Model {
    fn start(&mut self, number: u64, now: u64) {
        let known = self.known.clone();
        let pushed = self.pushes.get_mut(&number).unwrap();
        let (to, to_all) = (pushed.to.clone(), pushed.to_all);
        pushed.state = PushState::Running;
        pushed.on = known.into_iter().filter(|n| to_all || to.contains(n)).map(|n| (n, State::Waiting)).collect();
        let (key, on) = (pushed.key, pushed.on.clone());
        let others = self.pushes.iter_mut().filter(|(other, p)| **other != number && key.is_some() && p.key == key);
        let others = others.filter(|(_, p)| now < p.expires_at);
        for (_, older) in others {
            for (_, is) in older.on.iter_mut().filter(|(name, _)| on.contains_key(*name)) {
                match is {
                    State::Waiting => *is = State::Collapsed,
                    State::PerhapsAcknowledged => *is = State::Unknown,
                    _ => {}
                }
            }
        }
    }

    fn end(&mut self, number: u64, state: PushState, fate: State) {
        let pushed = self.pushes.get_mut(&number).unwrap();
        pushed.state = state;
        for is in pushed.on.values_mut() {
            match is {
                State::Waiting => *is = fate,
                State::PerhapsAcknowledged => *is = State::Unknown,
                _ => {}
            }
        }
    }

    /// Ends and starts what is due; the order is the engine's: by time, then by number.
    fn at(&mut self, now: u64) -> Vec<u64> {
        let mut started = Vec::new();
        loop {
            let due = |p: &Pushed| match p.state {
                PushState::Scheduled => p.send_at,
                PushState::Running => p.expires_at,
                _ => u64::MAX,
            };
            let next = self.pushes.iter().map(|(number, p)| (due(p), *number)).min();
            let Some((_, number)) = next.filter(|(at, _)| *at <= now) else { return started };
            let pushed = &self.pushes[&number];
            match pushed.state {
                PushState::Scheduled if now < pushed.expires_at => {
                    self.start(number, now);
                    started.push(number);
                }
                _ => self.end(number, PushState::Expired, State::Expired),
            }
        }
    }

    fn waiting(&self, name: &str, perhaps: bool) -> Vec<u64> {
        let is_wanted = |is: &State| *is == State::Waiting || (perhaps && *is == State::PerhapsAcknowledged);
        let mut found: Vec<_> = self.pushes.iter().filter(|(_, p)| p.on.get(name).is_some_and(is_wanted)).collect();
        found.sort_by_key(|(number, p)| (Reverse(p.high), **number));
        found.into_iter().map(|(number, _)| *number).collect()
    }
}

struct History {
    random: StdRng,
    shard: Option<Shard>,
    model: Model,
    now: u64,
    folders: Vec<tempfile::TempDir>,
}

impl History {
    fn new(seed: u64) -> History {
        let folder = tempfile::tempdir().unwrap();
        let shard = open(&folder.path().join("store"));
        shard.world.users(&["ann", "bob", "cat", "dan"]);
        let random = StdRng::seed_from_u64(seed);
        History { random, shard: Some(shard), model: Model::default(), now: NOON, folders: vec![folder] }
    }

    fn shard(&mut self) -> &mut Shard {
        self.shard.as_mut().unwrap()
    }

    fn is_online(&self, name: &str) -> bool {
        self.shard.as_ref().unwrap().phones.contains_key(name)
    }

    fn step(&mut self) {
        let name = NAMES[self.random.random_range(0..NAMES.len())];
        let dice = self.random.random_range(0..20);
        println!("{dice} {name}");
        match dice {
            0..=5 if !self.is_online(name) => self.bind(name),
            0..=2 => self.shard().leave(name),
            6..=9 => self.push(),
            10..=13 if self.is_online(name) => self.acknowledge(name),
            14 => self.cancel(),
            15 | 16 => {
                self.now += self.random.random_range(1..200_000);
                self.time_goes_on();
            }
            17 if self.random.random_bool(0.4) => self.restart(),
            18 if self.random.random_bool(0.4) => self.crash(),
            _ => self.compare_counts(),
        }
    }

    fn bind(&mut self, name: &'static str) {
        self.shard().bind(name);
        self.model.known.insert(name);
        let handed = self.shard().handed(name);
        for number in self.model.waiting(name, true) {
            let is = self.model.pushes.get_mut(&number).unwrap().on.get_mut(name).unwrap();
            // The bind shows whether the acknowledgement survived the crash.
            if *is == State::PerhapsAcknowledged && (handed.contains(&number) || handed.len() < BATCH) {
                *is = if handed.contains(&number) { State::Waiting } else { State::Acknowledged };
            }
        }
        let mut expected = self.model.waiting(name, false);
        expected.truncate(BATCH);
        assert_eq!(handed, expected, "{name} binds");
    }

    fn push(&mut self) {
        let to_all = self.random.random_bool(0.4);
        let to: Vec<_> = NAMES.into_iter().filter(|_| self.random.random_bool(0.4)).collect();
        if !to_all && to.is_empty() {
            return;
        }
        let devices = to.iter().map(|name| name.split_once('/').unwrap());
        let devices: Vec<_> = devices.map(|(user, id)| json!({"user": user, "device_id": id})).collect();
        let key = [None, None, Some("a"), Some("b")][self.random.random_range(0..4)];
        let high = self.random.random_bool(0.3);
        let ttl_s = [60, 600, 6_000][self.random.random_range(0..3)];
        let later = self.random.random_bool(0.2);
        let send_at = self.now + if later { self.random.random_range(1..300_000) } else { 0 };
        let mut more = json!({"ttl_s": ttl_s, "priority": if high { "high" } else { "normal" }, "send_at": send_at});
        if let Some(key) = key {
            more["collapse_key"] = key.into();
        }
        let to_json = if to_all { json!({"all": true}) } else { json!({"devices": devices}) };
        let number = self.shard().push(to_json, more).push;
        assert!(!self.model.pushes.contains_key(&number), "{number} was given before");
        let (state, expires_at) = (PushState::Scheduled, send_at + ttl_s * 1_000);
        let pushed = Pushed { state, to, to_all, high, key, send_at, expires_at, on: BTreeMap::new() };
        self.model.pushes.insert(number, pushed);
        self.time_goes_on();
    }

    fn time_goes_on(&mut self) {
        let now = self.now;
        self.shard().at(now);
        let started = self.model.at(now);
        for name in NAMES.into_iter().filter(|name| self.is_online(name)).collect::<Vec<_>>() {
            let mut handed = self.shard().handed(name);
            handed.sort_unstable();
            let is_for = |number: &&u64| self.model.pushes[*number].on.contains_key(name);
            let mut expected: Vec<u64> = started.iter().filter(is_for).copied().collect();
            expected.sort_unstable();
            // The next batch of the backlog may come too.
            assert!(expected.iter().all(|number| handed.contains(number)), "{name}: {handed:?}, not {expected:?}");
        }
    }

    fn acknowledge(&mut self, name: &'static str) {
        let mut waiting = self.model.waiting(name, true);
        waiting.truncate(self.random.random_range(0..4));
        self.shard().acknowledge(name, &waiting);
        for number in waiting {
            *self.model.pushes.get_mut(&number).unwrap().on.get_mut(name).unwrap() = State::Acknowledged;
        }
        self.shard().handed.clear();
    }

    fn cancel(&mut self) {
        let open = |p: &Pushed| matches!(p.state, PushState::Scheduled | PushState::Running);
        let running: Vec<u64> = self.model.pushes.iter().filter(|(_, p)| open(p)).map(|(number, _)| *number).collect();
        if running.is_empty() {
            return;
        }
        let number = running[self.random.random_range(0..running.len())];
        // A push that is pending on no device may have ended.
        if self.shard().world.engine.push.cancel(number).is_ok() {
            self.shard().settle();
            self.model.end(number, PushState::Cancelled, State::Cancelled);
        } else {
            assert!(self.model.pushes[&number].on.values().all(|is| *is != State::Waiting));
        }
    }

    fn compare_counts(&mut self) {
        for (number, pushed) in &self.model.pushes {
            let count = |wanted| pushed.on.values().filter(|is| **is == wanted).count() as u64;
            if count(State::PerhapsAcknowledged) + count(State::Unknown) > 0 {
                continue;
            }
            let found = self.shard.as_ref().unwrap().status(*number);
            let counts = found.counts;
            let all = (
                counts.targets,
                counts.pending,
                counts.acknowledged,
                counts.expired,
                counts.collapsed,
                counts.cancelled,
            );
            let expected = (
                pushed.on.len() as u64,
                count(State::Waiting),
                count(State::Acknowledged),
                count(State::Expired),
                count(State::Collapsed),
                count(State::Cancelled),
            );
            assert_eq!(all, expected, "push {number}: {pushed:?} {found:?}");
        }
    }

    fn restart(&mut self) {
        drop(self.shard.take());
        self.reopen();
    }

    /// Goes on with the disk as it is now, while acknowledgements are on their way to it.
    fn crash(&mut self) {
        for name in NAMES.into_iter().filter(|name| self.is_online(name)).collect::<Vec<_>>() {
            let mut waiting = self.model.waiting(name, true);
            waiting.truncate(2);
            let shard = self.shard();
            shard.report_acknowledged(name, &waiting);
            for number in waiting {
                *self.model.pushes.get_mut(&number).unwrap().on.get_mut(name).unwrap() = State::PerhapsAcknowledged;
            }
        }
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&self.folders.last().unwrap().path().join("store"), &copy.path().join("store"));
        drop(self.shard.take());
        self.folders.push(copy);
        self.reopen();
    }

    fn reopen(&mut self) {
        let folder = self.folders.last().unwrap().path().join("store");
        let now = self.now;
        self.shard = Some(open(&folder));
        self.shard().at(now);
    }
}

fn run(seed: u64) {
    println!("PUSH_SEED={seed}");
    let mut history = History::new(seed);
    for _ in 0..STEPS {
        history.step();
    }
    history.compare_counts();
    drop(history.shard.take());
    let folder = history.folders.last().unwrap().path().join("store");
    let report = tidings_store::check::check(&folder, tidings_popups::check_popups).unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn random_histories_agree_with_a_model() {
    match std::env::var("PUSH_SEED") {
        Ok(seed) => run(seed.parse().unwrap()),
        Err(_) => (0..HISTORIES).for_each(|_| run(rand::random())),
    }
}
