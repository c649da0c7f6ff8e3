//! Sessions over server-sent events: the ids of their streams, the events, and the requests that carry a client's frames.
//!
//! An event is text (the HTML standard, 9.2): fields of a line each, closed by an empty line. A frame is an unnamed event
//! whose `data` is the frame's JSON. Named events have what a WebSocket says outside its messages: `open`, `probe`, `close`.

use crate::frames::Attention;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use utoipa::{IntoParams, ToSchema};

/// Frames in one request of a client. They are handled in one turn: more would hold up other sessions.
pub const FRAMES_PER_POST_MAX: usize = 256;
/// The media type of an event stream.
pub const MEDIA_TYPE: &str = "text/event-stream";
/// A comment, which clients skip: it keeps a quiet stream open through proxies.
pub const KEEP_ALIVE: &[u8] = b":\n\n";

const ID: &[u8] = b"id: ";
const EVENT: &[u8] = b"event: ";
const DATA: &[u8] = b"data: ";

/// The id of a stream's session: it tells where the session is, and is no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamId {
    /// The process: a node's boot id in a cluster, otherwise 0.
    pub node: u64,
    /// The shard within the process.
    pub shard: u16,
    /// The session within the shard.
    pub session: u64,
}

/// What a client must know to send frames to a stream's session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StreamSecret(pub u128);

/// A text that is not the id or the secret of an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not of an event stream")]
pub struct InvalidStreamText;

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}", self.node, self.shard, self.session)
    }
}

impl FromStr for StreamId {
    type Err = InvalidStreamText;

    fn from_str(text: &str) -> Result<Self, InvalidStreamText> {
        let mut parts = text.split('-');
        let mut next = || {
            let part = parts.next().filter(|part| !part.starts_with('+')).ok_or(InvalidStreamText)?;
            u64::from_str_radix(part, 16).map_err(|_| InvalidStreamText)
        };
        let (node, shard, session) = (next()?, next()?, next()?);
        let shard = u16::try_from(shard).map_err(|_| InvalidStreamText)?;
        parts.next().is_none().then_some(StreamId { node, shard, session }).ok_or(InvalidStreamText)
    }
}

impl fmt::Display for StreamSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Secrets are never logged.
impl fmt::Debug for StreamSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamSecret")
    }
}

impl FromStr for StreamSecret {
    type Err = InvalidStreamText;

    fn from_str(text: &str) -> Result<Self, InvalidStreamText> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        value.map(StreamSecret).ok_or(InvalidStreamText)
    }
}

/// What a stream is opened with: a bind whose token stands in the `Authorization` header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OpenStream {
    /// Names the device for as long as the app is installed. A second session of it replaces the first.
    pub device_id: String,
    /// `web`, `ios`, `android`, `desktop` or the app's own word; the device limit counts per kind. Default `web`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_kind: Option<String>,
    /// The app's own version, shown to the app server in the list of devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// The last cursor that this device was handed; absent on first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Whether this device is one that pushes may be sent to, now and while it is away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
    /// Whether somebody looks at this session. Default `foreground`.
    #[serde(default, skip_serializing_if = "Attention::is_foreground")]
    #[param(inline)]
    pub attention: Attention,
    /// Entries of `messages` events leave out what the entry before them in the event has, too: `conversation`, `kind`, `at` and `type`,
    /// and `seq` where it is one more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compact: bool,
}

/// The data of the event `open`, the first of a stream: where frames are sent to, and with what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamOpened {
    /// The stream's name in the path of its frames: `/v1/stream/{stream}`.
    pub stream: String,
    /// Goes into the `Authorization` header of each request with frames.
    pub secret: String,
    /// A quiet stream has a comment this often, in milliseconds.
    pub keep_alive_ms: u64,
}

/// The data of the event `probe`: the client sends any frame within this time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamProbe {
    /// In milliseconds.
    pub timeout_ms: u64,
}

/// The data of the event `close`, the last of a stream: what a WebSocket's close frame says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamClosed {
    /// The number of the close code.
    pub code: u16,
    /// The error code; empty if the client asked for the close.
    pub reason: String,
}

/// What became of a request with frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PostReceipt {
    /// The number of the newest request whose frames the session has taken.
    pub taken: u64,
}

/// A client's frames on their way to a session.
#[derive(Debug)]
pub struct StreamPost {
    /// The session's stream.
    pub stream: StreamId,
    /// The secret that the client gave.
    pub secret: StreamSecret,
    /// 1 for the first request of a stream, and one more for each further one.
    pub number: u64,
    /// The frames, one per line.
    pub lines: Vec<u8>,
}

/// Appends the event of a frame whose JSON `put` appends. `cursor` is the event's id: clients that read by the standard
/// hand it back when they connect again.
pub fn put_frame_event(out: &mut Vec<u8>, cursor: Option<&str>, put: impl FnOnce(&mut Vec<u8>)) {
    if let Some(cursor) = cursor {
        out.extend_from_slice(ID);
        out.extend_from_slice(cursor.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(DATA);
    let json = out.len();
    put(out);
    // A line's end within JSON stands outside its strings, where any white space means the same; here it would end the line.
    out[json..].iter_mut().filter(|byte| matches!(**byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    out.extend_from_slice(b"\n\n");
}

/// A named event. Its data always serializes.
pub fn named_event(name: &str, data: &impl Serialize) -> Vec<u8> {
    let mut event = [EVENT, name.as_bytes(), b"\n"].concat();
    put_frame_event(&mut event, None, |out| out.extend(serde_json::to_vec(data).unwrap_or_default()));
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_secrets_are_read_back() {
        let id = StreamId { node: 0xfeed_0000_0000_0001, shard: 7, session: 0x1_0000_0002 };
        assert_eq!(id.to_string().parse(), Ok(id));
        let secret = StreamSecret(42);
        assert_eq!(secret.to_string().parse(), Ok(secret));
        assert_eq!(format!("{secret:?}"), "StreamSecret");
        for bad in ["", "1-2", "1-2-3-4", "-1-2", "1-+2-3", "1-10000-3", "1--3", "x-1-1", "1-1-10000000000000000"] {
            assert_eq!(bad.parse::<StreamId>(), Err(InvalidStreamText), "{bad:?}");
        }
        for bad in ["", "2a", "+000000000000000000000000000002a", "g000000000000000000000000000002a"] {
            assert_eq!(bad.parse::<StreamSecret>(), Err(InvalidStreamText), "{bad:?}");
        }
    }

    #[test]
    fn a_frame_is_one_line_of_its_event() {
        let mut event = Vec::new();
        put_frame_event(&mut event, Some("1.2.3.4"), |out| out.extend_from_slice(b"{\"a\":\r\n1,\"b\":\"\\n\"}"));
        assert_eq!(event, b"id: 1.2.3.4\ndata: {\"a\":  1,\"b\":\"\\n\"}\n\n");
        let close = named_event("close", &StreamClosed { code: 4003, reason: "replaced".into() });
        assert_eq!(close, b"event: close\ndata: {\"code\":4003,\"reason\":\"replaced\"}\n\n");
    }
}
