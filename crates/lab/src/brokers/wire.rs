//! As much of MQTT 3.1.1 (OASIS, 2014) and of the NATS client protocol as publishing to a topic and receiving from it takes.
//! The servers on the other end are mosquitto and nats-server: what they do not understand fails the run.

use std::ops::Range;

/// The protocol of a server that others wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Mqtt,
    Nats,
}

/// What a server has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// The connection is accepted; of a receiver, its subscription too.
    Ready,
    /// A message's payload, as a range of the bytes that were read.
    Message(Range<usize>),
    /// The server asks whether the client is there.
    Ping,
    /// What needs no answer.
    Other,
}

/// The only topic of a run.
const TOPIC: &str = "lab/t";
const NATS_SUBJECT: &str = "lab.t";

// The packet types of MQTT, with the flags that each must have.
const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const SUBSCRIBE: u8 = 0x82;
const SUBACK: u8 = 0x90;

impl Protocol {
    /// What a client writes as soon as it is connected: who it is, and what it subscribes to.
    pub(super) fn put_hello(self, name: &str, subscribes: bool, out: &mut Vec<u8>) {
        match self {
            Protocol::Mqtt => {
                let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 4];
                // A clean session, and no keep-alive.
                body.extend_from_slice(&[0b10, 0, 0]);
                put_text(name, &mut body);
                put_mqtt(CONNECT, &body, out);
                if subscribes {
                    let mut body = vec![0, 1];
                    put_text(TOPIC, &mut body);
                    body.push(0);
                    put_mqtt(SUBSCRIBE, &body, out);
                }
            }
            Protocol::Nats => {
                let connect = serde_json::json!({
                    "verbose": false, "pedantic": false, "name": name, "lang": "rust", "version": env!("CARGO_PKG_VERSION"),
                });
                out.extend_from_slice(format!("CONNECT {connect}\r\n").as_bytes());
                if subscribes {
                    out.extend_from_slice(format!("SUB {NATS_SUBJECT} 1\r\n").as_bytes());
                }
                out.extend_from_slice(b"PING\r\n");
            }
        }
    }

    /// A message to all receivers, with the lowest assurance that the protocol has: neither server stores it.
    pub(super) fn put_publish(self, payload: &[u8], out: &mut Vec<u8>) {
        match self {
            Protocol::Mqtt => {
                out.push(PUBLISH);
                put_length(2 + TOPIC.len() + payload.len(), out);
                put_text(TOPIC, out);
                out.extend_from_slice(payload);
            }
            Protocol::Nats => {
                out.extend_from_slice(format!("PUB {NATS_SUBJECT} {}\r\n", payload.len()).as_bytes());
                out.extend_from_slice(payload);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    pub(super) fn put_pong(self, out: &mut Vec<u8>) {
        if self == Protocol::Nats {
            out.extend_from_slice(b"PONG\r\n");
        }
    }

    /// The first packet in these bytes with its length; `None` while it is incomplete. `subscribes`: the client's
    /// subscription is answered, too, by MQTT.
    pub(super) fn read(self, bytes: &[u8], subscribes: bool) -> Result<Option<(Packet, usize)>, String> {
        match self {
            Protocol::Mqtt => read_mqtt(bytes, subscribes),
            Protocol::Nats => read_nats(bytes),
        }
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// MQTT's "remaining length": seven bits a byte, the lowest first.
fn put_length(mut length: usize, out: &mut Vec<u8>) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

fn put_mqtt(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    put_length(body.len(), out);
    out.extend_from_slice(body);
}

fn read_mqtt(bytes: &[u8], subscribes: bool) -> Result<Option<(Packet, usize)>, String> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    let (mut length, mut at) = (0, 1);
    loop {
        let Some(byte) = bytes.get(at) else { return Ok(None) };
        length |= usize::from(byte & 0x7F) << (7 * (at - 1));
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if at > 4 {
            return Err("a length of more than four bytes".into());
        }
    }
    let end = at + length;
    if bytes.len() < end {
        return Ok(None);
    }
    let body = &bytes[at..end];
    let packet = match *kind {
        CONNACK => match body {
            [_, 0] if subscribes => Packet::Other,
            [_, 0] => Packet::Ready,
            _ => return Err(format!("the connection was refused: {body:?}")),
        },
        SUBACK => match body {
            [_, _, 0] => Packet::Ready,
            _ => return Err(format!("the subscription was refused: {body:?}")),
        },
        PUBLISH => match body {
            [high, low, ..] => {
                let topic = usize::from(u16::from_be_bytes([*high, *low]));
                if body.len() < 2 + topic {
                    return Err("a topic that is longer than its packet".into());
                }
                Packet::Message(at + 2 + topic..end)
            }
            _ => return Err("a message without a topic".into()),
        },
        kind => return Err(format!("a packet of the type {kind:#04x}")),
    };
    Ok(Some((packet, end)))
}

fn read_nats(bytes: &[u8]) -> Result<Option<(Packet, usize)>, String> {
    let Some(line_end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, next) = (&bytes[..line_end], line_end + 2);
    if let Some(rest) = line.strip_prefix(b"MSG ") {
        let length = rest.rsplit(|byte| *byte == b' ').next().and_then(|digits| std::str::from_utf8(digits).ok());
        let length: usize = length.and_then(|digits| digits.parse().ok()).ok_or("a message without a length")?;
        let end = next + length + 2;
        return Ok((bytes.len() >= end).then_some((Packet::Message(next..next + length), end)));
    }
    let packet = match line {
        b"PONG" => Packet::Ready,
        b"PING" => Packet::Ping,
        line if line.starts_with(b"-ERR") => return Err(String::from_utf8_lossy(line).into_owned()),
        _ => Packet::Other,
    };
    Ok(Some((packet, next)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads every packet, with the bytes arriving one by one.
    fn all(protocol: Protocol, bytes: &[u8], subscribes: bool) -> Vec<(Packet, Vec<u8>)> {
        let (mut found, mut start) = (Vec::new(), 0);
        for end in 0..=bytes.len() {
            if let Some((packet, length)) = protocol.read(&bytes[start..end], subscribes).unwrap() {
                let payload = match &packet {
                    Packet::Message(range) => bytes[start + range.start..start + range.end].to_vec(),
                    _ => Vec::new(),
                };
                assert_eq!(length, end - start, "taken when it is complete");
                found.push((packet, payload));
                start = end;
            }
        }
        assert_eq!(start, bytes.len());
        found
    }

    #[test]
    fn packets_of_mqtt_are_read_from_any_parts() {
        // CONNACK, SUBACK, and a PUBLISH to "a/b", byte by byte as in the standard's figures 3.9, 3.26 and 3.11.
        let bytes = [&[0x20, 2, 0, 0, 0x90, 3, 0, 1, 0, 0x30, 9, 0, 3][..], b"a/b", b"1234"].concat();
        let packets = all(Protocol::Mqtt, &bytes, true);
        assert_eq!((&packets[0].0, &packets[1].0), (&Packet::Other, &Packet::Ready));
        assert_eq!(packets[2].1, b"1234");
        let long = [&[0x30, 0x85, 0x02, 0, 3][..], b"a/b", &[7; 256]].concat();
        assert_eq!(all(Protocol::Mqtt, &long, true)[0].1, [7; 256]);
        assert!(Protocol::Mqtt.read(&[0x20, 2, 0, 5], false).unwrap_err().contains("refused"));
        assert!(Protocol::Mqtt.read(&[0x30, 0xFF, 0xFF, 0xFF, 0xFF], false).is_err());
    }

    #[test]
    fn packets_of_nats_are_read_from_any_parts() {
        let bytes = b"INFO {\"max_payload\":1048576}\r\nPONG\r\nMSG lab.t 1 6\r\nab\r\ncd\r\nPING\r\n+OK\r\n";
        let packets = all(Protocol::Nats, bytes, true);
        assert_eq!(packets[1].0, Packet::Ready);
        assert_eq!(packets[2].1, b"ab\r\ncd");
        assert_eq!((&packets[3].0, &packets[4].0), (&Packet::Ping, &Packet::Other));
        assert_eq!(Protocol::Nats.read(b"-ERR 'Slow Consumer'\r\n", true).unwrap_err(), "-ERR 'Slow Consumer'");
        assert!(Protocol::Nats.read(b"MSG lab.t 1 x\r\n", true).is_err());
    }
}
