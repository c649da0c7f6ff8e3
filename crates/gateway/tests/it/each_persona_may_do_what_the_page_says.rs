//! Each persona may do in a conversation what the table of `docs/permissions.md` says, over every listener that has the operation.
//! The page is the expectation; `UPDATE_SNAPSHOTS=1` writes the table anew, for the eye of a reviewer.

use crate::{
    devices::{LOCAL, RunningListener},
    event_stream::{EventStream, bind_of, exchange, open_request},
    support::*,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr, sync::Arc};
use tidings_client::{
    device::{DeviceFrame, DeviceSession},
    http::HttpClient,
    session::Session,
};
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_protocol::{
    frames::ServerFrame,
    http::*,
    miop::{Bind, Frame, VERSION},
};
use tidings_testkit::MemoryStore;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/permissions.md");
/// The line before the table, and the one that ends it.
const TABLE: (&str, &str) = ("<!-- the table of operations begins -->\n", "<!-- the table of operations ends -->");
const ALLOWED: &str = "●";

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Persona {
    Owner,
    Admin,
    Member,
    /// A member of an announce-only group.
    Listener,
    Muted,
    Suspended,
    Banned,
    Stranger,
    /// Of an official account.
    Follower,
    /// Of a direct conversation with somebody who blocks the persona.
    Blocked,
    App,
}

use Persona::*;

const PERSONAS: [(Persona, &str); 11] = [
    (Owner, "owner"),
    (Admin, "admin"),
    (Member, "member"),
    (Listener, "member, announce-only"),
    (Muted, "muted"),
    (Suspended, "suspended"),
    (Banned, "banned"),
    (Stranger, "stranger"),
    (Follower, "follower"),
    (Blocked, "blocked, in a direct conversation"),
    (App, "app server"),
];

/// A conversation that was made for one call: the persona's own message is the first, another one's the second, and the third grows.
struct Case<'a> {
    server: &'a Server,
    persona: Persona,
    /// Of the persona; of an app server the one whom it names.
    user: String,
    id: String,
    /// A message of the persona, one of another member, and one of the persona that grows.
    own: u64,
    other: u64,
    growing: u64,
    token_of_invite: String,
}

/// What is asked over HTTP.
struct Ask(&'static str, String, Value);

type OverHttp = fn(&Case<'_>) -> Ask;
type InSession = fn(&Case<'_>) -> Value;

/// An operation in words, as it is asked over HTTP, and in a session by a frame.
struct Operation {
    name: &'static str,
    http: Option<OverHttp>,
    frame: Option<InSession>,
}

const fn over_http(name: &'static str, http: OverHttp) -> Operation {
    Operation { name, http: Some(http), frame: None }
}

const fn over_both(name: &'static str, http: OverHttp, frame: InSession) -> Operation {
    Operation { name, http: Some(http), frame: Some(frame) }
}

const OPERATIONS: &[Operation] = &[
    over_http("read the details", |c| Ask("GET", c.path(""), json!(null))),
    over_both(
        "read messages",
        |c| Ask("GET", c.path("/messages"), json!(null)),
        |c| json!({"t": "history", "conversation": c.id}),
    ),
    over_http("see who the members are", |c| Ask("GET", c.path("/members"), json!(null))),
    over_both(
        "mark as read",
        |c| Ask("PUT", c.own_path("/read"), json!({"seq": 1})),
        |c| json!({"t": "read", "conversation": c.id, "seq": 1}),
    ),
    over_both(
        "see how far members have come",
        |c| Ask("GET", c.path("/receipts"), json!(null)),
        |c| json!({"t": "receipts", "conversation": c.id}),
    ),
    over_both(
        "set one's own preferences",
        |c| Ask("PATCH", c.own_path(""), json!({"archived": true})),
        |c| json!({"t": "preferences", "conversation": c.id, "archived": true}),
    ),
    over_both(
        "send",
        |c| Ask("POST", "/v1/messages".into(), c.named("from", json!({"conversation": c.id, "body": 1}))),
        |c| json!({"t": "send", "conversation": c.id, "body": 1}),
    ),
    over_http("send in a batch", |c| {
        let message = c.named("from", json!({"conversation": c.id, "body": 1}));
        Ask("POST", "/v1/messages/batch".into(), json!({"messages": [message]}))
    }),
    over_both(
        "send one that disappears",
        |c| {
            let message = json!({"conversation": c.id, "body": 1, "expires": {"after_s": 3600}});
            Ask("POST", "/v1/messages".into(), c.named("from", message))
        },
        |c| json!({"t": "send", "conversation": c.id, "body": 1, "expires": {"after_s": 3600}}),
    ),
    over_http("schedule a message", |c| {
        let message = c.named("from", json!({"conversation": c.id, "body": 1}));
        Ask("POST", "/v1/scheduled-messages".into(), json!({"send_at": 4_102_444_800_000_u64, "message": message}))
    }),
    over_both(
        "answer a message",
        |c| {
            Ask(
                "POST",
                "/v1/messages".into(),
                c.named("from", json!({"conversation": c.id, "body": 1, "reply_to": c.other})),
            )
        },
        |c| json!({"t": "send", "conversation": c.id, "body": 1, "reply_to": c.other}),
    ),
    over_both(
        "mention `@all`",
        |c| {
            Ask(
                "POST",
                "/v1/messages".into(),
                c.named("from", json!({"conversation": c.id, "body": 1, "mentions": ["@all"]})),
            )
        },
        |c| json!({"t": "send", "conversation": c.id, "body": 1, "mentions": ["@all"]}),
    ),
    over_both(
        "begin a growing message",
        |c| Ask("POST", "/v1/streams".into(), c.named("from", json!({"conversation": c.id, "body": {"text": ""}}))),
        |c| json!({"t": "stream_begin", "conversation": c.id, "body": {"text": ""}}),
    ),
    over_both(
        "append to one's growing message",
        |c| Ask("POST", format!("/v1/streams/{}/{}", c.id, c.growing), json!({"offset": 0, "text": "x"})),
        |c| json!({"t": "stream_append", "conversation": c.id, "seq": c.growing, "offset": 0, "text": "x"}),
    ),
    over_both(
        "end one's growing message",
        |c| Ask("POST", format!("/v1/streams/{}/{}/end", c.id, c.growing), json!({})),
        |c| json!({"t": "stream_end", "conversation": c.id, "seq": c.growing}),
    ),
    over_both(
        "edit one's message",
        |c| Ask("PATCH", c.message(c.own, ""), c.named("from", json!({"body": 2}))),
        |c| json!({"t": "edit", "conversation": c.id, "seq": c.own, "body": 2}),
    ),
    over_both(
        "edit another's message",
        |c| Ask("PATCH", c.message(c.other, ""), c.named("from", json!({"body": 2}))),
        |c| json!({"t": "edit", "conversation": c.id, "seq": c.other, "body": 2}),
    ),
    over_both(
        "recall one's message",
        |c| Ask("DELETE", c.message(c.own, ""), json!(null)),
        |c| json!({"t": "recall", "conversation": c.id, "seq": c.own}),
    ),
    over_both(
        "recall another's message",
        |c| Ask("DELETE", c.message(c.other, ""), json!(null)),
        |c| json!({"t": "recall", "conversation": c.id, "seq": c.other}),
    ),
    over_both(
        "react",
        |c| Ask("PUT", c.message(c.other, &format!("/reactions/%F0%9F%91%8D{}", c.acting())), json!(null)),
        |c| json!({"t": "react", "conversation": c.id, "seq": c.other, "key": "👍"}),
    ),
    over_both(
        "take a reaction back",
        |c| Ask("DELETE", c.message(c.other, &format!("/reactions/%F0%9F%91%8D{}", c.acting())), json!(null)),
        |c| json!({"t": "react", "conversation": c.id, "seq": c.other, "key": "👍", "remove": true}),
    ),
    over_both(
        "pin a message",
        |c| Ask("PUT", c.message(c.other, "/pin"), json!(null)),
        |c| json!({"t": "pin", "conversation": c.id, "seq": c.other}),
    ),
    Operation {
        name: "show that one types",
        http: None,
        frame: Some(|c| json!({"t": "typing", "conversation": c.id})),
    },
    over_both(
        "signal to those who are there",
        |c| Ask("POST", c.path("/signals"), c.named("from", json!({"type": "x"}))),
        |c| json!({"t": "signal", "conversation": c.id, "type": "x"}),
    ),
    over_http("report another's message", |c| {
        Ask("POST", c.message(c.other, "/report"), c.named("user", json!({"reason": "spam"})))
    }),
    over_http("leave", |c| Ask("POST", c.path("/members"), json!({"remove": [c.user]}))),
    over_http("join, or follow", |c| Ask("POST", c.path("/members"), json!({"add": [c.user]}))),
    over_http("join by an invite", |c| {
        Ask("POST", "/v1/invites/join".into(), c.named("user", json!({"token": c.token_of_invite})))
    }),
    over_http("ask to join", |c| Ask("POST", c.path("/join-requests"), c.named("user", json!({})))),
    over_http("add somebody", |c| Ask("POST", c.path("/members"), json!({"add": ["xena"]}))),
    over_http("remove a member", |c| Ask("POST", c.path("/members"), json!({"remove": ["max"]}))),
    over_http("remove an admin", |c| Ask("POST", c.path("/members"), json!({"remove": ["anna"]}))),
    over_http("remove an owner", |c| Ask("POST", c.path("/members"), json!({"remove": ["otto"]}))),
    over_http("give a role", |c| Ask("POST", c.path("/members"), json!({"add": ["max"], "role": "admin"}))),
    over_http("hand the conversation over", |c| Ask("POST", c.path("/owner"), json!({"to": "max"}))),
    over_http("change the details and settings", |c| Ask("PATCH", c.path(""), json!({"name": "new"}))),
    over_http("mute or ban a member", |c| Ask("PUT", c.path("/restrictions/max"), json!({"kind": "mute"}))),
    over_http("mute or ban an admin", |c| Ask("PUT", c.path("/restrictions/anna"), json!({"kind": "ban"}))),
    over_http("mute or ban an owner", |c| Ask("PUT", c.path("/restrictions/otto"), json!({"kind": "mute"}))),
    over_http("ban a user who is no member", |c| Ask("PUT", c.path("/restrictions/xena"), json!({"kind": "ban"}))),
    over_http("lift a mute or a ban of a member", |c| {
        Ask("DELETE", format!("{}?kind=mute", c.path("/restrictions/max")), json!(null))
    }),
    over_http("list mutes and bans", |c| Ask("GET", c.path("/restrictions"), json!(null))),
    over_http("make an invite", |c| Ask("POST", c.path("/invites"), json!({}))),
    over_http("list invites", |c| Ask("GET", c.path("/invites"), json!(null))),
    over_http("revoke an invite", |c| Ask("DELETE", c.path(&format!("/invites/{}", c.invite())), json!(null))),
    over_http("list requests to join", |c| Ask("GET", c.path("/join-requests"), json!(null))),
    over_http("approve a request", |c| Ask("POST", c.path("/join-requests/yan/approve"), json!(null))),
    over_http("refuse a request", |c| Ask("POST", c.path("/join-requests/yan/refuse"), json!({}))),
];

impl Case<'_> {
    fn path(&self, rest: &str) -> String {
        format!("/v1/conversations/{}{rest}", self.id)
    }

    fn message(&self, seq: u64, rest: &str) -> String {
        self.path(&format!("/messages/{seq}{rest}"))
    }

    fn own_path(&self, rest: &str) -> String {
        format!("/v1/users/{}/conversations/{}{rest}", self.user, self.id)
    }

    /// An app server names the user for whom it asks.
    fn named(&self, field: &str, mut body: Value) -> Value {
        if self.persona == App {
            body[field] = json!(self.user);
        }
        body
    }

    fn acting(&self) -> String {
        if self.persona == App { format!("?user={}", self.user) } else { String::new() }
    }

    fn invite(&self) -> &str {
        self.token_of_invite.get(23..39).unwrap_or("0")
    }

    /// The outcome of the operation: allowed, or the code of the refusal.
    fn over_http(&self, ask: OverHttp) -> String {
        let Ask(method, path, body) = ask(self);
        let mut http = match self.persona {
            App => self.server.app(),
            _ => HttpClient::new(self.server.address, token(&self.user)),
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = http.exchange(method, &path, body.as_bytes()).unwrap();
        let text = String::from_utf8(answer.body).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let code = match answer.status {
            // A batch has a result for each message.
            200 => value["results"][0]["error"]["code"].as_str().or(value["results"][0]["code"].as_str()),
            201..=204 => None,
            _ => Some(value["code"].as_str().unwrap_or_else(|| panic!("{method} {path}: {} {text}", answer.status))),
        };
        code.unwrap_or(ALLOWED).to_owned()
    }

    /// The code with which a session is refused; nobody's is but a suspended user's.
    fn code_of_end(&self, why: &str) -> String {
        assert!(self.persona == Suspended && why.contains("user_suspended"), "{:?}: {why}", self.persona);
        "user_suspended".to_owned()
    }

    fn over_websocket(&self, frame: InSession) -> String {
        let mut session = match Session::open(self.server.address, &token(&self.user), "d", None) {
            Ok(session) => session,
            Err(error) => return self.code_of_end(&error.to_string()),
        };
        let frames = with_ping(frame(self));
        frames.iter().for_each(|frame| session.write_text(frame.to_string().as_bytes()).unwrap());
        outcome(&frames[0], || any_next(&mut session))
    }

    fn over_event_stream(&self, frame: InSession) -> String {
        if self.persona == Suspended {
            let headers = "connection: close\r\n";
            let request = open_request("HTTP/1.1", &token(&self.user), headers, &bind_of("e", None));
            return self.code_of_end(&exchange(self.server.address, request.as_bytes()).1);
        }
        let mut stream = EventStream::open(self.server.address, &token(&self.user), "e", None);
        let frames = with_ping(frame(self));
        assert_eq!(stream.post(&frames).0, 202);
        outcome(&frames[0], || stream.frame())
    }
}

impl Case<'_> {
    fn over_miop(&self, address: SocketAddr, frame: InSession) -> String {
        let token = token(&self.user);
        let bind = Bind { version: VERSION, token: &token, device_id: "m", ..Bind::default() };
        let mut device = match DeviceSession::open(address, &bind) {
            Ok(device) => device,
            Err(error) => return self.code_of_end(&error.to_string()),
        };
        let frames = with_ping(frame(self));
        frames.iter().for_each(|frame| device.write(&Frame::Chat { json: frame.to_string().as_bytes() }).unwrap());
        outcome(&frames[0], || {
            loop {
                if let DeviceFrame::Chat(frame) = device.next(PATIENCE).unwrap().expect("a frame in time") {
                    return frame;
                }
            }
        })
    }
}

/// The frame with a number, if it is answered, and a ping behind it.
fn with_ping(mut frame: Value) -> [Value; 2] {
    if frame["t"] != "typing" {
        frame["ref"] = json!(7);
    }
    [frame, json!({"t": "ping", "ref": 8})]
}

/// The outcome of a frame: of typing, which is not answered, whether a refusal comes before the answer to the ping.
fn outcome(frame: &Value, mut next: impl FnMut() -> ServerFrame) -> String {
    let is_answered = frame["t"] != "typing";
    loop {
        let answer = next();
        if let ServerFrame::Error { code, reference, .. } = &answer {
            assert_eq!(*reference, is_answered.then_some(7), "{code}");
            return code.to_string();
        }
        let value = serde_json::to_value(&answer).unwrap();
        let of_ref = |number: u64| value["ref"] == number;
        let is_sent = value["results"].as_array().is_some_and(|sent| sent.iter().any(|item| item["ref"] == 7));
        if of_ref(7) || is_sent || (!is_answered && of_ref(8)) {
            return ALLOWED.to_owned();
        }
    }
}

fn server() -> Server {
    let engine = EngineConfig { sends_per_second: 0, ..EngineConfig::default() };
    let server = Server::with_engine(session_config(), Arc::new(MemoryStore::default()), engine);
    server.users(&["otto", "olga", "adam", "anna", "mia", "max", "ban", "sam", "xena", "yan", "sue", "bea"]);
    server
}

fn case<'a>(server: &'a Server, persona: Persona, number: usize) -> Case<'a> {
    let id = if persona == Blocked { "bea~max".to_owned() } else { format!("c{number}") };
    let user = match persona {
        Owner => "olga",
        Admin => "adam",
        Member | Listener | Muted | Follower | App => "mia",
        Banned => "ban",
        Stranger => "sam",
        Suspended => "sue",
        Blocked => "bea",
    };
    let kind = if persona == Follower { ConversationKind::Official } else { ConversationKind::Group };
    let engine = &server.engine;
    // The former case has ended with it.
    let set_block = |blocked| {
        let max = engine.directory.require_user("max").unwrap();
        server.wait(engine.set_block(&Actor::App, &max, "bea", blocked)).unwrap();
    };
    match persona {
        Suspended => server.wait(engine.unsuspend(user, Unsuspend::default(), "test")).unwrap(),
        Blocked => set_block(false),
        _ => {}
    }
    if persona != Blocked {
        server.conversation(kind, &id, &["otto", "adam", "anna", "mia", "max", "ban", "sue"]);
    }
    let members = |add: &[&str], role| {
        let add = add.iter().map(|user| (*user).to_owned()).collect();
        let change = ChangeMembers { add, remove: vec![], role };
        server.wait(engine.change_members(&Actor::App, &id, change)).unwrap();
    };
    if persona != Blocked {
        members(&["olga"], Some(Role::Owner));
        members(&["adam", "anna"], Some(Role::Admin));
    }
    let writer = if persona == Stranger { "max" } else { user };
    let own = server.say(writer, &id, "own").seq;
    let other = server.say("max", &id, "another's").seq;
    let begins = match persona {
        App | Follower | Stranger => Actor::App,
        _ => Actor::User(engine.directory.require_user(writer).unwrap()),
    };
    let body = serde_json::value::to_raw_value(&json!({"text": ""})).unwrap();
    let grows = SendRequest { body, ..message_to(writer, &id, "") };
    let growing = server.wait(engine.begin_stream(&begins, grows)).unwrap().seq;
    let mut token_of_invite = String::new();
    if kind == ConversationKind::Group && persona != Blocked {
        let update = UpdateConversation { join_requests: Some(true), ..UpdateConversation::default() };
        server.wait(engine.update_conversation(&Actor::App, &id, update)).unwrap();
        let asks = AskToJoin { text: None, user: Some("yan".into()) };
        server.wait(engine.ask_to_join(&Actor::App, &id, asks)).unwrap();
        token_of_invite = server.wait(engine.create_invite(&Actor::App, &id, NewInvite::default())).unwrap().token;
    }
    let restrict = |kind| {
        let restrict = Restrict { kind, until: None, reason: None, by: None };
        server.wait(engine.restrict(&Actor::App, &id, user, restrict)).unwrap();
    };
    match persona {
        Muted => restrict(RestrictionKind::Mute),
        Suspended => drop(server.wait(engine.suspend(user, Suspend::default(), "test")).unwrap()),
        Blocked => set_block(true),
        Banned => restrict(RestrictionKind::Ban),
        Listener => {
            let update = UpdateConversation { posting: Some(Posting::Admins), ..UpdateConversation::default() };
            server.wait(engine.update_conversation(&Actor::App, &id, update)).unwrap();
        }
        _ => {}
    }
    Case { server, persona, user: user.into(), id, own, other, growing, token_of_invite }
}

/// What each persona gets for each operation, by its name, over every listener that has it.
fn outcomes() -> BTreeMap<(&'static str, Persona), Vec<(&'static str, String)>> {
    let server = server();
    let miop = RunningListener::open(&server, MiopListenerConfig::open(vec![LOCAL]));
    let (mut all, mut number) = (BTreeMap::new(), 0);
    for operation in OPERATIONS {
        for (persona, _) in PERSONAS {
            let mut outcome = |ask: &dyn Fn(&Case<'_>) -> String| {
                number += 1;
                let case = case(&server, persona, number);
                let outcome = ask(&case);
                // Of growing messages and of requests a user has so many at most. What is over already is refused.
                let _ = server.wait(server.engine.recall_message(&Actor::App, &case.id, case.growing, None, None));
                let refuse = RefuseRequest::default();
                let _ = server.wait(server.engine.refuse_request(&Actor::App, &case.id, "yan", refuse));
                outcome
            };
            let mut found = Vec::new();
            found.extend(operation.http.map(|ask| ("HTTP", outcome(&|case| case.over_http(ask)))));
            // App servers have no sessions.
            if let Some(frame) = operation.frame.filter(|_| persona != App) {
                found.push(("WebSocket", outcome(&|case| case.over_websocket(frame))));
                found.push(("event stream", outcome(&|case| case.over_event_stream(frame))));
                found.push(("MIOP", outcome(&|case| case.over_miop(miop.address, frame))));
            }
            all.insert((operation.name, persona), found);
        }
    }
    all
}

fn table(outcomes: &BTreeMap<(&'static str, Persona), Vec<(&'static str, String)>>) -> String {
    let names = PERSONAS.map(|(_, name)| name);
    let mut table = format!("| operation | {} |\n| --- |{}\n", names.join(" | "), " :-: |".repeat(names.len()));
    for operation in OPERATIONS {
        let cell = |(persona, _): (Persona, &str)| match outcomes[&(operation.name, persona)].first() {
            Some((_, outcome)) if outcome == ALLOWED => ALLOWED.to_owned(),
            Some((_, code)) => format!("`{code}`"),
            None => String::new(),
        };
        writeln!(table, "| {} | {} |", operation.name, PERSONAS.map(cell).join(" | ")).unwrap();
    }
    table
}

#[test]
fn each_persona_may_do_what_the_page_says_and_nothing_else() {
    let outcomes = outcomes();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(TABLE.0).unwrap();
    let (kept, after) = rest.split_once(TABLE.1).unwrap();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(PAGE, [before, TABLE.0, &table(&outcomes), TABLE.1, after].concat()).unwrap();
        return;
    }
    let mut lines = kept.lines();
    let header: Vec<&str> = lines.next().unwrap().trim_matches('|').split('|').map(str::trim).skip(1).collect();
    assert_eq!(header, PERSONAS.map(|(_, name)| name));
    let (mut named, mut called, mut refused) = (Vec::new(), 0, 0);
    for line in lines.skip(1) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap();
        named.push(name);
        for ((persona, column), expected) in PERSONAS.into_iter().zip(cells) {
            let found = outcomes.iter().find(|((operation, of), _)| *operation == name && *of == persona);
            let (_, found) = found.unwrap_or_else(|| panic!("{name:?} is no operation of this test"));
            assert_eq!(found.is_empty(), expected.is_empty(), "{name}: {column}");
            for (listener, outcome) in found {
                assert_eq!(outcome, expected.trim_matches('`'), "{name}: {column} over {listener}");
                called += 1;
                refused += usize::from(outcome != ALLOWED);
            }
        }
    }
    assert_eq!(named, OPERATIONS.iter().map(|operation| operation.name).collect::<Vec<_>>());
    println!("{called} calls, {refused} of them refused: {} operations by {} personas", named.len(), PERSONAS.len());
}
