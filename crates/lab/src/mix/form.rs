//! A message as a client shows it, and what the entries of the timeline make of it (`docs/chat.md`, "Edit and recall").

use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};
use tidings_protocol::entry::{Entry, EntryKind, Reaction};

/// How often each reaction was given.
pub(crate) type ReactionCounts = BTreeMap<String, u32>;

/// A message as a client shows it. Bodies are kept as hashes of their JSON text, which a server carries unchanged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Form {
    pub(crate) version: u32,
    pub(crate) body: u64,
    pub(crate) is_recalled: bool,
    pub(crate) reactions: ReactionCounts,
}

/// What a client was handed with one entry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DeliveredEntry {
    Message(Form),
    Edit {
        target: u64,
        version: u32,
        body: u64,
    },
    Recall {
        target: u64,
    },
    Reactions(BTreeMap<u64, ReactionCounts>),
    /// Changes no message.
    Other,
}

pub(crate) fn body_hash(json: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    json.hash(&mut hasher);
    hasher.finish()
}

/// The hash of the body of whatever has none: a recalled message, an obsolete edit.
pub(crate) fn no_body() -> u64 {
    body_hash("null")
}

impl Form {
    /// A message that nobody has changed.
    pub(crate) fn original(body: u64) -> Self {
        Form { version: 1, body, is_recalled: false, reactions: ReactionCounts::new() }
    }

    /// Applies an entry that follows the message, as a client does.
    pub(crate) fn apply(&mut self, seq: u64, change: &DeliveredEntry) {
        match change {
            DeliveredEntry::Edit { target, version, body }
                if *target == seq && *version > self.version && !self.is_recalled =>
            {
                (self.version, self.body) = (*version, *body);
            }
            DeliveredEntry::Recall { target } if *target == seq => {
                (self.body, self.is_recalled) = (no_body(), true);
                self.reactions.clear();
            }
            DeliveredEntry::Reactions(changes) if !self.is_recalled => {
                if let Some(reactions) = changes.get(&seq) {
                    self.reactions.clone_from(reactions);
                }
            }
            _ => {}
        }
    }
}

impl DeliveredEntry {
    /// Reads an entry as a client does.
    ///
    /// # Errors
    /// The entry lacks what its kind must have; the sentence says what.
    pub(crate) fn of(entry: &Entry) -> Result<Self, String> {
        let body = body_hash(entry.body.get());
        let target = || entry.target.ok_or_else(|| "names no target".to_owned());
        Ok(match entry.kind {
            EntryKind::Message => DeliveredEntry::Message(Form {
                version: entry.version.unwrap_or(1),
                body,
                is_recalled: entry.recalled.is_some(),
                reactions: counts_of(&entry.reactions)?,
            }),
            EntryKind::Edit => {
                DeliveredEntry::Edit { target: target()?, version: entry.version.ok_or("has no version")?, body }
            }
            EntryKind::Recall => DeliveredEntry::Recall { target: target()? },
            EntryKind::Reactions => DeliveredEntry::Reactions(reaction_changes(entry.body.get())?),
            EntryKind::Pins
            | EntryKind::MemberChange
            | EntryKind::ConversationChange
            | EntryKind::Assignment
            | EntryKind::Opaque(_) => DeliveredEntry::Other,
        })
    }

    /// The messages that the entry changes.
    pub(crate) fn targets(&self) -> BTreeSet<u64> {
        match self {
            DeliveredEntry::Edit { target, .. } | DeliveredEntry::Recall { target } => [*target].into(),
            DeliveredEntry::Reactions(changes) => changes.keys().copied().collect(),
            DeliveredEntry::Message(_) | DeliveredEntry::Other => BTreeSet::new(),
        }
    }
}

fn counts_of(reactions: &[Reaction]) -> Result<ReactionCounts, String> {
    let counts: ReactionCounts = reactions.iter().map(|one| (one.key.clone(), one.count)).collect();
    if counts.len() == reactions.len() { Ok(counts) } else { Err("names a reaction twice".into()) }
}

fn reaction_changes(body: &str) -> Result<BTreeMap<u64, ReactionCounts>, String> {
    #[derive(Deserialize)]
    struct Body {
        changes: Vec<Change>,
    }
    #[derive(Deserialize)]
    struct Change {
        seq: u64,
        reactions: Vec<Reaction>,
    }
    let body: Body = serde_json::from_str(body).map_err(|error| format!("has no changes: {error}"))?;
    body.changes.into_iter().map(|change| Ok((change.seq, counts_of(&change.reactions)?))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn handed(json: &str) -> Result<DeliveredEntry, String> {
        let start = r#"{"conversation":"g","at":1,"type":"text","#;
        DeliveredEntry::of(&serde_json::from_str(&format!("{start}{json}")).unwrap())
    }

    #[test]
    fn a_client_that_was_there_and_one_that_resumes_come_to_the_same_form() {
        let mut form = Form::original(body_hash(r#""a""#));
        for change in [
            r#""seq":2,"kind":"edit","target":1,"version":2,"body":"b"}"#,
            r#""seq":3,"kind":"reactions","body":{"changes":[{"seq":1,"reactions":[{"key":"x","count":2,"users":["u"]}]}]}}"#,
        ] {
            form.apply(1, &handed(change).unwrap());
        }
        let newest =
            r#""seq":1,"kind":"message","version":2,"body":"b","reactions":[{"key":"x","count":2,"users":[]}]}"#;
        assert_eq!(handed(newest), Ok(DeliveredEntry::Message(form.clone())));
        let again = form.clone();
        form.apply(1, &handed(r#""seq":2,"kind":"edit","target":1,"version":2,"body":null}"#).unwrap());
        assert_eq!(form, again, "an edit that the form has already changes nothing");
        form.apply(1, &handed(r#""seq":4,"kind":"recall","target":1,"body":null}"#).unwrap());
        form.apply(1, &handed(r#""seq":5,"kind":"edit","target":1,"version":3,"body":"c"}"#).unwrap());
        let tombstone = r#""seq":1,"kind":"message","version":2,"body":null,"recalled":{"at":1}}"#;
        assert_eq!(handed(tombstone), Ok(DeliveredEntry::Message(form)));
    }

    #[test]
    fn an_entry_without_what_its_kind_has_is_refused() {
        assert!(handed(r#""seq":2,"kind":"recall","body":null}"#).is_err());
        assert!(handed(r#""seq":2,"kind":"edit","target":1,"body":"b"}"#).is_err());
        assert!(handed(r#""seq":2,"kind":"reactions","body":{}}"#).is_err());
        let twice = r#""seq":1,"kind":"message","body":"b","reactions":[{"key":"x","count":1,"users":[]},{"key":"x","count":1,"users":[]}]}"#;
        assert!(handed(twice).is_err());
    }
}
