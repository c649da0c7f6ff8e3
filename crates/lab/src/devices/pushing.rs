//! A push to all devices: asking for it, waiting for the last device and the last acknowledgement.

use super::{
    job::DeviceCommand,
    push_body,
    stage::Stage,
    tally::{PushCount, Tally},
};
use crate::{LabError, Verdict, process::monotonic_ns};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::time::{Duration, Instant};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{PushPriority, PushRequest, PushTo};

/// Between two looks at a push's state: the time to the last acknowledgement is known to this.
const LOOK: Duration = Duration::from_millis(20);
/// Longer than any run, so that nothing expires.
const LIFETIME_S: u64 = 24 * 3600;

/// A push that the server accepted.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Asked {
    pub(crate) number: usize,
    pub(crate) id: u64,
    pub(crate) targets: u64,
    pub(crate) asked_ns: u64,
    pub(crate) answered_ns: u64,
}

#[derive(Deserialize)]
struct Accepted {
    push: u64,
    targets: u64,
}

/// What the server says of a push; the counts that the lab holds against its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) targets: u64,
    #[serde(default)]
    pub(crate) delivered: u64,
    pub(crate) acknowledged: u64,
    #[serde(default)]
    pub(crate) pending: u64,
}

#[derive(Deserialize)]
struct Status {
    counts: Counts,
}

/// Asks for push `number` of the run, to every device.
pub(crate) fn ask(http: &mut HttpClient, tag: &str, number: usize) -> Result<Asked, LabError> {
    let asked_ns = monotonic_ns();
    let body = push_body::write(tag, number, asked_ns / 1000);
    let body = RawValue::from_string(body).map_err(std::io::Error::from)?;
    let request = PushRequest {
        to: PushTo { all: true, ..PushTo::default() },
        content_type: "bench".into(),
        // Raw: the devices compare it to the letter.
        body,
        ttl_s: Some(LIFETIME_S),
        collapse_key: None,
        priority: PushPriority::Normal,
        send_at: None,
        dry_run: false,
        client_push_id: Some(format!("{tag}-{number}")),
    };
    let accepted: Accepted = http.post("/v1/push", &request)?;
    Ok(Asked { number, id: accepted.push, targets: accepted.targets, asked_ns, answered_ns: monotonic_ns() })
}

/// Looks until as many devices have acknowledged it, or nothing has changed for the whole of `patience`.
pub(crate) fn await_acknowledged(
    http: &mut HttpClient,
    asked: &Asked,
    expected: u64,
    patience: Duration,
) -> Result<(Counts, u64), LabError> {
    let mut last = Counts::default();
    let mut changed = Instant::now();
    loop {
        let Status { counts } = http.get(&format!("/v1/push/{}", asked.id))?;
        if counts.acknowledged >= expected {
            return Ok((counts, monotonic_ns()));
        }
        if counts != last {
            (last, changed) = (counts, Instant::now());
        } else if changed.elapsed() > patience {
            return Ok((counts, 0));
        }
        std::thread::sleep(LOOK);
    }
}

/// One push as both sides saw it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Round {
    pub(crate) asked: Asked,
    pub(crate) got: PushCount,
    pub(crate) counts: Counts,
    /// From asking, in milliseconds; none when it never came.
    pub(crate) accepted_ms: f64,
    pub(crate) last_device_ms: Option<f64>,
    pub(crate) last_acknowledged_ms: Option<f64>,
    pub(crate) expected: u64,
}

impl Round {
    /// Pushes to all and waits until the last device has it and the server knows.
    pub(crate) fn run(stage: &mut Stage, number: usize, patience: Duration) -> Result<Self, LabError> {
        let mut http = stage.cluster.http();
        let tag = stage.tag.clone();
        stage.fleet.begin(&DeviceCommand::AwaitPush { number, patience_ms: patience.as_millis() as u64 })?;
        let asked = ask(&mut http, &tag, number);
        // The workers answer in any case; what they say is read before anything else is asked of them.
        let tally = stage.fleet.finish("pushing")?;
        let asked = asked?;
        let expected = tally.live;
        let got = tally.push(number);
        let (counts, acknowledged_ns) = await_acknowledged(&mut http, &asked, expected, patience)?;
        let since = |at_ns: u64| (at_ns.saturating_sub(asked.asked_ns)) as f64 / 1e6;
        Ok(Round {
            accepted_ms: since(asked.answered_ns),
            last_device_ms: (got.devices >= expected).then(|| since(got.last_at_ns)),
            last_acknowledged_ms: (acknowledged_ns > 0).then(|| since(acknowledged_ns)),
            asked,
            got,
            counts,
            expected,
        })
    }

    /// Counts again what came after the wait, such as a second copy.
    pub(crate) fn settle(&mut self, tally: &Tally) {
        self.got = tally.push(self.asked.number);
    }

    /// Every device has it once, and the server says the same.
    pub(crate) fn verdict(&self) -> Verdict {
        let devices = self.got.devices == self.expected && self.got.doubled + self.got.repeated == 0;
        let server = self.counts.acknowledged == self.expected && self.asked.targets >= self.expected;
        if devices && server { Verdict::Passed } else { Verdict::Failed }
    }

    pub(crate) fn print(&self) {
        let ms = |time: Option<f64>| time.map_or("never".to_owned(), |ms| format!("{ms:.1} ms"));
        println!(
            "  push {:<4} accepted {:.1} ms  last device {}  last acknowledgement {}",
            self.asked.number,
            self.accepted_ms,
            ms(self.last_device_ms),
            ms(self.last_acknowledged_ms)
        );
        println!(
            "            devices {} of {}  doubled {}  repeated {}  again {}   server: targets {}  delivered {}  acknowledged {}",
            self.got.devices,
            self.expected,
            self.got.doubled,
            self.got.repeated,
            self.got.again,
            self.counts.targets,
            self.counts.delivered,
            self.counts.acknowledged
        );
    }
}
