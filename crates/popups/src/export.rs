//! The export of events in the order in which they were taken, a page at a time, so that an export of any length can be
//! streamed.

use super::{
    PopupService,
    rows::{self, EventDetails, SPACE, kind},
};
use tidings_domain::{refusals::store_refusal, store::StoreResult};
use tidings_protocol::{
    error::Refusal,
    http::{ExportedEvent, PopupEventKind},
};

/// Events in one page.
const PAGE: usize = 1_000;

/// How far an export has come.
#[derive(Debug, Clone)]
pub struct EventCursor {
    from: Vec<u8>,
    to: Vec<u8>,
    popup: Option<String>,
}

impl EventCursor {
    /// Events that were taken at `from` or later and before `to`, of one popup or of all.
    pub fn new(from: Option<u64>, to: Option<u64>, popup: Option<String>) -> Self {
        let key = |at: u64| [&[kind::EVENT], &at.to_be_bytes()[..]].concat();
        let to = match to {
            Some(to) => to.checked_sub(1).map(|last| rows::end_of(key(last))).unwrap_or_default(),
            None => rows::end_of(key(u64::MAX)),
        };
        EventCursor { from: key(from.unwrap_or(0)), to, popup }
    }
}

impl PopupService {
    /// The next page of events, and whether there may be more. Blocks.
    ///
    /// # Errors
    /// The store cannot be read, or a row is damaged.
    pub fn export_events(&self, cursor: &mut EventCursor) -> Result<(Vec<ExportedEvent>, bool), Refusal> {
        let rows = self.store.rows(SPACE, &cursor.from, &cursor.to, PAGE).map_err(store_refusal)?;
        let more = rows.len() == PAGE;
        if let Some((last, _)) = rows.last() {
            cursor.from = [&last[..], &[0]].concat();
        }
        let mut events = Vec::with_capacity(rows.len());
        for (key, row) in rows {
            let taken_at = u64::from_be_bytes(std::array::from_fn(|at| key[1 + at]));
            let event = exported(taken_at, &row).map_err(store_refusal)?;
            if cursor.popup.as_ref().is_some_and(|popup| *popup != event.popup) {
                continue;
            }
            events.push(event);
        }
        Ok((events, more))
    }
}

/// An event by its row, as exports and the feed have it.
pub(super) fn exported(taken_at: u64, row: &[u8]) -> StoreResult<ExportedEvent> {
    let (event, EventDetails { name, until, properties }) = rows::decode_event(row)?;
    let kind = rows::event_kind_of(event.kind).ok_or_else(|| rows::damaged(&"an event of no kind"))?;
    Ok(ExportedEvent {
        taken_at,
        at: event.at,
        id: event.id,
        kind,
        popup: event.popup_id,
        variant: event.variant,
        decision: event.decision,
        user: event.user,
        button: event.button,
        value: event.value,
        name: Some(name).filter(|name| !name.is_empty()),
        until: (kind == PopupEventKind::Snooze).then_some(until),
        properties: serde_json::from_str(&properties).ok(),
    })
}
