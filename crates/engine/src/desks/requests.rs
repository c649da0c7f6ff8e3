//! Who answers for an account, and which agent has which of its conversations, as callers ask and change it.

use super::{AccountDesk, Sides};
use crate::Engine;
use std::sync::Arc;
use tidings_domain::{
    desks::DeskPatch,
    model::*,
    refusals::{not_a_member, store_refusal, unexpected_outcome},
    store::{Outcome, Proposal},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{Assign, AssignmentView, Desk, Desks, UpdateDesk},
    limits::{AGENTS_MAX, MEMBERS_BATCH_MAX},
};

impl Engine {
    /// Changes who answers for an official account.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `invalid_field`, `limit_exceeded`; `rate_limited` for users;
    /// `queue_full`, `store_unavailable`, `node_unavailable` and `draining`: nothing was stored.
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
                return Err(Refusal::field("remove", format!("{id:?} is also in add")));
            }
            let user = self.directory.require_user(id)?;
            if self.directory.desks.of_user(user.no).is_some() {
                return Err(Refusal::field("add", format!("{id:?} is an account, not a person")));
            }
            patch.add.push(Sender::of(&user));
        }
        for id in &update.remove {
            patch.remove.push(self.directory.require_user(id)?.no);
        }
        let (account, id) = (conversation.no, conversation.id.clone());
        // A user's own conversations are given to agents by the app server alone.
        let adopts_user = matches!(actor, Actor::App);
        let proposal = Proposal::SetDesk { account, id, patch, agents_max: AGENTS_MAX, adopts_user };
        self.committer.propose(actor, Some(&conversation), proposal).await?;
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
                Err(Refusal::new(ErrorCode::Conflict, format!("{id:?} is not an official account")))
            }
        }
    }

    fn check_may_manage(&self, actor: &Actor, account: &Conversation) -> Result<(), Refusal> {
        let Actor::User(user) = actor else { return Ok(()) };
        let membership = self.directory.membership(account.no, user.no).map_err(store_refusal)?;
        match membership.map(|membership| membership.role) {
            Some(Role::Owner | Role::Admin) => Ok(()),
            Some(Role::Member) => Err(Refusal::new(
                ErrorCode::Forbidden,
                "only the owner and admins may decide who answers for the account",
            )),
            None => Err(not_a_member(&user.id, &account.id)),
        }
    }

    fn desk_view(&self, account: &Conversation) -> Result<Desk, Refusal> {
        match self.directory.desks.of_account(account.no) {
            Some(desk) => Ok(view_of(&account.id, &desk)),
            None => Err(Refusal::new(ErrorCode::NotFound, format!("no agent answers for {:?}", account.id))),
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
            return Err(Refusal::new(ErrorCode::Conflict, "only conversations with an account can be assigned"));
        };
        self.check_draining()?;
        if actor.user().is_some_and(|user| user.no != desk.desk.user.no) {
            return Err(Refusal::new(ErrorCode::Forbidden, "only agents of the account may assign its conversations"));
        }
        let to = assign.assigned_to.as_deref().map(|id| self.directory.require_user(id)).transpose()?;
        let expected = match assign.if_assigned_to {
            Some(Some(id)) => Some(Some(self.directory.require_user(&id)?.no)),
            Some(None) => Some(None),
            None => None,
        };
        let to = to.as_deref().map(Sender::of);
        let proposal = self.assignment(&actor, &conversation, &desk, to, expected);
        match self.committer.propose(&actor, Some(&conversation), proposal).await? {
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
            sender: by.map(Sender::of),
            client_msg_id: None,
            content_type: "assignment".into(),
            body: NO_BODY.into(),
            mentions: vec![],
            silent: true,
            skip_push: true,
            details: self.desk_details(EntryKind::Assignment, conversation, by),
            request: EntryRequest::default(),
        };
        Proposal::Assign { conversation: conversation.no, account: desk.account, to, expected, entry }
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
