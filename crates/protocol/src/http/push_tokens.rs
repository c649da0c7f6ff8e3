//! Where push services of providers reach a user's devices.

use crate::{error::Refusal, limits::PUSH_TOKEN_BYTES_MAX};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A push service of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PushProvider {
    /// Apple Push Notification service.
    Apns = 0,
    /// Firebase Cloud Messaging.
    Fcm = 1,
    /// The push service of a browser (RFC 8030).
    WebPush = 2,
    /// Huawei Push Kit.
    Huawei = 3,
}

impl PushProvider {
    /// All providers.
    pub const ALL: [PushProvider; 4] =
        [PushProvider::Apns, PushProvider::Fcm, PushProvider::WebPush, PushProvider::Huawei];

    /// The number by which it is stored.
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// The provider with this number; `None`: it is of a newer version.
    pub fn of_number(number: u64) -> Option<PushProvider> {
        PushProvider::ALL.into_iter().find(|provider| provider.number() == number)
    }

    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            PushProvider::Apns => "apns",
            PushProvider::Fcm => "fcm",
            PushProvider::WebPush => "web_push",
            PushProvider::Huawei => "huawei",
        }
    }
}

/// Where a provider reaches one device.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "provider": "apns", "token": "740f4707bebcf74f9b7c25d48e3358945f6aa01da5ddb387462c7eaf61bb78ad" }))]
#[serde(tag = "provider", rename_all = "snake_case", deny_unknown_fields)]
pub enum PushToken {
    /// A device token of Apple's.
    Apns {
        /// As the app got it, in hexadecimal.
        token: String,
    },
    /// A registration token of Firebase's.
    Fcm {
        /// As the app got it.
        token: String,
    },
    /// A browser's subscription.
    WebPush {
        /// What `PushSubscription.toJSON()` answers.
        subscription: WebPushSubscription,
    },
    /// A token of Huawei's Push Kit.
    Huawei {
        /// As the app got it.
        token: String,
    },
}

/// Tokens let their owner be notified, so no log may have them.
impl std::fmt::Debug for PushToken {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "PushToken({})", self.provider().name())
    }
}

/// A browser's subscription, as `PushSubscription.toJSON()` answers it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebPushSubscription {
    /// The address at the browser's push service.
    pub endpoint: String,
    /// Ignored: push services say themselves when a subscription has ended.
    #[serde(default, rename = "expirationTime", skip_serializing)]
    #[schema(value_type = Option<f64>)]
    pub expiration_time: Ignored,
    /// For whom notifications are encrypted.
    pub keys: WebPushKeys,
}

/// The keys of a subscription, in base64url.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebPushKeys {
    /// The browser's public key: a point of P-256, 65 bytes.
    pub p256dh: String,
    /// The secret of the subscription: 16 bytes.
    pub auth: String,
}

/// A value that is read and not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: serde::Deserializer<'de>>(value: D) -> Result<Ignored, D::Error> {
        serde::de::IgnoredAny::deserialize(value).map(|_| Ignored)
    }
}

impl PushToken {
    /// The provider that reaches the device.
    pub fn provider(&self) -> PushProvider {
        match self {
            PushToken::Apns { .. } => PushProvider::Apns,
            PushToken::Fcm { .. } => PushProvider::Fcm,
            PushToken::WebPush { .. } => PushProvider::WebPush,
            PushToken::Huawei { .. } => PushProvider::Huawei,
        }
    }

    /// What tells this token from every other one of its provider.
    pub fn address(&self) -> &str {
        match self {
            PushToken::Apns { token } | PushToken::Fcm { token } | PushToken::Huawei { token } => token,
            PushToken::WebPush { subscription } => &subscription.endpoint,
        }
    }

    /// Checks lengths and characters. Whether the provider knows the token shows when the token is used.
    ///
    /// # Errors
    /// `invalid_field` or `limit_exceeded`, naming the field and not its value.
    pub fn check(&self) -> Result<(), Refusal> {
        let (field, wanted) = match self {
            PushToken::Apns { .. } => ("token", "must be hexadecimal, without spaces"),
            PushToken::Fcm { .. } | PushToken::Huawei { .. } => ("token", "must be printable ASCII without spaces"),
            PushToken::WebPush { .. } => ("subscription.endpoint", "must be a URL, without spaces"),
        };
        let address = self.address();
        if address.len() > PUSH_TOKEN_BYTES_MAX {
            return Err(Refusal::limit(&format!("{field} (bytes)"), PUSH_TOKEN_BYTES_MAX as u64, address.len() as u64));
        }
        let fits = match self {
            PushToken::Apns { token } => token.len() % 2 == 0 && token.bytes().all(|byte| byte.is_ascii_hexdigit()),
            _ => address.bytes().all(|byte| byte.is_ascii_graphic()),
        };
        if address.is_empty() || !fits {
            return Err(Refusal::field(field, wanted));
        }
        let PushToken::WebPush { subscription: WebPushSubscription { keys, .. } } = self else { return Ok(()) };
        for (field, key, length) in
            [("subscription.keys.p256dh", &keys.p256dh, 65), ("subscription.keys.auth", &keys.auth, 16)]
        {
            if base64url_length(key) != Some(length) {
                return Err(Refusal::field(field, format!("must be {length} bytes in base64url")));
            }
        }
        Ok(())
    }
}

/// How many bytes these characters of base64url stand for, with padding or without.
fn base64url_length(text: &str) -> Option<usize> {
    let text = text.trim_end_matches('=');
    let fits = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    (fits && text.len() % 4 != 1).then_some(text.len() * 3 / 4)
}

/// A device that a provider reaches. The token itself is not shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushTokenDetails {
    /// The device's id.
    pub device_id: String,
    /// Who reaches it.
    pub provider: PushProvider,
    /// When this token was registered, in milliseconds since 1970 UTC.
    pub registered_at: u64,
}

/// The devices of a user that providers reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushTokens {
    /// In the order of their ids.
    pub push_tokens: Vec<PushTokenDetails>,
}
