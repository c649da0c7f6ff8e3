//! The commit log: what every node must learn of every commit, in the one order that the store gave the commits.
//!
//! Entries are stored in their timelines, each with its position in that order. Whatever else a commit changes that
//! other nodes hold in memory is a [`Change`], stored in the log at a position of the same order.

pub use crate::log_records::*;
use crate::{
    erase_step::{ERASED, EraseStep},
    function::Function,
    gates::Gate,
    installation::InstallationId,
    model::*,
    node_settings::{KnownSettings, NodeSettings},
    reports::ReportKey,
    store::*,
};
use serde::{Deserialize, Serialize};

fn members_of_new(new: &NewConversation, outcome: &Outcome) -> Option<Change> {
    match outcome {
        Outcome::Conversation { conversation, created: true } | Outcome::Opened { conversation, .. } => {
            let joined = new.members.iter().map(|(user, _)| *user).collect();
            Some(Change::Members { conversation: conversation.no, joined, left: vec![], changed: vec![] })
        }
        _ => None,
    }
}

impl Change {
    /// What other nodes must learn of an outcome, besides its entries.
    pub fn of(proposal: &Proposal, outcome: &Outcome) -> Option<Change> {
        if matches!(outcome, Outcome::Rejected(_)) {
            return None;
        }
        match proposal {
            Proposal::CreateConversation(new) => members_of_new(new, outcome),
            Proposal::OpenDirect { new, .. } => members_of_new(new, outcome),
            Proposal::ChangeMembers { conversation, .. } => {
                let Outcome::MembersChanged { added, removed, changed, .. } = outcome else { return None };
                let nothing = added.is_empty() && removed.is_empty() && changed.is_empty();
                let (joined, left, changed) = (added.clone(), removed.clone(), changed.clone());
                (!nothing).then_some(Change::Members { conversation: *conversation, joined, left, changed })
            }
            Proposal::UpdateConversation { conversation, .. } => Some(Change::Conversation(*conversation)),
            Proposal::SetDesk { account, .. } => Some(Change::Conversation(*account)),
            Proposal::PutUsers(patches) => {
                matches!(outcome, Outcome::Users { created, updated } if created + updated > 0)
                    .then(|| Change::Users(patches.iter().map(|patch| patch.id.clone()).collect()))
            }
            Proposal::SetDoNotDisturb { user, .. }
            | Proposal::SetReceipts { user, .. }
            | Proposal::SetNotificationPreferences { user, .. } => Some(Change::DoNotDisturb(*user)),
            Proposal::SetPreferences { .. } if *outcome == (Outcome::Preferences { moved: false }) => None,
            Proposal::SetMute { conversation, user, .. } | Proposal::SetPreferences { conversation, user, .. } => {
                Some(Change::Mute { conversation: *conversation, user: *user })
            }
            // Clients set a read mark again and again; only one that moves is a change.
            Proposal::MarkRead { conversation, user, .. } => match outcome {
                Outcome::Read { seq, before } if seq > before => {
                    Some(Change::Read { conversation: *conversation, user: *user, seq: *seq })
                }
                _ => None,
            },
            Proposal::Kick { user, device_id, reason } => {
                Some(Change::Kick { user: *user, device_id: device_id.clone(), reason: reason.clone() })
            }
            // A kick makes other nodes drop the cached user, and with it the time before which tokens are revoked.
            Proposal::Revoke { user, reason, .. } => {
                Some(Change::Kick { user: *user, device_id: None, reason: reason.clone() })
            }
            Proposal::SetSuspension { user, suspended, until, reason, by } => {
                let (reason, by) = (reason.clone(), by.clone());
                Some(Change::Suspension { user: *user, suspended: *suspended, until: *until, reason, by })
            }
            Proposal::Report { .. } if *outcome == (Outcome::Report { moved: false }) => None,
            Proposal::Report { report, .. } | Proposal::SetReport { report, .. } => {
                let ReportKey { conversation, seq, reporter } = *report;
                Some(Change::Report { conversation, seq, reporter })
            }
            Proposal::SetBlock { .. } if *outcome == (Outcome::Block { moved: false }) => None,
            Proposal::SetBlock { user, other, blocked, .. } => {
                Some(Change::Block { user: *user, other: *other, blocked: *blocked })
            }
            Proposal::Erase(step) => match &**step {
                EraseStep::Begin { user, by, .. } => {
                    let (reason, by) = (ERASED.to_owned(), by.clone());
                    Some(Change::Suspension { user: *user, suspended: true, until: None, reason, by })
                }
                EraseStep::Rename { conversation, .. } => Some(Change::Conversation(*conversation)),
                EraseStep::Profile { person, key } => Some(Change::Erased { user: person.no, erasure: key.clone() }),
                EraseStep::Details { key, .. } => Some(Change::Erased { user: UserNo::NOBODY, erasure: key.clone() }),
                EraseStep::Entries { .. }
                | EraseStep::Rows { .. }
                | EraseStep::BeginConversation { .. }
                | EraseStep::Blank { .. }
                | EraseStep::RowsIn { .. } => None,
            },
            Proposal::SetPushToken { notes, .. } => (!notes.is_empty()).then(|| Change::Notes(notes.clone())),
            Proposal::AddFeedNotes(notes) => Some(Change::Notes(notes.clone())),
            // What these change is in their entries, or is read from the store each time.
            Proposal::Append { .. }
            | Proposal::ChangeMessage { .. }
            | Proposal::React { .. }
            | Proposal::TellReactions { .. }
            | Proposal::CheckpointStream { .. }
            | Proposal::Assign { .. }
            | Proposal::SetLegalHold { .. }
            | Proposal::SetStored(_)
            | Proposal::SetNotificationCounts(_)
            | Proposal::SetApiKeyUse(_)
            | Proposal::SetLastSeen(_)
            | Proposal::AdvanceOutbox { .. }
            | Proposal::DeleteStoredNotifications { .. } => None,
        }
    }
}

/// A node, as it describes itself to its peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The node's name from its settings, unique in the cluster. A process that takes the name displaces the one that
    /// has it.
    pub name: String,
    /// Distinguishes a process from a later one with the same name.
    pub boot_id: u64,
    /// The base URL at which other nodes reach this node's HTTP listener.
    pub address: String,
    /// Where gateways attach to this node, as `host:port`.
    pub link: String,
    /// The version of the program, for operators who upgrade node by node.
    pub version: String,
    /// The node's `role` as its settings spell it, for operators. Without a leader a node says by it whether any may lead.
    pub roles: String,
    /// What the first form of the record lacks. A store keeps it behind the record, where earlier programs pass over it.
    #[serde(skip)]
    pub details: NodeDetails,
}

/// What a node's record says beside what its first form has. Each field may be absent: a record of an earlier version has none,
/// and a later version may have more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDetails {
    /// The version of the messages that the node sends to others; 0: the node does not say.
    pub wire_version: u8,
    /// The names of the gates that the node knows.
    pub gates: Vec<String>,
    /// The node is about to stop, and takes no further function.
    pub draining: bool,
}

impl NodeDetails {
    /// Those of a node that runs this program; the engine adds the version of its messages.
    pub fn of_this_program() -> NodeDetails {
        NodeDetails { gates: Gate::names(), ..NodeDetails::default() }
    }

    /// Whether the node reads what is written behind the gate.
    pub fn knows(&self, gate: &str) -> bool {
        self.gates.iter().any(|known| known == gate)
    }
}

/// The cluster, as the store answers a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterView {
    /// All nodes whose leases run, by name; the one that asks is among them.
    pub nodes: Vec<NodeInfo>,
    /// The leaders whose leases run, of each function one at most.
    pub leaders: Vec<Leader>,
    /// The functions that have leases of their own. The others are led under the lease of the first of all, which every store has.
    pub leased: Vec<Function>,
    /// The names of the gates that are open, also of those that this program does not know.
    pub open_gates: Vec<String>,
}

impl ClusterView {
    /// The leader of this function.
    pub fn leader(&self, function: Function) -> Option<Leader> {
        self.leaders.iter().copied().find(|leader| leader.term.function == function)
    }

    /// Whether functions have leases of their own. Before, one node leads all of them.
    pub fn is_split(&self) -> bool {
        self.leased.len() > 1
    }
}

/// A node that leads a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// Of its process.
    pub boot_id: u64,
    /// The function, and the term in which the node leads it.
    pub term: Term,
}

/// Why a lease was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum HeartbeatError {
    /// A process that started later has taken the name. This one must stop.
    #[error("another process has taken this node's name")]
    Displaced,
    /// The node goes on; the lease ends if no later heartbeat succeeds.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a look at the signs of life shows. A process sets its sign while it lives: a lock of a session with the store, which
/// ends when the process does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifeSigns {
    /// This process's own sign, by a number that is another one each time the sign was set anew; `None`: it is not set.
    pub own: Option<u64>,
    /// Of each lease the process that leads by it, or led last. While functions have no leases of their own there is one.
    pub leaders: Vec<LeaderSign>,
}

/// A leader and its sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderSign {
    /// What the process leads.
    pub function: Function,
    /// The leader's boot id; 0: no process has led.
    pub boot_id: u64,
    /// Another number after each renewal of its lease.
    pub renewal: u64,
    /// Whether its sign is set.
    pub is_set: bool,
    /// The server that was looked at. One that takes another's place knows no signs at first.
    pub server: u64,
}

/// How far the store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHead {
    /// The newest committed position that this server has.
    pub newest: Position,
    /// Names the database server that answered. After a failover another one answers, whose history need not reach as
    /// far.
    pub server: u64,
}

/// A store that several nodes write: the log by which they follow each other, and the leases by which they agree on who
/// is alive and who leads.
pub trait CommitLog: Send + Sync + 'static {
    /// The records after a position, in order: all of them, or the next `limit` or so.
    ///
    /// # Errors
    /// [`StoreError::Pruned`]: some of them are removed for good, and this node must start anew. Other errors: the store
    /// cannot be read now.
    fn committed_after(&self, after: Position, limit: usize) -> StoreResult<LogPage>;
    /// The newest committed position, asked of the store itself.
    ///
    /// # Errors
    /// The store cannot be read now.
    fn newest_position(&self) -> StoreResult<Position>;
    /// The newest committed position, and the server that reports it.
    ///
    /// # Errors
    /// The store cannot be read now.
    fn log_head(&self) -> StoreResult<LogHead> {
        Ok(LogHead { newest: self.newest_position()?, server: 0 })
    }
    /// The history's epoch, as this node read it last.
    fn known_epoch(&self) -> u64 {
        0
    }
    /// Replaces the epoch `lost`, under which nodes have read commits that the store no longer has: every cursor with that
    /// epoch then counts as one of another history, on every node. If another node has replaced the epoch already, nothing
    /// changes.
    ///
    /// # Errors
    /// The store cannot be written now; cursors from before still count.
    fn bump_epoch(&self, _lost: u64) -> StoreResult<()> {
        Ok(())
    }
    /// Removes one chunk of the changes that are older than this, oldest first, by the store's own clock. The newest stay,
    /// however old they are.
    ///
    /// # Errors
    /// The store cannot be written now.
    fn prune(&self, older_than_ms: u64) -> StoreResult<PruneProgress>;

    /// Renews this node's lease and those by which it leads, by the store's clock, and takes the lead of these functions where
    /// nobody's lease runs. While functions have no leases of their own, whoever takes one takes all; once
    /// [`Gate::FunctionLeases`] is open, the leader's heartbeat gives each function a lease, which this node holds at first.
    /// `takes_name`: the name is taken from an earlier process that has it. A process does that with its first heartbeat.
    ///
    /// # Errors
    /// See [`HeartbeatError`].
    fn heartbeat(
        &self,
        me: &NodeInfo,
        lease_ms: u64,
        takes: &[Function],
        takes_name: bool,
    ) -> Result<ClusterView, HeartbeatError>;
    /// Hands a function that the process `from` leads over to another process that lives, in a new term and with a lease. Answers
    /// whether it was handed over.
    ///
    /// # Errors
    /// The store cannot be written now; the function may have been handed over.
    fn hand_over(&self, _function: Function, _from: u64, _to: u64, _lease_ms: u64) -> StoreResult<bool> {
        Ok(false)
    }
    /// Opens gates for good, unless a node lives that is not among those with these boot ids, which know the gates.
    ///
    /// # Errors
    /// The store cannot be written now; the gates are as they were.
    fn open_gates(&self, _gates: &[&'static str], _known_by: &[u64]) -> StoreResult<()> {
        Ok(())
    }
    /// The node that has this name, if its lease runs.
    ///
    /// # Errors
    /// The store cannot be read now.
    fn name_holder(&self, _name: &str) -> StoreResult<Option<NodeInfo>> {
        Ok(None)
    }
    /// The id of the installation that this store is of.
    fn installation(&self) -> InstallationId {
        InstallationId::default()
    }
    /// Tells the other nodes what this node has set. Called before the node's first heartbeat, and when something changes.
    ///
    /// # Errors
    /// The store cannot be written now.
    fn put_node_settings(&self, _boot_id: u64, _settings: &NodeSettings) -> StoreResult<()> {
        Ok(())
    }
    /// What all nodes have set, and the store's clock.
    ///
    /// # Errors
    /// The store cannot be read now.
    fn node_settings(&self) -> StoreResult<KnownSettings> {
        Ok(KnownSettings::default())
    }
    /// Whether nodes set signs of life in this store. Without them a leader is succeeded when its lease has ended.
    fn has_life_signs(&self) -> bool {
        false
    }
    /// Sets this process's sign of life, or keeps it set, and looks at the leaders'.
    ///
    /// # Errors
    /// The store cannot be read now, or has no such signs; this process's sign may not be set.
    fn life_signs(&self, _boot_id: u64) -> StoreResult<LifeSigns> {
        Err(StoreError::Unavailable("this store has no signs of life".into()))
    }
    /// Takes the lead of a function from a leader that has ended, before its lease ends: only if its sign is not set and its lease
    /// was not renewed since the look that answered `lost`. Answers whether this process leads now.
    ///
    /// # Errors
    /// The store cannot be written now; the lead may have been taken.
    fn succeed(&self, _boot_id: u64, _lease_ms: u64, _lost: LeaderSign) -> StoreResult<bool> {
        Ok(false)
    }
    /// Ends the node's lease, and its lead, when it stops.
    ///
    /// # Errors
    /// The store cannot be written now; the lease then ends by itself.
    fn release_lease(&self, boot_id: u64) -> StoreResult<()>;
}
