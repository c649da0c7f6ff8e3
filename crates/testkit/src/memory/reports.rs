//! Reports of messages, as plainly as possible: the number of a user's open ones is counted anew each time.

use super::State;
use tidings_domain::{
    reports::{ReportChange, ReportKey, StoredReport},
    store::*,
};
use tidings_protocol::http::ReportState;

impl State {
    pub(super) fn report(&mut self, key: ReportKey, new: &StoredReport, open_max: u32) -> Result<Outcome, Rejection> {
        if self.rows.contains_key(&(RowSpace::Chat, key.row())) {
            return Ok(Outcome::Report { moved: false });
        }
        if self.open_reports(key) >= u64::from(open_max) {
            return Err(Rejection::TooManyReports { limit: open_max.into() });
        }
        self.put_report(key, new);
        Ok(Outcome::Report { moved: true })
    }

    pub(super) fn set_report(
        &mut self,
        key: ReportKey,
        expected: Option<ReportState>,
        state: ReportState,
        changed: ReportChange,
    ) -> Result<Outcome, Rejection> {
        let row = self.rows.get(&(RowSpace::Chat, key.row())).ok_or(Rejection::NoSuchReport)?;
        let Ok(before) = serde_json::from_slice::<StoredReport>(row) else { return Err(Rejection::NoSuchReport) };
        if expected.is_some_and(|expected| expected != before.state) {
            return Err(Rejection::ReportIs(before.state));
        }
        self.rows.remove(&(RowSpace::Chat, key.place(before.state, before.at)));
        self.put_report(key, &StoredReport { state, changed: Some(changed), ..before });
        Ok(Outcome::Report { moved: true })
    }

    fn put_report(&mut self, key: ReportKey, report: &StoredReport) {
        let row = serde_json::to_vec(report).unwrap_or_default();
        self.rows.insert((RowSpace::Chat, key.row()), row);
        self.rows.insert((RowSpace::Chat, key.place(report.state, report.at)), Vec::new());
        let open = self.open_reports(key);
        self.set_setting(key.reporter, "reports", (open > 0).then(|| open.into()));
    }

    fn open_reports(&self, ReportKey { reporter, .. }: ReportKey) -> u64 {
        let own = self.rows.iter().filter(|((space, key), _)| {
            // A report's row, with the reporter last.
            *space == RowSpace::Chat
                && key.len() == 33
                && key.starts_with(&[b'o', 0, 0, 0, 0, 0, 0, 0, 0])
                && key.ends_with(&reporter.0.to_be_bytes())
        });
        let open = own.filter_map(|(_, row)| serde_json::from_slice::<StoredReport>(row).ok());
        open.filter(|report| !report.state.is_closed()).count() as u64
    }
}
