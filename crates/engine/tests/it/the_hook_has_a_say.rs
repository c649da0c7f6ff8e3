//! An app server that is asked before a user's operation is committed: what it may answer, and what follows when it does not.

use crate::support::*;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json, value::to_raw_value};
use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};
use tidings_domain::{metrics::QueueLabel, model::*};
use tidings_engine::{
    config::EngineConfig,
    engine::send::SendTarget,
    hook::{HookCall, HookConfig, HookScope, HookTransport},
    shards::{Control, SessionReply},
};
use tidings_protocol::{
    entry::EntryKind,
    error::{ErrorCode, Refusal},
    http::*,
    limits::BODY_BYTES_MAX,
};
use tidings_testkit::MemoryStore;
use tokio::task::JoinHandle;

const TIME_LIMIT: Duration = Duration::from_secs(2);

/// An app server whose calls wait for the test.
#[derive(Default)]
struct App(Mutex<VecDeque<HookCall>>, Condvar);

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("App")
    }
}

impl HookTransport for App {
    fn send(&self, call: HookCall) {
        self.0.lock().push_back(call);
        self.1.notify_all();
    }
}

impl App {
    /// The next call, with its questions.
    fn next(&self) -> (HookCall, Vec<Value>) {
        let mut calls = self.0.lock();
        while calls.is_empty() {
            assert!(!self.1.wait_for(&mut calls, PATIENCE).timed_out(), "the hook was not called");
        }
        let call = calls.pop_front().unwrap();
        let mut body: Value = serde_json::from_slice(&call.body).unwrap();
        (call, serde_json::from_value(body["questions"].take()).unwrap())
    }

    /// Answers the next call: each of its questions in the same way. Returns the questions.
    fn answer(&self, answer: &Value) -> Vec<Value> {
        let (call, questions) = self.next();
        reply(call, &questions, answer);
        questions
    }

    fn is_idle(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Answers each question of a call in the same way.
fn reply(call: HookCall, questions: &[Value], answer: &Value) {
    let answers = questions.iter().map(|question| {
        let mut answer = answer.clone();
        answer["id"] = question["id"].clone();
        answer
    });
    call.answer(Ok(serde_json::to_vec(&json!({ "answers": answers.collect::<Vec<_>>() })).unwrap()));
}

fn allow() -> Value {
    json!({ "action": "allow" })
}

struct Hooked {
    world: World,
    app: Arc<App>,
}

fn scope(words: &[&str]) -> HookScope {
    words.iter().fold(HookScope::default(), |all, word| all.and(word.parse().unwrap()))
}

/// With users `ada`, `ben`, `cleo` and `dora`, who are the members of the group `team`; `ada` owns it.
fn hooked(change: impl FnOnce(&mut HookConfig)) -> Hooked {
    hooked_on(Arc::new(MemoryStore::default()), change)
}

fn hooked_on(store: Arc<MemoryStore>, change: impl FnOnce(&mut HookConfig)) -> Hooked {
    let app = Arc::new(App::default());
    let mut hook = HookConfig {
        transport: app.clone(),
        on: HookScope::ALL,
        closed: HookScope::ALL,
        app_servers: false,
        time_limit: TIME_LIMIT,
        waiting_max: 1_000,
        batch_max: 100,
        requests_max: 1,
    };
    change(&mut hook);
    let world = World::new(EngineConfig { hook: Some(hook), ..EngineConfig::default() }, store);
    world.users(&["ada", "ben", "cleo", "dora"]);
    world.conversation(ConversationKind::Group, "team", &["ada", "ben", "cleo", "dora"]);
    Hooked { world, app }
}

type Sending<T> = JoinHandle<Result<T, Refusal>>;

impl Hooked {
    fn as_user(&self, id: &str) -> Actor {
        Actor::User(self.world.user(id))
    }

    /// Sends as a user by HTTP.
    fn send(&self, from: &str, conversation: &str, text: &str) -> Sending<SendReceipt> {
        let (engine, actor, request) =
            (self.world.engine.clone(), self.as_user(from), message(from, conversation, text));
        self.world.spawn(async move { engine.send(&actor, request).await })
    }

    /// Waits until so many requests wait for their answers or for the hook.
    fn wait_for(&self, count: i64) {
        self.world.wait(async {
            let depth = || {
                let metrics = &self.world.engine.metrics;
                self.world.engine.refresh_gauges();
                metrics.queue_depth.get_or_create(&QueueLabel { queue: "hook".into() }).get()
            };
            while depth() < count {
                tokio::task::yield_now().await;
            }
        });
    }

    /// The replies to a session's requests, by their references.
    fn replies(&self, count: usize) -> Vec<(u64, Result<SendReceipt, Refusal>)> {
        let mut replies = Vec::new();
        while replies.len() < count {
            if let Control::Replies(some) = self.world.receivers[0].control.recv_timeout(PATIENCE).unwrap() {
                replies.extend(some.into_iter().map(|reply| (reply.reference.unwrap(), reply.result)));
            }
        }
        replies
    }

    fn done<T>(&self, sending: Sending<T>) -> Result<T, Refusal> {
        self.world.take_fanouts();
        self.world.wait(sending).unwrap()
    }

    /// The bodies of a conversation, as an app server sees them.
    fn bodies(&self, conversation: &str) -> Vec<String> {
        let history = self.world.engine.history(&Actor::App, conversation, &HistoryQuery::default()).unwrap();
        history.entries.iter().map(|entry| entry.body.get().to_owned()).collect()
    }
}

#[test]
fn a_message_is_allowed_replaced_or_refused_before_it_is_stored() {
    let team = hooked(|_| {});
    let sent = team.send("ada", "team", "one");
    let questions = team.app.answer(&allow());
    let asked = json!([{
        "id": 1, "operation": "send", "user": "ada", "conversation": { "id": "team", "kind": "group" },
        "message": { "from": "ada", "client_msg_id": "one", "type": "text", "body": "one" },
    }]);
    assert_eq!(json!(questions), asked);
    assert_eq!(team.done(sent).unwrap().seq, 1);

    let sent = team.send("ada", "team", "two");
    team.app.answer(&json!({ "action": "replace", "body": { "text": "***" } }));
    assert_eq!(team.done(sent).unwrap().seq, 2);

    let sent = team.send("ada", "team", "three");
    team.app.answer(&json!({ "action": "refuse", "code": "no_links", "text": "Links are not allowed here." }));
    let refusal = team.done(sent).unwrap_err();
    assert_eq!((refusal.code, refusal.detail.as_str()), (ErrorCode::RefusedByHook, "Links are not allowed here."));
    assert_eq!((refusal.reason.as_deref(), refusal.code.retryable()), (Some("no_links"), false));
    assert_eq!(team.bodies("team"), [r#""one""#, r#"{"text":"***"}"#]);
    let metrics = &team.world.engine.metrics;
    let counts = [&metrics.hook_asked, &metrics.hook_allowed, &metrics.hook_replaced, &metrics.hook_refused];
    assert_eq!(counts.map(|count| count.get()), [3, 1, 1, 1]);
}

#[test]
fn a_retry_gets_the_first_result_without_a_question_and_is_compared_with_what_was_sent() {
    let team = hooked(|_| {});
    let sent = team.send("ada", "team", "one");
    team.app.answer(&json!({ "action": "replace", "body": "***" }));
    let first = team.done(sent).unwrap();
    let again = team.done(team.send("ada", "team", "one")).unwrap();
    assert_eq!(again, SendReceipt { duplicate: true, ..first.clone() });
    // The replaced body is another request than the one that was sent.
    let other = SendRequest { body: to_raw_value("***").unwrap(), ..message("ada", "team", "one") };
    let refusal = team.world.wait(team.world.engine.send(&team.as_user("ada"), other)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::ClientMsgIdReused);
    assert!(team.app.is_idle());
    assert_eq!(team.world.engine.metrics.hook_asked.get(), 1);
    // The same id of another sender is another request.
    let sent = team.send("ben", "team", "one");
    team.app.answer(&allow());
    assert_eq!(team.done(sent).unwrap().seq, first.seq + 1);
}

#[test]
fn a_refused_message_may_be_sent_again() {
    let team = hooked(|_| {});
    let sent = team.send("ada", "team", "one");
    team.app.answer(&json!({ "action": "refuse" }));
    assert_eq!(team.done(sent).unwrap_err().code, ErrorCode::RefusedByHook);
    let sent = team.send("ada", "team", "one");
    team.app.answer(&allow());
    assert!(!team.done(sent).unwrap().duplicate);
}

/// Every way in which an answer is none: (what the hook answers to one question, what the log says of it).
fn bad_answers() -> Vec<Result<Vec<u8>, String>> {
    let long = "x".repeat(BODY_BYTES_MAX - 1);
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let answers = [
        String::new(),
        "{}".into(),
        r#"{"answers":[]}"#.into(),
        r#"{"answers":[{"id":1,"action":"allow"},{"id":1,"action":"allow"}]}"#.into(),
        r#"{"answers":[{"id":2,"action":"allow"}]}"#.into(),
        r#"{"answers":[{"id":1,"action":"perhaps"}]}"#.into(),
        r#"{"answers":[{"id":1,"action":"replace"}]}"#.into(),
        r#"{"answers":[{"id":1,"action":"refuse","code":"not a code"}]}"#.into(),
        // 64 KiB and a byte, with its quotation marks.
        format!(r#"{{"answers":[{{"id":1,"action":"replace","body":"{long}"}}]}}"#),
        format!(r#"{{"answers":[{{"id":1,"action":"replace","body":{deep}}}]}}"#),
    ];
    answers.into_iter().map(|answer| Ok(answer.into_bytes())).chain([Err("500 Internal Server Error".into())]).collect()
}

#[test]
fn without_a_good_answer_an_operation_is_allowed_or_refused_as_is_set() {
    for answer in bad_answers() {
        let shown = answer.clone().map(|answer| String::from_utf8(answer).unwrap());
        let shown: String = format!("{shown:?}").chars().take(100).collect();
        for closed in [true, false] {
            let team =
                hooked(|hook| hook.closed = scope(if closed { &["send:group"] } else { &["send:direct", "edit"] }));
            let sent = team.send("ada", "team", "one");
            team.app.next().0.answer(answer.clone());
            match team.done(sent) {
                Ok(_) => assert!(!closed, "{shown}"),
                Err(refusal) => {
                    assert!(closed && refusal.code == ErrorCode::HookUnavailable, "{shown}: {refusal}");
                    assert!(refusal.code.retryable() && refusal.retry_after_ms.is_some());
                }
            }
            assert_eq!(team.bodies("team").len(), usize::from(!closed), "{shown}");
            assert_eq!(team.world.engine.metrics.hook_failed.get(), 1, "{shown}");
        }
    }
}

#[test]
fn a_body_of_64_kib_is_a_good_answer() {
    let team = hooked(|_| {});
    let sent = team.send("ada", "team", "one");
    team.app.answer(&json!({ "action": "replace", "body": "x".repeat(BODY_BYTES_MAX - 2) }));
    assert!(team.done(sent).is_ok());
    assert_eq!(team.bodies("team")[0].len(), BODY_BYTES_MAX);
}

#[test]
fn a_call_that_is_given_up_has_failed() {
    let team = hooked(|_| {});
    let sent = team.send("ada", "team", "one");
    drop(team.app.next());
    assert_eq!(team.done(sent).unwrap_err().code, ErrorCode::HookUnavailable);
}

#[test]
fn what_waits_while_a_request_is_under_way_goes_together_and_what_waits_too_long_has_failed() {
    let team = hooked(|_| {});
    let first = team.send("ada", "team", "first");
    let (call, questions) = team.app.next();
    let waiting: Vec<_> = (0..5).map(|n| team.send(["ben", "cleo"][n % 2], "team", &n.to_string())).collect();
    team.wait_for(6);
    assert!(team.app.is_idle(), "one request may be under way");
    reply(call, &questions, &allow());
    assert_eq!(team.app.answer(&allow()).len(), 5);
    assert!(team.done(first).is_ok());
    assert!(waiting.into_iter().all(|sent| team.done(sent).is_ok()));

    let first = team.send("ada", "team", "second");
    let (call, questions) = team.app.next();
    let late = team.send("ben", "team", "late");
    team.wait_for(2);
    team.world.clock.advance(TIME_LIMIT + Duration::from_millis(1));
    reply(call, &questions, &allow());
    assert!(team.done(first).is_ok());
    assert_eq!(team.done(late).unwrap_err().code, ErrorCode::HookUnavailable);
    assert!(team.app.is_idle());
}

#[test]
fn beyond_the_bound_the_hook_fails_at_once_and_one_sender_takes_no_room_from_others() {
    for closed in [HookScope::default(), HookScope::ALL] {
        let team = hooked(|hook| (hook.waiting_max, hook.closed) = (4, closed));
        let first = team.send("ada", "team", "first");
        let (call, questions) = team.app.next();
        // A sender may have as many waiting as are free besides: of four places two.
        let mut waiting = vec![team.send("ada", "team", "1"), team.send("ada", "team", "2")];
        team.wait_for(3);
        assert_eq!(team.done(team.send("ada", "team", "3")).unwrap_err().code, ErrorCode::QueueFull);
        waiting.extend([team.send("ben", "team", "1"), team.send("cleo", "team", "1")]);
        team.wait_for(5);
        let beyond = team.done(team.send("dora", "team", "beyond"));
        match closed == HookScope::ALL {
            true => assert_eq!(beyond.unwrap_err().code, ErrorCode::HookUnavailable),
            false => assert!(beyond.is_ok()),
        }
        reply(call, &questions, &allow());
        assert_eq!(team.app.answer(&allow()).len(), 4);
        assert!(team.done(first).is_ok() && waiting.into_iter().all(|sent| team.done(sent).is_ok()));
    }
}

#[test]
fn messages_of_one_sender_stay_in_order_whatever_the_hook_answers_first() {
    let team = hooked(|hook| (hook.requests_max, hook.batch_max, hook.closed) = (3, 1, HookScope::default()));
    let ada = team.as_user("ada");
    let texts: Vec<String> = (0..3).map(|n| format!("m{n}")).collect();
    for (n, text) in texts.iter().enumerate() {
        let (.., content) = message("ada", "team", text).into_parts();
        let reply = SessionReply { shard: 0, session: 7, reference: Some(n as u64) };
        team.world.engine.submit(&ada, SendTarget::Conversation("team"), content, reply).unwrap();
    }
    let mut calls = [team.app.next(), team.app.next(), team.app.next()];
    calls.sort_by_key(|(_, questions)| questions[0]["id"].as_u64());
    let [first, second, third] = calls;
    reply(third.0, &third.1, &allow());
    drop(second);
    // Another sender does not wait for them.
    let sent = team.send("ben", "team", "of-ben");
    team.app.answer(&allow());
    assert_eq!(team.done(sent).unwrap().seq, 1);
    reply(first.0, &first.1, &allow());
    let seqs: Vec<_> =
        team.replies(3).into_iter().map(|(reference, result)| (reference, result.unwrap().seq)).collect();
    assert_eq!(seqs, [(0, 2), (1, 3), (2, 4)]);
    assert_eq!(team.bodies("team")[1..], texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>());
}

#[test]
fn a_session_gets_the_refusal_as_its_reply() {
    let team = hooked(|_| {});
    let (.., content) = message("ada", "team", "one").into_parts();
    let to = SessionReply { shard: 0, session: 7, reference: Some(5) };
    team.world.engine.submit(&team.as_user("ada"), SendTarget::Conversation("team"), content, to).unwrap();
    team.app.answer(&json!({ "action": "refuse", "text": "no" }));
    let (reference, result) = team.replies(1).remove(0);
    assert_eq!((reference, result.unwrap_err().code), (5, ErrorCode::RefusedByHook));
}

#[test]
fn a_hook_that_hangs_holds_up_nothing_that_it_is_not_asked_about() {
    let team = hooked(|hook| hook.on = scope(&["send:group", "edit:direct"]));
    let first = team.send("ada", "team", "first");
    let call = team.app.next();
    let hanging: Vec<_> = (0..50).map(|n| team.send(["ada", "ben"][n % 2], "team", &n.to_string())).collect();
    team.wait_for(51);
    let direct = SendRequest { conversation: None, to: Some("ben".into()), ..message("ada", "", "direct") };
    assert!(team.world.wait(team.world.engine.send(&team.as_user("ada"), direct)).is_ok());
    let by_app = team.world.engine.send(&Actor::App, message("ada", "team", "of-the-app-server"));
    assert_eq!(team.world.wait(by_app).unwrap().seq, 1);
    let ben = team.as_user("ben");
    assert!(team.world.wait(team.world.engine.react(&ben, None, "team", 1, "+", true)).is_ok());
    drop(call);
    assert_eq!(team.app.answer(&allow()).len(), 50);
    assert_eq!(team.done(first).unwrap_err().code, ErrorCode::HookUnavailable);
    assert!(hanging.into_iter().all(|sent| team.done(sent).is_ok()));
}

#[test]
fn app_servers_are_asked_about_if_that_is_set() {
    let team = hooked(|hook| (hook.app_servers, hook.on) = (true, scope(&["send"])));
    let (engine, request) = (team.world.engine.clone(), message("ada", "team", "one"));
    let sent = team.world.spawn(async move { engine.send(&Actor::App, request).await });
    let questions = team.app.answer(&json!({ "action": "refuse" }));
    assert_eq!((&questions[0]["user"], &questions[0]["app_server"]), (&json!("ada"), &json!(true)));
    assert_eq!(team.done(sent).unwrap_err().code, ErrorCode::RefusedByHook);
}

#[test]
fn a_drained_node_answers_what_waits_for_the_hook() {
    let team = hooked(|_| {});
    let sent = team.send("ada", "team", "one");
    let (call, questions) = team.app.next();
    team.world.engine.begin_drain();
    let flushed = {
        let engine = team.world.engine.clone();
        team.world.spawn(async move { engine.flush().await })
    };
    reply(call, &questions, &allow());
    team.world.wait(flushed).unwrap();
    assert_eq!(team.bodies("team"), [r#""one""#]);
    assert!(team.done(sent).is_ok());
}

fn edit_to(text: &str) -> EditMessage {
    EditMessage {
        from: None,
        client_msg_id: Some(format!("edit-{text}")),
        content_type: None,
        body: to_raw_value(text).unwrap(),
        mentions: vec![],
        if_version: None,
    }
}

/// What is asked of a user's operation, apart from its id and its user; the operation is refused.
macro_rules! asked {
    ($team:expr, $by:literal, |$engine:ident, $actor:ident| $operation:expr) => {{
        let ($engine, $actor) = ($team.world.engine.clone(), $team.as_user($by));
        let begun = $team.world.spawn(async move { $operation.await.map(drop) });
        let mut questions = $team.app.answer(&json!({ "action": "refuse", "code": "no" }));
        let refusal = $team.done(begun).unwrap_err();
        assert_eq!((refusal.code, refusal.reason.as_deref()), (ErrorCode::RefusedByHook, Some("no")));
        let mut asked = questions.remove(0);
        assert_eq!(asked["user"], json!($by), "{asked}");
        asked.as_object_mut().unwrap().retain(|name, _| !matches!(name.as_str(), "id" | "user"));
        asked
    }};
}

#[test]
fn edits_reactions_conversations_members_and_profiles_are_asked_about() {
    let team = hooked(|hook| hook.on = scope(&["edit", "react", "create", "members", "profile"]));
    assert!(team.done(team.send("ada", "team", "one")).is_ok());
    let group = json!({ "id": "team", "kind": "group" });

    let asked = asked!(team, "ada", |engine, actor| engine.edit_message(&actor, "team", 1, edit_to("two")));
    let edited = json!({ "from": "ada", "client_msg_id": "edit-two", "type": "text", "body": "two" });
    assert_eq!(asked, json!({ "operation": "edit", "conversation": group, "target": 1, "message": edited }));

    let asked = asked!(team, "ben", |engine, actor| engine.react(&actor, None, "team", 1, "+1", true));
    assert_eq!(asked, json!({ "operation": "react", "conversation": group, "target": 1, "reaction": "+1" }));

    let new: CreateConversation =
        serde_json::from_value(json!({ "id": "new", "kind": "group", "name": "New", "members": ["ben"] })).unwrap();
    let asked = asked!(team, "ada", |engine, actor| engine.create_conversation(&actor, new));
    let members = json!([{ "user": "ada", "role": "owner" }, { "user": "ben", "role": "member" }]);
    let conversation = json!({ "id": "new", "kind": "group", "new": true });
    let expected = json!({
        "operation": "create", "conversation": conversation, "add": members, "profile": { "name": "New" },
    });
    assert_eq!(asked, expected);

    let change: ChangeMembers = serde_json::from_value(json!({ "remove": ["cleo"] })).unwrap();
    let asked = asked!(team, "ada", |engine, actor| engine.change_members(&actor, "team", change));
    assert_eq!(asked, json!({ "operation": "members", "conversation": group, "add": [], "remove": ["cleo"] }));

    let update = UpdateConversation { name: Some("Team".into()), ..UpdateConversation::default() };
    let asked = asked!(team, "ada", |engine, actor| engine.update_conversation(&actor, "team", update));
    assert_eq!(asked, json!({ "operation": "profile", "conversation": group, "profile": { "name": "Team" } }));

    // A message that opens a conversation is asked about with it.
    let to_ben = SendRequest { conversation: None, to: Some("ben".into()), ..message("ada", "", "direct") };
    let asked = asked!(team, "ada", |engine, actor| engine.send(&actor, to_ben));
    assert_eq!((&asked["operation"], &asked["conversation"]["new"]), (&json!("create"), &json!(true)));
    assert!(team.world.engine.directory.conversation_by_id("ada~ben").unwrap().is_none());

    // What takes something back is not.
    let (engine, ada, ben) = (&team.world.engine, team.as_user("ada"), team.as_user("ben"));
    assert!(team.world.wait(engine.react(&ben, None, "team", 1, "+1", false)).is_ok());
    assert!(team.world.wait(engine.recall_message(&ada, "team", 1, None, None)).is_ok());
    assert!(team.app.is_idle());
}

#[test]
fn an_edit_gets_the_hooks_body_and_a_retry_of_it_the_first_result() {
    let team = hooked(|hook| hook.on = scope(&["edit"]));
    assert!(team.done(team.send("ada", "team", "one")).is_ok());
    let edit = || {
        let (engine, ada) = (team.world.engine.clone(), team.as_user("ada"));
        team.world.spawn(async move { engine.edit_message(&ada, "team", 1, edit_to("two")).await })
    };
    let first = edit();
    team.app.answer(&json!({ "action": "replace", "body": "***" }));
    let first = team.done(first).unwrap();
    assert_eq!(team.bodies("team")[0], r#""***""#);
    assert_eq!(team.done(edit()).unwrap(), ChangeReceipt { duplicate: true, ..first });
    assert!(team.app.is_idle());
    // Only what is sent whole can be hidden.
    let hidden = {
        let (engine, ada) = (team.world.engine.clone(), team.as_user("ada"));
        team.world.spawn(async move { engine.edit_message(&ada, "team", 1, edit_to("three")).await })
    };
    team.app.answer(&json!({ "action": "hide" }));
    assert_eq!(team.done(hidden).unwrap_err().code, ErrorCode::HookUnavailable);
}

#[test]
fn a_message_that_grows_is_asked_about_as_it_begins_and_when_it_ends() {
    let team = hooked(|_| {});
    let begin = |text: &str| {
        let body = to_raw_value(&json!({ "text": text })).unwrap();
        let request = SendRequest { body, ..message("ada", "team", text) };
        let (engine, ada) = (team.world.engine.clone(), team.as_user("ada"));
        team.world.spawn(async move { engine.begin_stream(&ada, request).await })
    };
    let hidden = begin("hidden");
    team.app.answer(&json!({ "action": "hide" }));
    assert_eq!(team.done(hidden).unwrap_err().code, ErrorCode::HookUnavailable);

    let begun = begin("a");
    let questions = team.app.answer(&json!({ "action": "replace", "body": { "text": "b" } }));
    assert_eq!(questions[0]["message"]["grows"], true);
    assert_eq!(team.done(begun).unwrap().seq, 1);
    let (engine, ada) = (&team.world.engine, team.as_user("ada"));
    assert_eq!(engine.append_to_stream(&ada, "team", 1, 1, "cd").unwrap(), Some(3), "after the hook's text");
    let end = || {
        let (engine, ada) = (team.world.engine.clone(), team.as_user("ada"));
        team.world.spawn(async move { engine.end_stream(&ada, "team", 1, None).await })
    };
    let refused = end();
    let questions = team.app.answer(&json!({ "action": "refuse" }));
    assert_eq!((&questions[0]["operation"], &questions[0]["message"]["ended"]), (&json!("edit"), &json!(true)));
    assert_eq!(questions[0]["message"]["body"], json!({ "text": "bcd" }));
    assert_eq!(team.done(refused).unwrap_err().code, ErrorCode::RefusedByHook);
    assert_eq!(engine.append_to_stream(&ada, "team", 1, 3, "e").unwrap(), Some(4), "it goes on");
    let ended = end();
    team.app.answer(&allow());
    assert!(team.done(ended).is_ok());
    assert_eq!(team.bodies("team")[0], r#"{"text":"bcde"}"#);
}

/// What a reader sees of an entry: its type, its body, whether it is shown as hidden, and its mentions.
fn seen(entry: &tidings_protocol::entry::Entry) -> (String, String, bool, usize) {
    (entry.content_type.clone(), entry.body.get().to_owned(), entry.hidden, entry.mentions.len())
}

#[test]
fn a_hidden_message_is_seen_by_its_sender_and_by_app_servers_alone() {
    let team = hooked(|hook| hook.on = scope(&["send"]));
    let first = team.send("ben", "team", "first");
    team.app.answer(&allow());
    assert!(team.done(first).is_ok());
    let secret = SendRequest { mentions: vec!["ben".into(), "@all".into()], ..message("ada", "team", "secret") };
    let sent = {
        let (engine, ada) = (team.world.engine.clone(), team.as_user("ada"));
        team.world.spawn(async move { engine.send(&ada, secret).await })
    };
    team.app.answer(&json!({ "action": "hide" }));
    assert_eq!(team.done(sent).unwrap().seq, 2, "seq has no hole");
    let answer = SendRequest { reply_to: Some(2), ..message("cleo", "team", "answer") };
    let by_app = SendRequest { from: Some("cleo".into()), ..answer };
    assert_eq!(team.world.wait(team.world.engine.send(&Actor::App, by_app)).unwrap().seq, 3);
    let engine = &team.world.engine;
    let (ada, ben) = (team.as_user("ada"), team.as_user("ben"));
    assert!(team.world.wait(engine.edit_message(&ada, "team", 2, edit_to("changed"))).is_ok());

    let history = |actor: &Actor| engine.history(actor, "team", &HistoryQuery::default()).unwrap().entries;
    let (body, none) = (r#""changed""#.to_owned(), "null".to_owned());
    let (text, hidden) = ("text".to_owned(), "hidden".to_owned());
    for (actor, expected) in [
        (&ben, (hidden.clone(), none, true, 0)),
        (&ada, (text.clone(), body.clone(), false, 0)),
        (&Actor::App, (text, body, true, 0)),
    ] {
        let entries = history(actor);
        assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!((seen(&entries[1]), seen(&entries[3])), (expected.clone(), expected.clone()), "{actor:?}");
        assert_eq!(seen(&engine.entry(actor, "team", 2).unwrap()), expected);
        assert!(entries[2].reply_to.as_ref().unwrap().body.is_none(), "an answer shows nothing of it");
    }
    assert_eq!(history(&ben)[1].client_msg_id, None);
    let versions = |actor: &Actor| engine.body_versions(actor, "team", 2).unwrap().versions.len();
    assert_eq!((versions(&ben), versions(&ada)), (0, 1));

    let line = |user: &str| {
        let user = team.world.user(user);
        engine.conversations(&user, None, None, 10).unwrap().conversations.remove(0)
    };
    let of_ben = line("ben");
    assert_eq!((of_ben.unread, of_ben.mentions), (1, 0), "the answer alone");
    assert_eq!(of_ben.last_message.map(|message| message.seq), Some(3));
    assert_eq!(engine.mentions(&team.world.user("ben"), None, 10).unwrap().entries.len(), 0);
    assert!(team.world.wait(engine.recall_message(&Actor::App, "team", 3, None, None)).is_ok());
    assert_eq!(line("ben").last_message.map(|message| message.seq), Some(1), "not the hidden one");
    assert_eq!(line("ada").last_message.map(|message| message.seq), Some(2));
    assert_eq!(engine.metrics.hook_hidden.get(), 1);
}

/// The erasure itself waits for no hook, but for what it does in the conversation.
#[test]
fn a_message_that_waits_for_the_hook_is_refused_once_its_sender_is_erased() {
    let team = hooked(|_| {});
    let (engine, app) = (&team.world.engine, &team.app);
    let waiting = team.send("ada", "team", "late");
    let (call, questions) = app.next();
    engine.erase_user("ada", ErasedMessages::Keep, "op").unwrap();
    team.world.settle();
    reply(call, &questions, &allow());
    assert_eq!(team.done(waiting).unwrap_err().code, ErrorCode::UserSuspended);
    while engine.work_on_erasures(&|_| Ok(0)).unwrap() {}
    assert_eq!(engine.erasure("ada").unwrap().state, ErasureState::Done);
    let left = tidings_engine::engine::erasure::leftovers::leftovers(&*engine.store, "ada").unwrap();
    assert!(left.is_clean(), "{left:?}");
    let entries = engine.history(&Actor::App, "team", &HistoryQuery::default()).unwrap().entries;
    assert!(entries.iter().all(|entry| entry.kind != EntryKind::Message), "{entries:?}");
}
