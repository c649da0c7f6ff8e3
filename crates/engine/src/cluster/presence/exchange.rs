//! What a node does about the presence messages of its peers, without threads, sockets or clocks.

use super::{PresenceBody, PresenceMessage};
use crate::presence::{
    Presence, SessionLimits,
    deltas::{Delta, DeltaBatch, Digest},
    peers::Peer,
    snapshot::SnapshotCursor,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{commit_log::NodeInfo, metrics::ClusterMetrics, model::UserNo};

/// Sessions in one message, which is then about 50 kB.
const SESSIONS_PER_MESSAGE: usize = if cfg!(test) { 3 } else { 500 };
/// Between the chunks of a snapshot, so that other messages get through and the bus does not fill up. A snapshot of 100,000
/// sessions takes a second.
const CHUNK_EVERY: Duration = Duration::from_millis(5);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// A snapshot that does not come, or stops coming, is requested again after this.
const REQUEST_AGAIN: Duration = Duration::from_secs(1);
/// A peer that sent a message so lately is alive although its lease has ended: perhaps the store was down.
const ALIVE_FOR: Duration = Duration::from_secs(3);

/// Whether this node's view of a peer's sessions is the peer's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncState {
    /// The peer has sent nothing yet that could be compared.
    New,
    InSync,
    Requested {
        at: Instant,
    },
    /// This part of a snapshot comes next.
    Receiving {
        part: u32,
        at: Instant,
    },
}

/// A peer, and how far this node's view of its sessions is true.
struct PeerSync {
    info: Arc<NodeInfo>,
    peer: Peer,
    state: SyncState,
    /// The number of the next changes.
    next: u64,
    /// The view was in sync before: what a snapshot changes now is a repair.
    was_in_sync: bool,
    last_message: Option<Instant>,
    /// When the peer's lease was first seen to have ended.
    missing: Option<Instant>,
}

/// A snapshot of this node's sessions, on its way to the peers that asked for it.
struct SnapshotTransfer {
    to: Vec<Arc<str>>,
    number: u64,
    part: u32,
    cursor: SnapshotCursor,
    next_at: Instant,
}

/// What a step of the exchange may read.
pub(super) struct StepContext<'a> {
    pub presence: &'a Presence,
    pub metrics: &'a ClusterMetrics,
    pub now: Instant,
    pub now_ms: u64,
    /// Whether this node leads.
    pub leads: bool,
    pub session_limits: SessionLimits,
}

#[derive(Debug)]
pub(super) enum Recipients {
    AllPeers,
    Some(Vec<Arc<str>>),
}

/// What the caller of a step must do.
#[derive(Debug)]
pub(super) enum Effect {
    Send(Recipients, PresenceMessage),
    /// Ends a session of this node, because another node has a later one in its place.
    ReplaceSession(UserNo, u64),
}

/// How much this node knows of its peers' sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncProgress {
    Complete,
    /// A snapshot is on its way, or the peers are not known yet.
    Receiving,
    /// A peer has sent nothing yet.
    Silent,
}

pub(super) struct Exchange {
    me: NodeInfo,
    lease: Duration,
    peers: BTreeMap<String, PeerSync>,
    /// The store has told which nodes there are.
    has_view: bool,
    /// The number of the last changes sent, and the digest after them.
    number: u64,
    digest: Digest,
    next_heartbeat: Instant,
    /// Peers that wait for a snapshot to begin.
    snapshot_requests: BTreeSet<Arc<str>>,
    transfer: Option<SnapshotTransfer>,
    effects: Vec<Effect>,
}

impl Exchange {
    pub(super) fn new(me: NodeInfo, lease: Duration, now: Instant) -> Self {
        Exchange {
            me,
            lease,
            peers: BTreeMap::new(),
            has_view: false,
            number: 0,
            digest: Digest::default(),
            next_heartbeat: now,
            snapshot_requests: BTreeSet::new(),
            transfer: None,
            effects: Vec::new(),
        }
    }

    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn send(&mut self, to: Recipients, body: PresenceBody) {
        let message = PresenceMessage { from: self.me.name.clone(), boot_id: self.me.boot_id, body };
        self.effects.push(Effect::Send(to, message));
    }

    fn send_to(&mut self, name: &str, body: PresenceBody) {
        self.send(Recipients::Some(vec![name.into()]), body);
    }

    fn heartbeat(&self, context: &StepContext<'_>) -> PresenceBody {
        let behind_ms = context.leads.then(|| context.presence.behind_ms(context.now_ms));
        PresenceBody::Heartbeat { number: self.number, digest: self.digest, behind_ms }
    }

    /// The nodes of the cluster are these now, by their leases in the store.
    pub(super) fn on_view(&mut self, nodes: &[Arc<NodeInfo>], context: &StepContext<'_>) {
        self.has_view = true;
        let others = || nodes.iter().filter(|node| node.name != self.me.name);
        let has_lease = |sync: &PeerSync| others().any(|node| node.boot_id == sync.info.boot_id);
        let mut gone = Vec::new();
        for (name, sync) in &mut self.peers {
            if has_lease(sync) {
                sync.missing = None;
                continue;
            }
            let missing = *sync.missing.get_or_insert(context.now);
            let has_successor = others().any(|node| node.name == *name);
            let is_heard = sync.last_message.is_some_and(|at| context.now < at + ALIVE_FOR);
            if has_successor || !is_heard || context.now >= missing + self.lease {
                gone.push(name.clone());
            }
        }
        for name in gone {
            if let Some(sync) = self.peers.remove(&name) {
                tracing::info!(name, boot_id = sync.info.boot_id, "a node is gone, and its sessions with it");
                context.presence.peer_gone(sync.peer, context.now_ms);
            }
        }
        let is_new = |node: &&Arc<NodeInfo>| node.name != self.me.name && !self.peers.contains_key(&node.name);
        let new: Vec<Arc<NodeInfo>> = nodes.iter().filter(is_new).cloned().collect();
        for info in new {
            let (name, boot_id) = (info.name.clone(), info.boot_id);
            let node_no = context.presence.nodes.attach_peer(&name, boot_id, context.now_ms);
            let (peer, state) = (Peer::new(node_no), SyncState::New);
            let sync = PeerSync { info, peer, state, next: 1, was_in_sync: false, last_message: None, missing: None };
            self.peers.insert(name.clone(), sync);
            // The peer drops both messages if it does not know this node yet; then its own two come when it does.
            self.send_to(&name, PresenceBody::HeartbeatRequest);
            let heartbeat = self.heartbeat(context);
            self.send_to(&name, heartbeat);
        }
        self.note_unheard(context.presence);
    }

    /// A peer that lives and has said nothing that this node could read may have the sessions of anybody: the bus does not reach
    /// it, or it runs a version whose messages have another form.
    fn note_unheard(&self, presence: &Presence) {
        presence.set_has_unheard_node(self.peers.values().any(|sync| !sync.was_in_sync));
    }

    /// Whether the message comes from a known process. If not, the nodes must be looked up before it is taken.
    pub(super) fn is_known(&self, message: &PresenceMessage) -> bool {
        self.peers.get(&message.from).is_some_and(|sync| sync.info.boot_id == message.boot_id)
    }

    pub(super) fn on_message(&mut self, message: PresenceMessage, context: &StepContext<'_>) {
        let PresenceMessage { from, boot_id, body } = message;
        let Some(sync) = self.peers.get_mut(&from).filter(|sync| sync.info.boot_id == boot_id) else { return };
        sync.last_message = Some(context.now);
        let changed_before = sync.peer.changed;
        let mut needs_snapshot = false;
        match body {
            PresenceBody::HeartbeatRequest => {
                let heartbeat = self.heartbeat(context);
                self.send_to(&from, heartbeat);
                return;
            }
            PresenceBody::SnapshotRequest => {
                self.snapshot_requests.insert(from.as_str().into());
                return;
            }
            PresenceBody::Heartbeat { number, digest, behind_ms } => {
                if let Some(behind_ms) = behind_ms.filter(|_| !context.leads) {
                    context.presence.discard_handled(context.now_ms, behind_ms);
                }
                needs_snapshot = sync.compare(number, digest);
            }
            PresenceBody::Changes { number, deltas } => {
                needs_snapshot =
                    number != sync.next && !matches!(sync.state, SyncState::New | SyncState::Requested { .. });
                sync.next = number + 1;
                for delta in deltas {
                    match delta {
                        Delta::Arrived(record) => context.presence.peer_arrived(&mut sync.peer, record),
                        Delta::Left { user, session, at } => {
                            context.presence.peer_left(&mut sync.peer, user, session, at, context.now_ms);
                        }
                    }
                }
            }
            PresenceBody::SnapshotChunk { number, part, from, to, sessions } => {
                match sync.state {
                    _ if part == 0 => sync.next = number + 1,
                    SyncState::Receiving { part: next, .. } if next == part => {}
                    // Another chunk was lost, or changes were. This chunk is still true.
                    SyncState::Receiving { .. } | SyncState::InSync => needs_snapshot = true,
                    SyncState::New | SyncState::Requested { .. } => {}
                }
                let is_next =
                    part == 0 || matches!(sync.state, SyncState::Receiving { part: next, .. } if next == part);
                context.presence.apply_peer_chunk(&mut sync.peer, (from, to), sessions, context.now_ms);
                if is_next {
                    let continues = SyncState::Receiving { part: part + 1, at: context.now };
                    sync.state = if to == SnapshotCursor::END { SyncState::InSync } else { continues };
                }
                if sync.was_in_sync {
                    context.metrics.presence_repaired.inc_by(sync.peer.changed - changed_before);
                }
                sync.was_in_sync |= sync.state == SyncState::InSync;
            }
        }
        if needs_snapshot {
            sync.state = SyncState::Requested { at: context.now };
        }
        let came = std::mem::take(&mut sync.peer.arrived);
        self.note_unheard(context.presence);
        if needs_snapshot {
            self.send_to(&from, PresenceBody::SnapshotRequest);
        }
        for user in came {
            let outranked = context.presence.outranked(user, context.session_limits);
            self.effects.extend(outranked.into_iter().map(|session| Effect::ReplaceSession(user, session)));
        }
    }

    /// Messages may have been lost. Mostly none were, and a heartbeat shows it; only a snapshot that is on its way is
    /// requested again.
    pub(super) fn on_gap(&mut self, context: &StepContext<'_>) {
        self.send(Recipients::AllPeers, PresenceBody::HeartbeatRequest);
        let heartbeat = self.heartbeat(context);
        self.send(Recipients::AllPeers, heartbeat);
        let is_waiting = |state: SyncState| matches!(state, SyncState::Requested { .. } | SyncState::Receiving { .. });
        let waiting = self.peers.iter_mut().filter(|(_, sync)| is_waiting(sync.state));
        let waiting: Vec<String> = waiting
            .map(|(name, sync)| {
                sync.state = SyncState::Requested { at: context.now };
                name.clone()
            })
            .collect();
        waiting.iter().for_each(|name| self.send_to(name, PresenceBody::SnapshotRequest));
    }

    pub(super) fn progress(&self) -> SyncProgress {
        let is_receiving = |sync: &PeerSync| matches!(sync.state, SyncState::Receiving { .. });
        match () {
            // Messages of peers may come before the store has told which nodes there are.
            () if !self.has_view => SyncProgress::Receiving,
            () if self.peers.values().all(|sync| sync.was_in_sync) => SyncProgress::Complete,
            () if self.peers.values().any(is_receiving) => SyncProgress::Receiving,
            () => SyncProgress::Silent,
        }
    }

    /// Sends the changes of this node's sessions to all peers.
    pub(super) fn send_changes(&mut self, taken: DeltaBatch) {
        self.digest = taken.digest;
        if taken.overflowed {
            // Changes were dropped: the number leaves a gap, which the peers notice.
            self.number += 1;
        }
        let mut deltas = taken.deltas.into_iter().peekable();
        while deltas.peek().is_some() {
            self.number += 1;
            let deltas = deltas.by_ref().take(SESSIONS_PER_MESSAGE).collect();
            self.send(Recipients::AllPeers, PresenceBody::Changes { number: self.number, deltas });
        }
    }

    /// Does what is due by now: requests again what is late, sends a heartbeat, and the next chunk of a snapshot.
    pub(super) fn tick(&mut self, context: &StepContext<'_>) {
        let is_late = |state: SyncState| match state {
            SyncState::Requested { at } | SyncState::Receiving { at, .. } => context.now >= at + REQUEST_AGAIN,
            SyncState::New | SyncState::InSync => false,
        };
        let mut late = Vec::new();
        for (name, sync) in self.peers.iter_mut().filter(|(_, sync)| is_late(sync.state)) {
            sync.state = SyncState::Requested { at: context.now };
            late.push(name.clone());
        }
        late.iter().for_each(|name| self.send_to(name, PresenceBody::SnapshotRequest));
        if context.now >= self.next_heartbeat {
            self.next_heartbeat = context.now + HEARTBEAT_EVERY;
            let heartbeat = self.heartbeat(context);
            self.send(Recipients::AllPeers, heartbeat);
        }
        self.send_snapshot_chunk(context);
    }

    fn send_snapshot_chunk(&mut self, context: &StepContext<'_>) {
        if self.transfer.is_none() && !self.snapshot_requests.is_empty() {
            context.metrics.presence_snapshots.inc();
            let to = std::mem::take(&mut self.snapshot_requests).into_iter().collect();
            let (number, cursor) = (self.number, SnapshotCursor::default());
            self.transfer = Some(SnapshotTransfer { to, number, part: 0, cursor, next_at: context.now });
        }
        let Some(transfer) = self.transfer.as_mut().filter(|transfer| context.now >= transfer.next_at) else { return };
        let (sessions, to) = context.presence.own_chunk(transfer.cursor, SESSIONS_PER_MESSAGE);
        let (number, part, from) = (transfer.number, transfer.part, transfer.cursor);
        let names = transfer.to.clone();
        (transfer.part, transfer.cursor, transfer.next_at) = (part + 1, to, context.now + CHUNK_EVERY);
        if to == SnapshotCursor::END {
            self.transfer = None;
        }
        self.send(Recipients::Some(names), PresenceBody::SnapshotChunk { number, part, from, to, sessions });
    }

    #[cfg(test)]
    pub(super) fn is_sending_snapshot(&self) -> bool {
        self.transfer.is_some() || !self.snapshot_requests.is_empty()
    }

    /// When [`Self::tick`] has something to do at the latest.
    pub(super) fn due(&self) -> Instant {
        let chunk_at = self.transfer.as_ref().map(|transfer| transfer.next_at);
        chunk_at.map_or(self.next_heartbeat, |chunk_at| chunk_at.min(self.next_heartbeat))
    }
}

impl PeerSync {
    /// Compares the view of the peer's sessions with the peer's own. Returns whether a snapshot is needed.
    fn compare(&mut self, number: u64, digest: Digest) -> bool {
        let is_next = self.next == number + 1;
        match self.state {
            SyncState::Receiving { .. } => !is_next,
            // An equal digest means equal sessions, whichever messages were lost.
            _ if digest == self.peer.digest => {
                (self.next, self.state, self.was_in_sync) = (number + 1, SyncState::InSync, true);
                false
            }
            SyncState::New | SyncState::InSync => true,
            SyncState::Requested { .. } => false,
        }
    }
}
