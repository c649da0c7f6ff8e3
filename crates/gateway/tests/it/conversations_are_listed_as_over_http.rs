//! A session's list of conversations: the same as over HTTP, page by page.

use crate::support::*;
use tidings_client::{http::HttpClient, session::Session};
use tidings_protocol::{
    frames::{ClientFrame, ServerFrame},
    http::ConversationPage,
};

/// A page as a session gets it.
#[track_caller]
fn page(session: &mut Session, after: Option<String>, limit: Option<usize>) -> ConversationPage {
    let (reference, account, assigned_to) = (Some(9), None, None);
    let (conversation, search, filter) = (None, None, None);
    let ask =
        ClientFrame::Conversations { reference, conversation, search, filter, account, assigned_to, after, limit };
    session.write(&ask).unwrap();
    loop {
        match next(session) {
            ServerFrame::Conversations { reference: Some(9), page } => return page,
            ServerFrame::Messages { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A page as HTTP answers it.
fn page_over_http(server: &Server, query: &str) -> ConversationPage {
    let mut http = HttpClient::new(server.address, token("alice"));
    let answer = answered(|| http.exchange("GET", &format!("/v1/users/me/conversations{query}"), b"").unwrap());
    serde_json::from_slice(&answer.body).unwrap()
}

fn ids(page: &ConversationPage) -> Vec<&str> {
    page.conversations.iter().map(|conversation| &*conversation.id).collect()
}

#[test]
fn a_session_lists_the_same_conversations_as_http() {
    let server = Server::start();
    server.users(&["alice", "bob"]);
    let groups: Vec<String> = (0..5).map(|n| format!("g{n}")).collect();
    for group in &groups {
        server.group(group, &["alice", "bob"]);
        server.say("bob", group, "hello");
    }
    let mut session = server.open("alice", "phone");
    let whole = page(&mut session, None, None);
    assert_eq!(ids(&whole), ["g4", "g3", "g2", "g1", "g0"]);
    assert_eq!(whole.next, None);
    assert_eq!(whole.conversations[0].unread, 1);
    assert_eq!(whole.conversations, page_over_http(&server, "").conversations);

    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let part = page(&mut session, after.clone(), Some(2));
        let same = after.map_or("?limit=2".to_owned(), |after| format!("?limit=2&after={after}"));
        assert_eq!(part.conversations, page_over_http(&server, &same).conversations);
        listed.extend(ids(&part).into_iter().map(str::to_owned));
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(listed, ["g4", "g3", "g2", "g1", "g0"]);

    server.users(&["carol"]);
    assert!(ids(&page(&mut server.open("carol", "phone"), None, None)).is_empty());
}
