//! A connection on its way to the thread that will serve it, or from one to another.

use std::net::TcpStream;

/// Its socket, and what must go along with it.
#[derive(Debug)]
pub enum Carrier {
    Plain(TcpStream),
}

impl From<TcpStream> for Carrier {
    fn from(socket: TcpStream) -> Self {
        Carrier::Plain(socket)
    }
}
