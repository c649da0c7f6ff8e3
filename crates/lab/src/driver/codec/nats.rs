//! As much of the NATS client protocol as publishing to a subject and receiving from it takes.

use super::Packet;

pub(super) const PONG: &[u8] = b"PONG\r\n";

pub(super) fn put_hello(name: &str, subject: Option<&str>, out: &mut Vec<u8>) {
    let connect = serde_json::json!({
        "verbose": false, "pedantic": false, "name": name, "lang": "rust", "version": env!("CARGO_PKG_VERSION"),
    });
    out.extend_from_slice(format!("CONNECT {connect}\r\n").as_bytes());
    if let Some(subject) = subject {
        out.extend_from_slice(format!("SUB {subject} 1\r\n").as_bytes());
    }
    out.extend_from_slice(b"PING\r\n");
}

pub(super) fn put_publish(subject: &str, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("PUB {subject} {}\r\n", payload.len()).as_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn read(bytes: &[u8]) -> Result<Option<(Packet, usize)>, String> {
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
    #![allow(clippy::unwrap_used)]
    use super::super::{Packet, Protocol, tests::all};

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
