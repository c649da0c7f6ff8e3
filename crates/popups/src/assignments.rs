//! Assignments: what the first decision for a user made of the user, in a popup that declares its conversion. With them the
//! popup can be compared with not being shown: a conversion counts for those who were shown nothing as for the others.
//!
//! An assignment is a mark among the user's counters, which is made with the decision, and a row, which is written once, in
//! the same write as the exposure. An event that converts the user changes the row; nothing else is kept of it.

use super::{
    UserKey,
    conversion::Group,
    frequency::FrequencyCounter,
    rows::{self, AssignmentKey, SPACE, StoredAssignment},
    write_queue::{ExposureRecord, Outcome},
};
use tidings_domain::store::{RowChange, RowStore, StoreResult};
use tidings_protocol::http::AssignmentGroup;

impl ExposureRecord {
    /// The group that a decision of this outcome assigns its user to.
    pub(super) fn group(&self) -> Group {
        match self.outcome {
            Outcome::Shown => Group::variant(self.variant_id()),
            Outcome::Control => Group::CONTROL,
            Outcome::Holdout => Group::HOLDOUT,
        }
    }
}

/// Where the row of a mark is.
pub(super) fn row_key(user: UserKey, mark: &FrequencyCounter) -> Option<AssignmentKey> {
    let (popup, measurement) = mark.key.assignment_of()?;
    Some(AssignmentKey { popup, measurement, at: mark.last_at, user })
}

/// The rows of assignments that a crash came before: the user's id is not known any more.
pub(super) fn missing_rows<S: RowStore + ?Sized>(
    store: &S,
    user: UserKey,
    marks: &[FrequencyCounter],
) -> StoreResult<Vec<RowChange>> {
    let keys: Vec<Vec<u8>> = marks.iter().filter_map(|mark| Some(row_key(user, mark)?.to_bytes())).collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let stored = store.rows_of(SPACE, &keys)?;
    let missing = keys.into_iter().zip(marks).zip(stored).filter(|(_, stored)| stored.is_none());
    let row = |group| StoredAssignment { group, ..StoredAssignment::default() };
    Ok(missing.map(|((key, mark), _)| rows::put(key, rows::encode(&row(mark.total)))).collect())
}

/// The row of an assignment that this decision made. `None`: an event of the user was stored before, with the row.
pub(super) fn row_of(record: &ExposureRecord, mark: Option<&FrequencyCounter>) -> Option<RowChange> {
    let user = record.user_id.as_deref()?;
    let mark = mark.filter(|mark| mark.count_on_day == 0)?;
    let group = record.group();
    let variant = if group.kind() == AssignmentGroup::Shown { record.variant_id() } else { "" };
    let row = StoredAssignment {
        user: user.to_owned(),
        group: group.0,
        variant: variant.to_owned(),
        ..StoredAssignment::default()
    };
    Some(rows::put(row_key(record.user, mark)?.to_bytes(), rows::encode(&row)))
}
