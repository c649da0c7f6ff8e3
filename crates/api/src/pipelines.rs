//! Connections to leaders, on which many requests are under way at once: HTTP/1.1 pipelining.
//!
//! ```text
//! client ─┐                  ┌─ queue ─ connection: many requests in one write ─┐
//! client ─┼─ few, or least ──┼─ queue ─ connection                              ├─▶ the leader's fast path
//! session ┘                  └─ queue ─ connection ◀─ responses in order ───────┘
//! ```
//! A task owns each connection. Who sends a request waits for its response alone. This module knows neither who leads nor what a refusal is:
//! it says of a request without a response whether the leader may have executed it. In reading order: [`Pipelines`], `connection` (the
//! task), [`response`] (where one response ends and the next begins).

mod connection;
pub(crate) mod response;

use axum::http::{HeaderName, HeaderValue, Method};
use connection::{Job, Load, Pause, run};
use parking_lot::Mutex;
use response::Response;
use std::{io::Write, sync::Arc};
use tidings_domain::{commit_log::NodeInfo, function::Function, gates::Gate};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    time::Instant,
};

/// Connections for each operation. Each answers in order, so one slow answer delays what is behind it: with several, others go past.
const CONNECTIONS_MAX: usize = 4;
/// Requests without a response that a connection has before another one is used.
const SHARED_BY: usize = 32;
/// Requests that wait for one connection, the responses that are awaited not included. Full: another connection is looked for.
const QUEUE_MAX: usize = 512;
/// The longest request with its head, in bytes: as long as one that the leader's fast path takes.
pub(crate) const REQUEST_BYTES_MAX: usize = 32 * 1024;

/// What is asked. Operations do not share connections: a question is answered from memory, and the others once they are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Which popup suits a user.
    Decide,
    /// What users did with popups.
    Report,
    Push,
}

impl Operation {
    pub(crate) const ALL: [Operation; 3] = [Operation::Decide, Operation::Report, Operation::Push];

    /// Whose leader answers.
    pub(crate) const fn function(self) -> Function {
        match self {
            Operation::Decide | Operation::Report => Function::Popups,
            Operation::Push => Function::Push,
        }
    }

    /// Whether the leader answers such requests side by side. One of an earlier version would let each push wait for those before it.
    pub(crate) fn is_known_to(self, leader: &NodeInfo) -> bool {
        match self {
            Operation::Decide | Operation::Report => true,
            Operation::Push => leader.details.knows(Gate::PushPipelines.name()),
        }
    }

    /// The operation of this method and path, if it is one of those.
    pub(crate) fn of(method: &Method, path: &str) -> Option<Operation> {
        let is_of = |operation: &Operation| {
            operation.request_line().split(|byte| *byte == b' ').nth(1) == Some(path.as_bytes())
        };
        Operation::ALL.into_iter().find(is_of).filter(|_| method == Method::POST)
    }

    pub(crate) const fn request_line(self) -> &'static [u8] {
        match self {
            Operation::Decide => b"POST /v1/popups/decide HTTP/1.1\r\n",
            Operation::Report => b"POST /v1/popup-events HTTP/1.1\r\n",
            Operation::Push => b"POST /v1/push HTTP/1.1\r\n",
        }
    }
}

/// Why a request has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Pipelines do not take it: it is too long, or the leader's address is one of TLS, or its responses cannot be read. Another way may.
    NotTaken,
    /// The leader cannot be connected to, or all queues are full. It was not executed.
    Unreachable,
    /// The connection ended before it was written. It was not executed, and may be sent again.
    NotSent,
    /// It was written. It may have been executed or not.
    Lost,
}

/// A request for the leader. Its head is made anew: the leader needs no header of the client but the credential.
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    /// The value of the `Authorization` header.
    pub(crate) credential: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl Request<'_> {
    /// Its bytes. `None`: they are too many. `from`: the header that names this node.
    fn bytes(&self, host: &str, (from, node): (&HeaderName, &HeaderValue)) -> Option<Vec<u8>> {
        const HEAD_ROOM: usize = 256;
        let mut bytes = Vec::with_capacity(HEAD_ROOM + self.credential.len() + self.body.len());
        bytes.extend_from_slice(self.operation.request_line());
        let headers = [("host", host.as_bytes()), ("authorization", self.credential), (from.as_str(), node.as_bytes())];
        for (name, value) in headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        // Writing to memory cannot fail.
        let _ = write!(bytes, "content-length: {}\r\n\r\n", self.body.len());
        bytes.extend_from_slice(self.body);
        (bytes.len() <= REQUEST_BYTES_MAX).then_some(bytes)
    }
}

/// The connections to leaders, by operation.
#[derive(Default)]
pub(crate) struct Pipelines([Mutex<ToLeader>; Operation::ALL.len()]);

/// The connections to one process for one operation. Dropped: they end when what they have begun is answered.
#[derive(Default)]
struct ToLeader {
    /// `0`: none was asked yet.
    boot_id: u64,
    address: String,
    handles: Vec<Handle>,
    pause: Arc<Pause>,
}

/// The sending end of a connection.
struct Handle {
    queue: mpsc::Sender<Job>,
    load: Load,
}

impl Pipelines {
    /// Sends a request to this node. Call within a runtime.
    ///
    /// # Errors
    /// All but [`Unanswered::Lost`].
    pub(crate) fn send(
        &self,
        leader: &NodeInfo,
        from: (&HeaderName, &HeaderValue),
        request: &Request<'_>,
        permit: OwnedSemaphorePermit,
    ) -> Result<oneshot::Receiver<Result<Response, Unanswered>>, Unanswered> {
        let host = host_of(&leader.address).ok_or(Unanswered::NotTaken)?;
        let bytes = request.bytes(host, from).ok_or(Unanswered::NotTaken)?;
        let (respond, response) = oneshot::channel();
        let mut to = self.0[request.operation as usize].lock();
        if to.boot_id != leader.boot_id || to.address != leader.address {
            *to = ToLeader { boot_id: leader.boot_id, address: leader.address.clone(), ..ToLeader::default() };
        }
        let ToLeader { handles, pause, .. } = &mut *to;
        if pause.is_unreadable() {
            return Err(Unanswered::NotTaken);
        }
        handles.retain(|handle| !handle.queue.is_closed());
        // Many on one connection are written and read at once. A further one only if all have so many.
        let opens = handles.iter().all(|handle| handle.load.count() >= SHARED_BY) && handles.len() < CONNECTIONS_MAX;
        if opens && pause.is_over(Instant::now()) {
            let (sender, jobs) = mpsc::channel(QUEUE_MAX);
            handles.push(Handle { queue: sender, load: Load::default() });
            tokio::spawn(run(host.to_owned(), jobs, pause.clone()));
        }
        let with_room = || handles.iter().filter(|handle| handle.queue.capacity() > 0);
        let first = with_room().find(|handle| handle.load.count() < SHARED_BY);
        let chosen = first.or_else(|| with_room().min_by_key(|handle| handle.load.count()));
        let chosen = chosen.ok_or(Unanswered::Unreachable)?;
        let job = Job { bytes, respond, load: chosen.load.begin(), permit };
        match chosen.queue.try_send(job) {
            Ok(()) => Ok(response),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Unanswered::Unreachable),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Unanswered::NotSent),
        }
    }
}

/// The host and port of an address that has nothing else and no TLS.
fn host_of(address: &str) -> Option<&str> {
    let host = address.trim_end_matches('/').strip_prefix("http://")?;
    host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn only_plain_addresses_are_connected_to() {
        for (address, host) in [
            ("http://10.0.0.1:8080", Some("10.0.0.1:8080")),
            ("http://node-1.example.com/", Some("node-1.example.com")),
            ("http://[::1]:8080", Some("[::1]:8080")),
            ("https://10.0.0.1:8080", None),
            ("http://10.0.0.1:8080/tidings", None),
            ("http://user@10.0.0.1", None),
            ("http://a\r\nb", None),
            ("", None),
        ] {
            assert_eq!(host_of(address), host, "{address:?}");
        }
    }
}
