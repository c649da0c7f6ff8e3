//! Reports of messages, and what moderators make of them.

use super::{Decider, ProposalError, StagedRows};
use crate::{
    chat_rows::{UserSettings, encode, settings_key},
    reports::{ReportChange, ReportKey, StoredReport},
    store::*,
};
use tidings_protocol::http::ReportState;

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn report(
        &mut self,
        key: ReportKey,
        new: &StoredReport,
        open_max: u32,
    ) -> Result<Outcome, ProposalError> {
        if self.rows.chat_row(&key.row())?.is_some() {
            return Ok(Outcome::Report { moved: false });
        }
        let settings = UserSettings::decode(self.rows.chat_row(&settings_key(key.reporter))?.as_deref())?;
        if settings.reports >= open_max {
            return Err(Rejection::TooManyReports { limit: open_max.into() }.into());
        }
        self.change_settings(key.reporter, |settings| settings.reports += 1)?;
        self.rows.put_chat_row(key.row(), Some(encode(new)));
        self.rows.put_chat_row(key.place(new.state, new.at), Some(Vec::new()));
        Ok(Outcome::Report { moved: true })
    }

    pub(super) fn set_report(
        &mut self,
        key: ReportKey,
        expected: Option<ReportState>,
        state: ReportState,
        changed: ReportChange,
    ) -> Result<Outcome, ProposalError> {
        let row = self.rows.chat_row(&key.row())?.ok_or(Rejection::NoSuchReport)?;
        let before: StoredReport =
            serde_json::from_slice(&row).map_err(|error| StoreError::Damaged(format!("a report: {error}")))?;
        if expected.is_some_and(|expected| expected != before.state) {
            return Err(Rejection::ReportIs(before.state).into());
        }
        self.change_settings(key.reporter, |settings| {
            let others = settings.reports.saturating_sub(u32::from(!before.state.is_closed()));
            settings.reports = others + u32::from(!state.is_closed());
        })?;
        self.rows.put_chat_row(key.place(before.state, before.at), None);
        self.rows.put_chat_row(key.place(state, before.at), Some(Vec::new()));
        self.rows.put_chat_row(key.row(), Some(encode(&StoredReport { state, changed: Some(changed), ..before })));
        Ok(Outcome::Report { moved: true })
    }
}
