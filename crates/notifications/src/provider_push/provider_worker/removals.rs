//! Removals: notifications without a text that have a device take away what it shows of a conversation. A browser must show
//! something for each push: what it shows of a recalled message is replaced by a line that says so.

use super::{Addressed, Newest, OlderNotification, OpenJob, ProviderWorker, hash_of};
use crate::{
    badge::RoundBadges,
    channel_jobs::Target,
    offline_recipients::{OfflineRecipients, is_read, is_recalled},
    provider_push::rendering::{recalled_texts, removal, replacing},
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{ShownNotification, shown_key},
    model::*,
    providers::Shipment,
    store::*,
};
use tidings_protocol::http::{NotificationOutcome, PushProvider};

/// A removal that a provider did not take by then is given up: the person has read the message anyway.
const TIME_TO_LIVE: Duration = Duration::from_secs(60 * 60);
/// Attempts at one removal.
const ATTEMPTS_MAX: u32 = 5;

impl ProviderWorker {
    /// Notes what devices show from now on. What its user has read or cleared while the provider was asked is removed.
    pub(super) fn note_shown(&self, changes: &[RowChange]) {
        let shown = &self.context.directory.shown;
        for RowChange { key, value } in changes.iter().filter(|change| ChatRowKind::ShownNotification.has(&change.key))
        {
            let row = value.as_ref().and_then(|value| ShownNotification::of_row(key, value));
            let Some(ShownNotification { user, conversation, seq, .. }) = row else { continue };
            shown.note_shown(user, conversation, seq);
            match is_read(&self.context, user, conversation, seq) {
                Ok(false) => {}
                Ok(true) => shown.note_read(user, conversation),
                // It is stored by now: what cannot be looked up is found with all others.
                Err(_) => shown.note_missed(),
            }
        }
    }

    /// What is shown in place of a message, if it was recalled.
    fn replacement(&self, conversation: &Arc<Conversation>, seq: u64) -> StoreResult<Option<(String, String)>> {
        let context = &*self.context;
        let found = context.store.entries(conversation.no, seq, seq, 1, End::Oldest)?.into_iter().next();
        let Some(entry) = found.filter(is_recalled) else { return Ok(None) };
        let sender =
            entry.content.sender.as_ref().map(|sender| context.directory.user(sender.no)).transpose()?.flatten();
        let found = OfflineRecipients::for_one(context, conversation.clone(), entry);
        Ok(Some(recalled_texts(&self.config.templates, &found, sender.as_deref())))
    }

    /// The shipments of a row that removes, behind so many others, for the devices that still show this message and no newer one.
    pub(super) fn prepare_removal(
        &self,
        at: usize,
        open: &mut OpenJob,
        newest: &mut HashMap<Target, Newest>,
        held: &mut Vec<OlderNotification>,
        badges: &mut RoundBadges,
        shipments: usize,
    ) -> StoreResult<Vec<(Addressed, Shipment)>> {
        let context = &*self.context;
        let (number, seq) = (open.job.conversation, open.job.seq);
        let conversation = context.directory.conversation(ConversationNo(number))?;
        let replacement = match &conversation {
            Some(conversation) if self.provider.provider() == PushProvider::WebPush => {
                self.replacement(conversation, seq)?
            }
            _ => None,
        };
        let mut prepared = Vec::new();
        for target in &open.job.targets {
            let user = UserNo(target.0);
            let key = shown_key(user, ConversationNo(number), self.provider.provider(), &target.1);
            let row = context.store.row(RowSpace::Chat, &key)?;
            let shown = row.as_ref().and_then(|row| ShownNotification::of_row(&key, row)).map(|shown| shown.seq);
            let is_newer_shown =
                self.latest.peek(&(number, hash_of(target))).is_some_and(|notified| notified.seq > seq);
            let is_obsolete = shown != Some(seq) || is_newer_shown;
            let outcome = match (&conversation, is_obsolete, open.job.attempts >= ATTEMPTS_MAX) {
                (Some(_), false, false) => None,
                (Some(_), false, true) | (None, ..) => Some(NotificationOutcome::Expired),
                (Some(_), true, _) => Some(NotificationOutcome::Superseded),
            };
            if let Some(outcome) = outcome {
                self.count(super::settled_label(outcome));
                if outcome == NotificationOutcome::Expired {
                    open.shown.push(RowChange { key, value: None });
                }
                continue;
            }
            // If the provider takes the newer one, that takes the place of what the device shows.
            if let Some(Newest { service, at: newer }) = newest.get(target).copied() {
                held.push(OlderNotification { job: at, target: target.clone(), service, newer });
                continue;
            }
            let (Some(conversation), Some((digest, token))) = (&conversation, self.token_of(user, &target.1)?) else {
                open.shown.push(RowChange { key, value: None });
                continue;
            };
            let expires_at = context.clock.now_ms() + TIME_TO_LIVE.as_millis() as u64;
            let badge = match context.directory.user(user)?.filter(|_| self.config.badge) {
                Some(person) => Some(badges.of(context, &person)?),
                None => None,
            };
            let removal = removal(conversation, seq, expires_at, context.store.epoch(), digest, badge);
            if replacement.is_none() && !self.provider.takes_silent(&token.token) {
                open.shown.push(RowChange { key, value: None });
                self.count(super::settled_label(NotificationOutcome::Superseded));
                continue;
            }
            let notification = match &replacement {
                Some((title, body)) => replacing(removal, title.clone(), body.clone()),
                None => removal,
            };
            let (registered_at, service) = (token.registered_at, self.provider.service_of(&token.token));
            newest.insert(target.clone(), Newest { service, at: shipments + prepared.len() });
            prepared.push((
                Addressed {
                    job: at,
                    target: target.clone(),
                    service,
                    digest,
                    registered_at,
                    began_at: 0,
                    collapses: true,
                },
                Shipment { notification, token: token.token },
            ));
        }
        Ok(prepared)
    }
}
