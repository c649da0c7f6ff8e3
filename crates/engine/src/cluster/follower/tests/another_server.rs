//! Another server answers in the store's place: one that has everything is followed on, and one that has not is noticed,
//! however far it has come meanwhile.

use super::*;
use crate::cluster::log::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The log of whichever store answers now.
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
        may_lead: bool,
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError> {
        self.store.lock().heartbeat(me, lease_ms, may_lead, takes_name)
    }

    fn release_lease(&self, boot_id: u64) -> StoreResult<()> {
        self.store.lock().release_lease(boot_id)
    }
}

/// A node on a store, and a node on its standby, which had everything until now.
fn two() -> (Arc<Failover>, Node, Node) {
    let (store, standby) = (Arc::new(MemoryStore::shared()), Arc::new(MemoryStore::shared()));
    let log = Failover::of(&store);
    let node = node_on(store, log.clone(), EngineConfig::default());
    let other = node_on(standby.clone(), standby, EngineConfig::default());
    node.follower.read_back();
    (log, node, other)
}

fn said_as(node: &Node, id: &str) -> Proposal {
    let Proposal::Append { conversation, mut entry } = node.say() else { unreachable!() };
    entry.client_msg_id = Some(id.into());
    Proposal::Append { conversation, entry }
}

fn mark(node: &Node, seq: u64) -> Proposal {
    Proposal::MarkRead { conversation: node.room, user: node.members[0], seq }
}

fn take(node: &Node, batch: &WireBatch) {
    node.follower.offer_remote(batch.clone(), BusMessage::Committed(batch.clone()).encode());
    assert!(node.follower.wait_until_applied(batch.through, Duration::ZERO));
}

fn is_astray(node: &Node) -> bool {
    node.follower.read_back();
    let state = node.follower.state.lock();
    assert_eq!(state.astray, state.trouble.as_ref().is_some_and(|trouble| trouble.contains("gone back")));
    state.astray
}

#[test]
fn one_that_has_everything_is_followed_whatever_came_last() {
    let (log, node, other) = two();
    let user = node.members[0];
    let proposals = [
        vec![node.say()],
        vec![node.say(), mark(&node, 2)],
        vec![mark(&node, 1), node.say(), node.say()],
        vec![node.change_members(0, true)],
        vec![node.change_members(0, false), node.say()],
        vec![mark(&node, 4), mark(&node, 4)],
        vec![Proposal::SetMute { conversation: node.room, user, mute: MuteState::Forever }],
        vec![Proposal::SetDoNotDisturb { user, window: None }],
        vec![Proposal::Kick { user, device_id: None, reason: "test".into() }],
        vec![Proposal::SetLastSeen(vec![(user, 1)]), node.say(), Proposal::SetLastSeen(vec![(user, 2)])],
        vec![Proposal::PutUsers(vec![UserPatch { id: "new".into(), ..UserPatch::default() }]), node.say()],
    ];
    let mut remembered = 0;
    for (turn, proposals) in proposals.iter().enumerate() {
        let (span, batch) = node.commit(proposals);
        assert_eq!(other.commit(proposals).0, span);
        match turn % 2 {
            0 => take(&node, &batch),
            _ => node.follower.offer_local(span, node.own(&batch), Bytes::new()),
        }
        remembered += usize::from(node.follower.state.lock().ends.newest() == Some(span.through));
        log.to(if turn % 3 == 0 { &node.store } else { &other.store });
        assert!(!is_astray(&node), "{proposals:?}");
    }
    assert_eq!(remembered, proposals.len(), "each batch is told by what it ends with");
    // It goes on there, and this node hears of that before it looks.
    let (_, batch) = other.commit(&[other.say()]);
    take(&node, &batch);
    log.to(&other.store);
    assert!(!is_astray(&node));
    assert_eq!(log.epochs.load(Ordering::Relaxed), 0);
}

#[test]
fn one_that_lacks_the_newest_is_noticed_before_it_has_more() {
    let (log, node, other) = two();
    let (_, batch) = node.commit(&[node.say()]);
    take(&node, &batch);
    assert!(!is_astray(&node));
    log.to(&other.store);
    assert!(is_astray(&node));
    assert_eq!(log.epochs.load(Ordering::Relaxed), 1, "cursors from before are of another history");
}

#[test]
fn one_that_lacks_the_newest_is_noticed_when_it_has_more() {
    for lost in [vec!["lost"], vec!["lost", "too"]] {
        let (log, node, other) = two();
        let (_, kept) = node.commit(&[node.say()]);
        other.commit(&[other.say()]);
        take(&node, &kept);
        assert!(!is_astray(&node));
        for id in lost {
            let (_, batch) = node.commit(&[said_as(&node, id)]);
            take(&node, &batch);
        }
        for id in ["instead", "more", "and more"] {
            other.commit(&[said_as(&other, id)]);
        }
        log.to(&other.store);
        assert!(is_astray(&node));
        let trouble = node.follower.trouble().unwrap();
        assert!(trouble.contains(&format!("back to position {} ", kept.through)), "{trouble}");
    }
}

#[test]
fn one_that_lacks_the_newest_is_noticed_although_what_it_has_more_came_first() {
    let (log, node, other) = two();
    let (_, lost) = node.commit(&[said_as(&node, "lost")]);
    take(&node, &lost);
    other.commit(&[mark(&other, 0), said_as(&other, "instead")]);
    // Another node says it, and it fits behind what is here.
    let (_, more) = other.commit(&[said_as(&other, "more")]);
    take(&node, &more);
    log.to(&other.store);
    assert!(is_astray(&node));
}

#[test]
fn what_was_said_of_lost_commits_is_noticed_when_it_comes_late() {
    let (log, node, other) = two();
    let (_, lost) = node.commit(&[said_as(&node, "lost")]);
    log.to(&other.store);
    assert!(!is_astray(&node), "nothing that it knows is lost");
    take(&node, &lost);
    for id in ["instead", "more"] {
        other.commit(&[said_as(&other, id)]);
    }
    assert!(is_astray(&node));
}

#[test]
fn changes_that_are_lost_are_noticed_like_messages() {
    let (log, node, other) = two();
    let (_, lost) = node.commit(&[node.change_members(0, true)]);
    take(&node, &lost);
    other.commit(&[other.change_members(1, true)]);
    log.to(&other.store);
    assert!(is_astray(&node));
}
