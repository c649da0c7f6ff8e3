//! Withdrawals: notifications without a text that have a device take away what it shows of a conversation.

use super::{Addressed, Newest, OpenJob, VendorWorker, hash_of};
use crate::{road_jobs::Target, vendor_push::rendering::withdrawal};
use std::{collections::HashMap, time::Duration};
use tidings_domain::{
    chat_rows::{ShownNotification, shown_key},
    model::*,
    store::*,
    vendors::Shipment,
};
use tidings_protocol::http::ReachOutcome;

/// A withdrawal that a vendor did not take by then is given up: the person has read the message anyway.
const TIME_TO_LIVE: Duration = Duration::from_secs(60 * 60);
/// Attempts at one withdrawal.
const ATTEMPTS_MAX: u32 = 5;

impl VendorWorker {
    /// Notes what devices show from now on. What its user has read while the vendor was asked is withdrawn.
    pub(super) fn note_shown(&self, changes: &[RowChange]) -> StoreResult<()> {
        let directory = &self.context.directory;
        for RowChange { key, value } in changes.iter().filter(|change| change.key.first() == Some(&b'h')) {
            let shown = value.as_ref().and_then(|value| ShownNotification::of_row(key, value));
            let Some(ShownNotification { user, conversation, seq, .. }) = shown else { continue };
            directory.shown.note_shown(user, conversation);
            let membership = directory.membership(conversation, user)?;
            if membership.is_some_and(|membership| membership.read_seq >= seq) {
                directory.shown.note_read(user, conversation);
            }
        }
        Ok(())
    }

    /// The shipments of a row that withdraws, behind so many others, for the devices that still show this message and no newer one.
    pub(super) fn prepare_withdrawal(
        &self,
        at: usize,
        open: &mut OpenJob,
        newest: &mut HashMap<Target, Newest>,
        shipments: usize,
    ) -> StoreResult<Vec<(Addressed, Shipment)>> {
        let context = &*self.context;
        let (number, seq) = (open.job.conversation, open.job.seq);
        let conversation = context.directory.conversation(ConversationNo(number))?;
        let mut prepared = Vec::new();
        for target in &open.job.targets {
            let user = UserNo(target.0);
            let key = shown_key(user, ConversationNo(number), self.vendor.vendor(), &target.1);
            let row = context.store.row(RowSpace::Chat, &key)?;
            let shown = row.as_ref().and_then(|row| ShownNotification::of_row(&key, row)).map(|shown| shown.seq);
            let is_newer_told = self.latest.peek(&(number, hash_of(target))).is_some_and(|told| told.seq > seq);
            let is_obsolete = shown != Some(seq) || is_newer_told || newest.contains_key(target);
            let outcome = match (&conversation, is_obsolete, open.job.attempts >= ATTEMPTS_MAX) {
                (Some(_), false, false) => None,
                (Some(_), false, true) | (None, ..) => Some(ReachOutcome::Expired),
                (Some(_), true, _) => Some(ReachOutcome::Superseded),
            };
            if let Some(outcome) = outcome {
                self.count(super::settled_label(outcome));
                if outcome == ReachOutcome::Expired {
                    open.shown.push(RowChange { key, value: None });
                }
                continue;
            }
            let (Some(conversation), Some((digest, token))) = (&conversation, self.token_of(user, &target.1)?) else {
                open.shown.push(RowChange { key, value: None });
                continue;
            };
            let expires_at = context.clock.now_ms() + TIME_TO_LIVE.as_millis() as u64;
            let notification = withdrawal(conversation, seq, expires_at, context.store.epoch(), digest);
            let (registered_at, service) = (token.registered_at, self.vendor.service_of(&token.token));
            newest.insert(target.clone(), Newest { service, at: shipments + prepared.len() });
            prepared.push((
                Addressed { job: at, target: target.clone(), service, digest, registered_at, began_at: 0 },
                Shipment { notification, token: token.token },
            ));
        }
        Ok(prepared)
    }
}
