//! Accounts that answer: who their agents are, and who has which conversation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who may open a conversation with an account. A conversation that is open stays so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpenTo {
    /// The account's members.
    #[default]
    Followers,
    /// Every user.
    Anyone,
    /// No user: agents and app servers begin.
    Nobody,
}

/// A change of an account's desk; what is absent stays as it was. The first change makes the desk, and a user with the
/// account's id as whom it speaks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateDesk {
    /// Who may open a conversation with the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_to: Option<OpenTo>,
    /// Whether users are told which agent has written a message or has their conversation. At first they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub show_agents: Option<bool>,
    /// Users who are agents from now on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Users who are no agents from now on. Conversations that they have are unassigned soon after.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Who answers for an official account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Desk {
    /// The account's id, which is that of the user as whom it speaks.
    pub account: String,
    /// Who may open a conversation with the account.
    pub open_to: OpenTo,
    /// Whether users are told which agent answers.
    pub show_agents: bool,
    /// The agents, in the order of their ids.
    pub agents: Vec<String>,
}

/// The accounts for which a user answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Desks {
    /// In the order of their accounts' ids.
    pub desks: Vec<Desk>,
}

/// Which agent is to have a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Assign {
    /// An agent of the account; `null`: nobody.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required)]
    pub assigned_to: Option<String>,
    /// The assignment is refused with `assignment_conflict` unless this agent has the conversation now, or with `null`
    /// nobody. Absent: whoever has it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::also_null")]
    #[schema(value_type = Option<String>)]
    pub if_assigned_to: Option<Option<String>>,
}

/// Who has a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssignmentView {
    /// The conversation's id.
    pub conversation: String,
    /// The agent; `null`: nobody.
    pub assigned_to: Option<String>,
}
