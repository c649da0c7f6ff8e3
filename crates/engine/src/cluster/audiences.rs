//! What the nodes know of each other's audiences, so that a committed message is sent without its content to a node of whose sessions
//! none may see it.
//!
//! ```text
//! cells of LiveAudience ─▶ AudienceTeller ── bus: AudienceReport ──▶ PeerAudiences ─▶ what is left out of a batch for that peer
//! ```
//! No commit rests on it. A node that is told of a message without its content, and has a session that may see it, reads it from the
//! log ([`super::follower`]); a node of which too little is known is sent everything. What nobody keeps, such as typing, is lost where
//! a report is late, as it is where the bus is.

use super::{
    nodes::ClusterNodes,
    wire::{
        AudienceReport, BringsAudience, BusMessage, ConversationRef, EntryMarks, PartialBatch, WireBatch, WireItem,
    },
};
use crate::live_audience::{Counted, LeftOut, LiveAudience, News};
use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, select};
use parking_lot::RwLock;
use roaring::RoaringBitmap;
use rustc_hash::FxHashMap;
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    bus::Bus,
    gates::{Gate, OpenGates},
    metrics::Metrics,
    model::*,
};

/// The pause after a report of what is new.
const PAUSE: Duration = Duration::from_millis(5);
/// How often all cells are told: those that nobody takes any more are told by that alone, and a lost report is made up for.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// The longest wait for news.
const TICK: Duration = Duration::from_millis(500);
/// About what an item takes besides its body.
const ITEM_BYTES: usize = 64;
/// A batch is sent whole to a node that would be spared no more than one byte in so many: it is encoded once for all of them.
const WORTH_LEAVING_OUT: usize = 8;
/// An audience that was not told for so long is not known.
const KNOWN_FOR: Duration = Duration::from_secs(15);
/// After the last user has come, groups are wanted for so long. While a user's conversations are read, any group may be one of them,
/// and what was left out would be read from the log.
const GROUPS_WANTED_FOR: Duration = Duration::from_secs(10);

/// Of which users and conversations a peer may have sessions.
struct PeerAudience {
    boot_id: u64,
    /// The number of its last report.
    number: u64,
    wants_groups: bool,
    cells: RoaringBitmap,
    told_at: Instant,
}

impl PeerAudience {
    fn is_known(&self) -> bool {
        self.told_at.elapsed() < KNOWN_FOR
    }

    fn may_see(&self, conversation: ConversationNo, pair: Pair) -> bool {
        let may_be = |counted: Counted| self.cells.contains(counted.cell());
        match pair {
            Some((a, b)) => may_be(Counted::User(a)) || may_be(Counted::User(b)),
            None => self.wants_groups || may_be(Counted::Conversation(conversation)),
        }
    }
}

/// The audiences of the peers, as they told them.
pub(crate) struct PeerAudiences {
    peers: RwLock<FxHashMap<Arc<str>, PeerAudience>>,
    /// Whether one of the two is an account that others answer for: they may be anywhere.
    has_agents: Box<dyn Fn(Pair) -> bool + Send + Sync>,
}

/// The two of a direct conversation.
type Pair = Option<(UserNo, UserNo)>;

/// A batch as one peer gets it.
pub(super) struct Part {
    pub message: Bytes,
    /// It tells of messages without content, and of nothing else.
    pub is_empty: bool,
    /// Messages without content.
    pub left_out: u64,
}

/// Of which conversations of a batch a peer sees nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unseen {
    conversations: Vec<bool>,
    /// The peer has no session at all: it can wait for what is for sessions.
    may_wait: bool,
}

impl PeerAudiences {
    pub(super) fn new(has_agents: impl Fn(Pair) -> bool + Send + Sync + 'static) -> Self {
        PeerAudiences { peers: RwLock::default(), has_agents: Box::new(has_agents) }
    }

    pub(crate) fn note(&self, report: AudienceReport) {
        let AudienceReport { name, boot_id, number, is_whole, wants_groups, cells } = report;
        let cells = RoaringBitmap::deserialize_from(&cells[..]);
        let mut peers = self.peers.write();
        peers.retain(|_, audience| audience.is_known());
        let Ok(cells) = cells else {
            peers.remove(&*name);
            return;
        };
        match peers.get_mut(&*name) {
            _ if is_whole => {
                let told_at = Instant::now();
                peers.insert(name.into(), PeerAudience { boot_id, number, wants_groups, cells, told_at });
            }
            Some(audience) if audience.boot_id == boot_id && audience.number + 1 == number => {
                (audience.number, audience.wants_groups) = (number, wants_groups);
                audience.cells |= cells;
            }
            // A report was lost, or it is another process: what it has taken since is not known.
            _ => _ = peers.remove(&*name),
        }
    }

    /// The peers that may have a session which sees the conversation.
    pub(super) fn peers_that_may_see(&self, peers: &[Arc<str>], conversation: &Conversation) -> Vec<Arc<str>> {
        let (no, pair) = (conversation.no, conversation.pair);
        let to_all = (self.has_agents)(pair);
        let audiences = self.peers.read();
        let known = |peer: &Arc<str>| audiences.get(&**peer).filter(|audience| audience.is_known());
        let may_see = |peer: &&Arc<str>| to_all || known(peer).is_none_or(|audience| audience.may_see(no, pair));
        peers.iter().filter(may_see).cloned().collect()
    }

    /// What no session of the peer may see. `None`: it may see all of the batch. `brings_audience`: that of the batch.
    pub(super) fn unseen_by(&self, peer: &str, batch: &WireBatch, brings_audience: &BringsAudience) -> Option<Unseen> {
        let peers = self.peers.read();
        let audience = peers.get(peer).filter(|audience| audience.is_known())?;
        let may_see = |conversation: &ConversationRef| {
            audience.may_see(conversation.no, conversation.pair)
                || (self.has_agents)(conversation.pair)
                || brings_audience.to(conversation.no)
        };
        let conversations: Vec<bool> = batch.conversations.iter().map(|conversation| !may_see(conversation)).collect();
        conversations.contains(&true).then(|| Unseen { conversations, may_wait: audience.cells.is_empty() })
    }
}

/// The batch without what is unseen. `None`: that is so little that a message of its own is not worth it.
fn part_of(sender: &str, batch: &WireBatch, unseen: &[bool]) -> Option<Part> {
    let (mut bytes, mut unseen_bytes) = (0, 0);
    for item in &batch.items {
        let size = item.entry.as_ref().map_or(0, |entry| entry.content.body.len()) + ITEM_BYTES;
        bytes += size;
        unseen_bytes += if place_if_unseen(item, unseen).is_some() { size } else { 0 };
    }
    if unseen_bytes * WORTH_LEAVING_OUT <= bytes {
        return None;
    }
    let part = leave_out(sender, batch, unseen);
    let left_out = part.left_out.iter().map(|left_out| u64::from(left_out.messages)).sum();
    let is_empty = part.batch.items.is_empty();
    Some(Part { message: BusMessage::CommittedInPart(part).encode(), is_empty, left_out })
}

/// Whether a node whose sessions do not see it needs no more than to know where it is.
fn is_for_sessions_alone(item: &WireItem) -> bool {
    // Each node takes note of a message that grows, and of what changes others.
    let is_whole = |content: &NewEntry| content.message_details().stream == StreamState::Whole;
    let is_plain = |content: &NewEntry| content.kind == EntryKind::Message && is_whole(content);
    item.change.is_none() && item.entry.as_ref().is_some_and(|entry| is_plain(&entry.content))
}

/// Where in the batch the conversation of an item is, if the item is left out for a node that sees nothing of it.
fn place_if_unseen(item: &WireItem, unseen: &[bool]) -> Option<usize> {
    let index = item.conversation? as usize;
    (*unseen.get(index)? && is_for_sessions_alone(item)).then_some(index)
}

/// The batch without what is said in the conversations that are `unseen`.
pub(super) fn leave_out(sender: &str, batch: &WireBatch, unseen: &[bool]) -> PartialBatch {
    let WireBatch { after, through, conversations, items } = batch;
    let (mut kept, mut left_out) = (WireBatch { after: *after, through: *through, ..WireBatch::default() }, Vec::new());
    let mut last = None;
    // Where a conversation is, among those that are kept and among those that are left out.
    let mut kept_at: Vec<Option<u32>> = vec![None; conversations.len()];
    let mut left_out_at: Vec<Option<usize>> = vec![None; conversations.len()];
    for item in items {
        match (place_if_unseen(item, unseen), &item.entry) {
            (Some(index), Some(entry)) => {
                let ConversationRef { no, kind, pair, .. } = conversations[index];
                let at = *left_out_at[index].get_or_insert_with(|| {
                    left_out.push(LeftOut { conversation: no, kind, pair, messages: 0, through: 0 });
                    left_out.len() - 1
                });
                left_out[at].messages += 1;
                left_out[at].through = entry.position;
                last = (entry.position == *through).then(|| EntryMarks::of(entry));
            }
            _ => {
                let conversation = item.conversation.map(|index| {
                    let index = index as usize;
                    *kept_at[index].get_or_insert_with(|| {
                        kept.conversations.push(conversations[index].clone());
                        kept.conversations.len() as u32 - 1
                    })
                });
                kept.items.push(WireItem { conversation, ..item.clone() });
            }
        }
    }
    PartialBatch { sender: sender.to_owned(), batch: kept, left_out, last }
}

/// Tells this node's audience to its peers.
pub(super) struct AudienceTeller {
    pub audience: Arc<LiveAudience>,
    pub nodes: Arc<ClusterNodes>,
    pub gates: Arc<OpenGates>,
    pub bus: Arc<dyn Bus>,
}

/// What was told last.
struct Told {
    number: u64,
    /// When all cells were told, and to which processes.
    whole: Option<(Instant, Vec<u64>)>,
    user_came_at: Option<Instant>,
    wants_groups: bool,
}

impl Told {
    fn nothing() -> Told {
        Told { number: 0, whole: None, user_came_at: None, wants_groups: false }
    }
}

impl AudienceTeller {
    /// Runs until the sender of `stopped` is dropped.
    pub(super) fn run(&self, stopped: &Receiver<Infallible>) {
        let mut told = Told::nothing();
        loop {
            let first = select! {
                recv(self.audience.untold()) -> news => news.ok(),
                recv(stopped) -> _ => return,
                default(TICK) => None,
            };
            let news = first.into_iter().chain(self.audience.untold().try_iter());
            self.tell(&mut told, news);
            if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn tell(&self, told: &mut Told, news: impl Iterator<Item = News>) {
        let mut cells = RoaringBitmap::new();
        for news in news {
            match news {
                News::Taken(cell) => _ = cells.insert(cell),
                News::UserCame => told.user_came_at = Some(Instant::now()),
            }
        }
        let peers = self.nodes.peers();
        if peers.is_empty() || !self.gates.is_open(Gate::Audiences) {
            told.whole = None;
            return;
        }
        let came_lately = told.user_came_at.is_some_and(|at| at.elapsed() < GROUPS_WANTED_FOR);
        let wants_groups = came_lately || self.audience.is_loading();
        let processes: Vec<u64> = self.nodes.all().iter().map(|node| node.boot_id).collect();
        let is_known = told.whole.as_ref().is_some_and(|(at, to)| at.elapsed() < TOLD_EVERY && *to == processes);
        let is_whole = self.audience.take_overflow() || !is_known;
        if is_whole {
            cells = self.audience.taken_cells();
            told.whole = Some((Instant::now(), processes));
        } else if cells.is_empty() && wants_groups == told.wants_groups {
            return;
        }
        told.number += 1;
        told.wants_groups = wants_groups;
        let me = self.nodes.me();
        let mut bytes = Vec::with_capacity(cells.serialized_size());
        // Writing to memory cannot fail; a report that cannot be read has its receiver know nothing.
        let _ = cells.serialize_into(&mut bytes);
        let report = AudienceReport {
            name: me.name.clone(),
            boot_id: me.boot_id,
            number: told.number,
            is_whole,
            wants_groups,
            cells: bytes,
        };
        self.bus.send(&peers, BusMessage::Audience(report).encode());
    }
}

/// Hands a batch of the node `sender` to its peers, to each as much of it as it may need.
pub(super) fn send_batch(
    (audiences, bus, metrics): (&PeerAudiences, &dyn Bus, &Metrics),
    (sender, peers): (&str, &[Arc<str>]),
    (batch, whole): (&WireBatch, Bytes),
) {
    let brings_audience = batch.brings_audience();
    let mut to_all = Vec::new();
    // Peers without a session see the same: nothing.
    let mut last: Option<(Unseen, Option<Part>)> = None;
    for peer in peers {
        let Some(unseen) = audiences.unseen_by(peer, batch, &brings_audience) else {
            to_all.push(peer.clone());
            continue;
        };
        let may_wait = unseen.may_wait;
        if last.as_ref().is_none_or(|(of, _)| *of != unseen) {
            let part = part_of(sender, batch, &unseen.conversations);
            last = Some((unseen, part));
        }
        match last.as_ref().and_then(|(_, part)| part.as_ref()) {
            Some(Part { message, is_empty, left_out }) => {
                metrics.cluster.left_out.inc_by(*left_out);
                let (to, message) = (std::slice::from_ref(peer), message.clone());
                if *is_empty && may_wait {
                    bus.send_soon(to, message)
                } else {
                    bus.send(to, message)
                };
            }
            None => to_all.push(peer.clone()),
        }
    }
    if !to_all.is_empty() {
        bus.send(&to_all, whole);
    }
}

#[cfg(test)]
#[path = "../../tests/units/cluster_audiences.rs"]
mod tests;
