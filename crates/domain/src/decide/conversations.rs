//! New conversations, and who is in them.

use super::{Decider, ProposalError, StagedRows, without_row};
use crate::{
    chat_rows::{self, Preferences},
    joining::*,
    model::*,
    restrictions::*,
    store::*,
};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// Rows of chat with what is to be in them.
type NewRows = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A change of members, as it was proposed.
pub(super) struct MemberChange<'p> {
    pub(super) add: &'p [(UserNo, Role)],
    pub(super) remove: &'p [UserNo],
    pub(super) heir: Option<UserNo>,
    pub(super) act: Option<&'p MemberAct>,
}

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn create_conversation(&mut self, new: &'a NewConversation) -> Result<Outcome, ProposalError> {
        if let Some(conversation) = self.existing(new)? {
            return Ok(Outcome::Conversation { conversation, created: false });
        }
        Ok(Outcome::Conversation { conversation: self.create(new)?, created: true })
    }

    pub(super) fn open_direct(
        &mut self,
        new: &'a NewConversation,
        entry: &'a NewEntry,
    ) -> Result<Outcome, ProposalError> {
        if let Some(conversation) = self.existing(new)? {
            return Ok(Outcome::Conversation { conversation, created: false });
        }
        // Whatever rejects the entry comes before the first row.
        if let Some(refusal) = &entry.request.refusal {
            return Err(Rejection::Refused(refusal.clone()).into());
        }
        match entry.reply_to() {
            None => self.check_agent(entry)?,
            Some(answered) => return Err(Rejection::NoSuchEntry(answered).into()),
        }
        let conversation = self.create(new)?;
        let send = self.send_key(conversation.no, entry);
        let appended = self.append(conversation.no, Cow::Borrowed(entry), send)?;
        Ok(Outcome::Opened { conversation, appended })
    }

    /// The conversation that has the id of the new one already.
    fn existing(&self, new: &NewConversation) -> Result<Option<Conversation>, ProposalError> {
        let Some(no) = self.rows.conversation_no(&new.id)? else { return Ok(None) };
        let conversation = self.rows.conversation(no)?.ok_or_else(|| without_row("conversation", &new.id))?;
        if conversation.kind == new.kind { Ok(Some(conversation)) } else { Err(Rejection::KindDiffers.into()) }
    }

    fn create(&mut self, new: &'a NewConversation) -> Result<Conversation, ProposalError> {
        self.check_users(&new.members)?;
        // A user who is named twice is one member, with the role named last.
        let members: BTreeMap<UserNo, Role> = new.members.iter().copied().collect();
        let no = self.rows.new_conversation_no(&new.id);
        let NewConversation { id, kind, pair, name, avatar, attributes, settings, .. } = new.clone();
        let (created_at, member_count) = (self.now_ms, members.len() as u64);
        let conversation = Conversation {
            no,
            id,
            kind,
            pair,
            name,
            avatar,
            attributes,
            created_at,
            member_count,
            settings,
            blocks: PairBlocks::default(),
        };
        self.rows.create_conversation(conversation.clone());
        for (user, role) in members {
            self.add_member(&conversation, user, role, 0, (MuteState::Off, false));
        }
        Ok(conversation)
    }

    fn check_users(&self, users: &[(UserNo, Role)]) -> Result<(), ProposalError> {
        for (user, _) in users {
            if !self.rows.is_user(*user)? {
                return Err(Rejection::NoSuchUser(*user).into());
            }
        }
        Ok(())
    }

    /// Adds a member with what is kept for one: the mute of an earlier membership, and whether there are restrictions.
    fn add_member(
        &mut self,
        conversation: &Conversation,
        user: UserNo,
        role: Role,
        last_seq: u64,
        (mute, restricted): (MuteState, bool),
    ) {
        let joined_at = self.now_ms;
        let membership = Membership { role, joined_at, joined_seq: last_seq, read_seq: last_seq, mute, restricted };
        self.rows.add_member(conversation, user, membership);
    }

    pub(super) fn change_members(
        &mut self,
        conversation: ConversationNo,
        MemberChange { add, remove, heir, act }: MemberChange<'_>,
        members_max: u64,
        notice: Option<&'a NewEntry>,
    ) -> Result<Outcome, ProposalError> {
        let mut details = self.rows.conversation(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        self.check_users(add)?;
        // A user who is named twice gets the role named last.
        let add: BTreeMap<UserNo, Role> = add.iter().copied().collect();
        let mut added = Vec::new();
        let mut changed = Vec::new();
        for (user, role) in &add {
            match self.rows.membership(conversation, *user)? {
                Some(membership) if membership.role != *role => {
                    changed.push((*user, Membership { role: *role, ..membership }));
                }
                Some(_) => {}
                None => {
                    let ban = self.restrictions(conversation, *user)?;
                    if let Some(ban) = ban.holding(RestrictionKind::Ban, self.now_ms) {
                        return Err(Rejection::Banned(*user, ban.until).into());
                    }
                    added.push(*user);
                }
            }
        }
        let mut removed = BTreeMap::new();
        for user in remove {
            if let Some(membership) = self.rows.membership(conversation, *user)? {
                removed.insert(*user, membership.mute);
            }
        }
        if let Some(heir) = heir {
            let membership = self.member_after(conversation, heir, &changed)?.filter(|_| !removed.contains_key(&heir));
            let membership = membership.ok_or(Rejection::NotAMember)?;
            if membership.role != Role::Owner {
                changed.push((heir, Membership { role: Role::Owner, ..membership }));
            }
        }
        let mut rows = Vec::new();
        let restricted = match act {
            None => None,
            Some(MemberAct::StepDown(owner)) => {
                let membership = self.member_after(conversation, *owner, &changed)?;
                let membership = membership.filter(|_| !removed.contains_key(owner));
                let membership = membership.filter(|membership| membership.role == Role::Owner);
                let membership = membership.ok_or(Rejection::NotTheOwner)?;
                changed.push((*owner, Membership { role: Role::Admin, ..membership }));
                None
            }
            Some(MemberAct::Restrict { user, kind, restriction }) => {
                let before = self.restrictions(conversation, *user)?;
                let after = before.clone().with(*kind, restriction.clone(), self.now_ms);
                let membership = self.member_after(conversation, *user, &changed)?;
                let membership = membership.filter(|_| !removed.contains_key(user));
                if membership.is_none() && *kind == RestrictionKind::Mute && restriction.is_some() {
                    return Err(Rejection::NotAMember.into());
                }
                // One that has ended is as if it had never been.
                let is_new = before.holding(*kind, self.now_ms) != after.holding(*kind, self.now_ms);
                if let Some(membership) = membership.filter(|_| is_new) {
                    changed.push((*user, Membership { restricted: after.encode().is_some(), ..membership }));
                }
                is_new.then_some((*user, after))
            }
            Some(joining) => {
                rows = self.joining(conversation, joining, &added)?;
                None
            }
        };
        let would_be = details.member_count + added.len() as u64 - removed.len() as u64;
        if would_be > members_max && !added.is_empty() {
            return Err(Rejection::TooManyMembers { limit: members_max, would_be }.into());
        }
        let last_seq = self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?.last_seq;
        let changes_nothing =
            added.is_empty() && removed.is_empty() && changed.is_empty() && restricted.is_none() && rows.is_empty();
        let notice = notice.filter(|_| !changes_nothing);
        self.check_notice(conversation, notice)?;
        for user in &added {
            let kept = self.preferences(*user, conversation)?;
            let restricted = self.restrictions(conversation, *user)?.encode().is_some();
            let kept = (MuteState::of_number(kept.left_with_mute), restricted);
            self.add_member(&details, *user, add[user], last_seq, kept);
        }
        let mut seen = BTreeSet::new();
        let mut changed_users: Vec<UserNo> =
            changed.iter().map(|(user, _)| *user).filter(|user| seen.insert(*user)).collect();
        for (user, membership) in changed {
            self.rows.put_membership(conversation, user, membership);
        }
        removed.keys().for_each(|user| self.rows.remove_member(&details, *user));
        for (key, row) in rows {
            self.rows.put_chat_row(key, row);
        }
        let asker =
            act.and_then(MemberAct::asker).filter(|user| !added.contains(user) && !changed_users.contains(user));
        changed_users.extend(asker);
        if let Some((user, restrictions)) = restricted {
            self.rows.put_chat_row(restrictions_key(conversation, user), restrictions.encode());
            // Nodes that know of the user's restrictions are to ask again, whether the user is a member or not.
            if !changed_users.contains(&user) && !removed.contains_key(&user) {
                changed_users.push(user);
            }
        }
        details.member_count = would_be;
        self.rows.put_conversation(details);
        let notice = notice.map(|notice| self.notice(conversation, notice)).transpose()?;
        // Whoever is removed is handed the notice of it, too.
        let left_seq = Some(notice.map_or(last_seq, |notice| notice.seq));
        for (user, mute) in &removed {
            let kept = self.preferences(*user, conversation)?;
            let kept = Preferences { left_seq, left_with_mute: mute.to_number(), ..kept };
            self.rows.put_chat_row(chat_rows::preferences_key(*user, conversation), kept.encode());
        }
        let (removed, changed) = (removed.into_keys().collect(), changed_users);
        Ok(Outcome::MembersChanged { added, removed, changed, member_count: would_be, notice })
    }

    /// The rows that an act of joining writes, with users who are added.
    fn joining(
        &self,
        conversation: ConversationNo,
        act: &MemberAct,
        added: &[UserNo],
    ) -> Result<NewRows, ProposalError> {
        if let Some(user) = act.asker() {
            return self.request(conversation, user, act);
        }
        let key = invites_key(conversation);
        let mut invites: Vec<Invite> = chat_rows::decode(self.rows.chat_row(&key)?.as_deref())?;
        match act {
            MemberAct::Invite { invite, invites_max } => {
                invites.retain(|invite| invite.holds(self.now_ms));
                if invites.len() >= *invites_max {
                    return Err(Rejection::TooManyInvites { limit: *invites_max as u64 }.into());
                }
                invites.push(invite.clone());
            }
            MemberAct::RevokeInvite(number) => {
                let before = invites.len();
                invites.retain(|invite| invite.number != *number);
                if invites.len() == before {
                    return Err(Rejection::NoSuchInvite.into());
                }
            }
            MemberAct::JoinByInvite { user, invite } => {
                let holding = |known: &&mut Invite| known.number == *invite && known.holds(self.now_ms);
                let invite = invites.iter_mut().find(holding).ok_or(Rejection::NoSuchInvite)?;
                if !added.contains(user) {
                    return Ok(Vec::new());
                }
                invite.uses += 1;
            }
            _ => return Ok(Vec::new()),
        }
        Ok(vec![(key, (!invites.is_empty()).then(|| chat_rows::encode(&invites)))])
    }

    /// The rows of a request that is made, granted, refused or withdrawn.
    fn request(&self, conversation: ConversationNo, user: UserNo, act: &MemberAct) -> Result<NewRows, ProposalError> {
        let key = join_request_key(conversation, user);
        let (in_key, of_key) = (waiting_in_key(conversation), waiting_of_key(user));
        let former: Option<JoinRequest> = match self.rows.chat_row(&key)? {
            Some(row) => chat_rows::decode(Some(&row))?,
            None => None,
        };
        let waits = former.as_ref().is_some_and(|request| request.refused.is_none());
        let in_conversation: u64 = chat_rows::decode(self.rows.chat_row(&in_key)?.as_deref())?;
        let of_user: u64 = chat_rows::decode(self.rows.chat_row(&of_key)?.as_deref())?;
        let request = match act {
            MemberAct::Ask { request, waiting_max: (in_max, of_max), .. } => {
                if self.rows.membership(conversation, user)?.is_some() {
                    return Err(Rejection::AlreadyAMember.into());
                }
                if let Some(ban) = self.restrictions(conversation, user)?.holding(RestrictionKind::Ban, self.now_ms) {
                    return Err(Rejection::Banned(user, ban.until).into());
                }
                for (waiting, max) in [(in_conversation, in_max), (of_user, of_max)] {
                    if !waits && waiting >= *max {
                        return Err(Rejection::TooManyRequests { limit: *max }.into());
                    }
                }
                Some(request.clone())
            }
            _ if !waits => return Err(Rejection::NoSuchRequest.into()),
            MemberAct::Decline { refused: Some(refused), .. } => {
                former.map(|request| JoinRequest { refused: Some(refused.clone()), ..request })
            }
            _ => None,
        };
        let waits_now = request.as_ref().is_some_and(|request| request.refused.is_none());
        let counted = |before: u64| (before + u64::from(waits_now)).saturating_sub(u64::from(waits));
        let count_row = |key: Vec<u8>, count: u64| (key, (count > 0).then(|| chat_rows::encode(&count)));
        Ok(vec![
            (key, request.map(|request| chat_rows::encode(&request))),
            count_row(in_key, counted(in_conversation)),
            count_row(of_key, counted(of_user)),
        ])
    }

    /// The membership of a user who is a member, with the changes that are decided so far.
    fn member_after(
        &self,
        conversation: ConversationNo,
        user: UserNo,
        changed: &[(UserNo, Membership)],
    ) -> StoreResult<Option<Membership>> {
        match changed.iter().rev().find(|(of, _)| *of == user) {
            Some((_, membership)) => Ok(Some(membership.clone())),
            None => self.rows.membership(conversation, user),
        }
    }

    /// The mute and the ban of a user.
    fn restrictions(&self, conversation: ConversationNo, user: UserNo) -> StoreResult<Restrictions> {
        Restrictions::decode(self.rows.chat_row(&restrictions_key(conversation, user))?.as_deref())
    }
}
