//! What an agent's machine has: what decides how much of a load it gets.

use crate::kernel::read;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

/// Descriptors of a load client that are no connections.
const DESCRIPTORS_RESERVED: u64 = 100;
/// What one load client holds at most.
pub(crate) const CONNECTIONS_MAX: u64 = 19_900;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) host: String,
    pub(crate) cores: u64,
    /// Files that a process may open.
    pub(crate) descriptors: u64,
    /// Local ports for connections to one address of a server.
    pub(crate) ports: u64,
    /// The mean number of processes that were ready to run in the last minute.
    pub(crate) load: f64,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn inspect() -> Self {
        let ports = read("/proc/sys/net/ipv4/ip_local_port_range");
        let ports: Vec<u64> = ports.split_whitespace().filter_map(|port| port.parse().ok()).collect();
        let load = read("/proc/loadavg");
        Machine {
            host: read("/proc/sys/kernel/hostname").trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            descriptors: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            ports: match ports[..] {
                [first, last] => last.saturating_sub(first) + 1,
                _ => 0,
            },
            load: load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }

    /// How many connections the machine can hold to these many addresses of servers. On the loopback the lab chooses source
    /// addresses of its own, so that ports are no limit.
    pub(crate) fn connections_max(&self, addresses: u64, is_loopback: bool) -> u64 {
        let ports = if is_loopback { u64::MAX } else { self.ports.saturating_mul(addresses) };
        self.descriptors.saturating_sub(DESCRIPTORS_RESERVED).min(ports).min(CONNECTIONS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something_of_everything() {
        let machine = Machine::inspect();
        assert!(machine.cores > 0 && machine.descriptors > 100 && machine.ports > 0, "{machine:?}");
        assert!(!machine.kernel.is_empty() && machine.load >= 0.0);
    }

    #[test]
    fn the_scarcest_thing_limits_connections() {
        let machine = Machine { descriptors: 5_100, ports: 2_000, ..Machine::default() };
        assert_eq!(machine.connections_max(1, false), 2_000);
        assert_eq!(machine.connections_max(3, false), 5_000);
        assert_eq!(machine.connections_max(1, true), 5_000);
        assert_eq!(Machine { descriptors: 1 << 20, ..machine }.connections_max(1, true), CONNECTIONS_MAX);
    }
}
