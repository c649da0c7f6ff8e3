//! The list of an account's conversations, which its agents share: all of them, or those that one agent or nobody has.

use super::{
    line::ListLine,
    requests::{CONVERSATIONS_PAGE_DEFAULT, EXAMINED_AT_ONCE, EXAMINED_MAX},
};
use crate::{Engine, desks::AccountDesk};
use std::sync::Arc;
use tidings_domain::{
    chat_rows::{self, Preferences, preferences_key},
    desks::{self as rows, Whose},
    model::*,
    refusals::{store_refusal, unexpected_outcome},
    store::{ConversationState, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{ConversationPage, ListFilter},
    limits::CONVERSATIONS_PAGE_MAX,
};

/// Which part of an account's conversations a list is to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountList {
    /// The account's id.
    pub account: String,
    /// An agent's id, `@me` or `@nobody`; absent: all.
    pub assigned_to: Option<String>,
}

impl Engine {
    /// A page of an account's conversations, the latest active first, for its agents and app servers.
    ///
    /// # Errors
    /// `not_found`, `forbidden`; `limit_exceeded` and `invalid_field` for the arguments; `store_unavailable`.
    pub fn account_conversations(
        &self,
        actor: &Actor,
        list: &AccountList,
        filter: Option<ListFilter>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ConversationPage, Refusal> {
        let limit = if limit == 0 { CONVERSATIONS_PAGE_DEFAULT } else { limit };
        if limit > CONVERSATIONS_PAGE_MAX {
            return Err(Refusal::limit("limit (conversations)", CONVERSATIONS_PAGE_MAX as u64, limit as u64));
        }
        let desk = self.desk_to_read(actor, &list.account)?;
        let whose = self.part_of(actor, list.assigned_to.as_deref())?;
        let user = self.directory.require_user(&list.account)?;
        let place = |newest, conversation| rows::index_key(desk.account, whose, newest, ConversationNo(conversation));
        let mut from = match after {
            Some(token) => after_place(&parse_place(token).map(|(newest, no)| place(newest, no))?),
            None => place(Position::MAX, 0),
        };
        let to = place(0, u64::MAX);
        let (mut page, mut examined, mut last) = (Vec::with_capacity(limit), 0, None);
        loop {
            let found = self.store.rows(RowSpace::Chat, &from, &to, EXAMINED_AT_ONCE).map_err(store_refusal)?;
            let places: Vec<_> = found.iter().filter_map(|(key, _)| rows::indexed(key)).collect();
            let is_last = found.len() < EXAMINED_AT_ONCE;
            for part in places.chunks(limit.min(EXAMINED_AT_ONCE)) {
                let lines = self.lines_of(&user, part)?;
                let unread = self.unread(&user, &lines)?;
                for (line, unread) in lines.into_iter().zip(unread) {
                    examined += 1;
                    last = part.iter().find(|(_, no)| *no == line.state.conversation).copied();
                    if line.may_pass(filter) && self.passes(&line, &unread, filter)? {
                        page.push((line, unread));
                    }
                    if page.len() == limit {
                        break;
                    }
                }
                if page.len() == limit || examined >= EXAMINED_MAX {
                    break;
                }
            }
            let is_full = page.len() == limit || examined >= EXAMINED_MAX;
            if is_full || is_last {
                let is_end = is_last && places.last().copied() == last;
                let next = last.filter(|_| !is_end).map(|(newest, no)| format!("{newest:x}-{:x}", no.0));
                return Ok(self.page_of_views(self.conversation_views(&user, page)?, next));
            }
            let Some((key, _)) = found.last() else { return Err(unexpected_outcome()) };
            from = after_place(key);
        }
    }

    /// The desk of an account whose conversations the caller may read.
    fn desk_to_read(&self, actor: &Actor, account: &str) -> Result<Arc<AccountDesk>, Refusal> {
        let user = self.directory.user_by_id(account).map_err(store_refusal)?;
        let desk = user.and_then(|user| self.directory.desks.of_user(user.no));
        match (actor, desk) {
            (_, None) => Err(Refusal::not_found("account that answers", account)),
            (Actor::User(user), Some(desk)) if !desk.has_agent(user.no) && desk.desk.user.no != user.no => {
                Err(Refusal::new(ErrorCode::Forbidden, format!("you are not an agent of {account:?}")))
            }
            (_, Some(desk)) => Ok(desk),
        }
    }

    fn part_of(&self, actor: &Actor, assigned_to: Option<&str>) -> Result<Whose, Refusal> {
        match (assigned_to, actor) {
            (None, _) => Ok(Whose::Anyones),
            (Some("@nobody"), _) => Ok(Whose::Nobodys),
            (Some("@me"), Actor::User(user)) => Ok(Whose::Agents(user.no)),
            (Some("@me"), Actor::App) => Err(Refusal::field("assigned_to", "an app server is not an agent: name one")),
            (Some(id), _) => Ok(Whose::Agents(self.directory.require_user(id)?.no)),
        }
    }

    /// The lines of these conversations in the list of an account.
    pub(crate) fn lines_of(
        &self,
        user: &User,
        places: &[(Position, ConversationNo)],
    ) -> Result<Vec<ListLine>, Refusal> {
        let nos: Vec<ConversationNo> = places.iter().map(|(_, no)| *no).collect();
        let heads = self.store.heads(&nos).map_err(store_refusal)?;
        let keys: Vec<_> = nos.iter().map(|no| preferences_key(user.no, *no)).collect();
        let preferences = self.store.rows_of(RowSpace::Chat, &keys).map_err(store_refusal)?;
        let mut lines = Vec::with_capacity(nos.len());
        for ((conversation, head), row) in nos.into_iter().zip(heads).zip(preferences) {
            let membership = self.directory.membership(conversation, user.no).map_err(store_refusal)?;
            let Some(membership) = membership else { continue };
            let preferences = Preferences::decode(row.as_deref()).map_err(store_refusal)?;
            let state = ConversationState { conversation, kind: ConversationKind::Direct, head, membership };
            lines.push(ListLine { state, preferences });
        }
        Ok(lines)
    }

    /// Who has each of these conversations.
    pub(crate) fn assigned_to(&self, conversations: &[ConversationNo]) -> Result<Vec<Option<Sender>>, Refusal> {
        let keys: Vec<_> = conversations.iter().map(|no| rows::assignment_key(*no)).collect();
        let found = self.store.rows_of(RowSpace::Chat, &keys).map_err(store_refusal)?;
        let agent = |row: &Option<Vec<u8>>| {
            let assignment: Option<rows::Assignment> = chat_rows::decode(row.as_deref())?;
            Ok(assignment.and_then(|assignment| assignment.agent))
        };
        found.iter().map(agent).collect::<Result<_, _>>().map_err(store_refusal)
    }
}

fn after_place(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn parse_place(token: &str) -> Result<(Position, u64), Refusal> {
    let parse = |text: &str| u64::from_str_radix(text, 16).ok();
    let place = token.split_once('-').and_then(|(newest, no)| Some((parse(newest)?, parse(no)?)));
    place.ok_or_else(|| Refusal::field("after", "not a page token of this list"))
}
