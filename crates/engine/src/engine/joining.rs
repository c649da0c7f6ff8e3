//! How users become members by themselves: by the token of an invite, or by a request that the owner or an admin approves.

use super::{
    conversations::MemberChange,
    restrictions::{check_words, member_notice},
};
use crate::{Engine, paging::page_limit};
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    gates::Gate,
    joining::*,
    model::*,
    refusals::{proposal_refusal, store_refusal},
    row_keys::number_in,
    store::{MemberAct, Rejection, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{
        AskToJoin, ConversationDetails, InviteList, InviteView, JoinByInvite, JoinRequestPage, JoinRequestState,
        JoinRequestView, MadeInvite, MembersChanged, NewInvite, RefuseRequest,
    },
    limits::{INVITES_MAX, JOIN_REQUESTS_MAX, REASON_BYTES_MAX},
};

/// Begins every token: `invite_`, the numbers of the conversation and of the invite, and 256 random bits, in hexadecimal digits.
const TOKEN_PREFIX: &str = "invite_";
const NUMBER_DIGITS: usize = 16;

/// Requests in a page when the caller gives no limit.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

impl Engine {
    /// Makes an invite, whose token is in the answer and nowhere else.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `invalid_field`, `limit_exceeded`; `rate_limited` for users;
    /// `not_yet_enabled`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn create_invite(&self, actor: &Actor, id: &str, new: NewInvite) -> Result<MadeInvite, Refusal> {
        let NewInvite { expires_at, uses_max, by } = new;
        let (ref actor, conversation) = self.enter_to_admit(actor, id)?;
        let by = self.acting_user(actor, by)?;
        let now_ms = self.clock.now_ms();
        if expires_at.is_some_and(|end| end <= now_ms) {
            return Err(Refusal::field("expires_at", "lies in the past"));
        }
        if uses_max == Some(0) {
            return Err(Refusal::field("uses_max", "must be at least 1"));
        }
        let (number, secret): (u64, [u128; 2]) = (rand::random(), rand::random());
        let [high, low] = secret;
        let token = format!("{TOKEN_PREFIX}{:016x}{number:016x}{high:032x}{low:032x}", conversation.no.0);
        let by = by.map(|user| user.id.clone());
        let invite = Invite { number, digest: digest_of(&token), at: now_ms, by, expires_at, uses_max, uses: 0 };
        let view = view_of_invite(&invite);
        let act = MemberAct::Invite { invite, invites_max: INVITES_MAX };
        self.commit_act(actor, &conversation, vec![], act, None).await?;
        Ok(MadeInvite { token, invite: view })
    }

    /// Revokes an invite. Who has joined by it stays.
    ///
    /// # Errors
    /// Those of [`Engine::create_invite`].
    pub async fn revoke_invite(&self, actor: &Actor, id: &str, invite: &str) -> Result<(), Refusal> {
        let (ref actor, conversation) = self.enter_to_admit(actor, id)?;
        let number = u64::from_str_radix(invite, 16).map_err(|_| Refusal::not_found("invite", invite))?;
        self.commit_act(actor, &conversation, vec![], MemberAct::RevokeInvite(number), None).await.map(drop)
    }

    /// The invites of a conversation that hold.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`; `not_yet_enabled`; `store_unavailable`.
    pub fn invites(&self, actor: &Actor, id: &str) -> Result<InviteList, Refusal> {
        let (_, conversation) = self.enter_to_admit(actor, id)?;
        let now_ms = self.clock.now_ms();
        let invites = self.stored_invites(conversation.no)?;
        Ok(InviteList { invites: invites.iter().filter(|invite| invite.holds(now_ms)).map(view_of_invite).collect() })
    }

    /// Makes a user a member by the token of an invite; a member stays one.
    ///
    /// # Errors
    /// `not_found`: no invite has the token, or it has ended; `banned`, `forbidden`, `limit_exceeded`, `invalid_field`; `rate_limited` for
    /// users; `not_yet_enabled`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn join_by_invite(&self, actor: &Actor, request: JoinByInvite) -> Result<ConversationDetails, Refusal> {
        self.gates.require(Gate::MemberRights)?;
        let user = self.joining_user(actor, request.user)?;
        let no_such = || proposal_refusal(&Rejection::NoSuchInvite);
        let (conversation, number) = numbers_in(&request.token).ok_or_else(no_such)?;
        let invites = self.stored_invites(conversation)?;
        let digest = digest_of(&request.token);
        let known = invites.iter().any(|invite| invite.number == number && invite.digest == digest);
        let conversation = self.directory.conversation(conversation).map_err(store_refusal)?.filter(|_| known);
        let conversation = conversation.ok_or_else(no_such)?;
        let mut notice = member_notice(&[&user.id], &[], &[], actor.user().map(|user| &user.id));
        notice["invite"] = json!(id_of_invite(number));
        let act = MemberAct::JoinByInvite { user: user.no, invite: number };
        let add = vec![(user.no, Role::Member)];
        let is_member = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?.is_some();
        if !is_member {
            self.commit_act(actor, &conversation, add, act, Some(notice)).await?;
        }
        self.conversation_details(&Actor::App, &conversation.id)
    }

    /// Asks that a user become a member. Another request replaces the former one.
    ///
    /// # Errors
    /// `not_found`, `forbidden`: the conversation takes no requests; `banned`, `conflict`, `invalid_field`, `limit_exceeded`; `rate_limited`
    /// for users; `not_yet_enabled`; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn ask_to_join(&self, actor: &Actor, id: &str, request: AskToJoin) -> Result<(), Refusal> {
        self.gates.require(Gate::MemberRights)?;
        let AskToJoin { text, user } = request;
        check_words("text", text.as_deref(), REASON_BYTES_MAX)?;
        let (ref actor, conversation) = self.enter(actor, id)?;
        let user = self.joining_user(actor, user)?;
        check_is_group(&conversation)?;
        if conversation.settings.join_requests != Some(true) {
            return Err(Refusal::new(
                ErrorCode::Forbidden,
                "the conversation takes no requests: somebody in it may add you",
            ));
        }
        let request = JoinRequest { at: self.clock.now_ms(), text, refused: None };
        let act = MemberAct::Ask { user: user.no, request, waiting_max: JOIN_REQUESTS_MAX };
        self.commit_act(actor, &conversation, vec![], act, None).await.map(drop)
    }

    /// Grants a request that waits.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `banned`, `conflict`, `limit_exceeded`; `rate_limited` for users; `not_yet_enabled`;
    /// `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn approve_request(&self, actor: &Actor, id: &str, user: &str) -> Result<MembersChanged, Refusal> {
        let (ref actor, conversation) = self.enter_to_admit(actor, id)?;
        let user = self.directory.require_user(user)?;
        let is_member = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?.is_some();
        let add = if is_member { vec![] } else { vec![(user.no, Role::Member)] };
        let mut notice = member_notice(&[&user.id], &[], &[], actor.user().map(|user| &user.id));
        notice["approved"] = json!(true);
        let notice = (!is_member).then_some(notice);
        self.commit_act(actor, &conversation, add, MemberAct::Approve(user.no), notice).await
    }

    /// Refuses a request that waits, or withdraws the caller's own.
    ///
    /// # Errors
    /// Those of [`Engine::approve_request`].
    pub async fn refuse_request(
        &self,
        actor: &Actor,
        id: &str,
        user: &str,
        request: RefuseRequest,
    ) -> Result<(), Refusal> {
        check_words("reason", request.reason.as_deref(), REASON_BYTES_MAX)?;
        let own = actor.user().filter(|caller| caller.id == user);
        let (conversation, refused) = match own {
            Some(_) => {
                self.gates.require(Gate::MemberRights)?;
                (self.enter(actor, id)?.1, None)
            }
            None => {
                let by = actor.user().map(|user| user.id.clone());
                let refused = RefusedRequest { at: self.clock.now_ms(), by, reason: request.reason };
                (self.enter_to_admit(actor, id)?.1, Some(refused))
            }
        };
        let user = self.directory.require_user(user)?;
        let act = MemberAct::Decline { user: user.no, refused };
        self.commit_act(actor, &conversation, vec![], act, None).await.map(drop)
    }

    /// The requests of a conversation that wait.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `conflict`, `limit_exceeded`; `not_yet_enabled`; `store_unavailable`.
    pub fn join_requests(
        &self,
        actor: &Actor,
        id: &str,
        (after, limit): (Option<&str>, usize),
    ) -> Result<JoinRequestPage, Refusal> {
        let (_, conversation) = self.enter_to_admit(actor, id)?;
        let limit = page_limit(limit, PAGE_DEFAULT, PAGE_MAX)?;
        let after = after.map(|id| self.directory.require_user(id)).transpose()?;
        let (from, to) = join_requests_after(conversation.no, after.map(|user| user.no));
        let rows = self.store.rows(RowSpace::Chat, &from, &to, limit).map_err(store_refusal)?;
        let (mut requests, mut last) = (Vec::new(), None);
        for (key, row) in &rows {
            let Some(no) = number_in(key, 2) else { continue };
            let Some(user) = self.directory.user(UserNo(no)).map_err(store_refusal)? else { continue };
            last = Some(user.id.clone());
            let request = decode_request(row)?;
            let is_member = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?.is_some();
            requests.extend(
                view_of_request(&user, request).filter(|found| found.state == JoinRequestState::Waiting && !is_member),
            );
        }
        Ok(JoinRequestPage { requests, next: last.filter(|_| rows.len() == limit) })
    }

    /// What has become of a user's request: for that user, and for those who may answer it.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`; `not_yet_enabled`; `store_unavailable`.
    pub fn join_request(&self, actor: &Actor, id: &str, user: &str) -> Result<JoinRequestView, Refusal> {
        let is_own = actor.user().is_some_and(|caller| caller.id == user);
        let (_, conversation) = if is_own { self.enter(actor, id)? } else { self.enter_to_admit(actor, id)? };
        let user = self.directory.require_user(user)?;
        let row = self.store.row(RowSpace::Chat, &join_request_key(conversation.no, user.no)).map_err(store_refusal)?;
        let found =
            row.map(|row| decode_request(&row)).transpose()?.and_then(|request| view_of_request(&user, request));
        found.ok_or_else(|| Refusal::not_found("request of user", &user.id))
    }

    /// The conversation, if the caller may say who joins it.
    fn enter_to_admit(&self, actor: &Actor, id: &str) -> Result<(Actor, Arc<Conversation>), Refusal> {
        self.gates.require(Gate::MemberRights)?;
        let (actor, conversation) = self.enter(actor, id)?;
        check_is_group(&conversation)?;
        if self.role_of(&actor, &conversation)? < Role::Admin {
            return Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins may say who joins"));
        }
        Ok((actor, conversation))
    }

    fn joining_user(&self, actor: &Actor, named: Option<String>) -> Result<Arc<User>, Refusal> {
        self.acting_user(actor, named)?.ok_or_else(|| Refusal::field("user", "name the user who is to join"))
    }

    fn stored_invites(&self, conversation: ConversationNo) -> Result<Vec<Invite>, Refusal> {
        let row = self.store.row(RowSpace::Chat, &invites_key(conversation)).map_err(store_refusal)?;
        chat_rows::decode(row.as_deref()).map_err(store_refusal)
    }

    async fn commit_act(
        &self,
        actor: &Actor,
        conversation: &Arc<Conversation>,
        add: Vec<(UserNo, Role)>,
        act: MemberAct,
        notice: Option<Value>,
    ) -> Result<MembersChanged, Refusal> {
        let change = MemberChange { add, act: Some(act), ..MemberChange::default() };
        self.commit_members(actor, conversation, change, notice.as_ref()).await
    }
}

fn check_is_group(conversation: &Conversation) -> Result<(), Refusal> {
    match conversation.kind {
        ConversationKind::Group => Ok(()),
        ConversationKind::Direct | ConversationKind::Official => {
            Err(Refusal::new(ErrorCode::Conflict, "only groups have invites and requests"))
        }
    }
}

fn decode_request(row: &[u8]) -> Result<Option<JoinRequest>, Refusal> {
    chat_rows::decode(Some(row)).map_err(store_refusal)
}

fn view_of_request(user: &User, request: Option<JoinRequest>) -> Option<JoinRequestView> {
    let JoinRequest { at, text, refused } = request?;
    let state = if refused.is_some() { JoinRequestState::Refused } else { JoinRequestState::Waiting };
    let reason = refused.and_then(|refused| refused.reason);
    Some(JoinRequestView { user: user.id.clone(), at, text, state, reason })
}

fn id_of_invite(number: u64) -> String {
    format!("{number:016x}")
}

fn view_of_invite(invite: &Invite) -> InviteView {
    let Invite { number, at, by, expires_at, uses_max, uses, .. } = invite.clone();
    InviteView { id: id_of_invite(number), at, by, expires_at, uses_max, uses }
}

/// The numbers of the conversation and the invite in a token.
fn numbers_in(token: &str) -> Option<(ConversationNo, u64)> {
    let digits = token.strip_prefix(TOKEN_PREFIX)?;
    let number = |place: usize| u64::from_str_radix(digits.get(place..place + NUMBER_DIGITS)?, 16).ok();
    Some((ConversationNo(number(0)?), number(NUMBER_DIGITS)?))
}
