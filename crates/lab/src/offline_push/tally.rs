//! Counts what members who are offline are notified of, and holds it to what they are to be notified.

use super::notice::{Notice, NoticeSink, OfflineChannel};
use crate::{
    interrupt,
    latency::{Latencies, Percentiles},
    lock::lock,
    result::{Check, RunResult, filled},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How often a wait looks whether Ctrl-C ended the run.
const POLL: Duration = Duration::from_millis(100);
/// Faults that are named.
const EXAMPLES_MAX: usize = 3;

/// A request that no notice can be read from, in words.
pub(super) fn fault_of(fake: &str, why: &str) -> String {
    format!("a request to the {fake} fake: {why}")
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

/// What one user, or one device, was notified of a conversation.
#[derive(Debug, Default)]
struct Notified {
    seqs: Seqs,
    newest: u64,
}

/// By the user, or for providers by user and device.
type ToldByPerson = HashMap<String, Notified>;

/// All that one channel has notified.
#[derive(Debug)]
struct ChannelTally {
    conversations: HashMap<String, ToldByPerson>,
    notified: u64,
    doubled: u64,
    overtaken: u64,
    requests: u64,
    /// From the message's time stamp to its notice, in microseconds.
    delay: Latencies,
    last_at: Instant,
}

impl Default for ChannelTally {
    fn default() -> Self {
        ChannelTally {
            conversations: HashMap::new(),
            notified: 0,
            doubled: 0,
            overtaken: 0,
            requests: 0,
            delay: Latencies::default(),
            last_at: Instant::now(),
        }
    }
}

impl ChannelTally {
    fn of<'a>(&'a self, conversation: &str, person: &str) -> Option<&'a Notified> {
        self.conversations.get(conversation)?.get(person)
    }
}

#[derive(Debug, Default)]
struct Tallies {
    channels: BTreeMap<OfflineChannel, ChannelTally>,
    problems: Vec<String>,
}

/// Counts notices. The fakes' threads and the bench share it.
#[derive(Debug, Default)]
pub(crate) struct NoticeTally {
    tallies: Mutex<Tallies>,
    changed: Condvar,
}

/// The notices that are due in one conversation.
#[derive(Debug, Clone)]
pub(crate) struct Expectation {
    pub(crate) conversation: String,
    /// The members who are offline, each with the user's devices and the provider of each.
    pub(crate) members: Vec<(String, Vec<(OfflineChannel, String)>)>,
    /// The `seq` of each message, in order, and who sent it, who is not notified of it.
    pub(crate) messages: Vec<(u64, Option<String>)>,
}

/// What became, on one channel, of the messages for members who are offline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ChannelCounts {
    pub(crate) channel: OfflineChannel,
    pub(crate) expected: u64,
    pub(crate) notified: u64,
    /// Not notified since the device was notified of a newer message of the conversation: providers show the newest alone.
    pub(crate) superseded: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Notified to those who are online, or of messages that they sent.
    pub(crate) unentitled: u64,
    /// Providers' notices that came after that of a newer message of the conversation, whose place they take.
    pub(crate) overtaken: u64,
    pub(crate) requests: u64,
    /// From the end of the load to the last notice.
    pub(crate) lag_seconds: f64,
    /// From the message's time stamp, which has milliseconds, to its notice, in milliseconds; of the webhook, whose events have it.
    pub(crate) delay: Option<Percentiles>,
}

impl ChannelCounts {
    pub(crate) fn balances(&self) -> bool {
        self.lost + self.doubled + self.unentitled + self.overtaken == 0
            && self.notified + self.superseded == self.expected
    }
}

/// What became of the messages for members who are offline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OfflineCounts {
    pub(crate) via: String,
    pub(crate) messages: u64,
    pub(crate) members: u64,
    pub(crate) channels: Vec<ChannelCounts>,
    pub(crate) problems: Vec<String>,
}

/// What is printed of a channel; providers show the newest message alone.
const LINE: &str = "notified {notified} of {expected}  lost {lost}  doubled {doubled}  unentitled {unentitled}  requests {requests}  the \
     last {lag_seconds:2} s after the load";
const PROVIDERS_LINE: &str = "notified {notified} of {expected}  lost {lost}  doubled {doubled}  superseded {superseded}  overtaken \
     {overtaken}  unentitled {unentitled}  requests {requests}  the last {lag_seconds:2} s after the load";
const DELAY: &str = "  ms p50 {delay.p50:0} p99 {delay.p99:0} p100 {delay.max:0}";

impl OfflineCounts {
    pub(crate) fn balances(&self) -> bool {
        self.problems.is_empty() && self.channels.iter().all(ChannelCounts::balances)
    }

    pub(crate) fn record(&self, result: &mut RunResult) {
        let OfflineCounts { via, messages, members, channels, problems } = self;
        let lines = channels.iter().map(|counts| {
            let line = if counts.channel.collapses() { PROVIDERS_LINE } else { LINE };
            (counts.channel.name().to_owned(), filled(line, counts) + &filled(DELAY, counts))
        });
        let title = format!("offline push   via {via}: {messages} messages, {members} members offline");
        result.lines(&title, lines.collect(), problems);
        let told = "{channel}: {notified} of {expected}, lost {lost}, doubled {doubled}, unentitled {unentitled}";
        let value: Vec<String> = channels.iter().map(|counts| filled(told, counts)).collect();
        let bound = "everybody who is offline is notified of every message once, and nobody else";
        result.check(Check::of_server("offline push", bound, self.balances()).value(value.join("; ")));
    }
}

impl NoticeSink for NoticeTally {
    fn note(&self, notices: &[Notice<'_>]) {
        let Some(first) = notices.first() else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut tallies = lock(&self.tallies);
        let tally = tallies.channels.entry(first.channel).or_default();
        tally.requests += 1;
        tally.last_at = Instant::now();
        for notice in notices {
            if notice.removed {
                let Notice { channel, user, conversation, seq, .. } = notice;
                tallies
                    .problems
                    .push(format!("{channel}: {user} has not read {conversation} {seq}, which was removed"));
                continue;
            }
            let tally = tallies.channels.entry(notice.channel).or_default();
            if let Some(at) = notice.sent_at_ms {
                let delay = now.saturating_sub(Duration::from_millis(at));
                tally.delay.record(0, delay.as_nanos() as u64);
            }
            let people = match tally.conversations.get_mut(notice.conversation) {
                Some(people) => people,
                None => tally.conversations.entry(notice.conversation.to_owned()).or_default(),
            };
            let notified = if notice.device.is_empty() {
                match people.get_mut(notice.user) {
                    Some(notified) => notified,
                    None => people.entry(notice.user.to_owned()).or_default(),
                }
            } else {
                people.entry(person(notice.user, notice.device)).or_default()
            };
            if notice.channel.collapses() && notice.seq < notified.newest {
                tally.overtaken += 1;
            }
            notified.newest = notified.newest.max(notice.seq);
            if notified.seqs.add(notice.seq) { tally.notified += 1 } else { tally.doubled += 1 }
        }
        self.changed.notify_all();
    }

    fn fault(&self, problem: String) {
        lock(&self.tallies).problems.push(problem);
    }
}

/// A device of a user, as it is counted.
fn person(user: &str, device: &str) -> String {
    if device.is_empty() { user.to_owned() } else { format!("{user} on {device}") }
}

impl NoticeTally {
    #[cfg(test)]
    pub(super) fn problems(&self) -> usize {
        lock(&self.tallies).problems.len()
    }

    /// Waits until all that is expected was notified on these channels, or nothing came for `patience`.
    pub(crate) fn finish(
        &self,
        channels: &[OfflineChannel],
        expectations: &[Expectation],
        patience: Duration,
    ) -> OfflineCounts {
        let began = Instant::now();
        let mut tallies = lock(&self.tallies);
        loop {
            let is_over = |channel: &OfflineChannel| {
                let tally = tallies.channels.entry(*channel).or_default();
                let is_quiet = tally.last_at.max(began).elapsed() >= patience;
                is_quiet || is_complete(tally, *channel, expectations)
            };
            if interrupt::requested() || channels.iter().all(is_over) {
                break;
            }
            // Not at every notice: to look at all of them takes a while.
            let waited = self.changed.wait_timeout(tallies, POLL).unwrap_or_else(PoisonError::into_inner);
            tallies = waited.0;
        }
        let mut problems = std::mem::take(&mut tallies.problems);
        let channels = (OfflineChannel::ALL.iter())
            .filter(|channel| {
                channels.contains(channel) || tallies.channels.get(channel).is_some_and(|tally| tally.notified > 0)
            })
            .map(|channel| {
                let empty = ChannelTally::default();
                count_channel(
                    *channel,
                    tallies.channels.get(channel).unwrap_or(&empty),
                    expectations,
                    began,
                    &mut problems,
                )
            })
            .collect();
        problems.truncate(EXAMPLES_MAX);
        OfflineCounts {
            via: String::new(),
            messages: expectations.iter().map(|one| one.messages.len() as u64).sum(),
            members: expectations.iter().map(|one| one.members.len() as u64).sum(),
            channels,
            problems,
        }
    }
}

impl Expectation {
    /// Those who are notified on this channel, each as it is counted, with the user.
    fn people(&self, channel: OfflineChannel) -> impl Iterator<Item = (String, &str)> {
        self.members.iter().flat_map(move |(user, devices)| {
            let of_webhook = (channel == OfflineChannel::Webhook).then(|| (user.clone(), user.as_str()));
            let of_provider = devices.iter().filter(move |(provider, _)| *provider == channel);
            of_webhook.into_iter().chain(of_provider.map(move |(_, device)| (person(user, device), user.as_str())))
        })
    }

    fn is_for(&self, user: &str, sender: &Option<String>) -> bool {
        sender.as_deref() != Some(user)
    }

    fn last_for(&self, user: &str) -> Option<u64> {
        self.messages.iter().rev().find(|(_, sender)| self.is_for(user, sender)).map(|(seq, _)| *seq)
    }
}

/// Whether everybody was notified of all, or by providers of the newest.
fn is_complete(tally: &ChannelTally, channel: OfflineChannel, expectations: &[Expectation]) -> bool {
    expectations.iter().all(|expectation| {
        let own = own_messages(expectation);
        expectation.people(channel).all(|(person, user)| {
            let Some(last) = expectation.last_for(user) else { return true };
            let notified = tally.of(&expectation.conversation, &person);
            notified.is_some_and(|notified| {
                if channel.collapses() {
                    notified.seqs.has(last)
                } else {
                    notified.seqs.count >= expectation.messages.len() as u64 - own.get(user).copied().unwrap_or(0)
                }
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

fn count_channel(
    channel: OfflineChannel,
    tally: &ChannelTally,
    expectations: &[Expectation],
    began: Instant,
    problems: &mut Vec<String>,
) -> ChannelCounts {
    let (mut expected, mut right, mut superseded, mut lost) = (0, 0, 0, 0);
    let mut entitled: HashSet<(&str, String)> = HashSet::new();
    let mut wrong = Vec::new();
    for expectation in expectations {
        let mut messages = Seqs::default();
        expectation.messages.iter().for_each(|(seq, _)| {
            messages.add(*seq);
        });
        let own = own_messages(expectation);
        for (person, user) in expectation.people(channel) {
            let count = messages.count - own.get(user).copied().unwrap_or(0);
            expected += count;
            let empty = Notified::default();
            let notified = tally.of(&expectation.conversation, &person).unwrap_or(&empty);
            let mut notified_rightly = notified.seqs.count_in(&messages);
            if own.contains_key(user) {
                let own = expectation.messages.iter().filter(|(_, sender)| !expectation.is_for(user, sender));
                notified_rightly -= own.filter(|(seq, _)| notified.seqs.has(*seq)).count() as u64;
            }
            right += notified_rightly;
            if notified_rightly < count {
                let is_missing = |(seq, sender): &&(u64, Option<String>)| {
                    let is_superseded = channel.collapses() && notified.newest > *seq;
                    expectation.is_for(user, sender) && !notified.seqs.has(*seq) && !is_superseded
                };
                let missing = expectation.messages.iter().filter(is_missing).count() as u64;
                (superseded, lost) = (superseded + count - notified_rightly - missing, lost + missing);
                if let Some((example, _)) = expectation.messages.iter().find(is_missing) {
                    let (conversation, of) = (&expectation.conversation, notified_rightly);
                    wrong.push(format!(
                        "{channel}: {person} was notified of {of} of {count} messages in {conversation}; not of {example}"
                    ));
                }
            }
            if notified_rightly < notified.seqs.count {
                let seqs = 0..64 * notified.seqs.words.len() as u64;
                let is_wrong = |seq: &u64| {
                    let known = expectation.messages.iter().find(|(known, _)| known == seq);
                    notified.seqs.has(*seq) && known.is_none_or(|(_, sender)| !expectation.is_for(user, sender))
                };
                if let Some(seq) = seqs.into_iter().find(is_wrong) {
                    wrong.push(unentitled(channel, &person, &expectation.conversation, seq));
                }
            }
            entitled.insert((&expectation.conversation, person));
        }
    }
    for (conversation, people) in &tally.conversations {
        for (person, notified) in people {
            if !entitled.contains(&(conversation.as_str(), person.clone())) {
                wrong.push(unentitled(channel, person, conversation, notified.newest));
            }
        }
    }
    wrong.truncate(EXAMPLES_MAX);
    problems.extend(wrong);
    ChannelCounts {
        channel,
        expected,
        notified: right,
        superseded,
        lost,
        doubled: tally.doubled,
        unentitled: tally.notified - right,
        overtaken: tally.overtaken,
        requests: tally.requests,
        lag_seconds: tally.last_at.saturating_duration_since(began).as_secs_f64(),
        delay: (!tally.delay.is_empty()).then(|| tally.delay.percentiles()),
    }
}

fn unentitled(channel: OfflineChannel, person: &str, conversation: &str, seq: u64) -> String {
    format!("{channel}: {person} was notified of {conversation} {seq}, and is not entitled to it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(seq: u64) -> Notice<'static> {
        let (user, device, conversation) = ("ben", "phone", "house");
        Notice {
            channel: OfflineChannel::Fcm,
            user,
            device,
            conversation,
            seq,
            id: None,
            removed: false,
            sent_at_ms: None,
        }
    }

    fn counts(notified: &[u64]) -> ChannelCounts {
        let tally = NoticeTally::default();
        notified.iter().for_each(|seq| tally.note(&[notice(*seq)]));
        let members = vec![("ben".to_owned(), vec![(OfflineChannel::Fcm, "phone".to_owned())])];
        let messages = vec![(5, None), (6, Some("ben".to_owned())), (7, None), (9, None)];
        let expectation = Expectation { conversation: "house".into(), members, messages };
        tally.finish(&[OfflineChannel::Fcm], &[expectation], Duration::ZERO).channels.remove(0)
    }

    #[test]
    fn the_newest_stands_for_those_before_it_and_for_none_after_it() {
        let all = counts(&[5, 7, 9]);
        assert!(all.balances() && all.notified == 3 && all.superseded == 0, "{all:?}");
        let newest = counts(&[9]);
        assert!(newest.balances() && newest.notified == 1 && newest.superseded == 2, "{newest:?}");
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
