//! The thread that sends changed lines of lists to sessions.

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::{thread::JoinHandle, time::Duration};

/// The pause between two rounds. A line that changes several times in between is sent once.
const ROUND: Duration = Duration::from_millis(100);
/// Lines in one round: each costs a few reads of the store. The rest waits for the next one.
const LINES_PER_ROUND: usize = 200;

/// The engine's handle of the thread.
pub(crate) struct ListWorker {
    stop: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ListWorker {
    /// Starts the thread; `send` sends at most so many lines, and answers how many there were.
    pub(crate) fn start(send: impl Fn(usize) -> usize + Send + 'static) -> ListWorker {
        let (stop, stopped) = bounded(0);
        let run = move || {
            while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
                send(LINES_PER_ROUND);
            }
        };
        let thread = std::thread::Builder::new().name("lists".into()).spawn(run);
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no thread for lists")).ok();
        ListWorker { stop: Mutex::new(Some(stop)), thread: Mutex::new(thread) }
    }

    /// Ends the thread. What waits is not sent: the sessions are about to end.
    pub(crate) fn stop(&self) {
        self.stop.lock().take();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
