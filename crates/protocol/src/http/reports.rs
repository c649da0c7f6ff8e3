//! Reports of messages to moderators.

use crate::entry::Entry;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Of which kind a reported message is, as the reporter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportReason {
    /// Advertising that nobody asked for, fraud.
    Spam,
    /// It pursues or insults somebody.
    Harassment,
    /// It is against a group of people.
    Hate,
    /// It threatens, or shows violence.
    Violence,
    /// It is sexual where that has no place.
    Sexual,
    /// Somebody may harm themselves.
    SelfHarm,
    /// It breaks the law otherwise.
    Illegal,
    /// The text says what.
    Other,
}

/// What moderators have made of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportState {
    /// Nobody has looked yet.
    #[default]
    Open,
    /// Somebody looks.
    InReview,
    /// Something was done.
    Resolved,
    /// Nothing had to be done.
    Dismissed,
}

impl ReportState {
    /// Whether moderators are done with it.
    pub fn is_closed(self) -> bool {
        matches!(self, ReportState::Resolved | ReportState::Dismissed)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            ReportState::Open => "open",
            ReportState::InReview => "in_review",
            ReportState::Resolved => "resolved",
            ReportState::Dismissed => "dismissed",
        }
    }
}

/// A report of a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewReport {
    /// Of which kind the message is.
    pub reason: ReportReason,
    /// In the reporter's words, at most 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The member in whose name an app server reports. With a user's token it is the token's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// The answer to a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportReceipt {
    /// Names the report.
    pub report: String,
    /// The user had reported the message before: that report stays as it was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// Which reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub struct ReportsQuery {
    /// Those in this state; absent: `open`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ReportState>,
    /// Only for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReportReason>,
    /// Only of messages of this conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// Only of messages of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<String>,
    /// The `next` of the page before; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most so many (default 50, limit 200).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A page of reports.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ReportPage {
    /// The oldest first.
    pub reports: Vec<ReportView>,
    /// The `after` of the next page; absent: this is the last. A page with filters may be empty and have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A report, with its message as it is now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ReportView {
    /// Names the report.
    pub id: String,
    /// The message's conversation.
    pub conversation: String,
    /// The message.
    pub seq: u64,
    /// Who reports it.
    pub reporter: String,
    /// Who sent the message; absent: an app server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported: Option<String>,
    /// Of which kind the message is.
    pub reason: ReportReason,
    /// In the reporter's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// When it was reported, in milliseconds since 1970 UTC.
    pub at: u64,
    /// What moderators have made of it.
    pub state: ReportState,
    /// Who changed the state last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When, in milliseconds since 1970 UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<u64>,
    /// The message as it is now: one that was recalled has no body. Absent: retention has removed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Entry>,
}

/// A report, and what was written around its message.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ReportDetails {
    /// The report.
    pub report: ReportView,
    /// The entries around the message, which is among them.
    pub context: Vec<Entry>,
}

/// What a moderator makes of a report.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateReport {
    /// Its state from now on.
    pub state: ReportState,
    /// Why, at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Refused with `conflict` unless the report is in this state: another moderator was faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_state: Option<ReportState>,
}
