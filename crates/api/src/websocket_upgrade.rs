//! The handshake of a WebSocket: checks it, and answers 101.

use crate::Api;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use std::time::Instant;
use tidings_listen::{Descriptors, jittered_retry_after_ms};
use tidings_protocol::error::{ErrorCode, Refusal};
use tungstenite::handshake::derive_accept_key;

/// The path of the WebSocket handshake.
pub const CONNECT_PATH: &str = "/v1/connect";

/// Answers a handshake. `reserve` is set if the connection took a
/// descriptor of the reserve: then the upgrade is refused.
pub(crate) fn upgrade(
    api: &Api,
    reserve: Option<&Descriptors>,
    request: &Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let accept_key = check_handshake(request.method(), request.version(), request.headers())?;
    api.config.cors.as_ref().map_or(Ok(()), |cors| cors.check_upgrade(request.headers()))?;
    check_room(api, reserve)?;
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept_key);
    Ok(response)
}

/// Refuses another session while the server is draining or full.
pub(crate) fn check_room(api: &Api, reserve: Option<&Descriptors>) -> Result<(), Refusal> {
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
    Ok(())
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
    if !is_key(key.as_bytes()) {
        return Err(refuse("Sec-WebSocket-Key must be 16 bytes as base64"));
    }
    HeaderValue::try_from(derive_accept_key(key.as_bytes())).map_err(|error| crate::internal(&error))
}

/// Whether a `Sec-WebSocket-Key` is as long as the 16 bytes that it stands for.
pub(crate) fn is_key(key: &[u8]) -> bool {
    key.len() == 24
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
