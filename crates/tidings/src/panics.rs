//! A panic is a defect. On a thread that runs tasks or requests, a panic ends that one task, and its caller gets an error. Any
//! other thread works for the whole server: without it the server would accept work that nobody does, so the process ends.

use std::{panic, thread};

/// The names of runtime threads, on which a panic is caught and ends one task only.
const TASK_THREADS: [&str; 3] = ["http", "bus", "postgres"];

/// Installs a hook that aborts the process when one of the server's own threads panics; the supervisor starts it again.
/// Acknowledged messages are stored by then, so none is lost.
pub(crate) fn abort_on_panic() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let why = panic.payload_as_str().unwrap_or("no reason given");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = std::backtrace::Backtrace::capture();
        if TASK_THREADS.contains(&name) {
            tracing::error!(thread = name, place, %backtrace, "a defect ended a task: {why}");
        } else {
            tracing::error!(thread = name, place, %backtrace, "a defect ended a thread, and so the server: {why}");
            // Also where logs are switched off.
            crate::logs::print_error(&format!(
                "a defect ended the thread {name:?}, and so the server: {why} ({place})"
            ));
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{
        os::unix::process::ExitStatusExt,
        process::{Command, Output},
    };

    const THREAD: &str = "TIDINGS_TEST_PANIC_ON";

    /// Runs this test again in a process of its own, in which a thread of this name panics.
    fn panic_on(thread: &str) -> Output {
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.args(["--exact", "panics::tests::a_panic_on_a_server_thread_ends_the_process", "--nocapture"]);
        itself.env(THREAD, thread).output().unwrap()
    }

    #[test]
    fn a_panic_on_a_server_thread_ends_the_process() {
        if let Ok(name) = std::env::var(THREAD) {
            abort_on_panic();
            let thread = thread::Builder::new().name(name).spawn(|| panic!("on purpose")).unwrap();
            assert!(thread.join().is_err());
            return;
        }
        let ended = panic_on("committer");
        assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("\"committer\"") && said.contains("on purpose"), "{said}");
        for name in TASK_THREADS {
            assert!(panic_on(name).status.success(), "a panic on {name} ended the process");
        }
    }
}
