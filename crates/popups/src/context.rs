//! The user context: what a decision needs to know of the user beside the question and the frequency counters. A
//! decision in memory never reads it from the store; here it is loaded.

use super::{PopupService, UserKey, configuration::Placement, rules::Attributes};
use std::sync::Arc;
use tidings_domain::model::User as UserRow;
use tidings_protocol::{error::Refusal, ids::check_id};

/// What a decision needs to know of the user: only what the rules of the placement look at is loaded.
#[derive(Debug, Clone, Default)]
pub struct UserContext {
    /// When the user's oldest unread direct message was sent, in milliseconds since 1970 UTC.
    pub(super) unread_since: Option<u64>,
    pub(super) profile: Option<Arc<UserRow>>,
}

/// The parts of the user context that a decision lacks, beside the frequency counters. [`PopupService::load_user_context`]
/// loads all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingContext {
    pub(super) unread: bool,
    pub(super) profile: bool,
}

impl UserContext {
    pub(super) const NONE: &'static UserContext = &UserContext { unread_since: None, profile: None };

    /// The attributes of the user's profile, parsed.
    pub(super) fn profile_attributes(&self) -> Option<Attributes<'_>> {
        self.profile.as_ref().and_then(|profile| profile.attributes()).map(Attributes::of_profile)
    }
}

impl Placement {
    /// The context that the rules of this placement look at.
    pub(super) fn required_context(&self) -> MissingContext {
        MissingContext { unread: self.needs_unread, profile: self.needs_profile }
    }
}

impl MissingContext {
    pub(super) fn is_empty(self) -> bool {
        !self.unread && !self.profile
    }
}

impl PopupService {
    /// Loads the frequency counters of a user into memory, and the user context that a decision lacks. Blocks.
    ///
    /// # Errors
    /// The user's id is malformed, another node leads, or the store cannot be read.
    pub fn load_user_context(&self, user: &str, missing: MissingContext) -> Result<UserContext, Refusal> {
        check_id("user", user)?;
        self.shared()?.load_counters(UserKey::of(user))?;
        self.read_context(user, missing)
    }

    /// The user context, if the caches have all of it.
    pub(super) fn cached_context(&self, user: &str, missing: MissingContext) -> Option<UserContext> {
        let mut context = UserContext::default();
        if !missing.is_empty() {
            let known = self.users.cached_profile(user)?;
            if missing.unread {
                context.unread_since = self.users.cached_unread_since(known.no)?;
            }
            context.profile = missing.profile.then_some(known);
        }
        Some(context)
    }

    /// The user context from the caches and the store. Blocks.
    pub(super) fn read_context(&self, user: &str, missing: MissingContext) -> Result<UserContext, Refusal> {
        let mut context = UserContext::default();
        if !missing.is_empty() {
            let known = self.users.profile(user)?;
            if let Some(known) = &known
                && missing.unread
            {
                context.unread_since = self.users.unread_since(known.no)?;
            }
            context.profile = known.filter(|_| missing.profile);
        }
        Ok(context)
    }
}
