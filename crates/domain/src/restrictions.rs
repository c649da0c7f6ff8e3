//! What the owner and admins of a conversation have forbidden a user there: a mute or a ban, each for a time or for good.
//!
//! A user with a mute or a ban has one row in the conversation, a member or not. That a member has such a row is in the membership, so
//! that nothing is read for others.

use crate::{
    chat_row_kind::ChatRowKind,
    model::{ConversationNo, UserNo},
    store_error::{StoreError, StoreResult},
};
use serde::{Deserialize, Serialize};
pub use tidings_protocol::http::RestrictionKind;

/// A mute or a ban.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restriction {
    /// Since when, in milliseconds since 1970 UTC.
    pub at: u64,
    /// When it ends by itself, in milliseconds since 1970 UTC; `None`: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The id of the user who decided it; `None`: an app server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, in words for members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Restriction {
    /// Whether it holds at this time, in milliseconds since 1970 UTC.
    pub fn holds(&self, now_ms: u64) -> bool {
        self.until.is_none_or(|end| now_ms < end)
    }
}

/// The mute and the ban of one user in one conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Restrictions {
    /// A banned user is no member, and does not become one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ban: Option<Restriction>,
    /// A muted member reads, and writes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mute: Option<Restriction>,
}

impl Restrictions {
    /// Those of a row; none without a row.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: Option<&[u8]>) -> StoreResult<Restrictions> {
        let Some(row) = row else { return Ok(Restrictions::default()) };
        serde_json::from_slice(row).map_err(|error| StoreError::Damaged(format!("a row of restrictions: {error}")))
    }

    /// The row; none if nothing is left that may hold.
    pub fn encode(&self) -> Option<Vec<u8>> {
        (*self != Restrictions::default()).then(|| serde_json::to_vec(self).unwrap_or_default())
    }

    /// The restriction of this kind, if it holds at this time.
    pub fn holding(&self, kind: RestrictionKind, now_ms: u64) -> Option<&Restriction> {
        let found = match kind {
            RestrictionKind::Mute => &self.mute,
            RestrictionKind::Ban => &self.ban,
        };
        found.as_ref().filter(|restriction| restriction.holds(now_ms))
    }

    /// These with another one of the kind, without those that have ended.
    #[must_use]
    pub fn with(self, kind: RestrictionKind, restriction: Option<Restriction>, now_ms: u64) -> Restrictions {
        let Restrictions { ban, mute } = self;
        let (ban, mute) = match kind {
            RestrictionKind::Ban => (restriction, mute),
            RestrictionKind::Mute => (ban, restriction),
        };
        let holding = |restriction: Option<Restriction>| restriction.filter(|restriction| restriction.holds(now_ms));
        Restrictions { ban: holding(ban), mute: holding(mute) }
    }
}

/// The row of a user's restrictions in a conversation.
pub fn restrictions_key(conversation: ConversationNo, user: UserNo) -> Vec<u8> {
    ChatRowKind::Restrictions.key(&[conversation.0, user.0])
}

/// The range of a conversation's restrictions, from the first user after `after`.
pub fn restrictions_after(conversation: ConversationNo, after: Option<UserNo>) -> (Vec<u8>, Vec<u8>) {
    let first = after.map_or(0, |user| user.0 + 1);
    (restrictions_key(conversation, UserNo(first)), restrictions_key(conversation, UserNo(u64::MAX)))
}

/// When a member of a conversation in slow mode sent last, in milliseconds since 1970 UTC.
pub fn last_send_key(conversation: ConversationNo, user: UserNo) -> Vec<u8> {
    ChatRowKind::LastSend.key(&[conversation.0, user.0])
}
