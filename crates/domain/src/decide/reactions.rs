//! Reactions. A message has a summary of them, each user's own are in a row of their own, and members are notified by one entry
//! for each interval, however many react: the first reaction after a quiet time is reported at once, later ones when the
//! interval ends.

use super::{Decider, ProposalError, StagedRows};
use crate::{
    chat_rows::{self, UNTOLD_MAX},
    model::*,
    store::*,
};
use std::borrow::Cow;

/// The users whom a summary names for each reaction.
const NEWEST_MAX: usize = 3;

/// A reaction that is given or taken back.
pub(super) struct Reaction<'p> {
    pub(super) target: u64,
    pub(super) user: &'p Sender,
    pub(super) key: &'p str,
    pub(super) add: bool,
    pub(super) keys_max: usize,
}

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn react(
        &mut self,
        conversation: ConversationNo,
        reaction: &Reaction<'_>,
        interval_ms: u64,
    ) -> Result<Outcome, ProposalError> {
        let Reaction { target, user, key, add, keys_max } = *reaction;
        if self.rows.has_just_left(conversation, user.no) {
            return Err(Rejection::NotAMember.into());
        }
        self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        let mut message = self.message(conversation, target)?;
        if message.content.is_recalled() {
            return Err(Rejection::MessageRecalled(target).into());
        }
        let own_key = chat_rows::reactions_key(conversation, target, user.no);
        let mut own: Vec<String> = chat_rows::decode(self.rows.chat_row(&own_key)?.as_deref())?;
        let place = place_of_reaction(own.iter().map(String::as_str), key);
        let untold_key = chat_rows::untold_key(conversation);
        let mut untold: Vec<u64> = chat_rows::decode(self.rows.chat_row(&untold_key)?.as_deref())?;
        let told_at: u64 = chat_rows::decode(self.rows.chat_row(&chat_rows::told_key(conversation))?.as_deref())?;
        let details = message.content.message_details_mut().ok_or(Rejection::NotAMessage(target))?;
        match (add, place) {
            (true, None) => {
                own.push(give(&mut details.reactions, user, key, keys_max)?);
            }
            (false, Some(place)) => {
                let given = own.remove(place);
                take_back(&mut details.reactions, user, &given);
            }
            (true, Some(_)) | (false, None) => {
                let reactions = details.reactions.clone();
                return Ok(Outcome::Reacted { reactions, changed: false, told: None, tell_at: None });
            }
        }
        let reactions = details.reactions.clone();
        self.rows.put_entry(conversation, message)?;
        self.rows.put_chat_row(own_key, (!own.is_empty()).then(|| chat_rows::encode(&own)));
        if !untold.contains(&target) {
            untold.push(target);
        }
        let due = told_at.saturating_add(interval_ms);
        let told = if self.now_ms >= due || untold.len() >= UNTOLD_MAX {
            Some(self.tell(conversation, untold)?)
        } else {
            self.rows.put_chat_row(untold_key, Some(chat_rows::encode(&untold)));
            None
        };
        let tell_at = told.is_none().then_some(due);
        Ok(Outcome::Reacted { reactions, changed: true, told, tell_at })
    }

    pub(super) fn tell_reactions(&mut self, conversation: ConversationNo) -> Result<Outcome, ProposalError> {
        self.rows.head(conversation)?.ok_or(Rejection::NoSuchConversation)?;
        let untold_key = chat_rows::untold_key(conversation);
        let untold: Vec<u64> = chat_rows::decode(self.rows.chat_row(&untold_key)?.as_deref())?;
        let told = if untold.is_empty() { None } else { Some(self.tell(conversation, untold)?) };
        Ok(Outcome::Reacted { reactions: Vec::new(), changed: false, told, tell_at: None })
    }

    /// Appends the entry with these messages' reactions.
    fn tell(
        &mut self,
        conversation: ConversationNo,
        untold: Vec<u64>,
    ) -> Result<(Appended, Box<NewEntry>), ProposalError> {
        let mut reaction_changes = Vec::with_capacity(untold.len());
        let mut desk = self.assignment(conversation)?.map(|assignment| assignment.account);
        for seq in untold {
            // Retention may have removed a message meanwhile.
            if let Some(message) = self.rows.entry(conversation, seq)? {
                desk = desk.or(message.content.desk().map(|desk| desk.account));
                reaction_changes.push((seq, message.content.message_details().reactions.clone()));
            }
        }
        self.rows.put_chat_row(chat_rows::told_key(conversation), Some(chat_rows::encode(&self.now_ms)));
        self.rows.put_chat_row(chat_rows::untold_key(conversation), None);
        let desk = desk.map(EntryDesk::of);
        let details = EntryDetails { desk, ..KindDetails::Reactions(reaction_changes).into() };
        let entry = NewEntry {
            kind: EntryKind::Reactions,
            sender: None,
            client_msg_id: None,
            content_type: "reactions".into(),
            body: NO_BODY.into(),
            mentions: Vec::new(),
            silent: true,
            skip_push: true,
            details: Some(Box::new(details)),
            request: EntryRequest::default(),
        };
        let appended = self.append(conversation, Cow::Owned(entry.clone()), None)?;
        Ok((appended, Box::new(entry)))
    }
}

/// Gives a reaction, and answers how the message spells it.
fn give(
    reactions: &mut Vec<ReactionCount>,
    user: &Sender,
    key: &str,
    keys_max: usize,
) -> Result<String, ProposalError> {
    let place = match place_of_reaction(reactions.iter().map(|reaction| reaction.key.as_str()), key) {
        Some(place) => place,
        None if reactions.len() >= keys_max => {
            return Err(Rejection::TooManyReactions { limit: keys_max as u64 }.into());
        }
        None => {
            reactions.push(ReactionCount { key: key.to_owned(), count: 0, newest: Vec::new() });
            reactions.len() - 1
        }
    };
    let reaction = &mut reactions[place];
    reaction.count += 1;
    reaction.newest.insert(0, user.clone());
    reaction.newest.truncate(NEWEST_MAX);
    Ok(reaction.key.clone())
}

fn take_back(reactions: &mut Vec<ReactionCount>, user: &Sender, key: &str) {
    if let Some(reaction) = reactions.iter_mut().find(|reaction| reaction.key == key) {
        reaction.count = reaction.count.saturating_sub(1);
        reaction.newest.retain(|newest| newest.no != user.no);
    }
    reactions.retain(|reaction| reaction.count > 0);
}
