//! The worker's side: nodes whose sessions are pushed to, each a place beside the shards of this one.

use super::{
    Road,
    stream::{Came, Stream},
    wire::{Down, Said, Up, WireFrame},
};
use crate::{
    metrics::Metrics,
    model::UserNo,
    push::{DeviceNo, PushFrame, Register},
};
use roaring::RoaringBitmap;
use rustc_hash::FxHashMap;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_protocol::error::Refusal;

/// Nodes that are known by name. Above: one more takes the place of one that has gone, or is not heard, which is logged.
const NODES_MAX: usize = 1_024;
/// Items waiting for one node. Above: it is given up, and what waits for its devices comes when they are registered anew.
const WAITING_MAX: usize = 8_192;
/// Sessions are registered while no more waits, so that they do not ask for theirs faster than they take it.
const WAITING_LOW: usize = 1_024;
/// A packet that has so many bytes takes no more items.
pub(super) const PACKET_BYTES: usize = 48 * 1024;
/// What is normal takes only so much of what may be under way, so that what is high never waits behind more.
const NORMAL_BYTES: usize = 256 * 1024;
/// A node that is silent for so long, and for a lease, is given up.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// What a node has said.
pub(in crate::push) enum FromNode {
    Left {
        place: usize,
        device: DeviceNo,
        session: u64,
    },
    Written {
        push: u64,
        devices: Vec<DeviceNo>,
    },
    Acknowledged {
        device: DeviceNo,
        pushes: Vec<u64>,
    },
    /// Its sessions are no more, or will be registered anew.
    Gone(usize),
}

enum Item {
    Pending { session: u64, frames: Vec<Arc<PushFrame>> },
    Sessions { frame: Arc<PushFrame>, sessions: Vec<u64> },
    Matching { frame: Arc<PushFrame>, devices: RoaringBitmap },
}

/// A stream, and what waits for room in it.
struct Line {
    id: u64,
    stream: Stream,
    heard_at: Instant,
    /// Sessions that ask to be registered, and are when there is room for what waits for them.
    registers: Vec<Register>,
    answers: VecDeque<(u64, Result<DeviceNo, Refusal>)>,
    high: VecDeque<Item>,
    normal: VecDeque<Item>,
}

struct Node {
    name: Arc<str>,
    /// `None`: it has been given up.
    line: Option<Line>,
}

pub(in crate::push) struct Nodes {
    road: Option<Road>,
    /// The place of the first.
    first: usize,
    nodes: Vec<Node>,
    /// Those that have been given up since last asked.
    gone: Vec<usize>,
    metrics: Arc<Metrics>,
}

/// A packet that is being filled.
#[derive(Default)]
struct Packet {
    frames: Vec<WireFrame>,
    places: FxHashMap<u64, u32>,
    items: Vec<Down>,
    bytes: usize,
}

impl Nodes {
    pub(in crate::push) fn new(road: Option<Road>, first: usize, metrics: Arc<Metrics>) -> Self {
        Nodes { road, first, nodes: Vec::new(), gone: Vec::new(), metrics }
    }

    /// Places of all nodes, and of the shards before them.
    pub(in crate::push) fn places(&self) -> usize {
        self.first + self.nodes.len()
    }

    pub(in crate::push) fn first_place(&self) -> usize {
        self.first
    }

    /// Takes what a node has said.
    pub(in crate::push) fn hear(&mut self, said: &[u8], now: Instant) -> Vec<FromNode> {
        match Said::decode(said) {
            Some(Said::Up { from, stream, head, items }) => {
                let Some(at) = self.node(&from) else { return Vec::new() };
                let mut heard = Vec::new();
                if self.nodes[at].line.as_ref().is_none_or(|line| line.id != stream) {
                    if head.number != 1 {
                        self.send(at, &Said::Unknown { stream });
                        return heard;
                    }
                    heard.push(FromNode::Gone(self.first + at));
                    self.nodes[at].line = Some(Line::new(stream, now));
                    tracing::info!(node = from, "another node's sessions are pushed to");
                }
                if let Some(line) = &mut self.nodes[at].line {
                    line.heard_at = now;
                    if line.stream.take(head, now) == Came::Next {
                        let place = self.first + at;
                        heard.extend(items.into_iter().filter_map(|item| line.hear(item, place)));
                    }
                }
                heard
            }
            Some(Said::Bye { from, stream }) => {
                let is_its = |node: &Node| *node.name == *from && node.line.as_ref().is_some_and(|l| l.id == stream);
                let Some(at) = self.nodes.iter().position(is_its) else { return Vec::new() };
                self.nodes[at].line = None;
                vec![FromNode::Gone(self.first + at)]
            }
            Some(Said::Down { .. } | Said::Unknown { .. } | Said::Leads { .. }) | None => Vec::new(),
        }
    }

    /// Sessions to register now. The others wait: what is handed to a session must not come before it knows its device, and
    /// answers go ahead of all else, so that nobody is registered who could not be told.
    pub(in crate::push) fn take_registers(&mut self) -> Vec<Register> {
        let lines = self.nodes.iter_mut().filter_map(|node| node.line.as_mut());
        lines.filter(|line| line.waiting() < WAITING_LOW).flat_map(|line| line.registers.drain(..)).collect()
    }

    fn node(&mut self, name: &str) -> Option<usize> {
        if let Some(at) = self.nodes.iter().position(|node| *node.name == *name) {
            return Some(at);
        }
        if self.nodes.len() < NODES_MAX {
            self.nodes.push(Node { name: name.into(), line: None });
            return Some(self.nodes.len() - 1);
        }
        // In the place of one that has gone, and of which nothing is left to be said.
        let first = self.first;
        let has_gone = |(at, node): (usize, &Node)| node.line.is_none() && !self.gone.contains(&(first + at));
        let Some(at) = self.nodes.iter().enumerate().position(has_gone) else {
            tracing::warn!(node = name, "its sessions are not pushed to: there are {NODES_MAX} other nodes");
            return None;
        };
        self.nodes[at].name = name.into();
        Some(at)
    }

    /// The places of nodes that have been given up since last asked, or are now.
    pub(in crate::push) fn take_gone(&mut self, now: Instant) -> Vec<usize> {
        let Some(road) = &self.road else { return Vec::new() };
        let silence_max = road.lease().max(SILENCE_MIN);
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if node.line.as_ref().is_some_and(|line| now > line.heard_at + silence_max) {
                tracing::warn!(node = &*node.name, "a node is silent: its sessions count as gone for pushes");
                node.line = None;
                self.gone.push(self.first + at);
            }
        }
        std::mem::take(&mut self.gone)
    }

    pub(in crate::push) fn answer(&mut self, place: usize, session: u64, result: Result<DeviceNo, Refusal>) {
        if let Some(line) = self.line(place) {
            // Bounded by the sessions that ask.
            line.answers.push_back((session, result));
        }
    }

    pub(in crate::push) fn pending(&mut self, place: usize, session: u64, frames: Vec<Arc<PushFrame>>, high: bool) {
        self.put(place, Item::Pending { session, frames }, high);
    }

    pub(in crate::push) fn sessions(&mut self, place: usize, frame: &Arc<PushFrame>, sessions: Vec<u64>, high: bool) {
        self.put(place, Item::Sessions { frame: frame.clone(), sessions }, high);
    }

    pub(in crate::push) fn matching(
        &mut self,
        place: usize,
        frame: &Arc<PushFrame>,
        devices: RoaringBitmap,
        high: bool,
    ) {
        self.put(place, Item::Matching { frame: frame.clone(), devices }, high);
    }

    fn line(&mut self, place: usize) -> Option<&mut Line> {
        self.nodes.get_mut(place.checked_sub(self.first)?)?.line.as_mut()
    }

    fn put(&mut self, place: usize, item: Item, high: bool) {
        let Some(line) = self.line(place) else { return };
        if line.waiting() < WAITING_MAX {
            if high { &mut line.high } else { &mut line.normal }.push_back(item);
            return;
        }
        let node = &mut self.nodes[place - self.first];
        tracing::warn!(node = &*node.name, "a node takes no pushes: its sessions are to be registered anew");
        node.line = None;
        self.gone.push(place);
    }

    /// Sends what there is room for, what was lost, and what came.
    pub(in crate::push) fn drain(&mut self, now: Instant) {
        let Some(road) = &self.road else { return };
        for node in &mut self.nodes {
            let Some(line) = &mut node.line else { continue };
            let mut again = 0;
            for packet in line.stream.again(now) {
                road.send_encoded(&node.name, packet.to_vec());
                again += 1;
            }
            self.metrics.cluster.push_sent_again.inc_by(again);
            while let Some(Packet { frames, items, .. }) = line.next_packet() {
                let stream = line.id;
                let encode = |head| Said::Down { stream, head, frames, items }.encode();
                road.send_encoded(&node.name, line.stream.put(now, encode));
            }
            if line.stream.owes() {
                let head = line.stream.bare();
                road.send(&node.name, &Said::Down { stream: line.id, head, frames: vec![], items: vec![] });
            }
        }
    }

    fn send(&self, at: usize, said: &Said) {
        if let Some(road) = &self.road {
            road.send(&self.nodes[at].name, said);
        }
    }

    /// Tells the others that push is done here.
    pub(in crate::push) fn say_leads(&self) {
        if let Some(road) = &self.road {
            road.say_leads();
        }
    }
}

impl Line {
    fn new(id: u64, now: Instant) -> Self {
        let (registers, answers, high, normal) = Default::default();
        Line { id, stream: Stream::new(now), heard_at: now, registers, answers, high, normal }
    }

    fn hear(&mut self, item: Up, place: usize) -> Option<FromNode> {
        Some(match item {
            Up::Register { session, user, device_id, device_kind, app_version, since } => {
                self.registers.push(Register {
                    shard: place,
                    session,
                    user: UserNo(user),
                    device_id: device_id.into(),
                    device_kind: device_kind.into(),
                    app_version: app_version.map(Into::into),
                    since,
                    stays: true,
                });
                return None;
            }
            Up::Left { device, session } => FromNode::Left { place, device, session },
            Up::Written { push, devices } => FromNode::Written { push, devices },
            Up::Acknowledged { device, pushes } => FromNode::Acknowledged { device, pushes },
        })
    }

    fn waiting(&self) -> usize {
        self.high.len() + self.normal.len()
    }

    /// `None`: nothing waits, or there is no room for it.
    fn next_packet(&mut self) -> Option<Packet> {
        if !self.stream.has_room() {
            return None;
        }
        let mut packet = Packet::default();
        // First: what is handed to a session that does not know its device yet would be lost.
        while packet.bytes < PACKET_BYTES
            && let Some((session, result)) = self.answers.pop_front()
        {
            packet.answer(session, result);
        }
        while packet.bytes < PACKET_BYTES {
            let has_normal_room = self.stream.unconfirmed_bytes() < NORMAL_BYTES;
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
        self.items.push(Down::Registered { session, result: result.map_err(Into::into) });
    }

    fn put(&mut self, item: Item, high: bool) {
        let item = match item {
            Item::Pending { session, frames } => {
                self.bytes += 16 + frames.len();
                Down::Pending { session, frames: frames.iter().map(|frame| self.frame(frame)).collect(), high }
            }
            Item::Sessions { frame, sessions } => {
                self.bytes += 8 + 5 * sessions.len();
                Down::Sessions { frame: self.frame(&frame), sessions, high }
            }
            Item::Matching { frame, mut devices } => {
                devices.optimize();
                let mut bytes = Vec::with_capacity(devices.serialized_size());
                // Writing to memory cannot fail.
                let _ = devices.serialize_into(&mut bytes);
                self.bytes += 8 + bytes.len();
                Down::Matching { frame: self.frame(&frame), devices: bytes, high }
            }
        };
        self.items.push(item);
    }

    /// The place of a frame, which is in the packet once.
    fn frame(&mut self, frame: &PushFrame) -> u32 {
        let next = self.frames.len() as u32;
        let place = *self.places.entry(frame.push).or_insert(next);
        if place == next {
            self.bytes += 32 + frame.json.len();
            self.frames.push(frame.into());
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_registered_is_told_so_before_anything_is_handed_to_it() {
        let mut nodes = Nodes::new(None, 1, Arc::new(Metrics::new()));
        nodes.nodes.push(Node { name: "b".into(), line: Some(Line::new(7, Instant::now())) });
        for session in 0..WAITING_LOW as u64 {
            nodes.pending(1, session, vec![], false);
        }
        let asks = |session| Up::Register {
            session,
            user: 1,
            device_id: "phone".into(),
            device_kind: "phone".into(),
            app_version: None,
            since: 0,
        };
        let Some(line) = &mut nodes.nodes[0].line else { panic!("it is there") };
        assert!(line.hear(asks(9), 1).is_none());
        assert!(nodes.take_registers().is_empty(), "there is no room for what waits for it");
        let Some(line) = &mut nodes.nodes[0].line else { panic!("it is there") };
        line.normal.pop_front();
        assert_eq!(nodes.take_registers().iter().map(|register| register.session).collect::<Vec<_>>(), [9]);
        // What comes with the answer, however urgent, and however much waits, comes behind it.
        nodes.answer(1, 9, Ok(DeviceNo(3)));
        nodes.pending(1, 9, vec![], true);
        nodes.pending(1, 10, vec![], false);
        let packet = nodes.nodes[0].line.as_mut().and_then(Line::next_packet).map(|packet| packet.items);
        let first: Vec<_> = packet.into_iter().flatten().take(2).collect();
        assert!(
            matches!(first[..], [Down::Registered { session: 9, .. }, Down::Pending { session: 9, high: true, .. }]),
            "{first:?}"
        );
    }

    #[test]
    fn a_node_that_has_gone_makes_room_for_another() {
        let mut nodes = Nodes::new(None, 4, Arc::new(Metrics::new()));
        for n in 0..NODES_MAX {
            nodes.node(&n.to_string());
            nodes.nodes[n].line = Some(Line::new(1, Instant::now()));
        }
        assert_eq!(nodes.node("new"), None);
        nodes.nodes[5].line = None;
        nodes.gone.push(4 + 5);
        assert_eq!(nodes.node("new"), None, "its sessions are not known to be gone yet");
        nodes.gone.clear();
        assert_eq!((nodes.node("new"), nodes.node("new"), nodes.node("7")), (Some(5), Some(5), Some(7)));
        nodes.nodes[5].line = Some(Line::new(1, Instant::now()));
        assert_eq!(nodes.node("5"), None, "its place is taken");
    }
}
