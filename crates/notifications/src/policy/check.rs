//! Checks a policy: every part before anything is stored, and a refusal names the part, such as `rules[1].channels[0].after_s`.

use super::facts::{ATTRIBUTES, UNREAD};
use jiff::tz::TimeZone;
use serde_json::value::RawValue;
use tidings_popups::{
    rules::{self, Predicate, Rule},
    timetable,
};
use tidings_protocol::{error::Refusal, http::*, ids::check_language, limits::*};

/// The longest name of a rule, a type, an event or a sound, in bytes.
const WORD_BYTES_MAX: usize = 64;
/// The longest time that a client has to acknowledge a message.
const ACK_TIMEOUT_MS_MAX: u64 = 10 * 60 * 1_000;

/// A policy whose parts are right, with its conditions parsed.
#[derive(Debug, Clone)]
pub struct CheckedPolicy {
    pub(super) policy: NotificationPolicy,
    pub(super) zone: TimeZone,
    /// In the order of the policy's rules.
    pub(super) conditions: Vec<RuleConditions>,
}

/// The conditions of a rule, and of its channels in their order.
#[derive(Debug, Clone)]
pub(super) struct RuleConditions {
    pub(super) of_rule: Option<Rule>,
    pub(super) of_channels: Vec<Option<Rule>>,
}

impl CheckedPolicy {
    /// The segments that conditions name, each with the path of the condition.
    pub fn segments(&self) -> Vec<(String, &str)> {
        let paths = self.conditions.iter().enumerate().flat_map(|(at, rule)| {
            let of_rule = rule.of_rule.iter().map(move |rule| (format!("rules[{at}].when"), rule));
            let of_channels = rule.of_channels.iter().enumerate().filter_map(move |(channel, rule)| {
                Some((format!("rules[{at}].channels[{channel}].when"), rule.as_ref()?))
            });
            of_rule.chain(of_channels)
        });
        paths.flat_map(|(path, rule)| rule.segments().into_iter().map(move |name| (path.clone(), name))).collect()
    }

    /// A policy without rules.
    pub(super) fn empty() -> CheckedPolicy {
        CheckedPolicy { policy: NotificationPolicy::default(), zone: TimeZone::UTC, conditions: Vec::new() }
    }

    /// The policy as it was written.
    pub fn policy(&self) -> &NotificationPolicy {
        &self.policy
    }
}

/// Whether a condition asks for the number of unread messages, or for the time of day in the person's zone.
pub(super) fn asks_for(rule: &Rule) -> (bool, bool) {
    let (mut unread, mut own_zone) = (false, false);
    rule.visit(&mut |rule| match rule {
        // Whether the number is there is no question: it always is.
        Rule::Attribute { name, predicate } if name == UNREAD => unread |= !matches!(predicate, Predicate::Absent),
        Rule::TimeOfDay { zone: None, .. } => own_zone = true,
        _ => {}
    });
    (unread, own_zone)
}

/// Checks a policy.
///
/// # Errors
/// `invalid_field`, `limit_exceeded`: the detail begins with the path of the wrong part.
pub fn check(policy: NotificationPolicy) -> Result<CheckedPolicy, Refusal> {
    let zone = policy.time_zone.as_deref().map(|name| timetable::zone("time_zone", name)).transpose()?;
    check_count("rules", policy.rules.len(), NOTIFICATION_RULES_MAX)?;
    let mut conditions = Vec::new();
    for (at, rule) in policy.rules.iter().enumerate() {
        let path = format!("rules[{at}]");
        check_word(&format!("{path}.id"), &rule.id)?;
        if policy.rules[..at].iter().any(|other| other.id == rule.id) {
            return Err(Refusal::field(&format!("{path}.id"), format!("{:?} appears twice", rule.id)));
        }
        conditions.push(check_rule(&path, rule)?);
    }
    Ok(CheckedPolicy { policy, zone: zone.unwrap_or(TimeZone::UTC), conditions })
}

fn check_rule(path: &str, rule: &NotificationRule) -> Result<RuleConditions, Refusal> {
    if let Some(NotificationScope { kinds, types }) = &rule.scope {
        if let Some(at) = (1..kinds.len()).find(|at| kinds[..*at].contains(&kinds[*at])) {
            return Err(Refusal::field(&format!("{path}.for.kinds[{at}]"), "appears twice"));
        }
        check_count(&format!("{path}.for.types"), types.len(), NOTIFICATION_TYPES_MAX)?;
        for (at, name) in types.iter().enumerate() {
            check_word(&format!("{path}.for.types[{at}]"), name)?;
        }
    }
    if let Some(timeout) = rule.ack_timeout_ms
        && !(100..=ACK_TIMEOUT_MS_MAX).contains(&timeout)
    {
        let why = format!("must be from 100 to {ACK_TIMEOUT_MS_MAX}");
        return Err(Refusal::field(&format!("{path}.ack_timeout_ms"), why));
    }
    check_count(&format!("{path}.channels"), rule.channels.len(), NOTIFICATION_CHANNELS_MAX)?;
    let of_rule = condition(&format!("{path}.when"), rule.when.as_deref())?;
    let mut of_channels = Vec::new();
    for (at, step) in rule.channels.iter().enumerate() {
        let path = format!("{path}.channels[{at}]");
        // A session is handed each message as it comes: nothing can be ahead of it.
        if step.channel == PolicyChannel::Session && at > 0 {
            return Err(Refusal::field(&format!("{path}.channel"), "session can only be the first channel"));
        }
        of_channels.push(check_step(&path, step)?);
    }
    Ok(RuleConditions { of_rule, of_channels })
}

fn condition(path: &str, text: Option<&RawValue>) -> Result<Option<Rule>, Refusal> {
    text.map(|text| rules::parse_message_condition(path, text, &ATTRIBUTES)).transpose()
}

fn check_step(path: &str, step: &PolicyStep) -> Result<Option<Rule>, Refusal> {
    let channel = step.channel;
    let shows = matches!(channel, PolicyChannel::DevicePush | PolicyChannel::Providers);
    let delayed = channel != PolicyChannel::Session;
    // Each field with whether it is there, and whether the channel has it.
    let fields = [
        ("after_s", step.after_s.is_some(), delayed),
        ("expires_s", step.expires_s.is_some(), delayed),
        ("when", step.when.is_some(), delayed),
        ("providers", step.providers.is_some(), channel == PolicyChannel::Providers),
        ("template", step.template.is_some(), shows),
        ("templates", !step.templates.is_empty(), shows),
        ("sound", step.sound.is_some(), channel == PolicyChannel::Providers),
        ("priority", step.priority.is_some(), shows),
        ("collapse", step.collapse.is_some(), shows),
        ("badge", step.badge.is_some(), shows),
        ("event", step.event.is_some(), channel == PolicyChannel::Popup),
    ];
    if let Some((field, ..)) = fields.into_iter().find(|(_, given, known)| *given && !known) {
        return Err(Refusal::field(
            &format!("{path}.{field}"),
            format!("the channel {} does not take it", channel.name()),
        ));
    }
    for (field, seconds) in [("after_s", step.after_s), ("expires_s", step.expires_s)] {
        if seconds.is_some_and(|seconds| seconds > NOTIFICATION_DELAY_S_MAX) {
            return Err(Refusal::field(
                &format!("{path}.{field}"),
                format!("must be at most {NOTIFICATION_DELAY_S_MAX}"),
            ));
        }
    }
    if step.expires_s.is_some_and(|expires| expires <= step.after_s.unwrap_or(0)) {
        let why = format!("must be above after_s, {}", step.after_s.unwrap_or(0));
        return Err(Refusal::field(&format!("{path}.expires_s"), why));
    }
    if let Some(providers) = &step.providers {
        if providers.is_empty() {
            return Err(Refusal::field(&format!("{path}.providers"), "names none"));
        }
        if let Some(at) = (1..providers.len()).find(|at| providers[..*at].contains(&providers[*at])) {
            return Err(Refusal::field(&format!("{path}.providers[{at}]"), "appears twice"));
        }
    }
    if let Some(template) = &step.template {
        check_template(&format!("{path}.template"), template)?;
    }
    check_count(&format!("{path}.templates"), step.templates.len(), NOTIFICATION_LANGUAGES_MAX)?;
    for (language, template) in &step.templates {
        let path = format!("{path}.templates.{language}");
        check_language(&path, language)?;
        if step.templates.keys().any(|other| other < language && other.eq_ignore_ascii_case(language)) {
            return Err(Refusal::field(&path, "the language appears twice"));
        }
        check_template(&path, template)?;
    }
    if let Some(sound) = step.sound.as_deref().filter(|sound| !sound.is_empty()) {
        check_word(&format!("{path}.sound"), sound)?;
    }
    match (&step.event, channel) {
        (Some(event), _) => check_word(&format!("{path}.event"), event)?,
        (None, PolicyChannel::Popup) => {
            return Err(Refusal::field(&format!("{path}.event"), "is missing: it is what a popup's trigger names"));
        }
        (None, _) => {}
    }
    condition(&format!("{path}.when"), step.when.as_deref())
}

fn check_template(path: &str, template: &NotificationTemplate) -> Result<(), Refusal> {
    for (part, text) in [("title", &template.title), ("body", &template.body)] {
        let path = format!("{path}.{part}");
        check_length(&path, text, NOTIFICATION_TEMPLATE_BYTES_MAX)?;
        if let Some(unknown) = unknown_placeholder(text) {
            let known = NotificationTemplate::PLACEHOLDERS.join(", ");
            return Err(Refusal::field(&path, format!("unknown {unknown}; expected one of {known}")));
        }
    }
    if template.title.is_empty() && template.body.is_empty() {
        return Err(Refusal::field(path, "title and body are both empty"));
    }
    let image = template.image.as_ref();
    image.map_or(Ok(()), |image| NotificationTemplate::check_image(&format!("{path}.image"), image))
}

/// The first word in braces that stands for nothing.
fn unknown_placeholder(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        let word = &rest[start..];
        let end = word[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.')? + 1;
        if end > 1 && word[end..].starts_with('}') && !NotificationTemplate::PLACEHOLDERS.contains(&&word[..=end]) {
            return Some(&word[..=end]);
        }
        rest = &word[1..];
    }
    None
}

fn check_count(path: &str, count: usize, max: usize) -> Result<(), Refusal> {
    if count <= max { Ok(()) } else { Err(Refusal::limit(path, max as u64, count as u64)) }
}

fn check_length(path: &str, text: &str, max: usize) -> Result<(), Refusal> {
    check_count(&format!("{path} (bytes)"), text.len(), max)
}

fn check_word(path: &str, word: &str) -> Result<(), Refusal> {
    match word.len() {
        1..=WORD_BYTES_MAX if !word.chars().any(char::is_control) => Ok(()),
        1..=WORD_BYTES_MAX => Err(Refusal::field(path, "control characters are not allowed")),
        length => Err(Refusal::field(path, format!("must have 1 to {WORD_BYTES_MAX} bytes, has {length}"))),
    }
}
