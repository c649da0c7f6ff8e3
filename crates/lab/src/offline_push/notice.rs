//! What a fake was notified: one message, for one user or one of the user's devices.

use serde::Serialize;
use std::fmt;

/// Who is notified when nobody looks: the webhook, or a provider's service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OfflineChannel {
    #[default]
    Webhook,
    Apns,
    Fcm,
    WebPush,
}

impl OfflineChannel {
    pub(crate) const ALL: [OfflineChannel; 4] =
        [OfflineChannel::Webhook, OfflineChannel::Apns, OfflineChannel::Fcm, OfflineChannel::WebPush];
    pub(crate) const PROVIDERS: [OfflineChannel; 3] =
        [OfflineChannel::Apns, OfflineChannel::Fcm, OfflineChannel::WebPush];

    /// The name, as in the server's own answers and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OfflineChannel::Webhook => "webhook",
            OfflineChannel::Apns => "apns",
            OfflineChannel::Fcm => "fcm",
            OfflineChannel::WebPush => "web_push",
        }
    }

    /// Whether a newer message of a conversation takes the place of an older one, which then is not notified.
    pub(crate) fn collapses(self) -> bool {
        self != OfflineChannel::Webhook
    }
}

impl fmt::Display for OfflineChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One message, notified for one user by the webhook or for one device by a provider.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Notice<'a> {
    pub(crate) channel: OfflineChannel,
    pub(crate) user: &'a str,
    /// Empty for the webhook.
    pub(crate) device: &'a str,
    pub(crate) conversation: &'a str,
    pub(crate) seq: u64,
    /// What a retry of the notification has again: the webhook's event id, or APNs' own.
    pub(crate) id: Option<u64>,
    /// It shows nothing: the device takes away what it shows, since the user has read the message.
    pub(crate) removed: bool,
    /// The time stamp of the message in milliseconds since 1970 UTC, where the notice has it.
    pub(crate) sent_at_ms: Option<u64>,
}

/// Who counts what the fakes are notified. Called from the threads of the fakes.
pub(crate) trait NoticeSink: Send + Sync {
    /// The notices of one request that is about to be accepted.
    fn note(&self, notices: &[Notice<'_>]);
    /// A request that no notice can be read from.
    fn fault(&self, problem: String);
}
