//! A proxy between the lab and a real broker, which plants one fault into what the first subscriber gets.

use super::http::listen;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What is wrong with message [`FAULTY`] to the first subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Drop,
    Double,
    /// It comes after the message that follows it.
    Swap,
    Alter,
    /// Nothing comes from then on.
    Starve,
}

/// The number of the faulty message, from 0.
pub(crate) const FAULTY: u64 = 20;

/// How packets are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Of every version.
    Mqtt,
    Nats,
}

/// Starts a proxy to the broker; returns where it listens.
pub(crate) fn start(broker: SocketAddr, framing: Framing, fault: Fault) -> SocketAddr {
    let has_first = Arc::new(AtomicBool::new(false));
    listen(move |client| {
        let server = TcpStream::connect(broker).unwrap();
        server.set_nodelay(true).unwrap();
        let (to_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || copy(client, to_server));
        let has_first = has_first.clone();
        Relay { framing, fault, has_first, is_first: None, messages: 0, held: None }.run(server, to_client);
        Some(())
    })
}

/// From the client to the broker nothing is changed.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 16 * 1024];
    while let Some(count) = from.read(&mut bytes).ok().filter(|count| *count > 0) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// From the broker to one client.
struct Relay {
    framing: Framing,
    fault: Fault,
    /// Whether some connection is the first subscriber's: whoever gets a message first.
    has_first: Arc<AtomicBool>,
    is_first: Option<bool>,
    messages: u64,
    held: Option<Vec<u8>>,
}

impl Relay {
    fn run(&mut self, mut from: TcpStream, mut to: TcpStream) {
        let (mut bytes, mut part) = (Vec::new(), [0; 16 * 1024]);
        while let Some(count) = from.read(&mut part).ok().filter(|count| *count > 0) {
            bytes.extend_from_slice(&part[..count]);
            let mut out = Vec::new();
            while let Some((length, is_message)) = self.framing.packet(&bytes) {
                let packet: Vec<u8> = bytes.drain(..length).collect();
                if is_message { self.pass(packet, &mut out) } else { out.extend_from_slice(&packet) }
            }
            if to.write_all(&out).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    fn pass(&mut self, mut packet: Vec<u8>, out: &mut Vec<u8>) {
        let has_first = &self.has_first;
        if !*self.is_first.get_or_insert_with(|| !has_first.swap(true, Ordering::SeqCst)) {
            return out.extend_from_slice(&packet);
        }
        let number = self.messages;
        self.messages += 1;
        match self.fault {
            Fault::Drop if number == FAULTY => return,
            Fault::Starve if number >= FAULTY => return,
            Fault::Double if number == FAULTY => out.extend_from_slice(&packet),
            Fault::Swap if number == FAULTY => return self.held = Some(packet),
            // Within the payload, in both framings: a line of NATS ends behind it.
            Fault::Alter if number == FAULTY => {
                let last = packet.len() - 3;
                packet[last] ^= 1;
            }
            _ => {}
        }
        out.extend_from_slice(&packet);
        out.extend(self.held.take().into_iter().flatten());
    }
}

impl Framing {
    /// The length of the first packet, once it is complete, and whether it is a message.
    fn packet(self, bytes: &[u8]) -> Option<(usize, bool)> {
        match self {
            Framing::Mqtt => {
                let (mut length, mut at) = (0, 1);
                loop {
                    let byte = *bytes.get(at)?;
                    length |= usize::from(byte & 0x7F) << (7 * (at - 1));
                    at += 1;
                    if byte & 0x80 == 0 {
                        break;
                    }
                }
                (bytes.len() >= at + length).then_some((at + length, bytes[0] >> 4 == 3))
            }
            Framing::Nats => {
                let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
                let text = std::str::from_utf8(&bytes[..line]).unwrap();
                let Some(rest) = text.strip_prefix("MSG ") else { return Some((line, false)) };
                let payload: usize = rest.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
                let length = line + payload + 2;
                (bytes.len() >= length).then_some((length, true))
            }
        }
    }
}
