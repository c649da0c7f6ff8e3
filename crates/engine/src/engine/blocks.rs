//! Whom users block: the lists, and what a block refuses.
//!
//! While one of two users blocks the other, neither writes to the other in their direct conversation, types there or sees the other's
//! receipts, and the blocked one neither sees the presence of who blocks, nor adds that user to a conversation. What a block means in
//! groups, the conversation says ([`Conversation::blocks_mode`]).

use crate::{Engine, paging::page_limit};
use std::sync::Arc;
use tidings_domain::{
    chat_rows::{self, block_key},
    gates::Gate,
    model::*,
    refusals::store_refusal,
    store::{Proposal, RowSpace},
};
use tidings_protocol::{
    error::Refusal,
    http::{BlockPage, BlockedUser},
    limits::{BLOCKS_MAX, BLOCKS_PAGE_MAX},
};

/// Users in a page when the caller gives no limit.
const PAGE_DEFAULT: usize = 100;

impl Engine {
    /// Has a user block another one, or ends that. A repeated one changes nothing.
    ///
    /// # Errors
    /// `not_found`, `invalid_field`, `limit_exceeded`, `not_yet_enabled`; `rate_limited` for users; `queue_full`,
    /// `store_unavailable` and `draining`: nothing was stored.
    pub async fn set_block(&self, actor: &Actor, user: &Arc<User>, other: &str, blocked: bool) -> Result<(), Refusal> {
        self.gates.require(Gate::UserSafety)?;
        let other = self.directory.require_user(other)?.no;
        if other == user.no {
            return Err(Refusal::field("other", "nobody blocks oneself"));
        }
        let proposal = Proposal::SetBlock { user: user.no, other, blocked, blocks_max: BLOCKS_MAX };
        self.committer.propose(actor, None, proposal).await.map(drop)
    }

    /// The users whom a user blocks, in the order in which they were created.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn blocks(&self, user: &User, after: Option<&str>, limit: usize) -> Result<BlockPage, Refusal> {
        let limit = page_limit(limit, PAGE_DEFAULT, BLOCKS_PAGE_MAX)?;
        let first = match after {
            Some(token) => {
                let last = token.parse::<u64>();
                last.map_err(|_| Refusal::field("after", "not a page token of this list"))?.saturating_add(1)
            }
            None => 0,
        };
        let (from, to) = (block_key(user.no, UserNo(first)), block_key(user.no, UserNo(u64::MAX)));
        let rows = self.store.rows(RowSpace::Chat, &from, &to, limit).map_err(store_refusal)?;
        let last = rows.get(limit - 1).and_then(|(key, _)| chat_rows::number_in(key, 1));
        let mut users = Vec::with_capacity(rows.len());
        for (key, row) in &rows {
            let Some(no) = chat_rows::number_in(key, 1) else { continue };
            let Some(other) = self.directory.user(UserNo(no)).map_err(store_refusal)? else { continue };
            let at = chat_rows::decode(Some(row)).map_err(store_refusal)?;
            users.push(BlockedUser { user: other.id.clone(), at });
        }
        Ok(BlockPage { users, next: last.map(|last| last.to_string()) })
    }

    /// Whether the user may not learn of the other one, who blocks the user.
    pub(crate) fn is_blocked_by(&self, user: &User, other: &User) -> Result<bool, Refusal> {
        self.directory.has_blocked(other, user.no).map_err(store_refusal)
    }
}
