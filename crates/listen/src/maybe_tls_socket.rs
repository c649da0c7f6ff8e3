//! A connection on its way to the thread that will serve it, or from one thread to another.

use rustls::ServerConnection;
use std::net::TcpStream;

/// An accepted socket with the state that must go along with it.
#[derive(Debug)]
pub enum MaybeTlsSocket {
    Plain(TcpStream),
    /// The TLS state holds keys, bytes that were decrypted but not read, and bytes that were encrypted but not sent.
    Tls(TcpStream, Box<ServerConnection>),
}

impl From<TcpStream> for MaybeTlsSocket {
    fn from(socket: TcpStream) -> Self {
        MaybeTlsSocket::Plain(socket)
    }
}
