//! Messages to a group, or in direct conversations, on a server that a driver describes, by a load client in a thread of its own: it answers the server's
//! pings between phases, too.

use super::{Job, WorkResult, messages};
use crate::{
    LabError,
    delivery_ledger::Audience,
    driver::{Driver, DriverClient, DriverClients, DriverTarget},
    process::{self, ServerProcesses},
    scenario::plan::population::{Members, Population},
    worker_protocol::{LoadModel, Outcome},
};
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

pub(crate) struct DrivenWorker {
    jobs: Option<SyncSender<Command>>,
    results: Receiver<Result<Box<Outcome>, LabError>>,
    thread: Option<JoinHandle<()>>,
    body_bytes: usize,
    lag_max: Duration,
}

struct Command {
    title: String,
    model: LoadModel,
    body_bytes: usize,
    server: ServerProcesses,
}

impl DrivenWorker {
    pub(crate) fn open(
        driver: Arc<Driver>,
        target: DriverTarget,
        population: &Population,
        client_core: Option<usize>,
        lag_max: Duration,
    ) -> Result<Self, LabError> {
        let (audience, receivers, senders, texts) = match population.members {
            Members::Conversation(group, texts) => (Audience::Everybody, group.online, group.senders, texts),
            Members::Pairs(spec, texts) if spec.are_open => (Audience::Pairs, spec.pairs, spec.senders, texts),
            _ => {
                return Err(LabError::Usage(
                    "a driver loads groups, official accounts and direct conversations".into(),
                ));
            }
        };
        let clients = DriverClients { audience, receivers, senders, pipeline: texts.pipeline };
        let core = client_core.unwrap_or_else(process::last_core);
        let is_pinned = !population.background;
        let (jobs, inbox) = sync_channel::<Command>(1);
        let (tell, results) = sync_channel(1);
        let thread = std::thread::Builder::new().name("driven".into()).spawn(move || {
            let opened = if is_pinned { process::pin_to_core(core).map_err(LabError::from) } else { Ok(()) };
            let opened = opened.and_then(|()| DriverClient::open(driver, &target, clients));
            let mut client = match opened {
                Ok(client) => client,
                Err(error) => return drop(tell.send(Err(error))),
            };
            if tell.send(Ok(Box::default())).is_err() {
                return;
            }
            loop {
                let done = match inbox.try_recv() {
                    Ok(Command { title, model, body_bytes, server }) => {
                        let outcome = client.run(&title, &model, body_bytes, server);
                        tell.send(outcome.map(Box::new)).map_err(|_| ())
                    }
                    Err(TryRecvError::Disconnected) => Err(()),
                    // What happens between two phases is told when the next one is to begin.
                    Err(TryRecvError::Empty) => client.idle().map_err(|error| drop(tell.send(Err(error)))),
                };
                if done.is_err() {
                    return;
                }
            }
        })?;
        let worker =
            DrivenWorker { jobs: Some(jobs), results, thread: Some(thread), body_bytes: texts.body_bytes, lag_max };
        worker.result()?;
        Ok(worker)
    }

    fn result(&self) -> Result<Outcome, LabError> {
        match self.results.recv() {
            Ok(outcome) => outcome.map(|outcome| *outcome),
            Err(_) => Err(LabError::Worker("of the driver has ended".into())),
        }
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let model = messages::model_of(job.load);
        let (title, server) = (job.title.clone(), job.server.clone());
        let command = Command { title, model, body_bytes: self.body_bytes, server };
        if let Some(jobs) = &self.jobs {
            // A thread that has ended tells why.
            let _ = jobs.send(command);
        }
        let outcome = Outcome { lag_max_ms: self.lag_max.as_secs_f64() * 1e3, ..self.result()? };
        Ok(WorkResult { trouble: messages::trouble_of(&outcome, false), measured: outcome.measured(&job.title) })
    }
}

impl Drop for DrivenWorker {
    fn drop(&mut self) {
        // The thread ends when nobody can tell it anything more.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
