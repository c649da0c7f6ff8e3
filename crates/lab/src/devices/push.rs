//! `bench push`: the time from a push's request to the last of many devices, with and without chat beside it.

use super::args::DevicePushArgs;
use super::{device_counts::PUSHES_MAX, fixture::DeviceFixture, output, push_round::PushRound};
use crate::{
    LabError,
    message_clients::{MessageClients, PairSpec},
    result::RunResult,
    worker_protocol::{LoadModel, Outcome},
};
use serde_json::json;
use std::time::Instant;

/// HTTP connections that send the chat messages.
const CHAT_CONNECTIONS: usize = 16;

/// The outcomes of direct messages: alone, and beside the pushes.
type ChatOutcomes = (Outcome, Outcome);

pub(crate) fn run(args: &DevicePushArgs) -> Result<RunResult, LabError> {
    if args.rounds == 0 || args.rounds > PUSHES_MAX {
        return Err(LabError::Usage(format!("--rounds must be 1 to {PUSHES_MAX}")));
    }
    let devices = &args.devices.with_default_devices(1_000);
    let mut fixture = DeviceFixture::set_up(devices)?;
    let ramp_up = fixture.connect(devices)?;
    let (server, clients) = (fixture.server.cpu_seconds(), fixture.clients.cpu_seconds());
    let (mut rounds, chat) = match args.beside_chat {
        None => (run_rounds(&mut fixture, args, Instant::now())?, None),
        Some(rate) => push_beside_chat(&mut fixture, args, rate)?,
    };
    let (server, clients) = (fixture.server.cpu_seconds() - server, fixture.clients.cpu_seconds() - clients);
    let end = fixture.settle(args.devices.target.patience)?;
    rounds.iter_mut().for_each(|round| round.settle(&end));
    let check = fixture.end()?;

    let mut result = RunResult::of("push");
    result.measure("ramp", ramp_up.measured(&format!("{} devices over {}", devices.devices, devices.via)));
    rounds.iter().for_each(|round| round.record(&mut result));
    let of_devices =
        json!({ "device_ms": end.push.percentiles(), "server_cpu_seconds": server, "client_cpu_seconds": clients });
    let heartbeats = output::measured_devices("pushes to all", &end, of_devices);
    result.measure("heartbeats", heartbeats.check(output::check_heartbeats(&end)).check(output::check_bodies(&end)));
    let chat = chat.map(|(alone, beside)| {
        json!({
            "alone": result.record(alone.measured("direct messages, no push")),
            "beside": result.record(beside.measured("direct messages beside the pushes")),
        })
    });
    result.store_check(check);
    result.set_all(json!({
        "via": args.devices.via, "rounds": rounds, "device_ms": end.push.percentiles(), "server_cpu_seconds": server,
        "client_cpu_seconds": clients, "chat": chat,
    }));
    Ok(result)
}

/// Runs `--rounds` rounds of pushes, and more until the time `until`.
fn run_rounds(fixture: &mut DeviceFixture, args: &DevicePushArgs, until: Instant) -> Result<Vec<PushRound>, LabError> {
    let mut rounds = Vec::new();
    while rounds.len() < args.rounds || (Instant::now() < until && rounds.len() < PUSHES_MAX) {
        let round = PushRound::run(fixture, rounds.len(), args.devices.target.patience)?;
        let failed = !round.check().is_met();
        rounds.push(round);
        if failed {
            break;
        }
        std::thread::sleep(args.pause);
    }
    Ok(rounds)
}

/// Runs the same chat load twice: alone, and with pushes to all devices for as long as it lasts.
fn push_beside_chat(
    fixture: &mut DeviceFixture,
    args: &DevicePushArgs,
    rate: f64,
) -> Result<(Vec<PushRound>, Option<ChatOutcomes>), LabError> {
    let target = &fixture.server.target;
    let pairs = PairSpec::of(args.pairs, CHAT_CONNECTIONS);
    let mut direct_fixture = MessageClients::pairs(target, &args.devices.target, &pairs)?;
    let model = LoadModel::OpenLoop { per_second: rate, duration_ms: args.chat_duration.as_millis() as u64 };
    let phase = direct_fixture.phase(model, 200, 1, 1);
    let alone = direct_fixture.load.run("direct, no push", phase.clone())?;
    direct_fixture.load.start_phase(phase)?;
    let rounds = run_rounds(fixture, args, Instant::now() + args.chat_duration)?;
    let beside = direct_fixture.load.finish_phase("direct beside pushes")?;
    Ok((rounds, Some((alone, beside))))
}
