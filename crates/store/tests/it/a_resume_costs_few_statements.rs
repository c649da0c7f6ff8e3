//! The number of statements that a bind, a resume and a list of conversations take does not depend on the number of the
//! user's conversations.

use crate::chat_store::ChatStore;
use crate::support::{postgres::*, *};
use std::{sync::Arc, time::Instant};
use tidings_domain::{clock::SystemClock, model::*, store::*};
use tidings_engine::{Engine, EngineParts, config::EngineConfig, shards::Wake};
use tidings_store::{PostgresOptions, PostgresStore};
use tidings_testkit::MemoryStore;

struct Asleep;

impl Wake for Asleep {
    fn wake(&self) {}
}

/// An engine with empty caches, as on the node that a session moves to.
struct Node {
    engine: Arc<Engine>,
    store: Arc<PostgresStore>,
}

impl Node {
    fn on(store: &Arc<PostgresStore>, singly: bool) -> Node {
        let parts = EngineParts {
            config: EngineConfig::default(),
            clock: Arc::new(SystemClock),
            store: Arc::new(ChatStore { chat: store.clone(), rest: MemoryStore::default(), singly }),
            wakes: vec![Arc::new(Asleep)],
            cluster: None,
        };
        let (engine, _) = Engine::start(parts);
        Node { engine, store: store.clone() }
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

/// A store of users `u1` to `u3` in so many groups, each with `entries` new entries, and the cursor before those.
fn populated(url: &str, conversations: usize, entries: usize) -> (Arc<PostgresStore>, Cursor) {
    let store = Arc::new(PostgresStore::open(PostgresOptions { connections: 1, ..options_at(url) }).unwrap());
    populate(&*store);
    let rooms: Vec<_> = (0..conversations).map(|n| group(&*store, &format!("room-{n}"))).collect();
    // Old entries make the timelines longer than the part that was missed.
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
fn a_user_of_a_thousand_conversations_costs_no_more_statements_than_one_of_two() {
    let server = PostgresServer::shared();
    for (conversations, entries) in [(2, 20), (2, 64), (100, 3), (100, 20), (1_000, 1), (1_000, 3)] {
        let (store, cursor) = populated(&server.database(), conversations, entries);
        let until = [store.last_position(); LANES];
        let node = Node::on(&store, false);
        let (places, bind) = node.cost(|engine| engine.memberships_for_delivery(READER, until).unwrap());
        assert_eq!(places.len(), conversations + 1);
        let (late_places, late_bind) = node.cost(|engine| engine.memberships_for_delivery(READER, [0; LANES]).unwrap());
        assert_eq!(late_places.len(), conversations + 1);
        let (missed, cold) = node.cost(|engine| engine.read_inbox(READER, Some(&cursor), until).unwrap());
        let (again, warm) = node.cost(|engine| engine.read_inbox(READER, Some(&cursor), until).unwrap());
        let (nothing, idle) =
            node.cost(|engine| engine.read_inbox(READER, Some(&Cursor { positions: until, ..cursor }), until).unwrap());
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
        let (page, list) = Node::on(&store, false).cost(|engine| engine.conversations(&user, None, None, 0).unwrap());
        println!("a page of {} of them: {list}", page.conversations.len());
        assert_eq!(page.conversations.len(), (conversations + 1).min(50));
        assert_eq!(page.conversations[0].unread, 3 + entries as u64);
        assert_eq!(list, 4);
    }
}

/// Resumes a second on this machine, each of 100 conversations with 20 missed entries, on a node that starts with
/// nothing in memory and from as many threads as it has connections: single reads, and as they are now.
#[test]
#[ignore = "a measurement: wants a release build and a quiet machine"]
fn resumes_a_second() {
    const THREADS: u64 = 4;
    let server = PostgresServer::start(&["fsync=off", "shared_buffers=128MB"]);
    let url = server.database();
    let (_, cursor) = populated(&url, 100, 20);
    let store = Arc::new(open_at(&url));
    let until = [store.last_position(); LANES];
    let mut rates = Vec::new();
    for (name, singly, resumes) in [("single reads", true, 20), ("many at once", false, 200)] {
        let node = Node::on(&store, singly);
        let (statements, trips) = (store.statements(), store.round_trips());
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..resumes / THREADS {
                        assert_eq!(node.engine.memberships_for_delivery(READER, until).unwrap().len(), 101);
                        let missed = node.engine.read_inbox(READER, Some(&cursor), until).unwrap();
                        assert_eq!((missed.entries, missed.resume.ranges.len()), (800, 100));
                    }
                });
            }
        });
        let rate = resumes as f64 / began.elapsed().as_secs_f64();
        let each = |count: u64| count as f64 / resumes as f64;
        let (statements, trips) = (store.statements() - statements, store.round_trips() - trips);
        println!("{name}: {rate:.1} a second; {:.1} statements, {:.1} round trips each", each(statements), each(trips));
        rates.push(rate);
    }
    println!("ratio: {:.1}", rates[1] / rates[0]);
}
