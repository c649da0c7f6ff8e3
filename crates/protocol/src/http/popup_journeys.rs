//! The bodies of popup journeys: sequences of popups, waits, branches and pushes that users go through.

use super::{PushFallback, PushPriority};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// What the app server has set a journey to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PopupJourneyState {
    /// Nobody enters it, and nobody who stands in it moves on.
    #[default]
    Paused,
    /// Users enter it and go through it.
    Live,
    /// Nobody enters it; who stands in it goes on.
    Closed,
}

/// A journey as the app server writes it. A write replaces the whole, as a new version: a user goes through the version
/// that the user entered.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupJourneySpec {
    /// For those who manage journeys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of the journey as a whole, whichever version a user goes through.
    #[serde(default)]
    pub state: PopupJourneyState,
    /// What makes a user enter it.
    pub entry: PopupJourneyEntry,
    /// In their order: 1 to 50. A user who enters begins at the first.
    pub steps: Vec<PopupJourneyStep>,
}

/// The event by which a user enters a journey: `event` or `popup_event`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupJourneyEntry {
    /// A custom event, by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// A rule over the custom event's properties.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub condition: Option<Box<RawValue>>,
    /// An event with a popup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub popup_event: Option<JourneyPopupEvent>,
    /// Whether a user who has come to the end enters again by a later event.
    #[serde(default)]
    pub again: bool,
}

/// Something that a user does with a popup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JourneyPopupEvent {
    /// The popup's id.
    pub popup: String,
    /// `impression`, `click`, `dismiss` or `conversion`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PopupJourneyStepKind {
    /// Shows a popup at the user's next question for which it is due, and goes on.
    Popup,
    /// Goes on after a time.
    Wait,
    /// Goes on by what happens: to the step of the first of `on` that has happened, or to `else` when `within` is over.
    Branch,
    /// Sends a push to the user's devices, and goes on.
    Push,
}

/// A step of a journey, with the fields of its kind. `next`, `else` and `to` name a later step, or `end`; absent: the step
/// after this one, and `end` after the last.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupJourneyStep {
    /// Named in explanations and counts.
    pub id: String,
    /// What it does.
    #[serde(rename = "type")]
    pub kind: PopupJourneyStepKind,
    /// Of `popup`: the id of a popup whose `journey` is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub popup: Option<String>,
    /// Of `popup`: only at this placement of the popup's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Of `wait`: for how long, such as `1d`.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Of `branch`: what is waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<PopupJourneyBranch>,
    /// Of `popup` and `branch`: for how long at most; then the user goes on to `else`. Absent: for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// Of `popup` and `branch`: where the user goes on when `within` is over.
    #[serde(default, rename = "else", skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
    /// Of `push`: what is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PopupJourneyPush>,
    /// Of `popup`, `wait` and `push`: where the user goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What a branch waits for: `event` or `popup_event`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupJourneyBranch {
    /// A custom event, by its name, since the user came to the branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// An event with a popup, since the popup was last shown to the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub popup_event: Option<JourneyPopupEvent>,
    /// Where the user goes on.
    pub to: String,
}

/// A push to all devices of the user, as in `POST /v1/pushes`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupJourneyPush {
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
    /// What devices show that do not acknowledge it in time; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<PushFallback>,
}

/// A journey as it stands.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PopupJourney {
    /// The app server's own id for it.
    pub id: String,
    /// Counts its changes; a write that names another one than the newest is refused with `conflict`.
    pub version: u32,
    /// The oldest version that is kept: who stands in an older one has left the journey.
    pub oldest: u32,
    /// When this version was written, in milliseconds since 1970 UTC.
    pub updated_at: u64,
    /// Who wrote this version, by the `Tidings-Author` header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_by: Option<String>,
    /// What the app server has written.
    pub spec: PopupJourneySpec,
}

/// All journeys.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PopupJourneys {
    /// In the order of their ids.
    pub journeys: Vec<PopupJourney>,
}

/// What became of a step of one version of a journey.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PopupJourneyStepCounts {
    /// The version.
    pub version: u32,
    /// The step's id; `end` for the journey's end.
    pub step: String,
    /// How often users came to it.
    pub reached: u64,
    /// How often users went on from it.
    pub left: u64,
}

/// How many users came to each step of a journey, and how many went on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PopupJourneyCounts {
    /// The journey's id.
    pub journey: String,
    /// By version and step, those that somebody came to.
    pub steps: Vec<PopupJourneyStepCounts>,
}

/// Where a user stands in a journey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedJourney {
    /// The journey's id.
    pub journey: String,
    /// The version that the user goes through.
    pub version: u32,
    /// The step's id; `end` for the journey's end.
    pub step: String,
    /// Since when, in milliseconds since 1970 UTC.
    pub since: u64,
    /// When time alone moves the user on, in milliseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}
