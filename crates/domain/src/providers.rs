//! The port of providers' push services: APNs, FCM, Huawei Push Kit, and those of browsers.
//!
//! Who is notified of what, and when a notification is tried again, is decided by the caller. An implementation knows one
//! provider's protocol, bounds its connections, requests in flight and rate, and stops asking a service that is away.

use serde::Serialize;
use std::time::Duration;
use tidings_protocol::{
    error::Refusal,
    http::{PushProvider, PushToken},
};

/// What a device shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The same when the notification is sent again after a crash. The bytes of a UUID.
    pub id: [u8; 16],
    /// A notification replaces the one before it with the same key. At most 32 characters of base64url, as RFC 8030 asks.
    pub collapse_key: String,
    /// The first line.
    pub title: String,
    /// The text.
    pub body: String,
    /// The address of a picture, for providers that show one.
    pub image: Option<String>,
    /// The sound that the device makes; empty: none; absent: the provider's own.
    pub sound: Option<String>,
    /// How many messages the user has not read; absent: not notified.
    pub badge: Option<u64>,
    /// From here on nobody wants to see it, in milliseconds since 1970 UTC.
    pub expires_at: u64,
    /// Whether the device is woken for it.
    pub urgent: bool,
    /// What it is about, for the app.
    pub subject: NotificationSubject,
    /// It shows nothing: the device is to take away what it shows under the collapse key.
    pub removes: bool,
}

/// What a notification is about: what the app gets with it as data. Its JSON has the fields without a name of the variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum NotificationSubject {
    /// A message.
    Message {
        /// The conversation that is opened by a tap.
        conversation: String,
        /// The message's number in the conversation.
        seq: u64,
    },
    /// A push that the device has not acknowledged.
    Push {
        /// The push's number, by which the device recognizes it when it comes.
        push: u64,
        /// The app's word for what the push's body is.
        #[serde(rename = "type")]
        content_type: String,
    },
}

impl NotificationSubject {
    /// What a device gathers notifications by; `None`: this one is for itself.
    pub fn thread(&self) -> Option<&str> {
        match self {
            NotificationSubject::Message { conversation, .. } => Some(conversation),
            NotificationSubject::Push { .. } => None,
        }
    }
}

/// A notification for one device.
#[derive(Debug, Clone)]
pub struct Shipment {
    /// What is shown.
    pub notification: Notification,
    /// Where.
    pub token: PushToken,
}

/// When a refused notification may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// It would be refused again.
    Never,
    /// Later: after this time, if the provider said one.
    After(Option<Duration>),
}

/// What became of a notification at the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderAnswer {
    /// The provider takes care of it from here on.
    Accepted {
        /// The provider's name for it, for questions to the provider.
        id: Option<String>,
    },
    /// No device has the token any more; it must not be used again.
    TokenGone {
        /// Since when, in milliseconds since 1970 UTC, if the provider said so: a token that was registered later is valid.
        since: Option<u64>,
    },
    /// The provider answered and did not take it.
    Refused {
        /// The provider's reason, such as `BadTopic` or a status.
        code: String,
        /// Whether it may be tried again.
        retry: Retry,
    },
    /// There was no answer, or there is no hope for one now. It may be tried again.
    Unreachable {
        /// Why, for an operator.
        reason: String,
        /// When the next attempt makes sense, if that is known.
        retry_after: Option<Duration>,
    },
}

/// One provider's push service. It blocks: the caller has a thread for each provider.
pub trait Provider: Send + Sync + 'static {
    /// Which provider it is.
    fn provider(&self) -> PushProvider;

    /// Whether notifications may be sent to this token at all.
    ///
    /// # Errors
    /// `invalid_field` for the address of a push service that the settings do not name.
    fn check_token(&self, _token: &PushToken) -> Result<(), Refusal> {
        Ok(())
    }

    /// How many services the provider has, each of which can be away by itself: browsers have several.
    fn services(&self) -> usize {
        1
    }

    /// The service that a token is of: a number below [`Provider::services`], which may be another one after a restart.
    fn service_of(&self, _token: &PushToken) -> u64 {
        0
    }

    /// Whether this token may be sent what shows nothing.
    fn takes_silent(&self, _token: &PushToken) -> bool {
        true
    }

    /// Sends notifications, many at the same time; answers in their order.
    fn send_all(&self, shipments: Vec<Shipment>) -> Vec<ProviderAnswer>;

    /// Has all calls return at once, those under way too: what is not answered is unreachable.
    fn stop(&self);
}
