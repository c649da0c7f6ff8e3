//! Reads from the store that sessions ask for: how many wait, how many run, and for whom none begins.
//!
//! They run on the threads that binds, resumes and HTTP wait for too, so that their number is bounded over all
//! sessions, those that have gone since included: closing a connection takes no question back.

use crate::{
    commands::Command,
    shard::{After, Shard},
};
use std::sync::Arc;
use tidings_engine::{Engine, model::UserNo};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Reads of sessions that run at once. The runtime has more blocking threads than these, for what else needs one.
pub const SESSION_READS_RUNNING: usize = 16;
/// When to ask again: by then some have ended.
const RETRY_AFTER_MS: u64 = 1_000;

/// One for all shards.
pub(crate) struct Reads {
    places_max: usize,
    places: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl Reads {
    pub(crate) fn new(places_max: usize) -> Self {
        let [places, running] = [places_max, SESSION_READS_RUNNING].map(|permits| Arc::new(Semaphore::new(permits)));
        Reads { places_max, places, running }
    }

    /// What the metrics say of them.
    fn note(&self, engine: &Engine) {
        let depth = self.places_max.saturating_sub(self.places.available_permits());
        engine.metrics.queue("session_reads", depth, self.places_max);
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let why = format!("reads of all sessions at once are limited to {}", self.places_max);
            Refusal::new(ErrorCode::QueueFull, why).retry_after(RETRY_AFTER_MS)
        })
    }
}

/// Whether a session is still there for an answer.
pub(crate) fn is_here(engine: &Engine, user: UserNo, session: u64) -> bool {
    engine.presence.registered(user).iter().any(|device| device.session == session)
}

impl Shard {
    /// Has a session's question read in its turn, on a thread that may wait for the disk. What it answers is a frame's
    /// JSON; none: the answer comes another way.
    pub(crate) fn read_for(
        &mut self,
        key: usize,
        reference: Option<u64>,
        read: impl FnOnce(&Engine) -> Option<Vec<u8>> + Send + 'static,
    ) -> After {
        let Some(user) = self.user(key) else { return After::Stays };
        let place = match self.parts.reads.place() {
            Ok(place) => place,
            Err(refusal) => return self.refuse(key, reference, refusal),
        };
        let session = match self.begin_request(key) {
            Ok(session) => session,
            Err(refusal) => return self.refuse(key, reference, refusal),
        };
        let (engine, shard) = self.handles();
        let reads = self.parts.reads.clone();
        reads.note(&engine);
        self.parts.runtime.spawn(async move {
            // It is never closed.
            let Ok(turn) = reads.running.clone().acquire_owned().await else { return };
            tokio::task::spawn_blocking(move || {
                // Theirs until the read has ended, whoever still waits for it.
                let held = (place, turn);
                let answer = if is_here(&engine, user.no, session) { read(&engine) } else { None };
                drop(held);
                reads.note(&engine);
                if let Some(json) = answer {
                    shard.tell(Command::Answer { session, json });
                }
            });
        });
        After::Stays
    }
}
