//! All that the server has of a person, for the person: files of JSON, a part at a time, so that an archive of any size is made while it
//! is read. What is looked at is the list that erasures are checked by, so that neither forgets a place. Which rows are the person's is
//! said where it is said for erasures, by [`fate_of_row`]; `rows` says what the person is told of each.

mod rows;

use super::erasure::places::PersonalPlace;
use crate::{
    Engine,
    entry_view::encode_entry,
    visibility::{HiddenMessages, View, is_by},
};
use rows::Search;
use rustc_hash::FxHashSet;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{self, number_in, preferences_key},
    erasure::{Fate, Person, erasure_key, fate_of_row},
    model::*,
    push_store::{DeviceNo, PushKey, PushRow, StoredDevice},
    refusals::store_refusal,
    store::*,
};
use tidings_popups::{PopupPlace, RowsOfUser};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::CONVERSATIONS_PER_USER_MAX,
};
use tokio::sync::OwnedSemaphorePermit;

/// Exports of persons that a node makes at a time.
pub const PERSONAL_EXPORTS_MAX: usize = 2;
const BUSY_RETRY_AFTER_MS: u64 = 5_000;
const ROWS_AT_ONCE: usize = 1_000;
const CONVERSATIONS_AT_ONCE: usize = 200;
const ENTRIES_AT_ONCE: usize = 500;
const PAGES_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The first file of an archive, and the last one.
const README: &str = "README.txt";
const INDEX: &str = "index.json";

/// A part of a file. Parts of a file follow each other.
#[derive(Debug)]
pub struct ExportPart {
    pub file: &'static str,
    pub bytes: Vec<u8>,
    /// Whether there are more parts, of this file or of others.
    pub has_more: bool,
}

/// Where the records of a file come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Profile,
    Memberships,
    OwnEntries,
    ReceivedEntries,
    Rows(ChatRowKind),
    Devices,
    Pushes,
    Popups(PopupPlace),
    Notifications(NotificationTable),
}

/// How far a source was read.
#[derive(Debug, Clone)]
enum Cursor {
    Start,
    Number(u64),
    Key(Vec<u8>),
    /// A conversation, by its place among those of the person, and a `seq` there.
    Conversation(usize, u64),
}

/// An export that is under way.
pub struct PersonalExport {
    user: Arc<User>,
    person: Person,
    at: u64,
    received: bool,
    sources: Vec<(&'static str, Source)>,
    /// The source that is read; the one behind the last is the index.
    source: usize,
    cursor: Cursor,
    has_begun: bool,
    /// The conversations that the person is in.
    states: Vec<ConversationState>,
    /// These, and those that the person was in.
    conversations: Vec<ConversationNo>,
    devices: Vec<StoredDevice>,
    counts: Vec<(&'static str, u64)>,
    page: Vec<u8>,
    _turn: OwnedSemaphorePermit,
}

impl Engine {
    /// An export of all that there is of a user; `received`: also others' messages, as far as the user may read them now. Blocks.
    ///
    /// # Errors
    /// `not_found`: also of a user who was erased; `conflict` of one who is being erased; `queue_full`: others are being made;
    /// `store_unavailable`.
    pub fn export_user(&self, id: &str, received: bool) -> Result<PersonalExport, Refusal> {
        let user = self.directory.require_user(id)?;
        if self.stored_erasure(&erasure_key(id))?.is_some_and(|(erasure, _)| erasure.is_running()) {
            let why = format!("user {id:?} is being erased: what is left is no whole answer");
            return Err(Refusal::new(ErrorCode::Conflict, why));
        }
        let turn = self.exporting.clone().try_acquire_owned();
        let busy = |_| {
            let why = format!(
                "{PERSONAL_EXPORTS_MAX} exports of persons are being read on this node: wait until one has ended"
            );
            Refusal::new(ErrorCode::QueueFull, why).retry_after(BUSY_RETRY_AFTER_MS)
        };
        let turn = turn.map_err(busy)?;
        let states = self.store.conversation_states(user.no, ConversationFilter::All, CONVERSATIONS_PER_USER_MAX);
        let states = states.map_err(store_refusal)?;
        let conversations = self.conversations_ever(&user, &states)?;
        let person = Person { no: user.no, id: user.id.clone(), alias: "\0".into() };
        let sources = sources(received);
        Ok(PersonalExport {
            user,
            person,
            at: self.clock.now_ms(),
            received,
            sources,
            source: 0,
            cursor: Cursor::Start,
            has_begun: false,
            states,
            conversations,
            devices: Vec::new(),
            counts: Vec::new(),
            page: Vec::new(),
            _turn: turn,
        })
    }

    /// The conversations that a user is in, or was: what was set for one, and that it was left, is kept by the user.
    fn conversations_ever(&self, user: &User, states: &[ConversationState]) -> Result<Vec<ConversationNo>, Refusal> {
        let mut found: FxHashSet<ConversationNo> = states.iter().map(|state| state.conversation).collect();
        let (mut from, to) =
            (preferences_key(user.no, ConversationNo(0)), preferences_key(user.no, ConversationNo(u64::MAX)));
        loop {
            let rows = self.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
            found.extend(rows.iter().filter_map(|(key, _)| number_in(key, 1)).map(ConversationNo));
            match rows.last() {
                Some((last, _)) if rows.len() == ROWS_AT_ONCE => from = [&last[..], &[0]].concat(),
                _ => break,
            }
        }
        let mut found: Vec<ConversationNo> = found.into_iter().collect();
        found.sort_unstable();
        Ok(found)
    }
}

/// What is read into which file, in the order of the archive. Every place is decided about.
fn sources(received: bool) -> Vec<(&'static str, Source)> {
    let mut sources = Vec::new();
    for place in PersonalPlace::ALL {
        match place {
            PersonalPlace::Profile => sources.push(("user.json", Source::Profile)),
            PersonalPlace::Memberships => sources.push(("conversations.ndjson", Source::Memberships)),
            PersonalPlace::Entries => {
                sources.push(("messages.ndjson", Source::OwnEntries));
                sources.extend(received.then_some(("received.ndjson", Source::ReceivedEntries)));
            }
            PersonalPlace::Rows => {
                let kinds = ChatRowKind::ALL.into_iter();
                sources.extend(kinds.filter_map(|kind| Some((rows::file_of(kind)?, Source::Rows(kind)))));
            }
            PersonalPlace::Devices => {
                sources.push(("devices.ndjson", Source::Devices));
                sources.push(("pushes.ndjson", Source::Pushes));
            }
            PersonalPlace::Popups => {
                sources.extend(PopupPlace::ALL.map(|place| ("popups.ndjson", Source::Popups(place))));
            }
            PersonalPlace::Notifications => {
                let tables = NotificationTable::ALL.map(|table| (rows::NAMED_IN, Source::Notifications(table)));
                sources.extend(tables);
            }
            // What it has is a copy of what is in the other places now, or was there until it was removed.
            PersonalPlace::Log => {}
        }
    }
    // The sources of a file follow each other, at the place of the first of them.
    let mut files: Vec<&str> = Vec::new();
    sources.iter().for_each(|(file, _)| {
        if !files.contains(file) {
            files.push(file);
        }
    });
    sources.sort_by_key(|(file, _)| files.iter().position(|known| known == file));
    sources
}

impl PersonalExport {
    /// The next part. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`: the archive is not whole.
    pub fn next(&mut self, engine: &Engine) -> Result<ExportPart, Refusal> {
        if !std::mem::replace(&mut self.has_begun, true) {
            let bytes = self.readme().into_bytes();
            return Ok(ExportPart { file: README, bytes, has_more: true });
        }
        let Some((file, source)) = self.sources.get(self.source).copied() else {
            return Ok(ExportPart { file: INDEX, bytes: self.index(), has_more: false });
        };
        match self.read(engine, file, source)? {
            Some(cursor) => self.cursor = cursor,
            None => {
                self.source += 1;
                self.cursor = Cursor::Start;
            }
        }
        Ok(ExportPart { file, bytes: std::mem::take(&mut self.page), has_more: true })
    }

    /// Reads a page of a source; answers where the next one is.
    fn read(&mut self, engine: &Engine, file: &'static str, source: Source) -> Result<Option<Cursor>, Refusal> {
        match source {
            Source::Profile => self.profile(engine, file).map(|()| None),
            Source::Memberships => self.memberships(engine, file),
            Source::OwnEntries => self.entries(engine, file, false),
            Source::ReceivedEntries => self.entries(engine, file, true),
            Source::Rows(kind) => self.rows(engine, file, kind),
            Source::Devices => self.devices(engine, file),
            Source::Pushes => {
                let from = if let Cursor::Number(from) = self.cursor { from } else { 0 };
                if self.devices.is_empty() {
                    return Ok(None);
                }
                let page = tidings_push::pushes_of_devices(&*engine.store, &self.devices, from);
                let (pushes, next) = page.map_err(store_refusal)?;
                pushes.iter().try_for_each(|push| self.write(file, push))?;
                Ok(next.map(Cursor::Number))
            }
            Source::Popups(place) => {
                let from = if let Cursor::Key(from) = &self.cursor { Some(from.clone()) } else { None };
                let page = RowsOfUser::read(&*engine.store, &self.user.id, place, from).map_err(store_refusal)?;
                let records = page.records(&*engine.store, &self.user.id, place).map_err(store_refusal)?;
                records.iter().try_for_each(|record| self.write(file, record))?;
                Ok(page.next.map(Cursor::Key))
            }
            Source::Notifications(table) => self.notifications(engine, file, table),
        }
    }

    fn write(&mut self, file: &'static str, record: &impl Serialize) -> Result<(), Refusal> {
        let written = serde_json::to_writer(&mut self.page, record);
        written.map_err(|error| Refusal::new(ErrorCode::Internal, format!("a record cannot be written: {error}")))?;
        self.count(file);
        Ok(())
    }

    /// Ends a record.
    fn count(&mut self, file: &'static str) {
        self.page.push(b'\n');
        match self.counts.last_mut() {
            Some((last, count)) if *last == file => *count += 1,
            _ => self.counts.push((file, 1)),
        }
    }

    fn profile(&mut self, engine: &Engine, file: &'static str) -> Result<(), Refusal> {
        let row = engine.store.row(RowSpace::Chat, &chat_rows::settings_key(self.user.no)).map_err(store_refusal)?;
        let settings = chat_rows::UserSettings::decode(row.as_deref()).map_err(store_refusal)?;
        let last_seen = engine.store.last_seen(self.user.no).map_err(store_refusal)?;
        let record = json!({
            "profile": engine.profile_of(&self.user, true),
            "sends_receipts": !settings.receipts_off,
            "notification_preferences": settings.notifications,
            "tokens_refused_before": self.user.revoked_at,
            "last_seen": last_seen,
            "blocks": settings.blocks,
            "open_reports": settings.reports,
        });
        self.write(file, &record)
    }

    fn memberships(&mut self, engine: &Engine, file: &'static str) -> Result<Option<Cursor>, Refusal> {
        let from = if let Cursor::Number(from) = self.cursor { from as usize } else { 0 };
        let states: Vec<_> = self.states.iter().skip(from).take(CONVERSATIONS_AT_ONCE).cloned().collect();
        let numbers: Vec<_> = states.iter().map(|state| state.conversation).collect();
        for (state, details) in states.iter().zip(engine.directory.conversations(&numbers).map_err(store_refusal)?) {
            let Some(details) = details else { continue };
            let Membership { role, joined_at, joined_seq, read_seq, mute, restricted: _ } = state.membership;
            let is_direct = details.kind == ConversationKind::Direct;
            let record = json!({
                "conversation": details.id, "kind": details.kind, "name": details.name,
                "role": (!is_direct).then_some(role), "joined_at": joined_at, "joined_seq": joined_seq,
                "read_seq": read_seq, "last_seq": state.head.last_seq,
                "muted": mute != MuteState::Off, "muted_until": if let MuteState::Until(at) = mute { Some(at) } else { None },
            });
            self.write(file, &record)?;
        }
        let next = from + states.len();
        Ok((next < self.states.len()).then_some(Cursor::Number(next as u64)))
    }

    /// Entries of the person, or those of others that the person may read.
    fn entries(&mut self, engine: &Engine, file: &'static str, received: bool) -> Result<Option<Cursor>, Refusal> {
        let (first, seq) = if let Cursor::Conversation(first, seq) = self.cursor { (first, seq) } else { (0, 1) };
        let numbers: Vec<_> = self.conversations.iter().skip(first).take(CONVERSATIONS_AT_ONCE).copied().collect();
        let heads = engine.store.heads(&numbers).map_err(store_refusal)?;
        let request = |(place, (conversation, head)): (usize, (&ConversationNo, &Head))| PageRequest {
            conversation: *conversation,
            from_seq: head.first_seq.max(if place == 0 { seq } else { 1 }),
            to_seq: head.last_seq,
            limit: ENTRIES_AT_ONCE,
        };
        let requests: Vec<_> = numbers.iter().zip(&heads).enumerate().map(request).collect();
        let asked: Vec<_> = requests.iter().copied().filter(|page| page.from_seq <= page.to_seq).collect();
        let mut pages = engine.store.pages(&asked, PAGES_BYTES_MAX).map_err(store_refusal)?.into_iter();
        let details = engine.directory.conversations(&numbers).map_err(store_refusal)?;
        for (place, (request, details)) in requests.iter().zip(details).enumerate() {
            if request.from_seq > request.to_seq {
                continue;
            }
            let mut page = pages.next().unwrap_or_default();
            page.iter_mut().for_each(|entry| engine.streams.overlay(request.conversation, entry));
            let Some((read, details)) = page.last().map(|last| last.seq).zip(details) else { continue };
            if received {
                self.received(engine, file, &details, &page)?;
            } else {
                page.iter().try_for_each(|entry| self.own_entry(file, &details, entry))?;
            }
            if read < request.to_seq {
                return Ok(Some(Cursor::Conversation(first + place, read + 1)));
            }
        }
        let next = first + numbers.len();
        Ok((next < self.conversations.len()).then_some(Cursor::Conversation(next, 1)))
    }

    /// What the person has written, also what somebody else has edited since.
    fn own_entry(&mut self, file: &'static str, of: &Conversation, entry: &StoredEntry) -> Result<(), Refusal> {
        let is_own = |sender: &Sender| sender.no == self.user.no;
        let replaced = entry.content.edit_details().and_then(|edit| Some((edit.target, edit.replaced.as_ref()?)));
        if let Some((target, replaced)) = replaced.filter(|(_, replaced)| replaced.by.as_ref().is_some_and(is_own)) {
            let body: Option<Value> = serde_json::from_str(&replaced.body).ok();
            let record = json!({
                "conversation": of.id, "kind": "former_version", "target": target, "at": replaced.at,
                "type": replaced.content_type, "body": body,
            });
            self.write(file, &record)?;
        }
        if !is_by(self.user.no, &entry.content) {
            return Ok(());
        }
        let view =
            View { first_seq: 1, hides_agents: false, hides_followers: true, hidden: HiddenMessages::Of(self.user.no) };
        if let Some(shown) = view.show(entry) {
            encode_entry(&mut self.page, &of.id, &shown);
            self.count(file);
        }
        Ok(())
    }

    fn received(
        &mut self,
        engine: &Engine,
        file: &'static str,
        of: &Conversation,
        page: &[StoredEntry],
    ) -> Result<(), Refusal> {
        let view = match engine.view(&Actor::User(self.user.clone()), of) {
            Ok(view) => view,
            Err(refusal) if refusal.code == ErrorCode::NotAMember => return Ok(()),
            Err(refusal) => return Err(refusal),
        };
        let reader = self.user.no;
        for entry in page.iter().filter(|entry| !is_by(reader, &entry.content)) {
            if let Some(shown) = view.show(entry) {
                encode_entry(&mut self.page, &of.id, &shown);
                self.count(file);
            }
        }
        Ok(())
    }

    fn rows(&mut self, engine: &Engine, file: &'static str, kind: ChatRowKind) -> Result<Option<Cursor>, Refusal> {
        let ((first, to), behind) = match rows::search(kind, &self.person) {
            Search::Range(range) => (range, None),
            Search::InConversations => {
                let place = match &self.cursor {
                    Cursor::Start => 0,
                    Cursor::Number(place) => *place as usize,
                    Cursor::Conversation(place, _) => *place,
                    Cursor::Key(key) => {
                        let no = ConversationNo(number_in(key, 0).unwrap_or(u64::MAX));
                        self.conversations.partition_point(|conversation| *conversation < no)
                    }
                };
                let ahead = self.conversations.iter().skip(place).take(CONVERSATIONS_AT_ONCE);
                let ranges: Vec<_> =
                    ahead.map(|conversation| rows::range_of_conversation(kind, *conversation)).collect();
                let is_behind = matches!(self.cursor, Cursor::Key(_));
                // Most conversations have none.
                let firsts = engine.store.first_keys(RowSpace::Chat, &ranges).map_err(store_refusal)?;
                let Some(at) = firsts.iter().position(Option::is_some).map(|at| if is_behind { 0 } else { at }) else {
                    let next = place + ranges.len();
                    return Ok((next < self.conversations.len()).then_some(Cursor::Number(next as u64)));
                };
                let next = place + at + 1;
                let next = (next < self.conversations.len()).then_some(Cursor::Number(next as u64));
                (ranges[at].clone(), next)
            }
        };
        let from = if let Cursor::Key(key) = &self.cursor { key.clone() } else { first };
        let found = engine.store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE).map_err(store_refusal)?;
        for (key, row) in &found {
            let record = match fate_of_row(&self.person, key, row) {
                Fate::Keep => None,
                Fate::Remove => engine.own_record(&self.person, key, row)?,
                Fate::Rewrite(_) => rows::named_in(&self.person, key, row),
            };
            if let Some(record) = record {
                self.write(file, &record)?;
            }
        }
        let last = found.last().filter(|_| found.len() == ROWS_AT_ONCE);
        Ok(last.map_or(behind, |(last, _)| Some(Cursor::Key([&last[..], &[0]].concat()))))
    }

    fn devices(&mut self, engine: &Engine, file: &'static str) -> Result<Option<Cursor>, Refusal> {
        let from = if let Cursor::Number(from) = self.cursor { from as u32 } else { 0 };
        let (first, last) = (PushKey::Device(DeviceNo(from)), PushKey::Device(DeviceNo(u32::MAX)));
        let rows = engine.store.push_rows(&first, &last, ROWS_AT_ONCE).map_err(store_refusal)?;
        let count = rows.len();
        let mut next = None;
        for row in rows {
            let PushRow::Device(device) = row else { continue };
            next = device.no.0.checked_add(1);
            if device.user != self.user.no.0 {
                continue;
            }
            let bound = engine.store.push_row(&PushKey::LastBound(device.no)).map_err(store_refusal)?;
            let last_bound =
                bound.and_then(|row| if let PushRow::LastBound { at, .. } = row { Some(at) } else { None });
            let record = json!({
                "device_id": device.device_id, "kind": device.device_kind, "app_version": device.app_version,
                "tags": device.tags, "first_bound": device.first_bound, "last_bound": last_bound,
            });
            self.write(file, &record)?;
            self.devices.push(device);
        }
        Ok(next.filter(|_| count == ROWS_AT_ONCE).map(|next| Cursor::Number(u64::from(next))))
    }

    fn notifications(
        &mut self,
        engine: &Engine,
        file: &'static str,
        table: NotificationTable,
    ) -> Result<Option<Cursor>, Refusal> {
        let after = if let Cursor::Number(after) = self.cursor { Some(after) } else { None };
        let rows = engine.store.stored_notifications(table, after, ROWS_AT_ONCE).map_err(store_refusal)?;
        for row in &rows {
            let event: Option<Value> = serde_json::from_str(&row.event).ok();
            let fields = event.map(|event| rows::fields_with(&self.person, &event)).unwrap_or_default();
            if !fields.is_empty() {
                let record = json!({ "kind": format!("{table:?}"), "at": row.failed_at, "fields": fields });
                self.write(file, &record)?;
            }
        }
        let last = rows.last().filter(|_| rows.len() == ROWS_AT_ONCE);
        Ok(last.map(|last| Cursor::Number(last.key.id)))
    }

    fn index(&self) -> Vec<u8> {
        let files: Vec<_> = self
            .counts
            .iter()
            .map(|(file, records)| json!({ "file": file, "records": records, "what": rows::what_is_in(file) }))
            .collect();
        let index = json!({
            "user": self.user.id, "made_at": self.at, "received": self.received, "format": 1, "files": files,
        });
        let mut bytes = serde_json::to_vec_pretty(&index).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    fn readme(&self) -> String {
        let mut text = format!(
            "What this server has of user {:?}, made at {} ms since 1970 UTC.\n\n\
             Files whose names end with .ndjson have one record in each line, as JSON. Times are in milliseconds since 1970 UTC.\n\
             Conversations are named by their ids, users by theirs; seq is the number of an entry in its conversation.\n\
             A file that would be empty is left out. {INDEX} is the last file: it says how many records each file has.\n\n",
            self.user.id, self.at,
        );
        let mut last = "";
        for (file, _) in &self.sources {
            if *file != last {
                text.push_str(&format!("{file:<28}{}\n", rows::what_is_in(file)));
                last = file;
            }
        }
        text.push_str(
            "\nNot in it: what other people wrote (unless received.ndjson is there, with what the user may read now), the secret\n\
             tokens by which devices are reached, what agents wrote in the name of an official account, copies in logs and backups,\n\
             and counts in which nobody is named.\n",
        );
        text
    }
}
