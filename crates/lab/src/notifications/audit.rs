//! Compares what happened with what the model says, on each channel, and for the sessions entry by entry.

use super::{
    balances::{Audit, ChannelBalance, SessionBalance},
    model::{ChannelTimes, Due, Model, NotifiedByProviders},
    participants::{AckHabit, Participants, device_name},
    records::{Arrival, Delivery, Look, Records, SentMessage},
    removals::audit_removals,
};
use crate::{latency::Latencies, offline_push::notice::OfflineChannel};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Faults that are named, of each kind on each channel.
const EXAMPLES_MAX: usize = 3;
/// What is added to the longest time that the server took to decide, as far as that was seen.
pub(crate) const MARGIN_NS: u64 = 2_000_000_000;
/// So long after a provider's absence its notices may still be late.
const AWAY_SLACK_NS: u64 = 10_000_000_000;
/// A client's time to acknowledge is counted in ticks by the server: so much of it must at least have passed.
const EARLY_SHARE: f64 = 0.9;

/// Users whose sessions the lab read or acknowledged so late that the server may have given them up rightly.
fn slow_users(participants: &Participants, records: &Records, times: ChannelTimes) -> HashSet<usize> {
    let none = HashSet::new();
    let model = Model { participants, records, times, slow: &none, decided_within_ns: 0 };
    let sent: HashMap<(usize, u64), u64> =
        records.messages.iter().map(|sent| ((sent.conversation, sent.seq), sent.sent_at)).collect();
    let is_late = |delivery: &&Delivery| {
        let Delivery { user, conversation, seq, at, .. } = **delivery;
        let sent_at = sent.get(&(conversation, seq)).copied().unwrap_or(at);
        at.saturating_sub(sent_at) > times.ack_timeout_ns / 2 && model.was_looked_at(user, sent_at, at)
    };
    let late = records.deliveries.iter().filter(is_late).map(|delivery| delivery.user);
    records.slow_acks.iter().copied().chain(late).collect()
}

/// One user on one channel.
type Person = (OfflineChannel, usize, usize);

/// The arrivals of one person about one conversation.
#[derive(Default)]
struct Notified {
    /// By `seq`, in the order in which they came.
    by_seq: HashMap<u64, Vec<(u64, Option<u64>)>>,
    newest: u64,
    overtaken: u64,
}

pub(crate) struct Auditor<'a> {
    participants: &'a Participants,
    records: &'a Records,
    times: ChannelTimes,
    notified: HashMap<(Person, usize), Notified>,
    slow: HashSet<usize>,
    examples: BTreeMap<(OfflineChannel, &'static str), Vec<String>>,
}

impl<'a> Auditor<'a> {
    pub(crate) fn new(participants: &'a Participants, records: &'a Records, times: ChannelTimes) -> Auditor<'a> {
        let mut notified: HashMap<(Person, usize), Notified> = HashMap::new();
        for arrival in &records.arrivals {
            let Arrival { channel, user, device, conversation, seq, id, at } = *arrival;
            let notified = notified.entry(((channel, user, device), conversation)).or_default();
            let killed_since = |then: u64| records.was_killed(then, at);
            // After a crash the server may not know what it notified last.
            let before = notified.by_seq.get(&notified.newest).and_then(|times| times.last());
            if channel.collapses() && seq < notified.newest && !before.is_some_and(|(then, _)| killed_since(*then)) {
                notified.overtaken += 1;
            }
            notified.newest = notified.newest.max(seq);
            notified.by_seq.entry(seq).or_default().push((at, id));
        }
        let slow = slow_users(participants, records, times);
        Auditor { participants, records, times, notified, slow, examples: BTreeMap::new() }
    }

    fn people_of(&self, user: usize) -> impl Iterator<Item = Person> + use<> {
        let devices: Vec<_> = self.participants.users[user]
            .devices
            .iter()
            .enumerate()
            .map(|(at, provider)| (*provider, user, at))
            .collect();
        [(OfflineChannel::Webhook, user, 0)].into_iter().chain(devices)
    }

    /// How long the server took at the most to decide about users who never looked, as far as no kill or absence lay between.
    pub(crate) fn decided_within(&self) -> u64 {
        let is_anybody_away = |from: u64, to: u64| {
            let mut away = self.records.providers_away.iter();
            away.any(|(_, gone, back)| *gone <= to && from <= back.saturating_add(AWAY_SLACK_NS))
        };
        let mut longest = 0;
        for message in &self.records.messages {
            for user in &self.participants.conversations[message.conversation].members {
                if !self.records.looks[*user].is_empty() {
                    continue;
                }
                for person in self.people_of(*user) {
                    let notified = self.notified.get(&(person, message.conversation));
                    let first =
                        notified.and_then(|notified| notified.by_seq.get(&message.seq)).and_then(|times| times.first());
                    let counts = |at: u64| {
                        let waits = person.0.collapses() && is_anybody_away(message.sent_at, at);
                        !self.records.was_killed(message.sent_at, at) && !waits
                    };
                    if let Some((at, _)) = first.filter(|(at, _)| counts(*at)) {
                        longest = longest.max(at.saturating_sub(message.answered_at + self.after(person.0)));
                    }
                }
            }
        }
        longest
    }

    fn example(&mut self, channel: OfflineChannel, kind: &'static str, what: impl FnOnce() -> String) {
        let examples = self.examples.entry((channel, kind)).or_default();
        if examples.len() < EXAMPLES_MAX {
            examples.push(what());
        }
    }

    fn name(&self, (channel, user, device): Person, message: &SentMessage) -> String {
        let (user, conversation) =
            (&self.participants.users[user].id, &self.participants.conversations[message.conversation].id);
        let device = if channel.collapses() { format!(" on {}", device_name(device)) } else { String::new() };
        format!("{user}{device}, {conversation} {}", message.seq)
    }

    /// How much must be notified and is not yet.
    pub(crate) fn missing(&self) -> usize {
        let model = self.model(&self.slow, self.decided_within() + MARGIN_NS);
        let mut missing = 0;
        for message in &self.records.messages {
            for user in &self.participants.conversations[message.conversation].members {
                let is_missing = |person: &Person| {
                    !self.is_notified(*person, message) && self.due(&model, message, *person) == Due::Must
                };
                missing += self.people_of(*user).filter(is_missing).count();
            }
        }
        let removed = audit_removals(self.participants, self.records, model.decided_within_ns, |_, _, _| {});
        let not_removed: u64 = removed.iter().map(|balance| balance.must - balance.notified).sum();
        missing + not_removed as usize + self.missing_entries()
    }

    fn missing_entries(&self) -> usize {
        let balance = self.session_balance(&mut Vec::new());
        (balance.must - balance.notified) as usize
    }

    /// So long after a message this channel is taken.
    fn after(&self, channel: OfflineChannel) -> u64 {
        if channel == OfflineChannel::Webhook { self.times.webhook_after_ns } else { 0 }
    }

    fn due(&self, model: &Model<'_>, message: &SentMessage, (channel, user, _): Person) -> Due {
        match channel {
            OfflineChannel::Webhook => model.webhook_due(message, user, self.notified_by_providers(message, user)),
            _ => match (model.due(message, user), self.tries_until(channel, message, model.decided_within_ns)) {
                // Somebody who has come before the provider took it is not notified any more.
                (Due::Must, Some(until)) if model.may_have_come(user, message.sent_at, until) => Due::May,
                (due, _) => due,
            },
        }
    }

    /// Until when the server may have tried again to tell of a message, if the provider was away at its time.
    fn tries_until(&self, channel: OfflineChannel, message: &SentMessage, decided_within_ns: u64) -> Option<u64> {
        let decided = message.answered_at.saturating_add(decided_within_ns);
        let ends =
            self.records.providers_away.iter().filter(|(provider, gone, _)| *provider == channel && *gone <= decided);
        ends.map(|(.., back)| back.saturating_add(AWAY_SLACK_NS)).filter(|end| message.sent_at <= *end).max()
    }

    fn notified_by_providers(&self, message: &SentMessage, user: usize) -> NotifiedByProviders {
        let devices = self.people_of(user).filter(|(channel, _, _)| channel.collapses());
        let notified: Vec<&Notified> =
            devices.filter_map(|person| self.notified.get(&(person, message.conversation))).collect();
        let first = |notified: &&Notified| notified.by_seq.get(&message.seq)?.first().map(|(at, _)| *at);
        match notified.iter().filter_map(first).min() {
            Some(at) => NotifiedByProviders::At(at),
            None if notified.iter().any(|notified| notified.newest > message.seq) => NotifiedByProviders::OfNewer,
            None => NotifiedByProviders::No,
        }
    }

    /// Whether a message was notified, or a newer one in its place.
    fn is_notified(&self, person: Person, message: &SentMessage) -> bool {
        let notified = self.notified.get(&(person, message.conversation));
        let is_newer = |notified: &Notified| person.0.collapses() && notified.newest > message.seq;
        notified.is_some_and(|notified| notified.by_seq.contains_key(&message.seq) || is_newer(notified))
    }

    fn model<'b>(&self, slow: &'b HashSet<usize>, decided_within_ns: u64) -> Model<'b>
    where
        'a: 'b,
    {
        let (participants, records, times) = (self.participants, self.records, self.times);
        Model { participants, records, times, slow, decided_within_ns }
    }

    /// A notice that nobody was entitled to, and what was known of its user then.
    fn not_entitled(&self, arrival: &Arrival) -> String {
        let Arrival { user, conversation, seq, at, .. } = *arrival;
        let (one, chat) = (&self.participants.users[user], &self.participants.conversations[conversation]);
        let what = format!("{}, {} {seq}", one.id, chat.id);
        let is_of = |message: &&SentMessage| (message.conversation, message.seq) == (conversation, seq);
        let Some(message) = self.records.messages.iter().find(is_of) else { return format!("{what}: no such message") };
        let since_sent = |time: u64| match time {
            u64::MAX => "the end".to_owned(),
            time => format!("{} ms", (time as i64 - message.sent_at as i64) / 1_000_000),
        };
        let look = |look: &Look| format!("{} to {}", since_sent(look.certain.0), since_sent(look.certain.1));
        let looks: Vec<String> = self.records.looks[user].iter().map(look).collect();
        let wishes = [
            (message.silent, "silent"),
            (message.skip_push, "skip_push"),
            (message.sender == user, "its sender"),
            (chat.muted_by.contains(&user), "muted"),
            (one.undisturbed, "do not disturb"),
        ];
        let wishes: Vec<&str> = wishes.into_iter().filter(|(holds, _)| *holds).map(|(_, wish)| wish).collect();
        format!(
            "{what}: notified after {}, answered after {}; {}; a client that {:?}; looked at from {}",
            since_sent(at),
            since_sent(message.answered_at),
            if wishes.is_empty() { "wanted".to_owned() } else { wishes.join(", ") },
            one.habit,
            if looks.is_empty() { "never".to_owned() } else { looks.join(", ") },
        )
    }

    pub(crate) fn audit(mut self) -> Audit {
        let decided_within = self.decided_within();
        let slow = std::mem::take(&mut self.slow);
        let model = self.model(&slow, decided_within + MARGIN_NS);
        let mut balances: BTreeMap<OfflineChannel, (ChannelBalance, Latencies)> = OfflineChannel::ALL
            .iter()
            .map(|channel| (*channel, (ChannelBalance::of(*channel), Latencies::default())))
            .collect();
        let first_sent = self.first_sent();
        let mut known: HashSet<(Person, usize, u64)> = HashSet::new();
        for message in &self.records.messages {
            for user in &self.participants.conversations[message.conversation].members {
                for person in self.people_of(*user) {
                    let due = self.due(&model, message, person);
                    let Some((balance, delays)) = balances.get_mut(&person.0) else { continue };
                    if due != Due::MustNot {
                        known.insert((person, message.conversation, message.seq));
                    }
                    let freezes = self.participants.users[*user].habit == AckHabit::Freezes;
                    let notified = self.notified.get(&(person, message.conversation));
                    let times =
                        notified.and_then(|notified| notified.by_seq.get(&message.seq)).cloned().unwrap_or_default();
                    let Some((first, _)) = times.first().copied() else {
                        if due == Due::Must {
                            balance.must += 1;
                            if self.is_notified(person, message) {
                                balance.superseded += 1
                            } else {
                                balance.lost += 1;
                                let what = self.name(person, message);
                                self.example(person.0, "lost", || what);
                            }
                        }
                        continue;
                    };
                    match due {
                        Due::Must => (balance.must, balance.notified) = (balance.must + 1, balance.notified + 1),
                        Due::May => balance.notified_perhaps += 1,
                        // Counted with all that nobody is entitled to.
                        Due::MustNot => continue,
                    }
                    for pair in times.windows(2) {
                        let [(then, id), (now, id_now)] = [pair[0], pair[1]];
                        let is_same = id.is_none() || id == id_now;
                        if self.records.was_killed(then, now) && is_same {
                            balance.again += 1
                        } else {
                            balance.doubled += 1;
                            let what = self.name(person, message);
                            self.example(person.0, "doubled", || what);
                        }
                    }
                    if due != Due::Must {
                        continue;
                    }
                    let given =
                        if freezes && !self.records.looks[*user].is_empty() { self.times.ack_timeout_ns } else { 0 };
                    let after = self.after(person.0);
                    delays.record(message.answered_at.saturating_add(given.max(after)), first);
                    let early = |from: u64, time: u64| first < from.saturating_add((time as f64 * EARLY_SHARE) as u64);
                    if early(first_sent[*user], given) || early(message.sent_at, after) {
                        balance.too_early += 1;
                        let what = self.name(person, message);
                        self.example(person.0, "too early", || what);
                    }
                    if given == 0 && after == 0 {
                        let mut absences = self.absences_of_others(person.0, message.answered_at).peekable();
                        balance.at_risk += u64::from(absences.peek().is_some());
                        balance.held_up += u64::from(absences.any(|back| first >= back));
                    }
                }
            }
        }
        for arrival in &self.records.arrivals {
            let Arrival { channel, user, device, conversation, seq, .. } = *arrival;
            if known.contains(&((channel, user, device), conversation, seq)) {
                continue;
            }
            if let Some((balance, _)) = balances.get_mut(&channel) {
                balance.unentitled += 1;
            }
            let what = self.not_entitled(arrival);
            self.example(channel, "not entitled", || what);
        }
        for ((person, _), notified) in &self.notified {
            if let Some((balance, _)) = balances.get_mut(&person.0) {
                balance.overtaken += notified.overtaken;
            }
        }
        let settled_ns = decided_within + MARGIN_NS;
        let removed = audit_removals(self.participants, self.records, settled_ns, |channel, kind, what| {
            self.example(channel, kind, || what)
        });
        let mut problems = self.records.problems.clone();
        let session = self.session_balance(&mut problems);
        problems.truncate(EXAMPLES_MAX);
        for ((channel, kind), examples) in &self.examples {
            problems.extend(examples.iter().map(|example| format!("{channel}, {kind}: {example}")));
        }
        let channels =
            balances.into_values().map(|(balance, delays)| ChannelBalance { delay: delays.percentiles(), ..balance });
        Audit {
            session,
            channels: channels.collect(),
            removed,
            decided_within_ms: decided_within as f64 / 1e6,
            problems,
        }
    }

    /// When the first message was sent to each user, by which an app that freezes cannot have been given up before its time.
    fn first_sent(&self) -> Vec<u64> {
        let mut first = vec![u64::MAX; self.participants.users.len()];
        for message in &self.records.messages {
            for user in &self.participants.conversations[message.conversation].members {
                first[*user] = first[*user].min(message.sent_at);
            }
        }
        first
    }

    /// When the providers of other channels were back that were away when a message was answered. Only if a notice of it had half of
    /// the absence to come before that.
    fn absences_of_others(&self, channel: OfflineChannel, answered_at: u64) -> impl Iterator<Item = u64> {
        let away = self.records.providers_away.iter().filter(move |(provider, gone, back)| {
            *provider != channel && (*gone..=gone + (back - gone) / 2).contains(&answered_at)
        });
        away.map(|(.., back)| *back)
    }

    /// Every user who ever had a session gets each message of their conversations that was sent after it began.
    fn session_balance(&self, problems: &mut Vec<String>) -> SessionBalance {
        let mut balance = SessionBalance::default();
        let mut delays = Latencies::default();
        // By user and conversation: what came, and the last of the connection.
        let mut got: HashMap<(usize, usize), HashMap<u64, u32>> = HashMap::new();
        let mut newest: HashMap<(usize, usize, u32), u64> = HashMap::new();
        let sent: HashMap<(usize, u64), u64> =
            self.records.messages.iter().map(|sent| ((sent.conversation, sent.seq), sent.sent_at)).collect();
        for delivery in &self.records.deliveries {
            let place = (delivery.user, delivery.conversation);
            // Of what a session did not miss.
            let bound = self.records.bound.get(&(delivery.user, delivery.connection));
            if let (Some(sent_at), Some(bound)) = (sent.get(&(delivery.conversation, delivery.seq)), bound)
                && bound <= sent_at
            {
                delays.record(*sent_at, delivery.at);
            }
            let newest = newest.entry((delivery.user, delivery.conversation, delivery.connection)).or_default();
            match got.entry(place).or_default().insert(delivery.seq, delivery.connection) {
                None if delivery.seq < *newest => balance.out_of_order += 1,
                None => {}
                Some(connection) if connection == delivery.connection => balance.doubled += 1,
                Some(_) => balance.again += 1,
            }
            *newest = (*newest).max(delivery.seq);
        }
        let mut examples = 0;
        for message in &self.records.messages {
            for user in &self.participants.conversations[message.conversation].members {
                if self.records.first_bound.get(user).is_none_or(|bound| message.sent_at < *bound) {
                    continue;
                }
                balance.must += 1;
                if got.get(&(*user, message.conversation)).is_some_and(|seqs| seqs.contains_key(&message.seq)) {
                    balance.notified += 1
                } else {
                    balance.lost += 1;
                    if examples < EXAMPLES_MAX {
                        examples += 1;
                        let what = self.name((OfflineChannel::Webhook, *user, 0), message);
                        problems.push(format!("session, lost: {what}"));
                    }
                }
            }
        }
        balance.delay = delays.percentiles();
        balance
    }
}
