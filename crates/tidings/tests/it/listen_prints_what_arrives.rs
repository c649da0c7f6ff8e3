//! `tidings listen` over MIOP prints what arrives and acknowledges pushes.

use crate::support::*;
use std::{
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Stdio},
    time::{Duration, Instant},
};
use tidings_protocol::{
    frames::ServerFrame,
    http::{PushAccepted, PushStatus, UserUpsert},
};

const PATIENCE: Duration = Duration::from_secs(300);

struct Listener {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Listener {
    /// Starts `tidings listen` as a device of bob, and waits until it is bound.
    fn start(folder: &Folder) -> Self {
        let mut command = folder.program(&["listen", "bob", "--via", "miop", "--device", "phone"]);
        command.env("TIDINGS_TOKEN_KEY", TOKEN_KEY).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines().next();
        assert!(said.as_ref().is_some_and(|line| line.as_ref().unwrap().contains("as bob")), "{said:?}");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Listener { child, lines }
    }

    fn next(&mut self) -> ServerFrame {
        serde_json::from_str(&self.lines.next().expect("a line").unwrap()).unwrap()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn listen_prints_and_acknowledges_over_miop() {
    let folder = Folder::new();
    let server = folder.serve();
    let users = ["alice", "bob"].map(|id| UserUpsert { id: id.into(), ..UserUpsert::default() });
    server.http().upsert_users(users.to_vec()).unwrap();
    let mut listener = Listener::start(&folder);

    let request = serde_json::json!({ "to": { "users": ["bob"] }, "type": "note", "body": { "n": 1 } });
    let accepted: PushAccepted = server.http().post("/v1/push", &request).unwrap();
    match listener.next() {
        ServerFrame::Push(push) => assert_eq!((push.push, push.body.get()), (accepted.push, r#"{"n":1}"#)),
        other => panic!("{other:?}"),
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status: PushStatus = server.http().get(&format!("/v1/push/{}", accepted.push)).unwrap();
        if status.counts.acknowledged == 1 {
            break;
        }
        assert!(Instant::now() < deadline, "not acknowledged in time: {status:?}");
        std::thread::yield_now();
    }

    let message = serde_json::json!({ "to": "bob", "from": "alice", "body": "hello" });
    let _: tidings_protocol::http::SendReceipt = server.http().post("/v1/messages", &message).unwrap();
    loop {
        match listener.next() {
            // The new line of bob's list may come before its first message.
            ServerFrame::Conversation { .. } => {}
            ServerFrame::Messages { entries, .. } => break assert_eq!(entries[0].body.get(), r#""hello""#),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn listen_prints_why_it_was_refused() {
    let folder = Folder::new();
    let _server = folder.serve();
    for listener in ["ws", "miop"] {
        let mut command = folder.program(&["listen", "zoe", "--via", listener]);
        let output = command.env("TIDINGS_TOKEN_KEY", TOKEN_KEY).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("ended with not_found: no user \"zoe\""), "{said}");
    }
    let mut command = folder.program(&["listen", "zoe", "--server", "wss://127.0.0.1:1", "--token", "t"]);
    let said = text(&command.output().unwrap().stderr);
    assert!(said.contains("without TLS"), "{said}");
}
