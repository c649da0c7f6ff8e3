//! A real disk that is full: what was refused is not there by itself later, and sent again it reaches who is live, as
//! what it is: new.
#![allow(clippy::unwrap_used)]

#[path = "../../store/tests/support/file_size_limit.rs"]
mod file_size_limit;
mod support;

use file_size_limit::FileSizeLimit;
use std::sync::Arc;
use support::*;
use tidings_engine::{
    config::EngineConfig,
    delivery::{BindOutcome, Block, Delivery, SessionKey, Sink},
    engine::Actor,
    model::{Lane, Position},
};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

/// Sessions of a shard without sockets: what each was handed.
#[derive(Default)]
struct Live {
    delivery: Delivery,
    told: Told,
}

#[derive(Default)]
struct Told(Vec<(SessionKey, String)>);

impl Sink for Told {
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, _: Lane, _: Position) {
        self.0.push((session, String::from_utf8(block.json.to_vec()).unwrap()));
    }

    fn left(&mut self, session: SessionKey, _: &Arc<str>) {
        self.0.push((session, "you left".into()));
    }
}

impl Live {
    fn join(&mut self, world: &World, session: SessionKey, user: &str) {
        let user = world.user(user).no;
        let BindOutcome::NeedsMemberships(number) = self.delivery.bind(session, user) else { panic!("bound already") };
        // Nobody is in a conversation yet.
        self.delivery.install(user, number, vec![]).unwrap();
    }

    /// Takes what comes until this session was told of this.
    fn hears(&mut self, world: &World, session: SessionKey, text: &str) {
        while !self.has_heard(session, text) {
            let lanes = &world.receivers[0].lanes;
            let mut select = crossbeam_channel::Select::new();
            for lane in lanes {
                select.recv(lane);
            }
            let ready = select.select_timeout(PATIENCE).unwrap_or_else(|_| panic!("{session} never hears {text}"));
            let lane = &lanes[ready.index()];
            self.delivery.apply(&ready.recv(lane).unwrap(), &mut self.told);
        }
    }

    fn has_heard(&self, session: SessionKey, text: &str) -> bool {
        self.told.0.iter().any(|(to, what)| *to == session && what.contains(text))
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
    live.hears(&world, BOB, "before");

    limit.leave_room(folder.path(), 0);
    assert_eq!(send("refused").unwrap_err().code, ErrorCode::StoreUnavailable);
    limit.lift();
    // Something else starts the engine afresh; what was refused is not there with it.
    assert_eq!(send("between").unwrap().seq, 2);
    let again = send("refused").unwrap();
    assert_eq!((again.seq, again.duplicate), (3, false));
    live.hears(&world, BOB, "refused");
    live.hears(&world, CAROL, "refused");

    limit.leave_room(folder.path(), 0);
    assert_eq!(remove_carol().unwrap_err().code, ErrorCode::StoreUnavailable);
    limit.lift();
    assert_eq!(remove_carol().unwrap().removed, 1);
    live.hears(&world, CAROL, "you left");
    let carol = Actor::User(world.user("carol"));
    let refusal = world.engine.history(&carol, "g", &HistoryQuery::default()).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NotAMember);
    send("secret").unwrap();
    live.hears(&world, BOB, "secret");
    assert!(!live.has_heard(CAROL, "secret"));
}
