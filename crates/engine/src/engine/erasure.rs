//! Erasing persons and deleting conversations: what callers ask, and legal holds against it. `work` has the job, `conversation` what it
//! does of a conversation; [`leftovers`] looks for what is left, at the `places` where there may be something.

mod conversation;
pub mod leftovers;
pub(super) mod places;
mod work;

pub use work::RedactOthers;

use super::restrictions::check_words;
use crate::{Engine, paging::page_limit};
use std::sync::Arc;
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{Preferences, decode, number_in, preferences_key},
    erasure::*,
    gates::Gate,
    model::*,
    refusals::store_refusal,
    store::{Proposal, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::REASON_BYTES_MAX,
};

/// Erasures, and legal holds, in a page at most.
const PAGE_MAX: usize = 100;

impl Engine {
    /// Begins to erase a user: with the answer the user can do nothing any more, and the job is durable. Of a user who is being erased, or
    /// was, it changes nothing. `by`: the operator or the API key. Blocks.
    ///
    /// # Errors
    /// `not_found`; `legal_hold`; `conflict` for the user of an account; `not_yet_enabled`; `queue_full`, `store_unavailable` and
    /// `draining`: nothing was stored.
    pub fn erase_user(&self, id: &str, messages: ErasedMessages, by: &str) -> Result<Erasure, Refusal> {
        self.gates.require(Gate::Erasure)?;
        let key = erasure_key(id);
        let known = self.stored_erasure(&key)?;
        let Some(user) = self.directory.user_by_id(id).map_err(store_refusal)? else {
            let known = known.ok_or_else(|| Refusal::not_found("user", id))?;
            return Ok(erasure_view(known));
        };
        if let Some(known) = known.filter(|(known, _)| known.is_running()) {
            return Ok(erasure_view(known));
        }
        if self.directory.desks.of_user(user.no).is_some() {
            return Err(Refusal::new(ErrorCode::Conflict, format!("{id:?} is the user of an official account")));
        }
        if let Some(held) = self.hold_against(&user)? {
            let LegalHoldView { conversation, name, .. } = held;
            let why =
                format!("the user is or was in conversation {conversation:?}, which is under the legal hold {name:?}");
            return Err(Refusal::new(ErrorCode::LegalHold, why));
        }
        let mut alias = format!("erased-{}", user.no.0);
        while self.directory.user_no(&alias).map_err(store_refusal)?.is_some() {
            alias.push('x');
        }
        let by = by[..by.floor_char_boundary(REASON_BYTES_MAX)].to_owned();
        let erasure = StoredErasure {
            id: Some(id.to_owned()),
            no: user.no,
            conversation: None,
            alias,
            messages,
            by: by.clone(),
            at: self.clock.now_ms(),
            ended_at: None,
            stage: ErasureStage::Leaving,
            cursor: String::new(),
            recalled: 0,
            changed: 0,
            held: None,
            last_error: None,
        };
        let step = EraseStep::Begin { user: user.no, key: key.clone(), row: erasure.encode(), by };
        self.committer.propose_blocking(Proposal::Erase(Box::new(step)))?;
        Ok(erasure_view((erasure, erasure_name(&key))))
    }

    /// An erasure by its name, or by the id of the user or the conversation.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn erasure(&self, name: &str) -> Result<Erasure, Refusal> {
        let of_name = erasure_key_of(name).map(|key| self.stored_erasure(&key)).transpose()?.flatten();
        let found = match of_name {
            Some(found) => Some(found),
            None => match self.stored_erasure(&erasure_key(name))? {
                Some(found) => Some(found),
                None => self.stored_erasure(&conversation_erasure_key(name))?,
            },
        };
        found.map(erasure_view).ok_or_else(|| Refusal::not_found("erasure", name))
    }

    /// A page of erasures: first those that run.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn erasures(&self, after: Option<&str>, limit: usize) -> Result<Erasures, Refusal> {
        let limit = page_limit(limit, PAGE_MAX, PAGE_MAX)?;
        let bad = || Refusal::field("after", "not a page token of this list");
        let (first, _) = ErasurePlace::Running.range();
        let from = match after {
            None => first,
            Some(token) => {
                let (place, name) = token.split_once('.').ok_or_else(bad)?;
                let place = ErasurePlace::ALL.into_iter().find(|known| (*known as u8).to_string() == place);
                let key = erasure_key_of(name).ok_or_else(bad)?;
                [erasure_key_at(&key, place.ok_or_else(bad)?), vec![0]].concat()
            }
        };
        let (_, last) = ErasurePlace::Forgotten.range();
        let rows = self.store.rows(RowSpace::Chat, &from, &last, limit).map_err(store_refusal)?;
        let next = rows.last().filter(|_| rows.len() == limit);
        let next = next.map(|(key, _)| format!("{}.{}", key.get(1).copied().unwrap_or(0), erasure_name(key)));
        let mut erasures = Vec::with_capacity(rows.len());
        for (key, row) in &rows {
            let erasure = StoredErasure::decode(row).map_err(store_refusal)?;
            erasures.push(erasure_view((erasure, erasure_name(key))));
        }
        Ok(Erasures { erasures, next })
    }

    /// The job under this key, wherever it is by now, with its name.
    pub(crate) fn stored_erasure(&self, key: &[u8]) -> Result<Option<(StoredErasure, String)>, Refusal> {
        let keys = ErasurePlace::ALL.map(|place| erasure_key_at(key, place));
        let rows = self.store.rows_of(RowSpace::Chat, &keys).map_err(store_refusal)?;
        let Some(row) = rows.into_iter().flatten().next() else { return Ok(None) };
        Ok(Some((StoredErasure::decode(&row).map_err(store_refusal)?, erasure_name(key))))
    }

    /// Sets a conversation's legal hold, in place of a former one: nobody who is or was in it is erased.
    ///
    /// # Errors
    /// `not_found`, `invalid_field`, `limit_exceeded`, `not_yet_enabled`; `queue_full`, `store_unavailable`, `draining`.
    pub async fn set_legal_hold(&self, id: &str, set: SetLegalHold, by: &str) -> Result<LegalHoldView, Refusal> {
        self.gates.require(Gate::Erasure)?;
        check_words("name", Some(&set.name), REASON_BYTES_MAX)?;
        if set.name.is_empty() {
            return Err(Refusal::field("name", "must not be empty"));
        }
        let conversation = self.directory.require_conversation(id)?;
        let by = by[..by.floor_char_boundary(REASON_BYTES_MAX)].to_owned();
        let hold = LegalHold { name: set.name, by, at: self.clock.now_ms() };
        let proposal = Proposal::SetLegalHold { conversation: conversation.no, hold: Some(hold.clone()) };
        self.committer.propose_untold(None, proposal).await?;
        Ok(hold_view(&conversation, hold))
    }

    /// Lifts a conversation's legal hold, if there is one. Erasures that wait for it go on.
    ///
    /// # Errors
    /// As of [`Engine::set_legal_hold`].
    pub async fn lift_legal_hold(&self, id: &str) -> Result<(), Refusal> {
        self.gates.require(Gate::Erasure)?;
        let conversation = self.directory.require_conversation(id)?.no;
        self.committer.propose_untold(None, Proposal::SetLegalHold { conversation, hold: None }).await.map(drop)
    }

    /// A conversation's legal hold.
    ///
    /// # Errors
    /// `not_found`: also if it has none; `store_unavailable`.
    pub fn legal_hold(&self, id: &str) -> Result<LegalHoldView, Refusal> {
        let conversation = self.directory.require_conversation(id)?;
        let hold = self.hold_of(conversation.no)?;
        hold.map(|hold| hold_view(&conversation, hold))
            .ok_or_else(|| Refusal::not_found("legal hold of conversation", id))
    }

    /// A page of the conversations under a legal hold.
    ///
    /// # Errors
    /// `limit_exceeded`; `store_unavailable`.
    pub fn legal_holds(&self, after: Option<u64>, limit: usize) -> Result<LegalHolds, Refusal> {
        let limit = page_limit(limit, PAGE_MAX, PAGE_MAX)?;
        let from = ChatRowKind::LegalHold.key(&[after.map_or(0, |after| after.saturating_add(1))]);
        let (_, to) = ChatRowKind::LegalHold.all();
        let rows = self.store.rows(RowSpace::Chat, &from, &to, limit).map_err(store_refusal)?;
        let next = rows.last().filter(|_| rows.len() == limit).and_then(|(key, _)| number_in(key, 0));
        let mut legal_holds = Vec::with_capacity(rows.len());
        for (key, row) in &rows {
            let conversation = number_in(key, 0).map(ConversationNo).unwrap_or(ConversationNo(0));
            let hold: Option<LegalHold> = decode(Some(row)).map_err(store_refusal)?;
            let conversation = self.directory.conversation(conversation).map_err(store_refusal)?;
            legal_holds.extend(hold.zip(conversation).map(|(hold, conversation)| hold_view(&conversation, hold)));
        }
        Ok(LegalHolds { legal_holds, next })
    }

    /// A legal hold of a conversation in which the user is, or was.
    fn hold_against(&self, user: &User) -> Result<Option<LegalHoldView>, Refusal> {
        let mut after = None;
        loop {
            let page = self.legal_holds(after, PAGE_MAX)?;
            for held in page.legal_holds {
                let Some(conversation) =
                    self.directory.conversation_by_id(&held.conversation).map_err(store_refusal)?
                else {
                    continue;
                };
                let membership = self.directory.membership(conversation.no, user.no).map_err(store_refusal)?;
                let kept = self.store.row(RowSpace::Chat, &preferences_key(user.no, conversation.no));
                let kept = Preferences::decode(kept.map_err(store_refusal)?.as_deref()).map_err(store_refusal)?;
                if membership.is_some() || kept.left_seq.is_some() {
                    return Ok(Some(held));
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(None);
            }
        }
    }
}

fn hold_view(conversation: &Arc<Conversation>, hold: LegalHold) -> LegalHoldView {
    let LegalHold { name, by, at } = hold;
    LegalHoldView { conversation: conversation.id.clone(), name, by, at }
}

fn erasure_view((erasure, id): (StoredErasure, String)) -> Erasure {
    let state = erasure.state();
    // The stage is a plain word.
    let is_of_conversation = erasure.conversation.is_some();
    let stage = match erasure.stage {
        ErasureStage::Renaming if is_of_conversation => "last_entries",
        ErasureStage::Leaving => "leaving",
        ErasureStage::Rows => "rows",
        ErasureStage::Profile => "profile",
        ErasureStage::Renaming => "renaming",
        ErasureStage::Entries => "entries",
        ErasureStage::LastRows => "last_rows",
        ErasureStage::Done => "done",
    };
    let StoredErasure { id: user, alias, messages, by, at, ended_at, recalled, changed, held, last_error, .. } =
        erasure;
    let stage = stage.into();
    let (user, conversation) = if is_of_conversation { (None, user) } else { (user, None) };
    Erasure {
        id,
        user,
        conversation,
        alias,
        messages,
        state,
        by,
        at,
        ended_at,
        stage,
        recalled,
        changed,
        held_by: held,
        last_error,
    }
}
