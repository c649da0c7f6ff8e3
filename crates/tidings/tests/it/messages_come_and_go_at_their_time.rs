//! Scheduled messages are sent, and those that disappear go, each once and at its time, whenever the server is killed. `DUE_MESSAGES`,
//! `DUE_KILLS`, `DUE_SECONDS` and `DUE_SEED` make it larger: 10,000 messages and 20 kills over 60 seconds take two minutes. Jumps of the
//! clock are in the engine's tests, which set it.

use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tidings_client::http::HttpClient;

const WRITERS: u64 = 4;
const ROOMS: u64 = 4;
const OF_SENDER_MAX: u64 = 90;
/// Nothing here takes as long on an idle machine; this is for one that is not.
const WAIT: Duration = Duration::from_secs(300);
/// How late a message may come or go on a machine that is not overloaded: two looks, and the work on what is due with it.
const LATE_MS_MAX: u64 = 5_000;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// The status and body of the answer to a request that is made again until it is answered.
fn answered(address: &Mutex<SocketAddr>, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let deadline = Instant::now() + WAIT;
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    loop {
        let at = *address.lock().unwrap();
        match HttpClient::new(at, API_KEY).exchange(method, path, &body) {
            Ok(response) if response.status != 503 && response.status != 429 => {
                return (response.status, serde_json::from_slice(&response.body).unwrap());
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(Instant::now() < deadline, "{method} {path} is not answered");
    }
}

/// The answer to a request that is not refused.
fn insist(address: &Mutex<SocketAddr>, method: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = answered(address, method, path, body);
    assert!(status < 300, "{method} {path}: {status} {answer}");
    answer
}

/// When a message is to come, or from when on it may go.
#[derive(Default)]
struct Planned {
    comes_at: HashMap<String, u64>,
    goes_after: HashMap<String, u64>,
}

#[test]
fn each_message_comes_and_goes_once_whenever_the_server_is_killed() {
    let (count, kills) = (number("DUE_MESSAGES", 300), number("DUE_KILLS", 4));
    let (seconds, seed) = (number("DUE_SECONDS", 6), number("DUE_SEED", 34));
    let mut random = StdRng::seed_from_u64(seed);
    let folder = Folder::new();
    let mut server = folder.serve();
    let address = Mutex::new(server.address);
    let senders: Vec<String> = (0..count.div_ceil(2 * OF_SENDER_MAX)).map(|n| format!("u{n}")).collect();
    let users: Vec<Value> = senders.iter().map(|id| json!({ "id": id })).collect();
    insist(&address, "PUT", "/v1/users", &json!({ "users": users }));
    for room in 0..ROOMS {
        let new = json!({ "id": format!("r{room}"), "kind": "group", "owner": senders[0], "members": senders });
        insist(&address, "POST", "/v1/conversations", &new);
    }
    let planned = Mutex::new(Planned::default());
    let written = AtomicUsize::new(0);
    let mut away: Vec<(u64, u64)> = Vec::new();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (address, planned, written, senders) = (&address, &planned, &written, &senders);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed * 1_000 + writer);
                for n in (writer..count).step_by(WRITERS as usize) {
                    let name = format!("m{n}");
                    let mut message = json!({ "conversation": format!("r{}", n % ROOMS), "from": senders[(n / 2 / OF_SENDER_MAX) as usize],
                        "body": { "text": name }, "client_msg_id": name });
                    if n % 2 == 0 {
                        let send_at = now_ms() + 2_000 + random.random_range(0..seconds * 1_000);
                        planned.lock().unwrap().comes_at.insert(name, send_at);
                        let scheduled = json!({ "send_at": send_at, "message": message });
                        let (status, answer) = answered(address, "POST", "/v1/scheduled-messages", &scheduled);
                        if status == 422 && answer["detail"].as_str().unwrap().contains("lies in the past") {
                            // The server was away for so long. Whether it has the first request or not: it is stored once.
                            insist(address, "POST", "/v1/messages", &scheduled["message"]);
                        } else {
                            assert!(status < 300, "{status} {answer}");
                        }
                    } else {
                        let after_s = random.random_range(1..=seconds);
                        message["expires"] = json!({ "after_s": after_s });
                        planned.lock().unwrap().goes_after.insert(name, after_s * 1_000);
                        insist(address, "POST", "/v1/messages", &message);
                    }
                    written.fetch_add(1, SeqCst);
                }
            });
        }
        // Everything comes, and half of it goes: kills are spread over that.
        let all = count + count / 2;
        let mut kill_at: Vec<u64> = (0..kills).map(|_| random.random_range(0..all)).collect();
        kill_at.sort_unstable();
        let (mut seen, mut cursor) = (0, String::new());
        let deadline = Instant::now() + WAIT + Duration::from_secs(seconds);
        while seen < all {
            assert!(Instant::now() < deadline, "{seen} of {all} have come or gone, {} are sent", written.load(SeqCst));
            let path = format!("/v1/events?types=entry.message,entry.recall&limit=1000&wait_s=1{cursor}");
            let page = insist(&address, "GET", &path, &Value::Null);
            seen += page["events"].as_array().unwrap().len() as u64;
            cursor = format!("&after={}", page["next"].as_str().unwrap());
            while kill_at.first().is_some_and(|at| *at <= seen) {
                kill_at.remove(0);
                let killed_at = now_ms();
                server.signal("KILL");
                server.wait();
                server = folder.serve();
                *address.lock().unwrap() = server.address;
                away.push((killed_at, now_ms()));
            }
        }
        assert_eq!(seen, all, "nothing comes or goes twice");
    });
    let Planned { mut comes_at, mut goes_after } = planned.into_inner().unwrap();
    assert_eq!(comes_at.len() + goes_after.len(), count as usize);
    // The time in which the server was away does not count.
    let late = |due: u64, at: u64| {
        let away = away.iter().map(|(from, to)| at.min(*to).saturating_sub(due.max(*from)));
        at.saturating_sub(due).saturating_sub(away.sum())
    };
    let (mut late_to_come, mut late_to_go) = (Vec::new(), Vec::new());
    for room in 0..ROOMS {
        let (mut from, mut messages) = (1, HashMap::new());
        loop {
            let path = format!("/v1/conversations/r{room}/messages?from_seq={from}&limit=200");
            let page = insist(&address, "GET", &path, &Value::Null);
            let entries = page["entries"].as_array().unwrap();
            let Some(last) = entries.last() else { break };
            from = last["seq"].as_u64().unwrap() + 1;
            for entry in entries {
                let at = entry["at"].as_u64().unwrap();
                let name = entry["client_msg_id"].as_str().unwrap_or_default().to_owned();
                match entry["kind"].as_str().unwrap() {
                    "message" => {
                        if let Some(due) = comes_at.remove(&name) {
                            assert!(at >= due, "{name} came {} ms early", due - at);
                            assert_eq!(entry["body"]["text"], name);
                            late_to_come.push(late(due, at));
                        } else {
                            assert!(entry["body"].is_null() && entry["recalled"]["expired"] == true, "{entry}");
                            messages.insert(entry["seq"].as_u64().unwrap(), (name, at));
                        }
                    }
                    "recall" => {
                        let (name, stored_at) =
                            messages.remove(&entry["target"].as_u64().unwrap()).expect("it goes once");
                        let due = stored_at + goes_after.remove(&name).expect("it was sent once");
                        assert!(at >= due, "{name} went {} ms early", due - at);
                        late_to_go.push(late(due, at));
                    }
                    _ => {}
                }
            }
        }
        assert!(messages.is_empty(), "{messages:?} have not gone");
    }
    assert!(comes_at.is_empty() && goes_after.is_empty(), "{comes_at:?} {goes_after:?}");
    let report = |what: &str, mut late: Vec<u64>| {
        late.sort_unstable();
        let at = |share: usize| late[(late.len() - 1) * share / 100];
        println!("{} {what}: late by {} ms at the median, {} at p99, {} at most", late.len(), at(50), at(99), at(100));
        at(100)
    };
    let latest = report("came", late_to_come).max(report("went", late_to_go));
    println!("{count} messages, {} kills: each once, none before its time", away.len());
    // The small form shares its machine with other tests.
    assert!(std::env::var("DUE_MESSAGES").is_err() || latest <= LATE_MS_MAX, "{latest} ms late");
}
