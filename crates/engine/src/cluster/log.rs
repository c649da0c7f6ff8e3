//! The commit log: what every node must learn of every commit, in the one order that the store gave it.
//!
//! Entries stand in timelines, and have their positions there. What else a commit changes that other nodes
//! hold in memory is a [`Change`], stored beside it at a position of the same order.

use crate::{model::*, store::*};
use serde::{Deserialize, Serialize};

/// What a commit changed beside timelines, as far as another node's memory may hold it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// ClusterNodes came, went, or changed their roles. Those who came see an entry at the same position; those who
    /// went see it too, and nothing after it.
    ClusterNodes {
        conversation: ConversationNo,
        joined: Vec<UserNo>,
        left: Vec<UserNo>,
        changed: Vec<UserNo>,
    },
    /// A conversation's card.
    Conversation(ConversationNo),
    /// Cards of users, by id.
    Users(Vec<String>),
    DoNotDisturb(UserNo),
    Mute {
        conversation: ConversationNo,
        user: UserNo,
    },
    Read {
        conversation: ConversationNo,
        user: UserNo,
        seq: u64,
    },
    /// The app server ended sessions of a user: one device's, or all.
    Kick {
        user: UserNo,
        device_id: Option<String>,
        reason: String,
    },
}

impl Change {
    /// What others must learn of an outcome, its entries aside.
    pub fn of(proposal: &Proposal, outcome: &Outcome) -> Option<Change> {
        match (proposal, outcome) {
            (_, Outcome::Refused(_)) => None,
            (_, Outcome::Conversation { conversation, created: true }) => {
                let Proposal::CreateConversation(new) = proposal else { return None };
                let joined = new.members.iter().map(|(user, _)| *user).collect();
                Some(Change::Members { conversation: conversation.no, joined, left: vec![], changed: vec![] })
            }
            (Proposal::ChangeMembers { conversation, .. }, Outcome::MembersChanged { added, removed, changed, .. }) => {
                let nothing = added.is_empty() && removed.is_empty() && changed.is_empty();
                let (joined, left, changed) = (added.clone(), removed.clone(), changed.clone());
                (!nothing).then_some(Change::Members { conversation: *conversation, joined, left, changed })
            }
            (Proposal::UpdateConversation { conversation, .. }, _) => Some(Change::Conversation(*conversation)),
            // Who is new is in nobody's memory.
            (Proposal::PutUsers(patches), Outcome::Users { updated: 1.., .. }) => {
                Some(Change::Users(patches.iter().map(|patch| patch.id.clone()).collect()))
            }
            (Proposal::SetDoNotDisturb { user, .. }, _) => Some(Change::DoNotDisturb(*user)),
            (Proposal::SetMute { conversation, user, .. }, _) => {
                Some(Change::Mute { conversation: *conversation, user: *user })
            }
            // A mark that stays where it was is no news; clients set it again and again.
            (Proposal::MarkRead { conversation, user, .. }, Outcome::Read { seq, moved: true }) => {
                Some(Change::Read { conversation: *conversation, user: *user, seq: *seq })
            }
            (Proposal::Kick { user, device_id, reason }, _) => {
                Some(Change::Kick { user: *user, device_id: device_id.clone(), reason: reason.clone() })
            }
            // Other nodes forget the user's card when they hear of a kick, and with it since when tokens are good.
            (Proposal::Revoke { user, reason, .. }, _) => {
                Some(Change::Kick { user: *user, device_id: None, reason: reason.clone() })
            }
            _ => None,
        }
    }

    /// The conversation whose members it changes.
    pub fn members_of(&self) -> Option<ConversationNo> {
        match self {
            Change::Members { conversation, .. } => Some(*conversation),
            _ => None,
        }
    }
}

/// One place in the commit order, as it is read back: an entry, a change, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    pub position: Position,
    pub entry: Option<(ConversationNo, StoredEntry)>,
    pub change: Option<Change>,
}

/// What was read back: everything in the span, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub span: Span,
    pub logged: Vec<Logged>,
}

/// A node of the cluster, as it tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    pub name: String,
    /// Tells a process from its successor of the same name.
    pub boot_id: u64,
    /// Where other nodes reach its HTTP door.
    pub address: String,
    /// Where relays attach to it, as `host:port`.
    pub link: String,
    pub version: String,
    pub roles: String,
}

/// What a node hears when it says that it is alive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterView {
    /// All whose leases run, itself included, by name.
    pub nodes: Vec<NodeInfo>,
    /// Who does the work that one node does for all: its boot id.
    pub leader: Option<u64>,
    /// The leader's term.
    pub term: Term,
}

/// Why a node is not taken into the cluster.
#[derive(Debug, thiserror::Error)]
pub enum HeartbeatError {
    /// A process with a later start has the name.
    #[error("another process has taken this node's name")]
    Displaced,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far the store has come. `server` tells the one that answers from those that may take its place, with a history
/// that need not go as far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stand {
    pub newest: Position,
    pub server: u64,
}

/// What one piece of pruning came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    pub removed: u64,
    /// There may be another piece.
    pub more: bool,
}

/// A store that several nodes write, and what they agree on through it.
pub trait CommitLog: Send + Sync + 'static {
    /// What was committed after a position, in order: all of it, or as much as about `limit` places.
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<Stretch>;
    /// The newest position that is committed, asked of the store itself.
    fn newest_position(&self) -> StoreResult<Position>;
    /// The same, and who says so.
    fn stand(&self) -> StoreResult<Stand> {
        Ok(Stand { newest: self.newest_position()?, server: 0 })
    }
    /// The history's number, as this node heard it last.
    fn known_epoch(&self) -> u64 {
        0
    }
    /// The store has lost what it had told under this number: cursors from before are of another history, on every node.
    /// Whoever notices it after another one leaves the number that is there then.
    fn turn_epoch(&self, _lost: u64) -> StoreResult<()> {
        Ok(())
    }
    /// Removes the oldest changes, as far as they are older than any node looks back by the store's own clock: a piece of
    /// them, and never the newest.
    fn prune(&self, older_than_ms: u64) -> StoreResult<Pruned>;

    /// Says that the node is alive for so long, by the store's clock, and renews or takes the lead if it may.
    /// `took`: whether it takes its name from an earlier process, which it does when it starts.
    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease_ms: u64,
        may_lead: bool,
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError>;
    /// The node stops: its lease ends, and its lead.
    fn release_lease(&self, boot_id: u64) -> StoreResult<()>;
}
