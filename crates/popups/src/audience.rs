//! Audiences by themselves: whether a user suits a rule, or is in a segment, for others than popups.

use super::{
    PopupService, UserKey,
    catalog::Catalog,
    context::MissingContext,
    frequency::FrequencyCounters,
    rows,
    rules::{self, AttributeSlots, Attributes, CompiledRule, RuleNames, Segment},
};
use serde_json::value::RawValue;
use std::sync::Arc;
use tidings_domain::refusals::store_refusal;
use tidings_protocol::error::Refusal;

/// A rule that was compiled with the segments as they were.
#[derive(Debug)]
pub struct Audience {
    rule: CompiledRule,
    slots: AttributeSlots,
}

/// The names in a rule that is none of a popup.
impl RuleNames for Catalog {
    fn segment(&self, name: &str) -> Option<Arc<Segment>> {
        self.segments.get(name).map(|(_, users)| users.clone())
    }

    fn popup(&self, name: Option<&str>) -> Option<u32> {
        self.numbers.get(name?).copied()
    }
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
            if rule.names_own_popup() {
                let why = "popup_event must name a popup here, since the rule does not belong to one";
                return Err(Refusal::field(field, why));
            }
            if let Some(unknown) = rule.popups().into_iter().find(|name| !catalog.popups.contains_key(*name)) {
                return Err(Refusal::not_found("popup", unknown));
            }
            let mut slots = AttributeSlots::default();
            Ok(Audience { rule: rules::compile_with(&rule, &mut slots, catalog), slots })
        })
    }

    /// Whether a user suits the rule now. The user has no attributes but those of the profile. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn is_in_audience(&self, audience: &Audience, user: &str) -> Result<bool, Refusal> {
        let Audience { rule, slots } = audience;
        let missing = MissingContext { unread: rule.needs_unread(), profile: rule.needs_profile() };
        let context = self.read_context(user, missing)?;
        let (none, of_profile) = (Attributes::default(), context.profile_attributes());
        let now_ms = self.clock.now_ms();
        let key = UserKey::of(user);
        let marks = if rule.needs_marks() { self.read_marks(key)? } else { FrequencyCounters::default() };
        let profile = slots.profile(key, &none, of_profile.as_ref(), context.unread_since, now_ms);
        Ok(rule.holds(&profile.with_marks(&marks)))
    }

    /// A user's marks of events: as they are at the leader, and elsewhere as they are stored, which events are before they
    /// are answered. Blocks.
    fn read_marks(&self, key: UserKey) -> Result<FrequencyCounters, Refusal> {
        if let Ok(shared) = self.shared()
            && let Some(user) = shared.users.stripe(key).get(key)
        {
            return Ok(user.counters.clone());
        }
        let bytes = rows::read_long(&*self.store, &rows::user_key(key)).map_err(store_refusal)?;
        FrequencyCounters::from_bytes(&bytes.unwrap_or_default()).map_err(store_refusal)
    }
}
