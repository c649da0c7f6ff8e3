//! What would become of a message that was not sent, for one person: by the policy, and by the same wishes of the person that
//! decide about messages that are sent. Nothing is stored.

use crate::{
    badge::is_listed,
    gate::{ConversationMessage, DueChannel, Member, Obstacle, Unwanted, WantedMessage, why_not_of_member},
    offline_recipients::member,
    operations::{Notifications, message_notifications::held_back},
    person_facts::facts_of,
    policy::{ChannelStep, MessageFacts},
    rule_times::{Deferral, RuleTimes},
};
use std::sync::Arc;
use tidings_domain::{model::*, push_tokens::tokens_of, refusals::store_refusal};
use tidings_protocol::{error::Refusal, http::*, ids::direct_id, limits::PUSH_TOKENS_PER_USER_MAX};

/// The number of a direct conversation that the message would open: no stored one has it.
const NOT_OPENED: ConversationNo = ConversationNo(u64::MAX);

/// The direct conversation that a first message between two users opens.
fn opened(id: String, from: UserNo, to: UserNo) -> Conversation {
    Conversation {
        no: NOT_OPENED,
        id,
        kind: ConversationKind::Direct,
        pair: Some((from, to)),
        name: None,
        avatar: None,
        attributes: None,
        created_at: 0,
        member_count: 2,
        settings: ConversationSettings::default(),
        blocks: PairBlocks::default(),
    }
}

/// What a channel comes to.
#[derive(Default)]
struct Finding {
    taken: bool,
    outcome: Option<NotificationOutcome>,
    until: Option<u64>,
    because: Option<String>,
    devices: Vec<String>,
    detail: String,
}

impl Notifications {
    /// What each channel would do for a person if this message were sent now.
    ///
    /// # Errors
    /// `invalid_field`, `not_found`; `store_unavailable`.
    pub fn explain_notifications(&self, ask: &ExplainNotifications) -> Result<NotificationExplanation, Refusal> {
        let directory = &self.context.directory;
        let conversation = match (&ask.conversation, &ask.to, &ask.from) {
            (Some(conversation), None, _) => directory.require_conversation(conversation)?,
            (None, Some(to), Some(from)) => {
                let id = direct_id(from, to);
                match directory.conversation_by_id(&id).map_err(store_refusal)? {
                    Some(conversation) => conversation,
                    None => Arc::new(opened(id, directory.require_user(from)?.no, directory.require_user(to)?.no)),
                }
            }
            (None, Some(_), None) => return Err(Refusal::field("from", "is missing: a direct message has a sender")),
            _ => return Err(Refusal::field("conversation", "give either conversation or to")),
        };
        let user = directory.require_user(&ask.user)?;
        let sender = ask.from.as_deref().map(|from| directory.require_user(from)).transpose()?;
        let now_ms = self.context.clock.now_ms();
        let policy = self.policies.current();
        let message = MessageFacts {
            kind: conversation.kind,
            content_type: &ask.content_type,
            conversation: &conversation.id,
            sender: ask.from.as_deref(),
            mentions: &ask.mentions,
            mentions_all: ask.mentions.iter().any(|id| id == MENTION_ALL),
        };
        let mut person = facts_of(&self.context, &policy, &user).map_err(store_refusal)?;
        let member = match conversation.no {
            NOT_OPENED => conversation.pair.filter(|(from, to)| [*from, *to].contains(&user.no)).map(|_| Member {
                user: user.no,
                joined_seq: 0,
                read_seq: 0,
                mute: MuteState::Off,
            }),
            _ => member(&self.context, &conversation, &user).map_err(store_refusal)?,
        };
        // It is newer than all that there is.
        let (kind, sender) = (conversation.kind, sender.map(|sender| sender.no));
        let defers_until = self.context.quiet_hours.defer_until(&self.context.gates, kind, now_ms);
        let sent = ConversationMessage { kind, seq: u64::MAX, sender, defers_until };
        let unwanted = match &member {
            None => Some(Unwanted::always(NotificationOutcome::NotAMember)),
            Some(member) => why_not_of_member(sent, member),
        };
        let is_pushed = !ask.silent && !ask.skip_push;
        let outcome = unwanted.map(|unwanted| unwanted.outcome);
        let outcome = outcome.or((!is_pushed).then_some(NotificationOutcome::NotPushed));
        // When it is decided who is notified of a message, the message is among those that the person has not read.
        let is_listed = || match &member {
            Some(member) if conversation.no != NOT_OPENED => {
                let preferences = directory.preferences(conversation.no, member.user)?;
                Ok(is_listed(&preferences, u64::MAX))
            }
            _ => Ok(true),
        };
        let is_unread = member.as_ref().is_some_and(|member| unwanted.is_none() && !member.mute.is_muted(now_ms))
            && is_listed().map_err(store_refusal)?;
        if is_unread && !ask.silent {
            person.unread = person.unread.map(|unread| unread + 1);
        }
        if unwanted.is_none() && !ask.silent && kind == ConversationKind::Direct && policy.needs_unread_age() {
            person.unread_since = person.unread_since.or(Some(now_ms));
        }
        let passed_over = policy.passed_over(&message, &person, now_ms);
        let rule_at = passed_over.len();
        let passed_over = passed_over
            .into_iter()
            .map(|(rule, why)| PassedOverRule { rule: rule.id.to_string(), because: why.path() });
        let passed_over = passed_over.collect();
        let rule = policy.rules.get(rule_at);
        let blocks = sender.map_or(Ok(false), |sender| directory.has_blocked(&user, sender)).map_err(store_refusal)?;
        let wanted = WantedMessage {
            is_hidden: blocks && conversation.blocks_mode() == BlocksMode::Hide,
            kind,
            mentions_person: !blocks && (message.mentions_all || ask.mentions.contains(&user.id)),
            mute: member.map(|member| member.mute).unwrap_or_default(),
            defers_until,
        };
        let is_active = self.context.presence.is_active(user.no);
        let waits_for_sessions = rule.is_some_and(|rule| rule.waits_for_sessions());
        let mut times = RuleTimes::of(now_ms);
        let mut channels = Vec::new();
        for (at, step) in rule.iter().flat_map(|rule| rule.channels.iter().enumerate()) {
            let is_session = step.channel == PolicyChannel::Session;
            let planned = times.due(step);
            let mut due = times.deferred_to(step, planned).unwrap_or(planned);
            let path = format!("rules[{rule_at}].channels[{at}]");
            // A session that somebody looks at takes the message, and stops the channels after it.
            let stopped = (is_active && waits_for_sessions).then_some(NotificationOutcome::Active);
            let held = outcome.or(stopped).filter(|_| !is_session).map(Unwanted::always);
            let channel = DueChannel { policy: &policy, step, message: &message, person: &person };
            let why_not = |due| held.map(Obstacle::Unwanted).or_else(|| channel.why_not_taken(wanted, due));
            let mut obstacle = why_not(due);
            let mut deferral = times.deferral(step);
            let is_set_up = self.has_channel(step.channel);
            if let Some(Obstacle::Unwanted(Unwanted { outcome, deferred_to: Some(until), .. })) = obstacle
                && is_set_up
            {
                deferral = Some(Deferral { until, cause: outcome });
                due = until.saturating_add(planned - now_ms);
                obstacle = why_not(due);
            }
            let found = match obstacle {
                Some(Obstacle::Unwanted(Unwanted { outcome, until, .. })) => Finding {
                    outcome: Some(outcome),
                    until,
                    detail: held_back(&user.id, outcome, until),
                    ..Finding::default()
                },
                Some(Obstacle::Condition(why)) => {
                    let because = format!("{path}.{}", why.path());
                    let detail = format!("the condition {because} does not hold");
                    Finding { because: Some(because), detail, ..Finding::default() }
                }
                None => self.channel_state(step, &user)?,
            };
            let found = match deferral.filter(|_| found.taken) {
                Some(_) => Finding {
                    outcome: Some(NotificationOutcome::Deferred),
                    until: Some(due),
                    detail: format!(
                        "{}; then {}",
                        held_back(&user.id, NotificationOutcome::Deferred, Some(due)),
                        found.detail
                    ),
                    ..found
                },
                None => found,
            };
            if is_set_up {
                let stops = step.on_success == OnSuccess::Stop;
                times.note(planned, now_ms, stops, found.taken || deferral.is_some(), deferral);
            }
            let Finding { taken, outcome, until, because, devices, detail } = found;
            let (channel, on_success) = (step.channel, step.on_success);
            channels.push(ExplainedChannel {
                channel,
                at: due,
                taken,
                outcome,
                until,
                because,
                devices,
                on_success,
                detail,
            });
        }
        Ok(NotificationExplanation {
            user: user.id.clone(),
            conversation: conversation.id.clone(),
            at: now_ms,
            policy_version: policy.version,
            rule: rule.map(|rule| rule.id.to_string()),
            passed_over,
            outcome,
            channels,
        })
    }

    /// Whether the channel is set up.
    fn has_channel(&self, channel: PolicyChannel) -> bool {
        match channel {
            PolicyChannel::Session => false,
            PolicyChannel::Providers => self.provider_push.is_some(),
            PolicyChannel::Webhook => self.webhook_push.is_some(),
            PolicyChannel::DevicePush | PolicyChannel::Popup => self.internal_channels.has(channel),
        }
    }

    /// Whether a channel leads to the person now.
    fn channel_state(&self, step: &ChannelStep, user: &User) -> Result<Finding, Refusal> {
        let id = &user.id;
        let not = |outcome, detail: String| Finding { outcome: Some(outcome), detail, ..Finding::default() };
        Ok(match step.channel {
            PolicyChannel::Session => {
                let (mut behind, mut active) = (Vec::new(), Vec::new());
                for session in self.context.presence.sessions_of(user.no).into_iter().filter(|session| session.chat) {
                    let of = if session.background { &mut behind } else { &mut active };
                    of.push(session.device_id.to_string());
                }
                match (active.is_empty(), behind.is_empty()) {
                    (false, _) => {
                        let devices = active;
                        let detail = format!("somebody looks at a session of {id}: {}", devices.join(", "));
                        Finding {
                            taken: true,
                            outcome: Some(NotificationOutcome::Active),
                            devices,
                            detail,
                            ..Finding::default()
                        }
                    }
                    (true, false) => {
                        let devices = behind;
                        let detail = format!("nobody looks at the sessions of {id}: {}", devices.join(", "));
                        Finding { devices, ..not(NotificationOutcome::Background, detail) }
                    }
                    (true, true) => {
                        not(NotificationOutcome::NoDevice, format!("{id} has no session that takes messages"))
                    }
                }
            }
            PolicyChannel::Providers => self.providers_state(step, user)?,
            PolicyChannel::Webhook if self.webhook_push.is_none() => {
                not(NotificationOutcome::NotSetUp, "the webhook is not set up".into())
            }
            PolicyChannel::Webhook => {
                Finding { taken: true, detail: "the webhook is called".into(), ..Finding::default() }
            }
            PolicyChannel::DevicePush if !self.internal_channels.has(step.channel) => {
                not(NotificationOutcome::NotSetUp, "the setting notifications.device_push is off".into())
            }
            PolicyChannel::DevicePush => self.device_push_state(user)?,
            PolicyChannel::Popup if !self.internal_channels.has(step.channel) => {
                not(NotificationOutcome::NotSetUp, "the setting notifications.popup is off".into())
            }
            PolicyChannel::Popup => {
                let event = step.event.as_deref().unwrap_or_default();
                let detail =
                    format!("the event {event:?} of {id} is recorded, on which popups react at the next visit");
                Finding { taken: true, detail, ..Finding::default() }
            }
        })
    }

    fn device_push_state(&self, user: &User) -> Result<Finding, Refusal> {
        let devices = self.engine.push.user_devices(&user.id)?.devices;
        let devices: Vec<String> = devices.into_iter().map(|device| device.device_id).collect();
        if devices.is_empty() {
            let detail = format!("no device of {} has bound for pushes", user.id);
            return Ok(Finding { outcome: Some(NotificationOutcome::NoDevice), detail, ..Finding::default() });
        }
        let detail = format!("{} are pushed to, at once or when they connect", devices.join(", "));
        Ok(Finding { taken: true, devices, detail, ..Finding::default() })
    }

    fn providers_state(&self, step: &ChannelStep, user: &User) -> Result<Finding, Refusal> {
        let not = |outcome, detail: String| Finding { outcome: Some(outcome), detail, ..Finding::default() };
        let is_meant =
            |provider: &PushProvider| step.providers.as_ref().is_none_or(|providers| providers.contains(provider));
        let is_set_up = |provider: &PushProvider| self.provider_push.as_ref().is_some_and(|push| push.has(*provider));
        if !PushProvider::ALL.iter().any(|provider| is_meant(provider) && is_set_up(provider)) {
            return Ok(not(NotificationOutcome::NotSetUp, "no provider of the channel is set up".into()));
        }
        let tokens = tokens_of(&*self.context.store, user.no, PUSH_TOKENS_PER_USER_MAX).map_err(store_refusal)?;
        let reached = tokens.into_iter().filter(|(_, token)| {
            let provider = token.token.provider();
            is_meant(&provider) && is_set_up(&provider)
        });
        let devices: Vec<String> = reached.map(|(_, token)| token.device).collect();
        if devices.is_empty() {
            return Ok(not(
                NotificationOutcome::NoDevice,
                format!("{} has no token of a provider of the channel", user.id),
            ));
        }
        let detail = format!("providers notify {}", devices.join(", "));
        Ok(Finding { taken: true, devices, detail, ..Finding::default() })
    }
}
