//! What records say, checked, and made into what is proposed.

use super::ID_PREFIX;
use crate::{
    Engine,
    engine::{conversations::check_new_direct, send::check_message, users::user_patch},
    reactions::requests::check_key,
};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{
    model::*,
    refusals::store_refusal,
    store::{NewConversation, UserPatch},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    ids::{check_id, direct_id},
    limits::REACTIONS_PER_MESSAGE_MAX,
    time::{TIME_HINT, TIME_MS_MIN},
};

/// How far the clock of another system may be ahead of ours.
const AHEAD_MS_MAX: u64 = 5 * 60 * 1_000;
/// Users whom a summary of reactions names.
const NEWEST_MAX: usize = 3;

type ReactionsByUser = BTreeMap<UserNo, Vec<String>>;

/// A conversation, as a record names it.
pub(super) struct Target {
    pub(super) conversation: Option<String>,
    pub(super) direct: Option<[String; 2]>,
}

/// A message that waits for its commit.
pub(super) struct PendingMessage {
    pub(super) line: u64,
    pub(super) conversation: Arc<Conversation>,
    pub(super) entry: NewEntry,
    pub(super) import: ImportRequest,
}

impl PendingMessage {
    pub(super) fn bytes(&self) -> usize {
        self.entry.body.len() + 256
    }

    /// What names it in the store.
    pub(super) fn request(&self) -> (ConversationNo, UserNo, &str) {
        (self.conversation.no, UserNo::NOBODY, self.entry.client_msg_id.as_deref().unwrap_or_default())
    }

    /// The entry to be proposed, behind the message with this id.
    pub(super) fn into_entry(mut self, imported_at: u64, previous: Option<String>) -> NewEntry {
        self.entry.details_mut().imported_at = Some(imported_at);
        self.entry.request.import = Some(Box::new(ImportRequest { previous, ..self.import }));
        self.entry
    }
}

pub(super) fn user(record: ImportUser) -> Result<UserPatch, Refusal> {
    let ImportUser { id, name, avatar, attributes, language, time_zone, .. } = record;
    user_patch(UserUpsert { id, name, avatar, attributes, language, time_zone })
}

impl Engine {
    /// The conversation of a record.
    pub(super) fn imported(&self, target: Target) -> Result<Arc<Conversation>, Refusal> {
        match target {
            Target { conversation: Some(id), direct: None } => self.directory.require_conversation(&id),
            Target { conversation: None, direct: Some([a, b]) } => {
                self.directory.require_conversation(&direct_id(&a, &b))
            }
            _ => Err(Refusal::field("conversation", "give either conversation or direct")),
        }
    }

    pub(super) fn imported_conversation(&self, record: ImportConversation) -> Result<NewConversation, Refusal> {
        let ImportConversation {
            record: _,
            id,
            kind,
            direct,
            name,
            avatar,
            attributes,
            receipts,
            history,
            mention_all,
            reactions,
            blocks,
            posting,
            slow_mode_s,
            join_requests,
            expires,
        } = record;
        let new = CreateConversation {
            id,
            kind,
            name,
            avatar,
            attributes,
            owner: None,
            members: Vec::new(),
            receipts,
            history,
            mention_all,
            reactions,
            blocks,
            posting,
            slow_mode_s,
            join_requests,
            expires,
        };
        match (kind, direct) {
            (ConversationKind::Direct, Some(direct)) => {
                // What is set for a direct conversation is refused where one is created.
                let new = CreateConversation { members: direct.to_vec(), ..new };
                let (first, second) = check_new_direct(&new)?;
                let first = self.directory.require_user(first)?;
                Ok(self.new_direct(&first, second)?.1)
            }
            (ConversationKind::Direct, None) => Err(Refusal::field("direct", "name the two users")),
            (_, Some(_)) => Err(Refusal::field("direct", "is of direct conversations alone")),
            (_, None) if new.id.is_none() => Err(Refusal::field("id", "must not be absent")),
            (_, None) => self.new_with_members(&Actor::App, new),
        }
    }

    pub(super) fn imported_message(&self, line: u64, record: ImportMessage) -> Result<PendingMessage, Refusal> {
        let ImportMessage {
            record: _,
            conversation,
            direct,
            id,
            from,
            at,
            content_type,
            body,
            mentions,
            silent,
            reply_to,
            edited_at,
            reactions,
            expires,
        } = record;
        check_id("id", &id)?;
        for (field, time) in [("at", Some(at)), ("edited_at", edited_at)] {
            self.check_past(field, time)?;
        }
        let conversation = self.imported(Target { conversation, direct })?;
        let sender = from.map(|from| self.directory.require_user(&from)).transpose()?;
        let (client_msg_id, skip_push) = (None, true);
        let message =
            NewMessage { client_msg_id, content_type, body, mentions, silent, skip_push, reply_to: None, expires };
        check_message(&message)?;
        let expires = self.expiry_of(&conversation, &message)?;
        let NewMessage { content_type, body, mentions, silent, skip_push, .. } = message;
        let mut entry = NewEntry {
            kind: EntryKind::Message,
            sender: sender.as_deref().map(Sender::of),
            client_msg_id: Some(format!("{ID_PREFIX}{id}")),
            content_type,
            body: body.into(),
            mentions,
            silent,
            skip_push,
            details: self.desk_details(EntryKind::Message, &conversation, sender.as_deref()),
            request: EntryRequest::default(),
        };
        let answered = reply_to.map(|id| self.answered(&conversation, &id)).transpose()?;
        let (reactions, given) = self.imported_reactions(reactions)?;
        if let Some(details) = entry.message_details_mut() {
            details.reply_to = answered.map(AnsweredMessage::at);
            details.reactions = reactions;
            details.expires = expires;
            if let Some(at) = edited_at {
                details.version = 2;
                details.edited = Some(Edited { at, by: sender.as_deref().map(Sender::of) });
            }
        }
        let import = ImportRequest { sent_at: at, previous: None, reactions: given.into_iter().collect() };
        Ok(PendingMessage { line, conversation, entry, import })
    }

    fn check_past(&self, field: &str, time: Option<u64>) -> Result<(), Refusal> {
        match time {
            Some(time) if time < TIME_MS_MIN => Err(Refusal::field(field, TIME_HINT)),
            Some(time) if time > self.clock.now_ms() + AHEAD_MS_MAX => {
                Err(Refusal::field(field, "is in the future, by this server's clock"))
            }
            _ => Ok(()),
        }
    }

    /// The `seq` of the imported message that another one answers.
    fn answered(&self, conversation: &Conversation, id: &str) -> Result<u64, Refusal> {
        let stored = format!("{ID_PREFIX}{id}");
        let found = self.store.stored_seqs(&[(conversation.no, UserNo::NOBODY, &stored)]).map_err(store_refusal)?;
        let why = || Refusal::new(ErrorCode::NotFound, format!("reply_to: no message {id:?} is ahead of this one"));
        found.into_iter().flatten().next().ok_or_else(why)
    }

    /// The summary of reactions, and those of each user.
    fn imported_reactions(
        &self,
        reactions: Vec<ImportReaction>,
    ) -> Result<(Vec<ReactionCount>, ReactionsByUser), Refusal> {
        if reactions.len() > REACTIONS_PER_MESSAGE_MAX {
            return Err(Refusal::limit("reactions", REACTIONS_PER_MESSAGE_MAX as u64, reactions.len() as u64));
        }
        let mut summary: Vec<ReactionCount> = Vec::with_capacity(reactions.len());
        let mut given = ReactionsByUser::new();
        for ImportReaction { key, users } in reactions {
            check_key(&key)?;
            if place_of_reaction(summary.iter().map(|known| known.key.as_str()), &key).is_some() {
                return Err(Refusal::field("reactions", format!("{key:?} appears twice")));
            }
            let mut count = ReactionCount { key: key.clone(), count: 0, newest: Vec::new() };
            for user in &users {
                let user = self.directory.require_user(user)?;
                let own = given.entry(user.no).or_default();
                if !own.contains(&key) {
                    own.push(key.clone());
                    count.count += 1;
                    count.newest.insert(0, Sender::of(&user));
                    count.newest.truncate(NEWEST_MAX);
                }
            }
            if count.count > 0 {
                summary.push(count);
            }
        }
        Ok((summary, given))
    }
}
