//! Where a process of a topology runs: its address and its network namespace.

use crate::{LabError, reserved_port::ReservedPort};
use std::net::{IpAddr, Ipv4Addr};

/// The address and namespace of one or more processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: IpAddr,
    /// The process that holds the namespace; absent: the place is in the host's own namespace.
    pub(super) holder: Option<u32>,
    /// Whether this is the host's end of its link to the switch, whose name differs between runs.
    pub(super) is_host: bool,
}

impl Place {
    /// Reserves this port in a namespace, and otherwise any free one.
    pub(super) fn reserve(self, number: u16) -> Result<ReservedPort, LabError> {
        match self.holder {
            Some(_) => Ok(ReservedPort::in_namespace(self.address, number)),
            None => ReservedPort::any(self.address),
        }
    }

    pub(super) fn loopback() -> Self {
        Place { address: IpAddr::V4(Ipv4Addr::LOCALHOST), holder: None, is_host: false }
    }

    pub(super) fn namespace(&self) -> Option<u32> {
        self.holder
    }
}
