//! The network of a topology: all processes on this host's loopback, or each in its own network namespace, so that it can be
//! partitioned.
//!
//! With partitions, each place is a network namespace with one link to a common switch (a bridge in its own namespace), and
//! this host has a link to the switch as well:
//!
//! ```text
//! host 10.a.b.1 ──┐
//! node 10.a.b.10 ─┤
//! node 10.a.b.11 ─┼── switch      partition(x, y): each has a link address for the other that no interface has
//! Redis 10.a.b.3 ─┤
//! PostgreSQL .2 ──┘
//! ```
//! A partition is two static neighbour entries: packets are sent to a link address that no interface has and are lost,
//! without an error on either side, as behind a broken switch. A namespace with its links exists as long as the process that
//! holds it; so nothing is left behind, however the lab ends.

use super::{
    place::Place,
    placed_command::{self, run},
};
use crate::LabError;
use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A link address that no interface has: locally administered, as the second bit says.
const UNUSED_LINK_ADDRESS: &str = "02:00:00:00:de:ad";

/// The network of a topology.
#[derive(Debug)]
pub(super) struct Network {
    /// Absent: all processes are on the loopback and cannot be partitioned.
    switch: Option<Switch>,
}

#[derive(Debug)]
struct Switch {
    holders: Vec<Child>,
    host: Place,
    host_link: String,
    next: u8,
}

impl Network {
    pub(super) fn on_loopback() -> Self {
        Network { switch: None }
    }

    /// A network that can be partitioned; it takes root, or the right to create namespaces.
    pub(super) fn with_partitions() -> Result<Self, LabError> {
        let host_link = format!("tdl{}", std::process::id());
        // A random range within 10/8, so that concurrent runs differ.
        let (a, b) = (64 + rand::random_range(0..128u8), rand::random_range(0..=255u8));
        let host = Place { address: IpAddr::V4(Ipv4Addr::new(10, a, b, 1)), holder: None, is_host: true };
        let mut switch = Switch { holders: Vec::new(), host, host_link: host_link.clone(), next: 2 };
        let bridge = switch.create_namespace()?;
        ip(Some(bridge), "link add switch type bridge")?;
        ip(Some(bridge), "link set switch up")?;
        switch.add_link(&host_link, None, host.address)?;
        Ok(Network { switch: Some(switch) })
    }

    /// Creates a new place.
    pub(super) fn place(&mut self) -> Result<Place, LabError> {
        let Some(switch) = &mut self.switch else { return Ok(Place::loopback()) };
        let IpAddr::V4(host) = switch.host.address else { return Ok(Place::loopback()) };
        let [first, second, third, _] = host.octets();
        let address = IpAddr::V4(Ipv4Addr::new(first, second, third, switch.next));
        switch.next += 1;
        let holder = switch.create_namespace()?;
        ip(Some(holder), "link set lo up")?;
        switch.add_link("uplink", Some(holder), address)?;
        Ok(Place { address, holder: Some(holder), is_host: false })
    }

    /// The place of this host, where the load client runs.
    pub(super) fn host(&self) -> Place {
        self.switch.as_ref().map_or(Place::loopback(), |switch| switch.host)
    }

    /// Partitions two places: packets of neither reach the other.
    pub(super) fn partition(&self, one: Place, other: Place) -> Result<(), LabError> {
        for (from, to) in [(one, other), (other, one)] {
            let (at, link) = self.link(from)?;
            ip(at, &format!("neigh replace {} lladdr {UNUSED_LINK_ADDRESS} dev {link} nud permanent", to.address))?;
        }
        Ok(())
    }

    /// Ends the partition of two places.
    pub(super) fn heal(&self, one: Place, other: Place) -> Result<(), LabError> {
        for (from, to) in [(one, other), (other, one)] {
            let (at, link) = self.link(from)?;
            ip(at, &format!("neigh del {} dev {link}", to.address))?;
        }
        Ok(())
    }

    fn link(&self, place: Place) -> Result<(Option<u32>, &str), LabError> {
        match &self.switch {
            Some(switch) if place.is_host => Ok((None, &switch.host_link)),
            Some(_) => Ok((place.holder, "uplink")),
            None => Err(LabError::Environment("this network cannot be partitioned".into())),
        }
    }
}

impl Switch {
    /// Creates a namespace with a process that only holds it; returns the process id.
    fn create_namespace(&mut self) -> Result<u32, LabError> {
        let mut command = placed_command::command(Place::loopback(), None, "KILL", Path::new("unshare"));
        let mut child = command.args(["--net", "sleep", "infinity"]).stdout(Stdio::null()).spawn()?;
        let (own_namespace, child_namespace) = (Path::new("/proc/self/ns/net"), format!("/proc/{}/ns/net", child.id()));
        let own_namespace = std::fs::read_link(own_namespace)?;
        // The process gets its namespace a moment after its start.
        while std::fs::read_link(&child_namespace).is_ok_and(|child_namespace| child_namespace == own_namespace) {
            if child.try_wait()?.is_some() {
                return Err(LabError::Environment("no network namespace could be made".into()));
            }
            std::thread::sleep(crate::managed_process::POLL_INTERVAL);
        }
        let pid = child.id();
        self.holders.push(child);
        Ok(pid)
    }

    /// Adds a link from the switch to a place.
    fn add_link(&self, name: &str, holder: Option<u32>, address: IpAddr) -> Result<(), LabError> {
        let Some(bridge) = self.holders.first().map(Child::id) else { return Ok(()) };
        let IpAddr::V4(four) = address else { return Ok(()) };
        let port = format!("port{}", four.octets()[3]);
        let far = holder.map_or(String::new(), |holder| format!(" netns {holder}"));
        ip(
            Some(bridge),
            &format!(
                "link add {port} type veth peer name {name}{}",
                match holder {
                    Some(_) => far,
                    None => format!(" netns {}", std::process::id()),
                }
            ),
        )?;
        ip(Some(bridge), &format!("link set {port} master switch up"))?;
        ip(holder, &format!("addr add {address}/24 dev {name}"))?;
        ip(holder, &format!("link set {name} up"))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// Runs `ip …` in the namespace that a process holds, or in this host's.
fn ip(holder: Option<u32>, line: &str) -> Result<(), LabError> {
    let mut command = match holder {
        None => Command::new("ip"),
        Some(holder) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{holder}/ns/net")).arg("ip");
            command
        }
    };
    run(command.args(line.split(' '))).map(|_| ())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn partitioned_places_do_not_reach_each_other_until_healed() {
        if !rustix::process::getuid().is_root() {
            return eprintln!("skipped: making networks takes root");
        }
        let mut network = Network::with_partitions().unwrap();
        let (one, other) = (network.place().unwrap(), network.place().unwrap());
        let listener = TcpListener::bind((network.host().address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = network.host().address;
        let reaches = |place: Place, within_seconds: &str| {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{}/ns/net", place.namespace().unwrap()));
            let connect = format!("exec 3<>/dev/tcp/{address}/{port}");
            command.args(["timeout", within_seconds, "bash", "-c", &connect]).status().unwrap().success()
        };
        // A partitioned place does not answer: only that takes the whole time.
        let (long, short) = ("60", "3");
        assert!(reaches(one, long) && reaches(other, long));
        network.partition(one, network.host()).unwrap();
        assert!(!reaches(one, short), "partitioned");
        assert!(reaches(other, long), "the other is not partitioned");
        network.heal(one, network.host()).unwrap();
        assert!(reaches(one, long), "healed");
    }
}
