//! HTTP/1.1 requests and responses as bytes, the WebSocket upgrade, and a split of `messages` frames without parsing them.

use std::io::Write;
use tidings_protocol::ws::generate_key;

/// Appends a request with a JSON body.
pub fn put_request(out: &mut Vec<u8>, method: &str, path: &str, authorization: &str, body: &[u8]) {
    put_request_of(out, method, path, authorization, "application/json", body);
}

/// Appends a request whose body has this content type.
pub fn put_request_of(
    out: &mut Vec<u8>,
    method: &str,
    path: &str,
    authorization: &str,
    content_type: &str,
    body: &[u8],
) {
    // Writing to a Vec cannot fail.
    let _ = write!(
        out,
        "{method} {path} HTTP/1.1\r\nHost: tidings\r\nAuthorization: Bearer {authorization}\r\nContent-Type: \
         {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(body);
}

/// Appends the request that upgrades a connection to a WebSocket, and returns its key. A response with the value that
/// `derive_accept_key` makes of that key comes from a WebSocket server and not from a cache.
pub fn put_upgrade(out: &mut Vec<u8>, path: &str) -> String {
    let key = generate_key();
    let _ = write!(
        out,
        "GET {path} HTTP/1.1\r\nHost: tidings\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: \
         13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    );
    key
}

/// The head of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    /// Where the body begins in the buffer.
    pub body_start: usize,
    /// `Content-Length`, in bytes; 0 without one.
    pub body_length: usize,
    /// `Transfer-Encoding: chunked`; the length is then not known from the head.
    pub chunked: bool,
    /// The server will close the connection after this response.
    pub closes: bool,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// `Sec-WebSocket-Accept`.
    pub accept: Option<String>,
}

/// The longest response head that is read, in bytes; those of the server have a few hundred.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Reads a response's head at the start of `bytes`. `Ok(None)`: more bytes are needed.
///
/// # Errors
/// The bytes are no head of HTTP/1.1; the text says why.
pub fn parse_response_head(bytes: &[u8]) -> Result<Option<ResponseHead>, String> {
    let Some(end) = find(&bytes[..bytes.len().min(HEAD_BYTES_MAX)], b"\r\n\r\n") else {
        return if bytes.len() > HEAD_BYTES_MAX { Err("an answer's head without end".into()) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "an answer's head that is not text".to_owned())?;
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| "an answer without a status line".to_owned())?;
    let mut head = ResponseHead {
        status,
        body_start: end + 4,
        body_length: 0,
        chunked: false,
        closes: false,
        retry_after: None,
        accept: None,
    };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            head.body_length = value.parse().map_err(|_| "a Content-Length that is not a number".to_owned())?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            head.chunked = value.eq_ignore_ascii_case("chunked");
        } else if name.eq_ignore_ascii_case("connection") {
            head.closes = value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = value.parse().ok();
        } else if name.eq_ignore_ascii_case("sec-websocket-accept") {
            head.accept = Some(value.to_owned());
        }
    }
    Ok(Some(head))
}

/// Joins the chunks at the start of `bytes`. `Ok(None)`: more bytes are needed.
///
/// # Errors
/// A chunk has no valid size.
pub fn take_chunks(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut body = Vec::new();
    loop {
        let Some(line) = find(bytes, b"\r\n") else { return Ok(None) };
        let size = std::str::from_utf8(&bytes[..line]).ok().and_then(|s| usize::from_str_radix(s.trim(), 16).ok());
        let Some(size) = size else { return Err("a chunk without a size".into()) };
        let start = line + 2;
        let Some(chunk) = bytes.get(start..start + size + 2) else { return Ok(None) };
        if size == 0 {
            return Ok(Some(body));
        }
        body.extend_from_slice(&chunk[..size]);
        bytes = &bytes[start + size + 2..];
    }
}

/// A `messages` frame, split without parsing its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessagesFrame<'a> {
    pub cursor: &'a [u8],
    /// The entries, with commas between them.
    pub entries: &'a [u8],
}

/// Splits a `messages` frame with the spacing and field order that the server writes. `None` for any other frame, which
/// may still be a `messages` frame that is spelt differently.
pub fn split_messages_frame(payload: &[u8]) -> Option<MessagesFrame<'_>> {
    let rest = payload.strip_prefix(b"{\"t\":\"messages\",\"cursor\":\"")?;
    let quote = rest.iter().take(128).position(|b| *b == b'"')?;
    let entries = rest[quote..].strip_prefix(b"\",\"entries\":[")?.strip_suffix(b"]}")?;
    Some(MessagesFrame { cursor: &rest[..quote], entries })
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_response_head_is_read_once_complete() {
        let bytes = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nRetry-After: 3\r\n\r\n{}";
        assert_eq!(parse_response_head(&bytes[..40]), Ok(None));
        let head = parse_response_head(bytes).unwrap().unwrap();
        assert_eq!((head.status, head.body_length, head.retry_after), (503, 2, Some(3)));
        assert_eq!(&bytes[head.body_start..], b"{}");
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(take_chunks(b"3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n").unwrap().unwrap(), b"abcd");
        assert_eq!(take_chunks(b"3\r\nabc\r\n1\r\nd").unwrap(), None);
    }

    #[test]
    fn a_batch_is_split_and_other_frames_are_left_alone() {
        let batch =
            split_messages_frame(br#"{"t":"messages","cursor":"a.1.2.3","entries":[{"seq":1},{"seq":2}]}"#).unwrap();
        assert_eq!(batch.cursor, b"a.1.2.3");
        assert_eq!(batch.entries, br#"{"seq":1},{"seq":2}"#);
        assert_eq!(split_messages_frame(br#"{"t":"pong"}"#), None);
    }
}
