//! Entries as clients see them: what a reader may see of a stored entry ([`crate::visibility`]), as the wire has it.

use crate::visibility::ShownEntry;
use serde::Serialize;
use serde_json::value::RawValue;
use tidings_domain::model::*;
use tidings_protocol::{
    entry::{Entry, ExpiresAt, PinnedBy, Reaction, RecalledBy, ReplyTo, StreamMark},
    error::{ErrorCode, Refusal},
};

/// An entry as clients see it.
///
/// # Errors
/// `internal`: the stored body is damaged.
pub(crate) fn entry_of(conversation: &str, shown: &ShownEntry<'_>) -> Result<Entry, Refusal> {
    let stored = shown.entry();
    let content = &stored.content;
    let body = RawValue::from_string(content.body.to_string())
        .map_err(|_| Refusal::new(ErrorCode::Internal, format!("entry {} has a damaged body", stored.seq)))?;
    Ok(with_body(conversation, stored, body_of_change(content).unwrap_or(body)))
}

fn with_body(conversation: &str, stored: &StoredEntry, body: Box<RawValue>) -> Entry {
    let content = &stored.content;
    let message = content.message_details();
    let edit = content.edit_details();
    let version = edit.map_or(message.version, |edit| edit.version);
    let id = |user: &Sender| user.id.clone();
    Entry {
        conversation: conversation.to_owned(),
        seq: stored.seq,
        kind: content.kind,
        at: stored.at,
        from: content.sender.as_ref().map(id),
        agent: content.desk().and_then(|desk| desk.agent.as_ref()).map(id),
        client_msg_id: content.client_msg_id.clone(),
        content_type: content.content_type.clone(),
        body,
        mentions: content.mentions.clone(),
        silent: content.silent,
        hidden: content.is_hidden(),
        target: content.target(),
        version: (version > 1).then_some(version),
        edited_at: message.edited.as_ref().map(|edited| edited.at),
        edited_by: message.edited.as_ref().and_then(|edited| edited.by.as_ref()).map(id),
        recalled: message.recalled.as_ref().map(|recalled| RecalledBy {
            at: recalled.at,
            by: recalled.by.as_ref().map(id),
            expired: recalled.expired,
        }),
        reactions: reactions_of(&message.reactions),
        reply_to: message.reply_to.as_ref().map(reply_to_of),
        pinned: message.pinned.as_ref().map(|pinned| PinnedBy { at: pinned.at, by: pinned.by.as_ref().map(id) }),
        stream: match message.stream {
            _ if edit.is_some_and(|edit| edit.interrupted) => Some(StreamMark::Interrupted),
            StreamState::Whole => None,
            StreamState::Open { .. } => Some(StreamMark::Open),
            StreamState::Interrupted => Some(StreamMark::Interrupted),
        },
        expires: message.expires.map(|expiry| ExpiresAt {
            at: expiry.last_time(content.kept_since(stored.at)),
            after_read_s: expiry.after_read_s,
        }),
        expired: content.is_expiry(),
    }
}

/// A summary of reactions as clients see it.
pub(crate) fn reactions_of(reactions: &[ReactionCount]) -> Vec<Reaction> {
    let view = |reaction: &ReactionCount| Reaction {
        key: reaction.key.clone(),
        count: reaction.count,
        users: reaction.newest.iter().map(|user| user.id.clone()).collect(),
    };
    reactions.iter().map(view).collect()
}

fn reply_to_of(AnsweredMessage { seq, preview }: &AnsweredMessage) -> ReplyTo {
    let seq = *seq;
    let Some(preview) = preview else {
        return ReplyTo { seq, from: None, content_type: None, body: None, recalled: false };
    };
    let body = preview.body.as_ref().and_then(|body| RawValue::from_string(body.to_string()).ok());
    let content_type = Some(preview.content_type.clone());
    ReplyTo { seq, from: preview.from.clone(), content_type, body, recalled: preview.recalled }
}

/// The body of an entry that reports a change and has no content of its own; `None` for all others.
fn body_of_change(content: &NewEntry) -> Option<Box<RawValue>> {
    #[derive(Serialize)]
    struct ReactionsBody {
        changes: Vec<ReactionChange>,
    }
    #[derive(Serialize)]
    struct ReactionChange {
        seq: u64,
        reactions: Vec<Reaction>,
    }
    let EntryDetails { desk, of_kind, .. } = content.details.as_deref()?;
    match of_kind {
        KindDetails::Reactions(changes) => {
            let change =
                |(seq, all): &(u64, Vec<ReactionCount>)| ReactionChange { seq: *seq, reactions: reactions_of(all) };
            let changes = changes.iter().map(change).collect();
            serde_json::value::to_raw_value(&ReactionsBody { changes }).ok()
        }
        KindDetails::Pins { pinned, .. } => {
            serde_json::value::to_raw_value(&serde_json::json!({ "pinned": pinned.is_some() })).ok()
        }
        KindDetails::Assignment { .. } if desk.is_none() => {
            serde_json::value::to_raw_value(&serde_json::json!({})).ok()
        }
        KindDetails::Assignment { to } => {
            let to = to.as_ref().map(|agent| &agent.id);
            serde_json::value::to_raw_value(&serde_json::json!({ "assigned_to": to })).ok()
        }
        KindDetails::Message(_)
        | KindDetails::Edit(_)
        | KindDetails::Recall { .. }
        | KindDetails::Notice
        | KindDetails::Opaque(_) => None,
    }
}

/// Writes an entry as clients see it: the JSON of [`entry_of`], for most entries straight from the stored one.
pub fn encode_entry(out: &mut Vec<u8>, conversation: &str, shown: &ShownEntry<'_>) {
    let entry = shown.entry();
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
        let body = body_of_change(content).unwrap_or_else(|| body.to_owned());
        let _ = serde_json::to_writer(out, &with_body(conversation, entry, body));
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
