//! What popups add to the feed of events: exposures, and what was reported. The rows are written with what they tell of.

use super::{
    Shared, rows,
    write_queue::{ExposureRecord, Outcome},
};
use tidings_domain::{feed_note::FeedNote, store::RowChange};
use tidings_protocol::http::{EventType, ExportedEvent, PopupExposure, PopupExposureEvent};

impl Shared {
    /// Adds the rows of exposures.
    pub(super) fn note_exposures(&self, records: &[ExposureRecord], to: &mut Vec<RowChange>) {
        if self.feed_notes.wants(EventType::PopupExposure) {
            let notes = records.iter().filter_map(note_of);
            to.extend(self.feed_notes.rows(notes.collect()).into_iter().map(rows::feed_notes));
        }
    }

    /// Adds the rows of events that were reported.
    pub(super) fn note_reports(&self, reports: &[ExportedEvent], to: &mut Vec<RowChange>) {
        let notes =
            reports.iter().map(|event| FeedNote::new(EventType::PopupEvent, &event.user, event.taken_at, event));
        to.extend(self.feed_notes.rows(notes.collect()).into_iter().map(rows::feed_notes));
    }
}

fn note_of(record: &ExposureRecord) -> Option<FeedNote> {
    let user = record.user_id.as_deref()?;
    let (outcome, variant) = match record.outcome {
        Outcome::Shown => (PopupExposure::Shown, Some(record.variant_id().to_owned())),
        Outcome::Control => (PopupExposure::Control, None),
        Outcome::Holdout => (PopupExposure::Holdout, None),
    };
    let (user, popup, assigned) = (user.to_owned(), record.popup.id.to_string(), record.is_assigned);
    let event = PopupExposureEvent { user, popup, variant, outcome, assigned };
    Some(FeedNote::new(EventType::PopupExposure, &event.user, record.at, &event))
}
