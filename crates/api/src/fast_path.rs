//! Serves what apps ask most without the router and the HTTP library: `POST /v1/popups/decide` and `POST /v1/popup-events`, at every page
//! view, and the handshake of a WebSocket, at every login. Every connection starts here, unless this path is switched off. The first
//! request that is another one, or has an unusual form, goes to the library with all bytes that were read, and the connection stays there.
//!
//! Another request is recognised by the first byte that differs from all request lines, so that at most [`READ_BYTES`] of it pass through
//! here, unread. Only a request whose line is one of these is parsed.

mod head;

use crate::{
    Api,
    api_keys::{
        permissions::{self, OperationName},
        shows_stored_key,
    },
    connection_stream::WRITE_TIMEOUT,
    extract::parse,
    internal,
    problem::{PROBLEM_JSON, problem, retry_after_s},
    request_service::catch_panic,
    websocket_upgrade::check_room,
};
use axum::http::StatusCode;
use head::{Next, Operation, PopupRequest, REQUEST_BYTES_MAX, Upgrade, next};
use std::{
    future::poll_fn,
    io::{self, Write},
    pin::{Pin, pin},
    task::{Poll, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidings_domain::{function::Function, model::Actor};
use tidings_engine::{
    access,
    engine::popup_questions::{PopupAnswer, PopupCaller},
};
use tidings_listen::{ConnectionActivity, ThrottleKey};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PopupEvents, PopupEventsAccepted},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, Sleep, sleep_until, timeout},
};

/// The room that a connection has for each read, in bytes.
const READ_BYTES: usize = 2 * 1024;

impl Operation {
    /// Its name in the description.
    fn name(self) -> OperationName<'static> {
        match self {
            Operation::Decide => permissions::DECIDE,
            Operation::Report => permissions::REPORT,
        }
    }

    /// What the caller's token must allow.
    fn needs(self) -> access::Operation {
        match self {
            Operation::Decide => access::Operation::AskForPopup,
            Operation::Report => access::Operation::ReportPopupEvents,
        }
    }
}

/// How a read ended.
#[derive(Debug, PartialEq, Eq)]
enum ReadOutcome {
    More,
    /// The peer has closed its sending half.
    End,
    /// The server stops, or the peer was silent for too long.
    Over,
}

/// The value of the `Date` header, formatted once a second.
#[derive(Default)]
struct Date {
    second: u64,
    text: String,
}

impl Date {
    fn text(&mut self) -> &str {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.second || self.text.is_empty() {
            (self.second, self.text) = (second, httpdate::fmt_http_date(now));
        }
        &self.text
    }
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
    let mut caller = None;
    // The bytes of `read` that are answered.
    let mut taken = 0;
    let mut share = None;
    // When the wait for the next request, or for the rest of it, began.
    let mut waiting_since = None;
    loop {
        let next = match next(&read[taken..]) {
            // The library forwards requests to the leader.
            Next::Request(_) if api.is_led_by_another_node(Function::Popups) => Next::Other,
            // The library answers what has a reason to be refused, and adds CORS headers.
            Next::Upgrade(_) if !may_upgrade || api.config.cors.is_some() || check_room(api, None).is_err() => {
                Next::Other
            }
            // The library adds CORS headers.
            Next::Request(PopupRequest { has_origin: true, .. }) if api.config.cors.is_some() => Next::Other,
            next => next,
        };
        match next {
            Next::Request(PopupRequest { operation, body, credential, .. }) => {
                let answer_began = std::time::Instant::now();
                // The connection's place was given to another one meanwhile.
                if !activity.begin_request() {
                    return Ok(Rest::Over);
                }
                let request = &read[taken..];
                let end = body.end;
                let credential = credential.map(|credential| &request[credential]);
                let has_stored_key = credential.is_some_and(shows_stored_key);
                let answered =
                    answer(api, throttle_key, &mut caller, activity, credential, operation, &request[body]).await;
                activity.end_request();
                let status = put_answer(&mut out, api, answered, date.text());
                let latency = match operation {
                    Operation::Decide => &api.http_metrics.decisions,
                    Operation::Report => &api.http_metrics.reports,
                };
                latency.observe(status, answer_began.elapsed());
                // A connection that a key has opened is never closed for others: it must not outlive the key.
                if has_stored_key && status == StatusCode::UNAUTHORIZED {
                    write(stream, &out).await?;
                    return Ok(Rest::Over);
                }
                taken += end;
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
                match read_more(stream, &mut read, &mut idle, &mut waiting_since, idle_max, &mut told_to_stop).await? {
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

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    let written = async {
        stream.write_all(bytes).await?;
        // TLS may hold what the socket did not take.
        stream.flush().await
    };
    timeout(WRITE_TIMEOUT, written).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads at most [`READ_BYTES`] more. All waits since `waiting_since` was set count as one.
async fn read_more<S: AsyncRead + Unpin>(
    stream: &mut S,
    read: &mut Vec<u8>,
    idle: &mut Pin<&mut Sleep>,
    waiting_since: &mut Option<Instant>,
    idle_max: Duration,
    told_to_stop: &mut Pin<Box<impl Future<Output = ()> + ?Sized>>,
) -> io::Result<ReadOutcome> {
    let had = read.len();
    read.resize(had + READ_BYTES, 0);
    let count = poll_fn(|context| {
        // Before the stream: on a connection that always has input, nothing after the read would ever be polled.
        if told_to_stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(None));
        }
        let mut buffer = ReadBuf::new(&mut read[had..]);
        match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
            Poll::Ready(result) => return Poll::Ready(result.map(|()| Some(buffer.filled().len()))),
            Poll::Pending => {}
        }
        // The timer is reset when it fires, not for each request.
        let until = *waiting_since.get_or_insert_with(Instant::now) + idle_max;
        loop {
            ready!(idle.as_mut().poll(context));
            if Instant::now() >= until {
                return Poll::Ready(Ok(None));
            }
            idle.as_mut().reset(until);
        }
    })
    .await?;
    read.truncate(had + count.unwrap_or(0));
    Ok(match count {
        None => ReadOutcome::Over,
        Some(0) => ReadOutcome::End,
        Some(_) => ReadOutcome::More,
    })
}

/// The last authenticated caller of a connection, with its `Authorization` header.
type CachedCaller = Option<(Vec<u8>, Actor)>;

enum Answer {
    Decided(PopupAnswer),
    Reported(PopupEventsAccepted),
}

async fn answer(
    api: &Api,
    throttle_key: ThrottleKey,
    caller: &mut CachedCaller,
    activity: &ConnectionActivity,
    credential: Option<&[u8]>,
    operation: Operation,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let answered = catch_panic(async {
        let actor = match (&*caller, credential) {
            // Only API keys of the settings are cached: no other credential is sure to be good for the next request.
            (Some((cached, Actor::App)), Some(credential)) if cached == credential => Actor::App,
            _ => {
                api.check_throttle(throttle_key, credential)?;
                let found =
                    api.authenticate_header(credential, operation.name(), Some(activity)).map_err(|refusal| {
                        match credential {
                            Some(_) => api.count_if_auth_failure(throttle_key, refusal),
                            None => refusal,
                        }
                    })?;
                found.scopes.check(operation.needs())?;
                let actor = found.actor;
                let cached = matches!(actor, Actor::App).then_some(credential).flatten();
                let cached = cached.filter(|credential| api.is_configured_key(credential));
                *caller = cached.map(|credential| (credential.to_owned(), actor.clone()));
                actor
            }
        };
        let caller = PopupCaller { actor: &actor, session: None };
        match operation {
            Operation::Decide => Ok(Answer::Decided(api.engine.answer_popup_question(caller, body).await?)),
            Operation::Report => {
                let PopupEvents { events } = parse(body)?;
                Ok(Answer::Reported(api.engine.report_popup_events(caller, events).await?))
            }
        }
    });
    answered.await.unwrap_or_else(|panic| Err(internal(&format!("panic: {panic}"))))
}

/// Appends the response, and returns its status.
fn put_answer(out: &mut Vec<u8>, api: &Api, answered: Result<Answer, Refusal>, date: &str) -> StatusCode {
    // Writing to memory cannot fail.
    let (status, _) = match answered {
        Ok(Answer::Decided(PopupAnswer { decision: Some(json), .. })) => {
            (StatusCode::OK, put_json(out, "200 OK", &json, date))
        }
        Ok(Answer::Decided(PopupAnswer { decision: None, retry_after_ms })) => {
            out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n");
            let seconds = retry_after_ms.map(retry_after_s);
            let _ = seconds.map(|seconds| write!(out, "retry-after: {seconds}\r\n"));
            (StatusCode::NO_CONTENT, write!(out, "date: {date}\r\n\r\n"))
        }
        Ok(Answer::Reported(accepted)) => {
            let json = serde_json::to_vec(&accepted).unwrap_or_default();
            (StatusCode::ACCEPTED, put_json(out, "202 Accepted", &json, date))
        }
        Err(refusal) => {
            api.engine.metrics.count_refusal(refusal.code);
            tracing::debug!(code = %refusal.code, "refused");
            let status = StatusCode::from_u16(refusal.code.http_status());
            (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), put_refusal(out, &refusal, date))
        }
    };
    status
}

/// Appends the answer to a handshake, as the library gives it.
fn put_upgrade(out: &mut Vec<u8>, accept_key: &str, date: &str) -> io::Result<()> {
    write!(
        out,
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {accept_key}\r\n\
         date: {date}\r\n\r\n"
    )
}

fn put_json(out: &mut Vec<u8>, status: &str, json: &[u8], date: &str) -> io::Result<()> {
    let length = json.len();
    write!(
        out,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\ndate: {date}\r\n\r\n"
    )?;
    out.extend_from_slice(json);
    Ok(())
}

/// Appends the same response to a refusal as the router would give.
fn put_refusal(out: &mut Vec<u8>, refusal: &Refusal, date: &str) -> io::Result<()> {
    let problem = problem(refusal);
    let body = serde_json::to_vec(&problem)?;
    let reason = StatusCode::from_u16(problem.status).ok().and_then(|status| status.canonical_reason());
    write!(out, "HTTP/1.1 {} {}\r\ncontent-type: {PROBLEM_JSON}\r\n", problem.status, reason.unwrap_or_default())?;
    if let Some(ms) = refusal.retry_after_ms {
        write!(out, "retry-after: {}\r\n", retry_after_s(ms))?;
    }
    if refusal.code == ErrorCode::Unauthorized || refusal.code == ErrorCode::TokenExpired {
        write!(out, "www-authenticate: Bearer\r\n")?;
    }
    write!(out, "content-length: {}\r\ndate: {date}\r\n\r\n", body.len())?;
    out.extend_from_slice(&body);
    Ok(())
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
            read_more(&mut busy, &mut read, &mut idle, &mut waiting_since, IDLE_MAX, stop).await.unwrap()
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
        let first = read_more(&mut ours, &mut read, &mut idle, &mut waiting_since, IDLE_MAX, &mut stop).await.unwrap();
        assert_eq!(first, ReadOutcome::More);
        waiting_since = None;
        let from = Instant::now();
        while read_more(&mut ours, &mut read, &mut idle, &mut waiting_since, IDLE_MAX, &mut stop).await.unwrap()
            == ReadOutcome::More
        {}
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
