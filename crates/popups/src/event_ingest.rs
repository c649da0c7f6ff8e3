//! Stores reported events in the order of their reports: each once, in one write with its id and the count that it
//! raises.

use super::{
    events::EventBatch,
    rows::{self, CountKind, EventIdHash, ROWS_PER_WRITE, SPACE, StoredEvent},
    worker::Worker,
};
use rustc_hash::FxHashSet;
use tidings_domain::store::StoreResult;
use tidings_protocol::http::PopupEventsAccepted;

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
        let taken_at = self.next_taken_at();
        let all = || batches.iter().flat_map(|batch| &batch.events);
        let hashes: Vec<EventIdHash> =
            all().map(|verified| rows::event_id_hash(&verified.decision.user, &verified.event.id)).collect();
        let id_keys: Vec<Vec<u8>> = hashes.iter().map(|hash| rows::event_id_key(*hash)).collect();
        let stored = self.shared.store.rows_of(SPACE, &id_keys)?;
        let stored = hashes.iter().zip(stored).filter(|(_, stored)| stored.is_some());
        let mut known: FxHashSet<EventIdHash> = stored.map(|(hash, _)| *hash).collect();
        let counted = all().map(|verified| (verified.decision.popup, verified.decision.variant.as_str(), taken_at));
        self.counts.load(&*self.shared.store, counted)?;
        let mut hashes = hashes.into_iter().zip(id_keys);
        let mut changes = Vec::new();
        let mut answers = Vec::new();
        let configuration = self.shared.configuration.read().clone();
        for batch in batches {
            let mut accepted = PopupEventsAccepted { accepted: 0, duplicates: 0 };
            for (verified, (hash, id_key)) in batch.events.iter().zip(&mut hashes) {
                let (event, decision) = (&verified.event, &verified.decision);
                if !known.insert(hash) {
                    accepted.duplicates += 1;
                    continue;
                }
                accepted.accepted += 1;
                let kind = CountKind::from(event.kind);
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
                changes.push(rows::put(rows::event_key(taken_at, hash), rows::encode(&stored)));
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
