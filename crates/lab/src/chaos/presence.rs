//! The judge of presence: what every node answers, held against what the devices themselves know.

use super::{harm::Times, truth::Truth};
use crate::LabError;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::{
    http::{PresenceAnswer, PresenceQuery, UserPresence},
    limits::PRESENCE_BATCH_MAX,
};

/// Right for so long is right.
const STEADY: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// A node that is cut off does not answer at all.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
const EXAMPLES_MAX: usize = 5;

/// One node's answer held against the truth before it was asked and after it answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Look {
    pub(super) wrong: Vec<String>,
    /// Users who came or went meanwhile: whatever was said may be so.
    pub(super) unsure: usize,
    /// Said to be offline, though a device was there all the time since `harmed`.
    pub(super) told_offline: Vec<String>,
}

pub(super) fn look(before: &Truth, after: &Truth, answer: &[UserPresence], harmed: Instant) -> Look {
    let mut look = Look::default();
    let answer: BTreeMap<&str, &UserPresence> = answer.iter().map(|said| (said.user.as_str(), said)).collect();
    for (user, stand) in before {
        let Some(said) = answer.get(user.as_str()) else {
            look.wrong.push(format!("{user} is missing"));
            continue;
        };
        let Some(now) = after.get(user) else { continue };
        let stayed = stand.since.filter(|since| *since <= harmed && now.since == Some(*since));
        if stayed.is_some() && !said.online {
            look.told_offline.push(user.clone());
        }
        if stand.changing || now.changing || stand.changes != now.changes {
            look.unsure += 1;
            continue;
        }
        let devices: BTreeSet<&str> = said.devices.iter().map(|device| device.device_id.as_str()).collect();
        let true_devices: BTreeSet<&str> = stand.devices.iter().map(String::as_str).collect();
        if devices != true_devices || said.devices.len() != devices.len() || said.online == devices.is_empty() {
            let online = if said.online { "online" } else { "offline" };
            look.wrong.push(format!("{user} is {online} with {devices:?} instead of {true_devices:?}"));
        }
    }
    look
}

#[derive(Debug)]
struct Node {
    /// When the first of the looks in a row began that found nothing wrong.
    right_since: Option<Instant>,
    last: String,
}

/// What the nodes have answered in a step so far.
#[derive(Debug)]
pub(super) struct Judge {
    judged: Mutex<Judged>,
}

#[derive(Debug)]
struct Judged {
    nodes: Vec<Node>,
    harmed: Option<Instant>,
    told_offline: Vec<String>,
}

/// What a step came to.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Presence {
    /// From when the harm began to be undone until all nodes told the truth and went on doing so; absent: they did not.
    pub(super) right_s: Option<f64>,
    /// The same from when every part said that it is ready, which is what has a bound.
    pub(super) since_ready_s: Option<f64>,
    pub(super) bound_s: f64,
    /// Who stayed and was told to be offline, and where.
    pub(super) told_offline: Vec<String>,
    /// Changes that sessions were told.
    pub(super) told_changes: u64,
    /// Whether nobody may be, in this step.
    pub(super) nobody_may_be: bool,
    /// What is wrong still.
    pub(super) wrong: Vec<String>,
}

impl Presence {
    pub(super) fn passes(&self) -> bool {
        let in_time = self.since_ready_s.is_some_and(|seconds| seconds <= self.bound_s);
        in_time && (self.told_offline.is_empty() || !self.nobody_may_be)
    }
}

impl Judge {
    pub(super) fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| Node { right_since: None, last: "was not asked yet".into() }).collect();
        Judge { judged: Mutex::new(Judged { nodes, harmed: None, told_offline: Vec::new() }) }
    }

    fn judged(&self) -> MutexGuard<'_, Judged> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is there now and stays must not be told to be offline.
    pub(super) fn begin_harm(&self) {
        self.judged().harmed = Some(Instant::now());
    }

    /// Takes what a look at a node came to; `began` is when it was asked.
    fn note(&self, node: usize, began: Instant, found: Result<Look, String>) {
        let mut judged = self.judged();
        if let (Ok(look), Some(harmed)) = (&found, judged.harmed) {
            let after = began.saturating_duration_since(harmed).as_secs_f64();
            let told = look.told_offline.iter().map(|user| format!("{user} on node {node} after {after:.1} s"));
            let room = (EXAMPLES_MAX * 20).saturating_sub(judged.told_offline.len());
            judged.told_offline.extend(told.take(room));
        }
        let node = &mut judged.nodes[node];
        match found {
            Ok(look) if look.wrong.is_empty() && look.unsure == 0 => {
                node.right_since.get_or_insert(began);
            }
            Ok(look) => {
                node.right_since = None;
                let more = look.wrong.len() + look.unsure;
                let first = look.wrong.into_iter().next().unwrap_or_else(|| "devices come and go".to_owned());
                node.last = format!("{first} ({more} in all)");
            }
            Err(why) => {
                node.right_since = None;
                node.last = why;
            }
        }
    }

    /// Since when all nodes tell the truth, if they have for a while.
    fn right_since(&self) -> Option<Instant> {
        let judged = self.judged();
        let all: Option<Vec<Instant>> = judged.nodes.iter().map(|node| node.right_since).collect();
        let latest = all?.into_iter().max()?;
        (latest.elapsed() >= STEADY).then_some(latest)
    }

    /// What is wrong, by node.
    pub(super) fn wrong(&self) -> Vec<String> {
        let judged = self.judged();
        let nodes = judged.nodes.iter().enumerate().filter(|(_, node)| node.right_since.is_none());
        nodes.map(|(number, node)| format!("node {number}: {}", node.last)).collect()
    }

    /// Waits until all nodes have told the truth for a while.
    pub(super) fn await_right(&self, patience: Duration) -> bool {
        let asked = Instant::now();
        while self.right_since().is_none() && asked.elapsed() < patience {
            std::thread::sleep(BETWEEN_LOOKS / 4);
        }
        self.right_since().is_some()
    }

    pub(super) fn presence(&self, times: &Times, bound: Duration, nobody_may_be: bool) -> Presence {
        let right = self.right_since();
        let after = |start: Instant| right.map(|since| since.saturating_duration_since(start).as_secs_f64());
        // Not within the expression below, which would hold on to the lock.
        let told_offline = self.judged().told_offline.clone();
        Presence {
            right_s: after(times.mended),
            since_ready_s: after(times.undone),
            bound_s: bound.as_secs_f64(),
            told_offline,
            told_changes: 0,
            nobody_may_be,
            wrong: self.wrong(),
        }
    }

    /// Asks one node again and again, until `enough`.
    pub(super) fn follow(&self, node: usize, http: &mut HttpClient, truth: impl Fn() -> Truth, enough: &AtomicBool) {
        http.set_timeout(ASK_TIMEOUT);
        while !enough.load(Ordering::Relaxed) {
            let (began, before) = (Instant::now(), truth());
            let answer = ask(http, &before);
            let harmed = self.judged().harmed.unwrap_or(began);
            let found = answer.map(|answer| look(&before, &truth(), &answer, harmed));
            self.note(node, began, found.map_err(|error| format!("does not answer: {error}")));
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }
}

fn ask(http: &mut HttpClient, truth: &Truth) -> Result<Vec<UserPresence>, LabError> {
    let users: Vec<&String> = truth.keys().collect();
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
    use super::{super::truth::Stand, *};
    use tidings_protocol::http::DevicePresence;

    const MINUTE: Duration = Duration::from_secs(60);

    fn stand(devices: &[&str], since: Option<Instant>) -> Stand {
        let devices = devices.iter().map(|device| (*device).to_owned()).collect();
        Stand { devices, changes: 1, changing: false, since }
    }

    fn truth(stands: &[(&str, Stand)]) -> Truth {
        stands.iter().map(|(user, stand)| ((*user).to_owned(), stand.clone())).collect()
    }

    fn said(user: &str, online: bool, devices: &[&str]) -> UserPresence {
        let device = |device: &&str| -> DevicePresence {
            serde_json::from_value(serde_json::json!({
                "device_id": device, "device_kind": "web", "since": 1, "node": "a"
            }))
            .unwrap()
        };
        UserPresence { user: user.into(), online, devices: devices.iter().map(device).collect(), last_seen: None }
    }

    #[test]
    fn only_the_truth_is_right() {
        let harmed = Instant::now();
        let all = truth(&[("ann", stand(&["phone", "web"], None)), ("bob", stand(&[], None))]);
        let wrong = |answer: &[UserPresence]| look(&all, &all, answer, harmed).wrong;
        let bob = said("bob", false, &[]);
        assert_eq!(wrong(&[said("ann", true, &["web", "phone"]), bob.clone()]), Vec::<String>::new());
        assert_eq!(wrong(&[said("ann", true, &["phone"]), bob.clone()]).len(), 1, "a device is missing");
        assert_eq!(wrong(&[said("ann", true, &["phone", "web", "tv"]), bob.clone()]).len(), 1, "a ghost");
        assert_eq!(wrong(&[said("ann", true, &["phone", "web", "web"]), bob.clone()]).len(), 1, "one twice");
        assert_eq!(wrong(&[said("ann", false, &["phone", "web"]), bob.clone()]).len(), 1, "offline with devices");
        assert_eq!(wrong(&[said("ann", true, &["phone", "web"]), said("bob", true, &[])]).len(), 1, "within the grace");
        assert_eq!(wrong(&[bob]).len(), 1, "nothing is said of somebody");
    }

    #[test]
    fn who_comes_or_goes_meanwhile_says_nothing() {
        let harmed = Instant::now();
        let before = truth(&[("ann", stand(&["phone"], Some(harmed)))]);
        let mut after = before.clone();
        after.get_mut("ann").unwrap().changes += 1;
        let found = look(&before, &after, &[said("ann", true, &[])], harmed);
        assert_eq!((found.wrong.len(), found.unsure), (0, 1));
        let mut changing = before.clone();
        changing.get_mut("ann").unwrap().changing = true;
        assert_eq!(look(&changing, &changing, &[said("ann", true, &[])], harmed).unsure, 1);
    }

    #[test]
    fn only_who_stayed_is_told_offline_by_mistake() {
        let harmed = Instant::now();
        let offline = [said("ann", false, &[])];
        let told = |before: Option<Instant>, after: Option<Instant>| {
            let (before, after) = (stand(&["phone"], before), stand(&["phone"], after));
            look(&truth(&[("ann", before)]), &truth(&[("ann", after)]), &offline, harmed).told_offline.len()
        };
        let earlier = harmed.checked_sub(MINUTE).unwrap();
        assert_eq!(told(Some(earlier), Some(earlier)), 1);
        assert_eq!(told(Some(earlier), None), 0, "went meanwhile");
        let later = harmed + Duration::from_millis(1);
        assert_eq!(told(Some(later), Some(later)), 0, "came after the harm had begun");
    }

    #[test]
    fn a_step_fails_with_one_node_that_is_wrong_or_one_user_told_offline() {
        let judge = Judge::new(2);
        let now = Instant::now();
        let began = now.checked_sub(MINUTE).unwrap();
        judge.note(0, began, Ok(Look::default()));
        assert_eq!(judge.right_since(), None, "the other was not asked");
        judge.note(1, began, Err("does not answer".into()));
        assert_eq!(judge.right_since(), None);
        judge.note(1, began + STEADY, Ok(Look::default()));
        assert_eq!(judge.right_since(), Some(began + STEADY), "the later of the two");
        let times = Times { harmed: began, mended: began, undone: began };
        let passes = |bound: Duration, nobody_may_be: bool| judge.presence(&times, bound, nobody_may_be).passes();
        judge.note(0, now, Ok(Look { wrong: vec!["ann".into()], ..Look::default() }));
        assert!(!passes(MINUTE, true), "wrong again");
        judge.note(0, began, Ok(Look::default()));
        assert!(passes(MINUTE, true));
        assert!(!passes(STEADY / 2, true), "later than the bound");

        judge.judged().harmed = Some(began);
        judge.note(0, began, Ok(Look { told_offline: vec!["ann".into()], ..Look::default() }));
        assert!(!passes(MINUTE, true));
        assert!(passes(MINUTE, false), "where it may be");
    }

    #[test]
    fn what_was_right_until_just_now_may_be_wrong_soon() {
        let judge = Judge::new(1);
        judge.note(0, Instant::now(), Ok(Look::default()));
        assert_eq!(judge.right_since(), None);
    }
}
