//! What a bind, a resume and a list of conversations cost PostgreSQL does not depend on how many conversations a user is in.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use support::{postgres::*, *};
use tidings_engine::{
    Engine,
    clock::SystemClock,
    config::EngineConfig,
    engine::Parts,
    many,
    model::*,
    resume::Missed,
    shards::{ShardReceivers, Wake},
    store::*,
};
use tidings_protocol::limits::CONVERSATIONS_PER_USER_MAX;
use tidings_store::PostgresStore;

struct Asleep;

impl Wake for Asleep {
    fn wake(&self) {}
}

/// An engine that has nothing in memory yet, as after another node's end.
struct Node {
    engine: Arc<Engine>,
    store: Arc<PostgresStore>,
    _receivers: Vec<ShardReceivers>,
}

impl Node {
    fn on(store: &Arc<PostgresStore>) -> Node {
        let parts = Parts {
            config: EngineConfig::default(),
            clock: Arc::new(SystemClock),
            store: store.clone(),
            webhook: None,
            wakes: vec![Arc::new(Asleep)],
        };
        let (engine, receivers) = Engine::start(parts);
        Node { engine, store: store.clone(), _receivers: receivers }
    }

    fn cost<T>(&self, work: impl FnOnce(&Engine) -> T) -> (T, u64) {
        let before = self.store.statements();
        let answer = work(&self.engine);
        (answer, self.store.statements() - before)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

const READER: UserNo = UserNo(2);

/// Users `u1` to `u3` in so many groups, and where the cursor stood before `entries` in each, one round after another.
fn populated(url: &str, conversations: usize, entries: usize) -> (Arc<PostgresStore>, Cursor) {
    let store = Arc::new(open_at(url));
    populate(&*store);
    let rooms: Vec<_> = (0..conversations).map(|n| group(&*store, &format!("room-{n}"))).collect();
    // What was said long ago makes timelines longer than what is looked for in them.
    let round = |name: &str| {
        let batch: Vec<_> = rooms.iter().map(|room| append(*room, &format!("{name}-{}", room.0))).collect();
        store.commit(&batch, NOON).unwrap();
    };
    (0..3).for_each(|n| round(&format!("old-{n}")));
    let cursor = Cursor { epoch: store.epoch(), positions: [store.last_position(); LANES] };
    (0..entries).for_each(|n| round(&format!("new-{n}")));
    (store, cursor)
}

#[test]
fn a_user_of_a_thousand_conversations_costs_as_few_as_one_of_two() {
    let server = PostgresServer::shared();
    for (conversations, entries) in [(2, 20), (2, 64), (100, 3), (100, 20), (1_000, 1), (1_000, 3)] {
        let (store, cursor) = populated(&server.database(), conversations, entries);
        let until = [store.last_position(); LANES];
        let node = Node::on(&store);
        let (places, bind) = node.cost(|engine| engine.memberships_for_delivery(READER, until).unwrap());
        assert_eq!(places.len(), conversations + 1);
        let (late_places, late_bind) = node.cost(|engine| engine.memberships_for_delivery(READER, [0; LANES]).unwrap());
        assert_eq!(late_places.len(), conversations + 1);
        let (missed, cold) = node.cost(|engine| engine.missed(READER, Some(&cursor), until).unwrap());
        let (again, warm) = node.cost(|engine| engine.missed(READER, Some(&cursor), until).unwrap());
        let (nothing, idle) =
            node.cost(|engine| engine.missed(READER, Some(&Cursor { positions: until, ..cursor }), until).unwrap());
        println!(
            "{conversations} conversations with {entries} new entries each: bind {bind}, behind {late_bind}; \
             resume {cold}, again {warm}, with nothing missed {idle}"
        );
        assert_eq!(missed, again);
        assert_eq!(missed.entries as usize, (conversations * entries).min(800));
        assert_eq!(missed.resume.complete, conversations * entries <= 800);
        let left: u64 = missed.resume.ranges.iter().map(|range| range.to_seq + 1 - range.from_seq).sum();
        assert_eq!(left + u64::from(missed.entries), (conversations * entries) as u64);
        assert_eq!((nothing.entries, nothing.resume.complete), (0, true));
        assert_eq!((bind, late_bind, cold, warm, idle), (1, 2, 4, 3, 1));

        let user = node.engine.directory.require_user("u2").unwrap();
        let (page, list) = Node::on(&store).cost(|engine| engine.conversations(&user, None, 0).unwrap());
        println!("a page of {} of them: {list}", page.conversations.len());
        assert_eq!(page.conversations.len(), (conversations + 1).min(50));
        assert_eq!(page.conversations[0].unread, 3 + entries as u64);
        let pages_of_unread = if conversations > 2 { 4 } else { 1 };
        assert!(list <= 3 + pages_of_unread, "{list}");
    }
}
