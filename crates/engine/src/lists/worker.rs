//! The thread that sends changed lines of lists, and changed names of users who are watched, to sessions.

use crate::{Engine, worker_thread::WorkerThread};
use crossbeam_channel::RecvTimeoutError;
use std::{sync::Weak, time::Duration};

/// The pause between two rounds. A line that changes several times in between is sent once.
const ROUND: Duration = Duration::from_millis(100);
/// Lines in one round: each costs a few reads of the store. The rest waits for the next one.
const LINES_PER_ROUND: usize = 200;
/// Users in one round whose names or pictures may have changed.
const USERS_PER_ROUND: usize = 200;

/// Starts the thread. What waits when it is stopped is not sent: the sessions are about to end.
pub(crate) fn start(engine: Weak<Engine>) -> WorkerThread {
    WorkerThread::start("lists", 0, move |stopped| {
        while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
            if let Some(engine) = engine.upgrade() {
                engine.send_list_changes(LINES_PER_ROUND);
                engine.send_changed_cards(USERS_PER_ROUND);
            }
        }
    })
}
