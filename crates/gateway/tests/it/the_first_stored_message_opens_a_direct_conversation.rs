//! A direct conversation comes into being with its first stored message: a session hears nothing of one whose message was
//! refused, and the line of the list that tells of a new one has its message.

use crate::support::*;
use tidings_client::session::Session;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, Send, ServerFrame},
    http::*,
};

fn send_to(user: &str, reference: u64, message: NewMessage) -> ClientFrame {
    ClientFrame::Send(Send { reference: Some(reference), conversation: None, to: Some(user.into()), message })
}

/// The line of a new conversation, and the first entry of it that the session is handed.
fn line_and_entry(session: &mut Session) -> (ConversationView, u64) {
    let (mut line, mut seq) = (None, None);
    loop {
        match any_next(session) {
            ServerFrame::Conversation { conversation } => line = Some(*conversation),
            ServerFrame::Messages { entries, .. } => seq = seq.or(entries.first().map(|entry| entry.seq)),
            _ => {}
        }
        if let (Some(line), Some(seq)) = (&line, seq) {
            return (line.clone(), seq);
        }
    }
}

#[test]
fn a_refused_first_message_is_told_to_nobody() {
    let server = Server::start();
    server.users(&["ada", "ben", "cleo"]);
    let mut ada = server.open("ada", "phone");
    let mut ben = server.open("ben", "phone");
    let once = |text: &str| NewMessage { client_msg_id: Some("1".into()), ..message(text) };
    ada.write(&send_to("cleo", 1, once("hello"))).unwrap();
    sent(&mut ada);
    let refusals = [
        (NewMessage { reply_to: Some(7), ..message("an answer to nothing") }, ErrorCode::NotFound),
        (message(&"x".repeat(66_000)), ErrorCode::LimitExceeded),
    ];
    for (reference, (message, code)) in refusals.into_iter().enumerate() {
        ada.write(&send_to("ben", reference as u64 + 2, message)).unwrap();
        let (of, refused, _) = error(&mut ada);
        assert_eq!((of, refused), (Some(reference as u64 + 2), code));
        for user in ["ada", "ben"] {
            let page: ConversationPage = server.app().get(&format!("/v1/users/{user}/conversations")).unwrap();
            assert!(page.conversations.iter().all(|line| line.id != "ada~ben"), "{code:?} {user}");
        }
    }
    // Two at once: one opens the conversation, and the other follows.
    ada.write(&send_to("ben", 8, message("one"))).unwrap();
    ada.write(&send_to("ben", 9, message("two"))).unwrap();
    let (line, first) = line_and_entry(&mut ben);
    assert_eq!((line.id.as_str(), first), ("ada~ben", 1), "the first that ben hears of it");
    assert!(line.last_message.is_some_and(|message| message.seq >= 1), "no line without its message");
    let page: HistoryPage = server.app().get("/v1/conversations/ada~ben/messages").unwrap();
    let bodies: Vec<_> = page.entries.iter().map(|entry| entry.body.get()).collect();
    assert_eq!(bodies, [r#""one""#, r#""two""#]);
}
