//! HTTP/1.1 as far as load clients need it, one request at a time: requests are written to a reused buffer, answers are read
//! in place, without allocation.

use std::{borrow::Cow, cmp::Ordering};
use tidings_client::wire::take_chunks;

/// Whether a connection serves many requests or one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ConnectionUse {
    #[default]
    Kept,
    /// Each request has a connection of its own, which the server closes after the answer.
    OneRequest,
}

/// The head of a request up to its length, formatted once for all requests.
#[derive(Debug, Clone)]
pub(crate) struct RequestTemplate {
    head: Vec<u8>,
}

impl RequestTemplate {
    pub(crate) fn post(path: &str, authorization: &str) -> Self {
        RequestTemplate::post_over(path, authorization, ConnectionUse::Kept)
    }

    pub(crate) fn post_over(path: &str, authorization: &str, connection_use: ConnectionUse) -> Self {
        let close = match connection_use {
            ConnectionUse::Kept => "",
            ConnectionUse::OneRequest => "Connection: close\r\n",
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: tidings\r\nAuthorization: Bearer {authorization}\r\n{close}\
             Content-Type: application/json\r\nContent-Length: "
        );
        RequestTemplate { head: head.into_bytes() }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>, body: &[u8]) {
        out.extend_from_slice(&self.head);
        put_number(out, body.len() as u64);
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(body);
    }
}

pub(crate) fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpAnswer<'a> {
    pub(crate) status: u16,
    /// `Retry-After`, in seconds.
    pub(crate) retry_after: Option<u32>,
    /// The server closes the connection after this answer.
    pub(crate) closes: bool,
    pub(crate) body: Cow<'a, [u8]>,
}

/// The longest head that is read, in bytes; those of servers have a few hundred.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Reads the answer to the only request that is under way on a connection. `Ok(None)`: more bytes are needed.
///
/// # Errors
/// The bytes are no answer of HTTP/1.1, or more than one.
pub(crate) fn parse_answer(bytes: &[u8]) -> Result<Option<HttpAnswer<'_>>, String> {
    const STATUS_END: usize = "HTTP/1.1 200".len();
    let Some(first) = bytes.get(..STATUS_END) else { return Ok(None) };
    let digits = &first[STATUS_END - 3..];
    if !first.starts_with(b"HTTP/1.1 ") || !digits.iter().all(u8::is_ascii_digit) {
        return Err("an answer without a status line".into());
    }
    let status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    let (mut length, mut retry_after, mut closes, mut is_chunked) = (0, None, false, false);
    let mut rest = &bytes[STATUS_END..];
    let mut is_status_line = true;
    loop {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return if bytes.len() > HEAD_BYTES_MAX { Err("an answer's head without end".into()) } else { Ok(None) };
        };
        let line = &rest[..end];
        rest = &rest[end + 1..];
        if std::mem::take(&mut is_status_line) {
            continue;
        }
        match line.first() {
            None | Some(b'\r') => break,
            Some(b'c' | b'C') => {
                if let Some(value) = value_of(line, b"content-length:") {
                    length = number(value).ok_or("a Content-Length that is not a number")? as usize;
                } else if let Some(value) = value_of(line, b"connection:") {
                    closes = value.eq_ignore_ascii_case(b"close");
                }
            }
            Some(b'r' | b'R') => {
                if let Some(value) = value_of(line, b"retry-after:") {
                    retry_after = number(value);
                }
            }
            Some(b't' | b'T') => {
                if let Some(value) = value_of(line, b"transfer-encoding:") {
                    is_chunked = value.eq_ignore_ascii_case(b"chunked");
                }
            }
            Some(_) => {}
        }
    }
    let body = if is_chunked {
        let Some(body) = take_chunks(rest)? else { return Ok(None) };
        Cow::Owned(body)
    } else {
        match rest.len().cmp(&length) {
            Ordering::Less => return Ok(None),
            Ordering::Equal => Cow::Borrowed(rest),
            Ordering::Greater => return Err("more than the answer to one request".into()),
        }
    };
    Ok(Some(HttpAnswer { status, retry_after, closes, body }))
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn number(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, retry_after: Option<u32>, closes: bool, body: &[u8]) -> HttpAnswer<'_> {
        HttpAnswer { status, retry_after, closes, body: body.into() }
    }

    #[test]
    fn an_answer_is_partial_until_it_is_complete() {
        let bytes = b"HTTP/1.1 200 OK\r\ndate: x\r\nContent-Length: 2\r\nretry-after: 7\r\n\r\nab";
        for end in 0..bytes.len() {
            assert_eq!(parse_answer(&bytes[..end]), Ok(None), "{end}");
        }
        assert_eq!(parse_answer(bytes), Ok(Some(answer(200, Some(7), false, b"ab"))));
        assert!(parse_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab").is_err());
        assert!(parse_answer(b"HTTP/1.1 200 OK\r\n\r\nab").is_err());
    }

    #[test]
    fn an_answer_may_come_in_chunks_or_without_content() {
        let bytes = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        assert_eq!(parse_answer(bytes), Ok(Some(answer(204, None, true, b""))));
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n";
        assert_eq!(parse_answer(&bytes[..bytes.len() - 1]), Ok(None));
        assert_eq!(parse_answer(bytes), Ok(Some(answer(200, None, false, b"ab"))));
    }
}
