//! The steps before HTTP on a connection: the load balancer's PROXY header, and the TLS handshake.

use rustls::ServerConfig;
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};
use tidings_listen::proxy::{HEADER_TIMEOUT, HeaderStatus, TrustedProxies, parse_header};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the PROXY header that a load balancer sends first, and not a byte more. Returns the client's address.
pub(crate) async fn read_proxy_header(
    stream: &mut TcpStream,
    peer: SocketAddr,
    proxies: &TrustedProxies,
) -> io::Result<SocketAddr> {
    if !proxies.contains(peer.ip()) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the peer is not a trusted load balancer"));
    }
    let read = async {
        let mut header = Vec::new();
        loop {
            match parse_header(&header).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))? {
                HeaderStatus::Complete(source) => return Ok(source.unwrap_or(peer)),
                HeaderStatus::Incomplete(more) => {
                    let had = header.len();
                    header.resize(had + more, 0);
                    stream.read_exact(&mut header[had..]).await?;
                }
            }
        }
    };
    timeout(HEADER_TIMEOUT, read).await?
}

pub(crate) async fn tls_handshake(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<TlsStream<TcpStream>> {
    timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(stream)).await?
}
