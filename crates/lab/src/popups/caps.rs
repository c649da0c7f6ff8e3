//! `bench popup-caps`: all devices of a user request a decision at once, for every kind of cap; no cap may be exceeded, and
//! after a clean restart no more popups may be shown.

use super::{
    args::PopupCapsArgs,
    balance::hours_of,
    catalogue::{put_popup, refuse_existing_popups, variant},
    load_loop::{Connections, LoadModel, LoadResult, TrafficSource},
    user_profiles::UserProfiles,
};
use crate::{
    LabError,
    client_engine::http::{ConnectionUse, HttpAnswer, RequestTemplate},
    live::{LiveBlock, WorkLength},
    problems::Problems,
    process,
    result::{Check, Layout, Measurement, RunResult, filled},
    server::{OwnServer, Target},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidings_client::http::HttpClient;
use tidings_protocol::http::{PopupCaps, PopupSettings, PopupSpec, PopupState};

/// One decision that all devices request at once, and how often a popup may be shown.
struct CapRound {
    placement: &'static str,
    session: u64,
    cap: u32,
}

const fn cap_round(placement: &'static str, session: u64, cap: u32) -> CapRound {
    CapRound { placement, session, cap }
}

const ROUNDS: [CapRound; 7] = [
    cap_round("daily", 0, 2),
    cap_round("total", 0, 3),
    cap_round("session", 1, 1),
    cap_round("session", 2, 1),
    cap_round("gap", 0, 1),
    // The placement has a gap between popups, its two popups have no caps.
    cap_round("spaced", 0, 1),
    // The popup of this placement has no cap of its own: the total of all popups limits it.
    cap_round("rest", 0, UNCAPPED_SHARE),
];
const UNCAPPED_SHARE: u32 = 2;
/// The cap on all popups together: the sum of the caps of all rounds.
const TOTAL_CAP: u32 = 2 + 3 + 1 + 1 + 1 + 1 + UNCAPPED_SHARE;
const LONG_S: u64 = 24 * 60 * 60;

pub(crate) fn run(args: &PopupCapsArgs) -> Result<RunResult, LabError> {
    if args.users == 0 || args.devices < TOTAL_CAP as usize / 2 || args.lanes == 0 {
        let why = format!("--users and --lanes must be at least 1, --devices at least {}", TOTAL_CAP / 2);
        return Err(LabError::Usage(why));
    }
    let mut target = match args.target.url {
        Some(_) => Target::resolve(&args.target)?,
        None => Target::Own(Box::new(OwnServer::start()?)),
    };
    configure(&mut target.http())?;
    let live = LiveBlock::begin("popup-caps", WorkLength::Unknown);
    live.note("before the restart".into());
    let mut devices = ConcurrentDevices::new(args, target.keys().0);
    let first = devices.run_pass(&target, args)?;
    let mut passes = vec![Pass::of(&devices, &first, |round| round.cap)];
    if let Target::Own(own) = &mut target {
        live.note("after the restart".into());
        own.stop()?;
        own.launch()?;
        devices.reset();
        let second = devices.run_pass(&target, args)?;
        passes.push(Pass::of(&devices, &second, |_| 0));
    }
    let counted = count_shown(&mut target.http())?;
    let answered: u64 = passes.iter().map(|pass| pass.shown).sum();
    drop(live);
    let check = target.finish()?;
    let mut result = RunResult::of("popup-caps");
    for (pass, title) in passes.iter().zip(["before the restart", "after the restart"]) {
        let title = format!(
            "{title}: {} users, {} devices each at once, {} kinds of caps",
            args.users,
            args.devices,
            ROUNDS.len()
        );
        result.record(pass.measured(&title));
    }
    result.note("counted", format!("{counted} by the server, {answered} answered"));
    let value = format!("{counted} counted, {answered} answered");
    result.check(Check::of_server("balance", "the server counts what it answered", counted == answered).value(value));
    result.store_check(check);
    result.set_all(json!({
        "users": args.users, "devices": args.devices, "passes": passes, "answered": answered, "counted": counted,
    }));
    Ok(result)
}

fn popups() -> [(&'static str, &'static str, PopupCaps); 7] {
    let none = PopupCaps::default();
    [
        ("daily", "daily", PopupCaps { per_day: Some(2), ..none }),
        ("total", "total", PopupCaps { total: Some(3), ..none }),
        ("session", "session", PopupCaps { per_session: Some(1), ..none }),
        ("gap", "gap", PopupCaps { gap_s: Some(LONG_S), ..none }),
        ("spaced-a", "spaced", none),
        ("spaced-b", "spaced", none),
        ("rest", "rest", none),
    ]
}

fn configure(http: &mut HttpClient) -> Result<(), LabError> {
    refuse_existing_popups(http)?;
    let settings = PopupSettings {
        caps: PopupCaps { total: Some(TOTAL_CAP), ..PopupCaps::default() },
        placements: BTreeMap::from([("spaced".to_owned(), PopupCaps { gap_s: Some(LONG_S), ..PopupCaps::default() })]),
        ..PopupSettings::default()
    };
    let _: Value = http.put("/v1/popup-settings", &settings)?;
    for (number, (id, placement, caps)) in popups().into_iter().enumerate() {
        let spec = PopupSpec {
            state: PopupState::Live,
            placements: vec![placement.to_owned()],
            time_zone: Some(time_zone_at_noon()),
            caps,
            variants: vec![variant(number as u64, "a", 1)?],
            ..PopupSpec::default()
        };
        put_popup(http, id, &spec)?;
    }
    Ok(())
}

/// A time zone in which it is about noon, so that no day ends during the run and resets daily caps.
fn time_zone_at_noon() -> String {
    let ahead = 12 - (process::unix_ms() / 3_600_000 % 24) as i64;
    // In these names the sign is reversed: `Etc/GMT-1` is ahead of Greenwich.
    format!("Etc/GMT{}{}", if ahead > 0 { '-' } else { '+' }, ahead.abs())
}

fn count_shown(http: &mut HttpClient) -> Result<u64, LabError> {
    let mut counted = 0;
    for (id, ..) in popups() {
        counted += hours_of(http, id)?.iter().map(|hour| hour.shown).sum::<u64>();
    }
    Ok(counted)
}

/// Devices in lanes: all devices of a lane send the same request at once, and go on to the next one when all are answered.
struct ConcurrentDevices {
    profiles: UserProfiles,
    decide: RequestTemplate,
    users: u32,
    devices: usize,
    lanes: Vec<DeviceLane>,
    /// By connection: the next step of its device.
    steps: Vec<usize>,
    /// How often a popup was shown, by user and round.
    shown: Vec<[u32; ROUNDS.len()]>,
    wrong: u64,
    problems: Vec<String>,
    body: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default)]
struct DeviceLane {
    step: usize,
    answered: usize,
}

impl ConcurrentDevices {
    fn new(args: &PopupCapsArgs, api_key: &str) -> Self {
        ConcurrentDevices {
            profiles: UserProfiles::new(&format!("{}-", process::run_tag())),
            decide: RequestTemplate::post("/v1/popups/decide", api_key),
            users: args.users,
            devices: args.devices,
            lanes: vec![DeviceLane::default(); args.lanes],
            steps: vec![0; args.devices * args.lanes],
            shown: vec![Default::default(); args.users as usize],
            wrong: 0,
            problems: Vec::new(),
            body: Vec::new(),
        }
    }

    fn reset(&mut self) {
        self.lanes.fill(DeviceLane::default());
        self.steps.fill(0);
        self.shown.fill(Default::default());
    }

    fn run_pass(&mut self, target: &Target, args: &PopupCapsArgs) -> Result<LoadResult, LabError> {
        let mut connections =
            Connections::open(target.address(), self.steps.len(), args.target.patience, ConnectionUse::Kept)?;
        connections.run(self, LoadModel::Exhausting, &mut LiveBlock::hidden())
    }

    /// The user and the round of a lane's current request.
    fn next_question(&self, lane: usize) -> Option<(u32, usize)> {
        let step = self.lanes[lane].step;
        let user = (step / ROUNDS.len() * self.lanes.len() + lane) as u32;
        (user < self.users).then_some((user, step % ROUNDS.len()))
    }

    fn record_answer(&mut self, connection: usize) {
        let lane = &mut self.lanes[connection / self.devices];
        lane.answered += 1;
        if lane.answered == self.devices {
            *lane = DeviceLane { step: lane.step + 1, answered: 0 };
        }
    }

    fn add_problem(&mut self, what: String) {
        self.wrong += 1;
        self.problems.note(what);
    }
}

impl TrafficSource for ConcurrentDevices {
    fn next_request(&mut self, connection: usize, _now_ns: u64, out: &mut Vec<u8>) -> bool {
        let lane = connection / self.devices;
        if self.steps[connection] != self.lanes[lane].step {
            return false;
        }
        let Some((user, round)) = self.next_question(lane) else { return false };
        self.steps[connection] += 1;
        let CapRound { placement, session, .. } = ROUNDS[round];
        self.body.clear();
        self.profiles.put_decide_request_in_session(&mut self.body, user, placement, u64::from(user) * 10 + session);
        self.decide.put(out, &self.body);
        true
    }

    fn handle_answer(&mut self, connection: usize, _now_ns: u64, answer: &HttpAnswer<'_>) {
        if let Some((user, round)) = self.next_question(connection / self.devices) {
            match answer.status {
                200 => self.shown[user as usize][round] += 1,
                204 => {}
                _ => self.add_problem(format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body))),
            }
        }
        self.record_answer(connection);
    }

    fn connection_lost(&mut self, connection: usize) {
        self.add_problem("a connection broke before its answer".into());
        self.record_answer(connection);
    }
}

/// One pass of all users through all rounds.
#[derive(Debug, Default, Serialize)]
struct Pass {
    shown: u64,
    /// Pairs of user and round in which popups were shown more often than the cap allows.
    exceeded: u64,
    /// Pairs of user and round in which the cap was not reached.
    missed: u64,
    wrong: u64,
    stretch: LoadResult,
    problems: Vec<String>,
}

impl Pass {
    fn of(devices: &ConcurrentDevices, stretch: &LoadResult, cap: impl Fn(&CapRound) -> u32) -> Self {
        let mut pass = Pass {
            wrong: devices.wrong,
            stretch: stretch.clone(),
            problems: devices.problems.clone(),
            ..Pass::default()
        };
        for (user, counts) in devices.shown.iter().enumerate() {
            for (round, shown) in ROUNDS.iter().zip(counts) {
                pass.shown += u64::from(*shown);
                let cap = cap(round);
                pass.exceeded += u64::from(*shown > cap);
                pass.missed += u64::from(*shown < cap);
                if *shown != cap {
                    let (id, placement) = (devices.profiles.id(user as u32), round.placement);
                    pass.problems.note(format!("{id} at {placement}: shown {shown}, allowed are {cap}"));
                }
            }
        }
        pass
    }

    fn is_clean(&self) -> bool {
        self.exceeded + self.missed + self.wrong + self.stretch.broken == 0
    }

    fn measured(&self, title: &str) -> Measurement {
        let check = Check::of_server("caps", "every cap is reached and none exceeded", self.is_clean());
        let value = filled("exceeded {exceeded}, not reached {missed}, wrong answers {wrong}", self);
        Measurement::of(title, self)
            .set("per_second", self.stretch.per_second())
            .layout(&LAYOUT)
            .check(check.value(value))
    }
}

const LAYOUT: Layout = Layout {
    lines: &[
        ("answers", "{stretch.answers}, {per_second:0}/s"),
        ("caps", "shown {shown}  exceeded {exceeded}  not reached {missed}  wrong answers {wrong}"),
    ],
    percentiles: &[],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caps_of_all_rounds_add_up_to_the_total_cap() {
        assert_eq!(ROUNDS.iter().map(|round| round.cap).sum::<u32>(), TOTAL_CAP);
    }
}
