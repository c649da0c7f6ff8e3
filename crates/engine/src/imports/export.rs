//! What the server has, as records that an import reads: a page at a time, in an order in which each record names only what is ahead
//! of it.

use super::ID_PREFIX;
use crate::{Engine, attributes::attributes_value, engine::expiring::shown_expiry};
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::sync::Arc;
use tidings_domain::{
    chat_rows,
    model::*,
    refusals::store_refusal,
    store::{End, RowSpace},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    ids::direct_pair,
};

/// Users, members or read marks of a page.
const USERS_AT_ONCE: usize = 500;
/// Entries of a page.
const ENTRIES_AT_ONCE: usize = 100;
/// Rows of reactions in one read.
const REACTIONS_AT_ONCE: usize = 1_000;

/// What comes next of a conversation.
enum Part {
    Details,
    Members(Option<UserNo>),
    Messages(u64),
    Reads(Option<UserNo>),
}

/// An export that is under way.
pub struct Export {
    /// The next user; `None`: all have been written, or only those whom the conversation names.
    next_user: Option<u64>,
    /// The conversation that is written, and the last one.
    conversation: u64,
    last: u64,
    part: Part,
    /// Of one conversation: the users who have been written.
    known: Option<FxHashSet<UserNo>>,
    /// The newest message up to a `seq`, for members who have read equally far.
    newest: Option<(u64, Option<String>)>,
    page: Vec<u8>,
}

impl Engine {
    /// An export of one conversation, or of everything. Blocks.
    ///
    /// # Errors
    /// `not_found`; `store_unavailable`.
    pub fn export(&self, query: &HistoryExportQuery) -> Result<Export, Refusal> {
        let numbers = self.store.last_numbers().map_err(store_refusal)?;
        let (next_user, conversation, last, known) = match &query.conversation {
            Some(id) => {
                let no = self.directory.require_conversation(id)?.no.0;
                (None, no, no, Some(FxHashSet::default()))
            }
            None => (Some(1), 1, numbers.conversations, None),
        };
        Ok(Export { next_user, conversation, last, part: Part::Details, known, newest: None, page: Vec::new() })
    }
}

impl Export {
    /// The next page, and whether there are more. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub fn next(&mut self, engine: &Engine) -> Result<(Vec<u8>, bool), Refusal> {
        match self.next_user {
            Some(from) => self.users(engine, from)?,
            None if self.conversation > self.last => {}
            None => match engine.directory.conversation(ConversationNo(self.conversation)).map_err(store_refusal)? {
                Some(conversation) if !conversation.is_deleted() => self.part_of(engine, &conversation)?,
                // Nobody has the number.
                _ => self.conversation += 1,
            },
        }
        Ok((std::mem::take(&mut self.page), self.next_user.is_some() || self.conversation <= self.last))
    }

    fn users(&mut self, engine: &Engine, from: u64) -> Result<(), Refusal> {
        let last = engine.store.last_numbers().map_err(store_refusal)?.users;
        let to = last.min(from + USERS_AT_ONCE as u64 - 1);
        for no in from..=to {
            if let Some(user) = engine.store.user(UserNo(no)).map_err(store_refusal)? {
                self.user(&user)?;
            }
        }
        self.next_user = (to < last).then_some(to + 1);
        Ok(())
    }

    fn part_of(&mut self, engine: &Engine, conversation: &Arc<Conversation>) -> Result<(), Refusal> {
        match self.part {
            Part::Details => {
                self.details(engine, conversation)?;
                let is_direct = conversation.kind == ConversationKind::Direct;
                self.part = if is_direct { Part::Messages(1) } else { Part::Members(None) };
            }
            Part::Members(after) => {
                let next = self.members(engine, conversation, after)?;
                self.part = next.map_or(Part::Messages(1), |after| Part::Members(Some(after)));
            }
            Part::Messages(from) => {
                let next = self.messages(engine, conversation, from)?;
                self.newest = None;
                self.part = next.map_or(Part::Reads(None), Part::Messages);
            }
            Part::Reads(after) => match self.reads(engine, conversation, after)? {
                Some(after) => self.part = Part::Reads(Some(after)),
                None => {
                    if !conversation.is_importing() {
                        let (conversation, direct) = target(conversation);
                        self.write(&ImportState { record: ImportRecordType::Finish, conversation, direct })?;
                    }
                    (self.part, self.conversation) = (Part::Details, self.conversation + 1);
                }
            },
        }
        Ok(())
    }

    fn write(&mut self, record: &impl Serialize) -> Result<(), Refusal> {
        let written = serde_json::to_writer(&mut self.page, record);
        written.map_err(|error| Refusal::new(ErrorCode::Internal, format!("a record cannot be written: {error}")))?;
        self.page.push(b'\n');
        Ok(())
    }

    fn user(&mut self, user: &User) -> Result<(), Refusal> {
        self.write(&ImportUser {
            record: ImportRecordType::User,
            id: user.id.clone(),
            name: user.name.clone(),
            avatar: user.avatar.clone(),
            attributes: attributes_value(user.attributes()),
            language: user.language().map(str::to_owned),
            time_zone: user.time_zone().map(str::to_owned),
        })
    }

    /// Writes a user whom the next record names, unless that has been done.
    fn name(&mut self, engine: &Engine, user: UserNo) -> Result<Option<Arc<User>>, Refusal> {
        let found = engine.directory.user(user).map_err(store_refusal)?;
        let is_new = self.known.as_mut().is_some_and(|known| known.insert(user));
        if let Some(user) = found.as_ref().filter(|_| is_new) {
            self.user(user)?;
        }
        Ok(found)
    }

    fn details(&mut self, engine: &Engine, conversation: &Conversation) -> Result<(), Refusal> {
        for user in conversation.pair.into_iter().flat_map(|(a, b)| [a, b]) {
            self.name(engine, user)?;
        }
        let (id, direct) = target(conversation);
        let settings = if direct.is_some() { ConversationSettings::default() } else { conversation.settings.clone() };
        self.write(&ImportConversation {
            record: ImportRecordType::Conversation,
            id,
            kind: conversation.kind,
            direct,
            name: conversation.name.clone(),
            avatar: conversation.avatar.clone(),
            attributes: attributes_value(conversation.attributes.as_deref()),
            receipts: settings.receipts,
            history: settings.history,
            mention_all: settings.mention_all,
            reactions: settings.reactions,
            blocks: settings.blocks,
            posting: settings.posting,
            slow_mode_s: settings.slow_mode_s,
            join_requests: settings.join_requests,
            expires: settings.expires.filter(|expiry| expiry.after_s > 0).map(shown_expiry),
        })
    }

    fn members(
        &mut self,
        engine: &Engine,
        conversation: &Conversation,
        after: Option<UserNo>,
    ) -> Result<Option<UserNo>, Refusal> {
        let page = engine.store.members(conversation.no, after, USERS_AT_ONCE).map_err(store_refusal)?;
        for (user, membership) in &page {
            let Some(user) = self.name(engine, *user)? else { continue };
            self.write(&ImportMember {
                record: ImportRecordType::Member,
                conversation: conversation.id.clone(),
                user: user.id.clone(),
                role: Some(membership.role).filter(|role| *role != Role::Member),
            })?;
        }
        Ok(page.last().map(|(user, _)| *user).filter(|_| page.len() == USERS_AT_ONCE))
    }

    fn messages(&mut self, engine: &Engine, conversation: &Conversation, from: u64) -> Result<Option<u64>, Refusal> {
        let page = engine.store.entries(conversation.no, from, u64::MAX, ENTRIES_AT_ONCE, End::Oldest);
        let page = page.map_err(store_refusal)?;
        for entry in page.iter().filter(|entry| is_exported(entry)) {
            let message = self.message(engine, conversation, entry)?;
            self.write(&message)?;
        }
        Ok(page.last().map(|last| last.seq + 1).filter(|_| page.len() == ENTRIES_AT_ONCE))
    }

    fn message(
        &mut self,
        engine: &Engine,
        conversation: &Conversation,
        entry: &StoredEntry,
    ) -> Result<ImportMessage, Refusal> {
        let content = &entry.content;
        if let Some(sender) = &content.sender {
            self.name(engine, sender.no)?;
        }
        let answered = match content.reply_to() {
            Some(seq) => engine.store.entries(conversation.no, seq, seq, 1, End::Oldest).map_err(store_refusal)?,
            None => Vec::new(),
        };
        let details = content.message_details();
        let reactions = self.reactions(engine, conversation, entry.seq, &details.reactions)?;
        let body = serde_json::value::RawValue::from_string(content.body.to_string());
        let damaged = |_| Refusal::new(ErrorCode::Internal, format!("entry {} has a damaged body", entry.seq));
        let (of, direct) = target(conversation);
        Ok(ImportMessage {
            record: ImportRecordType::Message,
            conversation: of,
            direct,
            id: id_of(entry),
            from: content.sender.as_ref().map(|sender| sender.id.clone()),
            at: entry.at,
            content_type: content.content_type.clone(),
            body: body.map_err(damaged)?,
            mentions: content.mentions.clone(),
            silent: content.silent,
            reply_to: answered.first().filter(|answered| is_exported(answered)).map(id_of),
            edited_at: details.edited.as_ref().map(|edited| edited.at),
            reactions,
            expires: details.expires.map(|expiry| {
                let left_ms = expiry.last_time(content.kept_since(entry.at)).saturating_sub(engine.clock.now_ms());
                let left_s = u32::try_from(left_ms.div_ceil(1_000)).unwrap_or(u32::MAX);
                Expires { after_s: Some(left_s.max(1)), after_read_s: expiry.after_read_s }
            }),
        })
    }

    /// The reactions to a message: the newest users of each come last, as a summary names them; the others by their numbers.
    fn reactions(
        &mut self,
        engine: &Engine,
        conversation: &Conversation,
        seq: u64,
        summary: &[ReactionCount],
    ) -> Result<Vec<ImportReaction>, Refusal> {
        let mut reactions: Vec<_> =
            summary.iter().map(|known| ImportReaction { key: known.key.clone(), users: Vec::new() }).collect();
        let row_key = |user| chat_rows::reactions_key(conversation.no, seq, UserNo(user));
        let mut next = Some(0).filter(|_| !summary.is_empty());
        while let Some(from) = next {
            let rows = engine.store.rows(RowSpace::Chat, &row_key(from), &row_key(u64::MAX), REACTIONS_AT_ONCE);
            let rows = rows.map_err(store_refusal)?;
            next = None;
            for (row_key, value) in &rows {
                let Some(no) = chat_rows::number_in(row_key, 2) else { continue };
                next = Some(no + 1).filter(|_| rows.len() == REACTIONS_AT_ONCE);
                let own: Vec<String> = chat_rows::decode(Some(value)).map_err(store_refusal)?;
                let Some(user) = self.name(engine, UserNo(no))? else { continue };
                for (reaction, known) in reactions.iter_mut().zip(summary) {
                    let is_newest = known.newest.iter().any(|newest| newest.no == user.no);
                    if own.contains(&reaction.key) && !is_newest {
                        reaction.users.push(user.id.clone());
                    }
                }
            }
        }
        for (reaction, known) in reactions.iter_mut().zip(summary) {
            reaction.users.extend(known.newest.iter().rev().map(|user| user.id.clone()));
        }
        Ok(reactions)
    }

    fn reads(
        &mut self,
        engine: &Engine,
        conversation: &Conversation,
        after: Option<UserNo>,
    ) -> Result<Option<UserNo>, Refusal> {
        let page = engine.store.members(conversation.no, after, USERS_AT_ONCE).map_err(store_refusal)?;
        for (user, membership) in &page {
            let through = membership.read_seq.max(membership.joined_seq);
            // Of an import that goes on nothing is known of members without a mark.
            if through == 0 && conversation.is_importing() {
                continue;
            }
            let Some(user) = self.name(engine, *user)? else { continue };
            let message = self.newest_message(engine, conversation.no, through)?;
            let (conversation, direct) = target(conversation);
            let user = user.id.clone();
            self.write(&ImportRead { record: ImportRecordType::Read, conversation, direct, user, message })?;
        }
        Ok(page.last().map(|(user, _)| *user).filter(|_| page.len() == USERS_AT_ONCE))
    }

    /// The id of the newest message up to a `seq`.
    fn newest_message(
        &mut self,
        engine: &Engine,
        conversation: ConversationNo,
        through: u64,
    ) -> Result<Option<String>, Refusal> {
        if let Some((_, known)) = self.newest.as_ref().filter(|(of, _)| *of == through) {
            return Ok(known.clone());
        }
        let (mut to, mut found) = (through, None);
        while to > 0 && found.is_none() {
            let page =
                engine.store.entries(conversation, 1, to, ENTRIES_AT_ONCE, End::Newest).map_err(store_refusal)?;
            found = page.iter().rfind(|entry| is_exported(entry)).map(id_of);
            to = page.first().map_or(0, |first| first.seq - 1);
        }
        self.newest = Some((through, found.clone()));
        Ok(found)
    }
}

/// How records name a conversation: by its id, or by its two users.
fn target(conversation: &Conversation) -> (Option<String>, Option<[String; 2]>) {
    match direct_pair(&conversation.id).filter(|_| conversation.kind == ConversationKind::Direct) {
        Some((a, b)) => (None, Some([a.to_owned(), b.to_owned()])),
        None => (Some(conversation.id.clone()), None),
    }
}

/// Whether an entry is a message that members see.
fn is_exported(entry: &StoredEntry) -> bool {
    entry.content.kind == EntryKind::Message && !entry.content.is_recalled() && !entry.content.is_hidden()
}

/// The id of a message in an export: that of the import which brought it, or one made of its `seq`.
fn id_of(entry: &StoredEntry) -> String {
    let imported = entry.content.client_msg_id.as_deref().filter(|_| entry.content.is_imported());
    imported.and_then(|id| id.strip_prefix(ID_PREFIX)).map_or_else(|| format!("seq:{}", entry.seq), str::to_owned)
}
