//! A connection on its way to the thread that will serve it, or from one to another.

use rustls::ServerConnection;
use std::net::TcpStream;

/// Its socket, and what must go along with it.
#[derive(Debug)]
pub enum Carrier {
    Plain(TcpStream),
    /// With the state of TLS: keys, bytes that were decrypted but not read, bytes that were encrypted but not sent.
    Tls(TcpStream, Box<ServerConnection>),
}

impl From<TcpStream> for Carrier {
    fn from(socket: TcpStream) -> Self {
        Carrier::Plain(socket)
    }
}
