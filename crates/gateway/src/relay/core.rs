//! A core as one thread of a relay sees it, and which cores the thread is to be attached to.

use super::upstream::Upstream;
use crate::link::SessionNodes;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// With more bytes waiting on a link than this, devices of its core are not read: the core is behind.
const CONGESTED_BYTES: usize = 8 * 1024 * 1024;
/// With more than this no device is opened on a link: binds would fill the memory.
const FULL_BYTES: usize = 4 * CONGESTED_BYTES;
/// Cores may differ by so many devices of a thread before some move.
const UNEVEN_MIN: usize = 16;
/// The same, as a part of what the fullest core has.
const UNEVEN_PART: usize = 10;

pub(super) struct Core {
    pub address: String,
    /// What the core has said about its cluster: what it calls itself there, for its address may have been named otherwise, and
    /// which nodes take sessions.
    pub nodes: Option<SessionNodes>,
    /// Where its links go to.
    pub peer: Option<SocketAddr>,
    /// Whether it names the nodes over these links, and so knows of devices that leave before it has answered.
    pub names_nodes: bool,
    /// The links to its shards, in order. Empty: it is away.
    pub links: Vec<Upstream>,
    /// All links are there.
    pub is_attached: bool,
    /// While this is set, a thread tries to attach.
    attempt: Option<Arc<AtomicBool>>,
    /// Devices whose sessions are there, or that it was asked to open.
    pub devices: usize,
    /// Keys of readable devices that wait until the core has caught up.
    pub waiting: Vec<usize>,
    /// The tick until which no devices leave it for another: none could.
    pub stays_until: u32,
}

impl Core {
    fn new(address: String) -> Self {
        Core {
            address,
            nodes: None,
            names_nodes: false,
            peer: None,
            links: Vec::new(),
            is_attached: false,
            attempt: None,
            devices: 0,
            waiting: Vec::new(),
            stays_until: 0,
        }
    }

    pub(super) fn is_congested(&self) -> bool {
        self.links.iter().any(|link| link.pending_bytes() > CONGESTED_BYTES)
    }

    /// The link on which a device is opened. Any shard will do: the core moves the session to its user's shard.
    pub(super) fn link_of(&self, device: u64) -> usize {
        (device >> 32) as usize % self.links.len()
    }

    fn own(&self) -> Option<&String> {
        self.nodes.as_ref().map(|nodes| &nodes.own)
    }

    fn is(&self, address: &str) -> bool {
        self.address == address || self.own().is_some_and(|own| own == address)
    }

    /// Whether it may have sessions: it is attached to, and has not said that it takes none.
    fn serves(&self) -> bool {
        !self.links.is_empty() && self.nodes.as_ref().is_none_or(|nodes| nodes.all.contains(&nodes.own))
    }

    fn is_full(&self) -> bool {
        self.links.iter().any(|link| link.pending_bytes() > FULL_BYTES)
    }

    /// Whether it is behind, or was not heard of lately.
    fn lags(&self, tick: u32) -> bool {
        self.is_congested() || self.links.iter().any(|link| link.is_silent(tick))
    }

    /// Ends the attempt to attach, if there is one.
    pub(super) fn end_attempt(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            attempt.store(false, Ordering::Release);
        }
    }
}

/// The cores that a thread knows. A core keeps its place while it has links or devices.
pub(super) struct Cores {
    pub list: Vec<Core>,
    /// Those of the settings.
    named: Vec<String>,
    /// The one that a core of an earlier version has named last.
    redirected: Option<String>,
    /// The place from which cores with equally many devices are taken, so that not all relays take the same.
    first: usize,
}

impl Cores {
    pub(super) fn new(named: Vec<String>, first: usize) -> Self {
        Cores { list: Vec::new(), named, redirected: None, first }
    }

    pub(super) fn any_attached(&self) -> bool {
        self.list.iter().any(|core| !core.links.is_empty())
    }

    /// The core for a device that connects: the one with the fewest. A core that lags is taken only while all lag, so that somebody
    /// who slows all cores down does not keep others out.
    pub(super) fn for_new_device(&self, tick: u32) -> Option<usize> {
        let order = |place: &usize| (self.list[*place].lags(tick), self.list[*place].devices);
        self.serving().filter(|place| !self.list[*place].is_full()).min_by_key(order)
    }

    /// The core for a device that can wait until one keeps up.
    pub(super) fn next(&self, tick: u32) -> Option<usize> {
        self.for_new_device(tick).filter(|place| !self.list[*place].lags(tick))
    }

    fn serving(&self) -> impl Iterator<Item = usize> {
        let count = self.list.len();
        (0..count).map(move |at| (self.first + at) % count).filter(|place| self.list[*place].serves())
    }

    /// The core that devices are to leave, if any, and how many: it takes no more, or it has many more than another one.
    pub(super) fn overfull(&self, tick: u32) -> Option<(usize, usize)> {
        let fewest = self.list[self.next(tick)?].devices;
        let leaving = |core: &Core| match core.devices.saturating_sub(fewest) {
            _ if core.links.is_empty() || tick < core.stays_until => 0,
            _ if !core.serves() => core.devices,
            more if more > UNEVEN_MIN.max(core.devices / UNEVEN_PART) => more / 2,
            _ => 0,
        };
        let each = self.list.iter().enumerate().map(|(place, core)| (place, leaving(core)));
        each.max_by_key(|(_, leaving)| *leaving).filter(|(_, leaving)| *leaving > 0)
    }

    pub(super) fn find(&self, address: &str) -> Option<usize> {
        self.list.iter().position(|core| core.address == address)
    }

    /// A core of an earlier version names the one that serves devices.
    pub(super) fn note_redirect(&mut self, core: String) {
        self.redirected = Some(core);
    }

    /// A core has said which nodes take sessions. Answers another place at which the thread is attached to the same core: that
    /// core has dropped the links there, or will.
    pub(super) fn note_announced(&mut self, place: usize, nodes: SessionNodes) -> Option<usize> {
        let mut others = self.list.iter().enumerate().filter(|(other, core)| *other != place && core.is(&nodes.own));
        let double = others.find(|(_, core)| !core.links.is_empty()).map(|(other, _)| other);
        self.list[place].nodes = Some(nodes);
        self.list[place].names_nodes = true;
        // Its list has the one that an earlier version redirects to.
        self.redirected = None;
        double
    }

    /// The addresses to attach to, each by a thread that tries while the flag is set. Attempts at what is not wanted any more end.
    pub(super) fn begin_attempts(&mut self) -> Vec<(String, Arc<AtomicBool>)> {
        let attached = |address: &String| self.list.iter().any(|core| !core.links.is_empty() && core.is(address));
        // Under another name the thread may be attached to it already.
        let is_alias = |named: &String| {
            let core = self.list.iter().find(|core| core.address == *named && core.links.is_empty());
            core.and_then(Core::own).is_some_and(attached)
        };
        let telling = self.list.iter().filter(|core| !core.links.is_empty());
        let announced = telling.filter_map(|core| core.nodes.as_ref()).flat_map(|nodes| &nodes.all);
        let known = self.named.iter().chain(announced).chain(&self.redirected);
        let mut wanted: Vec<String> =
            known.filter(|address| !attached(address) && !is_alias(address)).cloned().collect();
        wanted.sort_unstable();
        wanted.dedup();
        for core in &mut self.list {
            if !wanted.contains(&core.address) {
                core.end_attempt();
            }
        }
        let mut begun = Vec::new();
        for address in wanted {
            let place = self.place_of(&address);
            let core = &mut self.list[place];
            if core.attempt.is_none() {
                let goes_on = Arc::new(AtomicBool::new(true));
                core.attempt = Some(goes_on.clone());
                begun.push((address, goes_on));
            }
        }
        begun
    }

    /// The place of a core that the thread is to attach to.
    fn place_of(&mut self, address: &str) -> usize {
        if let Some(place) = self.find(address) {
            return place;
        }
        let is_free = |core: &Core| {
            core.links.is_empty() && core.attempt.is_none() && core.devices == 0 && !self.named.contains(&core.address)
        };
        let core = Core::new(address.to_owned());
        match self.list.iter().position(is_free) {
            Some(place) => {
                self.list[place] = core;
                place
            }
            None => {
                self.list.push(core);
                self.list.len() - 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::packet::PacketKind;

    fn cores(named: &[&str]) -> Cores {
        Cores::new(named.iter().map(|name| (*name).to_owned()).collect(), 0)
    }

    fn attempts(cores: &mut Cores) -> Vec<String> {
        cores.begin_attempts().into_iter().map(|(address, _)| address).collect()
    }

    fn nodes(own: &str, all: &[&str]) -> SessionNodes {
        SessionNodes { own: own.into(), all: all.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// All links of tests were heard of at this tick, and are given up after 10 more.
    const NOW: u32 = 100;

    fn attach(cores: &mut Cores, address: &str) -> usize {
        let place = cores.find(address).unwrap_or_else(|| panic!("no attempt at {address}"));
        cores.list[place].end_attempt();
        cores.list[place].links.push(Upstream::of_a_test(NOW));
        place
    }

    #[test]
    fn one_named_node_leads_to_all_of_its_cluster() {
        let mut cores = cores(&["a"]);
        assert_eq!(attempts(&mut cores), ["a"]);
        assert!(attempts(&mut cores).is_empty(), "one attempt at a time");
        assert_eq!(cores.next(NOW), None);
        let a = attach(&mut cores, "a");
        assert_eq!(cores.next(NOW), Some(a), "a core that says nothing is alone");
        cores.note_announced(a, nodes("a", &["a", "b", "c"]));
        assert_eq!(attempts(&mut cores), ["b", "c"]);
        attach(&mut cores, "b");
        cores.note_announced(a, nodes("a", &["a", "b"]));
        assert!(attempts(&mut cores).is_empty());
        assert_eq!(cores.next(NOW + 6), None, "silent for more than half of the lease");
        assert_eq!(cores.for_new_device(NOW + 6), Some(a), "there is no better one");
        let c = cores.find("c").map(|place| &cores.list[place]);
        assert!(c.is_some_and(|core| core.attempt.is_none()), "it has left the cluster");
    }

    #[test]
    fn a_core_with_two_addresses_is_attached_to_once() {
        let mut cores = cores(&["a.internal", "b.internal"]);
        assert_eq!(attempts(&mut cores), ["a.internal", "b.internal"]);
        let a = attach(&mut cores, "a.internal");
        assert_eq!(cores.note_announced(a, nodes("10.0.0.1", &["10.0.0.1", "10.0.0.2"])), None);
        assert_eq!(attempts(&mut cores), ["10.0.0.2"], "nothing says yet that it is the other one");
        let by_number = attach(&mut cores, "10.0.0.2");
        assert_eq!(cores.note_announced(by_number, nodes("10.0.0.2", &["10.0.0.1", "10.0.0.2"])), None);
        let by_name = attach(&mut cores, "b.internal");
        let double = cores.note_announced(by_name, nodes("10.0.0.2", &["10.0.0.1", "10.0.0.2"]));
        assert_eq!(double, Some(by_number), "the core knows one set of links of a thread");
        cores.list[by_number].links.clear();
        assert!(attempts(&mut cores).is_empty());
        // Its address may be another one when it is back: the name is tried, too.
        cores.list[by_name].links.clear();
        assert_eq!(attempts(&mut cores), ["10.0.0.2", "b.internal"]);
    }

    #[test]
    fn devices_go_to_the_core_with_the_fewest_and_leave_one_that_takes_no_more() {
        let mut cores = cores(&["a", "b"]);
        attempts(&mut cores);
        let (a, b) = (attach(&mut cores, "a"), attach(&mut cores, "b"));
        for place in [a, b] {
            let own = cores.list[place].address.clone();
            cores.note_announced(place, nodes(&own, &["a", "b"]));
        }
        cores.list[a].devices = 100;
        assert_eq!((cores.next(NOW), cores.overfull(NOW)), (Some(b), Some((a, 50))));
        cores.list[b].devices = 84;
        assert_eq!(cores.overfull(NOW), None, "moves cost more than they gain");
        cores.list[b].devices = 200;
        assert_eq!((cores.next(NOW), cores.overfull(NOW)), (Some(a), Some((b, 50))));
        let packet = vec![0; 64 * 1024];
        while !cores.list[a].is_congested() {
            cores.list[a].links[0].put(PacketKind::Data, 1, &packet);
        }
        assert_eq!((cores.for_new_device(NOW), cores.next(NOW)), (Some(b), Some(b)), "it is behind");
        cores.note_announced(b, nodes("b", &["a"]));
        assert_eq!((cores.for_new_device(NOW), cores.next(NOW)), (Some(a), None), "the other takes none");
        while !cores.list[a].is_full() {
            cores.list[a].links[0].put(PacketKind::Data, 1, &packet);
        }
        assert_eq!(cores.for_new_device(NOW), None);
        cores.list[a].links = vec![Upstream::of_a_test(NOW)];
        cores.note_announced(b, nodes("b", &["a", "b"]));
        cores.note_announced(a, nodes("a", &["b"]));
        assert_eq!((cores.next(NOW), cores.overfull(NOW)), (Some(b), Some((a, 100))), "it is about to stop");
        cores.list[a].stays_until = NOW + 1;
        assert_eq!(cores.overfull(NOW), None, "those that it has left must stay");
        cores.list[a].stays_until = 0;
        cores.list[a].devices = 0;
        assert_eq!(cores.overfull(NOW), None);
    }

    #[test]
    fn each_core_speaks_for_itself() {
        let mut cores = cores(&["a", "b"]);
        attempts(&mut cores);
        let (a, b) = (attach(&mut cores, "a"), attach(&mut cores, "b"));
        cores.note_announced(a, nodes("a", &["a", "b"]));
        // It has lost sight of the other one.
        cores.note_announced(b, nodes("b", &["b"]));
        cores.list[b].devices = 10;
        assert_eq!((cores.next(NOW), cores.overfull(NOW)), (Some(a), None));
    }
}
