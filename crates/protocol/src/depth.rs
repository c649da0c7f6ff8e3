//! How deep JSON may be nested.
//!
//! Stored JSON is read again by clients' parsers, and many of those give up at fewer levels than ours: one body that such a parser cannot
//! read stops the webhook of a whole app, or a page of history. So the depth of each stored JSON is checked once, when it arrives.

use crate::{
    error::{ErrorCode, Refusal},
    limits::JSON_DEPTH_MAX,
};
use memchr::memchr2;

/// Refuses JSON that is nested deeper than [`JSON_DEPTH_MAX`]. The text must be valid JSON; nothing is allocated.
///
/// # Errors
/// `limit_exceeded`, naming `field`.
pub fn check_depth(field: &str, json: &str) -> Result<(), Refusal> {
    if is_deeper_than(json.as_bytes(), JSON_DEPTH_MAX) { Err(too_deep(field)) } else { Ok(()) }
}

fn too_deep(field: &str) -> Refusal {
    let detail = format!("{field}: arrays and objects may be nested {JSON_DEPTH_MAX} deep; these are deeper");
    Refusal::new(ErrorCode::LimitExceeded, detail)
}

/// Whether arrays and objects are nested deeper than `most` levels. For text that is truncated or no JSON, the brackets that it opens
/// count.
pub fn is_deeper_than(json: &[u8], most: usize) -> bool {
    // JSON that is deeper than `most` has more than `most` opening brackets, those in strings included. For nearly every body this count
    // is the whole cost.
    if json.len() <= most || opening_brackets(json) <= most {
        return false;
    }
    let (mut depth, mut at) = (0usize, 0);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => at = end_of_string(json, at),
            b'[' | b'{' => {
                depth += 1;
                if depth > most {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    false
}

/// Counts in single bytes, in parts that cannot overflow them: so the compiler counts many places at once.
fn opening_brackets(json: &[u8]) -> usize {
    let count = |part: &[u8]| part.iter().fold(0_u8, |count, byte| count + u8::from(opens(*byte)));
    json.chunks(u8::MAX.into()).map(|part| usize::from(count(part))).sum()
}

/// `[` is 0x5b, `{` 0x7b: one bit apart.
fn opens(byte: u8) -> bool {
    byte | 0x20 == b'{'
}

/// Where the string that begins at `from` ends: its second quotation mark, or the end of the text.
pub fn end_of_string(json: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while let Some(ahead) = json.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += ahead;
        if json[at] == b'"' {
            return at;
        }
        at += 2;
    }
    json.len()
}
