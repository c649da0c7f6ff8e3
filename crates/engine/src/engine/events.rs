//! The feed of events: the commit log as app servers read it, each record as the events that it stands for.
//!
//! What an event says is read when the event is: a message that was recalled since has no body, and a profile or a
//! conversation's details are those of now. So nothing is written for the feed but what the log has anyway.

mod cursor;
mod snapshot;

use crate::{
    Engine,
    engine::{reads::READ_AT_ONCE, users::suspension_view},
    views::Found,
    visibility::View,
};
use cursor::{EventCursor, Part, Place, StatePlace};
use serde_json::value::RawValue;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    erasure::{DeletedConversation, ErasurePlace, Person, StoredErasure, redact_json, renamed_direct},
    feed_note::FeedNote,
    gates::Gate,
    log_records::{Change, LogRecord},
    model::*,
    refusals::store_refusal,
    reports::ReportKey,
    store::{RowSpace, StoreError},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
    limits::{
        ATTRIBUTES_BYTES_MAX, BODY_BYTES_MAX, EVENTS_PAGE_BYTES_MAX, EVENTS_PAGE_MAX, EVENTS_WAIT_MAX_S, ID_BYTES_MAX,
    },
};

/// Events in a page when the reader gives no limit.
const EVENTS_PAGE_DEFAULT: usize = 100;
/// Records that one request passes over at most, however few of them are of the types that are asked for.
const RECORDS_PER_REQUEST: usize = 5_000;

/// Events that are asked for, checked.
#[derive(Debug, Clone)]
pub struct EventsRequest {
    after: EventCursor,
    types: Vec<String>,
    limit: usize,
    /// How long to wait for an event while there is none.
    pub wait: Duration,
}

/// A page of events, and how far it has come.
#[derive(Debug)]
pub struct ReadEvents {
    pub page: EventPage,
    through: EventCursor,
}

impl Engine {
    /// Checks a request for events.
    ///
    /// # Errors
    /// `conflict`: no events are kept; `not_yet_enabled`; `invalid_field`, `limit_exceeded`, `cursor_invalid` and
    /// `cursor_expired` for the query; `store_unavailable`.
    pub fn events_request(&self, query: &EventsQuery) -> Result<EventsRequest, Refusal> {
        self.gates.require(Gate::EventLog)?;
        if self.config.events_keep.is_zero() {
            return Err(Refusal::new(ErrorCode::Conflict, "no events are kept: set [events] keep_days"));
        }
        let limit = match query.limit.unwrap_or(EVENTS_PAGE_DEFAULT) {
            0 => return Err(Refusal::field("limit", "must be at least 1, got 0")),
            limit if limit > EVENTS_PAGE_MAX => {
                return Err(Refusal::limit("limit (events)", EVENTS_PAGE_MAX as u64, limit as u64));
            }
            limit => limit,
        };
        let wait_s = query.wait_s.unwrap_or_default();
        if wait_s > EVENTS_WAIT_MAX_S {
            return Err(Refusal::limit("wait_s (seconds)", EVENTS_WAIT_MAX_S, wait_s));
        }
        let types = query.types.as_deref().map(types_of).transpose()?.unwrap_or_default();
        let after = self.events_after(query.after.as_deref())?;
        Ok(EventsRequest { after, types, limit, wait: Duration::from_secs(wait_s) })
    }

    /// The place that the reader's word stands for.
    fn events_after(&self, after: Option<&str>) -> Result<EventCursor, Refusal> {
        let at = |position| EventCursor::at(self.store.epoch(), position);
        match after {
            None => Ok(at(self.events_start()?)),
            Some("now") => Ok(at(self.store.last_position())),
            Some("start") => {
                // What this node knows: later commits are in the log, for whoever has the state from here on.
                let place = Place::State(StatePlace { part: Part::Users, no: 0, behind: 0 });
                Ok(EventCursor { place, ..at(self.directory.current()) })
            }
            Some(text) => {
                if let Ok(time) = text.parse::<jiff::Timestamp>() {
                    let time = u64::try_from(time.as_millisecond()).unwrap_or_default();
                    return Ok(at(self.position_before(time)?));
                }
                let cursor: EventCursor = text.parse()?;
                if cursor.epoch != self.store.epoch() {
                    let why = "after: is of another history, which ended when a backup was restored. Begin anew";
                    return Err(Refusal::new(ErrorCode::CursorInvalid, why));
                }
                Ok(cursor)
            }
        }
    }

    /// The position behind which all records are kept.
    fn events_start(&self) -> Result<Position, Refusal> {
        self.store.log_start().map_err(store_refusal)?.ok_or_else(not_kept)
    }

    /// The position behind which everything was committed at this time or later; found by halves, since times grow with positions
    /// but for steps of clocks.
    fn position_before(&self, at_ms: u64) -> Result<Position, Refusal> {
        let is_old = |position| self.time_behind(position).map(|time| time.is_some_and(|time| time < at_ms));
        let (mut old, mut new) = (self.events_start()?, self.directory.current());
        if !is_old(old)? {
            return Ok(old);
        }
        while new > old + 1 {
            let middle = old + (new - old) / 2;
            if is_old(middle)? {
                old = middle;
            } else {
                new = middle;
            }
        }
        Ok(new)
    }

    /// When the first record behind a position was committed; `None`: there is none.
    fn time_behind(&self, mut position: Position) -> Result<Option<u64>, Refusal> {
        loop {
            let log = self.store.log_after(position, READ_AT_ONCE).map_err(log_refusal)?;
            let time = |record: &LogRecord| match &record.entry {
                Some((_, entry)) => Some(entry.at),
                None => (record.changed_at > 0).then_some(record.changed_at),
            };
            if let Some(time) = log.records.iter().find_map(time) {
                return Ok(Some(time));
            }
            if log.records.len() < READ_AT_ONCE {
                return Ok(None);
            }
            position = log.span.through;
        }
    }

    /// How many commits a reader with this cursor is behind; one that reads the present state, all.
    ///
    /// # Errors
    /// `cursor_invalid`.
    pub fn events_behind(&self, cursor: &str) -> Result<u64, Refusal> {
        let cursor = self.events_after(Some(cursor))?;
        let done = match cursor.place {
            Place::Log { .. } => cursor.position,
            Place::State(_) => 0,
        };
        Ok(self.directory.current().saturating_sub(done))
    }

    /// Waits until something is committed that the reader has not seen. Answers false when this node drains, and nobody is to wait
    /// any more.
    pub async fn events_beyond(&self, read: &ReadEvents) -> bool {
        self.directory.wait_beyond(read.through.position, || self.is_draining()).await;
        !self.is_draining()
    }

    /// Removes old events of a node that has its store to itself; nodes that share one do so as they shorten their log. Answers
    /// whether there may be more to remove. Blocks.
    ///
    /// # Errors
    /// `store_unavailable`: a later call goes on.
    pub fn remove_old_events(&self) -> Result<bool, Refusal> {
        let keep_ms = u64::try_from(self.config.events_keep.as_millis()).unwrap_or(u64::MAX);
        let pruned = self.store.prune_log(self.clock.now_ms().saturating_sub(keep_ms)).map_err(store_refusal)?;
        Ok(pruned.more)
    }

    /// A page of events. Blocks.
    ///
    /// # Errors
    /// `cursor_expired`: what follows the cursor is not kept any more; `store_unavailable`.
    pub fn read_events(&self, request: &EventsRequest) -> Result<ReadEvents, Refusal> {
        let mut page = Page { request, through: request.after, events: Vec::new(), bytes: 0, records: 0 };
        // What another node has committed is read once this one knows it: before, its caches may have the former profile or details,
        // and no later event would say otherwise.
        let known = self.directory.current();
        self.add_present_state(&mut page)?;
        let mut is_at_end = false;
        while !is_at_end && !page.is_full() {
            let asked = READ_AT_ONCE.min(request.limit).min(RECORDS_PER_REQUEST - page.records);
            let mut log = self.store.log_after(page.through.position, asked).map_err(log_refusal)?;
            is_at_end = log.records.len() < asked || log.span.through > known;
            log.records.retain(|record| record.position <= known);
            for record in log.records {
                if page.is_full() {
                    is_at_end = false;
                    break;
                }
                self.add_record(record, &mut page)?;
            }
            if is_at_end && page.through.of_next_record() == 0 {
                page.through.position = page.through.position.max(log.span.through.min(known));
            }
        }
        let Page { events, through, .. } = page;
        let more = !is_at_end || through.of_next_record() > 0;
        Ok(ReadEvents { page: EventPage { events, next: through.to_string(), more }, through })
    }

    /// Adds the events of a record, as many as there is room for.
    fn add_record(&self, record: LogRecord, page: &mut Page<'_>) -> Result<(), Refusal> {
        let position = record.position;
        let mut found = Vec::new();
        // The entry's event is the first, whether there is one or not: the others keep their numbers.
        if let Some((conversation, entry)) = record.entry
            && page.through.of_next_record() == 0
        {
            page.bytes += entry.content.body.len();
            let event = self.event_of_entry(conversation, entry)?;
            found.extend(event.filter(|event| page.request.asks_for(event.kind)).map(|event| (0, event)));
        }
        let before = page.through.of_next_record().saturating_sub(1);
        let room = page.room().saturating_sub(found.len());
        let mut rest = 0;
        let changed_at = (record.changed_at > 0).then_some(record.changed_at);
        if let Some(change) = record.change {
            let (part, left) = part_of(change, before, room);
            rest = left;
            page.bytes += bytes_of(&part);
            let mut events = Vec::new();
            self.add_events_of_change(part, changed_at, &mut events)?;
            found.extend(events.into_iter().enumerate().map(|(number, event)| (1 + before + number, event)));
        }
        let epoch = page.through.epoch;
        let done = EventCursor::at(epoch, position);
        let within = |further| EventCursor::at(epoch, position - 1).further(further);
        let last = found.last().map(|(number, _)| *number);
        for (number, event) in found.into_iter().filter(|(_, event)| page.request.asks_for(event.kind)) {
            let cursor = if rest == 0 && Some(number) == last { done } else { within(number + 1) };
            page.events.push(event.in_envelope(format!("{position}.{number}"), cursor));
        }
        page.through = if rest == 0 { done } else { within(1 + before + room) };
        page.records += 1;
        Ok(())
    }

    /// The event of an entry; `None`: its conversation is no more.
    fn event_of_entry(&self, conversation: ConversationNo, entry: StoredEntry) -> Result<Option<FoundEvent>, Refusal> {
        let Some(conversation) = self.event_conversation(conversation)? else { return Ok(None) };
        let (kind, at, subject) = (EventType::Entry(entry.content.kind), Some(entry.at), conversation.id.clone());
        let shown = self.present(vec![Found { conversation, view: View::WHOLE, entry }])?.pop();
        Ok(shown.map(|entry| FoundEvent { id: None, kind, subject, at, data: EventData::Entry(Box::new(entry)) }))
    }

    fn add_events_of_change(
        &self,
        change: Change,
        at: Option<u64>,
        events: &mut Vec<FoundEvent>,
    ) -> Result<(), Refusal> {
        let mut add = |kind, subject: &str, data| {
            events.push(FoundEvent { id: None, kind, subject: subject.to_owned(), at, data });
        };
        match change {
            Change::Members { conversation, joined, left, changed } => {
                let Some(conversation) = self.event_conversation(conversation)? else { return Ok(()) };
                let left = self.ids_of(&left)?;
                let joined = self.event_members(&conversation, &joined)?;
                let others = self.ids_of_others(&conversation, &changed)?;
                let changed = self.event_members(&conversation, &changed)?;
                let details = self.details_of(&conversation)?;
                let data = EventData::Members(MembersEvent { details, joined, left, changed, others });
                add(EventType::Members, &conversation.id, data);
            }
            Change::Conversation(conversation) => {
                let Some(conversation) = self.event_conversation(conversation)? else { return Ok(()) };
                let details = self.details_of(&conversation)?;
                add(EventType::Conversation, &conversation.id, EventData::Conversation(details));
            }
            Change::Users(ids) => {
                for id in ids {
                    if let Some(user) = self.directory.user_by_id(&id).map_err(store_refusal)? {
                        add(EventType::User, &id, EventData::User(self.event_profile(&user)));
                    }
                }
            }
            Change::DoNotDisturb(user) => {
                let Some(user) = self.event_user(user)? else { return Ok(()) };
                let data = SettingsEvent { user: user.id.clone(), conversation: None };
                add(EventType::UserSettings, &user.id, EventData::Settings(data));
            }
            Change::Mute { conversation, user } => {
                let (Some(conversation), Some(user)) = (self.event_conversation(conversation)?, self.event_user(user)?)
                else {
                    return Ok(());
                };
                let data = SettingsEvent { user: user.id.clone(), conversation: Some(conversation.id.clone()) };
                add(EventType::MemberSettings, &conversation.id, EventData::Settings(data));
            }
            Change::Read { conversation, user, seq } => {
                let (Some(conversation), Some(user)) = (self.event_conversation(conversation)?, self.event_user(user)?)
                else {
                    return Ok(());
                };
                let (conversation, user) = (conversation.id.clone(), user.id.clone());
                let data = ReadEvent { conversation: conversation.clone(), user, read_seq: seq };
                add(EventType::Read, &conversation, EventData::Read(data));
            }
            Change::Kick { user, device_id, reason } => {
                let Some(user) = self.event_user(user)? else { return Ok(()) };
                let data = SessionsEndedEvent { user: user.id.clone(), device_id, reason };
                add(EventType::SessionsEnded, &user.id, EventData::SessionsEnded(data));
            }
            Change::Suspension { user, suspended, until, reason, by } => {
                let Some(user) = self.event_user(user)? else { return Ok(()) };
                let data = SuspensionEvent { user: user.id.clone(), suspended, until, reason, by };
                add(EventType::Suspension, &user.id, EventData::Suspension(data));
            }
            Change::Report { conversation, seq, reporter } => {
                let Some(report) = self.report_of(ReportKey { conversation, seq, reporter })? else { return Ok(()) };
                let subject = report.conversation.clone();
                add(EventType::Report, &subject, EventData::Report(Box::new(report)));
            }
            // Whom a user blocks is the user's, as other settings are.
            Change::Block { user, .. } => {
                let Some(user) = self.event_user(user)? else { return Ok(()) };
                let data = SettingsEvent { user: user.id.clone(), conversation: None };
                add(EventType::UserSettings, &user.id, EventData::Settings(data));
            }
            Change::Erased { erasure, .. } => {
                let Some((erasure, name)) = self.stored_erasure(&erasure)? else { return Ok(()) };
                if let Some(DeletedConversation { id, .. }) = erasure.deleted_conversation() {
                    let data = ConversationDeletedEvent { conversation: id.clone(), erasure: name };
                    add(EventType::ConversationDeleted, &id, EventData::ConversationDeleted(data));
                    return Ok(());
                }
                let Some(user) = erasure.id else { return Ok(()) };
                let (alias, messages) = (erasure.alias, erasure.messages);
                let data = UserErasedEvent { user: user.clone(), alias, messages, erasure: name };
                add(EventType::UserErased, &user, EventData::UserErased(data));
            }
            Change::Notes(notes) => {
                let erased = self.erased_persons()?;
                let notes = notes.into_iter().filter(|note| !erased.iter().any(|person| names(person, note)));
                events.extend(notes.filter_map(FoundEvent::of_note));
            }
            // Of a later version, which shows it.
            Change::Opaque => {}
        }
        Ok(())
    }

    /// The persons who were erased while the feed has events from before.
    fn erased_persons(&self) -> Result<Vec<Person>, Refusal> {
        let (from, _) = ErasurePlace::Running.range();
        let (_, to) = ErasurePlace::Done.range();
        let rows = self.store.rows(RowSpace::Chat, &from, &to, usize::MAX >> 1).map_err(store_refusal)?;
        let person = |(_, row): (Vec<u8>, Vec<u8>)| StoredErasure::decode(&row).map(|erasure| erasure.person());
        Ok(rows
            .into_iter()
            .map(person)
            .collect::<Result<Vec<_>, _>>()
            .map_err(store_refusal)?
            .into_iter()
            .flatten()
            .collect())
    }

    fn event_conversation(&self, no: ConversationNo) -> Result<Option<Arc<Conversation>>, Refusal> {
        self.directory.conversation(no).map_err(store_refusal)
    }

    /// A user as others see the user, and the suspension: who begins with the present state learns of it by no other event.
    fn event_profile(&self, user: &User) -> UserProfile {
        let suspension = user.suspension_at(self.clock.now_ms()).map(suspension_view);
        UserProfile { suspension, ..self.profile_of(user, false) }
    }

    fn event_user(&self, no: UserNo) -> Result<Option<Arc<User>>, Refusal> {
        self.directory.user(no).map_err(store_refusal)
    }

    fn ids_of(&self, users: &[UserNo]) -> Result<Vec<String>, Refusal> {
        let mut ids = Vec::with_capacity(users.len());
        for user in users {
            ids.extend(self.event_user(*user)?.map(|user| user.id.clone()));
        }
        Ok(ids)
    }

    /// The ids of those of these users who are no members now.
    fn ids_of_others(&self, conversation: &Conversation, users: &[UserNo]) -> Result<Vec<String>, Refusal> {
        let mut others = Vec::new();
        for no in users {
            if self.directory.membership(conversation.no, *no).map_err(store_refusal)?.is_none() {
                others.push(*no);
            }
        }
        self.ids_of(&others)
    }

    /// Those of these users who are members now.
    fn event_members(&self, conversation: &Conversation, users: &[UserNo]) -> Result<Vec<EventMember>, Refusal> {
        let mut members = Vec::with_capacity(users.len());
        for no in users {
            let membership = self.directory.membership(conversation.no, *no).map_err(store_refusal)?;
            let (Some(membership), Some(user)) = (membership, self.event_user(*no)?) else { continue };
            let muted = membership.restricted && self.is_muted(conversation, *no)?;
            let Membership { role, read_seq, .. } = membership;
            members.push(EventMember { user: user.id.clone(), role, read_seq, muted });
        }
        Ok(members)
    }
}

/// Whether a note says something of a person who was erased.
fn names(person: &Person, note: &FeedNote) -> bool {
    let mut data: serde_json::Value = serde_json::from_str(&note.data).unwrap_or_default();
    note.subject == person.id || renamed_direct(person, &note.subject).is_some() || redact_json(person, &mut data)
}

/// About what the events of a change take: it may name ten thousand users.
fn bytes_of(change: &Change) -> usize {
    let users = match change {
        Change::Members { joined, left, changed, .. } => joined.len() + left.len() + changed.len(),
        Change::Report { .. } => return BODY_BYTES_MAX,
        Change::Users(ids) => return ids.len() * ATTRIBUTES_BYTES_MAX,
        Change::Notes(notes) => return notes.iter().map(|note| note.data.len()).sum(),
        _ => 1,
    };
    users * ID_BYTES_MAX
}

/// The part of a change of which `before` events are dealt with and `room` may follow, and how many are left behind them.
fn part_of(change: Change, before: usize, room: usize) -> (Change, usize) {
    match change {
        Change::Users(ids) => {
            let left = ids.len().saturating_sub(before + room);
            (Change::Users(ids.into_iter().skip(before).take(room).collect()), left)
        }
        Change::Notes(notes) => {
            let left = notes.len().saturating_sub(before + room);
            (Change::Notes(notes.into_iter().skip(before).take(room).collect()), left)
        }
        // Its one event waits for the next page; of a later version's there is none.
        Change::Opaque => (Change::Opaque, 0),
        _ if room == 0 => (Change::Opaque, 1),
        other => (other, 0),
    }
}

/// A page that is being filled.
struct Page<'a> {
    request: &'a EventsRequest,
    through: EventCursor,
    events: Vec<Event>,
    bytes: usize,
    records: usize,
}

impl Page<'_> {
    /// How many more events may be added.
    fn room(&self) -> usize {
        self.request.limit.saturating_sub(self.events.len())
    }

    fn is_full(&self) -> bool {
        self.room() == 0 || self.bytes >= EVENTS_PAGE_BYTES_MAX || self.records >= RECORDS_PER_REQUEST
    }
}

impl EventsRequest {
    /// Where it begins, as a cursor.
    pub fn cursor(&self) -> String {
        self.after.to_string()
    }

    /// The same from where a page has ended.
    #[must_use]
    pub fn after(self, read: &ReadEvents) -> EventsRequest {
        EventsRequest { after: read.through, ..self }
    }

    fn asks_for(&self, kind: EventType) -> bool {
        self.types.is_empty() || self.types.iter().any(|word| kind.is_asked_for_by(word))
    }
}

/// An event without its envelope.
struct FoundEvent {
    /// Absent: it is made of the event's place in the log.
    id: Option<String>,
    kind: EventType,
    subject: String,
    at: Option<u64>,
    data: EventData,
}

impl FoundEvent {
    /// The event of a note; `None`: it is of a later version.
    fn of_note(note: FeedNote) -> Option<FoundEvent> {
        let FeedNote { id, kind, subject, at, data } = note;
        let kind = EventType::known().find(|known| known.to_string() == kind)?;
        let data = EventData::Noted(RawValue::from_string(data).ok()?);
        Some(FoundEvent { id: Some(id), kind, subject, at: Some(at), data })
    }

    /// The event as the feed has it.
    fn in_envelope(self, id: String, cursor: EventCursor) -> Event {
        let FoundEvent { id: own_id, kind, subject, at, data } = self;
        let time = at.and_then(|at| jiff::Timestamp::from_millisecond(i64::try_from(at).ok()?).ok());
        Event {
            specversion: "1.0".into(),
            id: own_id.unwrap_or(id),
            source: format!("/tidings/{:x}", cursor.epoch),
            kind,
            subject,
            time: time.map(|time| time.to_string()),
            datacontenttype: "application/json".into(),
            cursor: cursor.to_string(),
            data,
        }
    }
}

/// The words of a list of types. Each must stand for a type that there is.
fn types_of(list: &str) -> Result<Vec<String>, Refusal> {
    let words: Vec<String> = list.split(',').map(|word| word.trim().to_owned()).collect();
    match words.iter().find(|word| !EventType::known().any(|known| known.is_asked_for_by(word))) {
        Some(unknown) => {
            let known: Vec<String> = EventType::known().map(|known| known.to_string()).collect();
            Err(Refusal::field("types", format!("unknown type {unknown:?}; there are {}", known.join(", "))))
        }
        None => Ok(words),
    }
}

fn not_kept() -> Refusal {
    Refusal::new(ErrorCode::CursorExpired, "after: what follows is not kept any more. Begin anew")
}

fn log_refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::Pruned(_) => not_kept(),
        other => store_refusal(other),
    }
}
