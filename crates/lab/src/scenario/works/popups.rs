//! Popup decisions and events of a home page, over connections that are kept or with one connection per request.

use super::{Job, Surroundings, WorkResult};
use crate::{
    LabError,
    client_engine::http::ConnectionUse,
    options::TargetArgs,
    popups::{
        balance::Balance,
        catalogue::Catalogue,
        fixture::{FixtureSpec, Measurement, PopupFixture},
        load_loop::{LoadModel, StopCondition},
        mix::{HomePageMix, MixConfig, MixPhase},
        output::checks_of,
        user_profiles::UserProfiles,
    },
    process,
    result::Verdict,
    scenario::{plan::phase::Load, trouble::Trouble},
    server::Target,
};
use std::time::Duration;

/// Between two popups of a user: the shortest that the mix allows.
const GAP_S: u64 = 3;
/// Users who are due and nevertheless told to come back, of those asked for, at most.
const NOTHING_SHARE: f64 = 0.01;

pub(crate) struct PopupWorker {
    fixture: PopupFixture,
    catalogue: Catalogue,
    profiles: UserProfiles,
    users: u32,
    connections: usize,
    connection_use: ConnectionUse,
    patience: Duration,
}

impl PopupWorker {
    pub(crate) fn open(
        around: &Surroundings<'_>,
        users: u32,
        popups: usize,
        connections: usize,
        keep_alive: bool,
    ) -> Result<Self, LabError> {
        let (api_key, token_key) = around.target.keys();
        let TargetArgs { client_core, patience, .. } = *around.args;
        let target = Target::Running {
            addresses: around.target.addresses(),
            api_key: api_key.to_owned(),
            token_key: token_key.to_owned(),
        };
        let connection_use = if keep_alive { ConnectionUse::Kept } else { ConnectionUse::OneRequest };
        let spec = FixtureSpec {
            users,
            popups,
            connections,
            gap_s: GAP_S,
            patience,
            client_core: client_core.unwrap_or_else(process::last_core),
            connection_use,
        };
        let (fixture, catalogue, profiles) = PopupFixture::set_up(target, &spec)?;
        Ok(PopupWorker { fixture, catalogue, profiles, users, connections, connection_use, patience })
    }

    /// Removes the popups: another population of popup users has its own.
    pub(crate) fn close(mut self) -> Result<(), LabError> {
        self.catalogue.remove(self.fixture.http())
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let (model, lasts) = match job.load {
            Load::Max { lasts, .. } => (LoadModel::ClosedLoop, *lasts),
            Load::Planned(profile) => {
                (LoadModel::OpenLoop(profile.first()), Duration::from_secs_f64(profile.seconds()))
            }
            _ => return Err(LabError::Usage("popups are asked for at a constant rate, or as fast as it goes".into())),
        };
        let (api_key, tag) = (self.fixture.target.keys().0.to_owned(), self.fixture.tag.clone());
        let setting = MixConfig {
            catalogue: &self.catalogue,
            profiles: &self.profiles,
            api_key: &api_key,
            users: self.users,
            gap_s: GAP_S,
            connections: self.connections,
            tag: &tag,
            connection_use: self.connection_use,
        };
        let mut mix = HomePageMix::new(&setting, MixPhase::Mix);
        let before = job.server.cpu_seconds();
        let mut measured = self.fixture.run_load(&job.title, &mut mix, model, StopCondition::Elapsed(lasts))?;
        measured.server_cpu_seconds = job.server.cpu_seconds().zip(before).map(|(now, before)| now - before);
        measured.server_rss_bytes = job.server.resident_bytes();
        let balance = Balance::reconcile(self.fixture.http(), &self.catalogue, &mix.counts, self.patience)?;
        let counts = mix.answer_counts.clone();
        let mut figures = measured
            .measured(&job.title, Some(&counts), model)
            .set("balance", &balance)
            .set("problems", &balance.problems);
        for check in checks_of(&counts, &balance, NOTHING_SHARE) {
            figures = figures.check(check);
        }
        Ok(WorkResult { trouble: trouble_of(figures.verdict(), &measured), measured: figures })
    }
}

fn trouble_of(verdict: Verdict, measured: &Measurement) -> Option<Trouble> {
    match verdict {
        Verdict::Failed => Some(Trouble::Balance("an answer was wrong".into())),
        Verdict::LabFellBehind => Some(Trouble::Lab("the client's core is full, or it sent late".into())),
        _ if measured.stretch.broken > 0 => Some(Trouble::LostConnections(measured.stretch.broken)),
        _ if measured.stretch.unsent > 0 => {
            Some(Trouble::Refusals(format!("{} requests found no free connection", measured.stretch.unsent)))
        }
        _ => None,
    }
}
