//! Request bodies: how long one may be, how slowly it may arrive, and how much memory all of them may hold at once.

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::SEND_BODY_BYTES_MAX,
};
use tokio::time::{Instant, timeout, timeout_at};

/// The time for a body to arrive, so that a slow sender does not hold its connection and memory for ever. [`BYTES_A_SECOND_MIN`]
/// extends it.
const TIME_MAX: Duration = Duration::from_secs(10);
/// For each so many bytes that have arrived, a body has a second more: the longest list of users may take 20 minutes.
const BYTES_A_SECOND_MIN: usize = 64 * 1024;
/// When a caller whose body found no memory should retry.
const RETRY_AFTER_MS: u64 = 1_000;
/// The rest of an unread body that is read and dropped, so that the connection can carry the next request. A longer rest ends the
/// connection.
const DISCARDED_BYTES_MAX: u64 = 64 * 1024;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

/// The memory for all bodies that are being read.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    most: usize,
    held: AtomicUsize,
}

/// The part of the budget that one body holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<BodyBudget>,
    bytes: usize,
    /// How much all bodies may hold for this one to grow: the whole budget, or three quarters of it for a body that may be long. So
    /// single sends find room while uploads have filled theirs.
    most: usize,
}

impl BodyBudget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(BodyBudget { most, held: AtomicUsize::new(0) })
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// An empty share for a body of at most `length_max` bytes.
    pub(crate) fn share(self: &Arc<Self>, length_max: usize) -> BudgetShare {
        let most = if length_max <= SEND_BODY_BYTES_MAX { self.most } else { self.most / 4 * 3 };
        BudgetShare { budget: self.clone(), bytes: 0, most }
    }
}

impl BudgetShare {
    /// Makes the share at least so large, or refuses with `queue_full`.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Refusal> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let held = self.budget.held.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        // Bytes over the budget are released when the share is dropped.
        if held.saturating_add(more) <= self.most {
            Ok(())
        } else {
            let detail = format!("request bodies that are being read are limited to {} bytes in all", self.most);
            Err(Refusal::new(ErrorCode::QueueFull, detail).retry_after(RETRY_AFTER_MS))
        }
    }

    /// Gives back what is above this.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.held.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body in memory, with the share of the budget that it holds.
#[derive(Debug)]
pub(crate) struct BufferedBody {
    bytes: Bytes,
    _share: BudgetShare,
}

impl AsRef<[u8]> for BufferedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<BufferedBody> for Bytes {
    fn from(body: BufferedBody) -> Bytes {
        Bytes::from_owner(body)
    }
}

/// Reads a body into memory: refused if it arrives too slowly, is longer than `most`, or finds no room in the budget.
pub(crate) async fn collect_body<B>(
    budget: &Arc<BodyBudget>,
    mut body: B,
    most: usize,
    name: &str,
) -> Result<BufferedBody, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let too_long = |length| Refusal::limit(name, most as u64, length);
    let declared = body.size_hint();
    if declared.lower() > most as u64 {
        return Err(too_long(declared.lower()));
    }
    let mut share = budget.share(most);
    let began = Instant::now();
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let length = first.len() + all.len();
        let until = began + TIME_MAX + Duration::from_secs((length / BYTES_A_SECOND_MIN) as u64);
        let Ok(frame) = timeout_at(until, next_frame(&mut body)).await else {
            let detail = format!("the body came too slowly: {length} bytes in {} s", began.elapsed().as_secs());
            return Err(Refusal::new(ErrorCode::Malformed, detail));
        };
        let Some(frame) = frame else { break };
        let frame =
            frame.map_err(|error| Refusal::new(ErrorCode::Malformed, format!("the body ended early: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if length + data.len() > most {
            return Err(too_long((length + data.len()) as u64));
        }
        // Most bodies are one frame, which needs no copy.
        if first.is_empty() && all.is_empty() {
            share.grow_to(data.len())?;
            first = data;
            continue;
        }
        share.grow_to(grown(&all, length + data.len()))?;
        all.reserve(length + data.len() - all.len());
        all.extend_from_slice(&std::mem::take(&mut first));
        all.extend_from_slice(&data);
    }
    let bytes = if all.is_empty() { first } else { all.freeze() };
    Ok(BufferedBody { bytes, _share: share })
}

/// The capacity of a buffer that grows to hold so many bytes.
fn grown(buffer: &BytesMut, length: usize) -> usize {
    if length <= buffer.capacity() { buffer.capacity() } else { length.max(2 * buffer.capacity()) }
}

async fn next_frame<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context)).await
}

/// Reads and drops the rest of a short body. False: the rest is too long or too slow, and the connection cannot be used again.
pub(crate) async fn discard_rest<B: Body<Data = Bytes> + Unpin>(mut body: B) -> bool {
    if body.size_hint().lower() > DISCARDED_BYTES_MAX {
        return false;
    }
    let read = async {
        let mut length = 0;
        loop {
            match next_frame(&mut body).await {
                None => return true,
                Some(Err(_)) => return false,
                Some(Ok(frame)) => length += frame.data_ref().map_or(0, Bytes::len) as u64,
            }
            if length > DISCARDED_BYTES_MAX {
                return false;
            }
        }
    };
    timeout(DISCARD_TIME_MAX, read).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll},
    };
    use tokio::sync::mpsc;

    /// A body of the parts that a test sends.
    struct Parts(mpsc::Receiver<Bytes>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.poll_recv(context).map(|part| part.map(|part| Ok(Frame::data(part))))
        }
    }

    fn body() -> (mpsc::Sender<Bytes>, Parts) {
        // More than any test here sends.
        let (sender, receiver) = mpsc::channel(64);
        (sender, Parts(receiver))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_share_one_budget_and_release_their_bytes() {
        let bodies = BodyBudget::new(4_000);
        let (sender, first) = body();
        let part = Bytes::from(vec![7; 1_000]);
        for _ in 0..2 {
            sender.try_send(part.clone()).unwrap();
        }
        drop(sender);
        let first = collect_body(&bodies, first, 4_000, "body").await.unwrap();
        assert_eq!((first.as_ref().len(), bodies.held()), (2_000, 2_000));
        let (sender, second) = body();
        for _ in 0..3 {
            sender.try_send(part.clone()).unwrap();
        }
        let refusal = collect_body(&bodies, second, 4_000, "body").await.unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::QueueFull, Some(RETRY_AFTER_MS)));
        assert_eq!(bodies.held(), 2_000, "a refused body holds nothing");
        let kept: Bytes = first.into();
        let copy = kept.clone();
        drop(kept);
        assert_eq!(bodies.held(), 2_000);
        drop(copy);
        assert_eq!(bodies.held(), 0);
    }

    #[test]
    fn long_bodies_leave_room_for_single_sends() {
        let bodies = BodyBudget::new(4 * SEND_BODY_BYTES_MAX);
        let mut long = bodies.share(SEND_BODY_BYTES_MAX + 1);
        assert!(long.grow_to(3 * SEND_BODY_BYTES_MAX).is_ok());
        assert!(bodies.share(SEND_BODY_BYTES_MAX + 1).grow_to(1).is_err());
        assert!(bodies.share(SEND_BODY_BYTES_MAX).grow_to(SEND_BODY_BYTES_MAX).is_ok());
        assert!(bodies.share(SEND_BODY_BYTES_MAX).grow_to(SEND_BODY_BYTES_MAX + 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_arrives_too_slowly_is_refused() {
        let bodies = BodyBudget::new(16 << 20);
        let check = async |part: usize, pause: Duration, given_up_after_s: Option<u64>| {
            let (sender, body) = body();
            let sending = async move {
                for _ in 0..40 {
                    if sender.try_send(vec![7; part].into()).is_err() {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                }
            };
            let began = Instant::now();
            tokio::spawn(sending);
            let collected = collect_body(&bodies, body, 40 << 20, "body").await;
            match given_up_after_s {
                None => assert_eq!(collected.unwrap().as_ref().len(), 40 * part),
                Some(seconds) => {
                    assert_eq!(collected.unwrap_err().code, ErrorCode::Malformed);
                    assert_eq!(began.elapsed().as_secs(), seconds);
                }
            }
        };
        // A byte now and then: ten seconds in all.
        check(1, Duration::from_secs(1), Some(10)).await;
        // Nothing more at all.
        check(0, Duration::from_secs(600), Some(10)).await;
        // As fast as it must be, for longer.
        check(BYTES_A_SECOND_MIN / 4, Duration::from_millis(250), None).await;
        assert_eq!(bodies.held(), 0);
    }
}
