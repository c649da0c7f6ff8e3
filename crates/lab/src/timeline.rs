//! Reads a conversation back.

use crate::LabError;
use tidings_client::http::HttpClient;
use tidings_protocol::{entry::Entry, http::HistoryQuery, limits::HISTORY_PAGE_MAX};

/// Reads the whole timeline of a conversation.
pub(crate) fn read_timeline(http: &mut HttpClient, id: &str) -> Result<Vec<Entry>, LabError> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let from_seq = entries.last().map_or(1, |entry| entry.seq + 1);
        let query = HistoryQuery { from_seq: Some(from_seq), limit: Some(HISTORY_PAGE_MAX), ..HistoryQuery::default() };
        let page = http.history(id, &query)?;
        if page.entries.is_empty() {
            return Ok(entries);
        }
        entries.extend(page.entries);
        if !page.more {
            return Ok(entries);
        }
    }
}
