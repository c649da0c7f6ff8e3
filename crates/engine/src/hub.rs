//! The `Hub` port: how what was committed reaches the nodes that hold sessions.
//!
//! On one node the hub is [`LocalHub`]: a committed batch goes straight into this node's lanes.
//! A clustered hub also carries it to other nodes; whatever this node can serve itself still
//! takes the local path. The hub is never what an acknowledgement rests on: what it loses,
//! clients get by resuming.

use crate::{
    lanes::{Committed, Lanes},
    model::{Conversation, UserNo},
};
use std::sync::Arc;

/// What is told to a user's sessions but not stored in a timeline.
#[derive(Debug, Clone)]
pub enum Signal {
    /// The user's read mark moved.
    Read {
        conversation: Arc<str>,
        user: Arc<str>,
        seq: u64,
    },
    Typing {
        conversation: Arc<str>,
        user: Arc<str>,
    },
    /// Which session takes a popup: of those that take such frames and have room, the one that came last. Its number
    /// is answered; if there is none, the channel just ends.
    WhoTakesPopups {
        answer: crossbeam_channel::Sender<u64>,
    },
    /// A popup was chosen for this session.
    Popup {
        session: u64,
        /// A `popup` frame's JSON.
        frame: Arc<[u8]>,
    },
    /// The app server ended these sessions: one device's, or all.
    Kick {
        device_id: Option<String>,
        reason: String,
    },
}

pub trait Hub: Send + Sync + 'static {
    /// Hands committed entries and membership changes to the lanes of every node, in commit order.
    fn publish(&self, committed: Vec<Committed>);
    /// Tells all sessions of a user, wherever they are; lost when nobody can be told now.
    fn signal(&self, user: UserNo, signal: Signal);
    /// Tells the live members of a conversation but one user (typing).
    fn signal_members(&self, conversation: &Arc<Conversation>, but: UserNo, signal: Signal);
}

/// The hub of a single node: no copy, no network.
pub struct LocalHub {
    lanes: Arc<Lanes>,
}

impl LocalHub {
    pub fn new(lanes: Arc<Lanes>) -> Self {
        LocalHub { lanes }
    }
}

impl Hub for LocalHub {
    fn publish(&self, committed: Vec<Committed>) {
        self.lanes.accept(committed);
    }

    fn signal(&self, user: UserNo, signal: Signal) {
        self.lanes.shards().signal(user, signal);
    }

    fn signal_members(&self, conversation: &Arc<Conversation>, but: UserNo, signal: Signal) {
        self.lanes.shards().signal_members(conversation, but, signal);
    }
}
