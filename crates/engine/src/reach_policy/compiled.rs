//! A policy as it is evaluated: for a message and a person, the rule that decides, and whether its roads are taken.
//! Evaluation is pure: all that it reads comes in with [`MessageFacts`] and [`PersonFacts`].

use super::{
    check::{CheckedPolicy, RuleConditions, asks_for},
    facts::{MessageFacts, PersonFacts},
};
use crate::road_plan::{PlanRoad, RoadPlan};
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
    needs_card: bool,
    needs_unread_age: bool,
    needs_unread_count: bool,
    needs_own_zone: bool,
}

/// A rule of the policy.
#[derive(Debug)]
pub struct PolicyRule {
    /// Its name.
    pub id: Arc<str>,
    /// How long clients have to acknowledge; absent: what the settings say.
    pub ack_timeout_ms: Option<u64>,
    /// In the order in which they are taken.
    pub roads: Vec<RoadStep>,
    kinds: Vec<ConversationKind>,
    types: Vec<String>,
    when: Option<CompiledRule>,
}

/// A road of a rule, and how it is taken.
#[derive(Debug)]
pub struct RoadStep {
    pub road: PolicyRoad,
    /// After the message.
    pub after_ms: u64,
    /// After the message; absent: what the settings say.
    pub expires_ms: Option<u64>,
    pub on_success: OnSuccess,
    /// Of `vendors`: only these; absent: all that are set up.
    pub vendors: Option<Vec<PushVendor>>,
    /// Of `popup`: the event that asks for it.
    pub event: Option<Arc<str>>,
    /// What a device shows.
    pub shown: Shown,
    when: Option<CompiledRule>,
}

/// What a device shows of a message, and how.
#[derive(Debug, Default)]
pub struct Shown {
    /// Absent: the vendor's own way; empty: none.
    pub sound: Option<String>,
    pub priority: ReachPriority,
    pub collapse: ReachCollapse,
    /// Absent: what the settings say.
    pub badge: Option<bool>,
    template: Option<ReachTemplate>,
    /// By language tag in lower case.
    templates: FxHashMap<String, ReachTemplate>,
}

/// Why a rule or a road is not for a message and a person.
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
    /// The part of the rule or road that says so.
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
    fn of(step: &ReachRoadStep) -> Shown {
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
    pub fn template(&self, language: Option<&str>) -> Option<&ReachTemplate> {
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
    pub fn default_document(plan: &RoadPlan, has_vendors: bool, has_webhook: bool) -> ReachPolicy {
        let step = |road: PolicyRoad, on_success: Option<OnSuccess>| ReachRoadStep {
            road,
            after_s: None,
            expires_s: None,
            when: None,
            on_success,
            vendors: None,
            template: None,
            templates: Default::default(),
            sound: None,
            priority: None,
            collapse: None,
            badge: None,
            event: None,
        };
        let mut roads = vec![step(PolicyRoad::Session, None)];
        for planned in &plan.roads {
            let (road, is_set_up) = match planned.road {
                PlanRoad::Vendors => (PolicyRoad::Vendors, has_vendors),
                PlanRoad::Webhook => (PolicyRoad::Webhook, has_webhook),
            };
            let on_success = if planned.stops_others { OnSuccess::Stop } else { OnSuccess::Continue };
            let after_s = Some(planned.after_ms / 1_000).filter(|seconds| *seconds > 0);
            if is_set_up {
                roads.push(ReachRoadStep { after_s, ..step(road, Some(on_success)) });
            }
        }
        let rule = ReachRule { id: "default".into(), scope: None, when: None, ack_timeout_ms: None, roads };
        ReachPolicy { time_zone: None, rules: vec![rule] }
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
            needs_card: false,
            needs_unread_age: false,
            needs_unread_count: false,
            needs_own_zone: false,
        };
        for (rule, conditions) in checked.policy.rules.iter().zip(&checked.conditions) {
            let rule = compiled.rule(rule, conditions, segment);
            compiled.rules.push(rule);
        }
        compiled
    }

    fn rule(
        &mut self,
        rule: &ReachRule,
        conditions: &RuleConditions,
        segment: &dyn Fn(&str) -> Option<Arc<Segment>>,
    ) -> PolicyRule {
        let when = self.condition(conditions.of_rule.as_ref(), segment);
        let mut roads = Vec::with_capacity(rule.roads.len());
        for (step, condition) in rule.roads.iter().zip(&conditions.of_roads) {
            roads.push(RoadStep {
                road: step.road,
                after_ms: step.after_s.unwrap_or(0) * 1_000,
                expires_ms: step.expires_s.map(|seconds| seconds * 1_000),
                on_success: step.on_success.unwrap_or_default(),
                vendors: step.vendors.clone(),
                event: step.event.as_deref().map(Into::into),
                shown: Shown::of(step),
                when: self.condition(condition.as_ref(), segment),
            });
        }
        let ReachScope { kinds, types } = rule.scope.clone().unwrap_or_default();
        PolicyRule { id: rule.id.as_str().into(), ack_timeout_ms: rule.ack_timeout_ms, roads, kinds, types, when }
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
        self.needs_card |= compiled.needs_card();
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

    /// Whether rules or roads have conditions.
    pub fn has_conditions(&self) -> bool {
        let roads = |rule: &PolicyRule| rule.roads.iter().any(|step| step.when.is_some());
        self.rules.iter().any(|rule| rule.when.is_some() || roads(rule))
    }

    /// Whether what is decided for a message can hold for others: no road waits for its time, and vendors' notifications take the
    /// place of those before them.
    pub fn may_decide_alike(&self) -> bool {
        let may = |step: &RoadStep| {
            let collapses = step.shown.collapse == ReachCollapse::Conversation;
            step.after_ms == 0 && (collapses || step.road != PolicyRoad::Vendors)
        };
        self.rules.iter().flat_map(|rule| &rule.roads).all(may)
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

    /// Whether the condition of a road holds at this time.
    pub fn takes(&self, step: &RoadStep, message: &MessageFacts, person: &PersonFacts, now_ms: u64) -> bool {
        match &step.when {
            Some(when) => self.with_profile(message, person, now_ms, |profile| when.holds(profile)),
            None => true,
        }
    }

    /// Why the condition of a road does not hold at this time; `None`: it does.
    pub fn why_not_taken(
        &self,
        step: &RoadStep,
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
        let card = person.user.attributes.as_deref().filter(|_| self.needs_card).map(Attributes::from_card);
        let user = UserKey::of(&person.user.id);
        let mut profile = self.slots.profile(user, &attributes, card.as_ref(), person.unread_since, now_ms);
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

    /// Whether later roads wait for live sessions.
    pub fn waits_for_sessions(&self) -> bool {
        self.roads.first().is_some_and(|step| step.road == PolicyRoad::Session && step.on_success == OnSuccess::Stop)
    }
}
