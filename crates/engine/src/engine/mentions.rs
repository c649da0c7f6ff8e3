//! Mentions: who may mention all members of a conversation, and the list of the messages that mention a user.
//!
//! A message that mentions users by id has a row for each of them. One that mentions all members has a single row, however
//! many they are: each member's list is merged, when it is read, from the rows of the conversations that the member is in.

use crate::{
    Engine,
    entry_view::entry_of,
    paging::page_limit,
    unread_counts::{UnreadCount, counts},
    views::Found,
    visibility::View,
};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{
    chat_rows::{self, MentionPlace},
    model::*,
    refusals::store_refusal,
    store::{ConversationFilter, ConversationState, PageRequest, RowSpace},
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

/// As whom a user reads a conversation, and what may be seen of it: as the account, if the user is one of its agents.
type Reader = (Arc<User>, Arc<Conversation>, View);

impl Engine {
    /// Refuses a user who mentions all members and may not.
    pub(crate) fn check_may_mention(
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
        if may {
            Ok(())
        } else {
            Err(Refusal::new(ErrorCode::Forbidden, format!("mentions: only {who} may mention @all here")))
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
                if let Some(found) = found
                    && let Some(shown) = found.shown()
                {
                    bytes += found.entry.content.body.len();
                    entries.push(entry_of(&found.conversation.id, &shown)?);
                }
                if entries.len() == limit || bytes >= HISTORY_PAGE_BYTES_MAX || examined == EXAMINED_MAX {
                    return Ok(EntryPage { entries, next: Some(token_of(*place)) });
                }
            }
        }
    }

    /// Adds to capped counts of unread messages the mentions that they have not come to, found by the rows of the list of
    /// mentions. Of more places than a page of that list looks at the older ones are not counted.
    pub(crate) fn count_mentions_behind(
        &self,
        user: &Arc<User>,
        mut capped: Vec<(&ConversationState, &mut UnreadCount)>,
    ) -> Result<(), Refusal> {
        if capped.is_empty() {
            return Ok(());
        }
        let first = |(state, count): &(&ConversationState, &mut UnreadCount)| PageRequest {
            conversation: state.conversation,
            from_seq: count.uncounted_from,
            to_seq: state.head.last_seq,
            limit: 1,
        };
        let requests: Vec<_> = capped.iter().map(first).collect();
        let pages = self.store.pages(&requests, usize::MAX).map_err(store_refusal)?;
        let Some(oldest) = pages.iter().flatten().map(|entry| entry.at).min() else { return Ok(()) };
        let within = capped.iter().map(|(state, _)| (state.head.last_at, state.conversation)).collect();
        let mut places = Places::within(self, user, MentionPlace::FIRST, within)?;
        let mut examined = 0;
        while examined < EXAMINED_MAX {
            let mut part = places.take(ROWS_AT_ONCE)?;
            examined += part.len();
            let is_last = part.len() < ROWS_AT_ONCE || part.last().is_some_and(|last| last.at < oldest);
            part.retain(|place| {
                let mut lines = capped.iter();
                lines
                    .any(|(state, count)| state.conversation == place.conversation && place.seq >= count.uncounted_from)
            });
            for Found { conversation, entry, .. } in self.messages_at(user, &part)?.into_iter().flatten() {
                let is_own = entry.content.sender.as_ref().is_some_and(|sender| sender.no == user.no);
                let line = capped.iter_mut().find(|(state, _)| state.conversation == conversation.no);
                if let Some((_, count)) = line.filter(|_| counts(&entry.content) && !is_own) {
                    count.mentions += 1;
                }
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// The messages at these places, in the same order, which the user may read and which still mention the user.
    fn messages_at(&self, user: &Arc<User>, places: &[MentionPlace]) -> Result<Vec<Option<Found>>, Refusal> {
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
        let mut found = Vec::new();
        let mut is_found = Vec::with_capacity(places.len());
        for reader in readers {
            let Some((reader, conversation, view)) = reader else {
                is_found.push(false);
                continue;
            };
            let message = pages.next().into_iter().flatten().next();
            let message = message.filter(|message| is_mentioned(user, &reader, &message.content));
            let message = match message {
                Some(message) if user.blocks > 0 && self.is_by_blocked(user, &message.content)? => None,
                message => message,
            };
            is_found.push(message.is_some());
            found.extend(message.map(|entry| Found { conversation, view, entry }));
        }
        self.complete(&mut found)?;
        let mut found = found.into_iter();
        Ok(is_found.into_iter().map(|is_found| if is_found { found.next() } else { None }).collect())
    }

    /// Whether the user blocks the sender: then the message mentions nobody for the user.
    fn is_by_blocked(&self, user: &User, message: &NewEntry) -> Result<bool, Refusal> {
        let blocks = |sender: &Sender| self.directory.has_blocked(user, sender.no).map_err(store_refusal);
        message.sender.as_ref().map_or(Ok(false), blocks)
    }

    /// The conversation of a place, and as whom the user reads it; `None`: the user may not read the message.
    fn reader_at(&self, user: &Arc<User>, place: MentionPlace) -> Result<Option<Reader>, Refusal> {
        let found = self.directory.readable_conversation(place.conversation).map_err(store_refusal)?;
        let Some(conversation) = found else { return Ok(None) };
        let reader = self.acting(user, &conversation.id)?;
        let view = self.view_if_member(&reader, &conversation)?;
        Ok(view.filter(|view| view.has(place.seq)).map(|view| (reader, conversation, view)))
    }

    /// What the user may see of a conversation; `None`: the user is no member.
    fn view_if_member(&self, user: &Arc<User>, conversation: &Conversation) -> Result<Option<View>, Refusal> {
        match self.view(&Actor::User(user.clone()), conversation) {
            Ok(view) => Ok(Some(view)),
            Err(refusal) if refusal.code == ErrorCode::NotAMember => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Whether a message mentions the user, who reads it as `reader`. A user's own `@all` is for the others.
fn is_mentioned(user: &User, reader: &User, message: &NewEntry) -> bool {
    let is_own = message.sender.as_ref().is_some_and(|sender| sender.no == reader.no);
    message.mentioned_ids().any(|id| id == user.id) || (message.mentions_all() && !is_own)
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
        let unopened: Vec<_> = states.map(|state| (state.head.last_at, state.conversation)).collect();
        Places::within(engine, user, behind, unopened)
    }

    /// The places of the user's rows, and of the rows of these conversations, each with the time of its newest entry.
    fn within(
        engine: &'a Engine,
        user: &'a Arc<User>,
        behind: MentionPlace,
        mut unopened: Vec<(u64, ConversationNo)>,
    ) -> Result<Places<'a>, Refusal> {
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
                let details = self.engine.directory.readable_conversation(conversation).map_err(store_refusal)?;
                let Some(details) = details else { continue };
                let Some(view) = self.engine.view_if_member(self.user, &details)? else { continue };
                let places = chat_rows::mention_in(&key).into_iter().collect();
                let range = Some(([&key[..], &[0]].concat(), to));
                self.put_back(Some(conversation), Source { places, range, first_seq: view.first_seq })?;
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
