//! New conversations, and who is in them.

use super::{Decider, ProposalError, StagedRows, without_row};
use crate::{
    chat_rows::{self, Preferences},
    model::*,
    store::*,
};
use std::{borrow::Cow, collections::BTreeMap};

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
            self.add_member(&conversation, user, role, 0, MuteState::Off);
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

    fn add_member(&mut self, conversation: &Conversation, user: UserNo, role: Role, last_seq: u64, mute: MuteState) {
        let joined_at = self.now_ms;
        let membership = Membership { role, joined_at, joined_seq: last_seq, read_seq: last_seq, mute };
        self.rows.add_member(conversation, user, membership);
    }

    pub(super) fn change_members(
        &mut self,
        conversation: ConversationNo,
        (add, remove, heir): (&[(UserNo, Role)], &[UserNo], Option<UserNo>),
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
                None => added.push(*user),
            }
        }
        let mut removed = BTreeMap::new();
        for user in remove {
            if let Some(membership) = self.rows.membership(conversation, *user)? {
                removed.insert(*user, membership.mute);
            }
        }
        if let Some(heir) = heir {
            let membership = self.rows.membership(conversation, heir)?.filter(|_| !removed.contains_key(&heir));
            let membership = membership.ok_or(Rejection::NotAMember)?;
            if membership.role != Role::Owner {
                changed.push((heir, Membership { role: Role::Owner, ..membership }));
            }
        }
        let would_be = details.member_count + added.len() as u64 - removed.len() as u64;
        if would_be > members_max && !added.is_empty() {
            return Err(Rejection::TooManyMembers { limit: members_max, would_be }.into());
        }
        let last_seq = self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?.last_seq;
        let notice = notice.filter(|_| !(added.is_empty() && removed.is_empty() && changed.is_empty()));
        self.check_notice(conversation, notice)?;
        for user in &added {
            let kept = self.preferences(*user, conversation)?;
            self.add_member(&details, *user, add[user], last_seq, MuteState::of_number(kept.left_with_mute));
        }
        let changed_users: Vec<_> = changed.iter().map(|(user, _)| *user).collect();
        for (user, membership) in changed {
            self.rows.put_membership(conversation, user, membership);
        }
        removed.keys().for_each(|user| self.rows.remove_member(&details, *user));
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
}
