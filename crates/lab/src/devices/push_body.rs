//! The lab's pushes. Their body: the run's tag, the push's number, and the time of its request.

use serde_json::value::RawValue;
use tidings_protocol::http::{PushPriority, PushRequest, PushTo};

/// Longer than any run, so that nothing expires.
const LIFETIME_S: u64 = 24 * 3600;

/// A push under this id of the caller's own.
pub(crate) fn request(to: PushTo, id: String, body: String) -> std::io::Result<PushRequest> {
    Ok(PushRequest {
        to,
        content_type: "bench".into(),
        // Raw JSON: devices compare it byte by byte.
        body: RawValue::from_string(body)?,
        ttl_s: Some(LIFETIME_S),
        collapse_key: None,
        priority: PushPriority::Normal,
        send_at: None,
        dry_run: false,
        client_push_id: Some(id),
        fallback: None,
    })
}

/// `at_us` is a time of the monotonic clock, which all processes of a machine share.
pub(crate) fn format(tag: &str, number: usize, at_us: u64) -> String {
    format!(r#"{{"run":"{tag}","n":{number},"at":{at_us}}}"#)
}

/// The number and the time of a body, if it is exactly one of this run's.
pub(crate) fn parse(tag: &str, body: &[u8]) -> Option<(usize, u64)> {
    let text = std::str::from_utf8(body).ok()?;
    let rest = text.strip_prefix(r#"{"run":""#)?.strip_prefix(tag)?.strip_prefix(r#"","n":"#)?;
    let (number, rest) = rest.split_once(r#","at":"#)?;
    Some((number.parse().ok()?, rest.strip_suffix('}')?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bodies_of_the_same_run_are_parsed() {
        let body = format("run", 7, 99);
        assert_eq!(parse("run", body.as_bytes()), Some((7, 99)));
        assert_eq!(parse("ru", body.as_bytes()), None);
        assert_eq!(parse("run", &body.as_bytes()[..body.len() - 1]), None);
        assert_eq!(parse("run", body.replace("99", "9.9").as_bytes()), None);
    }
}
