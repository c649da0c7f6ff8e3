//! The worker's side: other nodes whose sessions it pushes to, each a destination beside the shards of this node.

use super::{
    PeerTransport,
    stream::{PeerStream, Received},
    wire::{DownItem, PushMessage, SET_DEVICES_MAX, UpItem, WireFrame, from_bytes, to_bytes},
};
use crate::{PushFrame, Register};
use roaring::RoaringBitmap;
use rustc_hash::FxHashMap;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{metrics::Metrics, model::UserNo, push_store::DeviceNo};
use tidings_protocol::error::Refusal;

/// Peers that are remembered by name. Above: a further peer takes the place of a disconnected one; if there is none, its
/// messages are dropped, with a warning in the log.
const PEERS_MAX: usize = 1_024;
/// Items queued for one peer. Above: the peer is disconnected, and its devices get their backlogs when they are
/// registered anew.
const QUEUED_MAX: usize = 8_192;
/// A peer's sessions are registered only while fewer items are queued for it: each registration brings a backlog.
const QUEUED_LOW: usize = 1_024;
/// A packet of so many bytes takes no more items.
pub(crate) const PACKET_BYTES: usize = 48 * 1024;
/// Normal pushes take only so much of the window, so that a high one never waits behind more.
const NORMAL_BYTES: usize = 256 * 1024;
/// A peer that is silent for so long, and for a lease, is disconnected.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// What has happened at a peer.
pub(crate) enum PeerEvent {
    SessionEnded {
        destination: usize,
        device: DeviceNo,
        session: u64,
    },
    Written {
        push: u64,
        devices: RoaringBitmap,
    },
    Acknowledged {
        push: u64,
        devices: RoaringBitmap,
    },
    /// The sessions of this destination have ended, or will be registered anew.
    Disconnected(usize),
}

enum QueuedItem {
    Pending { session: u64, frames: Vec<Arc<PushFrame>> },
    Sessions { frame: Arc<PushFrame>, sessions: Vec<u64> },
    Matching { frame: Arc<PushFrame>, devices: RoaringBitmap },
}

/// The leader's end of the stream to a peer, and the items that wait for room in it.
struct Downlink {
    id: u64,
    stream: PeerStream,
    received_at: Instant,
    /// Registrations that wait until there is room for the backlogs that follow them.
    registers: Vec<Register>,
    answers: VecDeque<(u64, Result<DeviceNo, Refusal>)>,
    high: VecDeque<QueuedItem>,
    normal: VecDeque<QueuedItem>,
}

struct Peer {
    name: Arc<str>,
    /// `None`: disconnected.
    downlink: Option<Downlink>,
}

pub(crate) struct Peers {
    transport: Option<Arc<dyn PeerTransport>>,
    /// The destination of the first peer.
    first: usize,
    peers: Vec<Peer>,
    /// Destinations of peers that were disconnected since the worker asked last.
    disconnected: Vec<usize>,
    metrics: Arc<Metrics>,
}

/// A packet that is being filled.
#[derive(Default)]
struct Packet {
    frames: Vec<WireFrame>,
    /// By push, the index of its frame.
    frame_indexes: FxHashMap<u64, u32>,
    items: Vec<DownItem>,
    bytes: usize,
}

impl Peers {
    pub(crate) fn new(transport: Option<Arc<dyn PeerTransport>>, first: usize, metrics: Arc<Metrics>) -> Self {
        Peers { transport, first, peers: Vec::new(), disconnected: Vec::new(), metrics }
    }

    /// The number of destinations: the shards, and the peers behind them.
    pub(crate) fn destinations(&self) -> usize {
        self.first + self.peers.len()
    }

    pub(crate) fn first_destination(&self) -> usize {
        self.first
    }

    /// Takes a message of a peer.
    pub(crate) fn on_message(&mut self, message: &[u8], now: Instant) -> Vec<PeerEvent> {
        match PushMessage::decode(message) {
            Some(PushMessage::Up { from, stream, header, items }) => {
                let Some(at) = self.find_or_add(&from) else { return Vec::new() };
                let mut events = Vec::new();
                if self.peers[at].downlink.as_ref().is_none_or(|downlink| downlink.id != stream) {
                    if header.number != 1 {
                        self.send(at, &PushMessage::UnknownStream { stream });
                        return events;
                    }
                    // A new stream registers all sessions anew.
                    events.push(PeerEvent::Disconnected(self.first + at));
                    self.peers[at].downlink = Some(Downlink::new(stream, now));
                    tracing::info!(node = from, "this node pushes to another node's sessions");
                }
                if let Some(downlink) = &mut self.peers[at].downlink {
                    downlink.received_at = now;
                    if downlink.stream.receive(header, now) == Received::Next {
                        let destination = self.first + at;
                        items.into_iter().for_each(|item| downlink.take_item(item, destination, &mut events));
                    }
                }
                events
            }
            Some(PushMessage::Close { from, stream }) => {
                let is_open = |peer: &Peer| peer.downlink.as_ref().is_some_and(|downlink| downlink.id == stream);
                let is_sender = |peer: &Peer| *peer.name == *from && is_open(peer);
                let Some(at) = self.peers.iter().position(is_sender) else { return Vec::new() };
                self.peers[at].downlink = None;
                vec![PeerEvent::Disconnected(self.first + at)]
            }
            Some(PushMessage::Down { .. } | PushMessage::UnknownStream { .. } | PushMessage::LeaderStarted { .. })
            | None => Vec::new(),
        }
    }

    /// Takes the registrations to handle now. Those of a peer with many queued items wait, because each brings a backlog.
    pub(crate) fn take_registers(&mut self) -> Vec<Register> {
        let downlinks = self.peers.iter_mut().filter_map(|peer| peer.downlink.as_mut());
        let with_room = downlinks.filter(|downlink| downlink.queued() < QUEUED_LOW);
        with_room.flat_map(|downlink| downlink.registers.drain(..)).collect()
    }

    fn find_or_add(&mut self, name: &str) -> Option<usize> {
        if let Some(at) = self.peers.iter().position(|peer| *peer.name == *name) {
            return Some(at);
        }
        if self.peers.len() < PEERS_MAX {
            self.peers.push(Peer { name: name.into(), downlink: None });
            return Some(self.peers.len() - 1);
        }
        // The place of a disconnected peer is free once the worker has been notified that its sessions are gone.
        let first = self.first;
        let is_free =
            |(at, peer): (usize, &Peer)| peer.downlink.is_none() && !self.disconnected.contains(&(first + at));
        let Some(at) = self.peers.iter().enumerate().position(is_free) else {
            tracing::warn!(node = name, "this node's sessions get no pushes: there are {PEERS_MAX} other nodes");
            return None;
        };
        self.peers[at].name = name.into();
        Some(at)
    }

    /// Takes the destinations of peers that were disconnected since the last call, or are now because they are silent.
    pub(crate) fn take_disconnected(&mut self, now: Instant) -> Vec<usize> {
        let Some(transport) = &self.transport else { return Vec::new() };
        let silence_max = transport.lease().max(SILENCE_MIN);
        for (at, peer) in self.peers.iter_mut().enumerate() {
            if peer.downlink.as_ref().is_some_and(|downlink| now > downlink.received_at + silence_max) {
                tracing::warn!(node = &*peer.name, "a node is silent: its sessions count as offline for pushes");
                peer.downlink = None;
                self.disconnected.push(self.first + at);
            }
        }
        std::mem::take(&mut self.disconnected)
    }

    pub(crate) fn send_answer(&mut self, destination: usize, session: u64, result: Result<DeviceNo, Refusal>) {
        if let Some(downlink) = self.downlink(destination) {
            // Bounded by the sessions that ask.
            downlink.answers.push_back((session, result));
        }
    }

    pub(crate) fn send_pending(&mut self, destination: usize, session: u64, frames: Vec<Arc<PushFrame>>, high: bool) {
        self.put(destination, QueuedItem::Pending { session, frames }, high);
    }

    pub(crate) fn send_to_sessions(
        &mut self,
        destination: usize,
        frame: &Arc<PushFrame>,
        sessions: Vec<u64>,
        high: bool,
    ) {
        self.put(destination, QueuedItem::Sessions { frame: frame.clone(), sessions }, high);
    }

    pub(crate) fn send_to_matching(
        &mut self,
        destination: usize,
        frame: &Arc<PushFrame>,
        devices: RoaringBitmap,
        high: bool,
    ) {
        self.put(destination, QueuedItem::Matching { frame: frame.clone(), devices }, high);
    }

    fn downlink(&mut self, destination: usize) -> Option<&mut Downlink> {
        self.peers.get_mut(destination.checked_sub(self.first)?)?.downlink.as_mut()
    }

    fn put(&mut self, destination: usize, item: QueuedItem, high: bool) {
        let Some(downlink) = self.downlink(destination) else { return };
        if downlink.queued() < QUEUED_MAX {
            if high { &mut downlink.high } else { &mut downlink.normal }.push_back(item);
            return;
        }
        let peer = &mut self.peers[destination - self.first];
        tracing::warn!(node = &*peer.name, "a node takes no pushes: its sessions will be registered anew");
        peer.downlink = None;
        self.disconnected.push(destination);
    }

    /// Sends the items that there is room for, retransmits, and acknowledges.
    pub(crate) fn drain(&mut self, now: Instant) {
        let Some(transport) = &self.transport else { return };
        for peer in &mut self.peers {
            let Some(downlink) = &mut peer.downlink else { continue };
            let mut retransmitted = 0;
            for packet in downlink.stream.retransmit(now) {
                transport.send(&peer.name, packet.to_vec());
                retransmitted += 1;
            }
            self.metrics.cluster.push_sent_again.inc_by(retransmitted);
            while let Some(Packet { frames, items, .. }) = downlink.next_packet() {
                let stream = downlink.id;
                let encode = |header| PushMessage::Down { stream, header, frames, items }.encode();
                transport.send(&peer.name, downlink.stream.send(now, encode));
            }
            if downlink.stream.ack_due() {
                let (stream, header) = (downlink.id, downlink.stream.ack_header());
                let ack = PushMessage::Down { stream, header, frames: vec![], items: vec![] };
                transport.send(&peer.name, ack.encode());
            }
        }
    }

    fn send(&self, at: usize, message: &PushMessage) {
        if let Some(transport) = &self.transport {
            transport.send(&self.peers[at].name, message.encode());
        }
    }

    /// Tells the other nodes that this one leads push.
    pub(crate) fn announce_leader(&self) {
        if let Some(transport) = &self.transport {
            super::announce_leader(&**transport);
        }
    }
}

impl Downlink {
    fn new(id: u64, now: Instant) -> Self {
        let (registers, answers, high, normal) = Default::default();
        Downlink { id, stream: PeerStream::new(now), received_at: now, registers, answers, high, normal }
    }

    fn take_item(&mut self, item: UpItem, destination: usize, events: &mut Vec<PeerEvent>) {
        match item {
            UpItem::Register { session, user, device_id, device_kind, app_version, since } => {
                self.registers.push(Register {
                    shard: destination,
                    session,
                    user: UserNo(user),
                    device_id: device_id.into(),
                    device_kind: device_kind.into(),
                    app_version: app_version.map(Into::into),
                    since,
                });
            }
            UpItem::SessionEnded { device, session } => {
                events.push(PeerEvent::SessionEnded { destination, device, session });
            }
            UpItem::Written { push, devices } => {
                let devices = devices.iter().map(|device| device.0).collect();
                events.push(PeerEvent::Written { push, devices });
            }
            UpItem::Acknowledged { device, pushes } => {
                let devices = || [device.0].into_iter().collect();
                events.extend(pushes.into_iter().map(|push| PeerEvent::Acknowledged { push, devices: devices() }));
            }
            UpItem::AcknowledgedBy { push, devices } => {
                let devices = from_bytes(&devices).filter(|devices| devices.len() <= SET_DEVICES_MAX as u64);
                events.extend(devices.map(|devices| PeerEvent::Acknowledged { push, devices }));
            }
        }
    }

    fn queued(&self) -> usize {
        self.high.len() + self.normal.len()
    }

    /// `None`: nothing is queued, or the window has no room for it.
    fn next_packet(&mut self) -> Option<Packet> {
        if !self.stream.has_room() {
            return None;
        }
        let mut packet = Packet::default();
        // Answers first: a session that does not know its device yet would lose its pushes.
        while packet.bytes < PACKET_BYTES
            && let Some((session, result)) = self.answers.pop_front()
        {
            packet.answer(session, result);
        }
        while packet.bytes < PACKET_BYTES {
            let has_normal_room = self.stream.unacked_bytes() < NORMAL_BYTES;
            let high = !self.high.is_empty();
            let queue = if high { &mut self.high } else { &mut self.normal };
            let Some(item) = (if high || has_normal_room { queue.pop_front() } else { None }) else { break };
            packet.put(item, high);
        }
        (!packet.items.is_empty()).then_some(packet)
    }
}

impl Packet {
    fn answer(&mut self, session: u64, result: Result<DeviceNo, Refusal>) {
        self.bytes += 16 + result.as_ref().err().map_or(0, |refusal| refusal.detail.len());
        self.items.push(DownItem::Registered { session, result: result.map_err(Into::into) });
    }

    fn put(&mut self, item: QueuedItem, high: bool) {
        let item = match item {
            QueuedItem::Pending { session, frames } => {
                self.bytes += 16 + frames.len();
                DownItem::Pending { session, frames: frames.iter().map(|frame| self.frame(frame)).collect(), high }
            }
            QueuedItem::Sessions { frame, sessions } => {
                self.bytes += 8 + 5 * sessions.len();
                DownItem::Sessions { frame: self.frame(&frame), sessions, high }
            }
            QueuedItem::Matching { frame, devices } => {
                let bytes = to_bytes(devices);
                self.bytes += 8 + bytes.len();
                DownItem::Matching { frame: self.frame(&frame), devices: bytes, high }
            }
        };
        self.items.push(item);
    }

    /// The index of a frame; a packet holds each frame once.
    fn frame(&mut self, frame: &PushFrame) -> u32 {
        let next = self.frames.len() as u32;
        let index = *self.frame_indexes.entry(frame.push).or_insert(next);
        if index == next {
            self.bytes += 32 + frame.json.len();
            self.frames.push(frame.into());
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::wire::{Header, acknowledgement_items};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_answer_to_a_registration_precedes_the_sessions_pushes() {
        let mut peers = Peers::new(None, 1, Arc::new(Metrics::new()));
        peers.peers.push(Peer { name: "b".into(), downlink: Some(Downlink::new(7, Instant::now())) });
        for session in 0..QUEUED_LOW as u64 {
            peers.send_pending(1, session, vec![], false);
        }
        let register = |session| UpItem::Register {
            session,
            user: 1,
            device_id: "phone".into(),
            device_kind: "phone".into(),
            app_version: None,
            since: 0,
        };
        let Some(downlink) = &mut peers.peers[0].downlink else { panic!("disconnected") };
        downlink.take_item(register(9), 1, &mut Vec::new());
        assert!(peers.take_registers().is_empty(), "there is no room for its backlog");
        let Some(downlink) = &mut peers.peers[0].downlink else { panic!("disconnected") };
        downlink.normal.pop_front();
        assert_eq!(peers.take_registers().iter().map(|register| register.session).collect::<Vec<_>>(), [9]);
        // Pushes come behind the answer, however urgent they are and however many are queued.
        peers.send_answer(1, 9, Ok(DeviceNo(3)));
        peers.send_pending(1, 9, vec![], true);
        peers.send_pending(1, 10, vec![], false);
        let packet = peers.peers[0].downlink.as_mut().and_then(Downlink::next_packet).map(|packet| packet.items);
        let first: Vec<_> = packet.into_iter().flatten().take(2).collect();
        assert!(
            matches!(
                first[..],
                [DownItem::Registered { session: 9, .. }, DownItem::Pending { session: 9, high: true, .. }]
            ),
            "{first:?}"
        );
    }

    #[test]
    fn a_further_peer_takes_the_place_of_a_disconnected_one() {
        let mut peers = Peers::new(None, 4, Arc::new(Metrics::new()));
        for n in 0..PEERS_MAX {
            peers.find_or_add(&n.to_string());
            peers.peers[n].downlink = Some(Downlink::new(1, Instant::now()));
        }
        assert_eq!(peers.find_or_add("new"), None);
        peers.peers[5].downlink = None;
        peers.disconnected.push(4 + 5);
        assert_eq!(peers.find_or_add("new"), None, "the worker has not been told yet that its sessions are gone");
        peers.disconnected.clear();
        assert_eq!(
            (peers.find_or_add("new"), peers.find_or_add("new"), peers.find_or_add("7")),
            (Some(5), Some(5), Some(7))
        );
        peers.peers[5].downlink = Some(Downlink::new(1, Instant::now()));
        assert_eq!(peers.find_or_add("5"), None, "its place is taken");
    }

    /// Which device acknowledged which push, as the worker learns it from items.
    fn learnt(items: Vec<UpItem>) -> BTreeSet<(u64, u32)> {
        let (mut downlink, mut events) = (Downlink::new(7, Instant::now()), Vec::new());
        for item in items {
            let message = PushMessage::Up {
                from: "b".into(),
                stream: 7,
                header: Header { number: 1, ack: 0 },
                items: vec![item],
            };
            let Some(PushMessage::Up { items, .. }) = PushMessage::decode(&message.encode()) else {
                panic!("no items")
            };
            items.into_iter().for_each(|item| downlink.take_item(item, 1, &mut events));
        }
        let mut learnt = BTreeSet::new();
        for event in events {
            let PeerEvent::Acknowledged { push, devices } = event else { panic!("no acknowledgement") };
            learnt.extend(devices.iter().map(|device| (push, device)));
        }
        learnt
    }

    proptest! {
        #[test]
        fn acknowledgements_say_the_same_as_sets_and_device_by_device(
            acknowledged in prop::collection::vec((1..4_u64, 0..40_u32), 0..120),
        ) {
            let reports = || acknowledged.iter().map(|(push, device)| (*push, DeviceNo(*device))).collect();
            let expected: BTreeSet<_> = acknowledged.iter().copied().collect();
            let former = acknowledgement_items(reports(), false);
            let is_set = |item: &UpItem| matches!(item, UpItem::AcknowledgedBy { .. });
            prop_assert!(!former.iter().any(is_set), "a node that does not know sets would not read them");
            let sets = acknowledgement_items(reports(), true);
            let is_many = (1..4).any(|push| expected.range((push, 0)..(push + 1, 0)).count() >= 8);
            prop_assert_eq!(sets.iter().any(is_set), is_many);
            prop_assert_eq!(learnt(former), expected.clone());
            prop_assert_eq!(learnt(sets), expected);
        }
    }

    #[test]
    fn sets_of_a_million_devices_fit_into_packets() {
        let reports = (0..1_000_000).map(|device| (1, DeviceNo(device * 99))).collect();
        let items = acknowledgement_items(reports, true);
        assert!(items.iter().all(|item| item.approximate_size() < 3 * PACKET_BYTES), "{}", items.len());
        assert_eq!(learnt(items).len(), 1_000_000);
    }

    #[test]
    fn a_set_that_no_node_makes_is_passed_over() {
        let broken = UpItem::AcknowledgedBy { push: 1, devices: vec![1, 2, 3] };
        let too_many = UpItem::AcknowledgedBy { push: 1, devices: to_bytes((0..=SET_DEVICES_MAX as u32).collect()) };
        assert_eq!(
            learnt(vec![broken, too_many, UpItem::Acknowledged { device: DeviceNo(4), pushes: vec![2] }]),
            [(2, 4)].into()
        );
    }
}
