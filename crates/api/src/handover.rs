//! From HTTP to a session: a connection leaves the HTTP library and goes to the gateway, as a WebSocket or as an event stream.
//!
//! A WebSocket leaves when the library has written its 101. An event stream leaves when its request is read: the library would
//! frame and hold what a shard writes, so the head of the response is written here, and the rest by the gateway.

use crate::{SessionGateway, connection_stream::ConnectionStream};
use axum::http::{HeaderMap, HeaderValue, Version, header};
use bytes::Bytes;
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};
use tidings_listen::{ClientAddress, MaybeTlsSocket};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
};
use tokio_rustls::server::TlsStream;

/// What becomes of a connection when HTTP is done with it.
pub(crate) enum Handover {
    WebSocket,
    EventStream {
        /// The head of the response.
        head: Vec<u8>,
        is_chunked: bool,
        /// The session's first frame, as a line.
        bind: Vec<u8>,
    },
}

/// Where the service of a connection leaves a handover for the task that owns the connection.
#[derive(Clone, Default)]
pub(crate) struct HandoverSlot(Arc<(Mutex<Option<Handover>>, Notify)>);

impl HandoverSlot {
    /// Has the connection handed over when the response is written.
    pub(crate) fn set(&self, handover: Handover) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(handover);
    }

    /// Has the connection handed over now. The request gets no other response.
    pub(crate) async fn leave_with(&self, handover: Handover) -> ! {
        self.set(handover);
        self.0.1.notify_one();
        std::future::pending().await
    }

    /// Returns when a connection must be handed over now.
    pub(crate) async fn must_leave(&self) {
        self.0.1.notified().await;
    }

    pub(crate) fn take(&self) -> Option<Handover> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A stream under HTTP whose socket can leave the runtime.
pub(crate) trait IntoSocket {
    fn into_socket(self) -> io::Result<MaybeTlsSocket>;
}

impl IntoSocket for TcpStream {
    fn into_socket(self) -> io::Result<MaybeTlsSocket> {
        Ok(self.into_std()?.into())
    }
}

impl IntoSocket for TlsStream<TcpStream> {
    fn into_socket(self) -> io::Result<MaybeTlsSocket> {
        let (socket, session) = self.into_inner();
        Ok(MaybeTlsSocket::Tls(socket.into_std()?, Box::new(session)))
    }
}

/// Takes the connection out of the runtime, and gives it to the gateway. `read` are bytes that the library read beyond the request.
pub(crate) async fn hand_over<S: AsyncRead + AsyncWrite + Unpin + IntoSocket>(
    mut stream: ConnectionStream<S>,
    read: &Bytes,
    handover: Handover,
    sessions: &Arc<dyn SessionGateway>,
    client: ClientAddress,
) -> io::Result<()> {
    match handover {
        Handover::WebSocket => {
            let (stream, ahead) = stream.into_parts();
            sessions.adopt(stream.into_socket()?, [read, &ahead[..]].concat(), client);
        }
        Handover::EventStream { head, is_chunked, bind } => {
            stream.write_all(&head).await?;
            stream.flush().await?;
            // What was read ahead is no request: the response has said that the connection ends with it.
            let (stream, _) = stream.into_parts();
            sessions.adopt_stream(stream.into_socket()?, is_chunked, bind, client);
        }
    }
    Ok(())
}

/// The head of an event stream's response, with the headers that every response has. HTTP/1.0 knows no chunks: such a body ends with
/// its connection.
pub(crate) fn stream_head(version: Version, headers: &HeaderMap) -> (Vec<u8>, bool) {
    let is_chunked = version >= Version::HTTP_11;
    let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
    let mut put = |name: &[u8], value: &[u8]| head.extend([name, b": ", value, b"\r\n"].concat());
    for (name, value) in headers.iter().filter(|(name, _)| **name != header::CONTENT_LENGTH) {
        put(name.as_ref(), value.as_bytes());
    }
    put(b"date", httpdate::fmt_http_date(SystemTime::now()).as_bytes());
    put(b"connection", b"close");
    if is_chunked {
        put(b"transfer-encoding", b"chunked");
    }
    head.extend_from_slice(b"\r\n");
    (head, is_chunked)
}

/// The headers of an event stream: no cache keeps it, and nginx does not hold it back.
pub(crate) fn stream_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(tidings_protocol::event_stream::MEDIA_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_client_of_http_1_0_gets_no_chunks() {
        for (version, chunked) in [(Version::HTTP_11, true), (Version::HTTP_10, false)] {
            let (head, is_chunked) = stream_head(version, &stream_headers());
            let head = String::from_utf8(head).unwrap();
            assert_eq!((is_chunked, head.contains("transfer-encoding: chunked\r\n")), (chunked, chunked), "{head}");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"), "{head}");
            assert!(
                head.ends_with("connection: close\r\n\r\n") || chunked && head.ends_with("chunked\r\n\r\n"),
                "{head}"
            );
        }
    }
}
