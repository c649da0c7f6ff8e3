//! Stored entries as clients see them.

use serde::Serialize;
use serde_json::value::RawValue;
use tidings_domain::model::*;
use tidings_protocol::{
    entry::{Entry, RecalledBy},
    error::{ErrorCode, Refusal},
};

/// A stored entry as clients see it.
///
/// # Errors
/// `internal`: the stored body is damaged.
pub(crate) fn entry_of(conversation: &str, stored: &StoredEntry) -> Result<Entry, Refusal> {
    let content = &stored.content;
    let body = RawValue::from_string(content.body.to_string())
        .map_err(|_| Refusal::new(ErrorCode::Internal, format!("entry {} has a damaged body", stored.seq)))?;
    Ok(with_body(conversation, stored, body))
}

fn with_body(conversation: &str, stored: &StoredEntry, body: Box<RawValue>) -> Entry {
    let content = &stored.content;
    let details = content.details();
    let id = |user: &Sender| user.id.clone();
    Entry {
        conversation: conversation.to_owned(),
        seq: stored.seq,
        kind: content.kind,
        at: stored.at,
        from: content.sender.as_ref().map(id),
        client_msg_id: content.client_msg_id.clone(),
        content_type: content.content_type.clone(),
        body,
        mentions: content.mentions.clone(),
        silent: content.silent,
        target: some_unless_zero(details.target),
        version: (details.version > 1).then_some(details.version),
        edited_at: some_unless_zero(details.edited_at),
        edited_by: details.edited_by.as_ref().map(id),
        recalled: details
            .recalled
            .as_ref()
            .map(|recalled| RecalledBy { at: recalled.at, by: recalled.by.as_ref().map(id) }),
    }
}

fn some_unless_zero(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

/// Writes an entry as clients see it: the JSON of [`entry_of`], for most entries straight from the stored one.
pub fn encode_entry(out: &mut Vec<u8>, conversation: &str, entry: &StoredEntry) {
    #[derive(Serialize)]
    struct Plain<'a> {
        conversation: &'a str,
        seq: u64,
        kind: EntryKind,
        at: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        client_msg_id: Option<&'a str>,
        #[serde(rename = "type")]
        content_type: &'a str,
        body: &'a RawValue,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        mentions: &'a [String],
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        silent: bool,
    }
    let content = &entry.content;
    let parsed: Result<&RawValue, _> = serde_json::from_str(&content.body);
    let body = parsed.unwrap_or(RawValue::NULL);
    // Writing to memory cannot fail.
    if content.details.is_some() {
        let _ = serde_json::to_writer(out, &with_body(conversation, entry, body.to_owned()));
        return;
    }
    let plain = Plain {
        conversation,
        seq: entry.seq,
        kind: content.kind,
        at: entry.at,
        from: content.sender.as_ref().map(|s| s.id.as_str()),
        client_msg_id: content.client_msg_id.as_deref(),
        content_type: &content.content_type,
        body,
        mentions: &content.mentions,
        silent: content.silent,
    };
    let _ = serde_json::to_writer(out, &plain);
}
