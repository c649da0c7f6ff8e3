//! What nodes say to each other over the bus. A message of a version that is not known is as good as lost.

use super::log::Change;
use crate::{model::*, store::Span};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The form of the messages; nodes of another form next to this one hear each other's commits from the store.
const FORM: u8 = 1;

/// What fan-out needs to know of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRef {
    pub no: ConversationNo,
    pub id: String,
    pub kind: ConversationKind,
    pub pair: Option<(UserNo, UserNo)>,
}

/// A commit of another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireBatch {
    pub after: Position,
    pub through: Position,
    pub conversations: Vec<ConversationRef>,
    pub items: Vec<WireItem>,
}

impl WireBatch {
    pub fn span(&self) -> Span {
        Span { after: self.after, through: self.through }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireItem {
    /// Of the batch's conversations, the one that it concerns.
    pub conversation: Option<u32>,
    pub entry: Option<StoredEntry>,
    pub change: Option<Change>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    Committed(WireBatch),
    /// A node is new, or hears again: here is who it is.
    Hello {
        name: String,
        boot_id: u64,
    },
    Typing {
        conversation: ConversationRef,
        user: UserNo,
        user_id: String,
    },
    /// What a node tells of its sessions; see [`super::presence`].
    Presence(Vec<u8>),
}

impl Message {
    pub fn encode(&self) -> Bytes {
        // Writing to memory cannot fail.
        postcard::to_extend(self, vec![FORM]).unwrap_or_default().into()
    }

    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (form, message) = bytes.split_first()?;
        (*form == FORM).then(|| postcard::from_bytes(message).ok())?
    }
}

impl ConversationRef {
    pub fn of(card: &Conversation) -> Self {
        ConversationRef { no: card.no, id: card.id.clone(), kind: card.kind, pair: card.pair }
    }
}
