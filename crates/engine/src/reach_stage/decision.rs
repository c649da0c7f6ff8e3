//! The rows of one message: who is told of it by which road, now or later, and who is not, and why.

use super::Roads;
use crate::{
    offline_recipients::{OfflinePushContext, OfflineRecipients, RecipientPage},
    reach_trace::Record,
    road_jobs::{JobRoad, JobWriter, Target},
    road_plan::PlanRoad,
};
use tidings_domain::{
    model::*,
    store::{OutboxItem, RowChange, StoreResult},
};
use tidings_protocol::http::{PushVendor, ReachOutcome};

/// A road that is due together with one before it that stops others waits so long for that one's outcome.
const OUTCOME_WAIT_MS: u64 = 10_000;
/// The parts of a message's rows that belong to one road of the plan.
const PARTS_PER_STEP: u64 = 1 << 40;

/// Writes rows about one message.
pub(super) struct RoadWriters<'a> {
    roads: &'a Roads,
    message: OutboxItem,
    /// When the message was sent; no later than now, so that a clock that was set back holds up nothing.
    sent_at: u64,
    now_ms: u64,
    part: u64,
    parts_per_step: u64,
    even_online: bool,
    without_vendors: bool,
    /// Whether the devices in memory are as new as the message.
    is_current: bool,
    writers: Vec<(usize, JobRoad, JobWriter)>,
    records: Vec<Record>,
}

impl<'a> RoadWriters<'a> {
    pub(super) fn new(
        roads: &'a Roads,
        (message, sent_at): (OutboxItem, u64),
        now_ms: u64,
        is_current: bool,
    ) -> RoadWriters<'a> {
        RoadWriters {
            roads,
            message,
            sent_at: sent_at.min(now_ms),
            now_ms,
            part: 0,
            parts_per_step: PARTS_PER_STEP,
            even_online: false,
            without_vendors: false,
            is_current,
            writers: Vec::new(),
            records: Vec::new(),
        }
    }

    /// The rows get parts from here on, one for each road.
    #[must_use]
    pub(super) fn from_part(self, part: u64) -> RoadWriters<'a> {
        RoadWriters { part, parts_per_step: 1, ..self }
    }

    /// Users are told though they have a session.
    #[must_use]
    pub(super) fn even_online(self, even_online: bool) -> RoadWriters<'a> {
        RoadWriters { even_online, ..self }
    }

    /// Without the vendors, which have been told.
    #[must_use]
    pub(super) fn without_vendors(self, without_vendors: bool) -> RoadWriters<'a> {
        RoadWriters { without_vendors, ..self }
    }

    /// Has these users told, by the plan.
    pub(super) fn add(
        &mut self,
        context: &OfflinePushContext,
        users: &[UserNo],
        changes: &mut Vec<RowChange>,
    ) -> StoreResult<()> {
        let has_vendors = self.roads.has(PlanRoad::Vendors) && !self.without_vendors;
        let devices = match has_vendors {
            true => context.directory.push_devices(users, self.is_current)?,
            false => Vec::new(),
        };
        let roads = self.roads;
        for (at, user) in users.iter().enumerate() {
            let devices = devices.get(at).map_or(&[][..], |devices| devices);
            let mut earliest = 0;
            for (step, planned) in roads.plan.roads.iter().enumerate() {
                if !roads.has(planned.road) || (planned.road == PlanRoad::Vendors && self.without_vendors) {
                    continue;
                }
                let due = self.sent_at.saturating_add(planned.after_ms).max(earliest);
                let is_begun = match due > self.now_ms {
                    true => {
                        self.writer(step, JobRoad::Later(due)).add_user(*user, changes);
                        let record = Record::of_user(*user, ReachOutcome::Waiting).because(planned.road.name());
                        self.records.push(record.until(due));
                        true
                    }
                    false => self.take(step, *user, devices, changes),
                };
                if is_begun && roads.plan.stops_others(step) {
                    earliest = due.max(self.now_ms) + OUTCOME_WAIT_MS;
                }
            }
        }
        Ok(())
    }

    /// Takes this road of the plan to a user now; answers whether there is anything to be told by it.
    pub(super) fn take(
        &mut self,
        step: usize,
        user: UserNo,
        devices: &[(PushVendor, String)],
        changes: &mut Vec<RowChange>,
    ) -> bool {
        match self.roads.plan.roads.get(step).map(|planned| planned.road) {
            Some(PlanRoad::Vendors) => {
                let mut is_taken = false;
                for (vendor, device) in devices {
                    if self.roads.vendors.contains(vendor) {
                        let writer = self.writer(step, JobRoad::Vendor(*vendor));
                        writer.add(Target(user.0, device.clone()), changes);
                        is_taken = true;
                    }
                }
                is_taken
            }
            Some(PlanRoad::Webhook) => {
                self.writer(step, JobRoad::Webhook).add_user(user, changes);
                true
            }
            None => false,
        }
    }

    fn writer(&mut self, step: usize, road: JobRoad) -> &mut JobWriter {
        if let Some(at) = self.writers.iter().position(|(known, of, _)| (*known, *of) == (step, road)) {
            return &mut self.writers[at].2;
        }
        let users_max = match (road, self.roads.webhook) {
            (JobRoad::Webhook, Some(webhook)) => webhook.recipients_per_event,
            _ => usize::MAX,
        };
        let writer = JobWriter::new(road, self.message, self.part + step as u64 * self.parts_per_step)
            .even_online(self.even_online)
            .users_max(users_max)
            .of_step(step as u32, self.roads.plan.stops_others(step));
        self.writers.push((step, road, writer));
        let last = self.writers.len() - 1;
        &mut self.writers[last].2
    }

    /// What is to be recorded of the users so far.
    fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Finishes the rows; answers what is to be recorded of the users since the last time.
    pub(super) fn finish(mut self, changes: &mut Vec<RowChange>) -> Vec<Record> {
        self.writers.iter_mut().for_each(|(.., writer)| writer.finish(changes));
        self.records
    }
}

/// Adds the rows of one entry. Those of a large conversation are written on the way, by `write`: after a crash they are written
/// again.
pub(super) fn decide(
    context: &OfflinePushContext,
    mut found: OfflineRecipients,
    mut writers: RoadWriters<'_>,
    changes: &mut Vec<RowChange>,
    mut write: impl FnMut(&mut Vec<RowChange>) -> StoreResult<()>,
) -> StoreResult<()> {
    let mut page = 0;
    while let Some(RecipientPage { told, left_out }) = found.next_page(context)? {
        let told: Vec<UserNo> = told.iter().map(|user| user.no).collect();
        writers.add(context, &told, changes)?;
        let mut records: Vec<_> = left_out.into_iter().map(|(user, outcome)| Record::of_user(user, outcome)).collect();
        records.extend(writers.take_records());
        found.record_decisions(context, page, records, changes);
        page += 1;
        write(changes)?;
    }
    writers.finish(changes);
    Ok(())
}
