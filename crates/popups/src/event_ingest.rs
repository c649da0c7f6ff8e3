//! Stores reported events in the order of their reports: each once, in one write with its id, the count that it raises and
//! the mark that it leaves with its user.

use super::{
    UserKey,
    configuration::Configuration,
    conversion_ingest::Conversions,
    events::{EventBatch, EventSubject, VerifiedEvent},
    export::exported,
    frequency::CounterKey,
    rows::{self, CountKind, EventDetails, EventIdHash, ROWS_PER_WRITE, SPACE, StoredEvent},
    rules::{Attributes, MarkKind},
    user_changes::{UserChange, UserChanges},
    worker::Worker,
};
use rustc_hash::FxHashSet;
use tidings_domain::store::StoreResult;
use tidings_protocol::http::{EventType, PopupEvent, PopupEventKind, PopupEventsAccepted};

impl Worker {
    /// Stores the oldest event batches that fit into one write, and answers their callers.
    pub(super) fn store_events(&mut self) {
        let (mut batches, mut events) = (Vec::new(), 0);
        while let Some(batch) = self.events.front()
            && (events == 0 || events + batch.events.len() <= ROWS_PER_WRITE)
        {
            events += batch.events.len();
            batches.extend(self.events.pop_front());
        }
        if batches.is_empty() {
            return;
        }
        match self.write_events(&batches).map_err(|error| self.failed(error)) {
            Ok(accepted) => {
                self.shared.write_queue.complete(0, events);
                for (batch, accepted) in batches.into_iter().zip(accepted) {
                    self.shared.metrics.popup_events.inc_by(accepted.accepted as u64);
                    drop(batch.reply.send(Ok(accepted)));
                }
            }
            // The batches behind would each wait for as long again, only to get the same refusal.
            Err(refusal) => {
                for batch in batches.into_iter().chain(self.events.drain(..)) {
                    self.shared.write_queue.complete(0, batch.events.len());
                    drop(batch.reply.send(Err(refusal.clone())));
                }
            }
        }
    }

    /// The time under which the next events are stored. It never goes back, whatever the clock does, so that no export
    /// has already read past it.
    fn next_taken_at(&mut self) -> u64 {
        let now_ms = self.shared.clock.now_ms();
        self.last_taken_at = if now_ms >= self.last_taken_at { now_ms } else { self.last_taken_at + 1 };
        self.last_taken_at
    }

    /// Writes the events whose ids are not known yet, with their ids and counts.
    fn write_events(&mut self, batches: &[EventBatch]) -> StoreResult<Vec<PopupEventsAccepted>> {
        self.check_resolved()?;
        let taken_at = self.next_taken_at();
        let all = || batches.iter().flat_map(|batch| &batch.events);
        let hashes: Vec<EventIdHash> =
            all().map(|verified| rows::event_id_hash(verified.user(), &verified.event.id)).collect();
        let id_keys: Vec<Vec<u8>> = hashes.iter().map(|hash| rows::event_id_key(*hash)).collect();
        let stored = self.shared.store.rows_of(SPACE, &id_keys)?;
        let stored = hashes.iter().zip(stored).filter(|(_, stored)| stored.is_some());
        let mut known: FxHashSet<EventIdHash> = stored.map(|(hash, _)| *hash).collect();
        let counted = all().filter_map(VerifiedEvent::decision);
        let counted = counted.map(|decision| (decision.popup, decision.variant.as_str(), taken_at));
        self.counts.load(&*self.shared.store, counted)?;
        let mut hashes = hashes.into_iter().zip(id_keys);
        let (mut changes, mut marks, mut id_rows) = (Vec::new(), UserChanges::default(), Vec::new());
        let (mut answers, mut conversions) = (Vec::new(), Conversions::default());
        let configuration = self.shared.configuration.read().clone();
        let (is_noted, mut reports) = (self.shared.feed_notes.wants(EventType::PopupEvent), Vec::new());
        for batch in batches {
            let mut accepted = PopupEventsAccepted { accepted: 0, duplicates: 0 };
            for (verified, (hash, id_key)) in batch.events.iter().zip(&mut hashes) {
                if !known.insert(hash) {
                    accepted.duplicates += 1;
                    continue;
                }
                accepted.accepted += 1;
                let row = row_of(verified, configuration.as_deref(), taken_at);
                if is_noted {
                    reports.push(exported(taken_at, &row)?);
                }
                changes.push(rows::put(rows::event_key(taken_at, hash), row));
                id_rows.push(rows::put(id_key, taken_at.to_be_bytes().to_vec()));
                if let (Some(decision), Some(kind)) = (verified.decision(), CountKind::of(verified.event.kind)) {
                    self.counts.count(decision.popup, &decision.variant, kind, taken_at);
                }
                if let (EventSubject::Custom { name, .. }, Some(configuration)) = (&verified.subject, &configuration) {
                    conversions.note(verified, name, configuration, taken_at);
                }
                if let Some(change) = change_of(verified, configuration.as_deref(), taken_at) {
                    marks.push(verified.user(), change);
                    if let (UserChange::Mark { key, at }, Some(configuration)) = (change, &configuration) {
                        let entered = journeys_entered(verified, key, configuration, taken_at);
                        entered.for_each(|journey| marks.push(verified.user(), UserChange::Enter { journey, at }));
                    }
                }
            }
            answers.push(accepted);
        }
        if !changes.is_empty() {
            changes.push(rows::put(rows::last_taken_key(), rows::encode(&taken_at)));
            self.shared.note_reports(&reports, &mut changes);
            self.push_conversions(conversions, taken_at, &mut marks, &mut changes)?;
            self.write_changes(changes, id_rows, marks)?;
        }
        Ok(answers)
    }
}

/// The row of an event.
fn row_of(verified: &VerifiedEvent, configuration: Option<&Configuration>, taken_at: u64) -> Vec<u8> {
    let VerifiedEvent { event, subject, .. } = verified;
    let decision = verified.decision();
    let popup = decision.and_then(|decision| configuration?.by_no.get(&decision.popup));
    let stored = StoredEvent {
        id: event.id.clone(),
        kind: rows::event_kind_number(event.kind),
        popup: decision.map_or(0, |decision| decision.popup),
        popup_id: popup.map(|popup| popup.id.to_string()).unwrap_or_default(),
        variant: decision.map(|decision| decision.variant.clone()).unwrap_or_default(),
        user: verified.user().to_owned(),
        decision: event.decision.clone(),
        at: event.at.unwrap_or(taken_at),
        button: event.button.clone(),
        value: event.value,
    };
    let details = match subject {
        EventSubject::Custom { name, .. } => Some(EventDetails {
            name: name.clone(),
            until: 0,
            properties: event.properties.as_ref().and_then(|all| serde_json::to_string(all).ok()).unwrap_or_default(),
        }),
        EventSubject::Decision(_) if event.kind == PopupEventKind::Snooze => {
            Some(EventDetails { until: snoozed_until(event, taken_at), ..EventDetails::default() })
        }
        EventSubject::Decision(_) => None,
    };
    rows::encode_event(&stored, details.as_ref())
}

/// The journeys that the event makes its user enter, unless the user stands in them.
fn journeys_entered<'a>(
    verified: &'a VerifiedEvent,
    mark: CounterKey,
    configuration: &'a Configuration,
    taken_at: u64,
) -> impl Iterator<Item = u32> + 'a {
    let user = UserKey::of(verified.user());
    configuration.journeys.entered_by(mark).filter_map(move |journey| {
        if let Some((condition, slots)) = &journey.condition {
            let properties = verified.event.properties.as_ref();
            let properties =
                properties.and_then(|all| Attributes::from_json("properties", all).ok()).unwrap_or_default();
            if !condition.holds(&slots.profile(user, &properties, None, None, taken_at)) {
                return None;
            }
        }
        Some(journey.no)
    })
}

fn snoozed_until(event: &PopupEvent, taken_at: u64) -> u64 {
    event.until.unwrap_or_else(|| taken_at.saturating_add(event.for_s.unwrap_or(0).saturating_mul(1_000)))
}

/// What an event changes of its user. The time of a mark is that at which the server took the event.
fn change_of(verified: &VerifiedEvent, configuration: Option<&Configuration>, taken_at: u64) -> Option<UserChange> {
    let popup = match &verified.subject {
        EventSubject::Custom { name, .. } => {
            return Some(UserChange::Mark { key: CounterKey::event(name), at: taken_at });
        }
        EventSubject::Decision(decision) => decision.popup,
    };
    // A popup that was deleted is looked at by nothing.
    if !configuration?.knows_number(popup) {
        return None;
    }
    let kind = match verified.event.kind {
        PopupEventKind::Impression if configuration?.marks_impressions => MarkKind::Impression,
        PopupEventKind::Click | PopupEventKind::Button => MarkKind::Click,
        PopupEventKind::Dismiss => MarkKind::Dismiss,
        PopupEventKind::Conversion => MarkKind::Conversion,
        PopupEventKind::Snooze => {
            return Some(UserChange::Snooze { popup, until: snoozed_until(&verified.event, taken_at) });
        }
        PopupEventKind::Impression | PopupEventKind::Custom => return None,
    };
    Some(UserChange::Mark { key: CounterKey::popup_event(popup, kind), at: taken_at })
}
