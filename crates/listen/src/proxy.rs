//! The PROXY protocol, version 2: a load balancer sends its client's address before anything else.
//!
//! The header is defined in HAProxy's `proxy-protocol.txt`, section 2.2: a signature, version and command, family and
//! transport, the length of the rest, the addresses, and type-length-values, which are skipped. The text form of version 1
//! is refused.

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
/// A connection must have sent its header by then: a load balancer sends it with its first packet.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The load balancers whose headers are believed.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
}

impl TrustedProxies {
    pub fn new(networks: Vec<IpNet>) -> Self {
        TrustedProxies { networks }
    }

    /// Whether `peer` is one of these load balancers. A connection from elsewhere must be closed.
    pub fn contains(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }
}

/// How much of a header was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderStatus {
    /// The header has at least so many more bytes. Reading no more than these leaves the bytes after the header in the
    /// socket.
    Incomplete(usize),
    /// The client's address, if the header names one: the header of a load balancer's own health check does not.
    Complete(Option<SocketAddr>),
}

/// Why the first bytes are no PROXY header. The connection must be closed.
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

/// Parses the bytes received so far.
///
/// # Errors
/// The bytes cannot become a header that is understood, whatever follows them.
pub fn parse_header(bytes: &[u8]) -> Result<HeaderStatus, ProxyError> {
    let received = bytes.len().min(SIGNATURE.len());
    if bytes[..received] != SIGNATURE[..received] {
        return Err(ProxyError::NotProxy);
    }
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else {
        return Ok(HeaderStatus::Incomplete(HEAD_BYTES - bytes.len()));
    };
    let names_a_client = match head[12] {
        0x20 => false,
        0x21 => true,
        other => return Err(ProxyError::UnknownCommand(other)),
    };
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if length > REST_BYTES_MAX {
        return Err(ProxyError::TooLong(length));
    }
    if rest.len() < length {
        return Ok(HeaderStatus::Incomplete(length - rest.len()));
    }
    let source = match head[13] {
        _ if !names_a_client => None,
        0x00 => None,
        0x11 => Some(source::<4>(&rest[..length])?),
        0x21 => Some(source::<16>(&rest[..length])?),
        other => return Err(ProxyError::UnknownFamily(other)),
    };
    Ok(HeaderStatus::Complete(source))
}

/// The client's address: `rest` holds two addresses of `BYTES` bytes, then two ports, the client's first.
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
        assert_eq!(parse_header(bytes), Ok(HeaderStatus::Complete(source.map(|text| text.parse().unwrap()))));
    }

    #[test]
    fn the_clients_address_is_read_from_the_header() {
        check(&header(0x21, 0x11, TCP4), Some("192.0.2.1:56324"));
        check(&header(0x21, 0x21, &tcp6()), Some("[2001:db8::1]:1234"));
        check(&header(0x21, 0x00, b"whatever"), None);
        check(&header(0x20, 0x00, b""), None);
        check(&header(0x20, 0x11, TCP4), None);
    }

    #[test]
    fn a_header_cut_anywhere_asks_for_no_byte_beyond_its_end() {
        for whole in [header(0x21, 0x11, TCP4), header(0x21, 0x21, &tcp6()), header(0x20, 0, b"")] {
            for cut in 0..whole.len() {
                let Ok(HeaderStatus::Incomplete(more)) = parse_header(&whole[..cut]) else { panic!("cut at {cut}") };
                assert!(more > 0 && cut + more <= whole.len(), "cut at {cut}: {more} more");
            }
        }
    }

    #[test]
    fn other_bytes_are_refused_at_the_first_that_differs() {
        let good = header(0x21, 0x11, TCP4);
        for at in 0..SIGNATURE.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(parse_header(&bad[..=at]), Err(ProxyError::NotProxy));
        }
        assert_eq!(parse_header(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n"), Err(ProxyError::NotProxy));
        assert_eq!(parse_header(&header(0x11, 0x11, TCP4)), Err(ProxyError::UnknownCommand(0x11)));
        assert_eq!(parse_header(&header(0x22, 0x11, TCP4)), Err(ProxyError::UnknownCommand(0x22)));
        assert_eq!(parse_header(&header(0x21, 0x12, TCP4)), Err(ProxyError::UnknownFamily(0x12)));
        assert_eq!(parse_header(&header(0x21, 0x31, TCP4)), Err(ProxyError::UnknownFamily(0x31)));
        assert_eq!(parse_header(&header(0x21, 0x11, &TCP4[..11])), Err(ProxyError::TooShort));
        assert_eq!(parse_header(&header(0x21, 0x21, TCP4)), Err(ProxyError::TooShort));
        let too_long = vec![0; REST_BYTES_MAX + 1];
        assert_eq!(parse_header(&header(0x21, 0x11, &too_long)[..16]), Err(ProxyError::TooLong(REST_BYTES_MAX + 1)));
    }

    proptest! {
        #[test]
        fn no_input_asks_for_more_than_the_longest_header(command: u8, family: u8, length: u16, rest: Vec<u8>) {
            let mut bytes = SIGNATURE.to_vec();
            bytes.extend([command, family]);
            bytes.extend(length.to_be_bytes());
            bytes.extend(rest);
            if let Ok(HeaderStatus::Incomplete(more)) = parse_header(&bytes) {
                prop_assert!(more > 0 && bytes.len() + more <= HEAD_BYTES + REST_BYTES_MAX);
            }
        }
    }

    #[test]
    fn only_the_named_networks_are_trusted() {
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()]);
        for (peer, trusted) in
            [("10.1.2.3", true), ("::ffff:10.1.2.3", true), ("11.0.0.1", false), ("2001:db8::5", true), ("::1", false)]
        {
            assert_eq!(proxies.contains(peer.parse().unwrap()), trusted, "{peer}");
        }
    }
}
