//! The stream under the HTTP library: it first returns bytes that were read before, bounds how long a write waits, and closes
//! so that the last response arrives.

use crate::{
    parse_error_responses::{ReplacementResponse, replacement_for},
    unread_responses::UnreadResponses,
};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

/// How long the peer may read nothing of a response.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long in all the peer may go on sending after the last response before the connection is closed.
const LINGER_MAX: Duration = Duration::from_secs(10);
/// How long the peer may send nothing after the last response before the connection is closed.
const LINGER_SILENCE_MAX: Duration = Duration::from_secs(2);
/// How much the peer may send after the last response, in bytes: more than the longest request.
const LINGER_BYTES_MAX: usize = 128 << 20;

/// A stream that begins with bytes that were read before. A write that waits for too long fails: a peer that does not read must
/// not hold its connection for ever.
pub(crate) struct ConnectionStream<S> {
    /// Bytes that were read before, and are returned first.
    prefix: Vec<u8>,
    prefix_read: usize,
    /// Set while a write waits: when it fires, the write fails.
    write_timeout: Option<Pin<Box<Sleep>>>,
    /// Set while a response is written in the place of one of the library's.
    replacement: Option<Box<ReplacementResponse>>,
    /// Set once the last response is written.
    lingering: Option<Box<Lingering>>,
    stopped: watch::Receiver<bool>,
    /// Told when the stream has taken all that was written.
    unread: Option<Arc<UnreadResponses>>,
    stream: S,
}

/// The time between the last response and the close.
///
/// A socket that is closed with bytes unread resets the connection, and the reset may overtake the response (RFC 1122, 4.2.2.13): a
/// client that still sends a request that was refused early would never learn why. So only the sending half is closed, and the input
/// that still arrives is read and dropped, within bounds.
struct Lingering {
    until: Instant,
    last_read_at: Instant,
    bytes_left: usize,
    timer: Pin<Box<Sleep>>,
}

impl<S> ConnectionStream<S> {
    pub(crate) fn new(prefix: Vec<u8>, stream: S, stopped: watch::Receiver<bool>) -> Self {
        ConnectionStream {
            prefix,
            prefix_read: 0,
            write_timeout: None,
            replacement: None,
            lingering: None,
            stopped,
            unread: None,
            stream,
        }
    }

    /// The same stream that tells when all responses are written.
    pub(crate) fn with_unread(mut self, unread: Arc<UnreadResponses>) -> Self {
        self.unread = Some(unread);
        self
    }

    /// The outcome of a write: an error once the write has waited for [`WRITE_TIMEOUT`].
    fn with_write_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timeout = None;
            return written;
        }
        let timeout = self.write_timeout.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + WRITE_TIMEOUT)));
        ready!(timeout.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// The stream, and the rest of the bytes that were read before.
    pub(crate) fn into_parts(mut self) -> (S, Vec<u8>) {
        self.prefix.drain(..self.prefix_read);
        (self.stream, self.prefix)
    }
}

impl Lingering {
    fn new() -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(now + LINGER_SILENCE_MAX));
        Lingering { until: now + LINGER_MAX, last_read_at: now, bytes_left: LINGER_BYTES_MAX, timer }
    }

    /// Ready when the peer has closed too, or a bound is reached.
    fn poll<S: AsyncRead + Unpin>(&mut self, stream: &mut S, context: &mut Context<'_>, stopping: bool) -> Poll<()> {
        let mut dropped = [0; 8 * 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut dropped);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.last_read_at = Instant::now();
                    self.bytes_left = self.bytes_left.saturating_sub(buffer.filled().len());
                    if self.bytes_left == 0 || self.last_read_at >= self.until {
                        return Poll::Ready(());
                    }
                }
                // The peer has closed or reset the connection.
                Poll::Ready(_) => return Poll::Ready(()),
                // The input that had arrived is read; a stopping server does not wait for more.
                Poll::Pending if stopping => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        let until = self.until.min(self.last_read_at + LINGER_SILENCE_MAX);
        self.timer.as_mut().reset(until);
        self.timer.as_mut().poll(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ConnectionStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.prefix_read < this.prefix.len() {
            let count = buffer.remaining().min(this.prefix.len() - this.prefix_read);
            buffer.put_slice(&this.prefix[this.prefix_read..this.prefix_read + count]);
            this.prefix_read += count;
            if this.prefix_read == this.prefix.len() {
                (this.prefix, this.prefix_read) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

/// Whether these bytes may be the library's response to something that it could not parse.
fn is_refusal(bytes: &[u8]) -> bool {
    bytes.get(..10).is_some_and(|start| start.starts_with(b"HTTP/1.") && start.ends_with(b"4"))
}

impl<S: AsyncWrite + Unpin> ConnectionStream<S> {
    /// Writes the replacement for `bytes`, or `bytes` themselves if they have none. Ready once all of a replacement is written.
    fn poll_write_replacement(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.replacement.is_none() {
            self.replacement = replacement_for(bytes).map(Box::new);
        }
        loop {
            let rest = self.replacement.as_deref().map_or(bytes, |response| &response.bytes[response.written..]);
            let written = Pin::new(&mut self.stream).poll_write(context, rest);
            let count = ready!(self.with_write_timeout(context, written))?;
            let Some(response) = &mut self.replacement else { return Poll::Ready(Ok(count)) };
            response.written += count;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if response.written == response.bytes.len() {
                let replaced_len = response.replaced_len;
                self.replacement = None;
                return Poll::Ready(Ok(replaced_len));
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ConnectionStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.replacement.is_some() || is_refusal(bytes) {
            return self.poll_write_replacement(context, bytes);
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.with_write_timeout(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [alone] = bytes
            && (self.replacement.is_some() || is_refusal(alone))
        {
            return self.poll_write_replacement(context, alone);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.with_write_timeout(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.unread.iter().for_each(|unread| unread.clear());
        }
        self.with_write_timeout(context, flushed)
    }

    /// Closes the sending half, then lingers.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            let shut = Pin::new(&mut this.stream).poll_shutdown(context);
            ready!(this.with_write_timeout(context, shut))?;
        }
        let stopping = *this.stopped.borrow();
        let lingering = this.lingering.get_or_insert_with(|| Box::new(Lingering::new()));
        lingering.poll(&mut this.stream, context, stopping).map(Ok)
    }
}

/// Closes a stream as [`ConnectionStream`] does.
pub(crate) async fn linger_and_close<S: AsyncRead + AsyncWrite + Unpin>(stream: S, stopped: &watch::Receiver<bool>) {
    let mut stream = ConnectionStream::new(Vec::new(), stream, stopped.clone());
    // Err: the connection is broken already.
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
        let mut ours = ConnectionStream::new(vec![], ours, stopped);
        let from = Instant::now();
        ours.write_all(&[0; 16]).await.unwrap();
        let error = ours.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!((error.kind(), from.elapsed()), (io::ErrorKind::TimedOut, WRITE_TIMEOUT));
        // A peer that reads in time gets everything.
        theirs.read_exact(&mut [0; 16]).await.unwrap();
        ours.write_all(&[0; 16]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn input_after_the_last_response_is_read_and_discarded() {
        let (ours, mut theirs) = duplex(16);
        let (_stop, stopped) = running();
        let mut ours = ConnectionStream::new(vec![], ours, stopped);
        ours.write_all(b"the answer").await.unwrap();
        let closing = tokio::spawn(async move { ours.shutdown().await });
        // Much more than the pipe holds: it is read.
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
            let mut ours = ConnectionStream::new(vec![], ours, stopped);
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
        ConnectionStream::new(vec![], ours, stopped).shutdown().await.unwrap();
        assert_eq!(from.elapsed(), Duration::ZERO);
    }
}
