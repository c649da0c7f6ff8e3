//! Why a user was, or was not, told of a message.

use super::PushVendor;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A way by which a user is told of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReachRoad {
    /// A session that takes messages.
    Session,
    /// Apple Push Notification service.
    Apns,
    /// Firebase Cloud Messaging.
    Fcm,
    /// The push service of a browser.
    WebPush,
    /// The app's webhook.
    Webhook,
    /// Huawei Push Kit.
    Huawei,
    /// A push over a connection that a device holds.
    DevicePush,
    /// A popup at the user's next visit.
    Popup,
}

impl ReachRoad {
    /// All roads, each at the place of its number, by which it is stored.
    pub const ALL: [ReachRoad; 8] = [
        ReachRoad::Session,
        ReachRoad::Apns,
        ReachRoad::Fcm,
        ReachRoad::WebPush,
        ReachRoad::Webhook,
        ReachRoad::Huawei,
        ReachRoad::DevicePush,
        ReachRoad::Popup,
    ];
}

impl From<PushVendor> for ReachRoad {
    fn from(vendor: PushVendor) -> ReachRoad {
        match vendor {
            PushVendor::Apns => ReachRoad::Apns,
            PushVendor::Fcm => ReachRoad::Fcm,
            PushVendor::WebPush => ReachRoad::WebPush,
            PushVendor::Huawei => ReachRoad::Huawei,
        }
    }
}

/// What was decided about a user and a message, what became of it, or what holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReachOutcome {
    /// The user has read the message.
    Read,
    /// A client of the user has stored the message.
    Acknowledged,
    /// Somebody looked at a session of the user, so that nothing went out by offline push.
    Active,
    /// A session of the user is there, and nobody looks at it.
    Background,
    /// A session was handed the message and did not acknowledge it in time.
    Unacknowledged,
    /// The user sent the message.
    Sender,
    /// The user is no member of the conversation.
    NotAMember,
    /// The user became a member after the message.
    JoinedLater,
    /// The message is silent, or asks for no offline push.
    NotPushed,
    /// The message was recalled.
    Recalled,
    /// The user has muted the conversation.
    Muted,
    /// The user's do-not-disturb window covers the time.
    DoNotDisturb,
    /// The user wants nothing that disturbs for a time.
    Snoozed,
    /// The user has turned this road off, for all messages or for this kind of conversation.
    RoadOff,
    /// The user wants to be told of mentions alone, in this kind of conversation.
    OnlyMentions,
    /// No device of the user is registered for this road.
    NoDevice,
    /// The settings of this road are missing.
    NotSetUp,
    /// It is still to be decided, or to be tried.
    Waiting,
    /// The vendor or the webhook has taken it.
    Accepted,
    /// An attempt failed; another one follows.
    Retried,
    /// The vendor refused it for good, or the webhook did not take it in the last attempt.
    Refused,
    /// The vendor said that no device has the token any more; the token was removed.
    TokenGone,
    /// It was given up, and somebody has asked for another attempt.
    Replayed,
    /// A notification of a newer message of the conversation took its place.
    Superseded,
    /// Another road, or a session, had reached the user before the time of this road.
    Cancelled,
    /// The device was asked to take away what it showed, since the user has read it.
    Withdrawn,
    /// The condition of the road did not hold, or that of no rule did.
    ConditionFalse,
    /// No rule of the policy is for the message and the user.
    NoRule,
    /// Nobody took it in the time that was left.
    Expired,
    /// Nothing is recorded: the message is older than what is kept, or its conversation is too large.
    NotRecorded,
}

/// A step on the way of a message to a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReachStep {
    /// When it was, in milliseconds since 1970 UTC; absent: it holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The road that it is about; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub road: Option<ReachRoad>,
    /// What was decided, or what became of it.
    pub outcome: ReachOutcome,
    /// The device that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Until when it holds, in milliseconds since 1970 UTC, if an end is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// What the vendor or the webhook said; of a road that was not taken the road, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The rule of the stored policy that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Why a user was, or was not, told of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageReach {
    /// The conversation's id.
    pub conversation: String,
    /// The message's number in the conversation.
    pub seq: u64,
    /// The user's id.
    pub user: String,
    /// When the message was sent, in milliseconds since 1970 UTC.
    pub sent_at: u64,
    /// The step that decided. Its sentence, for a person, is `summary`.
    pub outcome: ReachOutcome,
    /// One sentence, in English; it may change.
    pub summary: String,
    /// What is recorded, the oldest first, and then what holds now.
    pub steps: Vec<ReachStep>,
}
