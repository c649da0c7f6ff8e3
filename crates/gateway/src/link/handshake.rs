//! How a link begins: both sides prove to know the link's secret, without saying it.
//!
//! ```text
//! core ── Challenge(nonce) ─▶ relay ── Hello(who, nonce, proof) ─▶ core ── Welcome(shards, proof) ─▶ relay
//! ```
//! A proof is HMAC-SHA256 of both nonces and the message under the secret. What follows is not encrypted:
//! links belong on a network of one's own.

use super::packet::{self, Kind, PAYLOAD_BYTES_MAX, Packet};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::Sha256;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// A side that has not spoken by then is given up.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
/// Both sides must speak the same.
pub(crate) const VERSION: u32 = 1;
/// A handshake's packets are small.
const PACKET_BYTES_MAX: usize = 4 * 1024;

/// Who attaches, and to which shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub version: u32,
    /// The node's name: one process at a time has it.
    pub name: String,
    /// Drawn when the process started: another one under the same name is its successor.
    pub boot_id: u64,
    /// Where devices connect.
    pub address: String,
    pub thread: u16,
    pub shard: u16,
    pub nonce: [u8; 16],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// A relay's thread has one link to each.
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
    /// The core does not take devices now; this one may. Empty: nobody is known to.
    #[error("another core takes devices: {0:?}")]
    Elsewhere(String),
}

impl From<packet::BadPacket> for HandshakeError {
    fn from(_: packet::BadPacket) -> Self {
        HandshakeError::Protocol
    }
}

/// The core's side. Answers who it is once the relay has proven itself; a welcome then ends the handshake.
pub(super) fn receive(socket: &mut TcpStream, secret: &str, nonce: [u8; 16]) -> Result<Hello, HandshakeError> {
    prepare(socket)?;
    send(socket, Kind::Challenge, &nonce)?;
    let (kind, payload) = receive_packet(socket)?;
    if kind != Kind::Hello {
        return Err(HandshakeError::Protocol);
    }
    let hello: Hello = open(secret, &nonce, &payload)?;
    if hello.version != VERSION {
        return Err(HandshakeError::Protocol);
    }
    Ok(hello)
}

/// The payload of the packet that ends the handshake. It is the first that the link's shard writes: who is welcome at all
/// shards has a link to each, and a session may move to any of them.
pub(super) fn welcome(secret: &str, hello: &Hello, welcome: &Welcome) -> Result<Vec<u8>, HandshakeError> {
    seal(secret, &hello.nonce, welcome)
}

/// Another core takes devices.
pub(super) fn send_elsewhere(socket: &mut TcpStream, core: &str) {
    let _ = send(socket, Kind::Elsewhere, core.as_bytes());
}

pub(super) fn refuse(socket: &mut TcpStream, why: &str) {
    let _ = send(socket, Kind::Refused, why.as_bytes());
}

/// The relay's side.
pub(crate) fn attach(socket: &mut TcpStream, secret: &str, hello: &Hello) -> Result<Welcome, HandshakeError> {
    prepare(socket)?;
    let (kind, nonce) = receive_packet(socket)?;
    if kind != Kind::Challenge {
        return Err(HandshakeError::Protocol);
    }
    send(socket, Kind::Hello, &seal(secret, &nonce, hello)?)?;
    match receive_packet(socket)? {
        (Kind::Welcome, payload) => open(secret, &hello.nonce, &payload),
        (Kind::Elsewhere, core) => Err(HandshakeError::Elsewhere(String::from_utf8_lossy(&core).into_owned())),
        (Kind::Refused, why) => Err(HandshakeError::Refused(String::from_utf8_lossy(&why).into_owned())),
        _ => Err(HandshakeError::Protocol),
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(DEADLINE))?;
    socket.set_write_timeout(Some(DEADLINE))
}

fn send(socket: &mut TcpStream, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::new();
    packet::put(&mut bytes, kind, 0, payload);
    socket.write_all(&bytes)
}

/// Exactly one packet: what follows it is for who takes the link over.
fn receive_packet(socket: &mut TcpStream) -> Result<(Kind, Vec<u8>), HandshakeError> {
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

/// The proof, then the message.
fn seal(secret: &str, nonce: &[u8], message: &impl Serialize) -> Result<Vec<u8>, HandshakeError> {
    let message = postcard::to_stdvec(message).map_err(|_| HandshakeError::Protocol)?;
    let mut sealed = mac(secret, nonce, &message)?.finalize().into_bytes().to_vec();
    sealed.extend_from_slice(&message);
    Ok(sealed)
}

fn open<T: DeserializeOwned>(secret: &str, nonce: &[u8], sealed: &[u8]) -> Result<T, HandshakeError> {
    let (proof, message) = sealed.split_at_checked(32).ok_or(HandshakeError::Protocol)?;
    mac(secret, nonce, message)?.verify_slice(proof).map_err(|_| HandshakeError::Secret)?;
    postcard::from_bytes(message).map_err(|_| HandshakeError::Protocol)
}
