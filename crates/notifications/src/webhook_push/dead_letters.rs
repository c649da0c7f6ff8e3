//! Dead letters of the webhook, as they are read from the store: events that it did not take in their last attempt.

use super::{events::Event, retry_queue};
use crate::{
    log::Whom,
    notification_rows::{NotificationKind, NotificationRowId, RowForm, find, rows},
};
use tidings_domain::store::{NotificationKey, Store, StoreResult, StoredNotification};
use tidings_protocol::http::{Channel, DeadLetter, DeadLetterId, DeadLetterSubject, NotificationOutcome};

/// Rows in one read: each may name a thousand recipients.
const ROWS_AT_ONCE: usize = 100;

/// Which dead letters of the webhook.
#[derive(Debug, Clone, Default)]
pub(crate) struct WebhookFilter {
    pub(crate) user: Option<String>,
    /// A part of the cause.
    pub(crate) cause: Option<String>,
}

impl WebhookFilter {
    fn fits(&self, letter: &DeadLetter) -> bool {
        self.user.as_ref().is_none_or(|user| letter.users.contains(user))
            && self.cause.as_ref().is_none_or(|part| letter.cause.as_ref().is_some_and(|cause| cause.contains(part)))
    }
}

/// Dead letters behind a number that fit, the oldest first, at most `limit`.
pub(crate) fn list(
    store: &dyn Store,
    after: Option<u64>,
    filter: &WebhookFilter,
    limit: usize,
) -> StoreResult<Vec<DeadLetter>> {
    let (mut found, mut after) = (Vec::new(), after.map(key_of));
    while found.len() < limit {
        let rows = rows(store, NotificationKind::DeadLetter, after, ROWS_AT_ONCE)?;
        let Some(last) = rows.last() else { break };
        after = Some(last.key);
        found.extend(rows.into_iter().map(dead_letter).filter(|letter| filter.fits(letter)));
    }
    found.truncate(limit);
    Ok(found)
}

/// Whether there is a dead letter with this number.
pub(crate) fn exists(store: &dyn Store, number: u64) -> StoreResult<bool> {
    Ok(of_number(store, number)?.is_some())
}

/// The key of the dead letter with this number.
pub(crate) fn key_of(number: u64) -> NotificationKey {
    // Both forms are the same.
    NotificationRowId::DeadLetter(number).key(RowForm::OwnTables)
}

/// The row of the dead letter with this number.
pub(super) fn of_number(store: &dyn Store, number: u64) -> StoreResult<Option<StoredNotification>> {
    let row = find(store, key_of(number))?;
    Ok(row.filter(|row| matches!(NotificationRowId::of(row.key), NotificationRowId::DeadLetter(_))))
}

fn dead_letter(row: StoredNotification) -> DeadLetter {
    let Event { conversation, seq, json, recipients, .. } = retry_queue::event_of(&row);
    let id_of = |whom| match whom {
        Whom::Id(id) => Some(id),
        Whom::User(_) | Whom::Device(..) => None,
    };
    DeadLetter {
        id: DeadLetterId::Webhook(retry_queue::event_id(row.key)),
        channel: Channel::Webhook,
        users: recipients.into_iter().filter_map(id_of).collect(),
        device_id: None,
        subject: DeadLetterSubject::Message { conversation: conversation.as_ref().to_owned(), seq },
        failed_at: row.failed_at,
        attempts: row.attempts,
        outcome: NotificationOutcome::Refused,
        cause: Some(row.last_error),
        event: Some(json),
    }
}
