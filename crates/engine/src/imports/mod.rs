//! History of another system: records that an import stores, and that an export writes.
//!
//! An import reads a line at a time, and gathers lines of one type, which are committed together: as many as live traffic beside it
//! can bear, with the next ones only once these are durable. What is stored stays stored, and is found again by its id: an import
//! that broke off is repeated from its beginning.
//!
//! In a conversation that is `importing` only the import writes, so that times never go back. Its messages keep their own times;
//! retention counts from the import, nobody is notified, no session is handed them, and nothing counts as unread until the
//! conversation is finished: members read the history.

pub mod export;
mod records;

use crate::{Engine, engine::conversations::notice_entry};
use records::{PendingMessage, Target};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::json;
use std::sync::Arc;
use tidings_domain::{
    gates::Gate,
    model::*,
    refusals::{proposal_refusal, store_refusal, unexpected_outcome},
    store::{NewConversation, Outcome, Proposal, UserPatch},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    json,
    limits::*,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Messages, or read marks, that are committed before the next ones are.
const MESSAGES_AT_ONCE: usize = 200;
const BYTES_AT_ONCE: usize = 512 * 1024;
/// Users, or members of one conversation, in one commit.
const USERS_AT_ONCE: usize = 500;
/// Members of a conversation whose marks are set together.
const MEMBERS_AT_ONCE: usize = 500;
/// Members who have read nothing and of whom the import says so: they are known until their conversation is finished.
const UNREAD_MEMBERS_MAX: usize = 1_000_000;
/// When an import may be tried again beside which another one ran.
const BUSY_RETRY_AFTER_MS: u64 = 5_000;
/// How often lines are tried that found a queue full.
const ATTEMPTS_MAX: u32 = 100;
/// The first part of the ids under which imported messages are stored: what an app server sends as the conversation itself has other ids.
pub(crate) const ID_PREFIX: &str = "import:";

type Answer = oneshot::Receiver<Result<Outcome, Refusal>>;

/// Lines of one type that wait for their commit, each with its number.
enum Pending {
    Users(Vec<(u64, UserPatch)>),
    Members(Arc<Conversation>, Vec<(u64, UserNo, Role)>),
    Messages(Vec<PendingMessage>),
    Reads(Vec<(u64, Arc<Conversation>, UserNo, String)>),
}

impl Pending {
    fn len(&self) -> usize {
        match self {
            Pending::Users(users) => users.len(),
            Pending::Members(_, members) => members.len(),
            Pending::Messages(messages) => messages.len(),
            Pending::Reads(reads) => reads.len(),
        }
    }
}

/// An import that reads lines.
pub struct Import {
    engine: Arc<Engine>,
    _turn: OwnedSemaphorePermit,
    pending: Pending,
    pending_bytes: usize,
    /// Members who have read nothing.
    unread: FxHashSet<(ConversationNo, UserNo)>,
    result: ImportResult,
}

/// Why an import ends early.
struct LineRefusal {
    refusal: Refusal,
    /// Whether it names its line: one that was read earlier, and not stored.
    is_named: bool,
}

/// Of the line that is read.
impl From<Refusal> for LineRefusal {
    fn from(refusal: Refusal) -> Self {
        LineRefusal { refusal, is_named: false }
    }
}

fn at_line(line: u64, refusal: Refusal) -> LineRefusal {
    let detail = format!("line {line}: {}", refusal.detail);
    let refusal = Refusal { retry_after_ms: refusal.retry_after_ms, ..Refusal::new(refusal.code, detail) };
    LineRefusal { refusal, is_named: true }
}

impl Import {
    /// An import that has read nothing.
    ///
    /// # Errors
    /// `not_yet_enabled`, `draining`; `queue_full` while another one runs.
    pub fn new(engine: Arc<Engine>) -> Result<Import, Refusal> {
        engine.gates.require(Gate::HistoryImport)?;
        engine.check_draining()?;
        let turn = engine.importing.clone().try_acquire_owned();
        let busy = |_| {
            let why = "another import runs on this node: wait until it has ended";
            Refusal::new(ErrorCode::QueueFull, why).retry_after(BUSY_RETRY_AFTER_MS)
        };
        let turn = turn.map_err(busy)?;
        Ok(Import {
            engine,
            _turn: turn,
            pending: Pending::Users(Vec::new()),
            pending_bytes: 0,
            unread: FxHashSet::default(),
            result: ImportResult::default(),
        })
    }

    /// Takes the next line. It is stored once as many have come as are committed together, or by [`Import::end`].
    ///
    /// # Errors
    /// Those of the line, or of one before it that was not stored yet, with its number: `malformed`, `invalid_field`, `limit_exceeded`,
    /// `not_found`, `conflict`; `queue_full`, `store_unavailable` and `draining`. The lines before it are stored.
    pub async fn line(&mut self, text: &[u8]) -> Result<(), Refusal> {
        self.result.lines += 1;
        let line = self.result.lines;
        let refusal = match self.add(line, text).await {
            Ok(()) => return Ok(()),
            Err(LineRefusal { refusal, is_named: true }) => return Err(refusal),
            Err(LineRefusal { refusal, .. }) => at_line(line, refusal),
        };
        // What waits is before this line.
        self.flush().await.and(Err(refusal)).map_err(|refusal| refusal.refusal)
    }

    /// Stores what waits.
    ///
    /// # Errors
    /// Those of [`Import::line`].
    pub async fn end(mut self) -> Result<ImportResult, Refusal> {
        self.flush().await.map_err(|refusal| refusal.refusal)?;
        Ok(self.result)
    }

    /// The number of the line that was read last.
    pub fn lines(&self) -> u64 {
        self.result.lines
    }

    async fn add(&mut self, line: u64, text: &[u8]) -> Result<(), LineRefusal> {
        if text.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let ImportRecord { record } = json::read(text)?;
        match record {
            ImportRecordType::User => {
                let patch = records::user(json::read(text)?)?;
                match &mut self.pending {
                    Pending::Users(users) => users.push((line, patch)),
                    _ => {
                        self.flush().await?;
                        self.pending = Pending::Users(vec![(line, patch)]);
                    }
                }
            }
            ImportRecordType::Conversation => {
                let record: ImportConversation = json::read(text)?;
                self.flush().await?;
                self.conversation(record).await?;
            }
            ImportRecordType::Member => {
                let ImportMember { conversation, user, role, .. } = json::read(text)?;
                // Users who wait are committed before they are looked up.
                if !matches!(self.pending, Pending::Members(..)) {
                    self.flush().await?;
                }
                let conversation = self.engine.directory.require_conversation(&conversation)?;
                if conversation.kind == ConversationKind::Direct {
                    let why = "the members of a direct conversation are its two users";
                    return Err(Refusal::new(ErrorCode::Conflict, why).into());
                }
                let user = self.engine.directory.require_user(&user)?.no;
                let member = (line, user, role.unwrap_or(Role::Member));
                match &mut self.pending {
                    Pending::Members(of, members) if of.no == conversation.no => members.push(member),
                    _ => {
                        self.flush().await?;
                        self.pending = Pending::Members(conversation, vec![member]);
                    }
                }
            }
            ImportRecordType::Message => {
                let record: ImportMessage = json::read(text)?;
                // A message is looked up that another one answers.
                let refers = record.reply_to.is_some();
                if refers || !matches!(self.pending, Pending::Messages(_)) {
                    self.flush().await?;
                    self.pending = Pending::Messages(Vec::new());
                }
                let message = self.engine.imported_message(line, record)?;
                self.pending_bytes += message.bytes();
                if let Pending::Messages(messages) = &mut self.pending {
                    messages.push(message);
                }
            }
            ImportRecordType::Read => {
                let ImportRead { conversation, direct, user, message, .. } = json::read(text)?;
                if !matches!(self.pending, Pending::Reads(_)) {
                    self.flush().await?;
                    self.pending = Pending::Reads(Vec::new());
                }
                let conversation = self.engine.imported(Target { conversation, direct })?;
                let user = self.engine.directory.require_user(&user)?.no;
                match (message, &mut self.pending) {
                    (Some(message), Pending::Reads(reads)) => reads.push((line, conversation, user, message)),
                    _ => self.note_unread(&conversation, user)?,
                }
            }
            ImportRecordType::Finish | ImportRecordType::Reopen => {
                let ImportState { conversation, direct, .. } = json::read(text)?;
                self.flush().await?;
                let conversation = self.engine.imported(Target { conversation, direct })?;
                if record == ImportRecordType::Finish {
                    self.finish(&conversation).await?;
                } else if !conversation.is_importing() {
                    self.set_importing(&conversation, true).await?;
                }
            }
        }
        let most = match self.pending {
            Pending::Users(_) | Pending::Members(..) => USERS_AT_ONCE,
            Pending::Messages(_) | Pending::Reads(_) => MESSAGES_AT_ONCE,
        };
        if self.pending.len() >= most || self.pending_bytes >= BYTES_AT_ONCE { self.flush().await } else { Ok(()) }
    }

    fn note_unread(&mut self, conversation: &Conversation, user: UserNo) -> Result<(), Refusal> {
        if conversation.is_importing() {
            if self.unread.len() >= UNREAD_MEMBERS_MAX {
                let most = UNREAD_MEMBERS_MAX as u64;
                return Err(Refusal::limit("members of importing conversations who have read nothing", most, most + 1));
            }
            self.unread.insert((conversation.no, user));
        }
        self.result.reads += 1;
        Ok(())
    }

    /// Commits what waits.
    async fn flush(&mut self) -> Result<(), LineRefusal> {
        self.pending_bytes = 0;
        match std::mem::replace(&mut self.pending, Pending::Users(Vec::new())) {
            Pending::Users(users) => self.store_users(users).await,
            Pending::Members(conversation, members) => self.store_members(conversation, members).await,
            Pending::Messages(messages) => self.store_messages(messages).await,
            Pending::Reads(reads) => self.store_reads(reads).await,
        }
    }

    async fn store_users(&mut self, users: Vec<(u64, UserPatch)>) -> Result<(), LineRefusal> {
        let Some((line, _)) = users.first() else { return Ok(()) };
        let (line, count) = (*line, users.len() as u64);
        let patches = users.into_iter().map(|(_, patch)| patch).collect();
        self.commit(None, Proposal::PutUsers(patches)).await.map_err(|refusal| at_line(line, refusal))?;
        self.result.users += count;
        Ok(())
    }

    async fn store_members(
        &mut self,
        conversation: Arc<Conversation>,
        members: Vec<(u64, UserNo, Role)>,
    ) -> Result<(), LineRefusal> {
        let Some((line, ..)) = members.first() else { return Ok(()) };
        let line = *line;
        if !conversation.is_importing() {
            // A repeated import finds its members. Those who have left since stay away.
            return Ok(());
        }
        let proposal = Proposal::ChangeMembers {
            conversation: conversation.no,
            add: members.into_iter().map(|(_, user, role)| (user, role)).collect(),
            remove: Vec::new(),
            heir: None,
            act: None,
            members_max: conversation_members_max(conversation.kind),
            notice: None,
        };
        let outcome = self.commit(Some(&conversation), proposal).await.map_err(|refusal| at_line(line, refusal))?;
        if let Outcome::MembersChanged { added, .. } = outcome {
            self.result.members += added.len() as u64;
        }
        Ok(())
    }

    async fn store_messages(&mut self, messages: Vec<PendingMessage>) -> Result<(), LineRefusal> {
        let messages = self.without_stored(messages)?;
        let imported_at = self.engine.clock.now_ms();
        let mut previous: FxHashMap<ConversationNo, String> = FxHashMap::default();
        let mut waiting = Vec::with_capacity(messages.len());
        let mut refused = Ok(());
        for message in messages {
            let (line, conversation, sent_at) = (message.line, message.conversation.clone(), message.import.sent_at);
            let id = message.entry.client_msg_id.clone().unwrap_or_default();
            let entry = message.into_entry(imported_at, previous.insert(conversation.no, id));
            let proposal = Proposal::Append { conversation: conversation.no, entry };
            match self.begin(Some(&conversation), proposal).await {
                Ok(answer) => waiting.push((line, sent_at, answer)),
                Err(refusal) => {
                    refused = Err(at_line(line, refusal));
                    break;
                }
            }
        }
        let mut failed = Ok(());
        for (line, sent_at, answer) in waiting {
            match outcome_of(answer).await {
                Ok(outcome) => {
                    let Some(appended) = outcome.appended() else { return Err(unexpected_outcome().into()) };
                    let counts = &mut self.result;
                    *(if appended.duplicate { &mut counts.duplicates } else { &mut counts.messages }) += 1;
                    counts.times_moved += u64::from(!appended.duplicate && appended.at != sent_at);
                }
                Err(refusal) => failed = failed.and(Err(at_line(line, refusal))),
            }
        }
        failed.and(refused)
    }

    /// The messages of conversations that are importing; of others all must be stored already.
    fn without_stored(&mut self, messages: Vec<PendingMessage>) -> Result<Vec<PendingMessage>, LineRefusal> {
        let (open, finished): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| message.conversation.is_importing());
        let asked: Vec<_> = finished.iter().map(PendingMessage::request).collect();
        let stored = self.engine.store.stored_seqs(&asked).map_err(store_refusal)?;
        match finished.iter().zip(stored).find(|(_, stored)| stored.is_none()) {
            None => {
                self.result.duplicates += finished.len() as u64;
                Ok(open)
            }
            Some((message, _)) => {
                let id = &message.conversation.id;
                let why =
                    format!("conversation {id:?} is not importing: a record `reopen` ahead of this message lets it in");
                Err(at_line(message.line, Refusal::new(ErrorCode::Conflict, why)))
            }
        }
    }

    async fn store_reads(&mut self, reads: Vec<(u64, Arc<Conversation>, UserNo, String)>) -> Result<(), LineRefusal> {
        let seqs = {
            let asked: Vec<_> =
                reads.iter().map(|(_, of, _, id)| (of.no, UserNo::NOBODY, id.as_str())).map(prefixed).collect();
            let asked: Vec<_> = asked.iter().map(|(of, nobody, id)| (*of, *nobody, id.as_str())).collect();
            self.engine.store.stored_seqs(&asked).map_err(store_refusal)?
        };
        let mut waiting = Vec::with_capacity(reads.len());
        let mut refused = Ok(());
        for ((line, conversation, user, message), seq) in reads.into_iter().zip(seqs) {
            let begun = match seq {
                None => Err(Refusal::not_found("message", &message)),
                Some(seq) => {
                    let proposal = Proposal::MarkRead { conversation: conversation.no, user, seq };
                    self.begin(Some(&conversation), proposal).await
                }
            };
            match begun {
                Ok(answer) => waiting.push((line, answer)),
                Err(refusal) => {
                    refused = Err(at_line(line, refusal));
                    break;
                }
            }
        }
        let mut failed = Ok(());
        for (line, answer) in waiting {
            match outcome_of(answer).await {
                Ok(_) => self.result.reads += 1,
                Err(refusal) => failed = failed.and(Err(at_line(line, refusal))),
            }
        }
        failed.and(refused)
    }

    async fn conversation(&mut self, record: ImportConversation) -> Result<(), Refusal> {
        let new = self.engine.imported_conversation(record)?;
        let new = NewConversation { settings: ConversationSettings { importing: Some(true), ..new.settings }, ..new };
        match self.commit(None, Proposal::CreateConversation(new)).await? {
            Outcome::Conversation { created, .. } => {
                self.result.conversations += u64::from(created);
                Ok(())
            }
            _ => Err(unexpected_outcome()),
        }
    }

    /// Sets the marks of members of whom no record does, and lets members send.
    async fn finish(&mut self, conversation: &Arc<Conversation>) -> Result<(), Refusal> {
        if !conversation.is_importing() {
            return Ok(());
        }
        let store = self.engine.store.clone();
        let last_seq = store.head(conversation.no).map_err(store_refusal)?.last_seq;
        let mut after = None;
        loop {
            let page = store.members(conversation.no, after, MEMBERS_AT_ONCE).map_err(store_refusal)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            let mut waiting = Vec::new();
            for (user, membership) in &page {
                if membership.read_seq == 0 && !self.unread.contains(&(conversation.no, *user)) {
                    let mark = Proposal::MarkRead { conversation: conversation.no, user: *user, seq: last_seq };
                    waiting.push(self.begin(Some(conversation), mark).await?);
                }
            }
            for answer in waiting {
                outcome_of(answer).await?;
            }
        }
        self.unread.retain(|(of, _)| *of != conversation.no);
        self.set_importing(conversation, false).await?;
        self.result.finished += 1;
        Ok(())
    }

    async fn set_importing(&self, conversation: &Arc<Conversation>, importing: bool) -> Result<(), Refusal> {
        let notice = (!importing).then(|| self.engine.finish_notice(conversation)).transpose()?;
        let proposal = Proposal::UpdateConversation {
            conversation: conversation.no,
            name: None,
            avatar: None,
            attributes: None,
            settings: ConversationSettings { importing: Some(importing), ..ConversationSettings::default() },
            notice,
        };
        self.commit(Some(conversation), proposal).await.map(drop)
    }

    async fn commit(&self, conversation: Option<&Arc<Conversation>>, proposal: Proposal) -> Result<Outcome, Refusal> {
        outcome_of(self.begin(conversation, proposal).await?).await
    }

    /// Queues a proposal; while its queue is full, it waits.
    async fn begin(&self, conversation: Option<&Arc<Conversation>>, proposal: Proposal) -> Result<Answer, Refusal> {
        let mut attempt = 1;
        loop {
            match self.engine.committer.begin_import(conversation, proposal.clone()) {
                Err(refusal) if refusal.code == ErrorCode::QueueFull && attempt < ATTEMPTS_MAX => {
                    attempt += 1;
                    let wait_ms = refusal.retry_after_ms.unwrap_or(100);
                    tokio::time::sleep(std::time::Duration::from_millis(wait_ms)).await;
                }
                begun => return begun,
            }
        }
    }
}

fn prefixed((of, by, id): (ConversationNo, UserNo, &str)) -> (ConversationNo, UserNo, String) {
    (of, by, format!("{ID_PREFIX}{id}"))
}

async fn outcome_of(answer: Answer) -> Result<Outcome, Refusal> {
    match answer.await {
        Ok(Ok(Outcome::Rejected(rejection))) => Err(proposal_refusal(&rejection)),
        Ok(outcome) => outcome,
        Err(_) => Err(Refusal::new(ErrorCode::Internal, "the committer ended")),
    }
}

fn conversation_members_max(kind: ConversationKind) -> u64 {
    match kind {
        ConversationKind::Group | ConversationKind::Direct => GROUP_MEMBERS_MAX,
        ConversationKind::Official => u64::MAX,
    }
}

impl Engine {
    /// The entry that tells members that an import has been finished. It has the time of the newest message: what a later import brings
    /// may be from before it.
    fn finish_notice(&self, conversation: &Conversation) -> Result<NewEntry, Refusal> {
        let now_ms = self.clock.now_ms();
        let head = self.store.head(conversation.no).map_err(store_refusal)?;
        let mut notice = notice_entry(EntryKind::ConversationChange, &Actor::App, &json!({ "importing": false }));
        notice.details = self.desk_details(notice.kind, conversation, None);
        notice.details_mut().imported_at = Some(now_ms);
        let sent_at = if head.last_seq == 0 { now_ms } else { head.last_at };
        notice.request.import = Some(Box::new(ImportRequest { sent_at, previous: None, reactions: Vec::new() }));
        Ok(notice)
    }
}
