//! The faults of a scenario: what happens to the server, and when.

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
    pub(crate) kind: FaultKind,
    /// How long the fault lasts before it is reverted.
    pub(crate) lasts: Duration,
    /// The node that it happens to.
    pub(crate) node: usize,
}

/// How long a fault lasts unless the file says so.
const LASTS: Duration = Duration::from_secs(2);
/// What can happen to a server by itself.
const OF_ONE_SERVER: [FaultKind; 3] = [FaultKind::NodeKilled, FaultKind::NodeRestarted, FaultKind::NodeFrozen];

fn name(kind: FaultKind) -> String {
    kind.to_possible_value().map_or_else(String::new, |value| format!("`{}`", value.get_name()))
}

impl Fault {
    /// `nodes`: of a cluster that the scenario starts; unset: one server of its own.
    pub(crate) fn of(written: &Spanned<FaultFile>, phases: &[String], nodes: Option<usize>) -> Result<Self, Mistake> {
        let file = written.get_ref();
        let offered: Vec<FaultKind> = FaultKind::value_variants()
            .iter()
            .copied()
            // Partitions take root and network namespaces, rollbacks a former program: `bench chaos` makes them.
            .filter(|kind| match nodes {
                Some(_) => !kind.needs_partitions() && !kind.needs_former_program(),
                None => OF_ONE_SERVER.contains(kind),
            })
            .collect();
        let known = FaultKind::from_str(file.kind.get_ref(), false).ok();
        let Some(kind) = known.filter(|kind| offered.contains(kind)) else {
            let offered: Vec<String> = offered.into_iter().map(name).collect();
            let what = match known {
                Some(_) => "cannot happen to this server",
                None => "is not a kind of fault",
            };
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
        if let Some(written) = &file.node
            && node >= nodes.unwrap_or(1)
        {
            return Err(Mistake::at(written.span(), format!("there are {} nodes, the first is 0", nodes.unwrap_or(1))));
        }
        let lasts = file.lasts.as_ref().map_or(LASTS, |lasts| lasts.get_ref().0);
        Ok(Fault { phase, at: file.at.get_ref().0, kind, lasts, node })
    }

    /// Whether the server's process ends, and another takes its place.
    pub(crate) fn ends_a_process(&self) -> bool {
        matches!(self.kind, FaultKind::NodeKilled | FaultKind::NodeRestarted)
    }

    pub(crate) fn ends_at(&self) -> Duration {
        self.at + self.lasts
    }
}
