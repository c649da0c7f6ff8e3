//! Connections: accepted within a limit, served until they end or are asked to.

use crate::{
    connection_setup::{read_proxy_header, tls_handshake},
    connection_stream::{ConnectionStream, linger_and_close},
    door::{Door, DoorService},
    popup_fast_path::serve_popup_requests,
};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    pin::pin,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};
use tidings_listen::{
    Admission, Descriptors, Place, Standing,
    admission::Guest,
    come_back_after_ms,
    descriptors::{Reserve, ran_out},
    proxy::Proxies,
    socket::{BACKLOG, listen},
};
use tidings_protocol::error::ErrorCode;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::server::TlsStream;

/// A request's head must have come by then; also how long a connection may idle between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A request's head, in bytes. Above: answered with 431 and closed.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// What is read ahead of a connection, in bytes.
const READ_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// After an accept that failed for want of something, wait this long before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// While many connections that gave way are on their way out, the next waits this long for them.
const LEAVING_PAUSE: Duration = Duration::from_millis(1);

/// Where a listener listens, and by which rules.
#[derive(Clone)]
pub struct ListenerConfig {
    pub address: SocketAddr,
    /// How its connections begin, if not with HTTP at once.
    pub tls: Option<Arc<ServerConfig>>,
    /// The load balancers that its connections come from, if they do.
    pub proxies: Option<Arc<Proxies>>,
    /// Connections that the kernel holds until they are accepted.
    pub backlog: u32,
    pub admission: Arc<Admission>,
    pub descriptors: Arc<Descriptors>,
}

impl ListenerConfig {
    /// Without TLS, and without a rule that anybody would notice.
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

/// The listening door.
pub struct Listener {
    listener: TcpListener,
    door: Door,
    config: ListenerConfig,
}

/// Asks the listener and its connections to end, and waits until they have.
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// No new connections; those that are open end after the request that they are at. Waits for them.
    pub async fn finish(self, deadline: Duration) -> bool {
        self.0.send_replace(true);
        tokio::time::timeout(deadline, self.0.closed()).await.is_ok()
    }
}

impl Listener {
    pub fn bind(mut config: ListenerConfig, door: Door) -> io::Result<Self> {
        let listener = TcpListener::from_std(listen(config.address, config.backlog)?)?;
        config.address = listener.local_addr()?;
        Ok(Listener { listener, door, config })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.config.address
    }

    /// Accepts in the background until it is stopped.
    pub fn start(self) -> Stop {
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(self.run(stopped));
        Stop(stop)
    }

    async fn run(self, stopped: watch::Receiver<bool>) {
        let mut reserve = Reserve::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = told_to_stop(stopped.clone()) => return,
            };
            match accepted {
                Ok((stream, peer)) => self.serve(stream, peer, &stopped),
                // Who was sent away gives its descriptor back.
                Err(error) if ran_out(&error) && self.door.places().make_room() => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                Err(error) if ran_out(&error) => {
                    // Accept finds that out before it looks whether anybody waits.
                    reserve.give_up();
                    if let Ok(Ok((stream, _))) = tokio::time::timeout(ACCEPT_PAUSE, self.listener.accept()).await {
                        self.count_shortage();
                        turn_away(stream, self.config.tls.is_some());
                    }
                    if !reserve.take_back() {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
                // The peer was gone before we came.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// The next connection, when admission lets it in.
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        while let Some(pause) = self.config.admission.pause(Guest::Caller) {
            self.door.api().engine.metrics.accept_pauses.inc();
            tokio::time::sleep(pause).await;
        }
        while self.door.places().are_leaving() {
            tokio::time::sleep(LEAVING_PAUSE).await;
        }
        let accepted = self.listener.accept().await?;
        self.config.admission.count();
        Ok(accepted)
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr, stopped: &watch::Receiver<bool>) {
        let Some(mut place) = self.door.places().take() else {
            self.door.api().engine.metrics.count_refusal(ErrorCode::QueueFull);
            return turn_away(stream, self.config.tls.is_some());
        };
        // Near the limit of descriptors requests are served, but nobody settles in.
        let may_stay = self.config.descriptors.leave_room_for(&stream);
        if may_stay {
            self.config.descriptors.count_admitted(Instant::now());
        }
        let (door, config, stopped) = (self.door.clone(), self.config.clone(), stopped.clone());
        tokio::spawn(async move {
            let evicted = place.evicted();
            let served = async {
                let reserve = (!may_stay).then_some(&config.descriptors);
                if let Err(error) = welcome(stream, peer, door, &mut place, reserve, &config, stopped).await {
                    tracing::debug!(%peer, %error, "a connection ended before it began");
                }
            };
            tokio::select! {
                biased;
                () = served => {}
                () = evicted => tracing::debug!(%peer, "an idle connection without a credential gave way to another"),
            }
        });
    }

    fn count_shortage(&self) {
        let metrics = &self.door.api().engine.metrics;
        metrics.count_refusal(ErrorCode::QueueFull);
        metrics.descriptor_refusals.inc();
        self.config.descriptors.count_refused(Instant::now());
    }
}

/// What comes before HTTP, then HTTP.
async fn welcome(
    mut stream: TcpStream,
    peer: SocketAddr,
    door: Door,
    place: &mut Place,
    reserve: Option<&Arc<Descriptors>>,
    config: &ListenerConfig,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let begin = async {
        let client = match &config.proxies {
            Some(proxies) => read_proxy_header(&mut stream, peer, proxies).await?,
            None => peer,
        };
        tracing::debug!(%client, "connected");
        if !place.settle(client.ip()) {
            door.api().engine.metrics.count_refusal(ErrorCode::QueueFull);
            turn_away(stream, config.tls.is_some());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "its address has as many connections as it may"));
        }
        let entered = match &config.tls {
            Some(tls) => Entered::Tls(Box::new(tls_handshake(stream, tls.clone()).await?)),
            None => Entered::Plain(stream),
        };
        Ok((entered, client))
    };
    let (entered, client) = tokio::select! {
        entered = begin => entered?,
        // Nothing was asked yet that would have to be answered.
        () = told_to_stop(stopped.clone()) => return Ok(()),
    };
    let (standing, door) = (place.standing(), door.of_connection(place, reserve).for_client(client));
    match entered {
        Entered::Plain(stream) => serve_one(stream, door, &standing, stopped).await,
        // Boxed, so that a connection without TLS does not pay for its size.
        Entered::Tls(stream) => Box::pin(serve_one(*stream, door, &standing, stopped)).await,
    }
}

/// Questions about popups, as long as nothing else is asked; then whatever is.
async fn serve_one(
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    door: Door,
    standing: &Standing,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    if door.is_of_health() {
        Box::pin(converse(ConnectionStream::new(Vec::new(), stream, stopped.clone()), door, stopped)).await;
        return Ok(());
    }
    let told = Box::pin(told_to_stop(stopped.clone()));
    // Boxed: a connection that only ever asks about popups does not pay for the size.
    match serve_popup_requests(&mut stream, (door.api(), door.origin()), standing, HEAD_TIMEOUT, told).await? {
        Some(read) => Box::pin(converse(ConnectionStream::new(read, stream, stopped.clone()), door, stopped)).await,
        None => Box::pin(linger_and_close(stream, &stopped)).await,
    }
    Ok(())
}

/// A connection on which HTTP begins.
enum Entered {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Serves one connection until it ends, becomes a WebSocket, or is asked to stop.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    door: Door,
    stopped: watch::Receiver<bool>,
) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(READ_BUFFER_BYTES_MAX)
        // A caller may close its sending half with its last request, and still reads the answer.
        .half_close(true);
    // Not `pipeline_flush`: with it an answer stays in memory for as long as anything is read beyond its request (a line end, the
    // beginning of the next request, garbage), and is lost when the connection then ends.
    let offered = door.offered();
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(stream), DoorService(Arc::new(door))).with_upgrades());
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = told_to_stop(stopped.clone()) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        return tracing::debug!(%error, "a connection ended badly");
    }
    // Left open by the library, with an offer that was not taken: closed as others are, so that the last answer arrives.
    let offered = offered.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(offered) = offered
        && let Ok(stream) = offered.await
    {
        let _ = TokioIo::new(stream).shutdown().await;
    }
}

async fn told_to_stop(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Says why and when to come back, if the socket takes it at once, and closes. It has no request yet that could be
/// read, and under TLS nothing can be said before a handshake, which is work that there is no room for.
fn turn_away(stream: TcpStream, tls: bool) {
    // Taken out of the runtime, which does not know yet that it is writable.
    let Ok(mut stream) = stream.into_std() else { return };
    if !tls {
        let _ = stream.write(no_room(come_back_after_ms().div_ceil(1_000)).as_bytes());
    }
    let _ = stream.shutdown(Shutdown::Write);
    // A socket that is closed with bytes unread resets the connection, and what we said may be lost (RFC 1122, 4.2.2.13).
    let _ = stream.read(&mut [0; 4_096]);
}

fn no_room(retry_after_s: u64) -> String {
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
    use super::no_room;
    use tidings_protocol::http::Problem;

    #[test]
    fn the_prebuilt_503_is_a_valid_problem_response() {
        let text = no_room(7);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("Retry-After: 7\r\n"), "{head}");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
        serde_json::from_str::<Problem>(body).unwrap();
    }
}
