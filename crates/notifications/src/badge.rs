//! The number on an app's icon: the messages that its user has not read, in conversations that are in the user's list and not muted.

use crate::offline_recipients::OfflinePushContext;
use std::collections::HashMap;
use tidings_domain::{
    chat_rows::Preferences,
    model::*,
    store::{ConversationFilter, StoreResult},
};
use tidings_engine::unread_counts::{SharedPages, UnreadRange};
use tidings_protocol::limits::CONVERSATIONS_PER_USER_MAX;

/// The badge of one user.
pub(crate) fn badge_of(context: &OfflinePushContext, user: &User) -> StoreResult<u64> {
    badge_with(context, user, &mut SharedPages::default())
}

/// The badges of users in a round, each counted once.
#[derive(Default)]
pub(crate) struct RoundBadges {
    known: HashMap<UserNo, u64>,
    pages: SharedPages,
}

impl RoundBadges {
    pub(crate) fn of(&mut self, context: &OfflinePushContext, user: &User) -> StoreResult<u64> {
        if let Some(known) = self.known.get(&user.no) {
            return Ok(*known);
        }
        let badge = badge_with(context, user, &mut self.pages)?;
        self.known.insert(user.no, badge);
        Ok(badge)
    }
}

/// The badge of one user of several, who share pages of conversations.
pub(crate) fn badge_with(context: &OfflinePushContext, user: &User, pages: &mut SharedPages) -> StoreResult<u64> {
    let states = context.store.conversation_states(user.no, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX)?;
    let now_ms = context.clock.now_ms();
    let mut ranges = Vec::new();
    for state in &states {
        let Membership { read_seq, joined_seq, mute, .. } = state.membership;
        let read = read_seq.max(joined_seq);
        if state.head.last_seq > read && !mute.is_muted(now_ms) {
            let preferences = context.directory.preferences(state.conversation, user.no)?;
            let details = context.directory.readable_conversation(state.conversation)?;
            if !is_listed(&preferences, state.head.last_seq) || details.is_none_or(|details| details.is_importing()) {
                continue;
            }
            ranges.push(UnreadRange::behind(state, read.max(preferences.cleared_seq)));
        }
    }
    Ok(pages.count_unread(&*context.store, user, ranges)?.iter().map(|unread| unread.count).sum())
}

/// Whether the user has the conversation in the list: neither archived, nor hidden since its last message.
pub(crate) fn is_listed(preferences: &Preferences, last_seq: u64) -> bool {
    !preferences.archived && preferences.hidden_at.is_none_or(|hidden_at| last_seq > hidden_at)
}
