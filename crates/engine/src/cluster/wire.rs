//! The messages of nodes to each other over the bus. A message of an unknown version counts as lost.

use crate::{live_audience::LeftOut, receipts::ReceiptMove};
use bytes::Bytes;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use tidings_domain::{commit_log::Change, model::*, store::PositionRange};

/// The version of the messages. Nodes of different versions cannot read each other's messages; they read each other's
/// commits from the store. A new kind of message goes to the end of [`BusMessage`] and leaves the version as it is: a node
/// that does not know the kind counts the message as lost.
pub const WIRE_VERSION: u8 = 2;

/// A conversation, as far as fan-out needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRef {
    pub no: ConversationNo,
    pub id: String,
    pub kind: ConversationKind,
    pub pair: Option<(UserNo, UserNo)>,
}

/// A committed batch, as other nodes need it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireBatch {
    pub after: Position,
    pub through: Position,
    pub conversations: Vec<ConversationRef>,
    pub items: Vec<WireItem>,
}

impl WireBatch {
    pub fn span(&self) -> PositionRange {
        PositionRange { after: self.after, through: self.through }
    }

    /// Of which conversations a change of the batch may be why a session sees what is said there.
    pub(crate) fn brings_audience(&self) -> BringsAudience {
        let mut brings = BringsAudience::default();
        for change in self.items.iter().filter_map(|item| item.change.as_ref()) {
            match change {
                Change::Members { conversation, .. } => _ = brings.conversations.insert(*conversation),
                // It may be an account, which has got agents.
                Change::Conversation(_) | Change::Erased { .. } | Change::Opaque => brings.to_any = true,
                Change::Users(_)
                | Change::DoNotDisturb(_)
                | Change::Mute { .. }
                | Change::Read { .. }
                | Change::Kick { .. }
                | Change::Suspension { .. }
                | Change::Block { .. }
                | Change::Report { .. }
                | Change::Notes(_) => {}
            }
        }
        brings
    }
}

/// The conversations to which a batch may bring an audience.
#[derive(Default)]
pub(crate) struct BringsAudience {
    conversations: FxHashSet<ConversationNo>,
    to_any: bool,
}

impl BringsAudience {
    pub(crate) fn to(&self, conversation: ConversationNo) -> bool {
        self.to_any || self.conversations.contains(&conversation)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireItem {
    /// The conversation that the item concerns, as an index of [`WireBatch::conversations`].
    pub conversation: Option<u32>,
    pub entry: Option<StoredEntry>,
    pub change: Option<Change>,
}

/// A committed batch for a node that, as far as the sender knows, has no session which may see some of its entries: it tells where
/// those are, and not what they say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialBatch {
    /// The sender's name: it has all of the batch.
    pub sender: String,
    /// All the rest.
    pub batch: WireBatch,
    pub left_out: Vec<LeftOut>,
    /// The batch ends with an entry that was left out.
    pub last: Option<EntryMarks>,
}

impl From<WireBatch> for PartialBatch {
    fn from(batch: WireBatch) -> Self {
        PartialBatch { sender: String::new(), batch, left_out: Vec::new(), last: None }
    }
}

/// What tells an entry from another one at the same position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryMarks {
    pub seq: u64,
    pub at: u64,
    pub kind: EntryKind,
    pub client_msg_id: Option<String>,
    pub sender: Option<UserNo>,
}

impl EntryMarks {
    pub fn of(entry: &StoredEntry) -> Self {
        let StoredEntry { seq, at, content, .. } = entry;
        let (client_msg_id, sender) = (content.client_msg_id.clone(), content.sender.as_ref().map(|sender| sender.no));
        EntryMarks { seq: *seq, at: *at, kind: content.kind, client_msg_id, sender }
    }
}

/// Of which users and conversations a node may have sessions: see [`LiveAudience`](crate::live_audience::LiveAudience).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AudienceReport {
    pub name: String,
    pub boot_id: u64,
    /// Counts the reports of the process, so that a lost one is noticed.
    pub number: u64,
    /// These are all cells. Else they are some that were empty before.
    pub is_whole: bool,
    /// The node's users come and go: it wants all that is said in groups.
    pub wants_groups: bool,
    /// The numbers of cells, as a serialized bitmap.
    pub cells: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BusMessage {
    Committed(WireBatch),
    /// From a node that is new to the receiver, or cannot reach the store: it is alive, whatever the store says.
    Hello {
        name: String,
        boot_id: u64,
    },
    Typing {
        conversation: ConversationRef,
        user: UserNo,
        user_id: String,
    },
    /// From a node that has a gap after this position and cannot read it from the store: it asks for the missing batches.
    RequestBatches {
        name: String,
        after: Position,
    },
    /// An encoded message about a node's sessions; see [`super::presence`].
    Presence(Vec<u8>),
    /// A popup that the leader has chosen for a session of the receiving node: the JSON of its frame.
    Popup {
        user: UserNo,
        session: u64,
        frame: Vec<u8>,
    },
    /// An encoded message between the leader and a node whose sessions it pushes to; see `push::remote`.
    Push(Vec<u8>),
    /// How far members of conversations have come, for the live members on the receiving node.
    Receipts(Vec<ReceiptMove>),
    /// What the text of a message of the sending node has grown by; an empty chunk tells its length alone.
    StreamChunk {
        conversation: ConversationRef,
        seq: u64,
        /// The boot id of the sending node.
        node: u64,
        offset: u64,
        text: String,
    },
    /// From a node that lacks chunks of a message that grows: it asks for the whole body.
    RequestStream {
        name: String,
        conversation: ConversationNo,
        seq: u64,
    },
    /// The answer: the body so far.
    StreamBody {
        conversation: ConversationRef,
        seq: u64,
        /// The boot id of the sending node.
        node: u64,
        body: String,
    },
    /// A frame that nobody keeps, for the live members of a conversation but this user.
    Transient {
        conversation: ConversationRef,
        except: UserNo,
        frame: Vec<u8>,
    },
    /// To a node that has told its audience.
    CommittedInPart(PartialBatch),
    Audience(AudienceReport),
}

impl BusMessage {
    pub fn encode(&self) -> Bytes {
        // Writing to memory cannot fail. A batch with an opaque change has no form: its receiver reads the store instead.
        postcard::to_extend(self, vec![WIRE_VERSION]).unwrap_or_default().into()
    }

    pub fn decode(bytes: &[u8]) -> Option<BusMessage> {
        let (version, message) = bytes.split_first()?;
        (*version == WIRE_VERSION).then(|| postcard::from_bytes(message).ok())?
    }
}

impl ConversationRef {
    pub fn of(conversation: &Conversation) -> Self {
        let Conversation { no, id, kind, pair, .. } = conversation;
        ConversationRef { no: *no, id: id.clone(), kind: *kind, pair: *pair }
    }

    /// A conversation with all that fan-out needs, and nothing else.
    pub(crate) fn into_conversation(self) -> Conversation {
        let ConversationRef { no, id, kind, pair } = self;
        let (name, avatar, attributes) = (None, None, None);
        let settings = ConversationSettings::default();
        Conversation {
            no,
            id,
            kind,
            pair,
            name,
            avatar,
            attributes,
            created_at: 0,
            member_count: 0,
            settings,
            blocks: PairBlocks::default(),
        }
    }
}

#[cfg(test)]
#[path = "../../tests/units/cluster_wire.rs"]
mod tests;
