//! `bench failover`: a gateway is killed with its devices on it while pushes go on.

use super::args::{DeviceArgs, FailoverArgs, Gateways};
use super::{
    cluster::DEVICES_PER_PROCESS,
    job::{DeviceCommand, Via},
    pushing::{Asked, ask, await_acknowledged},
    show,
    stage::{Stage, check_verdict},
    tally::{PUSHES_MAX, PushCount, Tally},
};
use crate::{LabError, Verdict, process::monotonic_ns, report};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tidings_client::{ClientError, http::HttpClient};
use tidings_protocol::http::NodesAnswer;

/// Pushes before the kill, and after everybody is back.
const PUSHES_AROUND: usize = 3;
/// A refused push is asked for again after this.
const AGAIN: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &FailoverArgs) -> Result<Verdict, LabError> {
    if args.devices.target.url.is_some() || args.devices.via == Via::Ws {
        return Err(LabError::Usage("failover kills a gateway of its own: without --url, over miop or miops".into()));
    }
    let victims = args.devices.or_usual(1_000).devices;
    let all = victims + args.bystanders;
    let gateways = match args.devices.gateways {
        // Those that are left must have room for everybody.
        Gateways::Auto => 1 + all.div_ceil(DEVICES_PER_PROCESS),
        Gateways::Count(count) if count >= 2 => count,
        Gateways::Count(_) => return Err(LabError::Usage("failover needs --gateways 2 or more".into())),
    };
    let devices = DeviceArgs { devices: all, gateways: Gateways::Count(gateways), ..args.devices.clone() };
    let mut stage = Stage::set_crowded(&devices, victims)?;
    let ramp = stage.connect(&devices)?;
    if ramp.verdict() == Verdict::Failed {
        show::ramp("before the kill", &ramp);
        return Ok(Verdict::Failed);
    }
    let fall = fall(&mut stage, args, victims)?;
    let (mut rounds, mut acknowledged) = (Vec::new(), true);
    for asked in &fall.pushes {
        // What did not come while one push was waited for will not come for the next.
        let patience = if acknowledged { args.devices.target.patience } else { Duration::ZERO };
        let (counts, _) = await_acknowledged(&mut stage.cluster.http(), asked, all as u64, patience)?;
        acknowledged &= counts.acknowledged == all as u64;
        rounds.push(counts);
    }
    let end = stage.settle(args.devices.target.patience)?;
    let presence = stage.compare_presence()?;
    let check = stage.end()?;

    show::ramp(&format!("{} devices on the gateway to be killed, {} elsewhere", victims, args.bystanders), &ramp);
    println!("gateway killed");
    println!("  all bound again after {:.2} s, known after {:.2} s", fall.bound_s, fall.seen_s);
    println!("  failures     {}", show::causes(&end.failures));
    println!("  broken       {}", show::causes(&end.breaks));
    match fall.ghosts_s {
        Ghosts::GoneAfter(seconds) => println!("  ghosts       gone after {seconds:.1} s"),
        Ghosts::Stayed => println!("  ghosts       still there after {:.0} s", args.lease.as_secs_f64()),
    }
    let sums = sums(&end, fall.pushes.len());
    println!(
        "  pushes       {} to {all} devices, asked for again {}: got {}  lost {}  again {}  repeated {}  doubled {}",
        fall.pushes.len(),
        fall.refused,
        sums.devices,
        (fall.pushes.len() * all) as u64 - sums.devices.min((fall.pushes.len() * all) as u64),
        sums.again,
        sums.repeated,
        sums.doubled
    );
    println!(
        "  acknowledged {}",
        if acknowledged { "all, by the server's count" } else { "NOT all, by the server's count" }
    );
    println!("  ms             p50       p90       p99     p99.9    p99.99      p100");
    show::row("bound again", &end.bind);
    show::row("a push", &end.push);
    show::problems(&end);
    presence.print();
    let broken: u64 = end.breaks.values().sum();
    let balances = sums.devices == (fall.pushes.len() * all) as u64 && sums.doubled == 0 && end.altered == 0;
    let back = end.live == all as u64 && end.given_up == 0 && broken == victims as u64;
    let passed = balances && back && acknowledged && !matches!(fall.ghosts_s, Ghosts::Stayed);
    let verdict = if passed { Verdict::Passed } else { Verdict::Failed };
    let value = json!({
        "bench": "failover", "devices": victims, "bystanders": args.bystanders, "gateways": gateways,
        "bound_again_seconds": fall.bound_s, "ghosts_seconds": fall.ghosts_s.json(), "pushes": fall.pushes,
        "counts": rounds, "got": sums, "failures": end.failures, "broken": end.breaks,
        "bound_again_ms": end.bind.percentiles(), "push_ms": end.push.percentiles(), "presence": presence.json(),
        "check": check,
    });
    report::write_json(args.devices.target.json.as_deref(), &value)?;
    Ok(verdict.and(presence.verdict()).and(check_verdict(&check)))
}

/// What the kill led to.
struct Fall {
    pushes: Vec<Asked>,
    /// Pushes that the server refused for the moment, which were asked for again.
    refused: u64,
    bound_s: f64,
    seen_s: f64,
    ghosts_s: Ghosts,
}

#[derive(Debug, Clone, Copy)]
enum Ghosts {
    GoneAfter(f64),
    Stayed,
}

impl Ghosts {
    fn json(self) -> Value {
        match self {
            Ghosts::GoneAfter(seconds) => json!(seconds),
            Ghosts::Stayed => json!("stayed"),
        }
    }
}

/// Pushes, kills, and pushes on until everybody is back and the dead gateway is forgotten.
fn fall(stage: &mut Stage, args: &FailoverArgs, victims: usize) -> Result<Fall, LabError> {
    let mut http = stage.cluster.http();
    let tag = stage.tag.clone();
    let dead = stage.cluster.doors[0].to_string();
    let (mut pushes, mut refused) = (Vec::new(), 0);
    for _ in 0..PUSHES_AROUND {
        pushes.push(push(&mut http, &tag, pushes.len(), &mut refused)?);
        std::thread::sleep(args.push_every);
    }
    stage.fleet.run("measuring anew", &DeviceCommand::Measure)?;
    let killed = Instant::now();
    let killed_ns = monotonic_ns();
    stage.cluster.gateways[0].kill()?;
    let live = report::Live::start("failing over");
    let (mut seen_s, mut ghosts_s) = (None, None);
    let mut bound_s = f64::NAN;
    while killed.elapsed() < args.devices.within && (seen_s.is_none() || ghosts_s.is_none()) {
        // The last few numbers are for after the fall.
        if pushes.len() < PUSHES_MAX - PUSHES_AROUND {
            pushes.push(push(&mut http, &tag, pushes.len(), &mut refused)?);
        }
        std::thread::sleep(args.push_every);
        let tally = stage.fleet.count()?;
        live.say(format!("{} of {} bound, {} pushes", tally.live, tally.devices, pushes.len()));
        // Those of the killed gateway have come again; before they know of the kill, all are bound, too.
        if seen_s.is_none() && tally.live == tally.devices && tally.bound >= victims as u64 {
            seen_s = Some(killed.elapsed().as_secs_f64());
            bound_s = tally.last_bound_ns.saturating_sub(killed_ns) as f64 / 1e9;
        }
        if ghosts_s.is_none() {
            ghosts_s = match knows(&mut http, &dead)? {
                false => Some(Ghosts::GoneAfter(killed.elapsed().as_secs_f64())),
                true if killed.elapsed() > args.lease => Some(Ghosts::Stayed),
                true => None,
            };
        }
    }
    live.end();
    for _ in 0..PUSHES_AROUND {
        pushes.push(push(&mut http, &tag, pushes.len(), &mut refused)?);
    }
    let seen_s = seen_s.unwrap_or(f64::INFINITY);
    Ok(Fall { pushes, refused, bound_s, seen_s, ghosts_s: ghosts_s.unwrap_or(Ghosts::Stayed) })
}

/// Asks until it is accepted: the same `client_push_id` makes the retry safe.
fn push(http: &mut HttpClient, tag: &str, number: usize, refused: &mut u64) -> Result<Asked, LabError> {
    loop {
        match ask(http, tag, number) {
            Err(LabError::Client(ClientError::Refused { problem, .. })) if problem.retry => {
                *refused += 1;
                std::thread::sleep(AGAIN);
            }
            other => return other,
        }
    }
}

/// Whether the server still knows that gateway, or sessions of it.
fn knows(http: &mut HttpClient, gateway: &str) -> Result<bool, LabError> {
    let answer: NodesAnswer = http.get("/v1/admin/nodes")?;
    Ok(answer.nodes.iter().any(|node| node.address == gateway))
}

fn sums(end: &Tally, pushes: usize) -> PushCount {
    (0..pushes).map(|number| end.push(number)).fold(PushCount::default(), |sum, one| PushCount {
        devices: sum.devices + one.devices,
        again: sum.again + one.again,
        repeated: sum.repeated + one.repeated,
        doubled: sum.doubled + one.doubled,
        last_at_ns: sum.last_at_ns.max(one.last_at_ns),
    })
}
