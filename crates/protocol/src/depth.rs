//! How deep JSON may be nested.
//!
//! What is stored here is read by parsers of others, and many give up far sooner than ours: a body that one of them cannot read stops the
//! webhook of a whole app, or a page of history. So each stored JSON is looked at once, when it comes.

use crate::{
    error::{ErrorCode, Refusal},
    limits::JSON_DEPTH_MAX,
};

/// Refuses JSON that is nested deeper than [`JSON_DEPTH_MAX`]. The text is known to be JSON; nothing is allocated.
pub fn check_depth(field: &str, json: &str) -> Result<(), Refusal> {
    if is_deeper_than(json.as_bytes(), JSON_DEPTH_MAX) { Err(too_deep(field)) } else { Ok(()) }
}

fn too_deep(field: &str) -> Refusal {
    let detail = format!("{field}: arrays and objects may be nested {JSON_DEPTH_MAX} deep; these are deeper");
    Refusal::new(ErrorCode::LimitExceeded, detail)
}

/// Whether arrays and objects are nested deeper. Text that breaks off, or is no JSON, has a depth too: that of what it opens.
pub fn is_deeper_than(json: &[u8], most: usize) -> bool {
    // Whoever is deeper opens more than that, also counting what stands in strings. This is a sum that the compiler makes of many bytes
    // at once, and all that nearly every body costs.
    if json.len() <= most || json.iter().filter(|byte| opens(**byte)).count() <= most {
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

/// `[` is 0x5b, `{` 0x7b: one bit apart.
fn opens(byte: u8) -> bool {
    byte | 0x20 == b'{'
}

/// Where the string that begins at `from` ends: its second quotation mark, or the end of the text.
fn end_of_string(json: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}
