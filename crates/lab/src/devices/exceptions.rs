//! `bench exceptions`: what no device should do, and the answer that is stated for each.

use super::args::{DeviceArgs, ExceptionsArgs, Gateways};
use super::{
    caller::{Caller, Heard, bind},
    cluster::Cluster,
    fleet::Fleet,
    job::{DeviceCommand, OpenDevices, Via},
    memory::Memory,
    stage::{Stage, check_verdict},
    vectors,
};
use crate::{LabError, Verdict, process, report, setup};
use serde::Serialize;
use serde_json::json;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tidings_client::token;
use tidings_protocol::miop::{Frame, HEARTBEAT};

/// Memory that allocators keep for the next load, whatever was freed.
const KEPT_BYTES: i64 = 32 * 1024 * 1024;
/// Users of the single connections; each step takes others, so that no session replaces another's.
const CALLERS: usize = 2_000;
/// A token that no run outlives.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);
/// Between two looks at the server's gauge.
const LOOK: Duration = Duration::from_millis(50);
/// The server's own time-outs come on top of patience: the bind deadline, the longest silence.
const SERVER_PATIENCE: Duration = Duration::from_secs(120);

/// Where the protocol's vectors are, seen from the repository.
pub(crate) const VECTORS: &str = "fixtures/miop";

/// A step and what came of it.
#[derive(Debug, Serialize)]
struct Step {
    name: String,
    passed: bool,
    said: String,
}

struct Scene<'a> {
    args: &'a ExceptionsArgs,
    cluster: Cluster,
    tag: String,
    next_user: usize,
}

pub(crate) fn run(args: &ExceptionsArgs) -> Result<Verdict, LabError> {
    if args.devices.via != Via::Miop {
        return Err(LabError::Usage("exceptions speak plain MIOP: --via miop".into()));
    }
    let devices = args.devices.or_usual(10_000);
    let devices = DeviceArgs { gateways: one_process(devices.gateways), ..devices };
    let cluster = Cluster::find(&devices)?;
    let tag = process::run_tag();
    setup::many_users(&mut cluster.http(), &tag, CALLERS.max(args.silent))?;
    let mut scene = Scene { args, cluster, tag, next_user: 0 };
    let before = Memory::now(&scene.cluster.processes(), &[]);
    let gauge_before = scene.connections()?;
    let mut steps = vec![
        scene.cut_and_gone()?,
        scene.cut_and_continued()?,
        scene.invalid_frames()?,
        scene.never_bound(devices.devices)?,
        scene.gone_silent()?,
    ];
    steps.push(scene.back_to_normal(&before, gauge_before)?);
    let presence = match scene.cluster.is_own() {
        true => Stage::compare_presence_of(&scene.cluster).map(Some)?,
        false => None,
    };
    let check = scene.cluster.finish()?;
    if args.devices.target.url.is_none() {
        steps.push(out_of_descriptors(args)?);
    }

    println!("exceptions");
    for step in &steps {
        println!("  {:<6} {}: {}", if step.passed { "passed" } else { "FAILED" }, step.name, step.said);
    }
    let mut verdict = check_verdict(&check);
    if let Some(presence) = &presence {
        presence.print();
        verdict = verdict.and(presence.verdict());
    }
    if steps.iter().any(|step| !step.passed) {
        verdict = Verdict::Failed;
    }
    let value = json!({
        "bench": "exceptions", "steps": steps, "presence": presence.map(|presence| presence.json()), "check": check,
    });
    report::write_json(args.devices.target.json.as_deref(), &value)?;
    Ok(verdict)
}

/// Every step looks at one process unless gateways were asked for.
fn one_process(gateways: Gateways) -> Gateways {
    if gateways == Gateways::Auto { Gateways::Count(0) } else { gateways }
}

impl Scene<'_> {
    fn patience(&self) -> Duration {
        self.args.devices.target.patience
    }

    fn caller(&self) -> Result<Caller, LabError> {
        Ok(Caller::connect(self.cluster.doors[0], self.patience())?)
    }

    /// The bind of a device that has not bound before.
    fn next_bind(&mut self) -> Vec<u8> {
        let user = format!("{}-{}", self.tag, self.next_user % CALLERS);
        self.next_user += 1;
        bind(&token::sign(self.cluster.target.keys().1, &user, TOKEN_LIFETIME), &user)
    }

    fn bound(&mut self) -> Result<Caller, LabError> {
        let bind = self.next_bind();
        let mut caller = self.caller()?;
        caller.say(&bind);
        match caller.hear(self.patience())? {
            Heard::Bound => Ok(caller),
            other => Err(LabError::Server(format!("answered a good bind with {other}"))),
        }
    }

    /// Every frame, cut at every byte, then gone.
    fn cut_and_gone(&mut self) -> Result<Step, LabError> {
        let mut count = 0;
        let bind = self.next_bind();
        for cut in 0..bind.len() {
            self.caller()?.say(&bind[..cut]);
            count += 1;
        }
        let frames = [
            Frame::Heartbeat { interval_s: Some(300) },
            Frame::Ack { pushes: vec![1, 1_000_000] },
            Frame::Chat { json: b"{\"t\":\"ping\"}" },
            Frame::Unbind { reason: Some("bye") },
        ];
        for frame in frames {
            let bytes = frame.to_bytes();
            for cut in 0..bytes.len() {
                self.bound()?.say(&bytes[..cut]);
                count += 1;
            }
        }
        let said = format!("{count} connections, each ended within a frame");
        self.step("frames cut at every byte, then gone", true, said)
    }

    /// A frame that comes in two pieces is a frame.
    fn cut_and_continued(&mut self) -> Result<Step, LabError> {
        let mut answers = BTreeMap::new();
        for cut in 1..self.next_bind().len() {
            let bind = self.next_bind();
            let mut caller = self.caller()?;
            caller.say(&bind[..cut.min(bind.len())]);
            caller.say(&bind[cut.min(bind.len())..]);
            caller.say(&HEARTBEAT[..1]);
            caller.say(&HEARTBEAT[1..]);
            let heard = (caller.hear(self.patience())?, caller.hear(self.patience())?);
            *answers.entry(format!("{} and {}", heard.0, heard.1)).or_insert(0) += 1;
        }
        let passed = answers.keys().all(|answer| answer == "bound and beat");
        self.step("a bind cut at every byte, then the rest", passed, counted(&answers))
    }

    /// What is no frame, or none that a device may send, ends the connection with the stated code.
    fn invalid_frames(&mut self) -> Result<Step, LabError> {
        let vectors = vectors::all(&self.args.vectors)?;
        let mut wrong = Vec::new();
        for vector in &vectors {
            let mut caller = if vector.bound_first { self.bound()? } else { self.caller()? };
            caller.say(&vector.bytes);
            let heard = caller.hear(self.patience())?;
            let as_stated = match (&heard, &vector.code) {
                (Heard::Refused(code), Some(stated)) => code == stated,
                (Heard::Refused(_), None) => true,
                _ => false,
            };
            // After the refusal the connection ends.
            if !as_stated || caller.hear(self.patience())? != Heard::Closed {
                wrong.push(format!("{}: {heard}", vector.name));
            }
        }
        let said = match wrong.is_empty() {
            true => format!("{} vectors, each refused with its code and closed", vectors.len()),
            false => format!("{} of {} vectors: {}", wrong.len(), vectors.len(), wrong.join("; ")),
        };
        self.step("invalid frames", wrong.is_empty(), said)
    }

    /// Sockets that never say anything are told that their time is over.
    fn never_bound(&mut self, count: usize) -> Result<Step, LabError> {
        // All are there at once: none comes to a bind that would make room for the next.
        let plan = OpenDevices { mute: true, under_way_max: count, ..self.plan(count) };
        let mut fleet = Fleet::open(&plan, 1)?;
        let within_ms = SERVER_PATIENCE.as_millis() as u64;
        let tally = fleet.run("never bound", &DeviceCommand::Connect { per_second: None, within_ms })?;
        let told = tally.failures.get("bind_timeout").copied().unwrap_or(0);
        let said = format!("{} sockets: {}", tally.devices, counted(&tally.failures));
        self.step("sockets that never bind", told == tally.devices, said)
    }

    /// Devices whose heartbeats stop are told so and closed.
    fn gone_silent(&mut self) -> Result<Step, LabError> {
        let mut fleet = Fleet::open(&self.plan(self.args.silent), 1)?;
        let within_ms = SERVER_PATIENCE.as_millis() as u64;
        fleet.run("binding", &DeviceCommand::Connect { per_second: None, within_ms })?;
        fleet.run("falling silent", &DeviceCommand::Silence)?;
        let until = Instant::now() + SERVER_PATIENCE;
        let mut tally = fleet.count()?;
        while tally.live > 0 && Instant::now() < until {
            std::thread::sleep(LOOK);
            tally = fleet.count()?;
        }
        let told = tally.breaks.get("heartbeat_timeout").copied().unwrap_or(0);
        let said = format!("{} devices: {}", tally.devices, counted(&tally.breaks));
        self.step("heartbeats that stop", told == tally.devices, said)
    }

    fn plan(&self, count: usize) -> OpenDevices {
        OpenDevices {
            doors: self.cluster.doors.clone(),
            token_key: self.cluster.target.keys().1.to_owned(),
            tag: self.tag.clone(),
            count,
            // The server is to end them, not this client.
            attempt_ms: 2 * SERVER_PATIENCE.as_millis() as u64,
            heartbeat_s: 1,
            ..Stage::plan(&self.args.devices)
        }
    }

    /// The gauge of connections is where it was, and memory about there.
    fn back_to_normal(&mut self, before: &Memory, gauge_before: Option<u64>) -> Result<Step, LabError> {
        let until = Instant::now() + self.patience();
        let mut gauge = self.connections()?;
        while gauge != gauge_before && Instant::now() < until {
            std::thread::sleep(LOOK);
            gauge = self.connections()?;
        }
        let after = Memory::now(&self.cluster.processes(), &[]);
        let grown = after.server_bytes() as i64 - before.server_bytes() as i64;
        let number = |gauge: Option<u64>| gauge.map_or("unknown".to_owned(), |count| count.to_string());
        let said = format!(
            "connections {} -> {}, memory {:+.1} MiB of {:.1}",
            number(gauge_before),
            number(gauge),
            grown as f64 / 1_048_576.0,
            before.server_bytes() as f64 / 1_048_576.0
        );
        self.step("back to where it was", gauge == gauge_before && grown <= KEPT_BYTES, said)
    }

    /// The server's own count of open connections, if it tells.
    fn connections(&self) -> Result<Option<u64>, LabError> {
        let answer = self.cluster.http().exchange("GET", "/metrics", b"")?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("tidings_connections "));
        Ok(line.and_then(|value| value.trim().parse().ok()))
    }

    /// Whatever happened, the server lives and binds who comes.
    fn step(&mut self, name: &str, passed: bool, said: String) -> Result<Step, LabError> {
        let alive = self.cluster.http().is_ready() && self.bound().is_ok();
        let said = if alive { said } else { format!("{said}; the server does not bind any more") };
        Ok(Step { name: name.to_owned(), passed: passed && alive, said })
    }
}

/// More devices than a server of its own has descriptors: who does not fit is told when to come back, HTTP goes on,
/// who is in stays, and when they have left there is room again.
fn out_of_descriptors(args: &ExceptionsArgs) -> Result<Step, LabError> {
    let server_descriptors = Some(args.descriptors);
    let one = DeviceArgs { gateways: Gateways::Count(0), server_descriptors, ..args.devices.clone() };
    let cluster = Cluster::find(&one)?;
    let count = 2 * args.descriptors as usize;
    let tag = process::run_tag();
    setup::many_users(&mut cluster.http(), &tag, count)?;
    let plan = OpenDevices {
        doors: cluster.doors.clone(),
        token_key: cluster.target.keys().1.to_owned(),
        tag,
        count,
        attempts_max: 1,
        ..Stage::plan(&args.devices)
    };
    let within_ms = SERVER_PATIENCE.as_millis() as u64;
    let connect = DeviceCommand::Connect { per_second: None, within_ms };
    let mut fleet = Fleet::open(&plan, 1)?;
    let full = fleet.run("more than fit", &connect)?;
    let refused = full.failures.get("queue_full").copied().unwrap_or(0);
    let http = cluster.http().is_ready();
    let stayed = fleet.run("settling", &DeviceCommand::Settle { within_ms })?;
    drop(fleet);
    let few = OpenDevices { count: (full.live / 2).max(1) as usize, attempts_max: 40, ..plan };
    let again = Fleet::open(&few, 1)?.run("room again", &connect)?;
    let passed = full.live > 0
        && refused > 0
        && full.live + refused == full.devices
        && http
        && stayed.breaks.is_empty()
        && again.live == again.devices;
    let said = format!(
        "{} devices at {} descriptors: bound {}, {}; HTTP {}; broken {}; afterwards bound {} of {}",
        full.devices,
        args.descriptors,
        full.live,
        counted(&full.failures),
        if http { "answers" } else { "does NOT answer" },
        stayed.breaks.values().sum::<u64>(),
        again.live,
        again.devices
    );
    let check = cluster.finish()?;
    let sound = check.is_none_or(|check| check.passed);
    Ok(Step { name: "the limit of descriptors".into(), passed: passed && sound, said })
}

fn counted(causes: &BTreeMap<String, u64>) -> String {
    super::show::causes(causes)
}
