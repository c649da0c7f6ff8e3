//! Who may see what of an entry: a [`View`] is what one reader may see of one conversation, and [`View::show`] the only way by
//! which a stored entry becomes one that can be written for a reader.
//!
//! An entry has a `seq` of its own, and many look back at an earlier message: an answer has a preview of it, an edit its new
//! body, an entry of reactions who reacted to it. A reader who may see the entry and not the message is shown the entry
//! without what it reveals of the message.
//!
//! Entries that are handed out live are encoded once for all members. Where members may see different parts of a
//! conversation, [`Floors`] go along, and readers whose part begins behind the message get an encoding of their own.

use std::borrow::Cow;
use tidings_domain::model::*;
use tidings_protocol::error::{ErrorCode, Refusal};

/// What one reader may see of one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Entries before this one do not exist for the reader.
    pub(crate) first_seq: u64,
    /// The reader does not learn which agent acts for an account.
    pub(crate) hides_agents: bool,
    /// The reader does not learn who follows an account.
    pub(crate) hides_followers: bool,
    /// Whose messages the reader sees that the hook has hidden.
    pub(crate) hidden: HiddenMessages,
}

/// Which of the messages that the hook has hidden a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HiddenMessages {
    /// An app server sees all.
    All,
    /// A user sees the own ones, and does not learn that they are hidden.
    Of(UserNo),
    /// What is encoded for all members at once.
    None,
}

impl HiddenMessages {
    fn has(self, content: &NewEntry) -> bool {
        match self {
            HiddenMessages::All => true,
            HiddenMessages::Of(user) => is_by(user, content),
            HiddenMessages::None => false,
        }
    }
}

/// Whether the user sent an entry, as itself or as an account.
pub(crate) fn is_by(user: UserNo, content: &NewEntry) -> bool {
    content.sender.iter().chain(content.author()).any(|sender| sender.no == user)
}

impl View {
    /// That of an app server, which may see everything.
    pub const WHOLE: View =
        View { first_seq: 1, hides_agents: false, hides_followers: false, hidden: HiddenMessages::All };

    /// Whether the entry with this `seq` exists for the reader.
    pub(crate) fn has(self, seq: u64) -> bool {
        seq >= self.first_seq
    }

    /// The entry, as far as the reader may see it; `None`: it does not exist for the reader.
    pub fn show(self, entry: &StoredEntry) -> Option<ShownEntry<'_>> {
        if !self.has(entry.seq) {
            return None;
        }
        if entry.content.kind.is_opaque() {
            // Who may see what of it, only the versions know that know its kind.
            return Some(ShownEntry(Cow::Owned(StoredEntry { content: NewEntry::opaque(), ..*entry })));
        }
        let details = entry.content.details.as_deref();
        let is_whole = details.is_none_or(|details| !self.hides_any_of(entry, details));
        Some(ShownEntry(if is_whole {
            Cow::Borrowed(entry)
        } else {
            let mut shown = entry.clone();
            self.hide(&mut shown);
            Cow::Owned(shown)
        }))
    }

    fn hides_any_of(self, entry: &StoredEntry, details: &EntryDetails) -> bool {
        let has_reactions = match &details.of_kind {
            KindDetails::Message(message) => !message.reactions.is_empty(),
            KindDetails::Reactions(changes) => !changes.is_empty(),
            _ => false,
        };
        oldest_target(entry).is_some_and(|target| !self.has(target))
            || (self.hides_agents && details.desk.is_some())
            || (self.hides_followers && has_reactions)
            || (details.hidden && self.hidden != HiddenMessages::All)
    }

    fn hide(self, entry: &mut StoredEntry) {
        let is_hidden = entry.content.is_hidden() && self.hidden != HiddenMessages::All;
        if is_hidden && !self.hidden.has(&entry.content) {
            return hide_content(&mut entry.content);
        }
        let hides_target = entry.content.target().is_some_and(|target| !self.has(target));
        let details = entry.content.details_mut();
        // The sender does not learn of it.
        details.hidden &= !is_hidden;
        let hides_agent = details.desk.take_if(|_| self.hides_agents).is_some();
        let hide_followers = |reactions: &mut Vec<ReactionCount>| {
            if self.hides_followers {
                reactions.iter_mut().for_each(|reaction| reaction.newest.clear());
            }
        };
        match &mut details.of_kind {
            KindDetails::Message(message) => {
                hide_followers(&mut message.reactions);
                if let Some(reply) = message.reply_to.as_mut().filter(|reply| !self.has(reply.seq)) {
                    reply.preview = None;
                }
                if *details == EntryDetails::of(EntryKind::Message) {
                    entry.content.details = None;
                }
            }
            KindDetails::Reactions(changes) => {
                changes.retain(|(seq, _)| self.has(*seq));
                changes.iter_mut().for_each(|(_, reactions)| hide_followers(reactions));
            }
            KindDetails::Assignment { to } if hides_agent => *to = None,
            KindDetails::Edit(_) | KindDetails::Recall { .. } if hides_target => {
                entry.content.body = NO_BODY.into();
                entry.content.content_type = HIDDEN_TYPE.into();
                entry.content.mentions = Vec::new();
            }
            // Of a message that is pinned an entry has nothing but the number.
            KindDetails::Edit(_)
            | KindDetails::Recall { .. }
            | KindDetails::Pins { .. }
            | KindDetails::Assignment { .. }
            | KindDetails::Notice
            | KindDetails::Opaque(_) => {}
        }
    }
}

/// Leaves of an entry that there is one, by whom, and that it is hidden; of a change also of which message.
fn hide_content(content: &mut NewEntry) {
    content.client_msg_id = None;
    content.content_type = HIDDEN_TYPE.into();
    content.body = NO_BODY.into();
    content.mentions = Vec::new();
    content.silent = true;
    let (kind, target) = (content.kind, content.target().unwrap_or(0));
    let of_kind = match EntryDetails::of(kind).of_kind {
        KindDetails::Edit(edit) => KindDetails::Edit(EditDetails { target, ..edit }),
        KindDetails::Recall { expired, .. } => KindDetails::Recall { target, expired },
        KindDetails::Pins { pinned, .. } => KindDetails::Pins { target, pinned },
        other => other,
    };
    content.details = Some(Box::new(EntryDetails { hidden: true, ..of_kind.into() }));
}

/// An entry as one reader may see it; only [`View::show`] makes one.
pub struct ShownEntry<'e>(Cow<'e, StoredEntry>);

impl ShownEntry<'_> {
    pub(crate) fn entry(&self) -> &StoredEntry {
        &self.0
    }
}

/// The oldest message of which an entry reveals something; `None`: it reveals nothing but itself.
pub(crate) fn oldest_target(entry: &StoredEntry) -> Option<u64> {
    targets_of(entry).min()
}

/// The messages of which an entry tells something.
pub(crate) fn targets_of(entry: &StoredEntry) -> impl Iterator<Item = u64> {
    let content = &entry.content;
    let changes = content.reaction_changes().iter().map(|(seq, _)| *seq);
    content.target().into_iter().chain(content.reply_to()).chain(changes)
}

/// The first `seq` that a member may read who joined when this was the last one, and has cleared all up to another.
pub(crate) fn first_readable(history: HistoryVisibility, joined_seq: u64, cleared_seq: u64) -> u64 {
    let before_joining = match history {
        HistoryVisibility::All => 0,
        HistoryVisibility::Join => joined_seq,
        HistoryVisibility::Last(count) => joined_seq.saturating_sub(count),
    };
    before_joining.max(cleared_seq).saturating_add(1)
}

/// Whether only the owner, admins and app servers know who the members are, and not this member.
pub(crate) fn hides_followers(conversation: &Conversation, role: Role) -> bool {
    conversation.kind == ConversationKind::Official && role < Role::Admin
}

/// Refuses a follower who asks for other followers.
pub(crate) fn check_may_know_followers(conversation: &Conversation, role: Role) -> Result<(), Refusal> {
    if hides_followers(conversation, role) {
        Err(Refusal::new(ErrorCode::Forbidden, "only the owner and admins of an official account see its followers"))
    } else {
        Ok(())
    }
}

/// Where the parts of a conversation begin that its live members may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floors {
    /// What those may see of it who joined later.
    pub(crate) history: HistoryVisibility,
    /// The users who have cleared a part of it.
    pub(crate) cleared: Vec<(UserNo, u64)>,
}

impl Floors {
    /// Those of a conversation of which every member may see everything.
    pub(crate) fn none() -> Floors {
        Floors { history: HistoryVisibility::All, cleared: Vec::new() }
    }

    /// Whether all members may see everything.
    pub(crate) fn is_trivial(&self) -> bool {
        self.history == HistoryVisibility::All && self.cleared.is_empty()
    }

    /// The first `seq` that a member may see.
    pub(crate) fn of(&self, user: UserNo, joined_seq: u64) -> u64 {
        let cleared = self.cleared.iter().find(|(of, _)| *of == user);
        first_readable(self.history, joined_seq, cleared.map_or(0, |(_, seq)| *seq))
    }
}

#[cfg(test)]
#[path = "../tests/units/visibility.rs"]
mod tests;
