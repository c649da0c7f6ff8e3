//! The rows of one message: for each person the rule of the policy that decides, and for each road of the rule whether it is taken
//! now, later, or not, and why.

use super::Roads;
use crate::{
    internal_roads::PEOPLE_PER_ROW,
    offline_recipients::{Candidate, OfflinePushContext, OfflineRecipients, RecipientPage},
    reach_gate::{Unwanted, why_not_by},
    reach_policy::{CompiledPolicy, MessageFacts, PersonFacts, PolicyRule},
    reach_trace::Record,
    road_jobs::{JobRoad, JobRow, JobWriter, OUTCOME_WAIT_MS, PARTS_PER_STEP, Target, step_number},
    vendor_push::badge_of,
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{RowChange, StoreError, StoreResult},
};
use tidings_protocol::http::{OnSuccess, PolicyRoad, PushVendor, ReachOutcome};

/// What all decisions of a round have in common.
#[derive(Clone, Copy)]
pub(super) struct DecisionScope<'a> {
    pub(super) context: &'a OfflinePushContext,
    pub(super) roads: &'a Roads,
    pub(super) policy: &'a CompiledPolicy,
    pub(super) now_ms: u64,
    /// Whether the devices in memory are as new as the message.
    pub(super) is_current: bool,
}

/// What tells the rows of a message apart: the place of the rule, the place of the road in it, whether users are told though they
/// have a session, and by which road.
type Place = (usize, usize, bool, JobRoad);

/// Decides some people of one message.
pub(super) struct Decision<'a> {
    scope: DecisionScope<'a>,
    pub(super) found: &'a OfflineRecipients,
    facts: MessageFacts<'a>,
    part: u64,
    parts_per_step: u64,
    even_online: bool,
    without_vendors: bool,
    writers: Vec<(Place, JobWriter)>,
    records: Vec<Record>,
}

/// A road of a rule.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) rule: &'a PolicyRule,
    /// The rule's place in the policy.
    pub(super) rule_at: usize,
    /// The road's place in the rule.
    pub(super) at: usize,
}

impl Step<'_> {
    /// Whether its success stops roads after it.
    fn stops_others(&self) -> bool {
        let step = self.rule.roads.get(self.at);
        step.is_some_and(|step| step.on_success == OnSuccess::Stop) && self.at + 1 < self.rule.roads.len()
    }
}

impl<'a> Decision<'a> {
    pub(super) fn new(scope: DecisionScope<'a>, found: &'a OfflineRecipients) -> Decision<'a> {
        Decision {
            scope,
            found,
            facts: MessageFacts::of(&found.conversation, &found.entry.content),
            part: 0,
            parts_per_step: PARTS_PER_STEP,
            even_online: false,
            without_vendors: false,
            writers: Vec::new(),
            records: Vec::new(),
        }
    }

    /// Of one person, or of a row for later: rows get parts from here on, so many for each road of the rule.
    #[must_use]
    pub(super) fn starting_at(self, part: u64, parts_per_step: u64) -> Decision<'a> {
        Decision { part, parts_per_step, ..self }
    }

    /// Users are told though they have a session.
    #[must_use]
    pub(super) fn even_online(self, even_online: bool) -> Decision<'a> {
        Decision { even_online, ..self }
    }

    /// Without the vendors, which have been told.
    #[must_use]
    pub(super) fn without_vendors(self, without_vendors: bool) -> Decision<'a> {
        Decision { without_vendors, ..self }
    }

    /// Decides all members. Rows of a large conversation are written on the way, by `write`: after a crash they are written again.
    pub(super) fn decide_members(
        mut self,
        changes: &mut Vec<RowChange>,
        mut write: impl FnMut(&mut Vec<RowChange>) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let context = self.scope.context;
        let mut page = 0;
        while let Some(members) = self.found.next_page(context)? {
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
        let RecipientPage { told, left_out } = page;
        self.records.reserve(left_out.len() + told.len());
        self.records.extend(left_out.into_iter().map(|(user, outcome)| Record::of_user(user, outcome)));
        self.decide(&told)?;
        Ok(std::mem::take(&mut self.records))
    }

    /// Decides these people.
    pub(super) fn decide(&mut self, people: &[Candidate]) -> StoreResult<()> {
        let DecisionScope { context, roads, policy, now_ms, is_current } = self.scope;
        let mut devices = Vec::new();
        let is_known = people.iter().all(|person| person.devices.is_some());
        if roads.has(PolicyRoad::Vendors) && !self.without_vendors && !is_known {
            let users: Vec<UserNo> = people.iter().map(|person| person.user.no).collect();
            devices = context.directory.push_devices(&users, is_current)?;
        }
        for (at, person) in people.iter().enumerate() {
            let devices = devices.get(at).or(person.devices.as_ref()).map_or(&[][..], |devices| devices);
            let facts = facts_of(context, policy, &person.user)?;
            match policy.rule_for(&self.facts, &facts, now_ms) {
                Some(rule) => self.take_rule(rule, person, &facts, devices),
                None => self.records.push(Record::of_user(person.user.no, ReachOutcome::NoRule)),
            }
        }
        Ok(())
    }

    fn take_rule(
        &mut self,
        rule: &'a PolicyRule,
        person: &Candidate,
        facts: &PersonFacts<'_>,
        devices: &[(PushVendor, String)],
    ) {
        let DecisionScope { roads, policy, now_ms, .. } = self.scope;
        let user = person.user.no;
        if person.is_active && rule.waits_for_sessions() && !self.even_online {
            self.records.push(Record::of_user(user, ReachOutcome::Active));
            return;
        }
        let rule_at = policy.rules.iter().position(|known| std::ptr::eq(known, rule)).unwrap_or(0);
        // A clock that was set back since the message holds up nothing.
        let sent_at = self.found.entry.at.min(now_ms);
        let even_online = self.even_online || person.is_active;
        // When the last road that stops others is taken.
        let mut stops_at = None;
        for (at, planned) in rule.roads.iter().enumerate() {
            if !roads.has(planned.road) || (planned.road == PolicyRoad::Vendors && self.without_vendors) {
                continue;
            }
            let step = Step { rule, rule_at, at };
            let due = sent_at.saturating_add(planned.after_ms);
            let due = stops_at.filter(|at| due <= *at).map_or(due, |at: u64| at.saturating_add(OUTCOME_WAIT_MS));
            let is_begun = match due > now_ms {
                true => {
                    self.writer(step, even_online, JobRoad::Later(due)).add_user(user);
                    let record = self.record(step, user, ReachOutcome::Waiting, None).until(due);
                    self.records.push(record);
                    true
                }
                false => self.take(step, person, facts, devices),
            };
            if is_begun && step.stops_others() {
                stops_at = Some(due.max(now_ms));
            }
        }
    }

    /// Takes a road to a person now, unless the person does not want it or its condition does not hold; answers whether there is
    /// anything to be told by it.
    pub(super) fn take(
        &mut self,
        step: Step<'a>,
        person: &Candidate,
        facts: &PersonFacts<'_>,
        devices: &[(PushVendor, String)],
    ) -> bool {
        let DecisionScope { roads, policy, now_ms, .. } = self.scope;
        let Some(planned) = step.rule.roads.get(step.at) else { return false };
        let user = person.user.no;
        let wanted = self.found.wanted(&person.user, person.mute);
        if let Some(Unwanted { outcome, until }) = why_not_by(planned.road, wanted, &person.user, now_ms) {
            let record = self.record(step, user, outcome, None);
            self.records.push(Record { until, ..record });
            return false;
        }
        if let Some(why) = policy.why_not_taken(planned, &self.facts, facts, now_ms) {
            let record = self.record(step, user, ReachOutcome::ConditionFalse, Some(&why.path()));
            self.records.push(record);
            return false;
        }
        let even_online = self.even_online || person.is_active;
        match planned.road {
            PolicyRoad::Session => false,
            PolicyRoad::Vendors => {
                let is_meant = |vendor: &PushVendor| {
                    roads.vendors.contains(vendor) && planned.vendors.as_ref().is_none_or(|only| only.contains(vendor))
                };
                let mut is_taken = false;
                for (vendor, device) in devices.iter().filter(|(vendor, _)| is_meant(vendor)) {
                    let writer = self.writer(step, even_online, JobRoad::Vendor(*vendor));
                    writer.add(Target(user.0, device.clone()));
                    is_taken = true;
                }
                is_taken
            }
            PolicyRoad::Webhook | PolicyRoad::DevicePush | PolicyRoad::Popup => {
                let Some(road) = JobRoad::of_users(planned.road) else { return false };
                self.writer(step, even_online, road).add_user(user);
                true
            }
        }
    }

    /// A record about a road, with the cause behind its name.
    pub(super) fn record(&self, step: Step<'_>, user: UserNo, outcome: ReachOutcome, cause: Option<&str>) -> Record {
        let road = step.rule.roads.get(step.at).map(|planned| planned.road.name());
        let why = road.into_iter().chain(cause).collect::<Vec<_>>().join(": ");
        Record::of_user(user, outcome).because(why).by_rule(self.rule_id(step))
    }

    /// The rule's name in records; none, of a policy that is not stored.
    fn rule_id(&self, step: Step<'_>) -> Option<Arc<str>> {
        (self.scope.policy.version > 0).then(|| step.rule.id.clone())
    }

    fn writer(&mut self, step: Step<'_>, even_online: bool, road: JobRoad) -> &mut JobWriter {
        let place = (step.rule_at, step.at, even_online, road);
        if let Some(at) = self.writers.iter().position(|(known, _)| *known == place) {
            return &mut self.writers[at].1;
        }
        let users_max = match (road, self.scope.roads.webhook) {
            (JobRoad::Webhook, Some(webhook)) => webhook.recipients_per_event,
            (JobRoad::DevicePush, _) => PEOPLE_PER_ROW,
            _ => usize::MAX,
        };
        // Rows of people for whom different rules decide, and of those who have a session, are apart too.
        let apart = match self.parts_per_step {
            PARTS_PER_STEP => step_number(step.rule_at, step.at, even_online),
            _ => step.at as u64,
        };
        let writer = JobWriter::new(road, self.found.message(), self.part + apart * self.parts_per_step)
            .even_online(even_online)
            .users_max(users_max)
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

/// What conditions of the policy look at; only what they ask for is looked up.
pub(super) fn facts_of<'u>(
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
