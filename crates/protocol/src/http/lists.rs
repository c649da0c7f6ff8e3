//! Lists of all users and all conversations, for app servers and operators.

use super::{ConversationDetails, ConversationKind};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which users to list, or whose profiles are wanted.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UserListQuery {
    /// Up to 200 ids, with commas between them: these users, and no others.
    #[serde(default)]
    pub users: Option<String>,
    /// Users whose ids begin so.
    #[serde(default)]
    pub id_prefix: Option<String>,
    /// Users whose names begin so, in whatever case.
    #[serde(default)]
    pub name_prefix: Option<String>,
    /// The name of a field of `attributes`, a colon, and its value as text: `tier:gold`.
    #[serde(default)]
    pub attribute: Option<String>,
    /// Users who are suspended now, or are not.
    #[serde(default)]
    pub suspended: Option<bool>,
    /// Users behind this id: the `next` of a page.
    #[serde(default)]
    pub after: Option<String>,
    /// Users in the page, at most 200; 100 when absent.
    #[serde(default)]
    pub limit: usize,
}

/// Which conversations to list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ConversationListQuery {
    /// Up to 200 ids, with commas between them: these conversations, and no others.
    #[serde(default)]
    pub conversations: Option<String>,
    /// Conversations whose ids begin so.
    #[serde(default)]
    pub id_prefix: Option<String>,
    /// Conversations whose names begin so, in whatever case.
    #[serde(default)]
    pub name_prefix: Option<String>,
    /// The name of a field of `attributes`, a colon, and its value as text: `city:Wien`.
    #[serde(default)]
    pub attribute: Option<String>,
    /// Conversations of this kind.
    #[serde(default)]
    pub kind: Option<ConversationKind>,
    /// Conversations of which this user is a member.
    #[serde(default)]
    pub member: Option<String>,
    /// Conversations with an entry at this time or later, in milliseconds since 1970 UTC.
    #[serde(default, deserialize_with = "crate::time::time_or_zero")]
    pub active_since: Option<u64>,
    /// Conversations whose history is being imported, or is not.
    #[serde(default)]
    pub importing: Option<bool>,
    /// Conversations behind this id: the `next` of a page.
    #[serde(default)]
    pub after: Option<String>,
    /// Conversations in the page, at most 200; 100 when absent.
    #[serde(default)]
    pub limit: usize,
}

/// A page of all conversations, or those of a query.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConversationList {
    /// In the order of their ids; of a query, in its order, without those that do not exist.
    pub conversations: Vec<ConversationDetails>,
    /// Of a list: there may be more, after this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
