//! API keys that are made over HTTP, and the audit log of what was changed with keys.

use crate::time::time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an API key may be allowed. Every operation needs one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyScope {
    /// Send messages in anybody's name, one by one, growing or to many; react; assign conversations. Reads no messages.
    Send,
    /// Read conversations, messages, lists and presence, and why people were notified; the feed of events. Changes nothing but the place of a consumer that reads it.
    Read,
    /// Create and change users, conversations and members, and what users have set; read users.
    Users,
    /// Send and cancel pushes; devices and their tokens.
    Push,
    /// Everything of popups, their settings, segments and journeys.
    Popups,
    /// Edit, recall and pin messages, read their former versions, disconnect and suspend users, revoke their tokens, work on reports.
    Moderation,
    /// Notification policy, dead letters, nodes, settings, backups; API keys that may do no more than this one; the audit log.
    Admin,
    /// Erase what is stored of a user. No operation of this version needs it.
    Erase,
}

impl KeyScope {
    /// All of them.
    pub const ALL: [KeyScope; 8] = [
        KeyScope::Send,
        KeyScope::Read,
        KeyScope::Users,
        KeyScope::Push,
        KeyScope::Popups,
        KeyScope::Moderation,
        KeyScope::Admin,
        KeyScope::Erase,
    ];

    /// The name on the wire and in the store.
    pub fn name(self) -> &'static str {
        match self {
            KeyScope::Send => "send",
            KeyScope::Read => "read",
            KeyScope::Users => "users",
            KeyScope::Push => "push",
            KeyScope::Popups => "popups",
            KeyScope::Moderation => "moderation",
            KeyScope::Admin => "admin",
            KeyScope::Erase => "erase",
        }
    }

    /// The scope of this name.
    pub fn of_name(name: &str) -> Option<KeyScope> {
        KeyScope::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// An API key to be made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({ "name": "newsletter", "scopes": ["send"] }))]
#[serde(deny_unknown_fields)]
pub struct CreateApiKey {
    /// What it is for: 1 to 128 bytes. Several keys may have one name.
    pub name: String,
    /// What it may do: at least one scope, and only those that the caller's own key has.
    pub scopes: Vec<KeyScope>,
    /// When it stops working, in milliseconds since 1970 UTC; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "time")]
    pub expires_at: Option<u64>,
}

/// A change of an API key; what is absent stays as it was.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateApiKey {
    /// What it is for: 1 to 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// They replace the former ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<KeyScope>>,
    /// When it stops working, in milliseconds since 1970 UTC; 0: never.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::time::time_or_zero")]
    pub expires_at: Option<u64>,
}

/// How an API key gets another secret.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateApiKey {
    /// How long the former secret stays valid beside the new one, in seconds: at most 30 days. 0: it ends at once.
    #[serde(default)]
    pub overlap_s: u64,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    /// Its public id, which the audit log names; `configured`: a key of the settings.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<KeyScope>,
    /// When it was made, in milliseconds since 1970 UTC; absent: it is in the settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<u64>,
    /// The id of the key with which it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// When it stops working; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// Until when the secret before the last rotation is valid; absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_secret_until: Option<u64>,
    /// When it was last used, up to a minute late; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<u64>,
}

/// An API key with its new secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedApiKey {
    /// What requests carry as `Authorization: Bearer`. It is told once: the server keeps only its hash.
    pub secret: String,
    /// The key.
    pub key: ApiKey,
}

/// The API keys beside those of the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKeys {
    /// The oldest first, with those that have expired.
    pub keys: Vec<ApiKey>,
}

/// Something that was changed with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Grows by one with each entry.
    pub number: u64,
    /// When, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The id of the key with which it was done.
    pub key: String,
    /// The key's name at that time.
    pub key_name: String,
    /// The operator whom the request named in `Tidings-Author`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The operation, as the description has it: `POST /v1/admin/keys`.
    pub operation: String,
    /// Of API keys: the id of the key that was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Of API keys: what was changed, in words. Of operations with ids in their paths: the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A page of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntries {
    /// The newest first.
    pub entries: Vec<AuditEntry>,
    /// Give it as `before` for older entries; absent: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}
