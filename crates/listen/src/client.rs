//! Who is at the other end of a connection, as far as its credentials have shown.

use crate::throttle::ThrottleKey;
use std::net::IpAddr;

/// The client of a connection. App servers are few and trusted; one user may not take what all others need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Client {
    /// No credential was accepted yet.
    #[default]
    Unauthenticated,
    /// A token of the user with this number.
    User(u64),
    /// An API key.
    AppServer,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientAddress {
    /// Behind a load balancer with PROXY headers, the client's. Absent: not known.
    pub address: Option<IpAddr>,
    /// The key under which failed binds are counted.
    pub throttle_key: ThrottleKey,
}

/// What counts as one address. IPv6 addresses that differ only below 64 bits belong to one caller: providers give out no less than a
/// /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Network(pub(crate) IpAddr);

const IPV6_NETWORK_BITS: u32 = 64;

impl Network {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let mask = u128::MAX << (128 - IPV6_NETWORK_BITS);
                Network(IpAddr::V6((u128::from(address) & mask).into()))
            }
            address => Network(address),
        }
    }
}
