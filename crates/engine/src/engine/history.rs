//! History: a conversation's timeline page by page, from a sequence number or time, or from the cursor of another page.

mod cursor;

use crate::{Engine, engine::reads::READ_AT_ONCE, views::Found};
use cursor::{HistoryRange, PageCursor};
use std::collections::VecDeque;
use tidings_domain::{model::*, refusals::store_refusal, store::End};
use tidings_protocol::{
    error::Refusal,
    http::{HistoryPage, HistoryQuery},
    limits::{HISTORY_PAGE_BYTES_MAX, HISTORY_PAGE_MAX},
};

/// Entries in a page of history when the caller gives no limit.
const HISTORY_PAGE_DEFAULT: usize = 50;

impl Engine {
    /// A page of a timeline, oldest first.
    ///
    /// Its `next` and `previous` lead to the pages after and before it within the range of the first page. A caller
    /// that follows one of them until it is absent gets each entry once: a page begins where the other ended, by
    /// sequence number, whatever is sent meanwhile.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `invalid_field`, `limit_exceeded` and `cursor_invalid` for the query;
    /// `store_unavailable`.
    pub fn history(&self, actor: &Actor, conversation: &str, query: &HistoryQuery) -> Result<HistoryPage, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let view = self.view(actor, &conversation)?;
        let limit = match query.limit.unwrap_or(HISTORY_PAGE_DEFAULT) {
            0 => return Err(Refusal::field("limit", "must be at least 1, got 0")),
            limit if limit > HISTORY_PAGE_MAX => {
                return Err(Refusal::limit("limit (entries)", HISTORY_PAGE_MAX as u64, limit as u64));
            }
            limit => limit,
        };
        let (range, from, start) = self.requested_page(&conversation, query)?;
        let head = self.store.head(conversation.no).map_err(store_refusal)?;
        let first_seq = head.first_seq.max(view.first_seq);
        let first = range.from_seq.max(first_seq);
        let mut last = range.to_seq.min(head.last_seq);
        if let Some(time) = range.to_time {
            last = last.min(self.seq_at(conversation.no, time.saturating_add(1))?.saturating_sub(1));
        }
        let (page_first, page_last) = match (from, start) {
            (End::Oldest, Some(seq)) => (first.max(seq), last),
            (End::Newest, Some(seq)) => (first, last.min(seq)),
            (_, None) => (first, last),
        };
        let stored = if page_first <= page_last {
            self.page_of(conversation.no, page_first, page_last, limit, from)?
        } else {
            Vec::new()
        };
        let more = page_first <= page_last && (page_last - page_first + 1) > stored.len() as u64;
        let cursor = |towards: End, seq: u64| PageCursor { towards, seq, range }.format(&conversation.id);
        let newest = stored.last().map(|entry| entry.seq).filter(|newest| *newest < last);
        let oldest = stored.first().map(|entry| entry.seq).filter(|oldest| *oldest > first);
        let found = stored.into_iter().map(|entry| Found { conversation: conversation.clone(), view, entry });
        let entries = self.present(found.collect())?;
        let answered = entries.iter().filter_map(|entry| entry.reply_to.as_ref()?.from.as_deref());
        let senders = entries.iter().flat_map(|entry| [entry.from.as_deref(), entry.agent.as_deref()]).flatten();
        let users = self.cards(senders.chain(answered));
        Ok(HistoryPage {
            entries,
            users,
            next: newest.map(|newest| cursor(End::Oldest, newest + 1)),
            previous: oldest.map(|oldest| cursor(End::Newest, oldest - 1)),
            more,
            conversation_first_seq: first_seq,
            conversation_last_seq: head.last_seq,
            first_seq,
            last_seq: head.last_seq,
        })
    }

    /// The range of the query, the end from which the page is read, and the `seq` at which it starts if not at that
    /// end.
    fn requested_page(
        &self,
        conversation: &Conversation,
        query: &HistoryQuery,
    ) -> Result<(HistoryRange, End, Option<u64>), Refusal> {
        let HistoryQuery { cursor, from_seq, to_seq, from_time, to_time, limit: _ } = query;
        if let Some(text) = cursor {
            if from_seq.or(*to_seq).or(*from_time).or(*to_time).is_some() {
                let why = "has the range of its first page: only limit may be given with it";
                return Err(Refusal::field("cursor", why));
            }
            let PageCursor { towards, seq, range } = PageCursor::parse(text, &conversation.id)?;
            return Ok((range, towards, Some(seq)));
        }
        let mut range =
            HistoryRange { from_seq: from_seq.unwrap_or(1), to_seq: to_seq.unwrap_or(u64::MAX), to_time: *to_time };
        if let Some(time) = from_time {
            range.from_seq = range.from_seq.max(self.seq_at(conversation.no, *time)?);
        }
        let from = if from_seq.or(*from_time).is_some() { End::Oldest } else { End::Newest };
        Ok((range, from, None))
    }

    fn seq_at(&self, no: ConversationNo, time: u64) -> Result<u64, Refusal> {
        self.store.seq_at(no, time).map_err(store_refusal)
    }

    /// Entries of a range from one of its ends, oldest first; fewer than `limit` when they are large.
    fn page_of(
        &self,
        no: ConversationNo,
        mut first: u64,
        mut last: u64,
        limit: usize,
        from: End,
    ) -> Result<Vec<StoredEntry>, Refusal> {
        let mut page: VecDeque<StoredEntry> = VecDeque::new();
        let mut bytes = 0;
        while page.len() < limit && bytes < HISTORY_PAGE_BYTES_MAX && first <= last {
            let at_once = READ_AT_ONCE.min(limit - page.len());
            let mut part = VecDeque::from(self.store.entries(no, first, last, at_once, from).map_err(store_refusal)?);
            if part.is_empty() {
                break;
            }
            while bytes < HISTORY_PAGE_BYTES_MAX
                && let Some(entry) = if from == End::Oldest { part.pop_front() } else { part.pop_back() }
            {
                bytes += entry.content.body.len();
                if from == End::Oldest {
                    first = entry.seq + 1;
                    page.push_back(entry);
                } else {
                    last = entry.seq - 1;
                    page.push_front(entry);
                }
            }
        }
        Ok(page.into())
    }
}
