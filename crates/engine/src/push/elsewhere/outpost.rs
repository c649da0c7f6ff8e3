//! The side of the sessions: a node that does not do push, and speaks for its sessions with the one that does.

use super::{
    Leader, Road,
    held::{Answer, Held},
    nodes::PACKET_BYTES,
    stream::{Came, Stream},
    wire::{Down, Head, Said, Up, WireFrame},
};
use crate::{
    cluster::leadership::leader_unavailable,
    metrics::Metrics,
    push::{
        DeviceNo, PushFrame, PushItem, PushParts, Register,
        audience::Receivers,
        inbox::{Inbox, Waiting},
        outgoing::{BACKLOG_MAX, Outgoing},
    },
    store::Term,
};
use roaring::RoaringBitmap;
use rustc_hash::FxHashSet;
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long it sleeps when nothing is said to it.
const TICK: Duration = Duration::from_millis(50);
/// The same while a shard's queue is full.
const SHARD_FULL_TICK: Duration = Duration::from_millis(2);
/// A session that binds goes live without its device's number after this; the number follows.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// A leader that is silent for longer is not waited for by who binds.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// It says that it is there at least so often, and at least four times a lease.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The wait before what the leader refused is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Reports that wait for room in the stream. Above: they wait in the inbox, which bounds them.
const REPORTS_MAX: usize = 16_384;
/// Registrations that are not answered. As each is followed by what waits for its device, this paces a whole node's.
const REGISTERS_UNANSWERED_MAX: usize = 512;
/// Bytes of packets that wait because the shards have enough to do. Above: not taken, and sent again.
const UNTAKEN_BYTES_MAX: usize = 1024 * 1024;

/// The stream to a leader.
struct Line {
    leader: Leader,
    id: u64,
    stream: Stream,
    heard_at: Instant,
    said_at: Instant,
    /// Registrations on their way.
    asked: FxHashSet<u64>,
    /// The leader has opened its end.
    is_open: bool,
}

pub(in crate::push) struct Outpost<'a> {
    parts: &'a PushParts,
    road: &'a Road,
    inbox: &'a Inbox,
    held: &'a mut Held,
    outgoing: Outgoing,
    line: Option<Line>,
    /// Not before this.
    open_at: Instant,
    /// A leader that told of itself, and until when that counts for more than the view of the members.
    told: Option<(Leader, Instant)>,
    reports: VecDeque<Up>,
    /// Sessions to be registered, by name.
    registers: VecDeque<u64>,
    /// Those that the leader refused, and when they are asked for again.
    refused: VecDeque<(Instant, u64)>,
    /// Sessions that wait for their first answer, and until when.
    binding: VecDeque<(Instant, u64)>,
    /// Packets that the shards have no room for.
    untaken: VecDeque<(Head, Vec<WireFrame>, Vec<Down>, usize)>,
    untaken_bytes: usize,
    metrics: Arc<Metrics>,
}

impl<'a> Outpost<'a> {
    pub(in crate::push) fn new(parts: &'a PushParts, road: &'a Road, inbox: &'a Inbox, held: &'a mut Held) -> Self {
        Outpost {
            parts,
            road,
            inbox,
            held,
            outgoing: Outgoing::new(parts.shards.clone(), None, parts.metrics.clone()),
            line: None,
            open_at: Instant::now(),
            told: None,
            reports: VecDeque::new(),
            registers: VecDeque::new(),
            refused: VecDeque::new(),
            binding: VecDeque::new(),
            untaken: VecDeque::new(),
            untaken_bytes: 0,
            metrics: parts.metrics.clone(),
        }
    }

    /// Until this node has a term other than the one that is over, or `None` when it stops.
    pub(in crate::push) fn serve(&mut self, over: Option<Term>) -> Option<Term> {
        loop {
            if let Some(term) = self.parts.lead.term().filter(|term| over != Some(*term)) {
                self.leave_reports();
                return Some(term);
            }
            if !self.turn() {
                return None;
            }
        }
    }

    /// One turn; answers whether there is another.
    fn turn(&mut self) -> bool {
        let patience = if self.outgoing.len() > 0 { SHARD_FULL_TICK } else { TICK };
        let waiting = self.inbox.take_at_outpost(patience, self.reports.len() < REPORTS_MAX);
        let now = Instant::now();
        let Waiting { heard, registers, left, written, acknowledged, notes_dropped, stopping, .. } = waiting;
        self.metrics.push_notes_dropped.inc_by(notes_dropped);
        heard.iter().for_each(|said| self.hear(said, now));
        let new: Vec<u64> = registers.into_iter().map(|register| self.held.put(register)).collect();
        let before = self.line.as_ref().map(|line| line.id);
        self.follow_the_lead(now);
        if before.is_some() && self.line.as_ref().map(|line| line.id) == before {
            // Another stream has all sessions to register.
            self.registers.extend(&new);
        }
        new.into_iter().for_each(|name| self.begin(name, now));
        left.into_iter().for_each(|(shard, session, device)| self.left(shard, session, device));
        self.reports.extend(written.into_iter().map(|(push, devices)| Up::Written { push, devices }));
        let acknowledged = acknowledged.into_iter();
        self.reports.extend(acknowledged.map(|(device, pushes)| Up::Acknowledged { device, pushes }));
        self.take_packets(now);
        self.look_at_times(now);
        self.speak(now);
        if stopping {
            self.say_goodbye();
            return false;
        }
        self.outgoing.drain(now);
        true
    }

    fn hear(&mut self, said: &[u8], now: Instant) {
        match Said::decode(said) {
            Some(Said::Down { stream, head, frames, items }) => {
                let Some(line) = self.line.as_mut().filter(|line| line.id == stream) else { return };
                (line.heard_at, line.is_open) = (now, true);
                // Also while the shards have enough to do, and what else it carries must wait.
                line.stream.confirmed(head, now);
                let bytes = said.len();
                if head.number > 0 && self.untaken_bytes + bytes <= UNTAKEN_BYTES_MAX {
                    self.untaken_bytes += bytes;
                    self.untaken.push_back((head, frames, items, bytes));
                }
            }
            Some(Said::Unknown { stream }) => {
                if let Some(line) = self.line.take_if(|line| line.id == stream) {
                    // One that is open has had its end; one that was never may fare the same again.
                    self.open_at = now + if line.is_open { Duration::ZERO } else { ASK_AGAIN };
                    self.give_up(line);
                }
            }
            Some(Said::Leads { from, boot_id }) => {
                self.told = Some((Leader { name: from.as_str().into(), boot_id }, now + self.road.lease() / 2));
            }
            Some(Said::Up { .. } | Said::Bye { .. }) | None => {}
        }
    }

    /// Has a stream to whoever leads, if there is something to say.
    fn follow_the_lead(&mut self, now: Instant) {
        let leader = match &self.told {
            Some((leader, until)) if now < *until => Some(leader.clone()),
            _ => self.road.leader(),
        };
        // One that leads no more and no successor yet: it may come again.
        let Some(leader) = leader else { return };
        if let Some(line) = self.line.take_if(|line| line.leader != leader) {
            self.give_up(line);
            self.open_at = now;
        }
        let has_something = self.held.len() > 0 || !self.reports.is_empty();
        if self.line.is_none() && has_something && now >= self.open_at {
            let (id, stream, asked) = (rand::random(), Stream::new(now), FxHashSet::default());
            self.line = Some(Line { leader, id, stream, heard_at: now, said_at: now, asked, is_open: false });
            self.metrics.cluster.push_streams.inc();
            self.refused.clear();
            self.registers = self.held.names().collect();
        }
    }

    /// What was reported and not confirmed is reported to the next.
    fn give_up(&mut self, line: Line) {
        self.untaken.clear();
        self.untaken_bytes = 0;
        self.registers.clear();
        self.reports.retain(Up::outlives_its_stream);
        let mut unconfirmed: VecDeque<Up> = line
            .stream
            .into_unconfirmed()
            .filter_map(|packet| match Said::decode(&packet) {
                Some(Said::Up { items, .. }) => Some(items),
                _ => None,
            })
            .flatten()
            .filter(Up::outlives_its_stream)
            .collect();
        unconfirmed.append(&mut self.reports);
        self.reports = unconfirmed;
    }

    /// This node does push from here on: what was reported and not confirmed is for its own worker.
    fn leave_reports(&mut self) {
        if let Some(line) = self.line.take() {
            self.give_up(line);
        }
        for report in self.reports.drain(..) {
            match report {
                Up::Written { push, devices } => self.inbox.written(push, devices),
                Up::Acknowledged { device, pushes } => self.inbox.acknowledged(device, pushes),
                Up::Register { .. } | Up::Left { .. } => {}
            }
        }
    }

    /// A session that binds waits for its answer, unless that may take long.
    fn begin(&mut self, name: u64, now: Instant) {
        match &self.line {
            Some(line) if now < line.heard_at + SILENCE_MAX => self.binding.push_back((now + ANSWER_WITHIN, name)),
            _ => self.answer_later(name),
        }
    }

    /// A session that binds goes on without its device.
    fn answer_later(&mut self, name: u64) {
        if let Some((shard, session)) = self.held.later(name) {
            self.outgoing.answer(shard, session, Err(leader_unavailable()));
        }
    }

    fn left(&mut self, shard: usize, session: u64, device: Option<DeviceNo>) {
        let Some((name, known)) = self.held.remove(shard, session) else { return };
        if let (Some(_), Some(device)) = (&self.line, device.or(known)) {
            self.reports.push_back(Up::Left { device, session: name });
        }
    }

    fn take_packets(&mut self, now: Instant) {
        while self.outgoing.len() < BACKLOG_MAX
            && let Some((head, frames, items, bytes)) = self.untaken.pop_front()
        {
            self.untaken_bytes -= bytes;
            let Some(line) = &mut self.line else { return };
            if line.stream.take(head, now) == Came::Next {
                let frames: Vec<Arc<PushFrame>> = frames.into_iter().map(|frame| Arc::new(frame.into())).collect();
                items.into_iter().for_each(|item| self.take_item(item, &frames, now));
            }
        }
    }

    fn take_item(&mut self, item: Down, frames: &[Arc<PushFrame>], now: Instant) {
        let frame_at = |place: u32| frames.get(place as usize).cloned();
        match item {
            Down::Registered { session, result } => {
                if let Some(line) = &mut self.line {
                    line.asked.remove(&session);
                }
                self.registered(session, result.map_err(Into::into), now);
            }
            Down::Pending { session, frames, high } => {
                if let Some((shard, session)) = self.held.place(session) {
                    let frames = frames.into_iter().filter_map(frame_at).collect();
                    self.outgoing.pending(shard, session, frames, high);
                }
            }
            Down::Sessions { frame, sessions, high } => {
                let Some(frame) = frame_at(frame) else { return };
                let mut of_shards = vec![Vec::new(); self.parts.shards.count()];
                for (shard, session) in sessions.into_iter().filter_map(|name| self.held.place(name)) {
                    if let Some(of_shard) = of_shards.get_mut(shard) {
                        of_shard.push(session);
                    }
                }
                for (shard, sessions) in of_shards.into_iter().enumerate().filter(|(_, some)| !some.is_empty()) {
                    self.outgoing.item(shard, PushItem::Sessions { frame: frame.clone(), sessions }, high);
                }
            }
            Down::Matching { frame, devices, high } => {
                let (Some(frame), Ok(devices)) = (frame_at(frame), RoaringBitmap::deserialize_from(&devices[..]))
                else {
                    return;
                };
                let devices = Arc::new(Receivers(devices));
                for shard in 0..self.parts.shards.count() {
                    let item = PushItem::Matching { frame: frame.clone(), devices: devices.clone() };
                    self.outgoing.item(shard, item, high);
                }
            }
        }
    }

    fn registered(&mut self, name: u64, result: Result<DeviceNo, tidings_protocol::error::Refusal>, now: Instant) {
        if let (Ok(device), None) = (&result, self.held.place(name)) {
            // It has left meanwhile.
            self.reports.push_back(Up::Left { device: *device, session: name });
            return;
        }
        match self.held.answered(name, result.as_ref().ok().copied()) {
            Answer::Tell(shard, session) => self.outgoing.answer(shard, session, result),
            Answer::Nothing => {}
            Answer::Again => self.refused.push_back((now + ASK_AGAIN, name)),
        }
    }

    fn look_at_times(&mut self, now: Instant) {
        while let Some((at, name)) = self.binding.front().copied()
            && now >= at
        {
            self.binding.pop_front();
            self.answer_later(name);
        }
        while let Some((at, name)) = self.refused.front().copied()
            && now >= at
        {
            self.refused.pop_front();
            self.registers.push_back(name);
        }
    }

    fn speak(&mut self, now: Instant) {
        let Some(line) = &mut self.line else { return };
        let (from, stream) = (self.road.name(), line.id);
        let packet = |head, items| Said::Up { from: from.to_owned(), stream, head, items }.encode();
        let leader = line.leader.name.clone();
        let mut again = 0;
        for packet in line.stream.again(now) {
            self.road.send_encoded(&leader, packet.to_vec());
            again += 1;
        }
        self.metrics.cluster.push_sent_again.inc_by(again);
        loop {
            let mut items = Vec::new();
            let mut bytes = 0;
            while line.stream.has_room()
                && bytes < PACKET_BYTES
                && let Some(report) = self.reports.pop_front()
            {
                bytes += report.size();
                items.push(report);
            }
            while line.stream.has_room()
                && bytes < PACKET_BYTES
                && line.asked.len() < REGISTERS_UNANSWERED_MAX
                && let Some(name) = self.registers.pop_front()
            {
                let Some(register) = self.held.register(name) else { continue };
                line.asked.insert(name);
                let register = to_wire(name, register);
                bytes += register.size();
                items.push(register);
            }
            if items.is_empty() {
                break;
            }
            self.road.send_encoded(&leader, line.stream.put(now, |head| packet(head, items)));
            line.said_at = now;
        }
        let is_time = now >= line.said_at + PING_EVERY.min(self.road.lease() / 4);
        if is_time || line.stream.owes() {
            self.road.send_encoded(&leader, packet(line.stream.bare(), Vec::new()));
            line.said_at = now;
        }
    }

    fn say_goodbye(&self) {
        if let Some(line) = &self.line {
            let bye = Said::Bye { from: self.road.name().to_owned(), stream: line.id };
            self.road.send(&line.leader.name, &bye);
        }
    }
}

fn to_wire(name: u64, register: &Register) -> Up {
    Up::Register {
        session: name,
        user: register.user.0,
        device_id: register.device_id.to_string(),
        device_kind: register.device_kind.to_string(),
        app_version: register.app_version.as_deref().map(str::to_owned),
        since: register.since,
    }
}
