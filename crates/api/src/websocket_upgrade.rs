//! From HTTP to a WebSocket: checks the handshake, answers 101, and hands the socket to the gateway.

use crate::{Api, SessionGateway, connection_stream::ConnectionStream};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    body::Incoming,
    upgrade::{Parts, Upgraded},
};
use hyper_util::rt::TokioIo;
use std::{io, sync::Arc, time::Instant};
use tidings_listen::{Descriptors, MaybeTlsSocket, ThrottleKey, jittered_retry_after_ms};
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tungstenite::handshake::derive_accept_key;

/// The path of the WebSocket handshake.
pub const CONNECT_PATH: &str = "/v1/connect";

/// Answers a handshake, and hands the socket over once the response is written. `reserve` is set if the connection took a
/// descriptor of the reserve: then the upgrade is refused.
pub(crate) fn upgrade(
    api: &Api,
    reserve: Option<&Descriptors>,
    mut request: Request<Incoming>,
    throttle_key: ThrottleKey,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let accept_key = check_handshake(request.method(), request.version(), request.headers())?;
    api.config.cors.as_ref().map_or(Ok(()), |cors| cors.check_upgrade(request.headers()))?;
    if api.engine.is_draining() {
        return Err(Refusal::new(ErrorCode::Draining, "the server is draining; connect again").retry_after(1_000));
    }
    if let Some(descriptors) = reserve {
        api.engine.metrics.descriptor_refusals.inc();
        descriptors.count_refused(Instant::now());
    }
    if reserve.is_some() || !api.sessions.has_room() {
        let refusal = Refusal::new(ErrorCode::QueueFull, "the limit of open connections is reached; connect again");
        return Err(refusal.retry_after(jittered_retry_after_ms()));
    }
    let upgraded = hyper::upgrade::on(&mut request);
    let sessions = api.sessions.clone();
    tokio::spawn(async move {
        match upgraded.await {
            Ok(upgraded) => hand_over(upgraded, &sessions, throttle_key),
            Err(error) => tracing::debug!(%error, "a connection ended before it became a WebSocket"),
        }
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept_key);
    Ok(response)
}

/// Checks a handshake by RFC 6455, 4.2.1. Returns the value of `Sec-WebSocket-Accept`.
fn check_handshake(method: &Method, version: Version, headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    let refuse = |why: &str| Refusal::new(ErrorCode::Malformed, format!("not a WebSocket handshake: {why}"));
    if method != Method::GET {
        return Err(Refusal::new(ErrorCode::MethodNotAllowed, "a WebSocket handshake is a GET"));
    }
    if version < Version::HTTP_11 || !headers.contains_key(header::HOST) {
        return Err(refuse("it needs HTTP/1.1 and a Host"));
    }
    if !has_token(headers, header::CONNECTION, "upgrade") || !has_token(headers, header::UPGRADE, "websocket") {
        return Err(refuse("it needs `Connection: Upgrade` and `Upgrade: websocket`"));
    }
    if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(refuse("Sec-WebSocket-Version must be 13"));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or_else(|| refuse("it has no Sec-WebSocket-Key"))?;
    if key.len() != 24 {
        return Err(refuse("Sec-WebSocket-Key must be 16 bytes as base64"));
    }
    HeaderValue::try_from(derive_accept_key(key.as_bytes())).map_err(|error| crate::internal(&error))
}

/// Whether a comma-separated header names a token, in any case.
fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Takes the connection out of hyper and the runtime, and gives it to the gateway.
fn hand_over(upgraded: Upgraded, sessions: &Arc<dyn SessionGateway>, throttle_key: ThrottleKey) {
    match take_out(upgraded) {
        Ok(Some((socket, read))) => sessions.adopt(socket, read, throttle_key),
        Ok(None) => tracing::error!("an upgraded connection was not one of the listener's"),
        Err(error) => tracing::warn!(%error, "a socket could not be taken out of the runtime"),
    }
}

/// The connection and the bytes that were read beyond the request.
fn take_out(upgraded: Upgraded) -> io::Result<Option<(MaybeTlsSocket, Vec<u8>)>> {
    let upgraded = match upgraded.downcast::<TokioIo<ConnectionStream<TcpStream>>>() {
        Ok(Parts { io, read_buf, .. }) => {
            let (stream, ahead) = io.into_inner().into_parts();
            return Ok(Some((stream.into_std()?.into(), [&read_buf[..], &ahead].concat())));
        }
        Err(upgraded) => upgraded,
    };
    let Ok(Parts { io, read_buf, .. }) = upgraded.downcast::<TokioIo<ConnectionStream<TlsStream<TcpStream>>>>() else {
        return Ok(None);
    };
    let (stream, ahead) = io.into_inner().into_parts();
    let (socket, session) = stream.into_inner();
    Ok(Some((MaybeTlsSocket::Tls(socket.into_std()?, Box::new(session)), [&read_buf[..], &ahead].concat())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GOOD: [(&str, &str); 5] = [
        ("host", "example.org"),
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn check(changes: &[(&'static str, &'static str)], expected: Result<&str, ErrorCode>) {
        let mut headers = HeaderMap::new();
        for (name, value) in GOOD.iter().chain(changes) {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        let answer = check_handshake(&Method::GET, Version::HTTP_11, &headers).map_err(|refusal| refusal.code);
        assert_eq!(answer, expected.map(|key| HeaderValue::from_str(key).unwrap()), "{changes:?}");
    }

    #[test]
    fn only_a_valid_rfc_6455_handshake_is_accepted() {
        // The example of RFC 6455.
        check(&[], Ok("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        let malformed = Err(ErrorCode::Malformed);
        check(&[("connection", "close")], malformed);
        check(&[("upgrade", "h2c")], malformed);
        check(&[("sec-websocket-version", "8")], malformed);
        check(&[("sec-websocket-key", "short")], malformed);
        let mut headers = HeaderMap::new();
        for (name, value) in GOOD {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let code = |version, headers: &HeaderMap| check_handshake(&Method::GET, version, headers).err().map(|r| r.code);
        assert_eq!(code(Version::HTTP_11, &headers), None);
        assert_eq!(code(Version::HTTP_10, &headers), Some(ErrorCode::Malformed));
        headers.remove(header::HOST);
        assert_eq!(code(Version::HTTP_11, &headers), Some(ErrorCode::Malformed));
    }
}
