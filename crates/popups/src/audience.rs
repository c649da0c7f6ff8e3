//! Audiences by themselves: whether a user suits a rule, or is in a segment, for others than popups.

use super::{
    PopupService, UserKey,
    context::MissingContext,
    rules::{self, AttributeSlots, Attributes, CompiledRule, Segment},
};
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_protocol::error::Refusal;

/// A rule that was compiled with the segments as they were.
#[derive(Debug)]
pub struct Audience {
    rule: CompiledRule,
    slots: AttributeSlots,
}

impl PopupService {
    /// Reads and compiles a rule. `field`: the request's field, for errors.
    ///
    /// # Errors
    /// `invalid_field`: it is no rule; `not_found`: there is no such segment; another node leads.
    pub fn audience(&self, field: &str, rule: &RawValue) -> Result<Audience, Refusal> {
        let rule = rules::parse(field, rule)?;
        self.shared()?.read_catalog(|catalog| {
            if let Some(unknown) = rule.segments().into_iter().find(|name| !catalog.segments.contains_key(*name)) {
                return Err(Refusal::not_found("segment", unknown));
            }
            let mut slots = AttributeSlots::default();
            let segment = |name: &str| catalog.segments.get(name).map(|(_, users)| users.clone());
            Ok(Audience { rule: rules::compile(&rule, &mut slots, &segment), slots })
        })
    }

    /// The users of a segment; `None` if there is no such segment.
    ///
    /// # Errors
    /// Another node leads, or the catalog cannot be read.
    pub fn segment_users(&self, id: &str) -> Result<Option<Arc<Segment>>, Refusal> {
        self.shared()?.read_catalog(|catalog| Ok(catalog.segments.get(id).map(|(_, users)| users.clone())))
    }

    /// Whether a user suits the rule now. The user has no attributes but those of the card. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn is_in_audience(&self, audience: &Audience, user: &str) -> Result<bool, Refusal> {
        let Audience { rule, slots } = audience;
        let missing = MissingContext { unread: rule.needs_unread(), card: rule.needs_card() };
        let context = self.read_context(user, missing)?;
        let (none, card) = (Attributes::default(), context.card_attributes());
        let now_ms = self.clock.now_ms();
        let profile = slots.profile(UserKey::of(user), &none, card.as_ref(), context.unread_since, now_ms);
        Ok(rule.holds(&profile))
    }
}
