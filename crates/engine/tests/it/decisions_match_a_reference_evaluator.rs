//! Random configurations and random histories: every decision equals that of the reference evaluator, to the millisecond
//! after which to ask again; and the list of exposures exceeds no cap.
//!
//! `POPUP_CONFIGURATIONS` sets how many configurations run; `POPUP_SEED` runs a single one.
// Slow: left out by `make test-quick`.

use crate::reference_popups::{
    Answer, Asked, ReferenceEvaluator,
    random::{CUSTOM, EVENTS, USERS, any, attributes, base, caps, maybe, settings, spec},
    rules::What,
    wall::{DAY_MS, QUARTER_MS},
};
use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidings_domain::{model::Actor, store::Store};
use tidings_engine::config::EngineConfig;
use tidings_popups::{PopupsConfig, Precondition, QuestionBody, UserKey, parse_segment};
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

const DECISIONS: usize = 60;
const CONFIGURATIONS: u64 = 320;

const SESSIONS: [Option<&str>; 5] = [None, Some("s1"), Some("s2"), Some("s3"), Some("s1")];

struct Question {
    user: &'static str,
    placement: &'static str,
    session: Option<&'static str>,
    attributes: Map<String, Value>,
    event: Option<(&'static str, Map<String, Value>)>,
}

#[derive(Default)]
struct Tally {
    shown: usize,
    tests: usize,
    later: usize,
    never: usize,
}

struct Run {
    /// Absent during a restart.
    world: Option<World>,
    store: Arc<MemoryStore>,
    slow: ReferenceEvaluator,
    random: StdRng,
    base: u64,
    now: u64,
    /// Attributes to choose from: few, so that questions are repeated.
    pool: Vec<Map<String, Value>>,
    last: Option<Question>,
    tally: Tally,
    /// The decisions so far, by their users and the numbers of their popups.
    decisions: Vec<(&'static str, u32, String)>,
    reported: usize,
    known: HashSet<(&'static str, String)>,
    /// When the server took the last event.
    taken_at: u64,
    /// The same, as it is after a restart: without events that were known already.
    stored_taken_at: u64,
}

/// What an event that is reported is for the slow evaluator.
enum Reported {
    With(u32),
    Did(What),
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = StdRng::seed_from_u64(seed);
        let base = base(&mut random);
        let pool = (0..3).map(|_| attributes(&mut random)).collect();
        let store = Arc::new(MemoryStore::default());
        let slow = ReferenceEvaluator::new(base);
        let mut run = Run {
            world: None,
            store,
            slow,
            random,
            base,
            now: base,
            pool,
            last: None,
            tally: Tally::default(),
            decisions: Vec::new(),
            reported: 0,
            known: HashSet::new(),
            taken_at: 0,
            stored_taken_at: 0,
        };
        run.start();
        run.put_segment("s0");
        run.put_segment("s1");
        run.put_settings();
        for _ in 0..run.random.random_range(1..14) {
            run.put_popup();
        }
        run
    }

    fn start(&mut self) {
        // A clean stop, which stores all exposures.
        self.world = None;
        self.taken_at = self.stored_taken_at;
        let popups = PopupsConfig { users_max: 1, ..PopupsConfig::default() };
        let config = EngineConfig { popups, ..EngineConfig::default() };
        let world = World::new(config, self.store.clone() as Arc<dyn Store>);
        world.clock.set(self.now);
        world.engine.popups.flush().unwrap();
        self.world = Some(world);
    }

    fn world(&self) -> &World {
        self.world.as_ref().unwrap()
    }

    fn pass_time(&mut self) {
        let forth = match self.random.random_range(0..20) {
            0..6 => 0,
            6..8 => self.random.random_range(1..1_000),
            8..10 => self.random.random_range(1..60_000),
            10..13 => self.random.random_range(1..3_600_000),
            13..15 => self.random.random_range(1..DAY_MS / 4),
            15 if self.now < self.base + 30 * DAY_MS => self.random.random_range(1..3 * DAY_MS),
            16..18 => {
                let back = any(&mut self.random, &[1, 50, 2_000, 600_000]);
                self.now -= self.random.random_range(1..=back);
                0
            }
            // To the next change, or just before it.
            _ => self.random.random_range(0..2) + self.next_turn() - self.now - 1,
        };
        self.now += forth;
        self.world().clock.set(self.now);
    }

    /// The next time at which a popup starts or ends, or the next quarter of an hour, at which windows and days begin and end.
    fn next_turn(&mut self) -> u64 {
        let specs = self.slow.popups.values().map(|popup| &popup.spec);
        let turns = specs.flat_map(|spec| spec.starts_at.into_iter().chain(spec.ends_at));
        let turns: Vec<u64> = turns.filter(|at| (self.now + 1..self.now + 4 * DAY_MS).contains(at)).collect();
        let quarter = (self.now / QUARTER_MS + 1) * QUARTER_MS;
        turns.choose(&mut self.random).copied().filter(|_| self.now % 3 != 1).unwrap_or(quarter)
    }

    fn put_popup(&mut self) {
        let id = format!("p{}", self.random.random_range(0..12));
        let put = loop {
            let json = spec(&mut self.random, self.base);
            match self.world().engine.popups.put(&id, json.to_string().as_bytes(), None, Precondition::None) {
                Ok((card, _)) => break card,
                Err(refusal) => assert!(refusal.detail.contains("unknown popup"), "{}", refusal.detail),
            }
        };
        self.slow.put(&id, put.spec);
    }

    fn change_popup(&mut self) {
        let ids: Vec<String> = self.slow.popups.keys().cloned().collect();
        let Some(id) = ids.choose(&mut self.random).cloned() else { return self.put_popup() };
        if self.random.random_bool(0.25) {
            let removed = self.world().engine.popups.remove(&id, Precondition::None);
            let is_named = self.slow.popups.iter().any(|(other, popup)| {
                let names = format!("\"popup\":{id:?}");
                *other != id && popup.spec.audience.as_ref().is_some_and(|rule| rule.get().contains(&names))
            });
            assert_eq!(removed.is_err(), is_named, "{id}: {removed:?}");
            if removed.is_ok() {
                self.slow.popups.remove(&id);
            }
            return;
        }
        let mut spec = self.slow.popups[&id].spec.clone();
        if self.random.random() {
            spec.state = any(&mut self.random, &[PopupState::Paused, PopupState::Live, PopupState::Live]);
            self.world().engine.popups.set_state(&id, spec.state, None, Precondition::None).unwrap();
        } else {
            spec.caps = serde_json::from_value(caps(&mut self.random, 0.3)).unwrap();
            let text = serde_json::to_vec(&spec).unwrap();
            self.world().engine.popups.put(&id, &text, None, Precondition::None).unwrap();
        }
        self.slow.put(&id, spec);
    }

    fn put_settings(&mut self) {
        let json = settings(&mut self.random);
        self.world().engine.popups.set_settings(json.to_string().as_bytes()).unwrap();
        self.slow.settings = serde_json::from_value(json).unwrap();
    }

    fn put_segment(&mut self, id: &str) {
        let mut users: Vec<&str> = USERS.into_iter().filter(|_| self.random.random()).collect();
        users.push("somebody");
        self.world().engine.popups.put_segment(id, parse_segment(users.join("\n").as_bytes()).unwrap()).unwrap();
        self.slow.segments.insert(id.to_owned(), users.into_iter().map(str::to_owned).collect());
    }

    fn put_card(&mut self) {
        let user = any(&mut self.random, &USERS);
        let card = attributes(&mut self.random);
        let attributes = Some(Value::Object(card.clone()));
        let upsert = UserUpsert { id: user.into(), attributes, ..UserUpsert::default() };
        self.world().wait(self.world().engine.upsert_users(vec![upsert])).unwrap();
        self.slow.cards.insert(user.to_owned(), card);
    }

    /// Asks about so many other users that all users of the test are evicted from memory.
    fn evict_all_users(&mut self) {
        self.world().engine.popups.flush().unwrap();
        let tables: Vec<u128> = USERS.map(|user| UserKey::of(user).0 % 64).to_vec();
        let (nobody, attributes) = (&mut self.random, Map::new());
        let first: u32 = nobody.random();
        let names = (0u32..).map(|at| format!("x{first}-{at}"));
        let near = names.filter(|name| tables.contains(&(UserKey::of(name).0 % 64)));
        for user in near.take(USERS.len() * 40) {
            let asked = Asked {
                user: &user,
                placement: "home",
                session: None,
                attributes: &attributes,
                event: None,
                now: self.now,
            };
            self.ask(&asked, |body, user| drop(self.world().engine.popups.explain(&body.for_user(user)).unwrap()));
        }
    }

    fn ask<T>(&self, asked: &Asked<'_>, ask: impl FnOnce(&QuestionBody<'_>, &str) -> T) -> T {
        let event = asked.event.map(|(name, properties)| json!({"name": name, "properties": properties}));
        let Asked { user, placement, session, attributes, .. } = asked;
        let question = json!({"user": user, "placement": placement, "session": session, "attributes": attributes,
            "event": event});
        let question = question.to_string();
        ask(&QuestionBody::read(question.as_bytes()).unwrap(), user)
    }

    fn question(&mut self) -> Question {
        let random = &mut self.random;
        let places = ["home", "home", "home", "listing", "listing", "cart", "cart", "nowhere"];
        Question {
            user: any(random, &USERS[..3 + self.base as usize % 3]),
            placement: any(random, &places),
            session: any(random, &SESSIONS),
            attributes: any(random, &self.pool),
            event: maybe(random, 0.2, |random| (any(random, &EVENTS), any(random, &self.pool))),
        }
    }

    fn decide(&mut self) {
        // Now and then the same question is repeated: its answer may come from the cache.
        let question = match self.last.take().filter(|_| self.random.random_bool(0.3)) {
            Some(last) => last,
            None => self.question(),
        };
        let Question { user, placement, session, attributes, event } = &question;
        let event = event.as_ref().map(|(name, properties)| (*name, properties));
        let asked = Asked { user, placement, session: *session, attributes, event, now: self.now };
        let explanation = maybe(&mut self.random, 0.3, |_| ())
            .map(|()| self.ask(&asked, |body, user| self.world().engine.popups.explain(&body.for_user(user)).unwrap()));
        let decided =
            self.ask(&asked, |body, user| self.world().engine.popups.decide_blocking(&body.for_user(user)).unwrap());
        let answer = match &decided.exposure {
            None => Answer::Nothing { retry_after_ms: decided.retry_after_ms },
            Some(exposure) => {
                let Decision { popup, variant, test, .. } = serde_json::from_slice(&exposure.json).unwrap();
                Answer::Shown { popup, variant, test }
            }
        };
        assert_eq!(answer, self.slow.decide(&asked), "the server's is left: {asked:?}");
        let chosen = match &answer {
            Answer::Shown { test: true, .. } => {
                self.tally.tests += 1;
                &decided.exposure
            }
            Answer::Shown { popup, .. } => {
                let decision = decided.exposure.as_ref().unwrap().decision.clone();
                self.decisions.push((question.user, self.slow.popups[popup].no, decision));
                self.tally.shown += 1;
                self.slow.assert_caps_hold(&asked);
                &decided.exposure
            }
            Answer::Nothing { retry_after_ms } => {
                *(if retry_after_ms.is_some() { &mut self.tally.later } else { &mut self.tally.never }) += 1;
                &None
            }
        };
        if let Some(explanation) = explanation {
            assert_eq!(explanation.chosen.as_deref(), chosen.as_ref().map(|exposure| &*exposure.popup), "{asked:?}");
            let next_at = decided.retry_after_ms.map(|after| self.now + after);
            assert_eq!(explanation.next_at, next_at, "{asked:?}");
        }
        self.last = Some(question);
    }

    /// Reports an event of a decision of before, a snooze or a custom event; now and then one that is known already.
    fn report(&mut self) {
        self.reported += 1;
        let id = format!("e{}", if self.random.random_bool(0.1) { self.reported / 2 } else { self.reported });
        let decision = self.decisions.choose(&mut self.random).cloned();
        let (user, json, what) = match (self.random.random_range(0..10), decision) {
            (0..5, Some((user, popup, decision))) => {
                let kind = any(&mut self.random, &["impression", "click", "click", "dismiss", "conversion"]);
                (user, json!({"id": id, "type": kind, "decision": decision}), Reported::With(popup))
            }
            (5, Some((user, popup, decision))) => {
                let for_s = any(&mut self.random, &[0, 30, 7_200, 150_000]);
                let until = self.now + for_s * 1_000;
                let what = Reported::Did(What::Snooze(popup, until));
                (user, json!({"id": id, "type": "snooze", "decision": decision, "until": until}), what)
            }
            _ => {
                let (user, name) = (any(&mut self.random, &USERS), any(&mut self.random, &CUSTOM));
                let json = json!({"id": id, "type": "custom", "name": name, "user": user});
                (user, json, Reported::Did(What::Custom(name.into())))
            }
        };
        let event: PopupEvent = serde_json::from_value(json).unwrap();
        let kind = event.kind;
        let world = self.world();
        let accepted = world.wait(world.engine.popups.report_events(&Actor::App, vec![event])).unwrap();
        let is_new = self.known.insert((user, id));
        assert_eq!(accepted.accepted == 1, is_new);
        // The server's time of events does not go back with its clock.
        self.taken_at = if self.now >= self.taken_at { self.now } else { self.taken_at + 1 };
        if is_new {
            self.stored_taken_at = self.taken_at;
            match what {
                Reported::With(no) => self.slow.report(user, no, kind, self.taken_at),
                Reported::Did(what) => self.slow.did(user, what, self.taken_at),
            }
        }
    }

    fn step(&mut self) {
        match self.random.random_range(0..300) {
            0..6 => self.put_popup(),
            6..14 => self.change_popup(),
            14..17 => self.put_settings(),
            17..19 => self.put_segment("s1"),
            19..25 => self.put_card(),
            25..27 => self.start(),
            27 => self.evict_all_users(),
            28..110 => self.pass_time(),
            110..175 => self.report(),
            _ => {}
        }
    }

    /// Asserts that the counts equal the exposures.
    fn check_counts(&self) {
        for (id, popup) in &self.slow.popups {
            let of_popup = self.slow.shown.values().flatten().filter(|shown| shown.no == popup.no);
            let mut expected = BTreeMap::<u64, (u64, u64)>::new();
            for shown in of_popup {
                let hour = expected.entry(shown.at / 3_600_000 * 3_600_000).or_default();
                *(if shown.control { &mut hour.1 } else { &mut hour.0 }) += 1;
            }
            let mut counted = BTreeMap::<u64, (u64, u64)>::new();
            for hour in self.world().engine.popups.counts(id, None, None).unwrap().hours {
                let sums = counted.entry(hour.hour).or_default();
                *sums = (sums.0 + hour.shown, sums.1 + hour.control);
            }
            // Of some hours only events are counted.
            counted.retain(|_, sums| *sums != (0, 0));
            assert_eq!(counted, expected, "{id}");
        }
    }
}

fn run(seed: u64) -> Tally {
    let mut run = Run::new(seed);
    for _ in 0..DECISIONS {
        run.step();
        run.decide();
    }
    run.check_counts();
    run.tally
}

#[test]
fn random_decisions_equal_those_of_the_reference_evaluator() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("POPUP_SEED") {
        run(seed);
        return;
    }
    let configurations = number("POPUP_CONFIGURATIONS").unwrap_or(CONFIGURATIONS);
    let next = AtomicU64::new(0);
    let work = || {
        let mut tally = Tally::default();
        while let seed @ 0.. = next.fetch_add(1, Ordering::Relaxed)
            && seed < configurations
        {
            let one = catch_unwind(AssertUnwindSafe(|| run(seed)));
            let one = one.unwrap_or_else(|_| panic!("seen with POPUP_SEED={seed}"));
            tally.shown += one.shown;
            tally.tests += one.tests;
            tally.later += one.later;
            tally.never += one.never;
        }
        tally
    };
    let tallies = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().unwrap())
    });
    let sum = |of: fn(&Tally) -> usize| tallies.iter().map(of).sum::<usize>();
    let all = [sum(|tally| tally.shown), sum(|tally| tally.tests), sum(|tally| tally.later), sum(|tally| tally.never)];
    println!("{configurations} configurations: shown, shown to test users, later, never: {all:?}");
    // Each kind of answer must have occurred often.
    let decisions = configurations as usize * DECISIONS;
    assert_eq!(all.iter().sum::<usize>(), decisions);
    assert!(all.iter().all(|seen| *seen > decisions / 200), "{all:?}");
}

#[test]
fn a_cached_answer_is_not_used_after_the_clock_goes_back() {
    let world = World::new(EngineConfig::default(), Arc::new(MemoryStore::default()));
    world.engine.popups.flush().unwrap();
    let spec = json!({"state": "live", "placements": ["home"], "variants": [{"id": "a", "content": {}}],
        "ends_at": NOON});
    world.engine.popups.put("p", spec.to_string().as_bytes(), None, Precondition::None).unwrap();
    let question = json!({"placement": "home", "attributes": {}}).to_string();
    let body = QuestionBody::read(question.as_bytes()).unwrap();
    let is_shown_at = |at| {
        world.clock.set(at);
        world.engine.popups.decide_blocking(&body.for_user("ada")).unwrap().exposure.is_some()
    };
    assert!(!is_shown_at(NOON));
    assert!(!is_shown_at(NOON + 20 * DAY_MS));
    assert!(!is_shown_at(NOON));
    assert!(is_shown_at(NOON - 1), "the clock was set back to before its end");
}
