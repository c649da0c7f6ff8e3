//! The handshake of a link: both sides prove that they know the link's secret, without sending it.
//!
//! ```text
//! core ── Challenge(nonce) ─▶ relay ── Hello(name, nonce, proof) ─▶ core ── Welcome(shards, proof) ─▶ relay
//! ```
//! A proof is the HMAC-SHA256, under the secret, of the other side's nonce and the message. Later packets are not encrypted:
//! links belong on a private network.

use super::packet::{self, PAYLOAD_BYTES_MAX, Packet, PacketKind};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::Sha256;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// The longest wait for one read or write of the other side.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The version of the link's protocol; both sides must have the same.
pub(crate) const VERSION: u32 = 1;
/// The longest packet of a handshake.
const PACKET_BYTES_MAX: usize = 4 * 1024;

/// The relay thread that attaches, and the shard that it attaches to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub version: u32,
    /// The node's name: one process at a time has it.
    pub name: String,
    /// Random per process: a process with the same name and another boot id is its successor.
    pub boot_id: u64,
    /// The address that devices connect to.
    pub address: String,
    pub thread: u16,
    pub shard: u16,
    pub nonce: [u8; 16],
    /// The relay attaches to each core that it is told of ([`PacketKind::SessionNodes`]). An earlier one attaches to one core,
    /// and takes no such packet.
    #[serde(skip)]
    pub follows_cores: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The number of the core's shards: a relay thread has one link to each.
    pub shards: u16,
    /// A side that is silent for longer is given up.
    pub lease_ms: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the other side does not speak our link's language")]
    Protocol,
    #[error("the other side does not know the link's secret")]
    Secret,
    #[error("refused: {0}")]
    Refused(String),
    /// This core is of an earlier version and serves no devices now; the named one may. Empty: no such core is known.
    #[error("another core serves devices: {0:?}")]
    Redirect(String),
}

impl From<packet::InvalidPacket> for HandshakeError {
    fn from(_: packet::InvalidPacket) -> Self {
        HandshakeError::Protocol
    }
}

/// The core's side: receives the relay's hello and verifies its proof. A welcome then ends the handshake.
pub(crate) fn receive(socket: &mut TcpStream, secret: &str, nonce: [u8; 16]) -> Result<Hello, HandshakeError> {
    prepare(socket)?;
    send(socket, PacketKind::Challenge, &nonce)?;
    let (kind, payload) = receive_packet(socket)?;
    if kind != PacketKind::Hello {
        return Err(HandshakeError::Protocol);
    }
    let hello = match verify::<(Hello, bool)>(secret, &nonce, &payload) {
        Ok((hello, follows_cores)) => Hello { follows_cores, ..hello },
        // An earlier version's ends before the flag.
        Err(HandshakeError::Protocol) => verify(secret, &nonce, &payload)?,
        Err(error) => return Err(error),
    };
    if hello.version != VERSION {
        return Err(HandshakeError::Protocol);
    }
    Ok(hello)
}

/// The payload of the packet that ends the handshake. The link's shard writes it as its first packet: a relay that was
/// welcomed by all shards has a link to each, and a session may move to any of them.
pub(crate) fn welcome(secret: &str, hello: &Hello, welcome: &Welcome) -> Result<Vec<u8>, HandshakeError> {
    sign(secret, &hello.nonce, welcome)
}

pub(crate) fn refuse(socket: &mut TcpStream, why: &str) {
    let _ = send(socket, PacketKind::Refused, why.as_bytes());
}

/// The relay's side.
pub(crate) fn attach(socket: &mut TcpStream, secret: &str, hello: &Hello) -> Result<Welcome, HandshakeError> {
    prepare(socket)?;
    let (kind, nonce) = receive_packet(socket)?;
    if kind != PacketKind::Challenge {
        return Err(HandshakeError::Protocol);
    }
    send(socket, PacketKind::Hello, &sign(secret, &nonce, &(hello, hello.follows_cores))?)?;
    match receive_packet(socket)? {
        (PacketKind::Welcome, payload) => verify(secret, &hello.nonce, &payload),
        (PacketKind::Redirect, core) => Err(HandshakeError::Redirect(String::from_utf8_lossy(&core).into_owned())),
        (PacketKind::Refused, why) => Err(HandshakeError::Refused(String::from_utf8_lossy(&why).into_owned())),
        _ => Err(HandshakeError::Protocol),
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT))
}

fn send(socket: &mut TcpStream, kind: PacketKind, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    packet::put(&mut bytes, kind, 0, payload);
    socket.write_all(&bytes)
}

/// Reads exactly one packet, and no byte of the next: those belong to the thread that the link is handed to.
fn receive_packet(socket: &mut TcpStream) -> Result<(PacketKind, Vec<u8>), HandshakeError> {
    let mut bytes = Vec::new();
    loop {
        if let Some(Packet { kind, payload, .. }) = packet::take(&bytes)? {
            return Ok((kind, bytes[payload].to_vec()));
        }
        if bytes.len() > PACKET_BYTES_MAX.min(PAYLOAD_BYTES_MAX) {
            return Err(HandshakeError::Protocol);
        }
        let mut byte = [0];
        match socket.read(&mut byte) {
            Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(_) => bytes.push(byte[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn mac(secret: &str, nonce: &[u8], message: &[u8]) -> Result<Hmac<Sha256>, HandshakeError> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).map_err(|_| HandshakeError::Secret)?;
    mac.update(&(nonce.len() as u64).to_le_bytes());
    mac.update(nonce);
    mac.update(message);
    Ok(mac)
}

/// The proof, followed by the message.
fn sign(secret: &str, nonce: &[u8], message: &impl Serialize) -> Result<Vec<u8>, HandshakeError> {
    let message = postcard::to_stdvec(message).map_err(|_| HandshakeError::Protocol)?;
    let mut signed = mac(secret, nonce, &message)?.finalize().into_bytes().to_vec();
    signed.extend_from_slice(&message);
    Ok(signed)
}

fn verify<T: DeserializeOwned>(secret: &str, nonce: &[u8], signed: &[u8]) -> Result<T, HandshakeError> {
    let (proof, message) = signed.split_at_checked(32).ok_or(HandshakeError::Protocol)?;
    mac(secret, nonce, message)?.verify_slice(proof).map_err(|_| HandshakeError::Secret)?;
    postcard::from_bytes(message).map_err(|_| HandshakeError::Protocol)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    const SECRET: &str = "the secret of the links";

    fn hello(follows_cores: bool) -> Hello {
        let (name, address) = ("east".into(), "127.0.0.2:8081".into());
        Hello { version: VERSION, name, boot_id: 7, address, thread: 1, shard: 2, nonce: [3; 16], follows_cores }
    }

    /// Both ends of a connection.
    fn ends() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// What a core takes from a relay that answers its challenge with this.
    fn received(secret: &'static str, answer: impl Fn(&[u8]) -> Vec<u8>) -> Result<Hello, HandshakeError> {
        let (mut relay, mut core) = ends();
        let taken = std::thread::spawn(move || receive(&mut core, secret, [9; 16]));
        let (_, nonce) = receive_packet(&mut relay).unwrap();
        send(&mut relay, PacketKind::Hello, &answer(&nonce)).unwrap();
        taken.join().unwrap()
    }

    #[test]
    fn a_hello_says_whether_the_relay_follows_cores_and_an_earlier_one_does_not() {
        let taken = received(SECRET, |nonce| sign(SECRET, nonce, &(hello(true), true)).unwrap()).unwrap();
        assert_eq!(taken, hello(true));
        let earlier = received(SECRET, |nonce| sign(SECRET, nonce, &hello(false)).unwrap()).unwrap();
        assert_eq!(earlier, hello(false));
        let stranger = received("another secret", |nonce| sign(SECRET, nonce, &(hello(true), true)).unwrap());
        assert!(matches!(stranger, Err(HandshakeError::Secret)), "{stranger:?}");
    }

    #[test]
    fn an_earlier_core_reads_the_hello_up_to_what_it_knows() {
        let signed = sign(SECRET, &[9; 16], &(hello(true), true)).unwrap();
        let read: Hello = verify(SECRET, &[9; 16], &signed).unwrap();
        assert_eq!(read, hello(false));
    }

    #[test]
    fn an_earlier_core_names_the_one_that_serves_devices() {
        let (mut relay, mut core) = ends();
        let answers = std::thread::spawn(move || {
            receive(&mut core, SECRET, [9; 16]).unwrap();
            send(&mut core, PacketKind::Redirect, b"10.0.0.1:8090").unwrap();
        });
        let attached = attach(&mut relay, SECRET, &hello(true));
        answers.join().unwrap();
        assert!(matches!(&attached, Err(HandshakeError::Redirect(core)) if core == "10.0.0.1:8090"));
    }
}
