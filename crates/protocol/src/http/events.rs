//! The feed of events: all that is committed, in one order, each event in an envelope of CloudEvents 1.0.

use crate::{
    entry::{Entry, EntryKind},
    http::{
        Channel, ConversationDetails, ErasedMessages, ExportedEvent, NotificationOutcome, PushProvider, PushState,
        ReportView, Role, UserProfile,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use utoipa::{
    ToSchema,
    openapi::{Ref, schema::AnyOfBuilder},
};

/// Which events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// The cursor of the last event that was dealt with, or the `next` of the page before. Absent: from the oldest event that is
    /// kept. `start`: the present state of everything, then what is committed from now on. `now`: only what is committed from now on.
    /// A time as RFC 3339 has it: what was committed from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only events of these types, separated by commas; a word with a dot at its end stands for all types that begin with it, as
    /// `entry.` does. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<String>,
    /// At most so many events (default 100, limit 1,000). A page of large events has fewer.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// While there is no event, wait so many seconds for one (default 0, limit 30).
    #[param(maximum = 30)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u64>,
}

/// Which events, without an end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub struct EventStreamQuery {
    /// As for a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// As for a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<String>,
}

/// A page of the feed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventPage {
    /// In commit order.
    pub events: Vec<Event>,
    /// The cursor from which to go on, also when there is no event.
    pub next: String,
    /// Whether there are more events now.
    pub more: bool,
}

/// An event, as CloudEvents 1.0 has it in its JSON format.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Event {
    /// The version of CloudEvents: `1.0`.
    pub specversion: String,
    /// The same whenever the event is read; no other event of this source has it.
    pub id: String,
    /// The history that the event is of; a restore from a backup begins another.
    pub source: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The id of the conversation, or else of the user, that it concerns.
    pub subject: String,
    /// When it was committed, as RFC 3339 has it; of the present state it is known of entries alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The media type of `data`.
    pub datacontenttype: String,
    /// From here a reader goes on that has dealt with the event and all before it.
    pub cursor: String,
    /// What is known of it now: a message that was recalled since has no body.
    pub data: EventData,
}

/// What an event says, by its type.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum EventData {
    /// Of all types that begin with `entry.`: the entry, as history shows it to app servers.
    Entry(Box<Entry>),
    /// `members`
    Members(MembersEvent),
    /// `read`
    Read(ReadEvent),
    /// `sessions_ended`
    SessionsEnded(SessionsEndedEvent),
    /// `suspension`
    Suspension(SuspensionEvent),
    /// `report`: as it is now, with its message.
    Report(Box<ReportView>),
    /// `conversation`: its details as they are now.
    Conversation(ConversationDetails),
    /// `user`: the profile as it is now, as far as other users may see it.
    User(UserProfile),
    /// `user_settings` and `member_settings`: whose have changed. What is set is theirs, and not in the feed.
    Settings(SettingsEvent),
    /// `user_erased`
    UserErased(UserErasedEvent),
    /// `conversation_deleted`
    ConversationDeleted(ConversationDeletedEvent),
    /// `scheduled_failed`, `push`, `device`, `notification` and all types that begin with `popup.`: as it was said when it happened, a
    /// [`ScheduledFailedEvent`], [`PushEvent`], [`DeviceEvent`], [`NotificationEvent`], [`PopupExposureEvent`] or [`ExportedEvent`].
    Noted(Box<RawValue>),
}

/// Any of them: the data of one type may look like those of another, and `type` tells which they are.
impl utoipa::PartialSchema for EventData {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let mut forms = Vec::new();
        EventData::forms(&mut forms);
        let of_name = |any: AnyOfBuilder, (name, _): &Described| any.item(Ref::from_schema_name(name.clone()));
        let any = forms.iter().fold(AnyOfBuilder::new(), of_name);
        any.description(Some("What an event says, by its type.")).into()
    }
}

impl ToSchema for EventData {
    fn schemas(schemas: &mut Vec<Described>) {
        EventData::forms(schemas);
        Entry::schemas(schemas);
        MembersEvent::schemas(schemas);
        ReadEvent::schemas(schemas);
        SessionsEndedEvent::schemas(schemas);
        SuspensionEvent::schemas(schemas);
        ReportView::schemas(schemas);
        ConversationDetails::schemas(schemas);
        UserProfile::schemas(schemas);
        SettingsEvent::schemas(schemas);
        UserErasedEvent::schemas(schemas);
        ConversationDeletedEvent::schemas(schemas);
        ScheduledFailedEvent::schemas(schemas);
        PushEvent::schemas(schemas);
        DeviceEvent::schemas(schemas);
        NotificationEvent::schemas(schemas);
        PopupExposureEvent::schemas(schemas);
        ExportedEvent::schemas(schemas);
    }
}

/// A schema with its name.
type Described = (String, utoipa::openapi::RefOr<utoipa::openapi::Schema>);

impl EventData {
    /// The schemas of all forms.
    fn forms(schemas: &mut Vec<Described>) {
        fn of<T: ToSchema>() -> Described {
            (T::name().into_owned(), T::schema())
        }
        schemas.extend([
            of::<Entry>(),
            of::<MembersEvent>(),
            of::<ReadEvent>(),
            of::<SessionsEndedEvent>(),
            of::<SuspensionEvent>(),
            of::<ReportView>(),
            of::<ConversationDetails>(),
            of::<UserProfile>(),
            of::<SettingsEvent>(),
            of::<UserErasedEvent>(),
            of::<ConversationDeletedEvent>(),
            of::<ScheduledFailedEvent>(),
            of::<PushEvent>(),
            of::<DeviceEvent>(),
            of::<NotificationEvent>(),
            of::<PopupExposureEvent>(),
            of::<ExportedEvent>(),
        ]);
    }
}

/// Users joined a conversation, left it, or have another role. Whoever has left since is not among those who joined. In the present
/// state: members, up to 100 in one event, as `joined`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MembersEvent {
    /// The conversation, as it is now.
    pub details: ConversationDetails,
    /// With their roles of now.
    pub joined: Vec<EventMember>,
    /// The ids of users who were members before, and are none after.
    pub left: Vec<String>,
    /// Members who have another role, or whose mute began, was changed or was lifted, with their roles of now.
    pub changed: Vec<EventMember>,
    /// The ids of users who are no members, and whose ban began, was changed or was lifted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
}

/// A member in an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventMember {
    /// The user's id.
    pub user: String,
    /// What the member may do.
    pub role: Role,
    /// The `seq` of the newest entry that the member has read. Who joins has nothing unread.
    #[serde(default)]
    pub read_seq: u64,
    /// The member is muted now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub muted: bool,
}

/// A member has read a conversation up to here.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReadEvent {
    /// The conversation's id.
    pub conversation: String,
    /// The member's id.
    pub user: String,
    /// The `seq` of the newest entry that was read.
    pub read_seq: u64,
}

/// The app server ended sessions of a user.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionsEndedEvent {
    /// The user's id.
    pub user: String,
    /// The device whose sessions were ended; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// What the sessions were sent.
    pub reason: String,
}

/// A user was suspended, or is suspended no longer. A suspension that ends by itself has no event of its end.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SuspensionEvent {
    /// The user's id.
    pub user: String,
    /// Whether the user is suspended from here on.
    pub suspended: bool,
    /// When the suspension ends by itself, in milliseconds since 1970 UTC. Absent: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Why.
    pub reason: String,
    /// The operator that the request named, or the name of its API key.
    pub by: String,
}

/// A user is erased. The event names the user as long as the feed keeps it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UserErasedEvent {
    /// The id that the user had.
    pub user: String,
    /// What stands in its place.
    pub alias: String,
    /// What became of the messages: those that were removed have `entry.recall` events as well.
    pub messages: ErasedMessages,
    /// The erasure.
    pub erasure: String,
}

/// A conversation is deleted. The event names it as long as the feed keeps it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConversationDeletedEvent {
    /// The id that it had.
    pub conversation: String,
    /// The erasure.
    pub erasure: String,
}

/// Whose settings have changed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SettingsEvent {
    /// The user's id.
    pub user: String,
    /// The conversation that they are for; absent: for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
}

/// A push was accepted, or is in another state.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PushEvent {
    /// The push's number.
    pub push: u64,
    /// Its state from here on.
    pub state: PushState,
    /// The app server's own id of the push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_push_id: Option<String>,
    /// The app server's word for the kind of content.
    pub content_type: String,
    /// When the app server asked for it, in milliseconds since 1970 UTC, as all times here.
    pub accepted_at: u64,
    /// When a scheduled push is to start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_at: Option<u64>,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    /// When it was completed, expired or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// Devices that it is for; 0 until it has started.
    pub targets: u32,
}

/// What became of notifying some people of a message: a part of what `GET /v1/conversations/{id}/messages/{seq}/notifications` tells.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NotificationEvent {
    /// The conversation's id.
    pub conversation: String,
    /// The message, or the newest of several.
    pub seq: u64,
    /// The older ones of several messages, the newest of these first; of very many not all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older: Vec<u64>,
    /// The channel that was tried; absent: what was decided before any was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Channel>,
    /// What became of it.
    pub outcome: NotificationOutcome,
    /// The cause, if there is one to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The policy's rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Until when it waits, in milliseconds since 1970 UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Whom it concerns.
    pub users: Vec<NotifiedUser>,
}

/// A user, and the device if it was one of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotifiedUser {
    /// The user's id.
    pub user: String,
    /// The device's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
}

/// A message for a later time was refused when its time came, and is not tried again unless it gets another time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduledFailedEvent {
    /// The number under which it is listed.
    pub id: u64,
    /// The sender; absent: the conversation itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The conversation that it was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Or the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The sender's own id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// When it was to be sent, in milliseconds since 1970 UTC.
    pub send_at: u64,
    /// The `code` with which the send was refused.
    pub code: String,
    /// For people.
    pub detail: String,
}

/// A provider of push reaches a device of a user now, or does not any more.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeviceEvent {
    /// The user's id.
    pub user: String,
    /// The device's id.
    pub device_id: String,
    /// Whether a push token is registered for the device from here on.
    pub registered: bool,
    /// Whose token it is; absent: none is registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<PushProvider>,
}

/// A popup was shown to a user, or would have been.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PopupExposureEvent {
    /// The user's id.
    pub user: String,
    /// The popup's id.
    pub popup: String,
    /// The variant's id; absent: none was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// `shown`; `control`: the user is in the popup's control group; `holdout`: the user is never shown any popup.
    pub outcome: PopupExposure,
    /// This decision assigned the user in the popup's measurement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assigned: bool,
}

/// What became of a popup's turn with a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PopupExposure {
    /// The popup was shown.
    Shown,
    /// The user is in the control group.
    Control,
    /// The user is never shown any popup.
    Holdout,
}

/// What happened. Later versions add types: a reader skips those that it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// A timeline has another entry.
    Entry(EntryKind),
    /// Users joined or left a conversation, or have another role.
    Members,
    /// A conversation's details have changed.
    Conversation,
    /// A user is new, or has another name, picture or attributes.
    User,
    /// A user has set something for all conversations.
    UserSettings,
    /// A member has set something for one conversation.
    MemberSettings,
    /// A member's read mark has moved.
    Read,
    /// The app server ended sessions of a user.
    SessionsEnded,
    /// A user was suspended, or is suspended no longer.
    Suspension,
    /// A message was reported, or the report is in another state.
    Report,
    /// A user is erased: whoever has something of the user erases it, too.
    UserErased,
    /// A conversation is deleted: whoever has something of it deletes it, too.
    ConversationDeleted,
    /// A message for a later time could not be sent when its time came.
    ScheduledFailed,
    /// A push was accepted, or is in another state.
    Push,
    /// A device has another push token, or none any more.
    Device,
    /// What became of notifying some people of a message.
    Notification,
    /// A popup was shown, or its control group or the holdout was spared it.
    PopupExposure,
    /// A client or an app server has reported what a user did.
    PopupEvent,
}

/// What the types of entries begin with.
const ENTRY: &str = "entry.";

impl EventType {
    /// All types but those of entries.
    const OTHERS: [EventType; 17] = [
        EventType::Members,
        EventType::Conversation,
        EventType::User,
        EventType::UserSettings,
        EventType::MemberSettings,
        EventType::Read,
        EventType::SessionsEnded,
        EventType::Suspension,
        EventType::Report,
        EventType::UserErased,
        EventType::ConversationDeleted,
        EventType::ScheduledFailed,
        EventType::Push,
        EventType::Device,
        EventType::Notification,
        EventType::PopupExposure,
        EventType::PopupEvent,
    ];

    /// The types of which events are written only if the settings ask for them.
    pub const OPTIONAL: [EventType; 5] =
        [EventType::Push, EventType::Device, EventType::Notification, EventType::PopupExposure, EventType::PopupEvent];

    /// The types that this version knows.
    pub fn known() -> impl Iterator<Item = EventType> {
        EntryKind::KNOWN.iter().copied().map(EventType::Entry).chain(Self::OTHERS)
    }

    /// Whether a word of a query asks for this type: its name, or a beginning that ends with a dot.
    pub fn is_asked_for_by(self, word: &str) -> bool {
        let name = self.to_string();
        name == word || (word.ends_with('.') && name.starts_with(word))
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EventType::Entry(kind) => return write!(f, "{ENTRY}{}", kind.name()),
            EventType::Members => "members",
            EventType::Conversation => "conversation",
            EventType::User => "user",
            EventType::UserSettings => "user_settings",
            EventType::MemberSettings => "member_settings",
            EventType::Read => "read",
            EventType::SessionsEnded => "sessions_ended",
            EventType::Suspension => "suspension",
            EventType::Report => "report",
            EventType::UserErased => "user_erased",
            EventType::ConversationDeleted => "conversation_deleted",
            EventType::ScheduledFailed => "scheduled_failed",
            EventType::Push => "push",
            EventType::Device => "device",
            EventType::Notification => "notification",
            EventType::PopupExposure => "popup.exposure",
            EventType::PopupEvent => "popup.event",
        })
    }
}

impl Serialize for EventType {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl utoipa::PartialSchema for EventType {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let names = EventType::known().map(|known| known.to_string()).chain([format!("{ENTRY}opaque")]);
        let about = "What happened. Later versions add types: a reader skips those that it does not know.";
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .enum_values(Some(names))
            .description(Some(about))
            .into()
    }
}

impl ToSchema for EventType {}
