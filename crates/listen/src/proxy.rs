//! The PROXY protocol, version 2: a load balancer says before anything else whom it connects for.
//!
//! As HAProxy's `proxy-protocol.txt` has it, section 2.2: a signature, version and command, family and transport, the
//! length of the rest, the addresses, and type-length-values, which are skipped. The text form of version 1 is not taken.

use ipnet::IpNet;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const HEAD_BYTES: usize = 16;
/// The addresses and values of a header. The specification expects a header to fit into one segment (536 bytes); clouds
/// add values of their own.
const REST_BYTES_MAX: usize = 2_048;
/// A header must have come by then: a load balancer sends it with its first packet.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The load balancers that are believed.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    networks: Vec<IpNet>,
}

impl Proxies {
    pub fn new(networks: Vec<IpNet>) -> Self {
        Proxies { networks }
    }

    /// Whether a connection from there may say whom it is for; if not it may not come in.
    pub fn trust(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }
}

/// How much of a header there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// So many more bytes belong to it, at least. Reading no more than these leaves what follows alone.
    Missing(usize),
    /// It is whole. The client's address, if the header speaks for one: a load balancer's own check does not.
    Whole(Option<SocketAddr>),
}

/// Why a connection does not begin as a load balancer's does. Each closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    #[error("no PROXY protocol version 2")]
    NotProxy,
    #[error("PROXY version and command {0:#04x}")]
    UnknownCommand(u8),
    #[error("PROXY family and transport {0:#04x}")]
    UnknownFamily(u8),
    #[error("a PROXY header of {0} bytes")]
    TooLong(usize),
    #[error("a PROXY header too short for its addresses")]
    TooShort,
}

/// Looks at the bytes that have come.
pub fn look(bytes: &[u8]) -> Result<Look, ProxyError> {
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Err(ProxyError::NotProxy);
    }
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else {
        return Ok(Look::Missing(HEAD_BYTES - bytes.len()));
    };
    let is_for_a_client = match head[12] {
        0x20 => false,
        0x21 => true,
        other => return Err(ProxyError::UnknownCommand(other)),
    };
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if length > REST_BYTES_MAX {
        return Err(ProxyError::TooLong(length));
    }
    if rest.len() < length {
        return Ok(Look::Missing(length - rest.len()));
    }
    let source = match head[13] {
        _ if !is_for_a_client => None,
        0x00 => None,
        0x11 => Some(source::<4>(&rest[..length])?),
        0x21 => Some(source::<16>(&rest[..length])?),
        other => return Err(ProxyError::UnknownFamily(other)),
    };
    Ok(Look::Whole(source))
}

/// Two addresses of so many bytes, then two ports; the first of each is the client's.
fn source<const BYTES: usize>(rest: &[u8]) -> Result<SocketAddr, ProxyError>
where
    IpAddr: From<[u8; BYTES]>,
{
    let address = rest.first_chunk::<BYTES>().ok_or(ProxyError::TooShort)?;
    let ports = rest.get(2 * BYTES..2 * BYTES + 4).ok_or(ProxyError::TooShort)?;
    Ok(SocketAddr::new(IpAddr::from(*address), u16::from_be_bytes([ports[0], ports[1]])))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    /// 192.0.2.1:56324 to 198.51.100.2:443, and a value of three bytes (type 0x04, no operation).
    const TCP4: &[u8] = &[192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb, 0x04, 0, 3, 0, 0, 0];

    fn tcp6() -> Vec<u8> {
        let mut rest = vec![0; 36];
        rest[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        rest[15] = 1;
        rest[32..34].copy_from_slice(&1_234_u16.to_be_bytes());
        rest
    }

    fn check(bytes: &[u8], source: Option<&str>) {
        assert_eq!(look(bytes), Ok(Look::Whole(source.map(|text| text.parse().unwrap()))));
    }

    #[test]
    fn who_is_spoken_for_is_read() {
        check(&header(0x21, 0x11, TCP4), Some("192.0.2.1:56324"));
        check(&header(0x21, 0x21, &tcp6()), Some("[2001:db8::1]:1234"));
        check(&header(0x21, 0x00, b"whatever"), None);
        check(&header(0x20, 0x00, b""), None);
        check(&header(0x20, 0x11, TCP4), None);
    }

    #[test]
    fn cut_anywhere_it_asks_for_no_more_than_its_own() {
        for whole in [header(0x21, 0x11, TCP4), header(0x21, 0x21, &tcp6()), header(0x20, 0, b"")] {
            for cut in 0..whole.len() {
                let Ok(Look::Missing(more)) = look(&whole[..cut]) else { panic!("cut at {cut}") };
                assert!(more > 0 && cut + more <= whole.len(), "cut at {cut}: {more} more");
            }
        }
    }

    #[test]
    fn anything_else_is_refused_by_its_first_bytes() {
        let good = header(0x21, 0x11, TCP4);
        for at in 0..SIGNATURE.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(look(&bad[..=at]), Err(ProxyError::NotProxy));
        }
        assert_eq!(look(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n"), Err(ProxyError::NotProxy));
        assert_eq!(look(&header(0x11, 0x11, TCP4)), Err(ProxyError::UnknownCommand(0x11)));
        assert_eq!(look(&header(0x22, 0x11, TCP4)), Err(ProxyError::UnknownCommand(0x22)));
        assert_eq!(look(&header(0x21, 0x12, TCP4)), Err(ProxyError::UnknownFamily(0x12)));
        assert_eq!(look(&header(0x21, 0x31, TCP4)), Err(ProxyError::UnknownFamily(0x31)));
        assert_eq!(look(&header(0x21, 0x11, &TCP4[..11])), Err(ProxyError::TooShort));
        assert_eq!(look(&header(0x21, 0x21, TCP4)), Err(ProxyError::TooShort));
        let too_long = vec![0; REST_BYTES_MAX + 1];
        assert_eq!(look(&header(0x21, 0x11, &too_long)[..16]), Err(ProxyError::TooLong(REST_BYTES_MAX + 1)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_ask_for_too_much(command: u8, family: u8, length: u16, rest: Vec<u8>) {
            let mut bytes = SIGNATURE.to_vec();
            bytes.extend([command, family]);
            bytes.extend(length.to_be_bytes());
            bytes.extend(rest);
            if let Ok(Look::Missing(more)) = look(&bytes) {
                prop_assert!(more > 0 && bytes.len() + more <= HEAD_BYTES + REST_BYTES_MAX);
            }
        }
    }

    #[test]
    fn only_who_is_named_is_believed() {
        let proxies = Proxies::new(vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()]);
        for (peer, trusted) in
            [("10.1.2.3", true), ("::ffff:10.1.2.3", true), ("11.0.0.1", false), ("2001:db8::5", true), ("::1", false)]
        {
            assert_eq!(proxies.trust(peer.parse().unwrap()), trusted, "{peer}");
        }
    }
}
