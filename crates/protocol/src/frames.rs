//! The JSON frames of the WebSocket door. Each is an object whose `t` names it.
//!
//! A client binds first; every later request may carry a `ref`, which its answer repeats. Unknown
//! fields are ignored, so that newer clients can talk to older servers; unknown `t` is an error.

use crate::{entry::Entry, error::ErrorCode, http};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// What a client sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ClientFrame {
    Bind(Bind),
    Send(Send),
    Read {
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        conversation: String,
        seq: u64,
    },
    Typing {
        conversation: String,
    },
    History {
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        conversation: String,
        #[serde(flatten)]
        query: http::HistoryQuery,
    },
    Ping {
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
    },
    Unbind,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bind {
    pub token: String,
    /// Names the device for as long as the app is installed. A second session of it replaces the first.
    pub device_id: String,
    /// `web`, `ios`, `android`, `desktop` or the app's own word; the device limit counts per kind.
    #[serde(default = "default_device_kind")]
    pub device_kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// The last cursor that this device was handed; absent on first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

fn default_device_kind() -> String {
    "web".into()
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Send {
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<u64>,
    /// Where to: a conversation's id, or …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// … a user, with whom a direct conversation is opened when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(flatten)]
    pub message: http::NewMessage,
}

/// What the server sends. Batches of entries are written by the session without this type, from
/// bytes that all receivers share; its `Messages` variant is how clients read them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ServerFrame {
    Bound(Bound),
    /// New entries, oldest first. Keep `cursor` and hand it back on the next bind.
    Messages {
        cursor: String,
        entries: Vec<Entry>,
    },
    /// Answers to sends, in the order of their commits.
    Sent {
        results: Vec<Sent>,
    },
    /// This user's read mark moved, here or on another device.
    Read {
        conversation: String,
        user: String,
        seq: u64,
    },
    /// The answer to a `read`, `history` or `ping` that had a `ref`.
    Ok {
        #[serde(rename = "ref")]
        reference: u64,
    },
    History {
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        conversation: String,
        #[serde(flatten)]
        page: http::HistoryPage,
    },
    Typing {
        conversation: String,
        user: String,
    },
    /// The user is no longer in this conversation (or is again): a hint to refresh the list.
    Membership {
        conversation: String,
        member: bool,
    },
    Pong {
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
    },
    Error {
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        reference: Option<u64>,
        code: ErrorCode,
        message: String,
        retry: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// Sent before the server closes for its own reasons: connect again after this many milliseconds.
    Reconnect {
        after_ms: u64,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bound {
    pub session: String,
    pub user: String,
    /// Send something at least this often.
    pub heartbeat_ms: u64,
    /// Where live delivery starts; keep it as you keep the cursors of batches.
    pub cursor: String,
    pub resume: Resume,
}

/// How a resume went. What was missed comes in `messages` frames after `bound`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Resume {
    /// Whether the entries that follow are all that was missed. If not, fetch `ranges` from history.
    pub complete: bool,
    /// The cursor was of another epoch, or ahead of the store: what the client holds may differ
    /// from the server. It should drop what it holds and read anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<MissedRange>,
}

/// Entries `from_seq..=to_seq` of a conversation that were missed and do not follow by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissedRange {
    pub conversation: String,
    pub from_seq: u64,
    pub to_seq: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sent {
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<u64>,
    #[serde(flatten)]
    pub receipt: http::SendReceipt,
}

/// A client's frame as a server reads it: all fields of all kinds, so that one pass over the bytes
/// does (a tagged enum would be buffered first, and cannot carry a raw body).
#[derive(Debug, Deserialize)]
pub struct Incoming<'a> {
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
    #[serde(borrow, default)]
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
    pub token: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub device_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub device_kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub cursor: Option<Cow<'a, str>>,
}
