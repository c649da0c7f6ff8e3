//! Who answers for an account, and which agent has which of its conversations.

use super::{Decider, ProposalError, StagedRows};
use crate::{chat_rows, desks::*, model::*, store::*};
use std::borrow::Cow;

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn set_desk(
        &mut self,
        account: ConversationNo,
        id: &'a str,
        patch: &DeskPatch,
        agents_max: u32,
        adopts_user: bool,
    ) -> Result<Outcome, ProposalError> {
        self.rows.head(account)?.ok_or(Rejection::NoSuchConversation)?;
        let stored: Option<Desk> = chat_rows::decode(self.rows.chat_row(&desk_key(account))?.as_deref())?;
        let existing = if stored.is_none() { self.rows.user_no(id)? } else { None };
        if existing.is_some() && !adopts_user {
            return Err(Rejection::UserExists(id.to_owned()).into());
        }
        let mut count = stored.as_ref().map_or(0, |desk| desk.agents);
        let mut changed = Vec::new();
        for user in &patch.add {
            match self.agent(account, user.no)? {
                Some(agent) if agent.is_leaving => return Err(Rejection::AgentLeaves(agent.id).into()),
                Some(_) => {}
                None if changed.iter().any(|(no, _)| *no == user.no) => {}
                None => {
                    count += 1;
                    changed.push((user.no, Some(AgentRow { id: user.id.clone(), is_leaving: false })));
                }
            }
        }
        if count > agents_max && !changed.is_empty() {
            return Err(Rejection::TooManyAgents { limit: agents_max.into(), would_be: count.into() }.into());
        }
        for user in &patch.remove {
            if let Some(agent) = self.agent(account, *user)?.filter(|agent| !agent.is_leaving)
                && !changed.iter().any(|(no, _)| no == user)
            {
                count -= 1;
                changed.push((*user, Some(AgentRow { is_leaving: true, ..agent })));
            }
        }
        for user in &patch.forget {
            if self.agent(account, *user)?.is_some_and(|agent| agent.is_leaving) {
                changed.push((*user, None));
            }
        }
        let mut desk = match stored {
            Some(desk) => desk,
            None => {
                let no = match existing {
                    Some(no) => no,
                    None => {
                        let user = self.new_user(id);
                        let no = user.no;
                        self.rows.put_user(user);
                        no
                    }
                };
                let user = Sender { no, id: id.to_owned() };
                Desk { user, open_to: OpenTo::default(), shows_agents: false, agents: 0 }
            }
        };
        desk.open_to = patch.open_to.unwrap_or(desk.open_to);
        desk.shows_agents = patch.shows_agents.unwrap_or(desk.shows_agents);
        desk.agents = count;
        for (user, row) in changed {
            self.rows.put_chat_row(agent_key(account, user), row.as_ref().map(chat_rows::encode));
        }
        self.rows.put_chat_row(desk_key(account), Some(chat_rows::encode(&desk)));
        Ok(Outcome::Desk(desk))
    }

    fn agent(&self, account: ConversationNo, user: UserNo) -> StoreResult<Option<AgentRow>> {
        chat_rows::decode(self.rows.chat_row(&agent_key(account, user))?.as_deref())
    }

    /// Rejects an entry of an agent who was removed: the agent's node may not know it yet.
    pub(super) fn check_agent(&self, entry: &NewEntry) -> Result<(), ProposalError> {
        let Some(EntryDesk { account, agent: Some(agent), .. }) = entry.desk() else { return Ok(()) };
        match self.agent(*account, agent.no)? {
            Some(AgentRow { is_leaving: false, .. }) => Ok(()),
            _ => Err(Rejection::NotAMember.into()),
        }
    }

    pub(super) fn assign(
        &mut self,
        conversation: ConversationNo,
        account: ConversationNo,
        to: Option<&Sender>,
        expected: Option<Option<UserNo>>,
        entry: &NewEntry,
    ) -> Result<Outcome, ProposalError> {
        let head = self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        self.check_agent(entry)?;
        let known = self.assignment(conversation)?;
        let is_indexed = known.is_some();
        let now = known.and_then(|known| known.agent);
        let (now_no, to_no) = (now.as_ref().map(|agent| agent.no), to.map(|agent| agent.no));
        if now_no == to_no {
            return Ok(Outcome::Assigned { told: None });
        }
        if expected.is_some_and(|expected| expected != now_no) {
            return Err(Rejection::AssignedTo(now.map(|agent| agent.id)).into());
        }
        if let Some(to) = to
            && self.agent(account, to.no)?.is_none_or(|agent| agent.is_leaving)
        {
            return Err(Rejection::NotAnAgent(to.id.clone()).into());
        }
        if is_indexed {
            let number = self.rows.index_number(&head);
            let former = index_key(account, Whose::of(now.as_ref()), number, conversation);
            self.rows.put_chat_row(former, None);
        }
        let assignment = Assignment { account, agent: to.cloned() };
        self.rows.put_chat_row(assignment_key(conversation), Some(chat_rows::encode(&assignment)));
        let mut entry = entry.clone();
        entry.details_mut().of_kind = KindDetails::Assignment { to: to.cloned() };
        let appended = self.append(conversation, Cow::Owned(entry.clone()), None)?;
        Ok(Outcome::Assigned { told: Some((appended, Box::new(entry))) })
    }

    /// The conversation's place in the lists of an account, once it is there.
    pub(super) fn assignment(&self, conversation: ConversationNo) -> StoreResult<Option<Assignment>> {
        chat_rows::decode(self.rows.chat_row(&assignment_key(conversation))?.as_deref())
    }

    /// Puts a conversation at the top of its account's lists: `after` is its head from now on. From its first entry in the lists
    /// on, every entry of the conversation moves it, so that it stands by its newest one.
    pub(super) fn move_in_index(
        &mut self,
        conversation: ConversationNo,
        account: ConversationNo,
        is_for_customer: bool,
        [before, after]: [&Head; 2],
    ) -> Result<(), ProposalError> {
        let known = self.assignment(conversation)?;
        let is_new = known.is_none();
        if is_new && is_for_customer {
            return Ok(());
        }
        let assignment = known.unwrap_or(Assignment { account, agent: None });
        let [former, newest] = [before, after].map(|head| self.rows.index_number(head));
        for whose in [Whose::Anyones, Whose::of(assignment.agent.as_ref())] {
            if !is_new {
                self.rows.put_chat_row(index_key(account, whose, former, conversation), None);
            }
            self.rows.put_chat_row(index_key(account, whose, newest, conversation), Some(Vec::new()));
        }
        if is_new {
            self.rows.put_chat_row(assignment_key(conversation), Some(chat_rows::encode(&assignment)));
        }
        Ok(())
    }
}
