//! The node's side: a node that does not lead push registers its sessions with the leader, hands on the leader's
//! pushes, and reports what its sessions have been written and acknowledged.

use crate::{
    PeerLeader, PeerTransport, PushFrame, PushItem, PushParts, PushReports, Register,
    audience::Receivers,
    outgoing::{OUTGOING_MAX, Outgoing},
    remote::{
        AfterRegister, LocalSessions, PACKET_BYTES,
        stream::{PeerStream, Received},
        wire::{DownItem, Header, PushMessage, UpItem, WireFrame, acknowledgement_items, from_bytes},
    },
    reports::by_push,
    worker::{Inbox, Queues},
};
use rustc_hash::FxHashSet;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{gates::Gate, metrics::Metrics, push_store::DeviceNo, refusals::leader_unavailable, store::Term};
use tidings_protocol::error::Refusal;

/// How long the client sleeps when nothing comes in.
const TICK: Duration = Duration::from_millis(50);
/// The same while a shard's queue is full.
const SHARD_FULL_TICK: Duration = Duration::from_millis(2);
/// A session that binds goes live without its device's number after this; the number follows.
const BIND_TIMEOUT: Duration = Duration::from_secs(1);
/// While the leader has been silent for longer, sessions that bind do not wait for it.
const LEADER_SILENCE_MAX: Duration = Duration::from_secs(3);
/// The client sends a packet at least so often, and at least four times a lease.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The wait before a refused registration, or a stream that the leader did not know, is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Registrations in flight. Each brings a backlog, so this paces the backlogs of a whole node.
const REGISTERS_IN_FLIGHT_MAX: usize = 512;
/// Bytes of packets that wait because the shards' queues are full. Above: a packet is dropped, and the leader
/// retransmits it.
const DEFERRED_BYTES_MAX: usize = 1024 * 1024;

/// The client's end of the stream to a leader.
struct Uplink {
    leader: PeerLeader,
    id: u64,
    stream: PeerStream,
    received_at: Instant,
    sent_at: Instant,
    /// Sessions whose registration is in flight.
    registering: FxHashSet<u64>,
    /// The leader has opened its end.
    is_open: bool,
}

pub(crate) struct RemotePushClient<'a> {
    parts: &'a PushParts,
    transport: &'a dyn PeerTransport,
    inbox: &'a Inbox,
    local_sessions: &'a mut LocalSessions,
    outgoing: Outgoing,
    uplink: Option<Uplink>,
    /// No uplink is opened before this.
    open_at: Instant,
    /// A leader that has announced itself, and until when that counts for more than what the nodes' heartbeats say.
    announced: Option<(PeerLeader, Instant)>,
    reports: VecDeque<UpItem>,
    /// Sessions to be registered, by id.
    to_register: VecDeque<u64>,
    /// Sessions that the leader refused, and when they are registered again.
    refused: VecDeque<(Instant, u64)>,
    /// Sessions that wait for their first answer, and until when.
    binding: VecDeque<(Instant, u64)>,
    /// Packets that wait for room in the shards' queues, with their size.
    deferred: VecDeque<(Header, Vec<WireFrame>, Vec<DownItem>, usize)>,
    deferred_bytes: usize,
    metrics: Arc<Metrics>,
}

impl<'a> RemotePushClient<'a> {
    pub(crate) fn new(
        parts: &'a PushParts,
        transport: &'a dyn PeerTransport,
        inbox: &'a Inbox,
        local_sessions: &'a mut LocalSessions,
    ) -> Self {
        RemotePushClient {
            parts,
            transport,
            inbox,
            local_sessions,
            outgoing: Outgoing::new(parts.shards.clone(), None, parts.metrics.clone()),
            uplink: None,
            open_at: Instant::now(),
            announced: None,
            reports: VecDeque::new(),
            to_register: VecDeque::new(),
            refused: VecDeque::new(),
            binding: VecDeque::new(),
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            metrics: parts.metrics.clone(),
        }
    }

    /// Runs until this node leads in another term than `ended`; `None`: the node stops.
    pub(crate) fn serve(&mut self, ended: Option<Term>) -> Option<Term> {
        loop {
            if let Some(term) = self.parts.lead.term().filter(|term| ended != Some(*term)) {
                self.return_reports();
                self.outgoing.hand_over_answers(|| self.inbox.is_stopping());
                return Some(term);
            }
            if !self.turn() {
                return None;
            }
        }
    }

    /// One turn; answers whether there is another.
    fn turn(&mut self) -> bool {
        let timeout = if self.outgoing.len() > 0 { SHARD_FULL_TICK } else { TICK };
        // While there is no room in the stream for earlier reports, further ones wait in the inbox, which sums and bounds them.
        let queues = self.inbox.take_following(timeout, self.reports.is_empty());
        let now = Instant::now();
        let Queues { peer_messages, registers, ended_sessions, reports, reports_dropped, stopping, .. } = queues;
        self.metrics.push_notes_dropped.inc_by(reports_dropped);
        peer_messages.iter().for_each(|message| self.on_message(message, now));
        let new: Vec<u64> = registers.into_iter().map(|register| self.local_sessions.put(register)).collect();
        let before = self.uplink.as_ref().map(|uplink| uplink.id);
        self.follow_leader(now);
        if before.is_some() && self.uplink.as_ref().map(|uplink| uplink.id) == before {
            // A new uplink has all sessions to register already.
            self.to_register.extend(&new);
        }
        new.into_iter().for_each(|id| self.await_answer(id, now));
        self.take_reports(reports);
        // Behind what the sessions have acknowledged: their devices may be at another node by now, and are not handed it again there.
        ended_sessions.into_iter().for_each(|(shard, session, device)| self.session_ended(shard, session, device));
        self.take_packets(now);
        self.check_deadlines(now);
        self.send_packets(now);
        if stopping {
            self.close_uplink();
            return false;
        }
        self.outgoing.drain(now);
        true
    }

    fn take_reports(&mut self, PushReports { written, acknowledged }: PushReports) {
        by_push(written, |push, reports| {
            let devices = reports.iter().map(|(_, device)| *device).collect();
            self.reports.push_back(UpItem::Written { push, devices });
        });
        let with_sets = self.parts.gates.is_open(Gate::PushReportSets);
        self.reports.extend(acknowledgement_items(acknowledged, with_sets));
    }

    fn on_message(&mut self, message: &[u8], now: Instant) {
        match PushMessage::decode(message) {
            Some(PushMessage::Down { stream, header, frames, items }) => {
                let Some(uplink) = self.uplink.as_mut().filter(|uplink| uplink.id == stream) else { return };
                (uplink.received_at, uplink.is_open) = (now, true);
                // The acknowledgement counts at once, even if the items must wait for the shards.
                uplink.stream.take_ack(header, now);
                let bytes = message.len();
                if header.number > 0 && self.deferred_bytes + bytes <= DEFERRED_BYTES_MAX {
                    self.deferred_bytes += bytes;
                    self.deferred.push_back((header, frames, items, bytes));
                }
            }
            Some(PushMessage::UnknownStream { stream }) => {
                if let Some(uplink) = self.uplink.take_if(|uplink| uplink.id == stream) {
                    // A stream that was open is followed by another at once. A leader that never opened this one may
                    // not know the next one either: wait.
                    self.open_at = now + if uplink.is_open { Duration::ZERO } else { RETRY_AFTER };
                    self.abandon(uplink);
                }
            }
            Some(PushMessage::LeaderStarted { from, boot_id }) => {
                let leader = PeerLeader { name: from.as_str().into(), boot_id };
                self.announced = Some((leader, now + self.transport.lease() / 2));
            }
            Some(PushMessage::Up { .. } | PushMessage::Close { .. }) | None => {}
        }
    }

    /// Opens an uplink to the leader, once there is a session or a report for it.
    fn follow_leader(&mut self, now: Instant) {
        let leader = match &self.announced {
            Some((leader, until)) if now < *until => Some(leader.clone()),
            _ => self.transport.leader(),
        };
        // While no node leads, the uplink to the former leader stays: that node may lead again.
        let Some(leader) = leader else { return };
        if let Some(uplink) = self.uplink.take_if(|uplink| uplink.leader != leader) {
            self.abandon(uplink);
            self.open_at = now;
        }
        let has_items = self.local_sessions.len() > 0 || !self.reports.is_empty();
        if self.uplink.is_none() && has_items && now >= self.open_at {
            self.uplink = Some(Uplink {
                leader,
                id: rand::random(),
                stream: PeerStream::new(now),
                received_at: now,
                sent_at: now,
                registering: FxHashSet::default(),
                is_open: false,
            });
            self.metrics.cluster.push_streams.inc();
            self.refused.clear();
            self.to_register = self.local_sessions.ids().collect();
        }
    }

    /// Gives up an uplink: its unacknowledged reports are for the next one.
    fn abandon(&mut self, uplink: Uplink) {
        self.deferred.clear();
        self.deferred_bytes = 0;
        self.to_register.clear();
        self.reports.retain(UpItem::outlives_stream);
        let mut unacked: VecDeque<UpItem> = uplink
            .stream
            .into_unacked()
            .filter_map(|packet| match PushMessage::decode(&packet) {
                Some(PushMessage::Up { items, .. }) => Some(items),
                _ => None,
            })
            .flatten()
            .filter(UpItem::outlives_stream)
            .collect();
        unacked.append(&mut self.reports);
        self.reports = unacked;
    }

    /// This node leads push from here on: the reports that the former leader has not acknowledged are for its own worker.
    fn return_reports(&mut self) {
        if let Some(uplink) = self.uplink.take() {
            self.abandon(uplink);
        }
        for report in self.reports.drain(..) {
            let mut reports = PushReports::default();
            match report {
                UpItem::Written { push, devices } => {
                    devices.into_iter().for_each(|device| reports.add_written(push, device));
                }
                UpItem::Acknowledged { device, pushes } => reports.add_acknowledged(device, &pushes),
                UpItem::AcknowledgedBy { push, devices } => {
                    let devices = from_bytes(&devices).into_iter().flatten().map(DeviceNo);
                    devices.for_each(|device| reports.add_acknowledged(device, &[push]));
                }
                UpItem::Register { .. } | UpItem::SessionEnded { .. } => {}
            }
            self.inbox.report(reports);
        }
    }

    /// A session that binds waits for its answer, unless the leader is silent.
    fn await_answer(&mut self, id: u64, now: Instant) {
        match &self.uplink {
            Some(uplink) if now < uplink.received_at + LEADER_SILENCE_MAX => {
                self.binding.push_back((now + BIND_TIMEOUT, id));
            }
            _ => self.answer_later(id),
        }
    }

    /// A session that binds goes live without its device.
    fn answer_later(&mut self, id: u64) {
        if let Some((shard, session)) = self.local_sessions.answer_later(id) {
            self.outgoing.send_answer(shard, session, Err(leader_unavailable()));
        }
    }

    fn session_ended(&mut self, shard: usize, session: u64, device: Option<DeviceNo>) {
        let Some((id, known)) = self.local_sessions.remove(shard, session) else { return };
        if let (Some(_), Some(device)) = (&self.uplink, device.or(known)) {
            self.reports.push_back(UpItem::SessionEnded { device, session: id });
        }
    }

    fn take_packets(&mut self, now: Instant) {
        while self.outgoing.len() < OUTGOING_MAX
            && let Some((header, frames, items, bytes)) = self.deferred.pop_front()
        {
            self.deferred_bytes -= bytes;
            let Some(uplink) = &mut self.uplink else { return };
            if uplink.stream.receive(header, now) == Received::Next {
                let frames: Vec<Arc<PushFrame>> =
                    frames.into_iter().map(|frame| Arc::new(frame.into_frame())).collect();
                items.into_iter().for_each(|item| self.take_item(item, &frames, now));
            }
        }
    }

    fn take_item(&mut self, item: DownItem, frames: &[Arc<PushFrame>], now: Instant) {
        let frame_at = |index: u32| frames.get(index as usize).cloned();
        match item {
            DownItem::Registered { session, result } => {
                if let Some(uplink) = &mut self.uplink {
                    uplink.registering.remove(&session);
                }
                self.registered(session, result.map_err(Into::into), now);
            }
            DownItem::Pending { session, frames, high } => {
                if let Some((shard, session)) = self.local_sessions.shard_session(session) {
                    let frames = frames.into_iter().filter_map(frame_at).collect();
                    self.outgoing.send_pending(shard, session, frames, high);
                }
            }
            DownItem::Sessions { frame, sessions, high } => {
                let Some(frame) = frame_at(frame) else { return };
                let mut by_shard = vec![Vec::new(); self.parts.shards.count()];
                for (shard, session) in sessions.into_iter().filter_map(|id| self.local_sessions.shard_session(id)) {
                    if let Some(sessions) = by_shard.get_mut(shard) {
                        sessions.push(session);
                    }
                }
                for (shard, sessions) in by_shard.into_iter().enumerate().filter(|(_, some)| !some.is_empty()) {
                    self.outgoing.send_item(shard, PushItem::Sessions { frame: frame.clone(), sessions }, high);
                }
            }
            DownItem::Matching { frame, devices, high } => {
                let (Some(frame), Some(devices)) = (frame_at(frame), from_bytes(&devices)) else { return };
                let devices = Arc::new(Receivers(devices));
                for shard in 0..self.parts.shards.count() {
                    let item = PushItem::Matching { frame: frame.clone(), devices: devices.clone() };
                    self.outgoing.send_item(shard, item, high);
                }
            }
        }
    }

    fn registered(&mut self, id: u64, result: Result<DeviceNo, Refusal>, now: Instant) {
        if let (Ok(device), None) = (&result, self.local_sessions.shard_session(id)) {
            // The session has ended meanwhile.
            self.reports.push_back(UpItem::SessionEnded { device: *device, session: id });
            return;
        }
        let after = self.local_sessions.answered(id, &result);
        if matches!(after, AfterRegister::Retry | AfterRegister::TellAndRetry(..)) {
            self.refused.push_back((now + RETRY_AFTER, id));
        }
        if let AfterRegister::Tell(shard, session) | AfterRegister::TellAndRetry(shard, session) = after {
            self.outgoing.send_answer(shard, session, result);
        }
    }

    fn check_deadlines(&mut self, now: Instant) {
        while let Some((at, id)) = self.binding.front().copied()
            && now >= at
        {
            self.binding.pop_front();
            self.answer_later(id);
        }
        while let Some((at, id)) = self.refused.front().copied()
            && now >= at
        {
            self.refused.pop_front();
            self.to_register.push_back(id);
        }
    }

    /// Sends the reports and registrations that there is room for, retransmits, acknowledges, and keeps the stream alive.
    fn send_packets(&mut self, now: Instant) {
        let Some(uplink) = &mut self.uplink else { return };
        let (from, stream) = (self.transport.own_name(), uplink.id);
        let packet = |header, items| PushMessage::Up { from: from.to_owned(), stream, header, items }.encode();
        let leader = uplink.leader.name.clone();
        let mut retransmitted = 0;
        for packet in uplink.stream.retransmit(now) {
            self.transport.send(&leader, packet.to_vec());
            retransmitted += 1;
        }
        self.metrics.cluster.push_sent_again.inc_by(retransmitted);
        loop {
            let mut items = Vec::new();
            let mut bytes = 0;
            while uplink.stream.has_room()
                && bytes < PACKET_BYTES
                && let Some(report) = self.reports.pop_front()
            {
                bytes += report.approximate_size();
                items.push(report);
            }
            while uplink.stream.has_room()
                && bytes < PACKET_BYTES
                && uplink.registering.len() < REGISTERS_IN_FLIGHT_MAX
                && let Some(id) = self.to_register.pop_front()
            {
                let Some(register) = self.local_sessions.register(id) else { continue };
                uplink.registering.insert(id);
                let register = to_wire(id, register);
                bytes += register.approximate_size();
                items.push(register);
            }
            if items.is_empty() {
                break;
            }
            self.transport.send(&leader, uplink.stream.send(now, |header| packet(header, items)));
            uplink.sent_at = now;
        }
        let keepalive_due = now >= uplink.sent_at + KEEPALIVE_INTERVAL.min(self.transport.lease() / 4);
        if keepalive_due || uplink.stream.ack_due() {
            self.transport.send(&leader, packet(uplink.stream.ack_header(), Vec::new()));
            uplink.sent_at = now;
        }
    }

    fn close_uplink(&self) {
        if let Some(uplink) = &self.uplink {
            let close = PushMessage::Close { from: self.transport.own_name().to_owned(), stream: uplink.id };
            self.transport.send(&uplink.leader.name, close.encode());
        }
    }
}

fn to_wire(id: u64, register: &Register) -> UpItem {
    UpItem::Register {
        session: id,
        user: register.user.0,
        device_id: register.device_id.to_string(),
        device_kind: register.device_kind.to_string(),
        app_version: register.app_version.as_deref().map(str::to_owned),
        since: register.since,
    }
}
