//! The stored types of the domain: users, conversations, memberships, timeline entries.

mod entry_details;

pub use entry_details::*;

use crate::request_digest::RequestDigest;
use std::sync::Arc;
pub use tidings_protocol::{
    cursor::{Cursor, LANES},
    entry::EntryKind,
    http::{
        AllowedReactions, BlocksMode, ConversationKind, DailyWindow, HistoryVisibility, MentionAll,
        NotificationPreferences, Posting, ReceiptsMode, Role,
    },
    limits::{OFFICIAL_REACTIONS, RECEIPTS_COUNT_MAX, RECEIPTS_LIST_MAX},
};
use tidings_protocol::{error::Refusal, http::UserCard};

/// A user's number, given once and never reused: ids are the app's, numbers are small and fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct UserNo(pub u64);

impl UserNo {
    /// The number of nobody: users have numbers from 1 on.
    pub const NOBODY: UserNo = UserNo(0);
}

/// A conversation's number, given once and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConversationNo(pub u64);

/// A position in the store's one commit order. Every entry has its own; later commits have higher ones.
pub type Position = u64;

/// A range of the commit order: the positions after `after`, up to and including `through`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionRange {
    /// The position before the range.
    pub after: Position,
    /// The last position of the range; the same as `after` when the range is empty.
    pub through: Position,
}

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

/// A user as the store has it; members of the same conversations see it as a profile. The directory holds 100,000 of them.
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
    /// In milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Tokens issued before this time (milliseconds since 1970 UTC) are refused; 0: none were revoked.
    pub revoked_at: u64,
    /// Others do not learn what the user has read, and the user does not learn what others have read.
    pub receipts_off: bool,
    /// How many other users the user blocks.
    pub blocks: u32,
    /// Absent: all of them are the defaults. [`User::change_extras`] keeps it so.
    pub extras: Option<Box<UserExtras>>,
}

/// The fields that most users leave unset, behind one pointer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UserExtras {
    /// JSON text.
    pub attributes: Option<String>,
    /// The hours in which the user is not to be disturbed.
    pub do_not_disturb: Option<Box<DailyWindow>>,
    /// The language and the time zone.
    pub locale: Option<Box<Locale>>,
    /// By which channels the user wants to be notified.
    pub notifications: Option<Box<NotificationPreferences>>,
    /// The last suspension, unless it was lifted; it may be over.
    pub suspension: Option<Box<Suspension>>,
    /// Of an account as a caller: the agent who acts for it. Never stored.
    pub agent: Option<Box<Sender>>,
}

/// A user may neither connect nor do anything.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Suspension {
    /// When it ends by itself, in milliseconds since 1970 UTC; absent: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Told to the user.
    pub reason: String,
    /// The operator or the API key that suspended the user.
    pub by: String,
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
}

impl User {
    /// A user of whom nothing else is set.
    pub fn new(no: UserNo, id: String, created_at: u64) -> User {
        User {
            no,
            id,
            name: None,
            avatar: None,
            created_at,
            revoked_at: 0,
            receipts_off: false,
            blocks: 0,
            extras: None,
        }
    }

    /// The user with these extras in place of the former ones.
    #[must_use]
    pub fn with_extras(self, extras: UserExtras) -> User {
        User { extras: (extras != UserExtras::default()).then(|| Box::new(extras)), ..self }
    }

    /// Changes the extras; what is the default again takes no memory.
    pub fn change_extras(&mut self, change: impl FnOnce(&mut UserExtras)) {
        let mut extras = self.extras.take().unwrap_or_default();
        change(&mut extras);
        self.extras = Some(extras).filter(|extras| **extras != UserExtras::default());
    }

    /// How the user is shown.
    pub fn card(&self) -> UserCard {
        UserCard { id: self.id.clone(), name: self.name.clone(), avatar: self.avatar.clone() }
    }

    /// What the app server keeps with the user, as JSON text.
    pub fn attributes(&self) -> Option<&str> {
        self.extras.as_ref()?.attributes.as_deref()
    }

    /// The hours in which the user is not to be disturbed.
    pub fn do_not_disturb(&self) -> Option<&DailyWindow> {
        self.extras.as_ref()?.do_not_disturb.as_deref()
    }

    /// By which channels the user wants to be notified; `None`: nothing is set.
    pub fn notifications(&self) -> Option<&NotificationPreferences> {
        self.extras.as_ref()?.notifications.as_deref()
    }

    /// The last suspension, unless it was lifted; it may be over.
    pub fn suspension(&self) -> Option<&Suspension> {
        self.extras.as_ref()?.suspension.as_deref()
    }

    /// The suspension, if it holds at this time.
    pub fn suspension_at(&self, now_ms: u64) -> Option<&Suspension> {
        self.suspension().filter(|suspension| suspension.until.is_none_or(|until| now_ms < until))
    }

    /// The language and the time zone, if one of them is known.
    pub fn locale(&self) -> Option<&Locale> {
        self.extras.as_ref()?.locale.as_deref()
    }

    /// The user's language as a BCP 47 tag, if it is known.
    pub fn language(&self) -> Option<&str> {
        self.locale()?.language.as_deref()
    }

    /// The user's IANA time zone, if it is known.
    pub fn time_zone(&self) -> Option<&str> {
        self.locale()?.time_zone.as_deref()
    }

    /// Changes the given ones of language and time zone; an empty text removes one.
    pub fn change_locale(&mut self, language: Option<&str>, time_zone: Option<&str>) {
        self.change_extras(|extras| {
            let locale = extras.locale.take().map(|locale| *locale).unwrap_or_default().with(language, time_zone);
            extras.locale = (locale != Locale::default()).then(|| Box::new(locale));
        });
    }

    /// Of an account as a caller: the agent who acts for it.
    pub fn agent(&self) -> Option<&Sender> {
        self.extras.as_ref()?.agent.as_deref()
    }

    /// The person behind the caller, whose rates and shares count: the agent, of an account for which one acts.
    pub fn person(&self) -> UserNo {
        self.agent().map_or(self.no, |agent| agent.no)
    }
}

/// In which language, and by which clock, a user is notified of things.
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
    /// Who of a direct conversation blocks the other. Not stored with the conversation: the directory looks for it.
    pub blocks: PairBlocks,
}

/// Who of the two users of a direct conversation blocks the other, in the order of the pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairBlocks(pub bool, pub bool);

impl PairBlocks {
    /// Whether neither blocks the other.
    pub fn is_none(self) -> bool {
        !(self.0 || self.1)
    }
}

/// What is set for one conversation, instead of what holds for its kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ConversationSettings {
    /// What members learn of each other's receipts; `None`: what follows from the kind and the number of members.
    #[serde(deserialize_with = "known_or_cautious", skip_serializing_if = "is_default")]
    pub receipts: Option<ReceiptsMode>,
    /// Which entries from before their joining members may read; `None`: all.
    #[serde(deserialize_with = "known_or_cautious", skip_serializing_if = "is_default")]
    pub history: Option<HistoryVisibility>,
    /// Who may mention all members; `None`: what follows from the kind.
    #[serde(deserialize_with = "known_or_cautious", skip_serializing_if = "is_default")]
    pub mention_all: Option<MentionAll>,
    /// Which reactions may be given; `None`: what follows from the kind.
    #[serde(deserialize_with = "known_or_cautious", skip_serializing_if = "is_default")]
    pub reactions: Option<AllowedReactions>,
    /// Whether members are notified of messages of those whom they block; `None`: they are.
    #[serde(deserialize_with = "known_or_cautious", skip_serializing_if = "is_default")]
    pub blocks: Option<BlocksMode>,
    /// Who may send; `None`: what follows from the kind.
    #[serde(deserialize_with = "known_or_cautious", skip_serializing_if = "is_default")]
    pub posting: Option<Posting>,
    /// A member sends one message in so many seconds; `None` and 0: no slow mode.
    #[serde(skip_serializing_if = "is_default")]
    pub slow_mode_s: Option<u32>,
    /// Whether users may ask to become members; `None`: they may not.
    #[serde(skip_serializing_if = "is_default")]
    pub join_requests: Option<bool>,
    /// When messages disappear that are sent from now on.
    #[serde(skip_serializing_if = "is_default")]
    pub expires: Option<Expiry>,
    /// How long messages are kept, in place of what holds for all.
    #[serde(skip_serializing_if = "is_default")]
    pub retention: Option<OwnRetention>,
    /// Whether the history of another system is being imported: only the import writes. `Some(false)`: it has been finished.
    #[serde(skip_serializing_if = "is_default")]
    pub importing: Option<bool>,
    /// Whether the conversation is being deleted, or was: nobody reads or writes it. `Some(false)`: it was, and is used again.
    #[serde(skip_serializing_if = "is_default")]
    pub deleted: Option<bool>,
}

/// When a message disappears: what comes first of the two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Expiry {
    /// So many seconds after it was stored. Of a conversation's messages 0: they do not disappear.
    pub after_s: u32,
    /// So many seconds after every other member has read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_read_s: Option<u32>,
}

impl Expiry {
    /// What comes first of two.
    #[must_use]
    pub fn earlier(self, other: Expiry) -> Expiry {
        let after_read_s = self.after_read_s.into_iter().chain(other.after_read_s).min();
        Expiry { after_s: self.after_s.min(other.after_s), after_read_s }
    }

    /// The last time for a message that was stored at this one, in milliseconds since 1970 UTC.
    pub fn last_time(self, stored_at: u64) -> u64 {
        stored_at.saturating_add(u64::from(self.after_s) * 1_000)
    }
}

/// How long a conversation keeps its messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct OwnRetention {
    /// Days; 0: as all conversations.
    pub keep_days: u32,
    /// The newest message goes, too.
    pub removes_newest: bool,
}

/// A setting of which a later version may know more values than this one.
trait CautiousSetting: serde::de::DeserializeOwned {
    /// What an unknown value counts as: whatever it means, it allows no more than this.
    fn cautious() -> Self;
}

impl CautiousSetting for ReceiptsMode {
    fn cautious() -> Self {
        ReceiptsMode::None
    }
}

impl CautiousSetting for HistoryVisibility {
    fn cautious() -> Self {
        HistoryVisibility::Join
    }
}

impl CautiousSetting for MentionAll {
    fn cautious() -> Self {
        MentionAll::Nobody
    }
}

impl CautiousSetting for Posting {
    fn cautious() -> Self {
        Posting::Admins
    }
}

impl CautiousSetting for AllowedReactions {
    fn cautious() -> Self {
        AllowedReactions::Only(Vec::new())
    }
}

impl CautiousSetting for BlocksMode {
    fn cautious() -> Self {
        BlocksMode::Hide
    }
}

fn known_or_cautious<'de, T: CautiousSetting, D: serde::Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    let value: Option<serde_json::Value> = serde::Deserialize::deserialize(from)?;
    Ok(value.map(|value| serde_json::from_value(value).unwrap_or_else(|_| T::cautious())))
}

impl ConversationSettings {
    /// The settings with those of `changes` that are given.
    #[must_use]
    pub fn with(self, changes: ConversationSettings) -> ConversationSettings {
        ConversationSettings {
            receipts: changes.receipts.or(self.receipts),
            history: changes.history.or(self.history),
            mention_all: changes.mention_all.or(self.mention_all),
            reactions: changes.reactions.or(self.reactions),
            blocks: changes.blocks.or(self.blocks),
            posting: changes.posting.or(self.posting),
            slow_mode_s: changes.slow_mode_s.or(self.slow_mode_s),
            join_requests: changes.join_requests.or(self.join_requests),
            expires: changes.expires.or(self.expires),
            retention: changes.retention.or(self.retention),
            importing: changes.importing.or(self.importing),
            deleted: changes.deleted.or(self.deleted),
        }
    }
}

impl Conversation {
    /// The lane of its messages.
    pub fn lane(&self) -> Lane {
        Lane::of(self.kind)
    }

    /// What members learn of each other's receipts. A conversation with more members than receipts can name or count shows
    /// less than is set, and one whose users block each other shows none.
    pub fn receipts(&self) -> ReceiptsMode {
        let few = self.member_count <= RECEIPTS_LIST_MAX;
        match (self.settings.receipts, self.kind) {
            _ if self.member_count > RECEIPTS_COUNT_MAX || !self.blocks.is_none() => ReceiptsMode::None,
            (Some(ReceiptsMode::Members), _) if !few => ReceiptsMode::Counts,
            (Some(mode), _) => mode,
            (None, ConversationKind::Direct) => ReceiptsMode::Members,
            (None, ConversationKind::Group) if few => ReceiptsMode::Counts,
            (None, _) => ReceiptsMode::None,
        }
    }
}

/// U+FE0F, which asks for the coloured form of a character. Keyboards send it or not, for what looks alike.
const EMOJI_PRESENTATION: char = '\u{fe0f}';

/// Whether two reactions are the same one: ❤ and ❤️ are.
pub fn is_same_reaction(one: &str, other: &str) -> bool {
    let shown = |key: &str| key.chars().filter(|character| *character != EMOJI_PRESENTATION).collect::<Vec<_>>();
    one == other || shown(one) == shown(other)
}

/// Where a reaction stands among others: as it is written, or else as the same one.
pub fn place_of_reaction<'a>(given: impl Iterator<Item = &'a str> + Clone, key: &str) -> Option<usize> {
    given
        .clone()
        .position(|given| given == key)
        .or_else(|| given.clone().position(|given| is_same_reaction(given, key)))
}

impl Conversation {
    /// Whether only an import writes: members read, and nothing counts as unread.
    pub fn is_importing(&self) -> bool {
        self.settings.importing == Some(true)
    }

    /// Whether it is being deleted, or was: nobody reads or writes it.
    pub fn is_deleted(&self) -> bool {
        self.settings.deleted == Some(true)
    }

    /// What members may read from before they joined.
    pub fn history(&self) -> HistoryVisibility {
        self.settings.history.unwrap_or_default()
    }

    /// Which reactions may be given.
    pub fn reactions(&self) -> AllowedReactions {
        match (&self.settings.reactions, self.kind) {
            (Some(allowed), _) => allowed.clone(),
            (None, ConversationKind::Direct | ConversationKind::Group) => AllowedReactions::Any,
            (None, ConversationKind::Official) => {
                AllowedReactions::Only(OFFICIAL_REACTIONS.map(str::to_owned).to_vec())
            }
        }
    }

    /// Whether members are notified of messages of those whom they block. In direct conversations they are not.
    pub fn blocks_mode(&self) -> BlocksMode {
        match self.kind {
            ConversationKind::Direct => BlocksMode::Hide,
            ConversationKind::Group | ConversationKind::Official => self.settings.blocks.unwrap_or_default(),
        }
    }

    /// Who may send.
    pub fn posting(&self) -> Posting {
        match self.kind {
            ConversationKind::Direct => Posting::Members,
            ConversationKind::Official => Posting::Admins,
            ConversationKind::Group => self.settings.posting.unwrap_or_default(),
        }
    }

    /// In how many milliseconds a member may send one message; `None`: there is no slow mode.
    pub fn slow_mode_ms(&self) -> Option<u64> {
        self.settings.slow_mode_s.filter(|seconds| *seconds > 0).map(|seconds| u64::from(seconds) * 1_000)
    }

    /// When messages disappear that are sent now.
    pub fn expires(&self) -> Option<Expiry> {
        self.settings.expires.filter(|expiry| expiry.after_s > 0)
    }

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
    /// Whether the member has a row of [`restrictions`](crate::restrictions), of which some may have ended.
    pub restricted: bool,
}

/// The bit of a stored role that says that the member has a row of restrictions. It goes with the role, since a program that does not
/// know the bit takes the role for that of a later version, which gives no right.
const RESTRICTED: u8 = 1 << 4;

impl Membership {
    /// The number by which the role is stored.
    pub fn stored_role(&self) -> u8 {
        self.role as u8 | if self.restricted { RESTRICTED } else { 0 }
    }

    /// The role of a stored number, and whether the member has a row of restrictions.
    pub fn role_of_stored(number: u8) -> (Role, bool) {
        let role = match number & !RESTRICTED {
            1 => Role::Admin,
            2 => Role::Owner,
            // A role of a later version gives no right that is known here.
            _ => Role::Member,
        };
        (role, number & RESTRICTED != 0)
    }
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

    /// As a number: 0 if not muted, the greatest for good, else the time of the end.
    pub fn to_number(self) -> u64 {
        match self {
            MuteState::Off => 0,
            MuteState::Until(end) => end,
            MuteState::Forever => u64::MAX,
        }
    }

    /// The mute of a number.
    pub fn of_number(number: u64) -> MuteState {
        match number {
            0 => MuteState::Off,
            u64::MAX => MuteState::Forever,
            end => MuteState::Until(end),
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

impl StoredEntry {
    /// From when on retention counts the entry's age: its time, or that of its import.
    pub fn kept_since(&self) -> u64 {
        self.content.kept_since(self.at)
    }
}

/// The mention of all members.
pub const MENTION_ALL: &str = "@all";

/// A timeline entry before the store has given it `seq` and position.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "entry_details::ReceivedEntry")]
pub struct NewEntry {
    /// A message, or a notice of the server.
    pub kind: EntryKind,
    /// Absent when the app server speaks as the conversation itself.
    pub sender: Option<Sender>,
    /// The sender's own id of the message: a retry of the same request with it answers with the first result.
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
    /// What only some entries have, and what they have by their kind. Boxed because most entries have nothing of it.
    #[serde(serialize_with = "entry_details::serialize_as_text")]
    pub details: Option<Box<EntryDetails>>,
    /// Of the request that proposes it; of a stored entry, nothing.
    #[serde(skip)]
    pub request: EntryRequest,
}

/// The request by which an entry is proposed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryRequest {
    /// What a retry with the same `client_msg_id` must ask for as well; `None`: anything. It is stored with the first result.
    pub digest: Option<RequestDigest>,
    /// Why the entry may not be appended. With an id of its own it is proposed all the same, since it may be a retry from after
    /// the author lost a right: the first result is the answer, if there is one.
    pub refusal: Option<Box<Refusal>>,
    /// In how many milliseconds the sender may send one message of the conversation; `None`: slow mode does not concern it.
    pub slow_mode_ms: Option<u64>,
    /// Of a message of another system.
    pub import: Option<Box<ImportRequest>>,
}

/// What an imported message brings with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// When it was sent, in milliseconds since 1970 UTC. The entry's time, or that of the entry ahead of it if that is later.
    pub sent_at: u64,
    /// The id of the message ahead of it in the file: without that one stored, this one is rejected, so that a failed commit leaves
    /// no message out.
    pub previous: Option<String>,
    /// The users who reacted, with their reactions, which are in the message's details, too.
    pub reactions: Vec<(UserNo, Vec<String>)>,
}

impl EntryRequest {
    /// The entry's time, if the conversation has no later one.
    pub fn time(&self, now_ms: u64) -> u64 {
        self.import.as_ref().map_or(now_ms, |import| import.sent_at)
    }
}

/// The body of an entry whose body was removed.
pub const NO_BODY: &str = "null";

impl NewEntry {
    /// An entry of which nothing is known: of a kind, or in a form, of a later version.
    pub fn opaque() -> NewEntry {
        NewEntry {
            kind: EntryKind::Opaque(0),
            sender: None,
            client_msg_id: None,
            content_type: EntryKind::Opaque(0).name().into(),
            body: NO_BODY.into(),
            mentions: Vec::new(),
            silent: true,
            skip_push: true,
            details: None,
            request: EntryRequest::default(),
        }
    }

    /// From when on retention counts the age of an entry of this time.
    pub fn kept_since(&self, at: u64) -> u64 {
        self.details.as_deref().and_then(|details| details.imported_at).unwrap_or(at)
    }

    /// Who wrote it: the agent, if one wrote it for an account.
    pub fn author(&self) -> Option<&Sender> {
        self.desk().and_then(|desk| desk.agent.as_ref()).or(self.sender.as_ref())
    }

    /// What makes a send safe to repeat, together with its conversation: its author ([`UserNo::NOBODY`] if the app server
    /// speaks as the conversation itself), and the author's own id of it.
    ///
    /// An imported message is found by its id alone, since what refers to it does not name its sender.
    pub fn idempotency_key(&self) -> Option<(UserNo, &str)> {
        let author = self.author().filter(|_| !self.is_imported()).map_or(UserNo::NOBODY, |author| author.no);
        self.client_msg_id.as_deref().map(|id| (author, id))
    }

    /// Whether it came from another system by an import.
    pub fn is_imported(&self) -> bool {
        self.details.as_deref().is_some_and(|details| details.imported_at.is_some())
    }

    /// Of whom a message is a mention, by id or [`MENTION_ALL`]: whom it named when it was sent, and has named ever since. What an
    /// edit adds is shown and mentions nobody. Other entries mention nobody.
    pub fn mentioned(&self) -> &[String] {
        match self.kind {
            EntryKind::Message if self.is_hidden() => &[],
            EntryKind::Message => self.message_details().mentioned.as_deref().unwrap_or(&self.mentions),
            _ => &[],
        }
    }

    /// The ids whom a message mentions, but for [`MENTION_ALL`].
    pub fn mentioned_ids(&self) -> impl Iterator<Item = &str> {
        self.mentioned().iter().map(String::as_str).filter(|id| *id != MENTION_ALL)
    }

    /// Whether a message mentions all members.
    pub fn mentions_all(&self) -> bool {
        self.mentioned().iter().any(|id| id == MENTION_ALL)
    }
}

/// Whether a field need not be written.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The sender of an entry. The number is for keys, the id for readers: rendering history needs no look-up per entry.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sender {
    /// The number of the user.
    pub no: UserNo,
    /// The id of the user.
    pub id: String,
}

impl Sender {
    /// The user as the sender of an entry.
    pub fn of(user: &User) -> Sender {
        Sender { no: user.no, id: user.id.clone() }
    }
}

/// The caller of an operation. The listeners find it out from an API key or a token; the engine checks what the actor may
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
