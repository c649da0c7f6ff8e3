//! The `Hub` port: how commits reach the nodes that hold sessions.
//!
//! On a single node the hub is [`LocalHub`]: a committed batch goes straight into the node's lanes. The hub of a cluster
//! ([`crate::cluster`]) also sends the batch to other nodes; this node's own sessions still get it by the local path. No
//! acknowledgement rests on the hub: what it loses, nodes read back from the store.

use crate::{
    directory::Directory,
    lanes::{LaneItem, Lanes},
    lists::changes::ListChanges,
    live_audience::{LiveAudience, MembersHold},
    receipts::{ReceiptMove, Receipts},
    shards::{Shards, Signal},
    streams::{Streams, begun_stream},
};
use std::sync::Arc;
use tidings_domain::{
    commit_log::Change,
    model::{Conversation, ConversationNo, EntryKind, Lane, Position, UserNo},
    store::PositionRange,
};
use tidings_protocol::frames::{ReceiptKind, ServerFrame};

/// One outcome of a committed batch, as far as it concerns sessions and caches.
#[derive(Debug)]
pub struct BatchItem {
    /// For the live members of a conversation.
    pub lane_item: Option<LaneItem>,
    /// For the caches of other nodes, and for the sessions of one user.
    pub change: Option<Change>,
    /// The read mark before a change that moves it; only the node that committed the change knows it.
    pub read_before: Option<u64>,
}

/// A committed batch, and its span of the commit order.
#[derive(Debug)]
pub struct Batch {
    pub span: PositionRange,
    pub items: Vec<BatchItem>,
}

/// Carries commits and signals to the lanes and sessions of all nodes.
pub trait Hub: Send + Sync + 'static {
    /// Hands a batch to the lanes of every node, in commit order. This node's caches must be up to date with it.
    fn publish(&self, batch: Batch);
    /// Signals the user's sessions on this node. The signal is lost if there are none.
    fn signal(&self, user: UserNo, signal: Signal);
    /// Sends a frame that nobody keeps to the live members of a conversation on every node, except this user.
    fn transient(&self, conversation: &Arc<Conversation>, except: UserNo, frame: Arc<[u8]>);
    /// Tells the live members of a conversation that a user is typing, except for that user.
    fn typing(&self, conversation: &Arc<Conversation>, user: UserNo, user_id: &Arc<str>);
    /// Tells the other nodes how far members of conversations have come, for their live members.
    fn receipts(&self, moves: Vec<ReceiptMove>);
}

/// Applies commits on this node, whichever node made them.
#[derive(Clone)]
pub(crate) struct Applier {
    pub lanes: Arc<Lanes>,
    pub shards: Arc<Shards>,
    pub directory: Arc<Directory>,
    pub receipts: Arc<Receipts>,
    pub streams: Arc<Streams>,
    pub list_changes: Arc<ListChanges>,
    pub watches: Arc<dyn EndWatches>,
    /// In a cluster.
    pub live_audience: Option<Arc<LiveAudience>>,
}

/// The watches of users, which rest on memberships.
pub(crate) trait EndWatches: Send + Sync {
    /// These users have left the conversation, or may not watch its members any more.
    fn end_watches(&self, conversation: ConversationNo, users: &[UserNo]);
    /// The sessions of a user watch the other one no more, who blocks the user.
    fn end_watches_of(&self, watched: UserNo, watching: UserNo);
    /// The names or pictures of these users may have changed.
    fn note_users(&self, ids: &[String]);
}

impl Applier {
    /// Hands the items of the commits through this position to the lanes and to users' sessions. The caller keeps to the commit
    /// order, and has invalidated what the commits changed.
    pub(crate) fn apply(&self, items: Vec<BatchItem>, through: Position) {
        self.directory.note_current(through);
        let mut lane_items = Vec::with_capacity(items.len());
        let mut signals = Vec::new();
        let mut begun = Vec::new();
        for item in items {
            if let Some(LaneItem { conversation, entry: Some(entry), .. }) = &item.lane_item {
                self.streams.on_end_entry(conversation.no, entry);
                if let Some(target) = entry.content.target().filter(|_| entry.content.kind == EntryKind::Recall) {
                    self.directory.shown.note_recalled(conversation.no, target);
                }
                begun.extend(begun_stream(conversation, entry));
            }
            if let Some(Change::Members { conversation, left, changed, .. }) = &item.change {
                self.watches.end_watches(*conversation, left);
                // A role gives a right to watch in official accounts alone.
                let lane = item.lane_item.as_ref().map(|item| item.conversation.lane());
                self.watches.end_watches(*conversation, if lane == Some(Lane::Broadcast) { changed } else { &[] });
            }
            lane_items.extend(item.lane_item);
            item.change.iter().for_each(|change| self.list_changes.note_change(change));
            match item.change {
                Some(Change::Read { conversation, user, seq }) => {
                    let what = ReceiptKind::Read;
                    self.receipts.note(ReceiptMove { conversation, user, what, before: item.read_before, seq });
                    signals.push((user, Signal::Read { conversation, seq }));
                }
                Some(Change::Users(ids)) => self.watches.note_users(&ids),
                Some(Change::Kick { user, device_id, reason }) => {
                    signals.push((user, Signal::Kick { device_id, reason }));
                }
                Some(Change::Block { user, other, blocked: true }) => self.watches.end_watches_of(user, other),
                Some(Change::Suspension { user, suspended: true, reason, .. }) => {
                    self.streams.abandon(user);
                    signals.push((user, Signal::Suspend { reason }));
                }
                _ => {}
            }
        }
        if let Some(audience) = &self.live_audience {
            drop_without_audience(audience, &mut lane_items, through);
        }
        if !lane_items.is_empty() {
            self.lanes.enqueue(lane_items);
        }
        // Chunks may follow from here on: the lanes have the entries of their messages.
        for stream in begun {
            if let Some(touch) = self.streams.announce(stream) {
                self.lanes.enqueue_stream(touch);
            }
        }
        for (user, signal) in signals {
            self.shards.signal(user, signal);
        }
    }

    pub(crate) fn typing(&self, conversation: &Conversation, user: UserNo, user_id: &Arc<str>) {
        let frame = ServerFrame::Typing { conversation: conversation.id.clone(), user: user_id.to_string() };
        // Writing to memory cannot fail.
        let frame: Arc<[u8]> = serde_json::to_vec(&frame).unwrap_or_default().into();
        self.shards.transient(conversation, user, &frame);
    }
}

/// Drops the items that concern no session of this node.
fn drop_without_audience(audience: &Arc<LiveAudience>, lane_items: &mut Vec<LaneItem>, through: Position) {
    let mut decision = audience.decide(through);
    lane_items.retain_mut(|LaneItem { conversation, joined, left, hold, .. }| {
        let concerns = decision.concerns(conversation, joined, left);
        if concerns && !(joined.is_empty() && left.is_empty()) && conversation.pair.is_none() {
            *hold = Some(MembersHold::new(audience, conversation.no));
        }
        concerns
    });
}

/// The hub of a single node: it copies nothing and needs no network.
pub struct LocalHub(Applier);

impl LocalHub {
    pub(crate) fn new(applier: Applier) -> Self {
        LocalHub(applier)
    }
}

impl Hub for LocalHub {
    fn publish(&self, batch: Batch) {
        self.0.apply(batch.items, batch.span.through);
    }

    fn signal(&self, user: UserNo, signal: Signal) {
        self.0.shards.signal(user, signal);
    }

    fn transient(&self, conversation: &Arc<Conversation>, except: UserNo, frame: Arc<[u8]>) {
        self.0.shards.transient(conversation, except, &frame);
    }

    fn typing(&self, conversation: &Arc<Conversation>, user: UserNo, user_id: &Arc<str>) {
        self.0.typing(conversation, user, user_id);
    }

    fn receipts(&self, _: Vec<ReceiptMove>) {}
}
