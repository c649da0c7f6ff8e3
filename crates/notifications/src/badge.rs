//! The number on an app's icon: the messages that its user has not read, in conversations that are not muted.

use crate::offline_recipients::OfflinePushContext;
use tidings_domain::{
    model::*,
    store::{ConversationFilter, StoreResult},
};
use tidings_engine::unread_counts::{SharedPages, UnreadRange};
use tidings_protocol::limits::CONVERSATIONS_PER_USER_MAX;

/// The badge of one user.
pub(crate) fn badge_of(context: &OfflinePushContext, user: &User) -> StoreResult<u64> {
    badge_with(context, user, &mut SharedPages::default())
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
            let cleared_seq = context.directory.preferences(state.conversation, user.no)?.cleared_seq;
            ranges.push(UnreadRange::behind(state, read.max(cleared_seq)));
        }
    }
    Ok(pages.count_unread(&*context.store, user, ranges)?.iter().map(|unread| unread.count).sum())
}
