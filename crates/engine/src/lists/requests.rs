//! A user's list of conversations: what it shows, in which order, and page by page.

use super::line::{ListLine, Place};
use crate::{
    Engine,
    entry_view::entry_of,
    unread_counts::UnreadCount,
    visibility::{View, is_by},
};
use std::{collections::HashMap, sync::Arc};
use tidings_domain::{
    chat_rows::{Preferences, preferences_key},
    model::*,
    refusals::store_refusal,
    store::{ConversationFilter, ConversationState, End, PageRequest, RowSpace},
};
use tidings_protocol::{
    entry::Entry,
    error::Refusal,
    http::{ConversationPage, ConversationView, ListFilter},
    limits::*,
};

/// Conversations in a page of the list when the caller gives no limit.
pub(super) const CONVERSATIONS_PAGE_DEFAULT: usize = 50;
/// Conversations that one page looks at in search of those that pass its filter. A page that has found fewer leads on.
pub(super) const EXAMINED_MAX: usize = 2_000;
/// Conversations that are examined at once.
pub(super) const EXAMINED_AT_ONCE: usize = 200;
/// Bytes of all pages together in one read.
const PAGES_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Entries before the newest one that are searched for a message: a few of all conversations together, then more of those
/// that have none among them.
const SEARCHED_FIRST: u64 = 16;
const SEARCHED_MAX: usize = 200;

impl Engine {
    /// A user's conversations, pinned ones first, then the latest active. Without a filter those that are neither archived
    /// nor hidden.
    ///
    /// # Errors
    /// `limit_exceeded` and `invalid_field` for the arguments; `store_unavailable`.
    pub fn conversations(
        &self,
        user: &Arc<User>,
        filter: Option<ListFilter>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ConversationPage, Refusal> {
        self.list_page(user, None, filter, after, limit)
    }

    /// The same of those conversations that a text is found in, whatever its case: in the user's own title, the name, or of a
    /// direct conversation the other user's name; in the id of one that has none of them.
    ///
    /// # Errors
    /// `limit_exceeded` and `invalid_field` for the arguments; `store_unavailable`.
    pub fn search_conversations(
        &self,
        user: &Arc<User>,
        search: &str,
        filter: Option<ListFilter>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ConversationPage, Refusal> {
        if search.len() > SEARCH_BYTES_MAX {
            return Err(Refusal::limit("bytes of search", SEARCH_BYTES_MAX as u64, search.len() as u64));
        }
        self.list_page(user, Some(&search.trim().to_lowercase()), filter, after, limit)
    }

    fn list_page(
        &self,
        user: &Arc<User>,
        search: Option<&str>,
        filter: Option<ListFilter>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ConversationPage, Refusal> {
        let limit = if limit == 0 { CONVERSATIONS_PAGE_DEFAULT } else { limit };
        if limit > CONVERSATIONS_PAGE_MAX {
            return Err(Refusal::limit("limit (conversations)", CONVERSATIONS_PAGE_MAX as u64, limit as u64));
        }
        let after = after.map(parse_page_token).transpose()?;
        let lines =
            self.list_lines(user, |line| line.may_pass(filter) && after.is_none_or(|after| line.place() < after))?;
        let mut page: Vec<(ListLine, UnreadCount)> = Vec::with_capacity(limit);
        let mut examined = 0;
        while page.len() < limit && examined < lines.len().min(EXAMINED_MAX) {
            // Without a filter and a search most lines pass.
            let at_once = if filter.is_none() && search.is_none() { limit - page.len() } else { EXAMINED_AT_ONCE };
            let part = &lines[examined..lines.len().min(examined + at_once)];
            let found = self.found_in(user, part, search)?;
            let counted: Vec<ListLine> =
                part.iter().zip(&found).filter(|(_, is_found)| **is_found).map(|(line, _)| line.clone()).collect();
            let mut counts = self.unread(user, &counted)?.into_iter();
            for (line, is_found) in part.iter().zip(found) {
                examined += 1;
                let unread = if is_found { counts.next() } else { None };
                if let Some(unread) = unread
                    && self.passes(line, &unread, filter)?
                {
                    page.push((line.clone(), unread));
                }
                if page.len() == limit {
                    break;
                }
            }
        }
        let next = (examined < lines.len()).then(|| page_token(lines[examined - 1].place()));
        Ok(self.page_of_views(self.conversation_views(user, page)?, next))
    }

    /// The lines of a user's conversations that pass, in the order of the list.
    pub(super) fn list_lines(&self, user: &User, passes: impl Fn(&ListLine) -> bool) -> Result<Vec<ListLine>, Refusal> {
        let states = self.store.conversation_states(user.no, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX);
        let mut preferences = self.preferences_of(user.no)?;
        let lines = states
            .map_err(store_refusal)?
            .into_iter()
            .map(|state| ListLine { preferences: preferences.remove(&state.conversation).unwrap_or_default(), state });
        let mut lines: Vec<ListLine> = lines.filter(passes).collect();
        lines.sort_unstable_by_key(|line| std::cmp::Reverse(line.place()));
        Ok(lines)
    }

    /// For each line, whether the text is found in what the list shows the conversation as.
    fn found_in(&self, user: &User, lines: &[ListLine], search: Option<&str>) -> Result<Vec<bool>, Refusal> {
        let Some(search) = search else { return Ok(vec![true; lines.len()]) };
        let nos: Vec<_> = lines.iter().map(|line| line.state.conversation).collect();
        let details = self.directory.conversations(&nos).map_err(store_refusal)?;
        let is_found = |(line, details): (&ListLine, Option<Arc<Conversation>>)| {
            let Some(details) = details else { return Ok(false) };
            let peer = match details.pair {
                Some((a, b)) => self.directory.user(if a == user.no { b } else { a }).map_err(store_refusal)?,
                None => None,
            };
            let peer_name = peer.as_ref().map(|peer| peer.name.as_deref().unwrap_or(&peer.id));
            let names = [line.preferences.title.as_deref(), details.name.as_deref(), peer_name];
            let id = names.iter().all(Option::is_none).then_some(&*details.id);
            Ok(names.into_iter().chain([id]).flatten().any(|name| name.to_lowercase().contains(search)))
        };
        lines.iter().zip(details).map(is_found).collect()
    }

    /// A page, with the users whom it shows.
    pub(super) fn page_of_views(&self, conversations: Vec<ConversationView>, next: Option<String>) -> ConversationPage {
        let both = conversations.iter().filter(|view| view.kind == ConversationKind::Direct);
        let both = both.filter_map(|view| view.id.split_once('~')).flat_map(|(a, b)| [a, b]);
        let entries = conversations.iter().flat_map(|view| [&view.last_message, &view.last_entry]).flatten();
        let users = self.cards(both.chain(entries.filter_map(|entry| entry.from.as_deref())));
        ConversationPage { conversations, next, users }
    }

    /// The page of one conversation alone, as the user's list shows it. Blocks.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `store_unavailable`.
    pub fn conversation_line(&self, user: &Arc<User>, conversation: &str) -> Result<ConversationPage, Refusal> {
        let (ref user, conversation) = self.enter_as(user, conversation)?;
        Ok(self.page_of_views(vec![self.list_view(user, &conversation)?], None))
    }

    pub(super) fn passes(
        &self,
        line: &ListLine,
        unread: &UnreadCount,
        filter: Option<ListFilter>,
    ) -> Result<bool, Refusal> {
        let passes = match filter {
            Some(ListFilter::Archived) => return Ok(true),
            Some(ListFilter::Unread) => unread.count > 0 || line.preferences.marked_unread,
            Some(ListFilter::Mentions) => unread.mentions > 0,
            None => true,
        };
        Ok(passes && !self.is_hidden(line)?)
    }

    /// Whether the conversation is hidden: no message has come since the user hid it.
    fn is_hidden(&self, line: &ListLine) -> Result<bool, Refusal> {
        let (Some(hidden_at), head) = (line.preferences.hidden_at, &line.state.head) else { return Ok(false) };
        if head.last_seq <= hidden_at {
            return Ok(true);
        }
        let newest =
            self.store.entries(line.state.conversation, hidden_at + 1, head.last_seq, SEARCHED_MAX, End::Newest);
        let newest = newest.map_err(store_refusal)?;
        // Of very many entries one was most likely a message.
        Ok(newest.len() < SEARCHED_MAX && !newest.iter().any(|entry| entry.content.kind == EntryKind::Message))
    }

    /// What the user has set, by conversation.
    pub(crate) fn preferences_of(&self, user: UserNo) -> Result<HashMap<ConversationNo, Preferences>, Refusal> {
        let (from, to) = (preferences_key(user, ConversationNo(0)), preferences_key(user, ConversationNo(u64::MAX)));
        let rows = self.store.rows(RowSpace::Chat, &from, &to, CONVERSATIONS_PER_USER_MAX).map_err(store_refusal)?;
        let preferences = rows.into_iter().filter_map(|(key, row)| {
            let conversation = key.last_chunk().map(|number| ConversationNo(u64::from_be_bytes(*number)))?;
            Some(Preferences::decode(Some(&row)).map(|preferences| (conversation, preferences)))
        });
        preferences.collect::<Result<_, _>>().map_err(store_refusal)
    }

    /// The line of one conversation in a user's list, as it is now; `None`: the user is no member.
    pub(crate) fn list_line(&self, user: UserNo, conversation: &Conversation) -> Result<Option<ListLine>, Refusal> {
        let (no, kind) = (conversation.no, conversation.kind);
        let Some(membership) = self.store.membership(no, user).map_err(store_refusal)? else { return Ok(None) };
        let head = self.store.head(no).map_err(store_refusal)?;
        let row = self.store.row(RowSpace::Chat, &preferences_key(user, no)).map_err(store_refusal)?;
        let preferences = Preferences::decode(row.as_deref()).map_err(store_refusal)?;
        Ok(Some(ListLine { state: ConversationState { conversation: no, kind, head, membership }, preferences }))
    }

    /// One conversation as the user's list shows it; `None`: the user is no member.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(crate) fn conversation_view(
        &self,
        user: &Arc<User>,
        conversation: &Conversation,
    ) -> Result<Option<ConversationView>, Refusal> {
        let Some(line) = self.list_line(user.no, conversation)? else { return Ok(None) };
        let unread = self.unread(user, std::slice::from_ref(&line))?.into_iter().next().unwrap_or_default();
        Ok(self.conversation_views(user, vec![(line, unread)])?.pop())
    }

    pub(super) fn conversation_views(
        &self,
        user: &User,
        page: Vec<(ListLine, UnreadCount)>,
    ) -> Result<Vec<ConversationView>, Refusal> {
        let nos: Vec<_> = page.iter().map(|(line, _)| line.state.conversation).collect();
        let all_details = self.directory.conversations(&nos).map_err(store_refusal)?;
        let view = |(ListLine { state, preferences }, details): (&ListLine, &Option<Arc<Conversation>>)| {
            let (joined_seq, cleared_seq) = (state.membership.joined_seq, preferences.cleared_seq);
            details
                .as_ref()
                .map_or(View::WHOLE, |details| self.view_of_member(user.no, details, joined_seq, cleared_seq))
        };
        let shown: Vec<View> = page.iter().map(|(line, _)| line).zip(&all_details).map(view).collect();
        let lines = page.iter().zip(&shown).map(|((ListLine { state, .. }, _), view)| {
            (state.conversation, view.first_seq.max(state.head.first_seq), state.head.last_seq)
        });
        let newest = self.newest(user.no, &lines.collect::<Vec<_>>())?;
        let now_ms = self.clock.now_ms();
        let mut views = Vec::with_capacity(page.len());
        let desk = self.directory.desks.of_user(user.no);
        let mut assigned = match &desk {
            Some(_) => self.assigned_to(&nos)?.into_iter(),
            None => Vec::new().into_iter(),
        };
        for ((((line, unread), details), shown), newest) in page.into_iter().zip(all_details).zip(shown).zip(newest) {
            let is_hidden = self.is_hidden(&line)?;
            let ListLine { state, preferences } = line;
            let assigned_to = assigned.next().flatten();
            let Some(details) = details else { continue };
            let ConversationState { head, membership, .. } = state;
            let muted = membership.mute.is_muted(now_ms);
            let view = |entry: Option<&StoredEntry>| {
                entry.and_then(|entry| shown.show(entry)).map(|entry| entry_of(&details.id, &entry)).transpose()
            };
            let (last_entry, last_message): (Option<Entry>, Option<Entry>) =
                (view(newest.entry.as_ref())?, view(newest.message.as_ref())?);
            views.push(ConversationView {
                id: details.id.clone(),
                kind: details.kind,
                name: details.name.clone(),
                avatar: details.avatar.clone(),
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
                pinned_at: (preferences.pinned_at != 0).then_some(preferences.pinned_at),
                archived: preferences.archived,
                hidden: is_hidden,
                title: preferences.title,
                marked_unread: preferences.marked_unread,
                cleared_seq: preferences.cleared_seq,
                account: self.directory.desks.sides(details.pair).map(|sides| sides.desk.desk.user.id.clone()),
                assigned_to: assigned_to.map(|agent| agent.id),
                last_message,
                last_entry,
            });
        }
        Ok(views)
    }

    /// The newest entry and the newest message of each conversation, from the first `seq` that the user may read.
    fn newest(&self, user: UserNo, lines: &[(ConversationNo, u64, u64)]) -> Result<Vec<Newest>, Refusal> {
        let is_shown_message = |entry: &StoredEntry| is_shown_message(user, entry);
        let ask = |(conversation, floor, last_seq): (ConversationNo, u64, u64), before: u64| PageRequest {
            conversation,
            from_seq: floor.max(last_seq.saturating_sub(before)),
            to_seq: last_seq,
            limit: before as usize + 1,
        };
        let asked: Vec<_> = lines.iter().map(|line| ask(*line, 0)).collect();
        let pages = self.store.pages(&asked, PAGES_BYTES_MAX).map_err(store_refusal)?;
        let mut newest: Vec<Newest> = pages
            .into_iter()
            .map(|page| {
                let entry = page.into_iter().next_back();
                Newest { message: entry.clone().filter(|entry| is_shown_message(entry)), entry }
            })
            .collect();
        let has_none = |newest: &Newest| newest.message.is_none() && newest.entry.is_some();
        let rest: Vec<usize> = (0..lines.len()).filter(|index| has_none(&newest[*index])).collect();
        let asked: Vec<_> = rest.iter().map(|index| ask(lines[*index], SEARCHED_FIRST)).collect();
        let pages = self.store.pages(&asked, PAGES_BYTES_MAX).map_err(store_refusal)?;
        for ((index, asked), page) in rest.into_iter().zip(asked).zip(pages) {
            let (conversation, floor, last_seq) = lines[index];
            // A page that large entries have cut short does not tell which message is the newest.
            let is_whole = page.last().is_some_and(|last| last.seq == last_seq);
            let found = page.into_iter().rev().find(|entry| is_shown_message(entry)).filter(|_| is_whole);
            newest[index].message = match found {
                None if !is_whole || asked.from_seq > floor => {
                    let more = self.store.entries(conversation, floor, last_seq, SEARCHED_MAX, End::Newest);
                    more.map_err(store_refusal)?.into_iter().rev().find(|entry| is_shown_message(entry))
                }
                found => found,
            };
        }
        let entries = lines.iter().zip(&mut newest).flat_map(|((conversation, ..), newest)| {
            let Newest { entry, message } = newest;
            entry.iter_mut().chain(message).map(|entry| (*conversation, entry))
        });
        self.attach_previews(entries)?;
        for ((conversation, ..), Newest { entry, message }) in lines.iter().zip(&mut newest) {
            entry.iter_mut().chain(message).for_each(|entry| self.streams.overlay(*conversation, entry));
        }
        Ok(newest)
    }
}

/// The newest entry of a conversation, and its newest message.
struct Newest {
    entry: Option<StoredEntry>,
    message: Option<StoredEntry>,
}

fn is_shown_message(user: UserNo, StoredEntry { content, .. }: &StoredEntry) -> bool {
    content.kind == EntryKind::Message && !content.is_recalled() && (!content.is_hidden() || is_by(user, content))
}

fn page_token((is_pinned, position, no): Place) -> String {
    format!("{}{position:x}-{no:x}", if is_pinned { "p" } else { "" })
}

fn parse_page_token(token: &str) -> Result<Place, Refusal> {
    let parse = |text: &str| u64::from_str_radix(text, 16).ok();
    let (is_pinned, rest) = token.strip_prefix('p').map_or((false, token), |rest| (true, rest));
    let parts = rest.split_once('-').and_then(|(position, no)| Some((is_pinned, parse(position)?, parse(no)?)));
    parts.ok_or_else(|| Refusal::field("after", "not a page token of this list"))
}
