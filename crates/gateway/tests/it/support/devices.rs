//! Devices that speak MIOP, plain or under TLS, and the certificates that they trust.
#![allow(unreachable_pub)]

use crate::support::{PATIENCE, Server, token, until};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
};
use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};
use tidings_domain::metrics::Metrics;
use tidings_gateway::{
    SessionConfig,
    link_listener::{LinkConfig, LinkListener},
    miop_listener::{MiopListener, MiopListenerConfig, StopHandle},
    relay::{Relay, RelayConfig},
};
use tidings_listen::tls::{Certificates, server_config};
use tidings_protocol::miop::{Bind, Frame, VERSION, decode, take_head};

pub const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A running MIOP listener; drop it before its server.
pub struct RunningListener {
    pub address: SocketAddr,
    _stop: StopHandle,
}

impl RunningListener {
    pub fn open(server: &Server, config: MiopListenerConfig) -> Self {
        let listener = MiopListener::bind(config).unwrap();
        RunningListener {
            address: listener.addresses()[0].0,
            _stop: listener.start(server.session_server.clone()).unwrap(),
        }
    }
}

/// A gateway process's part, in this process: a relay that holds devices for the server.
pub struct RunningRelay {
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    relay: Arc<Relay>,
    link: LinkListener,
    _stop: StopHandle,
}

impl RunningRelay {
    pub fn open(server: &Server, sessions: SessionConfig) -> Self {
        let secret = "the secret of the links".to_owned();
        let lease = Duration::from_secs(60);
        let config = LinkConfig { listen: LOCAL, secret: secret.clone(), lease };
        let link = LinkListener::start(config, server.session_server.clone()).unwrap();
        let listener = MiopListener::bind(MiopListenerConfig::open(vec![LOCAL])).unwrap();
        let address = listener.addresses()[0].0;
        let (cores, metrics) = (vec![link.address().to_string()], Arc::new(Metrics::new()));
        let config = RelayConfig { cores, secret, name: "east".into(), address: address.to_string(), sessions };
        let relay = Relay::start(config, metrics.clone()).unwrap();
        let _stop = listener.start(relay.clone()).unwrap();
        until("attached", || relay.is_attached());
        RunningRelay { address, metrics, relay, link, _stop }
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        self.relay.drain(Duration::ZERO);
        self.link.stop();
    }
}

/// Forwards bytes to a target and back until it is cut; then refuses connections until it is mended.
pub struct Wire {
    pub address: SocketAddr,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
    /// What the target sends.
    held: Arc<Hold>,
    /// What is sent to the target.
    held_up: Arc<Hold>,
}

/// Whether bytes are held back.
#[derive(Default)]
struct Hold(Mutex<bool>, Condvar);

impl Hold {
    fn set(&self, held: bool) {
        *self.0.lock().unwrap() = held;
        self.1.notify_all();
    }

    /// Answers whether there was something to wait for.
    fn wait(&self) -> bool {
        let mut has_waited = false;
        let is_held = |held: &mut bool| {
            has_waited |= *held;
            *held
        };
        drop(self.1.wait_while(self.0.lock().unwrap(), is_held).unwrap());
        has_waited
    }
}

impl Wire {
    pub fn to(target: SocketAddr) -> Wire {
        let listener = TcpListener::bind(LOCAL).unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let wire = Wire { address, open, held: Arc::default(), held_up: Arc::default() };
        let (ends, held, held_up) = (wire.open.clone(), wire.held.clone(), wire.held_up.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let mut open = ends.lock().unwrap();
                let Some(ends) = open.as_mut() else { continue };
                let Ok(far) = TcpStream::connect(target) else { continue };
                let both = || (near.try_clone().unwrap(), far.try_clone().unwrap());
                let ((from, to), held_up) = (both(), held_up.clone());
                std::thread::spawn(move || forward(from, to, &held_up));
                let ((to, from), held) = (both(), held.clone());
                std::thread::spawn(move || forward(from, to, &held));
                ends.extend([near, far]);
            }
        });
        wire
    }

    pub fn cut(&self) {
        for end in self.open.lock().unwrap().take().into_iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        *self.open.lock().unwrap() = Some(Vec::new());
    }

    /// Holds back what the target sends, or lets it go on.
    pub fn hold_back(&self, held: bool) {
        self.held.set(held);
    }

    /// Holds back what is sent to the target, or lets it go on, as one piece.
    pub fn hold_up(&self, held: bool) {
        self.held_up.set(held);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, hold: &Hold) {
    let mut part = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut part) {
        let mut piece = part[..count].to_vec();
        if hold.wait() {
            from.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            while let Ok(more @ 1..) = from.read(&mut part) {
                piece.extend_from_slice(&part[..more]);
            }
            from.set_read_timeout(None).unwrap();
        }
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// One end of a MIOP connection.
pub struct Device<S> {
    pub stream: S,
    buffer: Vec<u8>,
}

impl<S: Read + Write> Device<S> {
    pub fn new(stream: S) -> Self {
        Device { stream, buffer: Vec::new() }
    }

    /// Connected and bound.
    pub fn bound(stream: S, user: &str) -> Self {
        let mut device = Device::new(stream);
        device.bind(user);
        device.expect(|frame| assert!(matches!(frame, Frame::Bound(_)), "{frame:?}"));
        device
    }

    pub fn bind(&mut self, user: &str) {
        let token = token(user);
        let bind = Bind { version: VERSION, token: &token, device_id: "d1", ..Bind::default() };
        self.write(&Frame::Bind(bind));
    }

    pub fn write(&mut self, frame: &Frame) {
        self.stream.write_all(&frame.to_bytes()).unwrap();
        self.stream.flush().unwrap();
    }

    /// Looks at the next frame but for lines of the user's list, which come whenever one has changed. `None`: the server
    /// ended the connection.
    pub fn next<T>(&mut self, look: impl FnOnce(Frame) -> T) -> io::Result<Option<T>> {
        loop {
            if let Some(head) = take_head(&self.buffer, 1 << 24).unwrap() {
                let frame = decode(head.kind, &self.buffer[head.payload.clone()]).unwrap();
                if matches!(&frame, Frame::Chat { json } if json.starts_with(br#"{"t":"conversation","#)) {
                    self.buffer.drain(..head.payload.end);
                    continue;
                }
                let seen = look(frame);
                self.buffer.drain(..head.payload.end);
                return Ok(Some(seen));
            }
            let mut part = [0; 16 * 1024];
            match self.stream.read(&mut part)? {
                0 => return Ok(None),
                count => self.buffer.extend_from_slice(&part[..count]),
            }
        }
    }

    #[track_caller]
    pub fn expect<T>(&mut self, look: impl FnOnce(Frame) -> T) -> T {
        self.next(look).unwrap().expect("the connection ended")
    }

    /// A heartbeat goes there and back.
    #[track_caller]
    pub fn is_alive(&mut self) {
        self.write(&Frame::Heartbeat { interval_s: None });
        self.expect(|frame| assert!(matches!(frame, Frame::Heartbeat { .. }), "{frame:?}"));
    }
}

pub type Secure = StreamOwned<ClientConnection, TcpStream>;

/// A self-signed certificate, in files.
pub struct Identity {
    folder: tempfile::TempDir,
}

impl Identity {
    pub fn new() -> Self {
        let identity = Identity { folder: tempfile::tempdir().unwrap() };
        identity.renew();
        identity
    }

    /// Replaces the files. Answers with a client that trusts the new certificate only.
    pub fn renew(&self) -> Arc<ClientConfig> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(self.certificate_file(), made.cert.pem()).unwrap();
        fs::write(self.key_file(), made.signing_key.serialize_pem()).unwrap();
        trusting(made.cert.der())
    }

    pub fn certificate_file(&self) -> PathBuf {
        self.file("certificate.pem")
    }

    pub fn key_file(&self) -> PathBuf {
        self.file("key.pem")
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }

    pub fn load(&self) -> Arc<Certificates> {
        Certificates::load(&self.certificate_file(), &self.key_file()).unwrap()
    }
}

fn trusting(certificate: &CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// The settings of a listener with TLS.
pub fn tls_listener_config(certificates: &Arc<Certificates>, protocol: &[u8]) -> MiopListenerConfig {
    let tls = server_config(certificates.clone(), protocol).unwrap();
    MiopListenerConfig { listen: vec![(LOCAL, Some(tls))], ..MiopListenerConfig::open(vec![]) }
}

/// Connects and completes the handshake.
pub fn connect_securely(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Secure> {
    secure_over(connect(address), config)
}

/// Begins TLS on a connected socket.
pub fn secure_over(socket: TcpStream, config: &Arc<ClientConfig>) -> io::Result<Secure> {
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(config.clone(), name).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}
