//! Serves the two requests that apps make at every page view, `POST /v1/popups/decide` and `POST /v1/popup-events`, without the
//! router and the HTTP library. Every connection starts here, unless this path is switched off or another node leads. The first request
//! that is another one, or has an unusual form, goes to the library with all bytes that were read, and the connection stays there.
//!
//! Another request is recognised by the first byte that differs from both request lines, so that at most [`READ_BYTES`] of it pass through
//! here, unread. Only a request whose line is one of the two is parsed.

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
};
use axum::http::StatusCode;
use std::{
    future::poll_fn,
    io::{self, Write},
    ops::Range,
    pin::{Pin, pin},
    task::{Poll, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tidings_domain::model::Actor;
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

/// The request lines that are served here.
const REQUEST_LINES: [(&[u8], Operation); 2] = [
    (b"POST /v1/popups/decide HTTP/1.1\r\n", Operation::Decide),
    (b"POST /v1/popup-events HTTP/1.1\r\n", Operation::Report),
];
/// The most headers of a request. A request with more goes to the library.
const HEADERS_MAX: usize = 32;
/// The longest request with its head, in bytes. A longer one goes to the library.
const REQUEST_BYTES_MAX: usize = 32 * 1024;
/// The room that a connection has for each read, in bytes.
const READ_BYTES: usize = 2 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Decide,
    Report,
}

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

/// What the bytes that were read begin with.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Too few bytes to tell, or a part of a request.
    Incomplete,
    /// A complete request.
    Request(PopupRequest),
    /// A request for the library.
    Other,
}

/// A complete request in the bytes that were read.
#[derive(Debug, PartialEq, Eq)]
struct PopupRequest {
    operation: Operation,
    body: Range<usize>,
    /// The value of the `Authorization` header.
    credential: Option<Range<usize>>,
    /// Whether it has an `Origin` header.
    has_origin: bool,
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

/// Serves requests until the connection ends or must stop (`None`), or until the library is needed: then it returns all bytes that were
/// read and not answered.
pub(crate) async fn serve_popup_requests<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    api: &Api,
    throttle_key: ThrottleKey,
    activity: &ConnectionActivity,
    idle_max: Duration,
    mut told_to_stop: Pin<Box<impl Future<Output = ()>>>,
) -> io::Result<Option<Vec<u8>>> {
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
            _ if api.is_led_by_another_node() => Next::Other,
            // The library adds CORS headers.
            Next::Request(PopupRequest { has_origin: true, .. }) if api.config.cors.is_some() => Next::Other,
            next => next,
        };
        match next {
            Next::Request(PopupRequest { operation, body, credential, .. }) => {
                let answer_began = std::time::Instant::now();
                // The connection's place was given to another one meanwhile.
                if !activity.begin_request() {
                    return Ok(None);
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
                    return Ok(None);
                }
                taken += end;
                share = None;
                waiting_since = None;
            }
            Next::Other => {
                write(stream, &out).await?;
                read.drain(..taken);
                return Ok(Some(read));
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
                        return Ok(None);
                    }
                }
                let is_first = read.is_empty();
                match read_more(stream, &mut read, &mut idle, &mut waiting_since, idle_max, &mut told_to_stop).await? {
                    ReadOutcome::More => {}
                    // The library says what becomes of a request that broke off.
                    ReadOutcome::End if !is_first => return Ok(Some(read)),
                    ReadOutcome::End | ReadOutcome::Over => return Ok(None),
                }
                if is_first {
                    waiting_since = None;
                }
            }
        }
    }
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, stream.write_all(bytes)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
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

fn next(read: &[u8]) -> Next {
    let begins = |line: &[u8]| {
        let known = read.len().min(line.len());
        read[..known] == line[..known]
    };
    let Some((line, operation)) = REQUEST_LINES.into_iter().find(|(line, _)| begins(line)) else { return Next::Other };
    // While the request line is incomplete, it may match both.
    if read.len() < line.len() {
        return Next::Incomplete;
    }
    if read.len() > REQUEST_BYTES_MAX {
        return Next::Other;
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let body = match request.parse(read) {
        Ok(httparse::Status::Complete(body)) => body,
        Ok(httparse::Status::Partial) => return Next::Incomplete,
        Err(_) => return Next::Other,
    };
    let (mut length, mut credential, mut has_origin, mut hosts) = (None, None, false, 0);
    for header in request.headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let text = std::str::from_utf8(header.value).unwrap_or_default();
            match text.parse::<usize>() {
                Ok(value) if length.is_none() && text.bytes().all(|byte| byte.is_ascii_digit()) => length = Some(value),
                _ => return Next::Other,
            }
        } else if is("authorization") {
            let from = header.value.as_ptr() as usize - read.as_ptr() as usize;
            if credential.replace(from..from + header.value.len()).is_some() {
                return Next::Other;
            }
        } else if is("content-type") {
            if !header.value.eq_ignore_ascii_case(b"application/json") {
                return Next::Other;
            }
        } else if is("connection") {
            if !header.value.eq_ignore_ascii_case(b"keep-alive") {
                return Next::Other;
            }
        } else if is("origin") {
            has_origin = true;
        } else if is("host") {
            hosts += 1;
        } else if is("transfer-encoding") || is("content-encoding") || is("expect") || is("upgrade") {
            return Next::Other;
        }
    }
    if hosts != 1 {
        return Next::Other;
    }
    // Without a length there is no body: the library refuses it.
    let Some(end) = length.map(|length| body.saturating_add(length)).filter(|end| *end <= REQUEST_BYTES_MAX) else {
        return Next::Other;
    };
    if read.len() < end {
        return Next::Incomplete;
    }
    Next::Request(PopupRequest { operation, body: body..end, credential, has_origin })
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

    #[test]
    fn another_request_is_given_up_at_the_first_byte_that_differs() {
        for other in [
            "GET /healthz HTTP/1.1\r\n",
            "POST /v1/messages HTTP/1.1\r\n",
            "POST /v1/popups/explain HTTP/1.1\r\n",
            "POST /v1/popups/decide?x HTTP/1.1\r\n",
            "POST /v1/popups/decide HTTP/1.0\r\n",
            "POST /v1/popups/decide HTTP/1.1\n",
            "POST http://x/v1/popups/decide HTTP/1.1\r\n",
            "post /v1/popups/decide HTTP/1.1\r\n",
            " POST /v1/popups/decide HTTP/1.1\r\n",
            "\r\nPOST /v1/popups/decide HTTP/1.1\r\n",
            "\x16\x03\x01",
        ] {
            let common = |line: &[u8]| line.iter().zip(other.as_bytes()).take_while(|(a, b)| a == b).count();
            let known = REQUEST_LINES.iter().map(|(line, _)| common(line)).max().unwrap();
            for read in 0..=other.len() {
                let expected = if read <= known { Next::Incomplete } else { Next::Other };
                assert_eq!(next(&other.as_bytes()[..read]), expected, "{:?}", &other[..read]);
            }
        }
    }

    #[test]
    fn a_popup_request_is_complete_with_the_last_byte_of_its_body() {
        for (line, operation) in REQUEST_LINES {
            let head = "Host: x\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\n";
            let request = [line, head.as_bytes(), b"{}"].concat();
            for read in 0..request.len() {
                assert_eq!(next(&request[..read]), Next::Incomplete, "{read} bytes");
            }
            let pipelined = [request.as_slice(), b"GET /"].concat();
            for read in [&request, &pipelined] {
                let Next::Request(found) = next(read) else { panic!("{operation:?} was not recognised") };
                assert_eq!((found.operation, &read[found.body]), (operation, &b"{}"[..]));
                assert_eq!(found.credential.map(|credential| &read[credential]), Some(&b"Bearer k"[..]));
            }
        }
    }

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
