//! A listening socket and its backlog: the queue in which the kernel holds who was not accepted yet.

use socket2::{Domain, Protocol, Socket, Type};
use std::{io, net::SocketAddr, net::TcpListener, sync::Once};

/// Connections that the kernel holds until they are accepted. A crowd that comes at once waits there instead of
/// meeting silence and trying again after a second, two, four.
pub const BACKLOG: u32 = 16_384;

/// Linux' bound of every backlog.
const SOMAXCONN: &str = "/proc/sys/net/core/somaxconn";

/// A listening socket that does not block.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A server that is started again need not wait until the kernel has forgotten its last connections.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    tell_of_a_lower_bound(backlog);
    Ok(socket.into())
}

fn tell_of_a_lower_bound(backlog: u32) {
    static TOLD: Once = Once::new();
    let Ok(text) = std::fs::read_to_string(SOMAXCONN) else { return };
    if let Ok(bound) = text.trim().parse::<u32>()
        && bound < backlog
    {
        TOLD.call_once(|| {
            tracing::info!(backlog, somaxconn = bound, "the kernel bounds the backlog; raise net.core.somaxconn");
        });
    }
}
