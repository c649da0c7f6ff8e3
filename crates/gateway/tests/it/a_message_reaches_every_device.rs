//! A message that is sent over a session, over HTTP or in the process reaches each device of each member once, in one order.

use crate::support::*;
use std::collections::HashSet;
use tidings_protocol::{
    entry::Entry,
    frames::{ClientFrame, Send},
    http::ConversationKind,
    limits::BODY_BYTES_MAX,
};

const MESSAGES: u64 = 60;

#[track_caller]
fn check_whole(entries: &[Entry]) {
    let seqs: Vec<u64> = entries.iter().map(|e| e.seq).collect();
    assert_eq!(seqs, (1..=entries.len() as u64).collect::<Vec<_>>());
}

#[test]
fn every_device_of_every_member_gets_each_message_once() {
    for (kind, id) in
        [(ConversationKind::Direct, "alice~bob"), (ConversationKind::Group, "g"), (ConversationKind::Official, "news")]
    {
        let server = Server::start();
        server.users(&["alice", "bob", "carol"]);
        if kind != ConversationKind::Direct {
            server.conversation(kind, id, &["alice", "bob"]);
        }
        let mut phone = server.open("bob", "phone");
        let mut laptop = server.open("bob", "laptop");
        let mut other = server.open("alice", "tablet");
        let mut outsider = server.open("carol", "phone");
        let mut sender = server.open("alice", "phone");
        let mut app = server.app();
        // In turn over the session, over HTTP and in the process.
        for n in 0..MESSAGES {
            let text = format!("message {n}");
            match n % 3 {
                0 => sender.send(n, id, message(&text)).unwrap(),
                1 => drop(app.send(&message_to("alice", id, &text)).unwrap()),
                _ => drop(server.say("alice", id, &text)),
            }
        }
        let at_phone = entries(&mut phone, MESSAGES as usize);
        check_whole(&at_phone);
        assert_eq!(at_phone.iter().map(text_of).collect::<HashSet<_>>().len(), MESSAGES as usize);
        assert!(at_phone.iter().all(|e| e.conversation == id && e.from.as_deref() == Some("alice")));
        assert_eq!(at_phone, entries(&mut laptop, MESSAGES as usize), "another device, {kind:?}");
        assert_eq!(at_phone, entries(&mut other, MESSAGES as usize), "the sender's other device, {kind:?}");
        assert_eq!(at_phone, entries(&mut sender, MESSAGES as usize), "the sender's own device, {kind:?}");
        for session in [&mut phone, &mut laptop, &mut other] {
            assert!(frames_until_pong(session).is_empty());
        }
        assert!(frames_until_pong(&mut outsider).is_empty(), "carol is no member");
    }
}

#[test]
fn the_answer_repeats_the_reference_and_a_retry_gets_the_first_result() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut bob = server.open("bob", "phone");
    let mut alice = server.open("alice", "phone");
    let mut once = message("hello");
    once.client_msg_id = Some("m1".into());
    alice.send(7, "g", once.clone()).unwrap();
    let first = sent(&mut alice);
    assert_eq!((first.reference, first.receipt.seq, first.receipt.duplicate), (Some(7), 1, false));
    alice.send(8, "g", once).unwrap();
    let second = sent(&mut alice);
    assert_eq!((second.reference, second.receipt.seq, second.receipt.at), (Some(8), 1, first.receipt.at));
    assert!(second.receipt.duplicate);
    server.say("alice", "g", "the end");
    let texts: Vec<String> = entries(&mut bob, 2).iter().map(text_of).collect();
    assert_eq!(texts, ["hello", "the end"]);
}

#[test]
fn messages_written_in_one_go_are_committed_in_that_order() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    let mut bob = server.open("bob", "phone");
    let mut alice = server.open("alice", "phone");
    // The first message opens the direct conversation; the others must not overtake it meanwhile.
    for n in 0..50 {
        let send =
            Send { reference: Some(n), conversation: None, to: Some("bob".into()), message: message(&n.to_string()) };
        alice.write(&ClientFrame::Send(send)).unwrap();
    }
    let texts: Vec<String> = entries(&mut bob, 50).iter().map(text_of).collect();
    assert_eq!(texts, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_body_of_the_greatest_length_arrives_unchanged_and_one_byte_more_is_refused() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut bob = server.open("bob", "phone");
    let mut alice = server.open("alice", "phone");
    let longest = "x".repeat(BODY_BYTES_MAX - 2);
    alice.send(1, "g", message(&format!("{longest}y"))).unwrap();
    let (reference, code, detail) = error(&mut alice);
    assert_eq!((reference, code.as_str()), (Some(1), "limit_exceeded"));
    assert!(detail.contains("body"), "{detail}");
    alice.send(2, "g", message(&longest)).unwrap();
    assert_eq!(sent(&mut alice).receipt.seq, 1, "the refused one took no number");
    assert_eq!(text_of(&entries(&mut bob, 1)[0]), longest);
}
