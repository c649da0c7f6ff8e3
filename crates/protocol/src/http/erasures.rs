//! Erasing persons, legal holds against it, and exports of all that there is of a person.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// What becomes of the messages of a user who is erased.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErasedMessages {
    /// They are recalled: their places stay, without bodies.
    #[default]
    Remove,
    /// They stay, under an alias that says nothing of the user.
    Keep,
}

/// How a user is erased.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EraseUserQuery {
    /// What becomes of the messages that the user has sent.
    #[serde(default)]
    #[param(inline)]
    pub messages: ErasedMessages,
}

/// What an export of a person's data has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ExportUserQuery {
    /// Also the messages of others, as far as the user may read them now.
    #[serde(default)]
    pub received: bool,
}

/// How far an erasure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErasureState {
    /// It goes on, also after a restart.
    Running,
    /// It waits for the legal hold of a conversation to be lifted.
    Held,
    /// No row has anything of the user.
    Done,
}

/// An erasure of a user or a conversation, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Erasure {
    /// Names the erasure. It is made of the user's id, and does not tell it.
    pub id: String,
    /// The user's id; absent once the feed no longer keeps the event that tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Of a conversation that is deleted: its id, for as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// What stands in the user's place where something has to: the other side of direct conversations, the sender of messages that are
    /// kept.
    pub alias: String,
    /// What becomes of the user's messages.
    pub messages: ErasedMessages,
    /// How far it is.
    pub state: ErasureState,
    /// The operator or the API key that wants it.
    pub by: String,
    /// When it began, in milliseconds since 1970 UTC.
    pub at: u64,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
    /// What is being done: of a user `leaving`, `rows`, `profile`, `renaming`, `entries`, `last_rows`, `done`; of a conversation `leaving`,
    /// `entries`, `rows`, `last_entries`, `profile`, `last_rows`, `done`.
    pub stage: String,
    /// Messages that were recalled so far.
    pub recalled: u64,
    /// Entries and rows that were changed or removed so far.
    pub changed: u64,
    /// The conversation whose legal hold it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Why it did not go on, when it was tried last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// All erasures that are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Erasures {
    /// A page of them, in no particular order.
    pub erasures: Vec<Erasure>,
    /// The `after` of the next page; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A legal hold that is to be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "name": "case 4711" }))]
#[serde(deny_unknown_fields)]
pub struct SetLegalHold {
    /// What it is for, such as the number of a case; 1 to 512 bytes.
    pub name: String,
}

/// A conversation that nothing may be erased from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LegalHoldView {
    /// The conversation's id.
    pub conversation: String,
    /// What it is for.
    pub name: String,
    /// The operator or the API key that set it.
    pub by: String,
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
}

/// Conversations under a legal hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LegalHolds {
    /// A page of them.
    pub legal_holds: Vec<LegalHoldView>,
    /// The `after` of the next page; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}
