//! The stored types of the domain: users, conversations, memberships, timeline entries.

use std::sync::Arc;
pub use tidings_protocol::{
    cursor::{Cursor, LANES},
    entry::EntryKind,
    http::{ConversationKind, DailyWindow, HistoryVisibility, MentionAll, ReachPreferences, ReceiptsMode, Role},
    limits::{RECEIPTS_COUNT_MAX, RECEIPTS_LIST_MAX},
};

/// A user's number, given once and never reused: ids are the app's, numbers are small and fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct UserNo(pub u64);

/// A conversation's number, given once and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConversationNo(pub u64);

/// A position in the store's one commit order. Every entry has its own; later commits have higher ones.
pub type Position = u64;

/// One of three paths of messages through the engine. Lanes share no queue and no worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    /// Conversations of two users. The committer and the shards take this lane first.
    Direct = 0,
    /// Conversations of several members.
    Group = 1,
    /// Official accounts: few writers, and most readers. Taken last.
    Broadcast = 2,
}

impl Lane {
    /// In the order in which they are taken, which is that of their numbers.
    pub const ALL: [Lane; LANES] = [Lane::Direct, Lane::Group, Lane::Broadcast];

    /// A conversation keeps its lane for life; a change would let `n+1` overtake `n`.
    pub fn of(kind: ConversationKind) -> Lane {
        match kind {
            ConversationKind::Direct => Lane::Direct,
            ConversationKind::Group => Lane::Group,
            ConversationKind::Official => Lane::Broadcast,
        }
    }

    /// The name in metrics and refusals.
    pub fn name(self) -> &'static str {
        ["direct", "group", "broadcast"][self as usize]
    }
}

/// A user as the store has it; members of the same conversations see it as a card.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    /// The number by which keys and other rows refer to the user.
    pub no: UserNo,
    /// The id that the app server gave; never changed.
    pub id: String,
    /// For display; absent until the app server sets one.
    pub name: Option<String>,
    /// The address of a picture, as the app server wrote it.
    pub avatar: Option<String>,
    /// JSON text.
    pub attributes: Option<String>,
    /// In milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Boxed because it is rare and the cache holds 100,000 users.
    pub do_not_disturb: Option<Box<DailyWindow>>,
    /// The language and the time zone; boxed for the same reason.
    pub locale: Option<Box<Locale>>,
    /// Tokens issued before this time (milliseconds since 1970 UTC) are refused; 0: none were revoked.
    pub revoked_at: u64,
    /// Others do not learn what the user has read, and the user does not learn what others have read.
    pub receipts_off: bool,
    /// By which roads the user wants to be told; boxed since most users set nothing.
    pub reach: Option<Box<ReachPreferences>>,
    /// Of an account as a caller: the agent who acts for it. Never stored.
    pub agent: Option<Box<Sender>>,
}

impl User {
    /// The user's language as a BCP 47 tag, if it is known.
    pub fn language(&self) -> Option<&str> {
        self.locale.as_ref()?.language.as_deref()
    }

    /// The user's IANA time zone, if it is known.
    pub fn time_zone(&self) -> Option<&str> {
        self.locale.as_ref()?.time_zone.as_deref()
    }

    /// Changes the given ones of language and time zone; an empty text removes one.
    pub fn change_locale(&mut self, language: Option<&str>, time_zone: Option<&str>) {
        let locale = self.locale.take().map(|locale| *locale).unwrap_or_default().with(language, time_zone);
        self.locale = (locale != Locale::default()).then(|| Box::new(locale));
    }

    /// The person behind the caller, whose rates and shares count: the agent, of an account for which one acts.
    pub fn person(&self) -> UserNo {
        self.agent.as_ref().map_or(self.no, |agent| agent.no)
    }
}

/// In which language, and by which clock, a user is told of things.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Locale {
    /// A BCP 47 language tag, as it was written.
    #[serde(skip_serializing_if = "is_default")]
    pub language: Option<String>,
    /// An IANA time zone, as it was written.
    #[serde(skip_serializing_if = "is_default")]
    pub time_zone: Option<String>,
}

impl Locale {
    /// The locale after a change: of a field that is given, an empty text removes the former one.
    #[must_use]
    pub fn with(self, language: Option<&str>, time_zone: Option<&str>) -> Locale {
        let change = |former: Option<String>, new: Option<&str>| match new {
            Some(new) => Some(new.to_owned()).filter(|new| !new.is_empty()),
            None => former,
        };
        Locale { language: change(self.language, language), time_zone: change(self.time_zone, time_zone) }
    }
}

/// A conversation as the store has it, without its members and entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// The number by which keys and other rows refer to the conversation.
    pub no: ConversationNo,
    /// The id that the app server gave, or one made of the two users of a direct conversation; never changed.
    pub id: String,
    /// Direct, group or official; never changed, for the lane follows from it.
    pub kind: ConversationKind,
    /// The two users of a direct conversation; the same user twice for notes to oneself.
    pub pair: Option<(UserNo, UserNo)>,
    /// For display; absent where apps show the members instead.
    pub name: Option<String>,
    /// The address of a picture, as it was written.
    pub avatar: Option<String>,
    /// JSON text.
    pub attributes: Option<String>,
    /// In milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Members now, the owner included.
    pub member_count: u64,
    /// How the conversation differs from others of its kind.
    pub settings: ConversationSettings,
}

/// What is set for one conversation, instead of what holds for its kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ConversationSettings {
    /// What members learn of each other's receipts; `None`: what follows from the kind and the number of members.
    #[serde(skip_serializing_if = "is_default")]
    pub receipts: Option<ReceiptsMode>,
    /// Which entries from before their joining members may read; `None`: all.
    #[serde(skip_serializing_if = "is_default")]
    pub history: Option<HistoryVisibility>,
    /// Who may mention all members; `None`: what follows from the kind.
    #[serde(skip_serializing_if = "is_default")]
    pub mention_all: Option<MentionAll>,
}

impl ConversationSettings {
    /// The settings with those of `changes` that are given.
    #[must_use]
    pub fn with(self, changes: ConversationSettings) -> ConversationSettings {
        ConversationSettings {
            receipts: changes.receipts.or(self.receipts),
            history: changes.history.or(self.history),
            mention_all: changes.mention_all.or(self.mention_all),
        }
    }
}

impl Conversation {
    /// The lane of its messages.
    pub fn lane(&self) -> Lane {
        Lane::of(self.kind)
    }

    /// What members learn of each other's receipts. A conversation with more members than receipts can name or count shows
    /// less than is set.
    pub fn receipts(&self) -> ReceiptsMode {
        let few = self.member_count <= RECEIPTS_LIST_MAX;
        match (self.settings.receipts, self.kind) {
            _ if self.member_count > RECEIPTS_COUNT_MAX => ReceiptsMode::None,
            (Some(ReceiptsMode::Members), _) if !few => ReceiptsMode::Counts,
            (Some(mode), _) => mode,
            (None, ConversationKind::Direct) => ReceiptsMode::Members,
            (None, ConversationKind::Group) if few => ReceiptsMode::Counts,
            (None, _) => ReceiptsMode::None,
        }
    }
}

impl Conversation {
    /// Who may mention all members.
    pub fn mention_all(&self) -> MentionAll {
        match self.kind {
            ConversationKind::Direct => MentionAll::Members,
            ConversationKind::Group | ConversationKind::Official => self.settings.mention_all.unwrap_or_default(),
        }
    }
}

/// The newest end of a timeline. The `last_` fields are 0 for an empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The `seq` of the newest entry.
    pub last_seq: u64,
    /// The time of the newest entry, in milliseconds since 1970 UTC.
    pub last_at: u64,
    /// The newest entry's place in the commit order.
    pub last_position: Position,
    /// The `seq` of the oldest entry that retention has kept; `last_seq + 1` when it has kept none, 1 at the start.
    pub first_seq: u64,
}

/// A user's membership of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// What the member may do in the conversation.
    pub role: Role,
    /// In milliseconds since 1970 UTC.
    pub joined_at: u64,
    /// The conversation's last `seq` when the user joined: entries up to it do not count as unread.
    pub joined_seq: u64,
    /// The newest `seq` that the member has read. It never goes back.
    pub read_seq: u64,
    /// Whether the member's devices are spared the offline pushes of the conversation.
    pub mute: MuteState,
}

/// A member's wish about offline pushes of one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MuteState {
    /// Not muted.
    #[default]
    Off,
    /// Until this time, in milliseconds since 1970 UTC.
    Until(u64),
    /// Until the member ends the mute.
    Forever,
}

impl MuteState {
    /// Whether the mute holds at this time, in milliseconds since 1970 UTC.
    pub fn is_muted(self, now_ms: u64) -> bool {
        match self {
            MuteState::Off => false,
            MuteState::Until(end) => now_ms < end,
            MuteState::Forever => true,
        }
    }
}

/// A stored timeline entry, in no wire format.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StoredEntry {
    /// The number in the conversation: 1, 2, 3, … without a hole.
    pub seq: u64,
    /// The place in the commit order of the whole store.
    pub position: Position,
    /// When it was committed, in milliseconds since 1970 UTC; never before the entry ahead of it in the conversation.
    pub at: u64,
    /// What was proposed.
    pub content: NewEntry,
}

/// The mention of all members.
pub const MENTION_ALL: &str = "@all";

/// A timeline entry before the store has given it `seq` and position.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NewEntry {
    /// A message, or a notice of the server.
    pub kind: EntryKind,
    /// Absent when the app server speaks as the conversation itself.
    pub sender: Option<Sender>,
    /// The sender's own id of the message: the sender's retry with it answers with the first result.
    pub client_msg_id: Option<String>,
    /// The app's word for the kind of content, such as `text`; the server does not read it.
    pub content_type: String,
    /// JSON text, at most 64 KiB.
    pub body: Box<str>,
    /// The ids of users, or `@all`; unread mentions are counted.
    pub mentions: Vec<String>,
    /// Neither counted as unread nor pushed to offline devices.
    pub silent: bool,
    /// Counted as unread, but not pushed to offline devices.
    pub skip_push: bool,
    /// What only some entries have. Boxed because most entries have nothing of it.
    #[serde(with = "details_text")]
    pub details: Option<Box<EntryDetails>>,
}

impl NewEntry {
    /// Who wrote it: the agent, if one wrote it for an account.
    pub fn author(&self) -> Option<&Sender> {
        self.details().agent.as_ref().or(self.sender.as_ref())
    }

    /// What makes a send safe to repeat: its author, and the author's own id of it.
    pub fn idempotency_key(&self) -> Option<(UserNo, &str)> {
        self.author().map(|author| author.no).zip(self.client_msg_id.as_deref())
    }

    /// The details; those of an entry without any are empty.
    pub fn details(&self) -> &EntryDetails {
        const NONE: &EntryDetails = &EntryDetails::NONE;
        self.details.as_deref().unwrap_or(NONE)
    }

    /// The ids whom a message mentions, but for [`MENTION_ALL`]. Other entries mention nobody.
    pub fn mentioned_ids(&self) -> impl Iterator<Item = &str> {
        let is_message = self.kind == EntryKind::Message;
        self.mentions.iter().map(String::as_str).filter(move |id| is_message && *id != MENTION_ALL)
    }

    /// Whether a message mentions all members. Other entries mention nobody.
    pub fn mentions_all(&self) -> bool {
        self.kind == EntryKind::Message && self.mentions.iter().any(|id| id == MENTION_ALL)
    }

    /// The details, to be changed.
    pub fn details_mut(&mut self) -> &mut EntryDetails {
        self.details.get_or_insert_default()
    }
}

/// What only some entries have: what a message refers to, and what became of it since it was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct EntryDetails {
    /// The `seq` of the message that this entry changes; 0 for entries that change none.
    #[serde(skip_serializing_if = "is_default")]
    pub target: u64,
    /// Of an edited message, and of the edit's entry: the version of the body. 0 stands for the first one.
    #[serde(skip_serializing_if = "is_default")]
    pub version: u32,
    /// When the message was edited last, in milliseconds since 1970 UTC; 0: never.
    #[serde(skip_serializing_if = "is_default")]
    pub edited_at: u64,
    /// The user who edited the message last; `None` for an app server.
    #[serde(skip_serializing_if = "is_default")]
    pub edited_by: Option<Sender>,
    /// The entries by which the message was edited, oldest first. Only the newest one has a body.
    #[serde(skip_serializing_if = "is_default")]
    pub edits: Vec<u64>,
    /// By whom and when the message was recalled.
    #[serde(skip_serializing_if = "is_default")]
    pub recalled: Option<Recalled>,
    /// Of an edit's entry, if old bodies are kept: the body that it replaced.
    #[serde(skip_serializing_if = "is_default")]
    pub replaced: Option<ReplacedBody>,
    /// Of a message: how often each reaction was given, in the order in which the reactions were given first.
    #[serde(skip_serializing_if = "is_default")]
    pub reactions: Vec<ReactionCount>,
    /// The `seq` of the message that this one answers; 0: none.
    #[serde(skip_serializing_if = "is_default")]
    pub reply_to: u64,
    /// The answered message as it is now. It is looked up for each reader, and never stored.
    #[serde(skip_serializing_if = "is_default")]
    pub preview: Option<ReplyPreview>,
    /// Of an entry that tells of reactions: the reactions of each message that has others now.
    #[serde(skip_serializing_if = "is_default")]
    pub reaction_changes: Vec<(u64, Vec<ReactionCount>)>,
    /// By whom and when the message was pinned.
    #[serde(skip_serializing_if = "is_default")]
    pub pinned: Option<Pinned>,
    /// Of a message that grows: whether it still does.
    #[serde(skip_serializing_if = "is_default")]
    pub stream: StreamState,
    /// Of a message that still grows: the boot id of the node that takes its pieces.
    #[serde(skip_serializing_if = "is_default")]
    pub stream_node: u64,
    /// Of a message that grew: the `seq` of the entry that ended it; 0: there is none.
    #[serde(skip_serializing_if = "is_default")]
    pub stream_end: u64,
    /// Of an entry in a conversation with an account: the account, whose index of conversations the entry moves.
    #[serde(skip_serializing_if = "is_default")]
    pub desk: Option<ConversationNo>,
    /// The agent who acted for the account that is the sender.
    #[serde(skip_serializing_if = "is_default")]
    pub agent: Option<Sender>,
    /// Of a bulk send: agents find the entry in the conversation's history, and are not handed it.
    #[serde(skip_serializing_if = "is_default")]
    pub for_customer: bool,
    /// Of an entry that tells of an assignment: the agent who has the conversation now.
    #[serde(skip_serializing_if = "is_default")]
    pub assigned_to: Option<Sender>,
}

/// Whether a field need not be written.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Details travel between nodes as they are stored: as JSON, so that a version with more of them can be read.
mod details_text {
    use super::EntryDetails;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(details: &Option<Box<EntryDetails>>, out: S) -> Result<S::Ok, S::Error> {
        details.as_ref().map(|details| details.to_text()).serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(text: D) -> Result<Option<Box<EntryDetails>>, D::Error> {
        let text: Option<String> = Option::deserialize(text)?;
        text.map(|text| serde_json::from_str(&text).map_err(D::Error::custom)).transpose()
    }
}

impl EntryDetails {
    /// The details as JSON, without the fields that are as in [`EntryDetails::NONE`].
    pub fn to_text(&self) -> String {
        // Writing to memory cannot fail for these types.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The version of the message's body.
    pub fn body_version(&self) -> u32 {
        self.version.max(1)
    }

    /// The details of an entry that has none.
    pub const NONE: EntryDetails = EntryDetails {
        target: 0,
        version: 0,
        edited_at: 0,
        edited_by: None,
        edits: Vec::new(),
        recalled: None,
        replaced: None,
        reactions: Vec::new(),
        reply_to: 0,
        preview: None,
        reaction_changes: Vec::new(),
        pinned: None,
        stream: StreamState::Whole,
        stream_node: 0,
        stream_end: 0,
        desk: None,
        agent: None,
        for_customer: false,
        assigned_to: None,
    };
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
        let recalled = content.details().recalled.is_some();
        let is_short = content.body.len() <= PREVIEW_BYTES_MAX;
        ReplyPreview {
            from: content.sender.as_ref().map(|sender| sender.id.clone()),
            content_type: content.content_type.clone(),
            body: (is_short && !recalled).then(|| content.body.clone()),
            recalled,
        }
    }
}

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StreamState {
    /// The message is whole: it was sent at once, or has been ended.
    #[default]
    Whole,
    /// Pieces are still appended.
    Open,
    /// The sender went away before the end: the body is what had come until then.
    Interrupted,
}

/// The sender of an entry. The number is for keys, the id for readers: rendering history needs no look-up per entry.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sender {
    /// The number of the user.
    pub no: UserNo,
    /// The id of the user.
    pub id: String,
}

/// The caller of an operation. The doors find it out from an API key or a token; the engine checks what the actor may
/// do.
#[derive(Debug, Clone)]
pub enum Actor {
    /// An app server, which may do everything.
    App,
    /// A user with a token.
    User(Arc<User>),
}

impl Actor {
    /// The user who calls; `None` for an app server.
    pub fn user(&self) -> Option<&Arc<User>> {
        match self {
            Actor::App => None,
            Actor::User(user) => Some(user),
        }
    }
}
