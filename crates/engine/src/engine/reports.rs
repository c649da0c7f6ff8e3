//! Reports of messages: members make them, moderators work on them. A report names its message and has no copy of it, so that a recall
//! or retention holds for what moderators read as for everybody.

use super::restrictions::check_words;
use crate::{Engine, paging::page_limit, views::Found, visibility::View};
use std::sync::Arc;
use tidings_domain::{
    gates::Gate,
    model::*,
    refusals::{store_refusal, unexpected_outcome},
    reports::{ReportKey, StoredReport, place_in, places_begin, places_end},
    store::{End, Outcome, Proposal, RowSpace},
};
use tidings_protocol::{
    error::Refusal,
    http::*,
    limits::{REASON_BYTES_MAX, REPORT_TEXT_BYTES_MAX, REPORTS_OPEN_MAX, REPORTS_PAGE_MAX},
};

/// Reports in a page when the caller gives no limit.
const PAGE_DEFAULT: usize = 50;
/// Reports that one page looks at in search of those that the filters want. A page that has found fewer leads on.
const EXAMINED_MAX: usize = 1_000;
/// Entries before and behind a reported message that moderators read with it.
const CONTEXT_ENTRIES: u64 = 5;

impl Engine {
    /// Reports a message of another to moderators. Of a user's reports of a message the first one stays.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `not_a_message`, `invalid_field`, `limit_exceeded`, `not_yet_enabled`; `rate_limited` for
    /// users; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn report_message(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        new: NewReport,
    ) -> Result<ReportReceipt, Refusal> {
        self.gates.require(Gate::UserSafety)?;
        let NewReport { reason, text, user } = new;
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let user = self.acting_user(actor, user)?.ok_or_else(|| Refusal::field("user", "a report needs a user"))?;
        check_words("text", text.as_deref(), REPORT_TEXT_BYTES_MAX)?;
        // What the user may not see, nobody reports in the user's name.
        self.role_of_member(&user, &conversation)?;
        self.check_exists_for(&Actor::User(user.clone()), &conversation, seq)?;
        let message = self.stored_message(&conversation, seq)?;
        let reported = message.content.sender.as_ref().map(|sender| sender.no);
        if reported == Some(user.no) {
            return Err(Refusal::field("seq", "is the user's own message: recall it"));
        }
        let report = ReportKey { conversation: conversation.no, seq, reporter: user.no };
        let proposal = Proposal::Report { report, reason, text, reported, open_max: REPORTS_OPEN_MAX };
        match self.committer.propose(actor, None, proposal).await? {
            Outcome::Report { moved } => Ok(ReportReceipt { report: token_of(report), duplicate: !moved }),
            _ => Err(unexpected_outcome()),
        }
    }

    /// A page of the reports in a state, the oldest first. Blocks.
    ///
    /// # Errors
    /// `not_found` for the users and conversations of filters; `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn reports(&self, query: &ReportsQuery) -> Result<ReportPage, Refusal> {
        let limit = page_limit(query.limit.unwrap_or(0), PAGE_DEFAULT, REPORTS_PAGE_MAX)?;
        let state = query.state.unwrap_or_default();
        let conversation =
            query.conversation.as_deref().map(|id| self.directory.require_conversation(id)).transpose()?;
        let reported = query.reported.as_deref().map(|id| self.directory.require_user(id)).transpose()?;
        let mut from = match query.after.as_deref() {
            Some(after) => [behind(state, after)?, vec![0]].concat(),
            None => places_begin(state),
        };
        let (mut page, mut examined) = (ReportPage { reports: Vec::new(), next: None }, 0);
        loop {
            let asked = limit.min(EXAMINED_MAX - examined);
            let rows = self.store.rows(RowSpace::Chat, &from, &places_end(state), asked).map_err(store_refusal)?;
            for (key, _) in &rows {
                examined += 1;
                let Some((at, report)) = place_in(key) else { continue };
                let Some(stored) = self.stored_report(report)? else { continue };
                let is_wanted = conversation.as_ref().is_none_or(|wanted| wanted.no == report.conversation)
                    && reported.as_ref().is_none_or(|wanted| stored.reported == Some(wanted.no))
                    && query.reason.is_none_or(|wanted| wanted == stored.reason);
                if is_wanted {
                    page.reports.extend(self.report_view(report, stored)?);
                }
                if page.reports.len() == limit || examined == EXAMINED_MAX {
                    page.next = Some(format!("{at:x}-{}", token_of(report)));
                    return Ok(page);
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == asked => from = [&last[..], &[0]].concat(),
                _ => return Ok(page),
            }
        }
    }

    /// A report, and what was written around its message. Blocks.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn report(&self, id: &str) -> Result<ReportDetails, Refusal> {
        let unknown = || Refusal::not_found("report", id);
        let key = key_of(id).ok_or_else(unknown)?;
        let stored = self.stored_report(key)?.ok_or_else(unknown)?;
        let report = self.report_view(key, stored)?.ok_or_else(unknown)?;
        let (from, to) = (key.seq.saturating_sub(CONTEXT_ENTRIES).max(1), key.seq.saturating_add(CONTEXT_ENTRIES));
        Ok(ReportDetails { report, context: self.entries_shown(key.conversation, from, to)? })
    }

    /// Changes what moderators have made of a report. `by`: the operator or the API key.
    ///
    /// # Errors
    /// `not_found`, `conflict`, `limit_exceeded`, `not_yet_enabled`; `queue_full`, `store_unavailable` and `draining`: nothing was
    /// stored.
    pub async fn update_report(&self, id: &str, update: UpdateReport, by: &str) -> Result<(), Refusal> {
        self.gates.require(Gate::UserSafety)?;
        let UpdateReport { state, note, if_state: expected } = update;
        check_words("note", note.as_deref(), REASON_BYTES_MAX)?;
        let report = key_of(id).ok_or_else(|| Refusal::not_found("report", id))?;
        let by = by[..by.floor_char_boundary(REASON_BYTES_MAX)].to_owned();
        let proposal = Proposal::SetReport { report, expected, state, note, by };
        self.committer.propose_untold(None, proposal).await.map(drop)
    }

    fn stored_report(&self, key: ReportKey) -> Result<Option<StoredReport>, Refusal> {
        let row = self.store.row(RowSpace::Chat, &key.row()).map_err(store_refusal)?;
        let damaged = |error| store_refusal(tidings_domain::store::StoreError::Damaged(format!("a report: {error}")));
        row.map(|row| serde_json::from_slice(&row).map_err(damaged)).transpose()
    }

    /// `None`: its conversation or its reporter is no more.
    pub(crate) fn report_of(&self, key: ReportKey) -> Result<Option<ReportView>, Refusal> {
        let Some(stored) = self.stored_report(key)? else { return Ok(None) };
        self.report_view(key, stored)
    }

    fn report_view(&self, key: ReportKey, stored: StoredReport) -> Result<Option<ReportView>, Refusal> {
        let id_of = |no| Ok::<_, Refusal>(self.directory.user(no).map_err(store_refusal)?.map(|user| user.id.clone()));
        let conversation = self.directory.readable_conversation(key.conversation).map_err(store_refusal)?;
        let (Some(conversation), Some(reporter)) = (conversation, id_of(key.reporter)?) else { return Ok(None) };
        let StoredReport { reason, text, reported, at, state, changed } = stored;
        let (by, note, changed_at) =
            changed.map_or((None, None, None), |changed| (Some(changed.by), changed.note, Some(changed.at)));
        let message = self.entries_shown(key.conversation, key.seq, key.seq)?.pop();
        let reported = reported.map(id_of).transpose()?.flatten();
        Ok(Some(ReportView {
            id: token_of(key),
            conversation: conversation.id.clone(),
            seq: key.seq,
            reporter,
            reported,
            reason,
            text,
            at,
            state,
            by,
            note,
            changed_at,
            message,
        }))
    }

    /// Entries as app servers read them.
    fn entries_shown(
        &self,
        conversation: ConversationNo,
        from: u64,
        to: u64,
    ) -> Result<Vec<tidings_protocol::entry::Entry>, Refusal> {
        let Some(conversation) = self.directory.conversation(conversation).map_err(store_refusal)? else {
            return Ok(Vec::new());
        };
        let limit = usize::try_from(to - from + 1).unwrap_or(usize::MAX);
        let entries = self.store.entries(conversation.no, from, to, limit, End::Oldest).map_err(store_refusal)?;
        let found = |entry| Found { conversation: Arc::clone(&conversation), view: View::WHOLE, entry };
        self.present(entries.into_iter().map(found).collect())
    }
}

/// The name of a report.
fn token_of(ReportKey { conversation, seq, reporter }: ReportKey) -> String {
    format!("{:x}-{seq:x}-{:x}", conversation.0, reporter.0)
}

fn numbers_of<const N: usize>(token: &str) -> Option<[u64; N]> {
    let numbers: Option<Vec<u64>> = token.split('-').map(|part| u64::from_str_radix(part, 16).ok()).collect();
    numbers?.try_into().ok()
}

fn key_of(token: &str) -> Option<ReportKey> {
    let [conversation, seq, reporter] = numbers_of(token)?;
    Some(ReportKey { conversation: ConversationNo(conversation), seq, reporter: UserNo(reporter) })
}

/// The place of the report at which a page ended.
fn behind(state: ReportState, after: &str) -> Result<Vec<u8>, Refusal> {
    let [at, conversation, seq, reporter] =
        numbers_of(after).ok_or_else(|| Refusal::field("after", "not a page token of this list"))?;
    let key = ReportKey { conversation: ConversationNo(conversation), seq, reporter: UserNo(reporter) };
    Ok(key.place(state, at))
}
