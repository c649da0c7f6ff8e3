//! Messages to a group, an official account or direct conversations, by a load client of their own.

use super::{Job, Surroundings, WorkResult};
use crate::{
    LabError,
    message_clients::{GroupSpec, MessageClients, PairSpec},
    result::{Check, RunResult},
    scenario::{
        plan::{
            phase::Load,
            population::{Members, Population, Texts},
        },
        trouble::Trouble,
    },
    server::Target,
    worker_protocol::{LoadModel, Outcome},
};
use std::time::Duration;

/// A population's conversations, with the load client that sends to them and receives from them.
pub(crate) struct MessageWorker {
    clients: MessageClients,
    texts: Texts,
    /// It only keeps the server busy.
    is_background: bool,
}

impl MessageWorker {
    pub(crate) fn open(around: &Surroundings<'_>, population: &Population) -> Result<Self, LabError> {
        let Surroundings { target, args, has_faults: server_returns, .. } = *around;
        let low_priority = population.background;
        let (clients, texts) = match &population.members {
            Members::Conversation(spec, texts) => {
                let spec = GroupSpec { low_priority, server_returns, ..*spec };
                (MessageClients::group(target, args, &spec)?, *texts)
            }
            Members::Pairs(spec, texts) => {
                let spec = PairSpec { low_priority, server_returns, ..*spec };
                (MessageClients::pairs(target, args, &spec)?, *texts)
            }
            Members::Chat(chat) => {
                let clients = MessageClients::chat(target, args, chat)?;
                (clients, Texts { body_bytes: 1, pipeline: 1 })
            }
            _ => return Err(LabError::Usage("this population sends no messages".into())),
        };
        clients.watch(target, around.offline_push)?;
        Ok(MessageWorker { clients, texts, is_background: population.background })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let MessageWorker { clients, texts, is_background } = self;
        clients.load.follow_server(job.server.clone());
        let phase = clients.phase(model_of(job.load), texts.body_bytes, job.batch, texts.pipeline);
        let mut outcome = clients.load.run(&job.title, phase)?;
        if job.server_is_replaced {
            // The process whose time was measured is gone.
            (outcome.server_cpu_seconds, outcome.server_rss_bytes) = (None, None);
        }
        let mut measured = outcome.measured(&job.title);
        if let Some(all) = clients.messages_of_chat() {
            let committed = outcome.committed;
            let check = Check::of_server("answers", "every message of the chat is committed", committed == all);
            measured = measured.check(check.value(format!("{committed} of {all}")));
        }
        if *is_background {
            measured = measured.may_be_late();
        }
        if !job.may_be_refused {
            let refused = outcome.refused;
            let check = Check::of_server("answers", "no message is refused", refused == 0);
            measured = measured.check(check.value(format!("refused {refused}")));
        }
        Ok(WorkResult { trouble: trouble_of(&outcome, clients.outlives_faults), measured })
    }

    /// What can be asked only when all work is done, while the server runs.
    pub(crate) fn conclude(&self, target: &Target, result: &mut RunResult) -> Result<(), LabError> {
        self.clients.check_receipts(target, result)
    }
}

/// When the messages of a load are due.
pub(crate) fn model_of(load: &Load) -> LoadModel {
    let milliseconds = |time: Duration| time.as_millis() as u64;
    match load {
        Load::Planned(profile) => LoadModel::OpenLoop { profile: profile.clone() },
        Load::Max { window, lasts } => LoadModel::ClosedLoop { window: *window, duration_ms: milliseconds(*lasts) },
        Load::Replay { speed: None, window } => LoadModel::ClosedLoopOnce { window: *window },
        Load::Replay { speed: Some(speed), .. } => LoadModel::Recorded { speed: *speed },
        Load::Rounds { rounds, pause, .. } => LoadModel::Rounds { rounds: *rounds, pause_ms: milliseconds(*pause) },
        // A plan has these for other workers, and for loads that are planned when their rate is known.
        _ => LoadModel::Rounds { rounds: 1, pause_ms: 0 },
    }
}

/// What a search takes for the end.
pub(super) fn trouble_of(outcome: &Outcome, outlives_faults: bool) -> Option<Trouble> {
    if !outcome.balances() {
        return Some(Trouble::Balance(outcome.problems.first().cloned().unwrap_or_default()));
    }
    if outcome.reconnects > 0 && !outlives_faults {
        return Some(Trouble::LostConnections(outcome.reconnects));
    }
    if outcome.refused > 0 {
        let codes = outcome.refused_by_code.iter().map(|(code, count)| format!("{code} {count}"));
        return Some(Trouble::Refusals(codes.collect::<Vec<_>>().join(", ")));
    }
    outcome
        .lab_lagged()
        .then(|| Trouble::Lab(format!("sent {:.0} ms late at the 99th percentile", outcome.lateness.p99)))
}
