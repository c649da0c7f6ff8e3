//! During a rolling upgrade nodes cannot read each other's bus messages. They read the commits from the store instead:
//! acknowledged messages arrive on every node, once and in order.
// Slow: left out by `make test-quick`.

use crate::support::*;
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tidings_client::session::Session;
use tidings_domain::{
    bus::{Bus, MessageHandler},
    commit_log::NodeDetails,
    function::Function,
    gates::Gate,
    model::*,
    store::{Appended, End, Outcome, Proposal, Store},
};
use tidings_engine::cluster::wire::{BusMessage, ConversationRef, WireBatch, WireItem};
use tidings_protocol::{
    error::ErrorCode,
    frames::ServerFrame,
    http::{Kick, UserUpsert},
};
use tidings_testkit::{LocalBus, MemoryStore};

/// The bus of a node of the next version: its messages have another format.
struct NextVersion(LocalBus);

/// Translates to the other format, and back.
fn translated(message: &Bytes) -> Bytes {
    let mut bytes = message.to_vec();
    bytes[0] ^= 0x80;
    bytes.into()
}

struct NextVersionHandler(Arc<dyn MessageHandler>);

impl MessageHandler for NextVersionHandler {
    fn on_message(&self, message: Bytes) {
        self.0.on_message(translated(&message));
    }

    fn on_gap(&self) {
        self.0.on_gap();
    }
}

impl Bus for NextVersion {
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.0.listen(name, Arc::new(NextVersionHandler(handler)));
    }

    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        self.0.send(to, translated(&message))
    }

    fn is_up(&self) -> bool {
        self.0.is_up()
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }

    fn stop(&self) {
        self.0.stop();
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    This,
    Next,
}

/// What a node of a later version does when it commits an entry of a kind that this one does not know: stores it, and sends it to
/// the others.
fn say_later(deployment: &Deployment, to: &[Arc<str>], conversation: &Arc<Conversation>, number: u8, text: &str) {
    let kind = EntryKind::of_number(number);
    let details = EntryDetails::parse(kind, br#"{"votes":{"u1":1}}"#).unwrap();
    let entry = NewEntry {
        kind,
        sender: Some(Sender { no: UserNo(1), id: "u0".into() }),
        client_msg_id: Some(format!("later {text}")),
        content_type: "secret".into(),
        body: format!("{text:?}").into(),
        mentions: vec!["u1".into()],
        silent: false,
        skip_push: false,
        details: Some(Box::new(details)),
        request: EntryRequest::default(),
    };
    let store = deployment.store.as_ref().unwrap();
    let proposal = Proposal::Append { conversation: conversation.no, entry };
    let (outcomes, span) = store.commit_in_order(&[proposal], 1).unwrap();
    let Outcome::Appended(Appended { seq, .. }) = outcomes[0] else { panic!("{outcomes:?}") };
    let entry = store.entries(conversation.no, seq, seq, 1, End::Oldest).unwrap().pop();
    let items = vec![WireItem { conversation: Some(0), entry, change: None }];
    let conversations = vec![ConversationRef::of(conversation)];
    let batch = WireBatch { after: span.after, through: span.through, conversations, items };
    deployment.bus.send(to, BusMessage::Committed(batch).encode());
}

#[derive(Default)]
struct Deployment {
    store: Option<Arc<MemoryStore>>,
    bus: LocalBus,
}

impl Deployment {
    fn start(&mut self, name: &str, version: Version) -> Server {
        let store = self.store.get_or_insert_with(|| Arc::new(MemoryStore::shared()));
        let bus: Arc<dyn Bus> = match version {
            Version::This => Arc::new(self.bus.clone()),
            Version::Next => Arc::new(NextVersion(self.bus.clone())),
        };
        let server = Server::node_on(name, store, store.clone(), bus, Duration::from_secs(10));
        until("it is ready", || server.engine.readiness().is_ok());
        server
    }
}

fn know_each_other(servers: &[Server]) {
    let knows_all = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == servers.len();
    until("the nodes know each other", || servers.iter().all(knows_all));
}

/// The texts of the next messages, checked to be without a hole.
#[track_caller]
fn heard(session: &mut Session, count: usize) -> Vec<String> {
    let entries = entries(session, count);
    let first = entries[0].seq;
    for (index, entry) in entries.iter().enumerate() {
        assert_eq!(entry.seq, first + index as u64, "a hole, a double or a swap");
    }
    entries.iter().map(text_of).collect()
}

fn unknown(server: &Server) -> u64 {
    server.engine.metrics.cluster.unknown.get()
}

#[test]
fn messages_accepted_by_one_version_reach_sessions_of_both() {
    let mut deployment = Deployment::default();
    let servers = [
        deployment.start("a", Version::This),
        deployment.start("b", Version::Next),
        deployment.start("c", Version::Next),
    ];
    know_each_other(&servers);
    servers[0].users(&["u0", "u1", "u2"]);
    servers[0].group("g", &["u0", "u1", "u2"]);
    let mut sessions: Vec<Session> =
        servers.iter().enumerate().map(|(n, server)| server.open(&format!("u{n}"), "phone")).collect();
    std::thread::scope(|scope| {
        for (n, server) in servers.iter().enumerate() {
            scope.spawn(move || (0..50).for_each(|m| drop(server.say(&format!("u{n}"), "g", &format!("{n}-{m}")))));
        }
    });
    let first = heard(&mut sessions[0], 150);
    for session in &mut sessions[1..] {
        assert_eq!(heard(session, 150), first);
        assert!(frames_until_pong(session).is_empty());
    }
    until("they do not understand each other", || servers.iter().all(|server| unknown(server) > 0));
}

#[test]
fn changes_cross_versions_as_messages_do() {
    let mut deployment = Deployment::default();
    let servers = [deployment.start("a", Version::This), deployment.start("b", Version::Next)];
    know_each_other(&servers);
    let [old, new] = &servers;
    old.users(&["u0", "u1"]);
    old.group("g", &["u0", "u1"]);
    let mut session = new.open("u1", "phone");
    assert_eq!(new.engine.directory.require_user("u1").unwrap().name, None);

    let named = UserUpsert { id: "u1".into(), name: Some("Una".into()), ..UserUpsert::default() };
    old.wait(old.engine.upsert_users(vec![named])).unwrap();
    let name = || new.engine.directory.require_user("u1").unwrap().name.clone();
    until("the new name is known", || name().as_deref() == Some("Una"));

    old.change_members("g", &[], &["u1"]);
    until(
        "the session hears that it left",
        || matches!(next(&mut session), ServerFrame::Membership { conversation, member: false } if conversation == "g"),
    );
    let refused = new.wait(new.engine.send(&tidings_domain::model::Actor::App, message_to("u1", "g", "too late")));
    assert_eq!(refused.unwrap_err().code, ErrorCode::NotAMember);
    old.wait(old.engine.kick("u1", Kick { device_id: None, reason: None })).unwrap();
    check_end(&mut session, ErrorCode::Kicked);
}

#[test]
fn a_rolling_upgrade_loses_and_duplicates_nothing() {
    let mut deployment = Deployment::default();
    let mut servers = vec![deployment.start("a", Version::This), deployment.start("b", Version::This)];
    know_each_other(&servers);
    servers[0].users(&["u0", "u1"]);
    servers[0].group("g", &["u0", "u1"]);
    let mut session = servers[0].open("u1", "phone");
    let first_seq = servers[0].say("u0", "g", "0").seq;
    assert_eq!(entries(&mut session, 1)[0].seq, first_seq);
    let mut all = Vec::new();
    let mut said = 1;
    let mut say = |server: &Server, count: usize| {
        for _ in 0..count {
            server.say("u0", "g", &said.to_string());
            said += 1;
        }
    };
    for upgraded in 0..2 {
        say(&servers[0], 20);
        say(&servers[1], 20);
        all.extend(entries(&mut session, 40));
        let cursor = session.cursor.clone().unwrap();
        // Its clients move to the other node, which accepts sends meanwhile.
        let old = servers.remove(0);
        let stays = &servers[0];
        until("the node that stays leads or follows", || stays.engine.readiness().is_ok());
        drop(old);
        say(stays, 10);
        session = stays.resume("u1", "phone", &cursor);
        assert!(bound(&session).resume.complete && !bound(&session).resume.reset);
        say(stays, 10);
        servers.push(deployment.start(["a", "b"][upgraded], Version::Next));
        know_each_other(&servers);
        say(&servers[1], 10);
        all.extend(entries(&mut session, 30));
    }
    let seqs: Vec<u64> = all.iter().map(|entry| entry.seq).collect();
    let expected: Vec<u64> = (first_seq + 1..first_seq + 1 + seqs.len() as u64).collect();
    assert_eq!(seqs, expected);
    assert_eq!(seqs.len(), 140);
    until("one of the new version leads", || servers.iter().any(|server| server.engine.leads(Function::Push)));
}

#[test]
fn entries_of_a_later_version_pass_through_nodes_that_do_not_know_them() {
    // Over the bus, and read back from the store: in both directions, while messages are sent.
    for versions in [[Version::This, Version::This], [Version::This, Version::Next]] {
        let mut deployment = Deployment::default();
        let servers = [deployment.start("a", versions[0]), deployment.start("b", versions[1])];
        know_each_other(&servers);
        servers[0].users(&["u0", "u1"]);
        servers[0].group("g", &["u0", "u1"]);
        let mut sessions = [servers[0].open("u1", "phone"), servers[1].open("u1", "tablet")];
        let first = servers[0].say("u0", "g", "begin").seq;
        let conversation = servers[0].engine.directory.require_conversation("g").unwrap();
        let names: [Arc<str>; 2] = ["a".into(), "b".into()];
        std::thread::scope(|scope| {
            for (n, server) in servers.iter().enumerate() {
                scope.spawn(move || (0..30).for_each(|m| drop(server.say("u0", "g", &format!("{n}-{m}")))));
            }
            let say = |m: usize| say_later(&deployment, &names, &conversation, 9 + m as u8, &m.to_string());
            (0..60).for_each(say);
        });
        for session in &mut sessions {
            let all = entries(session, 121);
            assert_eq!(all.iter().map(|entry| entry.seq).collect::<Vec<_>>(), (first..first + 121).collect::<Vec<_>>());
            let (opaque, messages): (Vec<_>, Vec<_>) = all.iter().partition(|entry| entry.kind.is_opaque());
            assert_eq!((opaque.len(), messages.len()), (60, 61));
            for entry in opaque {
                assert_eq!((entry.body.get(), &*entry.content_type, &entry.from), ("null", "opaque", &None));
                assert!(entry.mentions.is_empty() && entry.client_msg_id.is_none() && entry.silent);
            }
            assert!(frames_until_pong(session).is_empty());
        }
        for server in &servers {
            assert_eq!(server.engine.readiness(), Ok(()));
            assert_eq!(server.engine.metrics.cluster.opaque.get(), 60, "they are counted");
        }
        let resumed = servers[1].resume("u1", "tablet", sessions[0].cursor.as_deref().unwrap());
        assert!(bound(&resumed).resume.complete && !bound(&resumed).resume.reset);
    }
}

#[test]
fn gates_open_when_the_last_node_is_upgraded_and_keep_the_former_version_out() {
    let store = Arc::new(MemoryStore::shared_with_closed_gates());
    let bus = LocalBus::default();
    let lease = Duration::from_secs(1);
    let start = |name: &str, details| {
        let bus = Arc::new(bus.clone());
        Server::node_that_knows(details, name, &store, store.clone(), bus, lease)
    };
    let (new, former) = (NodeDetails::of_this_program, NodeDetails::default);
    let is_open = |server: &Server| Gate::ALL.iter().all(|gate| server.engine.gates.is_open(*gate));
    let is_any_open = |server: &Server| Gate::ALL.iter().any(|gate| server.engine.gates.is_open(*gate));
    let nodes = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all();
    let mut servers = vec![start("a", former()), start("b", new())];
    know_each_other(&servers);
    servers[0].users(&["u0", "u1"]);
    servers[0].group("g", &["u0", "u1"]);
    // The upgraded node is rolled back, and upgraded again.
    drop(servers.pop());
    servers.push(start("b", former()));
    know_each_other(&servers);
    drop(servers.pop());
    servers.push(start("b", new()));
    know_each_other(&servers);
    assert!(!is_any_open(&servers[1]));
    let refusal = servers[1].engine.gates.require(Gate::ALL[0]).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NotYetEnabled);
    // The record of the process before may be in the view until the next heartbeat.
    let of_former = || servers[1].engine.nodes().iter().filter(|node| node.gates.is_empty()).count();
    until("one node is seen as of the former version", || of_former() == 1);
    let seen = servers[1].engine.nodes();
    assert!(seen.iter().all(|node| node.wire_version.is_some()));
    assert!(servers[1].engine.gate_views().iter().all(|gate| !gate.open));
    // The last node of the former version is upgraded.
    drop(servers.remove(0));
    servers.push(start("a", new()));
    until("the gates are open on both", || servers.iter().all(is_open));
    assert_eq!(nodes(&servers[0]).len(), 2);
    // A node of the former version that starts now must not work on.
    let late = start("c", former());
    until("it drains", || late.engine.is_draining());
    until("the others stay as they are", || {
        servers.iter().all(|server| server.engine.readiness().is_ok() && is_open(server))
    });
    assert!(servers[0].say("u0", "g", "on").seq > 0);
}
