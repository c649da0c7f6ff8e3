//! The reach policy: by which roads people are told of messages, as the app server configures it.

use super::{ConversationKind, PushVendor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// By which roads people are told of messages. The first rule that applies to a message and a person decides.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "rules": [{ "id": "all", "roads": [
    { "road": "session" }, { "road": "vendors", "after_s": 5, "expires_s": 3600 }, { "road": "webhook", "after_s": 60 }] }] }))]
#[serde(deny_unknown_fields)]
pub struct ReachPolicy {
    /// An IANA time zone for conditions on the time of day, for people whose own zone is not known; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// In the order in which they are tried. A message for which none applies reaches live sessions alone.
    pub rules: Vec<ReachRule>,
}

/// The roads of some messages to some people.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReachRule {
    /// The rule's name in explanations: at most 64 bytes, and no other rule has it.
    pub id: String,
    /// Which messages it is for; absent: all.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub scope: Option<ReachScope>,
    /// The condition on the message and the person under which it applies; absent: always. See the rules of popups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub when: Option<Box<RawValue>>,
    /// How long a client has to acknowledge a message before the next road is taken, in milliseconds; absent: the setting
    /// `reach.ack_timeout_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_timeout_ms: Option<u64>,
    /// In the order in which they are taken. None: nobody is told but by live sessions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roads: Vec<ReachRoadStep>,
}

/// Which messages a rule is for. What is empty or absent allows all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReachScope {
    /// Kinds of conversations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<ConversationKind>,
    /// Types of messages: the app's words, such as `text`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
}

/// A road of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PolicyRoad {
    /// A live session that takes messages and that somebody looks at.
    Session,
    /// A push over a connection that a device holds.
    DevicePush,
    /// A notification by the push services of vendors.
    Vendors,
    /// A popup at the next visit.
    Popup,
    /// The app's webhook.
    Webhook,
}

impl PolicyRoad {
    /// All roads.
    pub const ALL: [PolicyRoad; 5] =
        [PolicyRoad::Session, PolicyRoad::DevicePush, PolicyRoad::Vendors, PolicyRoad::Popup, PolicyRoad::Webhook];

    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PolicyRoad::Session => "session",
            PolicyRoad::DevicePush => "device_push",
            PolicyRoad::Vendors => "vendors",
            PolicyRoad::Popup => "popup",
            PolicyRoad::Webhook => "webhook",
        }
    }
}

/// What becomes of the roads after one that succeeded.
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
pub enum ReachPriority {
    /// At once: a sleeping device is woken.
    #[default]
    High,
    /// When the device wakes.
    Normal,
}

/// Which notifications take each other's place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReachCollapse {
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
pub struct ReachTemplate {
    /// The first line.
    pub title: String,
    /// The text.
    pub body: String,
    /// The address of a picture, for vendors that show one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// One road of a rule, and how it is taken.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReachRoadStep {
    /// The road.
    pub road: PolicyRoad,
    /// Seconds after the message before which it is not taken; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_s: Option<u64>,
    /// Seconds after the message from which on it is not taken any more; absent: `reach.time_to_live_s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// The condition under which it is taken, looked at when it is due; absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub when: Option<Box<RawValue>>,
    /// Whether the roads after it are taken once it has succeeded; `stop` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_success: Option<OnSuccess>,
    /// Of `vendors`: only these; absent: all that are set up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendors: Option<Vec<PushVendor>>,
    /// Of `device_push` and `vendors`: what is shown; absent: the templates of the settings `[reach]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<ReachTemplate>,
    /// Of `device_push` and `vendors`: what is shown in a language, by its BCP 47 tag.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, ReachTemplate>,
    /// Of `vendors`: the name of a sound, `default`, or empty for none; absent: the vendor's own way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sound: Option<String>,
    /// Of `device_push` and `vendors`: `high` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<ReachPriority>,
    /// Of `device_push` and `vendors`: `conversation` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<ReachCollapse>,
    /// Of `device_push` and `vendors`: whether the number of unread messages is told; absent: the setting `reach.badge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub badge: Option<bool>,
    /// Of `popup`: the event that asks for the popup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

/// The policy as it is now.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StoredReachPolicy {
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
    pub policy: ReachPolicy,
}

/// The kept versions of the policy.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReachPolicyVersions {
    /// The newest first.
    pub versions: Vec<StoredReachPolicy>,
}
