//! How often users may open conversations and add others to them, by token. App servers are not limited: the
//! business decides for whom they open conversations.
//!
//! Three rate limits apply to each user, each with a burst: conversations that the user opens, members that the user
//! adds, and conversations into which strangers draw the user. A stranger is anyone without a direct conversation with
//! the user.

use crate::{config::LimitsConfig, engine::Engine};
use tidings_domain::{model::*, refusals::store_refusal, user_limiter::UserLimiter};
use tidings_protocol::{error::Refusal, ids::direct_id};

/// The limiter of conversations.
pub(crate) struct ConversationLimiters {
    openings: UserLimiter,
    additions: UserLimiter,
    strangers: UserLimiter,
}

impl ConversationLimiters {
    pub(crate) fn new(config: &LimitsConfig) -> Self {
        ConversationLimiters {
            openings: UserLimiter::new(config.openings),
            additions: UserLimiter::new(config.additions),
            strangers: UserLimiter::new(config.strangers),
        }
    }
}

impl Engine {
    /// Takes a new direct conversation from the rates of both users.
    pub(crate) fn check_opening_limits(&self, user: &User, with: &str) -> Result<(), Refusal> {
        let other = self.directory.require_user(with)?;
        self.limits.openings.take(user.no, 1, opened_too_many)?;
        if other.no == user.no {
            return Ok(());
        }
        self.limits.strangers.take(other.no, 1, || approached_too_often(with))
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
        match places.len() < most {
            true => Ok(()),
            false => Err(Refusal::limit(
                &format!("groups of {id:?} that other users may add them to"),
                most as u64,
                most as u64 + 1,
            )),
        }
    }
}

fn opened_too_many() -> String {
    "conversations: you open too many".into()
}

fn approached_too_often(id: &str) -> String {
    format!("{id:?} is drawn into conversations by strangers too often")
}
