//! `bench failover`: a gateway is killed with its devices on it while pushes go on.

use super::args::{DeviceArgs, FailoverArgs, Gateways};
use super::{
    device_counts::{DeviceCounts, PUSHES_MAX, PushCount},
    fixture::DeviceFixture,
    output,
    push_round::{AcceptedPush, await_acknowledged, request_push},
    server_under_test::DEVICES_PER_PROCESS,
    worker_protocol::{DeviceCommand, DeviceProtocol},
};
use crate::{
    LabError,
    live::{LiveBlock, WorkLength},
    process::monotonic_ns,
    result::{Check, Layout, RunResult, Verdict, filled},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tidings_client::{ClientError, http::HttpClient};
use tidings_protocol::http::NodesAnswer;

/// Pushes before the kill, and as many after all devices are bound again.
const PUSHES_AROUND: usize = 3;
/// The wait before a refused push is requested again.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &FailoverArgs) -> Result<RunResult, LabError> {
    if args.devices.target.url.is_some() || args.devices.via == DeviceProtocol::Ws {
        return Err(LabError::Usage("failover kills a gateway of its own: without --url, over miop or miops".into()));
    }
    let victims = args.devices.with_default_devices(1_000).devices;
    let all = victims + args.bystanders;
    let gateways = match args.devices.gateways {
        // The remaining gateways must have room for all devices.
        Gateways::Auto => 1 + all.div_ceil(DEVICES_PER_PROCESS),
        Gateways::Count(count) if count >= 2 => count,
        Gateways::Count(_) => return Err(LabError::Usage("failover needs --gateways 2 or more".into())),
    };
    let devices = DeviceArgs { devices: all, gateways: Gateways::Count(gateways), ..args.devices.clone() };
    let mut fixture = DeviceFixture::set_up_with_first_listener_devices(&devices, victims)?;
    let mut result = RunResult::of("failover");
    result.set_all(json!({ "devices": victims, "bystanders": args.bystanders, "gateways": gateways }));
    let title = format!("{victims} devices on the gateway to be killed, {} elsewhere", args.bystanders);
    // Only that all are bound matters: nothing is measured in time before the kill.
    result.measure("ramp", fixture.connect(&devices)?.measured(&title).may_be_late());
    if result.verdict() == Verdict::Failed {
        return Ok(result);
    }
    let after = fail_over(&mut fixture, args, victims)?;
    let (mut rounds, mut acknowledged) = (Vec::new(), true);
    for asked in &after.pushes {
        // After one push was not acknowledged within the patience, the others are not waited for.
        let patience = if acknowledged { args.devices.target.patience } else { Duration::ZERO };
        let (counts, _) = await_acknowledged(&mut fixture.server.http(), asked, all as u64, patience)?;
        acknowledged &= counts.acknowledged == all as u64;
        rounds.push(counts);
    }
    let end = fixture.settle(args.devices.target.patience)?;
    let presence = fixture.compare_presence()?;
    let check = fixture.end()?;

    let pushes = after.pushes.len();
    let (got, due) = (sum_push_counts(&end, pushes), (pushes * all) as u64);
    let told = json!({
        "bound_again_ms": end.bind.percentiles(), "push_ms": end.push.percentiles(), "failures": end.failures,
        "bound_again_seconds": after.bound_s, "seen_seconds": after.seen_s, "ghosts": after.ghosts_s.in_words(args.lease),
        "got": got, "due": due, "lost": due - got.devices.min(due), "asked_again": after.refused, "all": all,
    });
    let broken: u64 = end.disconnects.values().sum();
    let back = end.live == all as u64 && end.given_up == 0 && broken == victims as u64;
    let back =
        Check::of_server("connections", "the devices of the killed gateway are bound again, and no other breaks", back);
    let ghosts = !matches!(after.ghosts_s, GhostSessions::Stayed);
    let ghosts = Check::of_server("ghosts", "the killed gateway is forgotten within its lease", ghosts);
    let once = Check::of_server("pushes", "every device has every push once", got.devices == due && got.doubled == 0);
    let value = if acknowledged { "all" } else { "not all" };
    let acknowledged = Check::of_server("acknowledged", "every push, by the server's count", acknowledged).value(value);
    let measured = output::measured_devices("gateway killed", &end, told.clone())
        .layout(&AFTER)
        .check(back.value(filled("{live} of {devices}, broken: {disconnects}", &end)))
        .check(ghosts.value(after.ghosts_s.in_words(args.lease)))
        .check(once.value(filled("{got.devices} of {due}, doubled {got.doubled}", &told)))
        .check(acknowledged)
        .check(output::check_bodies(&end));
    result.record(measured);
    presence.record(&mut result);
    result.store_check(check);
    result.set_all(json!({
        "bound_again_seconds": after.bound_s, "ghosts_seconds": after.ghosts_s.json(), "pushes": after.pushes,
        "counts": rounds, "got": got, "failures": end.failures, "broken": end.disconnects,
        "bound_again_ms": end.bind.percentiles(), "push_ms": end.push.percentiles(),
    }));
    Ok(result)
}

const AFTER: Layout = Layout {
    lines: &[
        ("bound again", "after {bound_again_seconds:2} s, known after {seen_seconds:2} s"),
        ("failures", "{failures}"),
        ("broken", "{broken}"),
        ("ghosts", "{ghosts}"),
        (
            "pushes",
            "{due} due to {all} devices, asked for again {asked_again}: got {got.devices}  lost {lost}  again {got.again}  \
             repeated {got.repeated}  doubled {got.doubled}",
        ),
    ],
    percentiles: output::DEVICES.percentiles,
};

/// The result of killing a gateway.
struct FailoverResult {
    pushes: Vec<AcceptedPush>,
    /// How often a push was refused with a retryable code and requested again.
    refused: u64,
    bound_s: f64,
    seen_s: f64,
    ghosts_s: GhostSessions,
}

#[derive(Debug, Clone, Copy)]
enum GhostSessions {
    GoneAfter(f64),
    Stayed,
}

impl GhostSessions {
    fn in_words(self, lease: Duration) -> String {
        match self {
            GhostSessions::GoneAfter(seconds) => format!("gone after {seconds:.1} s"),
            GhostSessions::Stayed => format!("still there after {:.0} s", lease.as_secs_f64()),
        }
    }

    fn json(self) -> Value {
        match self {
            GhostSessions::GoneAfter(seconds) => json!(seconds),
            GhostSessions::Stayed => json!("stayed"),
        }
    }
}

/// Requests pushes, kills the gateway, and goes on requesting pushes until all devices are bound again and the dead gateway
/// is no longer registered.
fn fail_over(fixture: &mut DeviceFixture, args: &FailoverArgs, victims: usize) -> Result<FailoverResult, LabError> {
    let mut http = fixture.server.http();
    let tag = fixture.tag.clone();
    let dead = fixture.server.listeners[0].to_string();
    let (mut pushes, mut refused) = (Vec::new(), 0);
    for _ in 0..PUSHES_AROUND {
        pushes.push(request_push_until_accepted(&mut http, &tag, pushes.len(), &mut refused)?);
        std::thread::sleep(args.push_every);
    }
    fixture.clients.run("measuring anew", &DeviceCommand::ResetMeasurement)?;
    let killed = Instant::now();
    let killed_ns = monotonic_ns();
    fixture.server.gateways[0].kill()?;
    let live = LiveBlock::begin("failing over", WorkLength::Unknown);
    let (mut seen_s, mut ghosts_s) = (None, None);
    let mut bound_s = f64::NAN;
    while killed.elapsed() < args.devices.within && (seen_s.is_none() || ghosts_s.is_none()) {
        // The last few push numbers are for after the failover.
        if pushes.len() < PUSHES_MAX - PUSHES_AROUND {
            pushes.push(request_push_until_accepted(&mut http, &tag, pushes.len(), &mut refused)?);
        }
        std::thread::sleep(args.push_every);
        let device_counts = fixture.clients.count()?;
        live.note(format!("{} of {} bound, {} pushes", device_counts.live, device_counts.devices, pushes.len()));
        // As many devices have bound anew as the killed gateway had: right after the kill all still count as bound.
        if seen_s.is_none() && device_counts.live == device_counts.devices && device_counts.bound >= victims as u64 {
            seen_s = Some(killed.elapsed().as_secs_f64());
            bound_s = device_counts.last_bound_ns.saturating_sub(killed_ns) as f64 / 1e9;
        }
        if ghosts_s.is_none() {
            ghosts_s = if !is_registered(&mut http, &dead)? {
                Some(GhostSessions::GoneAfter(killed.elapsed().as_secs_f64()))
            } else {
                (killed.elapsed() > args.lease).then_some(GhostSessions::Stayed)
            };
        }
    }
    drop(live);
    for _ in 0..PUSHES_AROUND {
        pushes.push(request_push_until_accepted(&mut http, &tag, pushes.len(), &mut refused)?);
    }
    let seen_s = seen_s.unwrap_or(f64::INFINITY);
    Ok(FailoverResult { pushes, refused, bound_s, seen_s, ghosts_s: ghosts_s.unwrap_or(GhostSessions::Stayed) })
}

/// Requests a push until it is accepted; the same `client_push_id` makes retries safe.
fn request_push_until_accepted(
    http: &mut HttpClient,
    tag: &str,
    number: usize,
    refused: &mut u64,
) -> Result<AcceptedPush, LabError> {
    loop {
        match request_push(http, tag, number) {
            Err(LabError::Client(ClientError::Refused { problem, .. })) if problem.retry => {
                *refused += 1;
                std::thread::sleep(RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Whether that gateway, or a session of it, is still registered.
fn is_registered(http: &mut HttpClient, gateway: &str) -> Result<bool, LabError> {
    let answer: NodesAnswer = http.get("/v1/admin/nodes")?;
    Ok(answer.nodes.iter().any(|node| node.address == gateway))
}

fn sum_push_counts(end: &DeviceCounts, pushes: usize) -> PushCount {
    (0..pushes).map(|number| end.push(number)).fold(PushCount::default(), |sum, one| PushCount {
        devices: sum.devices + one.devices,
        again: sum.again + one.again,
        repeated: sum.repeated + one.repeated,
        doubled: sum.doubled + one.doubled,
        last_at_ns: sum.last_at_ns.max(one.last_at_ns),
    })
}
