#![allow(clippy::unwrap_used)]

use super::*;
use crate::reserved_port::ReservedPort;
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::Instant,
};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Clients that say a line as soon as they are connected, and take lines.
#[derive(Default)]
struct Lines {
    connected: usize,
    got: String,
    ended: Vec<ErrorKind>,
    expired: Vec<usize>,
}

impl Clients for Lines {
    type Error = io::Error;

    fn connected(&mut self, _: usize, out: &mut Vec<u8>) {
        self.connected += 1;
        out.extend_from_slice(b"hello\n");
    }

    fn receive(&mut self, _: usize, bytes: &mut [u8], _: &mut Vec<u8>) -> io::Result<usize> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.got += std::str::from_utf8(&bytes[..whole]).unwrap();
        Ok(whole)
    }

    fn ended(&mut self, _: &mut Reactor, _: usize, why: io::Error) -> Result<(), LabError> {
        self.ended.push(why.kind());
        Ok(())
    }

    fn expired(&mut self, _: &mut Reactor, number: usize) -> Result<(), LabError> {
        self.expired.push(number);
        Ok(())
    }
}

fn turn_until(reactor: &mut Reactor, clients: &mut Lines, done: impl Fn(&Reactor, &Lines) -> bool) {
    let began = Instant::now();
    while !done(reactor, clients) {
        assert!(began.elapsed() < PATIENCE, "ended {:?}, got {} bytes", clients.ended, clients.got.len());
        reactor.turn(Duration::from_millis(5), clients).unwrap();
    }
}

/// Client 0, connected to what `serve` does.
fn connect_to<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (Reactor, std::thread::JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let mut reactor = Reactor::new().unwrap();
    reactor.connect(0, address, None).unwrap();
    (reactor, server)
}

#[test]
fn what_came_before_the_end_is_read_before_it() {
    let (mut reactor, server) = connect_to(|mut stream| {
        let mut hello = [0; 6];
        stream.read_exact(&mut hello).unwrap();
        for part in ["on", "e\ntw", "o\n"] {
            stream.write_all(part.as_bytes()).unwrap();
        }
        hello
    });
    let mut clients = Lines::default();
    turn_until(&mut reactor, &mut clients, |_, clients| !clients.ended.is_empty());
    assert_eq!((clients.connected, clients.got.as_str()), (1, "one\ntwo\n"));
    assert_eq!(clients.ended, [ErrorKind::UnexpectedEof]);
    assert_eq!(&server.join().unwrap(), b"hello\n");
}

#[test]
fn what_the_kernel_does_not_take_is_written_later() {
    let bytes = (0..=255).collect::<Vec<u8>>().repeat(256 * 1024);
    let (begin, may_read) = mpsc::sync_channel(1);
    let (mut reactor, server) = connect_to(move |mut stream| {
        may_read.recv().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    let mut clients = Lines::default();
    turn_until(&mut reactor, &mut clients, |_, clients| clients.connected == 1);
    reactor.out(0).extend_from_slice(&bytes);
    reactor.flush();
    assert!(reactor.unsent(0) > 0, "more than any kernel holds");
    begin.send(()).unwrap();
    turn_until(&mut reactor, &mut clients, |reactor, _| reactor.unsent(0) == 0);
    reactor.close(0);
    let all = server.join().unwrap();
    assert_eq!(&all[..6], b"hello\n");
    assert!(all[6..] == bytes, "{} bytes of {}", all.len() - 6, bytes.len());
}

#[test]
fn a_refused_connect_is_called_refused_whoever_notices_first() {
    let port = ReservedPort::any(Ipv4Addr::LOCALHOST.into()).unwrap();
    for writes in [false, true] {
        let (mut reactor, mut clients) = (Reactor::new().unwrap(), Lines::default());
        reactor.connect(0, port.at, None).unwrap();
        if writes {
            reactor.out(0).extend_from_slice(b"hello\n");
            reactor.flush();
        }
        turn_until(&mut reactor, &mut clients, |_, clients| !clients.ended.is_empty());
        assert_eq!((clients.connected, clients.ended), (0, vec![ErrorKind::ConnectionRefused]), "writes: {writes}");
    }
}

#[test]
fn timers_expire_once_unless_they_are_cleared() {
    let (mut reactor, mut clients) = (Reactor::new().unwrap(), Lines::default());
    for number in [5, 3, 4] {
        reactor.set_timer(number, 10);
    }
    reactor.clear_timer(4);
    reactor.set_timer(3, 200);
    turn_until(&mut reactor, &mut clients, |_, clients| clients.expired.len() == 2);
    assert_eq!(clients.expired, [5, 3]);
}
