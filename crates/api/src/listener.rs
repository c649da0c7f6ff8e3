//! HTTP connections: accepted within a limit, served until they end or the server stops.

use crate::{
    connection_setup::{read_proxy_header, tls_handshake},
    connection_stream::{ConnectionStream, linger_and_close},
    fast_path::{Rest, serve_frequent_requests},
    handover::{IntoSocket, hand_over},
    request_service::{HyperService, RequestService},
    unread_responses::UnreadResponses,
};
use hyper::server::conn::http1::{self, Parts};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use std::{
    future::{Future, poll_fn},
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};
use tidings_listen::{
    Admission, ConnectionActivity, ConnectionSlot, Descriptors,
    admission::ConnectionClass,
    descriptors::{ReserveDescriptor, is_out_of_descriptors},
    jittered_retry_after_ms,
    proxy::TrustedProxies,
    socket::{BACKLOG, listen},
};
use tidings_protocol::error::ErrorCode;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::server::TlsStream;

/// The time for a request's head to arrive; also how long a connection may idle between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest head of a request, in bytes. Above: answered with 431 and closed.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The most that the HTTP library reads ahead on a connection, in bytes.
const READ_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// The pause after an accept that failed for want of a resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How often accept looks again while many connections that were closed for others have not ended yet.
const LEAVING_PAUSE: Duration = Duration::from_millis(1);

/// A listener's address, and the rules by which it accepts.
#[derive(Clone)]
pub struct ListenerConfig {
    pub address: SocketAddr,
    /// Set: connections begin with a TLS handshake.
    pub tls: Option<Arc<ServerConfig>>,
    /// Set: connections come from these load balancers, and begin with a PROXY header.
    pub proxies: Option<Arc<TrustedProxies>>,
    /// Connections that the kernel holds until they are accepted.
    pub backlog: u32,
    pub admission: Arc<Admission>,
    pub descriptors: Arc<Descriptors>,
}

impl ListenerConfig {
    /// Without TLS and PROXY headers, and with the default admission.
    pub fn open(address: SocketAddr) -> Self {
        ListenerConfig {
            address,
            tls: None,
            proxies: None,
            backlog: BACKLOG,
            admission: Arc::new(Admission::new(Default::default())),
            descriptors: Arc::new(Descriptors::new(u64::MAX, 0)),
        }
    }
}

/// A bound listener.
pub struct Listener {
    listener: TcpListener,
    service: RequestService,
    config: ListenerConfig,
}

/// Stops the listener and its connections.
pub struct StopHandle(watch::Sender<bool>);

impl StopHandle {
    /// Stops accepting, and waits until the open connections have ended, each after its current request. Returns whether they did so
    /// within the deadline.
    pub async fn finish(self, deadline: Duration) -> bool {
        self.0.send_replace(true);
        tokio::time::timeout(deadline, self.0.closed()).await.is_ok()
    }
}

impl Listener {
    pub fn bind(mut config: ListenerConfig, service: RequestService) -> io::Result<Self> {
        let listener = TcpListener::from_std(listen(config.address, config.backlog)?)?;
        config.address = listener.local_addr()?;
        Ok(Listener { listener, service, config })
    }

    /// The listener's address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.config.address
    }

    /// Accepts in the background until the handle stops the listener.
    pub fn start(self) -> StopHandle {
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(self.run(stopped));
        StopHandle(stop)
    }

    async fn run(self, stopped: watch::Receiver<bool>) {
        let mut reserve = ReserveDescriptor::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = stop_requested(stopped.clone()) => return,
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, peer, &stopped),
                // The connection that was closed to make room gives its descriptor back.
                Err(error) if is_out_of_descriptors(&error) && self.service.slots().evict_idle() => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                Err(error) if is_out_of_descriptors(&error) => {
                    // Accept fails for want of a descriptor even when nobody waits: so it waits with a timeout, with the reserve freed.
                    reserve.release();
                    if let Ok(Ok((stream, _))) = tokio::time::timeout(ACCEPT_PAUSE, self.listener.accept()).await {
                        self.count_descriptor_refusal();
                        reject(stream, self.config.tls.is_some());
                    }
                    if !reserve.reclaim() {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
                // The peer closed the connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The next connection, once admission allows one.
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        while let Some(pause) = self.config.admission.required_pause(ConnectionClass::Http) {
            self.service.api().engine.metrics.accept_pauses.inc();
            tokio::time::sleep(pause).await;
        }
        while self.service.slots().has_eviction_backlog() {
            tokio::time::sleep(LEAVING_PAUSE).await;
        }
        let accepted = self.listener.accept().await?;
        self.config.admission.count_accepted();
        Ok(accepted)
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr, stopped: &watch::Receiver<bool>) {
        let Some(mut slot) = self.service.slots().acquire() else {
            self.service.api().engine.metrics.count_refusal(ErrorCode::QueueFull);
            return reject(stream, self.config.tls.is_some());
        };
        // Near the limit of file descriptors requests are served, but no connection may become a session.
        let may_stay = self.config.descriptors.admits(&stream);
        if may_stay {
            self.config.descriptors.count_admitted(Instant::now());
        }
        let (service, config, stopped) = (self.service.clone(), self.config.clone(), stopped.clone());
        tokio::spawn(async move {
            let evicted = slot.evicted();
            let unread = UnreadResponses::new(service.api().outbound.clone());
            let served = async {
                let reserve = (!may_stay).then_some(&config.descriptors);
                let context = (&mut slot, reserve, &unread);
                if let Err(error) = serve_connection(stream, peer, service, context, &config, stopped).await {
                    tracing::debug!(%peer, %error, "a connection ended before its first request");
                }
            };
            let (mut served, mut evicted) = (pin!(served), pin!(evicted));
            // By hand: each wake of a connection comes by here, and a `select!` costs as much as a small request's JSON.
            let ended = poll_fn(|context| {
                if served.as_mut().poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                if evicted.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Some("it was idle, and another one needed its place"));
                }
                unread.poll_closed(context).map(|()| Some("its client does not read, and others need the memory"))
            });
            if let Some(why) = ended.await {
                tracing::debug!(%peer, why, "a connection was closed");
            }
        });
    }

    fn count_descriptor_refusal(&self) {
        let metrics = &self.service.api().engine.metrics;
        metrics.count_refusal(ErrorCode::QueueFull);
        metrics.descriptor_refusals.inc();
        self.config.descriptors.count_refused(Instant::now());
    }
}

/// Serves a connection: PROXY header and TLS, then HTTP.
async fn serve_connection(
    mut stream: TcpStream,
    peer: SocketAddr,
    service: RequestService,
    (slot, reserve, unread): (&mut ConnectionSlot, Option<&Arc<Descriptors>>, &Arc<UnreadResponses>),
    config: &ListenerConfig,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let begin = async {
        let client = match &config.proxies {
            Some(proxies) => read_proxy_header(&mut stream, peer, proxies).await?,
            None => peer,
        };
        tracing::debug!(%client, "connected");
        if !slot.assign_address(client.ip()) {
            service.api().engine.metrics.count_refusal(ErrorCode::QueueFull);
            reject(stream, config.tls.is_some());
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "the client's address has as many connections as it may",
            ));
        }
        let transport = match &config.tls {
            Some(tls) => HttpTransport::Tls(Box::new(tls_handshake(stream, tls.clone()).await?)),
            None => HttpTransport::Plain(stream),
        };
        Ok((transport, client))
    };
    let (transport, client) = tokio::select! {
        transport = begin => transport?,
        // No request has come yet that must be answered.
        () = stop_requested(stopped.clone()) => return Ok(()),
    };
    let (activity, service) =
        (slot.activity(), service.for_connection(slot, reserve, unread.clone()).for_client(client));
    match transport {
        HttpTransport::Plain(stream) => serve_http(stream, service, &activity, unread, stopped).await,
        // Boxed, so that a connection without TLS does not pay for its size.
        HttpTransport::Tls(stream) => Box::pin(serve_http(*stream, service, &activity, unread, stopped)).await,
    }
}

/// Serves HTTP: what is asked most on the fast path, and from the first other request on with the library.
async fn serve_http(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + IntoSocket + 'static,
    service: RequestService,
    activity: &ConnectionActivity,
    unread: &Arc<UnreadResponses>,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let with_library = |read, stream, service| {
        let stream = ConnectionStream::new(read, stream, stopped.clone()).with_unread(unread.clone());
        // Boxed: a connection that never needs it does not pay for the size.
        Box::pin(serve_with_library(stream, service, stopped.clone()))
    };
    if service.is_health_only() || !service.api().config.fast_path {
        with_library(Vec::new(), stream, service).await;
        return Ok(());
    }
    let told = Box::pin(stop_requested(stopped.clone()));
    let (api, client) = (service.api(), service.client());
    let may_upgrade = service.may_become_session();
    let key = client.throttle_key;
    match serve_frequent_requests(&mut stream, api, key, activity, may_upgrade, HEAD_TIMEOUT, told).await? {
        Rest::Library(read) => with_library(read, stream, service).await,
        Rest::WebSocket(read) => api.sessions.adopt(stream.into_socket()?, read, client),
        Rest::Over => Box::pin(linger_and_close(stream, &stopped)).await,
    }
    Ok(())
}

/// A connection that is ready for HTTP.
enum HttpTransport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Serves one connection with the HTTP library until it ends, becomes a session, or must stop.
async fn serve_with_library<S: AsyncRead + AsyncWrite + Unpin + Send + IntoSocket + 'static>(
    stream: ConnectionStream<S>,
    service: RequestService,
    stopped: watch::Receiver<bool>,
) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(READ_BUFFER_BYTES_MAX)
        // Head and body in one buffer: most responses are short, and one plain write costs less than one of two parts.
        .writev(false)
        // A client may close its sending half with its last request, and still reads the response.
        .half_close(true);
    // Not `pipeline_flush`: with it a response stays in memory while more bytes have been read than its request (a line end, the
    // beginning of the next request, garbage), and is lost if the connection then ends.
    let (handover, client) = (service.handover().clone(), service.client());
    let sessions = service.api().sessions.clone();
    let mut connection = builder.serve_connection(TokioIo::new(stream), HyperService(Arc::new(service)));
    let mut is_stopping = false;
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut connection => break ended,
            () = handover.must_leave() => break Ok(()),
            () = stop_requested(stopped.clone()), if !is_stopping => {
                std::pin::Pin::new(&mut connection).graceful_shutdown();
                is_stopping = true;
            }
        }
    };
    if let Err(error) = &ended {
        tracing::debug!(%error, "a connection ended badly");
    }
    let Parts { io, read_buf, .. } = connection.into_parts();
    let mut stream = io.into_inner();
    let closed = match handover.take().filter(|_| ended.is_ok()) {
        Some(handover) => hand_over(stream, &read_buf, handover, &sessions, client).await,
        // The library leaves the stream open when the client offered an upgrade that was declined, also if it could not parse what came
        // after it: the stream is closed as others are, so that the last response arrives. Otherwise it is closed already.
        None => stream.shutdown().await,
    };
    if let Err(error) = closed {
        tracing::debug!(%error, "a connection broke as it ended");
    }
}

async fn stop_requested(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Closes a connection with a 503, if the socket takes the response at once. No request is read. Under TLS it is closed without a
/// response: a handshake would be work for a connection that there is no room for.
fn reject(stream: TcpStream, tls: bool) {
    // Taken out of the runtime, which does not know yet that the socket is writable.
    let Ok(mut stream) = stream.into_std() else { return };
    if !tls {
        let _ = stream.write(queue_full_response(jittered_retry_after_ms().div_ceil(1_000)).as_bytes());
    }
    let _ = stream.shutdown(Shutdown::Write);
    // A socket that is closed with bytes unread resets the connection, and the response may be lost (RFC 1122, 4.2.2.13).
    let _ = stream.read(&mut [0; 4_096]);
}

fn queue_full_response(retry_after_s: u64) -> String {
    const BODY: &str = "{\"type\":\"urn:tidings:error:queue_full\",\"title\":\"Queue full\",\"status\":503,\
        \"detail\":\"the limit of open connections is reached; connect again\",\"code\":\"queue_full\",\"retry\":true}";
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n\
         Retry-After: {retry_after_s}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::queue_full_response;
    use tidings_protocol::http::Problem;

    #[test]
    fn the_prebuilt_503_is_a_valid_problem_response() {
        let text = queue_full_response(7);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("Retry-After: 7\r\n"), "{head}");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
        serde_json::from_str::<Problem>(body).unwrap();
    }
}
