//! Custom attributes of users and conversations: JSON objects of bounded size, stored as their text.

use tidings_protocol::{depth::check_depth, error::Refusal, limits::ATTRIBUTES_BYTES_MAX};

/// Checks custom attributes, a JSON object of bounded size, and answers their text.
pub(crate) fn check_attributes(attributes: Option<&serde_json::Value>) -> Result<Option<String>, Refusal> {
    let Some(attributes) = attributes else { return Ok(None) };
    if !attributes.is_object() {
        return Err(Refusal::field("attributes", "must be a JSON object"));
    }
    let text = attributes.to_string();
    check_depth("attributes", &text)?;
    match text.len() {
        0..=ATTRIBUTES_BYTES_MAX => Ok(Some(text)),
        length => Err(Refusal::limit("attributes (bytes)", ATTRIBUTES_BYTES_MAX as u64, length as u64)),
    }
}

/// Parses the text of custom attributes.
pub fn attributes_value(text: Option<&str>) -> Option<serde_json::Value> {
    text.and_then(|text| serde_json::from_str(text).ok())
}
