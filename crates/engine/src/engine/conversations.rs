//! Conversations: details, members, roles, mutes and read marks.

use crate::{
    Engine,
    attributes::{attributes_value, check_attributes},
    engine::expiring::{shown_expiry, shown_retention, stored_expiry, stored_retention},
    reactions::requests::check_allowed_reactions,
    visibility::check_may_know_followers,
};
use serde_json::json;
use std::{cmp::Reverse, collections::HashSet, sync::Arc};
use tidings_domain::{
    erasure::conversation_erasure_key,
    gates::Gate,
    model::*,
    refusals::{not_a_member, store_refusal, unexpected_outcome},
    store::{MemberAct, NewConversation, Outcome, PreferencesPatch, Proposal},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    ids::{check_name, check_new_id},
    limits::*,
};

const MENTION_ALL_IN_DIRECT: &str = "both users of a direct conversation may mention all";
const BLOCKS_IN_DIRECT: &str = "in a direct conversation nobody sends while one blocks the other";
/// Ids in the notice of a member change; its counts are of all.
const NOTICE_IDS_MAX: usize = 20;
/// Members in a page when the caller gives no limit.
const MEMBERS_PAGE_DEFAULT: usize = 100;
const MEMBERS_PAGE_MAX: usize = 1_000;
/// Heirs of a leaving owner that are tried, if each leaves meanwhile.
const HEIRS_TRIED_MAX: usize = 5;

/// The details of a conversation that has this head.
pub(super) fn details_with(conversation: &Conversation, head: Head) -> ConversationDetails {
    ConversationDetails {
        id: conversation.id.clone(),
        kind: conversation.kind,
        name: conversation.name.clone(),
        avatar: conversation.avatar.clone(),
        attributes: attributes_value(conversation.attributes.as_deref()),
        created_at: conversation.created_at,
        member_count: conversation.member_count,
        last_seq: head.last_seq,
        receipts: conversation.receipts(),
        history: conversation.history(),
        mention_all: conversation.mention_all(),
        reactions: conversation.reactions(),
        blocks: conversation.blocks_mode(),
        posting: conversation.posting(),
        slow_mode_s: conversation.settings.slow_mode_s.unwrap_or_default(),
        join_requests: conversation.settings.join_requests.unwrap_or_default(),
        expires: conversation.expires().map(shown_expiry),
        retention: conversation.settings.retention.and_then(shown_retention),
        importing: conversation.is_importing(),
    }
}

impl Engine {
    /// Creates a conversation, or answers the existing one of this id; the flag is whether it was created.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`, `not_found`, `forbidden`, `conflict`; `rate_limited` for users;
    /// `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn create_conversation(
        &self,
        actor: &Actor,
        new: CreateConversation,
    ) -> Result<(ConversationDetails, bool), Refusal> {
        if new.kind == ConversationKind::Direct {
            return self.create_direct(actor, new).await;
        }
        let proposal = Proposal::CreateConversation(self.new_with_members(actor, new)?);
        match self.committer.propose(actor, None, proposal).await? {
            Outcome::Conversation { conversation, created } => {
                if !created {
                    self.check_may_read(actor, &conversation)?;
                }
                Ok((self.details_of(&conversation)?, created))
            }
            _ => Err(unexpected_outcome()),
        }
    }

    /// A group or an official account as it is to be created.
    pub(crate) fn new_with_members(&self, actor: &Actor, new: CreateConversation) -> Result<NewConversation, Refusal> {
        new.reactions.as_ref().map_or(Ok(()), check_allowed_reactions)?;
        self.check_posting(new.kind, new.posting, new.slow_mode_s, new.join_requests)?;
        self.check_default_expiry(new.expires)?;
        if new.kind == ConversationKind::Official && matches!(actor, Actor::User(_)) {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the app server may create official accounts"));
        }
        let id = new.id.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        check_new_id("id", &id)?;
        if self.stored_erasure(&conversation_erasure_key(&id))?.is_some() {
            let why =
                format!("conversation {id:?} was deleted, and clients may have messages of it: choose another id");
            return Err(Refusal::new(ErrorCode::Conflict, why));
        }
        check_name("name", new.name.as_deref())?;
        check_name("avatar", new.avatar.as_deref())?;
        let attributes = check_attributes(new.attributes.as_ref())?;
        if new.members.len() > MEMBERS_BATCH_MAX {
            return Err(Refusal::limit("first members", MEMBERS_BATCH_MAX as u64, new.members.len() as u64));
        }
        let owner = match actor {
            Actor::User(user) => match new.owner {
                Some(owner) if owner != user.id => {
                    return Err(Refusal::new(ErrorCode::Forbidden, "owner: a user creates groups of their own"));
                }
                _ => Some(user.no),
            },
            Actor::App => new.owner.map(|owner| self.directory.require_user(&owner)).transpose()?.map(|u| u.no),
        };
        if let Actor::User(user) = actor {
            self.check_group_limits(user, &id, &new.members)?;
        }
        if new.blocks.is_some() {
            self.gates.require(Gate::UserSafety)?;
        }
        let mut members: Vec<(UserNo, Role)> = owner.map(|no| (no, Role::Owner)).into_iter().collect();
        let mut known: HashSet<UserNo> = owner.into_iter().collect();
        for member in &new.members {
            let no = self.require_user_no(member)?;
            if known.insert(no) {
                members.push((no, Role::Member));
            }
        }
        Ok(NewConversation {
            id,
            kind: new.kind,
            pair: None,
            name: new.name,
            avatar: new.avatar,
            attributes,
            members,
            settings: ConversationSettings {
                receipts: new.receipts,
                history: new.history,
                mention_all: new.mention_all,
                reactions: new.reactions,
                blocks: new.blocks,
                posting: new.posting,
                slow_mode_s: new.slow_mode_s,
                join_requests: new.join_requests,
                expires: new.expires.map(stored_expiry),
                retention: None,
                importing: None,
                deleted: None,
            },
        })
    }

    async fn create_direct(
        &self,
        actor: &Actor,
        new: CreateConversation,
    ) -> Result<(ConversationDetails, bool), Refusal> {
        new.reactions.as_ref().map_or(Ok(()), check_allowed_reactions)?;
        self.check_posting(new.kind, new.posting, new.slow_mode_s, new.join_requests)?;
        self.check_default_expiry(new.expires)?;
        let (first, second) = check_new_direct(&new)?;
        if let Actor::User(user) = actor
            && user.id != *first
            && user.id != *second
        {
            // An agent opens conversations of the account.
            for (account, with) in [(first, second), (second, first)] {
                if let Some(account) = self.as_account_named(user, account)? {
                    return self.open_own_direct(&Actor::User(account.clone()), &account, with).await;
                }
            }
            return Err(Refusal::new(ErrorCode::Forbidden, "members: a user opens direct conversations of their own"));
        }
        let first = self.directory.require_user(first)?;
        self.open_own_direct(actor, &first, second).await
    }

    async fn open_own_direct(
        &self,
        actor: &Actor,
        first: &Arc<User>,
        second: &str,
    ) -> Result<(ConversationDetails, bool), Refusal> {
        let existed = self.directory.conversation_by_id(&tidings_protocol::ids::direct_id(&first.id, second));
        let existed = existed.map_err(store_refusal)?.is_some();
        if !existed {
            self.check_may_open(actor, first, second)?;
        }
        let conversation = self.open_direct(actor, first, second).await?;
        Ok((self.details_of(&conversation)?, !existed))
    }

    fn require_user_no(&self, id: &str) -> Result<UserNo, Refusal> {
        self.directory.user_no(id).map_err(store_refusal)?.ok_or_else(|| Refusal::not_found("user", id))
    }

    pub(crate) fn details_of(&self, conversation: &Conversation) -> Result<ConversationDetails, Refusal> {
        let head = self.store.head(conversation.no).map_err(store_refusal)?;
        Ok(details_with(conversation, head))
    }

    /// The details of a conversation.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `store_unavailable`.
    pub fn conversation_details(&self, actor: &Actor, id: &str) -> Result<ConversationDetails, Refusal> {
        let (ref actor, conversation) = self.enter(actor, id)?;
        self.check_may_read(actor, &conversation)?;
        self.details_of(&conversation)
    }

    /// The actor's role, also in direct conversations, where both are members; app servers count as owners.
    pub(crate) fn role_of_reader(&self, actor: &Actor, conversation: &Conversation) -> Result<Role, Refusal> {
        actor.user().map_or(Ok(Role::Owner), |user| self.role_of_member(user, conversation))
    }

    /// The actor's role; app servers count as owners.
    pub(crate) fn role_of(&self, actor: &Actor, conversation: &Conversation) -> Result<Role, Refusal> {
        let Actor::User(user) = actor else { return Ok(Role::Owner) };
        let membership = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?;
        membership.map(|m| m.role).ok_or_else(|| not_a_member(&user.id, &conversation.id))
    }

    /// Changes the given fields of a conversation's details.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `invalid_field`, `limit_exceeded`; `rate_limited` for users;
    /// `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn update_conversation(
        &self,
        actor: &Actor,
        id: &str,
        update: UpdateConversation,
    ) -> Result<ConversationDetails, Refusal> {
        let (ref actor, conversation) = self.enter(actor, id)?;
        if self.role_of(actor, &conversation)? < Role::Admin {
            return Err(Refusal::new(
                ErrorCode::Forbidden,
                "only the owner and admins may change the conversation's details",
            ));
        }
        check_name("name", update.name.as_deref())?;
        check_name("avatar", update.avatar.as_deref())?;
        let attributes = check_attributes(update.attributes.as_ref())?;
        if update.mention_all.is_some() && conversation.kind == ConversationKind::Direct {
            return Err(Refusal::field("mention_all", MENTION_ALL_IN_DIRECT));
        }
        if update.blocks.is_some() {
            self.gates.require(Gate::UserSafety)?;
            if conversation.kind == ConversationKind::Direct {
                return Err(Refusal::field("blocks", BLOCKS_IN_DIRECT));
            }
        }
        self.check_posting(conversation.kind, update.posting, update.slow_mode_s, update.join_requests)?;
        self.check_default_expiry(update.expires)?;
        if update.retention.is_some() && actor.user().is_some() {
            return Err(Refusal::new(
                ErrorCode::Forbidden,
                "retention: app servers alone say how long messages are kept",
            ));
        }
        update.retention.map_or(Ok(()), |_| self.gates.require(Gate::DisappearingMessages))?;
        let retention = update.retention.map(stored_retention).transpose()?;
        if update == UpdateConversation::default() {
            return self.details_of(&conversation);
        }
        let mut notice = json!({ "name": update.name, "avatar": update.avatar, "by": actor.user().map(|u| &u.id) });
        if let Some(receipts) = update.receipts {
            notice["receipts"] = json!(receipts);
        }
        if let Some(history) = update.history {
            notice["history"] = json!(history);
        }
        if let Some(mention_all) = update.mention_all {
            notice["mention_all"] = json!(mention_all);
        }
        if let Some(blocks) = update.blocks {
            notice["blocks"] = json!(blocks);
        }
        if let Some(reactions) = &update.reactions {
            check_allowed_reactions(reactions)?;
            notice["reactions"] = json!(reactions);
        }
        if let Some(posting) = update.posting {
            notice["posting"] = json!(posting);
        }
        if let Some(slow_mode_s) = update.slow_mode_s {
            notice["slow_mode_s"] = json!(slow_mode_s);
        }
        if let Some(join_requests) = update.join_requests {
            notice["join_requests"] = json!(join_requests);
        }
        if let Some(expires) = update.expires {
            notice["expires"] = json!(expires);
        }
        if let Some(retention) = update.retention {
            notice["retention"] = json!(retention);
        }
        let mut entry = notice_entry(EntryKind::ConversationChange, actor, &notice);
        entry.details = self.desk_details(entry.kind, &conversation, actor.user().map(|user| &**user));
        let proposal = Proposal::UpdateConversation {
            conversation: conversation.no,
            name: update.name,
            avatar: update.avatar,
            attributes,
            settings: ConversationSettings {
                receipts: update.receipts,
                history: update.history,
                mention_all: update.mention_all,
                reactions: update.reactions,
                blocks: update.blocks,
                posting: update.posting,
                slow_mode_s: update.slow_mode_s,
                join_requests: update.join_requests,
                expires: update.expires.map(stored_expiry),
                retention,
                importing: None,
                deleted: None,
            },
            notice: Some(entry),
        };
        self.committer.propose(actor, Some(&conversation), proposal).await?;
        // Read again: the committer has invalidated the old details.
        self.conversation_details(&Actor::App, id)
    }

    /// Adds and removes members, or changes their roles.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `invalid_field`, `limit_exceeded`; `rate_limited` for
    /// users; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn change_members(
        &self,
        actor: &Actor,
        id: &str,
        change: ChangeMembers,
    ) -> Result<MembersChanged, Refusal> {
        let (ref actor, conversation) = self.enter(actor, id)?;
        if conversation.kind == ConversationKind::Direct {
            return Err(Refusal::new(ErrorCode::Conflict, "the members of a direct conversation cannot change"));
        }
        let asked = change.add.len() + change.remove.len();
        if asked > MEMBERS_BATCH_MAX {
            return Err(Refusal::limit("members in one change", MEMBERS_BATCH_MAX as u64, asked as u64));
        }
        if let Some(both) = in_both(&change.add, &change.remove) {
            return Err(Refusal::field("remove", format!("{both:?} is also in add")));
        }
        self.check_may_change(actor, &conversation, &change)?;
        let mut add = Vec::with_capacity(change.add.len());
        let (mut added, mut changed) = (NoticeUsers::default(), NoticeUsers::default());
        let mut seen = HashSet::new();
        let mut newcomers = Vec::new();
        for id in &change.add {
            let no = self.require_user_no(id)?;
            if !seen.insert(no) {
                continue;
            }
            let membership = self.directory.membership(conversation.no, no).map_err(store_refusal)?;
            match (membership, change.role) {
                (None, _) => {
                    added.count(id);
                    newcomers.push((no, id.as_str()));
                }
                // Without a role in the request, present members keep theirs.
                (Some(_), None) => continue,
                (Some(membership), Some(role)) if membership.role == role => continue,
                (Some(_), Some(_)) => changed.count(id),
            }
            add.push((no, change.role.unwrap_or(Role::Member)));
        }
        if let Actor::User(user) = actor {
            self.check_addition_limits(user, &newcomers)?;
        }
        let mut remove = Vec::with_capacity(change.remove.len());
        let mut removed = NoticeUsers::default();
        for id in &change.remove {
            let no = self.require_user_no(id)?;
            let is_member = self.directory.membership(conversation.no, no).map_err(store_refusal)?.is_some();
            if seen.insert(no) && is_member {
                removed.count(id);
                remove.push(no);
            }
        }
        let notice = json!({
            "added": added.ids,
            "added_count": added.total,
            "removed": removed.ids,
            "removed_count": removed.total,
            "changed": changed.ids,
            "changed_count": changed.total,
            "role": change.role,
            "by": actor.user().map(|u| &u.id),
        });
        self.propose_members(actor, &conversation, MemberChange { add, remove, ..MemberChange::default() }, notice)
            .await
    }

    /// Proposes a change of members with its notice, and names who owns the conversation afterwards if an owner leaves by it.
    pub(crate) async fn propose_members(
        &self,
        actor: &Actor,
        conversation: &Arc<Conversation>,
        change: MemberChange,
        mut notice: serde_json::Value,
    ) -> Result<MembersChanged, Refusal> {
        for attempt in 1.. {
            let heir = self.heir_without(actor, conversation, &change.add, &change.remove)?;
            let new_owner = heir.as_ref().filter(|(_, role)| *role < Role::Owner);
            match (new_owner, notice.as_object_mut()) {
                (Some((heir, _)), Some(fields)) => drop(fields.insert("owner".into(), json!(heir.id))),
                (None, Some(fields)) => drop(fields.remove("owner")),
                (_, None) => {}
            }
            let with_heir = MemberChange { heir: heir.as_ref().map(|(heir, _)| heir.no), ..change.clone() };
            match self.commit_members(actor, conversation, with_heir, Some(&notice)).await {
                // The heir has left meanwhile: another one is looked for.
                Err(refusal)
                    if heir.is_some() && refusal.code == ErrorCode::NotAMember && attempt < HEIRS_TRIED_MAX => {}
                done => return done,
            }
        }
        Err(unexpected_outcome())
    }

    /// Commits a change of members with its notice.
    pub(crate) async fn commit_members(
        &self,
        actor: &Actor,
        conversation: &Arc<Conversation>,
        MemberChange { add, remove, heir, act }: MemberChange,
        notice: Option<&serde_json::Value>,
    ) -> Result<MembersChanged, Refusal> {
        let proposal = Proposal::ChangeMembers {
            conversation: conversation.no,
            add,
            remove,
            heir,
            act: act.map(Box::new),
            members_max: match conversation.kind {
                ConversationKind::Official => u64::MAX,
                _ => GROUP_MEMBERS_MAX,
            },
            // Followers of an official account need not know of other followers.
            notice: notice
                .filter(|_| conversation.kind == ConversationKind::Group)
                .map(|notice| notice_entry(EntryKind::MemberChange, actor, notice)),
        };
        match self.committer.propose(actor, Some(conversation), proposal).await? {
            Outcome::MembersChanged { added, removed, changed, member_count, .. } => {
                let (added, removed, changed) = (added.len(), removed.len(), changed.len());
                Ok(MembersChanged { added, removed, changed, member_count })
            }
            _ => Err(unexpected_outcome()),
        }
    }

    /// Who owns a group that an owner leaves, with the role until then, so that somebody can give roles: an owner who stays, or else
    /// the admin who has been there the longest, or else the member. The commit checks that the user is still there. `None` if no owner
    /// leaves, another one is named, or nobody is left. An owner who takes the role from herself leaves it as well.
    pub(crate) fn heir_without(
        &self,
        actor: &Actor,
        group: &Conversation,
        add: &[(UserNo, Role)],
        remove: &[UserNo],
    ) -> Result<Option<(Arc<User>, Role)>, Refusal> {
        let names_owner = add.iter().any(|(_, role)| *role == Role::Owner);
        let owner_leaves = |user: &UserNo| {
            let membership = self.directory.membership(group.no, *user).map_err(store_refusal)?;
            Ok(membership.is_some_and(|membership| membership.role == Role::Owner))
        };
        let steps_down = |(user, _): &&(UserNo, Role)| actor.user().is_some_and(|actor| actor.no == *user);
        let stepping_down = add.iter().filter(steps_down).map(|(user, _)| user);
        let leaving: HashSet<UserNo> = remove.iter().chain(stepping_down).copied().collect();
        let leaves = leaving.iter().map(owner_leaves).collect::<Result<Vec<bool>, Refusal>>()?.contains(&true);
        if group.kind != ConversationKind::Group || names_owner || !leaves {
            return Ok(None);
        }
        let mut heir: Option<(Role, Reverse<u64>, Reverse<UserNo>)> = None;
        let mut after = None;
        loop {
            let page = self.store.members(group.no, after, MEMBERS_PAGE_MAX).map_err(store_refusal)?;
            after = page.last().map(|(user, _)| *user);
            for (user, membership) in page.iter().filter(|(user, _)| !leaving.contains(user)) {
                heir = heir.max(Some((membership.role, Reverse(membership.joined_at), Reverse(*user))));
            }
            if page.len() < MEMBERS_PAGE_MAX || heir.is_some_and(|(role, ..)| role == Role::Owner) {
                break;
            }
        }
        let Some((role, _, Reverse(user))) = heir else { return Ok(None) };
        Ok(self.directory.user(user).map_err(store_refusal)?.map(|user| (user, role)))
    }

    /// Anyone may leave, and follow an official account; admins change members, and the owner changes roles.
    fn check_may_change(
        &self,
        actor: &Actor,
        conversation: &Conversation,
        change: &ChangeMembers,
    ) -> Result<(), Refusal> {
        let Actor::User(user) = actor else { return Ok(()) };
        let only_self = |ids: &[String]| ids.iter().all(|id| *id == user.id);
        let official = conversation.kind == ConversationKind::Official;
        let plain = change.role.unwrap_or(Role::Member) == Role::Member;
        let may_join = change.add.is_empty() || (official && plain && only_self(&change.add));
        if may_join && only_self(&change.remove) {
            return Ok(());
        }
        let role = self.role_of(actor, conversation)?;
        if role < Role::Admin {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins may change members"));
        }
        if change.role.is_some() && role < Role::Owner {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the owner may change roles"));
        }
        for id in &change.remove {
            let no = self.require_user_no(id)?;
            let other = self.directory.membership(conversation.no, no).map_err(store_refusal)?;
            if *id != user.id && other.is_some_and(|m| m.role >= role) {
                return Err(Refusal::new(
                    ErrorCode::Forbidden,
                    format!("remove: {id:?} has the same role as you, or a higher one"),
                ));
            }
        }
        Ok(())
    }

    /// Members in the order in which their users were created.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `limit_exceeded`; `forbidden` for followers of an official account; `store_unavailable`.
    pub fn members(&self, actor: &Actor, id: &str, after: Option<&str>, limit: usize) -> Result<MemberPage, Refusal> {
        let (ref actor, conversation) = self.enter(actor, id)?;
        self.check_may_read(actor, &conversation)?;
        check_may_know_followers(&conversation, self.role_of_reader(actor, &conversation)?)?;
        let limit = if limit == 0 { MEMBERS_PAGE_DEFAULT } else { limit };
        if limit > MEMBERS_PAGE_MAX {
            return Err(Refusal::limit("limit (members)", MEMBERS_PAGE_MAX as u64, limit as u64));
        }
        let after = after.map(|id| self.require_user_no(id)).transpose()?;
        let page = self.store.members(conversation.no, after, limit + 1).map_err(store_refusal)?;
        let more = page.len() > limit;
        let mut members = Vec::with_capacity(limit);
        for (no, membership) in page.into_iter().take(limit) {
            if let Some(user) = self.directory.user(no).map_err(store_refusal)? {
                let UserCard { id: user, name, avatar } = user.card();
                let muted = membership.restricted && self.is_muted(&conversation, no)?;
                let Membership { role, joined_at, .. } = membership;
                members.push(MemberView { user, name, avatar, role, joined_at, muted });
            }
        }
        let next = members.last().filter(|_| more).map(|member| member.user.clone());
        Ok(MemberPage { members, next })
    }

    /// Mutes a conversation for a user, for good or until a time: no offline push; or ends the mute.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn set_mute(&self, user: &Arc<User>, conversation: &str, mute: Mute) -> Result<(), Refusal> {
        let (ref user, conversation) = self.enter_as(user, conversation)?;
        let mute = match mute {
            Mute { muted: false, .. } => MuteState::Off,
            Mute { until: None, .. } => MuteState::Forever,
            Mute { until: Some(end), .. } => MuteState::Until(end),
        };
        let proposal = Proposal::SetMute { conversation: conversation.no, user: user.no, mute };
        self.committer.propose_untold(None, proposal).await?;
        Ok(())
    }

    /// Moves a read mark forward, and tells the user's other sessions.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn mark_read(&self, user: &Arc<User>, conversation: &str, seq: u64) -> Result<ReadMark, Refusal> {
        let (ref user, conversation) = self.enter_as(user, conversation)?;
        let proposal = Proposal::MarkRead { conversation: conversation.no, user: user.no, seq };
        let outcome = self.committer.propose_untold(Some(&conversation), proposal).await?;
        let Outcome::Read { seq, .. } = outcome else { return Err(unexpected_outcome()) };
        let Some(line) = self.list_line(user.no, &conversation)? else {
            return Ok(ReadMark { conversation: conversation.id.clone(), seq, unread: 0 });
        };
        if line.preferences.marked_unread {
            let patch = PreferencesPatch { marked_unread: Some(false), ..PreferencesPatch::default() };
            let proposal = Proposal::SetPreferences { conversation: conversation.no, user: user.no, patch };
            self.committer.propose_untold(None, proposal).await?;
        }
        let unread = self.unread(user, &[line])?.first().map_or(0, |unread| unread.count);
        Ok(ReadMark { conversation: conversation.id.clone(), seq, unread })
    }
}

/// Who is added with which role, who is removed, who owns the conversation afterwards, and what else becomes of one user.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemberChange {
    pub(crate) add: Vec<(UserNo, Role)>,
    pub(crate) remove: Vec<UserNo>,
    pub(crate) heir: Option<UserNo>,
    pub(crate) act: Option<MemberAct>,
}

/// The users of a notice: the ids of the first few, and the number of all.
#[derive(Default)]
struct NoticeUsers<'a> {
    ids: Vec<&'a str>,
    total: usize,
}

impl<'a> NoticeUsers<'a> {
    fn count(&mut self, id: &'a str) {
        self.total += 1;
        if self.ids.len() < NOTICE_IDS_MAX {
            self.ids.push(id);
        }
    }
}

fn in_both<'a>(add: &'a [String], remove: &[String]) -> Option<&'a String> {
    let remove: HashSet<&String> = remove.iter().collect();
    add.iter().find(|id| remove.contains(id))
}

/// The two users of a direct conversation that is to be created; it begins with nothing else.
pub(crate) fn check_new_direct(new: &CreateConversation) -> Result<(&String, &String), Refusal> {
    let ([first, second], None) = (new.members.as_slice(), &new.id) else {
        return Err(Refusal::field("members", "a direct conversation has two members, and no id of its own"));
    };
    if new.history.is_some() {
        return Err(Refusal::field("history", "the users of a direct conversation may always read all of it"));
    }
    if new.mention_all.is_some() {
        return Err(Refusal::field("mention_all", MENTION_ALL_IN_DIRECT));
    }
    if new.blocks.is_some() {
        return Err(Refusal::field("blocks", BLOCKS_IN_DIRECT));
    }
    if new.reactions.is_some() {
        let why = "a direct conversation begins with any; an app server changes it later";
        return Err(Refusal::field("reactions", why));
    }
    if new.receipts.is_some() {
        return Err(Refusal::field(
            "receipts",
            "a direct conversation begins with members; an app server changes it later",
        ));
    }
    if new.expires.is_some() {
        let why = "a direct conversation begins without; an app server changes it later";
        return Err(Refusal::field("expires", why));
    }
    if new.owner.is_some() || new.name.is_some() || new.avatar.is_some() || new.attributes.is_some() {
        return Err(Refusal::field("kind", "a direct conversation has no owner, title or avatar of its own"));
    }
    Ok((first, second))
}

pub(crate) fn notice_entry(kind: EntryKind, actor: &Actor, body: &serde_json::Value) -> NewEntry {
    NewEntry {
        kind,
        sender: actor.user().map(|u| Sender { no: u.no, id: u.id.clone() }),
        client_msg_id: None,
        content_type: "notice".into(),
        body: body.to_string().into(),
        mentions: vec![],
        silent: true,
        skip_push: true,
        details: None,
        request: EntryRequest::default(),
    }
}
