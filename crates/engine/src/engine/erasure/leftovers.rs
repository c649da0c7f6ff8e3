//! What is left of a person who was erased: every row is read, and looked at by the same functions that the erasure goes by. It needs
//! no server, only the store.

use super::{places::PersonalPlace, work::is_left_message};
use serde_json::Value;
use std::fmt;
use tidings_domain::{
    chat_row_kind::ChatRowKind,
    chat_rows::{all_recalls, number_in},
    commit_log::Change,
    erasure::*,
    model::*,
    push_store::{DeviceNo, PushKey, PushRow},
    store::*,
};
use tidings_protocol::http::ErasedMessages;

const ROWS_AT_ONCE: usize = 1_000;
const ENTRIES_AT_ONCE: usize = 500;
/// Findings that are named; further ones are counted.
const NAMED_MAX: usize = 50;

/// What a store has of a person.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Leftovers {
    /// Whether an erasure of the person was done.
    pub erased: bool,
    /// When it ended, in milliseconds since 1970 UTC.
    pub ended_at: Option<u64>,
    /// A user has the id: one who was created anew, or one who was not erased. What names the id may be that user's.
    pub id_in_use: bool,
    /// What was found, some of it.
    pub found: Vec<String>,
    /// How much was found.
    pub count: u64,
    /// Rows and entries that were looked at.
    pub examined: u64,
    /// Records of the commit log that name the person, and the newest one's time: they go when the log keeps them no more.
    pub log_records: u64,
    /// When the newest of them was committed.
    pub log_newest_at: Option<u64>,
    /// The erasure keeps the id for the feed's event.
    pub id_kept_for_feed: bool,
    /// Since when freed bytes wait for a purge of the files; absent: none do.
    pub unpurged_since: Option<u64>,
}

impl Leftovers {
    /// Whether no row has anything of the person. Logs and freed bytes are another matter: see the other fields.
    pub fn is_clean(&self) -> bool {
        self.erased && self.count == 0
    }

    fn add(&mut self, what: impl fmt::Display) {
        self.count += 1;
        if self.found.len() < NAMED_MAX {
            self.found.push(what.to_string());
        }
    }
}

/// Looks for a person by the id that the person had.
///
/// # Errors
/// The store cannot be read.
pub fn leftovers(store: &dyn Store, id: &str) -> StoreResult<Leftovers> {
    let mut left = Leftovers::default();
    let keys = ErasurePlace::ALL.map(|place| erasure_key_at(&erasure_key(id), place));
    let job = store.rows_of(RowSpace::Chat, &keys)?.into_iter().flatten().next();
    let job = job.map(|row| StoredErasure::decode(&row)).transpose()?;
    let user = store.user_no(id)?;
    left.id_in_use = user.is_some();
    let (person, messages) = match (&job, user) {
        (Some(job), _) => {
            (left.erased, left.ended_at, left.id_kept_for_feed) = (!job.is_running(), job.ended_at, job.id.is_some());
            (Person { no: job.no, id: id.to_owned(), alias: job.alias.clone() }, job.messages)
        }
        (None, Some(no)) => (Person { no, id: id.to_owned(), alias: String::new() }, ErasedMessages::Remove),
        (None, None) => return Ok(left),
    };
    for place in PersonalPlace::ALL {
        match place {
            PersonalPlace::Profile => {
                if user == Some(person.no) {
                    left.add(format_args!("the profile of user {id:?}"));
                }
                if store.last_seen(person.no)?.is_some() {
                    left.add("when the user was last seen");
                }
            }
            PersonalPlace::Memberships => {
                let groups = store.conversations_of(person.no, false, usize::MAX >> 1)?;
                groups
                    .iter()
                    .for_each(|group| left.add(format_args!("a membership of conversation {}", group.conversation.0)));
            }
            PersonalPlace::Entries => look_at_conversations(store, &person, messages, &mut left)?,
            PersonalPlace::Rows => look_at_rows(store, &person, &mut left)?,
            PersonalPlace::Devices => look_at_devices(store, &person, &mut left)?,
            PersonalPlace::Popups => {
                for key in tidings_popups::rows_of_user(store, id)? {
                    left.add(format_args!("a row of popups of kind {}", key.first().copied().unwrap_or(0)));
                }
            }
            PersonalPlace::Notifications => look_at_notifications(store, &person, &mut left)?,
            PersonalPlace::Log => look_at_log(store, &person, &mut left)?,
        }
    }
    left.unpurged_since = unpurged_since(store)?;
    Ok(left)
}

/// Looks for what is left of a conversation, by the id that it had.
///
/// # Errors
/// The store cannot be read.
pub fn leftovers_of_conversation(store: &dyn Store, id: &str) -> StoreResult<Leftovers> {
    let mut left = Leftovers::default();
    let keys = ErasurePlace::ALL.map(|place| erasure_key_at(&conversation_erasure_key(id), place));
    let job = store.rows_of(RowSpace::Chat, &keys)?.into_iter().flatten().next();
    let job = job.map(|row| StoredErasure::decode(&row)).transpose()?;
    let found = store.conversation_no(id)?;
    left.id_in_use = found.is_some();
    let known = job.as_ref().and_then(|job| Some((job.conversation?, job.alias.clone())));
    let Some((no, alias)) = known.or(found.map(|no| (no, "deleted".to_owned()))) else { return Ok(left) };
    if let Some(job) = &job {
        (left.erased, left.ended_at, left.id_kept_for_feed) = (!job.is_running(), job.ended_at, job.id.is_some());
    }
    let gone = DeletedConversation::of(no, id, &alias);
    // A direct one may be used again since: then it has entries, and they are found.
    if let Some(details) = store.conversation(no)?
        && details != gone.left_of(details.clone())
    {
        left.add(format_args!("the details of conversation {id:?}"));
    }
    if !gone.is_direct() && !store.members(no, None, 1)?.is_empty() {
        left.add("a member");
    }
    let mut from = 1;
    loop {
        let page = store.entries(no, from, u64::MAX, ENTRIES_AT_ONCE, End::Oldest)?;
        let Some(last) = page.last().map(|entry| entry.seq) else { break };
        left.examined += page.len() as u64;
        for mut entry in page {
            let seq = entry.seq;
            if blank(&mut entry) {
                left.add(format_args!("entry {seq}"));
            }
        }
        from = last + 1;
    }
    each_row(store, |key, row| {
        left.examined += 1;
        if fate_of_row_in(&gone, key, row) != Fate::Keep {
            left.add(format_args!("a row of kind {:?}", ChatRowKind::of(key)));
        }
    })?;
    each_notification(store, |table, row| {
        left.examined += 1;
        if is_event_of(&gone, &row.event) {
            left.add(format_args!("a notification of {table:?}"));
        }
    })?;
    left.unpurged_since = unpurged_since(store)?;
    Ok(left)
}

fn unpurged_since(store: &dyn Store) -> StoreResult<Option<u64>> {
    let (from, to) = all_recalls();
    Ok(store.rows(RowSpace::Chat, &from, &to, 1)?.first().and_then(|(key, _)| number_in(key, 0)))
}

fn each_row(store: &dyn Store, mut look: impl FnMut(&[u8], &[u8])) -> StoreResult<()> {
    let mut from = Vec::new();
    loop {
        let rows = store.rows(RowSpace::Chat, &from, &[0xFF], ROWS_AT_ONCE)?;
        rows.iter().for_each(|(key, row)| look(key, row));
        match rows.last() {
            Some((last, _)) if rows.len() == ROWS_AT_ONCE => from = [&last[..], &[0]].concat(),
            _ => return Ok(()),
        }
    }
}

fn each_notification(
    store: &dyn Store,
    mut look: impl FnMut(NotificationTable, &StoredNotification),
) -> StoreResult<()> {
    for table in NotificationTable::ALL {
        let mut after = None;
        loop {
            let rows = store.stored_notifications(table, after, ROWS_AT_ONCE)?;
            rows.iter().for_each(|row| look(table, row));
            match rows.last() {
                Some(last) if rows.len() == ROWS_AT_ONCE => after = Some(last.key.id),
                _ => break,
            }
        }
    }
    Ok(())
}

fn look_at_rows(store: &dyn Store, person: &Person, left: &mut Leftovers) -> StoreResult<()> {
    each_row(store, |key, row| {
        left.examined += 1;
        if fate_of_row(person, key, row) != Fate::Keep {
            left.add(format_args!("a row of kind {:?}", ChatRowKind::of(key)));
        }
    })
}

fn look_at_conversations(
    store: &dyn Store,
    person: &Person,
    messages: ErasedMessages,
    left: &mut Leftovers,
) -> StoreResult<()> {
    for no in (1..=store.last_numbers()?.conversations).map(ConversationNo) {
        let Some(conversation) = store.conversation(no)? else { continue };
        left.examined += 1;
        if renamed_direct(person, &conversation.id).is_some() {
            left.add(format_args!("the id of conversation {}", no.0));
        }
        let mut from = 1;
        loop {
            let page = store.entries(no, from, u64::MAX, ENTRIES_AT_ONCE, End::Oldest)?;
            let Some(last) = page.last().map(|entry| entry.seq) else { break };
            left.examined += page.len() as u64;
            for mut entry in page {
                let has_body = messages == ErasedMessages::Remove && is_left_message(person, &entry);
                if has_body | redact_entry(person, &mut entry.content) {
                    left.add(format_args!("entry {} of conversation {}", entry.seq, no.0));
                }
            }
            from = last + 1;
        }
    }
    Ok(())
}

fn look_at_devices(store: &dyn Store, person: &Person, left: &mut Leftovers) -> StoreResult<()> {
    let mut from = DeviceNo(0);
    loop {
        let rows = store.push_rows(&PushKey::Device(from), &PushKey::Device(DeviceNo(u32::MAX)), ROWS_AT_ONCE)?;
        let count = rows.len();
        left.examined += count as u64;
        for row in rows {
            if let PushRow::Device(device) = row {
                if device.user == person.no.0 {
                    left.add("a device");
                }
                from = DeviceNo(device.no.0.saturating_add(1));
            }
        }
        if count < ROWS_AT_ONCE {
            return Ok(());
        }
    }
}

fn look_at_notifications(store: &dyn Store, person: &Person, left: &mut Leftovers) -> StoreResult<()> {
    each_notification(store, |table, row| {
        left.examined += 1;
        let event: Option<Value> = serde_json::from_str(&row.event).ok();
        if event.is_some_and(|mut event| redact_json(person, &mut event)) {
            left.add(format_args!("a notification of {table:?}"));
        }
    })
}

/// The log has what nodes and the feed must learn: profiles by id, and words with which sessions were ended.
fn look_at_log(store: &dyn Store, person: &Person, left: &mut Leftovers) -> StoreResult<()> {
    let Some(mut after) = store.log_start()? else { return Ok(()) };
    loop {
        let page = match store.log_after(after, ROWS_AT_ONCE) {
            Err(StoreError::Pruned(_)) => return Ok(()),
            page => page?,
        };
        for record in &page.records {
            let names = match &record.change {
                Some(Change::Users(ids)) => ids.contains(&person.id),
                Some(Change::Notes(notes)) => notes
                    .iter()
                    .any(|note| note.subject == person.id || note.data.contains(&format!("{:?}", person.id))),
                Some(Change::Kick { user, .. } | Change::Suspension { user, .. }) => *user == person.no,
                _ => false,
            };
            if names {
                left.log_records += 1;
                left.log_newest_at = left.log_newest_at.max(Some(record.changed_at));
            }
        }
        if page.span.through <= after || page.records.is_empty() {
            return Ok(());
        }
        after = page.span.through;
    }
}
