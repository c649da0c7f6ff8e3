//! Deleting a conversation: by the same job as a person is erased, a bounded part at a time.

use super::work::{ENTRIES_AT_ONCE, Part, ROWS_AT_ONCE, RedactOthers, STEP_MAX, bytes_of, digits_of};
use crate::{Engine, access::Caller, engine::conversations::notice_entry};
use serde_json::json;
use std::sync::Arc;
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{decode, number_in},
    erasure::*,
    gates::Gate,
    model::*,
    refusals::store_refusal,
    reports::{ReportKey, StoredReport},
    scheduled::{ScheduledHeader, all_headers, header_in},
    store::*,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{ErasedMessages, Erasure, ReportState},
    limits::REASON_BYTES_MAX,
};

impl Engine {
    /// Begins to delete a conversation: with the answer nothing is stored in it any more, its live members know, and the job is durable.
    /// Of one that is being deleted it changes nothing. `by`: the operator or the API key. Blocks.
    ///
    /// # Errors
    /// `not_found`; `legal_hold`; `conversation_importing`; `conflict` for an official account with a desk; `not_yet_enabled`; `queue_full`,
    /// `store_unavailable` and `draining`: a repeated call goes on.
    pub fn delete_conversation(&self, id: &str, by: &str) -> Result<Erasure, Refusal> {
        self.gates.require(Gate::ConversationErasure)?;
        let key = conversation_erasure_key(id);
        let known = self.stored_erasure(&key)?;
        let conversation = self.directory.conversation_by_id(id).map_err(store_refusal)?;
        let Some(conversation) = conversation else {
            let known = known.ok_or_else(|| Refusal::not_found("conversation", id))?;
            return Ok(super::erasure_view(known));
        };
        if let Some(known) = known.filter(|(known, _)| known.is_running()) {
            self.close(&conversation)?;
            return Ok(super::erasure_view(known));
        }
        if conversation.is_deleted() {
            // The alias of one that was.
            return Err(Refusal::not_found("conversation", id));
        }
        if conversation.is_importing() {
            let why = "the conversation's history is being imported: finish the import first";
            return Err(Refusal::new(ErrorCode::ConversationImporting, why));
        }
        if conversation.kind == ConversationKind::Official && self.directory.desks.of_account(conversation.no).is_some()
        {
            let why = format!("{id:?} is an official account with a desk, whose customers' conversations refer to it");
            return Err(Refusal::new(ErrorCode::Conflict, why));
        }
        if let Some(hold) = self.hold_of(conversation.no)? {
            let why = format!("conversation {id:?} is under the legal hold {:?}", hold.name);
            return Err(Refusal::new(ErrorCode::LegalHold, why));
        }
        let mut alias = format!("erased-c{}", conversation.no.0);
        while self.directory.conversation_by_id(&alias).map_err(store_refusal)?.is_some() {
            alias.push('x');
        }
        if conversation.kind == ConversationKind::Direct {
            alias.clear();
        }
        let erasure = StoredErasure {
            id: Some(id.to_owned()),
            no: UserNo::NOBODY,
            conversation: Some(conversation.no),
            alias,
            messages: ErasedMessages::Remove,
            by: by[..by.floor_char_boundary(REASON_BYTES_MAX)].to_owned(),
            at: self.clock.now_ms(),
            ended_at: None,
            stage: ErasureStage::Leaving,
            cursor: String::new(),
            recalled: 0,
            changed: 0,
            held: None,
            last_error: None,
        };
        self.step(EraseStep::BeginConversation { key: key.clone(), row: erasure.encode() })?;
        self.close(&conversation)?;
        Ok(super::erasure_view((erasure, erasure_name(&key))))
    }

    pub(super) fn hold_of(&self, conversation: ConversationNo) -> Result<Option<LegalHold>, Refusal> {
        let row = self.store.row(RowSpace::Chat, &legal_hold_key(conversation)).map_err(store_refusal)?;
        decode(row.as_deref()).map_err(store_refusal)
    }

    /// Keeps everybody out, and tells live members by the last entry that they are handed.
    fn close(&self, conversation: &Arc<Conversation>) -> Result<(), Refusal> {
        if conversation.is_deleted() {
            return Ok(());
        }
        let mut notice = notice_entry(EntryKind::ConversationChange, &Actor::App, &json!({ "deleted": true }));
        notice.details = self.desk_details(notice.kind, conversation, None);
        let proposal = Proposal::UpdateConversation {
            conversation: conversation.no,
            name: None,
            avatar: None,
            attributes: None,
            settings: ConversationSettings { deleted: Some(true), ..ConversationSettings::default() },
            notice: Some(notice),
        };
        self.commit_some(vec![(Some(conversation.clone()), proposal)]).map(drop)
    }

    pub(super) fn delete_part(
        &self,
        erasure: &mut StoredErasure,
        key: &[u8],
        redact_others: RedactOthers<'_>,
    ) -> Result<Part, Refusal> {
        let Some(gone) = erasure.deleted_conversation() else { return Ok(Part::Done) };
        let Some(details) = self.directory.conversation(gone.no).map_err(store_refusal)? else { return Ok(Part::Done) };
        if self.hold_of(gone.no)?.is_some() {
            return Ok(Part::Held(gone.id));
        }
        match erasure.stage {
            ErasureStage::Leaving => self.empty(erasure, &gone, &details),
            ErasureStage::Entries => self.blank_entries(erasure, &gone),
            ErasureStage::Rows => self.delete_rows(erasure, &gone),
            // Again: a message that was on its way when the conversation was closed.
            ErasureStage::Renaming => self.blank_entries(erasure, &gone),
            ErasureStage::Profile => {
                erasure.changed += redact_others(&Erased::Conversation(gone.clone()))?;
                if let Some((a, b)) = details.pair.filter(|_| gone.is_direct()) {
                    self.hide_from(&gone, &[a, b])?;
                }
                self.step(EraseStep::Details { conversation: gone, key: key.to_vec() })?;
                Ok(Part::Done)
            }
            ErasureStage::LastRows => {
                let part = self.delete_rows(erasure, &gone)?;
                if matches!(part, Part::Done) {
                    erasure.changed += redact_others(&Erased::Conversation(gone))?;
                }
                Ok(part)
            }
            ErasureStage::Done => Ok(Part::Done),
        }
    }

    /// Nobody is in it, asks to be, has something to say in it later, or waits for what comes of a report.
    fn empty(
        &self,
        erasure: &mut StoredErasure,
        gone: &DeletedConversation,
        details: &Arc<Conversation>,
    ) -> Result<Part, Refusal> {
        self.close(details)?;
        if erasure.cursor.is_empty() {
            self.withdraw_requests_of(&|of, _| of == gone.no)?;
            self.end_reports(erasure, gone)?;
            self.cancel_scheduled_in(gone, details)?;
        }
        if gone.is_direct() {
            return Ok(Part::Done);
        }
        let members = self.store.members(gone.no, None, STEP_MAX).map_err(store_refusal)?;
        if members.is_empty() {
            return Ok(Part::Done);
        }
        let proposal = Proposal::ChangeMembers {
            conversation: gone.no,
            add: Vec::new(),
            remove: members.iter().map(|(user, _)| *user).collect(),
            heir: None,
            act: None,
            members_max: u64::MAX,
            notice: None,
        };
        erasure.changed += members.len() as u64;
        self.commit_some(vec![(None, proposal)])?;
        Ok(Part::More("members".into()))
    }

    fn end_reports(&self, erasure: &StoredErasure, gone: &DeletedConversation) -> Result<(), Refusal> {
        let mut proposals = Vec::new();
        let of_conversation = |no: u64| ChatRowKind::Report.key(&[0, no]);
        self.each_row((of_conversation(gone.no.0), of_conversation(gone.no.0 + 1)), |key, row| {
            let number = |place| number_in(key, place).filter(|_| number_in(key, 1) == Some(gone.no.0));
            let (Some(seq), Some(reporter)) = (number(2), number(3)) else { return Ok(()) };
            let report = ReportKey { conversation: gone.no, seq, reporter: UserNo(reporter) };
            let stored: Option<StoredReport> = serde_json::from_slice(row).ok();
            let is_open = |state| matches!(state, ReportState::Open | ReportState::InReview);
            if stored.is_some_and(|stored| is_open(stored.state)) {
                let (state, by) = (ReportState::Dismissed, erasure.by.clone());
                proposals.push((None, Proposal::SetReport { report, expected: None, state, note: None, by }));
            }
            Ok(())
        })?;
        self.commit_some(proposals).map(drop)
    }

    fn cancel_scheduled_in(&self, gone: &DeletedConversation, details: &Conversation) -> Result<(), Refusal> {
        let mut found = Vec::new();
        self.each_row(all_headers(), |key, row| {
            let Some((sender, number)) = header_in(key) else { return Ok(()) };
            let header = ScheduledHeader::decode(row).map_err(store_refusal)?;
            let from = header.account.unwrap_or(sender);
            let is_of_pair = |(a, b)| header.to.is_some_and(|to| (from, to) == (a, b) || (from, to) == (b, a));
            if header.conversation == Some(gone.no) || details.pair.is_some_and(is_of_pair) {
                found.push((sender, number));
            }
            Ok(())
        })?;
        for (sender, number) in found {
            let from = self.directory.user(sender).map_err(store_refusal)?;
            match self.cancel_scheduled_message(&Caller::APP, from.as_ref().map(|from| from.id.as_str()), number) {
                Err(refusal) if refusal.code != ErrorCode::NotFound => return Err(refusal),
                _ => {}
            }
        }
        Ok(())
    }

    fn blank_entries(&self, erasure: &mut StoredErasure, gone: &DeletedConversation) -> Result<Part, Refusal> {
        let from: u64 = erasure.cursor.parse().unwrap_or(1);
        let page = self.store.entries(gone.no, from, u64::MAX, ENTRIES_AT_ONCE, End::Oldest).map_err(store_refusal)?;
        let Some(last) = page.last().map(|last| last.seq) else { return Ok(Part::Done) };
        let is_whole = page.len() < ENTRIES_AT_ONCE;
        let says_more = page.into_iter().filter_map(|mut entry| blank(&mut entry).then_some(entry.seq));
        let seqs: Vec<u64> = says_more.collect();
        for some in seqs.chunks(STEP_MAX) {
            erasure.changed += some.len() as u64;
            self.step(EraseStep::Blank { conversation: gone.no, seqs: some.to_vec() })?;
        }
        Ok(if is_whole { Part::Done } else { Part::More((last + 1).to_string()) })
    }

    fn delete_rows(&self, erasure: &mut StoredErasure, gone: &DeletedConversation) -> Result<Part, Refusal> {
        let from = bytes_of(&erasure.cursor);
        let rows = self.store.rows(RowSpace::Chat, &from, &[0xFF], ROWS_AT_ONCE).map_err(store_refusal)?;
        let its = rows.iter().filter(|(key, row)| fate_of_row_in(gone, key, row) != Fate::Keep);
        let keys: Vec<Vec<u8>> = its.map(|(key, _)| key.clone()).collect();
        for some in keys.chunks(STEP_MAX) {
            erasure.changed += some.len() as u64;
            self.step(EraseStep::RowsIn { conversation: gone.clone(), keys: some.to_vec() })?;
        }
        Ok(match rows.last() {
            Some((last, _)) if rows.len() == ROWS_AT_ONCE => Part::More(digits_of(&[&last[..], &[0]].concat())),
            _ => Part::Done,
        })
    }

    /// A direct conversation stays with its users, who see nothing of it before one of them writes.
    fn hide_from(&self, gone: &DeletedConversation, users: &[UserNo]) -> Result<(), Refusal> {
        let (conversation, last) = (gone.no, self.store.head(gone.no).map_err(store_refusal)?.last_seq);
        let mut proposals = Vec::new();
        for user in users.iter().copied() {
            let patch =
                PreferencesPatch { hidden: Some(true), clear_to_seq: Some(last), ..PreferencesPatch::default() };
            proposals.push((None, Proposal::MarkRead { conversation, user, seq: last }));
            proposals.push((None, Proposal::SetMute { conversation, user, mute: MuteState::Off }));
            proposals.push((None, Proposal::SetPreferences { conversation, user, patch }));
        }
        self.commit_some(proposals).map(drop)
    }
}
