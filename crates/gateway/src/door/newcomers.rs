//! Connections whose load balancer has not said yet whom it connects for.

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

/// One that has come, and what it is to become.
pub(super) struct Newcomer {
    pub socket: TcpStream,
    /// The client's address once it is known; the load balancer's until then.
    pub peer: SocketAddr,
    pub tls: Option<Arc<ServerConfig>>,
}

struct Waiting {
    newcomer: Newcomer,
    header: Vec<u8>,
    /// Tells apart who had the same key before.
    number: u64,
}

/// Those who wait, each for no longer than the time-out. Admission bounds them as it does all who have not bound.
pub(super) struct Newcomers {
    waiting: Slab<Waiting>,
    /// In the order of time, since the time-out is one. Entries of who has gone on are stale.
    deadlines: VecDeque<(Instant, usize, u64)>,
    count: u64,
    /// Tokens below it are the listeners'.
    first_token: usize,
}

impl Newcomers {
    pub(super) fn new(first_token: usize) -> Self {
        Newcomers { waiting: Slab::new(), deadlines: VecDeque::new(), count: 0, first_token }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Has it wait for its header. It may be there already: the first event says so.
    pub(super) fn put(&mut self, mut newcomer: Newcomer, registry: &Registry, now: Instant) -> io::Result<()> {
        let entry = self.waiting.vacant_entry();
        let key = entry.key();
        registry.register(&mut newcomer.socket, Token(self.first_token + key), Interest::READABLE)?;
        self.count += 1;
        entry.insert(Waiting { newcomer, header: Vec::new(), number: self.count });
        self.deadlines.push_back((now + HEADER_TIMEOUT, key, self.count));
        Ok(())
    }

    /// Reads on after an event. Answers with the newcomer when its header is whole; one that sends anything else is let go.
    pub(super) fn read(&mut self, token: usize, registry: &Registry) -> Option<Newcomer> {
        let key = token.checked_sub(self.first_token)?;
        let waiting = self.waiting.get_mut(key)?;
        let outcome = waiting.read();
        if matches!(&outcome, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            return None;
        }
        let mut newcomer = self.waiting.remove(key).newcomer;
        let _ = registry.deregister(&mut newcomer.socket);
        match outcome {
            Ok(client) => {
                newcomer.peer = client.unwrap_or(newcomer.peer);
                Some(newcomer)
            }
            Err(error) => {
                tracing::debug!(peer = %newcomer.peer, %error, "a connection was let go before it began");
                None
            }
        }
    }

    /// Lets those go whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((deadline, key, number)) = self.deadlines.front().copied() {
            let waits = self.waiting.get(key).is_some_and(|waiting| waiting.number == number);
            if waits && now < deadline {
                return;
            }
            self.deadlines.pop_front();
            if waits {
                let newcomer = self.waiting.remove(key).newcomer;
                tracing::debug!(peer = %newcomer.peer, "no PROXY header came in time");
            }
        }
    }

    /// How long until the next one's time is over.
    pub(super) fn until_due(&self, now: Instant) -> Option<Duration> {
        self.deadlines.front().map(|(deadline, ..)| deadline.saturating_duration_since(now))
    }
}

impl Waiting {
    /// The client's address once the header is whole. What follows the header stays in the socket.
    fn read(&mut self) -> io::Result<Option<SocketAddr>> {
        loop {
            let more =
                match parse_header(&self.header).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))? {
                    HeaderStatus::Complete(source) => return Ok(source),
                    HeaderStatus::Incomplete(more) => more,
                };
            let had = self.header.len();
            self.header.resize(had + more, 0);
            let outcome = self.newcomer.socket.read(&mut self.header[had..]);
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
    fn who_sends_no_header_in_time_is_let_go() {
        let poll = Poll::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut newcomers = Newcomers::new(1);
        let began = Instant::now();
        let come = |newcomers: &mut Newcomers, at: Instant| {
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, peer) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            let newcomer = Newcomer { socket: TcpStream::from_std(socket), peer, tls: None };
            newcomers.put(newcomer, poll.registry(), at).unwrap();
            client
        };
        let mut first = come(&mut newcomers, began);
        let second = come(&mut newcomers, began + HEADER_TIMEOUT / 2);
        assert_eq!(newcomers.until_due(began), Some(HEADER_TIMEOUT));

        newcomers.expire(began + HEADER_TIMEOUT / 2);
        assert_eq!(newcomers.len(), 2);
        newcomers.expire(began + HEADER_TIMEOUT);
        assert_eq!(newcomers.len(), 1);
        assert_eq!(first.read(&mut [0; 1]).unwrap(), 0);

        // One that has gone by itself leaves a deadline behind, which is not another's.
        drop(second);
        while newcomers.len() > 0 {
            assert!(newcomers.read(2, poll.registry()).is_none());
        }
        let _third = come(&mut newcomers, began + HEADER_TIMEOUT);
        newcomers.expire(began + HEADER_TIMEOUT * 3 / 2);
        assert_eq!(newcomers.len(), 1);
    }
}
