//! A blocking JSON client on one keep-alive connection.

use crate::{
    ClientError,
    wire::{parse_response_head, put_request_of, take_chunks},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};
use tidings_protocol::http::{
    ChangeMembers, ConversationDetails, CreateConversation, HistoryPage, HistoryQuery, MembersChanged, Problem,
    SendBatch, SendBatchResults, SendReceipt, SendRequest, UserUpsert, UsersUpsert, UsersUpserted,
};

/// One connection to a server's HTTP API. It connects at the first request, and again after a failure.
#[derive(Debug)]
pub struct HttpClient {
    address: SocketAddr,
    authorization: String,
    timeout: Duration,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

/// The response to a request, of any status.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    pub status: u16,
    pub body: Vec<u8>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
}

impl HttpClient {
    /// `authorization` is an API key, or a user's token.
    pub fn new(address: SocketAddr, authorization: impl Into<String>) -> Self {
        HttpClient {
            address,
            authorization: authorization.into(),
            timeout: Duration::from_secs(30),
            stream: None,
            buffer: Vec::new(),
        }
    }

    /// Sets how long each step of a request may take before it fails; 30 s unless set.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.stream = None;
    }

    /// Sends one request and returns its response, whatever the status. A failure closes the connection; nothing is retried,
    /// since the caller alone knows whether that is safe.
    ///
    /// # Errors
    /// The connection failed or timed out, or the response is not HTTP/1.1.
    pub fn exchange(&mut self, method: &str, path: &str, body: &[u8]) -> Result<HttpResponse, ClientError> {
        self.exchange_text(method, path, "application/json", body)
    }

    /// The same with a body of this content type.
    ///
    /// # Errors
    /// As [`HttpClient::exchange`].
    pub fn exchange_text(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<HttpResponse, ClientError> {
        let result = self.try_exchange(method, path, content_type, body);
        if result.is_err() {
            self.stream = None;
        }
        result
    }

    fn try_exchange(
        &mut self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<HttpResponse, ClientError> {
        // The server closes idle connections. A request on a closed one would be lost, and the caller could not tell
        // whether the server had executed it.
        if self.stream.as_ref().is_some_and(has_ended) {
            self.stream = None;
        }
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect_timeout(&self.address, self.timeout)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(self.timeout))?;
                stream.set_write_timeout(Some(self.timeout))?;
                self.stream.insert(stream)
            }
        };
        self.buffer.clear();
        put_request_of(&mut self.buffer, method, path, &self.authorization, content_type, body);
        stream.write_all(&self.buffer)?;
        self.buffer.clear();
        let (head, body) = loop {
            if let Some(head) = parse_response_head(&self.buffer).map_err(ClientError::Protocol)? {
                let rest = &self.buffer[head.body_start..];
                if head.chunked {
                    if let Some(body) = take_chunks(rest).map_err(ClientError::Protocol)? {
                        break (head, body);
                    }
                } else if rest.len() >= head.body_length {
                    let body = rest[..head.body_length].to_vec();
                    break (head, body);
                }
            }
            let mut part = [0; 16 * 1024];
            let count = stream.read(&mut part)?;
            if count == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            self.buffer.extend_from_slice(&part[..count]);
        };
        if head.closes {
            self.stream = None;
        }
        Ok(HttpResponse { status: head.status, body, retry_after: head.retry_after })
    }

    /// Sends one request and parses the body of its response.
    ///
    /// # Errors
    /// As [`HttpClient::exchange`]; [`ClientError::Refused`] for any status but 2xx, [`ClientError::Protocol`] for a body that
    /// is not a `T`.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(ClientError::protocol)?,
            None => Vec::new(),
        };
        let answer = self.exchange(method, path, &body)?;
        if (200..300).contains(&answer.status) {
            // An answer without content reads as `null`, for callers that ask for `()`.
            let body: &[u8] = if answer.body.is_empty() { b"null" } else { &answer.body };
            return serde_json::from_slice(body).map_err(ClientError::protocol);
        }
        match serde_json::from_slice::<Problem>(&answer.body) {
            Ok(problem) => Err(ClientError::Refused {
                status: answer.status,
                problem: Box::new(problem),
                retry_after: answer.retry_after,
            }),
            Err(_) => Err(ClientError::Protocol(format!(
                "{method} {path} answered {} without a problem: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            ))),
        }
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        self.call("GET", path, None::<&()>)
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn post<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.call("POST", path, Some(body))
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn put<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.call("PUT", path, Some(body))
    }

    /// Whether the server says that it is ready.
    pub fn is_ready(&mut self) -> bool {
        self.exchange("GET", "/readyz", b"").is_ok_and(|answer| answer.status == 200)
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn upsert_users(&mut self, users: Vec<UserUpsert>) -> Result<UsersUpserted, ClientError> {
        self.put("/v1/users", &UsersUpsert { users })
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn create_conversation(&mut self, request: &CreateConversation) -> Result<ConversationDetails, ClientError> {
        self.post("/v1/conversations", request)
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn conversation(&mut self, id: &str) -> Result<ConversationDetails, ClientError> {
        self.get(&format!("/v1/conversations/{}", path_segment(id)))
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn change_members(&mut self, id: &str, change: &ChangeMembers) -> Result<MembersChanged, ClientError> {
        self.post(&format!("/v1/conversations/{}/members", path_segment(id)), change)
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn send(&mut self, request: &SendRequest) -> Result<SendReceipt, ClientError> {
        self.post("/v1/messages", request)
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn send_batch(&mut self, messages: Vec<SendRequest>) -> Result<SendBatchResults, ClientError> {
        self.post("/v1/messages/batch", &SendBatch { messages })
    }

    /// # Errors
    /// As [`HttpClient::call`].
    pub fn history(&mut self, id: &str, query: &HistoryQuery) -> Result<HistoryPage, ClientError> {
        let mut path = format!("/v1/conversations/{}/messages?", path_segment(id));
        let fields = [
            ("from_seq", query.from_seq),
            ("to_seq", query.to_seq),
            ("from_time", query.from_time),
            ("to_time", query.to_time),
            ("limit", query.limit.map(|l| l as u64)),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                path.push_str(&format!("{name}={value}&"));
            }
        }
        if let Some(cursor) = &query.cursor {
            path.push_str(&format!("cursor={}&", path_segment(cursor)));
        }
        path.pop();
        self.get(&path)
    }
}

/// An id as a segment of a path, percent-encoded: ids may hold characters that a URL may not.
pub fn path_segment(id: &str) -> String {
    let mut out = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Whether the server has closed the connection, or has sent bytes without a request, after which no response could be trusted.
fn has_ended(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let quiet = matches!(peeked, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_err() || !quiet
}

#[cfg(test)]
mod tests {
    use super::path_segment;

    #[test]
    fn an_id_is_escaped_for_a_path() {
        assert_eq!(path_segment("a~b"), "a~b");
        assert_eq!(path_segment("[n]é?"), "%5Bn%5D%C3%A9%3F");
    }
}
