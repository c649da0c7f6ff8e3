//! Invites and requests, as plainly as possible: requests that wait are counted each time.

use super::State;
use tidings_domain::{joining::*, model::*, store::*};

impl State {
    /// Decides an act of joining, and answers what is to be kept of it once the rest of the change is decided.
    pub(super) fn joining(
        &self,
        conversation: ConversationNo,
        act: &MemberAct,
        is_new: bool,
        now_ms: u64,
    ) -> Result<Option<Joining>, Rejection> {
        let mut invites = self.invites.get(&conversation).cloned().unwrap_or_default();
        match act {
            MemberAct::Restrict { .. } | MemberAct::StepDown(_) => Ok(None),
            MemberAct::Invite { invite, invites_max } => {
                invites.retain(|invite| invite.holds(now_ms));
                invites.push(invite.clone());
                match invites.len() > *invites_max {
                    true => Err(Rejection::TooManyInvites { limit: *invites_max as u64 }),
                    false => Ok(Some(Joining::Invites(invites))),
                }
            }
            MemberAct::RevokeInvite(number) => {
                let place = invites.iter().position(|invite| invite.number == *number);
                invites.remove(place.ok_or(Rejection::NoSuchInvite)?);
                Ok(Some(Joining::Invites(invites)))
            }
            MemberAct::JoinByInvite { invite: number, .. } => {
                let found = invites.iter_mut().find(|invite| invite.number == *number && invite.holds(now_ms));
                found.ok_or(Rejection::NoSuchInvite)?.uses += u32::from(is_new);
                Ok(is_new.then_some(Joining::Invites(invites)))
            }
            MemberAct::Ask { user, request, waiting_max: (in_max, of_max) } => {
                if self.members.contains_key(&(conversation, *user)) {
                    return Err(Rejection::AlreadyAMember);
                }
                if let Some(ban) = self.restrictions(conversation, *user).ban.filter(|ban| ban.holds(now_ms)) {
                    return Err(Rejection::Banned(*user, ban.until));
                }
                let others = |of: &dyn Fn(&(ConversationNo, UserNo)) -> bool| {
                    let waiting = self.requests.iter().filter(|(_, request)| request.refused.is_none());
                    waiting.filter(|(key, _)| **key != (conversation, *user) && of(key)).count() as u64
                };
                let waits = self.waits(conversation, *user);
                if !waits && others(&|key| key.0 == conversation) >= *in_max {
                    return Err(Rejection::TooManyRequests { limit: *in_max });
                }
                if !waits && others(&|key| key.1 == *user) >= *of_max {
                    return Err(Rejection::TooManyRequests { limit: *of_max });
                }
                Ok(Some(Joining::Request(*user, Some(request.clone()))))
            }
            MemberAct::Approve(user) | MemberAct::Decline { user, .. } if !self.waits(conversation, *user) => {
                Err(Rejection::NoSuchRequest)
            }
            MemberAct::Approve(user) => Ok(Some(Joining::Request(*user, None))),
            MemberAct::Decline { user, refused } => {
                let former = self.requests.get(&(conversation, *user)).cloned();
                let now = refused.clone().and_then(|refused| Some(JoinRequest { refused: Some(refused), ..former? }));
                Ok(Some(Joining::Request(*user, now)))
            }
        }
    }

    fn waits(&self, conversation: ConversationNo, user: UserNo) -> bool {
        self.requests.get(&(conversation, user)).is_some_and(|request| request.refused.is_none())
    }

    pub(super) fn keep_joining(&mut self, conversation: ConversationNo, joining: Joining) {
        match joining {
            Joining::Invites(invites) => {
                let row = (!invites.is_empty()).then(|| serde_json::to_vec(&invites).unwrap_or_default());
                self.put_row(invites_key(conversation), row);
                self.invites.insert(conversation, invites);
            }
            Joining::Request(user, request) => {
                match &request {
                    Some(request) => drop(self.requests.insert((conversation, user), request.clone())),
                    None => drop(self.requests.remove(&(conversation, user))),
                }
                let row = request.map(|request| serde_json::to_vec(&request).unwrap_or_default());
                self.put_row(join_request_key(conversation, user), row);
                let waiting = |of: &dyn Fn(&(ConversationNo, UserNo)) -> bool| {
                    let waiting = self.requests.iter().filter(|(key, request)| request.refused.is_none() && of(key));
                    Some(waiting.count()).filter(|count| *count > 0).map(|count| count.to_string().into_bytes())
                };
                let (in_conversation, of_user) = (waiting(&|key| key.0 == conversation), waiting(&|key| key.1 == user));
                self.put_row(waiting_in_key(conversation), in_conversation);
                self.put_row(waiting_of_key(user), of_user);
            }
        }
    }

    fn put_row(&mut self, key: Vec<u8>, row: Option<Vec<u8>>) {
        match row {
            Some(row) => drop(self.rows.insert((RowSpace::Chat, key), row)),
            None => drop(self.rows.remove(&(RowSpace::Chat, key))),
        }
    }
}

/// What an act of joining leaves: the invites of the conversation, or a user's request.
pub(super) enum Joining {
    Invites(Vec<Invite>),
    Request(UserNo, Option<JoinRequest>),
}
