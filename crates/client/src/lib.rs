//! A small client of Tidings, for integration tests and the load lab.
//!
//! It speaks plain HTTP and WebSocket, and MIOP with or without TLS, to one server, and does not know how that server works.
//! A client keeps no state beyond its connection: it does not reconnect by itself and stores nothing. In
//! reading order:
//! - [`token`]: signing the token that a user binds with;
//! - [`http`]: a blocking JSON client on one keep-alive connection;
//! - [`transfer`]: bodies that are longer than memory;
//! - [`session`]: a blocking WebSocket session;
//! - [`device`]: a blocking MIOP session;
//! - [`wire`]: HTTP requests and responses as bytes, for the clients above and the lab.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidings_client::{session::Session, token};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let token = token::sign("the token key", "ada", Duration::from_secs(3_600));
//! let mut session = Session::open("127.0.0.1:8080".parse()?, &token, "phone-1", None)?;
//! while let Some(frame) = session.next(Duration::from_secs(30))? {
//!     println!("{frame:?}");
//! }
//! # Ok(())
//! # }
//! ```

pub mod device;
pub mod http;
pub mod session;
pub mod token;
pub mod transfer;
pub mod wire;

use tidings_protocol::http::Problem;

/// Why a call failed. The variants tell the caller what to do next.
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

// By hand instead of `#[from]`: the message already holds the cause, and a source would make it appear twice in a printed chain.
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
