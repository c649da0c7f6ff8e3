//! Runs the benches with popups against a small server with injected faults: each fault must fail the run, and a server
//! without a fault must pass. The same binary is that server: in runs that kill it, the lab starts it as `serve`.
// Slow: left out by `make test-quick`.

use crate::support::{
    http::{Request, listen, read_request, write_answer},
    lab::{Bench, FAILED, PASSED, command},
    trials::trial,
};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    fs::{File, OpenOptions},
    io::{BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for fault in
        [Fault::None, Fault::ExceedCaps, Fault::WrongRetryAfter, Fault::WrongContent, Fault::LoseEvent, Fault::Miscount]
    {
        trials.push(trial!(a_fault_fails_popup(fault)));
    }
    for fault in [Fault::None, Fault::ExceedCaps, Fault::Miscount] {
        trials.push(trial!(a_fault_fails_popup_caps(fault)));
    }
    for fault in [Fault::None, Fault::ForgetExposures, Fault::LoseEvent, Fault::AcceptDuplicates, Fault::InternalError]
    {
        trials.push(trial!(a_fault_fails_popup_crash(fault)));
    }
    trials
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Shows a user a popup again at once.
    ExceedCaps,
    /// Answers with a wrong `Retry-After`.
    WrongRetryAfter,
    WrongContent,
    /// Answers an event with 202 and does not count it.
    LoseEvent,
    /// Counts a decision twice.
    Miscount,
    /// Does not store exposures.
    ForgetExposures,
    /// Accepts a duplicate event as a new one.
    AcceptDuplicates,
    /// Answers a decision with status 500.
    InternalError,
}

const FAULTS: [Fault; 9] = [
    Fault::None,
    Fault::ExceedCaps,
    Fault::WrongRetryAfter,
    Fault::WrongContent,
    Fault::LoseEvent,
    Fault::Miscount,
    Fault::ForgetExposures,
    Fault::AcceptDuplicates,
    Fault::InternalError,
];
const FAULT_VARIABLE: &str = "TIDINGS_TEST_FAULT";
/// A file that grows by a byte with each fault of the server.
const FAULT_COUNT_VARIABLE: &str = "TIDINGS_TEST_FAULT_COUNT";
/// Of so many faults at least one is answered before a kill.
const FAULTS_MIN: u64 = 20;
/// On a busy machine a run may end before the server commits a fault: then the run is repeated, up to so often.
const RUNS_MAX: usize = 20;

fn a_fault_fails_popup(fault: Fault) {
    // On a slow machine, users may be due by the time of the answer, and be shown nothing when they are due next.
    let line = "popup --users 100 --popups 4 --gap 3s --warm 0s --duration 500ms --rate max --connections 4 \
                --nothing-share 0.2";
    assert_eq!(bench(line, fault), fault == Fault::None);
}

fn a_fault_fails_popup_caps(fault: Fault) {
    let line = "popup-caps --users 20 --devices 8 --lanes 2";
    assert_eq!(bench(line, fault), fault == Fault::None);
}

/// The lab starts the server, which gets its fault from the lab's environment.
fn a_fault_fails_popup_crash(fault: Fault) {
    let number = FAULTS.iter().position(|other| *other == fault).unwrap();
    let fault_count = tempfile::NamedTempFile::new().unwrap();
    let passes = passes(fault, || {
        let mut bench = command("popup-crash --kills 3 --seed 1");
        bench.env(FAULT_VARIABLE, number.to_string()).env(FAULT_COUNT_VARIABLE, fault_count.path());
        let passed = Bench::spawn(bench).end().code == PASSED;
        (passed, fault_count.as_file().metadata().unwrap().len() >= FAULTS_MIN)
    });
    assert_eq!(passes, fault == Fault::None);
}

/// Whether a run passes in which the server commits its fault. `run` returns whether it passed, and whether the fault was
/// committed.
fn passes(fault: Fault, mut run: impl FnMut() -> (bool, bool)) -> bool {
    for _ in 0..RUNS_MAX {
        match run() {
            (false, _) => return false,
            (true, faults_committed) if faults_committed || fault == Fault::None => return true,
            _ => {}
        }
    }
    panic!("the server never committed its fault: {fault:?}");
}

/// Whether a bench against a server with this fault passes; a failure must have the exit code of a server that failed.
fn bench(line: &str, fault: Fault) -> bool {
    // A failing run compares counts again until its patience ends, so that is short; a passing one may be slow.
    let patience = if fault == Fault::None { "60s" } else { "2s" };
    passes(fault, || {
        let state = Arc::new(Mutex::new(State::new(fault, None)));
        let url = format!("http://{}", serve(&state));
        let ended = Bench::start(&format!("{line} --url {url} --api-key k --token-key t --patience {patience}")).end();
        assert!([PASSED, FAILED].contains(&ended.code), "{}", ended.code);
        let fault_count = state.lock().unwrap().fault_count;
        // One faulty answer that took very long may be right after all, but not several.
        (ended.code == PASSED, fault_count >= if fault == Fault::Miscount { 1 } else { 5 })
    })
}

/// Whether this process was started by a lab that was told a fault: then it is the lab's server.
pub(crate) fn is_server() -> bool {
    std::env::var_os(FAULT_VARIABLE).is_some()
}

/// This binary as the server process of the lab.
pub(crate) fn serve_process() {
    let folder = PathBuf::from(std::env::var("TIDINGS_DATA_DIR").unwrap());
    let fault = FAULTS[std::env::var(FAULT_VARIABLE).unwrap().parse::<usize>().unwrap()];
    let log = Some(folder.join("log"));
    let address = serve(&Arc::new(Mutex::new(State::new(fault, log))));
    std::fs::write(folder.join("listening"), format!("http={address}\n")).unwrap();
    loop {
        std::thread::park();
    }
}

fn serve(state: &Arc<Mutex<State>>) -> SocketAddr {
    let state = state.clone();
    listen(move |stream| connection(stream, &state))
}

/// Answers requests until the client closes its connection.
fn connection(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let Request { method, path, body, .. } = read_request(&mut reader)?;
        let (status, retry_after, body) = state.lock().unwrap().answer(&method, &path, &body);
        let wait = retry_after.map_or(String::new(), |seconds| format!("Retry-After: {seconds}\r\n"));
        write_answer(&mut stream, &format!("{status} X"), &wait, &body)?;
    }
}

struct State {
    fault: Fault,
    settings: Value,
    popups: HashMap<String, Value>,
    /// By user: the time, popup and session of each exposure.
    shown: HashMap<String, Vec<(u64, String, Value)>>,
    /// Counts by popup, of exposures and each kind of event.
    counts: HashMap<String, HashMap<String, u64>>,
    known: HashSet<String>,
    export: Vec<Value>,
    decisions: u64,
    log: Option<File>,
    /// How often the fault was committed.
    fault_count: u64,
}

type Answer = (u16, Option<u64>, String);

impl State {
    /// The state by the log, if there is one, otherwise an empty one.
    fn new(fault: Fault, log: Option<PathBuf>) -> Self {
        let mut state = State {
            fault,
            settings: json!({}),
            popups: HashMap::new(),
            shown: HashMap::new(),
            counts: HashMap::new(),
            known: HashSet::new(),
            export: Vec::new(),
            decisions: 0,
            log: None,
            fault_count: 0,
        };
        if let Some(log) = log {
            let written = std::fs::read_to_string(&log).unwrap_or_default();
            for line in written.lines() {
                state.apply(&serde_json::from_str(line).unwrap());
            }
            state.log = Some(OpenOptions::new().create(true).append(true).open(log).unwrap());
        }
        state
    }

    fn record_fault(&mut self) {
        self.fault_count += 1;
        if let Some(file) = std::env::var_os(FAULT_COUNT_VARIABLE) {
            OpenOptions::new().append(true).open(file).unwrap().write_all(b"!").unwrap();
        }
    }

    fn write(&mut self, change: Value) {
        let forgets = self.fault == Fault::ForgetExposures && change["is"] == "shown";
        if forgets {
            self.record_fault();
        }
        if let Some(log) = &mut self.log
            && !forgets
        {
            // One write with the newline: a kill comes before or after it.
            log.write_all(format!("{change}\n").as_bytes()).unwrap();
        }
        self.apply(&change);
    }

    fn apply(&mut self, change: &Value) {
        let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
        match text("is").as_str() {
            "settings" => self.settings = change["value"].clone(),
            "popup" => drop(self.popups.insert(text("id"), change["value"].clone())),
            "shown" => {
                self.decisions += 1;
                let shown = (change["at"].as_u64().unwrap(), text("popup"), change["session"].clone());
                self.shown.entry(text("user")).or_default().push(shown);
                let is_twice = self.fault == Fault::Miscount && self.decisions == 20;
                if is_twice {
                    self.record_fault();
                }
                let twice = u64::from(is_twice);
                *self.counts.entry(text("popup")).or_default().entry("shown".into()).or_default() += 1 + twice;
            }
            _ => {
                self.known.insert(text("id"));
                *self.counts.entry(text("popup")).or_default().entry(text("type")).or_default() += 1;
                self.export.push(change.clone());
            }
        }
    }

    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        match (method, path) {
            ("POST", "/v1/popups/decide") => return self.decide(&value),
            ("POST", "/v1/popup-events") => return self.take_events(&value),
            ("GET", "/v1/popup-events") => {
                let number = |name: &str| {
                    let field = query.split('&').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                    field.unwrap().parse::<u64>().unwrap()
                };
                let times = number("from")..number("to");
                let events = self.export.iter().filter(|event| times.contains(&event["taken_at"].as_u64().unwrap()));
                return (200, None, events.map(|event| format!("{event}\n")).collect());
            }
            ("GET", "/v1/popups") => return (200, None, json!({ "popups": [] }).to_string()),
            ("PUT", "/v1/popup-settings") => self.write(json!({ "is": "settings", "value": value })),
            ("PUT", _) if path.starts_with("/v1/popups/") => {
                let id = path.rsplit('/').next().unwrap();
                self.write(json!({ "is": "popup", "id": id, "value": value }));
            }
            ("GET", _) if path.ends_with("/counts") => {
                let id = path.split('/').nth(3).unwrap();
                let count = |name: &str| self.counts.get(id).and_then(|counts| counts.get(name)).copied().unwrap_or(0);
                let hour = json!({
                    "hour": 0, "variant": "a", "shown": count("shown"), "control": 0,
                    "impressions": count("impression"), "clicks": count("click"), "buttons": 0,
                    "dismissals": count("dismiss"), "conversions": 0,
                });
                return (200, None, json!({ "popup": id, "hours": [hour] }).to_string());
            }
            _ => {}
        }
        (200, None, "{}".into())
    }

    /// Shows the placement's popup with the first id, whatever its audience; or returns the seconds until it may be shown.
    fn decide(&mut self, question: &Value) -> Answer {
        let user = question["user"].as_str().unwrap();
        let placement = question["placement"].as_str().unwrap();
        if self.fault == Fault::InternalError && user.ends_with('7') {
            self.record_fault();
            return (500, None, "{}".into());
        }
        let at_placement = |spec: &Value| spec["placements"].as_array().unwrap().iter().any(|p| p == placement);
        let mut here: Vec<&String> =
            self.popups.iter().filter(|(_, spec)| at_placement(spec)).map(|(id, _)| id).collect();
        here.sort();
        let Some(id) = here.first().copied().cloned() else { return (204, None, String::new()) };
        let spec = self.popups[&id].clone();
        let shown = self.shown.get(user).cloned().unwrap_or_default();
        let is_here = |popup: &String| at_placement(&self.popups[popup]);
        let waits = [
            wait(&self.settings["caps"], question, shown.iter()),
            wait(
                &self.settings["placements"][placement],
                question,
                shown.iter().filter(|(_, popup, _)| is_here(popup)),
            ),
            wait(&spec["caps"], question, shown.iter().filter(|(_, popup, _)| *popup == id)),
        ];
        let breaks = self.fault == Fault::ExceedCaps && matches!(shown.len(), 1 | 2) && user.ends_with('7');
        if let Some(wait_ms) = waits.into_iter().flatten().max() {
            let is_late = self.fault == Fault::WrongRetryAfter && user.ends_with('7');
            if is_late || breaks {
                self.record_fault();
            }
            if !breaks {
                let late = if is_late { 5 } else { 0 };
                return (204, (wait_ms < u64::MAX).then(|| wait_ms.div_ceil(1000) + late), String::new());
            }
        }
        self.write(json!({ "is": "shown", "user": user, "popup": id, "at": now_ms(), "session": question["session"] }));
        let mut variant = spec["variants"][0].clone();
        if self.fault == Fault::WrongContent && user.ends_with('7') {
            self.record_fault();
            variant["content"]["title"] = json!("another");
        }
        let decision = format!("{id}.{user}");
        let answer =
            json!({ "decision": decision, "popup": id, "variant": variant["id"], "content": variant["content"] });
        (200, None, answer.to_string())
    }

    fn take_events(&mut self, events: &Value) -> Answer {
        let (mut accepted, mut duplicates) = (0, 0);
        for event in events["events"].as_array().unwrap() {
            let id = event["id"].as_str().unwrap();
            if self.known.contains(id) {
                if self.fault != Fault::AcceptDuplicates {
                    duplicates += 1;
                    continue;
                }
                self.record_fault();
            }
            accepted += 1;
            if self.fault == Fault::LoseEvent && id.ends_with('7') {
                self.record_fault();
                continue;
            }
            let (popup, user) = event["decision"].as_str().unwrap().split_once('.').unwrap();
            let now = now_ms();
            self.write(json!({
                "is": "event", "taken_at": now, "at": now, "id": id, "type": event["type"], "popup": popup, "variant": "a",
                "decision": event["decision"], "user": user,
            }));
        }
        (202, None, json!({ "accepted": accepted, "duplicates": duplicates }).to_string())
    }
}

/// How many milliseconds these caps still forbid a popup; `u64::MAX`: for good.
fn wait<'a>(
    caps: &Value,
    question: &Value,
    shown: impl Iterator<Item = &'a (u64, String, Value)> + Clone,
) -> Option<u64> {
    let reached = |count: usize, cap: &Value| cap.as_u64().is_some_and(|cap| count as u64 >= cap);
    let session = shown.clone().filter(|(_, _, session)| *session == question["session"]).count();
    if reached(shown.clone().count(), &caps["total"])
        || reached(shown.clone().count(), &caps["per_day"])
        || reached(session, &caps["per_session"])
    {
        return Some(u64::MAX);
    }
    let last = shown.map(|(at, ..)| *at).max()?;
    let until = last + caps["gap_s"].as_u64()? * 1000;
    until.checked_sub(now_ms()).filter(|left| *left > 0)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
