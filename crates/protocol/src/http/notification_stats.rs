//! How often each channel was tried, and what came of it.

use super::Channel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What came of a channel in some hours. One message or push counts once for each person or device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChannelStats {
    /// The channel.
    pub channel: Channel,
    /// How often it was tried; a further attempt counts again. Of sessions, and of pushes to devices: how often it was handed out.
    pub attempted: u64,
    /// Taken by the provider or the webhook.
    pub accepted: u64,
    /// Acknowledged by a client. A session acknowledges all that it was handed since it last did, which counts once.
    pub acknowledged: u64,
    /// Attempts that failed and were followed by another one.
    pub retried: u64,
    /// Refused for good.
    pub refused: u64,
    /// Removed tokens, since the provider said that no device has them any more.
    pub token_gone: u64,
    /// Given up, or handed to the next channel, since nobody had it in time.
    pub expired: u64,
    /// Replaced by a newer one.
    pub superseded: u64,
    /// The time within which half of those who were reached had been reached: until the provider or the webhook took it, or the client
    /// acknowledged it. In milliseconds, within a sixteenth; absent: nobody was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_ms: Option<u64>,
    /// The time within which 99 of 100 had been reached, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<u64>,
}

/// What came of the channels in a time range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationStats {
    /// The beginning of the first hour, in milliseconds since 1970 UTC.
    pub from: u64,
    /// The end of the last hour.
    pub to: u64,
    /// The channels on which something happened.
    pub channels: Vec<ChannelStats>,
}
