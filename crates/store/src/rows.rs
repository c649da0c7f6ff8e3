//! Which keys hold what. Numbers stand big-endian, so that keys sort as numbers do; a row starts with
//! the version of its form, so that a later form can be told apart.
//!
//! | space | key | row |
//! | --- | --- | --- |
//! | meta | `e` | epoch, format version |
//! | meta | `n` | counters: users, conversations, last position |
//! | meta | `u` id / `U` no | a user's number / the user |
//! | meta | `c` id / `C` no | a conversation's number / the conversation |
//! | meta | `m` conversation, user | membership, read mark, mute |
//! | meta | `r` user, kind, conversation | that the user is in it |
//! | meta | `s` user | when the user's last session ended |
//! | meta | `v` user | before when the user's tokens are revoked |
//! | meta | `f` conversation | the oldest sequence that retention left |
//! | meta | `o` position / `O` | entries awaiting push / how far push has got, first row left |
//! | meta | `d` id | a notification given up |
//! | meta | `b` day | bytes of entries of that UTC day |
//! | timeline | conversation, seq | the entry, or the head of one with a large body |
//! | bodies | conversation, seq, part | a part of a large body |
//! | dedupe | sender, client message id | conversation, seq, at, position |
//! | push | a byte for the kind of row, its key | the row; see `push` |
//! | popups | a byte for the kind of row, its key | the engine's bytes |

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidings_engine::{model::*, store::*};

/// Values longer than this are split: a damaged page inside a long value at the journal's end can
/// keep fjall from opening.
pub(crate) const VALUE_BYTES_MAX: usize = 3 * 1024;
/// The version of every row's form.
const FORM: u8 = 1;

/// A key of a kind byte and numbers.
pub(crate) fn key(kind: u8, numbers: &[u64]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + numbers.len() * 8);
    key.push(kind);
    numbers.iter().for_each(|n| key.extend_from_slice(&n.to_be_bytes()));
    key
}

pub(crate) fn id_key(kind: u8, id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + id.len());
    key.push(kind);
    key.extend_from_slice(id.as_bytes());
    key
}

/// A key that names a user, a kind of conversation and a conversation.
pub(crate) fn place_key(user: UserNo, kind: ConversationKind, conversation: ConversationNo) -> Vec<u8> {
    let mut key = key(b'r', &[user.0]);
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

pub(crate) fn dedupe_key(sender: UserNo, client_msg_id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(8 + client_msg_id.len());
    key.extend_from_slice(&sender.0.to_be_bytes());
    key.extend_from_slice(client_msg_id.as_bytes());
    key
}

/// The big-endian number at a place in a key or row.
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

pub(crate) fn damaged(what: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(what.to_string())
}

/// A row in postcard's form behind the version byte.
pub(crate) fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    // Writing to memory cannot fail for these types.
    postcard::to_extend(row, vec![FORM]).unwrap_or_default()
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> StoreResult<T> {
    match bytes.split_first() {
        Some((&FORM, row)) => postcard::from_bytes(row).map_err(|e| damaged(format_args!("a row: {e}"))),
        Some((form, _)) => Err(damaged(format_args!("a row of form {form}, written by a newer version?"))),
        None => Err(damaged("an empty row")),
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct UserRow {
    id: String,
    name: Option<String>,
    avatar: Option<String>,
    attributes: Option<String>,
    created_at: u64,
    window: Option<(String, String, String)>,
}

impl UserRow {
    pub(crate) fn of(user: &User) -> Self {
        let window = user.do_not_disturb.clone().map(|w| (w.start, w.end, w.time_zone));
        let User { id, name, avatar, attributes, created_at, .. } = user.clone();
        UserRow { id, name, avatar, attributes, created_at, window }
    }

    pub(crate) fn user(self, no: UserNo) -> User {
        let UserRow { id, name, avatar, attributes, created_at, window } = self;
        let do_not_disturb = window.map(|(start, end, time_zone)| Box::new(DailyWindow { start, end, time_zone }));
        User { no, id, name, avatar, attributes, created_at, do_not_disturb, revoked_at: 0 }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ConversationRow {
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
    pub(crate) fn of(conversation: &Conversation) -> Self {
        let Conversation { id, kind, pair, name, avatar, attributes, created_at, member_count, .. } =
            conversation.clone();
        let pair = pair.map(|(a, b)| (a.0, b.0));
        ConversationRow { id, kind: kind_byte(kind), pair, name, avatar, attributes, created_at, member_count }
    }

    pub(crate) fn conversation(self, no: ConversationNo) -> Conversation {
        let ConversationRow { id, kind, pair, name, avatar, attributes, created_at, member_count } = self;
        let pair = pair.map(|(a, b)| (UserNo(a), UserNo(b)));
        Conversation { no, id, kind: kind_of(kind), pair, name, avatar, attributes, created_at, member_count }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct MembershipRow {
    role: u8,
    joined_at: u64,
    joined_seq: u64,
    read_seq: u64,
    /// 0: not muted; `u64::MAX`: for good; otherwise until then.
    muted_until: u64,
}

impl MembershipRow {
    pub(crate) fn of(membership: &Membership) -> Self {
        let Membership { role, joined_at, joined_seq, read_seq, mute } = *membership;
        let muted_until = match mute {
            MuteState::Off => 0,
            MuteState::Until(end) => end,
            MuteState::Forever => u64::MAX,
        };
        MembershipRow { role: role as u8, joined_at, joined_seq, read_seq, muted_until }
    }

    pub(crate) fn membership(self) -> Membership {
        let MembershipRow { role, joined_at, joined_seq, read_seq, muted_until } = self;
        let role = match role {
            0 => Role::Member,
            1 => Role::Admin,
            _ => Role::Owner,
        };
        let mute = match muted_until {
            0 => MuteState::Off,
            u64::MAX => MuteState::Forever,
            end => MuteState::Until(end),
        };
        Membership { role, joined_at, joined_seq, read_seq, mute }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct DeadRow {
    failed_at: u64,
    attempts: u32,
    last_error: String,
    event: String,
}

impl DeadRow {
    pub(crate) fn of(dead: &DeadNotification) -> Self {
        let DeadNotification { failed_at, attempts, last_error, event, .. } = dead.clone();
        DeadRow { failed_at, attempts, last_error, event }
    }

    pub(crate) fn notification(self, id: u64) -> DeadNotification {
        let DeadRow { failed_at, attempts, last_error, event } = self;
        DeadNotification { id, failed_at, attempts, last_error, event }
    }
}

/// An entry's row. `body` is what fits; `parts` rows in the bodies space hold the rest.
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

/// An entry's row with all that belongs to it.
fn whole_row(entry: &NewEntry, at: u64, position: Position) -> EntryRow<'_> {
    EntryRow {
        position,
        at,
        kind: entry.kind as u8,
        flags: if entry.silent { SILENT } else { 0 } | if entry.skip_push { SKIP_PUSH } else { 0 },
        sender: entry.sender.as_ref().map(|s| (s.no.0, s.id.as_str())),
        client_msg_id: entry.client_msg_id.as_deref(),
        content_type: &entry.content_type,
        mentions: entry.mentions.iter().map(String::as_str).collect(),
        parts: 0,
        body: entry.body.as_bytes(),
    }
}

/// An entry in one row, however long, for a store that keeps its place and time elsewhere.
pub(crate) fn encode_content(entry: &NewEntry) -> Vec<u8> {
    encode_small(&whole_row(entry, 0, 0), entry.body.len())
}

/// Reads what [`encode_content`] wrote.
pub(crate) fn decode_content(seq: u64, position: Position, at: u64, bytes: &[u8]) -> StoreResult<StoredEntry> {
    let entry = decode_entry(seq, bytes, |_| Err(damaged(format_args!("entry {seq}: it has no parts elsewhere"))))?;
    Ok(StoredEntry { position, at, ..entry })
}

/// Splits an entry into its row and the parts of its body that go elsewhere.
pub(crate) fn encode_entry(entry: &NewEntry, at: u64, position: Position) -> (Vec<u8>, Vec<Vec<u8>>) {
    let body = entry.body.as_bytes();
    let mut row = whole_row(entry, at, position);
    // Mentions count too: a hundred of them are 6 KiB, and go with the body's parts then.
    let fits = body.len() + row.mentions.iter().map(|m| m.len() + 2).sum::<usize>() + 512 <= VALUE_BYTES_MAX;
    if fits {
        return (encode_small(&row, body.len()), Vec::new());
    }
    let mentions = serde_json::to_vec(&row.mentions).unwrap_or_default();
    let mut rest = (mentions.len() as u32).to_be_bytes().to_vec();
    rest.extend_from_slice(&mentions);
    rest.extend_from_slice(body);
    let parts: Vec<Vec<u8>> = rest.chunks(VALUE_BYTES_MAX).map(<[u8]>::to_vec).collect();
    row.mentions = Vec::new();
    row.body = &[];
    row.parts = parts.len() as u16;
    (encode(&row), parts)
}

fn encode_small(row: &EntryRow<'_>, body: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body + 128);
    bytes.push(FORM);
    postcard::to_extend(row, bytes).unwrap_or_default()
}

/// Reads an entry's row back; `parts` fetches what was split off.
pub(crate) fn decode_entry(
    seq: u64,
    bytes: &[u8],
    parts: impl FnOnce(u16) -> StoreResult<Vec<u8>>,
) -> StoreResult<StoredEntry> {
    let row: EntryRow<'_> = match bytes.split_first() {
        Some((&FORM, row)) => postcard::from_bytes(row).map_err(|e| damaged(format_args!("entry {seq}: {e}")))?,
        _ => return Err(damaged(format_args!("entry {seq}: a row of another form"))),
    };
    let (mentions, body) = match row.parts {
        0 => (row.mentions.iter().map(|m| (*m).to_owned()).collect(), row.body.to_vec()),
        count => split_rest(&parts(count)?).ok_or_else(|| damaged(format_args!("entry {seq}: its parts")))?,
    };
    let body = String::from_utf8(body).map_err(|_| damaged(format_args!("entry {seq}: its body")))?;
    let content = NewEntry {
        kind: match row.kind {
            1 => EntryKind::Message,
            2 => EntryKind::Edit,
            3 => EntryKind::Recall,
            4 => EntryKind::MemberChange,
            5 => EntryKind::ConversationChange,
            other => return Err(damaged(format_args!("entry {seq}: kind {other}"))),
        },
        sender: row.sender.map(|(no, id)| Sender { no: UserNo(no), id: id.to_owned() }),
        client_msg_id: row.client_msg_id.map(str::to_owned),
        content_type: row.content_type.to_owned(),
        body: body.into(),
        mentions,
        silent: row.flags & SILENT != 0,
        skip_push: row.flags & SKIP_PUSH != 0,
    };
    Ok(StoredEntry { seq, position: row.position, at: row.at, content })
}

fn split_rest(rest: &[u8]) -> Option<(Vec<String>, Vec<u8>)> {
    let length = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let mentions = serde_json::from_slice(rest.get(4..4 + length)?).ok()?;
    Some((mentions, rest.get(4 + length..)?.to_vec()))
}

/// How many parts an entry's body was split into.
pub(crate) fn parts_of(entry: &NewEntry) -> u16 {
    encode_entry(entry, 0, 0).1.len() as u16
}
