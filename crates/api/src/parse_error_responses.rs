//! Problem details for bytes that hyper cannot parse as a request.
//!
//! hyper answers those with a status and no body, and has no hook for more. So its response is recognised while it is written: no other
//! response of ours has one of these statuses without a body.

use crate::problem::{PROBLEM_JSON, problem};
use tidings_protocol::error::{ErrorCode, Refusal};

/// A response that is written in the place of one of hyper's.
pub(crate) struct ReplacementResponse {
    pub(crate) bytes: Vec<u8>,
    pub(crate) written: usize,
    /// The length of the replaced response.
    pub(crate) replaced_len: usize,
}

/// The replacement for `bytes`, if they are exactly one such response of hyper's.
pub(crate) fn replacement_for(bytes: &[u8]) -> Option<ReplacementResponse> {
    let status: u16 = std::str::from_utf8(bytes.strip_prefix(b"HTTP/1.")?.get(2..5)?).ok()?.parse().ok()?;
    let refusal = match status {
        400 => Refusal::new(ErrorCode::Malformed, "not a valid HTTP/1.1 request (RFC 9112)"),
        414 => Refusal::new(ErrorCode::LimitExceeded, "the request's path is too long"),
        431 => Refusal::new(ErrorCode::LimitExceeded, "the request's head is limited to 32 KiB and 100 headers"),
        _ => return None,
    };
    let head = std::str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let first = lines.next()?;
    let (mut others, mut is_empty) = (String::new(), false);
    for line in lines {
        match line {
            "content-length: 0" => is_empty = true,
            // The head ends before the bytes do: something else follows.
            "" => return None,
            other => others = others + other + "\r\n",
        }
    }
    if !is_empty {
        return None;
    }
    let mut body = problem(&refusal);
    body.status = status;
    let body = serde_json::to_vec(&body).ok()?;
    let length = body.len();
    let head = format!("{first}\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {length}\r\n{others}\r\n");
    Some(ReplacementResponse { bytes: [head.into_bytes(), body].concat(), written: 0, replaced_len: bytes.len() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bare_error_responses_of_hyper_are_replaced() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        let replacement = replacement_for(own).unwrap();
        let text = String::from_utf8(replacement.bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 Request") && head.contains("\r\nconnection: close\r\n"), "{head}");
        assert!(
            head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())) && head.ends_with("date: now"),
            "{head}"
        );
        assert!(body.contains(r#""code":"limit_exceeded""#) && body.contains(r#""status":431"#), "{body}");
        assert_eq!(replacement.replaced_len, own.len());
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nHTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            "HTTP/1.1 4",
            "",
        ] {
            assert!(replacement_for(other.as_bytes()).is_none(), "{other}");
        }
    }
}
