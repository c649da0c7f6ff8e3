//! The tasks of a phase: each kind of population has a worker that does what is due to it.
//!
//! Workers of one phase run at the same time, each in a thread that waits for its load client, or that drives its clients
//! itself. In reading order: [`messages`], [`driven`], [`devices`], [`connections`], [`faulty_devices`], [`popups`], [`streams`],
//! [`scripted`] are the workers; [`figures`]
//! are those of the workers without a load client in another process.

mod connections;
pub(super) mod devices;
mod driven;
mod faulty_devices;
mod figures;
mod messages;
mod popups;
mod scripted;
mod streams;

use super::{
    plan::{
        phase::Load,
        population::{Members, Population},
        script::Script,
    },
    trouble::Trouble,
};
use crate::{
    LabError,
    client_engine::device::DeviceProtocol,
    driver::{Driver, DriverTarget},
    offline_push::OfflinePush,
    options::TargetArgs,
    process::ServerProcesses,
    result::{Measurement, RunResult},
    server::Target,
};
pub(crate) use messages::model_of;

use connections::ConnectionWorker;
use devices::DeviceWorker;
pub(crate) use devices::KilledGateway;
use driven::DrivenWorker;
use faulty_devices::FaultyDeviceWorker;
use messages::MessageWorker;
use popups::PopupWorker;
use scripted::ScriptedWorker;
use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};
use streams::StreamWorker;

/// What is to be done now.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) title: String,
    pub(crate) load: &'a Load,
    /// Messages in one request.
    pub(crate) batch: usize,
    /// Otherwise a message that is refused fails the run.
    pub(crate) may_be_refused: bool,
    pub(crate) server: ServerProcesses,
    /// The server's process ends in this phase, and another takes its place.
    pub(crate) server_is_replaced: bool,
}

/// What came of it.
pub(crate) struct WorkResult {
    pub(crate) measured: Measurement,
    /// Why this is not a good step of a search.
    pub(crate) trouble: Option<Trouble>,
}

/// The server as workers see it.
pub(crate) struct Surroundings<'a> {
    pub(crate) target: &'a Target,
    /// Where devices connect without TLS, and with it.
    pub(crate) device_addresses: [Vec<SocketAddr>; 2],
    /// What they accept with TLS, in PEM.
    pub(crate) certificate: Option<String>,
    /// Of the server, as environment variables.
    pub(crate) settings: &'a [(String, String)],
    pub(crate) killed_gateway: Arc<OnceLock<KilledGateway>>,
    pub(crate) args: &'a TargetArgs,
    /// The server goes away and comes back during the run.
    pub(crate) has_faults: bool,
    /// The server is one that others wrote.
    pub(crate) driven: Option<&'a Driven>,
    /// Whom the server tells of messages to members who are offline.
    pub(crate) offline_push: Option<&'a OfflinePush>,
}

/// A server that others wrote, and how to speak to it.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) driver: Arc<Driver>,
    pub(crate) target: DriverTarget,
}

impl Surroundings<'_> {
    /// Where sessions of this kind connect.
    fn addresses(&self, via: DeviceProtocol) -> Result<Vec<SocketAddr>, LabError> {
        let addresses = match via {
            DeviceProtocol::Ws => self.target.addresses(),
            _ => self.device_addresses[usize::from(via == DeviceProtocol::Miops)].clone(),
        };
        if addresses.is_empty() {
            let why = "--url also needs --listeners, or `listeners` of [server]: the addresses that devices connect to";
            Err(LabError::Usage(why.into()))
        } else {
            Ok(addresses)
        }
    }
}

/// Who does the work of one population or script.
pub(crate) enum WorkerClient {
    Messages(Box<MessageWorker>),
    Driven(DrivenWorker),
    Devices(Box<DeviceWorker>),
    Connections(Box<ConnectionWorker>),
    FaultyDevices(Box<FaultyDeviceWorker>),
    Popups(Box<PopupWorker>),
    Streams(Box<StreamWorker>),
    Script(Box<ScriptedWorker>),
}

impl WorkerClient {
    /// Creates the population's users, and opens the connections that it needs before its work begins. `first` is what it does first.
    pub(crate) fn open(around: &Surroundings<'_>, population: &Population, first: &Load) -> Result<Self, LabError> {
        if let Some(Driven { driver, target }) = around.driven {
            let worker = DrivenWorker::open(
                driver.clone(),
                target.clone(),
                population,
                around.args.client_core,
                around.args.lag_max,
            )?;
            return Ok(WorkerClient::Driven(worker));
        }
        Ok(match &population.members {
            Members::Conversation(..) | Members::Pairs(..) | Members::Chat(_) => {
                let worker = MessageWorker::open(around, population)?;
                WorkerClient::Messages(Box::new(worker))
            }
            Members::Devices(spec) => WorkerClient::Devices(Box::new(DeviceWorker::open(around, spec, first)?)),
            Members::Connections { devices, stay } => {
                WorkerClient::Connections(Box::new(ConnectionWorker::open(around, devices, *stay)?))
            }
            Members::FaultyDevices(spec) => {
                WorkerClient::FaultyDevices(Box::new(FaultyDeviceWorker::open(around, spec)?))
            }
            Members::PopupUsers(users) => WorkerClient::Popups(Box::new(PopupWorker::open(around, *users)?)),
            Members::Streams(streams) => WorkerClient::Streams(Box::new(StreamWorker::open(around, *streams)?)),
        })
    }

    pub(crate) fn open_script(around: &Surroundings<'_>, name: &str, script: &Script) -> Result<Self, LabError> {
        Ok(WorkerClient::Script(Box::new(ScriptedWorker::open(around, name, script)?)))
    }

    /// Ends what later phases do not need, and leaves the server as the next population expects it.
    pub(crate) fn close(self) -> Result<(), LabError> {
        match self {
            WorkerClient::Popups(worker) => worker.close(),
            _ => Ok(()),
        }
    }

    /// What can be asked only when all work is done, while the server runs.
    pub(crate) fn conclude(
        &mut self,
        target: &Target,
        server: &ServerProcesses,
        result: &mut RunResult,
    ) -> Result<(), LabError> {
        match self {
            WorkerClient::Messages(worker) => worker.conclude(target, result),
            WorkerClient::Devices(worker) => worker.conclude(server, result),
            WorkerClient::FaultyDevices(worker) => worker.conclude(result),
            _ => Ok(()),
        }
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        match self {
            WorkerClient::Messages(worker) => worker.run(job),
            WorkerClient::Driven(worker) => worker.run(job),
            WorkerClient::Devices(worker) => worker.run(job),
            WorkerClient::Connections(worker) => worker.run(job),
            WorkerClient::FaultyDevices(worker) => worker.run(job),
            WorkerClient::Popups(worker) => worker.run(job),
            WorkerClient::Streams(worker) => worker.run(job),
            WorkerClient::Script(worker) => worker.run(job),
        }
    }
}
