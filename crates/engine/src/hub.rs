//! The `Hub` port: how what was committed reaches the nodes that hold sessions.
//!
//! On one node the hub is [`LocalHub`]: a committed batch goes straight into this node's lanes.
//! A clustered hub ([`crate::cluster`]) also carries it to other nodes; whatever this node can serve itself still
//! takes the local path. The hub is never what an acknowledgement rests on: what it loses,
//! nodes read back from the store.

use crate::{
    cluster::log::Change,
    directory::Directory,
    lanes::{Committed, Lanes},
    model::{Conversation, ConversationNo, UserNo},
    store::Span,
};
use std::sync::Arc;

/// What is told to a user's sessions but not stored in a timeline.
#[derive(Debug, Clone)]
pub enum Signal {
    /// The user's read mark moved.
    Read { conversation: ConversationNo, seq: u64 },
    /// Which session takes a popup: of those that take such frames and have room, the one that came last. Its number
    /// is answered; if there is none, the channel just ends.
    WhoTakesPopups { answer: crossbeam_channel::Sender<u64> },
    /// A popup was chosen for this session.
    Popup {
        session: u64,
        /// A `popup` frame's JSON.
        frame: Arc<[u8]>,
    },
    /// This session has a later one in its place, on another node.
    Replaced { session: u64 },
    /// The app server ended these sessions: one device's, or all.
    Kick { device_id: Option<String>, reason: String },
}

/// One thing of a commit that others learn of.
#[derive(Debug)]
pub struct Item {
    /// For live members.
    pub committed: Option<Committed>,
    /// For what nodes hold in memory, and for sessions of one user.
    pub change: Option<Change>,
}

/// A commit: its stretch of the commit order, and what is in it.
#[derive(Debug)]
pub struct Batch {
    pub span: Span,
    pub items: Vec<Item>,
}

pub trait Hub: Send + Sync + 'static {
    /// Hands what was committed to the lanes of every node, in commit order. This node's own memory is up to date.
    fn publish(&self, batch: Batch);
    /// Tells the user's sessions on this node; lost when nobody can be told now.
    fn signal(&self, user: UserNo, signal: Signal);
    /// Tells the live members of a conversation but one user that this one is typing.
    fn typing(&self, conversation: &Arc<Conversation>, user: UserNo, user_id: &Arc<str>);
}

/// Where commits end up on a node, whoever made them.
#[derive(Clone)]
pub(crate) struct Applier {
    pub lanes: Arc<Lanes>,
    pub directory: Arc<Directory>,
}

impl Applier {
    /// To the lanes and to users' sessions. The caller keeps to the commit order.
    pub(crate) fn apply(&self, items: Vec<Item>) {
        let mut committed = Vec::with_capacity(items.len());
        let mut signals = Vec::new();
        for item in items {
            committed.extend(item.committed);
            match item.change {
                Some(Change::Read { conversation, user, seq }) => {
                    signals.push((user, Signal::Read { conversation, seq }));
                }
                Some(Change::Kick { user, device_id, reason }) => {
                    signals.push((user, Signal::Kick { device_id, reason }));
                }
                _ => {}
            }
        }
        if !committed.is_empty() {
            self.lanes.accept(committed);
        }
        for (user, signal) in signals {
            self.lanes.shards().signal(user, signal);
        }
    }

    pub(crate) fn typing(&self, conversation: &Conversation, user: UserNo, user_id: &Arc<str>) {
        self.lanes.shards().typing(conversation, user, user_id);
    }
}

/// The hub of a single node: no copy, no network.
pub struct LocalHub(Applier);

impl LocalHub {
    pub(crate) fn new(applier: Applier) -> Self {
        LocalHub(applier)
    }
}

impl Hub for LocalHub {
    fn publish(&self, batch: Batch) {
        self.0.apply(batch.items);
    }

    fn signal(&self, user: UserNo, signal: Signal) {
        self.0.lanes.shards().signal(user, signal);
    }

    fn typing(&self, conversation: &Arc<Conversation>, user: UserNo, user_id: &Arc<str>) {
        self.0.typing(conversation, user, user_id);
    }
}
