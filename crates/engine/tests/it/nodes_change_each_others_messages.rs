//! What one node's clients do with messages of another: edits, recalls, and messages that grew when their node was killed.

use crate::support::*;
use serde_json::value::RawValue;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    commit_log::CommitLog,
    function::Function,
    model::{Actor, ConversationKind},
};
use tidings_engine::Engine;
use tidings_popups::PopupsConfig;
use tidings_protocol::{
    entry::StreamMark,
    error::{ErrorCode, Refusal},
    http::{ChangeReceipt, EditMessage, SendRequest},
};
use tidings_testkit::{CuttableLog, LocalBus, MemoryStore};

struct Node {
    world: World,
    log: Arc<CuttableLog>,
    rows: Arc<Troubled>,
}

fn node(name: &str, store: &Arc<MemoryStore>, bus: &LocalBus) -> Node {
    let log = Arc::new(CuttableLog::on(store.clone()));
    let rows = Arc::new(Troubled::on(store.clone()));
    let bus = Arc::new(bus.clone());
    let world =
        World::node_with(PopupsConfig::default(), name, rows.clone(), log.clone(), bus, (LONG_LEASE, Duration::MAX));
    Node { world, log, rows }
}

/// Two nodes, of which the first leads, and a group of two users.
fn two() -> (Node, Node) {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let first = node("a", &store, &bus);
    until("the first node leads", &[&first], |engine| engine.leads(Function::Push));
    let second = node("b", &store, &bus);
    first.world.users(&["ada", "ben"]);
    first.world.conversation(ConversationKind::Group, "g", &["ada", "ben"]);
    (first, second)
}

/// Waits until it holds at each of these nodes, and takes what their lanes hand out.
fn until(what: &str, nodes: &[&Node], holds: impl Fn(&Engine) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !nodes.iter().all(|node| holds(&node.world.engine)) {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        nodes.iter().for_each(|node| {
            look_around(&node.world.engine);
            node.world.take_fanouts();
        });
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Node {
    /// From now on nothing of this node reaches the store, and the others learn that it is gone.
    fn kill(&self) {
        self.rows.fail(usize::MAX);
        self.log.set_cut(true);
        let me = self.world.engine.cluster.as_ref().unwrap().nodes.me().boot_id;
        self.log.store().release_lease(me).unwrap();
    }

    fn say(&self, text: &str) -> u64 {
        self.world.wait(self.world.engine.send(&Actor::App, message("ada", "g", text))).unwrap().seq
    }

    fn edit(&self, seq: u64, text: &str) -> Result<ChangeReceipt, Refusal> {
        let edit = EditMessage {
            from: None,
            client_msg_id: None,
            content_type: None,
            body: serde_json::value::to_raw_value(text).unwrap(),
            mentions: vec![],
            if_version: Some(1),
        };
        self.world.wait(self.world.engine.edit_message(&Actor::App, "g", seq, edit))
    }

    fn body(&self, seq: u64) -> String {
        self.world.engine.entry(&Actor::App, "g", seq).unwrap().body.get().to_owned()
    }
}

#[test]
fn of_two_edits_at_two_nodes_one_wins_and_both_nodes_have_it() {
    let (first, second) = two();
    let seq = first.say("first");
    until("both have the message", &[&first, &second], |engine| engine.entry(&Actor::App, "g", seq).is_ok());
    let results = std::thread::scope(|scope| {
        let edits = [(&first, "one"), (&second, "two")].map(|(node, text)| scope.spawn(move || node.edit(seq, text)));
        edits.map(|edit| edit.join().unwrap())
    });
    let won: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
    let lost: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).map(|refusal| refusal.code).collect();
    assert_eq!((won.len(), lost), (1, vec![ErrorCode::VersionConflict]), "{results:?}");
    let winner = if results[0].is_ok() { "\"one\"" } else { "\"two\"" };
    for node in [&first, &second] {
        assert_eq!(node.body(seq), winner);
    }
    second.world.wait(second.world.engine.recall_message(&Actor::App, "g", seq, None, None)).unwrap();
    assert_eq!(first.edit(seq, "three").map_err(|refusal| refusal.code).err(), Some(ErrorCode::MessageRecalled));
    assert_eq!(first.body(seq), "null");
}

#[test]
fn the_next_leader_ends_what_grew_at_a_node_that_was_killed() {
    const DURABLE_WITHIN: Duration = Duration::from_secs(1);
    const SEARCH_EVERY: Duration = Duration::from_secs(10);
    let (first, second) = two();
    let growing = SendRequest { body: json(r#"{"text":""}"#), ..message("ada", "g", "grows") };
    let seq = first.world.wait(first.world.engine.begin_stream(&Actor::App, growing)).unwrap().seq;
    let append = |text: &str, offset| first.world.engine.append_to_stream(&Actor::App, "g", seq, offset, text);
    append("kept ", 0).unwrap();
    first.world.clock.advance(DURABLE_WITHIN);
    first.world.engine.settle_streams();
    append("lost", 5).unwrap();
    first.kill();
    until("the second node leads", &[&second], |engine| engine.leads(Function::Push));
    // A stream without a node is ended the second time that it is found: its node may be one that has just begun.
    for _ in 0..2 {
        second.world.clock.advance(SEARCH_EVERY);
        second.world.engine.settle_streams();
    }
    let ended = second.world.engine.entry(&Actor::App, "g", seq).unwrap();
    assert_eq!((ended.stream, ended.body.get()), (Some(StreamMark::Interrupted), r#"{"text":"kept "}"#));
}

fn json(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}
