//! What nodes say to each other over the bus. A message of a version that is not known is as good as lost.

use super::log::Change;
use crate::{model::*, store::Span};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The form of the messages; nodes of another form next to this one hear each other's commits from the store. New kinds
/// of messages go to the end of [`Message`] and leave it as it is: who does not know them takes them as lost.
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
    /// A node cannot read what was committed after this position, and asks for it.
    Ask {
        name: String,
        after: Position,
    },
    /// What a node tells of its sessions; see [`super::presence`].
    Presence(Vec<u8>),
    /// A popup that the leader has chosen for a session of the node that hears this: its frame's JSON.
    Popup {
        user: UserNo,
        session: u64,
        frame: Vec<u8>,
    },
    /// Between the leader and nodes whose sessions it pushes to; see `push::elsewhere`.
    Push(Vec<u8>),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn committed() -> Message {
        let content = NewEntry {
            kind: EntryKind::Message,
            sender: Some(Sender { no: UserNo(7), id: "alice".into() }),
            client_msg_id: Some("1".into()),
            content_type: "text".into(),
            body: r#"{"text":"héllo"}"#.into(),
            mentions: vec!["bob".into()],
            silent: false,
            skip_push: true,
        };
        let entry = Some(StoredEntry { seq: 3, position: 12, at: 1_772_366_400_000, content });
        let kinds = [ConversationKind::Direct, ConversationKind::Group, ConversationKind::Official];
        let conversation =
            |kind| ConversationRef { no: ConversationNo(9), id: "g".into(), kind, pair: Some((UserNo(7), UserNo(8))) };
        let left = Change::Members {
            conversation: ConversationNo(9),
            joined: vec![],
            left: vec![UserNo(8)],
            changed: vec![UserNo(7)],
        };
        let items = vec![
            WireItem { conversation: Some(1), entry, change: None },
            WireItem { conversation: Some(0), entry: None, change: Some(left) },
            WireItem { conversation: None, entry: None, change: Some(Change::Users(vec!["alice".into()])) },
        ];
        let conversations = kinds.map(conversation).to_vec();
        Message::Committed(WireBatch { after: 11, through: 14, conversations, items })
    }

    #[test]
    fn what_is_said_is_heard() {
        let hello = Message::Hello { name: "a".into(), boot_id: u64::MAX };
        for message in [committed(), hello, Message::Presence(vec![1, 2, 3])] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn another_form_is_not_guessed_at() {
        let mut bytes = committed().encode().to_vec();
        bytes[0] += 1;
        assert_eq!(Message::decode(&bytes), None);
        assert_eq!(Message::decode(&[]), None);
    }

    proptest! {
        #[test]
        fn nonsense_is_no_message_or_one(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..300usize) {
            let _ = Message::decode(&[&[FORM][..], &bytes].concat());
            let whole = committed().encode();
            let cut = cut.min(whole.len());
            prop_assert_eq!(Message::decode(&whole[..cut]).is_some(), cut == whole.len());
        }
    }
}
