//! Invites, and requests to join.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A new invite.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "expires_at": 4102444800000u64, "uses_max": 10 }))]
#[serde(deny_unknown_fields)]
pub struct NewInvite {
    /// When it ends, in milliseconds since 1970 UTC; absent: when it is revoked.
    #[serde(default, deserialize_with = "crate::time::time", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// How many users may join by it, at least 1; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_max: Option<u32>,
    /// The user in whose name an app server acts. With a user's token that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// An invite of a conversation, without its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InviteView {
    /// The invite's id in the conversation.
    pub id: String,
    /// When it was made, in milliseconds since 1970 UTC.
    pub at: u64,
    /// Who made it; absent: an app server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When it ends, in milliseconds since 1970 UTC; absent: when it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// How many users may join by it; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_max: Option<u32>,
    /// How many have joined by it.
    pub uses: u32,
}

/// An invite that was made just now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeInvite {
    /// What the link that you send has in it. It is in no other answer: the server keeps a digest alone.
    pub token: String,
    /// The invite.
    #[serde(flatten)]
    pub invite: InviteView,
}

/// The invites of a conversation that hold, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InviteList {
    /// At most 8.
    pub invites: Vec<InviteView>,
}

/// A user joins by an invite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinByInvite {
    /// The invite's token.
    pub token: String,
    /// The user who joins; with a user's token that user, who need not be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A user asks to become a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskToJoin {
    /// What the user says: at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The user who asks; with a user's token that user, who need not be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefuseRequest {
    /// For the user who asked: at most 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A user's request to become a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinRequestView {
    /// The user who asks.
    pub user: String,
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
    /// What the user says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// It waits, or was refused.
    pub state: JoinRequestState,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What has become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JoinRequestState {
    /// Nobody has answered it.
    Waiting,
    /// It was refused; the user may ask again.
    Refused,
}

/// The requests of a conversation that wait, page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinRequestPage {
    /// In the order in which their users were created.
    pub requests: Vec<JoinRequestView>,
    /// Hand back as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
