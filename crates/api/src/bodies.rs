//! Requests' bodies on their way in: how long they may be, how slowly they may come, and how much all of them may hold at once.

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

/// A body that has not come by then is given up, so that a slow sender does not hold its connection and its bytes;
const TIME_MAX: Duration = Duration::from_secs(10);
/// and for so many bytes that came it has a second more: the longest list of users may take 20 minutes.
const BYTES_A_SECOND_MIN: usize = 64 * 1024;
/// When who found no room should come back.
const RETRY_AFTER_MS: u64 = 1_000;
/// What is read of a body that nobody asked for, so that the next request on its connection can be; longer ones end the connection.
const UNREAD_BYTES_MAX: u64 = 64 * 1024;
const UNREAD_TIME_MAX: Duration = Duration::from_secs(1);

/// The bytes that all bodies which are being read hold together.
#[derive(Debug)]
pub(crate) struct Bodies {
    most: usize,
    held: AtomicUsize,
}

/// What one body holds of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    bodies: Arc<Bodies>,
    bytes: usize,
    /// All, or for those that may be long three quarters: single sends find room while uploads have theirs full.
    most: usize,
}

impl Bodies {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Bodies { most, held: AtomicUsize::new(0) })
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The share of a body that may become so long.
    pub(crate) fn share(self: &Arc<Self>, length_max: usize) -> Share {
        let most = if length_max <= SEND_BODY_BYTES_MAX { self.most } else { self.most / 4 * 3 };
        Share { bodies: self.clone(), bytes: 0, most }
    }
}

impl Share {
    /// Makes it at least so large.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Refusal> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let held = self.bodies.held.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        // What was added too much goes with the share.
        match held.saturating_add(more) <= self.most {
            true => Ok(()),
            false => {
                let detail = format!("request bodies that are being read are limited to {} bytes in all", self.most);
                Err(Refusal::new(ErrorCode::QueueFull, detail).retry_after(RETRY_AFTER_MS))
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.bodies.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body, and its share for as long as it is there.
#[derive(Debug)]
pub(crate) struct Collected {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Collected {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Collected> for Bytes {
    fn from(collected: Collected) -> Bytes {
        Bytes::from_owner(collected)
    }
}

/// A body's bytes, if they come in time, are no more than `most`, and there is room for them.
pub(crate) async fn collect<B>(bodies: &Arc<Bodies>, mut body: B, most: usize, name: &str) -> Result<Collected, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let too_long = |length| Refusal::limit(name, most as u64, length);
    let told = body.size_hint();
    if told.lower() > most as u64 {
        return Err(too_long(told.lower()));
    }
    let mut share = bodies.share(most);
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
            frame.map_err(|error| Refusal::new(ErrorCode::Malformed, format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if length + data.len() > most {
            return Err(too_long((length + data.len()) as u64));
        }
        // Most bodies are one frame, which then needs no copy.
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
    Ok(Collected { bytes, _share: share })
}

/// The size of a buffer that has grown to hold so many bytes.
fn grown(buffer: &BytesMut, length: usize) -> usize {
    if length <= buffer.capacity() { buffer.capacity() } else { length.max(2 * buffer.capacity()) }
}

async fn next_frame<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context)).await
}

/// Reads what is left of a short body that nobody wants. False: its connection cannot be used again.
pub(crate) async fn finish<B: Body<Data = Bytes> + Unpin>(mut body: B) -> bool {
    if body.size_hint().lower() > UNREAD_BYTES_MAX {
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
            if length > UNREAD_BYTES_MAX {
                return false;
            }
        }
    };
    timeout(UNREAD_TIME_MAX, read).await.unwrap_or(false)
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

    /// A body of the parts that are sent.
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
        let bodies = Bodies::new(4_000);
        let (sender, first) = body();
        let part = Bytes::from(vec![7; 1_000]);
        for _ in 0..2 {
            sender.try_send(part.clone()).unwrap();
        }
        drop(sender);
        let first = collect(&bodies, first, 4_000, "body").await.unwrap();
        assert_eq!((first.as_ref().len(), bodies.held()), (2_000, 2_000));
        let (sender, second) = body();
        for _ in 0..3 {
            sender.try_send(part.clone()).unwrap();
        }
        let refusal = collect(&bodies, second, 4_000, "body").await.unwrap_err();
        assert_eq!((refusal.code, refusal.retry_after_ms), (ErrorCode::QueueFull, Some(RETRY_AFTER_MS)));
        assert_eq!(bodies.held(), 2_000, "what was refused holds nothing");
        let kept: Bytes = first.into();
        let copy = kept.clone();
        drop(kept);
        assert_eq!(bodies.held(), 2_000);
        drop(copy);
        assert_eq!(bodies.held(), 0);
    }

    #[test]
    fn long_bodies_leave_room_for_single_sends() {
        let bodies = Bodies::new(4 * SEND_BODY_BYTES_MAX);
        let mut long = bodies.share(SEND_BODY_BYTES_MAX + 1);
        assert!(long.grow_to(3 * SEND_BODY_BYTES_MAX).is_ok());
        assert!(bodies.share(SEND_BODY_BYTES_MAX + 1).grow_to(1).is_err());
        assert!(bodies.share(SEND_BODY_BYTES_MAX).grow_to(SEND_BODY_BYTES_MAX).is_ok());
        assert!(bodies.share(SEND_BODY_BYTES_MAX).grow_to(SEND_BODY_BYTES_MAX + 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_arrives_too_slowly_is_refused() {
        let bodies = Bodies::new(16 << 20);
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
            let collected = collect(&bodies, body, 40 << 20, "body").await;
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
