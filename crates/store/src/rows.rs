//! The keys of rows, and the encoding of both. Numbers in keys are big-endian, so that keys sort as numbers do. An encoded
//! row starts with a version byte, so that a later encoding can be told apart.
//!
//! | space | key | row |
//! | --- | --- | --- |
//! | meta | `e` | epoch, format version |
//! | meta | `n` | counters: users, conversations, last position |
//! | meta | `u` id / `U` no | a user's number / the user |
//! | meta | `c` id / `C` no | a conversation's number / the conversation |
//! | meta | `m` conversation, user | membership, read mark, mute |
//! | meta | `r` user, kind, conversation | nothing: the index of a user's conversations |
//! | meta | `s` user | when the user's last session ended |
//! | meta | `v` user | the time of revocation: tokens issued before it are refused |
//! | meta | `f` conversation | the oldest sequence that retention left |
//! | meta | `o` position / `O` | entries that await offline push / how far its consumer has come, first row left |
//! | meta | `d` / `q` / `k` id | a notification: a dead letter / one that waits for another attempt / an unacknowledged message |
//! | meta | `g` name | nothing: the gate is open |
//! | meta | `x` position, part / `X` | a part of the log of a batch, with its last position / where the log begins; see `event_log` |
//! | meta | `b` day | bytes of entries of that UTC day |
//! | meta | `a` key | a row of `RowSpace::Chat` |
//! | timeline | conversation, seq | the entry, or the head of one with a large body |
//! | bodies | conversation, seq, part | a part of a large body |
//! | dedupe | 1, conversation, author, client message id | conversation, seq, at, position, digest of the request if there is one |
//! | dedupe | author, client message id | conversation, seq, at, position: written by earlier versions |
//! | push | a byte for the kind of row, its key | the row; see `push` |
//! | popups | a byte for the kind of row, its key | bytes that `popups` encodes |

pub(crate) use crate::meta_kind::MetaKind;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidings_domain::{
    commit_log::{Change, NodeInfo},
    model::*,
    store::*,
};

/// Longer values are split: a damaged page inside a long value at the journal's end can keep fjall from opening.
pub(crate) const VALUE_BYTES_MAX: usize = 3 * 1024;
/// The version byte of every encoded row.
const ROW_VERSION: u8 = 1;

/// A key of the space `meta`: a byte for the kind of row, then numbers.
pub(crate) fn key(kind: MetaKind, numbers: &[u64]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + numbers.len() * 8);
    key.push(kind.byte());
    numbers.iter().for_each(|n| key.extend_from_slice(&n.to_be_bytes()));
    key
}

pub(crate) fn id_key(kind: MetaKind, id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + id.len());
    key.push(kind.byte());
    key.extend_from_slice(id.as_bytes());
    key
}

/// The key of a stored notification: each table has a kind of its own.
pub(crate) fn notification_key(NotificationKey { table, id }: NotificationKey) -> Vec<u8> {
    let kind = match table {
        NotificationTable::DeadLetters => MetaKind::DeadLetter,
        NotificationTable::Retries => MetaKind::Retry,
        NotificationTable::Unacknowledged => MetaKind::Unacknowledged,
    };
    key(kind, &[id])
}

/// The key of an entry in the index of a user's conversations.
pub(crate) fn user_conversation_key(user: UserNo, kind: ConversationKind, conversation: ConversationNo) -> Vec<u8> {
    let mut key = key(MetaKind::UserConversation, &[user.0]);
    key.push(kind_byte(kind));
    key.extend_from_slice(&conversation.0.to_be_bytes());
    key
}

pub(crate) fn kind_byte(kind: ConversationKind) -> u8 {
    match kind {
        ConversationKind::Direct => 0,
        ConversationKind::Group => 1,
        ConversationKind::Official => 2,
    }
}

pub(crate) fn kind_of(byte: u8) -> ConversationKind {
    match byte {
        0 => ConversationKind::Direct,
        1 => ConversationKind::Group,
        _ => ConversationKind::Official,
    }
}

pub(crate) fn entry_key(conversation: ConversationNo, seq: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(16);
    key.extend_from_slice(&conversation.0.to_be_bytes());
    key.extend_from_slice(&seq.to_be_bytes());
    key
}

pub(crate) fn part_key(conversation: ConversationNo, seq: u64, part: u16) -> Vec<u8> {
    let mut key = entry_key(conversation, seq);
    key.extend_from_slice(&part.to_be_bytes());
    key
}

/// The key in the space `meta` of a row of [`RowSpace::Chat`].
pub(crate) fn chat_key(key: &[u8]) -> Vec<u8> {
    [&MetaKind::Chat.only_key(), key].concat()
}

/// The big-endian number at an offset in a key or row.
pub(crate) fn number_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

pub(crate) fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|chunk| number_at(chunk, 0)).collect()
}

pub(crate) fn numbers_row(numbers: &[u64]) -> Vec<u8> {
    let mut row = Vec::with_capacity(numbers.len() * 8);
    numbers.iter().for_each(|n| row.extend_from_slice(&n.to_be_bytes()));
    row
}

/// The last number given to a user and to a conversation, and the last position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    pub users: u64,
    pub conversations: u64,
    pub position: Position,
}

impl Counters {
    pub(crate) fn of_row(row: &[u8]) -> Option<Counters> {
        match numbers(row)[..] {
            [users, conversations, position] => Some(Counters { users, conversations, position }),
            _ => None,
        }
    }

    pub(crate) fn row(self) -> Vec<u8> {
        numbers_row(&[self.users, self.conversations, self.position])
    }
}

pub(crate) const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// The UTC day of a time, counted from 1970.
pub(crate) fn day_of(at_ms: u64) -> u64 {
    at_ms / DAY_MS
}

pub(crate) fn damaged(what: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(what.to_string())
}

/// Encodes a row: the version byte, then postcard.
pub(crate) fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    // Writing to memory cannot fail for these types.
    postcard::to_extend(row, vec![ROW_VERSION]).unwrap_or_default()
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> StoreResult<T> {
    decode_with_rest(bytes).map(|(row, _)| row)
}

/// Decodes a row, and yields what follows it.
pub(crate) fn decode_with_rest<T: DeserializeOwned>(bytes: &[u8]) -> StoreResult<(T, &[u8])> {
    match bytes.split_first() {
        Some((&ROW_VERSION, row)) => postcard::take_from_bytes(row).map_err(|e| damaged(format_args!("a row: {e}"))),
        Some((version, _)) => {
            Err(damaged(format_args!("a row has encoding version {version}; was it written by a newer program?")))
        }
        None => Err(damaged("an empty row")),
    }
}

/// Whether a newer program has written the row in a form that this one does not know.
pub(crate) fn is_newer(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|version| *version > ROW_VERSION)
}

/// Decodes a change. One of a kind that this version does not know is [`Change::Opaque`].
pub(crate) fn decode_change(bytes: &[u8]) -> StoreResult<Change> {
    let kind = || postcard::take_from_bytes::<u32>(bytes.get(1..)?).ok();
    if is_newer(bytes) || kind().is_some_and(|(kind, _)| kind >= Change::KINDS) {
        Ok(Change::Opaque)
    } else {
        decode(bytes)
    }
}

#[derive(Serialize, Deserialize)]
struct UserRow {
    id: String,
    name: Option<String>,
    avatar: Option<String>,
    attributes: Option<String>,
    created_at: u64,
    window: Option<(String, String, String)>,
}

impl UserRow {
    fn of(user: &User) -> Self {
        let window = user.do_not_disturb().cloned().map(|w| (w.start, w.end, w.time_zone));
        let attributes = user.attributes().map(str::to_owned);
        let User { id, name, avatar, created_at, .. } = user.clone();
        UserRow { id, name, avatar, attributes, created_at, window }
    }

    fn user(self, no: UserNo, locale: Option<Box<Locale>>) -> User {
        let UserRow { id, name, avatar, attributes, created_at, window } = self;
        let do_not_disturb = window.map(|(start, end, time_zone)| Box::new(DailyWindow { start, end, time_zone }));
        let extras = UserExtras { attributes, do_not_disturb, locale, ..UserExtras::default() };
        User { name, avatar, ..User::new(no, id, created_at) }.with_extras(extras)
    }
}

/// Encodes a user's profile. A language or time zone follows the row as JSON; older programs pass over it.
pub(crate) fn encode_user(user: &User) -> Vec<u8> {
    let mut bytes = encode(&UserRow::of(user));
    if let Some(locale) = user.locale() {
        // Writing to memory cannot fail.
        bytes.extend(serde_json::to_vec(locale).unwrap_or_default());
    }
    bytes
}

/// Decodes a row of [`encode_user`].
pub(crate) fn decode_user(no: UserNo, bytes: &[u8]) -> StoreResult<User> {
    let (row, after): (UserRow, &[u8]) = decode_with_rest(bytes)?;
    let locale = match after {
        [] => None,
        text => {
            let locale = serde_json::from_slice(text);
            Some(Box::new(locale.map_err(|error| damaged(format_args!("the row of user {}: {error}", no.0)))?))
        }
    };
    Ok(row.user(no, locale))
}

/// Encodes a node's record. Its details follow the first form as JSON; older programs pass over them.
pub(crate) fn encode_node(node: &NodeInfo) -> Vec<u8> {
    let mut bytes = encode(node);
    // Writing to memory cannot fail.
    bytes.extend(serde_json::to_vec(&node.details).unwrap_or_default());
    bytes
}

/// Decodes a row of [`encode_node`]. Details that cannot be read count as none, since no node may stop for another's.
pub(crate) fn decode_node(bytes: &[u8]) -> StoreResult<NodeInfo> {
    let (node, after): (NodeInfo, &[u8]) = decode_with_rest(bytes)?;
    Ok(NodeInfo { details: serde_json::from_slice(after).unwrap_or_default(), ..node })
}

#[derive(Serialize, Deserialize)]
struct ConversationRow {
    id: String,
    kind: u8,
    pair: Option<(u64, u64)>,
    name: Option<String>,
    avatar: Option<String>,
    attributes: Option<String>,
    created_at: u64,
    member_count: u64,
}

impl ConversationRow {
    fn of(conversation: &Conversation) -> Self {
        let Conversation { id, kind, pair, name, avatar, attributes, created_at, member_count, .. } =
            conversation.clone();
        let pair = pair.map(|(a, b)| (a.0, b.0));
        ConversationRow { id, kind: kind_byte(kind), pair, name, avatar, attributes, created_at, member_count }
    }

    fn conversation(self, no: ConversationNo, settings: ConversationSettings) -> Conversation {
        let ConversationRow { id, kind, pair, name, avatar, attributes, created_at, member_count } = self;
        let pair = pair.map(|(a, b)| (UserNo(a), UserNo(b)));
        Conversation {
            no,
            id,
            kind: kind_of(kind),
            pair,
            name,
            avatar,
            attributes,
            created_at,
            member_count,
            settings,
            blocks: PairBlocks::default(),
        }
    }
}

/// Encodes a conversation's details. Settings that differ from those of its kind follow the row as JSON; older programs pass over
/// them.
pub(crate) fn encode_conversation(conversation: &Conversation) -> Vec<u8> {
    let mut bytes = encode(&ConversationRow::of(conversation));
    if conversation.settings != ConversationSettings::default() {
        // Writing to memory cannot fail.
        bytes.extend(serde_json::to_vec(&conversation.settings).unwrap_or_default());
    }
    bytes
}

/// Decodes a row of [`encode_conversation`].
pub(crate) fn decode_conversation(no: ConversationNo, bytes: &[u8]) -> StoreResult<Conversation> {
    let fault = |why: &dyn std::fmt::Display| damaged(format_args!("the row of conversation {}: {why}", no.0));
    let row = match bytes.split_first() {
        Some((&ROW_VERSION, row)) => row,
        _ => return Err(fault(&"another encoding version; was it written by a newer program?")),
    };
    let (row, after): (ConversationRow, &[u8]) = postcard::take_from_bytes(row).map_err(|error| fault(&error))?;
    let settings = match after {
        [] => ConversationSettings::default(),
        text => serde_json::from_slice(text).map_err(|error| fault(&error))?,
    };
    Ok(row.conversation(no, settings))
}

#[derive(Serialize, Deserialize)]
pub(crate) struct MembershipRow {
    role: u8,
    joined_at: u64,
    joined_seq: u64,
    read_seq: u64,
    /// In milliseconds since 1970 UTC. 0: not muted; `u64::MAX`: muted for good.
    muted_until: u64,
}

impl MembershipRow {
    pub(crate) fn of(membership: &Membership) -> Self {
        let Membership { joined_at, joined_seq, read_seq, mute, .. } = *membership;
        let muted_until = match mute {
            MuteState::Off => 0,
            MuteState::Until(end) => end,
            MuteState::Forever => u64::MAX,
        };
        MembershipRow { role: membership.stored_role(), joined_at, joined_seq, read_seq, muted_until }
    }

    pub(crate) fn membership(self) -> Membership {
        let MembershipRow { role, joined_at, joined_seq, read_seq, muted_until } = self;
        let (role, restricted) = Membership::role_of_stored(role);
        let mute = match muted_until {
            0 => MuteState::Off,
            u64::MAX => MuteState::Forever,
            end => MuteState::Until(end),
        };
        Membership { role, joined_at, joined_seq, read_seq, mute, restricted }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct NotificationRow {
    failed_at: u64,
    attempts: u32,
    last_error: String,
    event: String,
}

impl NotificationRow {
    pub(crate) fn of(dead: &StoredNotification) -> Self {
        let StoredNotification { failed_at, attempts, last_error, event, .. } = dead.clone();
        NotificationRow { failed_at, attempts, last_error, event }
    }

    pub(crate) fn notification(self, key: NotificationKey) -> StoredNotification {
        let NotificationRow { failed_at, attempts, last_error, event } = self;
        StoredNotification { key, failed_at, attempts, last_error, event }
    }
}

/// An entry's row. A body that does not fit is empty here and split into `parts` rows in the bodies space.
#[derive(Serialize, Deserialize)]
pub(crate) struct EntryRow<'a> {
    pub position: u64,
    pub at: u64,
    pub kind: u8,
    pub flags: u8,
    #[serde(borrow)]
    pub sender: Option<(u64, &'a str)>,
    pub client_msg_id: Option<&'a str>,
    pub content_type: &'a str,
    pub mentions: Vec<&'a str>,
    pub parts: u16,
    pub body: &'a [u8],
}

const SILENT: u8 = 1;
const SKIP_PUSH: u8 = 2;
/// The entry's details follow the row as JSON, or are among the parts of a split body. A row without details is as older
/// programs write it.
const DETAILS: u8 = 4;
/// The parts that stand for those of any split body when only the row matters.
pub(crate) const EMPTY_PARTS: &[u8] = b"\0\0\0\x02[]\0\0\0\x02{}";

/// An entry's row with its whole body.
fn unsplit_row(entry: &NewEntry, at: u64, position: Position) -> EntryRow<'_> {
    EntryRow {
        position,
        at,
        kind: entry.kind.number(),
        flags: [(entry.silent, SILENT), (entry.skip_push, SKIP_PUSH), (entry.details.is_some(), DETAILS)]
            .iter()
            .fold(0, |flags, (is, flag)| if *is { flags | flag } else { flags }),
        sender: entry.sender.as_ref().map(|s| (s.no.0, s.id.as_str())),
        client_msg_id: entry.client_msg_id.as_deref(),
        content_type: &entry.content_type,
        mentions: entry.mentions.iter().map(String::as_str).collect(),
        parts: 0,
        body: entry.body.as_bytes(),
    }
}

/// Encodes an entry as one row of any length, for a store that has its position and time in columns of their own.
pub(crate) fn encode_content(entry: &NewEntry) -> Vec<u8> {
    let mut bytes = encode_unsplit(&unsplit_row(entry, 0, 0), entry.body.len());
    bytes.extend_from_slice(details_text(entry).as_bytes());
    bytes
}

/// The details as they are stored; empty for none.
fn details_text(entry: &NewEntry) -> String {
    entry.details.as_ref().map(|details| details.to_text()).unwrap_or_default()
}

/// Decodes a row of [`encode_content`]. Of a row that a newer program has written in another form, only what the columns say is
/// known: it is an opaque entry.
pub(crate) fn decode_content(seq: u64, position: Position, at: u64, bytes: &[u8]) -> StoreResult<StoredEntry> {
    if is_newer(bytes) {
        return Ok(StoredEntry { seq, position, at, content: NewEntry::opaque() });
    }
    let entry = decode_entry(seq, bytes, |_| {
        Err(damaged(format_args!("entry {seq}: its body is split, though this store splits none")))
    })?;
    Ok(StoredEntry { position, at, ..entry })
}

/// Encodes an entry as its row and, if the body does not fit, the parts of the body.
pub(crate) fn encode_entry(entry: &NewEntry, at: u64, position: Position) -> (Vec<u8>, Vec<Vec<u8>>) {
    let body = entry.body.as_bytes();
    let mut row = unsplit_row(entry, at, position);
    // Mentions count too: a hundred of them take 6 KiB, and are then split together with the body.
    let details = details_text(entry);
    let mentions = row.mentions.iter().map(|m| m.len() + 2).sum::<usize>();
    if body.len() + mentions + details.len() + 512 <= VALUE_BYTES_MAX {
        let mut bytes = encode_unsplit(&row, body.len());
        bytes.extend_from_slice(details.as_bytes());
        return (bytes, Vec::new());
    }
    let mut rest = Vec::with_capacity(body.len() + mentions + details.len() + 16);
    put_section(&mut rest, &serde_json::to_vec(&row.mentions).unwrap_or_default());
    if entry.details.is_some() {
        put_section(&mut rest, details.as_bytes());
    }
    rest.extend_from_slice(body);
    let parts: Vec<Vec<u8>> = rest.chunks(VALUE_BYTES_MAX).map(<[u8]>::to_vec).collect();
    row.mentions = Vec::new();
    row.body = &[];
    row.parts = parts.len() as u16;
    (encode(&row), parts)
}

fn encode_unsplit(row: &EntryRow<'_>, body: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body + 128);
    bytes.push(ROW_VERSION);
    postcard::to_extend(row, bytes).unwrap_or_default()
}

/// Decodes an entry's row; `parts` fetches a split body by the number of its parts.
pub(crate) fn decode_entry(
    seq: u64,
    bytes: &[u8],
    parts: impl FnOnce(u16) -> StoreResult<Vec<u8>>,
) -> StoreResult<StoredEntry> {
    let (row, after): (EntryRow<'_>, &[u8]) = match bytes.split_first() {
        Some((&ROW_VERSION, row)) => {
            postcard::take_from_bytes(row).map_err(|e| damaged(format_args!("entry {seq}: {e}")))?
        }
        _ => return Err(damaged(format_args!("entry {seq}: its row has another encoding version"))),
    };
    let has_details = row.flags & DETAILS != 0;
    let joined;
    let (mentions, details, body) = match row.parts {
        0 => (row.mentions.iter().map(|m| (*m).to_owned()).collect(), has_details.then_some(after), row.body.to_vec()),
        count => {
            joined = parts(count)?;
            split_rest(&joined, has_details)
                .ok_or_else(|| damaged(format_args!("entry {seq}: the parts of its body")))?
        }
    };
    let body = String::from_utf8(body).map_err(|_| damaged(format_args!("entry {seq}: its body is not UTF-8")))?;
    let kind = match row.kind {
        0 => return Err(damaged(format_args!("entry {seq}: its kind is 0"))),
        number => EntryKind::of_number(number),
    };
    let details = details.map(|text| EntryDetails::parse(kind, text).map(Box::new)).transpose();
    let details = details.map_err(|e| damaged(format_args!("entry {seq}: its details: {e}")))?;
    let content = NewEntry {
        kind,
        sender: row.sender.map(|(no, id)| Sender { no: UserNo(no), id: id.to_owned() }),
        client_msg_id: row.client_msg_id.map(str::to_owned),
        content_type: row.content_type.to_owned(),
        body: body.into(),
        mentions,
        silent: row.flags & SILENT != 0,
        skip_push: row.flags & SKIP_PUSH != 0,
        details,
        request: EntryRequest::default(),
    };
    Ok(StoredEntry { seq, position: row.position, at: row.at, content })
}

/// Puts bytes behind their length.
fn put_section(rest: &mut Vec<u8>, bytes: &[u8]) {
    rest.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    rest.extend_from_slice(bytes);
}

fn take_section(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    rest.get(4..)?.split_at_checked(length)
}

/// Mentions, details and body from the joined parts.
#[expect(clippy::type_complexity, reason = "taken apart at once")]
fn split_rest(rest: &[u8], has_details: bool) -> Option<(Vec<String>, Option<&[u8]>, Vec<u8>)> {
    let (mentions, rest) = take_section(rest)?;
    let (details, body) =
        if has_details { take_section(rest).map(|(details, body)| (Some(details), body))? } else { (None, rest) };
    Some((serde_json::from_slice(mentions).ok()?, details, body.to_vec()))
}

/// Into how many parts an entry's body is split.
pub(crate) fn parts_of(entry: &NewEntry) -> u16 {
    encode_entry(entry, 0, 0).1.len() as u16
}

#[cfg(test)]
mod tests;
