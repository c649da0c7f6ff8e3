//! The PROXY protocol, versions 1 and 2: a load balancer sends its client's address before anything else.
//!
//! HAProxy's `proxy-protocol.txt` defines both headers: a line of text (nginx sends it) and a binary form, whose
//! type-length-values are skipped. `ppp` reads them. This module says where a header ends, so that no byte behind it is taken
//! from the socket, and bounds its length.

use ipnet::IpNet;
use ppp::{v1, v2};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// The beginning of version 1, which no other version shares.
const LINE_START: &[u8] = b"PROXY ";
/// `PROXY UNKNOWN` with its line end.
const LINE_BYTES_MIN: usize = 15;
/// The longest line by the specification, with its line end.
const LINE_BYTES_MAX: usize = 107;
/// Version 2: signature, version and command, family, length.
const HEAD_BYTES: usize = 16;
/// Version 2: the addresses and values of a header. The specification expects a header to fit into one segment (536 bytes); clouds
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
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ProxyError {
    #[error("no header of the PROXY protocol")]
    NotProxy,
    #[error("a PROXY header of {0} bytes or more")]
    TooLong(usize),
    #[error("PROXY version 1: {0}")]
    Line(#[from] v1::BinaryParseError),
    #[error("PROXY version 2: {0}")]
    Binary(#[from] v2::ParseError),
    #[error("PROXY family and transport {0:#04x}")]
    UnknownFamily(u8),
}

/// Parses the bytes received so far.
///
/// # Errors
/// The bytes cannot become a header that is understood, whatever follows them.
pub fn parse_header(bytes: &[u8]) -> Result<HeaderStatus, ProxyError> {
    let begins = |start: &[u8]| {
        let received = bytes.len().min(start.len());
        bytes[..received] == start[..received]
    };
    let missing = if begins(LINE_START) {
        bytes_missing_of_line(bytes)?
    } else if begins(v2::PROTOCOL_PREFIX) {
        bytes_missing_of_binary(bytes)?
    } else {
        return Err(ProxyError::NotProxy);
    };
    if missing > 0 {
        return Ok(HeaderStatus::Incomplete(missing));
    }
    let source = if bytes.starts_with(LINE_START) { source_of_line(bytes) } else { source_of_binary(bytes) };
    source.map(HeaderStatus::Complete)
}

/// How many more bytes a header of version 1 has at least.
fn bytes_missing_of_line(bytes: &[u8]) -> Result<usize, ProxyError> {
    if bytes.ends_with(b"\r\n") {
        return Ok(0);
    }
    let line_end = if bytes.ends_with(b"\r") { 1 } else { 2 };
    let missing = line_end.max(LINE_BYTES_MIN.saturating_sub(bytes.len()));
    let length = bytes.len() + missing;
    if length > LINE_BYTES_MAX { Err(ProxyError::TooLong(length)) } else { Ok(missing) }
}

/// How many more bytes a header of version 2 has at least.
fn bytes_missing_of_binary(bytes: &[u8]) -> Result<usize, ProxyError> {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(HEAD_BYTES - bytes.len()) };
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if length > REST_BYTES_MAX {
        return Err(ProxyError::TooLong(HEAD_BYTES + length));
    }
    Ok(length.saturating_sub(rest.len()))
}

/// The client's address in a complete header of version 1.
fn source_of_line(header: &[u8]) -> Result<Option<SocketAddr>, ProxyError> {
    Ok(match v1::Header::try_from(header)?.addresses {
        v1::Addresses::Unknown => None,
        v1::Addresses::Tcp4(addresses) => Some((addresses.source_address, addresses.source_port).into()),
        v1::Addresses::Tcp6(addresses) => Some((addresses.source_address, addresses.source_port).into()),
    })
}

/// The client's address in a complete header of version 2.
fn source_of_binary(header: &[u8]) -> Result<Option<SocketAddr>, ProxyError> {
    const LOCAL: u8 = 0x20;
    // The sender's own connection: whatever follows is to be ignored, also a family that nobody knows.
    if header[12] == LOCAL {
        return Ok(None);
    }
    let parsed = v2::Header::try_from(header)?;
    match (parsed.protocol, parsed.addresses) {
        (v2::Protocol::Unspecified, v2::Addresses::Unspecified) => Ok(None),
        (v2::Protocol::Stream, v2::Addresses::IPv4(addresses)) => {
            Ok(Some((addresses.source_address, addresses.source_port).into()))
        }
        (v2::Protocol::Stream, v2::Addresses::IPv6(addresses)) => {
            Ok(Some((addresses.source_address, addresses.source_port).into()))
        }
        _ => Err(ProxyError::UnknownFamily(header[13])),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const SIGNATURE: &[u8] = v2::PROTOCOL_PREFIX;

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    /// 192.0.2.1:56324 to 198.51.100.2:443, and a value of three bytes (type 0x04, no operation).
    const TCP4: &[u8] = &[192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb, 0x04, 0, 3, 0, 0, 0];
    const LINE: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n";
    const LONGEST_LINE: &[u8] = b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
        ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";

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

    #[track_caller]
    fn check_refused(bytes: &[u8], why: &str) {
        let error = parse_header(bytes).unwrap_err().to_string();
        assert!(error.contains(why), "{:?}: {error}", String::from_utf8_lossy(bytes));
    }

    #[test]
    fn the_clients_address_is_read_from_version_2() {
        check(&header(0x21, 0x11, TCP4), Some("192.0.2.1:56324"));
        check(&header(0x21, 0x21, &tcp6()), Some("[2001:db8::1]:1234"));
        check(&header(0x21, 0x00, b"whatever"), None);
        check(&header(0x20, 0x00, b""), None);
        check(&header(0x20, 0x11, TCP4), None);
        check(&header(0x20, 0x11, b""), None);
        check(&header(0x20, 0x77, b"whatever"), None);
    }

    #[test]
    fn the_clients_address_is_read_from_version_1() {
        check(LINE, Some("192.0.2.1:56324"));
        check(b"PROXY TCP6 2001:db8::1 ::1 1234 443\r\n", Some("[2001:db8::1]:1234"));
        check(b"PROXY UNKNOWN\r\n", None);
        check(b"PROXY UNKNOWN 192.0.2.1 198.51.100.2 56324 443\r\n", None);
        check(LONGEST_LINE, None);
    }

    #[test]
    fn a_header_cut_anywhere_asks_for_no_byte_beyond_its_end() {
        let lines = [LINE, LONGEST_LINE, b"PROXY UNKNOWN\r\n", b"PROXY TCP6 :: :: 0 0\r\n"].map(<[u8]>::to_vec);
        let binaries = [header(0x21, 0x11, TCP4), header(0x21, 0x21, &tcp6()), header(0x20, 0, b"")];
        for whole in lines.into_iter().chain(binaries) {
            for cut in 0..whole.len() {
                let Ok(HeaderStatus::Incomplete(more)) = parse_header(&whole[..cut]) else { panic!("cut at {cut}") };
                assert!(more > 0 && cut + more <= whole.len(), "cut at {cut}: {more} more");
            }
        }
    }

    #[test]
    fn other_bytes_are_refused_at_the_first_that_differs() {
        for (good, start) in [(header(0x21, 0x11, TCP4), SIGNATURE), (LINE.to_vec(), LINE_START)] {
            for at in 0..start.len() {
                let mut bad = good.clone();
                bad[at] ^= 1;
                assert_eq!(parse_header(&bad[..=at]), Err(ProxyError::NotProxy));
            }
        }
        assert_eq!(parse_header(b"GET / HTTP/1.1\r\n"), Err(ProxyError::NotProxy));
        assert_eq!(parse_header(b"PROXY\r"), Err(ProxyError::NotProxy));
    }

    #[test]
    fn a_malformed_header_of_version_2_is_refused() {
        check_refused(&header(0x11, 0x11, TCP4), "version 10");
        check_refused(&header(0x22, 0x11, TCP4), "command 2");
        check_refused(&header(0x21, 0x41, TCP4), "Address Family");
        check_refused(&header(0x21, 0x11, &TCP4[..11]), "12 bytes");
        check_refused(&header(0x21, 0x21, TCP4), "36 bytes");
        for family in [0x01, 0x10, 0x12, 0x31] {
            assert_eq!(parse_header(&header(0x21, family, &[0; 216])), Err(ProxyError::UnknownFamily(family)));
        }
        let too_long = vec![0; REST_BYTES_MAX + 1];
        check_refused(&header(0x21, 0x11, &too_long)[..HEAD_BYTES], "2065 bytes");
    }

    #[test]
    fn a_malformed_header_of_version_1_is_refused() {
        for (line, why) in [
            (&b"PROXY UDP4 192.0.2.1 198.51.100.2 56324 443\r\n"[..], "protocol"),
            (b"PROXY TCP4 2001:db8::1 ::1 56324 443\r\n", "source"),
            (b"PROXY TCP6 192.0.2.1 198.51.100.2 56324 443\r\n", "source"),
            (b"PROXY TCP4 192.0.2.1 198.51.100.2 65536 443\r\n", "source"),
            (b"PROXY TCP4 192.0.2.1 198.51.100.2 01 443\r\n", "source"),
            (b"PROXY TCP4 192.0.2.1  198.51.100.2 1 443\r\n", "destination"),
            (b"PROXY TCP4 192.0.2.1 198.51.100.2 56324\r\n", "destination"),
            (b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443 \r\n", "version 1"),
            (b"PROXY TCP4 192.0.2.1\r198.51.100.2 56324 443\r\n", "version 1"),
            (b"PROXY  \r\n", "protocol"),
            (b"PROXY \xff\xff\xff\xff\xff\xff\xff\r\n", "UTF-8"),
        ] {
            check_refused(line, why);
        }
        let endless = [LINE_START, &[b'1'; LINE_BYTES_MAX]].concat();
        let longest = (0..endless.len()).find(|length| parse_header(&endless[..*length]).is_err()).unwrap();
        assert!(longest < LINE_BYTES_MAX, "a line of {longest} bytes was refused");
        check_refused(&endless[..longest], "108 bytes");
    }

    proptest! {
        #[test]
        fn no_input_asks_for_more_than_the_longest_header(command: u8, family: u8, length: u16, rest: Vec<u8>, cut in 0..30_usize) {
            let mut binary = SIGNATURE.to_vec();
            binary.extend([command, family]);
            binary.extend(length.to_be_bytes());
            let line = b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443"[..cut].to_vec();
            for (mut bytes, most) in [(binary, HEAD_BYTES + REST_BYTES_MAX), (line, LINE_BYTES_MAX)] {
                bytes.extend(&rest);
                if let Ok(HeaderStatus::Incomplete(more)) = parse_header(&bytes) {
                    prop_assert!(more > 0 && bytes.len() + more <= most);
                }
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
