//! The faults of a scenario: what happens to the server, and when.

use super::Server;
use crate::{chaos::FaultKind, scenario::file::FaultFile, toml_file::Mistake};
use clap::ValueEnum;
use std::time::Duration;
use toml::Spanned;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    /// The number of the phase.
    pub(crate) phase: usize,
    /// After the beginning of the phase.
    pub(crate) at: Duration,
    pub(crate) kind: Happening,
    /// How long the fault lasts before it is reverted.
    pub(crate) lasts: Duration,
    /// The node or the gateway that it happens to.
    pub(crate) node: usize,
}

/// How long a fault lasts unless the file says so.
const LASTS: Duration = Duration::from_secs(2);
/// What can happen to a server by itself.
const OF_ONE_SERVER: [FaultKind; 3] = [FaultKind::NodeKilled, FaultKind::NodeRestarted, FaultKind::NodeFrozen];

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    /// To a server, or to what stands around a cluster.
    Server(FaultKind),
    /// A gateway is killed (`kill -9`), and stays dead.
    GatewayKilled,
}

impl Happening {
    pub(crate) fn name(self) -> String {
        match self {
            Happening::Server(kind) => kind.name(),
            Happening::GatewayKilled => "gateway-killed".to_owned(),
        }
    }

    /// What can happen to this server.
    fn all_of(server: &Server) -> Vec<Self> {
        // Partitions take root and network namespaces, rollbacks a former program: `bench chaos` makes them.
        let can_happen = |kind: &FaultKind| match server.nodes {
            Some(_) => !kind.needs_partitions() && !kind.needs_former_program(),
            None => OF_ONE_SERVER.contains(kind),
        };
        let of_gateways = (server.gateways > 1).then_some(Happening::GatewayKilled);
        let of_server = FaultKind::value_variants().iter().copied().filter(can_happen).map(Happening::Server);
        of_server.chain(of_gateways).collect()
    }
}

impl Fault {
    pub(crate) fn of(written: &Spanned<FaultFile>, phases: &[String], server: &Server) -> Result<Self, Mistake> {
        let file = written.get_ref();
        let offered = Happening::all_of(server);
        let Some(kind) = offered.iter().copied().find(|kind| kind.name() == *file.kind.get_ref()) else {
            let offered: Vec<String> = offered.into_iter().map(|kind| format!("`{}`", kind.name())).collect();
            let is_known = FaultKind::from_str(file.kind.get_ref(), false).is_ok()
                || *file.kind.get_ref() == Happening::GatewayKilled.name();
            let what = if is_known { "cannot happen to this server" } else { "is not a kind of fault" };
            let what = format!("`{}` {what}; there are {}", file.kind.get_ref(), offered.join(", "));
            return Err(Mistake::at(file.kind.span(), what));
        };
        let phase = match (&file.phase, phases) {
            (Some(name), phases) => phases
                .iter()
                .position(|known| known == name.get_ref())
                .ok_or_else(|| Mistake::at(name.span(), format!("there is no phase `{}`", name.get_ref())))?,
            (None, [_]) => 0,
            (None, _) => return Err(Mistake::at(written.span(), "a fault needs `phase` where there is more than one")),
        };
        let node = file.node.as_ref().map_or(0, |node| *node.get_ref());
        let nodes = if kind == Happening::GatewayKilled { server.gateways } else { server.nodes.unwrap_or(1) };
        if let Some(written) = &file.node
            && node >= nodes
        {
            return Err(Mistake::at(written.span(), format!("there are {nodes} nodes, the first is 0")));
        }
        let lasts = file.lasts.as_ref().map_or(LASTS, |lasts| lasts.get_ref().0);
        Ok(Fault { phase, at: file.at.get_ref().0, kind, lasts, node })
    }

    /// Whether the server's process ends, and another takes its place.
    pub(crate) fn ends_a_process(&self) -> bool {
        matches!(self.kind, Happening::Server(FaultKind::NodeKilled | FaultKind::NodeRestarted))
    }

    pub(crate) fn ends_at(&self) -> Duration {
        self.at + self.lasts
    }
}
