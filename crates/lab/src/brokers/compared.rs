//! The servers of a comparison: what each is, and the same load on it.

use super::{BrokersArgs, ComparedServer, Figures, Idle, PAUSE};
use crate::{
    LabError,
    delivery_ledger::Audience,
    driver::{self, Driver, DriverClient, DriverClients, DriverTarget},
    load_client::LoadClient,
    message_clients::{GroupSpec, MessageClients},
    options::TargetArgs,
    process::{self, ServerProcesses},
    server::Target,
    setup,
    topology::broker::{Broker, BrokerKind},
    worker_protocol::{LoadModel, Outcome, Participants},
};
use std::{path::Path, sync::Arc, time::Duration};

/// Unanswered publishes of one sender on a described server.
const PIPELINE: usize = 64;

/// A server of the comparison.
pub(super) enum Compared {
    Tidings,
    /// One that others wrote, by its driver.
    Driven {
        name: String,
        driver: Arc<Driver>,
        place: Place,
    },
}

/// Where a server that others wrote is.
pub(super) enum Place {
    /// It runs already.
    At(DriverTarget),
    /// Each part starts one.
    Started(BrokerKind),
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
        let broker = |server: ComparedServer, kind, driver| {
            let at = args.at.iter().find(|(other, _)| *other == server);
            let at = at.map(|(_, address)| Place::At(DriverTarget::at(*address, args.target.patience)));
            let driver = Arc::new(driver::read(driver, Path::new(""))?);
            let place = at.unwrap_or(Place::Started(kind));
            Ok(Compared::Driven { name: server.name().to_owned(), driver, place })
        };
        let servers = args.servers.iter().map(|server| match server {
            ComparedServer::Tidings => Ok(Compared::Tidings),
            ComparedServer::Nats => broker(*server, BrokerKind::Nats, BrokerKind::Nats.driver()),
            ComparedServer::Mosquitto => broker(*server, BrokerKind::Mosquitto, BrokerKind::Mosquitto.driver()),
            ComparedServer::MosquittoMqtt5 => broker(*server, BrokerKind::Mosquitto, "mqtt5"),
        });
        let mut all: Vec<Self> = servers.collect::<Result<_, LabError>>()?;
        match (&args.described.driver, &args.target.url) {
            (Some(name), Some(url)) => {
                let driver = Arc::new(driver::read(name, Path::new(""))?);
                let target = DriverTarget::of(url, &args.target, args.described.ca.as_deref())?;
                all.push(Compared::Driven { name: driver.name.clone(), driver, place: Place::At(target) });
            }
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
            Compared::Driven { name, .. } => name,
        }
    }

    pub(super) fn version(&self) -> Result<String, LabError> {
        match self {
            Compared::Tidings => Ok(env!("CARGO_PKG_VERSION").to_owned()),
            Compared::Driven { place: Place::Started(kind), .. } => kind.version(),
            Compared::Driven { .. } => Ok("?".into()),
        }
    }

    /// The settings that differ from what the program comes with.
    pub(super) fn settings(&self) -> String {
        match self {
            Compared::Tidings => "stored with an fsync before the answer; sends_per_second 0".into(),
            Compared::Driven { driver, place: Place::Started(kind), .. } => {
                format!("{} {}", driver.about, kind.settings())
            }
            Compared::Driven { driver, .. } => format!("{} Runs already", driver.about),
        }
    }

    /// The group, the ladder and the idle connections on this server.
    pub(super) fn measure(&self, args: &BrokersArgs) -> Result<Figures, LabError> {
        match self {
            Compared::Tidings => on_tidings(args),
            Compared::Driven { name, driver, place } => on_driven(name, driver, place, args),
        }
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

/// A server for one part of the load, with the process of one that was started.
struct RunningServer {
    target: DriverTarget,
    broker: Option<Broker>,
}

impl Place {
    /// A new server for each part: none begins with the memory or the connections of the part before.
    fn running(&self, patience: Duration) -> Result<RunningServer, LabError> {
        match self {
            Place::At(target) => Ok(RunningServer { target: target.clone(), broker: None }),
            Place::Started(kind) => {
                let broker = Broker::start(*kind)?;
                Ok(RunningServer { target: DriverTarget::at(broker.address(), patience), broker: Some(broker) })
            }
        }
    }
}

impl RunningServer {
    /// Of another's process nothing is known.
    fn processes(&self) -> ServerProcesses {
        self.broker.as_ref().map(Broker::pid).into()
    }
}

fn on_driven(name: &str, driver: &Arc<Driver>, place: &Place, args: &BrokersArgs) -> Result<Figures, LabError> {
    let core = args.target.client_core.unwrap_or_else(process::last_core);
    let open = |server: &RunningServer, receivers, senders| {
        let clients = DriverClients { audience: Audience::Everybody, receivers, senders, pipeline: PIPELINE };
        DriverClient::open(driver.clone(), &server.target, clients)
    };
    let measure = |receivers: usize, senders: usize, model: LoadModel| {
        let server = place.running(args.target.patience)?;
        let title = format!("{name}, {receivers} receivers");
        // Only the client keeps to its core: what is started while it does would, too.
        let outcome = process::run_on_core(core, || {
            open(&server, receivers, senders)?.run(&title, &model, args.body_bytes, server.processes())
        })??;
        Ok::<_, LabError>(Outcome { lag_max_ms: args.target.lag_max.as_secs_f64() * 1e3, ..outcome })
    };
    let group = measure(args.members, args.senders, flood(args))?;
    let steps = args.ladder.iter().map(|members| measure(*members, 1, one_by_one(args)));
    let broadcasts = steps.collect::<Result<_, _>>()?;
    let server = place.running(args.target.patience)?;
    let (before, began) = (server.processes().resident_bytes(), process::monotonic_ns());
    let _client = process::run_on_core(core, || open(&server, args.idle, 0))??;
    let seconds = (process::monotonic_ns() - began) as f64 / 1e9;
    let idle = Idle::of(args.idle, seconds, before.zip(server.processes().resident_bytes()));
    Ok(Figures { group, broadcasts, idle })
}

fn flood(args: &BrokersArgs) -> LoadModel {
    LoadModel::ClosedLoop { window: args.window, duration_ms: args.duration.as_millis() as u64 }
}

fn one_by_one(args: &BrokersArgs) -> LoadModel {
    LoadModel::Rounds { rounds: args.broadcasts, pause_ms: PAUSE.as_millis() as u64 }
}
