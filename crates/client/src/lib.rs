//! A small client of Tidings, for integration tests and the load lab.
//!
//! It speaks plain HTTP and WebSocket, and MIOP with or without TLS, to one server and knows nothing of what stands behind the
//! doors. It keeps no state beyond its connection: no reconnecting by itself, no local store. In
//! reading order:
//! - [`token`]: signing the token that a user binds with;
//! - [`http`]: a blocking JSON client on one keep-alive connection;
//! - [`session`]: a blocking WebSocket session;
//! - [`device`]: a blocking MIOP session;
//! - [`wire`]: requests and answers as bytes, which both of the above and the lab are made of;
//! - [`link`]: a nonblocking socket that a poll loop drives, with buffers only while it needs them.

pub mod device;
pub mod http;
pub mod link;
pub mod session;
pub mod token;
pub mod wire;

use tidings_protocol::http::Problem;

/// What can go wrong, by what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed or timed out: connect again, and retry with the same `client_msg_id`.
    #[error("connection: {0}")]
    Io(std::io::Error),
    /// The server refused: the problem says why and whether to try again.
    #[error("refused with {status}: {}", problem.detail)]
    Refused {
        status: u16,
        problem: Box<Problem>,
        /// Seconds, from `Retry-After`.
        retry_after: Option<u64>,
    },
    /// The server closed the session: the code says why.
    #[error("closed with {code}: {reason}")]
    Closed { code: u16, reason: String },
    /// The server refused a bind, or ended a device's session: the code is a stable one, by which to go on.
    #[error("ended with {code}: {message}")]
    Ended { code: String, message: String, retry_after_ms: Option<u64> },
    /// The answer is not what the protocol says: a bug on one side.
    #[error("not the protocol: {0}")]
    Protocol(String),
}

// By hand, since the words already say the cause: as a source too, who prints the chain would say it twice.
impl From<std::io::Error> for ClientError {
    fn from(error: std::io::Error) -> Self {
        ClientError::Io(error)
    }
}

impl ClientError {
    pub(crate) fn protocol(what: impl std::fmt::Display) -> Self {
        ClientError::Protocol(what.to_string())
    }
}
