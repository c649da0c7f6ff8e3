//! A server's frame as our clients read it: first its kind, then the fields of that kind. `serde` would buffer a tagged enum
//! whole, and a buffered enum cannot carry a raw body.

use super::{MovedMarks, PresenceChange, ReceiptMark, Sent, ServerFrame};
use crate::{entry::Entry, error::ErrorCode, http};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;

/// The kind of a frame, which is its `t`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum FrameKind {
    Bound,
    Messages,
    Sent,
    Read,
    Receipts,
    Ok,
    History,
    Conversations,
    Conversation,
    Unread,
    User,
    Typing,
    Signal,
    Stream,
    Appended,
    Membership,
    Pong,
    Error,
    Reconnect,
    Push,
    Popup,
    Presence,
}

/// Reads the fields of one kind of frame from its text. What a frame flattens is read from the same text before.
macro_rules! read_frame {
    ($text:ident, $kind:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),+ $(,)? } $(with $flattened:ident)?) => {{
        #[derive(Deserialize)]
        struct Fields {
            $($(#[$attribute])* $field: $type),+
        }
        serde_json::from_str($text).map(|Fields { $($field),+ }| ServerFrame::$kind { $($field,)+ $($flattened)? })
    }};
}

/// Borrows the frame, so that it is read from text or bytes in memory and not from a reader.
impl<'de> Deserialize<'de> for ServerFrame {
    fn deserialize<D: Deserializer<'de>>(frame: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(frame)?.get();
        read(text).map_err(D::Error::custom)
    }
}

fn read(text: &str) -> serde_json::Result<ServerFrame> {
    #[derive(Deserialize)]
    struct Tag {
        t: FrameKind,
    }
    let Tag { t } = serde_json::from_str(text)?;
    match t {
        FrameKind::Bound => serde_json::from_str(text).map(ServerFrame::Bound),
        FrameKind::Messages => read_frame!(text, Messages { cursor: String, entries: Vec<Entry> }),
        FrameKind::Sent => read_frame!(text, Sent { results: Vec<Sent> }),
        FrameKind::Read => read_frame!(text, Read { conversation: String, user: String, seq: u64 }),
        FrameKind::Receipts => read_frame!(text, Receipts {
            #[serde(rename = "ref")]
            reference: Option<u64>,
            conversation: String,
            #[serde(default)]
            marks: Vec<ReceiptMark>,
            #[serde(default)]
            moved: Vec<MovedMarks>,
        }),
        FrameKind::Ok => read_frame!(
            text,
            Ok {
                #[serde(rename = "ref")]
                reference: u64,
            }
        ),
        FrameKind::History => {
            let page: http::HistoryPage = serde_json::from_str(text)?;
            read_frame!(text, History {
                #[serde(rename = "ref")]
                reference: Option<u64>,
                conversation: String,
            } with page)
        }
        FrameKind::Conversations => {
            let page: http::ConversationPage = serde_json::from_str(text)?;
            read_frame!(text, Conversations {
                #[serde(rename = "ref")]
                reference: Option<u64>,
            } with page)
        }
        FrameKind::Conversation => read_frame!(text, Conversation { conversation: Box<http::ConversationView> }),
        FrameKind::Unread => {
            let total: http::UnreadTotal = serde_json::from_str(text)?;
            read_frame!(text, Unread {
                #[serde(rename = "ref")]
                reference: Option<u64>,
            } with total)
        }
        FrameKind::User => read_frame!(text, User { user: http::UserCard }),
        FrameKind::Typing => read_frame!(text, Typing { conversation: String, user: String }),
        FrameKind::Signal => read_frame!(text, Signal {
            conversation: String,
            user: Option<String>,
            #[serde(rename = "type")]
            signal_type: String,
            body: Box<RawValue>,
        }),
        FrameKind::Stream => {
            read_frame!(text, Stream { conversation: String, seq: u64, offset: u64, text: String })
        }
        FrameKind::Appended => read_frame!(
            text,
            Appended {
                #[serde(rename = "ref")]
                reference: u64,
                offset: u64,
            }
        ),
        FrameKind::Membership => read_frame!(text, Membership { conversation: String, member: bool }),
        FrameKind::Pong => read_frame!(text, Pong {
            #[serde(rename = "ref")]
            reference: Option<u64>,
        }),
        FrameKind::Error => read_frame!(text, Error {
            #[serde(rename = "ref")]
            reference: Option<u64>,
            code: ErrorCode,
            message: String,
            retry: bool,
            retry_after_ms: Option<u64>,
            reason: Option<String>,
        }),
        FrameKind::Reconnect => read_frame!(text, Reconnect { after_ms: u64 }),
        FrameKind::Push => serde_json::from_str(text).map(ServerFrame::Push),
        FrameKind::Popup => read_frame!(text, Popup {
            #[serde(rename = "ref")]
            reference: Option<u64>,
            show: Option<http::Decision>,
            retry_after_ms: Option<u64>,
        }),
        FrameKind::Presence => read_frame!(text, Presence {
            #[serde(rename = "ref")]
            reference: Option<u64>,
            changes: Vec<PresenceChange>,
        }),
    }
}
