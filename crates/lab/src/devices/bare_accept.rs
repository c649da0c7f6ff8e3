//! The baseline of connecting: a loop that accepts, reads one frame and writes one of the size of a `bound`. It checks no
//! token and keeps no state: no server can bind devices faster on the same machine with the same clients.

use crate::process::BareLoop;
use clap::Args;
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
};
use tidings_protocol::miop::{Bound, Frame, take_head};

const LISTENER: Token = Token(usize::MAX);
/// The backlog of connections that wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 65_535;
const BIND_BYTES_MAX: usize = 4096;

#[derive(Debug, Clone, Args)]
pub struct BareAcceptArgs {
    #[arg(long)]
    pub listen: SocketAddr,
}

/// The hidden `bench bare-accept` command: prints its address and serves until it is killed.
pub(crate) fn main(args: &BareAcceptArgs) -> ExitCode {
    BareLoop::exit_code("bare accept", serve(args.listen))
}

struct Peer {
    stream: TcpStream,
    /// The beginning of an incomplete bind.
    partial_frame: Vec<u8>,
}

fn serve(address: SocketAddr) -> io::Result<()> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM.nonblocking(), None)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let mut listener = TcpListener::from_std(socket.into());
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    let bound = Bound {
        version: 1,
        session: "0123456789",
        user: "somebody-of-a-run-1",
        heartbeat_s: 3_600,
        ..Bound::default()
    };
    let answer = Frame::Bound(Bound { frame_bytes_max: 196_608, ..bound }).to_bytes();
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(4096);
    // A slot is reused by the next connection, as descriptors are.
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut free = Vec::new();
    loop {
        if let Err(error) = poll.poll(&mut events, None)
            && error.kind() != ErrorKind::Interrupted
        {
            return Err(error);
        }
        for event in &events {
            if event.token() == LISTENER {
                accept(&listener, &poll, &mut peers, &mut free)?;
                continue;
            }
            let slot = event.token().0;
            if let Some(peer) = &mut peers[slot]
                && peer.answer(&answer).is_err()
            {
                peers[slot] = None;
                free.push(slot);
            }
        }
    }
}

fn accept(listener: &TcpListener, poll: &Poll, peers: &mut Vec<Option<Peer>>, free: &mut Vec<usize>) -> io::Result<()> {
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        let slot = free.pop().unwrap_or(peers.len());
        poll.registry().register(&mut stream, Token(slot), Interest::READABLE)?;
        let peer = Some(Peer { stream, partial_frame: Vec::new() });
        if slot == peers.len() { peers.push(peer) } else { peers[slot] = peer }
    }
}

impl Peer {
    /// Reads until the socket is drained and answers a whole frame; an error ends the connection.
    fn answer(&mut self, answer: &[u8]) -> io::Result<()> {
        let mut part = [0; BIND_BYTES_MAX];
        loop {
            let count = match self.stream.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            self.partial_frame.extend_from_slice(&part[..count]);
            if let Some(head) = take_head(&self.partial_frame, BIND_BYTES_MAX).map_err(io::Error::other)? {
                debug_assert_eq!(head.payload.end, self.partial_frame.len());
                self.partial_frame = Vec::new();
                self.stream.write_all(answer)?;
            }
        }
    }
}

/// The processes of the baseline, one per listener of the server that they are compared with.
pub(crate) fn start(count: usize) -> io::Result<Vec<BareLoop>> {
    let start = |number: usize| {
        let address = Ipv4Addr::new(127, 0, (1 + number / 250) as u8, (number % 250 + 2) as u8);
        BareLoop::start(&["bare-accept", "--listen", &format!("{address}:0")])
    };
    (0..count).map(start).collect()
}
