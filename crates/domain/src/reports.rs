//! Reports of messages: a row each, and one in the list of its state.

use crate::{chat_row_kind::ChatRowKind, chat_rows::number_in, model::*};
use serde::{Deserialize, Serialize};
use tidings_protocol::http::{ReportReason, ReportState};

/// Which report: a user has one of a message at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReportKey {
    /// The message's conversation.
    pub conversation: ConversationNo,
    /// The message.
    pub seq: u64,
    /// Who reports it.
    pub reporter: UserNo,
}

/// A report as it is stored. A reason that a later version has written counts as `other`, a state as `open`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredReport {
    /// Of which kind the message is, as the reporter says.
    #[serde(with = "reason_name")]
    pub reason: ReportReason,
    /// In the reporter's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who sent the message; absent: an app server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<UserNo>,
    /// When it was reported, in milliseconds since 1970 UTC.
    pub at: u64,
    /// What moderators have made of it.
    #[serde(default, with = "state_name")]
    pub state: ReportState,
    /// The last change of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<ReportChange>,
}

/// A change of a report's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportChange {
    /// The operator or the API key that changed it.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
}

macro_rules! by_name {
    ($module:ident, $type:ty, $unknown:expr) => {
        mod $module {
            use super::*;
            use serde::{Deserializer, Serializer};

            pub(super) fn serialize<S: Serializer>(value: &$type, to: S) -> Result<S::Ok, S::Error> {
                value.serialize(to)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                let value = serde_json::Value::deserialize(from)?;
                Ok(serde_json::from_value(value).unwrap_or($unknown))
            }
        }
    };
}

by_name!(reason_name, ReportReason, ReportReason::Other);
by_name!(state_name, ReportState, ReportState::Open);

fn number_of(state: ReportState) -> u64 {
    match state {
        ReportState::Open => 0,
        ReportState::InReview => 1,
        ReportState::Resolved => 2,
        ReportState::Dismissed => 3,
    }
}

impl ReportKey {
    /// The key of the report's row.
    pub fn row(self) -> Vec<u8> {
        ChatRowKind::Report.key(&[0, self.conversation.0, self.seq, self.reporter.0])
    }

    /// The key of its place in the list of a state, for a report of this time.
    pub fn place(self, state: ReportState, at: u64) -> Vec<u8> {
        ChatRowKind::Report.key(&[1, number_of(state), at, self.conversation.0, self.seq, self.reporter.0])
    }
}

/// The end of the list of a state, of the oldest reports first.
pub fn places_end(state: ReportState) -> Vec<u8> {
    ChatRowKind::Report.key(&[1, number_of(state) + 1])
}

/// The beginning of that list.
pub fn places_begin(state: ReportState) -> Vec<u8> {
    ChatRowKind::Report.key(&[1, number_of(state)])
}

/// The time and the report of a key that [`ReportKey::place`] made.
pub fn place_in(key: &[u8]) -> Option<(u64, ReportKey)> {
    let number = |at| number_in(key, at).filter(|_| ChatRowKind::Report.has(key));
    let report = ReportKey { conversation: ConversationNo(number(3)?), seq: number(4)?, reporter: UserNo(number(5)?) };
    Some((number(2)?, report))
}
