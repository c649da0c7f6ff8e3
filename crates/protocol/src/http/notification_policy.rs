//! The notification policy: by which channels people are notified of messages, as the app server configures it.

use super::{ConversationKind, PushProvider};
use crate::{error::Refusal, limits::NOTIFICATION_IMAGE_BYTES_MAX};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// By which channels people are notified of messages. The first rule that applies to a message and a person decides.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "rules": [{ "id": "all", "channels": [
    { "channel": "session" }, { "channel": "providers", "after_s": 5, "expires_s": 3600 }, { "channel": "webhook", "after_s": 60 }] }] }))]
#[serde(deny_unknown_fields)]
pub struct NotificationPolicy {
    /// An IANA time zone for conditions on the time of day, for people whose own zone is not known; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// In the order in which they are tried. A message for which none applies reaches live sessions alone.
    pub rules: Vec<NotificationRule>,
}

/// The channels of some messages to some people.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotificationRule {
    /// The rule's name in explanations: at most 64 bytes, and no other rule has it.
    pub id: String,
    /// Which messages it is for; absent: all.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub scope: Option<NotificationScope>,
    /// The condition on the message and the person under which it applies; absent: always. See the rules of popups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub when: Option<Box<RawValue>>,
    /// How long a client has to acknowledge a message before the next channel is taken, in milliseconds; absent: the setting
    /// `notifications.ack_timeout_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_timeout_ms: Option<u64>,
    /// In the order in which they are taken. None: nobody is notified but by live sessions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<PolicyStep>,
}

/// Which messages a rule is for. What is empty or absent allows all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotificationScope {
    /// Kinds of conversations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<ConversationKind>,
    /// Types of messages: the app's words, such as `text`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
}

/// A channel of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyChannel {
    /// A live session that takes messages and that somebody looks at.
    Session,
    /// A push over a connection that a device holds.
    DevicePush,
    /// A notification by the push services of providers.
    Providers,
    /// A popup at the next visit.
    Popup,
    /// The app's webhook.
    Webhook,
}

impl PolicyChannel {
    /// All channels.
    pub const ALL: [PolicyChannel; 5] = [
        PolicyChannel::Session,
        PolicyChannel::DevicePush,
        PolicyChannel::Providers,
        PolicyChannel::Popup,
        PolicyChannel::Webhook,
    ];

    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PolicyChannel::Session => "session",
            PolicyChannel::DevicePush => "device_push",
            PolicyChannel::Providers => "providers",
            PolicyChannel::Popup => "popup",
            PolicyChannel::Webhook => "webhook",
        }
    }
}

/// What becomes of the channels after one that succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnSuccess {
    /// They are not taken.
    #[default]
    Stop,
    /// They are taken all the same.
    Continue,
}

/// How soon a device is to show a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotificationPriority {
    /// At once: a sleeping device is woken.
    #[default]
    High,
    /// When the device wakes.
    Normal,
}

/// Which notifications take each other's place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotificationCollapse {
    /// The newest of a conversation takes the place of the one before.
    #[default]
    Conversation,
    /// Each message has its own.
    Message,
}

/// The texts of a notification. `{sender}`, `{conversation}` and `{text}` stand for what the message has, `{unread}` for
/// the number of the person's unread messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotificationTemplate {
    /// The first line.
    pub title: String,
    /// The text.
    pub body: String,
    /// The address of a picture, for providers that show one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl NotificationTemplate {
    /// What stands for a value.
    pub const PLACEHOLDERS: [&str; 4] = ["{sender}", "{conversation}", "{text}", "{unread}"];

    /// Checks the address of a picture.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`, naming `field`.
    pub fn check_image(field: &str, image: &str) -> Result<(), Refusal> {
        if !image.starts_with("https://") {
            return Err(Refusal::field(field, "must begin with https://"));
        }
        if image.contains(|c: char| !c.is_ascii_graphic() || matches!(c, '"' | '\\')) {
            return Err(Refusal::field(field, "must be an address: printable ASCII without quotes"));
        }
        match image.len() {
            0..=NOTIFICATION_IMAGE_BYTES_MAX => Ok(()),
            length => {
                let max = NOTIFICATION_IMAGE_BYTES_MAX as u64;
                Err(Refusal::limit(&format!("{field} (bytes)"), max, length as u64))
            }
        }
    }
}

/// One channel of a rule, and how it is taken.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyStep {
    /// The channel.
    pub channel: PolicyChannel,
    /// Seconds after the message before which it is not taken; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_s: Option<u64>,
    /// Seconds after the message from which on it is not taken any more; absent: `notifications.time_to_live_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// The condition under which it is taken, looked at when it is due; absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub when: Option<Box<RawValue>>,
    /// Whether the channels after it are taken once it has succeeded; `stop` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_success: Option<OnSuccess>,
    /// Of `providers`: only these; absent: all that are set up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<Vec<PushProvider>>,
    /// Of `device_push` and `providers`: what is shown; absent: the templates of the settings `[notifications]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<NotificationTemplate>,
    /// Of `device_push` and `providers`: what is shown in a language, by its BCP 47 tag.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, NotificationTemplate>,
    /// Of `providers`: the name of a sound, `default`, or empty for none; absent: the provider's own way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sound: Option<String>,
    /// Of `device_push` and `providers`: `high` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<NotificationPriority>,
    /// Of `device_push` and `providers`: `conversation` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<NotificationCollapse>,
    /// Of `device_push` and `providers`: whether the number of unread messages is shown; absent: the setting `notifications.badge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub badge: Option<bool>,
    /// Of `popup`: the event that asks for the popup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

/// The policy as it is now.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StoredNotificationPolicy {
    /// Counts the writes; 0: none is stored, and `policy` is what follows from the settings.
    pub version: u32,
    /// When it was written, in milliseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<u64>,
    /// Who wrote it, as `Tidings-Author` said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_by: Option<String>,
    /// Whether this version removed the policy, so that the default applies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// The policy.
    pub policy: NotificationPolicy,
}

/// The kept versions of the policy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NotificationPolicyVersions {
    /// The newest first.
    pub versions: Vec<StoredNotificationPolicy>,
}
