//! Details as they are stored, and as they travel between nodes: JSON with the fields of all kinds, each left out where it is
//! empty, so that a version with more of them can be read. The names and the order of the fields are fixed. Fields of a later
//! version are kept as they are, and so are all details of an entry whose kind is of a later version.

use super::*;
use crate::model::{EntryRequest, is_default};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, forward_to_deserialize_any};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap};

/// The fields of all kinds.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StoredDetails<'a> {
    /// Of edits, recalls and pins.
    #[serde(skip_serializing_if = "is_default")]
    target: u64,
    /// Of messages and edits.
    #[serde(skip_serializing_if = "is_default")]
    version: u32,
    #[serde(skip_serializing_if = "is_default")]
    edited_at: u64,
    #[serde(skip_serializing_if = "is_default")]
    edited_by: Option<Cow<'a, Sender>>,
    #[serde(skip_serializing_if = "is_default")]
    edits: Cow<'a, [u64]>,
    #[serde(skip_serializing_if = "is_default")]
    recalled: Option<Cow<'a, Recalled>>,
    /// Of edits.
    #[serde(skip_serializing_if = "is_default")]
    replaced: Option<Cow<'a, ReplacedBody>>,
    #[serde(skip_serializing_if = "is_default")]
    reactions: Cow<'a, [ReactionCount]>,
    #[serde(skip_serializing_if = "is_default")]
    reply_to: u64,
    /// Between nodes only.
    #[serde(skip_serializing_if = "is_default")]
    preview: Option<Cow<'a, ReplyPreview>>,
    #[serde(skip_serializing_if = "is_default")]
    reaction_changes: Cow<'a, [(u64, Vec<ReactionCount>)]>,
    /// Of messages, and of the entries that report it.
    #[serde(skip_serializing_if = "is_default")]
    pinned: Option<Cow<'a, Pinned>>,
    /// Of messages and of the edits that end them.
    #[serde(skip_serializing_if = "is_default")]
    stream: StoredStream,
    #[serde(skip_serializing_if = "is_default")]
    stream_node: u64,
    #[serde(skip_serializing_if = "is_default")]
    stream_end: u64,
    /// Of entries in conversations with accounts, as are the next two.
    #[serde(skip_serializing_if = "is_default")]
    desk: Option<ConversationNo>,
    #[serde(skip_serializing_if = "is_default")]
    agent: Option<Cow<'a, Sender>>,
    #[serde(skip_serializing_if = "is_default")]
    for_customer: bool,
    #[serde(skip_serializing_if = "is_default")]
    assigned_to: Option<Cow<'a, Sender>>,
    #[serde(skip_serializing_if = "is_default")]
    mentioned: Option<Cow<'a, [String]>>,
    /// Of messages that the hook has hidden, and of changes of them.
    #[serde(skip_serializing_if = "is_default")]
    hidden: bool,
    /// Of imported messages.
    #[serde(skip_serializing_if = "is_default")]
    imported_at: u64,
    #[serde(skip_serializing_if = "is_default")]
    expires: Option<Expiry>,
    /// Of recalls.
    #[serde(skip_serializing_if = "is_default")]
    expired: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
enum StoredStream {
    #[default]
    Whole,
    Open,
    /// Also a state of a later version: the body is what there is.
    #[serde(other)]
    Interrupted,
}

/// What every kind may have, also one of a later version.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredDesk {
    desk: Option<ConversationNo>,
    agent: Option<Sender>,
    for_customer: bool,
    hidden: bool,
}

impl EntryDetails {
    /// The details as they are stored: JSON, without the fields that are empty.
    pub fn to_text(&self) -> String {
        if let KindDetails::Opaque(text) = &self.of_kind {
            return text.to_string();
        }
        // Writing to memory cannot fail for these types.
        let mut text = serde_json::to_string(&StoredDetails::of(self)).unwrap_or_default();
        if let Some(unknown) = &self.unknown {
            text.truncate(text.len().saturating_sub(1));
            let separator = if text.len() > 1 { "," } else { "" };
            text.extend([separator, unknown, "}"]);
        }
        text
    }

    /// The details of an entry of this kind from what [`EntryDetails::to_text`] wrote.
    ///
    /// # Errors
    /// It is not such JSON. Of a kind of a later version: it is not text.
    pub fn parse(kind: EntryKind, text: &[u8]) -> serde_json::Result<EntryDetails> {
        if kind.is_opaque() {
            return opaque_details(text);
        }
        match serde_json::from_slice::<StoredDetails<'_>>(text) {
            Ok(stored) => Ok(stored.into_details(kind)),
            // Fields of a later version are rare, and so looked for only now.
            Err(error) => match take_unknown_fields(text)? {
                Some((known, unknown)) => {
                    let stored: StoredDetails<'_> = serde_json::from_str(&known)?;
                    Ok(EntryDetails { unknown: Some(unknown.into()), ..stored.into_details(kind) })
                }
                None => Err(error),
            },
        }
    }
}

fn opaque_details(text: &[u8]) -> serde_json::Result<EntryDetails> {
    let text = std::str::from_utf8(text).map_err(de::Error::custom)?;
    let StoredDesk { desk, agent, for_customer, hidden } = serde_json::from_str(text).unwrap_or_default();
    let desk = desk.map(|account| EntryDesk { account, agent, for_customer });
    Ok(EntryDetails { desk, of_kind: KindDetails::Opaque(text.into()), hidden, imported_at: None, unknown: None })
}

/// The JSON of the fields that this version knows, and the others without the braces; `None`: there are no others.
fn take_unknown_fields(text: &[u8]) -> serde_json::Result<Option<(String, String)>> {
    let fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(text)?;
    let names = field_names();
    let (known, unknown): (BTreeMap<_, _>, BTreeMap<_, _>) =
        fields.into_iter().partition(|(name, _)| names.contains(&name.as_ref()));
    if unknown.is_empty() {
        return Ok(None);
    }
    let mut unknown = serde_json::to_string(&unknown)?;
    unknown.pop();
    unknown.remove(0);
    Ok(Some((serde_json::to_string(&known)?, unknown)))
}

/// The names of the fields that this version knows.
fn field_names() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    let _ = StoredDetails::deserialize(FieldNames(&mut names));
    names
}

/// Deserializes nothing, and notes which fields are asked for.
struct FieldNames<'n>(&'n mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = de::value::Error;

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_any<V: de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("there is no value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'a> StoredDetails<'a> {
    fn of(details: &'a EntryDetails) -> StoredDetails<'a> {
        let mut stored = match &details.of_kind {
            KindDetails::Message(message) => StoredDetails::of_message(message),
            KindDetails::Edit(EditDetails { target, version, replaced, interrupted }) => StoredDetails {
                target: *target,
                version: *version,
                replaced: replaced.as_ref().map(Cow::Borrowed),
                stream: if *interrupted { StoredStream::Interrupted } else { StoredStream::Whole },
                ..StoredDetails::default()
            },
            KindDetails::Recall { target, expired } => {
                StoredDetails { target: *target, expired: *expired, ..StoredDetails::default() }
            }
            KindDetails::Pins { target, pinned } => StoredDetails {
                target: *target,
                pinned: pinned.as_ref().map(Cow::Borrowed),
                ..StoredDetails::default()
            },
            KindDetails::Reactions(changes) => {
                StoredDetails { reaction_changes: Cow::Borrowed(changes), ..StoredDetails::default() }
            }
            KindDetails::Assignment { to } => {
                StoredDetails { assigned_to: to.as_ref().map(Cow::Borrowed), ..StoredDetails::default() }
            }
            // The text of opaque details is written as it is.
            KindDetails::Notice | KindDetails::Opaque(_) => StoredDetails::default(),
        };
        if let Some(EntryDesk { account, agent, for_customer }) = &details.desk {
            stored.desk = Some(*account);
            stored.agent = agent.as_ref().map(Cow::Borrowed);
            stored.for_customer = *for_customer;
        }
        stored.hidden = details.hidden;
        stored.imported_at = details.imported_at.unwrap_or(0);
        stored
    }

    fn of_message(message: &'a MessageDetails) -> StoredDetails<'a> {
        let MessageDetails {
            version,
            edited,
            edits,
            recalled,
            reactions,
            reply_to,
            pinned,
            stream,
            stream_end,
            mentioned,
            expires,
        } = message;
        let (stream, stream_node) = match stream {
            StreamState::Whole => (StoredStream::Whole, 0),
            StreamState::Open { node } => (StoredStream::Open, *node),
            StreamState::Interrupted => (StoredStream::Interrupted, 0),
        };
        StoredDetails {
            version: *version,
            edited_at: edited.as_ref().map_or(0, |edited| edited.at),
            edited_by: edited.as_ref().and_then(|edited| edited.by.as_ref()).map(Cow::Borrowed),
            edits: Cow::Borrowed(edits),
            recalled: recalled.as_ref().map(Cow::Borrowed),
            reactions: Cow::Borrowed(reactions),
            reply_to: reply_to.as_ref().map_or(0, |reply| reply.seq),
            preview: reply_to.as_ref().and_then(|reply| reply.preview.as_ref()).map(Cow::Borrowed),
            pinned: pinned.as_ref().map(Cow::Borrowed),
            stream,
            stream_node,
            stream_end: stream_end.unwrap_or(0),
            mentioned: mentioned.as_deref().map(Cow::Borrowed),
            expires: *expires,
            ..StoredDetails::default()
        }
    }

    fn into_details(self, kind: EntryKind) -> EntryDetails {
        let desk = self.desk.map(|account| EntryDesk {
            account,
            agent: self.agent.clone().map(Cow::into_owned),
            for_customer: self.for_customer,
        });
        let hidden = self.hidden;
        let imported_at = Some(self.imported_at).filter(|at| *at != 0);
        let of_kind = match kind {
            EntryKind::Message => KindDetails::Message(self.into_message()),
            EntryKind::Edit => KindDetails::Edit(EditDetails {
                target: self.target,
                version: self.version,
                replaced: self.replaced.map(Cow::into_owned),
                interrupted: self.stream == StoredStream::Interrupted,
            }),
            EntryKind::Recall => KindDetails::Recall { target: self.target, expired: self.expired },
            EntryKind::Pins => KindDetails::Pins { target: self.target, pinned: self.pinned.map(Cow::into_owned) },
            EntryKind::Reactions => KindDetails::Reactions(self.reaction_changes.into_owned()),
            EntryKind::Assignment => KindDetails::Assignment { to: self.assigned_to.map(Cow::into_owned) },
            EntryKind::MemberChange | EntryKind::ConversationChange | EntryKind::Opaque(_) => KindDetails::Notice,
        };
        EntryDetails { desk, of_kind, hidden, imported_at, unknown: None }
    }

    fn into_message(self) -> MessageDetails {
        let by = self.edited_by.map(Cow::into_owned);
        let preview = self.preview.map(Cow::into_owned);
        MessageDetails {
            version: self.version,
            edited: (self.edited_at != 0).then_some(Edited { at: self.edited_at, by }),
            edits: self.edits.into_owned(),
            recalled: self.recalled.map(Cow::into_owned),
            reactions: self.reactions.into_owned(),
            reply_to: (self.reply_to != 0).then_some(AnsweredMessage { seq: self.reply_to, preview }),
            pinned: self.pinned.map(Cow::into_owned),
            stream: match self.stream {
                StoredStream::Whole => StreamState::Whole,
                StoredStream::Open => StreamState::Open { node: self.stream_node },
                StoredStream::Interrupted => StreamState::Interrupted,
            },
            stream_end: (self.stream_end != 0).then_some(self.stream_end),
            mentioned: self.mentioned.map(Cow::into_owned),
            expires: self.expires,
        }
    }
}

pub(in crate::model) fn serialize_as_text<S: Serializer>(
    details: &Option<Box<EntryDetails>>,
    out: S,
) -> Result<S::Ok, S::Error> {
    details.as_ref().map(|details| details.to_text()).serialize(out)
}

/// An entry as another node sends it. Its details are read once its kind is known.
#[derive(Deserialize)]
pub(in crate::model) struct ReceivedEntry {
    kind: EntryKind,
    sender: Option<Sender>,
    client_msg_id: Option<String>,
    content_type: String,
    body: Box<str>,
    mentions: Vec<String>,
    silent: bool,
    skip_push: bool,
    details: Option<String>,
}

impl TryFrom<ReceivedEntry> for NewEntry {
    type Error = serde_json::Error;

    fn try_from(received: ReceivedEntry) -> serde_json::Result<NewEntry> {
        let ReceivedEntry { kind, sender, client_msg_id, content_type, body, mentions, silent, skip_push, details } =
            received;
        let details = details.map(|text| EntryDetails::parse(kind, text.as_bytes())).transpose()?.map(Box::new);
        let request = EntryRequest::default();
        Ok(NewEntry { kind, sender, client_msg_id, content_type, body, mentions, silent, skip_push, details, request })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn stored_details_are_read_by_their_kind_and_written_alike() {
        let by = r#"{"no":3,"id":"ada"}"#;
        for (kind, text) in [
            (EntryKind::Message, "{}".into()),
            (
                EntryKind::Message,
                format!(
                    r#"{{"version":3,"edited_at":9,"edited_by":{by},"edits":[2,4],"reactions":[{{"key":"+1","count":1,"newest":[{by}]}}],"reply_to":1,"pinned":{{"at":8,"by":null}},"stream":"Interrupted","stream_end":2,"desk":7,"agent":{by},"for_customer":true,"mentioned":["bob"]}}"#
                ),
            ),
            (EntryKind::Message, format!(r#"{{"edits":[2],"recalled":{{"at":9,"by":{by},"entry":5}}}}"#)),
            (EntryKind::Message, r#"{"stream":"Open","stream_node":7}"#.into()),
            (
                EntryKind::Message,
                r#"{"reply_to":1,"preview":{"from":"bob","content_type":"text","body":"1","recalled":false}}"#.into(),
            ),
            (
                EntryKind::Edit,
                format!(
                    r#"{{"target":1,"version":2,"replaced":{{"content_type":"text","body":"1","at":5,"by":{by}}},"desk":7}}"#
                ),
            ),
            (EntryKind::Edit, r#"{"target":1,"version":2,"stream":"Interrupted"}"#.into()),
            (EntryKind::Recall, r#"{"target":1}"#.into()),
            (EntryKind::Recall, r#"{"target":1,"expired":true}"#.into()),
            (EntryKind::Message, r#"{"expires":{"after_s":60,"after_read_s":5}}"#.into()),
            (EntryKind::Pins, r#"{"target":1,"pinned":{"at":8,"by":null}}"#.into()),
            (EntryKind::Pins, r#"{"target":1}"#.into()),
            (EntryKind::Reactions, r#"{"reaction_changes":[[1,[]],[2,[{"key":"+1","count":1,"newest":[]}]]]}"#.into()),
            (EntryKind::Assignment, format!(r#"{{"desk":7,"assigned_to":{by}}}"#)),
            (EntryKind::MemberChange, r#"{"desk":7}"#.into()),
        ] as [(EntryKind, String); 15]
        {
            let details = EntryDetails::parse(kind, text.as_bytes()).unwrap();
            assert_eq!(details.to_text(), text);
            assert_eq!(
                EntryDetails::of(kind).of_kind == details.of_kind,
                text == "{}" || kind == EntryKind::MemberChange
            );
        }
    }

    #[test]
    fn fields_of_a_later_version_stay_as_they_are_when_the_entry_is_changed() {
        let text = r#"{"version":3,"later":[1.50,{"x":null}],"lat\"er":"}"}"#;
        let mut newer = EntryDetails::parse(EntryKind::Message, text.as_bytes()).unwrap();
        let KindDetails::Message(message) = &mut newer.of_kind else { panic!() };
        assert_eq!(message.version, 3);
        message.version = 4;
        let changed = newer.to_text();
        assert_eq!(changed, r#"{"version":4,"lat\"er":"}","later":[1.50,{"x":null}]}"#);
        assert_eq!(EntryDetails::parse(EntryKind::Message, changed.as_bytes()).unwrap(), newer);
        // Without a field that is known.
        let text = r#"{"later":1}"#;
        assert_eq!(EntryDetails::parse(EntryKind::MemberChange, text.as_bytes()).unwrap().to_text(), text);
        // What is damaged stays damaged, beside a field of a later version and without one.
        for damaged in [r#"{"version":"x"}"#, r#"{"version":"x","later":1}"#, r#"{"later":1"#, ""] {
            assert!(EntryDetails::parse(EntryKind::Message, damaged.as_bytes()).is_err(), "{damaged}");
        }
    }

    #[test]
    fn details_of_a_kind_of_a_later_version_stay_as_they_are() {
        for text in [r#"{"desk":7,"agent":{"no":3,"id":"ada"},"votes":{"a":1}}"#, "{}", "[]", "", "not JSON"] {
            let details = EntryDetails::parse(EntryKind::Opaque(200), text.as_bytes()).unwrap();
            assert_eq!(details.to_text(), text);
            assert_eq!(details.desk.is_some(), text.starts_with(r#"{"desk"#));
        }
        assert!(EntryDetails::parse(EntryKind::Opaque(200), &[0xff]).is_err());
    }
}
