//! The rows of [`RowSpace::Chat`](crate::store::RowSpace::Chat): their keys, whose first byte tells the kind, and their
//! values, which are JSON unless the table says otherwise. Numbers in keys are big-endian, so that keys sort as numbers do.
//!
//! | key | value |
//! | --- | --- |
//! | `r` conversation, seq, user | the user's reactions to the message |
//! | `T` conversation | when members were last notified of reactions, in milliseconds since 1970 UTC |
//! | `D` conversation | the messages of whose reactions members are yet to be notified; no row if there are none |
//! | `y` conversation, seq, answer's seq | nothing: the index of answers to a message |
//! | `m` user's id, 0, time downwards, conversation, seq downwards | nothing: the index of messages that mention the user |
//! | `A` conversation, time downwards, seq downwards | nothing: the index of messages that mention all members |
//! | `d` user | how far the user's clients have stored what they were handed: a position of eight bytes for each lane |
//! | `p` user, conversation | what the user has set for the conversation |
//! | `u` user | the user's own settings |
//! | `P` conversation | the `seq` of each pinned message, in the order in which they were pinned |
//! | `f` time, boot | events of notifications on their way into the commit log, in the form of [`feed_note`](crate::feed_note) |
//! | `R` time of a recall, conversation, seq | nothing; until the recalled body has left the store's files |
//! | `B` number of a bulk send | how far the send has come |
//! | `b` number of a bulk send, part | a part of what it sends |
//! | `s` conversation, seq | of a message that still grows: the boot id of the node that takes its chunks, as a number |
//! | `t` digest of a token | whose device the provider reaches by it: see [`push_tokens`](crate::push_tokens) |
//! | `v` user, device | the digest of the device's token |
//! | `V` user | how often a device of the user that had no token got one, in eight bytes |
//! | `N` | how far offline push by providers has come |
//! | `N` 1 | how far the stage has come that decides who is notified of messages |
//! | `n` channel, position, part | what a channel is still to tell some people of a message |
//! | `e` time, position, part | what a channel is to tell some people of a message at that time |
//! | `h` user, conversation, provider, device | the message of which the device was notified last, and until when that may be shown |
//! | `z` day, position, user | the channel that reached the user with a message of that day |
//! | `q` day, conversation, seq, source, part, chunk | what was decided about who is notified of a message, and what became of it |
//! | `Q` day, conversation, seq, source, part, chunk | the same of several messages, of which this one is the newest |
//! | `j` 0 | which versions of the notification policy are kept |
//! | `j` 1, version, part | a part of a version |
//! | `x` time and number | a notification for a provider that was given up |
//! | `S` hour since 1970 UTC, boot of a node, channel | how often the channel was tried, and what came of it: see [`notification_counts`](crate::notification_counts) |
//! | `k` 0 | the version of all API keys: one more after each change |
//! | `k` 1, number | an API key |
//! | `k` 2, number | when the key was last used, in milliseconds since 1970 UTC |
//! | `l` 0 | which entries of the audit log are kept |
//! | `l` 1, number | an entry: who changed what with which key |
//! | `X` conversation, user | the user's mute and ban: see [`restrictions`](crate::restrictions) |
//! | `L` conversation, user | of a conversation in slow mode: when the member sent last, in milliseconds since 1970 UTC |
//! | `I` conversation | the conversation's invites: see [`joining`](crate::joining) |
//! | `J` 0, conversation, user | the user's request to join the conversation |
//! | `J` 1, conversation | how many requests wait in the conversation |
//! | `J` 2, user | how many requests of the user wait |
//! | `F` digest of a user's id | how far the user's erasure has come: see [`erasure`](crate::erasure) |
//! | `H` conversation | the conversation's legal hold |
//! | `G` 0, time, sender, number | nothing: the messages for a later time, in the order of their times |
//! | `G` 1, sender, number | a message for a later time, without its body: see [`scheduled`](crate::scheduled) |
//! | `G` 3, sender, number, part | a part of its body |
//! | `G` 2 | the highest number that was given to such a message |
//! | `Y` 0, time, conversation, seq | the messages that disappear, in the order of their times: see [`expiry`](crate::expiry) |
//! | `Y` 1, conversation, seq | of a message that disappears once it is read: see [`expiry`](crate::expiry) |
//! | `Y` 2, conversation, seq | nothing: a message whose time is over, in a conversation under a legal hold |
//! | `Y` 3, conversation | nothing: a conversation with a retention of its own |
//! | `w`, `g`, `a`, `i` | accounts that answer: see [`desks`](crate::desks) |

pub use crate::row_keys::number_in;
use crate::{
    chat_row_kind::ChatRowKind,
    feed_note::NotesNo,
    model::*,
    store::PreferencesPatch,
    store_error::{StoreError, StoreResult},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidings_protocol::http::{Channel, NotificationPreferences, PushProvider};

/// Messages of a conversation whose reactions can wait to be reported. With more, all are reported at once.
pub const UNTOLD_MAX: usize = 50;

/// The key of a message that still grows.
pub fn stream_key(conversation: ConversationNo, seq: u64) -> Vec<u8> {
    ChatRowKind::OpenStream.key(&[conversation.0, seq])
}

/// The message of a key that [`stream_key`] made.
pub fn stream_of(key: &[u8]) -> Option<(ConversationNo, u64)> {
    Some((ConversationNo(number_in(key, 0)?), number_in(key, 1)?))
}

/// The reactions of one user to a message.
pub fn reactions_key(conversation: ConversationNo, seq: u64, user: UserNo) -> Vec<u8> {
    ChatRowKind::Reactions.key(&[conversation.0, seq, user.0])
}

/// When members of a conversation were last notified of reactions.
pub fn told_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::ReactionsTold.key(&[conversation.0])
}

/// The messages of whose reactions members of a conversation are yet to be notified.
pub fn untold_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::ReactionsUntold.key(&[conversation.0])
}

/// An answer to a message.
pub fn reply_key(conversation: ConversationNo, seq: u64, reply: u64) -> Vec<u8> {
    ChatRowKind::Answer.key(&[conversation.0, seq, reply])
}

/// A place in a list of mentions. Lists have the newest first, so that a lesser place is a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MentionPlace {
    /// When the message was sent, in milliseconds since 1970 UTC.
    pub at: u64,
    /// Where it was sent.
    pub conversation: ConversationNo,
    /// The message.
    pub seq: u64,
}

impl MentionPlace {
    /// Ahead of all mentions.
    pub const FIRST: MentionPlace = MentionPlace { at: u64::MAX, conversation: ConversationNo(0), seq: u64::MAX };
    /// Behind all mentions.
    pub const LAST: MentionPlace = MentionPlace { at: 0, conversation: ConversationNo(u64::MAX), seq: 0 };

    fn order(&self) -> (std::cmp::Reverse<u64>, u64, std::cmp::Reverse<u64>) {
        (std::cmp::Reverse(self.at), self.conversation.0, std::cmp::Reverse(self.seq))
    }
}

impl Ord for MentionPlace {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for MentionPlace {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A message that mentions a user by id. Ids have no byte 0.
pub fn mention_key(user: &str, place: MentionPlace) -> Vec<u8> {
    let mut key = [&[ChatRowKind::Mention.byte()][..], user.as_bytes(), &[0]].concat();
    for number in [u64::MAX - place.at, place.conversation.0, u64::MAX - place.seq] {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

/// A message that mentions all members of its conversation. One row stands for all of them: each looks for it by the
/// conversations that the member is in.
pub fn mention_all_key(place: MentionPlace) -> Vec<u8> {
    ChatRowKind::MentionOfAll.key(&[place.conversation.0, u64::MAX - place.at, u64::MAX - place.seq])
}

/// The message that a row of mentions stands for, of a user or of all.
pub fn mention_in(key: &[u8]) -> Option<MentionPlace> {
    let (_, numbers) = key.split_last_chunk::<24>()?;
    let number = |place: usize| numbers[place * 8..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    let (at, conversation) =
        if ChatRowKind::MentionOfAll.has(key) { (number(1)?, number(0)?) } else { (number(0)?, number(1)?) };
    Some(MentionPlace { at: u64::MAX - at, conversation: ConversationNo(conversation), seq: u64::MAX - number(2)? })
}

/// The range of a user's mentions behind a place.
pub fn mentions_behind(user: &str, place: MentionPlace) -> (Vec<u8>, Vec<u8>) {
    ([mention_key(user, place), vec![0]].concat(), mention_key(user, MentionPlace::LAST))
}

/// The range of a conversation's mentions of all members behind a place, which may be one of another conversation.
pub fn mentions_of_all_behind(conversation: ConversationNo, place: MentionPlace) -> (Vec<u8>, Vec<u8>) {
    let from = match conversation.cmp(&place.conversation) {
        std::cmp::Ordering::Equal => [mention_all_key(place), vec![0]].concat(),
        std::cmp::Ordering::Greater => ChatRowKind::MentionOfAll.key(&[conversation.0, u64::MAX - place.at]),
        // Those of the same time are ahead of the place.
        std::cmp::Ordering::Less => {
            ChatRowKind::MentionOfAll.key(&[conversation.0, u64::MAX - place.at.saturating_sub(1)])
        }
    };
    (from, mention_all_key(MentionPlace { conversation, ..MentionPlace::LAST }))
}

/// The kinds of rows whose keys begin with a conversation and the `seq` of one of its messages: reactions and answers.
pub const KINDS_BY_MESSAGE: [ChatRowKind; 2] = [ChatRowKind::Reactions, ChatRowKind::Answer];

/// The range of a kind's rows from this conversation on.
pub fn conversations_from(kind: ChatRowKind, first: ConversationNo) -> (Vec<u8>, Vec<u8>) {
    (kind.key(&[first.0]), kind.key(&[u64::MAX; 4]))
}

/// The range of the rows of a conversation's messages before `first_seq`, of a kind of [`KINDS_BY_MESSAGE`].
pub fn messages_before(kind: ChatRowKind, conversation: ConversationNo, first_seq: u64) -> (Vec<u8>, Vec<u8>) {
    (kind.key(&[conversation.0, 0]), kind.key(&[conversation.0, first_seq.saturating_sub(1), u64::MAX]))
}

/// The ranges of all mentions: of users, and of all members.
pub fn all_mentions() -> [(Vec<u8>, Vec<u8>); 2] {
    [ChatRowKind::Mention, ChatRowKind::MentionOfAll].map(ChatRowKind::all)
}

/// How far a bulk send has come.
pub fn bulk_progress_key(id: u64) -> Vec<u8> {
    ChatRowKind::BulkSend.key(&[id])
}

/// A part of what a bulk send sends.
pub fn bulk_part_key(id: u64, part: u64) -> Vec<u8> {
    ChatRowKind::BulkSendPart.key(&[id, part])
}

/// How far the search for devices that providers reach has come: a position.
pub fn provider_search_key() -> Vec<u8> {
    ChatRowKind::NotificationProgress.key(&[])
}

/// How far the stage has come that decides who is notified of messages: a position.
pub fn notification_position_key() -> Vec<u8> {
    ChatRowKind::NotificationProgress.key(&[1])
}

/// What a channel is still to tell some people of a message. They come in the order of the messages' positions.
pub fn channel_job_key(channel: u64, position: Position, part: u64) -> Vec<u8> {
    ChatRowKind::ChannelJob.key(&[channel, position, part])
}

/// What a device may still show of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownNotification {
    /// Whose device it is.
    pub user: UserNo,
    /// The conversation.
    pub conversation: ConversationNo,
    /// By which provider it was notified.
    pub provider: PushProvider,
    /// The device's id.
    pub device: String,
    /// The message of which it was notified last.
    pub seq: u64,
    /// From here on it does not show it any more, in milliseconds since 1970 UTC.
    pub expires_at: u64,
}

/// The key of what a device may still show of a conversation.
pub fn shown_key(user: UserNo, conversation: ConversationNo, provider: PushProvider, device: &str) -> Vec<u8> {
    [&ChatRowKind::ShownNotification.key(&[user.0, conversation.0, provider.number()])[..], device.as_bytes()].concat()
}

/// The range of what a user's devices may still show of a conversation.
pub fn shown_of(user: UserNo, conversation: ConversationNo) -> (Vec<u8>, Vec<u8>) {
    (
        ChatRowKind::ShownNotification.key(&[user.0, conversation.0]),
        ChatRowKind::ShownNotification.key(&[user.0, conversation.0, u64::MAX]),
    )
}

/// The range of what all devices may still show.
pub fn all_shown() -> (Vec<u8>, Vec<u8>) {
    ChatRowKind::ShownNotification.before(&[u64::MAX; 3])
}

impl ShownNotification {
    /// The value of a row.
    pub fn value(seq: u64, expires_at: u64) -> Vec<u8> {
        [seq.to_be_bytes(), expires_at.to_be_bytes()].concat()
    }

    /// What a row says; `None`: nothing that this version knows.
    pub fn of_row(key: &[u8], row: &[u8]) -> Option<ShownNotification> {
        let provider = number_in(key, 2)?;
        let (seq, expires_at) = row.split_first_chunk::<8>()?;
        Some(ShownNotification {
            user: UserNo(number_in(key, 0)?),
            conversation: ConversationNo(number_in(key, 1)?),
            provider: PushProvider::of_number(provider)?,
            device: std::str::from_utf8(key.get(25..)?).ok()?.to_owned(),
            seq: u64::from_be_bytes(*seq),
            expires_at: u64::from_be_bytes(expires_at.try_into().ok()?),
        })
    }
}

/// What a channel is to tell some people of a message at this time, in milliseconds since 1970 UTC.
pub fn waiting_channel_key(due: u64, position: Position, part: u64) -> Vec<u8> {
    ChatRowKind::WaitingChannelJob.key(&[due, position, part])
}

/// The range of what channels are to do up to this time.
pub fn waiting_until(now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    (waiting_channel_key(0, 0, 0), waiting_channel_key(now_ms, u64::MAX, u64::MAX))
}

/// Where a row is that waits for the end of its people's quiet hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeferredPlace {
    /// When the quiet hours end, in milliseconds since 1970 UTC.
    pub until: u64,
    /// The message's conversation.
    pub conversation: ConversationNo,
    /// Where the message is.
    pub position: Position,
    /// What made the row.
    pub made_by: [u64; 3],
    /// Tells apart the rows of a message that the same made.
    pub part: u64,
}

impl DeferredPlace {
    /// The key. Rows of a conversation come together, those of its newest message first.
    pub fn key(self) -> Vec<u8> {
        let DeferredPlace { until, conversation, position, made_by: [a, b, c], part } = self;
        ChatRowKind::DeferredChannelJob.key(&[until, conversation.0, u64::MAX - position, a, b, c, part])
    }

    /// The place of a key that [`DeferredPlace::key`] made.
    pub fn of_key(key: &[u8]) -> Option<DeferredPlace> {
        let number = |at| number_in(key, at).filter(|_| ChatRowKind::DeferredChannelJob.has(key));
        let (conversation, position) = (ConversationNo(number(1)?), u64::MAX - number(2)?);
        let made_by = [number(3)?, number(4)?, number(5)?];
        Some(DeferredPlace { until: number(0)?, conversation, position, made_by, part: number(6)? })
    }
}

/// The range of what waits for the end of quiet hours up to this time.
pub fn deferred_until(now_ms: u64) -> (Vec<u8>, Vec<u8>) {
    ChatRowKind::DeferredChannelJob.before(&[now_ms.saturating_add(1)])
}

/// The mark that a channel reached a user with the message at this position, which was sent on this day since 1970 UTC.
pub fn notified_mark_key(day: u64, position: Position, user: UserNo) -> Vec<u8> {
    ChatRowKind::NotifiedMark.key(&[day, position, user.0])
}

/// The range of all marks of messages that were sent before this day.
pub fn marks_before(day: u64) -> (Vec<u8>, Vec<u8>) {
    ChatRowKind::NotifiedMark.before(&[day])
}

/// The channel and the position of a key that [`channel_job_key`] made.
pub fn channel_job_of(key: &[u8]) -> Option<(u64, Position)> {
    let channel = number_in(key, 0).filter(|_| ChatRowKind::ChannelJob.has(key))?;
    Some((channel, number_in(key, 1)?))
}

/// A record of how users were reached with a message, written on this day since 1970 UTC. `place` tells the records of a message
/// and a day apart.
pub fn notification_log_key(day: u64, conversation: ConversationNo, seq: u64, place: [u64; 3]) -> Vec<u8> {
    ChatRowKind::LogRecord.key(&[day, conversation.0, seq, place[0], place[1], place[2]])
}

/// The range of the records of a message that were written on one day.
pub fn notification_log_of(day: u64, conversation: ConversationNo, seq: u64) -> (Vec<u8>, Vec<u8>) {
    (notification_log_key(day, conversation, seq, [0; 3]), notification_log_key(day, conversation, seq, [u64::MAX; 3]))
}

/// A record of several messages, of which this one is the newest.
pub fn notification_log_of_several_key(day: u64, conversation: ConversationNo, seq: u64, place: [u64; 3]) -> Vec<u8> {
    ChatRowKind::LogRecordOfSeveral.key(&[day, conversation.0, seq, place[0], place[1], place[2]])
}

/// The range of the records of several messages that were written on one day, and whose newest message is one of these.
pub fn notification_log_of_several(day: u64, conversation: ConversationNo, seqs: (u64, u64)) -> (Vec<u8>, Vec<u8>) {
    let key = |seq, place| notification_log_of_several_key(day, conversation, seq, place);
    (key(seqs.0, [0; 3]), key(seqs.1, [u64::MAX; 3]))
}

/// The ranges of all records of days before this one.
pub fn notification_log_before(day: u64) -> [(Vec<u8>, Vec<u8>); 2] {
    [ChatRowKind::LogRecord, ChatRowKind::LogRecordOfSeveral].map(|kind| kind.before(&[day]))
}

/// Which versions of the notification policy are kept.
pub fn policy_head_key() -> Vec<u8> {
    ChatRowKind::NotificationPolicy.key(&[0])
}

/// A part of a version of the notification policy.
pub fn policy_version_key(version: u32, part: u64) -> Vec<u8> {
    ChatRowKind::NotificationPolicy.key(&[1, version.into(), part])
}

/// A notification for a provider that was given up. Ids grow with time.
pub fn provider_dead_letter_key(id: u64) -> Vec<u8> {
    ChatRowKind::ProviderDeadLetter.key(&[id])
}

/// What a boot of a node counted on a channel in an hour since 1970 UTC.
pub fn notification_counts_key(hour: u64, boot: u64, channel: Channel) -> Vec<u8> {
    ChatRowKind::ChannelCounts.key(&[hour, boot, channel.number()])
}

/// The range of all that was counted in these hours, both included.
pub fn notification_counts_of(first: u64, last: u64) -> (Vec<u8>, Vec<u8>) {
    (ChatRowKind::ChannelCounts.key(&[first]), ChatRowKind::ChannelCounts.key(&[last, u64::MAX, u64::MAX]))
}

/// The version of all API keys.
pub fn api_keys_version_key() -> Vec<u8> {
    ChatRowKind::ApiKey.key(&[0])
}

/// An API key, by its number.
pub fn api_key_key(number: u64) -> Vec<u8> {
    ChatRowKind::ApiKey.key(&[1, number])
}

/// When an API key was last used.
pub fn api_key_use_key(number: u64) -> Vec<u8> {
    ChatRowKind::ApiKey.key(&[2, number])
}

/// Which entries of the audit log are kept.
pub fn audit_head_key() -> Vec<u8> {
    ChatRowKind::AuditEntry.key(&[0])
}

/// An entry of the audit log.
pub fn audit_entry_key(number: u64) -> Vec<u8> {
    ChatRowKind::AuditEntry.key(&[1, number])
}

/// The first key of a part of a consumer's rows, with the name that its owner has given it.
pub fn event_consumer_key(part: u8, name: &str) -> Vec<u8> {
    [&[ChatRowKind::EventConsumer.byte(), part], name.as_bytes(), &[0]].concat()
}

/// The key of a numbered row of a consumer.
pub fn event_consumer_row_key(part: u8, name: &str, number: u64) -> Vec<u8> {
    [event_consumer_key(part, name), number.to_be_bytes().to_vec()].concat()
}

/// A row of notes for the feed.
pub fn feed_notes_key((number, boot): NotesNo) -> Vec<u8> {
    ChatRowKind::FeedNotes.key(&[number, boot])
}

/// The range of such rows from this number on.
pub fn feed_notes_from(number: u64) -> (Vec<u8>, Vec<u8>) {
    (feed_notes_key((number, 0)), feed_notes_key((u64::MAX, u64::MAX)))
}

/// The note of a recall: a message that was recalled at this time and whose body may still be in the store's files.
pub fn recall_key(at: u64, conversation: ConversationNo, seq: u64) -> Vec<u8> {
    ChatRowKind::Recall.key(&[at, conversation.0, seq])
}

/// The range of all notes of recalls, the oldest first.
pub fn all_recalls() -> (Vec<u8>, Vec<u8>) {
    (ChatRowKind::Recall.key(&[0]), ChatRowKind::Recall.key(&[u64::MAX; 4]))
}

/// The pinned messages of a conversation.
pub fn pins_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::Pins.key(&[conversation.0])
}

/// A value as it is stored.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Writing to memory cannot fail for these types.
    serde_json::to_vec(value).unwrap_or_default()
}

/// A stored value; the default for a row that does not exist.
///
/// # Errors
/// [`StoreError::Damaged`]: the row is not of this type.
pub fn decode<T: Default + DeserializeOwned>(row: Option<&[u8]>) -> StoreResult<T> {
    let Some(row) = row else { return Ok(T::default()) };
    serde_json::from_slice(row).map_err(|error| StoreError::Damaged(format!("a chat row: {error}")))
}

/// The key of a user's stored positions.
pub fn stored_key(user: UserNo) -> Vec<u8> {
    ChatRowKind::Stored.key(&[user.0])
}

/// The key of a user's own settings.
pub fn settings_key(user: UserNo) -> Vec<u8> {
    ChatRowKind::UserSettings.key(&[user.0])
}

/// That a user blocks another one. All of a user's are one range.
pub fn block_key(user: UserNo, blocked: UserNo) -> Vec<u8> {
    ChatRowKind::Block.key(&[user.0, blocked.0])
}

/// What a user has set for a conversation. All of a user's are one range.
pub fn preferences_key(user: UserNo, conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::Preferences.key(&[user.0, conversation.0])
}

/// The value of a row of stored positions.
pub fn encode_stored(positions: [Position; LANES]) -> Vec<u8> {
    positions.iter().flat_map(|position| position.to_be_bytes()).collect()
}

/// The stored positions of a row; zeros without a row.
///
/// # Errors
/// The row is damaged.
pub fn decode_stored(row: Option<&[u8]>) -> StoreResult<[Position; LANES]> {
    let mut positions = [0; LANES];
    let Some(row) = row else { return Ok(positions) };
    if row.len() != LANES * 8 {
        return Err(StoreError::Damaged("a row of stored positions".into()));
    }
    for (position, bytes) in positions.iter_mut().zip(row.chunks_exact(8)) {
        *position = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    }
    Ok(positions)
}

/// What a user has set for all conversations. The fields are in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserSettings {
    /// How many other users the user blocks.
    #[serde(skip_serializing_if = "is_default")]
    pub blocks: u32,
    /// By which channels the user wants to be notified.
    #[serde(rename = "reach", with = "crate::stored_names::preferences", skip_serializing_if = "is_default")]
    pub notifications: NotificationPreferences,
    /// Others do not learn what the user has read, and the user does not learn what others have read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub receipts_off: bool,
    /// How many reports of the user are neither resolved nor dismissed.
    #[serde(skip_serializing_if = "is_default")]
    pub reports: u32,
    /// The last suspension, unless it was lifted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Box<Suspension>>,
    /// What newer versions have set: it is kept.
    #[serde(flatten)]
    pub others: serde_json::Map<String, serde_json::Value>,
}

impl UserSettings {
    /// The settings of a row; those of a user without a row are the defaults.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: Option<&[u8]>) -> StoreResult<UserSettings> {
        decode(row)
    }

    /// The user with these settings.
    #[must_use]
    pub fn of_user(self, user: User) -> User {
        let notifications =
            (self.notifications != NotificationPreferences::default()).then(|| Box::new(self.notifications));
        let UserSettings { blocks, receipts_off, suspension, .. } = self;
        let mut user = User { receipts_off, blocks, ..user };
        user.change_extras(|extras| (extras.notifications, extras.suspension) = (notifications, suspension));
        user
    }

    /// The row; absent for the defaults.
    pub fn encode(&self) -> Option<Vec<u8>> {
        (*self != UserSettings::default()).then(|| encode(self))
    }
}

/// What a member has set for one conversation, and what is kept of a membership that has ended, for the next one. The
/// fields are in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Preferences {
    /// The conversation is kept apart from the list.
    #[serde(skip_serializing_if = "is_default")]
    pub archived: bool,
    /// Entries up to this `seq` are no longer shown to the member; 0: all are.
    #[serde(skip_serializing_if = "is_default")]
    pub cleared_seq: u64,
    /// The newest `seq` when the member hid the conversation, which is hidden until a message comes after it.
    #[serde(skip_serializing_if = "is_default")]
    pub hidden_at: Option<u64>,
    /// The newest `seq` when the last membership ended: the member was handed the entries up to it. Absent: none has ended.
    #[serde(skip_serializing_if = "is_default")]
    pub left_seq: Option<u64>,
    /// The mute when the last membership ended, as [`MuteState::to_number`].
    #[serde(skip_serializing_if = "is_default")]
    pub left_with_mute: u64,
    /// The member wants the conversation to look unread.
    #[serde(skip_serializing_if = "is_default")]
    pub marked_unread: bool,
    /// When the member pinned the conversation to the top of the list, in milliseconds since 1970 UTC; 0: not pinned.
    #[serde(skip_serializing_if = "is_default")]
    pub pinned_at: u64,
    /// The member's own name for the conversation.
    #[serde(skip_serializing_if = "is_default")]
    pub title: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Preferences {
    /// The preferences of a row; those without a row are the defaults.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: Option<&[u8]>) -> StoreResult<Preferences> {
        decode(row)
    }

    /// The row; absent for the defaults.
    pub fn encode(&self) -> Option<Vec<u8>> {
        (*self != Preferences::default()).then(|| encode(self))
    }

    /// The preferences after a change, in a conversation whose newest entry is `last_seq`.
    #[must_use]
    pub fn with(self, patch: &PreferencesPatch, last_seq: u64, now_ms: u64) -> Preferences {
        let pinned_at = match patch.pinned {
            Some(true) if self.pinned_at == 0 => now_ms,
            Some(false) => 0,
            Some(true) | None => self.pinned_at,
        };
        Preferences {
            archived: patch.archived.unwrap_or(self.archived),
            cleared_seq: self.cleared_seq.max(patch.clear_to_seq.unwrap_or(0).min(last_seq)),
            hidden_at: patch.hidden.map_or(self.hidden_at, |hidden| hidden.then_some(last_seq)),
            left_seq: self.left_seq,
            left_with_mute: self.left_with_mute,
            marked_unread: patch.marked_unread.unwrap_or(self.marked_unread),
            pinned_at,
            title: patch.title.clone().unwrap_or(self.title),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn settings_of_other_versions_are_read_and_what_is_not_known_is_kept() {
        let read = |text: &str| UserSettings::decode(Some(text.as_bytes())).unwrap();
        let older = read(r#"{"receipts_off":true}"#);
        assert_eq!((older.receipts_off, older.notifications), (true, NotificationPreferences::default()));
        let newer = r#"{"reach":{"snooze_until":5},"receipts_off":true,"theme":"dark"}"#;
        assert_eq!(String::from_utf8(read(newer).encode().unwrap()).unwrap(), newer);
        assert_eq!(read(newer).notifications.snooze_until, Some(5));
        let unreadable = read(r#"{"reach":{"off":["pigeon"]},"receipts_off":true}"#);
        assert_eq!((unreadable.receipts_off, unreadable.notifications), (true, NotificationPreferences::default()));
        assert_eq!(UserSettings::decode(None).unwrap().encode(), None);
    }
}
