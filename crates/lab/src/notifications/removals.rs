//! Reading removes: holds what providers were asked to take away to what users have read, and to what their devices showed.

use super::{
    participants::Participants,
    records::{Arrival, Read, Records},
};
use crate::offline_push::notice::OfflineChannel;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What became, at one provider, of notifications that were read elsewhere.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct RemovalBalance {
    pub(crate) channel: OfflineChannel,
    pub(crate) must: u64,
    pub(crate) notified: u64,
    /// Removed though it need not have been: something else was notified or read meanwhile.
    pub(crate) perhaps: u64,
    /// Once more, after a kill.
    pub(crate) again: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Of what nobody had read, or what the device did not show.
    pub(crate) unentitled: u64,
}

impl RemovalBalance {
    pub(crate) fn balances(&self) -> bool {
        self.lost + self.doubled + self.unentitled == 0 && self.must == self.notified
    }
}

/// One device and conversation.
type Place = (OfflineChannel, usize, usize, usize);

fn place_of(arrival: &Arrival) -> Place {
    (arrival.channel, arrival.user, arrival.device, arrival.conversation)
}

/// What a device was notified of a conversation, and asked to take away: `seq` and time.
#[derive(Default)]
struct History {
    notified: Vec<(u64, u64)>,
    removed: Vec<(u64, u64)>,
}

impl History {
    /// What the device showed at this time.
    fn shown_at(&self, at: u64) -> Option<u64> {
        self.notified.iter().filter(|(_, notified_at)| *notified_at < at).map(|(seq, _)| *seq).max()
    }

    /// Whether the server must know that the device was notified of this message: it was not killed between the provider's answer and
    /// the moment at which that was stored. It asks the provider once more after a kill, unless the person is reached by then.
    fn is_known(&self, records: &Records, seq: u64, settled_ns: u64) -> bool {
        let mut notified = self.notified.iter().filter(|(of, _)| *of == seq);
        notified.any(|(_, at)| !records.was_killed(*at, at.saturating_add(settled_ns)))
    }
}

/// Compares removals with reads. `settled_ns`: within this of an event the server may not have known of it.
pub(super) fn audit_removals(
    participants: &Participants,
    records: &Records,
    settled_ns: u64,
    mut example: impl FnMut(OfflineChannel, &'static str, String),
) -> Vec<RemovalBalance> {
    let mut histories: HashMap<Place, History> = HashMap::new();
    for arrival in &records.arrivals {
        histories.entry(place_of(arrival)).or_default().notified.push((arrival.seq, arrival.at));
    }
    for removal in &records.removals {
        histories.entry(place_of(removal)).or_default().removed.push((removal.seq, removal.at));
    }
    let mut reads: HashMap<(usize, usize), Vec<&Read>> = HashMap::new();
    for read in &records.reads {
        reads.entry((read.user, read.conversation)).or_default().push(read);
    }
    let empty = |channel| RemovalBalance { channel, ..RemovalBalance::default() };
    let mut balances: BTreeMap<OfflineChannel, RemovalBalance> =
        OfflineChannel::PROVIDERS.iter().map(|channel| (*channel, empty(*channel))).collect();
    for ((channel, user, device, conversation), history) in &histories {
        let Some(balance) = balances.get_mut(channel) else { continue };
        let name = |seq: u64| {
            let (user, conversation) = (&participants.users[*user].id, &participants.conversations[*conversation].id);
            format!("{user} on device {device}, {conversation} {seq}")
        };
        let reads = reads.get(&(*user, *conversation)).map_or(&[][..], |reads| reads);
        // By `seq`: whether it must be removed.
        let mut due: BTreeMap<u64, bool> = BTreeMap::new();
        for read in reads {
            for (seq, _) in history.notified.iter().filter(|(seq, _)| *seq <= read.seq) {
                due.entry(*seq).or_insert(false);
            }
            if let Some(seq) = must_be_removed(records, *channel, history, read, settled_ns) {
                due.insert(seq, true);
            }
        }
        for (seq, must) in &due {
            let times: Vec<u64> = history.removed.iter().filter(|(of, _)| of == seq).map(|(_, at)| *at).collect();
            match (times.is_empty(), must) {
                (true, true) => {
                    balance.must += 1;
                    balance.lost += 1;
                    example(*channel, "not removed", name(*seq));
                }
                (false, true) => (balance.must, balance.notified) = (balance.must + 1, balance.notified + 1),
                (false, false) => balance.perhaps += 1,
                (true, false) => {}
            }
            for pair in times.windows(2) {
                if records.was_killed(pair[0], pair[1]) {
                    balance.again += 1;
                } else {
                    balance.doubled += 1;
                    example(*channel, "removed twice", name(*seq));
                }
            }
        }
        for (seq, at) in &history.removed {
            let is_read = reads.iter().any(|read| read.seq >= *seq && read.at <= *at);
            if !due.contains_key(seq) || !is_read {
                balance.unentitled += 1;
                example(*channel, "removed and not read", name(*seq));
            }
        }
    }
    balances.into_values().collect()
}

/// The message that must be removed after this read: what the device showed, if nothing else happened about that time.
fn must_be_removed(
    records: &Records,
    channel: OfflineChannel,
    history: &History,
    read: &Read,
    settled_ns: u64,
) -> Option<u64> {
    let answered_at = read.answered_at?;
    let (from, to) = (read.at.saturating_sub(settled_ns), answered_at.saturating_add(settled_ns));
    // A provider that is away is asked some times only, and nobody needs to know after a kill what the answer before it had been.
    let was_away = records
        .providers_away
        .iter()
        .any(|(provider, gone, back)| *provider == channel && *gone <= to && from <= back.saturating_add(settled_ns));
    if was_away || records.was_killed(from, to) || history.notified.iter().any(|(_, at)| (from..=to).contains(at)) {
        return None;
    }
    let shown = history.shown_at(read.at).filter(|seq| *seq <= read.seq)?;
    // Removed after a read before this one, the device showed nothing.
    let is_gone = history.removed.iter().any(|(seq, at)| *seq == shown && *at < read.at);
    (!is_gone && history.is_known(records, shown, settled_ns)).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::{
        super::participants::{ParticipantCounts, random_of},
        *,
    };

    const SECOND: u64 = 1_000_000_000;

    /// Notified of these messages, removed these, each at this second; message 5 is read at second 10.
    fn balance(notified: &[(u64, u64)], removed: &[(u64, u64)], kill: Option<(u64, u64)>) -> RemovalBalance {
        let participants = Participants::draw("w", ParticipantCounts { users: 2, group_size: 2 }, &mut random_of(7));
        let arrivals = |all: &[(u64, u64)]| {
            let arrival = |(seq, at): &(u64, u64)| Arrival {
                channel: OfflineChannel::Fcm,
                user: 1,
                device: 0,
                conversation: 0,
                seq: *seq,
                id: None,
                at: at * SECOND,
            };
            all.iter().map(arrival).collect()
        };
        let read =
            Read { user: 1, conversation: 0, seq: 5, at: 10 * SECOND, answered_at: Some(10 * SECOND), in_peace: false };
        let mut records = Records {
            arrivals: arrivals(notified),
            removals: arrivals(removed),
            reads: vec![read],
            ..Records::default()
        };
        records.kills.extend(kill.map(|(from, to)| (from * SECOND, to * SECOND)));
        let all = audit_removals(&participants, &records, SECOND, |_, _, _| {});
        all.into_iter().find(|balance| balance.channel == OfflineChannel::Fcm).expect("all providers are there")
    }

    #[test]
    fn what_a_device_showed_is_removed_once_when_it_is_read() {
        let right = balance(&[(4, 3), (5, 4)], &[(5, 11)], None);
        assert!(right.balances() && right.must == 1 && right.notified == 1, "{right:?}");
        assert_eq!(balance(&[(5, 4)], &[], None).lost, 1);
        assert_eq!(balance(&[(5, 4)], &[(5, 11), (5, 12)], None).doubled, 1);
        assert_eq!(balance(&[(5, 4)], &[(5, 11), (5, 14)], Some((12, 13))).again, 1);
    }

    #[test]
    fn what_is_not_read_or_not_shown_stays() {
        assert!(balance(&[(6, 4)], &[], None).balances(), "a newer one is shown");
        assert_eq!(balance(&[(6, 4)], &[(6, 11)], None).unentitled, 1);
        assert_eq!(balance(&[(5, 4)], &[(5, 9)], None).unentitled, 1, "before it was read");
        assert_eq!(balance(&[], &[(5, 11)], None).unentitled, 1, "nothing was shown");
    }

    #[test]
    fn a_kill_before_the_answer_was_stored_leaves_the_server_without_knowing() {
        assert!(balance(&[(5, 4)], &[], Some((4, 5))).balances());
        assert_eq!(balance(&[(5, 4)], &[], Some((6, 7))).lost, 1, "it was stored by then");
        assert_eq!(balance(&[(5, 4), (5, 7)], &[], Some((4, 5))).lost, 1, "notified once more");
    }

    #[test]
    fn about_the_time_of_the_read_both_are_right() {
        for removed in [&[][..], &[(5, 11)]] {
            assert!(balance(&[(5, 10)], removed, None).balances(), "notified at that time: {removed:?}");
            assert!(balance(&[(5, 4)], removed, Some((9, 10))).balances(), "killed: {removed:?}");
        }
    }
}
