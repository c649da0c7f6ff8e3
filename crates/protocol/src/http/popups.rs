//! The bodies of popups: their configuration, decisions, events and counts.

use super::ExplainedJourney;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

// ---- configuration

/// What an app server may set a popup to, and what it has become by its times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PopupState {
    /// Shown to its test users only.
    #[default]
    Draft,
    /// Live from `starts_at` on.
    Scheduled,
    /// Shown to its audience, until `ends_at`.
    Live,
    /// Shown to its test users only, until it is live again.
    Paused,
    /// Shown to its test users only, for good.
    Ended,
}

/// A popup as the app server writes it. What is absent has its default: a write replaces the whole.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupSpec {
    /// For those who manage popups; users do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the app server sets; times make it another one by themselves.
    #[serde(default)]
    pub state: PopupState,
    /// Where in the app it may be shown: the app's own words, such as `home`.
    pub placements: Vec<String>,
    /// Of several that are due the one with the highest is chosen; of equals the one whose id sorts first.
    #[serde(default)]
    pub priority: i32,
    /// Milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "crate::time::time", skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<u64>,
    /// Not shown from here on; milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "crate::time::time", skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<u64>,
    /// Of `windows` and of days in caps: a name of the IANA database, or `user`: that of the user's profile, and the
    /// settings' for a user whose profile names none. Absent: the settings'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// When in the week it may be shown; none: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<PopupWindow>,
    /// Who it is for: a rule. Absent: everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub audience: Option<Box<RawValue>>,
    /// Absent: a page view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<PopupTrigger>,
    /// The journey whose steps show the popup: it is shown to nobody else. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journey: Option<String>,
    /// How often a user is shown it.
    #[serde(default)]
    pub caps: PopupCaps,
    /// When it may be shown again after what the user did with it.
    #[serde(default, skip_serializing_if = "PopupAfter::is_empty")]
    pub after: PopupAfter,
    /// At least one. Each user gets one of them, drawn by weight.
    pub variants: Vec<PopupVariant>,
    /// This share of the audience is not shown it, so that there is something to compare with; in percent.
    #[serde(default)]
    pub control_percent: f64,
    /// What the popup is for: with it, who was shown the popup and who was not is recorded, and `lift` compares what came
    /// of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversion: Option<PopupConversion>,
    /// A decision for it is answered once it is durable, instead of within the stated bound.
    #[serde(default)]
    pub strict: bool,
    /// These users are shown it in any state, at any time, whoever it is for, and are not counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub test_users: Vec<String>,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Weekday {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

/// From a time of day to another, on these days. A `to` at or before `from` is on the next day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupWindow {
    /// On which days it begins; none: on all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Weekday>,
    /// `HH:MM`.
    pub from: String,
    /// `HH:MM`.
    pub to: String,
}

/// The event of the app that asks for the popup.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupTrigger {
    /// The event's name: the app's own word.
    pub event: String,
    /// A rule over the event's properties.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub condition: Option<Box<RawValue>>,
    /// The popup is shown at a page view so many seconds after the event or later, once for each time that the event
    /// was reported as one of the kind `custom`. Absent: it is shown to a question that says that the event happens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<u64>,
}

/// What a popup is for: a custom event that follows it. Another declaration begins another measurement.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupConversion {
    /// The event's name: the app's own word.
    pub event: String,
    /// A rule over the event's properties.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub condition: Option<Box<RawValue>>,
    /// How long after the user's assignment the event counts: a duration such as `7d`, of at most 90 days.
    pub within: String,
    /// The numeric property of the event whose values are summed up; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// For how long a popup is not shown again after the user's last event with it: `never`, or a duration as a whole number
/// with `s`, `m`, `h` or `d`, such as `7d`. Absent: the event changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupAfter {
    /// After it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impression: Option<String>,
    /// After it, or one of its buttons, was clicked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub click: Option<String>,
    /// After it was closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dismiss: Option<String>,
    /// After what it was for has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversion: Option<String>,
}

impl PopupAfter {
    fn is_empty(&self) -> bool {
        *self == PopupAfter::default()
    }
}

/// How often a user is shown it at most, on all devices together. Absent: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupCaps {
    /// In one session of the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_session: Option<u32>,
    /// Days begin at midnight in the popup's time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_day: Option<u32>,
    /// Ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u32>,
    /// So many seconds from one time to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_s: Option<u64>,
}

/// One of the contents that a popup can have.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupVariant {
    /// Named in decisions and counts.
    pub id: String,
    /// Of the sum of all weights; a user always gets the same one while weights stay.
    #[serde(default = "one")]
    pub weight: u32,
    /// What the user sees.
    pub content: PopupContent,
}

fn one() -> u32 {
    1
}

/// What is shown: a small template, and whatever else the app understands.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupContent {
    /// Plain text, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// An address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// At most 5.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<PopupButton>,
    /// The app's own: any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub data: Option<Box<RawValue>>,
}

/// A button of a popup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupButton {
    /// Reported in `button` events.
    pub id: String,
    /// What is written on it, at most 512 bytes.
    pub label: String,
    /// What a press does.
    pub action: PopupAction,
}

/// What the app does when a button is pressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", try_from = "AnyAction")]
pub enum PopupAction {
    /// Closes it.
    Dismiss,
    /// Opens an address.
    Open {
        /// The address.
        url: String,
    },
    /// The app's own word.
    App {
        /// What the app knows to do by this name.
        name: String,
    },
}

/// An action as it is read: all fields of all kinds. A tagged enum would also be read from an array, and what is wrong in it
/// would not be told by its place.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnyAction {
    #[serde(rename = "type")]
    kind: ActionKind,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ActionKind {
    Dismiss,
    Open,
    App,
}

impl TryFrom<AnyAction> for PopupAction {
    type Error = &'static str;

    fn try_from(action: AnyAction) -> Result<Self, &'static str> {
        match (action.kind, action.url, action.name) {
            (ActionKind::Dismiss, None, None) => Ok(PopupAction::Dismiss),
            (ActionKind::Dismiss, ..) => Err("dismiss takes neither url nor name"),
            (ActionKind::Open, Some(url), None) => Ok(PopupAction::Open { url }),
            (ActionKind::Open, ..) => Err("open takes a url, and no name"),
            (ActionKind::App, None, Some(name)) => Ok(PopupAction::App { name }),
            (ActionKind::App, ..) => Err("app takes a name, and no url"),
        }
    }
}

/// A popup as it stands.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Popup {
    /// The app server's own id for it.
    pub id: String,
    /// Counts its changes; a write that names another one than the newest is refused with `conflict`.
    pub version: u32,
    /// When this version was written, in milliseconds since 1970 UTC.
    pub updated_at: u64,
    /// Who wrote this version, by the `Tidings-Author` header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_by: Option<String>,
    /// What it is by its state and its times now.
    pub now: PopupState,
    /// What the app server has written.
    pub spec: PopupSpec,
}

/// Popups, page by page.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PopupPage {
    /// In the order of their ids.
    pub popups: Vec<Popup>,
    /// Hand it back as `after` for the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A popup's versions, newest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PopupVersions {
    /// At most 100 are kept.
    pub versions: Vec<Popup>,
}

/// Rules above all popups.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupSettings {
    /// Of popups that name none, and of days in `caps`; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Of all popups together.
    #[serde(default)]
    pub caps: PopupCaps,
    /// Of all popups at a placement together; a placement without a session's limit has none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub placements: BTreeMap<String, PopupCaps>,
    /// This share of all users is never shown any; in percent.
    #[serde(default)]
    pub holdout_percent: f64,
}

/// A list of users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Segment {
    /// The name by which rules refer to it.
    pub id: String,
    /// How many users are in it.
    pub users: u64,
    /// When it was uploaded last, in milliseconds since 1970 UTC.
    pub updated_at: u64,
}

/// All lists of users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Segments {
    /// In the order of their ids.
    pub segments: Vec<Segment>,
}

// ---- decisions

/// Which popup suits this user now?
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "user": "bob", "placement": "home" }))]
#[serde(deny_unknown_fields)]
pub struct DecideRequest {
    /// Absent with a user's token: that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The app's own word for where it would be shown.
    pub placement: String,
    /// Names the app's session: caps per session count by it. Without it popups that have one are not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// What rules look at: strings, numbers, booleans and lists of strings.
    #[serde(default)]
    pub attributes: serde_json::Map<String, serde_json::Value>,
    /// Absent: a page view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<AppEvent>,
}

/// Something that happened in the app.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppEvent {
    /// The app's own word.
    pub name: String,
    /// What the conditions of triggers look at.
    #[serde(default)]
    pub properties: serde_json::Map<String, serde_json::Value>,
}

/// The popup to show.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Decision {
    /// Events of this showing name it.
    pub decision: String,
    /// The popup's id.
    pub popup: String,
    /// The id of the variant that the user gets.
    pub variant: String,
    /// The user is one of its test users; nothing is counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub test: bool,
    /// What to show, as the app server wrote it.
    #[schema(value_type = PopupContent)]
    pub content: Box<RawValue>,
}

/// What became of an event that was to trigger a popup.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Triggered {
    /// A live session was sent the popup.
    pub delivered: bool,
    /// The decision that was made; absent: no popup was due, or no session was there to show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// The id of the popup that was decided for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub popup: Option<String>,
}

/// Why each popup was or was not chosen; nothing is recorded.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// When this was looked at, in milliseconds since 1970 UTC.
    pub at: u64,
    /// What a decision would have answered now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// If nothing: when the next one could be shown, were nothing else to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<u64>,
    /// All popups of the placement, in the order in which they are considered.
    pub popups: Vec<ExplainedPopup>,
    /// Where the user stands in journeys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub journeys: Vec<ExplainedJourney>,
}

/// What speaks for or against one popup.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExplainedPopup {
    /// The popup's id.
    pub popup: String,
    /// Which version was looked at.
    pub version: u32,
    /// What a decision would make of it now.
    pub outcome: ExplainedOutcome,
    /// What kept it from being shown: the name of the part of its configuration, such as `caps.per_day` or
    /// `audience.all[2]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The same in a sentence, in English; it may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// From when on this would no longer keep it, if time alone can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<u64>,
    /// The variant that the user has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// What a decision would make of a popup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExplainedOutcome {
    /// It would be shown.
    Chosen,
    /// It could be shown, but one before it is.
    Outranked,
    /// All but the time is right.
    NotYet,
    /// Not for this user, or not any more.
    No,
    /// The user is in its control group.
    Control,
}

// ---- events

/// What the user did, or what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PopupEventKind {
    /// The popup was seen.
    Impression,
    /// The popup was clicked; a click on one of its buttons is `button`.
    Click,
    /// One of its buttons; `button` names it.
    Button,
    /// The popup was closed.
    Dismiss,
    /// What the popup was for has happened.
    Conversion,
    /// The user asks not to be shown the popup for a while: `until` or `for_s`.
    Snooze,
    /// An event of the app's own, by its `name`. It belongs to no decision.
    Custom,
}

/// Something that happened to a popup that was shown, or an event of the app's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupEvent {
    /// The app's own, once for each event: a second one with the same id is not counted.
    pub id: String,
    /// The decision that showed the popup, as it was answered; events of the kind `custom` have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub decision: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: PopupEventKind,
    /// Milliseconds since 1970 UTC, by the device's clock; now when absent. Kept as it is, however wrong; counts go by when the server took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The id of the button; only for events of the kind `button`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub button: Option<String>,
    /// Of a conversion, in the app's own unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The app's word for an event of the kind `custom`, by which rules and journeys name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whose event of the kind `custom` it is; absent with a user's token: that user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Of an event of the kind `custom`: strings, numbers, booleans and lists of strings, which the `where` of a
    /// journey's entry looks at; at most 2 KiB as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub properties: Option<serde_json::Map<String, serde_json::Value>>,
    /// Of a `snooze`: the popup is not shown to the user before then, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "crate::time::time", skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Of a `snooze`, instead of `until`: for so many seconds from when the server takes the event; 0 ends one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
}

impl PopupEvent {
    /// An event of which nothing but its id and kind is known yet.
    pub fn new(id: impl Into<String>, kind: PopupEventKind) -> PopupEvent {
        PopupEvent {
            id: id.into(),
            decision: String::new(),
            kind,
            at: None,
            button: None,
            value: None,
            name: None,
            user: None,
            properties: None,
            until: None,
            for_s: None,
        }
    }
}

/// Events of popups, of any number of decisions.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopupEvents {
    /// At most 1,000.
    pub events: Vec<PopupEvent>,
}

/// How many events were stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PopupEventsAccepted {
    /// Events that count from now on.
    pub accepted: usize,
    /// Known by their ids already.
    pub duplicates: usize,
}

/// What became of a popup's variant within an hour.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PopupHour {
    /// When the hour begins, in milliseconds since 1970 UTC.
    pub hour: u64,
    /// The variant's id.
    pub variant: String,
    /// Decisions that answered with it.
    pub shown: u64,
    /// Decisions that would have, had the user not been in its control group.
    pub control: u64,
    /// Events of the kind `impression`.
    pub impressions: u64,
    /// Events of the kind `click`.
    pub clicks: u64,
    /// Events of the kind `button`.
    pub buttons: u64,
    /// Events of the kind `dismiss`.
    pub dismissals: u64,
    /// Events of the kind `conversion`.
    pub conversions: u64,
}

/// A popup's decisions and events by hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PopupCounts {
    /// The popup's id.
    pub popup: String,
    /// The hours in which something happened, each once for every variant.
    pub hours: Vec<PopupHour>,
}

/// What the first decision for a user made of the user, in a popup that declares its conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AssignmentGroup {
    /// The user was shown the popup.
    Shown,
    /// The user would have been, and is in the popup's control group.
    Control,
    /// The user would have been, and is one of those who are never shown any popup.
    Holdout,
}

/// An assignment as an export has it, with what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExportedAssignment {
    /// When the user was assigned: the first decision, in milliseconds since 1970 UTC.
    pub assigned_at: u64,
    /// The user's id; empty if a crash came between the decision and its record.
    pub user: String,
    /// What the user was assigned to.
    pub group: AssignmentGroup,
    /// The variant that was shown; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// When the user first converted within the window; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converted_at: Option<u64>,
    /// How often the user converted within the window.
    pub conversions: u32,
    /// The sum of the conversions' values.
    pub value: f64,
}

/// What came of those who were assigned to one group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LiftGroup {
    /// The group.
    pub group: AssignmentGroup,
    /// The variant that was shown; absent: none, or all variants together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Distinct users who were assigned.
    pub people: u64,
    /// Of these, users whose window is not over yet.
    pub open: u64,
    /// Distinct users who converted within the window.
    pub converted: u64,
    /// `converted` of `people`, from 0 to 1; absent: nobody was assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// All conversions within the window.
    pub conversions: u64,
    /// The sum of their values.
    pub value: f64,
    /// `value` by `people`; absent: nobody was assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_per_person: Option<f64>,
}

/// How much more often those who were shown a popup converted than others. 0.2 is 20 % more often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PopupLiftComparison {
    /// The variant that was shown; absent: all variants together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Whom they are compared with.
    pub against: AssignmentGroup,
    /// With `shown`: the other variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against_variant: Option<String>,
    /// The ratio of the two rates, less 1; absent: the others have no conversion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lift: Option<f64>,
    /// The lower end of the 95 % interval; absent: there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// The upper end of the 95 % interval; absent: there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// The interval does not contain 0.
    pub is_found: bool,
}

/// What a popup has brought about, by its declared conversion.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PopupLift {
    /// The popup's id.
    pub popup: String,
    /// The declaration that the figures are about.
    pub conversion: PopupConversion,
    /// First those who were shown the popup, by variant, then the control group and the holdout.
    pub groups: Vec<LiftGroup>,
    /// Each variant, and all together, against the control group, the holdout and the first variant, as far as anybody was
    /// assigned to these.
    pub lifts: Vec<PopupLiftComparison>,
}

/// An event as an export has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExportedEvent {
    /// When the server took it, in milliseconds since 1970 UTC.
    pub taken_at: u64,
    /// When it happened by the app, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The app's own id for it.
    pub id: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: PopupEventKind,
    /// The popup's id; empty for an event of the kind `custom`.
    pub popup: String,
    /// The variant's id; empty for an event of the kind `custom`.
    pub variant: String,
    /// The decision that showed the popup; empty for an event of the kind `custom`.
    pub decision: String,
    /// The id of the user whom the decision was for, or whose event it is.
    pub user: String,
    /// The button's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub button: Option<String>,
    /// Of a conversion, in the app's own unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The name of an event of the kind `custom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of a `snooze`: until when, in milliseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The properties of an event of the kind `custom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub properties: Option<serde_json::Map<String, serde_json::Value>>,
}
