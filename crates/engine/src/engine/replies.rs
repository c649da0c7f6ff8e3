//! Answers to messages: their lists, and the previews of answered messages. A preview is looked up for
//! each reader, so that it is gone when the answered message is recalled.

use crate::{Engine, paging::page_limit};
use rustc_hash::FxHashMap;
use tidings_domain::{
    chat_rows,
    model::*,
    refusals::store_refusal,
    store::{PageRequest, RowSpace},
};
use tidings_protocol::{error::Refusal, http::EntryPage, limits::HISTORY_PAGE_MAX};

/// Entries in a page of answers when the caller gives no limit.
const PAGE_DEFAULT: usize = 50;

impl Engine {
    /// The answers to a message, oldest first.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `not_a_message`; `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn replies(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        (after, limit): (Option<&str>, usize),
    ) -> Result<EntryPage, Refusal> {
        let (ref actor, conversation) = self.enter_at(actor, conversation, seq)?;
        self.stored_message(&conversation, seq)?;
        let limit = page_limit(limit, PAGE_DEFAULT, HISTORY_PAGE_MAX)?;
        let first = match after {
            Some(token) => {
                let last = token.parse::<u64>();
                last.map_err(|_| Refusal::field("after", "not a page token of this list"))?.saturating_add(1)
            }
            None => 0,
        };
        let key = |reply| chat_rows::reply_key(conversation.no, seq, reply);
        let rows = self.store.rows(RowSpace::Chat, &key(first), &key(u64::MAX), limit).map_err(store_refusal)?;
        let seqs: Vec<u64> = rows.iter().filter_map(|(key, _)| chat_rows::number_in(key, 2)).collect();
        let picked: Vec<_> = seqs.iter().map(|seq| (conversation.clone(), *seq)).collect();
        let next = seqs.last().filter(|_| rows.len() == limit).map(u64::to_string);
        Ok(EntryPage { entries: self.picked_entries(actor, &picked)?, next })
    }

    /// Looks up the answered messages of those entries that are answers.
    pub(crate) fn attach_previews<'e>(
        &self,
        entries: impl Iterator<Item = (ConversationNo, &'e mut StoredEntry)>,
    ) -> Result<(), Refusal> {
        let mut answers: FxHashMap<(ConversationNo, u64), Vec<&mut StoredEntry>> = FxHashMap::default();
        for (conversation, entry) in entries {
            if let Some(target) = entry.content.reply_to() {
                answers.entry((conversation, target)).or_default().push(entry);
            }
        }
        if answers.is_empty() {
            return Ok(());
        }
        let request = |(conversation, seq): &(ConversationNo, u64)| PageRequest {
            conversation: *conversation,
            from_seq: *seq,
            to_seq: *seq,
            limit: 1,
        };
        let requests: Vec<_> = answers.keys().map(request).collect();
        let pages = self.store.pages(&requests, usize::MAX).map_err(store_refusal)?;
        for (entries, page) in answers.into_values().zip(pages) {
            let preview = page.first().map(ReplyPreview::of);
            for entry in entries {
                let reply = entry.content.message_details_mut().and_then(|details| details.reply_to.as_mut());
                reply.into_iter().for_each(|reply| reply.preview = preview.clone());
            }
        }
        Ok(())
    }
}
