//! What the HTTP library reads from and writes to: a stream of which something was read already, with a bound on how long a
//! write waits, and a close that lets the last answer arrive.

use crate::unparsed::{Instead, instead_of};
use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

/// How long the other side may take nothing of what it is answered.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// After the last answer, how long in all the other side may go on sending before the connection is closed on it.
const LINGER_MAX: Duration = Duration::from_secs(10);
/// The same, without a byte.
const LINGER_SILENCE_MAX: Duration = Duration::from_secs(2);
/// What the other side may send meanwhile, in bytes: all of the largest request that is taken anywhere.
const LINGER_BYTES_MAX: usize = 128 << 20;

/// A stream of which something was read already. A write to it that waits for too long fails: who does not read must not
/// hold a place for ever.
pub(crate) struct ReadAhead<S> {
    ahead: Vec<u8>,
    taken: usize,
    /// Until when a write may go on waiting, if it does.
    patience: Option<Pin<Box<Sleep>>>,
    /// What is being written in the place of what the library wrote.
    instead: Option<Box<Instead>>,
    /// Set once the last answer is out.
    lingering: Option<Box<Lingering>>,
    stopped: watch::Receiver<bool>,
    stream: S,
}

/// The time between the last answer and the close.
///
/// A socket that is closed with bytes unread resets the connection, and the reset may overtake the answer (RFC 1122, 4.2.2.13): who is
/// still sending a request that was refused early would never learn why. So only the sending half is closed, and what still comes is
/// read and dropped, within bounds.
struct Lingering {
    until: Instant,
    heard: Instant,
    bytes_left: usize,
    timer: Pin<Box<Sleep>>,
}

impl<S> ReadAhead<S> {
    pub(crate) fn new(ahead: Vec<u8>, stream: S, stopped: watch::Receiver<bool>) -> Self {
        ReadAhead { ahead, taken: 0, patience: None, instead: None, lingering: None, stopped, stream }
    }

    fn with_patience<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.patience = None;
            return written;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + WRITE_TIMEOUT)));
        ready!(patience.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// The stream, and what nobody has taken of what was read of it.
    pub(crate) fn into_parts(mut self) -> (S, Vec<u8>) {
        self.ahead.drain(..self.taken);
        (self.stream, self.ahead)
    }
}

impl Lingering {
    fn new() -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + LINGER_SILENCE_MAX));
        Lingering { until: now + LINGER_MAX, heard: now, bytes_left: LINGER_BYTES_MAX, timer }
    }

    /// Ready when the other side has closed too, or a bound is reached.
    fn poll<S: AsyncRead + Unpin>(&mut self, stream: &mut S, context: &mut Context<'_>, stopping: bool) -> Poll<()> {
        let mut dropped = [0; 8 * 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut dropped);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.heard = Instant::now();
                    self.bytes_left = self.bytes_left.saturating_sub(buffer.filled().len());
                    if self.bytes_left == 0 || self.heard >= self.until {
                        return Poll::Ready(());
                    }
                }
                // The end, or a reset of theirs.
                Poll::Ready(_) => return Poll::Ready(()),
                // What had come is read; a stop does not wait for more.
                Poll::Pending if stopping => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        let until = self.until.min(self.heard + LINGER_SILENCE_MAX);
        self.timer.as_mut().reset(until);
        self.timer.as_mut().poll(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.taken < this.ahead.len() {
            let count = buffer.remaining().min(this.ahead.len() - this.taken);
            buffer.put_slice(&this.ahead[this.taken..this.taken + count]);
            this.taken += count;
            if this.taken == this.ahead.len() {
                (this.ahead, this.taken) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

/// Whether this may be an answer to what was no request.
fn is_refusal(bytes: &[u8]) -> bool {
    bytes.get(..10).is_some_and(|start| start.starts_with(b"HTTP/1.") && start.ends_with(b"4"))
}

impl<S: AsyncWrite + Unpin> ReadAhead<S> {
    /// Writes what stands for `bytes`, if something does; answers once all of it is written.
    fn poll_write_instead(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.instead.is_none() {
            self.instead = instead_of(bytes).map(Box::new);
        }
        loop {
            let rest = self.instead.as_deref().map_or(bytes, |instead| &instead.bytes[instead.written..]);
            let written = Pin::new(&mut self.stream).poll_write(context, rest);
            let count = ready!(self.with_patience(context, written))?;
            let Some(instead) = &mut self.instead else { return Poll::Ready(Ok(count)) };
            instead.written += count;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if instead.written == instead.bytes.len() {
                let stood_for = instead.stands_for;
                self.instead = None;
                return Poll::Ready(Ok(stood_for));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.instead.is_some() || is_refusal(bytes) {
            return self.poll_write_instead(context, bytes);
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.with_patience(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [alone] = bytes
            && (self.instead.is_some() || is_refusal(alone))
        {
            return self.poll_write_instead(context, alone);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.with_patience(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.with_patience(context, flushed)
    }

    /// Closes the sending half, then lingers.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            let shut = Pin::new(&mut this.stream).poll_shutdown(context);
            ready!(this.with_patience(context, shut))?;
        }
        let stopping = *this.stopped.borrow();
        let lingering = this.lingering.get_or_insert_with(|| Box::new(Lingering::new()));
        lingering.poll(&mut this.stream, context, stopping).map(Ok)
    }
}

/// Closes a stream as [`ReadAhead`] does.
pub(crate) async fn close<S: AsyncRead + AsyncWrite + Unpin>(stream: S, stopped: &watch::Receiver<bool>) {
    let mut stream = ReadAhead::new(Vec::new(), stream, stopped.clone());
    // Err: it is gone already.
    let _ = std::future::poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn running() -> (watch::Sender<bool>, watch::Receiver<bool>) {
        watch::channel(false)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_reads_times_out() {
        let (ours, mut theirs) = duplex(16);
        let (_stop, stopped) = running();
        let mut ours = ReadAhead::new(vec![], ours, stopped);
        let from = Instant::now();
        ours.write_all(&[0; 16]).await.unwrap();
        let error = ours.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!((error.kind(), from.elapsed()), (io::ErrorKind::TimedOut, WRITE_TIMEOUT));
        // Who reads in time is written to.
        theirs.read_exact(&mut [0; 16]).await.unwrap();
        ours.write_all(&[0; 16]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn input_after_the_last_response_is_read_and_discarded() {
        let (ours, mut theirs) = duplex(16);
        let (_stop, stopped) = running();
        let mut ours = ReadAhead::new(vec![], ours, stopped);
        ours.write_all(b"the answer").await.unwrap();
        let closing = tokio::spawn(async move { ours.shutdown().await });
        // Much more than fits between the two: it is taken.
        theirs.write_all(&[7; 4_096]).await.unwrap();
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "the answer");
        assert!(!closing.is_finished());
        drop(theirs);
        closing.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_closes_is_closed_after_the_linger_time() {
        let check = async |pause: Duration, expected: Duration| {
            let (ours, mut theirs) = duplex(16);
            let (_stop, stopped) = running();
            let mut ours = ReadAhead::new(vec![], ours, stopped);
            let sending = tokio::spawn(async move {
                while theirs.write_all(b"more").await.is_ok() {
                    tokio::time::sleep(pause).await;
                }
            });
            let from = Instant::now();
            ours.shutdown().await.unwrap();
            assert_eq!(from.elapsed(), expected);
            drop(ours);
            sending.await.unwrap();
        };
        check(Duration::from_secs(60), LINGER_SILENCE_MAX).await;
        check(Duration::from_millis(999), LINGER_MAX).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopping_server_does_not_linger() {
        let (ours, _theirs) = duplex(16);
        let (stop, stopped) = running();
        stop.send_replace(true);
        let from = Instant::now();
        ReadAhead::new(vec![], ours, stopped).shutdown().await.unwrap();
        assert_eq!(from.elapsed(), Duration::ZERO);
    }
}
