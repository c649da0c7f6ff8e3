//! One push to all devices: its request, and the waits for the last device and the last acknowledgement.

use super::{
    device_clients::DeviceClients,
    device_counts::{DeviceCounts, PushCount},
    push_body,
    worker_protocol::DeviceCommand,
};
use crate::{
    LabError,
    process::monotonic_ns,
    result::{Check, filled},
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tidings_client::http::HttpClient;
use tidings_protocol::http::PushTo;

/// The interval at which a push's status is read: the precision of the time to the last acknowledgement.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);

/// A push that the server accepted.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AcceptedPush {
    pub(crate) number: usize,
    pub(crate) id: u64,
    pub(crate) targets: u64,
    pub(crate) asked_ns: u64,
    pub(crate) answered_ns: u64,
}

#[derive(Deserialize)]
struct PushAccepted {
    push: u64,
    targets: u64,
}

/// The server's counts of a push, which are compared with the lab's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerPushCounts {
    pub(crate) targets: u64,
    #[serde(default)]
    pub(crate) delivered: u64,
    pub(crate) acknowledged: u64,
    #[serde(default)]
    pub(crate) pending: u64,
}

#[derive(Deserialize)]
struct PushStatus {
    counts: ServerPushCounts,
}

/// Requests push `number` of the run, to every device.
pub(crate) fn request_push(http: &mut HttpClient, tag: &str, number: usize) -> Result<AcceptedPush, LabError> {
    let asked_ns = monotonic_ns();
    let to = PushTo { all: true, ..PushTo::default() };
    let body = push_body::format(tag, number, asked_ns / 1000);
    let request = push_body::request(to, format!("{tag}-{number}"), body)?;
    let accepted: PushAccepted = http.post("/v1/push", &request)?;
    Ok(AcceptedPush { number, id: accepted.push, targets: accepted.targets, asked_ns, answered_ns: monotonic_ns() })
}

/// Waits until so many devices have acknowledged a push, or until its counts have not changed for `patience`. Returns the
/// counts with the time of the last acknowledgement, 0 without one.
pub(crate) fn await_acknowledged(
    http: &mut HttpClient,
    asked: &AcceptedPush,
    expected: u64,
    patience: Duration,
) -> Result<(ServerPushCounts, u64), LabError> {
    let mut last = ServerPushCounts::default();
    let mut changed = Instant::now();
    loop {
        let PushStatus { counts } = http.get(&format!("/v1/push/{}", asked.id))?;
        if counts.acknowledged >= expected {
            return Ok((counts, monotonic_ns()));
        }
        if counts != last {
            (last, changed) = (counts, Instant::now());
        } else if changed.elapsed() > patience {
            return Ok((counts, 0));
        }
        std::thread::sleep(STATUS_INTERVAL);
    }
}

/// One push with the counts of devices and server.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PushRound {
    pub(crate) asked: AcceptedPush,
    pub(crate) got: PushCount,
    pub(crate) counts: ServerPushCounts,
    /// Times in milliseconds after the request; `None`: it never happened.
    pub(crate) accepted_ms: f64,
    pub(crate) last_device_ms: Option<f64>,
    pub(crate) last_acknowledged_ms: Option<f64>,
    pub(crate) expected: u64,
}

impl PushRound {
    /// Pushes to all devices and waits until the last one has the push and the server has all acknowledgements.
    pub(crate) fn run(
        clients: &mut DeviceClients,
        mut http: HttpClient,
        (tag, number): (&str, usize),
        patience: Duration,
    ) -> Result<Self, LabError> {
        clients.begin(&DeviceCommand::AwaitPush { number, patience_ms: patience.as_millis() as u64 })?;
        let asked = request_push(&mut http, tag, number);
        // Even if the request failed, the workers' reports must be read before the next command.
        let device_counts = clients.finish("pushing")?;
        let asked = asked?;
        let expected = device_counts.live;
        let got = device_counts.push(number);
        let (counts, acknowledged_ns) = await_acknowledged(&mut http, &asked, expected, patience)?;
        let since = |at_ns: u64| (at_ns.saturating_sub(asked.asked_ns)) as f64 / 1e6;
        Ok(PushRound {
            accepted_ms: since(asked.answered_ns),
            last_device_ms: (got.devices >= expected).then(|| since(got.last_at_ns)),
            last_acknowledged_ms: (acknowledged_ns > 0).then(|| since(acknowledged_ns)),
            asked,
            got,
            counts,
            expected,
        })
    }

    /// Updates the counts with copies that came after the wait.
    pub(crate) fn settle(&mut self, device_counts: &DeviceCounts) {
        self.got = device_counts.push(self.asked.number);
    }

    /// Every device has the push once, and the server's counts agree.
    pub(crate) fn check(&self) -> Check {
        let devices = self.got.devices == self.expected && self.got.doubled + self.got.repeated == 0;
        let server = self.counts.acknowledged == self.expected && self.asked.targets >= self.expected;
        let bound = "every device has the push once, and the server counts as many";
        Check::of_server("pushes", bound, devices && server)
            .part(format!("push {}", self.asked.number))
            .value(filled(COUNTS, self))
    }

    pub(crate) fn in_words(&self) -> String {
        format!("push {:<4} {}  {}", self.asked.number, filled(TIMES, self), filled(COUNTS, self))
    }
}

const TIMES: &str =
    "{accepted_ms:1} ms  last device {last_device_ms:1} ms  last acknowledgement {last_acknowledged_ms:1} ms";
const COUNTS: &str = "{got.devices} of {expected}  doubled {got.doubled}  repeated {got.repeated}  again {got.again}   server: targets \
                      {counts.targets}  delivered {counts.delivered}  acknowledged {counts.acknowledged}";
