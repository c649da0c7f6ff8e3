//! What a double was told: one message, for one user or one of the user's devices.

use serde::Serialize;
use std::fmt;

/// Who is told when nobody looks: the webhook, or a vendor's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OfflineRoad {
    Webhook,
    Apns,
    Fcm,
    WebPush,
}

impl OfflineRoad {
    pub(crate) const ALL: [OfflineRoad; 4] =
        [OfflineRoad::Webhook, OfflineRoad::Apns, OfflineRoad::Fcm, OfflineRoad::WebPush];
    pub(crate) const VENDORS: [OfflineRoad; 3] = [OfflineRoad::Apns, OfflineRoad::Fcm, OfflineRoad::WebPush];

    /// The name, as in the server's own answers and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OfflineRoad::Webhook => "webhook",
            OfflineRoad::Apns => "apns",
            OfflineRoad::Fcm => "fcm",
            OfflineRoad::WebPush => "web_push",
        }
    }

    /// Whether a newer message of a conversation takes the place of an older one, which then is not told.
    pub(crate) fn collapses(self) -> bool {
        self != OfflineRoad::Webhook
    }
}

impl fmt::Display for OfflineRoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One message, told for one user by the webhook or for one device by a vendor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Notice<'a> {
    pub(crate) road: OfflineRoad,
    pub(crate) user: &'a str,
    /// Empty for the webhook.
    pub(crate) device: &'a str,
    pub(crate) conversation: &'a str,
    pub(crate) seq: u64,
    /// What a retry of the notification has again: the webhook's event id, or APNs' own.
    pub(crate) id: Option<u64>,
    /// It shows nothing: the device takes away what it shows, since the user has read the message.
    pub(crate) withdrawn: bool,
    /// The time stamp of the message in milliseconds since 1970 UTC, where the notice has it.
    pub(crate) sent_at_ms: Option<u64>,
}

/// Who counts what the doubles are told. Called from the threads of the doubles.
pub(crate) trait NoticeSink: Send + Sync {
    /// The notices of one request that is about to be accepted.
    fn note(&self, notices: &[Notice<'_>]);
    /// A request that no notice can be read from.
    fn fault(&self, problem: String);
}
