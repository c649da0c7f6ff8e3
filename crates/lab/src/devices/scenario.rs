//! `bench scenario`: the four stages in which connection-holding services are tested, each a run with fitting options.

use super::args::{ConnectArgs, ExceptionsArgs, Scenario, ScenarioArgs, StormArgs};
use super::{connect, exceptions, storm};
use crate::{LabError, Verdict};
use std::{path::PathBuf, time::Duration};

/// Ten minutes, as long as a carrier's translation of addresses may forget an idle connection.
const STABLE_FOR: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ScenarioArgs) -> Result<Verdict, LabError> {
    let devices = |usual| args.devices.or_usual(usual);
    match args.scenario {
        // As many as fit: the number at which something gives way.
        Scenario::LinkLimit => connect::run(&ConnectArgs {
            devices: devices(1_000_000),
            hold: args.hold.unwrap_or(10 * SECOND),
            push: false,
            known: false,
        }),
        // They stay, each heartbeat is answered, and a push still reaches all.
        Scenario::Stability => connect::run(&ConnectArgs {
            devices: devices(100_000),
            hold: args.hold.unwrap_or(STABLE_FOR),
            push: true,
            known: false,
        }),
        // They come all at once.
        Scenario::Concurrency => storm::run(&StormArgs { devices: devices(100_000), rounds: 3, no_bare: false }),
        // They misbehave.
        Scenario::Exceptions => exceptions::run(&ExceptionsArgs {
            devices: devices(10_000),
            silent: 1_000,
            descriptors: 1_024,
            vectors: PathBuf::from(exceptions::VECTORS),
        }),
    }
}
