//! What callers ask of dead letters: to list, to replay and to delete them.

use super::{
    VendorPush,
    dead_letters::{self, DeadLetter, Filter},
};
use crate::road_jobs::JobNews;
use tidings_domain::{
    leadership::Term,
    model::{ConversationNo, UserNo},
    refusals::{leader_unavailable, store_refusal},
    store::StoreResult,
};
use tidings_protocol::{
    error::Refusal,
    http::{
        SelectVendorDeadLetters, VendorDeadLetter, VendorDeadLetterPage, VendorDeadLettersDeleted,
        VendorDeadLettersReplayed,
    },
};

/// Dead letters in a page, and those that are named in a request.
const PAGE_MAX: usize = 500;
/// Dead letters that are replayed or deleted in one write.
const AT_ONCE: usize = 100;

impl VendorPush {
    /// A page of those that fit, the oldest first.
    pub(crate) fn dead_letters(
        &self,
        after: Option<u64>,
        limit: usize,
        select: &SelectVendorDeadLetters,
    ) -> Result<VendorDeadLetterPage, Refusal> {
        let limit = if limit == 0 { PAGE_MAX } else { limit };
        if limit > PAGE_MAX {
            return Err(Refusal::limit("limit (dead letters)", PAGE_MAX as u64, limit as u64));
        }
        let filter = self.filter(select)?;
        let mut found = dead_letters::list(&*self.context.store, after, &filter, limit + 1).map_err(store_refusal)?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(id, _)| *id);
        let cards: StoreResult<Vec<_>> = found.into_iter().map(|letter| self.card(letter)).collect();
        Ok(VendorDeadLetterPage { dead_letters: cards.map_err(store_refusal)?, next })
    }

    /// Tries those that fit again, each if its user is still to be told.
    pub(crate) fn replay_dead_letters(
        &self,
        select: &SelectVendorDeadLetters,
    ) -> Result<VendorDeadLettersReplayed, Refusal> {
        let mut answer = VendorDeadLettersReplayed { replayed: 0, dropped: Vec::new() };
        self.for_all(select, |term, letters| {
            let replay = self.dead_letters.replay(&self.context, term, letters)?;
            answer.replayed += replay.jobs.len();
            answer.dropped.extend(replay.dropped);
            // A vendor that is no longer set up is told once the settings name it again, as of all that it was to be told.
            self.signals.note(&JobNews::of(&replay.jobs));
            Ok(())
        })?;
        Ok(answer)
    }

    /// Deletes those that fit.
    pub(crate) fn delete_dead_letters(
        &self,
        select: &SelectVendorDeadLetters,
    ) -> Result<VendorDeadLettersDeleted, Refusal> {
        let mut deleted = 0;
        self.for_all(select, |term, letters| {
            deleted += letters.len();
            let ids: Vec<u64> = letters.into_iter().map(|(id, _)| id).collect();
            self.dead_letters.delete(&self.context, term, &ids)
        })?;
        Ok(VendorDeadLettersDeleted { deleted })
    }

    /// Does something with those that fit, some at a time, and with no more than there can be.
    fn for_all(
        &self,
        select: &SelectVendorDeadLetters,
        mut change: impl FnMut(Term, Vec<(u64, DeadLetter)>) -> StoreResult<()>,
    ) -> Result<(), Refusal> {
        let term = self.context.lead.term().ok_or_else(leader_unavailable)?;
        let store = &*self.context.store;
        if let Some(ids) = &select.ids {
            let named = SelectVendorDeadLetters { ids: Some(ids.clone()), ..SelectVendorDeadLetters::default() };
            if *select != named {
                return Err(Refusal::field("ids", "cannot be together with another condition"));
            }
            if ids.len() > PAGE_MAX {
                return Err(Refusal::limit("ids", PAGE_MAX as u64, ids.len() as u64));
            }
            let mut ids = ids.clone();
            ids.sort_unstable();
            ids.dedup();
            let found = dead_letters::find(store, &ids).map_err(store_refusal)?;
            if let Some((unknown, _)) = ids.iter().zip(&found).find(|(_, found)| found.is_none()) {
                return Err(Refusal::not_found("dead letter", &unknown.to_string()));
            }
            return change(term, found.into_iter().flatten().collect()).map_err(store_refusal);
        }
        let filter = self.filter(select)?;
        let (mut after, mut left) = (None, dead_letters::DEAD_LETTERS_MAX as usize);
        while left > 0 {
            let found = dead_letters::list(store, after, &filter, AT_ONCE.min(left)).map_err(store_refusal)?;
            let Some((last, _)) = found.last() else { break };
            (after, left) = (Some(*last), left - found.len());
            change(term, found).map_err(store_refusal)?;
        }
        Ok(())
    }

    fn filter(&self, select: &SelectVendorDeadLetters) -> Result<Filter, Refusal> {
        let SelectVendorDeadLetters { vendor, user, outcome, cause, .. } = select;
        let user = user.as_ref().map(|user| self.context.directory.require_user(user)).transpose()?;
        let (vendor, outcome, cause) = (*vendor, *outcome, cause.clone());
        Ok(Filter { vendor, user: user.map(|user| user.no), outcome, cause })
    }

    /// A user or a conversation that is not there any more is shown without a name.
    fn card(&self, (id, letter): (u64, DeadLetter)) -> StoreResult<VendorDeadLetter> {
        let directory = &self.context.directory;
        let DeadLetter { vendor, conversation, seq, target, failed_at, attempts, outcome, cause } = letter;
        let user = directory.user(UserNo(target.0))?;
        let conversation = directory.conversation(ConversationNo(conversation))?;
        Ok(VendorDeadLetter {
            id,
            vendor,
            user: user.map(|user| user.id.clone()).unwrap_or_default(),
            device_id: target.1,
            conversation: conversation.map(|conversation| conversation.id.clone()).unwrap_or_default(),
            seq,
            failed_at,
            attempts,
            outcome,
            cause,
        })
    }
}
