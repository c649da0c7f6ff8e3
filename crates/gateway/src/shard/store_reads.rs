//! Reads from the store on behalf of sessions, and the limits on how many wait and run.
//!
//! The reads run on the threads that binds, resumes and HTTP need too. So their number is bounded over all sessions,
//! including sessions that have ended since: closing a connection does not cancel its reads.

use super::{FrameOutcome, Shard, defects::or_defect};
use crate::{
    commands::Command,
    encoding::{error_json, json},
};
use std::sync::Arc;
use tidings_domain::model::UserNo;
use tidings_engine::Engine;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::ServerFrame,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Reads of sessions that run at once. The runtime has more blocking threads than these, for everything else.
pub const SESSION_READS_RUNNING: usize = 16;
/// When to ask again: some reads will have ended by then.
const RETRY_AFTER_MS: u64 = 1_000;

/// The limits of session reads, shared by all shards.
pub(crate) struct StoreReads {
    queued_max: usize,
    queue: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

impl StoreReads {
    pub(crate) fn new(queued_max: usize) -> Self {
        let [queue, running] = [queued_max, SESSION_READS_RUNNING].map(|permits| Arc::new(Semaphore::new(permits)));
        StoreReads { queued_max, queue, running }
    }

    fn report_depth(&self, engine: &Engine) {
        let depth = self.queued_max.saturating_sub(self.queue.available_permits());
        engine.metrics.set_queue("session_reads", depth, self.queued_max);
    }

    fn try_enqueue(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.queue.clone().try_acquire_owned().map_err(|_| {
            let why = format!("reads of all sessions at once are limited to {}", self.queued_max);
            Refusal::new(ErrorCode::QueueFull, why).retry_after(RETRY_AFTER_MS)
        })
    }
}

/// A read of a session that is counted and not yet run.
struct AdmittedRead {
    queued: OwnedSemaphorePermit,
    session: u64,
}

/// Whether the session still exists, and can be answered.
pub(super) fn is_session_live(engine: &Engine, user: UserNo, session: u64) -> bool {
    engine.presence.local_sessions(user).iter().any(|device| device.session == session)
}

/// The same read, which answers with a refusal if it panics.
fn answering(
    reference: Option<u64>,
    read: impl FnOnce(&Engine) -> Option<Vec<u8>> + Send + 'static,
) -> impl FnOnce(&Engine) -> Option<Vec<u8>> + Send + 'static {
    move |engine| {
        or_defect(|| Ok(read(engine))).unwrap_or_else(|refusal| {
            engine.metrics.count_refusal(refusal.code);
            Some(error_json(reference, &refusal))
        })
    }
}

/// The answer to a session's read, a frame's JSON.
pub(super) fn answer_or_refusal<T>(
    engine: &Engine,
    reference: Option<u64>,
    read: Result<T, Refusal>,
    answer: impl FnOnce(T) -> ServerFrame,
) -> Vec<u8> {
    match read {
        Ok(read) => json(&answer(read)),
        Err(refusal) => {
            engine.metrics.count_refusal(refusal.code);
            error_json(reference, &refusal)
        }
    }
}

impl Shard {
    /// Runs a session's read on a thread that may wait for the disk, when its turn comes. `read` answers with a frame's
    /// JSON; `None`: the answer is sent by other means.
    pub(super) fn spawn_store_read(
        &mut self,
        key: usize,
        reference: Option<u64>,
        read: impl FnOnce(&Engine) -> Option<Vec<u8>> + Send + 'static,
    ) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        match self.admit_store_read(key) {
            Ok(admitted) => self.run_store_read(user.no, admitted, answering(reference, read)),
            Err(refusal) => self.refuse(key, reference, refusal),
        }
    }

    /// The same, with requests whose order matters: they are submitted in the order in which they are spawned.
    pub(super) fn spawn_in_order(
        &mut self,
        key: usize,
        reference: Option<u64>,
        submit: impl FnOnce(&Engine) -> Option<Vec<u8>> + Send + 'static,
    ) -> FrameOutcome {
        let Some(user) = self.user(key) else { return FrameOutcome::Continue };
        match self.admit_store_read(key) {
            Ok(admitted) => {
                let requests = self.connections[key].ordered_requests();
                // Guarded here and not where it runs: whichever thread comes first takes the oldest.
                requests.push_submission(answering(reference, submit));
                self.run_store_read(user.no, admitted, move |engine| requests.submit_oldest(engine))
            }
            Err(refusal) => self.refuse(key, reference, refusal),
        }
    }

    /// Counts a read of a session.
    ///
    /// # Errors
    /// `queue_full` and `rate_limited` for too many reads of all sessions, or of this one.
    fn admit_store_read(&mut self, key: usize) -> Result<AdmittedRead, Refusal> {
        let queued = self.parts.reads.try_enqueue()?;
        Ok(AdmittedRead { queued, session: self.begin_request(key)? })
    }

    /// Runs an admitted read, as [`Shard::spawn_store_read`] says.
    fn run_store_read(
        &mut self,
        user: UserNo,
        admitted: AdmittedRead,
        read: impl FnOnce(&Engine) -> Option<Vec<u8>> + Send + 'static,
    ) -> FrameOutcome {
        let AdmittedRead { queued, session } = admitted;
        let (engine, shard) = self.handles();
        let reads = self.parts.reads.clone();
        reads.report_depth(&engine);
        self.parts.runtime.spawn(async move {
            // The semaphore is never closed.
            let Ok(running) = reads.running.clone().acquire_owned().await else { return };
            tokio::task::spawn_blocking(move || {
                // The permits are held until the read has ended, even if its session ends before.
                let answer = if is_session_live(&engine, user, session) { read(&engine) } else { None };
                drop(queued);
                reads.report_depth(&engine);
                if let Some(json) = answer {
                    shard.send(Command::Answer { session, json, running: Some(running) });
                }
            });
        });
        FrameOutcome::Continue
    }
}
