//! Reactions and pins: who may give them, and who gave them.

use crate::{
    engine::{Engine, message_changes::sender_of, users::unexpected_outcome},
    entry_view::{entry_of, reactions_of},
};
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    message_changes::NO_BODY,
    model::*,
    refusals::store_refusal,
    store::{MessageChange, Outcome, PageRequest, Proposal, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{EntryPage, MessageReactions, PinState, Reactor, ReactorPage},
    limits::*,
};

/// Users in a page of reactions when the caller gives no limit, and at most.
const REACTORS_PAGE_DEFAULT: usize = 100;
const REACTORS_PAGE_MAX: usize = 1_000;
/// Bytes of all pinned messages in one answer.
const PINS_BYTES_MAX: usize = 2 * 1024 * 1024;

impl Engine {
    /// Gives a reaction of a user to a message, or takes it back. A repeated one changes nothing.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `not_a_message`, `message_recalled`, `invalid_field`, `limit_exceeded`;
    /// `rate_limited` for users; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn react(
        &self,
        actor: &Actor,
        user: Option<String>,
        conversation: &str,
        seq: u64,
        key: &str,
        add: bool,
    ) -> Result<MessageReactions, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let user = self.acting_user(actor, user)?;
        let user = user.ok_or_else(|| Refusal::field("user", "a reaction needs a user whose it is"))?;
        check_key(key)?;
        self.check_draining()?;
        self.role_of_member(&user, &conversation)?;
        if let Actor::User(user) = actor {
            self.rate.check(user.person())?;
        }
        let proposal = Proposal::React {
            conversation: conversation.no,
            target: seq,
            user: sender_of(&user),
            key: key.to_owned(),
            add,
            keys_max: REACTIONS_PER_MESSAGE_MAX,
            interval_ms: REACTIONS_INTERVAL_MS,
        };
        let Outcome::Reacted { reactions, tell_at, .. } = self.committer.propose(Some(&conversation), proposal).await?
        else {
            return Err(unexpected_outcome());
        };
        if let Some(at) = tell_at {
            self.reaction_teller.tell_at(conversation.no, at);
        }
        let reactions = reactions_of(&reactions);
        Ok(MessageReactions { conversation: conversation.id.clone(), seq, reactions })
    }

    /// The users who reacted to a message, in the order of their numbers.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `not_a_message`; `invalid_field`, `limit_exceeded`; `store_unavailable`.
    pub fn reactors(
        &self,
        actor: &Actor,
        conversation: &str,
        seq: u64,
        key: Option<&str>,
        (after, limit): (Option<&str>, usize),
    ) -> Result<ReactorPage, Refusal> {
        let conversation = self.readable_conversation(actor, conversation, seq)?;
        let message = self.stored_message(&conversation, seq)?;
        let limit = page_limit(limit, REACTORS_PAGE_DEFAULT, REACTORS_PAGE_MAX)?;
        let first = match after {
            Some(token) => {
                let last = token.parse::<u64>();
                last.map_err(|_| Refusal::field("after", "not a page token of this list"))?.saturating_add(1)
            }
            None => 0,
        };
        if message.content.details().reactions.is_empty() {
            return Ok(ReactorPage { reactions: vec![], next: None });
        }
        let row_key = |user| chat_rows::reactions_key(conversation.no, seq, UserNo(user));
        let rows = self.store.rows(RowSpace::Chat, &row_key(first), &row_key(u64::MAX), limit);
        let rows = rows.map_err(store_refusal)?;
        let mut reactions = Vec::new();
        let mut last = None;
        for (row_key, value) in &rows {
            let Some(no) = chat_rows::number_in(row_key, 2) else { continue };
            last = Some(no);
            let own: Vec<String> = chat_rows::decode(Some(value)).map_err(store_refusal)?;
            let Some(user) = self.directory.user(UserNo(no)).map_err(store_refusal)? else { continue };
            let given = own.into_iter().filter(|given| key.is_none_or(|key| key == given));
            reactions.extend(given.map(|key| Reactor { user: user.id.clone(), key }));
        }
        let next = last.filter(|_| rows.len() == limit).map(|no| no.to_string());
        Ok(ReactorPage { reactions, next })
    }

    /// Pins a message, or unpins it. A repeated call changes nothing.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`, `forbidden`, `not_a_message`, `message_recalled`, `limit_exceeded`; `rate_limited`
    /// for users; `queue_full`, `store_unavailable` and `draining`: nothing was stored.
    pub async fn pin(
        &self,
        actor: &Actor,
        user: Option<String>,
        conversation: &str,
        seq: u64,
        pinned: bool,
    ) -> Result<PinState, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let by = self.acting_user(actor, user)?;
        self.check_draining()?;
        if let Some(user) = &by {
            let role = self.role_of_member(user, &conversation)?;
            let may_pin = role >= Role::Admin || conversation.kind == ConversationKind::Direct;
            if !may_pin && matches!(actor, Actor::User(_)) {
                return Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins pin messages"));
            }
        }
        if let Actor::User(user) = actor {
            self.rate.check(user.person())?;
        }
        let mut entry = pin_entry(by.as_deref().map(sender_of));
        entry.details = self.desk_details(&conversation, by.as_deref());
        let change = MessageChange::Pin { pinned, pins_max: PINS_PER_CONVERSATION_MAX };
        let proposal = Proposal::ChangeMessage { conversation: conversation.no, target: seq, change, entry };
        self.committer.propose(Some(&conversation), proposal).await?;
        Ok(PinState { conversation: conversation.id.clone(), seq, pinned })
    }

    /// The pinned messages of a conversation, the last pinned one first.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `store_unavailable`.
    pub fn pins(&self, actor: &Actor, conversation: &str) -> Result<EntryPage, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        let floor = self.first_readable(actor, &conversation)?;
        let row = self.store.row(RowSpace::Chat, &chat_rows::pins_key(conversation.no)).map_err(store_refusal)?;
        let pins: Vec<u64> = chat_rows::decode(row.as_deref()).map_err(store_refusal)?;
        let picked: Vec<_> =
            pins.iter().rev().filter(|seq| **seq >= floor).map(|seq| (conversation.clone(), *seq)).collect();
        Ok(EntryPage { entries: self.picked_entries(actor, &picked)?, next: None })
    }

    /// These messages as they are now, without those that retention has removed.
    pub(super) fn picked_entries(
        &self,
        actor: &Actor,
        picked: &[(Arc<Conversation>, u64)],
    ) -> Result<Vec<tidings_protocol::entry::Entry>, Refusal> {
        let request = |(conversation, seq): &(Arc<Conversation>, u64)| PageRequest {
            conversation: conversation.no,
            from_seq: *seq,
            to_seq: *seq,
            limit: 1,
        };
        let requests: Vec<_> = picked.iter().map(request).collect();
        let pages = self.store.pages(&requests, PINS_BYTES_MAX).map_err(store_refusal)?;
        let mut found = Vec::with_capacity(picked.len());
        for ((conversation, _), page) in picked.iter().zip(pages) {
            found.extend(page.into_iter().next().map(|entry| (conversation.clone(), entry)));
        }
        let reader = actor.user().map(|user| user.no);
        found.iter_mut().for_each(|(conversation, entry)| self.veil(reader, conversation, entry));
        self.attach_previews(found.iter_mut().map(|(conversation, entry)| (conversation.no, entry)))?;
        found.iter().map(|(conversation, entry)| entry_of(&conversation.id, entry)).collect()
    }
}

/// The limit of a page; 0 stands for the default.
pub(super) fn page_limit(limit: usize, default: usize, max: usize) -> Result<usize, Refusal> {
    match limit {
        0 => Ok(default),
        limit if limit > max => Err(Refusal::limit("limit", max as u64, limit as u64)),
        limit => Ok(limit),
    }
}

fn check_key(key: &str) -> Result<(), Refusal> {
    if key.is_empty() || key.len() > REACTION_BYTES_MAX {
        return Err(Refusal::limit("key (bytes, at least 1)", REACTION_BYTES_MAX as u64, key.len() as u64));
    }
    if key.chars().any(char::is_control) {
        return Err(Refusal::field("key", "has a control character"));
    }
    Ok(())
}

/// The entry that tells of a pin or of its end.
pub(super) fn pin_entry(by: Option<Sender>) -> NewEntry {
    NewEntry {
        kind: EntryKind::Pins,
        sender: by,
        client_msg_id: None,
        content_type: "pins".into(),
        body: NO_BODY.into(),
        mentions: vec![],
        silent: true,
        skip_push: true,
        details: None,
    }
}
