//! `bench scenario`: the four usual tests of services that hold connections, each a bench with fitting options.

use super::args::{ConnectArgs, ExceptionsArgs, Scenario, ScenarioArgs, StormArgs};
use super::{connect, exceptions, invalid_frames, storm};
use crate::{Finished, LabError};
use std::{path::PathBuf, time::Duration};

/// Ten minutes: within that time a carrier's NAT may drop idle connections.
const STABLE_FOR: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ScenarioArgs) -> Result<Finished, LabError> {
    let devices = |usual| args.devices.with_default_devices(usual);
    match args.scenario {
        // As many connections as possible, to find the limit.
        Scenario::LinkLimit => connect::run(&ConnectArgs {
            devices: devices(1_000_000),
            hold: args.hold.unwrap_or(10 * SECOND),
            push: false,
            known: false,
        }),
        // Connections that stay: each heartbeat is answered, and a push reaches all at the end.
        Scenario::Stability => connect::run(&ConnectArgs {
            devices: devices(100_000),
            hold: args.hold.unwrap_or(STABLE_FOR),
            push: true,
            known: false,
        }),
        // Connections that are opened all at once.
        Scenario::Concurrency => storm::run(&StormArgs { devices: devices(100_000), rounds: 3, no_bare: false }),
        // Connections that violate the protocol.
        Scenario::Exceptions => exceptions::run(&ExceptionsArgs {
            devices: devices(10_000),
            silent: 1_000,
            descriptors: 1_024,
            vectors: PathBuf::from(invalid_frames::VECTORS),
        }),
    }
}
