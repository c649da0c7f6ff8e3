//! A panic is a defect. On a thread that runs tasks or requests it ends that one, which its caller is told; any other
//! thread does something for the whole server, and a server that goes on without it would lie: so it ends too.

use std::{panic, thread};

/// Threads whose panics are caught where they happen, each task by itself.
const CAUGHT: [&str; 3] = ["http", "bus", "postgres"];

/// Has the process end when a thread of its own dies of a panic; what supervises it starts it again. What was
/// acknowledged is stored.
pub(crate) fn end_the_process() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let why = panic.payload_as_str().unwrap_or("no reason given");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = std::backtrace::Backtrace::capture();
        if CAUGHT.contains(&name) {
            tracing::error!(thread = name, place, %backtrace, "a defect ended a task: {why}");
        } else {
            tracing::error!(thread = name, place, %backtrace, "a defect ended a thread, and so the server: {why}");
            // Whoever reads no logs sees it too.
            eprintln!("tidings: a defect ended the thread {name:?}, and so the server: {why} ({place})");
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

    /// This test again, in a process of its own in which a thread of this name panics.
    fn panic_on(thread: &str) -> Output {
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.args(["--exact", "panics::tests::a_panic_on_a_server_thread_ends_the_process", "--nocapture"]);
        itself.env(THREAD, thread).output().unwrap()
    }

    #[test]
    fn a_panic_on_a_server_thread_ends_the_process() {
        if let Ok(name) = std::env::var(THREAD) {
            end_the_process();
            let thread = thread::Builder::new().name(name).spawn(|| panic!("on purpose")).unwrap();
            assert!(thread.join().is_err());
            return;
        }
        let ended = panic_on("committer");
        assert_eq!(ended.status.signal(), Some(6), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("\"committer\"") && said.contains("on purpose"), "{said}");
        for name in CAUGHT {
            assert!(panic_on(name).status.success(), "a panic on {name} ended the process");
        }
    }
}
