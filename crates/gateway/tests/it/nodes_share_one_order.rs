//! Several nodes on one store: every session on every node sees the same order, whatever messages the bus loses.

use crate::support::*;
use bytes::Bytes;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_client::session::Session;
use tidings_domain::{
    bus::{Bus, MessageHandler},
    function::Function,
    model::*,
    store::*,
};
use tidings_engine::cluster::wire::BusMessage;
use tidings_protocol::{
    entry::Entry,
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::*,
};
use tidings_testkit::{CuttableLog, LocalBus, MemoryStore};

struct Nodes {
    servers: Vec<Server>,
    bus: LocalBus,
    store: Arc<MemoryStore>,
}

/// Nodes `a`, `b`, …, which know each other, and users `u0`, `u1`, … in a group `g`.
fn nodes(count: u8, users: usize) -> Nodes {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let name = |n: u8| char::from(b'a' + n).to_string();
    let servers: Vec<Server> = (0..count).map(|n| Server::node(&name(n), &store, &bus)).collect();
    let all_known = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == usize::from(count);
    until("all nodes know each other", || servers.iter().all(all_known));
    let ids: Vec<String> = (0..users).map(|n| format!("u{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    servers[0].users(&ids);
    servers[0].group("g", &ids);
    Nodes { servers, bus, store }
}

/// The `seq` and text (a notice has none) of the next `count` entries of `g`, in the order of arrival.
fn heard(session: &mut Session, count: usize) -> Vec<(u64, String)> {
    let mut all: Vec<(u64, String)> = Vec::new();
    while all.len() < count {
        if let ServerFrame::Messages { entries, .. } = next(session) {
            let text = |entry: &Entry| serde_json::from_str(entry.body.get()).unwrap_or_default();
            all.extend(entries.iter().map(|entry| (entry.seq, text(entry))));
        }
    }
    all
}

#[track_caller]
fn check_whole(heard: &[(u64, String)]) {
    let first = heard[0].0;
    for (index, (seq, _)) in heard.iter().enumerate() {
        assert_eq!(*seq, first + index as u64, "a hole, a double or a swap in {heard:?}");
    }
}

fn wait_for(nodes: &Nodes, what: &str, holds: impl Fn(&Server) -> bool) {
    until(what, || nodes.servers.iter().all(&holds));
}

#[test]
fn messages_accepted_by_one_node_reach_all_nodes_in_one_order() {
    let nodes = nodes(3, 6);
    let mut sessions: Vec<Session> = (0..6).map(|n| nodes.servers[n % 3].open(&format!("u{n}"), "phone")).collect();
    std::thread::scope(|scope| {
        for (index, server) in nodes.servers.iter().enumerate() {
            scope.spawn(move || {
                for n in 0..100 {
                    server.say(&format!("u{index}"), "g", &format!("{index}-{n}"));
                }
            });
        }
    });
    let first = heard(&mut sessions[0], 300);
    check_whole(&first);
    for session in &mut sessions[1..] {
        assert_eq!(heard(session, 300), first);
        assert!(frames_until_pong(session).is_empty());
    }
    for index in 0..3 {
        let own = first.iter().filter(|(_, text)| text.starts_with(&format!("{index}-")));
        let numbers: Vec<usize> = own.map(|(_, text)| text[2..].parse().unwrap()).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>(), "one sender's messages keep their order");
    }
}

#[test]
fn direct_messages_and_notes_to_self_reach_every_device() {
    let nodes = nodes(2, 2);
    let [a, b] = &nodes.servers[..] else { panic!() };
    let mut phone = a.open("u0", "phone");
    let mut laptop = b.open("u0", "laptop");
    let mut other = b.open("u1", "phone");
    let mut to = message_to("u0", "unused", "hello");
    (to.conversation, to.to) = (None, Some("u1".into()));
    a.wait(a.engine.send(&Actor::App, to)).unwrap();
    for session in [&mut phone, &mut laptop, &mut other] {
        assert_eq!(text_of(&entries(session, 1)[0]), "hello");
    }
    let mut note = message_to("u0", "unused", "to me");
    (note.conversation, note.to) = (None, Some("u0".into()));
    b.wait(b.engine.send(&Actor::App, note)).unwrap();
    for session in [&mut phone, &mut laptop] {
        assert_eq!(text_of(&entries(session, 1)[0]), "to me");
    }
    assert!(frames_until_pong(&mut other).is_empty());
}

#[test]
fn without_the_bus_everything_still_arrives_in_order() {
    let nodes = nodes(2, 2);
    nodes.bus.set_down(true);
    let mut here = nodes.servers[0].open("u0", "phone");
    let mut there = nodes.servers[1].open("u1", "phone");
    for n in 0..40 {
        nodes.servers[n % 2].say("u0", "g", &n.to_string());
    }
    let first = heard(&mut here, 40);
    check_whole(&first);
    assert_eq!(heard(&mut there, 40), first);
    let read_back = &nodes.servers[1].engine.metrics.cluster.read_back;
    assert!(read_back.get() >= 20, "what the other accepted came from the store: {}", read_back.get());
}

#[test]
fn an_unstable_bus_neither_loses_nor_duplicates() {
    let nodes = nodes(3, 3);
    let mut sessions: Vec<Session> = (0..3).map(|n| nodes.servers[n].open(&format!("u{n}"), "phone")).collect();
    let over = AtomicBool::new(false);
    let first = std::thread::scope(|scope| {
        scopeguard::defer! { over.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            let mut down = false;
            while !over.load(Ordering::Relaxed) {
                down = !down;
                nodes.bus.set_down(down);
                std::thread::park_timeout(Duration::from_millis(3));
            }
            nodes.bus.set_down(false);
        });
        let senders: Vec<_> = nodes
            .servers
            .iter()
            .enumerate()
            .map(|(index, server)| {
                scope.spawn(move || (0..150).for_each(|n| drop(server.say(&format!("u{index}"), "g", &n.to_string()))))
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        heard(&mut sessions[0], 450)
    });
    check_whole(&first);
    for session in &mut sessions[1..] {
        assert_eq!(heard(session, 450), first);
    }
}

#[test]
fn a_client_that_changes_nodes_misses_nothing_and_gets_nothing_twice() {
    let nodes = nodes(3, 2);
    // Bounded, so that the client never misses more than an inbox holds, however long its thread is stopped.
    const AHEAD: usize = 300;
    let (over, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let receiving = scopeguard::guard((), |()| over.store(true, Ordering::Relaxed));
        let sender = scope.spawn(|| {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                if n > seen.load(Ordering::Relaxed) + AHEAD {
                    std::thread::park_timeout(Duration::from_millis(1));
                    continue;
                }
                nodes.servers[n % 3].say("u0", "g", &n.to_string());
                n += 1;
            }
            n
        });
        let mut inbox: Vec<Entry> = Vec::new();
        let mut cursor = String::new();
        for turn in 0..60 {
            // Now and then the node that the client moves to receives other nodes' messages late.
            nodes.bus.set_down(turn % 5 == 4);
            let node = &nodes.servers[turn % 3];
            let mut session = match cursor.as_str() {
                "" => node.open("u1", "phone"),
                cursor => node.resume("u1", "phone", cursor),
            };
            let resume = bound(&session).resume.clone();
            assert!(resume.complete && !resume.reset, "{resume:?}");
            loop {
                if let ServerFrame::Messages { entries, .. } = next(&mut session) {
                    inbox.extend(entries);
                    seen.store(inbox.last().unwrap().seq as usize, Ordering::Relaxed);
                    break;
                }
            }
            cursor = session.cursor.clone().unwrap();
        }
        drop(receiving);
        let sent = sender.join().unwrap();
        nodes.bus.set_down(false);
        let mut session = nodes.servers[0].resume("u1", "phone", &cursor);
        while inbox.last().unwrap().seq < sent as u64 {
            if let ServerFrame::Messages { entries, .. } = next(&mut session) {
                inbox.extend(entries);
            }
        }
        let seqs: Vec<u64> = inbox.iter().map(|entry| entry.seq).collect();
        let first = seqs[0];
        assert_eq!(seqs, (first..=sent as u64).collect::<Vec<_>>());
    });
    let from_memory = |server: &Server| server.engine.metrics.cluster.recent_resumes.get();
    assert!(nodes.servers.iter().map(from_memory).sum::<u64>() > 30, "who missed moments is answered from memory");
}

#[test]
fn a_node_is_not_sent_what_none_of_its_sessions_may_see_and_who_comes_to_it_misses_nothing() {
    let nodes = nodes(2, 3);
    let [a, b] = &nodes.servers[..] else { panic!() };
    let (left_out, skipped) = (&a.engine.metrics.cluster.left_out, &b.engine.metrics.cluster.skipped);
    let mut phone = a.open("u1", "phone");
    let first = a.say("u0", "g", "first").seq;
    until("the other node has told that it has no sessions", || {
        a.say("u0", "g", "before");
        left_out.get() > 0
    });
    let last = a.say("u0", "g", "for sessions of this node alone").seq;
    let before = heard(&mut phone, (last - first + 1) as usize);
    check_whole(&before);
    let cursor = phone.cursor.clone().unwrap();
    drop(phone);
    let (spared, known) = (left_out.get(), skipped.get());
    (0..5).for_each(|n| drop(a.say("u0", "g", &format!("missed {n}"))));
    until("the other node knows where they are", || skipped.get() >= known + 5);
    assert_eq!(left_out.get(), spared + 5, "it has no session");
    // While the user comes back, there, more is said.
    let mut inbox = std::thread::scope(|scope| {
        let sender = scope.spawn(|| (0..50).map(|n| a.say("u0", "g", &format!("meanwhile {n}")).seq).last());
        let mut session = b.resume("u1", "phone", &cursor);
        let resume = bound(&session).resume.clone();
        assert!(resume.complete && !resume.reset, "{resume:?}");
        let last = sender.join().unwrap().unwrap();
        heard(&mut session, (last - before[before.len() - 1].0) as usize)
    });
    inbox.splice(0..0, before);
    check_whole(&inbox);
    let missed: Vec<&str> = inbox.iter().map(|(_, text)| &**text).filter(|text| text.starts_with("missed")).collect();
    assert_eq!(missed, ["missed 0", "missed 1", "missed 2", "missed 3", "missed 4"]);
    let from_memory = b.engine.metrics.cluster.recent_resumes.get();
    assert_eq!(from_memory, 0, "the node did not have what was said");
}

#[test]
fn changes_made_on_one_node_apply_on_the_other() {
    let nodes = nodes(2, 3);
    let [a, b] = &nodes.servers[..] else { panic!() };
    // Both nodes have cached the state that the changes must invalidate.
    for server in [a, b] {
        server.say("u1", "g", "before");
        assert_eq!(server.engine.directory.require_user("u1").unwrap().name, None);
    }
    let named = UserUpsert { id: "u1".into(), name: Some("Una".into()), ..UserUpsert::default() };
    a.wait(a.engine.upsert_users(vec![named])).unwrap();
    let name = |server: &Server| server.engine.directory.require_user("u1").unwrap().name.clone();
    wait_for(&nodes, "the new name", |server| name(server).as_deref() == Some("Una"));

    let mut gone = b.open("u1", "phone");
    a.change_members("g", &[], &["u1"]);
    until(
        "the session hears that it left",
        || matches!(next(&mut gone), ServerFrame::Membership { conversation, member: false } if conversation == "g"),
    );
    let refused = b.wait(b.engine.send(&Actor::App, message_to("u1", "g", "too late"))).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotAMember);
    a.say("u0", "g", "not for u1");
    b.change_members("g", &["u1"], &[]);
    b.say("u0", "g", "for u1 again");
    let texts: Vec<String> = heard(&mut gone, 2).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts.last().unwrap(), "for u1 again");
    assert!(!texts.contains(&"not for u1".to_owned()), "{texts:?}");
    a.say("u1", "g", "and u1 may speak");
}

#[test]
fn read_marks_typing_and_kicks_reach_other_nodes() {
    let nodes = nodes(2, 2);
    let [a, b] = &nodes.servers[..] else { panic!() };
    a.say("u0", "g", "one");
    let mut phone = a.open("u1", "phone");
    let mut laptop = b.open("u1", "laptop");
    phone.write(&ClientFrame::Read { reference: Some(1), conversation: "g".into(), seq: 1 }).unwrap();
    until(
        "the other device hears of the mark",
        || matches!(next(&mut laptop), ServerFrame::Read { conversation, user, seq: 1 } if conversation == "g" && user == "u1"),
    );
    let mut writer = a.open("u0", "phone");
    writer.write(&ClientFrame::Typing { conversation: "g".into() }).unwrap();
    until("typing is told", || matches!(next(&mut laptop), ServerFrame::Typing { user, .. } if user == "u0"));
    // Kicks are as reliable as messages.
    nodes.bus.set_down(true);
    a.wait(a.engine.kick("u1", Kick { device_id: Some("laptop".into()), reason: None })).unwrap();
    check_end(&mut laptop, ErrorCode::Kicked);
    frames_until_pong(&mut phone);
}

/// Notes to which nodes frames go that nobody keeps.
struct NotingBus {
    bus: LocalBus,
    typing: Arc<Mutex<Vec<Vec<Arc<str>>>>>,
}

impl Bus for NotingBus {
    fn listen(&self, name: &str, handler: Arc<dyn MessageHandler>) {
        self.bus.listen(name, handler);
    }

    fn send(&self, to: &[Arc<str>], message: Bytes) -> bool {
        if matches!(BusMessage::decode(&message), Some(BusMessage::Typing { .. })) {
            self.typing.lock().unwrap().push(to.to_vec());
        }
        self.bus.send(to, message)
    }

    fn is_up(&self) -> bool {
        self.bus.is_up()
    }

    fn trouble(&self) -> Option<String> {
        self.bus.trouble()
    }

    fn stop(&self) {
        self.bus.stop();
    }
}

#[test]
fn typing_goes_to_the_nodes_of_readers_alone() {
    let (mut nodes, typing) = (nodes(2, 3), Arc::<Mutex<Vec<_>>>::default());
    let noting = NotingBus { bus: nodes.bus.clone(), typing: typing.clone() };
    let store = nodes.store.clone();
    nodes.servers.push(Server::node_on("c", &store, store.clone(), Arc::new(noting), Duration::from_secs(10)));
    let [_, b, c] = &nodes.servers[..] else { panic!() };
    let mut to = message_to("u0", "unused", "hello");
    (to.conversation, to.to) = (None, Some("u1".into()));
    let direct = c.wait(c.engine.send(&Actor::App, to)).unwrap().conversation;
    let mut phone = b.open("u1", "phone");
    let mut other = c.open("u2", "phone");
    let user = |id: &str| c.engine.directory.require_user(id).unwrap();
    until("everybody's sessions are known", || {
        c.engine.presence.is_online(user("u1").no) && !c.engine.presence.has_unheard_node()
    });
    let noted = |conversation: &str| {
        c.engine.typing(&user("u0"), conversation).unwrap();
        typing.lock().unwrap().drain(..).flatten().collect::<Vec<_>>()
    };
    assert_eq!(noted(&direct), ["b".into()]);
    until("the other user hears of it", || matches!(next(&mut phone), ServerFrame::Typing { .. }));
    until("the node without members online is not told", || noted("g") == ["b".into()]);
    for session in [&mut phone, &mut other] {
        until(
            "members hear of it",
            || matches!(next(session), ServerFrame::Typing { conversation, .. } if conversation == "g"),
        );
    }
    drop(phone);
    until("the user is gone", || !c.engine.presence.is_online(user("u1").no));
    assert_eq!(noted(&direct), [] as [Arc<str>; 0]);
}

#[test]
fn another_node_leads_when_the_leader_is_gone() {
    let mut nodes = nodes(3, 1);
    let leaders = |nodes: &Nodes| nodes.servers.iter().filter(|server| server.engine.leads(Function::Push)).count();
    until("one leads", || leaders(&nodes) == 1);
    let leader = nodes.servers.iter().position(|server| server.engine.leads(Function::Push)).unwrap();
    drop(nodes.servers.remove(leader));
    until("another one leads", || leaders(&nodes) == 1);
    wait_for(&nodes, "the others know", |server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == 2);
}

#[test]
fn a_second_process_of_the_same_name_makes_the_first_drain() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let first = Server::node("a", &store, &bus);
    until("it is ready", || first.engine.readiness().is_ok());
    let second = Server::node("a", &store, &bus);
    until("the first drains", || first.engine.is_draining());
    until("the second is ready", || second.engine.readiness() == Ok(()));
}

#[test]
fn a_node_without_the_store_still_delivers_commits_of_others() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let log = Arc::new(CuttableLog::on(store.clone()));
    let lease = Duration::from_millis(500);
    let cut_off = Server::node_on("a", &store, log.clone(), Arc::new(bus.clone()), lease);
    let other = Server::node_on("b", &store, store.clone(), Arc::new(bus.clone()), lease);
    let nodes = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all().len();
    until("they know each other", || nodes(&cut_off) == 2 && nodes(&other) == 2);
    other.users(&["u0", "u1"]);
    other.group("g", &["u0", "u1"]);
    let mut session = cut_off.open("u1", "phone");
    log.set_cut(true);
    until("its lease is over", || nodes(&other) == 1);
    // Messages of the other node, and one commit whose node never got the answer, so that no node publishes it.
    for n in 0..20 {
        other.say("u0", "g", &format!("other {n}"));
        if n == 10 {
            let lost = Proposal::Append {
                conversation: other.engine.directory.require_conversation("g").unwrap().no,
                entry: said("lost"),
            };
            store.commit(&[lost], 1).unwrap();
        }
    }
    let all = heard(&mut session, 21);
    check_whole(&all);
    assert!(cut_off.engine.metrics.cluster.asked.get() > 0, "what nobody published is asked of the others");
    until("it says so", || cut_off.engine.readiness().is_err_and(|why| why.contains("out of reach")));
    // The other node has given up its sessions, and sends it frames that nobody keeps all the same.
    let [u0, u1] = ["u0", "u1"].map(|id| other.engine.directory.require_user(id).unwrap());
    until("its sessions do not count", || !other.engine.presence.is_online(u1.no));
    let mut to = message_to("u0", "unused", "hello");
    (to.conversation, to.to) = (None, Some("u1".into()));
    let direct = other.wait(other.engine.send(&Actor::App, to)).unwrap().conversation;
    assert_eq!(text_of(&entries(&mut session, 1)[0]), "hello");
    other.engine.typing(&u0, &direct).unwrap();
    until(
        "typing is told",
        || matches!(next(&mut session), ServerFrame::Typing { conversation, .. } if conversation == direct),
    );
    log.set_cut(false);
    until("it is whole again", || cut_off.engine.readiness().is_ok() && nodes(&other) == 2);
}

fn said(text: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::Message,
        sender: None,
        client_msg_id: None,
        content_type: "text".into(),
        body: format!("{text:?}").into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    }
}
