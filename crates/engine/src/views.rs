//! What callers may see of conversations, and entries as they see them: every read of entries comes by here.

use crate::{
    Engine,
    entry_view::entry_of,
    visibility::{HiddenMessages, ShownEntry, View, first_readable},
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    refusals::{not_a_member, proposal_refusal, store_refusal},
    store::Rejection,
};
use tidings_protocol::{entry::Entry, error::Refusal};

/// An entry that was read for a caller who has this view of its conversation.
pub(crate) struct Found {
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) view: View,
    pub(crate) entry: StoredEntry,
}

impl Found {
    /// The entry as the caller sees it; `None`: it does not exist for the caller.
    pub(crate) fn shown(&self) -> Option<ShownEntry<'_>> {
        self.view.show(&self.entry)
    }
}

impl Engine {
    /// What the actor may see of a conversation.
    ///
    /// # Errors
    /// `not_a_member`; `store_unavailable`.
    pub(crate) fn view(&self, actor: &Actor, conversation: &Conversation) -> Result<View, Refusal> {
        self.check_may_read(actor, conversation)?;
        let Actor::User(user) = actor else { return Ok(View::WHOLE) };
        let preferences = self.directory.preferences(conversation.no, user.no).map_err(store_refusal)?;
        let joined_seq = match conversation.history() {
            HistoryVisibility::All => 0,
            HistoryVisibility::Join | HistoryVisibility::Last(_) => {
                let membership = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?;
                membership.ok_or_else(|| not_a_member(&user.id, &conversation.id))?.joined_seq
            }
        };
        Ok(self.view_of_member(user.no, conversation, joined_seq, preferences.cleared_seq))
    }

    /// What a member may see of a conversation who joined when `joined_seq` was the last entry, and has cleared all up to
    /// `cleared_seq`.
    pub(crate) fn view_of_member(
        &self,
        user: UserNo,
        conversation: &Conversation,
        joined_seq: u64,
        cleared_seq: u64,
    ) -> View {
        let sides = self.directory.desks.sides(conversation.pair);
        View {
            first_seq: first_readable(conversation.history(), joined_seq, cleared_seq),
            hides_agents: sides.is_some_and(|sides| sides.customer == user && !sides.desk.desk.shows_agents),
            hides_followers: conversation.kind == ConversationKind::Official,
            hidden: HiddenMessages::Of(user),
        }
    }

    /// Checks that an entry may exist for the actor, who refers to it.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `store_unavailable`.
    pub(crate) fn check_exists_for(&self, actor: &Actor, conversation: &Conversation, seq: u64) -> Result<(), Refusal> {
        if self.view(actor, conversation)?.has(seq) {
            Ok(())
        } else {
            Err(proposal_refusal(&Rejection::NoSuchEntry(seq)))
        }
    }

    /// The conversation, if this entry of it may exist for the actor; and who the actor is in it.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `store_unavailable`.
    pub(crate) fn enter_at(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
    ) -> Result<(Actor, Arc<Conversation>), Refusal> {
        let (actor, conversation) = self.enter(actor, conversation)?;
        self.check_exists_for(&actor, &conversation, seq)?;
        Ok((actor, conversation))
    }

    /// Completes entries that were read from the store: what they still grow by, and what they answer.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(crate) fn complete(&self, found: &mut [Found]) -> Result<(), Refusal> {
        for Found { conversation, entry, .. } in found.iter_mut() {
            self.streams.overlay(conversation.no, entry);
        }
        self.attach_previews(found.iter_mut().map(|found| (found.conversation.no, &mut found.entry)))
    }

    /// Entries that were read from the store, as their reader sees them. Those that do not exist for the reader are left out.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(crate) fn present(&self, mut found: Vec<Found>) -> Result<Vec<Entry>, Refusal> {
        self.complete(&mut found)?;
        let shown = found.iter().filter_map(|found| Some((&found.conversation, found.shown()?)));
        shown.map(|(conversation, entry)| entry_of(&conversation.id, &entry)).collect()
    }
}
