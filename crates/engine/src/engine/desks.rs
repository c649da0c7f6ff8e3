//! Accounts that answer: their agents, the list of an account's conversations, and which agent has which of them.

use crate::{
    desks::{AccountDesk, Sides},
    engine::{
        Engine,
        list_line::ListLine,
        lists::{CONVERSATIONS_PAGE_DEFAULT, EXAMINED_AT_ONCE, EXAMINED_MAX},
        message_changes::sender_of,
        send::not_a_member,
        users::unexpected_outcome,
    },
};
use std::sync::Arc;
use tidings_domain::{
    chat_rows::{self, Preferences, preferences_key},
    desks::{self as rows, DeskPatch, Whose},
    message_changes::NO_BODY,
    model::*,
    refusals::store_refusal,
    store::{ConversationState, Outcome, Proposal, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Assign, AssignmentView, ConversationPage, Desk, Desks, ListFilter, UpdateDesk},
    limits::{AGENTS_MAX, CONVERSATIONS_PAGE_MAX, MEMBERS_BATCH_MAX},
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
    /// Changes who answers for an official account.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `invalid_field`, `limit_exceeded`; `queue_full`,
    /// `store_unavailable`, `node_unavailable` and `draining`: nothing was stored.
    pub async fn update_desk(&self, actor: &Actor, account: &str, update: UpdateDesk) -> Result<Desk, Refusal> {
        let conversation = self.account(actor, account)?;
        self.check_may_manage(actor, &conversation)?;
        let named = update.add.len() + update.remove.len();
        if named > MEMBERS_BATCH_MAX {
            return Err(Refusal::limit("agents in one change", MEMBERS_BATCH_MAX as u64, named as u64));
        }
        let mut patch = DeskPatch { open_to: update.open_to, shows_agents: update.show_agents, ..DeskPatch::default() };
        for id in &update.add {
            if update.remove.contains(id) {
                return Err(Refusal::field("remove", format!("{id:?} is to be added as well")));
            }
            let user = self.directory.require_user(id)?;
            if self.directory.desks.of_user(user.no).is_some() {
                return Err(Refusal::field("add", format!("{id:?} is an account, not a person")));
            }
            patch.add.push(sender_of(&user));
        }
        for id in &update.remove {
            patch.remove.push(self.directory.require_user(id)?.no);
        }
        let (account, id) = (conversation.no, conversation.id.clone());
        // A user's own conversations are given to agents by the app server alone.
        let adopts_user = matches!(actor, Actor::App);
        let proposal = Proposal::SetDesk { account, id, patch, agents_max: AGENTS_MAX, adopts_user };
        self.committer.propose(Some(&conversation), proposal).await?;
        self.desk_view(&conversation)
    }

    /// Who answers for an official account: for app servers, its owner and admins, and its agents.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`; `store_unavailable`.
    pub fn desk(&self, actor: &Actor, account: &str) -> Result<Desk, Refusal> {
        let conversation = self.account(actor, account)?;
        let is_agent = |user: &Arc<User>| {
            let desk = self.directory.desks.of_account(conversation.no);
            desk.is_some_and(|desk| desk.has_agent(user.no))
        };
        if !actor.user().is_some_and(is_agent) {
            self.check_may_manage(actor, &conversation)?;
        }
        self.desk_view(&conversation)
    }

    /// The accounts for which a user answers.
    pub fn desks_of(&self, user: &User) -> Desks {
        let mut desks: Vec<Desk> =
            self.directory.desks.served_by(user.no).iter().map(|desk| view_of(&desk.desk.user.id, desk)).collect();
        desks.sort_by(|a, b| a.account.cmp(&b.account));
        Desks { desks }
    }

    fn account(&self, actor: &Actor, id: &str) -> Result<Arc<Conversation>, Refusal> {
        let conversation = self.directory.require_conversation_by(actor, id)?;
        match conversation.kind {
            ConversationKind::Official => Ok(conversation),
            ConversationKind::Direct | ConversationKind::Group => {
                Err(Refusal::new(ErrorCode::Conflict, format!("{id:?} is no official account")))
            }
        }
    }

    fn check_may_manage(&self, actor: &Actor, account: &Conversation) -> Result<(), Refusal> {
        let Actor::User(user) = actor else { return Ok(()) };
        let membership = self.directory.membership(account.no, user.no).map_err(store_refusal)?;
        match membership.map(|membership| membership.role) {
            Some(Role::Owner | Role::Admin) => Ok(()),
            Some(Role::Member) => {
                Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins decide who answers for the account"))
            }
            None => Err(not_a_member(&user.id, &account.id)),
        }
    }

    fn desk_view(&self, account: &Conversation) -> Result<Desk, Refusal> {
        match self.directory.desks.of_account(account.no) {
            Some(desk) => Ok(view_of(&account.id, &desk)),
            None => Err(Refusal::new(ErrorCode::NotFound, format!("nobody answers for {:?}", account.id))),
        }
    }

    /// Assigns a conversation with an account to an agent, or to nobody.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `invalid_field`, `assignment_conflict`; `rate_limited` for users;
    /// `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn assign(&self, actor: &Actor, conversation: &str, assign: Assign) -> Result<AssignmentView, Refusal> {
        let (actor, conversation) = self.enter(actor, conversation)?;
        let Some(Sides { desk, .. }) = self.directory.desks.sides(conversation.pair) else {
            return Err(Refusal::new(ErrorCode::Conflict, "only conversations with an account are assigned"));
        };
        self.check_draining()?;
        if let Actor::User(user) = &actor {
            if user.no != desk.desk.user.no {
                return Err(Refusal::new(ErrorCode::Forbidden, "only agents of the account assign its conversations"));
            }
            self.rate.check(user.person())?;
        }
        let to = assign.assigned_to.as_deref().map(|id| self.directory.require_user(id)).transpose()?;
        let expected = match assign.if_assigned_to {
            Some(Some(id)) => Some(Some(self.directory.require_user(&id)?.no)),
            Some(None) => Some(None),
            None => None,
        };
        let to = to.as_deref().map(sender_of);
        let proposal = self.assignment(&actor, &conversation, &desk, to, expected);
        match self.committer.propose(Some(&conversation), proposal).await? {
            Outcome::Assigned { .. } => {
                Ok(AssignmentView { conversation: conversation.id.clone(), assigned_to: assign.assigned_to })
            }
            _ => Err(unexpected_outcome()),
        }
    }

    fn assignment(
        &self,
        actor: &Actor,
        conversation: &Conversation,
        desk: &AccountDesk,
        to: Option<Sender>,
        expected: Option<Option<UserNo>>,
    ) -> Proposal {
        let by = actor.user().map(|user| &**user);
        let entry = NewEntry {
            kind: EntryKind::Assignment,
            sender: by.map(sender_of),
            client_msg_id: None,
            content_type: "assignment".into(),
            body: NO_BODY.into(),
            mentions: vec![],
            silent: true,
            skip_push: true,
            details: self.desk_details(conversation, by),
        };
        Proposal::Assign { conversation: conversation.no, account: desk.account, to, expected, entry }
    }

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
                return Ok(ConversationPage { conversations: self.conversation_views(&user, page)?, next });
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
                Err(Refusal::new(ErrorCode::Forbidden, format!("you are no agent of {account:?}")))
            }
            (_, Some(desk)) => Ok(desk),
        }
    }

    fn part_of(&self, actor: &Actor, assigned_to: Option<&str>) -> Result<Whose, Refusal> {
        match (assigned_to, actor) {
            (None, _) => Ok(Whose::Anyones),
            (Some("@nobody"), _) => Ok(Whose::Nobodys),
            (Some("@me"), Actor::User(user)) => Ok(Whose::Agents(user.no)),
            (Some("@me"), Actor::App) => Err(Refusal::field("assigned_to", "an app server is no agent: name one")),
            (Some(id), _) => Ok(Whose::Agents(self.directory.require_user(id)?.no)),
        }
    }

    /// The lines of these conversations in the list of an account.
    pub(super) fn lines_of(
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
    pub(super) fn assigned_to(&self, conversations: &[ConversationNo]) -> Result<Vec<Option<Sender>>, Refusal> {
        let keys: Vec<_> = conversations.iter().map(|no| rows::assignment_key(*no)).collect();
        let found = self.store.rows_of(RowSpace::Chat, &keys).map_err(store_refusal)?;
        let agent = |row: &Option<Vec<u8>>| {
            let assignment: Option<rows::Assignment> = chat_rows::decode(row.as_deref())?;
            Ok(assignment.and_then(|assignment| assignment.agent))
        };
        found.iter().map(agent).collect::<Result<_, _>>().map_err(store_refusal)
    }
}

fn view_of(account: &str, desk: &AccountDesk) -> Desk {
    Desk {
        account: account.to_owned(),
        open_to: desk.desk.open_to,
        show_agents: desk.desk.shows_agents,
        agents: desk.agents.iter().map(|agent| agent.id.clone()).collect(),
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
