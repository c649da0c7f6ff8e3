//! HTTP/1.1 as far as the load client needs it: requests are written to a reused buffer, answers are parsed in place, without
//! allocation.

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HttpAnswer<'a> {
    pub(crate) status: u16,
    /// `Retry-After`, in seconds.
    pub(crate) retry_after: Option<u32>,
    pub(crate) body: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParsedAnswer<'a> {
    /// More bytes are needed.
    Partial,
    Whole {
        answer: HttpAnswer<'a>,
        closes: bool,
    },
    /// The bytes are no answer of HTTP/1.1 with a length, or more than one.
    Broken,
}

/// Parses the one answer that a connection waits for.
pub(crate) fn parse_answer(bytes: &[u8]) -> ParsedAnswer<'_> {
    const STATUS_END: usize = "HTTP/1.1 200".len();
    let Some(first) = bytes.get(..STATUS_END) else { return ParsedAnswer::Partial };
    let digits = &first[STATUS_END - 3..];
    if !first.starts_with(b"HTTP/1.1 ") || !digits.iter().all(u8::is_ascii_digit) {
        return ParsedAnswer::Broken;
    }
    let status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    let (mut length, mut retry_after, mut closes) = (None, None, false);
    let mut rest = &bytes[STATUS_END..];
    let Some(end) = line_end(rest) else { return ParsedAnswer::Partial };
    rest = &rest[end + 1..];
    let body = loop {
        let Some(end) = line_end(rest) else { return ParsedAnswer::Partial };
        let line = &rest[..end];
        rest = &rest[end + 1..];
        match line.first() {
            None | Some(b'\r') => break rest,
            Some(b'c' | b'C') => {
                if let Some(value) = value_of(line, b"content-length:") {
                    length = number(value);
                } else if let Some(value) = value_of(line, b"connection:") {
                    closes = value.eq_ignore_ascii_case(b"close");
                }
            }
            Some(b'r' | b'R') => {
                if let Some(value) = value_of(line, b"retry-after:") {
                    retry_after = number(value);
                }
            }
            Some(_) => {}
        }
    };
    let length = match (length, status) {
        (Some(length), _) => length as usize,
        (None, 204 | 304) => 0,
        (None, _) => return ParsedAnswer::Broken,
    };
    match body.len().cmp(&length) {
        std::cmp::Ordering::Less => ParsedAnswer::Partial,
        std::cmp::Ordering::Equal => ParsedAnswer::Whole { answer: HttpAnswer { status, retry_after, body }, closes },
        std::cmp::Ordering::Greater => ParsedAnswer::Broken,
    }
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn number(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Splits off a JSON string: `json` must begin with `before`; returns the string up to the next quote, and the rest.
pub(crate) fn take_string_field<'a>(json: &'a [u8], before: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let rest = json.strip_prefix(before)?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    let (value, rest) = (&rest[..end], &rest[end + 1..]);
    // A string with escapes is left to a full parser.
    (!value.contains(&b'\\')).then_some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_partial_until_it_is_complete() {
        let bytes = b"HTTP/1.1 200 OK\r\ndate: x\r\nContent-Length: 2\r\nretry-after: 7\r\n\r\nab";
        for end in 0..bytes.len() {
            assert_eq!(parse_answer(&bytes[..end]), ParsedAnswer::Partial, "{end}");
        }
        let answer = HttpAnswer { status: 200, retry_after: Some(7), body: b"ab" };
        assert_eq!(parse_answer(bytes), ParsedAnswer::Whole { answer, closes: false });
        assert_eq!(parse_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"), ParsedAnswer::Broken);
        assert_eq!(parse_answer(b"HTTP/1.1 200 OK\r\n\r\nab"), ParsedAnswer::Broken);
    }

    #[test]
    fn an_answer_without_content_needs_no_length() {
        let answer = HttpAnswer { status: 204, retry_after: None, body: b"" };
        let bytes = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        assert_eq!(parse_answer(bytes), ParsedAnswer::Whole { answer, closes: true });
    }

    #[test]
    fn a_string_field_without_escapes_is_split_off() {
        assert_eq!(take_string_field(br#"{"a":"b","c""#, br#"{"a":""#), Some((&b"b"[..], &br#","c""#[..])));
        assert_eq!(take_string_field(br#"{"a":"b\"","#, br#"{"a":""#), None);
    }
}
