//! Dead letters: notifications that were given up, because the webhook or a provider did not take them.

use super::{Channel, NotificationOutcome};
use crate::error::quoted;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{fmt, str::FromStr};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

/// The id of a dead letter. Those of the webhook and those of providers are numbered separately; numbers grow with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeadLetterId {
    /// `webhook:` and the number.
    Webhook(u64),
    /// `provider:` and the number.
    Provider(u64),
}

/// A text that is not the id of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be the id of a dead letter, such as webhook:409600 or provider:7226013491200000, got {}", quoted(.0))]
pub struct InvalidDeadLetterId(String);

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeadLetterId::Webhook(number) => write!(f, "webhook:{number}"),
            DeadLetterId::Provider(number) => write!(f, "provider:{number}"),
        }
    }
}

impl FromStr for DeadLetterId {
    type Err = InvalidDeadLetterId;

    fn from_str(text: &str) -> Result<Self, InvalidDeadLetterId> {
        let (kind, number) = text.split_once(':').unwrap_or_default();
        let number = number.parse().ok();
        let id = match kind {
            "webhook" => number.map(DeadLetterId::Webhook),
            "provider" => number.map(DeadLetterId::Provider),
            _ => None,
        };
        // An id is written in one way alone: without a sign and without leading zeros.
        id.filter(|id| id.to_string() == text).ok_or_else(|| InvalidDeadLetterId(text.to_owned()))
    }
}

impl TryFrom<String> for DeadLetterId {
    type Error = InvalidDeadLetterId;

    fn try_from(text: String) -> Result<Self, InvalidDeadLetterId> {
        text.parse()
    }
}

impl From<DeadLetterId> for String {
    fn from(id: DeadLetterId) -> String {
        id.to_string()
    }
}

/// A notification that was given up.
///
/// Of a provider it is for one device, and has neither the device's token nor the message's text. Of the webhook it is one event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// Names it to be replayed or deleted.
    #[schema(value_type = String, example = "webhook:409600")]
    pub id: DeadLetterId,
    /// The webhook, or the provider that was to deliver it.
    pub channel: Channel,
    /// Who was to be notified: the recipients of the webhook's event, or the one user of a provider's notification.
    pub users: Vec<String>,
    /// Which of the user's devices it was for; absent of the webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// What it is about.
    #[serde(flatten)]
    pub subject: DeadLetterSubject,
    /// When it was given up, in milliseconds since 1970 UTC.
    pub failed_at: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// `refused`: the provider will never take it, or the webhook did not take it in the last attempt; `expired`: no provider took
    /// it in the time that was left.
    pub outcome: NotificationOutcome,
    /// Why the last attempt failed; absent: it was never tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What the webhook would have been sent; absent of a provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub event: Option<Box<RawValue>>,
}

/// What a notification that was given up is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeadLetterSubject {
    /// A message.
    Message {
        /// The conversation of the message.
        conversation: String,
        /// The message's number in the conversation.
        seq: u64,
    },
    /// A push that the device had not acknowledged.
    Push {
        /// The push's number.
        push: u64,
    },
}

/// An object with fields that may be absent: its fields are a dead letter's own, and generators of clients join nothing but objects.
impl PartialSchema for DeadLetterSubject {
    fn schema() -> RefOr<Schema> {
        let field = |kind, about| ObjectBuilder::new().schema_type(kind).description(Some(about));
        ObjectBuilder::new()
            .property("conversation", field(Type::String, "The conversation, of a message."))
            .property("seq", field(Type::Integer, "The message's number in the conversation."))
            .property(
                "push",
                field(Type::Integer, "The push's number, of a push that the device had not acknowledged."),
            )
            .description(Some("What a notification that was given up is about: a message or a push."))
            .into()
    }
}

impl ToSchema for DeadLetterSubject {}

/// Dead letters, page by page.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterPage {
    /// Those of the webhook, the oldest first, then those of providers, the oldest first.
    pub dead_letters: Vec<DeadLetter>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub next: Option<DeadLetterId>,
}

/// Which dead letters: those that meet every condition; all of them without one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SelectDeadLetters {
    /// These, at most 500; there can be no other condition beside them.
    #[schema(value_type = Option<Vec<String>>, example = json!(["webhook:409600"]))]
    pub ids: Option<Vec<DeadLetterId>>,
    /// Of the webhook, or of this provider.
    pub channel: Option<Channel>,
    /// For this user.
    pub user: Option<String>,
    /// With this outcome.
    pub outcome: Option<NotificationOutcome>,
    /// Whose cause contains this text.
    pub cause: Option<String>,
}

/// A dead letter that is not tried again, since its user is not to be notified any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DroppedDeadLetter {
    /// Its id.
    #[schema(value_type = String)]
    pub id: DeadLetterId,
    /// Why: `read`, `recalled`, `muted`, `do_not_disturb`, `active`, `not_a_member`, or `no_device`, when the device's token is gone; of a push
    /// also `acknowledged`, `superseded`, `cancelled` or `expired`.
    pub reason: NotificationOutcome,
}

/// What a replay begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadLettersReplayed {
    /// How many are tried again; a provider's has the whole time to live. The answer does not wait for the attempts.
    pub replayed: usize,
    /// Those of providers that are removed without another attempt.
    pub dropped: Vec<DroppedDeadLetter>,
}

/// How many dead letters were deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadLettersDeleted {
    /// So many.
    pub deleted: usize,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_is_written_in_one_way() {
        for (text, id) in [
            ("webhook:0", DeadLetterId::Webhook(0)),
            ("webhook:409600", DeadLetterId::Webhook(409_600)),
            ("provider:18446744073709551615", DeadLetterId::Provider(u64::MAX)),
        ] {
            assert_eq!((text.parse(), id.to_string().as_str()), (Ok(id), text));
        }
        for text in [
            "",
            "7",
            "webhook",
            "webhook:",
            "webhook:x",
            "webhook:-1",
            "webhook:+7",
            "webhook:07",
            " webhook:7",
            "apns:7",
        ] {
            assert_eq!(text.parse::<DeadLetterId>(), Err(InvalidDeadLetterId(text.into())));
        }
        assert!("provider:18446744073709551616".parse::<DeadLetterId>().is_err());
    }

    #[test]
    fn a_malformed_id_is_refused_with_its_place() {
        let refusal = crate::json::read::<SelectDeadLetters>(br#"{"ids":["webhook:7","apns:7"]}"#).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "invalid_field: ids[1]: must be the id of a dead letter, such as webhook:409600 or provider:7226013491200000, \
             got \"apns:7\""
        );
    }
}
