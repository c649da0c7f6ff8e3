//! Anybody may follow an official account. Who else follows is for its owner, its admins and the app server: not the list of
//! members, their presence, who reacted, nor who has read. What followers react with is chosen by the account.

use crate::support::*;
use serde_json::{Value, json};
use tidings_client::http::HttpClient;
use tidings_protocol::{
    entry::EntryKind,
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::ConversationKind,
};

const LIKE: &str = "/messages/1/reactions/%F0%9F%91%8D";

/// Ada's account, which Ben and Cyd follow, with one message.
fn news() -> Server {
    let server = Server::start();
    server.users(&["ada", "ben", "cyd"]);
    server.conversation(ConversationKind::Official, "news", &["ada", "ben", "cyd"]);
    server.say("ada", "news", "hello");
    server
}

/// A user's request, or with no user the app server's: the status and the answer.
fn ask(server: &Server, user: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut http = match user {
        "" => server.app(),
        user => HttpClient::new(server.address, token(user)),
    };
    let answer = http.exchange(method, &format!("/v1/conversations/news{path}"), body.as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

#[test]
fn a_follower_sees_no_other_follower() {
    let server = news();
    let get = |user: &str, path: &str| ask(&server, user, "GET", path, "").1;
    assert_eq!(get("ben", "/members")["code"], "forbidden");
    assert_eq!(get("ada", "/members")["members"].as_array().map(Vec::len), Some(3));
    assert_eq!(get("ben", "")["member_count"], 3, "how many is no secret");

    let mut cyd = server.open("cyd", "phone");
    let put = ask(&server, "ben", "PUT", LIKE, "{}").1;
    assert_eq!(put["reactions"], json!([{ "key": "👍", "count": 1, "users": [] }]));
    // Perhaps with the message, if that had not come yet.
    let live = loop {
        if let ServerFrame::Messages { entries, .. } = next(&mut cyd)
            && let Some(reactions) = entries.into_iter().find(|entry| entry.kind == EntryKind::Reactions)
        {
            break reactions;
        }
    };
    assert!(live.body.get().contains("👍") && !live.body.get().contains("ben"), "{}", live.body);
    for user in ["cyd", "ada"] {
        let page = get(user, "/messages").to_string();
        assert!(page.contains("👍") && !page.contains("ben"), "{page}");
    }
    assert_eq!(get("cyd", "/messages/1/reactions")["reactions"], json!([]));
    for user in ["ben", "ada"] {
        let reactions = get(user, "/messages/1/reactions");
        assert_eq!(reactions["reactions"], json!([{ "user": "ben", "key": "👍" }]), "{user}");
    }

    assert_eq!(ask(&server, "", "PATCH", "", r#"{"receipts":"members"}"#).0, 200);
    assert_eq!(get("ben", "/messages/1/receipts").get("receipts"), None);
    assert_eq!(get("ada", "/messages/1/receipts")["receipts"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_follower_watches_no_other_follower() {
    let server = news();
    for (user, allowed) in [("ben", false), ("ada", true)] {
        let mut session = server.open(user, "phone");
        let (conversation, users) = (Some("news".to_owned()), vec!["cyd".to_owned()]);
        session.write(&ClientFrame::WatchPresence { reference: Some(1), conversation, users }).unwrap();
        let mut answer = next(&mut session);
        // The message may still be on its way to who has just connected.
        while matches!(answer, ServerFrame::Messages { .. }) {
            answer = next(&mut session);
        }
        match answer {
            ServerFrame::Presence { .. } => assert!(allowed, "{user}"),
            ServerFrame::Error { code, .. } => assert_eq!((allowed, code), (false, ErrorCode::Forbidden), "{user}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_account_chooses_the_reactions_to_it() {
    let server = news();
    let react = |user: &str, key: &str| ask(&server, user, "PUT", &format!("/messages/1/reactions/{key}"), "{}");
    for junk in ["BUY", "CHEAP", "stars"] {
        let (_, refused) = react("ben", junk);
        assert_eq!(refused["code"], "invalid_field", "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains("👍"), "{refused}");
    }
    assert_eq!(react("ben", "%F0%9F%91%8D").0, 200);
    let set = |changes: &str| ask(&server, "", "PATCH", "", changes);
    // All of a message's places are taken by words that were given while any was allowed.
    assert_eq!(set(r#"{"reactions":"any"}"#).0, 200);
    (0..19).for_each(|n| assert_eq!(react("cyd", &format!("junk-{n}")).0, 200));
    assert_eq!(react("cyd", "one-more").1["code"], "limit_exceeded");
    let (_, card) = set(r#"{"reactions":{"only":["stars"]}}"#);
    assert_eq!(card["reactions"], json!({ "only": ["stars"] }));
    assert_eq!(react("ben", "stars").0, 200, "and they lock out no reaction that is allowed");
    assert_eq!(react("ada", "%F0%9F%91%8D").1["code"], "invalid_field");
    assert_eq!(ask(&server, "ben", "DELETE", LIKE, "").0, 200, "what was given before may be taken back");
    assert_eq!(set(r#"{"reactions":{"only":["a","a"]}}"#).1["code"], "invalid_field");
    assert_eq!(set(r#"{"reactions":{"only":[]}}"#).0, 200);
    assert_eq!(react("ada", "stars").1["code"], "invalid_field", "none at all");
}
