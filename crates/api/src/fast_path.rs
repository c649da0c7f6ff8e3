//! Serves what apps ask most without the router and the HTTP library: `POST /v1/popups/decide` and `POST /v1/popup-events`, at every page
//! view, `POST /v1/push`, and the handshake of a WebSocket, at every login. Every connection starts here, unless this path is switched off. The first
//! request that is another one, or has an unusual form, goes to the library with all bytes that were read, and the connection stays there.
//!
//! Another request is recognised by the first byte that differs from all request lines, so that at most [`READ_BYTES`] of it pass through
//! here, unread. Only a request whose line is one of these is parsed.
//!
//! A node that does not lead what a request needs sends it to the leader from here, those of all clients on a few connections. The leader
//! answers what came on such a connection side by side, and in order: the requests are different clients'.

mod callers;
mod forwarded;
mod head;
mod responses;

use crate::{Api, connection_stream::WRITE_TIMEOUT, pipelines::REQUEST_BYTES_MAX, websocket_upgrade::check_room};
use axum::http::StatusCode;
use callers::{Callers, WholeRequest};
use forwarded::{Waits, serve_forwarded};
use head::{FrequentRequest, Next, Upgrade, next};
use responses::{Date, finish, put_answer, put_upgrade};
use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Poll, ready},
    time::Duration,
};
use tidings_listen::{ConnectionActivity, ThrottleKey};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, Sleep, sleep_until, timeout},
};

/// The room that a connection has for each read, in bytes.
const READ_BYTES: usize = 2 * 1024;

/// How a read ended.
#[derive(Debug, PartialEq, Eq)]
enum ReadOutcome {
    More,
    /// The peer has closed its sending half.
    End,
    /// The server stops, or the peer was silent for too long.
    Over,
}

/// What becomes of a connection.
pub(crate) enum Rest {
    /// It has ended or must stop.
    Over,
    /// The library serves it from here on, beginning with these bytes that were read and not answered.
    Library(Vec<u8>),
    /// It is a WebSocket: its handshake is answered, and these bytes came after it.
    WebSocket(Vec<u8>),
}

/// Serves requests until another part of the server is needed, or the connection is over. `may_upgrade`: the connection may become a
/// WebSocket.
pub(crate) async fn serve_frequent_requests<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    api: &Api,
    throttle_key: ThrottleKey,
    activity: &ConnectionActivity,
    may_upgrade: bool,
    idle_max: Duration,
    mut told_to_stop: Pin<Box<impl Future<Output = ()>>>,
) -> io::Result<Rest> {
    let mut idle = pin!(sleep_until(Instant::now() + idle_max));
    let (mut read, mut out, mut date) = (Vec::new(), Vec::new(), Date::default());
    let mut callers = Callers::new(api, throttle_key, activity);
    // The bytes of `read` that are answered.
    let mut taken = 0;
    let mut share = None;
    // When the wait for the next request, or for the rest of it, began.
    let mut waiting_since = None;
    loop {
        let next = match next(&read[taken..]) {
            // The library answers what has a reason to be refused, and adds CORS headers.
            Next::Upgrade(_) if !may_upgrade || api.config.cors.is_some() || check_room(api, None).is_err() => {
                Next::Other
            }
            Next::Request(request) if is_for_library(api, &request) => Next::Other,
            next => next,
        };
        match next {
            Next::Request(request) if request.is_forwarded => {
                if !out.is_empty() {
                    write(stream, &out).await?;
                    out.clear();
                }
                read.drain(..taken);
                taken = 0;
                let waits = Waits { idle: &mut idle, idle_max, told_to_stop: &mut told_to_stop };
                // Boxed here and below: their state is large, and no part of that of every connection. A key that is over ends the
                // connection of its client, and not this one, which is of all clients of a node.
                let served = Box::pin(serve_forwarded(stream, api, &mut callers, activity, read, &mut date, waits));
                let Some(rest) = served.await? else { return Ok(Rest::Over) };
                read = rest;
                share = None;
                waiting_since = None;
            }
            Next::Request(request) => {
                let answer_began = std::time::Instant::now();
                // The connection's place was given to another one meanwhile.
                if !activity.begin_request() {
                    return Ok(Rest::Over);
                }
                let request = WholeRequest::at(taken, request);
                let answered = if api.is_led_by_another_node(request.operation.function()) {
                    Box::pin(callers.ask_leader(&read, &request)).await
                } else {
                    callers.answer(&read, &request).await.map(Some)
                };
                activity.end_request();
                let Some(answered) = answered.transpose() else {
                    // The library forwards it.
                    write(stream, &out).await?;
                    read.drain(..taken);
                    return Ok(Rest::Library(read));
                };
                let status = finish(&mut out, api, request.operation, answered, date.text(), answer_began);
                // A connection that a key has opened is never closed for others: it must not outlive the key.
                if request.has_stored_key(&read) && status == StatusCode::UNAUTHORIZED {
                    write(stream, &out).await?;
                    return Ok(Rest::Over);
                }
                taken = request.body.end;
                share = None;
                waiting_since = None;
            }
            // It leaves the HTTP connections when it is adopted, and until then it is busy.
            Next::Upgrade(Upgrade { length, accept_key }) => {
                let answer_began = std::time::Instant::now();
                if !activity.begin_request() {
                    return Ok(Rest::Over);
                }
                // Writing to memory cannot fail.
                let _ = put_upgrade(&mut out, &accept_key, date.text());
                write(stream, &out).await?;
                api.http_metrics.upgrades.observe(StatusCode::SWITCHING_PROTOCOLS, answer_began.elapsed());
                read.drain(..taken + length);
                return Ok(Rest::WebSocket(read));
            }
            Next::Other => {
                write(stream, &out).await?;
                read.drain(..taken);
                return Ok(Rest::Library(read));
            }
            Next::Incomplete => {
                if !out.is_empty() {
                    write(stream, &out).await?;
                    out.clear();
                }
                read.drain(..taken);
                taken = 0;
                // A long request takes memory from the budget of all bodies while it waits for its rest.
                if read.len() > READ_BYTES {
                    let share = share.get_or_insert_with(|| api.bodies.share(REQUEST_BYTES_MAX));
                    if let Err(refusal) = share.grow_to(read.len() + READ_BYTES) {
                        put_answer(&mut out, api, Err(refusal), date.text());
                        write(stream, &out).await?;
                        return Ok(Rest::Over);
                    }
                }
                let is_first = read.is_empty();
                let wait = (&mut waiting_since, idle_max);
                match read_more(stream, &mut read, READ_BYTES, &mut idle, wait, &mut told_to_stop).await? {
                    ReadOutcome::More => {}
                    // The library says what becomes of a request that broke off.
                    ReadOutcome::End if !is_first => return Ok(Rest::Library(read)),
                    ReadOutcome::End | ReadOutcome::Over => return Ok(Rest::Over),
                }
                if is_first {
                    waiting_since = None;
                }
            }
        }
    }
}

/// The library adds CORS headers.
fn is_for_library(api: &Api, request: &FrequentRequest) -> bool {
    request.has_origin && api.config.cors.is_some()
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    let written = async {
        stream.write_all(bytes).await?;
        // TLS may hold what the socket did not take.
        stream.flush().await
    };
    timeout(WRITE_TIMEOUT, written).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads at most `room` bytes more. All waits since `waiting_since` was set count as one. What is dropped before its end has read nothing.
async fn read_more<S: AsyncRead + Unpin>(
    stream: &mut S,
    read: &mut Vec<u8>,
    room: usize,
    idle: &mut Pin<&mut Sleep>,
    (waiting_since, idle_max): (&mut Option<Instant>, Duration),
    told_to_stop: &mut Pin<Box<impl Future<Output = ()> + ?Sized>>,
) -> io::Result<ReadOutcome> {
    poll_fn(|context| {
        // Before the stream: on a connection that always has input, nothing after the read would ever be polled.
        if told_to_stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(ReadOutcome::Over));
        }
        let had = read.len();
        read.resize(had + room, 0);
        let mut buffer = ReadBuf::new(&mut read[had..]);
        let polled = Pin::new(&mut *stream).poll_read(context, &mut buffer);
        let count = buffer.filled().len();
        read.truncate(had + count);
        match polled {
            Poll::Ready(Ok(())) if count == 0 => return Poll::Ready(Ok(ReadOutcome::End)),
            Poll::Ready(result) => return Poll::Ready(result.map(|()| ReadOutcome::More)),
            Poll::Pending => {}
        }
        // The timer is reset when it fires, not for each request.
        let until = *waiting_since.get_or_insert_with(Instant::now) + idle_max;
        loop {
            ready!(idle.as_mut().poll(context));
            if Instant::now() >= until {
                return Poll::Ready(Ok(ReadOutcome::Over));
            }
            idle.as_mut().reset(until);
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::future::{pending, ready};

    const IDLE_MAX: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_connection_that_always_has_input_still_stops() {
        let (mut busy, mut read) = (tokio::io::repeat(b'x'), Vec::new());
        let mut idle = pin!(sleep_until(Instant::now() + IDLE_MAX));
        let mut waiting_since = None;
        let mut never: Pin<Box<dyn Future<Output = ()>>> = Box::pin(pending());
        let mut more = async |stop: &mut Pin<Box<dyn Future<Output = ()>>>| {
            read_more(&mut busy, &mut read, READ_BYTES, &mut idle, (&mut waiting_since, IDLE_MAX), stop).await.unwrap()
        };
        assert_eq!(more(&mut never).await, ReadOutcome::More);
        let mut now: Pin<Box<dyn Future<Output = ()>>> = Box::pin(ready(()));
        assert_eq!(more(&mut now).await, ReadOutcome::Over);
        assert_eq!(read.len(), READ_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_sent_byte_by_byte_has_one_timeout_in_all() {
        let (mut ours, mut theirs) = tokio::io::duplex(1_024);
        let sender = tokio::spawn(async move {
            let mut sent = 0;
            while theirs.write_all(b"P").await.is_ok() {
                sent += 1;
                tokio::time::sleep(Duration::from_secs(25)).await;
            }
            sent
        });
        let mut idle = pin!(sleep_until(Instant::now() + IDLE_MAX));
        let mut stop: Pin<Box<dyn Future<Output = ()>>> = Box::pin(pending());
        let (mut read, mut waiting_since) = (Vec::new(), None);
        let mut more = async |waiting_since: &mut Option<Instant>| {
            read_more(&mut ours, &mut read, READ_BYTES, &mut idle, (waiting_since, IDLE_MAX), &mut stop).await.unwrap()
        };
        assert_eq!(more(&mut waiting_since).await, ReadOutcome::More);
        waiting_since = None;
        let from = Instant::now();
        while more(&mut waiting_since).await == ReadOutcome::More {}
        assert_eq!(from.elapsed().as_secs(), 60);
        drop(ours);
        assert_eq!(sender.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_nobody_reads_times_out() {
        let (mut plain, _theirs) = tokio::io::duplex(16);
        let error = write(&mut plain, &[0; 17]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
