//! Answers to messages and mentions of users: their lists, and the previews of answered messages. A preview is looked up for
//! each reader, so that it is gone when the answered message is recalled.

use crate::{
    engine::{Engine, reactions::page_limit},
    entry_view::entry_of,
};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    model::*,
    refusals::store_refusal,
    store::{PageRequest, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::EntryPage,
    limits::{HISTORY_PAGE_BYTES_MAX, HISTORY_PAGE_MAX},
};

/// Entries in a page of answers or mentions when the caller gives no limit.
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
        let conversation = self.readable_conversation(actor, conversation, seq)?;
        self.stored_message(&conversation, seq)?;
        let limit = page_limit(limit, PAGE_DEFAULT, HISTORY_PAGE_MAX)?;
        let first = match after {
            Some(token) => {
                token.parse::<u64>().map_err(|_| Refusal::field("after", "not a page token of this list"))? + 1
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

    /// The messages that mention a user by id, newest first: those of conversations that the user is a member of, which
    /// were not recalled.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn mentions(&self, user: &Arc<User>, after: Option<&str>, limit: usize) -> Result<EntryPage, Refusal> {
        let limit = page_limit(limit, PAGE_DEFAULT, HISTORY_PAGE_MAX)?;
        let mut from = match after {
            Some(token) => mention_after(user, token)?,
            None => chat_rows::mention_key(&user.id, u64::MAX, ConversationNo(0), u64::MAX),
        };
        let to = chat_rows::mention_key(&user.id, 0, ConversationNo(u64::MAX), 0);
        let (mut entries, mut bytes) = (Vec::new(), 0);
        loop {
            let rows = self.store.rows(RowSpace::Chat, &from, &to, limit).map_err(store_refusal)?;
            for (key, _) in &rows {
                let token = || mention_token(key);
                if let Some((conversation, entry)) = self.mention(user, key)? {
                    bytes += entry.content.body.len();
                    let mut entry = [(conversation, entry)];
                    self.attach_previews(entry.iter_mut().map(|(conversation, entry)| (conversation.no, entry)))?;
                    entries.push(entry_of(&entry[0].0.id, &entry[0].1)?);
                }
                if entries.len() == limit || bytes >= HISTORY_PAGE_BYTES_MAX {
                    return Ok(EntryPage { entries, next: token() });
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == limit => from = [&last[..], &[0]].concat(),
                _ => return Ok(EntryPage { entries, next: None }),
            }
        }
    }

    /// The message that a row of the index stands for, if the user may still see it.
    fn mention(&self, user: &Arc<User>, key: &[u8]) -> Result<Option<(Arc<Conversation>, StoredEntry)>, Refusal> {
        let Some((_, no, seq)) = chat_rows::mention_in(key) else { return Ok(None) };
        let Some(conversation) = self.directory.conversation(no).map_err(store_refusal)? else { return Ok(None) };
        let reader = self.acting(user, &conversation.id)?;
        match self.first_readable(&Actor::User(reader.clone()), &conversation) {
            Ok(floor) if seq >= floor => {}
            Err(refusal) if refusal.code != ErrorCode::NotAMember => return Err(refusal),
            Ok(_) | Err(_) => return Ok(None),
        }
        let request = PageRequest { conversation: conversation.no, from_seq: seq, to_seq: seq, limit: 1 };
        let found = self.store.pages(&[request], usize::MAX).map_err(store_refusal)?;
        let mut entry = found.into_iter().flatten().next();
        entry.iter_mut().for_each(|entry| self.veil(Some(reader.no), &conversation, entry));
        let is_there = |entry: &StoredEntry| entry.content.mentions.contains(&user.id);
        Ok(entry.filter(is_there).map(|entry| (conversation, entry)))
    }

    /// Looks up the answered messages of those entries that are answers.
    pub(crate) fn attach_previews<'e>(
        &self,
        entries: impl Iterator<Item = (ConversationNo, &'e mut StoredEntry)>,
    ) -> Result<(), Refusal> {
        let mut answers: FxHashMap<(ConversationNo, u64), Vec<&mut StoredEntry>> = FxHashMap::default();
        for (conversation, entry) in entries {
            let target = entry.content.details().reply_to;
            if target != 0 {
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
                entry.content.details_mut().preview = preview.clone();
            }
        }
        Ok(())
    }
}

/// A place in the list of mentions, as callers get it.
fn mention_token(key: &[u8]) -> Option<String> {
    let (at, conversation, seq) = chat_rows::mention_in(key)?;
    Some(format!("{at:x}-{:x}-{seq:x}", conversation.0))
}

/// The first key behind a place in the list of mentions.
fn mention_after(user: &User, token: &str) -> Result<Vec<u8>, Refusal> {
    let numbers: Option<Vec<u64>> = token.split('-').map(|part| u64::from_str_radix(part, 16).ok()).collect();
    let Some(&[at, conversation, seq]) = numbers.as_deref() else {
        return Err(Refusal::field("after", "not a page token of this list"));
    };
    Ok([chat_rows::mention_key(&user.id, at, ConversationNo(conversation), seq), vec![0]].concat())
}
