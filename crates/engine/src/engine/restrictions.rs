//! Mutes and bans of users in a conversation, by its owner and admins and by app servers; who may send there; and to whom the owner
//! hands it over.

use super::conversations::MemberChange;
use crate::{Engine, paging::page_limit};
use serde_json::{Value, json};
use tidings_domain::{
    gates::Gate,
    model::*,
    refusals::store_refusal,
    restrictions::{Restriction, Restrictions, restrictions_after},
    row_keys::number_in,
    store::{MemberAct, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::{REASON_BYTES_MAX, SLOW_MODE_S_MAX},
};

/// Restrictions in a page when the caller gives no limit.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

impl Engine {
    /// Checks the settings of who may send and how often, and whether users may ask to join.
    pub(crate) fn check_posting(
        &self,
        kind: ConversationKind,
        posting: Option<Posting>,
        slow_mode_s: Option<u32>,
        join_requests: Option<bool>,
    ) -> Result<(), Refusal> {
        if posting.is_none() && slow_mode_s.is_none() && join_requests.is_none() {
            return Ok(());
        }
        self.gates.require(Gate::MemberRights)?;
        if kind != ConversationKind::Group {
            let field = match (posting, slow_mode_s) {
                (Some(_), _) => "posting",
                (None, Some(_)) => "slow_mode_s",
                (None, None) => "join_requests",
            };
            return Err(Refusal::field(field, "is for groups alone"));
        }
        match slow_mode_s {
            Some(seconds) if seconds > SLOW_MODE_S_MAX => {
                Err(Refusal::limit("slow_mode_s", u64::from(SLOW_MODE_S_MAX), u64::from(seconds)))
            }
            _ => Ok(()),
        }
    }

    /// Whether a member with restrictions is muted now.
    pub(crate) fn is_muted(&self, conversation: &Conversation, user: UserNo) -> Result<bool, Refusal> {
        let restrictions = self.directory.restrictions(conversation.no, user).map_err(store_refusal)?;
        Ok(restrictions.holding(RestrictionKind::Mute, self.clock.now_ms()).is_some())
    }

    /// Mutes or bans a user in a conversation, in place of a former mute or ban.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `invalid_field`, `limit_exceeded`; `rate_limited` for users;
    /// `not_yet_enabled`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn restrict(&self, actor: &Actor, id: &str, user: &str, request: Restrict) -> Result<(), Refusal> {
        let Restrict { kind, until, reason, by } = request;
        check_words("reason", reason.as_deref(), REASON_BYTES_MAX)?;
        let now_ms = self.clock.now_ms();
        if until.is_some_and(|until| until <= now_ms) {
            return Err(Refusal::field("until", "lies in the past"));
        }
        let by = self.acting_user(actor, by)?.map(|user| user.id.clone());
        let restriction = Restriction { at: now_ms, until, by, reason };
        self.change_restriction(actor, id, user, kind, Some(restriction)).await
    }

    /// Lifts a mute or a ban. If there is none, nothing happens.
    ///
    /// # Errors
    /// Those of [`Engine::restrict`].
    pub async fn lift_restriction(
        &self,
        actor: &Actor,
        id: &str,
        user: &str,
        kind: RestrictionKind,
    ) -> Result<(), Refusal> {
        self.change_restriction(actor, id, user, kind, None).await
    }

    async fn change_restriction(
        &self,
        actor: &Actor,
        id: &str,
        user: &str,
        kind: RestrictionKind,
        restriction: Option<Restriction>,
    ) -> Result<(), Refusal> {
        self.gates.require(Gate::MemberRights)?;
        let (ref actor, conversation) = self.enter(actor, id)?;
        if conversation.kind == ConversationKind::Direct {
            return Err(Refusal::new(ErrorCode::Conflict, "nobody is muted or banned in a direct conversation"));
        }
        let role = self.role_of(actor, &conversation)?;
        if role < Role::Admin {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins may mute and ban"));
        }
        let target = self.directory.require_user(user)?;
        let membership = self.directory.membership(conversation.no, target.no).map_err(store_refusal)?;
        if let (Actor::User(_), Some(membership)) = (actor, &membership)
            && membership.role >= role
        {
            let why = format!("{user:?} has the same role as you, or a higher one");
            return Err(Refusal::new(ErrorCode::Forbidden, why));
        }
        let removes = kind == RestrictionKind::Ban && restriction.is_some() && membership.is_some();
        let by = restriction.as_ref().map_or(actor.user().map(|user| &user.id), |restriction| restriction.by.as_ref());
        let word = match (kind, &restriction) {
            (RestrictionKind::Mute, Some(_)) => "muted",
            (RestrictionKind::Mute, None) => "unmuted",
            (RestrictionKind::Ban, Some(_)) => "banned",
            (RestrictionKind::Ban, None) => "unbanned",
        };
        let removed = if removes { vec![user] } else { vec![] };
        let mut notice = member_notice(&[], &removed, &[], by);
        notice[word] = json!([user]);
        if let Some(Restriction { until, reason, .. }) = &restriction {
            notice["until"] = json!(until);
            notice["reason"] = json!(reason);
        }
        let change = MemberChange {
            remove: if removes { vec![target.no] } else { vec![] },
            act: Some(MemberAct::Restrict { user: target.no, kind, restriction }),
            ..MemberChange::default()
        };
        self.propose_members(actor, &conversation, change, notice).await.map(drop)
    }

    /// The mutes and bans that hold in a conversation, in the order in which their users were created.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `limit_exceeded`; `store_unavailable`.
    pub fn restrictions(
        &self,
        actor: &Actor,
        id: &str,
        kind: Option<RestrictionKind>,
        (after, limit): (Option<&str>, usize),
    ) -> Result<RestrictionPage, Refusal> {
        let (ref actor, conversation) = self.enter(actor, id)?;
        if self.role_of_reader(actor, &conversation)? < Role::Admin {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins see who is muted and banned"));
        }
        let limit = page_limit(limit, PAGE_DEFAULT, PAGE_MAX)?;
        let after = after.map(|id| self.directory.require_user(id)).transpose()?;
        let (from, to) = restrictions_after(conversation.no, after.map(|user| user.no));
        let rows = self.store.rows(RowSpace::Chat, &from, &to, limit).map_err(store_refusal)?;
        let now_ms = self.clock.now_ms();
        let (mut found, mut last) = (Vec::new(), None);
        for (key, row) in &rows {
            let Some(no) = number_in(key, 1) else { continue };
            let Some(user) = self.directory.user(UserNo(no)).map_err(store_refusal)? else { continue };
            let restrictions = Restrictions::decode(Some(row)).map_err(store_refusal)?;
            let kinds = [RestrictionKind::Mute, RestrictionKind::Ban];
            for of_kind in kinds.into_iter().filter(|of_kind| kind.is_none_or(|kind| kind == *of_kind)) {
                if let Some(Restriction { at, until, by, reason }) = restrictions.holding(of_kind, now_ms).cloned() {
                    found.push(RestrictionView { user: user.id.clone(), kind: of_kind, at, until, by, reason });
                }
            }
            last = Some(user.id.clone());
        }
        Ok(RestrictionPage { restrictions: found, next: last.filter(|_| rows.len() == limit) })
    }

    /// Hands a conversation over: a member becomes its owner, and the owner an admin, in one.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `invalid_field`; `rate_limited` for users; `queue_full`,
    /// `store_unavailable` and `draining`: nothing was stored.
    pub async fn hand_over(&self, actor: &Actor, id: &str, request: HandOver) -> Result<MembersChanged, Refusal> {
        let (ref actor, conversation) = self.enter(actor, id)?;
        if conversation.kind == ConversationKind::Direct {
            return Err(Refusal::new(ErrorCode::Conflict, "a direct conversation has no owner"));
        }
        if self.role_of(actor, &conversation)? < Role::Owner {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the owner may hand the conversation over"));
        }
        let from = self.acting_user(actor, request.from)?;
        let to = self.directory.require_user(&request.to)?;
        if from.as_ref().is_some_and(|from| from.no == to.no) {
            return Err(Refusal::field("to", "is the owner already"));
        }
        let membership = self.directory.membership(conversation.no, to.no).map_err(store_refusal)?;
        if membership.is_none() {
            return Err(Refusal::field("to", format!("{:?} is not a member of the conversation", to.id)));
        }
        let changed: Vec<&str> = from.iter().chain([&to]).map(|user| user.id.as_str()).collect();
        let mut notice = member_notice(&[], &[], &changed, actor.user().map(|user| &user.id));
        notice["owner"] = json!(to.id);
        let act = from.map(|from| MemberAct::StepDown(from.no));
        let change = MemberChange { heir: Some(to.no), act, ..MemberChange::default() };
        self.commit_members(actor, &conversation, change, Some(&notice)).await
    }
}

/// Checks words of a user or an admin. Their length is that in JSON, in which rows have them: without control characters but line ends
/// and tabs, which would take six bytes each.
pub(crate) fn check_words(field: &str, words: Option<&str>, bytes_max: usize) -> Result<(), Refusal> {
    let words = words.unwrap_or_default();
    if words.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        return Err(Refusal::field(field, "has a control character"));
    }
    let escaped = words.bytes().filter(|byte| matches!(byte, b'"' | b'\\' | b'\n' | b'\r' | b'\t')).count();
    match words.len() + escaped {
        bytes if bytes <= bytes_max => Ok(()),
        bytes => Err(Refusal::limit(&format!("{field} (bytes as JSON)"), bytes_max as u64, bytes as u64)),
    }
}

/// The notice of a change of members, without what only some have.
pub(crate) fn member_notice(added: &[&str], removed: &[&str], changed: &[&str], by: Option<&String>) -> Value {
    json!({
        "added": added,
        "added_count": added.len(),
        "removed": removed,
        "removed_count": removed.len(),
        "changed": changed,
        "changed_count": changed.len(),
        "role": null,
        "by": by,
    })
}
