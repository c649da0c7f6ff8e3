//! Recognises the requests of the fast path in the bytes of a connection, and gives up all others.

use crate::{
    audit::AUTHOR,
    forward::FORWARDED,
    pipelines::{Operation, REQUEST_BYTES_MAX},
    websocket_upgrade::is_key,
};
use httparse::Header;
use std::ops::Range;
use tungstenite::handshake::derive_accept_key;

/// The request lines that are served here.
const REQUEST_LINES: [(&[u8], Line); 4] = [
    (Operation::Decide.request_line(), Line::Frequent(Operation::Decide)),
    (Operation::Report.request_line(), Line::Frequent(Operation::Report)),
    (Operation::Push.request_line(), Line::Frequent(Operation::Push)),
    (b"GET /v1/connect HTTP/1.1\r\n", Line::Upgrade),
];
/// The most headers of a request. A request with more goes to the library.
const HEADERS_MAX: usize = 32;

/// What a request line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Frequent(Operation),
    /// A WebSocket.
    Upgrade,
}

/// What the bytes that were read begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Too few bytes to tell, or a part of a request.
    Incomplete,
    /// A complete request.
    Request(FrequentRequest),
    /// A complete handshake of a WebSocket.
    Upgrade(Upgrade),
    /// A request for the library.
    Other,
}

/// A complete request in the bytes that were read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FrequentRequest {
    pub(super) operation: Operation,
    pub(super) body: Range<usize>,
    /// The value of the `Authorization` header.
    pub(super) credential: Option<Range<usize>>,
    /// Whether it has an `Origin` header.
    pub(super) has_origin: bool,
    /// Whether another node sends it.
    pub(super) is_forwarded: bool,
}

/// A handshake that RFC 6455, 4.2.1 allows, without a credential.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Upgrade {
    /// The bytes of the request.
    pub(super) length: usize,
    /// The value of `Sec-WebSocket-Accept`.
    pub(super) accept_key: String,
}

pub(super) fn next(read: &[u8]) -> Next {
    let begins = |line: &[u8]| {
        let known = read.len().min(line.len());
        read[..known] == line[..known]
    };
    let Some((line, asked)) = REQUEST_LINES.into_iter().find(|(line, _)| begins(line)) else { return Next::Other };
    // While the request line is incomplete, it may match another one, too.
    if read.len() < line.len() {
        return Next::Incomplete;
    }
    // What is behind the longest request is part of a later one.
    let is_all = read.len() <= REQUEST_BYTES_MAX;
    let read = &read[..read.len().min(REQUEST_BYTES_MAX)];
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let body = match request.parse(read) {
        Ok(httparse::Status::Complete(body)) => body,
        Ok(httparse::Status::Partial) if is_all => return Next::Incomplete,
        Ok(httparse::Status::Partial) | Err(_) => return Next::Other,
    };
    let operation = match asked {
        Line::Frequent(operation) => operation,
        Line::Upgrade => return upgrade(request.headers, body).map_or(Next::Other, Next::Upgrade),
    };
    let (mut length, mut credential, mut hosts) = (None, None, 0);
    let (mut has_origin, mut is_forwarded) = (false, false);
    for header in request.headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            match text.parse::<usize>() {
                Ok(value) if length.is_none() && text.bytes().all(|byte| byte.is_ascii_digit()) => length = Some(value),
                _ => return Next::Other,
            }
        } else if is("authorization") {
            let from = header.value.as_ptr() as usize - read.as_ptr() as usize;
            if credential.replace(from..from + header.value.len()).is_some() {
                return Next::Other;
            }
        } else if is("content-type") {
            if !header.value.eq_ignore_ascii_case(b"application/json") {
                return Next::Other;
            }
        } else if is("connection") {
            if !header.value.eq_ignore_ascii_case(b"keep-alive") {
                return Next::Other;
            }
        } else if is("origin") {
            has_origin = true;
        } else if is("host") {
            hosts += 1;
        } else if is(FORWARDED.as_str()) {
            is_forwarded = true;
        } else if is("transfer-encoding") || is("content-encoding") || is("expect") || is("upgrade") {
            return Next::Other;
        } else if is(AUTHOR.as_str()) && operation == Operation::Push {
            // The library writes the audit log.
            return Next::Other;
        }
    }
    if hosts != 1 {
        return Next::Other;
    }
    // Without a length there is no body: the library refuses it.
    let Some(end) = length.map(|length| body.saturating_add(length)).filter(|end| *end <= REQUEST_BYTES_MAX) else {
        return Next::Other;
    };
    if read.len() < end {
        return Next::Incomplete;
    }
    Next::Request(FrequentRequest { operation, body: body..end, credential, has_origin, is_forwarded })
}

/// The handshake of these headers, which end at `length`. `None`: the library knows what to answer.
fn upgrade(headers: &[Header<'_>], length: usize) -> Option<Upgrade> {
    let value = |name: &str| {
        let mut found =
            headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value);
        found.next().filter(|_| found.next().is_none())
    };
    let has = |name: &str| headers.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    // With an origin or a credential more is to be checked, and with a body more is to be read.
    let is_plain =
        ["origin", "authorization", "content-length", "transfer-encoding", "expect"].iter().all(|name| !has(name));
    let connection = std::str::from_utf8(value("connection")?).ok()?;
    let is_upgrade = connection.split(',').any(|part| part.trim().eq_ignore_ascii_case("upgrade"))
        && value("upgrade")?.eq_ignore_ascii_case(b"websocket")
        && value("sec-websocket-version")? == b"13";
    let key = value("sec-websocket-key").filter(|key| is_key(key))?;
    value("host")?;
    (is_plain && is_upgrade).then(|| Upgrade { length, accept_key: derive_accept_key(key) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn another_request_is_given_up_at_the_first_byte_that_differs() {
        for other in [
            "GET /healthz HTTP/1.1\r\n",
            "GET /v1/connect?x HTTP/1.1\r\n",
            "POST /v1/messages HTTP/1.1\r\n",
            "POST /v1/popups/explain HTTP/1.1\r\n",
            "POST /v1/popups/decide?x HTTP/1.1\r\n",
            "POST /v1/popups/decide HTTP/1.0\r\n",
            "POST /v1/popups/decide HTTP/1.1\n",
            "POST http://x/v1/popups/decide HTTP/1.1\r\n",
            "post /v1/popups/decide HTTP/1.1\r\n",
            " POST /v1/popups/decide HTTP/1.1\r\n",
            "\r\nPOST /v1/popups/decide HTTP/1.1\r\n",
            "\x16\x03\x01",
        ] {
            let common = |line: &[u8]| line.iter().zip(other.as_bytes()).take_while(|(a, b)| a == b).count();
            let known = REQUEST_LINES.iter().map(|(line, _)| common(line)).max().unwrap();
            for read in 0..=other.len() {
                let expected = if read <= known { Next::Incomplete } else { Next::Other };
                assert_eq!(next(&other.as_bytes()[..read]), expected, "{:?}", &other[..read]);
            }
        }
    }

    #[test]
    fn a_request_is_complete_with_the_last_byte_of_its_body() {
        for (line, asked) in REQUEST_LINES {
            let Line::Frequent(operation) = asked else { continue };
            let head = "Host: x\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\n";
            let request = [line, head.as_bytes(), b"{}"].concat();
            for read in 0..request.len() {
                assert_eq!(next(&request[..read]), Next::Incomplete, "{read} bytes");
            }
            let pipelined = [request.as_slice(), b"GET /"].concat();
            for read in [&request, &pipelined] {
                let Next::Request(found) = next(read) else { panic!("{operation:?} was not recognised") };
                assert_eq!((found.operation, &read[found.body]), (operation, &b"{}"[..]));
                assert_eq!(found.credential.map(|credential| &read[credential]), Some(&b"Bearer k"[..]));
            }
        }
    }

    #[test]
    fn the_longest_request_is_complete_whatever_follows_it() {
        let line = Operation::Report.request_line();
        for (more, behind, is_taken) in [(0, 0, true), (0, 40_000, true), (1, 0, false), (1, 40_000, false)] {
            let head =
                |length: usize| [line, format!("Host: x\r\nContent-Length: {length}\r\n\r\n").as_bytes()].concat();
            let length = REQUEST_BYTES_MAX - head(10_000).len() + more;
            let mut read = head(length);
            read.resize(read.len() + length + behind, b'x');
            assert_eq!(matches!(next(&read), Next::Request(_)), is_taken, "{more} {behind}");
            assert_eq!(next(&read) == Next::Other, !is_taken);
        }
        // A head of which no end can be seen.
        let mut read = [line, b"Host: "].concat();
        read.resize(REQUEST_BYTES_MAX, b'x');
        assert_eq!(next(&read), Next::Incomplete);
        read.push(b'x');
        assert_eq!(next(&read), Next::Other);
    }

    #[test]
    fn requests_of_other_nodes_are_told_from_those_of_clients() {
        for (header, is_forwarded) in
            [("", false), ("Tidings-Forwarded: b\r\n", true), ("tidings-forwarded:\r\n", true)]
        {
            let text = format!("POST /v1/popups/decide HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 0\r\n\r\n");
            let Next::Request(found) = next(text.as_bytes()) else { panic!("{header}") };
            assert_eq!(found.is_forwarded, is_forwarded, "{header}");
        }
    }

    const HANDSHAKE: &str = "GET /v1/connect HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    /// The key and its answer are the example of RFC 6455, 1.3.
    #[test]
    fn a_handshake_is_complete_with_its_empty_line() {
        let request = format!("{HANDSHAKE}\r\nmore");
        let length = HANDSHAKE.len() + 2;
        for read in 0..length {
            assert_eq!(next(&request.as_bytes()[..read]), Next::Incomplete, "{read} bytes");
        }
        let accept_key = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        assert_eq!(next(request.as_bytes()), Next::Upgrade(Upgrade { length, accept_key }));
    }

    #[test]
    fn a_handshake_of_an_unusual_form_goes_to_the_library() {
        for more in [
            "Origin: https://example.com",
            "Authorization: Bearer x",
            "Host: y",
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "Connection: close",
            "Sec-WebSocket-Version: 8",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ] {
            assert_eq!(next(format!("{HANDSHAKE}{more}\r\n\r\n").as_bytes()), Next::Other, "{more}");
        }
        for (part, other) in
            [("Host: x\r\n", ""), (": 13", ": 12"), ("dGhl", "dGh"), ("WebSocket\r", "h2c\r"), (", Upgrade", "")]
        {
            let request = format!("{HANDSHAKE}\r\n").replacen(part, other, 1);
            assert_eq!(next(request.as_bytes()), Next::Other, "{request}");
        }
    }
}
