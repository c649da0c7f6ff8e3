//! Pushes to all devices of a population, which stay bound while the phase lasts.

use super::{
    Job, Surroundings, WorkResult,
    figures::{Figures, ServerUse},
};
use crate::{
    LabError,
    devices::{
        args::{DeviceArgs, DeviceProtocol, Gateways},
        fixture::DeviceFixture,
        output,
        push_round::PushRound,
    },
    interrupt,
    live::{LiveBlock, WorkLength},
    options::{Rate, TargetArgs},
    process::monotonic_ns,
    rate_profile::PlannedTimes,
    result::Verdict,
    scenario::{plan::phase::Load, trouble::Trouble},
};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Connections between begun and bound.
const UNDER_WAY: usize = 128;
const HEARTBEAT: Duration = Duration::from_secs(60);
const BOUND_WITHIN: Duration = Duration::from_secs(300);

pub(crate) struct PushWorker {
    fixture: DeviceFixture,
    patience: Duration,
    metrics_address: SocketAddr,
    /// Rounds of all phases so far: each has a number of its own.
    rounds: usize,
}

impl PushWorker {
    pub(crate) fn open(around: &Surroundings<'_>, devices: usize, over_websocket: bool) -> Result<Self, LabError> {
        let (api_key, token_key) = around.target.keys();
        let urls: Vec<String> = around.target.addresses().iter().map(|address| format!("http://{address}")).collect();
        let args = DeviceArgs {
            target: TargetArgs {
                url: Some(urls.join(",")),
                api_key: Some(api_key.to_owned()),
                token_key: Some(token_key.to_owned()),
                ..around.args.clone()
            },
            devices,
            via: if over_websocket { DeviceProtocol::Ws } else { DeviceProtocol::Miop },
            listeners: around.addresses(over_websocket)?,
            certificate: None,
            gateways: Gateways::Count(0),
            clients: None,
            rate: Rate::Max,
            under_way: UNDER_WAY,
            heartbeat: HEARTBEAT,
            within: BOUND_WITHIN,
            server_descriptors: None,
            settings: Vec::new(),
        };
        let mut fixture = DeviceFixture::set_up(&args)?;
        let ramp_up = fixture.connect(&args)?;
        if ramp_up.counts.live != devices as u64 {
            return Err(LabError::Server(format!("bound {} of {devices} devices", ramp_up.counts.live)));
        }
        let (patience, metrics_address) = (around.args.patience, around.target.address());
        Ok(PushWorker { fixture, patience, metrics_address, rounds: 0 })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let used = ServerUse::begin(job.server.clone(), Some(self.metrics_address));
        let (start, start_ns) = (Instant::now(), monotonic_ns());
        let live = LiveBlock::begin(&job.title, WorkLength::Unknown);
        let mut rounds = Vec::new();
        let mut late_ms: f64 = 0.0;
        match job.load {
            Load::Rounds { rounds: count, pause } => {
                for number in 0..*count {
                    if interrupt::requested() {
                        break;
                    }
                    if number > 0 {
                        std::thread::sleep(*pause);
                    }
                    rounds.push(self.round()?);
                    live.note(format!("{} pushes", rounds.len()));
                }
            }
            Load::Planned(profile) => {
                let times = PlannedTimes::of(profile);
                for due_ns in (0..).map_while(|number| times.due(number)) {
                    if interrupt::requested() {
                        break;
                    }
                    std::thread::sleep(Duration::from_nanos((start_ns + due_ns).saturating_sub(monotonic_ns())));
                    late_ms = late_ms.max(monotonic_ns().saturating_sub(start_ns + due_ns) as f64 / 1e6);
                    rounds.push(self.round()?);
                    live.note(format!("{} pushes", rounds.len()));
                }
            }
            _ => return Err(LabError::Usage("devices are pushed to in rounds, or at a planned rate".into())),
        }
        let seconds = start.elapsed().as_secs_f64();
        let end = self.fixture.settle(self.patience)?;
        rounds.iter_mut().for_each(|round| round.settle(&end));
        let mut figures = Figures {
            title: job.title.clone(),
            planned: rounds.len() as u64,
            answers: rounds.iter().map(|round| round.got.devices).sum(),
            latency: end.push.percentiles(),
            seconds,
            problems: end.problems.clone(),
            // How late a push was asked for stands apart.
            lag_max_ms: f64::INFINITY,
            ..Figures::default()
        };
        used.end(&mut figures);
        let mut measured = figures.measured("pushes").set("pushes", &rounds).set("latest_push_ms", late_ms);
        let checks = rounds.iter().map(PushRound::check);
        for check in checks.chain([output::check_bodies(&end), output::check_heartbeats(&end)]) {
            measured = measured.check(check);
        }
        for round in &rounds {
            measured = measured.remark(round.in_words());
        }
        let failed = measured.verdict() == Verdict::Failed;
        let trouble = failed.then(|| Trouble::Balance("a push did not reach every device once".into()));
        Ok(WorkResult { trouble, measured })
    }

    fn round(&mut self) -> Result<PushRound, LabError> {
        let round = PushRound::run(&mut self.fixture, self.rounds, self.patience);
        self.rounds += 1;
        round
    }
}
