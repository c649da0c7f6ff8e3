//! Counts what members who are offline are told of, and holds it to what they are to be told.

use super::notice::{Notice, NoticeSink, OfflineRoad};
use crate::{
    interrupt,
    latency::{Percentiles, new_histogram},
};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How often a wait looks whether Ctrl-C ended the run.
const POLL: Duration = Duration::from_millis(100);
/// Faults that are named.
const EXAMPLES_MAX: usize = 3;

/// A request that no notice can be read from, in words.
pub(super) fn fault_of(double: &str, why: &str) -> String {
    format!("a request to the {double} double: {why}")
}

/// Messages of one conversation: a bit for each `seq`.
#[derive(Debug, Default)]
struct Seqs {
    words: Vec<u64>,
    count: u64,
}

impl Seqs {
    /// Answers whether it is new.
    fn add(&mut self, seq: u64) -> bool {
        let (word, bit) = ((seq / 64) as usize, 1 << (seq % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(is_new);
        is_new
    }

    fn has(&self, seq: u64) -> bool {
        self.words.get((seq / 64) as usize).is_some_and(|word| word & 1 << (seq % 64) != 0)
    }

    /// How many are in both.
    fn count_in(&self, others: &Seqs) -> u64 {
        self.words.iter().zip(&others.words).map(|(word, other)| u64::from((word & other).count_ones())).sum()
    }
}

/// What one user, or one device, was told of a conversation.
#[derive(Debug, Default)]
struct Told {
    seqs: Seqs,
    newest: u64,
}

/// By the user, or for vendors by user and device.
type ToldByPerson = HashMap<String, Told>;

/// All that one road has told.
#[derive(Debug)]
struct RoadTally {
    conversations: HashMap<String, ToldByPerson>,
    told: u64,
    doubled: u64,
    overtaken: u64,
    requests: u64,
    /// From the message's time stamp to its notice, in microseconds.
    delay: Histogram<u64>,
    last_at: Instant,
}

impl Default for RoadTally {
    fn default() -> Self {
        RoadTally {
            conversations: HashMap::new(),
            told: 0,
            doubled: 0,
            overtaken: 0,
            requests: 0,
            delay: new_histogram(),
            last_at: Instant::now(),
        }
    }
}

impl RoadTally {
    fn of<'a>(&'a self, conversation: &str, person: &str) -> Option<&'a Told> {
        self.conversations.get(conversation)?.get(person)
    }
}

#[derive(Debug, Default)]
struct Tallies {
    roads: BTreeMap<OfflineRoad, RoadTally>,
    problems: Vec<String>,
}

/// Counts notices. The doubles' threads and the bench share it.
#[derive(Debug, Default)]
pub(crate) struct NoticeTally {
    tallies: Mutex<Tallies>,
    changed: Condvar,
}

/// The notices that are due in one conversation.
#[derive(Debug, Clone)]
pub(crate) struct Expectation {
    pub(crate) conversation: String,
    /// The members who are offline, each with the user's devices and the vendor of each.
    pub(crate) members: Vec<(String, Vec<(OfflineRoad, String)>)>,
    /// The `seq` of each message, in order, and who sent it, who is not told of it.
    pub(crate) messages: Vec<(u64, Option<String>)>,
}

/// What became, on one road, of the messages for members who are offline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RoadCounts {
    pub(crate) road: OfflineRoad,
    pub(crate) expected: u64,
    pub(crate) told: u64,
    /// Not told since the device was told of a newer message of the conversation: vendors show the newest alone.
    pub(crate) superseded: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Told to those who are online, or of messages that they sent.
    pub(crate) unentitled: u64,
    /// Vendors' notices that came after that of a newer message of the conversation, whose place they take.
    pub(crate) overtaken: u64,
    pub(crate) requests: u64,
    /// From the end of the load to the last notice.
    pub(crate) lag_seconds: f64,
    /// From the message's time stamp, which has milliseconds, to its notice, in milliseconds; of the webhook, whose events have it.
    pub(crate) delay: Option<Percentiles>,
}

impl RoadCounts {
    pub(crate) fn balances(&self) -> bool {
        self.lost + self.doubled + self.unentitled + self.overtaken == 0 && self.told + self.superseded == self.expected
    }
}

/// What became of the messages for members who are offline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OfflineCounts {
    pub(crate) via: String,
    pub(crate) messages: u64,
    pub(crate) members: u64,
    pub(crate) roads: Vec<RoadCounts>,
    pub(crate) problems: Vec<String>,
}

impl OfflineCounts {
    pub(crate) fn balances(&self) -> bool {
        self.problems.is_empty() && self.roads.iter().all(RoadCounts::balances)
    }

    pub(crate) fn print(&self) {
        let OfflineCounts { via, messages, members, roads, problems } = self;
        println!("offline push   via {via}: {messages} messages, {members} members offline");
        for counts in roads {
            let RoadCounts { road, expected, told, superseded, lost, doubled, unentitled, overtaken, requests, .. } =
                counts;
            print!("  {:<9}    told {told} of {expected}  lost {lost}  doubled {doubled}", road.name());
            if road.collapses() {
                print!("  superseded {superseded}  overtaken {overtaken}");
            }
            print!(
                "  unentitled {unentitled}  requests {requests}  the last {:.2} s after the load",
                counts.lag_seconds
            );
            match counts.delay {
                Some(delay) => println!("  ms p50 {:.0} p99 {:.0} p100 {:.0}", delay.p50, delay.p99, delay.max),
                None => println!(),
            }
        }
        for problem in problems {
            println!("  ! {problem}");
        }
    }
}

impl NoticeSink for NoticeTally {
    fn note(&self, notices: &[Notice<'_>]) {
        let Some(first) = notices.first() else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut tallies = self.tallies();
        let tally = tallies.roads.entry(first.road).or_default();
        tally.requests += 1;
        tally.last_at = Instant::now();
        for notice in notices {
            if notice.withdrawn {
                let Notice { road, user, conversation, seq, .. } = notice;
                tallies.problems.push(format!("{road}: {user} has not read {conversation} {seq}, which was withdrawn"));
                continue;
            }
            let tally = tallies.roads.entry(notice.road).or_default();
            if let Some(at) = notice.sent_at_ms {
                let delay = now.saturating_sub(Duration::from_millis(at));
                tally.delay.saturating_record((delay.as_micros() as u64).max(1));
            }
            let people = match tally.conversations.get_mut(notice.conversation) {
                Some(people) => people,
                None => tally.conversations.entry(notice.conversation.to_owned()).or_default(),
            };
            let told = match notice.device.is_empty() {
                true => match people.get_mut(notice.user) {
                    Some(told) => told,
                    None => people.entry(notice.user.to_owned()).or_default(),
                },
                false => people.entry(person(notice.user, notice.device)).or_default(),
            };
            if notice.road.collapses() && notice.seq < told.newest {
                tally.overtaken += 1;
            }
            told.newest = told.newest.max(notice.seq);
            match told.seqs.add(notice.seq) {
                true => tally.told += 1,
                false => tally.doubled += 1,
            }
        }
        self.changed.notify_all();
    }

    fn fault(&self, problem: String) {
        self.tallies().problems.push(problem);
    }
}

/// A device of a user, as it is counted.
fn person(user: &str, device: &str) -> String {
    if device.is_empty() { user.to_owned() } else { format!("{user} on {device}") }
}

impl NoticeTally {
    fn tallies(&self) -> MutexGuard<'_, Tallies> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn problems(&self) -> usize {
        self.tallies().problems.len()
    }

    /// Waits until all that is expected was told on these roads, or nothing came for `patience`.
    pub(crate) fn finish(
        &self,
        roads: &[OfflineRoad],
        expectations: &[Expectation],
        patience: Duration,
    ) -> OfflineCounts {
        let began = Instant::now();
        let mut tallies = self.tallies();
        loop {
            let is_over = |road: &OfflineRoad| {
                let tally = tallies.roads.entry(*road).or_default();
                let is_quiet = tally.last_at.max(began).elapsed() >= patience;
                is_quiet || is_complete(tally, *road, expectations)
            };
            if interrupt::requested() || roads.iter().all(is_over) {
                break;
            }
            // Not at every notice: to look at all of them takes a while.
            let waited = self.changed.wait_timeout(tallies, POLL).unwrap_or_else(PoisonError::into_inner);
            tallies = waited.0;
        }
        let mut problems = std::mem::take(&mut tallies.problems);
        let roads = (OfflineRoad::ALL.iter())
            .filter(|road| roads.contains(road) || tallies.roads.get(road).is_some_and(|tally| tally.told > 0))
            .map(|road| {
                let empty = RoadTally::default();
                count_road(*road, tallies.roads.get(road).unwrap_or(&empty), expectations, began, &mut problems)
            })
            .collect();
        problems.truncate(EXAMPLES_MAX);
        OfflineCounts {
            via: String::new(),
            messages: expectations.iter().map(|one| one.messages.len() as u64).sum(),
            members: expectations.iter().map(|one| one.members.len() as u64).sum(),
            roads,
            problems,
        }
    }
}

impl Expectation {
    /// Those who are told on this road, each as it is counted, with the user.
    fn people(&self, road: OfflineRoad) -> impl Iterator<Item = (String, &str)> {
        self.members.iter().flat_map(move |(user, devices)| {
            let of_webhook = (road == OfflineRoad::Webhook).then(|| (user.clone(), user.as_str()));
            let of_vendor = devices.iter().filter(move |(vendor, _)| *vendor == road);
            of_webhook.into_iter().chain(of_vendor.map(move |(_, device)| (person(user, device), user.as_str())))
        })
    }

    fn is_for(&self, user: &str, sender: &Option<String>) -> bool {
        sender.as_deref() != Some(user)
    }

    fn last_for(&self, user: &str) -> Option<u64> {
        self.messages.iter().rev().find(|(_, sender)| self.is_for(user, sender)).map(|(seq, _)| *seq)
    }
}

/// Whether everybody was told of all, or by vendors of the newest.
fn is_complete(tally: &RoadTally, road: OfflineRoad, expectations: &[Expectation]) -> bool {
    expectations.iter().all(|expectation| {
        let own = own_messages(expectation);
        expectation.people(road).all(|(person, user)| {
            let Some(last) = expectation.last_for(user) else { return true };
            let told = tally.of(&expectation.conversation, &person);
            told.is_some_and(|told| match road.collapses() {
                true => told.seqs.has(last),
                false => told.seqs.count >= expectation.messages.len() as u64 - own.get(user).copied().unwrap_or(0),
            })
        })
    })
}

/// How many messages each sender sent.
fn own_messages(expectation: &Expectation) -> HashMap<&str, u64> {
    let mut own = HashMap::new();
    for sender in expectation.messages.iter().filter_map(|(_, sender)| sender.as_deref()) {
        *own.entry(sender).or_default() += 1;
    }
    own
}

fn count_road(
    road: OfflineRoad,
    tally: &RoadTally,
    expectations: &[Expectation],
    began: Instant,
    problems: &mut Vec<String>,
) -> RoadCounts {
    let (mut expected, mut right, mut superseded, mut lost) = (0, 0, 0, 0);
    let mut entitled: HashSet<(&str, String)> = HashSet::new();
    let mut wrong = Vec::new();
    for expectation in expectations {
        let mut messages = Seqs::default();
        expectation.messages.iter().for_each(|(seq, _)| {
            messages.add(*seq);
        });
        let own = own_messages(expectation);
        for (person, user) in expectation.people(road) {
            let count = messages.count - own.get(user).copied().unwrap_or(0);
            expected += count;
            let empty = Told::default();
            let told = tally.of(&expectation.conversation, &person).unwrap_or(&empty);
            let mut told_rightly = told.seqs.count_in(&messages);
            if own.contains_key(user) {
                let own = expectation.messages.iter().filter(|(_, sender)| !expectation.is_for(user, sender));
                told_rightly -= own.filter(|(seq, _)| told.seqs.has(*seq)).count() as u64;
            }
            right += told_rightly;
            if told_rightly < count {
                let is_missing = |(seq, sender): &&(u64, Option<String>)| {
                    let is_superseded = road.collapses() && told.newest > *seq;
                    expectation.is_for(user, sender) && !told.seqs.has(*seq) && !is_superseded
                };
                let missing = expectation.messages.iter().filter(is_missing).count() as u64;
                (superseded, lost) = (superseded + count - told_rightly - missing, lost + missing);
                if let Some((example, _)) = expectation.messages.iter().find(is_missing) {
                    let (conversation, of) = (&expectation.conversation, told_rightly);
                    wrong.push(format!(
                        "{road}: {person} was told of {of} of {count} messages in {conversation}; not of {example}"
                    ));
                }
            }
            if told_rightly < told.seqs.count {
                let seqs = 0..64 * told.seqs.words.len() as u64;
                let is_wrong = |seq: &u64| {
                    let known = expectation.messages.iter().find(|(known, _)| known == seq);
                    told.seqs.has(*seq) && known.is_none_or(|(_, sender)| !expectation.is_for(user, sender))
                };
                if let Some(seq) = seqs.into_iter().find(is_wrong) {
                    wrong.push(unentitled(road, &person, &expectation.conversation, seq));
                }
            }
            entitled.insert((&expectation.conversation, person));
        }
    }
    for (conversation, people) in &tally.conversations {
        for (person, told) in people {
            if !entitled.contains(&(conversation.as_str(), person.clone())) {
                wrong.push(unentitled(road, person, conversation, told.newest));
            }
        }
    }
    wrong.truncate(EXAMPLES_MAX);
    problems.extend(wrong);
    RoadCounts {
        road,
        expected,
        told: right,
        superseded,
        lost,
        doubled: tally.doubled,
        unentitled: tally.told - right,
        overtaken: tally.overtaken,
        requests: tally.requests,
        lag_seconds: tally.last_at.saturating_duration_since(began).as_secs_f64(),
        delay: (!tally.delay.is_empty()).then(|| Percentiles::of(&tally.delay)),
    }
}

fn unentitled(road: OfflineRoad, person: &str, conversation: &str, seq: u64) -> String {
    format!("{road}: {person} was told of {conversation} {seq}, and is not entitled to it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(seq: u64) -> Notice<'static> {
        let (user, device, conversation) = ("ben", "phone", "house");
        Notice { road: OfflineRoad::Fcm, user, device, conversation, seq, id: None, withdrawn: false, sent_at_ms: None }
    }

    fn counts(told: &[u64]) -> RoadCounts {
        let tally = NoticeTally::default();
        told.iter().for_each(|seq| tally.note(&[notice(*seq)]));
        let members = vec![("ben".to_owned(), vec![(OfflineRoad::Fcm, "phone".to_owned())])];
        let messages = vec![(5, None), (6, Some("ben".to_owned())), (7, None), (9, None)];
        let expectation = Expectation { conversation: "house".into(), members, messages };
        tally.finish(&[OfflineRoad::Fcm], &[expectation], Duration::ZERO).roads.remove(0)
    }

    #[test]
    fn the_newest_stands_for_those_before_it_and_for_none_after_it() {
        let all = counts(&[5, 7, 9]);
        assert!(all.balances() && all.told == 3 && all.superseded == 0, "{all:?}");
        let newest = counts(&[9]);
        assert!(newest.balances() && newest.told == 1 && newest.superseded == 2, "{newest:?}");
        let older = counts(&[5, 7]);
        assert_eq!((older.balances(), older.lost), (false, 1));
    }

    #[test]
    fn what_takes_the_place_of_a_newer_one_is_told_twice_or_is_ones_own_is_found() {
        assert_eq!(counts(&[9, 7]).overtaken, 1);
        assert_eq!(counts(&[9, 9]).doubled, 1);
        let own = counts(&[6, 9]);
        assert_eq!((own.unentitled, own.balances()), (1, false));
    }
}
