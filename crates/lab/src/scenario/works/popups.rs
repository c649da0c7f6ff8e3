//! Popup decisions and events of a home page, over connections that are kept or with one connection per request.

use super::{Job, Surroundings, WorkResult};
use crate::{
    LabError,
    live::LiveBlock,
    popups::{
        balance::Balance,
        catalogue::Catalogue,
        load_loop::{Connections, LoadModel},
        measurement::{PopupLoad, checks_of},
        metrics::ServerMetrics,
        mix::{HomePageMix, MixConfig, MixPhase},
        user_profiles::UserProfiles,
    },
    process,
    result::Verdict,
    scenario::{
        plan::{phase::Load, population::PopupUsers},
        trouble::Trouble,
    },
};
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

/// Users of popups, and what they were answered in all phases so far.
pub(crate) struct PopupWorker {
    users: PopupUsers,
    mix: HomePageMix,
    connections: Connections,
    http: HttpClient,
    client_core: usize,
    patience: Duration,
}

impl PopupWorker {
    /// Configures the popups.
    pub(crate) fn open(around: &Surroundings<'_>, users: PopupUsers) -> Result<Self, LabError> {
        static POPULATIONS: AtomicU32 = AtomicU32::new(0);
        let (target, args) = (around.target, around.args);
        let PopupUsers { connections, connection_use, gap_s, .. } = users;
        let tag = process::run_tag();
        // Short user ids, as most apps have; they differ between runs, and between populations of a run: who was shown a popup a moment
        // ago is not due.
        let population = POPULATIONS.fetch_add(1, Ordering::Relaxed);
        let profiles = UserProfiles::new(&format!("u{}{population:x}-", &tag[tag.len().saturating_sub(4)..]));
        let catalogue = Catalogue::write(target, users.popups, users.users, gap_s, |user| profiles.id(user))?;
        let api_key = target.keys().0;
        let setting = MixConfig { api_key, users: users.users, gap_s, connections, tag, connection_use };
        Ok(PopupWorker {
            mix: HomePageMix::new(catalogue, profiles, setting, MixPhase::Mix),
            connections: Connections::open(target.address(), connections, args.patience, connection_use)?,
            http: target.http(),
            client_core: args.client_core.unwrap_or_else(process::last_core),
            patience: args.patience,
            users,
        })
    }

    /// Removes the popups: another population of popup users has its own.
    pub(crate) fn close(mut self) -> Result<(), LabError> {
        self.mix.catalogue.remove(&mut self.http)
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let (phase, model) = match job.load {
            Load::Max { lasts, .. } => (MixPhase::Mix, LoadModel::ClosedLoop(*lasts)),
            Load::Planned(profile) => (MixPhase::Mix, LoadModel::OpenLoop(profile)),
            // A round decides for each user once.
            Load::Rounds { .. } => (MixPhase::FirstContact, LoadModel::Exhausting),
            _ => return Err(LabError::Usage("popups are asked for at a rate, or in one round".into())),
        };
        let PopupWorker { mix, connections, http, .. } = self;
        mix.phase = phase;
        let (began, counts_before) = (Instant::now(), mix.answer_counts.clone());
        let before = ServerMetrics::read(http)?;
        let (core, server) = (self.client_core, &job.server);
        let mut load = PopupLoad::run(&job.title, connections, server, core, mix, model)?;
        load.metrics = ServerMetrics::read(http)?.since(&before);
        let counts = mix.answer_counts.since(&counts_before);
        let mut measured = load.measured(&job.title, Some(&counts));
        if phase == MixPhase::FirstContact {
            // Nothing is measured in time, and whatever is next finds the first users due again.
            measured = measured.may_be_late();
            mix.phase = MixPhase::Mix;
            let due_again = Duration::from_secs(self.users.gap_s + 1).saturating_sub(began.elapsed());
            let model = LoadModel::ClosedLoop(due_again);
            process::run_on_core(core, || connections.run(mix, model, &mut LiveBlock::hidden()))??;
        }
        let balance = Balance::reconcile(http, &mix.catalogue, &mix.counts, self.patience)?;
        let problems: Vec<&String> = balance.problems.iter().chain(&mix.answer_counts.problems).collect();
        measured = measured.set("balance", &balance).set("problems", problems).set("whole_run", &mix.answer_counts);
        // All answers so far: one that was wrong between two phases is in none of them.
        for check in checks_of(&mix.answer_counts, &balance, self.users.nothing_share) {
            measured = measured.check(check);
        }
        Ok(WorkResult { trouble: trouble_of(measured.verdict(), &load), measured })
    }
}

fn trouble_of(verdict: Verdict, load: &PopupLoad) -> Option<Trouble> {
    let (broken, unsent) = (load.stretch.broken, load.stretch.unsent);
    match verdict {
        Verdict::Failed => Some(Trouble::Balance("an answer was wrong".into())),
        Verdict::LabFellBehind => Some(Trouble::Lab("the client's core is full, or it sent late".into())),
        _ if broken > 0 => Some(Trouble::LostConnections(broken)),
        _ if unsent > 0 => Some(Trouble::Refusals(format!("{unsent} requests found no free connection"))),
        _ => None,
    }
}
