//! Memory that was freed goes back to the system.
//!
//! The allocator keeps what is freed for a second, in case it is wanted again, and gives it back when a thread next collects. Threads
//! collect after so many allocations, or when they end: on a server that has become quiet after a peak neither happens, and it would
//! keep all that the peak took. So from time to time a thread begins, and ends.

use std::{hint::black_box, thread, time::Duration};

/// How often.
const INTERVAL: Duration = Duration::from_secs(10);

pub(crate) async fn give_back() {
    let mut timer = tokio::time::interval(INTERVAL);
    loop {
        timer.tick().await;
        // It collects only if it has allocated. Err: no thread can be had now; another time.
        let _ = thread::Builder::new().name("memory".into()).spawn(|| drop(black_box(vec![0u8; 64])));
    }
}
