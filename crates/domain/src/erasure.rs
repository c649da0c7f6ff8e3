//! Erasing a person, or a conversation: what of the stored rows is the person's, and what is left in its place.
//!
//! A user's number stays, under an alias that says nothing of the person, since other people's rows point at it: the other side of a
//! direct conversation, the sender of a message that is kept. Everything that names the person or is the person's own goes. What
//! that is, is said here once: the leader's job removes it, and a check looks for it, by the same functions.

pub use crate::erase_step::*;
use crate::{
    chat_row_kind::ChatRowKind,
    chat_rows::{Preferences, UserSettings, decode, encode, number_in},
    model::*,
    store_error::StoreResult,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tidings_protocol::{
    http::{ErasedMessages, ErasureState},
    ids::{DIRECT_SEPARATOR, direct_id},
};

/// How far an erasure has come. The order is that in which they follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ErasureStage {
    /// Devices, popups and memberships of groups.
    Leaving,
    /// Reactions, and rows of all kinds.
    Rows,
    /// The profile is replaced.
    Profile,
    /// Direct conversations get another id.
    Renaming,
    /// Every entry of every conversation is read: messages are recalled, unless they are to be kept, and what names the person is
    /// replaced.
    Entries,
    /// Rows once more: what came while the entries were read.
    LastRows,
    /// Nothing is left to do.
    Done,
}

/// The job that erases a person, as it is stored under [`erasure_key`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredErasure {
    /// The person's id; absent once it is forgotten.
    pub id: Option<String>,
    /// The user's number; nobody's of a conversation.
    pub no: UserNo,
    /// The conversation that is deleted, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationNo>,
    /// What stands in the id's place; empty for a direct conversation, whose id stays.
    pub alias: String,
    /// What becomes of the messages.
    pub messages: ErasedMessages,
    /// Who wants it.
    pub by: String,
    /// When it began, in milliseconds since 1970 UTC.
    pub at: u64,
    /// When it ended.
    pub ended_at: Option<u64>,
    /// How far it has come.
    pub stage: ErasureStage,
    /// How far the stage has come: a conversation's number, or the key of a row as hexadecimal digits.
    pub cursor: String,
    /// Messages that were recalled.
    pub recalled: u64,
    /// Entries and rows that were changed or removed.
    pub changed: u64,
    /// The conversation under a legal hold that the job waits for.
    pub held: Option<String>,
    /// Why it waits, if it failed.
    pub last_error: Option<String>,
}

impl StoredErasure {
    /// The person, as long as the id is known.
    pub fn person(&self) -> Option<Person> {
        if self.conversation.is_some() {
            return None;
        }
        Some(Person { no: self.no, id: self.id.clone()?, alias: self.alias.clone() })
    }

    /// The conversation, as long as its id is known.
    pub fn deleted_conversation(&self) -> Option<DeletedConversation> {
        Some(DeletedConversation::of(self.conversation?, self.id.as_deref()?, &self.alias))
    }

    /// Whether something is still to be done with the person's data.
    pub fn is_running(&self) -> bool {
        self.stage < ErasureStage::Done
    }

    /// The state, as operators see it.
    pub fn state(&self) -> ErasureState {
        match (self.is_running(), &self.held) {
            (true, None) => ErasureState::Running,
            (true, Some(_)) => ErasureState::Held,
            (false, _) => ErasureState::Done,
        }
    }

    /// Where its row is.
    pub fn place(&self) -> ErasurePlace {
        match (self.is_running(), &self.id) {
            (true, _) => ErasurePlace::Running,
            (false, Some(_)) => ErasurePlace::Done,
            (false, None) => ErasurePlace::Forgotten,
        }
    }

    /// The job of a row.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: &[u8]) -> StoreResult<StoredErasure> {
        let erasure: Option<StoredErasure> = decode(Some(row))?;
        erasure.ok_or_else(|| crate::store_error::StoreError::Damaged("an erasure".into()))
    }

    /// The row.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// Where jobs are: those that run are read again and again, and must be few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErasurePlace {
    /// It runs.
    Running = 0,
    /// It is done, and knows the person's id, which the feed's event tells.
    Done = 1,
    /// It has forgotten the id.
    Forgotten = 2,
}

impl ErasurePlace {
    /// In the order in which a job comes to them.
    pub const ALL: [ErasurePlace; 3] = [ErasurePlace::Running, ErasurePlace::Done, ErasurePlace::Forgotten];

    /// The range of all jobs there.
    pub fn range(self) -> (Vec<u8>, Vec<u8>) {
        let first = vec![ChatRowKind::Erasure.byte(), self as u8];
        let last = [&first[..], &[0xFF; 17]].concat();
        (first, last)
    }
}

/// The key of the job that erases the user with this id, while it runs: it does not name the user.
pub fn erasure_key(id: &str) -> Vec<u8> {
    let first = [ChatRowKind::Erasure.byte(), ErasurePlace::Running as u8];
    [&first[..], &Sha256::digest(id.as_bytes())[..16]].concat()
}

/// The key of the job that deletes the conversation with this id, while it runs. No user's id has the byte that begins what it is made of.
pub fn conversation_erasure_key(id: &str) -> Vec<u8> {
    erasure_key(&format!("\0{id}"))
}

/// The key of the same job at another place.
pub fn erasure_key_at(key: &[u8], place: ErasurePlace) -> Vec<u8> {
    let mut key = key.to_vec();
    key.iter_mut().skip(1).take(1).for_each(|byte| *byte = place as u8);
    key
}

/// The name of a job for operators, made of its key.
pub fn erasure_name(key: &[u8]) -> String {
    key.iter().skip(2).map(|byte| format!("{byte:02x}")).collect()
}

/// The key of the job with this name, while it runs.
pub fn erasure_key_of(name: &str) -> Option<Vec<u8>> {
    let digits =
        name.as_bytes().chunks_exact(2).filter_map(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok());
    let key: Vec<u8> = [ChatRowKind::Erasure.byte(), ErasurePlace::Running as u8].into_iter().chain(digits).collect();
    (name.len() == 32 && key.len() == 18).then_some(key)
}

/// The key of a conversation's legal hold.
pub fn legal_hold_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::LegalHold.key(&[conversation.0])
}

/// What becomes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is not the person's, and does not name the person.
    Keep,
    /// It is the person's.
    Remove,
    /// It is another's, and names the person no more.
    Rewrite(Vec<u8>),
}

/// What becomes of a row of [`RowSpace::Chat`](crate::store::RowSpace::Chat) when the person is erased. A new kind of rows is decided
/// about here.
pub fn fate_of_row(person: &Person, key: &[u8], value: &[u8]) -> Fate {
    let Some(kind) = ChatRowKind::of(key) else { return Fate::Keep };
    let is_at = |place| number_in(key, place) == Some(person.no.0);
    let remove_if = |is_theirs: bool| if is_theirs { Fate::Remove } else { Fate::Keep };
    match kind {
        ChatRowKind::Mention => {
            remove_if(key[1..].strip_prefix(person.id.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)))
        }
        ChatRowKind::Reactions => remove_if(is_at(2)),
        ChatRowKind::Stored
        | ChatRowKind::Preferences
        | ChatRowKind::PushDevice
        | ChatRowKind::PushDeviceAdditions
        | ChatRowKind::ShownNotification
        | ChatRowKind::Block => remove_if(is_at(0)),
        ChatRowKind::UserSettings if is_at(0) => {
            // Who is erased stays suspended: nobody is to act under the alias.
            let settings = UserSettings::decode(Some(value)).unwrap_or_default();
            let left = UserSettings { suspension: settings.suspension.clone(), ..UserSettings::default() };
            match left.encode() {
                Some(_) if settings == left => Fate::Keep,
                Some(row) => Fate::Rewrite(row),
                None => Fate::Remove,
            }
        }
        ChatRowKind::Report => remove_if(match number_in(key, 0) {
            Some(0) => is_at(3),
            _ => is_at(5),
        }),
        ChatRowKind::Restrictions | ChatRowKind::LastSend if is_at(1) => Fate::Remove,
        ChatRowKind::NotifiedMark => remove_if(is_at(2)),
        ChatRowKind::JoinRequest if number_in(key, 0) == Some(0) && is_at(2) => Fate::Remove,
        ChatRowKind::JoinRequest if number_in(key, 0) == Some(2) && is_at(1) => Fate::Remove,
        ChatRowKind::ScheduledMessage => match crate::scheduled::sender_of(key) {
            Some(sender) if sender == person.no => Fate::Remove,
            // Of others: the header of a message may mention the person; parts of bodies are no objects.
            _ => redacted(person, value),
        },
        ChatRowKind::PushToken => {
            let token: Option<Value> = serde_json::from_slice(value).ok();
            remove_if(token.and_then(|token| token["user"].as_u64()) == Some(person.no.0))
        }
        ChatRowKind::ProviderDeadLetter => {
            let letter: Option<Value> = serde_json::from_slice(value).ok();
            remove_if(letter.and_then(|letter| letter["t"][0].as_u64()) == Some(person.no.0))
        }
        // Ids of users who did something, ids of devices, and lists of both: all in JSON.
        ChatRowKind::Restrictions
        | ChatRowKind::JoinRequest
        | ChatRowKind::Invites
        | ChatRowKind::Agent
        | ChatRowKind::Assignment
        | ChatRowKind::ChannelJob
        | ChatRowKind::WaitingChannelJob
        | ChatRowKind::DeferredChannelJob
        | ChatRowKind::LogRecord
        | ChatRowKind::LogRecordOfSeveral
        | ChatRowKind::EventConsumer
        // They are on their way into the log, which drops those that name the person.
        | ChatRowKind::FeedNotes => redacted(person, value),
        // Of conversations and their messages, of operators, and of the server itself; where users are in them, it is by number. An
        // account's own user is erased with the account, and a bulk send forgets whom it names when it ends.
        ChatRowKind::UserSettings
        | ChatRowKind::LastSend
        | ChatRowKind::MentionOfAll
        | ChatRowKind::ReactionsTold
        | ChatRowKind::ReactionsUntold
        | ChatRowKind::Answer
        | ChatRowKind::Pins
        | ChatRowKind::Recall
        | ChatRowKind::OpenStream
        | ChatRowKind::BulkSend
        | ChatRowKind::BulkSendPart
        | ChatRowKind::Desk
        | ChatRowKind::AccountIndex
        | ChatRowKind::NotificationProgress
        | ChatRowKind::NotificationPolicy
        | ChatRowKind::ChannelCounts
        | ChatRowKind::ApiKey
        | ChatRowKind::AuditEntry
        | ChatRowKind::Erasure
        | ChatRowKind::LegalHold
        | ChatRowKind::Expiry => Fate::Keep,
    }
}

impl DeletedConversation {
    /// What is left of the details: a number, and what keeps everybody out. Of a direct conversation its users, who may write again.
    pub fn left_of(&self, before: Conversation) -> Conversation {
        let deleted = (!self.is_direct()).then_some(true);
        Conversation {
            id: self.alias.clone(),
            name: None,
            avatar: None,
            attributes: None,
            settings: ConversationSettings { deleted, ..ConversationSettings::default() },
            ..before
        }
    }
}

/// Whether a stored webhook event is of the conversation.
pub fn is_event_of(conversation: &DeletedConversation, event: &str) -> bool {
    let event: Option<Value> = serde_json::from_str(event).ok();
    event.is_some_and(|event| event["conversation"] == conversation.id.as_str() || event["c"] == conversation.no.0)
}

/// Leaves of an entry that there was one, and when. Answers whether it said more.
pub fn blank(entry: &mut StoredEntry) -> bool {
    let recalled = Some(Recalled { at: entry.at, by: None, entry: entry.seq, expired: false });
    let message = MessageDetails { recalled, ..MessageDetails::default() };
    // Retention counts from there, and knows the bytes of that day.
    let imported_at = entry.content.details.as_deref().and_then(|details| details.imported_at);
    let left = NewEntry {
        kind: EntryKind::Message,
        content_type: "deleted".into(),
        client_msg_id: None,
        sender: None,
        body: NO_BODY.into(),
        mentions: Vec::new(),
        silent: true,
        skip_push: true,
        details: Some(Box::new(EntryDetails { imported_at, ..KindDetails::Message(message).into() })),
        request: EntryRequest::default(),
    };
    let says_more = entry.content != left;
    entry.content = left;
    says_more
}

/// What becomes of a row of [`RowSpace::Chat`](crate::store::RowSpace::Chat) when the conversation is deleted. A new kind of rows is decided
/// about here.
pub fn fate_of_row_in(conversation: &DeletedConversation, key: &[u8], value: &[u8]) -> Fate {
    let Some(kind) = ChatRowKind::of(key) else { return Fate::Keep };
    let no = conversation.no;
    let is_at = |place| number_in(key, place) == Some(no.0);
    let remove_if = |is_its: bool| if is_its { Fate::Remove } else { Fate::Keep };
    let names_it = |value: &[u8]| {
        let row: Option<Value> = serde_json::from_slice(value).ok();
        row.is_some_and(|row| row["c"].as_u64() == Some(no.0))
    };
    match kind {
        ChatRowKind::Mention | ChatRowKind::MentionOfAll => {
            remove_if(crate::chat_rows::mention_in(key).is_some_and(|place| place.conversation == no))
        }
        ChatRowKind::Preferences if is_at(1) && conversation.is_direct() => {
            // Its users see nothing of before, and it is in no list before somebody writes.
            let Ok(set) = Preferences::decode(Some(value)) else { return Fate::Keep };
            let left = Preferences { cleared_seq: set.cleared_seq, hidden_at: set.hidden_at, ..Preferences::default() };
            match left.encode() {
                Some(_) if left == set => Fate::Keep,
                Some(row) => Fate::Rewrite(row),
                None => Fate::Remove,
            }
        }
        ChatRowKind::Preferences | ChatRowKind::ShownNotification => remove_if(is_at(1)),
        ChatRowKind::Reactions
        | ChatRowKind::ReactionsTold
        | ChatRowKind::ReactionsUntold
        | ChatRowKind::Answer
        | ChatRowKind::Pins
        | ChatRowKind::OpenStream
        | ChatRowKind::Desk
        | ChatRowKind::Agent
        | ChatRowKind::Assignment
        | ChatRowKind::Restrictions
        | ChatRowKind::LastSend
        | ChatRowKind::Invites => remove_if(is_at(0)),
        ChatRowKind::Expiry => remove_if(match number_in(key, 0) {
            Some(0) => is_at(2),
            _ => is_at(1),
        }),
        ChatRowKind::AccountIndex => remove_if(is_at(0) || crate::desks::indexed(key).is_some_and(|(_, of)| of == no)),
        ChatRowKind::Report => remove_if(match number_in(key, 0) {
            Some(0) => is_at(1),
            _ => is_at(3),
        }),
        ChatRowKind::JoinRequest => remove_if(matches!(number_in(key, 0), Some(0 | 1)) && is_at(1)),
        ChatRowKind::LogRecord | ChatRowKind::LogRecordOfSeveral => remove_if(is_at(1)),
        ChatRowKind::ChannelJob
        | ChatRowKind::WaitingChannelJob
        | ChatRowKind::DeferredChannelJob
        | ChatRowKind::ProviderDeadLetter => remove_if(names_it(value)),
        // Ids of conversations.
        ChatRowKind::EventConsumer | ChatRowKind::FeedNotes => {
            let DeletedConversation { id, alias, .. } = conversation.clone();
            redacted(&Person { no: UserNo::NOBODY, id, alias }, value)
        }
        // The job takes messages for later back, each as a whole. A legal hold keeps the job waiting.
        ChatRowKind::ScheduledMessage
        | ChatRowKind::LegalHold
        // Recalled bodies that may be in the files, also those of this conversation; of users, of accounts' bulk sends, of
        // operators, and of the server itself.
        | ChatRowKind::Recall
        | ChatRowKind::Stored
        | ChatRowKind::UserSettings
        | ChatRowKind::Block
        | ChatRowKind::BulkSend
        | ChatRowKind::BulkSendPart
        | ChatRowKind::PushToken
        | ChatRowKind::PushDevice
        | ChatRowKind::PushDeviceAdditions
        | ChatRowKind::NotificationProgress
        | ChatRowKind::NotificationPolicy
        | ChatRowKind::NotifiedMark
        | ChatRowKind::ChannelCounts
        | ChatRowKind::ApiKey
        | ChatRowKind::AuditEntry
        | ChatRowKind::Erasure => Fate::Keep,
    }
}

/// What becomes of a row of JSON that may name the person, and devices of the person.
fn redacted(person: &Person, value: &[u8]) -> Fate {
    match serde_json::from_slice::<Value>(value) {
        Ok(mut row) if row.is_object() || row.is_array() => {
            let changed = redact_json(person, &mut row) | drop_devices(person, &mut row);
            if changed { Fate::Rewrite(encode(&row)) } else { Fate::Keep }
        }
        _ => Fate::Keep,
    }
}

/// Puts the alias in place of the person in an entry, in whatever role the entry names the person. Answers whether it did.
pub fn redact_entry(person: &Person, entry: &mut NewEntry) -> bool {
    let is_author = entry.author().is_some_and(|author| author.no == person.no);
    let mut changed = is_author && entry.client_msg_id.take().is_some();
    changed |= redact_sender(person, &mut entry.sender);
    let mut names = |list: &mut Vec<String>| {
        let before = list.len();
        list.retain(|id| *id != person.id);
        changed |= list.len() < before;
    };
    names(&mut entry.mentions);
    let mut details = entry.details.take();
    if let Some(details) = details.as_deref_mut() {
        if let Some(desk) = &mut details.desk {
            changed |= redact_sender(person, &mut desk.agent);
        }
        match &mut details.of_kind {
            KindDetails::Message(message) => {
                message.mentioned.iter_mut().for_each(|list| {
                    let before = list.len();
                    list.retain(|id| *id != person.id);
                    changed |= list.len() < before;
                });
                let by = message.edited.iter_mut().map(|edited| &mut edited.by);
                let by = by.chain(message.recalled.iter_mut().map(|recalled| &mut recalled.by));
                let by = by.chain(message.pinned.iter_mut().map(|pinned| &mut pinned.by));
                by.for_each(|by| changed |= redact_sender(person, by));
                changed |= redact_reactions(person, &mut message.reactions);
            }
            KindDetails::Edit(edit) => {
                edit.replaced.iter_mut().for_each(|replaced| changed |= redact_sender(person, &mut replaced.by));
            }
            KindDetails::Pins { pinned, .. } => {
                pinned.iter_mut().for_each(|pinned| changed |= redact_sender(person, &mut pinned.by));
            }
            KindDetails::Reactions(changes) => {
                changes.iter_mut().for_each(|(_, reactions)| changed |= redact_reactions(person, reactions));
            }
            KindDetails::Assignment { to } => changed |= redact_sender(person, to),
            KindDetails::Recall { .. } | KindDetails::Notice | KindDetails::Opaque(_) => {}
        }
    }
    entry.details = details;
    // The body of a notice is the server's own; that of a message is its sender's.
    let is_notice =
        matches!(entry.kind, EntryKind::MemberChange | EntryKind::ConversationChange | EntryKind::Assignment);
    if is_notice
        && let Ok(mut body) = serde_json::from_str::<Value>(&entry.body)
        && redact_json(person, &mut body)
    {
        entry.body = body.to_string().into();
        changed = true;
    }
    changed
}

fn redact_sender(person: &Person, sender: &mut Option<Sender>) -> bool {
    match sender {
        Some(sender) if sender.no == person.no && sender.id != person.alias => {
            sender.id.clone_from(&person.alias);
            true
        }
        _ => false,
    }
}

fn redact_reactions(person: &Person, reactions: &mut [ReactionCount]) -> bool {
    let newest = reactions.iter_mut().flat_map(|reaction| reaction.newest.iter_mut());
    newest.fold(false, |changed, sender| {
        let is_theirs = sender.no == person.no && sender.id != person.alias;
        if is_theirs {
            sender.id.clone_from(&person.alias);
        }
        changed | is_theirs
    })
}

/// The id of a conversation, if it is a direct one of the person's, with the alias in place of the person.
pub fn renamed_direct(person: &Person, id: &str) -> Option<String> {
    let (a, b) = id.split_once(DIRECT_SEPARATOR)?;
    let renamed = |id: &str| if id == person.id { person.alias.clone() } else { id.to_owned() };
    (a == person.id || b == person.id).then(|| direct_id(&renamed(a), &renamed(b)))
}

/// Puts the alias in place of every text that is the person's id, or that of a direct conversation of the person.
pub fn redact_json(person: &Person, value: &mut Value) -> bool {
    match value {
        Value::String(text) if *text == person.id => {
            text.clone_from(&person.alias);
            true
        }
        Value::String(text) => match renamed_direct(person, text) {
            Some(renamed) => {
                *text = renamed;
                true
            }
            None => false,
        },
        Value::Array(values) => values.iter_mut().fold(false, |changed, value| changed | redact_json(person, value)),
        Value::Object(fields) => fields.values_mut().fold(false, |changed, value| changed | redact_json(person, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Removes the person's devices from lists of devices, each of which is a user's number and the device's id.
fn drop_devices(person: &Person, value: &mut Value) -> bool {
    let is_theirs = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([Value::Number(no), Value::String(_)]) => no.as_u64() == Some(person.no.0),
        _ => false,
    };
    match value {
        Value::Array(values) => {
            let before = values.len();
            values.retain(|value| !is_theirs(value));
            let dropped = values.len() < before;
            values.iter_mut().fold(dropped, |changed, value| changed | drop_devices(person, value))
        }
        Value::Object(fields) => {
            fields.values_mut().fold(false, |changed, value| changed | drop_devices(person, value))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn person() -> Person {
        Person { no: UserNo(7), id: "ann".into(), alias: "erased-7".into() }
    }

    #[test]
    fn names_of_jobs_are_keys() {
        let key = erasure_key("ann");
        assert_eq!(erasure_key_of(&erasure_name(&key)), Some(key));
        assert_eq!((erasure_key_of("zz"), erasure_key_of("")), (None, None));
    }

    #[test]
    fn texts_that_only_contain_the_id_are_kept() {
        let mut value = serde_json::json!({"by": "ann", "note": "ann left", "of": ["anna", "ann"], "in": "ann~bob"});
        assert!(redact_json(&person(), &mut value));
        let expected =
            serde_json::json!({"by": "erased-7", "note": "ann left", "of": ["anna", "erased-7"], "in": "bob~erased-7"});
        assert_eq!(value, expected);
        assert!(!redact_json(&person(), &mut value));
    }

    #[test]
    fn devices_leave_lists_and_rows_of_others_stay() {
        let job = serde_json::json!({"c": 1, "s": 2, "t": [[7, "phone"], [8, "phone"]]});
        let key = crate::chat_rows::channel_job_key(1, 2, 3);
        let Fate::Rewrite(row) = fate_of_row(&person(), &key, &encode(&job)) else { panic!("the job names a device") };
        assert_eq!(serde_json::from_slice::<Value>(&row).unwrap()["t"], serde_json::json!([[8, "phone"]]));
        assert_eq!(fate_of_row(&person(), &key, &row), Fate::Keep);
        let mention = |id: &str| crate::chat_rows::mention_key(id, crate::chat_rows::MentionPlace::FIRST);
        assert_eq!(fate_of_row(&person(), &mention("ann"), &[]), Fate::Remove);
        assert_eq!(fate_of_row(&person(), &mention("anna"), &[]), Fate::Keep);
    }
}
