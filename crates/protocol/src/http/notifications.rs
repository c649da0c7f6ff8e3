//! Why a user was, or was not, notified of a message.

use super::{PolicyChannel, PushProvider};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A way by which a user is notified of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// A session that takes messages.
    Session = 0,
    /// Apple Push Notification service.
    Apns = 1,
    /// Firebase Cloud Messaging.
    Fcm = 2,
    /// The push service of a browser.
    WebPush = 3,
    /// The app's webhook.
    Webhook = 4,
    /// Huawei Push Kit.
    Huawei = 5,
    /// A push over a connection that a device holds.
    DevicePush = 6,
    /// A popup at the user's next visit.
    Popup = 7,
}

impl Channel {
    /// All of them.
    pub const ALL: [Channel; 8] = [
        Channel::Session,
        Channel::Apns,
        Channel::Fcm,
        Channel::WebPush,
        Channel::Webhook,
        Channel::Huawei,
        Channel::DevicePush,
        Channel::Popup,
    ];

    /// The number by which it is stored.
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// The channel with this number; `None`: it is of a newer version.
    pub fn of_number(number: u64) -> Option<Channel> {
        Channel::ALL.into_iter().find(|channel| channel.number() == number)
    }

    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        self.provider().map_or_else(|| self.policy_channel().name(), PushProvider::name)
    }

    /// The provider, if it is a provider's push service.
    pub const fn provider(self) -> Option<PushProvider> {
        match self {
            Channel::Apns => Some(PushProvider::Apns),
            Channel::Fcm => Some(PushProvider::Fcm),
            Channel::WebPush => Some(PushProvider::WebPush),
            Channel::Huawei => Some(PushProvider::Huawei),
            Channel::Session | Channel::Webhook | Channel::DevicePush | Channel::Popup => None,
        }
    }

    /// What policies and preferences call it: all providers are one.
    pub const fn policy_channel(self) -> PolicyChannel {
        match self {
            Channel::Session => PolicyChannel::Session,
            Channel::Apns | Channel::Fcm | Channel::WebPush | Channel::Huawei => PolicyChannel::Providers,
            Channel::Webhook => PolicyChannel::Webhook,
            Channel::DevicePush => PolicyChannel::DevicePush,
            Channel::Popup => PolicyChannel::Popup,
        }
    }
}

impl From<PushProvider> for Channel {
    fn from(provider: PushProvider) -> Channel {
        match provider {
            PushProvider::Apns => Channel::Apns,
            PushProvider::Fcm => Channel::Fcm,
            PushProvider::WebPush => Channel::WebPush,
            PushProvider::Huawei => Channel::Huawei,
        }
    }
}

/// What was decided about a user and a message, what became of it, or what holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotificationOutcome {
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
    /// The user is suspended.
    Suspended,
    /// The user blocks the sender.
    Blocked,
    /// The user has turned this channel off, for all messages or for this kind of conversation.
    ChannelOff,
    /// The user wants to be notified of mentions alone, in this kind of conversation.
    OnlyMentions,
    /// No device of the user is registered for this channel.
    NoDevice,
    /// The settings of this channel are missing.
    NotSetUp,
    /// It is still to be decided, or to be tried.
    Waiting,
    /// It waits for the end of the user's do-not-disturb window or snooze.
    Deferred,
    /// The provider or the webhook has taken it.
    Accepted,
    /// An attempt failed; another one follows.
    Retried,
    /// The provider refused it for good, or the webhook did not take it in the last attempt.
    Refused,
    /// The provider said that no device has the token any more; the token was removed.
    TokenGone,
    /// It was given up, and somebody has asked for another attempt.
    Replayed,
    /// A notification of a newer message of the conversation took its place.
    Superseded,
    /// Another channel, or a session, had reached the user before the time of this channel.
    Cancelled,
    /// The device was asked to take away what it showed, since the user has read it.
    Removed,
    /// The condition of the channel did not hold, or that of no rule did.
    ConditionFalse,
    /// No rule of the policy is for the message and the user, or the one that is takes live sessions alone.
    NoRule,
    /// Nobody took it in the time that was left.
    Expired,
    /// Nothing is recorded: the message is older than what is kept, or its conversation is too large.
    NotRecorded,
}

/// A step on the way of a message to a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationStep {
    /// When it was, in milliseconds since 1970 UTC; absent: it holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The channel that it is about; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Channel>,
    /// What was decided, or what became of it.
    pub outcome: NotificationOutcome,
    /// The device that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Until when it holds, in milliseconds since 1970 UTC, if an end is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// What the provider or the webhook said; of a channel that was not taken the channel, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The rule of the stored policy that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// Why a user was, or was not, notified of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageNotifications {
    /// The conversation's id.
    pub conversation: String,
    /// The message's number in the conversation.
    pub seq: u64,
    /// The user's id.
    pub user: String,
    /// When the message was sent, in milliseconds since 1970 UTC.
    pub sent_at: u64,
    /// The step that decided. Its sentence, for a person, is `summary`.
    pub outcome: NotificationOutcome,
    /// One sentence, in English; it may change.
    pub summary: String,
    /// What is recorded, the oldest first, and then what holds now.
    pub steps: Vec<NotificationStep>,
}
