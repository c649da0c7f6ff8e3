//! Pushes go on while a gateway is killed with its devices on it, until all are bound elsewhere and the gateway is forgotten.

use super::{
    DeviceWorker, KilledGateway,
    figures::{self, check_bodies, of_devices},
    result_of,
};
use crate::{
    LabError,
    devices::{
        device_counts::{DeviceCounts, PUSHES_MAX, PushCount},
        push_round::{AcceptedPush, await_acknowledged, request_push},
        worker_protocol::DeviceCommand,
    },
    live::{LiveBlock, WorkLength},
    result::{Check, Layout, Measurement, filled},
    scenario::works::{Job, WorkResult},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tidings_client::{ClientError, http::HttpClient};
use tidings_protocol::http::NodesAnswer;

/// Pushes after all devices are bound again.
const PUSHES_AFTER: usize = 3;
/// The wait before a refused push is requested again.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

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
    percentiles: figures::DEVICES.percentiles,
};

/// The pushes of a run, and how often one was refused with a retryable code and requested again.
struct Pushes {
    http: HttpClient,
    tag: String,
    accepted: Vec<AcceptedPush>,
    refused: u64,
}

/// What came after a gateway was killed. Unset: it did not come in time.
#[derive(Default)]
struct Recovery {
    /// When the last device was bound, by the devices' clocks, and when the lab noticed.
    bound_seconds: Option<f64>,
    seen_seconds: Option<f64>,
    forgotten_seconds: Option<f64>,
}

impl DeviceWorker {
    pub(super) fn outlive(
        &mut self,
        job: &Job<'_>,
        pause: Duration,
        forgotten_within: Duration,
    ) -> Result<WorkResult, LabError> {
        let all = self.set.spec.devices as u64;
        let victims = self.set.spec.on_first_gateway.map(|victims| victims as u64);
        let Some(victims) = victims.filter(|victims| *victims <= all) else {
            return Err(LabError::Usage("devices that outlive a gateway need `on_first_gateway`".into()));
        };
        let mut pushes = Pushes { http: self.set.http(), tag: self.set.tag.clone(), accepted: Vec::new(), refused: 0 };
        // What is measured of connects is that devices come back.
        let bound = self.set.clients.run("measuring anew", &DeviceCommand::ResetMeasurement)?.live;
        let back = "the devices of the killed gateway are bound again, and no other breaks";
        if bound != all {
            let check = Check::of_server("connections", back, false).value(format!("{bound} of {all} before the kill"));
            return Ok(result_of(Measurement::of(&job.title, &json!({})).check(check)));
        }
        let after = self.recover(&mut pushes, (all, victims), (pause, forgotten_within))?;
        for _ in 0..PUSHES_AFTER {
            pushes.request()?;
        }
        let (counts, is_acknowledged) = pushes.await_all(all, self.set.patience)?;
        let end = self.settle()?;
        let (got, due) = (sum_of(&end, pushes.accepted.len()), pushes.accepted.len() as u64 * all);
        let ghosts = match after.forgotten_seconds {
            Some(seconds) => format!("gone after {seconds:.1} s"),
            None => format!("still there after {:.0} s", forgotten_within.as_secs_f64()),
        };
        let figures = json!({
            "latency": end.bind.percentiles(), "answers": end.bound, "seconds": after.seen_seconds,
            "bound_again_ms": end.bind.percentiles(), "push_ms": end.push.percentiles(), "failures": end.failures,
            "bound_again_seconds": after.bound_seconds, "seen_seconds": after.seen_seconds, "ghosts": ghosts,
            "ghosts_seconds": after.forgotten_seconds.map_or(json!("stayed"), Value::from),
            "got": got, "due": due, "lost": due - got.devices.min(due), "asked_again": pushes.refused, "all": all,
            "pushes": pushes.accepted, "counts": counts,
        });
        let broken: u64 = end.disconnects.values().sum();
        let is_back = end.live == all && end.given_up == 0 && broken == victims;
        let is_once = got.devices == due && got.doubled == 0;
        let forgotten = Check::of_server(
            "ghosts",
            "the killed gateway is forgotten within its lease",
            after.forgotten_seconds.is_some(),
        );
        let acknowledged = Check::of_server("acknowledged", "every push, by the server's count", is_acknowledged);
        let once = filled("{got.devices} of {due}, doubled {got.doubled}", &figures);
        let measured = of_devices(&job.title, &end, figures)
            .layout(&AFTER)
            .check(
                Check::of_server("connections", back, is_back)
                    .value(filled("{live} of {devices}, broken: {disconnects}", &end)),
            )
            .check(forgotten.value(ghosts))
            .check(Check::of_server("pushes", "every device has every push once", is_once).value(once))
            .check(acknowledged.value(if is_acknowledged { "all" } else { "not all" }))
            .check(check_bodies(&end));
        Ok(result_of(measured))
    }

    /// Requests pushes until the gateway is killed, and on until all devices are bound again and it is registered no more.
    fn recover(
        &mut self,
        pushes: &mut Pushes,
        (all, victims): (u64, u64),
        (pause, forgotten_within): (Duration, Duration),
    ) -> Result<Recovery, LabError> {
        let live = LiveBlock::begin("failing over", WorkLength::Unknown);
        let mut after = Recovery::default();
        let (mut is_over, began) = (false, Instant::now());
        while !is_over {
            // The last few push numbers are for after the failover.
            if pushes.accepted.len() < PUSHES_MAX - PUSHES_AFTER {
                pushes.request()?;
            }
            std::thread::sleep(pause);
            let counts = self.set.clients.count()?;
            let (bound, requested) = (counts.live, pushes.accepted.len());
            live.note(format!("{bound} of {} bound, {requested} pushes", counts.devices));
            let Some(KilledGateway { at, at_ns, addresses }) = self.killed_gateway.get() else {
                if began.elapsed() > self.set.spec.within {
                    return Err(LabError::Usage("the scenario has no fault `gateway-killed` in this phase".into()));
                }
                continue;
            };
            // As many devices have bound anew as the killed gateway had: right after the kill all still count as bound.
            if after.seen_seconds.is_none() && bound == all && counts.bound >= victims {
                after.seen_seconds = Some(at.elapsed().as_secs_f64());
                after.bound_seconds = Some(counts.last_bound_ns.saturating_sub(*at_ns) as f64 / 1e9);
            }
            let is_late = at.elapsed() > forgotten_within;
            if after.forgotten_seconds.is_none() && !pushes.is_registered(addresses)? && !is_late {
                after.forgotten_seconds = Some(at.elapsed().as_secs_f64());
            }
            let is_known = after.forgotten_seconds.is_some() || is_late;
            is_over = at.elapsed() >= self.set.spec.within || after.seen_seconds.is_some() && is_known;
        }
        Ok(after)
    }
}

impl Pushes {
    /// Requests a push until it is accepted; the same `client_push_id` makes retries safe.
    fn request(&mut self) -> Result<(), LabError> {
        loop {
            match request_push(&mut self.http, &self.tag, self.accepted.len()) {
                Err(LabError::Client(ClientError::Refused { problem, .. })) if problem.retry => {
                    self.refused += 1;
                    std::thread::sleep(RETRY_INTERVAL);
                }
                other => return other.map(|accepted| self.accepted.push(accepted)),
            }
        }
    }

    /// The server's counts of all pushes, and whether each was acknowledged by so many devices.
    fn await_all(&mut self, devices: u64, patience: Duration) -> Result<(Vec<Value>, bool), LabError> {
        let (mut all, mut is_acknowledged) = (Vec::new(), true);
        for asked in &self.accepted {
            // After one push was not acknowledged within the patience, the others are not waited for.
            let patience = if is_acknowledged { patience } else { Duration::ZERO };
            let (counts, _) = await_acknowledged(&mut self.http, asked, devices, patience)?;
            is_acknowledged &= counts.acknowledged == devices;
            all.push(json!(counts));
        }
        Ok((all, is_acknowledged))
    }

    /// Whether the gateway at one of these addresses, or a session of it, is still registered.
    fn is_registered(&mut self, gateway: &[std::net::SocketAddr]) -> Result<bool, LabError> {
        let answer: NodesAnswer = self.http.get("/v1/admin/nodes")?;
        Ok(answer.nodes.iter().any(|node| gateway.iter().any(|address| address.to_string() == node.address)))
    }
}

fn sum_of(end: &DeviceCounts, pushes: usize) -> PushCount {
    let mut sum = PushCount::default();
    (0..pushes).for_each(|number| sum.add(&end.push(number)));
    sum
}
