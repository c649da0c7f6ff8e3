//! Answers what another node sends on a connection: the requests of many clients, none of which waits for another. Each begins when it has
//! arrived, and is answered in its turn.

use super::{
    READ_BYTES, ReadOutcome,
    callers::{Answer, Callers, WholeRequest},
    head::{Next, next},
    is_for_library, read_more,
    responses::{Date, finish, put_answer},
    write,
};
use crate::{
    Api,
    pipelines::{Operation, REQUEST_BYTES_MAX},
};
use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, poll_immediate},
    stream::FuturesOrdered,
};
use std::{
    collections::VecDeque,
    future::pending,
    io,
    pin::{Pin, pin},
    time::{Duration, Instant},
};
use tidings_listen::ConnectionActivity;
use tidings_protocol::error::Refusal;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Sleep,
};

/// The room of a read that follows one which has filled its room, in bytes.
const LONG_READ_BYTES: usize = 16 * 1024;
/// Responses of more than this are written before the next is added, in bytes.
const WRITE_BYTES: usize = 64 * 1024;
/// Requests that are under way at once, and their bytes; the last may go beyond.
const REQUESTS_MAX: usize = 64;
const BYTES_MAX: usize = 64 * 1024;

/// What ends the wait for the next request of a connection.
pub(super) struct Waits<'w, 's, F: ?Sized> {
    pub(super) idle: &'w mut Pin<&'s mut Sleep>,
    pub(super) idle_max: Duration,
    pub(super) told_to_stop: &'w mut Pin<Box<F>>,
}

/// A request whose turn to be answered has come.
struct Answered {
    operation: Operation,
    bytes: usize,
    began: Instant,
    answer: Result<Answer, Refusal>,
}

/// The requests of a connection that are under way, in their order.
#[derive(Default)]
struct UnderWay<'a> {
    answers: FuturesOrdered<BoxFuture<'a, Answered>>,
    /// Their turn has come while something else was written.
    answered: VecDeque<Answered>,
    bytes: usize,
}

impl<'a> UnderWay<'a> {
    fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.answered.is_empty()
    }

    fn has_room(&self) -> bool {
        self.answers.len() + self.answered.len() < REQUESTS_MAX && self.bytes < BYTES_MAX
    }

    /// Begins a request. Answers it if that takes no wait and its turn is now, as with most questions.
    async fn begin(
        &mut self,
        request: &WholeRequest,
        answer: impl Future<Output = Result<Answer, Refusal>> + Send + 'a,
    ) -> Option<Answered> {
        let (operation, bytes, began) = (request.operation, request.body.len(), Instant::now());
        let mut answered = async move { Answered { operation, bytes, began, answer: answer.await } }.boxed();
        if self.is_empty()
            && let Some(answered) = poll_immediate(&mut answered).await
        {
            return Some(answered);
        }
        self.bytes += bytes;
        self.answers.push_back(answered);
        None
    }

    /// The next in turn. Waits for it, and for ever if there is none.
    async fn next(&mut self) -> Answered {
        if self.answered.is_empty() {
            self.advance().await;
        }
        let Some(answered) = self.answered.pop_front() else { return pending().await };
        self.bytes -= answered.bytes;
        answered
    }

    /// Goes on with all of them until the next can be answered.
    async fn advance(&mut self) {
        self.answered.extend(self.answers.next().await);
    }

    /// Writes while they go on: what one holds others may need, and the peer may be slow to read.
    async fn write<S: AsyncWrite + Unpin>(&mut self, stream: &mut S, out: &[u8]) -> io::Result<()> {
        let mut writing = pin!(write(stream, out));
        loop {
            tokio::select! {
                biased;
                written = &mut writing => return written,
                () = self.advance(), if !self.answers.is_empty() => {}
            }
        }
    }
}

/// Serves requests of another node until something else comes. Returns the bytes that are not answered; `None`: the connection is over.
pub(super) async fn serve_forwarded<S: AsyncRead + AsyncWrite + Unpin, F: Future<Output = ()> + ?Sized>(
    stream: &mut S,
    api: &Api,
    callers: &mut Callers<'_>,
    activity: &ConnectionActivity,
    mut read: Vec<u8>,
    date: &mut Date,
    Waits { idle, idle_max, told_to_stop }: Waits<'_, '_, F>,
) -> io::Result<Option<Vec<u8>>> {
    let (mut under_way, mut is_busy, mut out) = (UnderWay::default(), false, Vec::new());
    let (mut room, mut share, mut waiting_since) = (READ_BYTES, None, None);
    // Nothing more is read: something else has come, or the peer or the server ends.
    let mut end = None;
    loop {
        let (mut taken, mut is_incomplete) = (0, false);
        while end.is_none() && under_way.has_room() && out.len() < WRITE_BYTES {
            let request = match next(&read[taken..]) {
                Next::Request(request) if request.is_forwarded && !is_for_library(api, &request) => {
                    WholeRequest::at(taken, request)
                }
                Next::Incomplete => {
                    is_incomplete = true;
                    break;
                }
                Next::Request(_) | Next::Upgrade(_) | Next::Other => {
                    end = Some(ReadOutcome::More);
                    break;
                }
            };
            // The connection's place was given to another one meanwhile.
            if !is_busy && !activity.begin_request() {
                return Ok(None);
            }
            (is_busy, taken) = (true, request.body.end);
            let answer = callers.answer_forwarded(&read, &request);
            if let Some(Answered { operation, answer, began, .. }) = under_way.begin(&request, answer).await {
                finish(&mut out, api, operation, answer, date.text(), began);
            }
        }
        read.drain(..taken);
        if taken > 0 {
            waiting_since = None;
        }
        while out.len() < WRITE_BYTES
            && let Some(Answered { operation, answer, began, .. }) = under_way.next().now_or_never()
        {
            finish(&mut out, api, operation, answer, date.text(), began);
        }
        if !out.is_empty() {
            under_way.write(stream, &out).await?;
            out.clear();
        }
        // There was no room for all that has come, and now there is.
        if end.is_none() && !is_incomplete && under_way.has_room() {
            continue;
        }
        if under_way.is_empty() {
            if std::mem::take(&mut is_busy) {
                activity.end_request();
            }
            match end {
                Some(ReadOutcome::Over) => return Ok(None),
                Some(ReadOutcome::More | ReadOutcome::End) => return Ok(Some(read)),
                None => {}
            }
        } else {
            waiting_since = None;
        }
        let mut may_read = is_incomplete && under_way.has_room();
        // Bodies take memory from the budget of all.
        let held = read.len() + under_way.bytes;
        if held <= READ_BYTES {
            share = None;
        } else if may_read {
            let share = share.get_or_insert_with(|| api.bodies.share(REQUEST_BYTES_MAX));
            if let Err(refusal) = share.grow_to(held + room) {
                if under_way.is_empty() {
                    put_answer(&mut out, api, Err(refusal), date.text());
                    write(stream, &out).await?;
                    return Ok(None);
                }
                share.shrink_to(held);
                may_read = false;
            }
        }
        let (is_first, had) = (read.is_empty(), read.len());
        tokio::select! {
            biased;
            Answered { operation, answer, began, .. } = under_way.next(), if !under_way.is_empty() => {
                finish(&mut out, api, operation, answer, date.text(), began);
            }
            outcome = read_more(stream, &mut read, room, idle, (&mut waiting_since, idle_max), told_to_stop), if may_read => {
                match outcome? {
                    ReadOutcome::More if read.len() - had == room => room = LONG_READ_BYTES,
                    ReadOutcome::More => {}
                    ended => end = Some(ended),
                }
                if is_first {
                    waiting_since = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fast_path::head::FrequentRequest;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tidings_protocol::error::ErrorCode;
    use tokio::sync::oneshot;

    fn request(bytes: usize) -> WholeRequest {
        let operation = Operation::Push;
        let request =
            FrequentRequest { operation, body: 0..bytes, credential: None, has_origin: false, is_forwarded: true };
        WholeRequest::at(0, request)
    }

    fn refused(code: ErrorCode) -> Result<Answer, Refusal> {
        Err(Refusal::new(code, ""))
    }

    fn code(answered: &Answered) -> Option<ErrorCode> {
        answered.answer.as_ref().err().map(|refusal| refusal.code)
    }

    #[tokio::test]
    async fn requests_begin_as_they_come_and_are_answered_in_their_turn() {
        let (release, held) = oneshot::channel::<()>();
        let has_begun = AtomicBool::new(false);
        let mut under_way = UnderWay::default();
        let first = async {
            held.await.unwrap();
            refused(ErrorCode::Conflict)
        };
        let second = async {
            has_begun.store(true, Ordering::Relaxed);
            refused(ErrorCode::NotFound)
        };
        assert!(under_way.begin(&request(1), first).await.is_none());
        assert!(under_way.begin(&request(1), second).await.is_none(), "it is not its turn");
        assert!(under_way.next().now_or_never().is_none());
        assert!(has_begun.load(Ordering::Relaxed));
        release.send(()).unwrap();
        let answered = [under_way.next().await, under_way.next().await];
        assert_eq!(answered.each_ref().map(code), [Some(ErrorCode::Conflict), Some(ErrorCode::NotFound)]);
        let at_once = under_way.begin(&request(1), async { refused(ErrorCode::Conflict) }).await;
        assert_eq!(at_once.as_ref().and_then(code), Some(ErrorCode::Conflict), "nothing is before it");
        assert_eq!((under_way.bytes, under_way.answers.len()), (0, 0));
    }

    #[tokio::test]
    async fn requests_under_way_have_a_bound_in_number_and_bytes() {
        for (bytes, most) in [(1, REQUESTS_MAX), (BYTES_MAX / 2, 2), (2 * BYTES_MAX, 1)] {
            let mut under_way = UnderWay::default();
            let mut begun = 0;
            while under_way.has_room() {
                under_way.begin(&request(bytes), pending()).await;
                begun += 1;
            }
            assert_eq!(begun, most, "of {bytes} bytes");
        }
    }
}
