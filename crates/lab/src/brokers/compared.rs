//! The servers of a comparison: what each is, and the same load on it.

use super::{
    BrokersArgs, ComparedServer, Figures, Idle, PAUSE,
    client::{BrokerClient, Plan},
    wire::Protocol,
};
use crate::{
    LabError,
    delivery_ledger::Audience,
    driver::{self, Driver, DriverClient, DriverClients, DriverTarget},
    load_client::{LoadClient, Participants},
    message_clients::{GroupSpec, MessageClients},
    options::TargetArgs,
    process,
    server::Target,
    setup,
    topology::broker::{Broker, BrokerKind},
    worker_protocol::{LoadModel, Outcome},
};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

/// Unanswered publishes of one sender on a described server.
const PIPELINE: usize = 64;

/// A server of the comparison.
pub(super) enum Compared {
    Tidings,
    Broker(ComparedBroker),
    /// One that others wrote, by its driver. It runs already.
    Described {
        driver: Arc<Driver>,
        target: DriverTarget,
    },
}

pub(super) struct ComparedBroker {
    name: &'static str,
    kind: BrokerKind,
    protocol: Protocol,
    /// It runs already, there; unset: each part starts one.
    at: Option<SocketAddr>,
}

impl Compared {
    /// The servers that the options name, the described one last.
    pub(super) fn all(args: &BrokersArgs) -> Result<Vec<Self>, LabError> {
        for (server, _) in &args.at {
            let why = match server {
                ComparedServer::Tidings => "it is started, so that its folder can be checked",
                server if !args.servers.contains(server) => "--servers does not name it",
                _ => continue,
            };
            return Err(LabError::Usage(format!("--at {}: {why}", server.name())));
        }
        let at = |server| args.at.iter().find(|(other, _)| *other == server).map(|(_, address)| *address);
        let broker = |server: ComparedServer, kind, protocol| {
            Compared::Broker(ComparedBroker { name: server.name(), kind, protocol, at: at(server) })
        };
        let mut all: Vec<Self> = (args.servers.iter())
            .map(|server| match server {
                ComparedServer::Tidings => Compared::Tidings,
                ComparedServer::Nats => broker(*server, BrokerKind::Nats, Protocol::Nats),
                ComparedServer::Mosquitto => broker(*server, BrokerKind::Mosquitto, Protocol::Mqtt311),
                ComparedServer::MosquittoMqtt5 => broker(*server, BrokerKind::Mosquitto, Protocol::Mqtt5),
            })
            .collect();
        match (&args.described.driver, &args.target.url) {
            (Some(name), Some(url)) => all.push(Compared::Described {
                driver: Arc::new(driver::read(name, Path::new(""))?),
                target: DriverTarget::of(url, &args.target, args.described.ca.as_deref())?,
            }),
            (Some(_), None) => return Err(LabError::Usage("--driver needs the --url of its server".into())),
            (None, Some(_)) => {
                let why =
                    "`bench brokers` starts Tidings itself: --url is for the server of a --driver, --at for a broker";
                return Err(LabError::Usage(why.into()));
            }
            (None, None) => {}
        }
        if all.is_empty() {
            return Err(LabError::Usage("--servers names none".into()));
        }
        Ok(all)
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Compared::Tidings => ComparedServer::Tidings.name(),
            Compared::Broker(broker) => broker.name,
            Compared::Described { driver, .. } => &driver.name,
        }
    }

    pub(super) fn version(&self) -> Result<String, LabError> {
        match self {
            Compared::Tidings => Ok(env!("CARGO_PKG_VERSION").to_owned()),
            Compared::Broker(ComparedBroker { kind, at: None, .. }) => kind.version(),
            Compared::Broker(_) | Compared::Described { .. } => Ok("?".into()),
        }
    }

    /// The settings that differ from what the program comes with.
    pub(super) fn settings(&self) -> String {
        match self {
            Compared::Tidings => "stored with an fsync before the answer; sends_per_second 0".into(),
            Compared::Broker(ComparedBroker { at: Some(address), protocol, .. }) => {
                format!("{}; runs already at {address}", protocol.about())
            }
            Compared::Broker(broker) => format!("{}; {}", broker.protocol.about(), broker.kind.settings()),
            Compared::Described { driver, .. } => format!("{} Runs already", driver.about),
        }
    }

    /// The group, the ladder and the idle connections on this server.
    pub(super) fn measure(&self, args: &BrokersArgs) -> Result<Figures, LabError> {
        match self {
            Compared::Tidings => on_tidings(args),
            Compared::Broker(broker) => broker.measure(args),
            Compared::Described { driver, target } => on_described(driver, target, args),
        }
    }
}

/// A broker that was started for one part of the load, or one that runs already.
enum RunningBroker {
    Own(Broker),
    At(SocketAddr),
}

impl RunningBroker {
    fn address(&self) -> SocketAddr {
        match self {
            RunningBroker::Own(broker) => broker.address(),
            RunningBroker::At(address) => *address,
        }
    }

    fn cpu_seconds(&self) -> Option<f64> {
        self.pid().map(process::cpu_seconds)
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.pid().map(process::resident_bytes)
    }

    /// Of another's process nothing is known.
    fn pid(&self) -> Option<u32> {
        match self {
            RunningBroker::Own(broker) => Some(broker.pid()),
            RunningBroker::At(_) => None,
        }
    }
}

impl ComparedBroker {
    /// A new server for each part: none begins with the memory or the connections of the part before.
    fn running(&self) -> Result<RunningBroker, LabError> {
        match self.at {
            Some(address) => Ok(RunningBroker::At(address)),
            None => Broker::start(self.kind).map(RunningBroker::Own),
        }
    }

    fn measure(&self, args: &BrokersArgs) -> Result<Figures, LabError> {
        let core = args.target.client_core.unwrap_or_else(process::last_core);
        let measure = |receivers: usize, senders: usize, plan: Plan| {
            let broker = self.running()?;
            // Only the client keeps to its core: what is started while it does would, too.
            let (outcome, cpu) = process::run_on_core(core, || {
                let (mut client, _) =
                    BrokerClient::open(self.protocol, broker.address(), receivers, senders, args.target.patience)?;
                let cpu = broker.cpu_seconds();
                Ok::<_, LabError>((client.run(plan, args.body_bytes)?, cpu))
            })??;
            let server_cpu_seconds = broker.cpu_seconds().zip(cpu).map(|(now, before)| now - before);
            let title = format!("{}, {receivers} receivers", self.name);
            let lag_max_ms = args.target.lag_max.as_secs_f64() * 1e3;
            let server_rss_bytes = broker.resident_bytes();
            Ok::<_, LabError>(Outcome { title, server_cpu_seconds, server_rss_bytes, lag_max_ms, ..outcome })
        };
        let flood = Plan::ClosedLoop { window: args.window, duration: args.duration };
        let one_by_one = Plan::Rounds { rounds: args.broadcasts, pause: PAUSE };
        let group = measure(args.members, args.senders, flood)?;
        let steps = args.ladder.iter().map(|members| measure(*members, 1, one_by_one));
        let broadcasts = steps.collect::<Result<_, _>>()?;
        let broker = self.running()?;
        let before = broker.resident_bytes();
        let open = || BrokerClient::open(self.protocol, broker.address(), args.idle, 0, args.target.patience);
        let (_client, took) = process::run_on_core(core, open)??;
        let idle = Idle::of(args.idle, took.as_secs_f64(), before.zip(broker.resident_bytes()));
        Ok(Figures { group, broadcasts, idle })
    }
}

fn on_tidings(args: &BrokersArgs) -> Result<Figures, LabError> {
    // `--url` and the keys are those of a described server.
    let own = TargetArgs { url: None, ..args.target.clone() };
    let measure = |members: usize, senders: usize, model: LoadModel| {
        let target = Target::resolve(&own)?;
        let spec = GroupSpec::of(members, members, senders);
        let mut fixture = MessageClients::group(&target, &own, &spec)?;
        let phase = fixture.phase(model, args.body_bytes, 1, 1);
        let outcome = fixture.load.run(&format!("tidings, {members} members"), phase)?;
        drop(fixture);
        match target.finish()? {
            Some(check) if !check.passed => {
                Err(LabError::Server(format!("left a folder with faults: {}", check.output)))
            }
            _ => Ok(outcome),
        }
    };
    let group = measure(args.members, args.senders, flood(args))?;
    let steps = args.ladder.iter().map(|members| measure(*members, 1, one_by_one(args)));
    let broadcasts = steps.collect::<Result<_, _>>()?;
    Ok(Figures { group, broadcasts, idle: idle_on_tidings(args, &own)? })
}

/// Sessions over WebSocket of one user each, all members of one group.
fn idle_on_tidings(args: &BrokersArgs, own: &TargetArgs) -> Result<Idle, LabError> {
    let target = Target::resolve(own)?;
    let tag = process::run_tag();
    let members = setup::numbered_ids(&format!("{tag}-m"), args.idle);
    let mut http = target.http();
    setup::create_users(&mut http, &members)?;
    let group = setup::create_group(&mut http, &format!("idle-{tag}"), &members)?;
    let pid = target.pid().unwrap_or(0);
    let before = process::resident_bytes(pid);
    let load = LoadClient::open(&target, own, Participants::of_group(group, &members))?;
    let idle = Idle::of(args.idle, load.open_seconds, Some((before, process::resident_bytes(pid))));
    drop(load);
    target.finish()?;
    Ok(idle)
}

fn on_described(driver: &Arc<Driver>, target: &DriverTarget, args: &BrokersArgs) -> Result<Figures, LabError> {
    let core = args.target.client_core.unwrap_or_else(process::last_core);
    let open = |receivers, senders| {
        let clients = DriverClients { audience: Audience::Everybody, receivers, senders, pipeline: PIPELINE };
        let began = process::monotonic_ns();
        let client = DriverClient::open(driver.clone(), target, clients)?;
        Ok::<_, LabError>((client, Duration::from_nanos(process::monotonic_ns() - began)))
    };
    let measure = |receivers: usize, senders: usize, model: LoadModel| {
        let title = format!("{}, {receivers} receivers", driver.name);
        let outcome = process::run_on_core(core, || open(receivers, senders)?.0.run(&title, &model, args.body_bytes))??;
        Ok::<_, LabError>(Outcome { lag_max_ms: args.target.lag_max.as_secs_f64() * 1e3, ..outcome })
    };
    let group = measure(args.members, args.senders, flood(args))?;
    let steps = args.ladder.iter().map(|members| measure(*members, 1, one_by_one(args)));
    let broadcasts = steps.collect::<Result<_, _>>()?;
    let (_client, took) = process::run_on_core(core, || open(args.idle, 0))??;
    Ok(Figures { group, broadcasts, idle: Idle::of(args.idle, took.as_secs_f64(), None) })
}

fn flood(args: &BrokersArgs) -> LoadModel {
    LoadModel::ClosedLoop { window: args.window, duration_ms: args.duration.as_millis() as u64 }
}

fn one_by_one(args: &BrokersArgs) -> LoadModel {
    LoadModel::Rounds { rounds: args.broadcasts, pause_ms: PAUSE.as_millis() as u64 }
}
