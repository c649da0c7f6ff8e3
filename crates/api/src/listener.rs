//! Connections: accepted within a limit, served until they end or are asked to.

use crate::door::Door;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    fs::File,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_protocol::error::ErrorCode;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
};

/// Connections that the kernel holds until they are accepted: a crowd that connects at once waits here.
const BACKLOG: u32 = 4_096;
/// A request's head must have come by then; also how long a connection may idle between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// A request's head, in bytes. Above: answered with 431 and closed.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// What is read ahead of a connection, in bytes.
const READ_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// After an accept that failed for want of something, wait this long before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What a connection is told that there is no room for; it has no request yet that could be read.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n\
Retry-After: 1\r\nConnection: close\r\nContent-Length: 173\r\n\r\n\
{\"type\":\"urn:tidings:error:queue_full\",\"title\":\"Queue full\",\"status\":503,\
\"detail\":\"the limit of open connections is reached; connect again\",\"code\":\"queue_full\",\"retry\":true}";

/// The listening door.
pub struct Listener {
    listener: TcpListener,
    door: Door,
    address: SocketAddr,
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
    pub fn bind(address: SocketAddr, door: Door) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        Ok(Listener { address: listener.local_addr()?, listener, door })
    }

    /// Where it listens, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts in the background until it is stopped.
    pub fn start(self) -> Stop {
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(self.run(stopped));
        Stop(stop)
    }

    async fn run(self, mut stopped: watch::Receiver<bool>) {
        // Given up when descriptors run out, so that the next connection can be told instead of ignored.
        let mut reserve = File::open("/dev/null").ok();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = told_to_stop(&mut stopped) => return,
            };
            match accepted {
                Ok((stream, _)) => self.serve(stream, &stopped),
                Err(error) if is_out_of_descriptors(&error) => {
                    tracing::warn!(%error, "out of file descriptors; new connections are refused");
                    self.door.api().engine.metrics.count_refusal(ErrorCode::QueueFull);
                    drop(reserve.take());
                    if let Ok(Ok((stream, _))) = tokio::time::timeout(ACCEPT_PAUSE, self.listener.accept()).await {
                        turn_away(&stream);
                    }
                    reserve = File::open("/dev/null").ok();
                    if reserve.is_none() {
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

    fn serve(&self, stream: TcpStream, stopped: &watch::Receiver<bool>) {
        let api = self.door.api();
        let place = Place::take(&api.connections);
        if place.count > api.config.connections_max {
            api.engine.metrics.count_refusal(ErrorCode::QueueFull);
            return turn_away(&stream);
        }
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended before it began");
            return;
        }
        let (door, stopped) = (self.door.clone(), stopped.clone());
        tokio::spawn(async move {
            let _place = place;
            converse(stream, door, stopped).await;
        });
    }
}

/// Serves one connection until it ends, becomes a WebSocket, or is asked to stop.
async fn converse(stream: TcpStream, door: Door, mut stopped: watch::Receiver<bool>) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(READ_BUFFER_BYTES_MAX)
        .pipeline_flush(true);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), door).with_upgrades());
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = told_to_stop(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// One of the open connections, for as long as it is held.
struct Place {
    open: Arc<AtomicUsize>,
    /// Including this one.
    count: usize,
}

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Self {
        Place { count: open.fetch_add(1, Ordering::Relaxed) + 1, open: open.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Says why, if the socket takes it at once, and closes.
fn turn_away(stream: &TcpStream) {
    let _ = stream.try_write(NO_ROOM);
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::NO_ROOM;
    use tidings_protocol::http::Problem;

    #[test]
    fn the_ready_made_refusal_is_an_answer_that_can_be_read() {
        let text = std::str::from_utf8(NO_ROOM).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<Problem>(body).unwrap();
    }
}
