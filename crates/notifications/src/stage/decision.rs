//! The rows of one message: for each person the rule of the policy that decides, and for each channel of the rule whether it is taken
//! now, later, or not, and why.

use super::Channels;
use crate::{
    channel_jobs::{Due, JobPart, JobRow, JobWriter, OUTCOME_WAIT_MS, Target},
    gate::{DueChannel, Obstacle, Unwanted},
    internal_channels::PEOPLE_PER_ROW,
    log::Record,
    offline_recipients::{Candidate, OfflinePushContext, OfflineRecipients, RecipientPage},
    person_facts::facts_of,
    policy::{CompiledPolicy, MessageFacts, PersonFacts, PolicyRule},
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{RowChange, StoreResult},
};
use tidings_protocol::http::{Channel, NotificationOutcome, OnSuccess, PolicyChannel, PushProvider};

/// What all decisions of a round have in common.
#[derive(Clone, Copy)]
pub(super) struct DecisionScope<'a> {
    pub(super) context: &'a OfflinePushContext,
    pub(super) channels: &'a Channels,
    pub(super) policy: &'a CompiledPolicy,
    pub(super) now_ms: u64,
    /// Whether the devices in memory are as new as the message.
    pub(super) is_current: bool,
}

/// What tells the rows of a message apart: the place of the rule, the place of the channel in it, whether users are notified though they
/// have a session, and by which channel.
type Place = (usize, usize, bool, Due);

/// Which parts the rows get.
#[derive(Clone, Copy)]
pub(super) enum Parts {
    Message,
    /// Of this user, whose session did not acknowledge the message.
    Unacknowledged(u64),
    /// Of a row whose time has come.
    LaterRow(JobPart),
}

/// Decides some people of one message.
pub(super) struct Decision<'a> {
    scope: DecisionScope<'a>,
    pub(super) found: &'a OfflineRecipients,
    facts: MessageFacts<'a>,
    parts: Parts,
    even_online: bool,
    without_providers: bool,
    writers: Vec<(Place, JobWriter)>,
    records: Vec<Record>,
}

/// A channel of a rule.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) rule: &'a PolicyRule,
    /// The rule's place in the policy.
    pub(super) rule_at: usize,
    /// The channel's place in the rule.
    pub(super) at: usize,
}

impl Step<'_> {
    /// Whether its success stops channels after it.
    fn stops_others(&self) -> bool {
        let step = self.rule.channels.get(self.at);
        step.is_some_and(|step| step.on_success == OnSuccess::Stop) && self.at + 1 < self.rule.channels.len()
    }
}

impl<'a> Decision<'a> {
    pub(super) fn new(scope: DecisionScope<'a>, found: &'a OfflineRecipients) -> Decision<'a> {
        Decision {
            scope,
            found,
            facts: MessageFacts::of(&found.conversation, &found.entry.content),
            parts: Parts::Message,
            even_online: false,
            without_providers: false,
            writers: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Of one person, or of a row for later: its rows are apart from those of the message.
    #[must_use]
    pub(super) fn in_parts(self, parts: Parts) -> Decision<'a> {
        Decision { parts, ..self }
    }

    /// Users are notified though they have a session.
    #[must_use]
    pub(super) fn even_online(self, even_online: bool) -> Decision<'a> {
        Decision { even_online, ..self }
    }

    /// Without the providers, which have been notified.
    #[must_use]
    pub(super) fn without_providers(self, without_providers: bool) -> Decision<'a> {
        Decision { without_providers, ..self }
    }

    /// Decides all members. Rows of a large conversation are written on the way, by `write`: after a crash they are written again.
    pub(super) fn decide_members(
        mut self,
        changes: &mut Vec<RowChange>,
        mut write: impl FnMut(&mut Vec<RowChange>) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let context = self.scope.context;
        let mut page = 0;
        while let Some(members) = self.found.next_page(context, self.scope.policy)? {
            let records = self.decide_page(members)?;
            changes.extend(self.writers.iter_mut().flat_map(|(_, writer)| writer.take_rows()).map(|row| row.change()));
            if let Some(rows) = self.found.record_rows(context, page, records) {
                rows.add_to((self.found.conversation.no, self.found.entry.seq), &[], changes);
            }
            page += 1;
            write(changes)?;
        }
        self.finish(changes);
        Ok(())
    }

    /// Decides some members; answers what is to be recorded of them.
    pub(super) fn decide_page(&mut self, page: RecipientPage) -> StoreResult<Vec<Record>> {
        let RecipientPage { notified, left_out } = page;
        self.records.reserve(left_out.len() + notified.len());
        self.records.extend(left_out.into_iter().map(|(user, outcome)| Record::of_user(user, outcome)));
        self.decide(&notified)?;
        Ok(std::mem::take(&mut self.records))
    }

    /// Decides these people.
    pub(super) fn decide(&mut self, people: &[Candidate]) -> StoreResult<()> {
        let DecisionScope { context, channels, policy, now_ms, is_current } = self.scope;
        let mut devices = Vec::new();
        let is_known = people.iter().all(|person| person.devices.is_some());
        if channels.has(PolicyChannel::Providers) && !self.without_providers && !is_known {
            let users: Vec<UserNo> = people.iter().map(|person| person.user.no).collect();
            devices = context.directory.push_devices(&users, is_current)?;
        }
        for (at, person) in people.iter().enumerate() {
            let devices = devices.get(at).or(person.devices.as_ref()).map_or(&[][..], |devices| devices);
            let facts = facts_of(context, policy, &person.user)?;
            match policy.rule_for(&self.facts, &facts, now_ms) {
                Some(rule) => self.take_rule(rule, person, &facts, devices),
                None => self.records.push(Record::of_user(person.user.no, NotificationOutcome::NoRule)),
            }
        }
        Ok(())
    }

    fn take_rule(
        &mut self,
        rule: &'a PolicyRule,
        person: &Candidate,
        facts: &PersonFacts<'_>,
        devices: &[(PushProvider, String)],
    ) {
        let DecisionScope { channels, policy, now_ms, .. } = self.scope;
        let user = person.user.no;
        if person.is_active && rule.waits_for_sessions() && !self.even_online {
            self.records.push(Record::of_user(user, NotificationOutcome::Active));
            return;
        }
        let rule_at = policy.rules.iter().position(|known| std::ptr::eq(known, rule)).unwrap_or(0);
        // A clock that was set back since the message holds up nothing.
        let sent_at = self.found.entry.at.min(now_ms);
        let even_online = self.even_online || person.is_active;
        // When the last channel that stops others is taken.
        let mut stops_at = None;
        for (at, planned) in rule.channels.iter().enumerate() {
            if !channels.has(planned.channel) || (planned.channel == PolicyChannel::Providers && self.without_providers)
            {
                continue;
            }
            let step = Step { rule, rule_at, at };
            let due = sent_at.saturating_add(planned.after_ms);
            let due = stops_at.filter(|at| due <= *at).map_or(due, |at: u64| at.saturating_add(OUTCOME_WAIT_MS));
            let is_begun = if due > now_ms {
                self.writer(step, even_online, Due::At(due)).add_user(user);
                let record = self.record(step, user, NotificationOutcome::Waiting, None).until(due);
                self.records.push(record);
                true
            } else {
                self.take(step, person, facts, devices)
            };
            if is_begun && step.stops_others() {
                stops_at = Some(due.max(now_ms));
            }
        }
    }

    /// Takes a channel to a person now, unless the person does not want it or its condition does not hold; answers whether there is
    /// anything to be notified by it.
    pub(super) fn take(
        &mut self,
        step: Step<'a>,
        person: &Candidate,
        facts: &PersonFacts<'_>,
        devices: &[(PushProvider, String)],
    ) -> bool {
        let DecisionScope { channels, policy, now_ms, .. } = self.scope;
        let Some(planned) = step.rule.channels.get(step.at) else { return false };
        let user = person.user.no;
        let wanted = self.found.wanted(&person.user, person.mute);
        let due = DueChannel { policy, step: planned, message: &self.facts, person: facts };
        let left_out = match due.why_not_taken(wanted, now_ms) {
            None => None,
            Some(Obstacle::Unwanted(Unwanted { outcome, until })) => {
                Some(Record { until, ..self.record(step, user, outcome, None) })
            }
            Some(Obstacle::Condition(why)) => {
                Some(self.record(step, user, NotificationOutcome::ConditionFalse, Some(&why.path())))
            }
        };
        if let Some(record) = left_out {
            self.records.push(record);
            return false;
        }
        let even_online = self.even_online || person.is_active;
        match planned.channel {
            PolicyChannel::Session => false,
            PolicyChannel::Providers => {
                let is_meant = |provider: &PushProvider| {
                    channels.providers.contains(provider)
                        && planned.providers.as_ref().is_none_or(|only| only.contains(provider))
                };
                let mut is_taken = false;
                for (provider, device) in devices.iter().filter(|(provider, _)| is_meant(provider)) {
                    let writer = self.writer(step, even_online, Due::Now(Channel::from(*provider)));
                    writer.add(Target(user.0, device.clone()));
                    is_taken = true;
                }
                is_taken
            }
            PolicyChannel::Webhook => self.add_user(step, even_online, Channel::Webhook, user),
            PolicyChannel::DevicePush => self.add_user(step, even_online, Channel::DevicePush, user),
            PolicyChannel::Popup => self.add_user(step, even_online, Channel::Popup, user),
        }
    }

    fn add_user(&mut self, step: Step<'_>, even_online: bool, channel: Channel, user: UserNo) -> bool {
        self.writer(step, even_online, Due::Now(channel)).add_user(user);
        true
    }

    /// A record about a channel, with the cause behind its name.
    pub(super) fn record(
        &self,
        step: Step<'_>,
        user: UserNo,
        outcome: NotificationOutcome,
        cause: Option<&str>,
    ) -> Record {
        let channel = step.rule.channels.get(step.at).map(|planned| planned.channel.name());
        let why = channel.into_iter().chain(cause).collect::<Vec<_>>().join(": ");
        Record::of_user(user, outcome).because(why).by_rule(self.rule_id(step))
    }

    /// The rule's name in records; none, of a policy that is not stored.
    fn rule_id(&self, step: Step<'_>) -> Option<Arc<str>> {
        (self.scope.policy.version > 0).then(|| step.rule.id.clone())
    }

    fn writer(&mut self, step: Step<'_>, even_online: bool, due: Due) -> &mut JobWriter {
        let place = (step.rule_at, step.at, even_online, due);
        if let Some(at) = self.writers.iter().position(|(known, _)| *known == place) {
            return &mut self.writers[at].1;
        }
        let users_max = match (due, self.scope.channels.webhook) {
            (Due::Now(Channel::Webhook), Some(webhook)) => webhook.recipients_per_event,
            (Due::Now(Channel::DevicePush), _) => PEOPLE_PER_ROW,
            _ => usize::MAX,
        };
        let part = match self.parts {
            // Rows of people for whom different rules decide, and of those who have a session, are apart too.
            Parts::Message => JobPart::of_step(step.rule_at, step.at, even_online),
            Parts::Unacknowledged(user) => JobPart::unacknowledged(user, step.at),
            Parts::LaterRow(part) => part,
        };
        let writer = JobWriter::new(due, self.found.message(), part)
            .even_online(even_online)
            .users_max(users_max)
            .decided_by(self.scope.policy.version)
            .of_step(&step.rule.id, step.at as u32, step.stops_others());
        self.writers.push((place, writer));
        let last = self.writers.len() - 1;
        &mut self.writers[last].1
    }

    /// Finishes the rows; answers what is to be recorded of the people since the last time.
    pub(super) fn finish(self, changes: &mut Vec<RowChange>) -> Vec<Record> {
        let (rows, records) = self.finish_rows();
        changes.extend(rows.iter().map(JobRow::change));
        records
    }

    /// The rows, and what is to be recorded of the people since the last time.
    pub(super) fn finish_rows(self) -> (Vec<JobRow>, Vec<Record>) {
        (self.writers.into_iter().flat_map(|(_, writer)| writer.finish()).collect(), self.records)
    }
}
