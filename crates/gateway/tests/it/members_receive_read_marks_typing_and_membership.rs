//! Read marks, typing and membership changes are sent to the users concerned, and to nobody else.

use crate::support::*;
use std::time::Instant;
use tidings_client::session::Session;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::ConversationKind,
};

fn read(session: &mut Session, reference: u64, seq: u64) {
    session.write(&ClientFrame::Read { reference: Some(reference), conversation: "g".into(), seq }).unwrap();
}

/// The next read mark; an `ok` may come before or after it.
#[track_caller]
fn next_read(session: &mut Session, answers: &mut Vec<u64>) -> u64 {
    loop {
        match next(session) {
            ServerFrame::Read { conversation, user, seq } => {
                assert_eq!((conversation.as_str(), user.as_str()), ("g", "bob"));
                return seq;
            }
            ServerFrame::Ok { reference } => answers.push(reference),
            ServerFrame::Messages { .. } | ServerFrame::Receipts { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn unread(server: &Server, user: &str) -> u64 {
    let user = server.engine.directory.require_user(user).unwrap();
    server.engine.conversations(&user, None, None, 0).unwrap().conversations[0].unread
}

#[test]
fn read_marks_follow_the_user_to_every_device() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut alice = server.open("alice", "phone");
    let mut phone = server.open("bob", "phone");
    let mut laptop = server.open("bob", "laptop");
    for n in 0..5 {
        server.say("alice", "g", &n.to_string());
    }
    entries(&mut phone, 5);
    assert_eq!(unread(&server, "bob"), 5);
    let (mut answers, mut elsewhere) = (vec![], vec![]);
    // A mark never moves back (such a request succeeds, and nobody is notified), and never past the last entry.
    for (reference, (asked, told, stands)) in (1..).zip([(3, Some(3), 3), (1, None, 3), (99, Some(5), 5)]) {
        read(&mut phone, reference, asked);
        if let Some(seq) = told {
            assert_eq!(next_read(&mut phone, &mut answers), seq, "asked for {asked}");
            assert_eq!(next_read(&mut laptop, &mut elsewhere), seq, "asked for {asked}");
        }
        while !answers.contains(&reference) {
            match next(&mut phone) {
                ServerFrame::Ok { reference } => answers.push(reference),
                ServerFrame::Receipts { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(unread(&server, "bob"), 5 - stands);
    }
    assert_eq!((answers, elsewhere), (vec![1, 2, 3], vec![]));
    entries(&mut alice, 5);
    let told = frames_until_pong(&mut alice);
    let is_receipt = |frame: &ServerFrame| matches!(frame, ServerFrame::Receipts { .. });
    assert!(told.iter().all(is_receipt), "a read mark is its user's own: {told:?}");
}

#[test]
fn typing_is_sent_to_the_other_members_and_not_stored() {
    let server = Server::start();
    server.users(&["alice", "bob", "carol"]);
    server.group("g", &["alice", "bob"]);
    let mut alice = server.open("alice", "phone");
    let mut own = server.open("alice", "laptop");
    let mut bob = server.open("bob", "phone");
    let mut carol = server.open("carol", "phone");
    server.say("alice", "alice~bob", "first");
    for session in [&mut alice, &mut own, &mut bob] {
        entries(session, 1);
    }
    for id in ["g", "alice~bob"] {
        let before = server.engine.store.last_position();
        alice.write(&ClientFrame::Typing { conversation: id.into() }).unwrap();
        match next(&mut bob) {
            ServerFrame::Typing { conversation, user } => assert_eq!((conversation.as_str(), &*user), (id, "alice")),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.engine.store.last_position(), before);
    }
    for session in [&mut alice, &mut own, &mut carol] {
        assert!(frames_until_pong(session).is_empty());
    }
}

#[test]
fn typing_is_limited_to_once_a_second() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut alice = server.open("alice", "phone");
    let mut bob = server.open("bob", "phone");
    let begun = Instant::now();
    for _ in 0..500 {
        alice.write(&ClientFrame::Typing { conversation: "g".into() }).unwrap();
    }
    assert!(frames_until_pong(&mut alice).is_empty());
    let most = 1 + begun.elapsed().as_secs() as usize + 1;
    server.say("alice", "g", "typed");
    let mut heard = 0;
    while let ServerFrame::Typing { .. } = next(&mut bob) {
        heard += 1;
    }
    heard += frames_until_pong(&mut bob).len();
    assert!((1..=most).contains(&heard), "{heard} of 500 were heard");
}

#[test]
fn typing_of_a_user_who_may_not_send_is_refused() {
    let server = Server::start();
    server.users(&["alice", "bob", "carol"]);
    server.conversation(ConversationKind::Official, "news", &["alice", "bob", "carol"]);
    let mut alice = server.open("alice", "phone");
    let mut bob = server.open("bob", "phone");
    bob.write(&ClientFrame::Typing { conversation: "news".into() }).unwrap();
    assert_eq!(error(&mut bob).1, ErrorCode::Forbidden);
    alice.write(&ClientFrame::Typing { conversation: "news".into() }).unwrap();
    assert!(matches!(next(&mut bob), ServerFrame::Typing { user, .. } if user == "alice"));
    assert!(frames_until_pong(&mut alice).is_empty());
}

#[test]
fn members_receive_messages_from_joining_until_leaving() {
    for kind in [ConversationKind::Group, ConversationKind::Official] {
        let server = Server::start();
        server.users(&["alice", "bob", "carol"]);
        server.conversation(kind, "g", &["alice", "bob"]);
        let mut alice = server.open("alice", "phone");
        let mut bob = server.open("bob", "phone");
        let mut carol = server.open("carol", "phone");
        // Followers who come or go leave no notice in an official account's timeline.
        let notices = usize::from(kind == ConversationKind::Group);
        for round in 0..5_u64 {
            server.say("alice", "g", "both");
            entries(&mut bob, 1);
            server.change_members("g", &["carol"], &["bob"]);
            server.say("alice", "g", "carol only");
            entries(&mut bob, notices);
            match next(&mut bob) {
                ServerFrame::Membership { conversation, member } => assert_eq!((&*conversation, member), ("g", false)),
                other => panic!("round {round}, {kind:?}: {other:?}"),
            }
            entries(&mut carol, notices + 1);
            // Carol has received the message, so bob would have by now.
            assert!(frames_until_pong(&mut bob).is_empty(), "{kind:?}");
            server.change_members("g", &["bob"], &["carol"]);
            server.say("alice", "g", "bob only");
            entries(&mut bob, notices + 1);
            entries(&mut carol, notices);
            assert!(matches!(next(&mut carol), ServerFrame::Membership { member: false, .. }));
        }
        let all = entries(&mut alice, 5 * (3 + 2 * notices));
        assert_eq!(all.last().unwrap().seq, all.len() as u64, "{kind:?}");
        // A member who is offline when removed gets no later message, not even by resuming.
        let cursor = carol.cursor.clone().unwrap();
        drop(carol);
        server.say("alice", "g", "bob only");
        let mut carol = server.resume("carol", "phone", &cursor);
        assert!(bound(&carol).resume.complete && frames_until_pong(&mut carol).is_empty());
    }
}
