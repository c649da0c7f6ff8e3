//! The hub of a node in a cluster: commits go to this node's lanes in commit order, and over the bus to its peers. It also
//! receives what peers send.

use super::{
    audiences::{PeerAudiences, send_batch},
    follower::Follower,
    nodes::ClusterNodes,
    presence::PresenceInbox,
    stream_peers::ChunkReceiver,
    wire::{BusMessage, ConversationRef, WireBatch, WireItem},
};
use crate::{
    hub::{Applier, Batch, BatchItem, Hub},
    presence::Presence,
    receipts::ReceiptMove,
    shards::Signal,
};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_domain::{
    bus::{Bus, MessageHandler},
    metrics::Metrics,
    model::*,
};
use tidings_push::PeerInbox;

pub(crate) struct ClusterHub {
    pub applier: Applier,
    pub follower: Arc<Follower>,
    pub nodes: Arc<ClusterNodes>,
    pub presence: Arc<Presence>,
    pub audiences: Arc<PeerAudiences>,
    pub bus: Arc<dyn Bus>,
    pub metrics: Arc<Metrics>,
}

impl ClusterHub {
    /// The peers that a transient frame goes to: those that may have a session of a reader.
    fn peers_of_readers(&self, conversation: &Conversation, except: UserNo) -> Arc<[Arc<str>]> {
        let peers = self.nodes.peers();
        if peers.is_empty() {
            return peers;
        }
        match self.applier.shards.readers_of_pair(conversation, except) {
            Some(readers) => self.presence.peers_with(&readers, &peers),
            None => self.audiences.peers_that_may_see(&peers, conversation).into(),
        }
    }
}

impl Hub for ClusterHub {
    fn publish(&self, batch: Batch) {
        let peers = self.nodes.peers();
        let message = BusMessage::Committed(to_wire(&batch));
        let whole = message.encode();
        // This node's own sessions come first: they do not wait for the bus.
        self.follower.offer_local(batch.span, batch.items, whole.clone());
        let BusMessage::Committed(batch) = message else { return };
        let me = &self.nodes.me().name;
        send_batch((&self.audiences, &*self.bus, &self.metrics), (me, &peers), (&batch, whole));
    }

    fn signal(&self, user: UserNo, signal: Signal) {
        self.applier.shards.signal(user, signal);
    }

    fn transient(&self, conversation: &Arc<Conversation>, except: UserNo, frame: Arc<[u8]>) {
        self.applier.shards.transient(conversation, except, &frame);
        let peers = self.peers_of_readers(conversation, except);
        if !peers.is_empty() {
            let (conversation, frame) = (ConversationRef::of(conversation), frame.to_vec());
            self.bus.send(&peers, BusMessage::Transient { conversation, except, frame }.encode());
        }
    }

    fn typing(&self, conversation: &Arc<Conversation>, user: UserNo, user_id: &Arc<str>) {
        self.applier.typing(conversation, user, user_id);
        let peers = self.peers_of_readers(conversation, user);
        if !peers.is_empty() {
            let (conversation, user_id) = (ConversationRef::of(conversation), user_id.to_string());
            self.bus.send(&peers, BusMessage::Typing { conversation, user, user_id }.encode());
        }
    }

    fn receipts(&self, moves: Vec<ReceiptMove>) {
        let peers = self.nodes.peers();
        if !peers.is_empty() {
            self.bus.send(&peers, BusMessage::Receipts(moves).encode());
        }
    }
}

fn to_wire(batch: &Batch) -> WireBatch {
    let mut conversations = Vec::new();
    let mut indexes: FxHashMap<ConversationNo, u32> = FxHashMap::default();
    let mut items = Vec::with_capacity(batch.items.len());
    for BatchItem { lane_item, change, .. } in &batch.items {
        let conversation = lane_item.as_ref().map(|lane_item| {
            *indexes.entry(lane_item.conversation.no).or_insert_with(|| {
                conversations.push(ConversationRef::of(&lane_item.conversation));
                conversations.len() as u32 - 1
            })
        });
        let entry = lane_item.as_ref().and_then(|lane_item| lane_item.entry.clone());
        items.push(WireItem { conversation, entry, change: change.clone() });
    }
    WireBatch { after: batch.span.after, through: batch.span.through, conversations, items }
}

/// Hands each message of a peer to the part of this node that it is for.
pub(crate) struct PeerMessageHandler {
    pub applier: Applier,
    pub follower: Arc<Follower>,
    pub nodes: Arc<ClusterNodes>,
    pub presence: PresenceInbox,
    pub audiences: Arc<PeerAudiences>,
    pub push: PeerInbox,
    pub bus: Arc<dyn Bus>,
    pub metrics: Arc<Metrics>,
}

impl PeerMessageHandler {
    fn chunks(&self) -> ChunkReceiver<'_> {
        ChunkReceiver { applier: &self.applier, nodes: &self.nodes, bus: &*self.bus }
    }
}

impl MessageHandler for PeerMessageHandler {
    fn on_message(&self, message: Bytes) {
        match BusMessage::decode(&message) {
            Some(BusMessage::Committed(batch)) => self.follower.offer_remote(batch, message),
            Some(BusMessage::CommittedInPart(batch)) => self.follower.offer_in_part(batch, message),
            Some(BusMessage::Audience(report)) => self.audiences.note(report),
            Some(BusMessage::RequestBatches { name, after }) => {
                let name = [Arc::from(name)];
                for message in self.follower.recent_batches_after(after) {
                    self.bus.send(&name, message);
                }
            }
            Some(BusMessage::Typing { conversation, user, user_id }) => {
                self.applier.typing(&conversation.into_conversation(), user, &user_id.as_str().into());
            }
            Some(BusMessage::Transient { conversation, except, frame }) => {
                self.applier.shards.transient(&conversation.into_conversation(), except, &frame.into());
            }
            Some(BusMessage::Hello { name, boot_id }) => self.nodes.on_hello(&name, boot_id),
            Some(BusMessage::Presence(message)) => self.presence.push(message),
            Some(BusMessage::Popup { user, session, frame }) => {
                self.applier.shards.signal(user, Signal::Popup { session, frame: frame.into() });
            }
            Some(BusMessage::Push(message)) => self.push.put(message),
            Some(BusMessage::Receipts(moves)) => self.applier.receipts.note_remote(moves),
            Some(BusMessage::StreamChunk { conversation, seq, node, offset, text }) => {
                self.chunks().on_chunk(conversation.no, seq, node, offset, &text);
            }
            Some(BusMessage::RequestStream { name, conversation, seq }) => {
                self.chunks().on_request(name, conversation, seq);
            }
            Some(BusMessage::StreamBody { conversation, seq, node, body }) => {
                self.chunks().on_body(conversation, seq, node, &body);
            }
            None => {
                self.metrics.cluster.unknown.inc();
                // It may have been a commit.
                self.follower.poll_now();
            }
        }
    }

    fn on_gap(&self) {
        self.metrics.cluster.missed.inc();
        self.presence.on_gap();
        self.follower.poll_now();
    }
}
