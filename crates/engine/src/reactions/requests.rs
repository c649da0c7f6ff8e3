//! Reactions and pins: who may give them, and who gave them.

use crate::{
    Engine, access::Writing, entry_view::reactions_of, paging::page_limit, views::Found, visibility::hides_followers,
};
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    model::*,
    refusals::{store_refusal, unexpected_outcome},
    store::{MessageChange, Outcome, PageRequest, Proposal, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{AllowedReactions, EntryPage, MessageReactions, PinState, Reactor, ReactorPage},
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
        let user = user.ok_or_else(|| Refusal::field("user", "a reaction needs a user"))?;
        check_key(key)?;
        let allowed = conversation.reactions();
        let key = match &allowed {
            AllowedReactions::Only(allowed) if add => {
                let place = place_of_reaction(allowed.iter().map(String::as_str), key);
                let why = || format!("is not among the reactions of this conversation: {}", allowed.join(" "));
                &allowed[place.ok_or_else(|| Refusal::field("key", why()))?]
            }
            _ => key,
        };
        self.check_draining()?;
        if add {
            self.check_may_write(actor, &user, &conversation, Writing::Reaction)?;
        } else {
            self.role_of_member(&user, &conversation)?;
        }
        self.check_exists_for(actor, &conversation, seq)?;
        let proposal = Proposal::React {
            conversation: conversation.no,
            target: seq,
            user: Sender::of(&user),
            key: key.to_owned(),
            add,
            // Others that were given before the set was chosen keep no allowed one out.
            keys_max: match &allowed {
                AllowedReactions::Any => REACTIONS_PER_MESSAGE_MAX,
                AllowedReactions::Only(_) => usize::MAX,
            },
            interval_ms: REACTIONS_INTERVAL_MS,
        };
        let outcome = self.committer.propose(actor, Some(&conversation), proposal).await?;
        let Outcome::Reacted { reactions, tell_at, .. } = outcome else {
            return Err(unexpected_outcome());
        };
        if let Some(at) = tell_at {
            self.reaction_teller.tell_at(conversation.no, at);
        }
        let mut reactions = reactions_of(&reactions);
        if self.view(actor, &conversation).is_ok_and(|view| view.hides_followers) {
            reactions.iter_mut().for_each(|reaction| reaction.users.clear());
        }
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
        let (ref actor, conversation) = self.enter_at(actor, conversation, seq)?;
        let message = self.stored_message(&conversation, seq)?;
        // A follower sees the own reactions, and of others how many there are.
        let hides_others = hides_followers(&conversation, self.role_of_reader(actor, &conversation)?);
        let own = actor.user().filter(|_| hides_others).map(|user| user.no.0);
        let limit = page_limit(limit, REACTORS_PAGE_DEFAULT, REACTORS_PAGE_MAX)?;
        let first = match after {
            Some(token) => {
                let last = token.parse::<u64>();
                last.map_err(|_| Refusal::field("after", "not a page token of this list"))?.saturating_add(1)
            }
            None => 0,
        };
        if message.content.message_details().reactions.is_empty() {
            return Ok(ReactorPage { reactions: vec![], next: None });
        }
        let row_key = |user| chat_rows::reactions_key(conversation.no, seq, UserNo(user));
        let (from, to) = own.map_or((first, u64::MAX), |own| (own.max(first), own + 1));
        let rows = self.store.rows(RowSpace::Chat, &row_key(from), &row_key(to.max(from)), limit);
        let rows = rows.map_err(store_refusal)?;
        let mut reactions = Vec::new();
        let mut last = None;
        for (row_key, value) in &rows {
            let Some(no) = chat_rows::number_in(row_key, 2) else { continue };
            last = Some(no);
            let own: Vec<String> = chat_rows::decode(Some(value)).map_err(store_refusal)?;
            let Some(user) = self.directory.user(UserNo(no)).map_err(store_refusal)? else { continue };
            let given = own.into_iter().filter(|given| key.is_none_or(|key| is_same_reaction(key, given)));
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
            let role = self.check_may_write(actor, user, &conversation, Writing::Pin)?;
            let may_pin = role >= Role::Admin || conversation.kind == ConversationKind::Direct;
            if !may_pin && matches!(actor, Actor::User(_)) {
                return Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins may pin messages"));
            }
        }
        self.check_exists_for(actor, &conversation, seq)?;
        let mut entry = pin_entry(by.as_deref().map(Sender::of));
        entry.details = self.desk_details(entry.kind, &conversation, by.as_deref());
        let change = MessageChange::Pin { pinned, pins_max: PINS_PER_CONVERSATION_MAX };
        let proposal = Proposal::ChangeMessage { conversation: conversation.no, target: seq, change, entry };
        self.committer.propose(actor, Some(&conversation), proposal).await?;
        Ok(PinState { conversation: conversation.id.clone(), seq, pinned })
    }

    /// The pinned messages of a conversation, the last pinned one first.
    ///
    /// # Errors
    /// `not_found`, `not_a_member`; `store_unavailable`.
    pub fn pins(&self, actor: &Actor, conversation: &str) -> Result<EntryPage, Refusal> {
        let (ref actor, conversation) = self.enter(actor, conversation)?;
        self.check_may_read(actor, &conversation)?;
        let row = self.store.row(RowSpace::Chat, &chat_rows::pins_key(conversation.no)).map_err(store_refusal)?;
        let pins: Vec<u64> = chat_rows::decode(row.as_deref()).map_err(store_refusal)?;
        let picked: Vec<_> = pins.iter().rev().map(|seq| (conversation.clone(), *seq)).collect();
        Ok(EntryPage { entries: self.picked_entries(actor, &picked)?, next: None })
    }

    /// These messages as they are now, without those that retention has removed and those that do not exist for the actor.
    pub(crate) fn picked_entries(
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
            if let Some(entry) = page.into_iter().next() {
                found.push(Found { conversation: conversation.clone(), view: self.view(actor, conversation)?, entry });
            }
        }
        self.present(found)
    }
}

/// Checks the reactions that a conversation is to allow.
pub(crate) fn check_allowed_reactions(allowed: &AllowedReactions) -> Result<(), Refusal> {
    let AllowedReactions::Only(keys) = allowed else { return Ok(()) };
    if keys.len() > REACTIONS_PER_MESSAGE_MAX {
        return Err(Refusal::limit("reactions.only", REACTIONS_PER_MESSAGE_MAX as u64, keys.len() as u64));
    }
    for (at, key) in keys.iter().enumerate() {
        check_key(key)?;
        if keys[..at].iter().any(|before| is_same_reaction(before, key)) {
            return Err(Refusal::field("reactions.only", format!("{key:?} appears twice")));
        }
    }
    Ok(())
}

pub(crate) fn check_key(key: &str) -> Result<(), Refusal> {
    if key.is_empty() || key.len() > REACTION_BYTES_MAX {
        return Err(Refusal::limit("key (bytes, at least 1)", REACTION_BYTES_MAX as u64, key.len() as u64));
    }
    if key.chars().any(char::is_control) {
        return Err(Refusal::field("key", "has a control character"));
    }
    Ok(())
}

/// The entry of a pin or of its end.
pub(crate) fn pin_entry(by: Option<Sender>) -> NewEntry {
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
        request: EntryRequest::default(),
    }
}
