//! What only some entries have, by their kind: what a message refers to and what became of it since it was sent, or which
//! message another entry changes. How it is stored is `stored`.

mod stored;

pub(super) use stored::{ReceivedEntry, serialize_as_text};

use super::{ConversationNo, EntryKind, Expiry, NewEntry, Sender, StoredEntry};

/// What only some entries have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryDetails {
    /// Of an entry in a conversation with an account.
    pub desk: Option<EntryDesk>,
    /// What the entry has by its kind: always the variant of [`NewEntry::kind`].
    pub of_kind: KindDetails,
    /// The hook has hidden the message, or the entry is a change of such a message: its content is for the sender and app servers.
    pub hidden: bool,
    /// Of an imported message: when it was imported, in milliseconds since 1970 UTC. Nobody is notified of it, and retention counts
    /// from here.
    pub imported_at: Option<u64>,
    /// Fields of a later version, as JSON without the braces: a change of the entry leaves them as they are.
    pub unknown: Option<Box<str>>,
}

/// What an entry in a conversation with an account says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryDesk {
    /// The account, whose index of conversations the entry moves.
    pub account: ConversationNo,
    /// The agent who acted for the account that is the sender.
    pub agent: Option<Sender>,
    /// Of a bulk send: agents find the entry in the conversation's history, and are not handed it.
    pub for_customer: bool,
}

impl EntryDesk {
    /// Of an entry that no agent wrote, and that agents are handed.
    pub fn of(account: ConversationNo) -> EntryDesk {
        EntryDesk { account, agent: None, for_customer: false }
    }
}

/// What an entry has by its kind.
#[expect(
    clippy::large_enum_variant,
    reason = "entries hold their details in a box, and nearly all details are those of messages"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KindDetails {
    /// Of a message.
    Message(MessageDetails),
    /// Of an edit, and of the end of a message that grew.
    Edit(EditDetails),
    /// Of a recall.
    Recall {
        /// The `seq` of the message; 0 until the commit.
        target: u64,
        /// Nobody recalled it: its time was over.
        expired: bool,
    },
    /// Of an entry that tells that a message was pinned, or is no longer.
    Pins {
        /// The `seq` of the message; 0 until the commit.
        target: u64,
        /// By whom and when it was pinned; `None`: it is no longer.
        pinned: Option<Pinned>,
    },
    /// Of an entry of reactions: the reactions of each message that has others now.
    Reactions(Vec<(u64, Vec<ReactionCount>)>),
    /// Of an entry of an assignment.
    Assignment {
        /// The agent who has the conversation now.
        to: Option<Sender>,
    },
    /// Of members, or of the conversation: the body of the entry says it all.
    Notice,
    /// Of a kind of a later version: the details as they are stored.
    Opaque(Box<str>),
}

/// What a message refers to, and what became of it since it was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageDetails {
    /// The version of the body. 0 stands for the first one.
    pub version: u32,
    /// By whom and when the message was edited last.
    pub edited: Option<Edited>,
    /// The entries by which the message was edited, oldest first. Only the newest one has a body.
    pub edits: Vec<u64>,
    /// By whom and when the message was recalled.
    pub recalled: Option<Recalled>,
    /// How often each reaction was given, in the order in which the reactions were given first.
    pub reactions: Vec<ReactionCount>,
    /// The message that this one answers.
    pub reply_to: Option<AnsweredMessage>,
    /// By whom and when the message was pinned.
    pub pinned: Option<Pinned>,
    /// Whether the message grows.
    pub stream: StreamState,
    /// Of a message that grew: the `seq` of the entry that ended it.
    pub stream_end: Option<u64>,
    /// If an edit has added mentions: those that are not of an edit. Only they mention anybody.
    pub mentioned: Option<Vec<String>>,
    /// When it disappears.
    pub expires: Option<Expiry>,
}

/// What an edit made of its message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EditDetails {
    /// The `seq` of the message; 0 until the commit.
    pub target: u64,
    /// The version of the body that the edit made; 0 until the commit.
    pub version: u32,
    /// If old bodies are kept: the body that it replaced.
    pub replaced: Option<ReplacedBody>,
    /// It ended a message that grew, whose beginner had gone away.
    pub interrupted: bool,
}

/// A message was edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    /// When the last edit was committed, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The user who edited the message last; `None` for an app server.
    pub by: Option<Sender>,
}

/// The message that another one answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredMessage {
    /// The `seq` of the answered message.
    pub seq: u64,
    /// The answered message as it is now. It is looked up for each reader, and never stored.
    pub preview: Option<ReplyPreview>,
}

impl AnsweredMessage {
    /// The message with this `seq`, without its preview.
    pub fn at(seq: u64) -> AnsweredMessage {
        AnsweredMessage { seq, preview: None }
    }
}

impl EntryDetails {
    /// The details of an entry of this kind that has none.
    pub fn of(kind: EntryKind) -> EntryDetails {
        let of_kind = match kind {
            EntryKind::Message => KindDetails::Message(MessageDetails::NONE),
            EntryKind::Edit => KindDetails::Edit(EditDetails::default()),
            EntryKind::Recall => KindDetails::Recall { target: 0, expired: false },
            EntryKind::Pins => KindDetails::Pins { target: 0, pinned: None },
            EntryKind::Reactions => KindDetails::Reactions(Vec::new()),
            EntryKind::Assignment => KindDetails::Assignment { to: None },
            EntryKind::MemberChange | EntryKind::ConversationChange => KindDetails::Notice,
            EntryKind::Opaque(_) => KindDetails::Opaque("{}".into()),
        };
        EntryDetails::from(of_kind)
    }
}

impl From<MessageDetails> for Box<EntryDetails> {
    fn from(details: MessageDetails) -> Self {
        Box::new(KindDetails::Message(details).into())
    }
}

impl From<KindDetails> for EntryDetails {
    /// Those of an entry that no account is concerned with.
    fn from(of_kind: KindDetails) -> Self {
        EntryDetails { desk: None, of_kind, hidden: false, imported_at: None, unknown: None }
    }
}

impl MessageDetails {
    /// The details of a message that has none.
    pub const NONE: MessageDetails = MessageDetails {
        version: 0,
        edited: None,
        edits: Vec::new(),
        recalled: None,
        reactions: Vec::new(),
        reply_to: None,
        pinned: None,
        stream: StreamState::Whole,
        stream_end: None,
        mentioned: None,
        expires: None,
    };

    /// The version of the body.
    pub fn body_version(&self) -> u32 {
        self.version.max(1)
    }

    /// The version that a change of this message has left: of an edit the edit's own, whatever has come after it.
    /// `change` is the `seq` of the change's entry.
    pub fn version_left_by(&self, change: u64) -> u32 {
        match self.edits.iter().position(|edit| *edit == change) {
            Some(earlier) => u32::try_from(earlier).unwrap_or(u32::MAX).saturating_add(2),
            None => self.body_version(),
        }
    }
}

impl NewEntry {
    /// The details, to be changed.
    pub fn details_mut(&mut self) -> &mut EntryDetails {
        let kind = self.kind;
        self.details.get_or_insert_with(|| Box::new(EntryDetails::of(kind)))
    }

    /// What the entry says of the account in whose conversation it is.
    pub fn desk(&self) -> Option<&EntryDesk> {
        self.details.as_deref()?.desk.as_ref()
    }

    /// The details of a message; those of one without any, and of other entries, are empty.
    pub fn message_details(&self) -> &MessageDetails {
        const NONE: &MessageDetails = &MessageDetails::NONE;
        match self.of_kind() {
            Some(KindDetails::Message(message)) => message,
            _ => NONE,
        }
    }

    /// The details of a message, to be changed. An entry of another kind has none.
    pub fn message_details_mut(&mut self) -> Option<&mut MessageDetails> {
        match &mut self.details_mut().of_kind {
            KindDetails::Message(message) => Some(message),
            _ => None,
        }
    }

    /// Whether it is a message that was recalled.
    pub fn is_recalled(&self) -> bool {
        self.message_details().recalled.is_some()
    }

    /// Whether its content is for the sender and app servers alone, and nobody is notified of it.
    pub fn is_hidden(&self) -> bool {
        self.details.as_deref().is_some_and(|details| details.hidden)
    }

    /// Whether people without a session may be notified of it.
    pub fn may_be_pushed(&self) -> bool {
        self.kind == EntryKind::Message && !self.silent && !self.skip_push && !self.is_hidden() && !self.is_imported()
    }

    /// The `seq` of the message that it answers.
    pub fn reply_to(&self) -> Option<u64> {
        self.message_details().reply_to.as_ref().map(|reply| reply.seq)
    }

    /// The details of an edit.
    pub fn edit_details(&self) -> Option<&EditDetails> {
        match self.of_kind()? {
            KindDetails::Edit(edit) => Some(edit),
            _ => None,
        }
    }

    /// The `seq` of the message that the entry changes.
    pub fn target(&self) -> Option<u64> {
        let target = match self.of_kind()? {
            KindDetails::Edit(EditDetails { target, .. })
            | KindDetails::Recall { target, .. }
            | KindDetails::Pins { target, .. } => *target,
            KindDetails::Message(_)
            | KindDetails::Reactions(_)
            | KindDetails::Assignment { .. }
            | KindDetails::Notice
            | KindDetails::Opaque(_) => 0,
        };
        Some(target).filter(|target| *target != 0)
    }

    /// Whether it tells that a message's time was over.
    pub fn is_expiry(&self) -> bool {
        matches!(self.of_kind(), Some(KindDetails::Recall { expired: true, .. }))
    }

    /// The reactions of each message that has others now, of an entry of reactions.
    pub fn reaction_changes(&self) -> &[(u64, Vec<ReactionCount>)] {
        match self.of_kind() {
            Some(KindDetails::Reactions(changes)) => changes,
            _ => &[],
        }
    }

    fn of_kind(&self) -> Option<&KindDetails> {
        self.details.as_deref().map(|details| &details.of_kind)
    }
}

/// A recalled message's end: its body is removed, and this stays.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Recalled {
    /// When the recall was committed, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The user who recalled the message; `None` for an app server.
    pub by: Option<Sender>,
    /// The `seq` of the recall's entry.
    pub entry: u64,
    /// Nobody recalled it: its time was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
}

/// A body that an edit replaced.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReplacedBody {
    /// The app's word for the kind of content.
    pub content_type: String,
    /// JSON text.
    pub body: Box<str>,
    /// When this version was made, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The user who made the version; `None` for an app server.
    pub by: Option<Sender>,
}

/// The users who gave one reaction to a message.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReactionCount {
    /// The reaction, such as an emoji.
    pub key: String,
    /// Users who gave it.
    pub count: u32,
    /// The newest of them, the newest first.
    pub newest: Vec<Sender>,
}

/// What a reader of an answer sees of the message that is answered.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReplyPreview {
    /// The sender; `None` when the app server spoke as the conversation.
    pub from: Option<String>,
    /// The app's word for the kind of content.
    pub content_type: String,
    /// JSON text; `None` if it is longer than a preview may be, or the message was recalled.
    pub body: Option<Box<str>>,
    /// Whether the message was recalled.
    pub recalled: bool,
}

impl ReplyPreview {
    /// The preview of a message.
    pub fn of(message: &StoredEntry) -> ReplyPreview {
        let content = &message.content;
        let recalled = content.is_recalled();
        let is_short = content.body.len() <= PREVIEW_BYTES_MAX;
        ReplyPreview {
            from: content.sender.as_ref().map(|sender| sender.id.clone()),
            content_type: if content.is_hidden() { HIDDEN_TYPE.into() } else { content.content_type.clone() },
            // The preview is the same for all readers.
            body: (is_short && !recalled && !content.is_hidden()).then(|| content.body.clone()),
            recalled,
        }
    }
}

/// The `type` of what a reader may not see.
pub const HIDDEN_TYPE: &str = "hidden";

/// The longest body in a preview of an answered message.
pub const PREVIEW_BYTES_MAX: usize = 1024;

/// A message is pinned in its conversation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pinned {
    /// When the message was pinned, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The user who pinned it; `None` for an app server.
    pub by: Option<Sender>,
}

/// Whether a message still grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StreamState {
    /// The message is whole: it was sent at once, or has been ended.
    #[default]
    Whole,
    /// Chunks are still appended.
    Open {
        /// The boot id of the node that takes them.
        node: u64,
    },
    /// The sender went away before the end: the body is what had come until then.
    Interrupted,
}

impl StreamState {
    /// Whether chunks are still appended.
    pub fn is_open(self) -> bool {
        matches!(self, StreamState::Open { .. })
    }
}
