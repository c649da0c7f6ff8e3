//! A user with very many conversations is erased while others send. `ERASED_CONVERSATIONS=100000` makes it as large as a user may be; the
//! times are printed.

use crate::support::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::model::Actor;
use tidings_engine::{config::EngineConfig, engine::erasure::leftovers::leftovers};
use tidings_protocol::http::*;
use tidings_store::{EmbeddedOptions, EmbeddedStore};

fn open(folder: &tempfile::TempDir) -> World {
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path().join("data"))).unwrap();
    store.open_gates().unwrap();
    World::new(EngineConfig { shards: 1, ..EngineConfig::default() }, Arc::new(store))
}

/// How long sends of others take, one after the other, until `is_over`.
fn sends(world: &World, is_over: impl Fn(usize) -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while !is_over(took.len()) {
        let began = Instant::now();
        world.wait(world.engine.send(&Actor::App, message("ben", "g", "beside"))).unwrap();
        took.push(began.elapsed());
        world.take_fanouts();
    }
    took.sort();
    took
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[test]
fn a_user_with_many_conversations_is_erased_beside_sends_and_over_stops() {
    let count = std::env::var("ERASED_CONVERSATIONS").map_or(450, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let world = open(&folder);
    world.users(&["ann", "ben"]);
    world.conversation(ConversationKind::Group, "g", &["ben"]);
    let users: Vec<String> = (0..count).map(|at| format!("u{at}")).collect();
    for some in users.chunks(200) {
        world.users(&some.iter().map(String::as_str).collect::<Vec<_>>());
        let sending: Vec<_> = some
            .iter()
            .map(|user| {
                let (engine, user) = (world.engine.clone(), user.clone());
                let request = SendRequest { conversation: None, to: Some(user), ..message("ann", "", "mark-of-ann") };
                world.spawn(async move { engine.send(&Actor::App, request).await.map(drop) })
            })
            .collect();
        sending.into_iter().for_each(|sending| world.wait(async { sending.await.unwrap() }).unwrap());
        world.take_fanouts();
    }
    let alone = sends(&world, |sent| sent >= 200);
    world.engine.erase_user("ann", ErasedMessages::Remove, "op").unwrap();
    // A part, and a stop in the middle of it.
    for _ in 0..4 {
        world.engine.work_on_erasures(&|_| Ok(0)).unwrap();
    }
    drop(world);
    let world = open(&folder);
    let (is_over, began, engine) = (AtomicBool::new(false), Instant::now(), world.engine.clone());
    let beside = std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            scopeguard::defer! { is_over.store(true, Ordering::Release) }
            while engine.work_on_erasures(&|_| Ok(0)).unwrap() {}
        });
        let beside = sends(&world, |_| is_over.load(Ordering::Acquire));
        working.join().unwrap();
        beside
    });
    println!(
        "{count} conversations erased in {:.1?}; sends alone: median {:.1?}, 99th percentile {:.1?}; beside it ({} sends): {:.1?}, {:.1?}",
        began.elapsed(),
        percentile(&alone, 50),
        percentile(&alone, 99),
        beside.len(),
        percentile(&beside, 50),
        percentile(&beside, 99),
    );
    world.settle();
    let left = leftovers(&*world.engine.store, "ann").unwrap();
    assert!(left.is_clean(), "{left:?}");
}
