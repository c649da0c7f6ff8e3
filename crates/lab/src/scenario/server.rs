//! The server of a scenario: one that runs, one of its own, or a cluster; and the faults that happen to it.

use super::{
    plan::{Server, fault::Fault},
    works::Driven,
};
use crate::{
    LabError,
    chaos::{self, FaultKind},
    driver::{Driver, DriverTarget},
    offline_push::{OfflinePush, fake_consumer::FakeConsumer, fake_hook::FakeHook},
    options::TargetArgs,
    process::{self, ServerProcesses},
    server::{OwnServer, StoreCheck, Target},
    topology::{Topology, TopologySpec},
};
use rustix::process::Signal;
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

pub(crate) struct ScenarioServer {
    pub(crate) target: Target,
    /// The cluster that the lab has started. The thread that started it must outlive it.
    topology: Option<Topology>,
    /// Set if others wrote it.
    pub(crate) driven: Option<Driven>,
    /// Whom it tells of messages to members who are offline.
    pub(crate) offline_push: Option<OfflinePush>,
    /// The hook that it asks.
    pub(crate) hook: Option<FakeHook>,
    /// Who follows its feed.
    pub(crate) consumer: Option<FakeConsumer>,
}

impl ScenarioServer {
    /// The server that the options name, or else the one that the scenario wants.
    pub(crate) fn start(wanted: &Server, args: &TargetArgs) -> Result<Self, LabError> {
        if args.url.is_some() || wanted.url.is_some() {
            let url = args.url.clone().or_else(|| wanted.url.clone());
            if wanted.hook.is_some() || wanted.events_fail.is_some() {
                return Err(LabError::Usage("--url: this server does not call the lab's hook or webhook".into()));
            }
            if wanted.offline_via.is_some() {
                return Err(LabError::Usage("--url: this server does not tell the lab's fakes of anything".into()));
            }
            let target = Target::resolve(&TargetArgs { url, ..args.clone() })?;
            return Ok(ScenarioServer::of(target));
        }
        let hook = wanted.hook.map(FakeHook::start).transpose()?;
        let offline_push = wanted.offline_via.map(OfflinePush::start).transpose()?;
        let mut environment = wanted.settings.clone();
        environment.extend(offline_push.iter().flat_map(OfflinePush::settings));
        environment.extend(hook.iter().flat_map(FakeHook::settings));
        let mut server = match wanted.nodes {
            None => {
                let own = OwnServer::start_as(environment, wanted.descriptors, wanted.core)?;
                ScenarioServer::of(Target::Own(Box::new(own)))
            }
            Some(nodes) => {
                let spec = TopologySpec { nodes, with_partitions: false, folder: None, environment, program: None };
                let topology = Topology::start(&spec)?;
                let target = Target::Running {
                    addresses: topology.addresses(),
                    api_key: topology.api_key.clone(),
                    token_key: topology.token_key.clone(),
                };
                ScenarioServer { topology: Some(topology), ..ScenarioServer::of(target) }
            }
        };
        let consumer = wanted.events_fail.map(|share| FakeConsumer::start(share, &server.target));
        (server.offline_push, server.hook, server.consumer) = (offline_push, hook, consumer.transpose()?);
        Ok(server)
    }

    /// One that calls nothing of the lab's.
    fn of(target: Target) -> Self {
        ScenarioServer { target, topology: None, driven: None, offline_push: None, hook: None, consumer: None }
    }

    /// A server that others wrote, and that runs already.
    pub(crate) fn of_others(
        wanted: &Server,
        args: &TargetArgs,
        driver: Arc<Driver>,
        ca: Option<&Path>,
    ) -> Result<Self, LabError> {
        let Some(url) = args.url.as_ref().or(wanted.url.as_ref()) else {
            return Err(LabError::Usage("a driver needs --url: the lab starts no server that others wrote".into()));
        };
        let target = DriverTarget::of(url, args, ca)?;
        let running = Target::Running {
            addresses: target.addresses.clone(),
            api_key: args.api_key.clone().unwrap_or_default(),
            token_key: args.token_key.clone().unwrap_or_default(),
        };
        Ok(ScenarioServer { driven: Some(Driven { driver, target }), ..ScenarioServer::of(running) })
    }

    /// Where devices connect: of a server that runs already, nothing is known.
    pub(crate) fn device_addresses(&self) -> Vec<SocketAddr> {
        match (&self.target, &self.topology) {
            (Target::Own(own), _) => own.listen_address("miop").into_iter().collect(),
            (_, Some(topology)) => topology.nodes.iter().map(|node| node.miop()).collect(),
            (Target::Running { .. }, None) => Vec::new(),
        }
    }

    /// The processes whose time and memory are measured: of a cluster, its nodes.
    pub(crate) fn processes(&self) -> ServerProcesses {
        match &self.topology {
            Some(topology) => topology.node_pids().collect(),
            None => self.target.pid().into(),
        }
    }

    /// Injects a fault and reverts it; returns when the server is ready again, with the time that it took to open.
    pub(crate) fn suffer(&mut self, fault: &Fault) -> Result<Option<Duration>, LabError> {
        if let Some(topology) = &mut self.topology {
            return chaos::inject_one(fault.kind, fault.node, topology, fault.lasts).map(|()| None);
        }
        let Target::Own(own) = &mut self.target else {
            return Err(LabError::Usage("this server is not the lab's to break".into()));
        };
        match fault.kind {
            FaultKind::NodeFrozen => {
                let Some(pid) = own.pid() else { return Ok(None) };
                process::signal(pid, Signal::STOP);
                std::thread::sleep(fault.lasts);
                process::signal(pid, Signal::CONT);
                return Ok(None);
            }
            FaultKind::NodeRestarted => {
                own.stop()?;
            }
            _ => {
                own.kill()?;
                std::thread::sleep(fault.lasts);
            }
        }
        own.launch().map(Some)
    }

    /// Stops what the lab has started, and checks the folder of a server of its own.
    pub(crate) fn finish(self) -> Result<Option<StoreCheck>, LabError> {
        let check = self.target.finish()?;
        if let Some(topology) = self.topology {
            topology.stop()?;
        }
        Ok(check)
    }
}
