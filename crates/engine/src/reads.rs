//! Reading: history by sequence or time, and a user's list of conversations with unread counts.

use crate::{
    commit::store_refusal,
    engine::{Actor, Engine},
    model::*,
    send::{MENTION_ALL, not_a_member},
    store::End,
};
use std::{collections::VecDeque, sync::Arc};
use tidings_protocol::{
    entry::Entry,
    error::{ErrorCode, Refusal},
    http::{ConversationPage, ConversationView, HistoryPage, HistoryQuery},
    limits::*,
};

/// Entries in a page of history when the caller does not say.
const HISTORY_PAGE_DEFAULT: usize = 50;
/// Conversations in a page of the list when the caller does not say.
const CONVERSATIONS_PAGE_DEFAULT: usize = 50;
/// Entries read at once, for a page of history and while counting unread ones: what one look at the
/// store may hold in memory.
const READ_AT_ONCE: usize = 100;

/// A stored entry as clients see it.
pub fn entry_of(conversation: &str, stored: &StoredEntry) -> Result<Entry, Refusal> {
    let content = &stored.content;
    let body = serde_json::value::RawValue::from_string(content.body.to_string())
        .map_err(|_| Refusal::new(ErrorCode::Internal, format!("entry {} has a damaged body", stored.seq)))?;
    Ok(Entry {
        conversation: conversation.to_owned(),
        seq: stored.seq,
        kind: content.kind,
        at: stored.at,
        from: content.sender.as_ref().map(|s| s.id.clone()),
        client_msg_id: content.client_msg_id.clone(),
        content_type: content.content_type.clone(),
        body,
        mentions: content.mentions.clone(),
        silent: content.silent,
    })
}

/// Unread messages, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Unread {
    pub(crate) count: u64,
    pub(crate) mentions: u64,
    pub(crate) capped: bool,
}

impl Engine {
    /// The actor's membership; app servers read everything.
    pub(crate) fn check_may_read(&self, actor: &Actor, conversation: &Conversation) -> Result<(), Refusal> {
        let Actor::User(user) = actor else { return Ok(()) };
        let is_member = match conversation.pair {
            Some((a, b)) => user.no == a || user.no == b,
            None => self.directory.membership(conversation.no, user.no).map_err(store_refusal)?.is_some(),
        };
        if is_member { Ok(()) } else { Err(not_a_member(&user.id, &conversation.id)) }
    }

    /// A page of a timeline, oldest first.
    pub fn history(&self, actor: &Actor, conversation: &str, query: &HistoryQuery) -> Result<HistoryPage, Refusal> {
        let conversation = self.directory.require_conversation(conversation)?;
        self.check_may_read(actor, &conversation)?;
        let limit = query.limit.unwrap_or(HISTORY_PAGE_DEFAULT);
        if limit == 0 || limit > HISTORY_PAGE_MAX {
            return Err(Refusal::limit("limit (entries, at least 1)", HISTORY_PAGE_MAX as u64, limit as u64));
        }
        let head = self.store.head(conversation.no).map_err(store_refusal)?;
        let seq_at = |time: u64| self.store.seq_at(conversation.no, time).map_err(store_refusal);
        let mut first = query.from_seq.unwrap_or(1).max(head.first_seq);
        if let Some(time) = query.from_time {
            first = first.max(seq_at(time)?);
        }
        let mut last = query.to_seq.unwrap_or(u64::MAX).min(head.last_seq);
        if let Some(time) = query.to_time {
            last = last.min(seq_at(time.saturating_add(1))?.saturating_sub(1));
        }
        let from = match query.from_seq.is_some() || query.from_time.is_some() {
            true => End::Oldest,
            false => End::Newest,
        };
        let stored = match first <= last {
            true => self.page_of(conversation.no, first, last, limit, from)?,
            false => Vec::new(),
        };
        let more = first <= last && (last - first + 1) > stored.len() as u64;
        let entries = stored.iter().map(|entry| entry_of(&conversation.id, entry)).collect::<Result<_, _>>()?;
        Ok(HistoryPage { entries, more, first_seq: head.first_seq, last_seq: head.last_seq })
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

    /// Others' messages that this member has not read: counted from the timeline, so that it cannot drift.
    pub(crate) fn unread(
        &self,
        user: &User,
        no: ConversationNo,
        membership: &Membership,
        head: &Head,
    ) -> Result<Unread, Refusal> {
        let mut unread = Unread::default();
        let mut next = (membership.read_seq.max(membership.joined_seq) + 1).max(head.first_seq);
        let mut looked_at = 0;
        while next <= head.last_seq {
            if looked_at >= UNREAD_ENTRIES_MAX {
                return Ok(Unread { capped: true, ..unread });
            }
            let page = self.store.entries(no, next, head.last_seq, READ_AT_ONCE, End::Oldest).map_err(store_refusal)?;
            let Some(last) = page.last() else { break };
            next = last.seq + 1;
            looked_at += page.len();
            for entry in &page {
                let content = &entry.content;
                let own = content.sender.as_ref().is_some_and(|s| s.no == user.no);
                if own || content.silent || content.kind != EntryKind::Message {
                    continue;
                }
                if unread.count == UNREAD_COUNT_MAX {
                    return Ok(Unread { capped: true, ..unread });
                }
                unread.count += 1;
                unread.mentions += u64::from(content.mentions.iter().any(|m| m == MENTION_ALL || *m == user.id));
            }
        }
        Ok(unread)
    }

    /// A user's conversations, the latest active first.
    pub fn conversations(
        &self,
        user: &Arc<User>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ConversationPage, Refusal> {
        let limit = if limit == 0 { CONVERSATIONS_PAGE_DEFAULT } else { limit };
        if limit > CONVERSATIONS_PAGE_MAX {
            return Err(Refusal::limit("limit (conversations)", CONVERSATIONS_PAGE_MAX as u64, limit as u64));
        }
        let after = after.map(parse_page_token).transpose()?;
        let mut all = Vec::new();
        for place in self.store.conversations_of(user.no, true, CONVERSATIONS_PER_USER_MAX).map_err(store_refusal)? {
            let head = self.store.head(place.conversation).map_err(store_refusal)?;
            all.push((head.last_position, place.conversation, head));
        }
        all.sort_by_key(|(position, no, _)| std::cmp::Reverse((*position, *no)));
        let rest = all.iter().filter(|(position, no, _)| after.is_none_or(|after| (*position, no.0) < after));
        let mut conversations = Vec::new();
        let mut next = None;
        for (position, no, head) in rest {
            if conversations.len() == limit {
                break;
            }
            next = Some(format!("{position:x}-{:x}", no.0));
            conversations.extend(self.conversation_view(user, *no, head)?);
        }
        let last = all.last().map(|(position, no, _)| format!("{position:x}-{:x}", no.0));
        let next = next.filter(|next| Some(next) != last.as_ref());
        Ok(ConversationPage { conversations, next })
    }

    fn conversation_view(
        &self,
        user: &User,
        no: ConversationNo,
        head: &Head,
    ) -> Result<Option<ConversationView>, Refusal> {
        // Left, or removed, while the list was made: not in it.
        let Some(membership) = self.store.membership(no, user.no).map_err(store_refusal)? else { return Ok(None) };
        let Some(card) = self.directory.conversation(no).map_err(store_refusal)? else { return Ok(None) };
        let unread = self.unread(user, no, &membership, head)?;
        let muted = membership.mute.is_muted(self.clock.now_ms());
        let last =
            self.store.entries(no, head.last_seq.max(1), head.last_seq, 1, End::Newest).map_err(store_refusal)?;
        Ok(Some(ConversationView {
            id: card.id.clone(),
            kind: card.kind,
            name: card.name.clone(),
            avatar: card.avatar.clone(),
            role: membership.role,
            last_seq: head.last_seq,
            last_at: head.last_at,
            read_seq: membership.read_seq,
            unread: unread.count,
            unread_capped: unread.capped,
            mentions: unread.mentions,
            muted,
            muted_until: match membership.mute {
                MuteState::Until(end) if muted => Some(end),
                _ => None,
            },
            last_entry: last.first().map(|entry| entry_of(&card.id, entry)).transpose()?,
        }))
    }
}

fn parse_page_token(token: &str) -> Result<(u64, u64), Refusal> {
    let parse = |text: &str| u64::from_str_radix(text, 16).ok();
    let parts = token.split_once('-').and_then(|(position, no)| Some((parse(position)?, parse(no)?)));
    parts.ok_or_else(|| Refusal::field("after", "not a page token of this list"))
}
