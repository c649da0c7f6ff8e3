//! Takes no more memory from the system than is needed, and returns what is freed.
//!
//! The allocator (mimalloc) keeps freed pages for a second, in case they are needed again, and releases them when a thread next
//! collects. A thread collects after a number of allocations, or when it ends. On a server that has become quiet after a peak neither
//! happens, and the process would keep the memory of the peak. So a short-lived thread is started from time to time.

use std::{hint::black_box, thread, time::Duration};

/// How often a thread is started to collect.
const INTERVAL: Duration = Duration::from_secs(10);

pub(crate) async fn release_periodically() {
    let mut timer = tokio::time::interval(INTERVAL);
    loop {
        timer.tick().await;
        // A thread collects only if it has allocated. Err: the system has no thread to give now; the next tick tries again.
        let _ = thread::Builder::new().name("memory".into()).spawn(|| drop(black_box(vec![0u8; 64])));
    }
}

/// Has the kernel back this process with pages of the usual size from here on, whatever the allocator asks for.
///
/// The allocator asks for huge pages. Each of its threads has pages of its own for each size of allocation, of which few
/// are full. `tidings bench connect --devices 3000 --gateways 0 --via ws` with `--set TIDINGS_HUGE_PAGES=true`, and
/// without, shows what they cost.
pub(crate) fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "the kernel may back memory with huge pages");
    }
}
