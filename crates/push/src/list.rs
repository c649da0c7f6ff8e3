//! The list of pushes, the newest first.

use crate::{PushHandle, worker::state_of};
use tidings_domain::{push_store::*, refusals::store_refusal, store::StoreResult};
use tidings_protocol::{
    error::Refusal,
    http::*,
    limits::{LIST_EXAMINED_MAX, PUSHES_PAGE_MAX},
};

impl PushHandle {
    /// A page of pushes, the newest first. Of a query that wants some of them, a page examines a bounded number. Blocks.
    ///
    /// # Errors
    /// `limit_exceeded` for too large a page; the store's own.
    pub fn pushes(&self, query: &PushListQuery) -> Result<PushPage, Refusal> {
        let limit = if query.limit == 0 { PUSHES_PAGE_MAX } else { query.limit };
        if limit > PUSHES_PAGE_MAX {
            return Err(Refusal::limit("limit (pushes)", PUSHES_PAGE_MAX as u64, limit as u64));
        }
        let is_narrowed = query.state.is_some() || query.content_type.is_some() || query.since.is_some();
        let examined_max = if is_narrowed { LIST_EXAMINED_MAX } else { limit };
        let mut page = PushPage { pushes: Vec::new(), next: None };
        let mut last = None;
        let newest = self.newest_pushes(query.after, examined_max + 1).map_err(store_refusal)?;
        for (examined, push) in newest.into_iter().map(listed).enumerate() {
            if page.pushes.len() == limit || examined == examined_max {
                page.next = last;
                break;
            }
            last = Some(push.push);
            if passes(query, &push) {
                page.pushes.push(push);
            }
        }
        Ok(page)
    }

    /// Rows are read in ascending order alone, and numbers have gaps where pushes were purged or a backup was restored: this
    /// looks at ranges of numbers from the newest down, wider ones while they are empty.
    fn newest_pushes(&self, after: Option<u64>, limit: usize) -> StoreResult<Vec<StoredPush>> {
        let oldest = self.store.push_rows(&PushKey::Push(0), &PushKey::Push(u64::MAX), 1)?;
        let Some(PushRow::Push(StoredPush { push: oldest, .. })) = oldest.into_iter().next() else { return Ok(vec![]) };
        let newest = match self.store.push_row(&PushKey::Counters)? {
            Some(PushRow::Counters { push, .. }) => push,
            _ => 0,
        };
        // The range's end, which is not part of it.
        let mut end = after.unwrap_or(u64::MAX).min(newest.saturating_add(1));
        let mut width = limit as u64;
        let mut found = Vec::new();
        while found.len() < limit && end > oldest {
            let start = end.saturating_sub(width).max(oldest);
            let rows = self.store.push_rows(&PushKey::Push(start), &PushKey::Push(end - 1), limit)?;
            if rows.len() == limit && end - start > limit as u64 {
                // The range may hold more, and its newest are wanted.
                width = (width / 2).max(limit as u64);
                continue;
            }
            width = if rows.is_empty() { width.saturating_mul(2) } else { limit as u64 };
            end = start;
            let pushes =
                rows.into_iter().rev().filter_map(|row| if let PushRow::Push(push) = row { Some(push) } else { None });
            found.extend(pushes.filter(|push| push.stage != PushStage::Preparing));
        }
        found.truncate(limit);
        Ok(found)
    }
}

fn passes(query: &PushListQuery, push: &PushListItem) -> bool {
    query.state.is_none_or(|state| push.state == state)
        && query.content_type.as_ref().is_none_or(|wanted| push.content_type == *wanted)
        && query.since.is_none_or(|since| push.accepted_at >= since)
}

fn listed(stored: StoredPush) -> PushListItem {
    PushListItem {
        push: stored.push,
        state: state_of(stored.stage),
        content_type: stored.content_type,
        client_push_id: stored.client_push_id,
        accepted_at: stored.accepted_at,
        send_at: stored.send_at,
        ended_at: stored.ended_at,
        targets: u64::from(stored.targets),
    }
}
