//! Entries as clients see them: what a reader may see of a stored entry ([`crate::visibility`]), as the wire has it.

use crate::visibility::ShownEntry;
use bytes::Bytes;
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

/// A message with the fields that most messages have and no others, as its JSON. What is absent stands in the entry before it.
#[derive(Serialize)]
struct Plain<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<EntryKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_msg_id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    body: &'a RawValue,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    mentions: &'a [String],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    silent: bool,
}

impl<'a> Plain<'a> {
    fn of(conversation: &'a str, entry: &'a StoredEntry) -> Self {
        let content = &entry.content;
        let body: Result<&RawValue, _> = serde_json::from_str(&content.body);
        Plain {
            conversation: Some(conversation),
            seq: Some(entry.seq),
            kind: Some(content.kind),
            at: Some(entry.at),
            from: content.sender.as_ref().map(|sender| sender.id.as_str()),
            client_msg_id: content.client_msg_id.as_deref(),
            content_type: Some(&content.content_type),
            body: body.unwrap_or(RawValue::NULL),
            mentions: &content.mentions,
            silent: content.silent,
        }
    }
}

/// Writes an entry as clients see it: the JSON of [`entry_of`], for most entries straight from the stored one.
pub fn encode_entry(out: &mut Vec<u8>, conversation: &str, shown: &ShownEntry<'_>) {
    let entry = shown.entry();
    let plain = Plain::of(conversation, entry);
    // Writing to memory cannot fail.
    let _ = if entry.content.details.is_some() {
        let body = body_of_change(&entry.content).unwrap_or_else(|| plain.body.to_owned());
        serde_json::to_writer(out, &with_body(conversation, entry, body))
    } else {
        serde_json::to_writer(out, &plain)
    };
}

/// The entries of one conversation, each without what the one before it has, too. Nothing is kept of a single entry, which is as it is.
#[derive(Default)]
pub(crate) struct CompactEntries {
    json: Vec<u8>,
    before: Option<FieldsBefore>,
}

/// The fields that the next entry may leave out.
struct FieldsBefore {
    seq: u64,
    kind: EntryKind,
    at: u64,
    content_type: String,
}

impl CompactEntries {
    /// Adds the entry whose JSON `whole` has from `start` on, with its comma.
    pub(crate) fn add(&mut self, shown: &ShownEntry<'_>, whole: &[u8], start: usize) {
        let entry = shown.entry();
        let StoredEntry { seq, at, content, .. } = entry;
        match &mut self.before {
            Some(before) => {
                if self.json.is_empty() {
                    self.json.extend_from_slice(&whole[..start]);
                }
                if content.details.is_some() {
                    self.json.extend_from_slice(&whole[start..]);
                } else {
                    let plain = Plain::of("", entry);
                    let compact = Plain {
                        conversation: None,
                        seq: plain.seq.filter(|seq| *seq != before.seq + 1),
                        kind: plain.kind.filter(|kind| *kind != before.kind),
                        at: plain.at.filter(|at| *at != before.at),
                        content_type: plain.content_type.filter(|kind| *kind != before.content_type),
                        ..plain
                    };
                    self.json.push(b',');
                    // Writing to memory cannot fail.
                    let _ = serde_json::to_writer(&mut self.json, &compact);
                }
                (before.seq, before.kind, before.at) = (*seq, content.kind, *at);
                before.content_type.clone_from(&content.content_type);
            }
            before @ None => {
                let content_type = content.content_type.clone();
                *before = Some(FieldsBefore { seq: *seq, kind: content.kind, at: *at, content_type });
            }
        }
    }

    /// The entries, if they are shorter than whole ones.
    pub(crate) fn finish(self) -> Option<Bytes> {
        (!self.json.is_empty()).then(|| self.json.into())
    }
}

#[cfg(test)]
#[path = "../tests/units/compact_entries.rs"]
mod tests;
