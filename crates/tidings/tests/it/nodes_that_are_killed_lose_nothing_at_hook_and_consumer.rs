//! A hook and a consumer's webhook beside two nodes, of which the one that leads is killed again and again: each message is stored once,
//! as the hook would have it, and comes to the consumer in the order of its conversation.

use crate::{
    redis::wait_until,
    rows_of_an_outbox_are_stored_once::{Nodes, two_nodes},
    support::*,
    the_hook_is_asked::{SECRET, answer_requests, hook},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tidings_client::{http::HttpClient, token::sign};
use tidings_protocol::http::UserUpsert;

const SENDERS: usize = 6;
const ROOMS: usize = 5;
const MESSAGES: usize = 240;
const KILLS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(300);

fn in_capitals(questions: &[Value]) -> Option<(u16, Value)> {
    let answer = |question: &Value| {
        let text = question["message"]["body"]["text"].as_str().unwrap_or_default().to_uppercase();
        json!({ "id": question["id"], "action": "replace", "body": { "text": text } })
    };
    Some((200, json!({ "answers": questions.iter().map(answer).collect::<Vec<_>>() })))
}

/// What the consumer got: by room, its messages as (`seq`, text), as often as they came.
type Taken = Arc<Mutex<BTreeMap<String, Vec<(u64, String)>>>>;

/// A webhook that takes all events.
fn webhook(taken: &Taken) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/events", listener.local_addr().unwrap());
    let taken = taken.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let taken = taken.clone();
            std::thread::spawn(move || {
                answer_requests(&stream.unwrap(), |_, body| {
                    let mut taken = taken.lock().unwrap();
                    for event in body.as_array().unwrap() {
                        let (data, room) = (&event["data"], event["subject"].as_str().unwrap().to_owned());
                        let text = data["body"]["text"].as_str().unwrap().to_owned();
                        taken.entry(room).or_default().push((data["seq"].as_u64().unwrap(), text));
                    }
                    Some((200, json!({})))
                });
            });
        }
    });
    url
}

/// Sends a sender's share, each message until a node has answered that it is stored.
fn send_all(sender: usize, addresses: &Mutex<Vec<std::net::SocketAddr>>, sent: &AtomicUsize) {
    let token = sign(TOKEN_KEY, &format!("user{sender}"), Duration::from_secs(3_600));
    for number in 0..MESSAGES / SENDERS {
        let id = format!("m{sender}-{number}");
        let room = format!("room{}", (sender + number) % ROOMS);
        let body = json!({ "conversation": room, "client_msg_id": id, "body": { "text": id } }).to_string();
        let deadline = Instant::now() + PATIENCE;
        for attempt in 0.. {
            assert!(Instant::now() < deadline, "{id} is not stored");
            let address = addresses.lock().unwrap()[(sender + number + attempt) % 2];
            let mut http = HttpClient::new(address, token.clone());
            match http.exchange("POST", "/v1/messages", body.as_bytes()) {
                Ok(answer) if answer.status == 200 || answer.status == 201 => break,
                // 500 and more, and 429: to be tried again.
                Ok(answer) => assert!(answer.status >= 429, "{}: {}", answer.status, text(&answer.body)),
                Err(_) => std::thread::yield_now(),
            }
        }
        sent.fetch_add(1, SeqCst);
    }
}

#[test]
fn each_message_is_stored_once_and_told_in_order() {
    let (asked, _) = hook(in_capitals);
    // A message about which the hook has not answered in time is refused, and the sender sends it again.
    let settings = format!("[hook]\nurl = \"http://{asked}/hook\"\nsecret = \"{SECRET}\"\nclosed = [\"send\"]\n");
    let mut nodes = Nodes::start(two_nodes(&settings));
    wait_until("the nodes are ready", || nodes.running.iter().all(|node| node.http().is_ready()));
    let mut http = nodes.running[0].http();
    let names: Vec<String> = (0..SENDERS).map(|n| format!("user{n}")).collect();
    http.upsert_users(names.iter().map(|id| UserUpsert { id: id.clone(), ..UserUpsert::default() }).collect()).unwrap();
    for room in 0..ROOMS {
        let group = json!({ "id": format!("room{room}"), "kind": "group", "owner": names[0], "members": names[1..] });
        http.create_conversation(&serde_json::from_value(group).unwrap()).unwrap();
    }
    let taken = Taken::default();
    let consumer =
        json!({ "types": ["entry.message"], "after": "now", "webhook": { "url": webhook(&taken), "batch": 5 } });
    let made = http.exchange("PUT", "/v1/event-consumers/search", consumer.to_string().as_bytes()).unwrap();
    assert_eq!(made.status, 201, "{}", text(&made.body));

    let addresses = Mutex::new(nodes.running.iter().map(|node| node.address).collect::<Vec<_>>());
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (addresses, sent) = (&addresses, &sent);
        for sender in 0..SENDERS {
            scope.spawn(move || send_all(sender, addresses, sent));
        }
        for kill in 1..=KILLS {
            // While messages are at the hook, and on their way to the consumer.
            wait_until("some are sent", || sent.load(SeqCst) >= MESSAGES * kill / (KILLS + 1));
            nodes.kill_leader();
            *addresses.lock().unwrap() = nodes.running.iter().map(|node| node.address).collect();
        }
    });

    let mut expected: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    for room in (0..ROOMS).map(|room| format!("room{room}")) {
        let history = nodes.running[0].http().history(&room, &serde_json::from_value(json!({ "limit": 100 })).unwrap());
        let entries = serde_json::to_value(history.unwrap().entries).unwrap();
        let messages = entries.as_array().unwrap().iter().filter(|entry| entry["kind"] == "message");
        let message =
            |entry: &Value| (entry["seq"].as_u64().unwrap(), entry["body"]["text"].as_str().unwrap().to_owned());
        expected.insert(room, messages.map(message).collect());
    }
    let stored: Vec<&String> = expected.values().flatten().map(|(_, text)| text).collect();
    let each: BTreeSet<&String> = stored.iter().copied().collect();
    assert_eq!((stored.len(), each.len()), (MESSAGES, MESSAGES), "each is stored once");
    let all = (0..SENDERS).flat_map(|sender| (0..MESSAGES / SENDERS).map(move |n| format!("M{sender}-{n}")));
    assert!(all.clone().all(|text| each.contains(&text)), "as the hook has them");

    let all_taken = || {
        let taken = taken.lock().unwrap();
        expected.iter().all(|(room, messages)| {
            taken.get(room).is_some_and(|taken| messages.iter().all(|message| taken.contains(message)))
        })
    };
    wait_until("the consumer has all", all_taken);
    for (room, taken) in taken.lock().unwrap().iter() {
        // A message may come again, and those behind it then do; none comes ahead of one before it.
        let mut next = 0;
        for message in taken {
            let place = expected[room].iter().position(|known| known == message).unwrap();
            assert!(place <= next, "{room}: {message:?} came ahead of {:?}: {taken:?}", expected[room][next]);
            next = next.max(place + 1);
        }
    }
}
