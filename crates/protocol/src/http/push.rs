//! The bodies of push: data to devices, their states, and the devices themselves.

use super::{PushFallback, PushFallbackStatus, PushPriority, PushProvider};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

/// Whom a push is for: either named users and devices, or all devices, or those with tags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushTo {
    /// All devices of these users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Single devices of users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<NamedDevice>,
    /// Devices by their tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<TagQuery>,
    /// Only devices of these kinds; absent: of any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Every device that ever bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// A device of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedDevice {
    /// The user's id.
    pub user: String,
    /// As the device names itself when it binds.
    pub device_id: String,
}

/// Devices with at least one of `any` (if it names some) and with every one of `all`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagQuery {
    /// Tags of which a device has at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub any: Vec<String>,
    /// Tags of which a device has every one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub all: Vec<String>,
}

/// A push to send.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "to": { "users": ["bob"] }, "type": "offer", "body": { "text": "half price" }, "ttl_s": 3600 }))]
#[serde(deny_unknown_fields)]
pub struct PushRequest {
    /// Whom it is for.
    pub to: PushTo,
    /// The app's word for what the body is.
    #[serde(rename = "type", default = "super::text")]
    pub content_type: String,
    /// Any JSON of at most 4 KiB, carried unchanged.
    #[schema(value_type = Value)]
    pub body: Box<RawValue>,
    /// How long it is kept for a device that is away, in seconds; a day when absent, at most 28 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// On each device the newest push with the same key takes the place of those not acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    /// `normal` when absent.
    #[serde(default)]
    pub priority: PushPriority,
    /// When to start, in milliseconds since 1970 UTC; at once when absent, 0 or past.
    #[serde(default, deserialize_with = "crate::time::time_or_zero", skip_serializing_if = "Option::is_none")]
    pub send_at: Option<u64>,
    /// Only count whom it would reach.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The caller's own id for this push: a retry with it answers with the first result, another push with it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_push_id: Option<String>,
    /// What devices show that do not acknowledge it in time; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<PushFallback>,
}

/// How far a push has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PushState {
    /// Waits for its time.
    Scheduled,
    /// Handed to devices as they are there, until all have acknowledged it or its time is over.
    Running,
    /// No device is left that it waits for.
    Completed,
    /// Its time was over before all had it.
    Expired,
    /// Ended by the app server before all had it.
    Cancelled,
}

/// A push that is stored: it survives a crash from here on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushAccepted {
    /// Names the push from now on.
    pub push: u64,
    /// `running`, or `scheduled` for a later time.
    pub state: PushState,
    /// Devices that it is for; of a scheduled push they are found when it starts.
    pub targets: u64,
    /// Devices for which too many pushes wait already: they do not get this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused_full: u64,
    /// Named users and devices that do not exist.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: u64,
    /// Milliseconds since 1970 UTC.
    pub expires_at: u64,
    /// It had been accepted before under its `client_push_id`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Whom a push would reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushReach {
    /// Devices that it would be for.
    pub devices: u64,
    /// Of these, devices that are connected.
    pub online: u64,
}

/// The answer to a push.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PushAnswer {
    /// The push is stored.
    Accepted(PushAccepted),
    /// The answer to a dry run.
    Reach {
        /// Whom it would reach now.
        reach: PushReach,
    },
}

/// Devices by what became of a push. `targets` is `pending` and all that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushCounts {
    /// Devices that the push is for.
    pub targets: u64,
    /// Not acknowledged yet, and still to be handed out when the device binds.
    pub pending: u64,
    /// Of those pending: on devices that are not connected.
    pub offline: u64,
    /// Written to the device's connection at least once, whatever became of it.
    pub delivered: u64,
    /// The device says that it has the push.
    pub acknowledged: u64,
    /// Not acknowledged when its time was over.
    pub expired: u64,
    /// A newer push with the same collapse key took the place.
    pub collapsed: u64,
    /// Not acknowledged when the app server ended it.
    pub cancelled: u64,
}

/// How far a push has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushStatus {
    /// The push's number.
    pub push: u64,
    /// Waiting, under way, or how it ended.
    pub state: PushState,
    /// The app's word for what the body is.
    #[serde(rename = "type")]
    pub content_type: String,
    /// As it was asked for.
    pub priority: PushPriority,
    /// As it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    /// The caller's own id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_push_id: Option<String>,
    /// Times are milliseconds since 1970 UTC.
    pub accepted_at: u64,
    /// When it was to start; absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_at: Option<u64>,
    /// Absent: it has not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// From then on no device is handed it.
    pub expires_at: u64,
    /// When it was completed, expired or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Its devices by what became of it.
    pub counts: PushCounts,
    /// By which providers devices were notified; absent: the push has no fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<PushFallbackStatus>,
    /// Devices for which too many pushes waited already: they did not get this one.
    pub refused_full: u64,
    /// Named users and devices that did not exist.
    pub unknown: u64,
}

/// A push in the list of all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushListItem {
    /// The push's number.
    pub push: u64,
    /// Waiting, under way, or how it ended.
    pub state: PushState,
    /// The app's word for what the body is.
    #[serde(rename = "type")]
    pub content_type: String,
    /// The caller's own id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_push_id: Option<String>,
    /// Times are milliseconds since 1970 UTC.
    pub accepted_at: u64,
    /// When it was to start; absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_at: Option<u64>,
    /// When it was completed, expired or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Devices that it is for; 0 until it has started.
    pub targets: u64,
}

/// Which pushes to list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PushListQuery {
    /// Pushes in this state.
    #[serde(default)]
    pub state: Option<PushState>,
    /// Pushes of this type.
    #[serde(default, rename = "type")]
    pub content_type: Option<String>,
    /// Pushes that were accepted at this time or later, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "crate::time::time_or_zero")]
    pub since: Option<u64>,
    /// The `next` of the page before; absent for the first.
    #[serde(default)]
    pub after: Option<u64>,
    /// Pushes in the page, at most 100, which absent or 0 means, too.
    #[serde(default)]
    pub limit: usize,
}

/// Pushes, page by page, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushPage {
    /// The pushes on this page.
    pub pushes: Vec<PushListItem>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// What became of a push on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// Not handed out yet.
    Pending,
    /// Written to the device's connection, not acknowledged.
    Delivered,
    /// The device says that it has the push.
    Acknowledged,
    /// Not acknowledged when its time was over.
    Expired,
    /// A newer push with the same collapse key took the place.
    Collapsed,
    /// Not acknowledged when the app server ended it.
    Cancelled,
}

/// What became of a push on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushDevice {
    /// The id of the user whose device it is.
    pub user: String,
    /// As the device names itself.
    pub device_id: String,
    /// Whether it waits, or how it ended.
    pub state: DeviceState,
    /// When it was written first. Times are kept for pushes to named users and devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<u64>,
    /// When it came to its last state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// The provider that took the notification which the device shows in place of the push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<PushProvider>,
}

/// The devices of a push, page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushDevicePage {
    /// The devices on this page.
    pub devices: Vec<PushDevice>,
    /// Hand back as `after` for the next page; absent on the last.
    #[schema(value_type = Option<u64>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// A device that pushes can be sent to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceDetails {
    /// As the device names itself.
    pub device_id: String,
    /// `web`, `ios`, `android`, `desktop` or the app's own word.
    pub device_kind: String,
    /// As the last bind named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    /// Words by which it can be pushed to.
    pub tags: Vec<String>,
    /// Whether it is connected.
    pub online: bool,
    /// Milliseconds since 1970 UTC.
    pub first_bound: u64,
    /// To the second; a crash may set it back by some hours.
    pub last_bound: u64,
    /// Pushes to it by name that wait for an acknowledgement.
    pub pending: u64,
}

/// A user's devices.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UserDevices {
    /// Those that bound for pushes, at most 100.
    pub devices: Vec<DeviceDetails>,
}

/// Words by which a device can be pushed to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTags {
    /// All of the device's tags from now on.
    pub tags: Vec<String>,
}

/// What became of a push on one device of a user, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushDeviceDelivery {
    /// As the device names itself.
    pub device_id: String,
    /// Whether it is connected now.
    pub online: bool,
    /// Absent: the push is not for this device, or has not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<DeviceState>,
    /// When it was written to the device's connection first. Times are kept for pushes to named users and devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<u64>,
    /// When it came to its last state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// The newer push that took its place, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<u64>,
    /// The provider that took the notification which the device shows in place of the push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<PushProvider>,
    /// One sentence, in English; it may change.
    pub summary: String,
}

/// Why a push reached, or did not reach, the devices of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushUserDelivery {
    /// The push's number.
    pub push: u64,
    /// The user's id.
    pub user: String,
    /// When the app server asked for it, in milliseconds since 1970 UTC.
    pub accepted_at: u64,
    /// When it started; absent: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// The user's devices that bound for pushes, in the order of their ids.
    pub devices: Vec<PushDeviceDelivery>,
}
