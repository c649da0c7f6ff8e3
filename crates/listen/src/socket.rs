//! A listening socket and its backlog: the queue in which the kernel holds connections that were not accepted yet.

use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddr, net::TcpListener, sync::Once};

/// Connections that the kernel holds until they are accepted. A crowd that comes at once waits there instead of
/// meeting silence and trying again after a second, two, four.
pub const BACKLOG: u32 = 16_384;

/// Linux' bound of every backlog.
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// A listening socket. Neither it nor what it accepts blocks, and what is written to a connection leaves at once (`TCP_NODELAY`, which
/// an accepted socket has from the listening one: a login pays no call for it).
///
/// # Errors
/// The address is in use, is not one of this machine, or may not be bound by this process.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted server need not wait until the kernel has forgotten the connections of its predecessor.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    log_lower_somaxconn(backlog);
    Ok(socket.into())
}

fn log_lower_somaxconn(backlog: u32) {
    static LOGGED: Once = Once::new();
    let Ok(text) = std::fs::read_to_string(SOMAXCONN) else { return };
    if let Ok(bound) = text.trim().parse::<u32>()
        && bound < backlog
    {
        LOGGED.call_once(|| {
            tracing::info!(backlog, somaxconn = bound, "the kernel bounds the backlog; raise net.core.somaxconn");
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::{Ipv4Addr, TcpStream};

    #[test]
    fn what_is_accepted_does_not_delay() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }
}
