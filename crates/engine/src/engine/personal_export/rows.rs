//! What a person is told of the rows that are the person's, or name the person: into which file a kind of rows goes, where those of a
//! person are looked for, and what a record says. A new kind of rows is decided about here, as it is in
//! [`fate_of_row`](tidings_domain::erasure::fate_of_row).

use crate::Engine;
use serde_json::{Value, json};
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{self, MentionPlace, ShownNotification, decode, number_in},
    erasure::{Person, renamed_direct},
    joining::JoinRequest,
    model::*,
    push_tokens::{self, RegisteredToken, TokenDigest},
    refusals::store_refusal,
    reports::StoredReport,
    restrictions::Restrictions,
    scheduled::{ScheduledHeader, ScheduledMessage, header_in},
    store::RowSpace,
};
use tidings_protocol::error::Refusal;

/// Records of others, and of the server, that name the person.
pub(super) const NAMED_IN: &str = "named_in.ndjson";

/// The file that the person's rows of a kind are told in; `None`: no row of the kind is a person's, or names one, or it is told with
/// another kind.
pub(super) fn file_of(kind: ChatRowKind) -> Option<&'static str> {
    match kind {
        ChatRowKind::Preferences => Some("conversation_settings.ndjson"),
        ChatRowKind::Reactions => Some("reactions.ndjson"),
        ChatRowKind::Mention => Some("mentions.ndjson"),
        ChatRowKind::Block => Some("blocks.ndjson"),
        ChatRowKind::Report => Some("reports.ndjson"),
        ChatRowKind::JoinRequest => Some("join_requests.ndjson"),
        ChatRowKind::Restrictions => Some("restrictions.ndjson"),
        ChatRowKind::ScheduledMessage => Some("scheduled_messages.ndjson"),
        ChatRowKind::PushDevice => Some("push_tokens.ndjson"),
        ChatRowKind::Stored
        | ChatRowKind::LastSend
        | ChatRowKind::PushDeviceAdditions
        | ChatRowKind::ShownNotification
        | ChatRowKind::NotifiedMark => Some("server_state.ndjson"),
        ChatRowKind::Invites
        | ChatRowKind::Agent
        | ChatRowKind::Assignment
        | ChatRowKind::ChannelJob
        | ChatRowKind::WaitingChannelJob
        | ChatRowKind::DeferredChannelJob
        | ChatRowKind::LogRecord
        | ChatRowKind::LogRecordOfSeveral
        | ChatRowKind::ProviderDeadLetter
        | ChatRowKind::EventConsumer
        | ChatRowKind::FeedNotes => Some(NAMED_IN),
        // In user.json, and with the device.
        ChatRowKind::UserSettings | ChatRowKind::PushToken => None,
        ChatRowKind::MentionOfAll
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
        | ChatRowKind::Expiry => None,
    }
}

/// What a file of an archive has, in a sentence.
pub(super) fn what_is_in(file: &str) -> &'static str {
    match file {
        "user.json" => "The card, attributes and settings, and when the user was last seen.",
        "conversations.ndjson" => "The conversations that the user is in: role, since when, and the read mark.",
        "messages.ndjson" => {
            "What the user wrote: messages, edits and other entries, with former versions that are kept."
        }
        "received.ndjson" => "What others wrote, as far as the user may read it now.",
        "conversation_settings.ndjson" => "What the user set for conversations, also for those that were left.",
        "reactions.ndjson" => "Reactions that the user gave.",
        "mentions.ndjson" => "Messages that mention the user.",
        "blocks.ndjson" => "Users whom the user blocks.",
        "reports.ndjson" => "Messages that the user reported.",
        "join_requests.ndjson" => "Requests to become a member of a conversation.",
        "restrictions.ndjson" => "Mutes and bans of the user.",
        "scheduled_messages.ndjson" => "Messages that the user wants to be sent at a later time.",
        "push_tokens.ndjson" => "By which services the user's devices are reached; the tokens are left out.",
        "server_state.ndjson" => "How far the user's devices have come, and of what they were notified.",
        "devices.ndjson" => "Devices that took pushes over a connection.",
        "pushes.ndjson" => "Pushes to these devices that are kept, and what became of them.",
        "popups.ndjson" => "What the user was shown and did with it, and where the user stands in journeys.",
        NAMED_IN => {
            "Records of others and of the server that name the user: their kinds, and the fields in which they do."
        }
        _ => "",
    }
}

/// Where the rows of a kind are looked for that may be the person's.
pub(super) enum Search {
    /// Among these.
    Range((Vec<u8>, Vec<u8>)),
    /// In each conversation that the person is in, or was.
    InConversations,
}

pub(super) fn search(kind: ChatRowKind, person: &Person) -> Search {
    match kind {
        ChatRowKind::Mention => Search::Range(chat_rows::mentions_behind(&person.id, MentionPlace::FIRST)),
        ChatRowKind::Reactions => Search::InConversations,
        ChatRowKind::Stored
        | ChatRowKind::Preferences
        | ChatRowKind::PushDevice
        | ChatRowKind::PushDeviceAdditions
        | ChatRowKind::ShownNotification
        | ChatRowKind::Block => Search::Range((kind.key(&[person.no.0]), kind.key(&[person.no.0 + 1]))),
        // Their keys do not begin with a user. There are few of them, or they go with time.
        _ => Search::Range(kind.all()),
    }
}

/// The rows of a kind whose keys begin with the conversation.
pub(super) fn range_of_conversation(kind: ChatRowKind, conversation: ConversationNo) -> (Vec<u8>, Vec<u8>) {
    (kind.key(&[conversation.0]), kind.key(&[conversation.0 + 1]))
}

/// A record of a row that is not the person's and names the person. What else is in the row is not the person's to read.
pub(super) fn named_in(person: &Person, key: &[u8], row: &[u8]) -> Option<Value> {
    let kind = ChatRowKind::of(key)?;
    let fields = serde_json::from_slice(row).ok().map(|row: Value| fields_with(person, &row)).unwrap_or_default();
    Some(json!({ "kind": format!("{kind:?}"), "fields": fields }))
}

/// The paths of the fields in which a person, a direct conversation of the person, or a device of the person is named.
pub(super) fn fields_with(person: &Person, value: &Value) -> Vec<String> {
    fn look(person: &Person, value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::String(text) if *text == person.id || renamed_direct(person, text).is_some() => {
                found.push(path.to_owned());
            }
            Value::Array(values) => match values.as_slice() {
                [Value::Number(no), Value::String(device)] if no.as_u64() == Some(person.no.0) => {
                    found.push(format!("{path} (device {device:?})"));
                }
                _ => values
                    .iter()
                    .enumerate()
                    .for_each(|(at, value)| look(person, value, &format!("{path}[{at}]"), found)),
            },
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| look(person, value, &format!("{path}.{name}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    look(person, value, "", &mut found);
    found
}

impl Engine {
    /// What a row says that is the person's own; `None`: another row says it.
    pub(super) fn own_record(&self, person: &Person, key: &[u8], row: &[u8]) -> Result<Option<Value>, Refusal> {
        let Some(kind) = ChatRowKind::of(key) else { return Ok(None) };
        let number = |place| number_in(key, place).unwrap_or(0);
        let conversation = |no| {
            Ok::<_, Refusal>(
                self.directory.conversation(ConversationNo(no)).map_err(store_refusal)?.map(|found| found.id.clone()),
            )
        };
        let json_row = || serde_json::from_slice::<Value>(row).ok();
        Ok(Some(match kind {
            ChatRowKind::Mention => {
                let Some(place) = chat_rows::mention_in(key) else { return Ok(None) };
                json!({ "conversation": conversation(place.conversation.0)?, "seq": place.seq, "at": place.at })
            }
            ChatRowKind::Reactions => {
                json!({ "conversation": conversation(number(0))?, "seq": number(1), "reactions": json_row() })
            }
            ChatRowKind::Preferences => json!({ "conversation": conversation(number(1))?, "settings": json_row() }),
            ChatRowKind::Block => {
                let other = self.directory.user(UserNo(number(1))).map_err(store_refusal)?;
                json!({ "user": other.map(|other| other.id.clone()) })
            }
            ChatRowKind::Report if number(0) == 0 => {
                let report: StoredReport = serde_json::from_slice(row).map_err(damaged)?;
                json!({
                    "conversation": conversation(number(1))?, "seq": number(2), "reason": report.reason,
                    "text": report.text, "at": report.at, "state": report.state,
                })
            }
            ChatRowKind::JoinRequest if number(0) == 0 => {
                let request: Option<JoinRequest> = decode(Some(row)).map_err(store_refusal)?;
                json!({ "conversation": conversation(number(1))?, "request": request })
            }
            ChatRowKind::Restrictions => {
                let restrictions = Restrictions::decode(Some(row)).map_err(store_refusal)?;
                json!({ "conversation": conversation(number(0))?, "restrictions": restrictions })
            }
            ChatRowKind::ScheduledMessage => {
                let Some((sender, scheduled)) = header_in(key) else { return Ok(None) };
                let header = ScheduledHeader::decode(row).map_err(store_refusal)?;
                let message = ScheduledMessage::load(&*self.store, sender, scheduled, header).map_err(store_refusal)?;
                json!(self.scheduled_view(message)?)
            }
            ChatRowKind::PushDevice => {
                let device = push_tokens::device_in(key).map(|(_, device)| device);
                let digest: Option<TokenDigest> = push_tokens::digest_in(Some(row)).map_err(store_refusal)?;
                let row = digest.map(|digest| self.store.row(RowSpace::Chat, &push_tokens::token_key(digest)));
                let row = row.transpose().map_err(store_refusal)?.flatten();
                let token = RegisteredToken::decode(row.as_deref()).map_err(store_refusal)?;
                let (provider, at) = token.map(|token| (token.token.provider(), token.registered_at)).unzip();
                json!({ "device_id": device, "provider": provider, "registered_at": at })
            }
            ChatRowKind::Stored => {
                json!({ "what": "stored_by_devices", "positions": chat_rows::decode_stored(Some(row)).map_err(store_refusal)? })
            }
            ChatRowKind::LastSend => {
                json!({ "what": "last_send_in_slow_mode", "conversation": conversation(number(0))?, "at": json_row() })
            }
            ChatRowKind::PushDeviceAdditions => {
                json!({ "what": "push_devices_added", "count": push_tokens::additions_in(Some(row)).map_err(store_refusal)? })
            }
            ChatRowKind::ShownNotification => {
                let Some(shown) = ShownNotification::of_row(key, row) else { return Ok(None) };
                json!({
                    "what": "notification_shown", "conversation": conversation(shown.conversation.0)?,
                    "device_id": shown.device, "provider": shown.provider, "seq": shown.seq, "until": shown.expires_at,
                })
            }
            ChatRowKind::NotifiedMark => {
                json!({ "what": "notified", "day_since_1970": number(0), "position": number(1) })
            }
            ChatRowKind::ProviderDeadLetter => {
                let fields = json_row().map(|row| fields_with(person, &row)).unwrap_or_default();
                json!({ "kind": format!("{kind:?}"), "fields": fields })
            }
            // A list of the same reports, counts of requests; and what is nobody's own.
            _ => return Ok(None),
        }))
    }
}

fn damaged(error: serde_json::Error) -> Refusal {
    store_refusal(tidings_domain::store_error::StoreError::Damaged(error.to_string()))
}
