//! The JSON frames of the WebSocket protocol. Each is an object whose `t` names its kind.
//!
//! A client binds first; every later request may carry a `ref`, which its answer repeats. The server reads clients' frames
//! strictly, as it reads HTTP bodies ([`crate::json`]); clients ignore fields and frames that they do not know.

use crate::{entry::Entry, error::ErrorCode, http, resume::Resume};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// What a client sends.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ClientFrame {
    /// The first frame: whose session this is.
    Bind(Bind),
    /// A message. Answered once it is durable.
    Send(Send),
    /// Gives a message another body. Answered as a send is, with the `seq` of the edit's own entry.
    Edit(Edit),
    /// Takes a message back. Answered as a send is, with the `seq` of the recall's own entry.
    Recall {
        /// Repeated in the answer, an item of `sent`, or in the refusal.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation that the message is in.
        conversation: String,
        /// The message.
        seq: u64,
        /// The client's own id for this recall: a retry with it answers with the first result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client_msg_id: Option<String>,
    },
    /// Gives a reaction to a message, or takes one back. Answered with `ok` if it has a `ref`, once it is durable.
    React {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation that the message is in.
        conversation: String,
        /// The message.
        seq: u64,
        /// The reaction, such as an emoji: at most 32 bytes.
        key: String,
        /// The reaction is taken back.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        remove: bool,
    },
    /// Pins a message in its conversation, or unpins it. Answered with `ok` if it has a `ref`, once it is durable.
    Pin {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation that the message is in.
        conversation: String,
        /// The message.
        seq: u64,
        /// The message is unpinned.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        remove: bool,
    },
    /// A message whose text grows from here on. Answered as a send is.
    StreamBegin(Send),
    /// A piece of a message that this session or an earlier one began. Answered with `appended`, if it has a `ref`.
    StreamAppend {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation that the message is in.
        conversation: String,
        /// The message.
        seq: u64,
        /// The length of the text so far, in bytes of UTF-8.
        offset: u64,
        /// What follows.
        text: String,
    },
    /// The message grows no more. Answered as a send is, with the `seq` of the end's own entry.
    StreamEnd {
        /// Repeated in the answer, an item of `sent`, or in the refusal.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation that the message is in.
        conversation: String,
        /// The message.
        seq: u64,
        /// The whole body; absent: what was begun with, and all pieces.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<serde_json::Value>)]
        body: Option<Box<RawValue>>,
    },
    /// The user has read up to `seq`.
    Read {
        /// Repeated in the answer, an `ok`.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation in which the user has read.
        conversation: String,
        /// The newest entry that the user has read; a lower one than before changes nothing.
        seq: u64,
    },
    /// The client has stored all that it was handed up to this cursor, also past a restart of its own. Not answered; at
    /// most one a second is useful. The cursor of a bind says the same.
    Stored {
        /// The cursor of the newest batch that is stored.
        cursor: String,
    },
    /// The user types: told to members who are there, not stored, not answered.
    Typing {
        /// The conversation in which the user types.
        conversation: String,
    },
    /// A part of a conversation's timeline.
    History {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation to read.
        conversation: String,
        /// Which page.
        #[serde(flatten)]
        query: http::HistoryQuery,
    },
    /// What the user sets for a conversation of the list. What is absent stays as it was.
    Preferences {
        /// Repeated in the answer, an `ok`.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation.
        conversation: String,
        /// As over HTTP.
        #[serde(flatten)]
        update: http::UpdatePreferences,
    },
    /// Assigns a conversation with an account to one of its agents, or to nobody. Answered with `ok` if it has a `ref`, once it
    /// is durable.
    Assign {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation.
        conversation: String,
        /// An agent of the account; `null`: nobody.
        #[serde(deserialize_with = "Option::deserialize")]
        #[schema(required)]
        assigned_to: Option<String>,
        /// The assignment is refused with `assignment_conflict` unless this agent has the conversation now, or with `null`
        /// nobody. Absent: whoever has it.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::also_null")]
        #[schema(value_type = Option<String>)]
        if_assigned_to: Option<Option<String>>,
    },
    /// The user's conversations, pinned ones first, then the latest active, page by page.
    Conversations {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// Of this account instead, for which the user answers: the latest active first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        account: Option<String>,
        /// Of the account's, those that this agent has: an id, or `@me`; `@nobody`: those that nobody has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        assigned_to: Option<String>,
        /// Which; absent: those that are neither archived nor hidden.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filter: Option<http::ListFilter>,
        /// The `next` of the page before; absent for the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// At most so many (limit 200); absent or 0: as many as the server sees fit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<usize>,
    },
    /// Answered with `pong`: something is to be heard from a client at least every `heartbeat_ms`.
    Ping {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
    },
    /// Tell me how these users are, and when that changes.
    WatchPresence {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// A group that all are members of; without it they are those whom the user has direct conversations with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conversation: Option<String>,
        /// User ids. A session watches at most 1,000 users.
        users: Vec<String>,
    },
    /// No more; without users, of nobody.
    UnwatchPresence {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// User ids; none: of nobody.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        users: Vec<String>,
    },
    /// Which popup suits this session's user now?
    Popup {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// As over HTTP, with the session's user.
        question: http::DecideRequest,
    },
    /// What the user did with popups. Answered once it is durable.
    PopupEvents {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// At most 1,000.
        events: Vec<http::PopupEvent>,
    },
    /// This device has these pushes.
    Ack {
        /// The numbers of pushes, at most 1,000.
        pushes: Vec<u64>,
    },
    /// The session goes on with a new token of the same user.
    Refresh {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The new token. It replaces the session's token at once.
        token: String,
    },
    /// The session ends.
    Unbind,
}

/// The first frame of a connection, which makes the connection a session.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Bind {
    /// A token that the app server has signed for the user.
    pub token: String,
    /// Names the device for as long as the app is installed. A second session of it replaces the first.
    pub device_id: String,
    /// `web`, `ios`, `android`, `desktop` or the app's own word; the device limit counts per kind.
    #[serde(default = "default_device_kind")]
    pub device_kind: String,
    /// The app's own version, shown to the app server in the list of devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// The last cursor that this device was handed; absent on first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Whether this device is one that pushes may be sent to, now and while it is away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
}

fn default_device_kind() -> String {
    "web".into()
}

/// A message to be sent, and where to.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Send {
    /// Repeated in the answer, an item of `sent`, or in the refusal.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<u64>,
    /// Where to: a conversation's id, or …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// … a user, with whom a direct conversation is opened when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The message itself.
    #[serde(flatten)]
    pub message: http::NewMessage,
}

/// A message's new content.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Edit {
    /// Repeated in the answer, an item of `sent`, or in the refusal.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<u64>,
    /// The conversation that the message is in.
    pub conversation: String,
    /// The message.
    pub seq: u64,
    /// The client's own id for this edit: a retry with it answers with the first result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// The app's own kind of content; absent: as before.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Any JSON of at most 64 KiB, in place of the former body.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
    /// User ids, or `@all`, in place of the former mentions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// The edit is refused with `version_conflict` unless this is the message's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u32>,
}

/// What the server sends. Batches of entries are written by the session without this type, from
/// bytes that all receivers share; its `Messages` variant is how clients read them.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "t", rename_all = "snake_case", try_from = "RawServerFrame")]
pub enum ServerFrame {
    /// The answer to `bind`.
    Bound(Bound),
    /// New entries, oldest first. Keep `cursor` and hand it back on the next bind.
    Messages {
        /// How far this session has come with these entries.
        cursor: String,
        /// Of any number of conversations.
        entries: Vec<Entry>,
    },
    /// Answers to sends, in the order of their commits.
    Sent {
        /// One for each send that was committed.
        results: Vec<Sent>,
    },
    /// This user's read mark moved, here or on another device.
    Read {
        /// The conversation in which was read.
        conversation: String,
        /// The user whose mark it is.
        user: String,
        /// The newest entry that is read.
        seq: u64,
    },
    /// Others have stored or read messages of a conversation, gathered for a second. Only what has changed since the session
    /// began is told: the state of a message is read over HTTP.
    Receipts {
        /// The conversation that the messages are in.
        conversation: String,
        /// How far members have come, where the conversation shows members.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        marks: Vec<ReceiptMark>,
        /// How many more members have come past which messages, where the conversation shows counts.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        moved: Vec<MovedMarks>,
    },
    /// The answer to a `read`, `history` or `ping` that had a `ref`.
    Ok {
        /// The `ref` of the request.
        #[serde(rename = "ref")]
        reference: u64,
    },
    /// The answer to `history`.
    History {
        /// The `ref` of the request.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation that the page is of.
        conversation: String,
        /// The entries, and how to go on.
        #[serde(flatten)]
        page: http::HistoryPage,
    },
    /// The answer to `conversations`.
    Conversations {
        /// The `ref` of the request.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversations, and how to go on.
        #[serde(flatten)]
        page: http::ConversationPage,
    },
    /// A line of the user's list has changed otherwise than by an entry: by preferences, a mute, a read mark, the card, or
    /// because the user has joined.
    Conversation {
        /// The line as it is now.
        conversation: Box<http::ConversationView>,
    },
    /// A member types.
    Typing {
        /// The conversation in which is typed.
        conversation: String,
        /// The member who types.
        user: String,
    },
    /// The text of a message has grown. Skip what you have of it; with less than `offset` bytes, read the message again.
    Stream {
        /// The conversation that the message is in.
        conversation: String,
        /// The message.
        seq: u64,
        /// The length of the text before `text`, in bytes of UTF-8.
        offset: u64,
        /// What follows.
        text: String,
    },
    /// The answer to a `stream_append` that had a `ref`.
    Appended {
        /// The `ref` of the request.
        #[serde(rename = "ref")]
        reference: u64,
        /// The length of the text now, in bytes of UTF-8: the `offset` of the next piece.
        offset: u64,
    },
    /// The user is no longer in this conversation (or is again): a hint to refresh the list.
    Membership {
        /// The conversation that was joined or left.
        conversation: String,
        /// Whether the session's user is a member now.
        member: bool,
    },
    /// The answer to `ping`.
    Pong {
        /// The `ref` of the ping.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
    },
    /// A request was refused, or, before a close, why the session ends.
    Error {
        /// The `ref` of the refused request; absent when it had none, or when the session ends.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// Stable: act on this.
        code: ErrorCode,
        /// For developers, in English; it may change.
        message: String,
        /// Whether the same request may succeed later.
        retry: bool,
        /// How long to wait before that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// Sent before the server closes for its own reasons: connect again after this many milliseconds.
    Reconnect {
        /// Spread over clients, so that they do not come back all at once.
        after_ms: u64,
    },
    /// Data from the business. Acknowledge it, also when it was seen before.
    Push(Push),
    /// A popup: the answer to a question, which repeats its `ref`, or one that something else triggered.
    Popup {
        /// The `ref` of the question; absent when something else triggered the popup.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// Absent: none is due now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        show: Option<http::Decision>,
        /// If there is none: after how long one could be; absent if time alone will not make one due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// Watched users' states: the answer to `watch_presence`, and what changes.
    Presence {
        /// The `ref` of the watch that this answers; absent when a state has changed.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The states of some watched users.
        changes: Vec<PresenceChange>,
    },
}

/// A watched user's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PresenceChange {
    /// The user's id.
    pub user: String,
    /// Whether the user counts as online.
    pub online: bool,
    /// When the last session ended, in milliseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
}

/// How far a member has come in a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReceiptMark {
    /// The member's id.
    pub user: String,
    /// The newest entry that the member has read; absent: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_seq: Option<u64>,
    /// The newest entry that the member's client has stored; absent: as before. Only in direct conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_seq: Option<u64>,
}

/// Members who have come past the same messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MovedMarks {
    /// What the members did.
    pub what: ReceiptKind,
    /// The first of these messages.
    pub from_seq: u64,
    /// The last of them.
    pub to_seq: u64,
    /// How many members: each of the messages has so many more.
    pub count: u64,
}

/// What a receipt tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptKind {
    /// The member has read it.
    Read,
    /// The member's client has stored it.
    Delivered,
}

/// A push for this device.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Push {
    /// Names the push: it may come more than once.
    pub push: u64,
    /// Milliseconds since 1970 UTC.
    pub expires_at: u64,
    /// A newer push with the same key takes this one's place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    /// High priority: handed out before what is normal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub high: bool,
    /// The app's word for what the body is.
    #[serde(rename = "type")]
    pub content_type: String,
    /// Any JSON.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
}

/// The answer to `bind`: the session is live.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Bound {
    /// The session's name on this server, for logs and for the app server's tools.
    pub session: String,
    /// The user whom the token is for.
    pub user: String,
    /// Send something at least this often.
    pub heartbeat_ms: u64,
    /// Where live delivery starts; keep it as you keep the cursors of batches.
    pub cursor: String,
    /// What becomes of the entries that were missed since the cursor of the bind.
    pub resume: Resume,
    /// `false`: pushes were asked for, and come later: the node that hands them out cannot be reached now. Absent: as
    /// asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pushes: Option<bool>,
    /// When the token expires, in milliseconds since 1970 UTC: `refresh` it before, or the session ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// The answer to one send.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Sent {
    /// The `ref` of the send.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<u64>,
    /// Where the message is now.
    #[serde(flatten)]
    pub receipt: http::SendReceipt,
}

/// A server's frame as a client reads it: all fields of all kinds, for the same reason as [`RawClientFrame`].
#[derive(Deserialize)]
struct RawServerFrame {
    t: String,
    #[serde(default, rename = "ref")]
    reference: Option<u64>,
    session: Option<String>,
    user: Option<String>,
    heartbeat_ms: Option<u64>,
    cursor: Option<String>,
    resume: Option<Resume>,
    entries: Option<Vec<Entry>>,
    results: Option<Vec<Sent>>,
    /// An id, or in a frame of its own a line of the list.
    conversation: Option<Box<RawValue>>,
    seq: Option<u64>,
    offset: Option<u64>,
    text: Option<String>,
    member: Option<bool>,
    more: Option<bool>,
    next: Option<String>,
    previous: Option<String>,
    #[serde(default)]
    conversation_first_seq: u64,
    #[serde(default)]
    conversation_last_seq: u64,
    first_seq: Option<u64>,
    last_seq: Option<u64>,
    code: Option<ErrorCode>,
    message: Option<String>,
    retry: Option<bool>,
    retry_after_ms: Option<u64>,
    after_ms: Option<u64>,
    push: Option<u64>,
    expires_at: Option<u64>,
    collapse_key: Option<String>,
    #[serde(default)]
    high: bool,
    #[serde(rename = "type")]
    content_type: Option<String>,
    #[serde(default, deserialize_with = "crate::json::also_null")]
    body: Option<Box<RawValue>>,
    changes: Option<Vec<PresenceChange>>,
    conversations: Option<Vec<http::ConversationView>>,
    show: Option<http::Decision>,
    pushes: Option<bool>,
    #[serde(default)]
    marks: Vec<ReceiptMark>,
    #[serde(default)]
    moved: Vec<MovedMarks>,
}

impl TryFrom<RawServerFrame> for ServerFrame {
    type Error = String;

    fn try_from(any: RawServerFrame) -> Result<Self, String> {
        fn need<T>(field: Option<T>, name: &str) -> Result<T, String> {
            field.ok_or_else(|| format!("a frame without its {name}"))
        }
        fn parsed<T: serde::de::DeserializeOwned>(field: Option<Box<RawValue>>, name: &str) -> Result<T, String> {
            serde_json::from_str(need(field, name)?.get()).map_err(|error| format!("{name}: {error}"))
        }
        let reference = any.reference;
        Ok(match any.t.as_str() {
            "bound" => ServerFrame::Bound(Bound {
                session: need(any.session, "session")?,
                user: need(any.user, "user")?,
                heartbeat_ms: need(any.heartbeat_ms, "heartbeat_ms")?,
                cursor: need(any.cursor, "cursor")?,
                resume: need(any.resume, "resume")?,
                pushes: any.pushes,
                expires_at: any.expires_at,
            }),
            "messages" => {
                ServerFrame::Messages { cursor: need(any.cursor, "cursor")?, entries: need(any.entries, "entries")? }
            }
            "sent" => ServerFrame::Sent { results: need(any.results, "results")? },
            "read" => ServerFrame::Read {
                conversation: parsed(any.conversation, "conversation")?,
                user: need(any.user, "user")?,
                seq: need(any.seq, "seq")?,
            },
            "receipts" => ServerFrame::Receipts {
                conversation: parsed(any.conversation, "conversation")?,
                marks: any.marks,
                moved: any.moved,
            },
            "ok" => ServerFrame::Ok { reference: need(reference, "ref")? },
            "history" => ServerFrame::History {
                reference,
                conversation: parsed(any.conversation, "conversation")?,
                page: http::HistoryPage {
                    entries: need(any.entries, "entries")?,
                    next: any.next,
                    previous: any.previous,
                    more: need(any.more, "more")?,
                    conversation_first_seq: any.conversation_first_seq,
                    conversation_last_seq: any.conversation_last_seq,
                    first_seq: need(any.first_seq, "first_seq")?,
                    last_seq: need(any.last_seq, "last_seq")?,
                },
            },
            "conversations" => ServerFrame::Conversations {
                reference,
                page: http::ConversationPage {
                    conversations: need(any.conversations, "conversations")?,
                    next: any.next,
                },
            },
            "conversation" => ServerFrame::Conversation { conversation: parsed(any.conversation, "conversation")? },
            "typing" => ServerFrame::Typing {
                conversation: parsed(any.conversation, "conversation")?,
                user: need(any.user, "user")?,
            },
            "stream" => ServerFrame::Stream {
                conversation: parsed(any.conversation, "conversation")?,
                seq: need(any.seq, "seq")?,
                offset: need(any.offset, "offset")?,
                text: need(any.text, "text")?,
            },
            "appended" => {
                ServerFrame::Appended { reference: need(reference, "ref")?, offset: need(any.offset, "offset")? }
            }
            "membership" => ServerFrame::Membership {
                conversation: parsed(any.conversation, "conversation")?,
                member: need(any.member, "member")?,
            },
            "pong" => ServerFrame::Pong { reference },
            "error" => ServerFrame::Error {
                reference,
                code: need(any.code, "code")?,
                message: need(any.message, "message")?,
                retry: need(any.retry, "retry")?,
                retry_after_ms: any.retry_after_ms,
            },
            "reconnect" => ServerFrame::Reconnect { after_ms: need(any.after_ms, "after_ms")? },
            "push" => ServerFrame::Push(Push {
                push: need(any.push, "push")?,
                expires_at: need(any.expires_at, "expires_at")?,
                collapse_key: any.collapse_key,
                high: any.high,
                content_type: need(any.content_type, "type")?,
                body: need(any.body, "body")?,
            }),
            "popup" => ServerFrame::Popup { reference, show: any.show, retry_after_ms: any.retry_after_ms },
            "presence" => ServerFrame::Presence { reference, changes: need(any.changes, "changes")? },
            other => return Err(format!("an unknown frame {other:?}")),
        })
    }
}

/// A client's frame as the server reads it: all fields of all kinds, so that one pass over the bytes suffices (`serde` would
/// buffer a tagged enum first, and a tagged enum cannot carry a raw body).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of `ClientFrame`, and documented there")]
pub struct RawClientFrame<'a> {
    #[serde(borrow)]
    pub t: Cow<'a, str>,
    #[serde(default, rename = "ref")]
    pub reference: Option<u64>,
    #[serde(borrow, default)]
    pub conversation: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub to: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub client_msg_id: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "type")]
    pub content_type: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "crate::json::also_null")]
    pub body: Option<&'a RawValue>,
    #[serde(default)]
    pub mentions: Vec<String>,
    #[serde(default)]
    pub silent: bool,
    #[serde(default)]
    pub skip_push: bool,
    #[serde(default)]
    pub seq: Option<u64>,
    #[serde(default)]
    pub if_version: Option<u32>,
    #[serde(default)]
    pub reply_to: Option<u64>,
    #[serde(borrow, default)]
    pub key: Option<Cow<'a, str>>,
    #[serde(default)]
    pub remove: bool,
    #[serde(default)]
    pub offset: Option<u64>,
    #[serde(borrow, default)]
    pub text: Option<Cow<'a, str>>,
    #[serde(default)]
    pub from_seq: Option<u64>,
    #[serde(default)]
    pub to_seq: Option<u64>,
    #[serde(default)]
    pub from_time: Option<u64>,
    #[serde(default)]
    pub to_time: Option<u64>,
    #[serde(default)]
    pub limit: Option<usize>,
    #[serde(borrow, default)]
    pub after: Option<Cow<'a, str>>,
    #[serde(default)]
    pub filter: Option<http::ListFilter>,
    #[serde(borrow, default)]
    pub account: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "crate::json::also_null")]
    pub assigned_to: Option<Option<String>>,
    #[serde(default, deserialize_with = "crate::json::also_null")]
    pub if_assigned_to: Option<Option<String>>,
    #[serde(default)]
    pub pinned: Option<bool>,
    #[serde(default)]
    pub archived: Option<bool>,
    #[serde(default)]
    pub hidden: Option<bool>,
    #[serde(default, deserialize_with = "crate::json::also_null")]
    pub title: Option<Option<String>>,
    #[serde(default)]
    pub marked_unread: Option<bool>,
    #[serde(default)]
    pub clear_to_seq: Option<u64>,
    #[serde(borrow, default)]
    pub token: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub device_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub device_kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub cursor: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub app_version: Option<Cow<'a, str>>,
    #[serde(default)]
    pub push: bool,
    #[serde(default)]
    pub pushes: Vec<u64>,
    #[serde(default)]
    pub users: Vec<String>,
    #[serde(borrow, default)]
    pub question: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub events: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_client_reads_every_frame_that_a_server_writes() {
        let entry = r#"{"conversation":"c","seq":1,"kind":"message","at":5,"type":"text","body":{"a":[1, 2]}}"#;
        for text in [
            r#"{"t":"bound","session":"s","user":"u","heartbeat_ms":1,"cursor":"1.0.0.0","resume":{"complete":true}}"#,
            &format!(r#"{{"t":"messages","cursor":"1.0.1.0","entries":[{entry}]}}"#),
            r#"{"t":"sent","results":[{"ref":1,"conversation":"c","seq":1,"at":5}]}"#,
            r#"{"t":"read","conversation":"c","user":"u","seq":1}"#,
            r#"{"t":"ok","ref":1}"#,
            r#"{"t":"receipts","conversation":"c","marks":[{"user":"u","read_seq":5,"delivered_seq":7}]}"#,
            r#"{"t":"receipts","conversation":"c","moved":[{"what":"read","from_seq":4,"to_seq":5,"count":2}]}"#,
            &format!(
                r#"{{"t":"history","conversation":"c","entries":[{entry}],"next":"n2","previous":"p0","more":true,"conversation_first_seq":1,"conversation_last_seq":2,"first_seq":1,"last_seq":2}}"#
            ),
            &format!(
                r#"{{"t":"conversations","ref":1,"conversations":[{{"id":"c","kind":"group","role":"owner","last_seq":1,"last_at":5,"read_seq":0,"unread":1,"mentions":0,"muted":false,"last_entry":{entry}}}],"next":"1-2"}}"#
            ),
            &format!(
                r#"{{"t":"conversation","conversation":{{"id":"c","kind":"direct","role":"member","last_seq":1,"last_at":5,"read_seq":0,"unread":1,"mentions":0,"muted":false,"pinned_at":7,"archived":true,"title":"mine","cleared_seq":1,"last_message":{entry}}}}}"#
            ),
            r#"{"t":"typing","conversation":"c","user":"u"}"#,
            r#"{"t":"stream","conversation":"c","seq":1,"offset":5,"text":"é"}"#,
            r#"{"t":"appended","ref":1,"offset":7}"#,
            r#"{"t":"membership","conversation":"c","member":true}"#,
            r#"{"t":"pong"}"#,
            r#"{"t":"error","code":"queue_full","message":"m","retry":true,"retry_after_ms":5}"#,
            r#"{"t":"reconnect","after_ms":5}"#,
            r#"{"t":"presence","ref":1,"changes":[{"user":"u","online":false,"last_seen":5}]}"#,
            r#"{"t":"popup","ref":1,"retry_after_ms":5}"#,
            r#"{"t":"popup","show":{"decision":"d","popup":"p","variant":"a","content":{"data":{"a":[1, 2]}}}}"#,
            r#"{"t":"push","push":7,"expires_at":5,"type":"text","body":null}"#,
            r#"{"t":"push","push":7,"expires_at":5,"collapse_key":"k","high":true,"type":"text","body":{"a":[1, 2]}}"#,
        ] {
            let frame: ServerFrame = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(serde_json::to_string(&frame).unwrap(), *text);
        }
        assert!(serde_json::from_str::<ServerFrame>(r#"{"t":"ok"}"#).is_err());
    }
}
