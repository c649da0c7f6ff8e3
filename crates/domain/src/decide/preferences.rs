//! What a member has set for one conversation of the list.

use super::{Decider, ProposalError, StagedRows};
use crate::{
    chat_rows::{Preferences, preferences_key},
    model::*,
    store::*,
};

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn set_preferences(
        &mut self,
        conversation: ConversationNo,
        user: UserNo,
        patch: &PreferencesPatch,
    ) -> Result<Outcome, ProposalError> {
        self.rows.membership(conversation, user)?.ok_or(Rejection::NotAMember)?;
        let last_seq = self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?.last_seq;
        let before = self.preferences(user, conversation)?;
        let now = before.clone().with(patch, last_seq, self.now_ms);
        let moved = now != before;
        if moved {
            self.rows.put_chat_row(preferences_key(user, conversation), now.encode());
        }
        Ok(Outcome::Preferences { moved })
    }

    /// What a user has set for a conversation, a member or not.
    pub(super) fn preferences(&self, user: UserNo, conversation: ConversationNo) -> StoreResult<Preferences> {
        Preferences::decode(self.rows.chat_row(&preferences_key(user, conversation))?.as_deref())
    }
}
