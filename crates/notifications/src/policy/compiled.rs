//! A policy as it is evaluated: for a message and a person, the rule that decides, and whether its channels are taken.
//! Evaluation is pure: all that it reads comes in with [`MessageFacts`] and [`PersonFacts`].

use super::{
    check::{CheckedPolicy, RuleConditions, asks_for},
    facts::{MessageFacts, PersonFacts},
};
use crate::channel_plan::ChannelPlan;
use jiff::tz::TimeZone;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tidings_domain::model::ConversationKind;
use tidings_popups::{
    UserKey,
    rules::{self, AttributeSlots, Attributes, CompiledRule, Profile, Rule, Segment},
};
use tidings_protocol::http::*;

/// A policy, ready to be asked.
#[derive(Debug)]
pub struct CompiledPolicy {
    /// The stored version; 0: none is stored.
    pub version: u32,
    pub rules: Vec<PolicyRule>,
    slots: AttributeSlots,
    /// Of people whose own zone is not known.
    zone: TimeZone,
    needs_attributes: bool,
    needs_unread_age: bool,
    needs_unread_count: bool,
    needs_own_zone: bool,
    delays: Vec<ChannelDelay>,
}

/// A channel other than live sessions that some rule takes, and how long after the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelDelay {
    pub channel: PolicyChannel,
    pub after_ms: u64,
}

/// A rule of the policy.
#[derive(Debug)]
pub struct PolicyRule {
    /// Its name.
    pub id: Arc<str>,
    /// How long clients have to acknowledge; absent: what the settings say.
    pub ack_timeout_ms: Option<u64>,
    /// In the order in which they are taken.
    pub channels: Vec<ChannelStep>,
    kinds: Vec<ConversationKind>,
    types: Vec<String>,
    when: Option<CompiledRule>,
}

/// A channel of a rule, and how it is taken.
#[derive(Debug)]
pub struct ChannelStep {
    pub channel: PolicyChannel,
    /// After the message.
    pub after_ms: u64,
    /// After the message; absent: what the settings say.
    pub expires_ms: Option<u64>,
    pub on_success: OnSuccess,
    /// Of `providers`: only these; absent: all that are set up.
    pub providers: Option<Vec<PushProvider>>,
    /// Of `popup`: the event that asks for it.
    pub event: Option<Arc<str>>,
    /// What a device shows.
    pub shown: Shown,
    when: Option<CompiledRule>,
}

/// What a device shows of a message, and how.
#[derive(Debug, Default)]
pub struct Shown {
    /// Absent: the provider's own way; empty: none.
    pub sound: Option<String>,
    pub priority: NotificationPriority,
    pub collapse: NotificationCollapse,
    /// Absent: what the settings say.
    pub badge: Option<bool>,
    template: Option<NotificationTemplate>,
    /// By language tag in lower case.
    templates: FxHashMap<String, NotificationTemplate>,
}

/// Why a rule or a channel is not for a message and a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WhyNot {
    /// The rule is for other kinds of conversations.
    Kind,
    /// The rule is for other types of messages.
    Type,
    /// The condition does not hold: the path of its first part that does not, such as `when.all[1]`.
    Condition(String),
}

impl WhyNot {
    /// The part of the rule or channel that says so.
    pub fn path(&self) -> String {
        match self {
            WhyNot::Kind => "for.kinds".into(),
            WhyNot::Type => "for.types".into(),
            WhyNot::Condition(path) if path.is_empty() => "when".into(),
            WhyNot::Condition(path) => format!("when.{path}"),
        }
    }
}

impl Shown {
    fn of(step: &PolicyStep) -> Shown {
        Shown {
            sound: step.sound.clone(),
            priority: step.priority.unwrap_or_default(),
            collapse: step.collapse.unwrap_or_default(),
            badge: step.badge,
            template: step.template.clone(),
            templates: step.templates.iter().map(|(tag, text)| (tag.to_ascii_lowercase(), text.clone())).collect(),
        }
    }

    /// The template for a language: of `de-AT` that of `de-AT`, else of `de`, else that of all languages; absent: the templates of
    /// the settings.
    pub fn template(&self, language: Option<&str>) -> Option<&NotificationTemplate> {
        let mut tag = language.unwrap_or_default().to_ascii_lowercase();
        while !tag.is_empty() && !self.templates.is_empty() {
            if let Some(template) = self.templates.get(&tag) {
                return Some(template);
            }
            tag.truncate(tag.rfind('-').unwrap_or(0));
        }
        self.template.as_ref()
    }
}

impl CompiledPolicy {
    /// The policy that holds while none is stored: live sessions first, then, for those who are not reached by them, all that is
    /// set up, as the settings' plan says.
    pub fn default_document(plan: &ChannelPlan, has_providers: bool, has_webhook: bool) -> NotificationPolicy {
        let step = |channel: PolicyChannel, on_success: Option<OnSuccess>| PolicyStep {
            channel,
            after_s: None,
            expires_s: None,
            when: None,
            on_success,
            providers: None,
            template: None,
            templates: Default::default(),
            sound: None,
            priority: None,
            collapse: None,
            badge: None,
            event: None,
        };
        let mut channels = vec![step(PolicyChannel::Session, None)];
        for planned in &plan.channels {
            let is_set_up = match planned.channel {
                PolicyChannel::Providers => has_providers,
                PolicyChannel::Webhook => has_webhook,
                PolicyChannel::Session | PolicyChannel::DevicePush | PolicyChannel::Popup => false,
            };
            let on_success = if planned.stops_others { OnSuccess::Stop } else { OnSuccess::Continue };
            let after_s = Some(planned.after_ms / 1_000).filter(|seconds| *seconds > 0);
            if is_set_up {
                channels.push(PolicyStep { after_s, ..step(planned.channel, Some(on_success)) });
            }
        }
        let rule = NotificationRule { id: "default".into(), scope: None, when: None, ack_timeout_ms: None, channels };
        NotificationPolicy { time_zone: None, rules: vec![rule] }
    }

    /// Compiles a policy. A segment that does not exist counts as empty.
    pub fn compile(
        checked: &CheckedPolicy,
        version: u32,
        segment: &dyn Fn(&str) -> Option<Arc<Segment>>,
    ) -> CompiledPolicy {
        let mut compiled = CompiledPolicy {
            version,
            rules: Vec::new(),
            slots: AttributeSlots::default(),
            zone: checked.zone.clone(),
            needs_attributes: false,
            needs_unread_age: false,
            needs_unread_count: false,
            needs_own_zone: false,
            delays: Vec::new(),
        };
        for (rule, conditions) in checked.policy.rules.iter().zip(&checked.conditions) {
            let rule = compiled.rule(rule, conditions, segment);
            for ChannelStep { channel, after_ms, .. } in &rule.channels {
                let delay = ChannelDelay { channel: *channel, after_ms: *after_ms };
                if delay.channel != PolicyChannel::Session && !compiled.delays.contains(&delay) {
                    compiled.delays.push(delay);
                }
            }
            compiled.rules.push(rule);
        }
        compiled
    }

    fn rule(
        &mut self,
        rule: &NotificationRule,
        conditions: &RuleConditions,
        segment: &dyn Fn(&str) -> Option<Arc<Segment>>,
    ) -> PolicyRule {
        let when = self.condition(conditions.of_rule.as_ref(), segment);
        let mut channels = Vec::with_capacity(rule.channels.len());
        for (step, condition) in rule.channels.iter().zip(&conditions.of_channels) {
            channels.push(ChannelStep {
                channel: step.channel,
                after_ms: step.after_s.unwrap_or(0) * 1_000,
                expires_ms: step.expires_s.map(|seconds| seconds * 1_000),
                on_success: step.on_success.unwrap_or_default(),
                providers: step.providers.clone(),
                event: step.event.as_deref().map(Into::into),
                shown: Shown::of(step),
                when: self.condition(condition.as_ref(), segment),
            });
        }
        let NotificationScope { kinds, types } = rule.scope.clone().unwrap_or_default();
        PolicyRule { id: rule.id.as_str().into(), ack_timeout_ms: rule.ack_timeout_ms, channels, kinds, types, when }
    }

    fn condition(
        &mut self,
        rule: Option<&Rule>,
        segment: &dyn Fn(&str) -> Option<Arc<Segment>>,
    ) -> Option<CompiledRule> {
        let rule = rule?;
        let compiled = rules::compile(rule, &mut self.slots, segment);
        let (unread, own_zone) = asks_for(rule);
        self.needs_unread_count |= unread;
        self.needs_own_zone |= own_zone;
        self.needs_unread_age |= compiled.needs_unread();
        self.needs_attributes |= compiled.needs_profile();
        Some(compiled)
    }

    /// Whether conditions look at [`PersonFacts::unread_since`].
    pub fn needs_unread_age(&self) -> bool {
        self.needs_unread_age
    }

    /// Whether conditions look at [`PersonFacts::unread`].
    pub fn needs_unread_count(&self) -> bool {
        self.needs_unread_count
    }

    /// The channels of all rules, each once for each of its delays.
    pub fn delays(&self) -> &[ChannelDelay] {
        &self.delays
    }

    /// Whether rules or channels have conditions.
    pub fn has_conditions(&self) -> bool {
        let channels = |rule: &PolicyRule| rule.channels.iter().any(|step| step.when.is_some());
        self.rules.iter().any(|rule| rule.when.is_some() || channels(rule))
    }

    /// Whether what is decided for a message can hold for others: no channel waits for its time, and providers' notifications take the
    /// place of those before them.
    pub fn may_decide_alike(&self) -> bool {
        let may = |step: &ChannelStep| {
            let collapses = step.shown.collapse == NotificationCollapse::Conversation;
            step.after_ms == 0 && (collapses || step.channel != PolicyChannel::Providers)
        };
        self.rules.iter().flat_map(|rule| &rule.channels).all(may)
    }

    /// The rule that decides: the first that applies; `None`: live sessions alone.
    pub fn rule_for(&self, message: &MessageFacts, person: &PersonFacts, now_ms: u64) -> Option<&PolicyRule> {
        let of_message = || self.rules.iter().filter(|rule| rule.why_not_for(message).is_none());
        // Most policies decide by the message alone.
        let first = of_message().next()?;
        if first.when.is_none() {
            return Some(first);
        }
        self.with_profile(message, person, now_ms, |profile| {
            of_message().find(|rule| rule.when.as_ref().is_none_or(|when| when.holds(profile)))
        })
    }

    /// The rules ahead of the one that decides, with the reason of each.
    pub fn passed_over(&self, message: &MessageFacts, person: &PersonFacts, now_ms: u64) -> Vec<(&PolicyRule, WhyNot)> {
        self.with_profile(message, person, now_ms, |profile| {
            let why_not = |rule: &PolicyRule| {
                let of_person = || rule.when.as_ref().and_then(|when| when.why_not(profile)).map(WhyNot::Condition);
                rule.why_not_for(message).or_else(of_person)
            };
            self.rules.iter().map_while(|rule| Some((rule, why_not(rule)?))).collect()
        })
    }

    /// A channel of the rule with this name, by its place there.
    pub(crate) fn step(&self, rule: &str, at: u32) -> Option<&ChannelStep> {
        self.rules.iter().find(|known| *known.id == *rule)?.channels.get(at as usize)
    }

    /// Whether the condition of a channel holds at this time.
    pub fn takes(&self, step: &ChannelStep, message: &MessageFacts, person: &PersonFacts, now_ms: u64) -> bool {
        match &step.when {
            Some(when) => self.with_profile(message, person, now_ms, |profile| when.holds(profile)),
            None => true,
        }
    }

    /// Why the condition of a channel does not hold at this time; `None`: it does.
    pub fn why_not_taken(
        &self,
        step: &ChannelStep,
        message: &MessageFacts,
        person: &PersonFacts,
        now_ms: u64,
    ) -> Option<WhyNot> {
        let when = step.when.as_ref()?;
        self.with_profile(message, person, now_ms, |profile| when.why_not(profile)).map(WhyNot::Condition)
    }

    /// How long clients have to acknowledge messages of this kind, of whatever type and person: the longest time of the rules that
    /// may decide. `default_ms` is what the settings say.
    pub fn ack_timeout_ms(&self, kind: ConversationKind, default_ms: u64) -> u64 {
        let mut longest = None;
        for rule in self.rules.iter().filter(|rule| rule.kinds.is_empty() || rule.kinds.contains(&kind)) {
            longest = longest.max(Some(rule.ack_timeout_ms.unwrap_or(default_ms)));
            if rule.when.is_none() && rule.types.is_empty() {
                break;
            }
        }
        longest.unwrap_or(default_ms)
    }

    fn with_profile<T>(
        &self,
        message: &MessageFacts,
        person: &PersonFacts,
        now_ms: u64,
        ask: impl FnOnce(&Profile) -> T,
    ) -> T {
        let attributes = person.attributes(message);
        let of_profile = person.user.attributes().filter(|_| self.needs_attributes).map(Attributes::of_profile);
        let user = UserKey::of(&person.user.id);
        let mut profile = self.slots.profile(user, &attributes, of_profile.as_ref(), person.unread_since, now_ms);
        if self.needs_own_zone {
            let own = person.user.time_zone().and_then(|name| TimeZone::get(name).ok());
            profile.zone = own.unwrap_or_else(|| self.zone.clone());
        }
        ask(&profile)
    }
}

impl PolicyRule {
    /// Why the rule is for other messages than this one; `None`: it may be for it.
    fn why_not_for(&self, message: &MessageFacts) -> Option<WhyNot> {
        if !self.kinds.is_empty() && !self.kinds.contains(&message.kind) {
            return Some(WhyNot::Kind);
        }
        let is_of_type = self.types.is_empty() || self.types.iter().any(|own| own == message.content_type);
        (!is_of_type).then_some(WhyNot::Type)
    }

    /// Whether later channels wait for live sessions.
    pub fn waits_for_sessions(&self) -> bool {
        self.channels
            .first()
            .is_some_and(|step| step.channel == PolicyChannel::Session && step.on_success == OnSuccess::Stop)
    }
}
