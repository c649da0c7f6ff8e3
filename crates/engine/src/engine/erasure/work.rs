//! The leader's work on erasures: one bounded part at a time, each of which may be done again after a crash.

use crate::{Engine, engine::conversations::notice_entry};
use serde_json::json;
use std::sync::Arc;
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{decode, number_in, recall_key},
    desks::{DeskPatch, agent_of},
    erasure::*,
    function::Function,
    joining::JoinRequest,
    model::*,
    push_tokens,
    refusals::store_refusal,
    store::*,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::ErasedMessages,
    limits::GROUP_MEMBERS_MAX,
};

/// Proposals that are submitted before the first is waited for: few, so that senders find room in the queues.
const PROPOSALS_AT_ONCE: usize = 32;
/// Rows that are read at once.
pub(super) const ROWS_AT_ONCE: usize = 1_000;
/// Rows and entries in one step: a commit holds up others for as long as it takes.
pub(super) const STEP_MAX: usize = 200;
/// Conversations of the person in one part of the work, each of which begins with a read of their list.
const OWN_CONVERSATIONS_MAX: usize = 5_000;
/// Conversations that are read at once.
const CONVERSATIONS_AT_ONCE: u64 = 200;
/// Entries of a conversation that are read at once.
pub(super) const ENTRIES_AT_ONCE: usize = 500;
const PAGES_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How a part of a stage ended.
pub(super) enum Part {
    /// There is more, from here on.
    More(String),
    /// The stage is done.
    Done,
    /// The conversation with this id is under a legal hold.
    Held(String),
}

/// Removes a person, or a conversation, from what the engine knows nothing of; answers how much it changed.
pub type RedactOthers<'a> = &'a (dyn Fn(&Erased) -> Result<u64, Refusal> + 'a);

impl Engine {
    /// Does a part of the erasure that is next. Answers whether there is more to do at once. Only the leader works. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`, `queue_full` and others: a later call goes on.
    pub fn work_on_erasures(&self, redact_others: RedactOthers<'_>) -> Result<bool, Refusal> {
        let Some(term) = self.leads.term(Function::Popups) else { return Ok(false) };
        self.forget_ids(term)?;
        let (from, to) = ErasurePlace::Running.range();
        let running = self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
        // One that is held, or fails, lets the others go on.
        let mut outcome = Ok(false);
        for (key, row) in running {
            let erasure = StoredErasure::decode(&row).map_err(store_refusal)?;
            match self.work_on_erasure(term, key, erasure, redact_others) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(refusal) => outcome = outcome.and(Err(refusal)),
            }
        }
        outcome
    }

    fn work_on_erasure(
        &self,
        term: Term,
        key: Vec<u8>,
        before: StoredErasure,
        redact_others: RedactOthers<'_>,
    ) -> Result<bool, Refusal> {
        let mut erasure = before.clone();
        let part = self.erase_part(&mut erasure, &key, redact_others);
        let may_go_on = matches!(part, Ok(Part::More(_) | Part::Done));
        match &part {
            Ok(Part::More(cursor)) => {
                (erasure.held, erasure.last_error) = (None, None);
                erasure.cursor.clone_from(cursor);
            }
            Ok(Part::Done) => {
                (erasure.held, erasure.last_error) = (None, None);
                erasure.cursor.clear();
                erasure.stage = stage_after(&erasure);
                if erasure.stage == ErasureStage::Done {
                    erasure.ended_at = Some(self.clock.now_ms());
                }
            }
            Ok(Part::Held(conversation)) => erasure.held = Some(conversation.clone()),
            Err(refusal) => erasure.last_error = Some(refusal.code.as_str().into()),
        }
        if erasure != before {
            self.put_erasure(term, &key, &erasure)?;
        }
        part.map(|_| may_go_on)
    }

    /// Stores how far a job has come. When it is done, or has forgotten the id, the bytes of former rows are purged like those of recalled
    /// messages.
    fn put_erasure(&self, term: Term, key: &[u8], erasure: &StoredErasure) -> Result<(), Refusal> {
        let place = erasure.place();
        let mut changes: Vec<RowChange> = ErasurePlace::ALL
            .into_iter()
            .filter(|other| *other as u8 != place as u8)
            .map(|other| RowChange { key: erasure_key_at(key, other), value: None })
            .collect();
        changes.push(RowChange { key: erasure_key_at(key, place), value: Some(erasure.encode()) });
        if place != ErasurePlace::Running {
            let of = erasure.conversation.unwrap_or(ConversationNo(0));
            let note = recall_key(self.clock.now_ms(), of, erasure.no.0);
            changes.push(RowChange { key: note, value: Some(Vec::new()) });
        }
        self.store.write_rows(term, RowSpace::Chat, changes).map_err(store_refusal)
    }

    /// Forgets the ids of persons whose event the feed keeps no more.
    fn forget_ids(&self, term: Term) -> Result<(), Refusal> {
        let (from, to) = ErasurePlace::Done.range();
        let keep_ms = u64::try_from(self.config.events_keep.as_millis()).unwrap_or(u64::MAX);
        for (key, row) in self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)? {
            let erasure = StoredErasure::decode(&row).map_err(store_refusal)?;
            if erasure.ended_at.unwrap_or(0).saturating_add(keep_ms) <= self.clock.now_ms() {
                self.put_erasure(term, &key, &StoredErasure { id: None, ..erasure })?;
            }
        }
        Ok(())
    }

    fn erase_part(
        &self,
        erasure: &mut StoredErasure,
        key: &[u8],
        redact_others: RedactOthers<'_>,
    ) -> Result<Part, Refusal> {
        if erasure.conversation.is_some() {
            return self.delete_part(erasure, key, redact_others);
        }
        let Some(person) = erasure.person() else { return Ok(Part::Done) };
        match erasure.stage {
            ErasureStage::Leaving => self.leave_everything(&person),
            ErasureStage::Rows => self.erase_rows(erasure, &person),
            ErasureStage::Profile => {
                erasure.changed += redact_others(&Erased::Person(person.clone()))?;
                self.step(EraseStep::Profile { person, key: key.to_vec() })?;
                Ok(Part::Done)
            }
            ErasureStage::Renaming => self.rename_direct(&person, &erasure.cursor.clone()),
            ErasureStage::Entries => self.erase_entries(erasure, &person),
            ErasureStage::LastRows => {
                let part = self.erase_rows(erasure, &person)?;
                if matches!(part, Part::Done) {
                    erasure.changed += redact_others(&Erased::Person(person.clone()))?;
                }
                Ok(part)
            }
            ErasureStage::Done => Ok(Part::Done),
        }
    }

    pub(super) fn step(&self, step: EraseStep) -> Result<(), Refusal> {
        self.committer.propose_blocking(Proposal::Erase(Box::new(step))).map(drop)
    }

    /// Commits proposals of the server, some at a time. Answers how many were not rejected.
    pub(super) fn commit_some(&self, proposals: Vec<(Option<Arc<Conversation>>, Proposal)>) -> Result<u64, Refusal> {
        let mut done = 0;
        let mut proposals = proposals.into_iter().peekable();
        while proposals.peek().is_some() {
            let begun: Result<Vec<_>, Refusal> = proposals
                .by_ref()
                .take(PROPOSALS_AT_ONCE)
                .map(|(conversation, proposal)| self.committer.begin(conversation.as_ref(), proposal))
                .collect();
            for outcome in begun? {
                done += u64::from(!matches!(outcome.wait()?, Outcome::Rejected(_)));
            }
        }
        Ok(done)
    }

    /// Devices, what popups know, agents' desks, waiting requests, and groups: each by the way in which it is left otherwise.
    fn leave_everything(&self, person: &Person) -> Result<Part, Refusal> {
        let Some(user) = self.directory.user(person.no).map_err(store_refusal)? else { return Ok(Part::Done) };
        self.remove_devices(&person.id)?;
        let (from, to) = push_tokens::devices_of(person.no);
        for (key, _) in self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)? {
            if let Some((_, device)) = push_tokens::device_in(&key) {
                self.set_push_token(&user, device, None)?;
            }
        }
        self.popups.forget_user(&person.id)?;
        self.leave_desks(person)?;
        self.withdraw_requests_of(&|_, user| user == person.no)?;
        let groups = self.store.conversations_of(person.no, false, OWN_CONVERSATIONS_MAX).map_err(store_refusal)?;
        let mut proposals = Vec::with_capacity(groups.len());
        for group in &groups {
            let Some(conversation) = self.directory.conversation(group.conversation).map_err(store_refusal)? else {
                continue;
            };
            let heir = self.heir_without(&Actor::App, &conversation, &[], &[person.no])?;
            let owner = heir.as_ref().filter(|(_, role)| *role < Role::Owner).map(|(heir, _)| &heir.id);
            let mut notice = json!({
                "added": [], "added_count": 0, "removed": [person.id], "removed_count": 1, "changed": [],
                "changed_count": 0, "role": null, "by": null,
            });
            if let Some(owner) = owner {
                notice["owner"] = json!(owner);
            }
            let is_group = conversation.kind == ConversationKind::Group;
            let proposal = Proposal::ChangeMembers {
                conversation: conversation.no,
                add: Vec::new(),
                remove: vec![person.no],
                heir: heir.map(|(heir, _)| heir.no),
                act: None,
                members_max: GROUP_MEMBERS_MAX,
                notice: is_group.then(|| notice_entry(EntryKind::MemberChange, &Actor::App, &notice)),
            };
            proposals.push((Some(conversation), proposal));
        }
        let left = self.commit_some(proposals)?;
        if groups.is_empty() {
            return Ok(Part::Done);
        }
        if left == 0 {
            // The heirs have left meanwhile: others are looked for.
            return Err(Refusal::new(ErrorCode::QueueFull, "no group could be left").retry_after(1_000));
        }
        Ok(Part::More(String::new()))
    }

    fn leave_desks(&self, person: &Person) -> Result<(), Refusal> {
        let mut proposals = Vec::new();
        self.each_row(ChatRowKind::Agent.all(), |key, _| {
            let account = number_in(key, 0).map(ConversationNo).filter(|_| agent_of(key) == Some(person.no));
            let Some(account) = account else { return Ok(()) };
            let Some(conversation) = self.directory.conversation(account).map_err(store_refusal)? else {
                return Ok(());
            };
            let id = conversation.id.clone();
            let patch = DeskPatch { remove: vec![person.no], ..DeskPatch::default() };
            let proposal = Proposal::SetDesk { account, id, patch, agents_max: u32::MAX, adopts_user: false };
            proposals.push((Some(conversation), proposal));
            Ok(())
        })?;
        self.commit_some(proposals).map(drop)
    }

    /// Withdraws requests to join that wait.
    pub(super) fn withdraw_requests_of(&self, is_one: &dyn Fn(ConversationNo, UserNo) -> bool) -> Result<(), Refusal> {
        let mut proposals = Vec::new();
        let range = (ChatRowKind::JoinRequest.key(&[0]), ChatRowKind::JoinRequest.key(&[0, u64::MAX, u64::MAX]));
        self.each_row(range, |key, row| {
            let (Some(conversation), Some(user)) = (number_in(key, 1), number_in(key, 2)) else { return Ok(()) };
            let (conversation, user) = (ConversationNo(conversation), UserNo(user));
            let request: Option<JoinRequest> = decode(Some(row)).map_err(store_refusal)?;
            let waits = request.is_some_and(|request| request.refused.is_none());
            if waits && is_one(conversation, user) {
                let proposal = Proposal::ChangeMembers {
                    conversation,
                    add: Vec::new(),
                    remove: Vec::new(),
                    heir: None,
                    act: Some(Box::new(MemberAct::Decline { user, refused: None })),
                    members_max: u64::MAX,
                    notice: None,
                };
                proposals.push((None, proposal));
            }
            Ok(())
        })?;
        self.commit_some(proposals).map(drop)
    }

    pub(super) fn each_row(
        &self,
        (mut from, to): (Vec<u8>, Vec<u8>),
        mut look: impl FnMut(&[u8], &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        loop {
            let rows = self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
            rows.iter().try_for_each(|(key, row)| look(key, row))?;
            match rows.last() {
                Some((last, _)) if rows.len() == ROWS_AT_ONCE => from = [&last[..], &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }

    /// A part of all rows: reactions are taken back, and other rows go or change.
    fn erase_rows(&self, erasure: &mut StoredErasure, person: &Person) -> Result<Part, Refusal> {
        let from = bytes_of(&erasure.cursor);
        let rows = self.store.rows(RowSpace::Chat, &from, &[0xFF], ROWS_AT_ONCE).map_err(store_refusal)?;
        let (mut keys, mut reactions) = (Vec::new(), Vec::new());
        for (key, row) in &rows {
            if fate_of_row(person, key, row) == Fate::Keep {
                continue;
            }
            if ChatRowKind::Reactions.has(key) {
                self.add_reactions(person, key, row, &mut reactions)?;
            }
            keys.push(key.clone());
        }
        erasure.changed += self.commit_some(reactions)?;
        for some in keys.chunks(STEP_MAX) {
            erasure.changed += some.len() as u64;
            self.step(EraseStep::Rows { person: person.clone(), keys: some.to_vec() })?;
        }
        Ok(match rows.last() {
            Some((last, _)) if rows.len() == ROWS_AT_ONCE => Part::More(digits_of(&[&last[..], &[0]].concat())),
            _ => Part::Done,
        })
    }

    /// The proposals that take back a user's reactions to a message.
    fn add_reactions(
        &self,
        person: &Person,
        key: &[u8],
        row: &[u8],
        proposals: &mut Vec<(Option<Arc<Conversation>>, Proposal)>,
    ) -> Result<(), Refusal> {
        let (Some(conversation), Some(target)) = (number_in(key, 0).map(ConversationNo), number_in(key, 1)) else {
            return Ok(());
        };
        let given: Vec<String> = decode(Some(row)).map_err(store_refusal)?;
        let details = self.directory.conversation(conversation).map_err(store_refusal)?;
        proposals.extend(given.into_iter().map(|key| {
            let user = Sender { no: person.no, id: person.id.clone() };
            let (add, keys_max, interval_ms) = (false, usize::MAX, 0);
            (details.clone(), Proposal::React { conversation, target, user, key, add, keys_max, interval_ms })
        }));
        Ok(())
    }

    /// Direct conversations have the ids of both users in theirs.
    fn rename_direct(&self, person: &Person, cursor: &str) -> Result<Part, Refusal> {
        let after: u64 = cursor.parse().unwrap_or(0);
        let all = self.store.conversations_of(person.no, true, usize::MAX >> 1).map_err(store_refusal)?;
        let direct = all.into_iter().filter(|one| one.kind == ConversationKind::Direct).map(|one| one.conversation);
        let mut direct: Vec<ConversationNo> = direct.filter(|conversation| conversation.0 > after).collect();
        direct.sort_unstable();
        let is_last = direct.len() <= OWN_CONVERSATIONS_MAX;
        direct.truncate(OWN_CONVERSATIONS_MAX);
        for some in direct.chunks(STEP_MAX) {
            let mut proposals = Vec::new();
            for (conversation, details) in some.iter().zip(self.store.conversations(some).map_err(store_refusal)?) {
                let Some(mut id) = details.and_then(|details| renamed_direct(person, &details.id)) else { continue };
                if self.store.conversation_no(&id).map_err(store_refusal)?.is_some_and(|taken| taken != *conversation) {
                    id = format!("{id}~{}", conversation.0);
                }
                let step = EraseStep::Rename { conversation: *conversation, id };
                proposals.push((None, Proposal::Erase(Box::new(step))));
            }
            self.commit_some(proposals)?;
        }
        Ok(match direct.last() {
            Some(last) if !is_last => Part::More(last.0.to_string()),
            _ => Part::Done,
        })
    }

    /// A part of all entries. The cursor is a conversation's number, and a `seq` there.
    fn erase_entries(&self, erasure: &mut StoredErasure, person: &Person) -> Result<Part, Refusal> {
        let (first, seq) = erasure.cursor.split_once('.').unwrap_or(("1", "0"));
        let (first, seq): (u64, u64) = (first.parse().unwrap_or(1), seq.parse().unwrap_or(0));
        let last = self.store.last_numbers().map_err(store_refusal)?.conversations;
        if first > last {
            return Ok(Part::Done);
        }
        let end = last.min(first + CONVERSATIONS_AT_ONCE - 1);
        let numbers: Vec<ConversationNo> = (first..=end).map(ConversationNo).collect();
        let heads = self.store.heads(&numbers).map_err(store_refusal)?;
        let request = |(conversation, head): (&ConversationNo, &Head)| PageRequest {
            conversation: *conversation,
            from_seq: head.first_seq.max(if conversation.0 == first { seq } else { 0 }),
            to_seq: head.last_seq,
            limit: ENTRIES_AT_ONCE,
        };
        let requests: Vec<PageRequest> =
            numbers.iter().zip(&heads).map(request).filter(|page| page.from_seq <= page.to_seq).collect();
        let pages = self.store.pages(&requests, PAGES_BYTES_MAX).map_err(store_refusal)?;
        for (request, page) in requests.iter().zip(pages) {
            let Some(read) = page.last().map(|entry| entry.seq) else { continue };
            if let Some(held) = self.erase_page(erasure, person, request.conversation, page)? {
                return Ok(Part::Held(held));
            }
            if read < request.to_seq {
                return Ok(Part::More(format!("{}.{}", request.conversation.0, read + 1)));
            }
        }
        Ok(Part::More(format!("{}.0", end + 1)))
    }

    /// Removes the person from entries of a conversation; answers its id if it is under a legal hold.
    fn erase_page(
        &self,
        erasure: &mut StoredErasure,
        person: &Person,
        conversation: ConversationNo,
        page: Vec<StoredEntry>,
    ) -> Result<Option<String>, Refusal> {
        let (mut recalls, mut seqs) = (Vec::new(), Vec::new());
        for mut entry in page {
            let removes = erasure.messages == ErasedMessages::Remove;
            if removes && is_left_message(person, &entry) {
                let change = Proposal::ChangeMessage {
                    conversation,
                    target: entry.seq,
                    change: MessageChange::Recall,
                    entry: NewEntry {
                        kind: EntryKind::Recall,
                        content_type: entry.content.content_type.clone(),
                        client_msg_id: None,
                        sender: None,
                        body: NO_BODY.into(),
                        mentions: Vec::new(),
                        silent: true,
                        skip_push: true,
                        details: None,
                        request: EntryRequest::default(),
                    },
                };
                recalls.push(change);
            }
            if redact_entry(person, &mut entry.content) {
                seqs.push(entry.seq);
            }
        }
        if recalls.is_empty() && seqs.is_empty() {
            return Ok(None);
        }
        let details = self.directory.conversation(conversation).map_err(store_refusal)?;
        if self.store.row(RowSpace::Chat, &legal_hold_key(conversation)).map_err(store_refusal)?.is_some() {
            return Ok(details.map(|details| details.id.clone()));
        }
        erasure.recalled += recalls.len() as u64;
        self.commit_some(recalls.into_iter().map(|recall| (details.clone(), recall)).collect())?;
        for some in seqs.chunks(STEP_MAX) {
            erasure.changed += some.len() as u64;
            self.step(EraseStep::Entries { person: person.clone(), conversation, seqs: some.to_vec() })?;
        }
        Ok(None)
    }
}

fn stage_after(erasure: &StoredErasure) -> ErasureStage {
    let is_of_conversation = erasure.conversation.is_some();
    match erasure.stage {
        ErasureStage::Leaving if is_of_conversation => ErasureStage::Entries,
        ErasureStage::Entries if is_of_conversation => ErasureStage::Rows,
        ErasureStage::Rows if is_of_conversation => ErasureStage::Renaming,
        ErasureStage::Renaming if is_of_conversation => ErasureStage::Profile,
        ErasureStage::Profile if is_of_conversation => ErasureStage::LastRows,
        ErasureStage::Leaving => ErasureStage::Rows,
        ErasureStage::Rows => ErasureStage::Profile,
        ErasureStage::Profile => ErasureStage::Renaming,
        ErasureStage::Renaming => ErasureStage::Entries,
        ErasureStage::Entries => ErasureStage::LastRows,
        ErasureStage::LastRows | ErasureStage::Done => ErasureStage::Done,
    }
}

/// Whether it is a message of the person with its body.
pub(super) fn is_left_message(person: &Person, entry: &StoredEntry) -> bool {
    let is_theirs = entry.content.sender.as_ref().is_some_and(|sender| sender.no == person.no);
    is_theirs && entry.content.kind == EntryKind::Message && !entry.content.is_recalled()
}

pub(super) fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn bytes_of(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs.filter_map(|two| u8::from_str_radix(str::from_utf8(two).ok()?, 16).ok()).collect()
}
