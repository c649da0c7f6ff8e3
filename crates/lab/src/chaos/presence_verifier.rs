//! Verifies presence: compares the answers of every node with what the devices themselves know.

use super::{expected_presence::ExpectedPresence, fault_injector::FaultTimes};
use crate::{LabError, lock::lock};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::{
    http::{PresenceAnswer, PresenceQuery, UserPresence},
    limits::PRESENCE_BATCH_MAX,
};

/// Answers must be right for so long before presence counts as right.
const STEADY_FOR: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The longest wait for an answer: a partitioned node does not answer at all.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const EXAMPLES_MAX: usize = 5;

/// The comparison of one node's answer with the expected presence before the question and after the answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AnswerCheck {
    pub(super) wrong: Vec<String>,
    /// Users whose sessions changed meanwhile, so that any answer may be right.
    pub(super) unsure: usize,
    /// Users who were called offline although a session had lasted since before `injected`.
    pub(super) told_offline: Vec<String>,
}

pub(super) fn check_answer(
    before: &ExpectedPresence,
    after: &ExpectedPresence,
    answer: &[UserPresence],
    injected: Instant,
) -> AnswerCheck {
    let mut check = AnswerCheck::default();
    let answer: BTreeMap<&str, &UserPresence> =
        answer.iter().map(|reported| (reported.user.as_str(), reported)).collect();
    for (user, user_state) in before {
        let Some(reported) = answer.get(user.as_str()) else {
            check.wrong.push(format!("{user} is missing"));
            continue;
        };
        let Some(now) = after.get(user) else { continue };
        let stayed = user_state.since.filter(|since| *since <= injected && now.since == Some(*since));
        if stayed.is_some() && !reported.online {
            check.told_offline.push(user.clone());
        }
        if user_state.changing || now.changing || user_state.changes != now.changes {
            check.unsure += 1;
            continue;
        }
        let devices: BTreeSet<&str> = reported.devices.iter().map(|device| device.device_id.as_str()).collect();
        let expected_devices: BTreeSet<&str> = user_state.devices.iter().map(String::as_str).collect();
        if devices != expected_devices
            || reported.devices.len() != devices.len()
            || reported.online == devices.is_empty()
        {
            let online = if reported.online { "online" } else { "offline" };
            check.wrong.push(format!("{user} is {online} with {devices:?} instead of {expected_devices:?}"));
        }
    }
    check
}

#[derive(Debug)]
struct NodeAnswers {
    /// When the first of the latest consecutive right answers was asked for.
    correct_since: Option<Instant>,
    last: String,
}

/// Verifies the nodes' answers during one step.
#[derive(Debug)]
pub(super) struct PresenceVerifier {
    state: Mutex<VerifierState>,
}

#[derive(Debug)]
struct VerifierState {
    nodes: Vec<NodeAnswers>,
    injected: Option<Instant>,
    told_offline: Vec<String>,
}

/// The result of a step for presence.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PresenceResult {
    /// Seconds from the start of the last reversal until all nodes answered rightly for good; `None`: they did not.
    pub(super) right_s: Option<f64>,
    /// The same from when every component was ready, which is compared with the bound.
    pub(super) since_ready_s: Option<f64>,
    pub(super) bound_s: f64,
    /// Users who stayed connected and were called offline, with the node and the time.
    pub(super) told_offline: Vec<String>,
    /// Changes of presence that watching sessions received.
    pub(super) told_changes: u64,
    /// Whether no user who stays connected may be called offline in this step.
    #[serde(rename = "nobody_may_be")]
    pub(super) offline_forbidden: bool,
    /// Nodes of two versions ran at the end, which may know of each other's sessions less than they should: but not call users
    /// offline who are there.
    pub(super) two_versions: bool,
    /// What is still wrong at the end, by node.
    pub(super) wrong: Vec<String>,
}

impl PresenceResult {
    pub(super) fn passes(&self) -> bool {
        let in_time = self.since_ready_s.is_some_and(|seconds| seconds <= self.bound_s);
        (in_time || self.two_versions) && (self.told_offline.is_empty() || !self.offline_forbidden)
    }

    pub(super) fn in_words(&self) -> String {
        let right = match (self.right_s, self.since_ready_s) {
            (Some(right), Some(since_ready)) => {
                let within = if since_ready <= self.bound_s { "within" } else { "NOT within" };
                format!(
                    "right again after {right:.1} s, {since_ready:.1} s after every part was ready, {within} {:.1} s",
                    self.bound_s
                )
            }
            _ if self.two_versions => "not exact between the two versions".to_owned(),
            _ => format!("NOT right again within {:.1} s", self.bound_s),
        };
        let count = self.told_offline.len();
        let told_offline = match (count, self.offline_forbidden) {
            (0, _) => "nobody who stayed was told offline".to_owned(),
            (_, true) => format!("TOLD OFFLINE though they stayed: {count} times"),
            (_, false) => format!("told offline though they stayed: {count} times, their node's lease being over"),
        };
        format!("{right}  {told_offline} (sessions were told {} changes)", self.told_changes)
    }
}

impl PresenceVerifier {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| NodeAnswers { correct_since: None, last: "was not asked yet".into() }).collect();
        PresenceVerifier { state: Mutex::new(VerifierState { nodes, injected: None, told_offline: Vec::new() }) }
    }

    /// The fault begins: users who are online now and stay connected should not be called offline.
    pub(super) fn start_fault(&self) {
        lock(&self.state).injected = Some(Instant::now());
    }

    /// Records the check of a node's answer; `began` is when it was asked for.
    fn record(&self, node: usize, began: Instant, found: Result<AnswerCheck, String>) {
        let mut state = lock(&self.state);
        if let (Ok(check), Some(injected)) = (&found, state.injected) {
            let after = began.saturating_duration_since(injected).as_secs_f64();
            let told = check.told_offline.iter().map(|user| format!("{user} on node {node} after {after:.1} s"));
            let room = (EXAMPLES_MAX * 20).saturating_sub(state.told_offline.len());
            state.told_offline.extend(told.take(room));
        }
        let node = &mut state.nodes[node];
        match found {
            Ok(check) if check.wrong.is_empty() && check.unsure == 0 => {
                node.correct_since.get_or_insert(began);
            }
            Ok(check) => {
                node.correct_since = None;
                let more = check.wrong.len() + check.unsure;
                let first = check.wrong.into_iter().next().unwrap_or_else(|| "devices come and go".to_owned());
                node.last = format!("{first} ({more} in all)");
            }
            Err(why) => {
                node.correct_since = None;
                node.last = why;
            }
        }
    }

    /// Since when all nodes have answered rightly, if that was long enough.
    fn correct_since(&self) -> Option<Instant> {
        let state = lock(&self.state);
        let all: Option<Vec<Instant>> = state.nodes.iter().map(|node| node.correct_since).collect();
        let latest = all?.into_iter().max()?;
        (latest.elapsed() >= STEADY_FOR).then_some(latest)
    }

    /// The nodes whose last answer was wrong, with the first difference.
    pub(super) fn wrong(&self) -> Vec<String> {
        let state = lock(&self.state);
        let nodes = state.nodes.iter().enumerate().filter(|(_, node)| node.correct_since.is_none());
        nodes.map(|(number, node)| format!("node {number}: {}", node.last)).collect()
    }

    /// Waits until all nodes have answered rightly for long enough.
    pub(super) fn await_correct(&self, patience: Duration) -> bool {
        let asked = Instant::now();
        while self.correct_since().is_none() && asked.elapsed() < patience {
            std::thread::sleep(POLL_INTERVAL / 4);
        }
        self.correct_since().is_some()
    }

    pub(super) fn result(&self, times: &FaultTimes, bound: Duration, offline_forbidden: bool) -> PresenceResult {
        let right = self.correct_since();
        let after = |start: Instant| right.map(|since| since.saturating_duration_since(start).as_secs_f64());
        // A statement of its own, so that the lock is released before `wrong` takes it.
        let told_offline = lock(&self.state).told_offline.clone();
        PresenceResult {
            right_s: after(times.revert_began),
            since_ready_s: after(times.reverted),
            bound_s: bound.as_secs_f64(),
            told_offline,
            told_changes: 0,
            offline_forbidden,
            two_versions: false,
            wrong: self.wrong(),
        }
    }

    /// Queries one node again and again, until `stop`.
    pub(super) fn poll_node(
        &self,
        node: usize,
        http: &mut HttpClient,
        expected: impl Fn() -> ExpectedPresence,
        stop: &AtomicBool,
    ) {
        http.set_timeout(REQUEST_TIMEOUT);
        while !stop.load(Ordering::Relaxed) {
            let (began, before) = (Instant::now(), expected());
            let answer = query_presence(http, &before);
            let injected = lock(&self.state).injected.unwrap_or(began);
            let found = answer.map(|answer| check_answer(&before, &expected(), &answer, injected));
            self.record(node, began, found.map_err(|error| format!("does not answer: {error}")));
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn query_presence(http: &mut HttpClient, expected: &ExpectedPresence) -> Result<Vec<UserPresence>, LabError> {
    let users: Vec<&String> = expected.keys().collect();
    let mut all = Vec::with_capacity(users.len());
    for part in users.chunks(PRESENCE_BATCH_MAX) {
        let query = PresenceQuery { users: part.iter().map(|user| (*user).clone()).collect() };
        let answer: PresenceAnswer = http.post("/v1/presence/query", &query)?;
        all.extend(answer.users);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::expected_presence::ExpectedUser, *};
    use tidings_protocol::http::DevicePresence;

    const MINUTE: Duration = Duration::from_secs(60);

    fn user_state(devices: &[&str], since: Option<Instant>) -> ExpectedUser {
        let devices = devices.iter().map(|device| (*device).to_owned()).collect();
        ExpectedUser { devices, changes: 1, changing: false, since }
    }

    fn expected(users: &[(&str, ExpectedUser)]) -> ExpectedPresence {
        users.iter().map(|(user, user_state)| ((*user).to_owned(), user_state.clone())).collect()
    }

    fn reported(user: &str, online: bool, devices: &[&str]) -> UserPresence {
        let device = |device: &&str| -> DevicePresence {
            serde_json::from_value(serde_json::json!({
                "device_id": device, "device_kind": "web", "since": 1, "node": "a"
            }))
            .unwrap()
        };
        UserPresence {
            user: user.into(),
            online,
            active: online,
            devices: devices.iter().map(device).collect(),
            last_seen: None,
        }
    }

    #[test]
    fn an_answer_is_right_only_with_exactly_the_devices_that_have_sessions() {
        let injected = Instant::now();
        let all = expected(&[("ann", user_state(&["phone", "web"], None)), ("bob", user_state(&[], None))]);
        let wrong = |answer: &[UserPresence]| check_answer(&all, &all, answer, injected).wrong;
        let bob = reported("bob", false, &[]);
        assert_eq!(wrong(&[reported("ann", true, &["web", "phone"]), bob.clone()]), Vec::<String>::new());
        assert_eq!(wrong(&[reported("ann", true, &["phone"]), bob.clone()]).len(), 1, "a device is missing");
        assert_eq!(wrong(&[reported("ann", true, &["phone", "web", "tv"]), bob.clone()]).len(), 1, "a ghost");
        assert_eq!(wrong(&[reported("ann", true, &["phone", "web", "web"]), bob.clone()]).len(), 1, "one twice");
        assert_eq!(wrong(&[reported("ann", false, &["phone", "web"]), bob.clone()]).len(), 1, "offline with devices");
        assert_eq!(
            wrong(&[reported("ann", true, &["phone", "web"]), reported("bob", true, &[])]).len(),
            1,
            "within the grace"
        );
        assert_eq!(wrong(&[bob]).len(), 1, "a user is missing");
    }

    #[test]
    fn users_whose_sessions_change_meanwhile_are_unsure() {
        let injected = Instant::now();
        let before = expected(&[("ann", user_state(&["phone"], Some(injected)))]);
        let mut after = before.clone();
        after.get_mut("ann").unwrap().changes += 1;
        let found = check_answer(&before, &after, &[reported("ann", true, &[])], injected);
        assert_eq!((found.wrong.len(), found.unsure), (0, 1));
        let mut changing = before.clone();
        changing.get_mut("ann").unwrap().changing = true;
        assert_eq!(check_answer(&changing, &changing, &[reported("ann", true, &[])], injected).unsure, 1);
    }

    #[test]
    fn only_users_who_stayed_connected_count_as_told_offline() {
        let injected = Instant::now();
        let offline = [reported("ann", false, &[])];
        let told_offline = |before: Option<Instant>, after: Option<Instant>| {
            let (before, after) = (user_state(&["phone"], before), user_state(&["phone"], after));
            check_answer(&expected(&[("ann", before)]), &expected(&[("ann", after)]), &offline, injected)
                .told_offline
                .len()
        };
        let earlier = injected.checked_sub(MINUTE).unwrap();
        assert_eq!(told_offline(Some(earlier), Some(earlier)), 1);
        assert_eq!(told_offline(Some(earlier), None), 0, "went meanwhile");
        let later = injected + Duration::from_millis(1);
        assert_eq!(told_offline(Some(later), Some(later)), 0, "connected after the fault was injected");
    }

    #[test]
    fn a_step_fails_with_one_wrong_node_or_one_user_told_offline() {
        let presence_verifier = PresenceVerifier::new(2);
        let now = Instant::now();
        let began = now.checked_sub(MINUTE).unwrap();
        presence_verifier.record(0, began, Ok(AnswerCheck::default()));
        assert_eq!(presence_verifier.correct_since(), None, "the other was not asked");
        presence_verifier.record(1, began, Err("does not answer".into()));
        assert_eq!(presence_verifier.correct_since(), None);
        presence_verifier.record(1, began + STEADY_FOR, Ok(AnswerCheck::default()));
        assert_eq!(presence_verifier.correct_since(), Some(began + STEADY_FOR), "the later of the two");
        let times = FaultTimes { injected: began, revert_began: began, reverted: began };
        let passes = |bound: Duration, offline_forbidden: bool| {
            presence_verifier.result(&times, bound, offline_forbidden).passes()
        };
        presence_verifier.record(0, now, Ok(AnswerCheck { wrong: vec!["ann".into()], ..AnswerCheck::default() }));
        assert!(!passes(MINUTE, true), "wrong again");
        presence_verifier.record(0, began, Ok(AnswerCheck::default()));
        assert!(passes(MINUTE, true));
        assert!(!passes(STEADY_FOR / 2, true), "later than the bound");

        lock(&presence_verifier.state).injected = Some(began);
        presence_verifier.record(
            0,
            began,
            Ok(AnswerCheck { told_offline: vec!["ann".into()], ..AnswerCheck::default() }),
        );
        assert!(!passes(MINUTE, true));
        assert!(passes(MINUTE, false), "where it may be");
    }

    #[test]
    fn one_right_answer_is_not_yet_steady() {
        let presence_verifier = PresenceVerifier::new(1);
        presence_verifier.record(0, Instant::now(), Ok(AnswerCheck::default()));
        assert_eq!(presence_verifier.correct_since(), None);
    }
}
