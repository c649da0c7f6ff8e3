//! The rows of one message: who is told of it by which road, and who is not, and why.

use super::Roads;
use crate::{
    offline_recipients::{OfflinePushContext, OfflineRecipients, RecipientPage},
    road_jobs::{JobRoad, JobWriter, Target},
};
use std::sync::Arc;
use tidings_domain::{
    model::*,
    store::{OutboxItem, RowChange, StoreResult},
};

/// Writes rows about one message for all roads.
pub(super) struct RoadWriters {
    vendors: Vec<(JobRoad, JobWriter)>,
    webhook: Option<JobWriter>,
    /// Whether the devices in memory are as new as the message.
    is_current: bool,
}

impl RoadWriters {
    /// The rows get the parts from `part` on.
    pub(super) fn new(roads: &Roads, message: OutboxItem, part: u64, is_current: bool) -> RoadWriters {
        let writer = |vendor| (JobRoad::Vendor(vendor), JobWriter::new(JobRoad::Vendor(vendor), message, part));
        let vendors = roads.vendors.iter().copied().map(writer).collect();
        let webhook = roads
            .webhook
            .map(|webhook| JobWriter::new(JobRoad::Webhook, message, part).users_max(webhook.recipients_per_event));
        RoadWriters { vendors, webhook, is_current }
    }

    /// Users are told though they have a session.
    #[must_use]
    pub(super) fn even_online(mut self) -> RoadWriters {
        self.vendors = self.vendors.into_iter().map(|(road, writer)| (road, writer.even_online(true))).collect();
        self.webhook = self.webhook.map(|writer| writer.even_online(true));
        self
    }

    /// Without the vendors, which have been told.
    #[must_use]
    pub(super) fn without_vendors(mut self) -> RoadWriters {
        self.vendors.clear();
        self
    }

    pub(super) fn add(
        &mut self,
        context: &OfflinePushContext,
        users: &[Arc<User>],
        changes: &mut Vec<RowChange>,
    ) -> StoreResult<()> {
        if let Some(webhook) = &mut self.webhook {
            users.iter().for_each(|user| webhook.add_user(user.no, changes));
        }
        if self.vendors.is_empty() {
            return Ok(());
        }
        let numbers: Vec<UserNo> = users.iter().map(|user| user.no).collect();
        for (user, devices) in numbers.iter().zip(context.directory.push_devices(&numbers, self.is_current)?) {
            for (vendor, device) in &*devices {
                let road = JobRoad::Vendor(*vendor);
                if let Some((_, writer)) = self.vendors.iter_mut().find(|(known, _)| *known == road) {
                    writer.add(Target(user.0, device.clone()), changes);
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self, changes: &mut Vec<RowChange>) {
        self.vendors.iter_mut().for_each(|(_, writer)| writer.finish(changes));
        self.webhook.iter_mut().for_each(|writer| writer.finish(changes));
    }
}

/// Adds the rows of one entry. Those of a large conversation are written on the way, by `write`: after a crash they are written
/// again.
pub(super) fn decide(
    context: &OfflinePushContext,
    mut found: OfflineRecipients,
    mut writers: RoadWriters,
    changes: &mut Vec<RowChange>,
    mut write: impl FnMut(&mut Vec<RowChange>) -> StoreResult<()>,
) -> StoreResult<()> {
    let mut page = 0;
    while let Some(RecipientPage { told, left_out }) = found.next_page(context)? {
        found.record_left_out(context, page, left_out, changes);
        writers.add(context, &told, changes)?;
        page += 1;
        write(changes)?;
    }
    writers.finish(changes);
    Ok(())
}
