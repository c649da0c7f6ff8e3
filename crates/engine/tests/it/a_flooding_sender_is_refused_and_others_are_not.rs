//! However much one user sends, the sends of others are accepted, in the same lane and in others, and do not wait
//! behind all of it.

use crate::support::*;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};
use tidings_domain::model::Actor;
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};

const OTHERS: usize = 20;
const FLOOD: usize = 300;

type Sending = Pin<Box<dyn Future<Output = Result<SendReceipt, Refusal>>>>;

struct Flooded {
    world: World,
    /// The accepted sends of the flood.
    flood: Vec<Sending>,
    refusals: Vec<Refusal>,
    store: Arc<Troubled>,
}

fn send(world: &World, from: &str, to: &str, text: &str) -> Sending {
    let (engine, message) = (world.engine.clone(), message(from, to, text));
    Box::pin(async move { engine.send(&Actor::App, message).await })
}

/// A send is accepted or refused when it is first polled; an accepted one is then pending until its commit.
fn accepted(mut sending: Sending) -> Result<Sending, Refusal> {
    match sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => Ok(sending),
        Poll::Ready(answer) => Err(answer.unwrap_err()),
    }
}

/// Floods `to` with sends of u0. Until the gate is opened, one commit waits at it, and behind it all accepted sends of
/// u0.
fn flooded(config: EngineConfig, to: &str) -> (Flooded, crossbeam_channel::Sender<()>) {
    let store = Arc::new(Troubled::default());
    let world = World::new(config, store.clone());
    let members: Vec<String> = (0..OTHERS).map(|n| format!("u{n}")).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    world.users(&members);
    world.conversation(ConversationKind::Group, "g", &members);
    world.conversation(ConversationKind::Official, "news", &members);
    // Opened beforehand, since that is an operation of its own.
    for other in &members[1..] {
        world
            .wait(world.engine.send(&Actor::App, message("u0", &direct(other), &format!("first-to-{other}"))))
            .unwrap();
    }
    wait_until_lanes_are_empty(&world);
    let gate = store.close_gate();
    let mut flood = vec![accepted(send(&world, "u0", to, "0")).ok().unwrap()];
    store.wait_for_commit();
    let mut refusals = Vec::new();
    for n in 1..FLOOD {
        match accepted(send(&world, "u0", to, &n.to_string())) {
            Ok(sending) => flood.push(sending),
            Err(refusal) => refusals.push(refusal),
        }
    }
    (Flooded { world, flood, refusals, store }, gate)
}

/// Waits until stage 1 has handed on all committed messages: each holds a slot of its lane until then.
fn wait_until_lanes_are_empty(world: &World) {
    let taken = || {
        world.engine.refresh_gauges();
        let text = world.engine.metrics.render();
        let lanes = text.lines().filter(|line| line.starts_with("tidings_queue_depth{queue=\"lane_"));
        let depths: Vec<f64> = lanes.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!(depths.len(), 3, "one for each lane: {text}");
        depths.iter().sum::<f64>()
    };
    let started = Instant::now();
    while taken() > 0.0 {
        assert!(started.elapsed() < PATIENCE, "the lanes do not hand on");
        std::thread::yield_now();
    }
}

fn direct(with: &str) -> String {
    let (a, b) = if "u0" < with { ("u0", with) } else { (with, "u0") };
    format!("{a}~{b}")
}

fn check(config: EngineConfig, to: &str, share: usize) {
    let (flooded, gate) = flooded(config, to);
    let Flooded { world, flood, refusals, store } = flooded;
    // Dropped before the world, if a check fails: the engine's end waits for the commit at the gate.
    let gate = gate;
    assert_eq!(flood.len(), share, "one sender gets as many slots as stay free");
    for refusal in &refusals {
        assert_eq!(refusal.code, ErrorCode::QueueFull, "{refusal}");
        assert!(refusal.retry_after_ms.is_some() && refusal.detail.contains("of the same sender"), "{refusal}");
    }
    let mut others = Vec::new();
    for n in 1..OTHERS {
        let from = format!("u{n}");
        for (nth, to) in ["g", "news", &direct(&from)].into_iter().enumerate() {
            let sending = accepted(send(&world, &from, to, &format!("{from}-{nth}")));
            others.push(sending.unwrap_or_else(|refusal| panic!("{from} to {to}: {refusal}")));
        }
    }
    drop(gate);
    let receipts: Vec<SendReceipt> = others.into_iter().map(|sending| world.wait(sending).unwrap()).collect();
    assert_eq!(receipts.len(), 3 * (OTHERS - 1));
    flood.into_iter().for_each(|sending| drop(world.wait(sending).unwrap()));
    // In the commit order no other sender comes after the whole flood.
    let position = |seq: u64, id: &str| {
        let no = world.engine.directory.require_conversation(id).unwrap().no;
        let found = tidings_domain::store::Store::entries(&*store, no, seq, seq, 1, tidings_domain::store::End::Oldest);
        found.unwrap()[0].position
    };
    let last_seq = world.engine.conversation_details(&Actor::App, to).unwrap().last_seq;
    let last = position(last_seq, to);
    for receipt in receipts {
        assert!(position(receipt.seq, &receipt.conversation) <= last, "{receipt:?} came after all of the flood");
    }
}

/// Commits of few messages, so that their order shows.
fn small(commit_queue: usize, lane_queue: usize) -> EngineConfig {
    EngineConfig { commit_queue, lane_queue, commit_batch: 16, ..EngineConfig::default() }
}

#[test]
fn a_flood_fills_only_its_share_of_the_commit_queue() {
    for to in ["g", "news", "u0~u1"] {
        // One send is at the gate; of the 400 slots behind it a lone sender gets half.
        check(small(400, 10_000), to, 201);
    }
}

#[test]
fn a_flood_fills_only_its_share_of_the_lane() {
    for to in ["g", "news", "u0~u1"] {
        check(small(10_000, 400), to, 200);
    }
}

#[test]
fn a_batch_of_many_senders_keeps_its_order() {
    let world = World::new(EngineConfig::default(), Arc::new(Troubled::default()));
    world.users(&["alice", "bob", "cleo"]);
    world.conversation(ConversationKind::Group, "g", &["alice", "bob", "cleo"]);
    let senders = ["alice", "alice", "bob", "alice", "cleo", "bob"].iter().cycle().take(300);
    let batch = senders.enumerate().map(|(n, from)| message(from, "g", &n.to_string())).collect();
    let receipts = world.wait(world.engine.send_batch(&Actor::App, batch)).unwrap();
    let seqs: Vec<u64> = receipts.into_iter().map(|receipt| receipt.unwrap().seq).collect();
    assert!(seqs.is_sorted() && seqs.len() == 300, "{seqs:?}");
}

#[test]
fn nothing_overtakes_a_message_of_its_batch_that_found_no_room() {
    let world = World::new(small(10_000, 64), Arc::new(Troubled::default()));
    world.users(&["u0", "u1"]);
    world.conversation(ConversationKind::Group, "g", &["u0", "u1"]);
    let batches = 200;
    let send_all = || {
        let (mut stored, mut refused) = (0, 0);
        for batch in 0..batches {
            // A direct conversation is named in two ways.
            let named = |n: u32| match (batch % 2, n % 2) {
                (0, _) => message("u0", "g", &format!("{batch}-{n}")),
                (_, 0) => message("u0", &direct("u1"), &format!("{batch}-{n}")),
                _ => SendRequest {
                    to: Some("u1".into()),
                    conversation: None,
                    ..message("u0", "", &format!("{batch}-{n}"))
                },
            };
            let batch = (0..200).map(named).collect();
            let results = world.wait(world.engine.send_batch(&Actor::App, batch)).unwrap();
            let sent = results.iter().take_while(|result| result.is_ok()).count();
            assert!(results[sent..].iter().all(|result| result.as_ref().is_err_and(is_full)), "{results:?}");
            (stored, refused) = (stored + sent, refused + results.len() - sent);
        }
        (stored, refused)
    };
    let (stored, refused) = std::thread::scope(|scope| {
        let sending = scope.spawn(send_all);
        // Room comes free at any moment, also between two messages of a batch.
        while !sending.is_finished() {
            world.take_fanouts();
        }
        sending.join().unwrap()
    });
    assert!(stored > batches && refused > batches, "{stored} were stored and {refused} refused");
}

#[test]
fn who_finds_no_room_in_one_conversation_of_a_batch_finds_it_in_another() {
    let store = Arc::new(Troubled::default());
    let world = World::new(small(10_000, 400), store.clone());
    world.users(&["u0", "u1"]);
    world.conversation(ConversationKind::Group, "g", &["u0", "u1"]);
    wait_until_lanes_are_empty(&world);
    let flood = (0..300).map(|n| message("u0", "g", &n.to_string()));
    let batch = flood.chain([message("u0", &direct("u1"), "beside")]).collect();
    // Nothing is committed, and no place is free again, before the whole batch was accepted or refused.
    let gate = store.close_gate();
    let begun = world.engine.begin_batch(&Actor::App, batch).unwrap();
    drop(gate);
    let results = world.wait(begun.finish());
    assert!(results[299].as_ref().is_err_and(is_full), "{:?}", results[299]);
    assert!(results[300].is_ok(), "{:?}", results[300]);
}

fn is_full(refusal: &Refusal) -> bool {
    refusal.code == ErrorCode::QueueFull
}
