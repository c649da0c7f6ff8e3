//! Rows a second and latency of an outbox, beside the same messages over HTTP. A measurement, not a test: docs/benchmarks.md has its figures.

use crate::{
    app_database::{AppDatabase, Kind},
    support::*,
};
use serde_json::{Value, json};
use std::{
    process::Command,
    time::{Duration, Instant},
};
use tidings_protocol::{frames::ServerFrame, http::UserUpsert};

const SENDERS: usize = 16;
const GROUPS: usize = 64;
const MESSAGES: usize = 16_000;
const WATCHED: usize = 300;
const WAIT: Duration = Duration::from_secs(300);

fn message(group: usize) -> Value {
    json!({ "conversation": format!("g{group}"), "from": "alice", "body": { "text": "as long as a line of a chat is" } })
}

/// The built program, or that of `OUTBOX_PROGRAM`.
fn serve(folder: &Folder) -> Server {
    let program = std::env::var("OUTBOX_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tidings").to_owned());
    let mut command = Command::new(program);
    command.arg("serve").current_dir(folder.path()).env("TIDINGS_HTTP_LISTEN", "127.0.0.1:0");
    command
        .env("TIDINGS_MIOP_LISTEN", "127.0.0.1:0")
        .env("TIDINGS_API_KEY", API_KEY)
        .env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
    Server::start(&mut command)
}

/// Messages by all senders at once, each in its groups. Answers messages a second.
fn throughput(send: impl Fn(usize, &mut dyn FnMut() -> Option<usize>) + Sync, finish: impl FnOnce()) -> f64 {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let send = &send;
            scope.spawn(move || {
                let mut left = MESSAGES / SENDERS;
                send(sender, &mut || {
                    left = left.checked_sub(1)?;
                    Some((sender + left * SENDERS) % GROUPS)
                });
            });
        }
    });
    finish();
    MESSAGES as f64 / began.elapsed().as_secs_f64()
}

/// The median and the 99th percentile of what one message takes to a live member.
fn latency(server: &Server, mut send: impl FnMut()) -> (Duration, Duration) {
    let mut bob = server.session("bob", None);
    let mut times: Vec<Duration> = (0..WATCHED)
        .map(|_| {
            let began = Instant::now();
            send();
            let arrived = bob.next_where(WAIT, |frame| matches!(frame, ServerFrame::Messages { .. }));
            assert!(arrived.unwrap().is_some());
            began.elapsed()
        })
        .collect();
    times.sort();
    (times[WATCHED / 2], times[WATCHED * 99 / 100])
}

#[test]
#[ignore = "a measurement"]
fn rows_a_second_and_latency() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let (database, folder) = (AppDatabase::with_own_server(kind), Folder::new());
        std::fs::write(folder.path().join("tidings.toml"), database.settings("shop")).unwrap();
        let server = serve(&folder);
        let user = |id: &str| UserUpsert { id: id.into(), ..UserUpsert::default() };
        server.http().upsert_users(vec![user("alice"), user("bob")]).unwrap();
        for group in 0..GROUPS {
            let group = json!({ "id": format!("g{group}"), "kind": "group", "owner": "alice", "members": ["bob"] });
            server.http().create_conversation(&serde_json::from_value(group).unwrap()).unwrap();
        }
        let over_http = throughput(
            |_, next| {
                let mut http = server.http();
                while let Some(group) = next() {
                    http.send(&serde_json::from_value(message(group)).unwrap()).unwrap();
                }
            },
            || (),
        );
        let committed = std::sync::Mutex::new(Duration::ZERO);
        let began = Instant::now();
        let by_rows = throughput(
            |_, next| {
                let mut app = database.connect();
                while let Some(group) = next() {
                    app.call("tidings_send", &message(group)).unwrap();
                }
                *committed.lock().unwrap() = began.elapsed();
            },
            || database.wait_until_none_waits(),
        );
        let transactions = MESSAGES as f64 / committed.into_inner().unwrap().as_secs_f64();
        let mut http = server.http();
        let http_took = latency(&server, || drop(http.send(&serde_json::from_value(message(1)).unwrap()).unwrap()));
        let mut app = database.connect();
        let row_took = latency(&server, || drop(app.call("tidings_send", &message(1)).unwrap()));
        println!("{kind:?}: HTTP {over_http:.0}/s, rows {by_rows:.0}/s (transactions {transactions:.0}/s)");
        println!("{kind:?}: to a live member, median and 99th percentile: HTTP {http_took:.1?}, rows {row_took:.1?}");
    }
}
