//! One device of the worker: a socket and a few numbers. Buffers are allocated only while they hold bytes, so that idle
//! devices take little memory.

use super::push_verifier::ReceivedPushes;
use mio::net::TcpStream;
use rustls::{ClientConfig, ClientConnection, pki_types::ServerName};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    sync::Arc,
};

/// The state of a device's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceState {
    /// Not connected, and no connect is planned.
    Idle,
    /// Waits for its timer to retry.
    Waiting,
    /// Due to connect, while too many others are connecting.
    Queued,
    /// Waits for the answer to the WebSocket upgrade.
    Opening,
    /// Waits for `bound`.
    Binding,
    Live,
    GivenUp,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) stream: Option<TcpStream>,
    buffers: Option<Box<Buffers>>,
    pub(crate) received: ReceivedPushes,
    pub(crate) planned_ns: u64,
    /// When the heartbeat that is not answered yet was sent; 0: there is none.
    pub(crate) heartbeat_sent_ns: u64,
    /// The tick of the timer wheel at which the device's timer expires; entries of other ticks are stale.
    pub(crate) due_tick: u32,
    pub(crate) heartbeat_ms: u32,
    pub(crate) listener: u16,
    /// Consecutive failures.
    pub(crate) attempts: u16,
    /// The number of the connection: each connection uses the next source address, whose port is free.
    pub(crate) generation: u8,
    pub(crate) state: DeviceState,
}

/// Buffers of a connection, allocated while they hold bytes, or always with TLS.
#[derive(Debug, Default)]
struct Buffers {
    /// The beginning of a frame that the last read did not complete.
    partial_frame: Vec<u8>,
    /// Bytes that the socket has not accepted yet.
    unsent: Vec<u8>,
    tls: Option<ClientConnection>,
}

/// Whether a read has to be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    More,
    Drained,
    Ended,
}

impl Device {
    pub(crate) fn new(listener: u16) -> Self {
        Device {
            stream: None,
            buffers: None,
            received: ReceivedPushes::default(),
            planned_ns: 0,
            heartbeat_sent_ns: 0,
            due_tick: 0,
            heartbeat_ms: 0,
            listener,
            attempts: 0,
            generation: 0,
            state: DeviceState::Idle,
        }
    }

    pub(crate) fn open(&mut self, stream: TcpStream, tls: Option<&TlsClient>) -> io::Result<()> {
        self.stream = Some(stream);
        if let Some(tls) = tls {
            let tls = ClientConnection::new(tls.config.clone(), tls.name.clone()).map_err(io::Error::other)?;
            self.buffers = Some(Box::new(Buffers { tls: Some(tls), ..Buffers::default() }));
        }
        Ok(())
    }

    pub(crate) fn close(&mut self) {
        self.stream = None;
        self.buffers = None;
    }

    /// Sends bytes; those that the socket does not accept are kept until [`flush`](Self::flush).
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.buffers {
            Some(buffers) => match &mut buffers.tls {
                Some(tls) => tls.writer().write_all(bytes)?,
                None => buffers.unsent.extend_from_slice(bytes),
            },
            None => {
                let Some(stream) = &mut self.stream else { return Ok(()) };
                let taken = write_some(stream, bytes)?;
                if taken == bytes.len() {
                    return Ok(());
                }
                self.buffers = Some(Box::new(Buffers { unsent: bytes[taken..].to_vec(), ..Buffers::default() }));
            }
        }
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let (Some(stream), Some(buffers)) = (&mut self.stream, &mut self.buffers) else { return Ok(()) };
        if let Some(tls) = &mut buffers.tls {
            while tls.wants_write() {
                match tls.write_tls(stream) {
                    Ok(_) => {}
                    Err(error) if would_block(&error) => break,
                    Err(error) => return Err(error),
                }
            }
            return Ok(());
        }
        let taken = write_some(stream, &buffers.unsent)?;
        buffers.unsent.drain(..taken);
        self.free_empty_buffers();
        Ok(())
    }

    /// Reads once into `buffer`, after the incomplete frame of the last read; `buffer` grows when a frame does not fit.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<(usize, ReadOutcome)> {
        let Some(stream) = &mut self.stream else { return Ok((0, ReadOutcome::Ended)) };
        let mut kept = 0;
        if let Some(buffers) = &mut self.buffers {
            kept = buffers.partial_frame.len();
            if kept >= buffer.len() / 2 {
                // The frame codec's longest frame bounds this.
                buffer.resize(kept * 4, 0);
            }
            buffer[..kept].copy_from_slice(&buffers.partial_frame);
            buffers.partial_frame = Vec::new();
            if let Some(tls) = &mut buffers.tls {
                let (count, reading) = read_tls(tls, stream, &mut buffer[kept..])?;
                return Ok((kept + count, reading));
            }
        }
        let room = buffer.len() - kept;
        let (count, reading) = match stream.read(&mut buffer[kept..]) {
            Ok(0) => (0, ReadOutcome::Ended),
            // A short read drained the socket: the next event announces more (epoll(7)).
            Ok(count) => (count, if count < room { ReadOutcome::Drained } else { ReadOutcome::More }),
            Err(error) if would_block(&error) => (0, ReadOutcome::Drained),
            Err(error) if error.kind() == ErrorKind::Interrupted => (0, ReadOutcome::More),
            Err(error) => return Err(error),
        };
        Ok((kept + count, reading))
    }

    /// Keeps the beginning of an incomplete frame for the next read.
    pub(crate) fn keep_partial_frame(&mut self, cut: &[u8]) {
        if cut.is_empty() {
            self.free_empty_buffers();
        } else {
            self.buffers.get_or_insert_default().partial_frame = cut.to_vec();
        }
    }

    /// Frees the buffers of an idle device.
    fn free_empty_buffers(&mut self) {
        if self.buffers.as_ref().is_some_and(|buffers| {
            buffers.tls.is_none() && buffers.unsent.is_empty() && buffers.partial_frame.is_empty()
        }) {
            self.buffers = None;
        }
    }
}

/// The TLS settings of all devices, which accept one certificate.
#[derive(Debug, Clone)]
pub(crate) struct TlsClient {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl TlsClient {
    /// Accepts `certificate`, in PEM, self-signed and valid for `localhost`.
    pub(crate) fn accepting_only(certificate: &str) -> io::Result<Self> {
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
        // No session resumption: real devices share no tickets, and resumed handshakes would be cheaper.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(TlsClient { config: Arc::new(config), name: ServerName::try_from("localhost").map_err(io::Error::other)? })
    }
}

fn read_tls(tls: &mut ClientConnection, stream: &mut TcpStream, out: &mut [u8]) -> io::Result<(usize, ReadOutcome)> {
    loop {
        match tls.reader().read(out) {
            Ok(0) => return Ok((0, ReadOutcome::Ended)),
            Ok(count) => return Ok((count, ReadOutcome::More)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok((0, ReadOutcome::Ended)),
            Err(error) => return Err(error),
        }
        match tls.read_tls(stream) {
            Ok(0) => return Ok((0, ReadOutcome::Ended)),
            Ok(_) => {
                tls.process_new_packets().map_err(io::Error::other)?;
            }
            Err(error) if would_block(&error) => return Ok((0, ReadOutcome::Drained)),
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
            Err(error) if would_block(&error) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Whether the socket is full, empty, or not connected yet.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

/// Starts to connect, from `source` if given: an address and port that no other connection uses. The kernel then need not
/// search a free port, and more connections to one server address are possible than one source address has ports.
pub(crate) fn connect(address: SocketAddr, source: Option<SocketAddr>) -> io::Result<TcpStream> {
    let Some(source) = source else { return TcpStream::connect(address) };
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::STREAM.nonblocking(),
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    match socket.bind(&source.into()) {
        // Another process listens on that port of all addresses: let the kernel choose a port.
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
    fn a_device_takes_at_most_112_bytes() {
        let size = std::mem::size_of::<Device>();
        println!("a device: {size} bytes");
        assert!(size <= 112, "{size}");
    }
}
