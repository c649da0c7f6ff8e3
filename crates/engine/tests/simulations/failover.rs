//! Another database server takes over. The node follows one that has every commit, and notices one that lacks some, however
//! far that server has come meanwhile.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use tidings_domain::{commit_log::*, end_reason::EndReason, function::Function};

/// The log of the store that answers now.
struct Failover {
    store: Mutex<Arc<MemoryStore>>,
    server: AtomicU64,
    epochs: AtomicU64,
}

impl Failover {
    fn of(store: &Arc<MemoryStore>) -> Arc<Failover> {
        let (server, epochs) = (AtomicU64::new(1), AtomicU64::new(0));
        Arc::new(Failover { store: Mutex::new(store.clone()), server, epochs })
    }

    fn to(&self, store: &Arc<MemoryStore>) {
        *self.store.lock() = store.clone();
        self.server.fetch_add(1, Ordering::Relaxed);
    }
}

impl CommitLog for Failover {
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage> {
        self.store.lock().committed_after(after, limit)
    }

    fn newest_position(&self) -> StoreResult<Position> {
        self.store.lock().newest_position()
    }

    fn log_head(&self) -> StoreResult<LogHead> {
        Ok(LogHead { newest: self.newest_position()?, server: self.server.load(Ordering::Relaxed) })
    }

    fn bump_epoch(&self, _: u64) -> StoreResult<()> {
        self.epochs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn prune(&self, _: u64) -> StoreResult<PruneProgress> {
        Ok(PruneProgress::default())
    }

    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease_ms: u64,
        takes: &[Function],
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError> {
        self.store.lock().heartbeat(me, lease_ms, takes, takes_name)
    }

    fn open_gates(&self, gates: &[&'static str], known_by: &[u64]) -> StoreResult<()> {
        self.store.lock().open_gates(gates, known_by)
    }

    fn release_lease(&self, boot_id: u64) -> StoreResult<()> {
        self.store.lock().release_lease(boot_id)
    }
}

/// A node on a store, and a node on the store's standby, which has every commit so far.
fn node_and_standby() -> (Arc<Failover>, Node, Node) {
    let (store, standby) = (Arc::new(MemoryStore::shared()), Arc::new(MemoryStore::shared()));
    let log = Failover::of(&store);
    let node = node_on(store, log.clone(), EngineConfig::default(), false);
    let other = node_on(standby.clone(), standby, EngineConfig::default(), false);
    node.follower.read_back();
    (log, node, other)
}

fn append_with_id(node: &Node, id: &str) -> Proposal {
    let Proposal::Append { conversation, mut entry } = node.say() else { unreachable!() };
    entry.client_msg_id = Some(id.into());
    Proposal::Append { conversation, entry }
}

fn mark_read(node: &Node, seq: u64) -> Proposal {
    Proposal::MarkRead { conversation: node.room, user: node.members[0], seq }
}

fn apply(node: &Node, batch: &WireBatch) {
    node.follower.offer_remote(batch.clone(), BusMessage::Committed(batch.clone()).encode());
    assert!(node.follower.wait_until_applied(batch.through, Duration::ZERO));
}

fn is_diverged(node: &Node) -> bool {
    node.follower.read_back();
    let state = node.follower.state.lock();
    let diverged = matches!(state.end_reason, Some(EndReason::StoreWentBack { .. }));
    assert_eq!(diverged, state.trouble.as_ref().is_some_and(|trouble| trouble.contains("gone back")));
    diverged
}

#[test]
fn a_server_with_every_commit_is_followed_whatever_the_last_one_was() {
    let (log, node, other) = node_and_standby();
    let user = node.members[0];
    let proposals = [
        vec![node.say()],
        vec![node.say(), mark_read(&node, 2)],
        vec![mark_read(&node, 1), node.say(), node.say()],
        vec![node.change_members(0, true)],
        vec![node.change_members(0, false), node.say()],
        vec![mark_read(&node, 4), mark_read(&node, 4)],
        vec![Proposal::SetMute { conversation: node.room, user, mute: MuteState::Forever }],
        vec![Proposal::SetDoNotDisturb { user, window: None }],
        vec![Proposal::Kick { user, device_id: None, reason: "test".into() }],
        vec![Proposal::SetLastSeen(vec![(user, 1)]), node.say(), Proposal::SetLastSeen(vec![(user, 2)])],
        vec![Proposal::PutUsers(vec![UserPatch { id: "new".into(), ..UserPatch::default() }]), node.say()],
    ];
    let mut fingerprints = 0;
    for (turn, proposals) in proposals.iter().enumerate() {
        let (span, batch) = node.commit(proposals);
        assert_eq!(other.commit(proposals).0, span);
        match turn % 2 {
            0 => apply(&node, &batch),
            _ => node.follower.offer_local(span, node.local_items(&batch), Bytes::new()),
        }
        fingerprints += usize::from(node.follower.state.lock().divergence.newest() == Some(span.through));
        log.to(if turn % 3 == 0 { &node.store } else { &other.store });
        assert!(!is_diverged(&node), "{proposals:?}");
    }
    assert_eq!(fingerprints, proposals.len(), "each batch has a fingerprint");
    // Commits go on there, and this node hears of one before its next poll.
    let (_, batch) = other.commit(&[other.say()]);
    apply(&node, &batch);
    log.to(&other.store);
    assert!(!is_diverged(&node));
    assert_eq!(log.epochs.load(Ordering::Relaxed), 0);
}

#[test]
fn a_server_without_the_newest_commit_is_a_divergence() {
    let (log, node, other) = node_and_standby();
    let (_, batch) = node.commit(&[node.say()]);
    apply(&node, &batch);
    assert!(!is_diverged(&node));
    log.to(&other.store);
    assert!(is_diverged(&node));
    assert_eq!(log.epochs.load(Ordering::Relaxed), 1, "cursors from before are of another history");
}

#[test]
fn a_server_with_other_commits_in_place_of_the_newest_is_a_divergence() {
    for lost in [vec!["lost"], vec!["lost", "too"]] {
        let (log, node, other) = node_and_standby();
        let (_, kept) = node.commit(&[node.say()]);
        other.commit(&[other.say()]);
        apply(&node, &kept);
        assert!(!is_diverged(&node));
        for id in lost {
            let (_, batch) = node.commit(&[append_with_id(&node, id)]);
            apply(&node, &batch);
        }
        for id in ["instead", "more", "and more"] {
            other.commit(&[append_with_id(&other, id)]);
        }
        log.to(&other.store);
        assert!(is_diverged(&node));
        let trouble = node.follower.trouble().unwrap();
        assert!(trouble.contains(&format!("back to position {} ", kept.through)), "{trouble}");
    }
}

#[test]
fn a_server_with_other_commits_is_a_divergence_when_one_of_them_was_applied_first() {
    let (log, node, other) = node_and_standby();
    let (_, lost) = node.commit(&[append_with_id(&node, "lost")]);
    apply(&node, &lost);
    other.commit(&[mark_read(&other, 0), append_with_id(&other, "instead")]);
    // A peer sends it, and it follows what this node has applied.
    let (_, more) = other.commit(&[append_with_id(&other, "more")]);
    apply(&node, &more);
    log.to(&other.store);
    assert!(is_diverged(&node));
}

#[test]
fn a_late_message_about_a_lost_commit_is_a_divergence() {
    let (log, node, other) = node_and_standby();
    let (_, lost) = node.commit(&[append_with_id(&node, "lost")]);
    log.to(&other.store);
    assert!(!is_diverged(&node), "nothing that it has applied is lost");
    apply(&node, &lost);
    for id in ["instead", "more"] {
        other.commit(&[append_with_id(&other, id)]);
    }
    assert!(is_diverged(&node));
}

#[test]
fn a_lost_change_is_a_divergence_like_a_lost_message() {
    let (log, node, other) = node_and_standby();
    let (_, lost) = node.commit(&[node.change_members(0, true)]);
    apply(&node, &lost);
    other.commit(&[other.change_members(1, true)]);
    log.to(&other.store);
    assert!(is_diverged(&node));
}
