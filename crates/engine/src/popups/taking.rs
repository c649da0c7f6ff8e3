//! Events become durable: each once, with its id and what it counts, in the order in which they were reported.

use super::{
    events::Batch,
    rows::{self, Counted, EventName, ROWS_PER_WRITE, SPACE, StoredEvent},
    worker::Worker,
};
use crate::store::StoreResult;
use rustc_hash::FxHashSet;
use tidings_protocol::http::PopupEventsAccepted;

impl Worker {
    /// Stores events that wait, no more than one write takes.
    pub(super) fn store_events(&mut self) {
        let (mut piece, mut events) = (Vec::new(), 0);
        while let Some(batch) = self.events.front()
            && (events == 0 || events + batch.events.len() <= ROWS_PER_WRITE)
        {
            events += batch.events.len();
            piece.extend(self.events.pop_front());
        }
        if piece.is_empty() {
            return;
        }
        match self.write_events(&piece).map_err(|error| self.failed(error)) {
            Ok(accepted) => {
                self.shared.inbox.done(0, events);
                for (batch, accepted) in piece.into_iter().zip(accepted) {
                    self.shared.metrics.popup_events.inc_by(accepted.accepted as u64);
                    drop(batch.reply.send(Ok(accepted)));
                }
            }
            // Those that are behind would wait for as long again, each piece of them, to hear the same.
            Err(refusal) => {
                for batch in piece.into_iter().chain(self.events.drain(..)) {
                    self.shared.inbox.done(0, batch.events.len());
                    drop(batch.reply.send(Err(refusal.clone())));
                }
            }
        }
    }

    /// The time under which events that are taken now are kept: no export has passed it, whatever the clock does.
    fn take_at(&mut self) -> u64 {
        let now_ms = self.shared.clock.now_ms();
        self.last_taken_at = if now_ms >= self.last_taken_at { now_ms } else { self.last_taken_at + 1 };
        self.last_taken_at
    }

    /// Writes events that are not known yet, with their ids and counts.
    fn write_events(&mut self, batches: &[Batch]) -> StoreResult<Vec<PopupEventsAccepted>> {
        let taken_at = self.take_at();
        let all = || batches.iter().flat_map(|batch| &batch.events);
        let names: Vec<EventName> =
            all().map(|taken| rows::event_name(&taken.decision.user, &taken.event.id)).collect();
        let id_keys: Vec<Vec<u8>> = names.iter().map(|name| rows::event_id_key(*name)).collect();
        let stored = self.shared.store.rows_of(SPACE, &id_keys)?;
        let stored = names.iter().zip(stored).filter(|(_, stored)| stored.is_some());
        let mut known: FxHashSet<EventName> = stored.map(|(name, _)| *name).collect();
        let counted = all().map(|taken| (taken.decision.popup, taken.decision.variant.as_str(), taken_at));
        self.counts.hold(&*self.shared.store, counted)?;
        let mut names = names.into_iter().zip(id_keys);
        let mut changes = Vec::new();
        let mut answers = Vec::new();
        let configuration = self.shared.configuration.read().clone();
        for batch in batches {
            let mut accepted = PopupEventsAccepted { accepted: 0, duplicates: 0 };
            for (taken, (name, id_key)) in batch.events.iter().zip(&mut names) {
                let (event, decision) = (&taken.event, &taken.decision);
                if !known.insert(name) {
                    accepted.duplicates += 1;
                    continue;
                }
                accepted.accepted += 1;
                let kind = Counted::from(event.kind);
                let popup = configuration.as_ref().and_then(|all| all.by_no.get(&decision.popup));
                let stored = StoredEvent {
                    id: event.id.clone(),
                    kind: kind as u8,
                    popup: decision.popup,
                    popup_id: popup.map(|popup| popup.id.to_string()).unwrap_or_default(),
                    variant: decision.variant.clone(),
                    user: decision.user.clone(),
                    decision: event.decision.clone(),
                    at: event.at.unwrap_or(taken_at),
                    button: event.button.clone(),
                    value: event.value,
                };
                changes.push(rows::put(rows::event_key(taken_at, name), rows::encode(&stored)));
                changes.push(rows::put(id_key, taken_at.to_be_bytes().to_vec()));
                self.counts.count(decision.popup, &decision.variant, kind, taken_at);
            }
            answers.push(accepted);
        }
        if !changes.is_empty() {
            changes.push(rows::put(rows::last_taken_key(), rows::encode(&taken_at)));
            self.write(changes)?;
        }
        Ok(answers)
    }
}
