//! One device: a socket and a few words. What it needs only now and then is boxed and gone afterwards, so that a
//! worker's memory is its sockets'.

use super::pushes::Seen;
use mio::net::TcpStream;
use rustls::{ClientConfig, ClientConnection, pki_types::ServerName};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    sync::Arc,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No connection, and none is due.
    Idle,
    /// Comes up in the wheel to try again.
    Waiting,
    /// Its time has come, but too many are under way.
    Queued,
    /// On its way to the upgrade's answer, which WebSocket alone has.
    Opening,
    /// On its way to `bound`.
    Binding,
    Live,
    GivenUp,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) stream: Option<TcpStream>,
    rest: Option<Box<Rest>>,
    pub(crate) seen: Seen,
    pub(crate) planned_ns: u64,
    /// When the heartbeat that has no echo yet was sent; 0: none.
    pub(crate) beat_ns: u64,
    /// The wheel's tick that this device waits for.
    pub(crate) due: u32,
    pub(crate) heartbeat_ms: u32,
    pub(crate) door: u16,
    /// Failures in a row.
    pub(crate) attempts: u16,
    /// Connections so far: each comes from the next source address, whose ports nothing else has used.
    pub(crate) generation: u8,
    pub(crate) stage: Stage,
}

/// What few devices have at a time, except with TLS.
#[derive(Debug, Default)]
struct Rest {
    /// The head of a frame that the end of a read cut.
    cut: Vec<u8>,
    /// What the socket has not taken yet.
    out: Vec<u8>,
    tls: Option<ClientConnection>,
}

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    More,
    Drained,
    Ended,
}

impl Device {
    pub(crate) fn new(door: u16) -> Self {
        Device {
            stream: None,
            rest: None,
            seen: Seen::default(),
            planned_ns: 0,
            beat_ns: 0,
            due: 0,
            heartbeat_ms: 0,
            door,
            attempts: 0,
            generation: 0,
            stage: Stage::Idle,
        }
    }

    pub(crate) fn open(&mut self, stream: TcpStream, tls: Option<&Tls>) -> io::Result<()> {
        self.stream = Some(stream);
        if let Some(tls) = tls {
            let tls = ClientConnection::new(tls.config.clone(), tls.name.clone()).map_err(io::Error::other)?;
            self.rest = Some(Box::new(Rest { tls: Some(tls), ..Rest::default() }));
        }
        Ok(())
    }

    pub(crate) fn close(&mut self) {
        self.stream = None;
        self.rest = None;
    }

    /// Sends, or keeps what the socket does not take until [`flush`](Self::flush).
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.rest {
            Some(rest) => match &mut rest.tls {
                Some(tls) => tls.writer().write_all(bytes)?,
                None => rest.out.extend_from_slice(bytes),
            },
            None => {
                let Some(stream) = &mut self.stream else { return Ok(()) };
                let taken = write_some(stream, bytes)?;
                if taken == bytes.len() {
                    return Ok(());
                }
                self.rest = Some(Box::new(Rest { out: bytes[taken..].to_vec(), ..Rest::default() }));
            }
        }
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let (Some(stream), Some(rest)) = (&mut self.stream, &mut self.rest) else { return Ok(()) };
        if let Some(tls) = &mut rest.tls {
            while tls.wants_write() {
                match tls.write_tls(stream) {
                    Ok(_) => {}
                    Err(error) if is_not_now(&error) => break,
                    Err(error) => return Err(error),
                }
            }
            return Ok(());
        }
        let taken = write_some(stream, &rest.out)?;
        rest.out.drain(..taken);
        self.let_go();
        Ok(())
    }

    /// Reads once, behind what was cut off before; `buffer` grows when a frame does not fit.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<(usize, Reading)> {
        let Some(stream) = &mut self.stream else { return Ok((0, Reading::Ended)) };
        let mut kept = 0;
        if let Some(rest) = &mut self.rest {
            kept = rest.cut.len();
            if kept >= buffer.len() / 2 {
                // What the frame codec takes bounds this.
                buffer.resize(kept * 4, 0);
            }
            buffer[..kept].copy_from_slice(&rest.cut);
            rest.cut = Vec::new();
            if let Some(tls) = &mut rest.tls {
                let (count, reading) = read_tls(tls, stream, &mut buffer[kept..])?;
                return Ok((kept + count, reading));
            }
        }
        let room = buffer.len() - kept;
        let (count, reading) = match stream.read(&mut buffer[kept..]) {
            Ok(0) => (0, Reading::Ended),
            // A short read drained the socket: the next event tells of more (epoll(7)).
            Ok(count) => (count, if count < room { Reading::Drained } else { Reading::More }),
            Err(error) if is_not_now(&error) => (0, Reading::Drained),
            Err(error) if error.kind() == ErrorKind::Interrupted => (0, Reading::More),
            Err(error) => return Err(error),
        };
        Ok((kept + count, reading))
    }

    /// Keeps the head of a frame for the next read.
    pub(crate) fn keep(&mut self, cut: &[u8]) {
        if cut.is_empty() {
            self.let_go();
        } else {
            self.rest.get_or_insert_default().cut = cut.to_vec();
        }
    }

    /// An idle device holds nothing.
    fn let_go(&mut self) {
        if self.rest.as_ref().is_some_and(|rest| rest.tls.is_none() && rest.out.is_empty() && rest.cut.is_empty()) {
            self.rest = None;
        }
    }
}

/// The client's side of TLS, which accepts one certificate.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl Tls {
    /// `certificate` is in PEM and vouches for itself and for the name `localhost`.
    pub(crate) fn trusting(certificate: &str) -> io::Result<Self> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(io::Error::other)?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Every device is a stranger: a ticket that one got would make the others' handshakes cheaper.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Tls { config: Arc::new(config), name: ServerName::try_from("localhost").map_err(io::Error::other)? })
    }
}

fn read_tls(tls: &mut ClientConnection, stream: &mut TcpStream, out: &mut [u8]) -> io::Result<(usize, Reading)> {
    loop {
        match tls.reader().read(out) {
            Ok(0) => return Ok((0, Reading::Ended)),
            Ok(count) => return Ok((count, Reading::More)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok((0, Reading::Ended)),
            Err(error) => return Err(error),
        }
        match tls.read_tls(stream) {
            Ok(0) => return Ok((0, Reading::Ended)),
            Ok(_) => {
                tls.process_new_packets().map_err(io::Error::other)?;
            }
            Err(error) if is_not_now(&error) => return Ok((0, Reading::Drained)),
            Err(error) => return Err(error),
        }
    }
}

fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut taken = 0;
    while taken < bytes.len() {
        match stream.write(&bytes[taken..]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => taken += count,
            Err(error) if is_not_now(&error) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// The socket is full, empty, or not connected yet.
fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

/// Starts to connect. A loopback address is reached from `source`, an address and port that nobody else uses: the
/// kernel then searches no port, and one server address can be reached more often than it has ports.
pub(crate) fn connect(address: SocketAddr, source: Option<SocketAddr>) -> io::Result<TcpStream> {
    let Some(source) = source else { return TcpStream::connect(address) };
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM.nonblocking(),
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    match socket.bind(&source.into()) {
        // Somebody listens on that port of every address: the kernel then finds one.
        Err(error) if error.kind() == ErrorKind::AddrInUse => socket.bind(&SocketAddr::new(source.ip(), 0).into())?,
        bound => bound?,
    }
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from_std(socket.into()))
}

/// Linux's "in progress" for a nonblocking connect.
const EINPROGRESS: i32 = 115;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_small() {
        let size = std::mem::size_of::<Device>();
        println!("a device: {size} bytes");
        assert!(size <= 112, "{size}");
    }
}
