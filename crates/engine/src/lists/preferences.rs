//! What a user sets for conversations of the own list, and how the user's sessions learn what has become of its lines.

use super::changes::ListLineNo;
use crate::{Engine, shards::Signal};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::{not_a_member, store_refusal, unexpected_outcome},
    store::{Outcome, PreferencesPatch, Proposal},
};
use tidings_protocol::{
    error::Refusal,
    frames::ServerFrame,
    http::{ConversationView, UpdatePreferences},
    ids::check_name,
    limits::LIVE_DETAILS_MEMBERS_MAX,
};

/// Members that are read at once.
const MEMBERS_AT_ONCE: usize = 500;

impl Engine {
    /// Changes what a user has set for a conversation; the answer is the line of the user's list as it is now.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `limit_exceeded`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn set_preferences(
        &self,
        user: &Arc<User>,
        conversation: &str,
        update: UpdatePreferences,
    ) -> Result<Arc<Conversation>, Refusal> {
        let (ref user, conversation) = self.enter_as(user, conversation)?;
        let UpdatePreferences { pinned, archived, hidden, title, marked_unread, clear_to_seq } = update;
        check_name("title", title.as_ref().and_then(|title| title.as_deref()))?;
        let patch = PreferencesPatch { pinned, archived, hidden, title, marked_unread, clear_to_seq };
        let proposal = Proposal::SetPreferences { conversation: conversation.no, user: user.no, patch };
        match self.committer.propose_untold(None, proposal).await? {
            Outcome::Preferences { .. } => Ok(conversation),
            _ => Err(unexpected_outcome()),
        }
    }

    /// One conversation as the user's list shows it. Blocks.
    ///
    /// # Errors
    /// `not_a_member`; `store_unavailable`.
    pub fn list_view(&self, user: &Arc<User>, conversation: &Conversation) -> Result<ConversationView, Refusal> {
        let view = self.conversation_view(user, conversation)?;
        view.ok_or_else(|| not_a_member(&user.id, &conversation.id))
    }

    /// Sends at most so many of the lines that have changed to their users' sessions on this node. Blocks.
    pub(crate) fn send_list_changes(&self, most: usize) {
        for conversation in self.list_changes.take_changed_details() {
            if let Err(refusal) = self.add_lines_of_live_members(conversation) {
                tracing::debug!(%refusal, "changed details were not sent");
            }
        }
        let lines = self.list_changes.take_lines(most);
        for ListLineNo { user, conversation } in &lines {
            if let Err(refusal) = self.send_line(*user, *conversation) {
                tracing::debug!(%refusal, "a changed line of a list was not sent");
            }
        }
    }

    /// The members of a larger conversation learn of its details by the entry of the change alone.
    fn add_lines_of_live_members(&self, conversation: ConversationNo) -> Result<(), Refusal> {
        let details = self.directory.conversation(conversation).map_err(store_refusal)?;
        if details.is_none_or(|details| details.member_count > LIVE_DETAILS_MEMBERS_MAX) {
            return Ok(());
        }
        let members = self.store.members(conversation, None, MEMBERS_AT_ONCE).map_err(store_refusal)?;
        members.into_iter().for_each(|(user, _)| self.list_changes.note(ListLineNo { user, conversation }));
        Ok(())
    }

    fn send_line(&self, user: UserNo, conversation: ConversationNo) -> Result<(), Refusal> {
        let details = self.directory.conversation(conversation).map_err(store_refusal)?;
        let (Some(details), Some(owner)) = (details, self.directory.user(user).map_err(store_refusal)?) else {
            return Ok(());
        };
        // A user who has left meanwhile learns it by `membership`.
        if let Some(view) = self.conversation_view(&owner, &details)? {
            // Writing to memory cannot fail.
            let frame = serde_json::to_vec(&ServerFrame::Conversation { conversation: Box::new(view) });
            self.shards.signal(user, Signal::Frame { frame: frame.unwrap_or_default().into() });
        }
        Ok(())
    }
}
