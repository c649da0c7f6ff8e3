//! Chunks of messages that grow, from the node that takes them to the others.

use super::{
    nodes::ClusterNodes,
    wire::{BusMessage, ConversationRef},
};
use crate::{
    hub::Applier,
    streams::{ChunkEffect, StreamKey, StreamPeers},
};
use std::sync::Arc;
use tidings_domain::{bus::Bus, model::*};

/// Sends this node's chunks to its peers.
pub(super) struct PeerChunks {
    pub bus: Arc<dyn Bus>,
    pub nodes: Arc<ClusterNodes>,
    pub boot_id: u64,
}

impl StreamPeers for PeerChunks {
    fn send_chunk(&self, conversation: &Conversation, seq: u64, offset: u64, text: &str) {
        let peers = self.nodes.peers();
        if !peers.is_empty() {
            let (conversation, node, text) = (ConversationRef::of(conversation), self.boot_id, text.to_owned());
            self.bus.send(&peers, BusMessage::StreamChunk { conversation, seq, node, offset, text }.encode());
        }
    }
}

/// Takes chunks of peers, and asks them for what the bus has lost.
pub(super) struct ChunkReceiver<'a> {
    pub applier: &'a Applier,
    pub nodes: &'a ClusterNodes,
    pub bus: &'a dyn Bus,
}

impl ChunkReceiver<'_> {
    pub(super) fn on_chunk(&self, conversation: ConversationNo, seq: u64, node: u64, offset: u64, text: &str) {
        match self.applier.streams.on_chunk(StreamKey { conversation, seq }, offset, text) {
            ChunkEffect::Nothing => {}
            ChunkEffect::Queue(touch) => self.applier.lanes.enqueue_stream(touch),
            ChunkEffect::Ask => {
                if let Some(owner) = self.nodes.all().into_iter().find(|other| other.boot_id == node) {
                    let name = self.nodes.me().name.clone();
                    let request = BusMessage::RequestStream { name, conversation, seq };
                    self.bus.send(&[owner.name.as_str().into()], request.encode());
                }
            }
        }
    }

    pub(super) fn on_request(&self, name: String, conversation: ConversationNo, seq: u64) {
        if let Some((conversation, body)) = self.applier.streams.own_body(StreamKey { conversation, seq }) {
            let (conversation, node) = (ConversationRef::of(&conversation), self.nodes.me().boot_id);
            let body = BusMessage::StreamBody { conversation, seq, node, body: body.into() };
            self.bus.send(&[name.into()], body.encode());
        }
    }

    pub(super) fn on_body(&self, conversation: ConversationRef, seq: u64, node: u64, body: &str) {
        let conversation = Arc::new(conversation.into_conversation());
        if let Some(touch) = self.applier.streams.on_body(seq, &conversation, node, body) {
            self.applier.lanes.enqueue_stream(touch);
        }
    }
}
