//! Consumers of the feed with a webhook: events of one subject come in their order, whatever the webhook does; what it does not take holds
//! up its own subject only, and is neither lost nor forgotten over restarts. `CONSUMER_SEED` replays a run.

use crate::support::*;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    model::*,
    store::{RowSpace, RowStore},
};
use tidings_engine::config::EngineConfig;
use tidings_notifications::{
    NotificationParts,
    webhook::{CallError, PendingCall, WebhookCaller, WebhookRequest, WebhookSecret},
};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

/// What the webhook answers to a request of these events.
type Answers = dyn Fn(&[Value]) -> Result<Vec<u8>, CallError> + Send + Sync;

/// An app server that notes the events that it takes, and answers as a test says.
struct App {
    answers: Mutex<Arc<Answers>>,
    taken: Mutex<Vec<Value>>,
    secret: Mutex<Option<WebhookSecret>>,
    calls: Mutex<Vec<usize>>,
}

impl App {
    fn new() -> Arc<App> {
        let answers: Arc<Answers> = Arc::new(|_| Ok(Vec::new()));
        let (taken, secret, calls) = Default::default();
        Arc::new(App { answers: Mutex::new(answers), taken, secret, calls })
    }

    fn answers(&self, answers: impl Fn(&[Value]) -> Result<Vec<u8>, CallError> + Send + Sync + 'static) {
        *self.answers.lock() = Arc::new(answers);
    }

    /// The ids of what was taken, by subject, each once.
    fn by_subject(&self) -> BTreeMap<String, Vec<String>> {
        let (mut seen, mut by_subject) = (BTreeSet::new(), BTreeMap::<String, Vec<String>>::new());
        for event in self.taken.lock().iter() {
            if seen.insert(text(&event["id"])) {
                by_subject.entry(text(&event["subject"])).or_default().push(text(&event["id"]));
            }
        }
        by_subject
    }
}

impl WebhookCaller for App {
    fn call(&self, request: WebhookRequest) -> PendingCall {
        let header = |name: &str| request.headers.iter().find(|(found, _)| *found == name).unwrap().1.clone();
        assert_eq!(header("content-type"), "application/cloudevents-batch+json");
        if let Some(secret) = &*self.secret.lock() {
            let timestamp = header("webhook-timestamp").parse().unwrap();
            let signature = secret.sign(&header("webhook-id"), timestamp, &request.body);
            assert!(header("webhook-signature").split(' ').any(|signed| signed == signature));
        }
        let events: Vec<Value> = serde_json::from_slice(&request.body).unwrap();
        let answers = self.answers.lock().clone();
        self.calls.lock().push(events.len());
        let answer = answers(&events);
        if let Ok(body) = &answer {
            let failed: Vec<String> = serde_json::from_slice::<Value>(body)
                .ok()
                .and_then(|body| Some(body["failed"].as_array()?.iter().map(text).collect()))
                .unwrap_or_default();
            // Behind one that failed, those of its subject were not taken either.
            let mut behind = BTreeSet::new();
            for event in events {
                if failed.contains(&text(&event["id"])) {
                    behind.insert(text(&event["subject"]));
                }
                if !behind.contains(&text(&event["subject"])) {
                    self.taken.lock().push(event);
                }
            }
        }
        Box::pin(async move {
            // Answers overtake each other.
            tokio::task::yield_now().await;
            answer
        })
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn refused() -> Result<Vec<u8>, CallError> {
    Err(CallError { reason: "the webhook answered 500".into(), is_away: false, retry_after: None })
}

fn world(store: &Arc<MemoryStore>, app: &Arc<App>) -> World {
    let config = EngineConfig { events_keep: Duration::from_secs(86_400), ..EngineConfig::default() };
    let caller: Option<Arc<dyn WebhookCaller>> = Some(app.clone());
    World::with(config, store.clone(), NotificationParts { webhook_caller: caller, ..NotificationParts::default() })
}

fn group(world: &World, id: &str) {
    world.conversation(ConversationKind::Group, id, &["ann"]);
}

fn send(world: &World, room: &str, said: &str) {
    world.wait(world.engine.send(&Actor::App, message("ann", room, said))).unwrap();
}

fn put(world: &World, webhook: PutEventWebhook) -> EventConsumer {
    let webhook = Some(PutEventWebhook { url: "http://app.example/events".into(), ..webhook });
    let put = PutEventConsumer { types: vec!["entry.message".into()], after: None, webhook };
    world.wait(world.notifications.event_consumers.put("search", put)).unwrap().1
}

fn consumer(world: &World) -> EventConsumer {
    world.wait(world.notifications.event_consumers.get("search")).unwrap()
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits, while time goes by for retries.
#[track_caller]
fn pass_until(world: &World, what: &str, mut is_so: impl FnMut() -> bool) {
    wait_until(what, || {
        world.clock.advance(Duration::from_secs(5));
        is_so()
    });
}

/// All messages of the feed, by room.
fn in_the_feed(world: &World) -> BTreeMap<String, Vec<String>> {
    world.settle();
    let mut by_subject = BTreeMap::<String, Vec<String>>::new();
    let mut after = None;
    loop {
        let query = EventsQuery { after, types: Some("entry.message".into()), ..EventsQuery::default() };
        let page = world.engine.read_events(&world.engine.events_request(&query).unwrap()).unwrap().page;
        for event in page.events {
            by_subject.entry(event.subject).or_default().push(event.id);
        }
        if !page.more {
            return by_subject;
        }
        after = Some(page.next);
    }
}

/// A webhook that fails at random, by request, by event, or for a conversation for a time; and a server that stops in between.
#[test]
fn events_of_a_subject_come_in_their_order_whatever_the_webhook_does() {
    let seed = std::env::var("CONSUMER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    for seed in seed..seed + 6_u64 {
        println!("CONSUMER_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (store, app) = (Arc::new(MemoryStore::shared()), App::new());
        let mut running = world(&store, &app);
        running.users(&["ann"]);
        let rooms: Vec<String> = (0..12).map(|room| format!("room-{room}")).collect();
        rooms.iter().for_each(|room| group(&running, room));
        let fault = Arc::new(Mutex::new((StdRng::seed_from_u64(seed + 1), BTreeSet::<String>::new())));
        let faults = fault.clone();
        app.answers(move |events| {
            let (random, failing) = &mut *faults.lock();
            let fails = |event: &&Value| failing.contains(event["subject"].as_str().unwrap());
            match random.random_range(0..10) {
                0 => refused(),
                1 => Err(CallError { reason: "refused".into(), is_away: true, retry_after: None }),
                2 => {
                    // It names those that failed.
                    let failed: Vec<&Value> = events.iter().filter(fails).map(|event| &event["id"]).collect();
                    Ok(serde_json::to_vec(&serde_json::json!({ "failed": failed })).unwrap())
                }
                _ if events.iter().any(|event| fails(&event)) => refused(),
                _ => Ok(b"thanks".to_vec()),
            }
        });
        let batch = Some(random.random_range(1..20));
        put(
            &running,
            PutEventWebhook { batch, parallel: Some(random.random_range(1..6)), ..PutEventWebhook::default() },
        );
        for number in 0..300 {
            send(&running, &rooms[random.random_range(0..rooms.len())], &format!("m{number}"));
            if random.random_bool(0.1) {
                fault.lock().1 = (0..3).map(|_| rooms[random.random_range(0..rooms.len())].clone()).collect();
            }
            if random.random_bool(0.2) {
                running.clock.advance(Duration::from_secs(5));
            }
            if random.random_bool(0.01) {
                drop(running);
                running = world(&store, &app);
            }
        }
        fault.lock().1.clear();
        let wanted = in_the_feed(&running);
        assert_eq!(wanted.values().map(Vec::len).sum::<usize>(), 300);
        pass_until(&running, "all were taken", || app.by_subject().values().map(Vec::len).sum::<usize>() == 300);
        assert_eq!(app.by_subject(), wanted, "CONSUMER_SEED={seed}");
        pass_until(&running, "it is at the end", || {
            let EventConsumer { behind, aside, dead_letters, .. } = consumer(&running);
            (behind, aside, dead_letters) == (0, 0, 0)
        });
        println!(
            "calls of {:?} events",
            app.calls.lock().iter().fold(BTreeMap::new(), |mut sizes, size| {
                *sizes.entry(*size).or_insert(0) += 1;
                sizes
            })
        );
    }
}

#[test]
fn a_webhook_that_takes_nothing_is_taken_for_away_and_one_that_takes_little_gets_there() {
    let (store, app) = (Arc::new(MemoryStore::shared()), App::new());
    let world = world(&store, &app);
    world.users(&["ann"]);
    for room in 0..40 {
        group(&world, &format!("room-{room}"));
        send(&world, &format!("room-{room}"), "hello");
    }
    let clock = world.clock.clone();
    app.answers(move |_| {
        clock.advance(Duration::from_millis(250));
        refused()
    });
    put(&world, PutEventWebhook { give_up_s: Some(604_800), ..PutEventWebhook::default() });
    wait_until("it waits", || consumer(&world).state == EventConsumerState::Waiting);
    // What it does not take is not put aside without end.
    assert!(consumer(&world).aside < 20, "{:?}", consumer(&world));
    app.answers(|events| if events.iter().all(|event| event["subject"] == "room-7") { Ok(vec![]) } else { refused() });
    pass_until(&world, "the one was taken", || app.taken.lock().len() == 1);
    app.answers(|_| Ok(vec![]));
    pass_until(&world, "all were taken", || app.taken.lock().len() == 40);
    assert_eq!(consumer(&world).dead_letters, 0);
}

#[test]
fn what_is_not_taken_waits_over_a_restart_and_is_given_up_in_the_end() {
    let (store, app) = (Arc::new(MemoryStore::shared()), App::new());
    let mut running = world(&store, &app);
    running.users(&["ann"]);
    for room in ["good", "bad"] {
        group(&running, room);
    }
    app.answers(|events| if events.iter().any(|event| event["subject"] == "bad") { refused() } else { Ok(vec![]) });
    let made = put(&running, PutEventWebhook { give_up_s: Some(600), ..PutEventWebhook::default() });
    *app.secret.lock() = WebhookSecret::parse(&made.secret.unwrap());
    for said in ["1", "2", "3"] {
        send(&running, "bad", said);
        send(&running, "good", said);
    }
    wait_until("the others go on", || app.taken.lock().len() == 3);
    wait_until("the bad ones are aside", || consumer(&running).aside == 3);
    wait_until("it is stored how far it is", || consumer(&running).behind == 0);
    // A reader would never get them.
    let reader = PutEventConsumer { types: vec!["entry.message".into()], ..PutEventConsumer::default() };
    let refused = running.wait(running.notifications.event_consumers.put("search", reader)).unwrap_err();
    assert!(refused.code == ErrorCode::Conflict && refused.detail.contains("3 events"), "{refused}");
    drop(running);
    running = world(&store, &app);
    send(&running, "bad", "4");
    wait_until("it is behind those aside", || {
        let EventConsumer { aside, behind, .. } = consumer(&running);
        (aside, behind) == (4, 0)
    });
    pass_until(&running, "all of them are given up", || consumer(&running).dead_letters == 4);
    let page = |limit, after| {
        let asked = DeadEventsQuery { limit, after };
        running.wait(running.notifications.event_consumers.dead_letters("search", &asked))
    };
    let stored = || page(None, None).unwrap().dead_letters;
    wait_until("all are stored", || stored().len() == 4);
    let dead = stored();
    assert!(dead.iter().all(|dead| dead.subject == "bad" && dead.error.contains("500")), "{dead:?}");
    let feed = in_the_feed(&running)["bad"].clone();
    assert_eq!(dead.iter().map(|dead| dead.id.clone()).collect::<Vec<_>>(), feed);
    let first = page(Some(3), None).unwrap();
    let last = page(Some(3), first.next.clone()).unwrap();
    assert_eq!((&first.dead_letters[..], &last.dead_letters[..], &last.next), (&dead[..3], &dead[3..], &None));
    assert!(page(Some(4), None).unwrap().next.is_none(), "no page follows the last");
    for (limit, after, code) in [
        (Some(0), None, ErrorCode::InvalidField),
        (Some(501), None, ErrorCode::LimitExceeded),
        (None, Some("x".into()), ErrorCode::InvalidField),
    ] {
        assert_eq!(page(limit, after).unwrap_err().code, code);
    }
    app.answers(|_| Ok(vec![]));
    let consumers = &running.notifications.event_consumers;
    let one = SelectDeadEvents { ids: Some(vec![feed[1].clone()]) };
    assert_eq!(running.wait(consumers.handle_dead("search", one.clone(), false)).unwrap().handled, 1);
    assert_eq!(running.wait(consumers.handle_dead("search", SelectDeadEvents::default(), true)).unwrap().handled, 3);
    pass_until(&running, "they were taken", || app.by_subject().get("bad").is_some_and(|taken| taken.len() == 3));
    assert_eq!(app.by_subject()["bad"], [feed[0].clone(), feed[2].clone(), feed[3].clone()]);
    assert_eq!(consumer(&running).dead_letters, 0);
}

#[test]
fn a_webhook_that_asks_to_be_left_alone_is_left_alone() {
    let (store, app) = (Arc::new(MemoryStore::shared()), App::new());
    let world = world(&store, &app);
    world.users(&["ann"]);
    group(&world, "room");
    let retry_after = Some(Duration::from_secs(3_600));
    app.answers(move |_| Err(CallError { reason: "the webhook answered 429".into(), is_away: true, retry_after }));
    put(&world, PutEventWebhook::default());
    for said in ["1", "2", "3"] {
        send(&world, "room", said);
    }
    wait_until("it waits", || consumer(&world).state == EventConsumerState::Waiting);
    let calls = app.calls.lock().len();
    app.answers(|_| Ok(vec![]));
    world.clock.advance(Duration::from_secs(3_000));
    // It has looked at the clock: how far it is was stored again.
    wait_until("a look", || consumer(&world).last_error.is_some_and(|error| error.detail.contains("429")));
    assert_eq!((app.calls.lock().len(), consumer(&world).aside), (calls, 0));
    pass_until(&world, "all were taken", || app.taken.lock().len() == 3);
    wait_until("it runs", || consumer(&world).state == EventConsumerState::Running);
}

#[test]
fn events_are_read_again_from_a_time_or_from_the_start() {
    let (store, app) = (Arc::new(MemoryStore::shared()), App::new());
    let world = world(&store, &app);
    world.users(&["ann"]);
    group(&world, "room");
    put(&world, PutEventWebhook::default());
    send(&world, "room", "old");
    world.clock.advance(Duration::from_secs(60));
    send(&world, "room", "new");
    wait_until("both were taken", || app.taken.lock().len() == 2);
    let ids: Vec<String> = in_the_feed(&world)["room"].clone();
    for (after, wanted) in [("2026-03-01T12:00:30Z", &ids[1..]), ("start", &ids[..])] {
        wait_until("it is at the end", || consumer(&world).behind == 0);
        app.taken.lock().clear();
        world.wait(world.notifications.event_consumers.replay("search", after.into())).unwrap();
        wait_until(after, || app.taken.lock().len() == wanted.len());
        assert_eq!(app.by_subject()["room"], wanted, "{after}");
    }
}

#[test]
fn who_reads_events_says_how_far() {
    let (store, app) = (Arc::new(MemoryStore::shared()), App::new());
    let world = world(&store, &app);
    world.users(&["ann"]);
    group(&world, "room");
    let consumers = &world.notifications.event_consumers;
    let reader = PutEventConsumer { types: vec!["entry.message".into()], ..PutEventConsumer::default() };
    let (is_new, made) = world.wait(consumers.put("bot", reader.clone())).unwrap();
    assert!(is_new && made.state == EventConsumerState::Read && made.secret.is_none(), "{made:?}");
    for said in ["1", "2", "3"] {
        send(&world, "room", said);
    }
    let ids = in_the_feed(&world)["room"].clone();
    let page = |limit| {
        let query =
            world.wait(consumers.query("bot", &ConsumerEventsQuery { limit: Some(limit), wait_s: None })).unwrap();
        world.engine.read_events(&world.engine.events_request(&query).unwrap()).unwrap().page
    };
    let first = page(2);
    assert_eq!(first.events.iter().map(|event| &event.id).collect::<Vec<_>>(), [&ids[0], &ids[1]]);
    assert_eq!(page(1).events[0].id, ids[0], "nothing is dealt with until it is said");
    let moved = world.wait(consumers.set_cursor("bot", first.events[0].cursor.clone())).unwrap();
    assert_eq!(moved.cursor, first.events[0].cursor);
    assert_eq!(page(1).events[0].id, ids[1]);
    // A consumer that is put again keeps its place.
    assert!(!world.wait(consumers.put("bot", PutEventConsumer { after: Some("now".into()), ..reader })).unwrap().0);
    assert_eq!(page(1).events[0].id, ids[1]);
    let invalid = world.wait(consumers.set_cursor("bot", "77.1".into())).unwrap_err();
    assert_eq!(invalid.code, ErrorCode::CursorInvalid);
    world.wait(consumers.delete("bot")).unwrap();
    assert_eq!(world.wait(consumers.get("bot")).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(store.rows(RowSpace::Chat, b"c", b"d", 10).unwrap(), []);
}

#[test]
fn a_wrong_consumer_is_refused() {
    let (store, app) = (Arc::new(MemoryStore::shared()), App::new());
    let world = world(&store, &app);
    let consumers = &world.notifications.event_consumers;
    let url = "https://app.example/events";
    let with = |change: fn(&mut PutEventWebhook)| {
        let mut webhook = PutEventWebhook { url: url.into(), ..PutEventWebhook::default() };
        change(&mut webhook);
        PutEventConsumer { webhook: Some(webhook), ..PutEventConsumer::default() }
    };
    let types = |types: &[&str]| PutEventConsumer {
        types: types.iter().map(|word| (*word).to_owned()).collect(),
        ..PutEventConsumer::default()
    };
    let after = |after: &str| PutEventConsumer { after: Some(after.into()), ..PutEventConsumer::default() };
    for (name, put, code, holds) in [
        ("", types(&[]), ErrorCode::InvalidField, "name"),
        ("a b", types(&[]), ErrorCode::InvalidField, "name"),
        (&*"n".repeat(65), types(&[]), ErrorCode::LimitExceeded, "name"),
        ("a", types(&["entry.", "usr"]), ErrorCode::InvalidField, "\"usr\""),
        ("a", types(&["user"; 33]), ErrorCode::LimitExceeded, "types"),
        ("a", after("yesterday"), ErrorCode::CursorInvalid, "after"),
        ("a", with(|webhook| webhook.url = "ftp://x".into()), ErrorCode::InvalidField, "webhook.url"),
        ("a", with(|webhook| webhook.url = "http://".into()), ErrorCode::InvalidField, "webhook.url"),
        ("a", with(|webhook| webhook.url += "\\"), ErrorCode::InvalidField, "webhook.url"),
        ("a", with(|webhook| webhook.url += &"x".repeat(1_024)), ErrorCode::LimitExceeded, "webhook.url"),
        ("a", with(|webhook| webhook.secret = Some("whsec_AAAA".into())), ErrorCode::InvalidField, "webhook.secret"),
        ("a", with(|webhook| webhook.batch = Some(0)), ErrorCode::InvalidField, "webhook.batch"),
        ("a", with(|webhook| webhook.batch = Some(1_001)), ErrorCode::InvalidField, "webhook.batch"),
        ("a", with(|webhook| webhook.parallel = Some(33)), ErrorCode::InvalidField, "webhook.parallel"),
        ("a", with(|webhook| webhook.timeout_ms = Some(99)), ErrorCode::InvalidField, "webhook.timeout_ms"),
        ("a", with(|webhook| webhook.give_up_s = Some(604_801)), ErrorCode::InvalidField, "webhook.give_up_s"),
    ] {
        let refusal = world.wait(consumers.put(name, put)).unwrap_err();
        assert_eq!(refusal.code, code, "{name}: {refusal}");
        assert!(refusal.detail.contains(holds), "{refusal}");
    }
    for number in 0..16 {
        world.wait(consumers.put(&format!("c{number}"), types(&[]))).unwrap();
    }
    assert_eq!(world.wait(consumers.put("one-more", types(&[]))).unwrap_err().code, ErrorCode::LimitExceeded);
    assert_eq!(world.wait(consumers.list()).unwrap().consumers.len(), 16);
}
