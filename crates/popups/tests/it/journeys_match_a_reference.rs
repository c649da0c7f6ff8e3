//! Random journeys and random histories: where each user stands, what is shown and pushed and when to ask again equal what a
//! slow evaluator says, which is written from `docs/popups.md`; and so do the counts in the end. Journeys are edited,
//! paused, closed and removed while users stand in them, users are evicted from memory, and the server is restarted.
//!
//! `JOURNEY_HISTORIES` sets how many histories run; `JOURNEY_SEED` runs a single one.
// Slow: left out by `make test-quick`.

use crate::journey_world::{DAY, HOUR, JourneyWorld, MINUTE, NOON, Pushes, SECOND};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidings_popups::Precondition;
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

const HISTORIES: u64 = 1_000;
const ACTIONS: usize = 50;
/// Histories that run at a time: they wait for their workers most of the time.
const AT_ONCE: usize = 12;
const USERS: [&str; 3] = ["ada", "ben", "cyd"];
const JOURNEYS: [&str; 2] = ["j0", "j1"];
const EVENTS: [&str; 3] = ["x", "y", "z"];
const KINDS: [&str; 3] = ["click", "dismiss", "conversion"];

// ---- the slow evaluator

/// Where a user stands; no step: at the end.
#[derive(Debug, Clone, PartialEq)]
struct Standing {
    version: u32,
    step: Option<usize>,
    since: u64,
}

#[derive(Clone, Default)]
struct ModelJourney {
    versions: BTreeMap<u32, PopupJourneySpec>,
    standing: BTreeMap<&'static str, Standing>,
    /// By version and step: how often users came there, and how often they went on.
    counts: BTreeMap<(u32, String), (u64, u64)>,
}

#[derive(Clone, Default)]
struct Model {
    journeys: BTreeMap<&'static str, ModelJourney>,
    /// The last time of each thing that a user did: a custom event by its name, or an event with a popup.
    done: HashMap<(&'static str, String), u64>,
    shown: HashMap<(&'static str, String), u64>,
    /// Users and steps.
    pushed: Vec<(String, String)>,
}

fn milliseconds(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    number.parse::<u64>().unwrap() * HashMap::from([("s", SECOND), ("m", MINUTE), ("h", HOUR), ("d", DAY)])[unit]
}

fn popup_event(event: &JourneyPopupEvent) -> String {
    format!("{} of {}", event.kind, event.popup)
}

impl ModelJourney {
    fn newest(&self) -> &PopupJourneySpec {
        self.versions.last_key_value().unwrap().1
    }

    fn name(&self, version: u32, step: Option<usize>) -> String {
        step.map_or("end".to_owned(), |step| self.versions[&version].steps[step].id.clone())
    }

    /// The step of this name; absent: the one behind.
    fn target(&self, version: u32, from: usize, name: Option<&str>) -> Option<usize> {
        let steps = &self.versions[&version].steps;
        match name {
            None => Some(from + 1).filter(|next| *next < steps.len()),
            Some("end") => None,
            Some(name) => steps.iter().position(|step| step.id == name),
        }
    }

    fn go(&mut self, user: &'static str, to: Option<usize>, at: u64) {
        let Standing { version, step, .. } = self.standing[user].clone();
        self.counts.entry((version, self.name(version, step))).or_default().1 += 1;
        self.counts.entry((version, self.name(version, to))).or_default().0 += 1;
        self.standing.insert(user, Standing { version, step: to, since: at });
    }

    fn step(&self, user: &str) -> Option<(&PopupJourneyStep, &Standing, usize)> {
        let standing = self.standing.get(user)?;
        Some((&self.versions[&standing.version].steps[standing.step?], standing, standing.step?))
    }

    /// Where something that happened, or time, moves the user next, and when that was.
    fn next_move(&self, user: &'static str, model: &Model, now: u64) -> Option<(Option<usize>, u64)> {
        if self.newest().state == PopupJourneyState::Paused {
            return None;
        }
        let (step, &Standing { version, since, .. }, at) = self.step(user)?;
        let end = step.within.as_deref().or(step.duration.as_deref()).map(|span| since + milliseconds(span));
        if step.kind == PopupJourneyStepKind::Branch {
            for arm in &step.on {
                let (what, from) = match (&arm.event, &arm.popup_event) {
                    (Some(name), _) => (name.clone(), Some(since)),
                    (_, Some(event)) => (popup_event(event), model.shown.get(&(user, event.popup.clone())).copied()),
                    _ => unreachable!("an arm has an event"),
                };
                if let (Some(&last), Some(from)) = (model.done.get(&(user, what)), from)
                    && last >= from
                    && end.is_none_or(|end| last < end)
                {
                    return Some((self.target(version, at, Some(&arm.to)), last.max(since)));
                }
            }
        }
        let to = if step.kind == PopupJourneyStepKind::Wait { &step.next } else { &step.otherwise };
        end.filter(|end| *end <= now).map(|end| (self.target(version, at, to.as_deref()), end))
    }
}

impl Model {
    fn advance(&mut self, user: &'static str, now: u64) {
        for id in JOURNEYS {
            while let Some(journey) = self.journeys.get(id)
                && let Some((to, at)) = journey.next_move(user, self, now)
            {
                self.journeys.get_mut(id).unwrap().go(user, to, at);
            }
        }
    }

    /// Time moves everybody on, and the server pushes.
    fn settle(&mut self, now: u64) {
        for user in USERS {
            loop {
                self.advance(user, now);
                let pushing = JOURNEYS.into_iter().find_map(|id| {
                    let journey = self.journeys.get(id)?;
                    let (step, standing, at) = journey.step(user)?;
                    let acts =
                        step.kind == PopupJourneyStepKind::Push && journey.newest().state != PopupJourneyState::Paused;
                    let to = journey.target(standing.version, at, step.next.as_deref());
                    acts.then(|| (id, step.id.clone(), to, standing.since))
                });
                let Some((id, step, to, since)) = pushing else { break };
                self.pushed.push((user.to_owned(), format!("{id}/{step}")));
                self.journeys.get_mut(id).unwrap().go(user, to, now.max(since));
            }
        }
    }

    fn did(&mut self, user: &'static str, what: String, now: u64) {
        self.advance(user, now);
        self.done.insert((user, what.clone()), now);
        self.advance(user, now);
        for id in JOURNEYS {
            let Some(journey) = self.journeys.get_mut(id) else { continue };
            let PopupJourneyEntry { event, popup_event: with_popup, again, .. } = &journey.newest().entry;
            let enters = event.clone().or(with_popup.as_ref().map(popup_event)).unwrap() == what;
            let may = journey.standing.get(user).is_none_or(|standing| *again && standing.step.is_none());
            if enters && may && journey.newest().state == PopupJourneyState::Live {
                let version = *journey.versions.last_key_value().unwrap().0;
                journey.standing.insert(user, Standing { version, step: Some(0), since: now });
                journey.counts.entry((version, journey.name(version, Some(0)))).or_default().0 += 1;
            }
        }
        self.advance(user, now);
    }

    /// The popup that the journey shows to the user at the placement now.
    fn shown_by(&self, id: &str, user: &str, placement: &str) -> Option<&str> {
        let journey = self.journeys.get(id)?;
        let (step, ..) = journey.step(user)?;
        let is_here = step.placement.as_deref().is_none_or(|only| only == placement);
        step.popup.as_deref().filter(|_| is_here && journey.newest().state != PopupJourneyState::Paused)
    }

    fn decide(&mut self, user: &'static str, placement: &str, now: u64) -> Option<String> {
        self.advance(user, now);
        // The popups of j0 come first.
        let (id, popup) =
            JOURNEYS.into_iter().find_map(|id| Some((id, self.shown_by(id, user, placement)?.to_owned())))?;
        self.shown.insert((user, popup.clone()), now);
        let journey = self.journeys.get_mut(id).unwrap();
        let (step, standing, at) = journey.step(user).unwrap();
        let to = journey.target(standing.version, at, step.next.as_deref());
        journey.go(user, to, now);
        self.advance(user, now);
        Some(popup)
    }

    /// When time alone moves somebody next.
    fn next_turn(&self, user: &'static str, now: u64) -> Option<u64> {
        let journeys = JOURNEYS.into_iter().filter_map(|id| self.journeys.get(id));
        let ends =
            journeys.filter(|journey| journey.newest().state != PopupJourneyState::Paused).filter_map(|journey| {
                let (step, standing, _) = journey.step(user)?;
                let span = step.within.as_deref().or(step.duration.as_deref())?;
                Some(standing.since + milliseconds(span)).filter(|end| *end > now)
            });
        ends.min()
    }

    /// After how long time alone brings a popup. Absent in the outer option: a push comes before, or might.
    fn retry_after(&self, user: &'static str, placement: &str, now: u64) -> Option<Option<u64>> {
        let (mut later, mut at) = (self.clone(), now);
        loop {
            later.advance(user, at);
            let mut steps = JOURNEYS.into_iter().filter_map(|id| later.journeys.get(id)?.step(user));
            if steps.any(|(step, ..)| step.kind == PopupJourneyStepKind::Push) {
                return None;
            }
            if at > now && JOURNEYS.into_iter().any(|id| later.shown_by(id, user, placement).is_some()) {
                return Some(Some(at - now));
            }
            match later.next_turn(user, at) {
                Some(next) => at = next,
                None => return Some(None),
            }
        }
    }
}

// ---- random journeys and histories

fn any<T: Clone>(random: &mut StdRng, of: &[T]) -> T {
    of.choose(random).unwrap().clone()
}

fn span(random: &mut StdRng) -> Value {
    json!(any(random, &["1s", "30s", "10m", "1h", "6h", "2d"]))
}

fn happening(random: &mut StdRng, journey: &str) -> (&'static str, Value) {
    if random.random() {
        return ("event", json!(any(random, &EVENTS)));
    }
    let popup =
        if random.random_bool(0.7) { format!("{journey}-{}", random.random_range(0..2)) } else { "free".into() };
    ("popup_event", json!({"popup": popup, "type": any(random, &KINDS)}))
}

fn journey(random: &mut StdRng, id: &str) -> Value {
    let count = random.random_range(1..7);
    let kinds: Vec<&str> = (0..count).map(|_| any(random, &["popup", "popup", "wait", "branch", "push"])).collect();
    let names: Vec<String> = kinds.iter().enumerate().map(|(at, kind)| format!("{kind}{at}")).collect();
    let mut steps = Vec::new();
    for (at, kind) in kinds.into_iter().enumerate() {
        let mut later: Vec<String> = names[at + 1..].to_vec();
        later.push("end".into());
        let mut step = json!({"id": names[at], "type": kind});
        let mut maybe = |random: &mut StdRng, chance: f64, name: &str| {
            if random.random_bool(chance) {
                step[name] = json!(any(random, &later));
            }
        };
        match kind {
            "popup" => {
                maybe(random, 0.2, "next");
                if random.random() {
                    maybe(random, 0.5, "else");
                    step["within"] = span(random);
                }
                step["popup"] = json!(format!("{id}-{}", random.random_range(0..2)));
                if random.random_bool(0.3) {
                    step["placement"] = json!(any(random, &["home", "side"]));
                }
            }
            "wait" => {
                maybe(random, 0.2, "next");
                step["for"] = span(random);
            }
            "branch" => {
                if random.random_bool(0.8) {
                    maybe(random, 0.5, "else");
                    step["within"] = span(random);
                }
                let arm = |random: &mut StdRng| {
                    let (name, what) = happening(random, id);
                    json!({name: what, "to": any(random, &later)})
                };
                step["on"] = (0..random.random_range(1..4)).map(|_| arm(random)).collect();
            }
            _ => {
                maybe(random, 0.2, "next");
                step["push"] = json!({"type": "t", "body": format!("{id}/{}", names[at])});
            }
        }
        steps.push(step);
    }
    let (name, what) =
        if random.random_bool(0.8) { ("event", json!(any(random, &EVENTS[..2]))) } else { happening(random, id) };
    let state = any(random, &["live", "live", "live", "live", "closed", "paused"]);
    json!({"state": state, "entry": {name: what, "again": random.random::<bool>()}, "steps": steps})
}

struct Run {
    world: Option<JourneyWorld>,
    store: Arc<MemoryStore>,
    pushes: Arc<Pushes>,
    model: Model,
    random: StdRng,
    now: u64,
    events: usize,
    decisions: Vec<(&'static str, String, String)>,
}

#[derive(Default, Debug)]
struct Tally {
    shown: usize,
    moves: u64,
    pushed: usize,
    ended: usize,
    retries: usize,
}

impl Run {
    fn new(seed: u64) -> Run {
        let (store, pushes) = (Arc::new(MemoryStore::default()), Arc::new(Pushes::default()));
        let world = JourneyWorld::new(store.clone(), pushes.clone(), NOON);
        for (priority, id) in ["j1-1", "j1-0", "j0-1", "j0-0"].into_iter().enumerate() {
            world.put_popup(id, json!({"placements": ["home", "side"], "journey": id[..2], "priority": priority}));
        }
        world.put_popup("free", json!({"placements": ["free"]}));
        let random = StdRng::seed_from_u64(seed);
        let (model, decisions) = (Model::default(), Vec::new());
        let mut run = Run { world: Some(world), store, pushes, model, random, now: NOON, events: 0, decisions };
        run.put("j0");
        run.put("j1");
        run
    }

    fn world(&self) -> &JourneyWorld {
        self.world.as_ref().unwrap()
    }

    fn put(&mut self, id: &'static str) {
        let spec = journey(&mut self.random, id);
        let was_paused =
            self.model.journeys.get(id).is_some_and(|journey| journey.newest().state == PopupJourneyState::Paused);
        let put = self.world().put_journey(id, &spec).unwrap();
        self.model.journeys.entry(id).or_default().versions.insert(put.version, put.spec);
        if was_paused {
            // Users of a paused journey are looked at every ten minutes.
            self.set_time(self.now + 10 * MINUTE + 1);
        }
    }

    fn set_time(&mut self, now: u64) {
        self.now = now;
        self.world().clock.set(now);
        self.settle();
    }

    /// Lets the server act for those whose time has come.
    fn settle(&mut self) {
        self.model.settle(self.now);
        // The timers run at the end of each pass of the worker, so with the second flush they have run once.
        self.world().popups.flush().unwrap();
        self.world().popups.flush().unwrap();
        let is_pushing = |(id, step): (&str, &str)| {
            let state = self.model.journeys[id].newest().state;
            step.starts_with("push") && state != PopupJourneyState::Paused
        };
        self.world().wait_until("a push", || {
            USERS.iter().all(|user| {
                let standing = self.world().explain(user).journeys;
                standing.iter().all(|one| !is_pushing((&one.journey, &one.step)))
            })
        });
    }

    fn report(&mut self) {
        self.events += 1;
        let id = self.events.to_string();
        let (user, what, event) = match self.decisions.choose(&mut self.random).cloned() {
            Some((user, popup, decision)) if self.random.random_bool(0.4) => {
                let kind = any(&mut self.random, &KINDS);
                (user, format!("{kind} of {popup}"), json!({"id": id, "type": kind, "decision": decision}))
            }
            _ => {
                let (user, name) = (any(&mut self.random, &USERS), any(&mut self.random, &EVENTS));
                (user, name.to_owned(), json!({"id": id, "type": "custom", "name": name, "user": user}))
            }
        };
        assert_eq!(self.world().report(event.clone()).accepted, 1);
        if self.random.random_bool(0.1) {
            assert_eq!(self.world().report(event).duplicates, 1, "a repeated report changes nothing");
        }
        self.model.did(user, what, self.now);
        self.settle();
    }

    fn decide(&mut self, tally: &mut Tally) {
        let user = any(&mut self.random, &USERS);
        let placement = any(&mut self.random, &["home", "home", "side", "free"]);
        let decided = self.world().decide(user, placement);
        if placement == "free" {
            let (popup, decision) = decided.unwrap();
            self.model.shown.insert((user, popup.clone()), self.now);
            self.decisions.push((user, popup, decision));
            return;
        }
        let expected = self.model.decide(user, placement, self.now);
        match decided {
            Ok((popup, decision)) => {
                assert_eq!(Some(&popup), expected.as_ref(), "{user} at {placement}");
                self.decisions.push((user, popup, decision));
                tally.shown += 1;
            }
            Err(retry_after) => {
                assert_eq!(expected, None, "{user} at {placement}");
                if let Some(expected) = self.model.retry_after(user, placement, self.now) {
                    assert_eq!(retry_after, expected, "{user} at {placement}");
                    tally.retries += usize::from(expected.is_some());
                }
            }
        }
        self.settle();
    }

    fn pass_time(&mut self) {
        let turns: Vec<u64> = USERS.iter().filter_map(|user| self.model.next_turn(user, self.now)).collect();
        let to = match turns.choose(&mut self.random) {
            Some(turn) if self.random.random_bool(0.6) => *turn - self.random.random_range(0..2),
            _ => {
                let most = any(&mut self.random, &[2, 2 * SECOND, HOUR, DAY]);
                self.now + self.random.random_range(0..most)
            }
        };
        self.set_time(to.max(self.now));
    }

    fn act(&mut self, tally: &mut Tally) {
        match self.random.random_range(0..100) {
            0..4 => {
                let id = any(&mut self.random, &JOURNEYS);
                self.put(id);
            }
            4 => {
                let id = any(&mut self.random, &JOURNEYS);
                if self.model.journeys.remove(id).is_some() {
                    self.world().popups.remove_journey(id, Precondition::None).unwrap();
                }
            }
            5..8 => {
                // A clean stop, and a start.
                self.world = None;
                self.world = Some(JourneyWorld::new(self.store.clone(), self.pushes.clone(), self.now));
                self.settle();
            }
            8..40 => self.pass_time(),
            40..68 => self.report(),
            _ => self.decide(tally),
        }
        self.compare();
    }

    /// Everybody stands where the slow evaluator says.
    fn compare(&mut self) {
        for user in USERS {
            let mut model = self.model.clone();
            model.advance(user, self.now);
            let mut expected = BTreeMap::new();
            for (id, journey) in &model.journeys {
                if let Some(Standing { version, step, since }) = journey.standing.get(user) {
                    expected.insert((*id).to_owned(), (*version, journey.name(*version, *step), *since));
                }
            }
            let standing = self.world().explain(user).journeys.into_iter();
            let standing: BTreeMap<_, _> =
                standing.map(|one| (one.journey, (one.version, one.step, one.since))).collect();
            assert_eq!(standing, expected, "{user}");
        }
    }

    fn finish(&mut self, tally: &mut Tally) {
        self.settle();
        for (id, journey) in &self.model.journeys {
            let counts = || {
                let steps = self.world().popups.journey_counts(id, None, None).unwrap().steps.into_iter();
                steps.map(|one| ((one.version, one.step), (one.reached, one.left))).collect::<BTreeMap<_, _>>()
            };
            // Where nobody asks, the server's timers move users.
            for _ in 0..2_000 {
                if counts() == journey.counts {
                    break;
                }
            }
            assert_eq!(counts(), journey.counts, "{id}");
            tally.moves += journey.counts.values().map(|counts| counts.0).sum::<u64>();
            tally.ended += journey.standing.values().filter(|standing| standing.step.is_none()).count();
        }
        let mut pushed: Vec<(String, String)> = self.pushes.taken.lock().values().cloned().collect();
        let mut expected: Vec<(String, String)> =
            self.model.pushed.iter().map(|(user, step)| (user.clone(), format!("{step:?}"))).collect();
        pushed.sort();
        expected.sort();
        assert_eq!(pushed, expected);
        tally.pushed += pushed.len();
    }
}

fn run(seed: u64) -> Tally {
    let mut tally = Tally::default();
    let mut run = Run::new(seed);
    for _ in 0..ACTIONS {
        run.act(&mut tally);
    }
    run.finish(&mut tally);
    tally
}

#[test]
fn random_histories_of_journeys_equal_those_of_the_slow_evaluator() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("JOURNEY_SEED") {
        println!("{:?}", run(seed));
        return;
    }
    let histories = number("JOURNEY_HISTORIES").unwrap_or(HISTORIES);
    let next = AtomicU64::new(0);
    let work = || {
        let mut all = Tally::default();
        while let seed @ 0.. = next.fetch_add(1, Ordering::Relaxed)
            && seed < histories
        {
            let one = catch_unwind(AssertUnwindSafe(|| run(seed)));
            let one = one.unwrap_or_else(|_| panic!("seen with JOURNEY_SEED={seed}"));
            all.shown += one.shown;
            all.moves += one.moves;
            all.pushed += one.pushed;
            all.ended += one.ended;
            all.retries += one.retries;
        }
        all
    };
    let all: Vec<Tally> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: fn(&Tally) -> u64| all.iter().map(of).sum::<u64>();
    let seen = [
        sum(|tally| tally.shown as u64),
        sum(|tally| tally.moves),
        sum(|tally| tally.pushed as u64),
        sum(|tally| tally.ended as u64),
        sum(|tally| tally.retries as u64),
    ];
    println!("{histories} histories, seeds 0 to {}: shown, moves, pushed, ended, retries: {seen:?}", histories - 1);
    assert!(seen.iter().all(|seen| *seen > histories / 10), "each must have occurred often: {seen:?}");
}
