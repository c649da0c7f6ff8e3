//! Set-up of every run of the mix: a server on one core, the load client on another.

use super::{
    catalogue::Catalogue,
    load_loop::{Connections, LoadModel, LoadResult, StopCondition, TrafficSource},
    metrics::ServerMetrics,
    user_profiles::UserProfiles,
};
use crate::{
    LabError,
    client_engine::http::ConnectionUse,
    live::{LiveBlock, WorkLength},
    process,
    sampler::{Sampler, Samples, Watched},
    server::{StoreCheck, Target},
};
use serde::Serialize;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tidings_client::http::HttpClient;

/// The result of one phase of load, with its cost for the server.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Measurement {
    pub(crate) stretch: LoadResult,
    pub(crate) server_cpu_seconds: Option<f64>,
    pub(crate) server_rss_bytes: Option<u64>,
    pub(crate) metrics: ServerMetrics,
    pub(crate) samples: Samples,
}

impl Measurement {
    /// The share of its core that the server used.
    pub(crate) fn server_busy(&self) -> Option<f64> {
        self.server_cpu_seconds.map(|seconds| seconds / self.stretch.seconds.max(1e-9))
    }

    pub(crate) fn store_busy(&self) -> f64 {
        self.metrics.store_busy_seconds / self.stretch.seconds.max(1e-9)
    }

    pub(crate) fn lab_is_the_limit(&self, model: LoadModel) -> bool {
        self.stretch.lab_is_the_limit(model, self.server_busy())
    }
}

/// A server under test with configured popups, and connections to it.
pub(crate) struct PopupFixture {
    pub(crate) target: Target,
    pub(crate) connections: Connections,
    pub(crate) tag: String,
    http: HttpClient,
    client_core: usize,
}

pub(crate) struct FixtureSpec {
    pub(crate) users: u32,
    pub(crate) popups: usize,
    pub(crate) connections: usize,
    pub(crate) gap_s: u64,
    pub(crate) patience: Duration,
    pub(crate) client_core: usize,
    pub(crate) connection_use: ConnectionUse,
}

impl PopupFixture {
    /// Configures the popups; returns them and the users as well, for a traffic source to borrow.
    pub(crate) fn set_up(target: Target, spec: &FixtureSpec) -> Result<(Self, Catalogue, UserProfiles), LabError> {
        static POPULATIONS: AtomicU32 = AtomicU32::new(0);
        let tag = process::run_tag();
        // Short user ids, as most apps have; they differ between runs, and between populations of a run: who was shown a popup a moment
        // ago is not due.
        let population = POPULATIONS.fetch_add(1, Ordering::Relaxed);
        let profiles = UserProfiles::new(&format!("u{}{population:x}-", &tag[tag.len().saturating_sub(4)..]));
        let catalogue = Catalogue::write(&target, spec.popups, spec.users, spec.gap_s, |user| profiles.id(user))?;
        let connections = Connections::open(target.address(), spec.connections, spec.patience, spec.connection_use)?;
        let http = target.http();
        let fixture = PopupFixture { target, connections, tag, http, client_core: spec.client_core };
        Ok((fixture, catalogue, profiles))
    }

    pub(crate) fn run_load(
        &mut self,
        title: &str,
        traffic: &mut impl TrafficSource,
        model: LoadModel,
        until: StopCondition,
    ) -> Result<Measurement, LabError> {
        let before = ServerMetrics::read(&mut self.http)?;
        let pid = self.target.pid();
        let mut measured = measure(title, &mut self.connections, pid, self.client_core, traffic, model, until)?;
        measured.metrics = ServerMetrics::read(&mut self.http)?.since(&before);
        Ok(measured)
    }

    pub(crate) fn finish(self) -> Result<Option<StoreCheck>, LabError> {
        drop(self.connections);
        self.target.finish()
    }

    pub(crate) fn http(&mut self) -> &mut HttpClient {
        &mut self.http
    }
}

/// Runs load with the client on its core, and measures CPU time and memory of the server's process.
pub(crate) fn measure(
    title: &str,
    connections: &mut Connections,
    pid: Option<u32>,
    client_core: usize,
    traffic: &mut impl TrafficSource,
    model: LoadModel,
    until: StopCondition,
) -> Result<Measurement, LabError> {
    let before = pid.map(process::cpu_seconds);
    let mut live = LiveBlock::begin(
        title,
        match until {
            StopCondition::Elapsed(time) => WorkLength::Time(time),
            StopCondition::Exhausted => WorkLength::Unknown,
        },
    );
    let sampler = Sampler::start(Watched { server: pid.into(), ..Watched::default() });
    let stretch = process::run_on_core(client_core, || connections.run(traffic, model, until, &mut live))??;
    Ok(Measurement {
        stretch,
        server_cpu_seconds: pid.zip(before).map(|(pid, before)| process::cpu_seconds(pid) - before),
        server_rss_bytes: pid.map(process::resident_bytes),
        metrics: ServerMetrics::default(),
        samples: sampler.finish(),
    })
}
