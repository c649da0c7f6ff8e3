//! A real disk that is full: a refused message is not in the store later, and when it is sent again it is delivered to
//! live sessions as a new one.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../store/tests/file_size_limit/mod.rs"]
mod file_size_limit;
#[allow(dead_code)]
#[path = "it/support/mod.rs"]
mod support;

use file_size_limit::FileSizeLimit;
use std::sync::Arc;
use support::*;
use tidings_domain::model::{Actor, Lane, Position};
use tidings_engine::{
    config::EngineConfig,
    delivery::{BindOutcome, Block, Chunk, Delivery, SessionKey, Sink},
};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

/// Sessions of a shard without sockets, with the entries that each was sent.
#[derive(Default)]
struct Live {
    delivery: Delivery,
    recorder: Recorder,
}

#[derive(Default)]
struct Recorder(Vec<(SessionKey, String)>);

impl Sink for Recorder {
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, _: Lane, _: Position) {
        self.0.push((session, String::from_utf8(block.json.to_vec()).unwrap()));
    }

    fn chunk(&mut self, session: SessionKey, chunk: &Arc<Chunk>, _: Lane) {
        self.0.push((session, String::from_utf8(chunk.json.to_vec()).unwrap()));
    }

    fn left(&mut self, session: SessionKey, _: &Arc<str>) {
        self.0.push((session, "you left".into()));
    }
}

impl Live {
    fn join(&mut self, world: &World, session: SessionKey, user: &str) {
        let user = world.user(user).no;
        let BindOutcome::NeedsMemberships(number) = self.delivery.bind(session, user) else { panic!("bound already") };
        // No user is a member of a conversation yet.
        self.delivery.install(user, number, vec![]).unwrap();
    }

    /// Applies fan-outs until the session has this text.
    fn wait_for(&mut self, world: &World, session: SessionKey, text: &str) {
        while !self.has_received(session, text) {
            let lanes = &world.receivers[0].lanes;
            let mut select = crossbeam_channel::Select::new();
            for lane in lanes {
                select.recv(lane);
            }
            let ready = select.select_timeout(PATIENCE).unwrap_or_else(|_| panic!("{session} never hears {text}"));
            let lane = &lanes[ready.index()];
            self.delivery.apply(&ready.recv(lane).unwrap(), &mut self.recorder);
        }
    }

    fn has_received(&self, session: SessionKey, text: &str) -> bool {
        self.recorder.0.iter().any(|(to, what)| *to == session && what.contains(text))
    }
}

const BOB: SessionKey = 1;
const CAROL: SessionKey = 2;

#[test]
fn a_refused_message_is_delivered_once_sent_again() {
    let limit = FileSizeLimit::exclusive();
    let folder = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions { disk_reserve_bytes: 0, ..EmbeddedOptions::new(folder.path()) };
    let world = World::new(EngineConfig::default(), Arc::new(EmbeddedStore::open(options).unwrap()));
    world.users(&["alice", "bob", "carol"]);
    let mut live = Live::default();
    live.join(&world, BOB, "bob");
    live.join(&world, CAROL, "carol");
    world.conversation(ConversationKind::Group, "g", &["alice", "bob", "carol"]);
    let send = |text: &str| world.wait(world.engine.send(&Actor::App, message("alice", "g", text)));
    let remove_carol = || {
        let change = ChangeMembers { add: vec![], remove: vec!["carol".into()], role: None };
        world.wait(world.engine.change_members(&Actor::App, "g", change))
    };
    send("before").unwrap();
    live.wait_for(&world, BOB, "before");

    limit.leave_room(folder.path(), 0);
    assert_eq!(send("refused").unwrap_err().code, ErrorCode::StoreUnavailable);
    limit.lift();
    // Another send restarts the storage engine; the refused message is not there afterwards.
    assert_eq!(send("between").unwrap().seq, 2);
    let again = send("refused").unwrap();
    assert_eq!((again.seq, again.duplicate), (3, false));
    live.wait_for(&world, BOB, "refused");
    live.wait_for(&world, CAROL, "refused");

    limit.leave_room(folder.path(), 0);
    assert_eq!(remove_carol().unwrap_err().code, ErrorCode::StoreUnavailable);
    limit.lift();
    assert_eq!(remove_carol().unwrap().removed, 1);
    live.wait_for(&world, CAROL, "you left");
    let carol = Actor::User(world.user("carol"));
    let refusal = world.engine.history(&carol, "g", &HistoryQuery::default()).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NotAMember);
    send("secret").unwrap();
    live.wait_for(&world, BOB, "secret");
    assert!(!live.has_received(CAROL, "secret"));
}
