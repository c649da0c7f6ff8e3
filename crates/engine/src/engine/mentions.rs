//! Mentions: who may mention all members of a conversation, and the list of the messages that mention a user.
//!
//! A message that mentions users by id has a row for each of them. One that mentions all members has a single row, however
//! many they are: each member's list is merged, when it is read, from the rows of the conversations that the member is in.

use crate::{
    engine::{Engine, reactions::page_limit},
    entry_view::entry_of,
};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{
    chat_rows::{self, MentionPlace},
    model::*,
    refusals::store_refusal,
    store::{ConversationFilter, PageRequest, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{EntryPage, MentionAll},
    limits::{CONVERSATIONS_PER_USER_MAX, HISTORY_PAGE_BYTES_MAX, HISTORY_PAGE_MAX},
};

/// Messages in a page when the caller gives no limit.
const PAGE_DEFAULT: usize = 50;
/// Places that one page looks at in search of messages that still mention the user. A page that has found fewer leads on.
const EXAMINED_MAX: usize = 2_000;
/// Rows of one conversation, or of one user, that are read at once.
const ROWS_AT_ONCE: usize = 50;
/// Conversations whose first rows are read at once.
const CONVERSATIONS_AT_ONCE: usize = 1_000;

type FoundMessage = (Arc<Conversation>, StoredEntry);

/// As whom a user reads a conversation: as the account, if the user is one of its agents.
type Reader = (Arc<User>, Arc<Conversation>);

impl Engine {
    /// Refuses a user who mentions all members and may not.
    pub(super) fn check_may_mention(
        &self,
        sender: &User,
        conversation: &Conversation,
        mentions: &[String],
    ) -> Result<(), Refusal> {
        if !mentions.iter().any(|mention| mention == MENTION_ALL) {
            return Ok(());
        }
        let (may, who) = match conversation.mention_all() {
            MentionAll::Members => (true, ""),
            MentionAll::Admins => (self.role_of_member(sender, conversation)? >= Role::Admin, "the owner and admins"),
            MentionAll::Nobody => (false, "app servers"),
        };
        match may {
            true => Ok(()),
            false => Err(Refusal::new(ErrorCode::Forbidden, format!("mentions: only {who} mention @all here"))),
        }
    }

    /// The messages that mention a user, by id or with all members, newest first: those that the user may read and that
    /// were not recalled. Of the user's own messages those that name the user.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn mentions(&self, user: &Arc<User>, after: Option<&str>, limit: usize) -> Result<EntryPage, Refusal> {
        let limit = page_limit(limit, PAGE_DEFAULT, HISTORY_PAGE_MAX)?;
        let behind = after.map_or(Ok(MentionPlace::FIRST), parse_token)?;
        let mut places = Places::of(self, user, behind)?;
        let (mut entries, mut examined, mut bytes) = (Vec::new(), 0, 0);
        loop {
            let part = places.take(limit - entries.len())?;
            if part.is_empty() {
                return Ok(EntryPage { entries, next: None });
            }
            for (place, found) in part.iter().zip(self.messages_at(user, &part)?) {
                examined += 1;
                if let Some((conversation, entry)) = found {
                    bytes += entry.content.body.len();
                    entries.push(entry_of(&conversation.id, &entry)?);
                }
                if entries.len() == limit || bytes >= HISTORY_PAGE_BYTES_MAX || examined == EXAMINED_MAX {
                    return Ok(EntryPage { entries, next: Some(token_of(*place)) });
                }
            }
        }
    }

    /// The messages at these places, in the same order, which the user may read and which still mention the user.
    fn messages_at(&self, user: &Arc<User>, places: &[MentionPlace]) -> Result<Vec<Option<FoundMessage>>, Refusal> {
        let readers = places.iter().map(|place| self.reader_at(user, *place)).collect::<Result<Vec<_>, _>>()?;
        let request = |(place, _): (&MentionPlace, _)| PageRequest {
            conversation: place.conversation,
            from_seq: place.seq,
            to_seq: place.seq,
            limit: 1,
        };
        let there = places.iter().zip(&readers).filter(|(_, reader)| reader.is_some());
        let requests: Vec<_> = there.map(request).collect();
        let mut pages = self.store.pages(&requests, usize::MAX).map_err(store_refusal)?.into_iter();
        let mut messages = Vec::with_capacity(places.len());
        for reader in readers {
            let Some((reader, conversation)) = reader else {
                messages.push(None);
                continue;
            };
            let mut message = pages.next().into_iter().flatten().next();
            message.iter_mut().for_each(|message| self.veil(Some(reader.no), &conversation, message));
            let message = message.filter(|message| is_mentioned(user, &reader, &message.content));
            messages.push(message.map(|message| (conversation, message)));
        }
        let found = messages.iter_mut().flatten();
        self.attach_previews(found.map(|(conversation, message)| (conversation.no, message)))?;
        Ok(messages)
    }

    /// The conversation of a place, and as whom the user reads it; `None`: the user may not read the message.
    fn reader_at(&self, user: &Arc<User>, place: MentionPlace) -> Result<Option<Reader>, Refusal> {
        let found = self.directory.conversation(place.conversation).map_err(store_refusal)?;
        let Some(conversation) = found else { return Ok(None) };
        let reader = self.acting(user, &conversation.id)?;
        let floor = self.first_readable_of_member(&reader, &conversation)?;
        Ok(floor.filter(|floor| place.seq >= *floor).map(|_| (reader, conversation)))
    }

    /// The first `seq` that the user may read; `None`: the user is no member.
    fn first_readable_of_member(&self, user: &Arc<User>, conversation: &Conversation) -> Result<Option<u64>, Refusal> {
        match self.first_readable(&Actor::User(user.clone()), conversation) {
            Ok(floor) => Ok(Some(floor)),
            Err(refusal) if refusal.code == ErrorCode::NotAMember => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Whether a message mentions the user, who reads it as `reader`. A user's own `@all` is for the others.
fn is_mentioned(user: &User, reader: &User, message: &NewEntry) -> bool {
    let is_own = message.sender.as_ref().is_some_and(|sender| sender.no == reader.no);
    message.mentions.contains(&user.id) || (message.mentions_all() && !is_own)
}

/// The places of the messages that mentioned a user when they were sent, newest first: the rows of the user, and those of
/// the user's conversations.
struct Places<'a> {
    engine: &'a Engine,
    user: &'a Arc<User>,
    behind: MentionPlace,
    /// Conversations whose rows nobody has looked for yet, with the time of their newest entry; the newest at the end.
    unopened: Vec<(u64, ConversationNo)>,
    /// By the next place of each. A message may have a place in two: that of the user, and that of a conversation.
    sources: BTreeMap<(MentionPlace, Option<ConversationNo>), Source>,
    last: Option<MentionPlace>,
}

/// Rows of one kind, in order.
struct Source {
    /// Those read so far, the next one at the end.
    places: Vec<MentionPlace>,
    /// The rows that are left.
    range: Option<(Vec<u8>, Vec<u8>)>,
    /// Places before this `seq` end the source. They follow each other downwards in the rows of one conversation.
    first_seq: u64,
}

impl<'a> Places<'a> {
    fn of(engine: &'a Engine, user: &'a Arc<User>, behind: MentionPlace) -> Result<Places<'a>, Refusal> {
        let states = engine.store.conversation_states(user.no, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX);
        let states = states.map_err(store_refusal)?.into_iter();
        let mut unopened: Vec<_> = states.map(|state| (state.head.last_at, state.conversation)).collect();
        unopened.sort_unstable();
        let mut places = Places { engine, user, behind, unopened, sources: BTreeMap::new(), last: None };
        let range = Some(chat_rows::mentions_behind(&user.id, behind));
        places.put_back(None, Source { places: Vec::new(), range, first_seq: 0 })?;
        Ok(places)
    }

    /// The next places, at most `limit`. None: there are no more.
    fn take(&mut self, limit: usize) -> Result<Vec<MentionPlace>, Refusal> {
        let mut taken = Vec::with_capacity(limit);
        while taken.len() < limit {
            self.open_conversations()?;
            let Some(((place, conversation), mut source)) = self.sources.pop_first() else { break };
            source.places.pop();
            self.put_back(conversation, source)?;
            if self.last.replace(place) != Some(place) {
                taken.push(place);
            }
        }
        Ok(taken)
    }

    /// Looks for rows of all conversations that may have one ahead of the sources: no row is newer than the newest entry.
    fn open_conversations(&mut self) -> Result<(), Refusal> {
        let newest = |sources: &BTreeMap<(MentionPlace, _), _>| sources.keys().next().map_or(0, |(place, _)| place.at);
        while self.unopened.last().is_some_and(|(last_at, _)| *last_at >= newest(&self.sources)) {
            let opened = self.unopened.split_off(self.unopened.len().saturating_sub(CONVERSATIONS_AT_ONCE));
            let ranges: Vec<_> = opened
                .iter()
                .map(|(_, conversation)| chat_rows::mentions_of_all_behind(*conversation, self.behind))
                .collect();
            let first = self.engine.store.first_keys(RowSpace::Chat, &ranges).map_err(store_refusal)?;
            for (((_, conversation), (_, to)), key) in opened.into_iter().zip(ranges).zip(first) {
                let Some(key) = key else { continue };
                let card = self.engine.directory.conversation(conversation).map_err(store_refusal)?;
                let Some(card) = card else { continue };
                let Some(first_seq) = self.engine.first_readable_of_member(self.user, &card)? else { continue };
                let places = chat_rows::mention_in(&key).into_iter().collect();
                let range = Some(([&key[..], &[0]].concat(), to));
                self.put_back(Some(conversation), Source { places, range, first_seq })?;
            }
        }
        Ok(())
    }

    /// Puts a source in the place of its next row; drops it if it has none.
    fn put_back(&mut self, conversation: Option<ConversationNo>, mut source: Source) -> Result<(), Refusal> {
        if source.places.is_empty()
            && let Some((from, to)) = source.range.take()
        {
            let rows = self.engine.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
            source.range = rows.get(ROWS_AT_ONCE - 1).map(|(last, _)| ([&last[..], &[0]].concat(), to));
            source.places = rows.iter().rev().filter_map(|(key, _)| chat_rows::mention_in(key)).collect();
        }
        if let Some(next) = source.places.last().filter(|next| next.seq >= source.first_seq) {
            self.sources.insert((*next, conversation), source);
        }
        Ok(())
    }
}

/// A place in the list of mentions, as callers get it.
fn token_of(place: MentionPlace) -> String {
    format!("{:x}-{:x}-{:x}", place.at, place.conversation.0, place.seq)
}

fn parse_token(token: &str) -> Result<MentionPlace, Refusal> {
    let numbers: Option<Vec<u64>> = token.split('-').map(|part| u64::from_str_radix(part, 16).ok()).collect();
    let Some(&[at, conversation, seq]) = numbers.as_deref() else {
        return Err(Refusal::field("after", "not a page token of this list"));
    };
    Ok(MentionPlace { at, conversation: ConversationNo(conversation), seq })
}
