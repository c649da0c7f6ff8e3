//! What clients send.

use crate::http;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

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
        /// The reaction, such as an emoji: at most 64 bytes.
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
    /// A chunk of a message that this session or an earlier one began. Answered with `appended`, if it has a `ref`.
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
        /// The whole body; absent: what was begun with, and all chunks.
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
    /// How far the members of a conversation have come. Answered with `receipts`.
    Receipts {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation.
        conversation: String,
    },
    /// What the user has not read in all conversations of the list. Answered with `unread`.
    Unread {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
    },
    /// The client has stored all that it was handed up to this cursor, also past a restart of its own. Not answered; at
    /// most one a second is useful. The cursor of a bind says the same.
    Stored {
        /// The cursor of the newest batch that is stored.
        cursor: String,
    },
    /// Whether somebody looks at this session from here on. Answered with `ok` if it has a `ref`.
    Attention {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// Messages to a user whose sessions are all in the background go out by offline push as well.
        state: Attention,
    },
    /// The user types: sent to members who are there, not stored, not answered.
    Typing {
        /// The conversation in which the user types.
        conversation: String,
    },
    /// Something for the members who are there: not stored. Answered with `ok` if it has a `ref`.
    Signal {
        /// Repeated in the answer.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        /// The conversation whose live members get it.
        conversation: String,
        /// The app's own kind of signal, at most 32 bytes.
        #[serde(rename = "type")]
        signal_type: String,
        /// Any JSON of at most 1 KiB; absent: `null`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<serde_json::Value>)]
        body: Option<Box<RawValue>>,
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
        /// The user's line of this conversation alone, also of an archived or hidden one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conversation: Option<String>,
        /// Of the user's, those whose title or name contains this text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        search: Option<String>,
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
    /// Whether somebody looks at this session.
    #[serde(default, skip_serializing_if = "Attention::is_foreground")]
    pub attention: Attention,
    /// Entries of `messages` frames leave out what the entry before them in the frame has, too: `conversation`, `kind`, `at` and `type`,
    /// and `seq` where it is one more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compact: bool,
}

/// Whether somebody looks at a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// The app is open and seen.
    #[default]
    Foreground,
    /// The app runs where nobody sees it: another app or window covers it, or the screen is off.
    Background,
}

impl Attention {
    /// Whether somebody looks.
    pub fn is_foreground(&self) -> bool {
        *self == Attention::Foreground
    }
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
