//! `bench popup-caps`: all devices of a user ask at once, for every kind of cap; none may be exceeded, and after a clean
//! restart nothing more may be shown.

use super::{
    args::PopupCapsArgs,
    balance::hours_of,
    catalogue::{put_popup, refuse_others_popups, variant},
    drive::{Connections, Pace, Stretch, Traffic, Until},
    people::People,
    wire::{Answer, Endpoint},
};
use crate::{
    LabError, Verdict, process,
    report::{self, Live},
    server::{OwnServer, Target},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidings_client::http::HttpClient;
use tidings_protocol::http::{PopupCaps, PopupSettings, PopupSpec, PopupState};

/// One question that all devices ask at once, and how often it may be answered with a popup.
struct Round {
    placement: &'static str,
    session: u64,
    cap: u32,
}

const fn round(placement: &'static str, session: u64, cap: u32) -> Round {
    Round { placement, session, cap }
}

const ROUNDS: [Round; 7] = [
    round("daily", 0, 2),
    round("total", 0, 3),
    round("session", 1, 1),
    round("session", 2, 1),
    round("gap", 0, 1),
    // The placement has a gap, its two popups have none.
    round("spaced", 0, 1),
    // The popup there has no cap: what the total of all popups leaves.
    round("rest", 0, REST),
];
const REST: u32 = 2;
/// Of all popups together: the caps of all rounds.
const TOTAL: u32 = 2 + 3 + 1 + 1 + 1 + 1 + REST;
const LONG_S: u64 = 24 * 60 * 60;
const PROBLEMS_MAX: usize = 10;

pub(crate) fn run(args: &PopupCapsArgs) -> Result<Verdict, LabError> {
    if args.users == 0 || args.devices < TOTAL as usize / 2 || args.lanes == 0 {
        let why = format!("--users and --lanes must be at least 1, --devices at least {}", TOTAL / 2);
        return Err(LabError::Usage(why));
    }
    let mut target = match args.target.url {
        Some(_) => Target::find(&args.target)?,
        None => Target::Own(Box::new(OwnServer::start()?)),
    };
    configure(&mut target.http())?;
    let live = Live::start("popup-caps");
    live.say("before the restart".into());
    let mut crowd = Crowd::new(args, target.keys().0);
    let first = crowd.drive(&target, args)?;
    let mut passes = vec![Pass::of(&crowd, &first, |round| round.cap)];
    if let Target::Own(own) = &mut target {
        live.say("after the restart".into());
        own.stop()?;
        own.launch()?;
        crowd.begin_again();
        let second = crowd.drive(&target, args)?;
        passes.push(Pass::of(&crowd, &second, |_| 0));
    }
    let counted = counted(&mut target.http())?;
    let answered: u64 = passes.iter().map(|pass| pass.shown).sum();
    live.end();
    let check = target.finish()?;
    for (pass, title) in passes.iter().zip(["before the restart", "after the restart"]) {
        pass.print(title, args);
    }
    println!("counted        {counted} by the server, {answered} answered");
    report::print_check(&check);
    let passed =
        passes.iter().all(Pass::is_clean) && counted == answered && check.as_ref().is_none_or(|check| check.passed);
    let value = json!({
        "bench": "popup-caps", "users": args.users, "devices": args.devices, "passes": passes,
        "answered": answered, "counted": counted, "check": check,
    });
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(if passed { Verdict::Passed } else { Verdict::Failed })
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
    refuse_others_popups(http)?;
    let settings = PopupSettings {
        caps: PopupCaps { total: Some(TOTAL), ..PopupCaps::default() },
        placements: BTreeMap::from([("spaced".to_owned(), PopupCaps { gap_s: Some(LONG_S), ..PopupCaps::default() })]),
        ..PopupSettings::default()
    };
    let _: Value = http.put("/v1/popup-settings", &settings)?;
    for (number, (id, placement, caps)) in popups().into_iter().enumerate() {
        let spec = PopupSpec {
            state: PopupState::Live,
            placements: vec![placement.to_owned()],
            time_zone: Some(zone_of_noon()),
            caps,
            variants: vec![variant(number as u64, "a", 1)?],
            ..PopupSpec::default()
        };
        put_popup(http, id, &spec)?;
    }
    Ok(())
}

/// A time zone in which it is about noon: a day that ended during the run would allow more.
fn zone_of_noon() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let ahead = 12 - (now / 3600 % 24) as i64;
    // In these names the sign is that of the way back to Greenwich.
    format!("Etc/GMT{}{}", if ahead > 0 { '-' } else { '+' }, ahead.abs())
}

fn counted(http: &mut HttpClient) -> Result<u64, LabError> {
    let mut counted = 0;
    for (id, ..) in popups() {
        counted += hours_of(http, id)?.iter().map(|hour| hour.shown).sum::<u64>();
    }
    Ok(counted)
}

/// Devices in lanes: all devices of a lane ask the same at once, and go on when all are answered.
struct Crowd {
    people: People,
    decide: Endpoint,
    users: u32,
    devices: usize,
    lanes: Vec<Lane>,
    /// Per connection: the step that it asks next.
    steps: Vec<usize>,
    /// Per user and round.
    shown: Vec<[u32; ROUNDS.len()]>,
    wrong: u64,
    problems: Vec<String>,
    body: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    step: usize,
    answered: usize,
}

impl Crowd {
    fn new(args: &PopupCapsArgs, api_key: &str) -> Self {
        Crowd {
            people: People::new(&format!("{}-", process::run_tag())),
            decide: Endpoint::post("/v1/popups/decide", api_key),
            users: args.users,
            devices: args.devices,
            lanes: vec![Lane::default(); args.lanes],
            steps: vec![0; args.devices * args.lanes],
            shown: vec![Default::default(); args.users as usize],
            wrong: 0,
            problems: Vec::new(),
            body: Vec::new(),
        }
    }

    fn begin_again(&mut self) {
        self.lanes.fill(Lane::default());
        self.steps.fill(0);
        self.shown.fill(Default::default());
    }

    fn drive(&mut self, target: &Target, args: &PopupCapsArgs) -> Result<Stretch, LabError> {
        let mut connections = Connections::open(target.address(), self.steps.len(), args.target.patience)?;
        connections.drive(self, Pace::Closed, Until::Done)
    }

    /// Whom the lane asks for, and in which round.
    fn question(&self, lane: usize) -> Option<(u32, usize)> {
        let step = self.lanes[lane].step;
        let user = (step / ROUNDS.len() * self.lanes.len() + lane) as u32;
        (user < self.users).then_some((user, step % ROUNDS.len()))
    }

    fn is_answered(&mut self, connection: usize) {
        let lane = &mut self.lanes[connection / self.devices];
        lane.answered += 1;
        if lane.answered == self.devices {
            *lane = Lane { step: lane.step + 1, answered: 0 };
        }
    }

    fn problem(&mut self, what: String) {
        self.wrong += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }
}

impl Traffic for Crowd {
    fn ask(&mut self, connection: usize, _now_ns: u64, out: &mut Vec<u8>) -> bool {
        let lane = connection / self.devices;
        if self.steps[connection] != self.lanes[lane].step {
            return false;
        }
        let Some((user, round)) = self.question(lane) else { return false };
        self.steps[connection] += 1;
        let Round { placement, session, .. } = ROUNDS[round];
        self.body.clear();
        self.people.put_question_in(&mut self.body, user, placement, u64::from(user) * 10 + session);
        self.decide.put(out, &self.body);
        true
    }

    fn answered(&mut self, connection: usize, _now_ns: u64, answer: &Answer<'_>) {
        if let Some((user, round)) = self.question(connection / self.devices) {
            match answer.status {
                200 => self.shown[user as usize][round] += 1,
                204 => {}
                _ => self.problem(format!("{}: {}", answer.status, String::from_utf8_lossy(answer.body))),
            }
        }
        self.is_answered(connection);
    }

    fn lost(&mut self, connection: usize) {
        self.problem("a connection broke before its answer".into());
        self.is_answered(connection);
    }
}

/// All users through all rounds, once.
#[derive(Debug, Default, Serialize)]
struct Pass {
    shown: u64,
    /// Users and rounds in which more was shown than the cap allows, and in which less was.
    exceeded: u64,
    missed: u64,
    wrong: u64,
    stretch: Stretch,
    problems: Vec<String>,
}

impl Pass {
    fn of(crowd: &Crowd, stretch: &Stretch, cap: impl Fn(&Round) -> u32) -> Self {
        let mut pass =
            Pass { wrong: crowd.wrong, stretch: stretch.clone(), problems: crowd.problems.clone(), ..Pass::default() };
        for (user, counts) in crowd.shown.iter().enumerate() {
            for (round, shown) in ROUNDS.iter().zip(counts) {
                pass.shown += u64::from(*shown);
                let cap = cap(round);
                pass.exceeded += u64::from(*shown > cap);
                pass.missed += u64::from(*shown < cap);
                if *shown != cap && pass.problems.len() < PROBLEMS_MAX {
                    let (id, placement) = (crowd.people.id(user as u32), round.placement);
                    pass.problems.push(format!("{id} at {placement}: shown {shown}, allowed are {cap}"));
                }
            }
        }
        pass
    }

    fn is_clean(&self) -> bool {
        self.exceeded + self.missed + self.wrong + self.stretch.broken == 0
    }

    fn print(&self, title: &str, args: &PopupCapsArgs) {
        println!(
            "{title}: {} users, {} devices each at once, {} kinds of caps: {} answers, {:.0}/s",
            args.users,
            args.devices,
            ROUNDS.len(),
            self.stretch.answers,
            self.stretch.per_second()
        );
        println!(
            "  caps         shown {}  exceeded {}  not reached {}  wrong answers {}",
            self.shown, self.exceeded, self.missed, self.wrong
        );
        for problem in &self.problems {
            println!("  ! {problem}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rounds_use_up_what_all_popups_may_be_shown() {
        assert_eq!(ROUNDS.iter().map(|round| round.cap).sum::<u32>(), TOTAL);
    }
}
