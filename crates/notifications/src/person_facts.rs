//! What conditions of the policy look at of a person: only what they ask for is looked up.

use crate::{
    badge::badge_of,
    offline_recipients::OfflinePushContext,
    policy::{CompiledPolicy, PersonFacts},
};
use tidings_domain::{
    model::User,
    store::{StoreError, StoreResult},
};

pub(crate) fn facts_of<'u>(
    context: &OfflinePushContext,
    policy: &CompiledPolicy,
    user: &'u User,
) -> StoreResult<PersonFacts<'u>> {
    let mut facts = PersonFacts::of(user);
    if policy.needs_unread_age() {
        let since = context.users.unread_since(user.no);
        facts.unread_since = since.map_err(|refusal| StoreError::Unavailable(refusal.to_string()))?;
    }
    if policy.needs_unread_count() {
        facts.unread = Some(badge_of(context, user)?);
    }
    Ok(facts)
}
