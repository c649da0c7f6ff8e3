//! What a user has not read in all conversations of the list together, and reading all of it.

use super::{
    line::ListLine,
    requests::{EXAMINED_AT_ONCE, EXAMINED_MAX},
};
use crate::Engine;
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{PreferencesPatch, Proposal},
};
use tidings_protocol::{
    error::Refusal,
    http::{ListFilter, ReadAll, UnreadLine, UnreadTotal},
    limits::{READ_ALL_MAX, UNREAD_LINES_MAX},
};

/// The conversations that a user is to have read, as far as one call goes.
pub struct UnreadConversations {
    lines: Vec<(Arc<Conversation>, ListLine)>,
    more: bool,
}

impl Engine {
    /// What the user has not read in all conversations that are neither archived nor hidden. It reads the states of all of the
    /// user's conversations, and the entries behind the read marks of at most 2,000 of them. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn unread_total(&self, user: &Arc<User>) -> Result<UnreadTotal, Refusal> {
        let filter = Some(ListFilter::Unread);
        let mut lines = self.list_lines(user, |line| line.may_pass(filter))?;
        let mut total = UnreadTotal { capped: lines.len() > EXAMINED_MAX, ..UnreadTotal::default() };
        lines.truncate(EXAMINED_MAX);
        let now_ms = self.clock.now_ms();
        for part in lines.chunks(EXAMINED_AT_ONCE) {
            let nos: Vec<_> = part.iter().map(|line| line.state.conversation).collect();
            let details = self.directory.conversations(&nos).map_err(store_refusal)?;
            for ((line, unread), details) in part.iter().zip(self.unread(user, part)?).zip(details) {
                let Some(details) = details else { continue };
                if !self.passes(line, &unread, filter)? {
                    continue;
                }
                let muted = line.state.membership.mute.is_muted(now_ms);
                total.conversations += 1;
                total.mentions += unread.mentions;
                if !muted {
                    total.unread += unread.count;
                    total.capped |= unread.capped;
                }
                if total.lines.len() < UNREAD_LINES_MAX {
                    let (conversation, mentions) = (details.id.clone(), unread.mentions);
                    total.lines.push(UnreadLine { conversation, unread: unread.count, mentions, muted });
                }
            }
        }
        Ok(total)
    }

    /// The conversations, archived and hidden ones too, that have entries behind the user's read mark or are marked as unread:
    /// the first 500 of them, in the order of the list. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn unread_conversations(&self, user: &Arc<User>) -> Result<UnreadConversations, Refusal> {
        let mut lines = self.list_lines(user, ListLine::may_be_unread)?;
        let more = lines.len() > READ_ALL_MAX;
        lines.truncate(READ_ALL_MAX);
        let nos: Vec<_> = lines.iter().map(|line| line.state.conversation).collect();
        let details = self.directory.conversations(&nos).map_err(store_refusal)?;
        let lines = details.into_iter().zip(lines).filter_map(|(details, line)| Some((details?, line)));
        Ok(UnreadConversations { lines: lines.collect(), more })
    }

    /// Moves the user's read marks in these conversations to the entries that were the newest when they were read.
    ///
    /// # Errors
    /// `queue_full`, `store_unavailable` and `draining`: some marks may have moved; a retry moves the rest.
    pub async fn read_all(&self, user: &User, unread: UnreadConversations) -> Result<ReadAll, Refusal> {
        let UnreadConversations { lines, more } = unread;
        let marked = lines.len() as u64;
        let (user, mut proposals) = (user.no, Vec::with_capacity(lines.len()));
        for (conversation, ListLine { state, preferences }) in lines {
            let (no, seq) = (conversation.no, state.head.last_seq);
            if preferences.marked_unread {
                let patch = PreferencesPatch { marked_unread: Some(false), ..PreferencesPatch::default() };
                proposals.push((None, Proposal::SetPreferences { conversation: no, user, patch }));
            }
            proposals.push((Some(conversation), Proposal::MarkRead { conversation: no, user, seq }));
        }
        self.committer.propose_all_untold(proposals).await?;
        Ok(ReadAll { marked, more })
    }
}
