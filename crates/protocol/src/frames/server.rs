//! What the server sends. `read_server` is how our clients read it.

use crate::{entry::Entry, error::ErrorCode, http, resume::Resume};
pub use http::{MovedMarks, ReceiptKind, ReceiptMark};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What the server sends. Batches of entries are written by the session without this type, from
/// bytes that all receivers share; its `Messages` variant is how clients read them.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
#[serde(tag = "t", rename_all = "snake_case")]
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
    /// Answers to sends, and to edits, recalls and ends of messages that grow, in the order of their commits.
    Sent {
        /// One for each that was committed.
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
    /// Others have stored or read messages of a conversation, gathered for a second; or how far all members have come, as the answer
    /// to `receipts`.
    Receipts {
        /// The `ref` of the request that this answers; absent when something has changed.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
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
    /// A line of the user's list has changed otherwise than by an entry: by preferences, a mute, a read mark, the details, or
    /// because the user has joined.
    Conversation {
        /// The line as it is now.
        conversation: Box<http::ConversationView>,
    },
    /// The answer to `unread`.
    Unread {
        /// The `ref` of the request.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The total, and the counts of conversations.
        #[serde(flatten)]
        total: http::UnreadTotal,
    },
    /// A user whom the session watches has another name or picture.
    User {
        /// How the user is shown now.
        user: http::UserCard,
    },
    /// A member types.
    Typing {
        /// The conversation in which is typed.
        conversation: String,
        /// The member who types.
        user: String,
    },
    /// A member, or an app server, signals something to the members who are there. Nothing is stored, and nothing comes again.
    Signal {
        /// The conversation.
        conversation: String,
        /// The member; absent: an app server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// The app's own kind of signal.
        #[serde(rename = "type")]
        signal_type: String,
        /// Any JSON.
        #[schema(value_type = serde_json::Value)]
        body: Box<RawValue>,
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
        /// The length of the text now, in bytes of UTF-8: the `offset` of the next chunk.
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
        /// Of `refused_by_hook`: the app server's own code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
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
    /// Whether somebody looks at one of the user's sessions, as far as their clients say so.
    #[serde(default)]
    pub active: bool,
    /// When the last session ended, in milliseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<u64>,
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

/// The answer to one send, or to one change of a message: an edit, a recall, the end of a message that grows.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Sent {
    /// The `ref` of the send.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<u64>,
    /// Where the message is now; of a change, where its entry is.
    #[serde(flatten)]
    pub receipt: http::SendReceipt,
    /// Of a change: the version of the message's body that it left. Of an edit that is the edit's own version, also when
    /// the message was edited again since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}
