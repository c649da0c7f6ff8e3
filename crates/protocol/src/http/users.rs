//! Users, as app servers write them and others see them.

use crate::http::SuspensionView;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A user as the app server writes it. What is absent stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserUpsert {
    /// The app's own id for the user, at most 64 bytes; the user is created if there is none with it.
    pub id: String,
    /// For display, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the user: a JSON object of at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    /// A BCP 47 language tag, such as `de-AT`; an empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// An IANA time zone, such as `Europe/Vienna`; an empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// Users to create or to change.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "users": [{ "id": "ada", "name": "Ada" }, { "id": "ben", "name": "Ben" }] }))]
#[serde(deny_unknown_fields)]
pub struct UsersUpsert {
    /// At most 10,000.
    pub users: Vec<UserUpsert>,
}

/// How many users were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsersUpserted {
    /// Users who did not exist before.
    pub created: usize,
    /// Users who existed.
    pub updated: usize,
}

/// Whose profiles to answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "users": ["ada", "ben"] }))]
#[serde(deny_unknown_fields)]
pub struct UsersQuery {
    /// User ids, at most 200.
    pub users: Vec<String>,
}

/// Profiles of users.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UserProfiles {
    /// In the order of the request, without users whom the server does not know.
    pub users: Vec<UserProfile>,
    /// Of a list: there may be more, after this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// How a user is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserCard {
    /// The user's id.
    pub id: String,
    /// For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
}

/// A user's profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserProfile {
    /// The app's own id for the user.
    pub id: String,
    /// For display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address of a picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar: Option<String>,
    /// The app's own data about the user; others see only what the settings make public.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub attributes: Option<serde_json::Value>,
    /// Milliseconds since 1970 UTC.
    pub created_at: u64,
    /// Only in answers to the user and to app servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub do_not_disturb: Option<DailyWindow>,
    /// A BCP 47 language tag. Only in answers to the user and to app servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// An IANA time zone. Only in answers to the user and to app servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// While the user is suspended. Only in answers to app servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<SuspensionView>,
}

/// Users whom a user blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockPage {
    /// In the order in which the users were created.
    pub users: Vec<BlockedUser>,
    /// The `after` of the next page; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A user whom a user blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlockedUser {
    /// The blocked user's id.
    pub user: String,
    /// Since when, in milliseconds since 1970 UTC.
    pub at: u64,
}

/// A daily time in which no offline push goes out, by the user's wall clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DailyWindow {
    /// `HH:MM`; may be later than `end`, the window then spans midnight.
    pub start: String,
    /// `HH:MM`; `24:00` is the end of the day.
    pub end: String,
    /// An IANA time zone, such as `Europe/Berlin`.
    pub time_zone: String,
}

/// When the user is to get no offline push.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "window": { "start": "22:00", "end": "07:00", "time_zone": "Europe/Berlin" } }))]
#[serde(deny_unknown_fields)]
pub struct SetDoNotDisturb {
    /// `null` ends it.
    pub window: Option<DailyWindow>,
}

/// The language and the time zone of a user. They replace the former ones: what is absent or `null` is removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "language": "de-AT", "time_zone": "Europe/Vienna" }))]
#[serde(deny_unknown_fields)]
pub struct SetLocale {
    /// A BCP 47 language tag, such as `de-AT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// An IANA time zone, such as `Europe/Vienna`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

/// Whether others learn what the user has read.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetReceipts {
    /// `false`: others do not learn what the user has read, and the user does not learn what others have read.
    pub send: bool,
}
