//! Receipts: who has a message and who has read it, derived from the cursors that clients have stored and from read marks.

use crate::support::*;
use std::sync::Arc;
use tidings_client::session::Session;
use tidings_domain::model::Actor;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, MovedMarks, ReceiptKind, ReceiptMark, ServerFrame},
    http::*,
};
use tidings_testkit::{LocalBus, MemoryStore};

/// Tells the server that the client has stored all that it was handed, and waits until the server has heard that.
fn store(session: &mut Session) {
    let cursor = session.cursor.clone().unwrap();
    session.write(&ClientFrame::Stored { cursor }).unwrap();
    let told = frames_until_pong(session);
    assert!(told.iter().all(|frame| matches!(frame, ServerFrame::Receipts { .. })), "not answered: {told:?}");
}

fn read(server: &Server, user: &str, conversation: &str, seq: u64) {
    let user = server.engine.directory.require_user(user).unwrap();
    server.wait(server.engine.mark_read(&user, conversation, seq)).unwrap();
}

fn receipts_of(server: &Server, actor: &str, conversation: &str, seq: u64) -> Result<MessageReceipts, ErrorCode> {
    let actor = Actor::User(server.engine.directory.require_user(actor).unwrap());
    server.engine.message_receipts(&actor, conversation, seq).map_err(|refusal| refusal.code)
}

/// Delivered, read, members.
fn counts(server: &Server, actor: &str, conversation: &str, seq: u64) -> (u64, u64, u64) {
    let receipts = receipts_of(server, actor, conversation, seq).unwrap();
    (receipts.delivered, receipts.read, receipts.members)
}

fn set_mode(server: &Server, conversation: &str, receipts: ReceiptsMode) {
    let update = UpdateConversation { receipts: Some(receipts), ..UpdateConversation::default() };
    let card = server.wait(server.engine.update_conversation(&Actor::App, conversation, update)).unwrap();
    assert_eq!(card.receipts, receipts);
}

/// The next `receipts` frame; other frames are skipped.
#[track_caller]
fn told(session: &mut Session) -> (String, Vec<ReceiptMark>, Vec<MovedMarks>) {
    loop {
        if let ServerFrame::Receipts { conversation, marks, moved, reference: None } = next(session) {
            return (conversation, marks, moved);
        }
    }
}

#[track_caller]
fn is_told_nothing(session: &mut Session) {
    let frames = frames_until_pong(session);
    assert!(!frames.iter().any(|frame| matches!(frame, ServerFrame::Receipts { .. })), "{frames:?}");
}

fn mark(user: &str, read_seq: Option<u64>, delivered_seq: Option<u64>) -> ReceiptMark {
    ReceiptMark { user: user.into(), read_seq, delivered_seq }
}

#[test]
fn a_direct_message_is_delivered_once_stored_and_then_read() {
    let server = Server::start();
    server.users(&["ada", "ben"]);
    let mut ada = server.open("ada", "phone");
    let mut ben = server.open("ben", "phone");
    server.say("ada", "ada~ben", "one");
    entries(&mut ada, 1);
    entries(&mut ben, 1);
    server.engine.settle_receipts();
    assert_eq!(counts(&server, "ada", "ada~ben", 1), (0, 0, 1), "handed over is not stored");
    store(&mut ben);
    server.engine.settle_receipts();
    assert_eq!(told(&mut ada), ("ada~ben".into(), vec![mark("ben", None, Some(1))], vec![]));
    let listed = receipts_of(&server, "ada", "ada~ben", 1).unwrap();
    let receipt = MemberReceipt { user: "ben".into(), delivered: true, read: false };
    assert_eq!(listed, MessageReceipts { delivered: 1, read: 0, members: 1, receipts: Some(vec![receipt]) });
    read(&server, "ben", "ada~ben", 1);
    server.engine.settle_receipts();
    assert_eq!(told(&mut ada), ("ada~ben".into(), vec![mark("ben", Some(1), None)], vec![]));
    assert_eq!(counts(&server, "ada", "ada~ben", 1), (1, 1, 1));
    // The sender's own devices have the message, too: nobody is told of that.
    store(&mut ada);
    server.engine.settle_receipts();
    is_told_nothing(&mut ben);
}

#[test]
fn the_cursor_of_a_bind_counts_and_a_cursor_beyond_what_was_handed_does_not() {
    let server = Server::start();
    server.users(&["ada", "ben"]);
    let mut ben = server.open("ben", "phone");
    server.say("ada", "ada~ben", "one");
    entries(&mut ben, 1);
    let cursor = ben.cursor.clone().unwrap();
    let epoch = cursor.split('.').next().unwrap();
    // Another history, and positions that nobody was handed.
    for claimed in [format!("{epoch}1.999.999.999"), format!("{epoch}.999.999.999")] {
        ben.write(&ClientFrame::Stored { cursor: claimed }).unwrap();
    }
    assert!(frames_until_pong(&mut ben).is_empty());
    server.say("ada", "ada~ben", "two");
    server.engine.settle_receipts();
    assert_eq!(counts(&server, "ada", "ada~ben", 2), (0, 0, 1));
    entries(&mut ben, 1);
    let cursor = ben.cursor.clone().unwrap();
    drop(ben);
    let mut ben = server.resume("ben", "phone", &cursor);
    server.engine.settle_receipts();
    assert_eq!(counts(&server, "ada", "ada~ben", 2), (1, 0, 1));
    ben.write(&ClientFrame::Stored { cursor: "x".into() }).unwrap();
    assert_eq!(error(&mut ben).1, ErrorCode::CursorInvalid);
}

#[test]
fn a_groups_members_are_told_counts_of_an_interval_in_one_frame() {
    let server = Server::start();
    server.users(&["ada", "ben", "cleo", "dan"]);
    server.group("g", &["ada", "ben", "cleo"]);
    for text in ["one", "two", "three"] {
        server.say("ada", "g", text);
    }
    server.change_members("g", &["dan"], &[]);
    let mut ada = server.open("ada", "phone");
    server.engine.settle_receipts();
    frames_until_pong(&mut ada);
    // Before the worker's next round: what becomes of each member is one range.
    let last = server.engine.store.last_position();
    for (user, seq) in [("ben", 1), ("ben", 3), ("cleo", 3)] {
        read(&server, user, "g", seq);
    }
    assert!(server.engine.store.last_position() >= last);
    server.engine.settle_receipts();
    // The worker may have done a round of its own between the reads: the ranges then come in two frames.
    let (mut one, mut three) = (0, 0);
    while three < 2 {
        let (conversation, marks, moved) = told(&mut ada);
        assert_eq!((conversation.as_str(), marks), ("g", vec![]));
        for MovedMarks { what, from_seq, to_seq, count } in moved {
            assert_eq!(what, ReceiptKind::Read);
            one += if from_seq == 1 { count } else { 0 };
            three += if to_seq == 3 { count } else { 0 };
        }
    }
    assert_eq!((one, three), (2, 2), "each of the messages was read by two");
    let counted = receipts_of(&server, "ada", "g", 2).unwrap();
    assert_eq!(counted, MessageReceipts { delivered: 2, read: 2, members: 2, receipts: None }, "dan came later");
    assert_eq!(receipts_of(&server, "ada", "g", 4).unwrap_err(), ErrorCode::NotAMessage, "the notice of dan");
    assert_eq!(receipts_of(&server, "ada", "g", 9).unwrap_err(), ErrorCode::NotFound);
}

#[test]
fn what_is_shown_follows_the_conversations_setting() {
    let server = Server::start();
    server.users(&["ada", "ben", "cleo"]);
    server.group("g", &["ada", "ben"]);
    server.conversation(ConversationKind::Official, "news", &["ada", "ben"]);
    server.say("ada", "g", "one");
    server.say("ada", "news", "one");
    let mut ada = server.open("ada", "phone");
    assert_eq!(receipts_of(&server, "ada", "news", 1).unwrap_err(), ErrorCode::Forbidden, "off in official accounts");
    assert_eq!(receipts_of(&server, "cleo", "g", 1).unwrap_err(), ErrorCode::NotAMember);
    set_mode(&server, "news", ReceiptsMode::Counts);
    assert_eq!(counts(&server, "ben", "news", 1), (0, 0, 1));
    set_mode(&server, "g", ReceiptsMode::Members);
    read(&server, "ben", "g", 1);
    server.engine.settle_receipts();
    assert_eq!(told(&mut ada), ("g".into(), vec![mark("ben", Some(1), None)], vec![]));
    assert_eq!(receipts_of(&server, "ada", "g", 1).unwrap().receipts.unwrap().len(), 1);
    set_mode(&server, "g", ReceiptsMode::None);
    read(&server, "ben", "g", 2);
    server.engine.settle_receipts();
    is_told_nothing(&mut ada);
    assert_eq!(receipts_of(&server, "ada", "g", 1).unwrap_err(), ErrorCode::Forbidden);
}

#[test]
fn who_sends_no_read_receipts_sees_none() {
    let server = Server::start();
    server.users(&["ada", "ben", "cleo"]);
    server.group("g", &["ada", "ben", "cleo"]);
    server.say("ada", "g", "one");
    server.say("ada", "ada~ben", "one");
    set_mode(&server, "g", ReceiptsMode::Members);
    server.wait(server.engine.set_receipts("ben", false)).unwrap();
    let mut ada = server.open("ada", "phone");
    let mut ben = server.open("ben", "phone");
    for (user, conversation) in [("ben", "g"), ("ben", "ada~ben"), ("ada", "ada~ben"), ("cleo", "g")] {
        read(&server, user, conversation, 1);
    }
    server.engine.settle_receipts();
    assert_eq!(told(&mut ada), ("g".into(), vec![mark("cleo", Some(1), None)], vec![]), "ben's are not told");
    is_told_nothing(&mut ben);
    assert_eq!(counts(&server, "ada", "g", 1), (2, 1, 2), "ben has it, and counts as not having read it");
    assert_eq!(counts(&server, "ben", "g", 1), (2, 0, 2), "ben sees no reads of others");
    server.wait(server.engine.set_receipts("ben", true)).unwrap();
    assert_eq!(counts(&server, "ada", "g", 1), (2, 2, 2));
}

#[test]
fn members_on_other_nodes_are_told() {
    let (memory, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let nodes = ["a", "b"].map(|name| Server::node(name, &memory, &bus));
    let all_known = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == 2;
    until("the nodes know each other", || nodes.iter().all(all_known));
    let [a, b] = &nodes;
    a.users(&["ada", "ben", "cleo"]);
    a.group("g", &["ada", "ben", "cleo"]);
    let mut ada = a.open("ada", "phone");
    let mut ben = b.open("ben", "phone");
    a.say("ada", "ada~ben", "one");
    a.say("ada", "g", "one");
    entries(&mut ada, 2);
    entries(&mut ben, 2);
    store(&mut ben);
    b.engine.settle_receipts();
    assert_eq!(told(&mut ada), ("ada~ben".into(), vec![mark("ben", None, Some(1))], vec![]));
    read(b, "ben", "ada~ben", 1);
    assert_eq!(told(&mut ada), ("ada~ben".into(), vec![mark("ben", Some(1), None)], vec![]));
    read(b, "ben", "g", 1);
    b.engine.settle_receipts();
    let moved = MovedMarks { what: ReceiptKind::Read, from_seq: 1, to_seq: 1, count: 1 };
    assert_eq!(told(&mut ada), ("g".into(), vec![], vec![moved]));
}

/// How far all members have come, by a session's request.
#[track_caller]
fn asked(session: &mut Session, conversation: &str) -> Result<ConversationReceipts, ErrorCode> {
    session.write(&ClientFrame::Receipts { reference: Some(9), conversation: conversation.into() }).unwrap();
    loop {
        match next(session) {
            ServerFrame::Receipts { reference: Some(9), marks, moved, .. } => {
                return Ok(ConversationReceipts { marks, moved });
            }
            ServerFrame::Error { code, .. } => return Err(code),
            _ => {}
        }
    }
}

#[test]
fn marks_that_moved_before_a_session_began_are_read_by_one_request() {
    let server = Server::start();
    server.users(&["ada", "ben", "cleo", "dan"]);
    server.group("g", &["ada", "ben", "cleo"]);
    for text in ["one", "two", "three"] {
        server.say("ada", "g", text);
    }
    read(&server, "ben", "g", 2);
    read(&server, "cleo", "g", 3);
    let mut ada = server.open("ada", "phone");
    let moved = |to_seq| MovedMarks { what: ReceiptKind::Read, from_seq: 1, to_seq, count: 1 };
    let counted = asked(&mut ada, "g").unwrap();
    assert_eq!(counted.marks, [], "the group shows counts");
    assert_eq!(counted.moved[..2], [moved(2), moved(3)]);
    set_mode(&server, "g", ReceiptsMode::Members);
    server.change_members("g", &["dan"], &[]);
    let marks = vec![
        mark("ada", None, None),
        mark("ben", Some(2), Some(2)),
        mark("cleo", Some(3), Some(3)),
        mark("dan", Some(4), Some(4)),
    ];
    let all = ConversationReceipts { marks, moved: vec![] };
    assert_eq!(asked(&mut ada, "g"), Ok(all.clone()));
    let over_http = server.app().get::<ConversationReceipts>("/v1/conversations/g/receipts").unwrap();
    assert_eq!(over_http, all);
    // Who sends none is not told of reads, nor tells of own ones.
    server.wait(server.engine.set_receipts("ben", false)).unwrap();
    assert_eq!(asked(&mut ada, "g").unwrap().marks[1], mark("ben", None, Some(2)));
    let mut ben = server.open("ben", "phone");
    assert!(asked(&mut ben, "g").unwrap().marks.iter().all(|mark| mark.read_seq.is_none()));
    set_mode(&server, "g", ReceiptsMode::None);
    assert_eq!(asked(&mut ada, "g"), Err(ErrorCode::Forbidden));
    server.group("h", &["ben"]);
    assert_eq!(asked(&mut ada, "h"), Err(ErrorCode::NotAMember));
}

/// What one request says of all messages is what a request for each of them says.
#[test]
fn the_marks_of_a_conversation_are_those_of_its_messages() {
    use rand::{RngExt, SeedableRng, rngs::SmallRng};
    let people = ["ada", "ben", "cleo", "dan", "eve"];
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let server = Server::start();
        server.users(&people);
        server.group("g", &people[..3]);
        let mut ben = server.open("ben", "phone");
        let mut last = 0;
        for _ in 0..30 {
            let user = people[random.random_range(0..people.len())];
            let is_member = server.engine.message_receipts(&Actor::App, "g", 1).is_ok();
            match random.random_range(0..8) {
                0..4 => last = server.say("ada", "g", "x").seq,
                4 if is_member => server.change_members("g", &[user], &[]),
                5 => server.wait(server.engine.set_receipts(user, random.random())).unwrap(),
                6 => {
                    frames_until_pong(&mut ben);
                    let cursor = ben.cursor.clone().unwrap();
                    ben.write(&ClientFrame::Stored { cursor }).unwrap();
                    frames_until_pong(&mut ben);
                    server.engine.settle_receipts();
                }
                _ if last > 0 => {
                    let user = server.engine.directory.require_user(user).unwrap();
                    // Who is no member is refused.
                    let seq = random.random_range(1..=last);
                    let _ = server.wait(server.engine.mark_read(&user, "g", seq));
                }
                _ => {}
            }
        }
        for mode in [ReceiptsMode::Members, ReceiptsMode::Counts] {
            set_mode(&server, "g", mode);
            for reader in &people[..3] {
                let actor = Actor::User(server.engine.directory.require_user(reader).unwrap());
                let all = server.engine.conversation_receipts(&actor, "g").unwrap();
                for seq in 1..=last {
                    let Ok(one) = server.engine.message_receipts(&actor, "g", seq) else { continue };
                    let context = format!("seed {seed}, {mode:?}, {reader} looks at {seq}: {all:?}");
                    for MemberReceipt { user, delivered, read } in one.receipts.iter().flatten() {
                        let mark = all.marks.iter().find(|mark| mark.user == *user).unwrap();
                        let covers = |mark: Option<u64>| mark.is_some_and(|mark| mark >= seq);
                        assert_eq!(
                            (covers(mark.delivered_seq), covers(mark.read_seq)),
                            (*delivered, *read),
                            "{context}"
                        );
                    }
                    // Of counts the reader is no part: all messages are ada's.
                    if mode == ReceiptsMode::Counts && *reader == "ada" {
                        let count = |kind| {
                            let over = all.moved.iter().filter(|moved| moved.what == kind);
                            let over = over.filter(|moved| (moved.from_seq..=moved.to_seq).contains(&seq));
                            over.map(|moved| moved.count).sum::<u64>()
                        };
                        let counted = (count(ReceiptKind::Delivered), count(ReceiptKind::Read));
                        assert_eq!(counted, (one.delivered, one.read), "{context}");
                    }
                }
            }
        }
    }
}
