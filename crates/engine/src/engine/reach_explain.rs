//! What would become of a message that was not sent, for one person: by the policy, and by the same wishes of the person that
//! decide about messages that are sent. Nothing is stored.

use crate::{
    engine::{Engine, popup_users::PopupUsers, reach::held_back},
    reach_gate::{Unwanted, WantedMessage, why_not_by},
    reach_policy::{CompiledPolicy, MessageFacts, PersonFacts, RoadStep},
    vendor_push::badge_of,
};
use std::sync::Arc;
use tidings_domain::{model::*, push_tokens::tokens_of, refusals::store_refusal};
use tidings_popups::UserContextSource;
use tidings_protocol::{error::Refusal, http::*, ids::direct_id, limits::PUSH_TOKENS_PER_USER_MAX};

/// What a road comes to.
#[derive(Default)]
struct Finding {
    taken: bool,
    outcome: Option<ReachOutcome>,
    until: Option<u64>,
    because: Option<String>,
    devices: Vec<String>,
    detail: String,
}

impl Engine {
    /// What each road would do for a person if this message were sent now.
    ///
    /// # Errors
    /// `invalid_field`, `not_found`; `store_unavailable`.
    pub fn explain_reach(&self, ask: &ExplainReach) -> Result<ReachExplanation, Refusal> {
        let conversation = match (&ask.conversation, &ask.to, &ask.from) {
            (Some(conversation), None, _) => self.directory.require_conversation(conversation)?,
            (None, Some(to), Some(from)) => self.directory.require_conversation(&direct_id(from, to))?,
            (None, Some(_), None) => return Err(Refusal::field("from", "is missing: a direct message has a sender")),
            _ => return Err(Refusal::field("conversation", "give either conversation or to")),
        };
        let user = self.directory.require_user(&ask.user)?;
        let sender = ask.from.as_deref().map(|from| self.directory.require_user(from)).transpose()?;
        let now_ms = self.clock.now_ms();
        let policy = self.reach_policies.current();
        let message = MessageFacts {
            kind: conversation.kind,
            content_type: &ask.content_type,
            conversation: &conversation.id,
            sender: ask.from.as_deref(),
            mentions: &ask.mentions,
            mentions_all: ask.mentions.iter().any(|id| id == MENTION_ALL),
        };
        let person = self.person_facts(&policy, &user)?;
        let membership = self.store.membership(conversation.no, user.no).map_err(store_refusal)?;
        let outcome = match &membership {
            None => Some(ReachOutcome::NotAMember),
            Some(_) if sender.is_some_and(|sender| sender.no == user.no) => Some(ReachOutcome::Sender),
            Some(_) if ask.silent || ask.skip_push => Some(ReachOutcome::NotPushed),
            Some(_) => None,
        };
        let passed_over = policy.passed_over(&message, &person, now_ms);
        let rule_at = passed_over.len();
        let passed_over = passed_over
            .into_iter()
            .map(|(rule, why)| PassedOverRule { rule: rule.id.to_string(), because: why.path() });
        let passed_over = passed_over.collect();
        let rule = policy.rules.get(rule_at);
        let wanted = WantedMessage {
            kind: conversation.kind,
            mentions_person: message.mentions_all || ask.mentions.contains(&user.id),
            mute: membership.map(|membership| membership.mute).unwrap_or_default(),
        };
        let mut roads = Vec::new();
        for (at, step) in rule.iter().flat_map(|rule| rule.roads.iter().enumerate()) {
            let due = now_ms + step.after_ms;
            let path = format!("rules[{rule_at}].roads[{at}]");
            let held = outcome.filter(|_| step.road != PolicyRoad::Session).map(Unwanted::always);
            let unwanted = held.or_else(|| why_not_by(step.road, wanted, &user, due));
            let why_not = policy.why_not_taken(step, &message, &person, due);
            let found = match (unwanted, why_not) {
                (Some(Unwanted { outcome, until }), _) => Finding {
                    outcome: Some(outcome),
                    until,
                    detail: held_back(&user.id, outcome, until),
                    ..Finding::default()
                },
                (None, Some(why)) => {
                    let because = format!("{path}.{}", why.path());
                    let detail = format!("the condition {because} does not hold");
                    Finding { because: Some(because), detail, ..Finding::default() }
                }
                (None, None) => self.road_state(step, &user)?,
            };
            let Finding { taken, outcome, until, because, devices, detail } = found;
            let (road, on_success) = (step.road, step.on_success);
            roads.push(ExplainedRoad { road, at: due, taken, outcome, until, because, devices, on_success, detail });
        }
        Ok(ReachExplanation {
            user: user.id.clone(),
            conversation: conversation.id.clone(),
            at: now_ms,
            policy_version: policy.version,
            rule: rule.map(|rule| rule.id.to_string()),
            passed_over,
            outcome,
            roads,
        })
    }

    /// What conditions of the policy look at; only what they ask for is looked up.
    pub(crate) fn person_facts<'u>(
        &self,
        policy: &CompiledPolicy,
        user: &'u Arc<User>,
    ) -> Result<PersonFacts<'u>, Refusal> {
        let mut person = PersonFacts::of(user);
        if policy.needs_unread_age() {
            let (directory, store, metrics) = (self.directory.clone(), self.store.clone(), self.metrics.clone());
            let users = PopupUsers { directory, store, metrics };
            person.unread_since = users.unread_since(user.no)?;
        }
        if policy.needs_unread_count() {
            let unread = badge_of(self.offline_push_context(), user);
            person.unread = Some(unread.map_err(store_refusal)?);
        }
        Ok(person)
    }

    /// Whether a road leads to the person now.
    fn road_state(&self, step: &RoadStep, user: &User) -> Result<Finding, Refusal> {
        let id = &user.id;
        let not = |outcome, detail: String| Finding { outcome: Some(outcome), detail, ..Finding::default() };
        Ok(match step.road {
            PolicyRoad::Session => {
                let (mut behind, mut active) = (Vec::new(), Vec::new());
                for session in self.presence.sessions_of(user.no).into_iter().filter(|session| session.chat) {
                    let of = if session.background { &mut behind } else { &mut active };
                    of.push(session.device_id.to_string());
                }
                match (active.is_empty(), behind.is_empty()) {
                    (false, _) => {
                        let devices = active;
                        let detail = format!("somebody looks at a session of {id}: {}", devices.join(", "));
                        Finding {
                            taken: true,
                            outcome: Some(ReachOutcome::Active),
                            devices,
                            detail,
                            ..Finding::default()
                        }
                    }
                    (true, false) => {
                        let devices = behind;
                        let detail = format!("nobody looks at the sessions of {id}: {}", devices.join(", "));
                        Finding { devices, ..not(ReachOutcome::Background, detail) }
                    }
                    (true, true) => not(ReachOutcome::NoDevice, format!("{id} has no session that takes messages")),
                }
            }
            PolicyRoad::Vendors => self.vendors_state(step, user)?,
            PolicyRoad::Webhook if self.outbox.is_none() => {
                not(ReachOutcome::NotSetUp, "the webhook is not set up".into())
            }
            PolicyRoad::Webhook => {
                Finding { taken: true, detail: "the webhook is called".into(), ..Finding::default() }
            }
            PolicyRoad::DevicePush if !self.internal_roads.has(step.road) => {
                not(ReachOutcome::NotSetUp, "the setting reach.device_push is off".into())
            }
            PolicyRoad::DevicePush => self.device_push_state(user)?,
            PolicyRoad::Popup if !self.internal_roads.has(step.road) => {
                not(ReachOutcome::NotSetUp, "the setting reach.popup is off".into())
            }
            PolicyRoad::Popup => {
                let event = step.event.as_deref().unwrap_or_default();
                let detail =
                    format!("the event {event:?} of {id} is recorded, on which popups react at the next visit");
                Finding { taken: true, detail, ..Finding::default() }
            }
        })
    }

    fn device_push_state(&self, user: &User) -> Result<Finding, Refusal> {
        let devices = self.push.user_devices(&user.id)?.devices;
        let devices: Vec<String> = devices.into_iter().map(|device| device.device_id).collect();
        if devices.is_empty() {
            let detail = format!("no device of {} has bound for pushes", user.id);
            return Ok(Finding { outcome: Some(ReachOutcome::NoDevice), detail, ..Finding::default() });
        }
        let detail = format!("{} are pushed to, at once or when they connect", devices.join(", "));
        Ok(Finding { taken: true, devices, detail, ..Finding::default() })
    }

    fn vendors_state(&self, step: &RoadStep, user: &User) -> Result<Finding, Refusal> {
        let not = |outcome, detail: String| Finding { outcome: Some(outcome), detail, ..Finding::default() };
        let is_meant = |vendor: &PushVendor| step.vendors.as_ref().is_none_or(|vendors| vendors.contains(vendor));
        let is_set_up = |vendor: &PushVendor| self.vendor_push.as_ref().is_some_and(|push| push.has(*vendor));
        if !PushVendor::ALL.iter().any(|vendor| is_meant(vendor) && is_set_up(vendor)) {
            return Ok(not(ReachOutcome::NotSetUp, "no vendor of the road is set up".into()));
        }
        let tokens = tokens_of(&*self.store, user.no, PUSH_TOKENS_PER_USER_MAX).map_err(store_refusal)?;
        let reached = tokens.into_iter().filter(|(_, token)| {
            let vendor = token.token.vendor();
            is_meant(&vendor) && is_set_up(&vendor)
        });
        let devices: Vec<String> = reached.map(|(_, token)| token.device).collect();
        if devices.is_empty() {
            return Ok(not(ReachOutcome::NoDevice, format!("{} has no token of a vendor of the road", user.id)));
        }
        let detail = format!("vendors notify {}", devices.join(", "));
        Ok(Finding { taken: true, devices, detail, ..Finding::default() })
    }
}
