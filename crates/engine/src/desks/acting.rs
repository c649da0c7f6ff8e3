//! Agents act for their account: in its conversations the caller is the account, and the agent is named beside it.

use super::AccountDesk;
use crate::Engine;
use std::sync::Arc;
use tidings_domain::model::*;
use tidings_protocol::{error::Refusal, ids::direct_pair};

impl Engine {
    /// The user as whom a caller takes part in a conversation: of an agent the account, in conversations with the account
    /// that are not the agent's own.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(crate) fn acting(&self, user: &Arc<User>, conversation: &str) -> Result<Arc<User>, Refusal> {
        let desks = &self.directory.desks;
        let Some((a, b)) = direct_pair(conversation).filter(|_| !desks.is_empty() && user.agent().is_none()) else {
            return Ok(user.clone());
        };
        if a == user.id || b == user.id {
            return Ok(user.clone());
        }
        let served = desks.served_by(user.no).into_iter().find(|desk| [a, b].contains(&desk.desk.user.id.as_str()));
        served.map_or_else(|| Ok(user.clone()), |desk| self.as_account(user, &desk))
    }

    /// The account as the caller, for which an agent acts.
    pub(crate) fn as_account(&self, agent: &User, desk: &AccountDesk) -> Result<Arc<User>, Refusal> {
        let mut account = User::clone(&*self.directory.require_user(&desk.desk.user.id)?);
        account.change_extras(|extras| extras.agent = Some(Box::new(Sender::of(agent))));
        Ok(Arc::new(account))
    }

    /// The account with this id as the caller, if the user is one of its agents.
    pub(crate) fn as_account_named(&self, agent: &User, account: &str) -> Result<Option<Arc<User>>, Refusal> {
        let served = self.directory.desks.served_by(agent.no).into_iter().find(|desk| desk.desk.user.id == account);
        served.map(|desk| self.as_account(agent, &desk)).transpose()
    }

    /// The caller as who takes part in a conversation, and the conversation, as the caller may know of it.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub(crate) fn enter(&self, actor: &Actor, conversation: &str) -> Result<(Actor, Arc<Conversation>), Refusal> {
        let actor = match actor {
            Actor::App => Actor::App,
            Actor::User(user) => Actor::User(self.acting(user, conversation)?),
        };
        let conversation = self.directory.require_conversation_by(&actor, conversation)?;
        Ok((actor, conversation))
    }

    /// As [`Engine::enter`], for a user.
    pub(crate) fn enter_as(
        &self,
        user: &Arc<User>,
        conversation: &str,
    ) -> Result<(Arc<User>, Arc<Conversation>), Refusal> {
        let user = self.acting(user, conversation)?;
        let conversation = self.directory.require_conversation_for(&user, conversation)?;
        Ok((user, conversation))
    }

    /// The details of an entry of this kind in this conversation, if it is an account's: the account, and which agent acts.
    pub(crate) fn desk_details(
        &self,
        kind: EntryKind,
        conversation: &Conversation,
        by: Option<&User>,
    ) -> Option<Box<EntryDetails>> {
        let sides = self.directory.desks.sides(conversation.pair)?;
        let agent = by.and_then(|user| user.agent()).cloned();
        let desk = Some(EntryDesk { agent, ..EntryDesk::of(sides.desk.account) });
        Some(Box::new(EntryDetails { desk, ..EntryDetails::of(kind) }))
    }
}
