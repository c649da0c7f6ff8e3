//! Splits what came on a connection into responses.

use axum::{body::Body, http};
use tidings_protocol::limits::POPUP_BYTES_MAX;

/// The most headers of a response.
const HEADERS_MAX: usize = 32;
/// The longest head of a response, in bytes.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// The longest body, in bytes: a decision has the content of a popup, which is shorter than the popup's configuration, and a few ids.
const BODY_BYTES_MAX: usize = 2 * POPUP_BYTES_MAX;

/// A response of the leader, as a client gets it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) retry_after_s: Option<u64>,
    /// Head and body, without headers that concern one connection only.
    pub(crate) bytes: Vec<u8>,
    /// Where the body begins.
    pub(crate) body: usize,
}

impl Response {
    /// The response as the HTTP library has it. `None`: it has a header that the library does not take.
    pub(crate) fn into_http(mut self) -> Option<http::Response<Body>> {
        let body = self.bytes.split_off(self.body);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut headers);
        parsed.parse(&self.bytes).ok()?;
        let response = http::Response::builder().status(self.status);
        let response =
            parsed.headers.iter().fold(response, |response, header| response.header(header.name, header.value));
        response.body(Body::from(body)).ok()
    }
}

/// The first response of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct First {
    pub(super) response: Response,
    /// Its length on the connection.
    pub(super) length: usize,
    /// Whether the connection ends with it.
    pub(super) is_last: bool,
}

/// These bytes are no response that the leader gives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The first response. `None`: it is not complete.
pub(super) fn first(read: &[u8]) -> Result<Option<First>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut headers);
    let body = match parsed.parse(read) {
        Ok(httparse::Status::Complete(body)) => body,
        Ok(httparse::Status::Partial) if read.len() <= HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) | Err(_) => return Err(Malformed),
    };
    let status = parsed.code.filter(|status| (200..600).contains(status)).ok_or(Malformed)?;
    if parsed.version != Some(1) || body > HEAD_BYTES_MAX {
        return Err(Malformed);
    }
    let (mut length, mut retry_after_s, mut is_last, mut concerns_connection) = (None, None, false, false);
    for header in parsed.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            if length.replace(number(header.value).ok_or(Malformed)?).is_some() {
                return Err(Malformed);
            }
        } else if is("transfer-encoding") || is("upgrade") {
            return Err(Malformed);
        } else if is("retry-after") {
            retry_after_s = number(header.value).map(|seconds| seconds as u64);
        } else if is_of_connection(header.name) {
            concerns_connection = true;
            is_last |= is("connection") && header.value.eq_ignore_ascii_case(b"close");
        }
    }
    // RFC 9112, 6.3: these have no body, whatever their headers say. Without a length the body of another ends with the connection.
    let length = if status == 204 || status == 304 { 0 } else { length.ok_or(Malformed)? };
    if length > BODY_BYTES_MAX {
        return Err(Malformed);
    }
    let end = body + length;
    if read.len() < end {
        return Ok(None);
    }
    let response = if concerns_connection {
        let mut bytes = format!("HTTP/1.1 {status} {}\r\n", parsed.reason.unwrap_or_default()).into_bytes();
        for header in parsed.headers.iter().filter(|header| !is_of_connection(header.name)) {
            bytes.extend_from_slice(&[header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
        }
        bytes.extend_from_slice(b"\r\n");
        let head = bytes.len();
        bytes.extend_from_slice(&read[body..end]);
        Response { status, retry_after_s, bytes, body: head }
    } else {
        Response { status, retry_after_s, bytes: read[..end].to_vec(), body }
    };
    Ok(Some(First { response, length: end, is_last }))
}

fn is_of_connection(name: &str) -> bool {
    ["connection", "keep-alive", "proxy-connection"].iter().any(|of| name.eq_ignore_ascii_case(of))
}

fn number(digits: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(digits).ok()?;
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SHOWN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\ndate: d\r\n\r\n{}";
    const NOTHING: &str = "HTTP/1.1 204 No Content\r\nretry-after: 7\r\ndate: d\r\n\r\n";

    #[test]
    fn a_response_is_complete_with_its_last_byte_and_unchanged() {
        for (text, status, retry_after_s, body) in [(SHOWN, 200, None, "{}"), (NOTHING, 204, Some(7), "")] {
            for read in 0..text.len() {
                assert_eq!(first(&text.as_bytes()[..read]), Ok(None), "{read} bytes");
            }
            for behind in ["", "HTTP/1.1 2", "rubbish"] {
                let First { response, length, is_last } = first(format!("{text}{behind}").as_bytes()).unwrap().unwrap();
                assert_eq!((length, is_last), (text.len(), false));
                assert_eq!((response.status, response.retry_after_s), (status, retry_after_s));
                assert_eq!(response.bytes, text.as_bytes());
                assert_eq!(&response.bytes[response.body..], body.as_bytes());
            }
        }
    }

    #[test]
    fn headers_of_the_connection_are_not_passed_on() {
        let text = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nretry-after: 1\r\nKeep-Alive: timeout=5\r\n\
            content-length: 1\r\n\r\nx";
        let First { response, length, is_last } = first(text.as_bytes()).unwrap().unwrap();
        assert_eq!((length, is_last), (text.len(), true));
        let passed_on = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 1\r\n\r\nx";
        assert_eq!(std::str::from_utf8(&response.bytes).unwrap(), passed_on);
        assert_eq!(&response.bytes[response.body..], b"x");
    }

    #[test]
    fn what_the_leader_never_answers_is_malformed() {
        let long = "x".repeat(HEAD_BYTES_MAX);
        for text in [
            "\x16\x03\x01",
            "HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 600 Whatever\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
            &format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", BODY_BYTES_MAX + 1),
            &format!("HTTP/1.1 200 OK\r\nx: {long}\r\ncontent-length: 0\r\n\r\n"),
            &format!("HTTP/1.1 200 OK\r\nx: {long}"),
        ] {
            assert_eq!(first(text.as_bytes()), Err(Malformed), "{text:.60}");
        }
    }
}
