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
    let hanging: Vec<_> = (0..50).map(|n| team.send(["ada", "ben"][n % 2], "team", &n.to_string())).collect();
    let call = team.app.next();
    team.wait_for(50);
    let direct = SendRequest { conversation: None, to: Some("ben".into()), ..message("ada", "", "direct") };
    assert!(team.world.wait(team.world.engine.send(&team.as_user("ada"), direct)).is_ok());
    let by_app = team.world.engine.send(&Actor::App, message("ada", "team", "of-the-app-server"));
    assert_eq!(team.world.wait(by_app).unwrap().seq, 1);
    let ben = team.as_user("ben");
    assert!(team.world.wait(team.world.engine.react(&ben, None, "team", 1, "+", true)).is_ok());
    drop(call);
    team.app.answer(&allow());
    team.world.take_fanouts();
    hanging.into_iter().for_each(|sent| drop(team.done(sent)));
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
