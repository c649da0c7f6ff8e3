//! The hub of several nodes: to this node's lanes in the commit order, and over the bus to the others.

use super::{
    bus::{Bus, Ear},
    follower::Follower,
    nodes::ClusterNodes,
    presence::PresenceInbox,
    wire::{ConversationRef, Message, WireBatch, WireItem},
};
use crate::{
    hub::{Applier, Batch, Hub, Item, Signal},
    metrics::Metrics,
    model::*,
    push::PushEar,
};
use bytes::Bytes;
use rustc_hash::FxHashMap;
use std::sync::Arc;

pub(crate) struct ClusterHub {
    pub applier: Applier,
    pub follower: Arc<Follower>,
    pub nodes: Arc<ClusterNodes>,
    pub bus: Arc<dyn Bus>,
}

impl Hub for ClusterHub {
    fn publish(&self, batch: Batch) {
        let peers = self.nodes.peers();
        let message = Message::Committed(to_wire(&batch)).encode();
        // Who is here does not wait for who is elsewhere.
        self.follower.offer_own(batch.span, batch.items, message.clone());
        if !peers.is_empty() {
            self.bus.send(&peers, message);
        }
    }

    fn signal(&self, user: UserNo, signal: Signal) {
        self.applier.lanes.shards().signal(user, signal);
    }

    fn typing(&self, conversation: &Arc<Conversation>, user: UserNo, user_id: &Arc<str>) {
        self.applier.typing(conversation, user, user_id);
        let peers = self.nodes.peers();
        if !peers.is_empty() {
            let (conversation, user_id) = (ConversationRef::of(conversation), user_id.to_string());
            self.bus.send(&peers, Message::Typing { conversation, user, user_id }.encode());
        }
    }
}

/// A batch as other nodes need it.
fn to_wire(batch: &Batch) -> WireBatch {
    let mut conversations = Vec::new();
    let mut indexes: FxHashMap<ConversationNo, u32> = FxHashMap::default();
    let mut items = Vec::with_capacity(batch.items.len());
    for Item { committed, change } in &batch.items {
        let conversation = committed.as_ref().map(|committed| {
            *indexes.entry(committed.conversation.no).or_insert_with(|| {
                conversations.push(ConversationRef::of(&committed.conversation));
                conversations.len() as u32 - 1
            })
        });
        let entry = committed.as_ref().and_then(|committed| committed.entry.clone());
        items.push(WireItem { conversation, entry, change: change.clone() });
    }
    WireBatch { after: batch.span.after, through: batch.span.through, conversations, items }
}

/// What this node hears of others.
pub(crate) struct NodeEar {
    pub applier: Applier,
    pub follower: Arc<Follower>,
    pub nodes: Arc<ClusterNodes>,
    pub presence: PresenceInbox,
    pub push: PushEar,
    pub bus: Arc<dyn Bus>,
    pub metrics: Arc<Metrics>,
}

impl Ear for NodeEar {
    fn hear(&self, message: Bytes) {
        match Message::decode(&message) {
            Some(Message::Committed(batch)) => self.follower.offer_others(batch, message),
            Some(Message::Ask { name, after }) => {
                let name = [Arc::from(name)];
                for message in self.follower.said_after(after) {
                    self.bus.send(&name, message);
                }
            }
            Some(Message::Typing { conversation, user, user_id }) => {
                let ConversationRef { no, id, kind, pair } = conversation;
                let (name, avatar, attributes) = (None, None, None);
                let card =
                    Conversation { no, id, kind, pair, name, avatar, attributes, created_at: 0, member_count: 0 };
                self.applier.typing(&card, user, &user_id.as_str().into());
            }
            Some(Message::Hello { name, boot_id }) => self.nodes.on_hello(&name, boot_id),
            Some(Message::Presence(said)) => self.presence.put(said),
            Some(Message::Popup { user, session, frame }) => {
                self.applier.lanes.shards().signal(user, Signal::Popup { session, frame: frame.into() });
            }
            Some(Message::Push(said)) => self.push.hear(said),
            None => {
                self.metrics.cluster.unknown.inc();
                self.follower.look_now();
            }
        }
    }

    fn missed(&self) {
        self.metrics.cluster.missed.inc();
        self.presence.missed();
        self.follower.look_now();
    }
}
