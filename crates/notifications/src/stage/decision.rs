//! The rows of one message: for each person the rule of the policy that decides, and for each channel of the rule whether it is taken
//! now, later, or not, and why.

use super::Channels;
use crate::{
    channel_jobs::{Deferred, DeferredBy, Due, JobPart, JobRow, JobWriter, Target},
    gate::{DueChannel, Obstacle, Unwanted},
    internal_channels::PEOPLE_PER_ROW,
    log::Record,
    offline_recipients::{Candidate, OfflinePushContext, OfflineRecipients, RecipientPage},
    person_facts::facts_of,
    policy::{CompiledPolicy, MessageFacts, PersonFacts, PolicyRule},
    rule_times::{Deferral, RuleTimes},
};
use std::{collections::HashSet, sync::Arc};
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

/// What became of a channel for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Not,
    Now,
    Later,
    Deferred(Deferral),
}

/// Those of a conversation who were notified when their quiet hours ended.
#[derive(Default)]
pub(super) struct Told {
    /// When they ended, and the conversation.
    pub(super) of: Option<(u64, ConversationNo)>,
    pub(super) people: HashSet<(UserNo, PolicyChannel)>,
}

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
    /// From when the times of its rows count; 0: from the message on.
    counts_from: u64,
    /// The devices that are notified; `None`: all of a person's.
    only: Option<&'a [Target]>,
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
            counts_from: 0,
            only: None,
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

    /// The times of its rows count from then on, when quiet hours ended; 0: from the message on.
    #[must_use]
    pub(super) fn counted_from(self, counts_from: u64) -> Decision<'a> {
        Decision { counts_from, ..self }
    }

    /// Of people's devices only these are notified.
    #[must_use]
    pub(super) fn only(self, targets: &'a [Target]) -> Decision<'a> {
        Decision { only: Some(targets), ..self }
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
        let mut times = RuleTimes::of(sent_at);
        if rule.channels.iter().all(|step| step.channel == PolicyChannel::Session) {
            self.records.push(Record::of_user(user, NotificationOutcome::NoRule).by_rule(self.name_of(rule)));
        }
        for (at, planned) in rule.channels.iter().enumerate() {
            if !channels.has(planned.channel) || (planned.channel == PolicyChannel::Providers && self.without_providers)
            {
                continue;
            }
            let step = Step { rule, rule_at, at };
            let due = times.due(planned);
            let delay_ms = due - sent_at;
            let taken = match times.deferral(planned) {
                Some(deferral) => self.defer(step, even_online, user, deferral, delay_ms),
                None if due > now_ms => self.wait(step, even_online, user, due),
                None => self.take(step, person, facts, devices, delay_ms),
            };
            let deferral = if let Taken::Deferred(deferral) = taken { Some(deferral) } else { None };
            times.note(due, now_ms, step.stops_others(), taken != Taken::Not, deferral);
        }
    }

    /// Has a channel wait for its time.
    pub(super) fn wait(&mut self, step: Step<'a>, even_online: bool, user: UserNo, due: u64) -> Taken {
        self.writer(step, even_online, Due::At(due)).add_user(user);
        let record = self.record(step, user, NotificationOutcome::Waiting, None).until(due);
        self.records.push(record);
        Taken::Later
    }

    /// Has a channel wait for the end of a person's quiet hours.
    fn defer(&mut self, step: Step<'a>, even_online: bool, user: UserNo, deferral: Deferral, delay_ms: u64) -> Taken {
        let Deferral { until, cause } = deferral;
        let (conversation, from) = (self.found.conversation.no, self.counts_from);
        let source = if matches!(self.parts, Parts::LaterRow(_)) { DeferredBy::Waiting } else { DeferredBy::Decision };
        let due = Due::Deferred(Deferred { until, conversation, delay_ms, source, from });
        let only: Vec<Target> =
            self.only.unwrap_or_default().iter().filter(|target| target.0 == user.0).cloned().collect();
        let writer = self.writer(step, even_online, due);
        if only.is_empty() {
            writer.add_user(user)
        } else {
            only.into_iter().for_each(|target| writer.add(target))
        }
        let cause = if cause == NotificationOutcome::Snoozed { "snoozed" } else { "do_not_disturb" };
        let record = self.record(step, user, NotificationOutcome::Deferred, Some(cause));
        self.records.push(record.until(until.saturating_add(delay_ms)));
        Taken::Deferred(deferral)
    }

    /// Takes a channel to a person now, unless the person does not want it or its condition does not hold. `delay_ms`: so long after its times
    /// began to count the channel is due.
    pub(super) fn take(
        &mut self,
        step: Step<'a>,
        person: &Candidate,
        facts: &PersonFacts<'_>,
        devices: &[(PushProvider, String)],
        delay_ms: u64,
    ) -> Taken {
        let DecisionScope { channels, policy, now_ms, .. } = self.scope;
        let Some(planned) = step.rule.channels.get(step.at) else { return Taken::Not };
        let user = person.user.no;
        let wanted = self.found.wanted(&person.user, person.mute);
        let due = DueChannel { policy, step: planned, message: &self.facts, person: facts };
        let left_out = match due.why_not_taken(wanted, now_ms) {
            None => None,
            Some(Obstacle::Unwanted(Unwanted { outcome, deferred_to: Some(until), .. })) => {
                let even_online = self.even_online || person.is_active;
                return self.defer(step, even_online, user, Deferral { until, cause: outcome }, delay_ms);
            }
            Some(Obstacle::Unwanted(Unwanted { outcome, until, .. })) => {
                Some(Record { until, ..self.record(step, user, outcome, None) })
            }
            Some(Obstacle::Condition(why)) => {
                Some(self.record(step, user, NotificationOutcome::ConditionFalse, Some(&why.path())))
            }
        };
        if let Some(record) = left_out {
            self.records.push(record);
            return Taken::Not;
        }
        let even_online = self.even_online || person.is_active;
        match planned.channel {
            PolicyChannel::Session => Taken::Not,
            PolicyChannel::Providers => {
                let is_meant = |provider: &PushProvider| {
                    channels.providers.contains(provider)
                        && planned.providers.as_ref().is_none_or(|only| only.contains(provider))
                };
                let only = self.only;
                let is_left = |device: &str| {
                    only.is_none_or(|only| only.iter().any(|target| target.0 == user.0 && target.1 == *device))
                };
                let mut taken = Taken::Not;
                for (provider, device) in
                    devices.iter().filter(|(provider, device)| is_meant(provider) && is_left(device))
                {
                    let writer = self.writer(step, even_online, Due::Now(Channel::from(*provider)));
                    writer.add(Target(user.0, device.clone()));
                    taken = Taken::Now;
                }
                // That there is no device at all is known without a record.
                if taken == Taken::Not && !devices.is_empty() {
                    self.records.push(self.record(step, user, NotificationOutcome::NoDevice, None));
                }
                taken
            }
            PolicyChannel::Webhook => self.add_user(step, even_online, Channel::Webhook, user),
            PolicyChannel::DevicePush => self.add_user(step, even_online, Channel::DevicePush, user),
            PolicyChannel::Popup => self.add_user(step, even_online, Channel::Popup, user),
        }
    }

    fn add_user(&mut self, step: Step<'_>, even_online: bool, channel: Channel, user: UserNo) -> Taken {
        self.writer(step, even_online, Due::Now(channel)).add_user(user);
        Taken::Now
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
        self.name_of(step.rule)
    }

    fn name_of(&self, rule: &PolicyRule) -> Option<Arc<str>> {
        (self.scope.policy.version > 0).then(|| rule.id.clone())
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
        let part = if matches!(due, Due::Deferred(_)) {
            // People whose quiet hours end at different times are notified by different events.
            let is_like = |(rule_at, at, online, due): &(usize, usize, bool, Due)| {
                (*rule_at, *at, *online) == (step.rule_at, step.at, even_online) && matches!(due, Due::Deferred(_))
            };
            let others = self.writers.iter().filter(|(place, _)| is_like(place)).count();
            part.deferred().unwrap_or(part).after_others(others)
        } else {
            part
        };
        let writer = JobWriter::new(due, self.found.message(), part)
            .even_online(even_online)
            .users_max(users_max)
            .decided_by(self.scope.policy.version)
            .counted_from(self.counts_from)
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
