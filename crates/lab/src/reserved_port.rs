//! A port that is reserved for a process from before its first start and over its restarts.

use crate::LabError;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr};

/// A socket that is bound and never listens reserves the port. It is bound without `SO_REUSEADDR`, so that no other lab gets
/// the same port; the option is set afterwards, so that the process can bind the port: servers set it as well, to be
/// restarted at once.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    pub(crate) at: SocketAddr,
    /// Absent in a namespace, where no other process takes ports.
    _held: Option<Socket>,
}

impl ReservedPort {
    /// Any free port of this address.
    pub(crate) fn any(address: IpAddr) -> Result<Self, LabError> {
        let any = SocketAddr::new(address, 0);
        let socket = Socket::new(Domain::for_address(any), Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&any.into())?;
        socket.set_reuse_address(true)?;
        let at =
            socket.local_addr()?.as_socket().ok_or_else(|| LabError::Environment("a port without a number".into()))?;
        Ok(ReservedPort { at, _held: Some(socket) })
    }

    /// This port of an address in a namespace.
    pub(crate) fn in_namespace(address: IpAddr, number: u16) -> Self {
        ReservedPort { at: SocketAddr::new(address, number), _held: None }
    }

    pub(crate) fn number(&self) -> u16 {
        self.at.port()
    }
}
