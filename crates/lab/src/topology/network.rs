//! Where the parts of a topology live: all on this host's loopback, or each in a network of its own that can be cut.
//!
//! With cutting, each place is a network namespace with one link to a common switch (a bridge in a namespace
//! of its own), and this host has a link to the switch as well:
//!
//! ```text
//! host 10.a.b.1 ──┐
//! node 10.a.b.10 ─┤
//! node 10.a.b.11 ─┼── switch      cut(x, y): each has an address for the other that nobody answers to
//! Redis 10.a.b.3 ─┤
//! PostgreSQL .2 ──┘
//! ```
//! A cut is two static neighbour entries: what one sends leaves for a link address that nobody has and is lost on the way,
//! without an error to either side, as behind a broken switch. A namespace lives as long as the process that holds it,
//! and takes its links with it; so nothing is left behind, however the lab ends.

use super::part::{self, run};
use crate::LabError;
use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Child, Command, Stdio},
};

/// A link address that nobody has: locally administered, as the second bit says.
const NOBODY: &str = "02:00:00:00:de:ad";

/// A place for processes: an address, and the process that holds its namespace unless it is the host's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: IpAddr,
    holder: Option<u32>,
    /// The host's end of its own link has a name of the run's.
    is_host: bool,
}

impl Place {
    pub(super) fn loopback() -> Self {
        Place { address: IpAddr::V4(Ipv4Addr::LOCALHOST), holder: None, is_host: false }
    }

    pub(super) fn namespace(&self) -> Option<u32> {
        self.holder
    }
}

/// The network of a topology.
#[derive(Debug)]
pub(super) struct Network {
    /// Absent: everything is on the loopback, and nothing can be cut.
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

    /// A network that can be cut; it takes root, or the right to make namespaces.
    pub(super) fn with_cuts() -> Result<Self, LabError> {
        let host_link = format!("tdl{}", std::process::id());
        // Ranges within 10/8 that a run has for itself.
        let (a, b) = (64 + rand::random_range(0..128u8), rand::random_range(0..=255u8));
        let host = Place { address: IpAddr::V4(Ipv4Addr::new(10, a, b, 1)), holder: None, is_host: true };
        let mut switch = Switch { holders: Vec::new(), host, host_link: host_link.clone(), next: 2 };
        let bridge = switch.hold()?;
        ip(Some(bridge), "link add switch type bridge")?;
        ip(Some(bridge), "link set switch up")?;
        switch.wire(&host_link, None, host.address)?;
        Ok(Network { switch: Some(switch) })
    }

    pub(super) fn can_cut(&self) -> bool {
        self.switch.is_some()
    }

    /// A new place.
    pub(super) fn place(&mut self) -> Result<Place, LabError> {
        let Some(switch) = &mut self.switch else { return Ok(Place::loopback()) };
        let IpAddr::V4(host) = switch.host.address else { return Ok(Place::loopback()) };
        let [first, second, third, _] = host.octets();
        let address = IpAddr::V4(Ipv4Addr::new(first, second, third, switch.next));
        switch.next += 1;
        let holder = switch.hold()?;
        ip(Some(holder), "link set lo up")?;
        switch.wire("uplink", Some(holder), address)?;
        Ok(Place { address, holder: Some(holder), is_host: false })
    }

    /// This host, where the load comes from.
    pub(super) fn host(&self) -> Place {
        self.switch.as_ref().map_or(Place::loopback(), |switch| switch.host)
    }

    /// What one sends no longer reaches the other, either way.
    pub(super) fn cut(&self, one: Place, other: Place) -> Result<(), LabError> {
        for (from, to) in [(one, other), (other, one)] {
            let (at, link) = self.link(from)?;
            ip(at, &format!("neigh replace {} lladdr {NOBODY} dev {link} nud permanent", to.address))?;
        }
        Ok(())
    }

    pub(super) fn join(&self, one: Place, other: Place) -> Result<(), LabError> {
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
            None => Err(LabError::Part("this network cannot be cut".into())),
        }
    }
}

impl Switch {
    /// A namespace with a process that does nothing but hold it.
    fn hold(&mut self) -> Result<u32, LabError> {
        let mut command = part::command(Place::loopback(), None, "KILL", Path::new("unshare"));
        let mut child = command.args(["--net", "sleep", "infinity"]).stdout(Stdio::null()).spawn()?;
        let (own, its) = (Path::new("/proc/self/ns/net"), format!("/proc/{}/ns/net", child.id()));
        let own = std::fs::read_link(own)?;
        // It has its namespace a moment after it was started.
        while std::fs::read_link(&its).is_ok_and(|its| its == own) {
            if child.try_wait()?.is_some() {
                return Err(LabError::Part("no network namespace could be made".into()));
            }
            std::thread::sleep(crate::server::LOOK_AGAIN);
        }
        let pid = child.id();
        self.holders.push(child);
        Ok(pid)
    }

    /// A link from the switch to a place.
    fn wire(&self, name: &str, holder: Option<u32>, address: IpAddr) -> Result<(), LabError> {
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

/// `ip …`, in the namespace that a process holds.
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
    fn what_is_cut_is_silent_until_it_is_joined() {
        if !rustix::process::getuid().is_root() {
            return eprintln!("skipped: making networks takes root");
        }
        let mut network = Network::with_cuts().unwrap();
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
        // Who is not reached is silent: only that takes all the time.
        let (long, short) = ("60", "3");
        assert!(reaches(one, long) && reaches(other, long));
        network.cut(one, network.host()).unwrap();
        assert!(!reaches(one, short), "cut");
        assert!(reaches(other, long), "another is not");
        network.join(one, network.host()).unwrap();
        assert!(reaches(one, long), "joined");
    }
}
