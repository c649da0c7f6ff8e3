//! Popup decisions and events of a home page, over connections that are kept or with one connection per request.

use super::{Job, Surroundings, WorkResult};
use crate::{
    LabError, Verdict,
    client_engine::http::ConnectionUse,
    options::TargetArgs,
    popups::{
        answer_verifier::AnswerCounts,
        balance::Balance,
        catalogue::Catalogue,
        fixture::{FixtureSpec, Measurement, PopupFixture},
        load_loop::{LoadModel, StopCondition},
        mix::{HomePageMix, MixConfig, MixPhase},
        user_profiles::UserProfiles,
    },
    process,
    scenario::{plan::phase::Load, trouble::Trouble},
    server::Target,
};
use serde_json::json;
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
        let limited = measured.lab_is_the_limit(model);
        let counts = mix.answer_counts.clone();
        let verdict = match verdict_of(&counts, &balance) {
            Verdict::Passed if limited => Verdict::LabFellBehind,
            verdict => verdict,
        };
        let trouble = trouble_of(verdict, &measured);
        let value = json!({
            "title": job.title, "stretch": measured.stretch, "server_cpu_seconds": measured.server_cpu_seconds,
            "server_rss_bytes": measured.server_rss_bytes, "samples": measured.samples, "metrics": measured.metrics, "tally": counts,
            "balance": balance,
        });
        let print = move |title: &str| {
            let stretch = &measured.stretch;
            let p = &stretch.latency;
            println!("{title}");
            println!(
                "  popups       {} answers, {:.0}/s over {:.2} s  broken {}  unsent {}  wrong {}  due but nothing {} of {}",
                stretch.answers,
                stretch.per_second(),
                stretch.seconds,
                stretch.broken,
                stretch.unsent,
                balance.wrong,
                counts.due_but_nothing,
                counts.asked_due,
            );
            println!("  ms           p50 {:.2}  p99 {:.2}  p100 {:.2}", p.p50, p.p99, p.max);
        };
        Ok(WorkResult { verdict, trouble, figures: value, print: Box::new(print) })
    }
}

fn verdict_of(counts: &AnswerCounts, balance: &Balance) -> Verdict {
    let nothing = counts.due_but_nothing as f64 / (counts.asked_due as f64).max(1.0);
    if counts.is_clean() && balance.wrong == 0 && nothing <= NOTHING_SHARE { Verdict::Passed } else { Verdict::Failed }
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
