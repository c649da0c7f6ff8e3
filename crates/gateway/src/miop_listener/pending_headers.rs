//! Connections whose load balancer has not sent its PROXY header yet.

use mio::{Interest, Registry, Token, net::TcpStream};
use rustls::ServerConfig;
use slab::Slab;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_listen::proxy::{HEADER_TIMEOUT, HeaderStatus, parse_header};

/// An accepted connection that no shard has yet.
pub(super) struct AcceptedConnection {
    pub socket: TcpStream,
    /// The client's address once it is known; the load balancer's until then.
    pub peer: SocketAddr,
    pub tls: Option<Arc<ServerConfig>>,
}

struct PendingHeader {
    connection: AcceptedConnection,
    header: Vec<u8>,
    /// Differs for each connection with the same key.
    number: u64,
}

/// Connections that wait for their header, each for no longer than the time-out. Admission bounds them together with all
/// other unbound connections.
pub(super) struct PendingHeaders {
    waiting: Slab<PendingHeader>,
    /// Ordered by time, since all have the same time-out. Entries of connections that wait no more are stale.
    deadlines: VecDeque<(Instant, usize, u64)>,
    count: u64,
    /// Poll tokens below belong to the listening sockets.
    first_token: usize,
}

impl PendingHeaders {
    pub(super) fn new(first_token: usize) -> Self {
        PendingHeaders { waiting: Slab::new(), deadlines: VecDeque::new(), count: 0, first_token }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Has the connection wait for its header. If the header has arrived already, the first poll event tells.
    pub(super) fn put(
        &mut self,
        mut connection: AcceptedConnection,
        registry: &Registry,
        now: Instant,
    ) -> io::Result<()> {
        let entry = self.waiting.vacant_entry();
        let key = entry.key();
        registry.register(&mut connection.socket, Token(self.first_token + key), Interest::READABLE)?;
        self.count += 1;
        entry.insert(PendingHeader { connection, header: Vec::new(), number: self.count });
        self.deadlines.push_back((now + HEADER_TIMEOUT, key, self.count));
        Ok(())
    }

    /// Reads after an event. Answers with the connection when its header is complete; a connection that sends anything else
    /// is closed.
    pub(super) fn read(&mut self, token: usize, registry: &Registry) -> Option<AcceptedConnection> {
        let key = token.checked_sub(self.first_token)?;
        let waiting = self.waiting.get_mut(key)?;
        let outcome = waiting.read();
        if matches!(&outcome, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            return None;
        }
        let mut connection = self.waiting.remove(key).connection;
        let _ = registry.deregister(&mut connection.socket);
        match outcome {
            Ok(client) => {
                connection.peer = client.unwrap_or(connection.peer);
                Some(connection)
            }
            Err(error) => {
                tracing::debug!(peer = %connection.peer, %error, "a connection ended before its PROXY header was complete");
                None
            }
        }
    }

    /// Closes the connections whose header has not come in time.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((deadline, key, number)) = self.deadlines.front().copied() {
            let waits = self.waiting.get(key).is_some_and(|waiting| waiting.number == number);
            if waits && now < deadline {
                return;
            }
            self.deadlines.pop_front();
            if waits {
                let connection = self.waiting.remove(key).connection;
                tracing::debug!(peer = %connection.peer, "no PROXY header came in time");
            }
        }
    }

    /// How long until the next time-out.
    pub(super) fn time_until_due(&self, now: Instant) -> Option<Duration> {
        self.deadlines.front().map(|(deadline, ..)| deadline.saturating_duration_since(now))
    }
}

impl PendingHeader {
    /// Answers with the client's address once the header is complete. The bytes after the header stay in the socket.
    fn read(&mut self) -> io::Result<Option<SocketAddr>> {
        loop {
            let more =
                match parse_header(&self.header).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))? {
                    HeaderStatus::Complete(source) => return Ok(source),
                    HeaderStatus::Incomplete(more) => more,
                };
            let had = self.header.len();
            self.header.resize(had + more, 0);
            let outcome = self.connection.socket.read(&mut self.header[had..]);
            self.header.truncate(had + outcome.as_ref().copied().unwrap_or(0));
            match outcome {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use mio::Poll;
    use std::net::TcpListener;

    #[test]
    fn a_connection_without_a_header_in_time_is_closed() {
        let poll = Poll::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut pending_headers = PendingHeaders::new(1);
        let began = Instant::now();
        let come = |pending_headers: &mut PendingHeaders, at: Instant| {
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, peer) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            let connection = AcceptedConnection { socket: TcpStream::from_std(socket), peer, tls: None };
            pending_headers.put(connection, poll.registry(), at).unwrap();
            client
        };
        let mut first = come(&mut pending_headers, began);
        let second = come(&mut pending_headers, began + HEADER_TIMEOUT / 2);
        assert_eq!(pending_headers.time_until_due(began), Some(HEADER_TIMEOUT));

        pending_headers.expire(began + HEADER_TIMEOUT / 2);
        assert_eq!(pending_headers.len(), 2);
        pending_headers.expire(began + HEADER_TIMEOUT);
        assert_eq!(pending_headers.len(), 1);
        assert_eq!(first.read(&mut [0; 1]).unwrap(), 0);

        // A connection that closed by itself leaves a stale deadline, which must not end another one with its key.
        drop(second);
        while pending_headers.len() > 0 {
            assert!(pending_headers.read(2, poll.registry()).is_none());
        }
        let _third = come(&mut pending_headers, began + HEADER_TIMEOUT);
        pending_headers.expire(began + HEADER_TIMEOUT * 3 / 2);
        assert_eq!(pending_headers.len(), 1);
    }
}
