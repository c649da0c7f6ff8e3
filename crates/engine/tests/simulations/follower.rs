//! Whichever messages are lost, late, doubled or cut: the lanes get every entry once, in order.

use super::*;
use crate::{
    cluster::{audiences::leave_out, wire::BusMessage},
    config::EngineConfig,
    delivery::{Fanout, Step},
    directory::Directory,
    fairness::FlowKey,
    lanes::Lanes,
    lists::changes::ListChanges,
    presence::{Presence, PresenceConfig},
    receipts::Receipts,
    shards::{ShardReceivers, Shards, Wake},
    streams::Streams,
};
use proptest::prelude::*;
use tidings_domain::{
    clock::SystemClock,
    commit_log::Change,
    store::{NewConversation, Outcome, Proposal, Store, StoreResult, UserPatch},
};
use tidings_testkit::{LocalBus, MemoryStore};

struct Asleep;

impl Wake for Asleep {
    fn wake(&self) {}
}

/// A follower, with what it hands to its one shard.
struct Node {
    follower: Follower,
    receivers: Vec<ShardReceivers>,
    store: Arc<MemoryStore>,
    room: ConversationNo,
    members: Vec<UserNo>,
    lanes: Arc<Lanes>,
}

fn node() -> Node {
    node_with(EngineConfig::default())
}

fn node_with(config: EngineConfig) -> Node {
    let store = Arc::new(MemoryStore::shared());
    let log = store.clone();
    node_on(store, log, config, false)
}

/// A node whose shard tells who has sessions.
fn node_that_listens() -> Node {
    let store = Arc::new(MemoryStore::shared());
    let log = store.clone();
    node_on(store, log, EngineConfig::default(), true)
}

/// The store has the users `a`, `b` and `c`, and a group of `a` alone. Without `listens` the lanes get all commits.
fn node_on(store: Arc<MemoryStore>, log: Arc<dyn CommitLog>, config: EngineConfig, listens: bool) -> Node {
    let ids = ["a", "b", "c"];
    let users = ids.map(|id| UserPatch { id: id.into(), ..UserPatch::default() }).to_vec();
    store.commit(&[Proposal::PutUsers(users)], 1).unwrap();
    let members: Vec<UserNo> = ids.iter().map(|id| store.user_no(id).unwrap().unwrap()).collect();
    let new = NewConversation {
        id: "g".into(),
        kind: ConversationKind::Group,
        pair: None,
        name: None,
        avatar: None,
        attributes: None,
        members: vec![(members[0], Role::Owner)],
        settings: ConversationSettings::default(),
    };
    store.commit(&[Proposal::CreateConversation(new)], 1).unwrap();
    let room = store.conversation_no("g").unwrap().unwrap();
    let config = EngineConfig { shards: 1, shard_queue: 4_096, ..config };
    let metrics = Arc::new(Metrics::new());
    let directory = Arc::new(Directory::new(store.clone(), 100, true));
    let (shards, receivers) = Shards::new(config.shard_queue, vec![Arc::new(Asleep)], directory.desks.clone());
    let streams = Streams::new(config.streams, 1, Arc::new(SystemClock));
    let lanes = Lanes::start(config.lane_queue, shards.clone(), &directory, &streams, metrics.clone());
    let receipts = Arc::new(Receipts::default());
    let list_changes = Arc::new(ListChanges::default());
    let presence = Arc::new(Presence::new(PresenceConfig::default()));
    let live_audience = listens.then(|| LiveAudience::new(directory.desks.clone(), metrics.clone()));
    let watches = presence;
    let applier =
        Applier { lanes: lanes.clone(), shards, directory, receipts, streams, list_changes, watches, live_audience };
    let bus = Arc::new(LocalBus::default());
    let follower = Follower::new(store.last_position(), 1 << 20, applier, (log, bus), metrics);
    Node { follower, receivers, store, room, members, lanes }
}

impl Node {
    /// Commits proposals. Returns the span of the batch, and the batch as peers get it.
    fn commit(&self, proposals: &[Proposal]) -> (PositionRange, WireBatch) {
        let after = self.store.last_position();
        let (outcomes, span) = self.store.commit_in_order(proposals, 1).unwrap();
        assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Rejected(_))), "{outcomes:?}");
        assert_eq!(span.after, after);
        let batch = self.follower.to_wire(self.store.committed_after(after, 1_000).unwrap()).unwrap();
        (span, batch)
    }

    fn local_items(&self, batch: &WireBatch) -> Vec<BatchItem> {
        let card = self.store.conversation(self.room).unwrap().map(Arc::new).unwrap();
        let item = |item: &WireItem| {
            let (joined, left) = match &item.change {
                Some(Change::Members { joined, left, .. }) => (joined.clone(), left.clone()),
                _ => (vec![], vec![]),
            };
            let (entry, conversation) = (item.entry.clone(), card.clone());
            let lane_item = LaneItem { conversation, joined, hold: None, left, entry, slot: None, at: Instant::now() };
            BatchItem { lane_item: Some(lane_item), change: item.change.clone(), read_before: None }
        };
        batch.items.iter().map(item).collect()
    }

    fn say(&self) -> Proposal {
        let entry = NewEntry {
            kind: EntryKind::Message,
            sender: None,
            client_msg_id: None,
            content_type: "text".into(),
            body: "\"hi\"".into(),
            mentions: vec![],
            silent: false,
            skip_push: false,
            details: None,
            request: EntryRequest::default(),
        };
        Proposal::Append { conversation: self.room, entry }
    }

    fn change_members(&self, which: usize, add: bool) -> Proposal {
        let user = self.members[1 + which % 2];
        let (add, remove) = if add { (vec![(user, Role::Member)], vec![]) } else { (vec![], vec![user]) };
        Proposal::ChangeMembers {
            conversation: self.room,
            add,
            remove,
            heir: None,
            act: None,
            members_max: 10,
            notice: None,
        }
    }

    /// All `seq` that the shard got, and the members of the group in the end.
    fn handed_over(self) -> (Vec<u64>, Vec<UserNo>) {
        self.lanes.stop();
        let (mut seqs, mut there) = (Vec::new(), vec![self.members[0]]);
        let fanouts: Vec<Arc<Fanout>> = self.receivers[0].lanes[Lane::Group as usize].try_iter().collect();
        for step in fanouts.iter().flat_map(|fanout| &fanout.steps) {
            match step {
                Step::Block { block, .. } => {
                    let entries: Vec<serde_json::Value> =
                        serde_json::from_str(&format!("[{}]", &String::from_utf8_lossy(&block.json)[1..])).unwrap();
                    seqs.extend(entries.iter().map(|entry| entry["seq"].as_u64().unwrap()));
                }
                Step::Join { users, .. } => there.extend(users.iter()),
                Step::Leave { users, .. } => there.retain(|user| !users.contains(user)),
                Step::Chunk(_) | Step::Barrier(_) => {}
            }
        }
        there.sort_unstable();
        there.dedup();
        (seqs, there)
    }
}

#[derive(Debug, Clone)]
struct Commit {
    /// What others have committed comes without the content of its messages, which this node needs.
    in_part: bool,
    entries: usize,
    /// A user who joins or leaves at its end.
    change: Option<(usize, bool)>,
    own: bool,
    arrival: Arrival,
}

/// How the node learns of a commit.
#[derive(Debug, Clone, Copy)]
enum How {
    Own,
    Whole,
    InPart,
}

#[derive(Debug, Clone, Copy)]
enum Arrival {
    InTime,
    Twice,
    /// So many commits later.
    Late(usize),
    /// The answer to the commit is lost, or the message.
    Never,
    /// After the log has been read.
    AfterReadBack,
}

fn commit() -> impl Strategy<Value = Commit> {
    let arrival = prop_oneof![
        5 => Just(Arrival::InTime),
        1 => Just(Arrival::Twice),
        3 => (1..4usize).prop_map(Arrival::Late),
        2 => Just(Arrival::Never),
        1 => Just(Arrival::AfterReadBack),
    ];
    let change = prop::option::weighted(0.4, (0..2usize, any::<bool>()));
    (any::<bool>(), 0..4usize, change, any::<bool>(), arrival)
        .prop_map(|(in_part, entries, change, own, arrival)| Commit { in_part, entries, change, own, arrival })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_entry_reaches_the_lanes_once_and_in_order(commits in prop::collection::vec(commit(), 1..30)) {
        let node = node();
        let mut late: Vec<(usize, PositionRange, WireBatch, How)> = Vec::new();
        let offer = |span: PositionRange, batch: WireBatch, how: How| match how {
            How::Own => node.follower.offer_local(span, node.local_items(&batch), Bytes::new()),
            How::Whole => node.follower.offer_remote(batch, Bytes::new()),
            How::InPart => {
                let unseen = vec![true; batch.conversations.len()];
                node.follower.offer_in_part(leave_out("b", &batch, &unseen), Bytes::new());
            }
        };
        for (turn, Commit { in_part, entries, change, own, arrival }) in commits.into_iter().enumerate() {
            let own = match (own, in_part) {
                (true, _) => How::Own,
                (false, true) => How::InPart,
                (false, false) => How::Whole,
            };
            let mut proposals: Vec<Proposal> = (0..entries).map(|_| node.say()).collect();
            proposals.extend(change.map(|(which, add)| node.change_members(which, add)));
            let (span, batch) = node.commit(&proposals);
            match arrival {
                Arrival::InTime => offer(span, batch, own),
                Arrival::Twice => {
                    offer(span, batch.clone(), own);
                    offer(span, batch, own);
                }
                Arrival::Late(turns) => late.push((turn + turns, span, batch, own)),
                Arrival::Never => {}
                Arrival::AfterReadBack => {
                    node.follower.read_back();
                    offer(span, batch, own);
                }
            }
            let (due, still): (Vec<_>, Vec<_>) = late.into_iter().partition(|(at, ..)| *at <= turn);
            late = still;
            due.into_iter().for_each(|(_, span, batch, own)| offer(span, batch, own));
        }
        node.follower.read_back();
        let newest = node.store.last_position();
        prop_assert!(node.follower.wait_until_applied(newest, Duration::ZERO));
        let last_seq = node.store.head(node.room).unwrap().last_seq;
        let mut there: Vec<UserNo> = node.store.members(node.room, None, 10).unwrap().into_iter().map(|(user, _)| user).collect();
        there.sort_unstable();
        let (seqs, members) = node.handed_over();
        prop_assert_eq!(seqs, (1..=last_seq).collect::<Vec<_>>());
        prop_assert_eq!(members, there);
    }
}

#[test]
fn a_batch_that_was_read_back_in_part_is_completed_by_its_rest() {
    let node = node();
    let (span, batch) = node.commit(&[node.say(), node.change_members(0, true), node.say(), node.say()]);
    // A page of the log that ends within the batch.
    let page = node.follower.to_wire(node.store.committed_after(span.after, 2).unwrap()).unwrap();
    assert!(page.through < span.through);
    node.follower.offer_remote(page, Bytes::new());
    node.follower.offer_local(span, node.local_items(&batch), Bytes::new());
    assert!(node.follower.wait_until_applied(span.through, Duration::ZERO));
    let members = node.members[..2].to_vec();
    assert_eq!(node.handed_over(), (vec![1, 2, 3], members));
}

#[test]
fn batches_above_the_limit_of_pending_ones_are_dropped_and_read_back() {
    let node = node();
    let first = node.commit(&[node.say()]);
    for _ in 0..PENDING_MAX + 10 {
        let (_, batch) = node.commit(&[node.say()]);
        node.follower.offer_remote(batch, Bytes::new());
    }
    assert_eq!(node.follower.metrics.cluster.dropped.get(), 10);
    assert_eq!(node.follower.state.lock().pending.len(), PENDING_MAX);
    node.follower.offer_remote(first.1, Bytes::new());
    node.follower.read_back();
    assert!(node.follower.wait_until_applied(node.store.last_position(), Duration::ZERO));
    let (seqs, _) = node.handed_over();
    assert_eq!(seqs, (1..=PENDING_MAX as u64 + 11).collect::<Vec<_>>());
}

#[test]
fn a_lane_whose_slots_are_all_held_by_pending_batches_goes_on() {
    let node = node_with(EngineConfig { lane_queue: 4, ..EngineConfig::default() });
    let (first, remote) = node.commit(&[node.say()]);
    let mut expected = 1;
    // Local batches come after a remote one, and hold all slots.
    while let Ok(slot) = node.lanes.reserve(Lane::Group, FlowKey::User(UserNo(expected))) {
        let (span, batch) = node.commit(&[node.say()]);
        let mut items = node.local_items(&batch);
        items[0].lane_item.as_mut().unwrap().slot = Some(slot);
        node.follower.offer_local(span, items, Bytes::new());
        expected += 1;
    }
    assert_eq!(expected, 5);
    assert!(!node.follower.wait_until_applied(first.through, Duration::ZERO));
    node.follower.offer_remote(remote, Bytes::new());
    assert!(node.follower.wait_until_applied(node.store.last_position(), Duration::ZERO));
    assert_eq!(node.handed_over().0, (1..=expected).collect::<Vec<_>>());
}

#[test]
fn pending_batches_are_bounded_in_bytes() {
    let node = node();
    let first = node.commit(&[node.say()]);
    let encoded = Bytes::from(vec![0; PENDING_BYTES_MAX / 4]);
    for _ in 0..6 {
        let (_, batch) = node.commit(&[node.say()]);
        node.follower.offer_remote(batch.clone(), encoded.clone());
        node.follower.offer_remote(batch, encoded.clone());
    }
    assert_eq!(node.follower.state.lock().pending_bytes, PENDING_BYTES_MAX);
    node.follower.offer_remote(first.1, Bytes::new());
    node.follower.read_back();
    assert!(node.follower.wait_until_applied(node.store.last_position(), Duration::ZERO));
    assert_eq!(node.follower.state.lock().pending_bytes, 0);
    assert_eq!(node.handed_over().0, (1..=7).collect::<Vec<_>>());
}

#[test]
fn a_peer_that_cannot_close_the_gap_sends_no_batches() {
    let node = node();
    let start = node.store.last_position();
    let (_, lost) = node.commit(&[node.say()]);
    let (_, batch) = node.commit(&[node.say()]);
    let other = node_with(EngineConfig::default()).follower;
    other.state.lock().applied = lost.through;
    let encoded = BusMessage::Committed(batch.clone()).encode();
    other.offer_remote(batch, encoded.clone());
    assert!(other.recent_batches_after(start).is_empty(), "its batches begin after the gap");
    assert_eq!(other.recent_batches_after(lost.through), [encoded]);
}

#[test]
fn a_store_with_an_older_head_is_a_divergence() {
    let node = node();
    let Node { follower, store, .. } = &node;
    let span = PositionRange { after: store.last_position(), through: store.last_position() + 5 };
    let PositionRange { after, through } = span;
    follower.offer_remote(WireBatch { after, through, conversations: vec![], items: vec![] }, Bytes::new());
    assert!(follower.wait_until_applied(through, Duration::ZERO));
    follower.read_back();
    assert!(follower.trouble().is_some_and(|trouble| trouble.contains("gone back")), "{:?}", follower.trouble());
}

#[test]
fn a_gap_that_the_store_does_not_close_is_requested_from_a_peer() {
    let node = node();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = requests.clone();
    node.follower.request_batches_with(move |missing| log.lock().push(missing));
    let start = node.store.last_position();
    let (_, first) = node.commit(&[node.say()]);
    let (_, second) = node.commit(&[node.say()]);
    let encoded = BusMessage::Committed(first.clone()).encode();
    node.follower.offer_remote(second.clone(), Bytes::new());
    assert_eq!(*requests.lock(), [], "a short gap closes by itself");
    node.follower.state.lock().gap.as_mut().unwrap().requested_at -= REQUEST_AFTER;
    let before = Instant::now();
    node.follower.offer_remote(second.clone(), Bytes::new());
    let requested_at = std::mem::replace(
        &mut node.follower.state.lock().gap.as_mut().unwrap().requested_at,
        Instant::now() + UNSCHEDULED,
    );
    assert!(requested_at >= before, "the wait for the response begins with the request");
    node.follower.offer_remote(second, Bytes::new());
    let request = |attempt, sender| MissingBatches { after: start, attempt, sender };
    assert_eq!(*requests.lock(), [request(1, None)], "one request, while its response may come");
    node.follower.offer_remote(first, encoded.clone());
    assert!(node.follower.wait_until_applied(node.store.last_position(), Duration::ZERO));
    assert_eq!(node.follower.recent_batches_after(start)[0], encoded, "it can serve other peers now");
    assert_eq!(node.handed_over().0, [1, 2]);
}

#[test]
fn content_that_the_store_does_not_tell_is_requested_from_its_sender_first() {
    let node = node();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = requests.clone();
    node.follower.request_batches_with(move |missing| log.lock().push(missing));
    let start = node.store.last_position();
    let (span, batch) = node.commit(&[node.say(), node.say()]);
    let part = leave_out("x", &batch, &[true]);
    node.follower.offer_in_part(part.clone(), Bytes::new());
    assert!(!node.follower.wait_until_applied(span.through, Duration::ZERO));
    for attempt in 1..=3 {
        node.follower.state.lock().gap.as_mut().unwrap().requested_at -= REQUEST_AFTER * 8;
        // Another peer has it no other way.
        node.follower.offer_in_part(part.clone(), Bytes::new());
        let sender = (attempt != 2).then(|| "x".into());
        assert_eq!(requests.lock().pop(), Some(MissingBatches { after: start, attempt, sender }));
    }
    node.follower.offer_remote(batch, Bytes::new());
    assert!(node.follower.wait_until_applied(span.through, Duration::ZERO));
    assert!(!node.follower.state.lock().has_gap());
    assert_eq!(node.handed_over().0, [1, 2]);
}

#[test]
fn a_part_of_a_commit_that_the_store_has_lost_is_forgotten() {
    let node = node();
    let start = node.store.last_position();
    let (span, batch) = node.commit(&[node.say()]);
    let lost = WireBatch { after: span.through, through: span.through + 5, ..batch.clone() };
    let mut lost = leave_out("x", &lost, &[true]);
    lost.left_out[0].through = span.through + 5;
    node.follower.offer_remote(batch, Bytes::new());
    node.follower.offer_in_part(lost, Bytes::new());
    assert!(node.follower.state.lock().has_gap());
    node.follower.read_back();
    assert!(!node.follower.state.lock().has_gap() && node.follower.trouble().is_none());
    assert!(node.follower.wait_until_applied(start + 1, Duration::ZERO));
}

#[test]
fn a_gap_that_closes_in_time_is_no_reason_to_read_the_log() {
    let node = node();
    node.follower.state.lock().next_poll = Instant::now() + UNSCHEDULED;
    let (_, first) = node.commit(&[node.say()]);
    let (_, second) = node.commit(&[node.say()]);
    let next_poll = |node: &Node| {
        let state = node.follower.state.lock();
        (state.gap_poll, state.next_poll > Instant::now() + UNSCHEDULED / 2)
    };
    node.follower.offer_remote(second, Bytes::new());
    assert!(matches!(next_poll(&node), (Some(_), true)));
    node.follower.offer_remote(first, Bytes::new());
    assert_eq!(next_poll(&node), (None, true));
    let (_, third) = node.commit(&[node.say()]);
    node.follower.offer_in_part(leave_out("x", &third, &[true]), Bytes::new());
    assert!(!next_poll(&node).1, "content that is missing is read at once");
}

#[test]
fn the_last_commit_is_read_from_the_log_if_it_does_not_come_over_the_bus() {
    let mut node = node();
    node.follower.started = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
    let (span, batch) = node.commit(&[node.say()]);
    assert!(node.follower.is_told_over_the_bus());
    node.follower.read_back();
    assert!(node.follower.wait_until_applied(span.through, Duration::ZERO));
    assert_eq!(node.follower.metrics.cluster.read_back.get(), 1);
    node.follower.offer_remote(batch, Bytes::new());
    assert_eq!(node.handed_over().0, [1]);
}

#[test]
fn a_part_has_the_fingerprint_of_its_batch() {
    let node = node();
    for proposals in [vec![node.say()], vec![node.say(), node.change_members(0, true)], vec![node.say(), node.say()]] {
        let (span, batch) = node.commit(&proposals);
        let part = BatchContent::Remote(leave_out("x", &batch, &[true]));
        let whole = fingerprint_of(&BatchContent::Remote(batch.into()), span);
        assert!(whole.is_some());
        assert_eq!(fingerprint_of(&part, span), whole);
    }
}

mod failover;
mod live_audience;
