//! The server of a scenario: one that runs, one of its own with or without gateways, or a cluster; and the faults that happen to it.

use super::{
    gateways::{self, Certificate, DeviceListener, Gateway},
    plan::{
        Server,
        fault::{Fault, Happening},
    },
    works::{Driven, KilledGateway},
};
use crate::{
    LabError,
    chaos::{self, FaultKind},
    driver::{Driver, DriverTarget},
    offline_push::{OfflinePush, fake_consumer::FakeConsumer, fake_hook::FakeHook},
    options::TargetArgs,
    process::{self, ServerProcesses},
    server::{OwnServer, StoreCheck, Target, random_key},
    topology::{Topology, TopologySpec, broker::Broker, cost::ClusterCounters},
};
use rustix::process::Signal;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

pub(crate) struct ScenarioServer {
    pub(crate) target: Target,
    /// The cluster that the lab has started. The thread that started it must outlive it.
    topology: Option<Topology>,
    /// Of a server of the lab's own: who holds the connections of devices; none: it does itself.
    gateways: Vec<Gateway>,
    /// Of a server that runs already: where devices connect.
    listeners: Vec<SocketAddr>,
    /// What devices accept that connect by TLS, in PEM.
    pub(crate) certificate: Option<String>,
    pub(crate) killed_gateway: Arc<OnceLock<KilledGateway>>,
    /// Of gateways and certificates.
    folder: tempfile::TempDir,
    /// Set if others wrote it.
    pub(crate) driven: Option<Driven>,
    broker: Option<Broker>,
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
            let certificate = wanted.certificate.as_ref().map(std::fs::read_to_string).transpose()?;
            let listeners = wanted.listeners.clone();
            return Ok(ScenarioServer { listeners, certificate, ..ScenarioServer::of(target)? });
        }
        let hook = wanted.hook.map(FakeHook::start).transpose()?;
        let offline_push = wanted.offline_via.map(OfflinePush::start).transpose()?;
        let mut environment = wanted.settings.clone();
        environment.extend(offline_push.iter().flat_map(OfflinePush::settings));
        environment.extend(hook.iter().flat_map(FakeHook::settings));
        let mut server = match wanted.nodes {
            None => ScenarioServer::own(wanted, environment)?,
            Some(nodes) => {
                environment.push(("TIDINGS_LINK_SECRET".to_owned(), random_key()));
                let spec = TopologySpec { nodes, environment: environment.clone(), ..TopologySpec::default() };
                let topology = Topology::start(&spec)?;
                let mut server = ScenarioServer::of(topology.target())?;
                // The last node: it names the others.
                let link = topology.nodes.last().map(|node| node.link().to_string()).unwrap_or_default();
                environment.push(("TIDINGS_LINK_TO".to_owned(), link));
                server.start_gateways(wanted, &[&gateways::PLAIN], &environment)?;
                ScenarioServer { topology: Some(topology), ..server }
            }
        };
        let consumer = wanted.events_fail.map(|share| FakeConsumer::start(share, &server.target));
        (server.offline_push, server.hook, server.consumer) = (offline_push, hook, consumer.transpose()?);
        Ok(server)
    }

    /// One that calls nothing of the lab's.
    fn of(target: Target) -> Result<Self, LabError> {
        Ok(ScenarioServer {
            target,
            topology: None,
            gateways: Vec::new(),
            listeners: Vec::new(),
            certificate: None,
            killed_gateway: Arc::default(),
            folder: tempfile::Builder::new().prefix("tidings-bench-").tempdir()?,
            driven: None,
            broker: None,
            offline_push: None,
            hook: None,
            consumer: None,
        })
    }

    /// One server with the gateways and the certificate that are wanted.
    fn own(wanted: &Server, mut settings: Vec<(String, String)>) -> Result<Self, LabError> {
        let folder = tempfile::Builder::new().prefix("tidings-bench-").tempdir()?;
        let certificate = wanted.tls.then(|| Certificate::make(folder.path())).transpose()?;
        settings.push(("TIDINGS_LINK_SECRET".to_owned(), random_key()));
        settings.extend(certificate.iter().flat_map(Certificate::environment));
        let tls = wanted.tls.then_some(&gateways::TLS);
        let mut core = settings.clone();
        match wanted.gateways {
            0 => core.extend(tls.map(|tls| tls.at(Ipv4Addr::LOCALHOST))),
            _ => core.push(("TIDINGS_LINK_LISTEN".to_owned(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string())),
        }
        let own = OwnServer::start_as(core, wanted.descriptors, wanted.core)?;
        let link = own.listen_address("link");
        let certificate = certificate.map(|certificate| certificate.pem);
        let server = ScenarioServer::of(Target::Own(Box::new(own)))?;
        let mut server = ScenarioServer { certificate, folder, ..server };
        if wanted.gateways > 0 {
            let link = link.ok_or_else(|| LabError::Server("has written no link address".into()))?;
            settings.push(("TIDINGS_LINK_TO".to_owned(), link.to_string()));
        }
        let listeners: Vec<&DeviceListener> = [&gateways::PLAIN].into_iter().chain(tls).collect();
        server.start_gateways(wanted, &listeners, &settings)?;
        Ok(server)
    }

    /// Starts the gateways that are wanted. The settings say where they attach.
    fn start_gateways(
        &mut self,
        wanted: &Server,
        listeners: &[&DeviceListener],
        settings: &[(String, String)],
    ) -> Result<(), LabError> {
        for number in 0..wanted.gateways {
            self.gateways.push(Gateway::start(number, self.folder.path(), listeners, settings)?);
        }
        self.gateways.iter_mut().try_for_each(|gateway| gateway.wait_until_ready(&gateways::PLAIN))
    }

    /// Stops a server of the lab's own, and starts it again on its folder.
    pub(crate) fn restart(&mut self) -> Result<(), LabError> {
        match &mut self.target {
            Target::Own(own) if self.gateways.is_empty() => {
                own.stop()?;
                own.launch().map(|_| ())
            }
            Target::Own(_) => Err(LabError::Usage("--known needs --gateways 0".into())),
            Target::Running { .. } => {
                Err(LabError::Usage("only a server of the bench's own can be started anew".into()))
            }
        }
    }

    /// A server that others wrote: one that runs already, or a broker that is started.
    pub(crate) fn of_others(
        wanted: &Server,
        args: &TargetArgs,
        driver: Arc<Driver>,
        ca: Option<&Path>,
    ) -> Result<Self, LabError> {
        let (target, broker) = match (args.url.as_ref().or(wanted.url.as_ref()), wanted.broker) {
            (Some(url), _) => (DriverTarget::of(url, args, ca)?, None),
            (None, Some(kind)) => {
                let broker = Broker::start(kind)?;
                (DriverTarget::at(broker.address(), args.patience), Some(broker))
            }
            (None, None) => {
                let why = "a driver needs --url: of the servers that others wrote, the lab starts brokers alone";
                return Err(LabError::Usage(why.into()));
            }
        };
        let running = Target::Running {
            addresses: target.addresses.clone(),
            api_key: args.api_key.clone().unwrap_or_default(),
            token_key: args.token_key.clone().unwrap_or_default(),
        };
        let driven = Some(Driven { driver, target });
        Ok(ScenarioServer { driven, broker, ..ScenarioServer::of(running)? })
    }

    /// Where devices connect, by TLS or without: of a server that runs already, what the scenario says.
    pub(crate) fn device_addresses(&self, by_tls: bool) -> Vec<SocketAddr> {
        let listener = if by_tls { &gateways::TLS } else { &gateways::PLAIN };
        if !self.gateways.is_empty() {
            return self.gateways.iter().filter_map(|gateway| gateway.address(listener)).collect();
        }
        match (&self.target, &self.topology) {
            (Target::Own(own), _) => own.listen_address(listener.name).into_iter().collect(),
            (_, Some(topology)) => topology.nodes.iter().map(|node| node.miop()).collect(),
            (Target::Running { .. }, None) => self.listeners.clone(),
        }
    }

    /// The processes whose time and memory are measured: of a cluster, its nodes; of others, the server and then its gateways.
    pub(crate) fn processes(&self) -> ServerProcesses {
        let servers: Vec<u32> = match &self.topology {
            Some(topology) => topology.node_pids().collect(),
            None => self.target.pid().or(self.broker.as_ref().map(Broker::pid)).into_iter().collect(),
        };
        servers.into_iter().chain(self.gateways.iter().filter_map(|gateway| gateway.process.pid())).collect()
    }

    /// What the parts of a cluster have counted so far.
    pub(crate) fn counters(&self) -> Result<Option<ClusterCounters>, LabError> {
        self.topology.as_ref().map(ClusterCounters::read).transpose()
    }

    /// Injects a fault and reverts it; returns when the server is ready again, with the time that it took to open.
    pub(crate) fn suffer(&mut self, fault: &Fault) -> Result<Option<Duration>, LabError> {
        let kind = match fault.kind {
            Happening::Server(kind) => kind,
            Happening::GatewayKilled => return self.kill_gateway(fault.node).map(|()| None),
        };
        if let Some(topology) = &mut self.topology {
            return chaos::inject_one(kind, fault.node, topology, fault.lasts).map(|()| None);
        }
        let Target::Own(own) = &mut self.target else {
            return Err(LabError::Usage("this server is not the lab's to break".into()));
        };
        match kind {
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

    fn kill_gateway(&mut self, number: usize) -> Result<(), LabError> {
        let gateway = &mut self.gateways[number];
        let listeners = [&gateways::TLS, &gateways::PLAIN].into_iter();
        let addresses = listeners.filter_map(|listener| gateway.address(listener)).collect();
        let at = Instant::now();
        let at_ns = process::monotonic_ns();
        gateway.process.kill()?;
        // Of several, devices outlive the first.
        let _ = self.killed_gateway.set(KilledGateway { at, at_ns, addresses });
        Ok(())
    }

    /// Whether a server of the lab's own is ready, and all its gateways run, except those that were killed on purpose.
    fn is_alive(&mut self) -> bool {
        let is_own = matches!(self.target, Target::Own(_));
        !is_own
            || self.target.http().is_ready()
                && self.gateways.iter_mut().all(|gateway| gateway.process.unexpected_end().is_none())
    }

    /// Stops what the lab has started, and checks the folder of a server of its own.
    pub(crate) fn finish(mut self) -> Result<Option<StoreCheck>, LabError> {
        if !self.is_alive() {
            return Err(LabError::Server("did not survive the run".into()));
        }
        self.gateways.iter_mut().try_for_each(|gateway| gateway.process.drain())?;
        let check = self.target.finish()?;
        if let Some(topology) = self.topology {
            topology.stop()?;
        }
        Ok(check)
    }
}
