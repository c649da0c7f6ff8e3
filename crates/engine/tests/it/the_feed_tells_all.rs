//! Whoever follows the feed of events, with stops at any place, has in the end what the API shows: timelines, reactions, pins,
//! members, read marks and profiles. `FEED_SEED` replays a run.

use crate::{databases::databases_by_turns, postgres::PostgresServer, support::*};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tidings_domain::{
    model::Actor,
    store::{Proposal, Store, UserPatch},
};
use tidings_engine::{
    config::EngineConfig,
    hook::{HookCall, HookConfig, HookScope, HookTransport},
};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const USERS: [&str; 5] = ["ann", "ben", "cat", "dan", "eve"];
const ROOMS: [&str; 2] = ["one", "two"];

fn world() -> World {
    world_on(Arc::new(MemoryStore::shared()))
}

/// A hook that hides some of the messages.
#[derive(Debug)]
struct Hides;

impl HookTransport for Hides {
    fn send(&self, call: HookCall) {
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        let answer = |question: &Value| {
            let text = question["message"]["body"].as_str().unwrap_or_default();
            json!({ "id": question["id"], "action": if text.ends_with('3') { "hide" } else { "allow" } })
        };
        let answers: Vec<Value> = body["questions"].as_array().unwrap().iter().map(answer).collect();
        call.answer(Ok(serde_json::to_vec(&json!({ "answers": answers })).unwrap()));
    }
}

fn world_on(store: Arc<dyn Store>) -> World {
    let hook = HookConfig {
        transport: Arc::new(Hides),
        on: "send".parse().unwrap(),
        closed: HookScope::ALL,
        app_servers: true,
        time_limit: PATIENCE,
        waiting_max: 1_000,
        batch_max: 100,
        requests_max: 8,
    };
    let events_keep = Duration::from_secs(86_400);
    let world = World::new(EngineConfig { events_keep, hook: Some(hook), ..EngineConfig::default() }, store);
    world.users(&USERS);
    for room in ROOMS {
        world.conversation(ConversationKind::Group, room, &["ann", "ben"]);
    }
    world
}

fn query(after: Option<&str>, limit: usize) -> EventsQuery {
    EventsQuery { after: after.map(str::to_owned), limit: Some(limit), ..EventsQuery::default() }
}

fn read(world: &World, query: &EventsQuery) -> Value {
    world.settle();
    read_at_once(world, query)
}

/// The same while there may be commits of which the node does not know yet.
fn read_at_once(world: &World, query: &EventsQuery) -> Value {
    let request = world.engine.events_request(query).unwrap();
    serde_json::to_value(world.engine.read_events(&request).unwrap().page).unwrap()
}

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Body, whether it was recalled, reactions, whether it is pinned, and whether it is hidden.
type Message = (Value, bool, Value, bool, bool);

/// What somebody knows who follows the feed.
#[derive(Debug, Default, PartialEq)]
struct Followed {
    messages: BTreeMap<(String, u64), Message>,
    members: BTreeMap<(String, String), String>,
    read: BTreeMap<(String, String), u64>,
    names: BTreeMap<String, Value>,
}

impl Followed {
    fn take(&mut self, event: &Value) {
        let data = &event["data"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let at = |seq: &Value| (text(&event["subject"]), seq.as_u64().unwrap());
        match event["type"].as_str().unwrap() {
            "entry.message" => {
                self.messages.insert(at(&data["seq"]), message_of(data));
            }
            "entry.edit" => self.messages.get_mut(&at(&data["target"])).unwrap().0 = data["body"].clone(),
            "entry.recall" => {
                let message = self.messages.get_mut(&at(&data["target"])).unwrap();
                *message = (Value::Null, true, json!([]), false, message.4);
            }
            "entry.reactions" => {
                for change in data["body"]["changes"].as_array().unwrap() {
                    self.messages.get_mut(&at(&change["seq"])).unwrap().2 = change["reactions"].clone();
                }
            }
            "entry.pins" => {
                self.messages.get_mut(&at(&data["target"])).unwrap().3 = data["body"]["pinned"] == true;
            }
            "members" => {
                let key = |user: &Value| (text(&event["subject"]), text(user));
                for member in [&data["joined"], &data["changed"]].into_iter().flat_map(|m| m.as_array().unwrap()) {
                    self.members.insert(key(&member["user"]), text(&member["role"]));
                    self.read.insert(key(&member["user"]), member["read_seq"].as_u64().unwrap());
                }
                for user in data["left"].as_array().unwrap() {
                    self.members.remove(&key(user));
                }
            }
            "read" => {
                let key = (text(&data["conversation"]), text(&data["user"]));
                self.read.insert(key, data["read_seq"].as_u64().unwrap());
            }
            "user" => {
                self.names.insert(text(&data["id"]), data["name"].clone());
            }
            _ => {}
        }
    }
}

impl Followed {
    /// The same without the read marks of who is no member.
    fn marks_of_members(&self) -> Followed {
        let Followed { messages, members, read, names } = self;
        let read = read.iter().filter(|(key, _)| members.contains_key(*key));
        let read = read.map(|(key, mark)| (key.clone(), *mark)).collect();
        Followed { messages: messages.clone(), members: members.clone(), read, names: names.clone() }
    }
}

fn message_of(entry: &Value) -> Message {
    let reactions = entry.get("reactions").cloned().unwrap_or(json!([]));
    let is = |field: &str| entry.get(field).is_some();
    (entry["body"].clone(), is("recalled"), reactions, is("pinned"), is("hidden"))
}

/// The same as the API shows it.
fn shown(world: &World) -> Followed {
    let engine = &world.engine;
    let mut all = Followed::default();
    for room in ROOMS {
        let range = HistoryQuery { from_seq: Some(1), limit: Some(500), ..HistoryQuery::default() };
        for entry in engine.history(&Actor::App, room, &range).unwrap().entries {
            let entry = serde_json::to_value(entry).unwrap();
            if entry["kind"] == "message" {
                all.messages.insert((room.into(), entry["seq"].as_u64().unwrap()), message_of(&entry));
            }
        }
        let members = serde_json::to_value(engine.members(&Actor::App, room, None, 0).unwrap()).unwrap();
        for member in members["members"].as_array().unwrap() {
            let [user, role] = ["user", "role"].map(|field| member[field].as_str().unwrap().to_owned());
            let (reader, conversation) = (world.user(&user), engine.directory.require_conversation(room).unwrap());
            let read_seq = engine.directory.membership(conversation.no, reader.no).unwrap().unwrap().read_seq;
            all.read.insert((room.into(), user.clone()), read_seq);
            all.members.insert((room.into(), user), role);
        }
    }
    for user in USERS {
        let profile = serde_json::to_value(engine.user_profile(user, true).unwrap()).unwrap();
        all.names.insert(user.into(), profile["name"].clone());
    }
    all
}

/// One change of many; whether it is allowed does not matter.
fn change(world: &World, random: &mut StdRng, number: usize) {
    let engine = &world.engine;
    let (room, user) = (*ROOMS.choose(random).unwrap(), *USERS.choose(random).unwrap());
    let target = random.random_range(1..12);
    match random.random_range(0..10) {
        0..=2 => drop(world.wait(engine.send(&Actor::App, message(user, room, &format!("m{number}"))))),
        3 => {
            let edit = of(json!({ "body": { "text": format!("e{number}") } }));
            drop(world.wait(engine.edit_message(&Actor::App, room, target, edit)));
        }
        4 => drop(world.wait(engine.recall_message(&Actor::App, room, target, None, None))),
        5 => {
            let (key, add) = (["+", "-"].choose(random).unwrap(), random.random_bool(0.7));
            drop(world.wait(engine.react(&Actor::App, Some(user.into()), room, target, key, add)));
        }
        6 => drop(world.wait(engine.pin(&Actor::App, None, room, target, random.random_bool(0.6)))),
        7 => {
            let (field, role) =
                (["add", "remove"].choose(random).unwrap(), ["admin", "member"].choose(random).unwrap());
            let mut change = json!({ *field: [user] });
            if *field == "add" {
                change["role"] = json!(role);
            }
            drop(world.wait(engine.change_members(&Actor::App, room, of(change))));
        }
        8 => {
            let reader = world.user(user);
            drop(world.wait(engine.mark_read(&reader, room, target)));
        }
        _ => {
            let upsert = of(json!({ "id": user, "name": format!("n{number}") }));
            world.wait(engine.upsert_users(vec![upsert])).unwrap();
        }
    }
}

/// A reader who stops anywhere, and goes on from what it has kept.
#[derive(Default)]
struct Reader {
    followed: Followed,
    cursor: Option<String>,
    ids: BTreeSet<String>,
}

impl Reader {
    /// Reads a page; answers whether there are more.
    fn read(&mut self, world: &World, random: &mut StdRng, counts: &mut BTreeMap<String, usize>) -> bool {
        let limit = random.random_range(1..8);
        let page = read_at_once(world, &query(self.cursor.as_deref(), limit));
        let events = page["events"].as_array().unwrap();
        assert!(events.len() <= limit, "{limit}: {page}");
        for event in events {
            self.followed.take(event);
            if self.ids.insert(event["id"].as_str().unwrap().to_owned()) {
                *counts.entry(event["type"].as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
        // The cursor of any event that it has dealt with is as good as the page's: the others come again.
        self.cursor = match events.choose(random).filter(|_| random.random_bool(0.3)) {
            Some(event) => Some(event["cursor"].as_str().unwrap().to_owned()),
            None => Some(page["next"].as_str().unwrap().to_owned()),
        };
        page["more"] == true
    }

    /// Reads on until the reader has what the API shows.
    fn catch_up(&mut self, world: &World, random: &mut StdRng, counts: &mut BTreeMap<String, usize>, about: &str) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while {
            while self.read(world, random, counts) {}
            self.followed.marks_of_members() != shown(world)
        } {
            let (followed, shown) = (self.followed.marks_of_members(), shown(world));
            assert!(std::time::Instant::now() < deadline, "{about} {followed:#?}\n-----\n{shown:#?}");
            std::thread::yield_now();
        }
    }
}

/// Histories by the seeds that `FEED_SEED` and `FEED_RUNS` name. One reader has all events; another begins with the present state, in the
/// middle, while changes go on.
fn histories(runs: u64, store: impl Fn() -> Arc<dyn Store>) -> BTreeMap<String, usize> {
    let number_of = |name: &str, usual| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seed, runs) = (number_of("FEED_SEED", 1), number_of("FEED_RUNS", runs));
    let (mut counts, mut hidden) = (BTreeMap::<String, usize>::new(), 0);
    for seed in (0..runs).map(|run| run.wrapping_add(seed)) {
        let mut random = StdRng::seed_from_u64(seed);
        let world = world_on(store());
        let mut readers = vec![Reader::default()];
        let begins_at = random.random_range(0..120);
        for number in 0..120 {
            change(&world, &mut random, number);
            if number == begins_at {
                readers.push(Reader { cursor: Some("start".into()), ..Reader::default() });
            }
            for reader in &mut readers {
                if random.random_bool(0.3) {
                    reader.read(&world, &mut random, &mut counts);
                }
            }
        }
        // Reactions are told of within a second.
        world.clock.advance(Duration::from_secs(5));
        for (number, reader) in readers.iter_mut().enumerate() {
            reader.catch_up(&world, &mut random, &mut counts, &format!("FEED_SEED={seed}, reader {number}"));
        }
        hidden += readers[0].followed.messages.values().filter(|message| message.4).count();
    }
    println!("{runs} histories, {hidden} hidden messages; events: {counts:?}");
    assert!(runs == 0 || hidden > 0);
    counts
}

#[test]
fn who_follows_the_feed_has_what_the_api_shows() {
    let counts = histories(30, || Arc::new(MemoryStore::shared()));
    for kind in ["entry.edit", "entry.recall", "entry.reactions", "entry.pins", "members", "read", "user"] {
        assert!(counts.get(kind).is_some_and(|count| *count > 10), "{kind}: {counts:?}");
    }
}

#[test]
fn who_follows_the_feed_of_a_folder_has_what_the_api_shows() {
    let folder = tempfile::tempdir().unwrap();
    let opened = std::cell::Cell::new(0);
    histories(8, || {
        opened.set(opened.get() + 1);
        let options = EmbeddedOptions::new(folder.path().join(opened.get().to_string()));
        let store = EmbeddedStore::open(EmbeddedOptions { event_log: true, ..options }).unwrap();
        store.open_gates().unwrap();
        Arc::new(store)
    });
}

#[test]
fn who_follows_the_feed_of_a_database_has_what_the_api_shows() {
    let server = PostgresServer::shared();
    histories(4, databases_by_turns(&server));
}

/// A page is bounded, so a reader from the start has it in parts; each ends where the next begins.
#[test]
fn the_present_state_is_read_in_pages_of_any_size() {
    let world = world();
    for number in 0..7 {
        world.wait(world.engine.send(&Actor::App, message("ann", "one", &format!("m{number}")))).unwrap();
    }
    world.settle();
    let pages = |limit: usize, types: Option<&str>| {
        let (mut cursor, mut found) = ("start".to_owned(), Vec::new());
        loop {
            let asked = EventsQuery { types: types.map(str::to_owned), ..query(Some(&cursor), limit) };
            let page = read(&world, &asked);
            found.extend(
                page["events"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|event| (event["type"].clone(), event["subject"].clone(), event["data"]["seq"].clone())),
            );
            cursor = page["next"].as_str().unwrap().to_owned();
            if page["more"] == false {
                break found;
            }
        }
    };
    let all = pages(1_000, None);
    let of_type = |wanted: &str| all.iter().filter(|(kind, ..)| kind == wanted).cloned().collect::<Vec<_>>();
    for (kind, count) in
        [("user", USERS.len()), ("conversation", ROOMS.len()), ("members", ROOMS.len()), ("entry.message", 7)]
    {
        assert_eq!(of_type(kind).len(), count, "{kind}: {all:?}");
        assert_eq!(pages(3, Some(kind)), of_type(kind));
    }
    for limit in 1..5 {
        assert_eq!(pages(limit, None), all, "{limit}");
    }
}

/// The reader asks for what was committed from a time on.
#[test]
fn the_feed_is_read_from_a_time_on() {
    let world = world();
    let mut times = Vec::new();
    for number in 0..9 {
        world.clock.advance(Duration::from_secs(60));
        world.wait(world.engine.send(&Actor::App, message("ann", "one", &format!("m{number}")))).unwrap();
        // Changes without a time are between.
        world.wait(world.engine.upsert_users(vec![of(json!({ "id": "ann", "name": format!("n{number}") }))])).unwrap();
        times.push(NOON + 60_000 * (number + 1));
    }
    world.settle();
    for (number, time) in times.iter().enumerate() {
        let time = jiff::Timestamp::from_millisecond(*time as i64).unwrap().to_string();
        let asked = EventsQuery { types: Some("entry.message".into()), ..query(Some(&time), 100) };
        let page = read(&world, &asked);
        let texts: Vec<&Value> = page["events"].as_array().unwrap().iter().map(|e| &e["data"]["body"]).collect();
        let wanted: Vec<String> = (number..9).map(|number| format!("m{number}")).collect();
        assert_eq!(texts, wanted.iter().collect::<Vec<_>>(), "{time}");
    }
}

#[test]
fn a_page_of_some_types_goes_on_from_any_place_of_a_large_change() {
    let world = world();
    let names: Vec<UserUpsert> = (0..50).map(|n| of(json!({ "id": format!("x{n:02}") }))).collect();
    world.wait(world.engine.upsert_users(names)).unwrap();
    world.settle();
    let (mut found, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let asked = EventsQuery { types: Some("user, read".into()), ..query(cursor.as_deref(), 7) };
        let page = read(&world, &asked);
        let events = page["events"].as_array().unwrap();
        assert!(events.len() <= 7 && events.iter().all(|event| event["type"] == "user"), "{page}");
        assert!(events.iter().all(|event| event["time"] == "2026-03-01T12:00:00Z"), "{page}");
        found.extend(events.iter().map(|event| event["subject"].as_str().unwrap().to_owned()));
        cursor = Some(page["next"].as_str().unwrap().to_owned());
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(found.len(), USERS.len() + 50, "{found:?}");
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len());
}

#[test]
fn what_another_node_has_committed_is_read_once_this_one_knows_it() {
    let store = Arc::new(MemoryStore::shared());
    let config = EngineConfig { events_keep: Duration::from_secs(86_400), ..EngineConfig::default() };
    let world = World::new(config, store.clone());
    let start = read(&world, &query(Some("now"), 10))["next"].as_str().unwrap().to_owned();
    let elsewhere = UserPatch { id: "elsewhere".into(), ..UserPatch::default() };
    store.commit(&[Proposal::PutUsers(vec![elsewhere])], NOON).unwrap();
    let page = read_at_once(&world, &query(Some(&start), 10));
    assert_eq!((&page["events"], &page["more"], &page["next"]), (&json!([]), &json!(false), &json!(start)));
    world.users(&["here"]);
    let page = read(&world, &query(Some(&start), 10));
    let subjects: Vec<&Value> = page["events"].as_array().unwrap().iter().map(|event| &event["subject"]).collect();
    assert_eq!(subjects, ["elsewhere", "here"]);
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let refused = |world: &World, query: EventsQuery| world.engine.events_request(&query).unwrap_err();
    let world = world();
    for (query, code, holds) in [
        (query(None, 0), ErrorCode::InvalidField, "limit"),
        (query(None, 1_001), ErrorCode::LimitExceeded, "limit"),
        (query(Some("yesterday"), 1), ErrorCode::CursorInvalid, "after"),
        (query(Some("77.1"), 1), ErrorCode::CursorInvalid, "another history"),
        (query(Some("1.5.e.1.18446744073709551615"), 1), ErrorCode::CursorInvalid, "after"),
        (query(Some("1.18446744073709551615"), 1), ErrorCode::CursorInvalid, "after"),
        (EventsQuery { wait_s: Some(31), ..EventsQuery::default() }, ErrorCode::LimitExceeded, "wait_s"),
        (
            EventsQuery { types: Some("entry.,usr".into()), ..EventsQuery::default() },
            ErrorCode::InvalidField,
            "\"usr\"",
        ),
    ] {
        let refusal = refused(&world, query);
        assert_eq!(refusal.code, code, "{refusal}");
        assert!(refusal.detail.contains(holds), "{refusal}");
    }
    let off = World::new(EngineConfig::default(), Arc::new(MemoryStore::shared()));
    assert_eq!(refused(&off, EventsQuery::default()).code, ErrorCode::Conflict);
}
