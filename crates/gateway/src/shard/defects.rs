//! Requests that run on other threads than the shard's are answered also when they panic.
//!
//! A panic there ends the one task. Without an answer its client would wait for the `ref` for ever, and the session would have
//! one request fewer for as long as it lives.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// The answer to a request that has panicked. The panic itself stands before this line in the log.
fn defect() -> Refusal {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let reference = COUNT.fetch_add(1, Ordering::Relaxed);
    tracing::error!(reference, "a session's request met a defect");
    Refusal::new(
        ErrorCode::Internal,
        format!("a defect of the server; its log has it as session reference={reference}"),
    )
}

/// Runs a request.
///
/// # Errors
/// Those of the request; `internal` if it has panicked.
pub(super) fn or_defect<T>(request: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    // What the request has captured goes with it; what it shares with others is changed under locks, by whole steps.
    catch_unwind(AssertUnwindSafe(request)).unwrap_or_else(|_| Err(defect()))
}

/// The same for a request that waits.
pub(super) async fn or_defect_later<T>(request: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    let mut request = pin!(request);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(context))) {
        Ok(state) => state,
        Err(_) => Poll::Ready(Err(defect())),
    })
    .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_request_that_panics_is_refused() {
        let nothing: Vec<u32> = Vec::new();
        assert_eq!(or_defect(|| Ok(nothing[0])).unwrap_err().code, ErrorCode::Internal);
        assert_eq!(or_defect(|| Ok(nothing.len())).unwrap(), 0);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let panics = async {
            tokio::task::yield_now().await;
            Ok(nothing[0])
        };
        assert_eq!(runtime.block_on(or_defect_later(panics)).unwrap_err().code, ErrorCode::Internal);
        assert_eq!(runtime.block_on(or_defect_later(async { Ok(7) })).unwrap(), 7);
    }
}
