//! Store reads are bounded over all sessions, including sessions that have been closed since.

use crate::support::*;
use std::sync::{Arc, mpsc};
use tidings_client::session::Session;
use tidings_gateway::SessionConfig;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
};
use tidings_testkit::MemoryStore;

const READS: u64 = 12;

/// Blocks all reads until dropped.
struct Gate {
    _closed: Vec<mpsc::SyncSender<()>>,
}

impl Gate {
    fn close(server: &Server) -> Gate {
        let threads = (0..BLOCKING_THREADS).map(|_| {
            let (gate, opened) = mpsc::sync_channel::<()>(1);
            let (here, arrived) = mpsc::sync_channel(1);
            server.runtime.spawn_blocking(move || {
                here.send(()).unwrap();
                let _ = opened.recv();
            });
            arrived.recv_timeout(PATIENCE).unwrap();
            gate
        });
        Gate { _closed: threads.collect() }
    }
}

fn ask(session: &mut Session, references: std::ops::Range<u64>) {
    for reference in references {
        let ask = format!(r#"{{"t":"history","conversation":"g","ref":{reference}}}"#);
        session.write_text(ask.as_bytes()).unwrap();
    }
}

#[test]
fn reads_of_closed_sessions_count_until_they_end() {
    let config = SessionConfig { session_reads: READS as usize, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["alice", "bob"]);
    server.group("g", &["alice", "bob"]);
    let mut alice = server.open("alice", "phone");
    let mut bob = server.open("bob", "phone");
    let gate = Gate::close(&server);
    ask(&mut alice, 0..READS - 2);
    assert!(frames_until_pong(&mut alice).is_empty());
    alice.write(&ClientFrame::Unbind).unwrap();
    end(&mut alice);
    ask(&mut bob, 0..4);
    for reference in [2, 3] {
        let (refused, code, _) = error(&mut bob);
        assert_eq!((refused, code), (Some(reference), ErrorCode::QueueFull));
    }
    assert!(frames_until_pong(&mut bob).is_empty());
    drop(gate);
    let mut answered: Vec<u64> = (0..2).map(|_| answer(&mut bob)).collect();
    answered.sort_unstable();
    assert_eq!(answered, [0, 1]);
    // One after another, more than the limit: every permit was given back.
    for reference in 10..10 + 2 * READS {
        ask(&mut bob, reference..reference + 1);
        assert_eq!(answer(&mut bob), reference);
    }
    assert_eq!(bound(&server.open("alice", "phone")).user, "alice");
}

#[track_caller]
fn answer(session: &mut Session) -> u64 {
    match next(session) {
        ServerFrame::History { reference, .. } => reference.unwrap(),
        other => panic!("{other:?}"),
    }
}
