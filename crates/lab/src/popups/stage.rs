//! What every run of the mix begins with: a server on a core of its own, the client on another.

use super::{
    catalogue::Catalogue,
    drive::{Connections, Pace, Stretch, Traffic, Until},
    metrics::Metrics,
    people::People,
};
use crate::{
    LabError, process,
    server::{Check, Target},
};
use serde::Serialize;
use std::time::Duration;
use tidings_client::http::HttpClient;

/// A stretch of load with what it cost the server.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Measured {
    pub(crate) stretch: Stretch,
    pub(crate) server_cpu_seconds: Option<f64>,
    pub(crate) server_rss_bytes: Option<u64>,
    pub(crate) metrics: Metrics,
}

impl Measured {
    /// The share of its core that the server used.
    pub(crate) fn server_busy(&self) -> Option<f64> {
        self.server_cpu_seconds.map(|seconds| seconds / self.stretch.seconds.max(1e-9))
    }

    pub(crate) fn store_busy(&self) -> f64 {
        self.metrics.store_busy_seconds / self.stretch.seconds.max(1e-9)
    }

    pub(crate) fn lab_is_the_limit(&self, pace: Pace) -> bool {
        self.stretch.lab_is_the_limit(pace, self.server_busy())
    }
}

/// A server, and connections to it.
pub(crate) struct Stage {
    pub(crate) target: Target,
    pub(crate) connections: Connections,
    pub(crate) tag: String,
    http: HttpClient,
    client_core: usize,
}

pub(crate) struct Shape {
    pub(crate) users: u32,
    pub(crate) popups: usize,
    pub(crate) connections: usize,
    pub(crate) gap_s: u64,
    pub(crate) patience: Duration,
    pub(crate) client_core: usize,
}

impl Stage {
    /// Configures the popups; these and the users are handed out, for traffic to borrow.
    pub(crate) fn set(target: Target, shape: &Shape) -> Result<(Self, Catalogue, People), LabError> {
        let tag = process::run_tag();
        // Short ids, as most apps have; those of two runs differ.
        let people = People::new(&format!("u{}-", &tag[tag.len().saturating_sub(4)..]));
        let catalogue = Catalogue::write(&target, shape.popups, shape.users, shape.gap_s, |user| people.id(user))?;
        let connections = Connections::open(target.address(), shape.connections, shape.patience)?;
        let http = target.http();
        let stage = Stage { target, connections, tag, http, client_core: shape.client_core };
        Ok((stage, catalogue, people))
    }

    pub(crate) fn drive(&mut self, traffic: &mut impl Traffic, pace: Pace, until: Until) -> Result<Measured, LabError> {
        let before = Metrics::read(&mut self.http)?;
        let pid = self.target.pid();
        let mut measured = measure(&mut self.connections, pid, self.client_core, traffic, pace, until)?;
        measured.metrics = Metrics::read(&mut self.http)?.since(&before);
        Ok(measured)
    }

    pub(crate) fn finish(self) -> Result<Option<Check>, LabError> {
        drop(self.connections);
        self.target.finish()
    }

    pub(crate) fn http(&mut self) -> &mut HttpClient {
        &mut self.http
    }
}

/// Drives with the client on its core, and looks at what the process on the other side uses.
pub(crate) fn measure(
    connections: &mut Connections,
    pid: Option<u32>,
    client_core: usize,
    traffic: &mut impl Traffic,
    pace: Pace,
    until: Until,
) -> Result<Measured, LabError> {
    let before = pid.map(process::cpu_seconds);
    let stretch = process::on_core(client_core, || connections.drive(traffic, pace, until))??;
    Ok(Measured {
        stretch,
        server_cpu_seconds: pid.zip(before).map(|(pid, before)| process::cpu_seconds(pid) - before),
        server_rss_bytes: pid.map(process::resident_bytes),
        metrics: Metrics::default(),
    })
}
