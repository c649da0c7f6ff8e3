//! How often users may send, open conversations and add others to them, by token. App servers are not limited: the
//! business decides for whom they open conversations.
//!
//! Beside that of sends, three rate limits apply to each user, each with a burst: conversations that the user opens, members that the user
//! adds, and conversations into which strangers draw the user. A stranger is anyone without a direct conversation with
//! the user.

use crate::{Engine, config::LimitsConfig, desks::AccountDesk};
use quick_cache::sync::Cache;
use std::sync::Arc;
use tidings_domain::{clock::Clock, model::*, refusals::store_refusal, user_limiter::UserLimiter};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::OpenTo,
    ids::direct_id,
};

/// Openings that are remembered as taken. One that is forgotten is taken again if it is tried again.
const OPENINGS_REMEMBERED: usize = 10_000;

/// The limiter of conversations.
pub(crate) struct ConversationLimiters {
    /// Openings that were taken from the rates: by whom, of which two users. Messages that open a conversation may wait for
    /// the commit of the first, or be refused at theirs; they take it once.
    openings_taken: Cache<(UserNo, UserNo, UserNo), ()>,
    openings: UserLimiter,
    additions: UserLimiter,
    strangers: UserLimiter,
}

impl ConversationLimiters {
    pub(crate) fn new(config: &LimitsConfig, clock: &Arc<dyn Clock>) -> Self {
        ConversationLimiters {
            openings_taken: Cache::new(OPENINGS_REMEMBERED),
            openings: UserLimiter::per_minute(config.openings, clock.clone()),
            additions: UserLimiter::per_minute(config.additions, clock.clone()),
            strangers: UserLimiter::per_minute(config.strangers, clock.clone()),
        }
    }
}

impl Engine {
    /// Takes a new direct conversation from the rates of both users.
    pub(crate) fn check_opening_limits(&self, user: &User, with: &str) -> Result<(), Refusal> {
        let other = self.directory.require_user(with)?;
        let desk = self.directory.desks.of_user(other.no);
        desk.as_ref().map_or(Ok(()), |desk| self.check_desk_is_open(user, desk))?;
        let opening = (user.person(), user.no, other.no);
        if self.limits.openings_taken.get(&opening).is_some() {
            return Ok(());
        }
        self.limits.openings.take(user.person(), 1, opened_too_many)?;
        if desk.is_none() && other.no != user.no {
            self.limits.strangers.take(other.no, 1, || approached_too_often(with))?;
        }
        self.limits.openings_taken.insert(opening, ());
        Ok(())
    }

    /// Whether an account lets this user open a conversation. Users have one each with it, so that there is no rate for all of
    /// them together: a stranger could use it up.
    fn check_desk_is_open(&self, user: &User, desk: &AccountDesk) -> Result<(), Refusal> {
        let is_open = match desk.desk.open_to {
            OpenTo::Anyone => true,
            OpenTo::Nobody => false,
            OpenTo::Followers => self.directory.membership(desk.account, user.no).map_err(store_refusal)?.is_some(),
        };
        match (is_open, desk.desk.open_to) {
            (true, _) => Ok(()),
            (false, OpenTo::Followers) => {
                Err(Refusal::new(ErrorCode::Forbidden, "only followers may open a conversation with this account"))
            }
            (false, _) => Err(Refusal::new(ErrorCode::Forbidden, "this account is not open to messages")),
        }
    }

    /// Takes a new group with these first members from the rates of the user and the members.
    pub(crate) fn check_group_limits(&self, user: &User, id: &str, members: &[String]) -> Result<(), Refusal> {
        // A group that exists stays as it is, with its members.
        if self.directory.conversation_by_id(id).map_err(store_refusal)?.is_some() {
            return Ok(());
        }
        let mut others = Vec::with_capacity(members.len());
        for id in members.iter().filter(|id| **id != user.id) {
            let no = self.directory.user_no(id).map_err(store_refusal)?;
            others.push((no.ok_or_else(|| Refusal::not_found("user", id))?, id.as_str()));
        }
        self.limits.openings.take(user.no, 1, opened_too_many)?;
        self.check_addition_limits(user, &others)
    }

    /// Takes new members from the rates of the user and the members.
    pub(crate) fn check_addition_limits(&self, user: &User, others: &[(UserNo, &str)]) -> Result<(), Refusal> {
        let others = others.iter().filter(|(no, _)| *no != user.no);
        self.limits.additions.take(user.no, others.clone().count(), || "members: you add too many".into())?;
        for (no, id) in others {
            let other = self.directory.user(*no).map_err(store_refusal)?;
            if other.is_some_and(|other| self.directory.has_blocked(&other, user.no).unwrap_or(true)) {
                return Err(Refusal::new(ErrorCode::Blocked, format!("{id:?} cannot be added")));
            }
            self.check_groups_per_user(*no, id)?;
            let direct = direct_id(&user.id, id);
            if self.directory.conversation_by_id(&direct).map_err(store_refusal)?.is_none() {
                self.limits.strangers.take(*no, 1, || approached_too_often(id))?;
            }
        }
        Ok(())
    }

    fn check_groups_per_user(&self, user: UserNo, id: &str) -> Result<(), Refusal> {
        let most = self.config.limits.groups_per_user;
        if most == 0 {
            return Ok(());
        }
        let places = self.store.conversations_of(user, false, most).map_err(store_refusal)?;
        if places.len() < most {
            Ok(())
        } else {
            Err(Refusal::limit(
                &format!("groups of {id:?} that other users may add them to"),
                most as u64,
                most as u64 + 1,
            ))
        }
    }
}

fn opened_too_many() -> String {
    "conversations: you open too many".into()
}

fn approached_too_often(id: &str) -> String {
    format!("{id:?} is drawn into conversations by strangers too often")
}
