//! Accounts that answer, as plainly as possible: the index of an account's conversations is made anew from all timelines after
//! each change.

use super::{State, index, numbers};
use tidings_domain::{desks::*, model::*, store::*};

/// What the memory store knows of one account.
#[derive(Clone)]
pub(super) struct AccountState {
    desk: Desk,
    /// Its agents, each with whether the user leaves.
    agents: Vec<(Sender, bool)>,
}

impl State {
    pub(super) fn set_desk(
        &mut self,
        account: ConversationNo,
        id: &str,
        patch: &DeskPatch,
        agents_max: u32,
        adopts_user: bool,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        if index(account.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let known = self.desks.get(&account).cloned();
        if known.is_none() && self.user_nos.contains_key(id) && !adopts_user {
            return Err(Rejection::UserExists(id.to_owned()));
        }
        let mut agents = known.as_ref().map_or_else(Vec::new, |known| known.agents.clone());
        let (mut added, mut removed) = (Vec::new(), 0);
        for user in &patch.add {
            match agents.iter().find(|(agent, _)| agent.no == user.no) {
                Some((_, true)) => return Err(Rejection::AgentLeaves(user.id.clone())),
                Some((_, false)) => {}
                None => {
                    agents.push((user.clone(), false));
                    added.push(user.no);
                }
            }
        }
        let staying = agents.iter().filter(|(_, leaves)| !leaves).count() as u64;
        if staying > u64::from(agents_max) && !added.is_empty() {
            return Err(Rejection::TooManyAgents { limit: agents_max.into(), would_be: staying });
        }
        for (agent, leaves) in &mut agents {
            if patch.remove.contains(&agent.no) && !added.contains(&agent.no) && !*leaves {
                *leaves = true;
                removed += 1;
            }
        }
        // Who leaves by this very change has conversations to be unassigned.
        let before = known.as_ref().map_or(&[][..], |known| &known.agents);
        let was_leaving = |user: UserNo| before.iter().any(|(agent, leaves)| agent.no == user && *leaves);
        agents.retain(|(agent, _)| !(patch.forget.contains(&agent.no) && was_leaving(agent.no)));
        let user = match &known {
            Some(known) => known.desk.user.clone(),
            None => {
                // Changes nothing of a user who is there.
                self.put_users(&[UserPatch { id: id.to_owned(), ..UserPatch::default() }], now_ms);
                Sender { no: self.user_nos[id], id: id.to_owned() }
            }
        };
        let (open_to, shows_agents) = known.map_or_else(Default::default, |k| (k.desk.open_to, k.desk.shows_agents));
        let desk = Desk {
            user,
            open_to: patch.open_to.unwrap_or(open_to),
            shows_agents: patch.shows_agents.unwrap_or(shows_agents),
            agents: (staying - removed) as u32,
        };
        self.desks.insert(account, AccountState { desk: desk.clone(), agents });
        self.put_desk_rows(account);
        Ok(Outcome::Desk(desk))
    }

    /// Whether an entry is of an agent who is none, or none any more.
    pub(super) fn is_of_stranger(&self, entry: &NewEntry) -> bool {
        let Some(EntryDesk { account, agent: Some(agent), .. }) = entry.desk() else { return false };
        !self.is_agent(*account, agent.no)
    }

    fn is_agent(&self, account: ConversationNo, user: UserNo) -> bool {
        let known = self.desks.get(&account);
        known.is_some_and(|known| known.agents.iter().any(|(agent, leaves)| agent.no == user && !leaves))
    }

    pub(super) fn assign(
        &mut self,
        conversation: ConversationNo,
        account: ConversationNo,
        to: Option<&Sender>,
        expected: Option<Option<UserNo>>,
        entry: &NewEntry,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        if self.is_of_stranger(entry) {
            return Err(Rejection::NotAMember);
        }
        let now = self.assigned.get(&conversation);
        if now.map(|agent| agent.no) == to.map(|agent| agent.no) {
            return Ok(Outcome::Assigned { told: None });
        }
        if expected.is_some_and(|expected| expected != now.map(|agent| agent.no)) {
            return Err(Rejection::AssignedTo(now.map(|agent| agent.id.clone())));
        }
        match to {
            Some(to) if !self.is_agent(account, to.no) => return Err(Rejection::NotAnAgent(to.id.clone())),
            Some(to) => drop(self.assigned.insert(conversation, to.clone())),
            None => drop(self.assigned.remove(&conversation)),
        }
        let mut entry = entry.clone();
        entry.details_mut().of_kind = KindDetails::Assignment { to: to.cloned() };
        let appended = self.append(conversation, &entry, now_ms)?;
        Ok(Outcome::Assigned { told: Some((appended, Box::new(entry))) })
    }

    /// Makes the rows of an account anew.
    pub(super) fn put_desk_rows(&mut self, account: ConversationNo) {
        let first_of = |kind: u8| (RowSpace::Chat, [vec![kind], numbers(&[account.0])].concat());
        for kind in [b'w', b'g', b'i'] {
            let (_, first) = first_of(kind);
            self.rows.retain(|(space, key), _| *space != RowSpace::Chat || !key.starts_with(&first));
        }
        let known = self.desks.get(&account).cloned();
        let row = |value: &serde_json::Value| value.to_string().into_bytes();
        let desk = known.as_ref().map(|known| serde_json::to_vec(&known.desk).unwrap_or_default());
        self.rows.extend(desk.map(|desk| (first_of(b'w'), desk)));
        for (agent, leaves) in known.iter().flat_map(|known| &known.agents) {
            let mut value = serde_json::json!({ "id": agent.id });
            if *leaves {
                value["is_leaving"] = true.into();
            }
            let key = [b"g".to_vec(), numbers(&[account.0, agent.no.0])].concat();
            self.rows.insert((RowSpace::Chat, key), row(&value));
        }
        let newest_in =
            |timeline: &std::collections::BTreeMap<u64, StoredEntry>| Some(timeline.values().next_back()?.position);
        let listed = self.listed.iter().filter(|(_, of)| **of == account);
        let places: Vec<_> = listed.filter_map(|(no, _)| Some((*no, newest_in(self.timelines.get(no)?)?))).collect();
        for (conversation, newest) in places {
            let assigned = self.assigned.get(&conversation);
            for whose in [0, assigned.map_or(u64::MAX, |agent| agent.no.0)] {
                let key = numbers(&[account.0, whose, u64::MAX - newest, conversation.0]);
                self.rows.insert((RowSpace::Chat, [b"i".to_vec(), key].concat()), Vec::new());
            }
        }
    }

    /// Lists a conversation for its account after an entry, and makes the rows of both anew. What is for the customer alone
    /// lists no conversation.
    pub(super) fn list_for_account(
        &mut self,
        account: ConversationNo,
        conversation: ConversationNo,
        is_for_customer: bool,
    ) {
        if is_for_customer && !self.listed.contains_key(&conversation) {
            return;
        }
        let account = *self.listed.entry(conversation).or_insert(account);
        // A map of `serde_json` would sort the agent's fields, and rows are compared byte by byte.
        let agent = self.assigned.get(&conversation).map_or_else(String::new, |agent| {
            format!(r#","agent":{}"#, serde_json::to_string(agent).unwrap_or_default())
        });
        let value = format!(r#"{{"account":{}{agent}}}"#, account.0);
        let row = (RowSpace::Chat, [b"a".to_vec(), numbers(&[conversation.0])].concat());
        self.rows.insert(row, value.into_bytes());
        self.put_desk_rows(account);
    }
}
