//! The user context: what a decision needs to know of the user beside the question and the frequency counters. A
//! decision in memory never reads it from the store; here it is loaded.

use super::{PopupService, UserKey, configuration::Placement, rules::Attributes};
use std::sync::Arc;
use tidings_domain::model::User as Card;
use tidings_protocol::{error::Refusal, ids::check_id};

/// What a decision needs to know of the user: only what the rules of the placement look at is loaded.
#[derive(Debug, Clone, Default)]
pub struct UserContext {
    /// When the user's oldest unread direct message was sent, in milliseconds since 1970 UTC.
    pub(super) unread_since: Option<u64>,
    pub(super) card: Option<Arc<Card>>,
}

/// The parts of the user context that a decision lacks, beside the frequency counters. [`PopupService::load_user_context`]
/// loads all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingContext {
    pub(super) unread: bool,
    pub(super) card: bool,
}

impl UserContext {
    pub(super) const NONE: &'static UserContext = &UserContext { unread_since: None, card: None };

    /// The attributes of the user's card, parsed.
    pub(super) fn card_attributes(&self) -> Option<Attributes<'_>> {
        self.card.as_ref().and_then(|card| card.attributes.as_deref()).map(Attributes::from_card)
    }
}

impl Placement {
    /// The context that the rules of this placement look at.
    pub(super) fn required_context(&self) -> MissingContext {
        MissingContext { unread: self.needs_unread, card: self.needs_card }
    }
}

impl MissingContext {
    pub(super) fn is_empty(self) -> bool {
        !self.unread && !self.card
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
            let known = self.users.cached_card(user)?;
            if missing.unread {
                context.unread_since = self.users.cached_unread_since(known.no)?;
            }
            context.card = missing.card.then_some(known);
        }
        Some(context)
    }

    /// The user context from the caches and the store. Blocks.
    pub(super) fn read_context(&self, user: &str, missing: MissingContext) -> Result<UserContext, Refusal> {
        let mut context = UserContext::default();
        if !missing.is_empty() {
            let known = self.users.card(user)?;
            if let Some(known) = &known
                && missing.unread
            {
                context.unread_since = self.users.unread_since(known.no)?;
            }
            context.card = known.filter(|_| missing.card);
        }
        Ok(context)
    }
}
