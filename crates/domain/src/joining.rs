//! How users become members by themselves: by the token of an invite, or by a request that the owner or an admin approves.
//!
//! A conversation has one row of all its invites, in which a token's digest stands for the token, and a row for each request; both
//! kinds are bounded, and the commit keeps count.

use crate::{
    chat_row_kind::ChatRowKind,
    model::{ConversationNo, UserNo},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// An invite of a conversation. The names are short, for all of a conversation are in one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// Its number in the conversation, which is random.
    #[serde(rename = "n")]
    pub number: u64,
    /// Of its token: see [`digest_of`].
    #[serde(rename = "d")]
    pub digest: String,
    /// When it was made, in milliseconds since 1970 UTC.
    pub at: u64,
    /// The id of the user who made it; `None`: an app server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When it ends, in milliseconds since 1970 UTC; `None`: when it is revoked.
    #[serde(default, rename = "until", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// How many users may join by it; `None`: any number.
    #[serde(default, rename = "max", skip_serializing_if = "Option::is_none")]
    pub uses_max: Option<u32>,
    /// How many have joined by it.
    #[serde(default)]
    pub uses: u32,
}

impl Invite {
    /// Whether another user may join by it at this time, in milliseconds since 1970 UTC.
    pub fn holds(&self, now_ms: u64) -> bool {
        self.expires_at.is_none_or(|end| now_ms < end) && self.uses_max.is_none_or(|max| self.uses < max)
    }
}

/// A request to become a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// When it was made, in milliseconds since 1970 UTC.
    pub at: u64,
    /// What the user says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// How it was refused; `None`: it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedRequest>,
}

/// How a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRequest {
    /// In milliseconds since 1970 UTC.
    pub at: u64,
    /// The id of the user who refused it; `None`: an app server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, for the user who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Half the SHA-256 of an invite's token, in hexadecimal digits.
pub fn digest_of(token: &str) -> String {
    Sha256::digest(token.as_bytes())[..16].iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The row of a conversation's invites.
pub fn invites_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::Invites.key(&[conversation.0])
}

/// The row of a user's request to join a conversation.
pub fn join_request_key(conversation: ConversationNo, user: UserNo) -> Vec<u8> {
    ChatRowKind::JoinRequest.key(&[0, conversation.0, user.0])
}

/// The range of a conversation's requests, from the first user after `after`.
pub fn join_requests_after(conversation: ConversationNo, after: Option<UserNo>) -> (Vec<u8>, Vec<u8>) {
    let first = after.map_or(0, |user| user.0 + 1);
    (join_request_key(conversation, UserNo(first)), join_request_key(conversation, UserNo(u64::MAX)))
}

/// How many requests wait in a conversation.
pub fn waiting_in_key(conversation: ConversationNo) -> Vec<u8> {
    ChatRowKind::JoinRequest.key(&[1, conversation.0])
}

/// How many requests of a user wait.
pub fn waiting_of_key(user: UserNo) -> Vec<u8> {
    ChatRowKind::JoinRequest.key(&[2, user.0])
}
