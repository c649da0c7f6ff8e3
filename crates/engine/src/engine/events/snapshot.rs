//! The present state as events: for a reader who begins, and goes on with what is committed from then on.
//!
//! What is read here may be newer than the position from which the reader goes on. Then the log says it once more, which changes
//! nothing for a reader who takes each event's data for what is so.

use super::{
    FoundEvent, Page,
    cursor::{EventCursor, Part, Place, StatePlace},
};
use crate::{Engine, engine::reads::READ_AT_ONCE, views::Found, visibility::View};
use std::sync::Arc;
use tidings_domain::{model::*, refusals::store_refusal, store::End};
use tidings_protocol::{
    entry::EntryKind,
    error::Refusal,
    http::*,
    limits::{ATTRIBUTES_BYTES_MAX, ID_BYTES_MAX},
};

impl Engine {
    /// Fills a page with the present state, from where the reader is. Behind all of it the reader goes on in the log.
    pub(super) fn add_present_state(&self, page: &mut Page<'_>) -> Result<(), Refusal> {
        let last = self.store.last_numbers().map_err(store_refusal)?;
        while let Place::State(at) = page.through.place {
            if page.is_full() {
                return Ok(());
            }
            page.records += 1;
            let next = match at.part {
                Part::Users => self.add_users(at, last.users, page)?,
                _ if at.no > last.conversations => None,
                _ => self.add_of_conversation(at, page)?,
            };
            page.through.place = next.map_or(Place::Log { further: 0 }, Place::State);
        }
        Ok(())
    }

    fn add_users(&self, at: StatePlace, last: u64, page: &mut Page<'_>) -> Result<Option<StatePlace>, Refusal> {
        let is_asked = page.request.asks_for(EventType::User);
        if at.no >= last || !is_asked {
            return Ok(Some(StatePlace { part: Part::Details, no: 1, behind: 0 }));
        }
        let at = StatePlace { no: at.no + 1, ..at };
        if let Some(user) = self.directory.user(UserNo(at.no)).map_err(store_refusal)? {
            let data = EventData::User(self.event_profile(&user));
            page.bytes += ATTRIBUTES_BYTES_MAX;
            page.add_of_state(
                at,
                FoundEvent { id: None, kind: EventType::User, subject: user.id.clone(), at: None, data },
            );
        }
        Ok(Some(at))
    }

    /// The next part of a conversation that a reader asks for.
    fn add_of_conversation(&self, at: StatePlace, page: &mut Page<'_>) -> Result<Option<StatePlace>, Refusal> {
        let StatePlace { part, no, .. } = at;
        let request = page.request;
        let next = |part| Some(StatePlace { part, no, behind: 0 });
        let next_conversation = Some(StatePlace { part: Part::Details, no: no + 1, behind: 0 });
        let Some(conversation) = self.event_conversation(ConversationNo(no))? else { return Ok(next_conversation) };
        match part {
            Part::Users | Part::Details => {
                if request.asks_for(EventType::Conversation) {
                    let data = EventData::Conversation(self.details_of(&conversation)?);
                    page.add_of_conversation(at, EventType::Conversation, &conversation, data);
                }
                Ok(next(Part::Members))
            }
            Part::Members => {
                if !request.asks_for(EventType::Members) {
                    return Ok(next(Part::Entries));
                }
                let after = (at.behind > 0).then_some(UserNo(at.behind));
                let members = self.store.members(conversation.no, after, READ_AT_ONCE).map_err(store_refusal)?;
                let Some((last, _)) = members.last() else { return Ok(next(Part::Entries)) };
                let at = StatePlace { behind: last.0, ..at };
                let numbers: Vec<UserNo> = members.iter().map(|(no, _)| *no).collect();
                let joined = self.event_members(&conversation, &numbers)?;
                page.bytes += joined.len() * ID_BYTES_MAX;
                let details = self.details_of(&conversation)?;
                let (left, changed, others) = Default::default();
                let data = MembersEvent { details, joined, left, changed, others };
                page.add_of_conversation(at, EventType::Members, &conversation, EventData::Members(data));
                Ok(if members.len() < READ_AT_ONCE { next(Part::Entries) } else { Some(at) })
            }
            Part::Entries => {
                if !EntryKind::KNOWN.iter().any(|kind| request.asks_for(EventType::Entry(*kind))) {
                    return Ok(next_conversation);
                }
                let (from, asked) = (at.behind + 1, page.room().min(READ_AT_ONCE));
                let entries =
                    self.store.entries(conversation.no, from, u64::MAX, asked, End::Oldest).map_err(store_refusal)?;
                let Some(last) = entries.last().map(|entry| entry.seq) else { return Ok(next_conversation) };
                let is_end = entries.len() < asked;
                self.add_entries(at, &conversation, entries, page)?;
                Ok(if is_end { next_conversation } else { Some(StatePlace { behind: last, ..at }) })
            }
        }
    }

    fn add_entries(
        &self,
        at: StatePlace,
        conversation: &Arc<Conversation>,
        entries: Vec<StoredEntry>,
        page: &mut Page<'_>,
    ) -> Result<(), Refusal> {
        let asked = entries.into_iter().filter(|entry| page.request.asks_for(EventType::Entry(entry.content.kind)));
        let asked: Vec<StoredEntry> = asked.collect();
        page.bytes += asked.iter().map(|entry| entry.content.body.len()).sum::<usize>();
        let of_entry: Vec<(Position, u64, EntryKind, u64)> =
            asked.iter().map(|entry| (entry.position, entry.seq, entry.content.kind, entry.at)).collect();
        let found =
            asked.into_iter().map(|entry| Found { conversation: conversation.clone(), view: View::WHOLE, entry });
        // App servers are shown every entry: none is left out.
        for (shown, (position, seq, kind, time)) in self.present(found.collect())?.into_iter().zip(of_entry) {
            let data = EventData::Entry(Box::new(shown));
            let event = FoundEvent {
                id: None,
                kind: EventType::Entry(kind),
                subject: conversation.id.clone(),
                at: Some(time),
                data,
            };
            let through = EventCursor { place: Place::State(StatePlace { behind: seq, ..at }), ..page.through };
            page.events.push(event.in_envelope(format!("{position}.0"), through));
        }
        Ok(())
    }
}

impl Page<'_> {
    fn add_of_conversation(&mut self, at: StatePlace, kind: EventType, conversation: &Conversation, data: EventData) {
        self.add_of_state(at, FoundEvent { id: None, kind, subject: conversation.id.clone(), at: None, data });
    }

    /// Adds an event of the present state; with its cursor the reader is at this place.
    fn add_of_state(&mut self, at: StatePlace, event: FoundEvent) {
        let through = EventCursor { place: Place::State(at), ..self.through };
        // The details have no place behind them but the next part.
        let through = match at.part {
            Part::Details => EventCursor { place: Place::State(StatePlace { part: Part::Members, ..at }), ..through },
            _ => through,
        };
        let StatePlace { part, no, behind } = at;
        let id = format!("{}.{}.{no}.{behind}", self.through.position, part.name());
        self.events.push(event.in_envelope(id, through));
    }
}
