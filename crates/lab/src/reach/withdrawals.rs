//! Reading withdraws: holds what vendors were asked to take away to what users have read, and to what their devices showed.

use super::{
    cast::Cast,
    records::{Arrival, Read, Records},
};
use crate::offline_push::notice::OfflineRoad;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// What became, at one vendor, of notifications that were read elsewhere.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WithdrawalBalance {
    pub(crate) road: OfflineRoad,
    pub(crate) must: u64,
    pub(crate) told: u64,
    /// Withdrawn though it need not have been: something else was told or read meanwhile.
    pub(crate) perhaps: u64,
    /// Once more, after a kill.
    pub(crate) again: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Of what nobody had read, or what the device did not show.
    pub(crate) unentitled: u64,
}

impl WithdrawalBalance {
    pub(crate) fn balances(&self) -> bool {
        self.lost + self.doubled + self.unentitled == 0 && self.must == self.told
    }
}

/// One device and conversation.
type Place = (OfflineRoad, usize, usize, usize);

fn place_of(arrival: &Arrival) -> Place {
    (arrival.road, arrival.user, arrival.device, arrival.conversation)
}

/// What a device was told of a conversation, and asked to take away: `seq` and time.
#[derive(Default)]
struct History {
    told: Vec<(u64, u64)>,
    withdrawn: Vec<(u64, u64)>,
}

impl History {
    /// What the device showed at this time.
    fn shown_at(&self, at: u64) -> Option<u64> {
        self.told.iter().filter(|(_, told_at)| *told_at < at).map(|(seq, _)| *seq).max()
    }
}

/// Compares withdrawals with reads. `settled_ns`: within this of an event the server may not have known of it.
pub(super) fn audit_withdrawals(
    cast: &Cast,
    records: &Records,
    settled_ns: u64,
    mut example: impl FnMut(OfflineRoad, &'static str, String),
) -> Vec<WithdrawalBalance> {
    let mut histories: HashMap<Place, History> = HashMap::new();
    for arrival in &records.arrivals {
        histories.entry(place_of(arrival)).or_default().told.push((arrival.seq, arrival.at));
    }
    for withdrawal in &records.withdrawals {
        histories.entry(place_of(withdrawal)).or_default().withdrawn.push((withdrawal.seq, withdrawal.at));
    }
    let mut reads: HashMap<(usize, usize), Vec<&Read>> = HashMap::new();
    for read in &records.reads {
        reads.entry((read.user, read.conversation)).or_default().push(read);
    }
    let empty =
        |road| WithdrawalBalance { road, must: 0, told: 0, perhaps: 0, again: 0, lost: 0, doubled: 0, unentitled: 0 };
    let mut balances: BTreeMap<OfflineRoad, WithdrawalBalance> =
        OfflineRoad::VENDORS.iter().map(|road| (*road, empty(*road))).collect();
    for ((road, user, device, conversation), history) in &histories {
        let Some(balance) = balances.get_mut(road) else { continue };
        let name = |seq: u64| {
            let (user, conversation) = (&cast.users[*user].id, &cast.conversations[*conversation].id);
            format!("{user} on device {device}, {conversation} {seq}")
        };
        let reads = reads.get(&(*user, *conversation)).map_or(&[][..], |reads| reads);
        // By `seq`: whether it must be withdrawn.
        let mut due: BTreeMap<u64, bool> = BTreeMap::new();
        for read in reads {
            for (seq, _) in history.told.iter().filter(|(seq, _)| *seq <= read.seq) {
                due.entry(*seq).or_insert(false);
            }
            if let Some(seq) = must_be_withdrawn(records, *road, history, read, settled_ns) {
                due.insert(seq, true);
            }
        }
        for (seq, must) in &due {
            let times: Vec<u64> = history.withdrawn.iter().filter(|(of, _)| of == seq).map(|(_, at)| *at).collect();
            match (times.is_empty(), must) {
                (true, true) => {
                    balance.must += 1;
                    balance.lost += 1;
                    example(*road, "not withdrawn", name(*seq));
                }
                (false, true) => (balance.must, balance.told) = (balance.must + 1, balance.told + 1),
                (false, false) => balance.perhaps += 1,
                (true, false) => {}
            }
            for pair in times.windows(2) {
                match records.was_killed(pair[0], pair[1]) {
                    true => balance.again += 1,
                    false => {
                        balance.doubled += 1;
                        example(*road, "withdrawn twice", name(*seq));
                    }
                }
            }
        }
        for (seq, at) in &history.withdrawn {
            let is_read = reads.iter().any(|read| read.seq >= *seq && read.at <= *at);
            if !due.contains_key(seq) || !is_read {
                balance.unentitled += 1;
                example(*road, "withdrawn and not read", name(*seq));
            }
        }
    }
    balances.into_values().collect()
}

/// The message that must be withdrawn after this read: what the device showed, if nothing else happened about that time.
fn must_be_withdrawn(
    records: &Records,
    road: OfflineRoad,
    history: &History,
    read: &Read,
    settled_ns: u64,
) -> Option<u64> {
    let answered_at = read.answered_at?;
    let (from, to) = (read.at.saturating_sub(settled_ns), answered_at.saturating_add(settled_ns));
    // A vendor that is away is asked some times only, and nobody needs to know after a kill what the answer before it had been.
    let was_away = records
        .vendors_away
        .iter()
        .any(|(vendor, gone, back)| *vendor == road && *gone <= to && from <= back.saturating_add(settled_ns));
    if was_away || records.was_killed(from, to) || history.told.iter().any(|(_, at)| (from..=to).contains(at)) {
        return None;
    }
    let shown = history.shown_at(read.at).filter(|seq| *seq <= read.seq)?;
    // Withdrawn after a read before this one, the device showed nothing.
    let is_gone = history.withdrawn.iter().any(|(seq, at)| *seq == shown && *at < read.at);
    (!is_gone).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::{
        super::cast::{CastSize, random_of},
        *,
    };

    const SECOND: u64 = 1_000_000_000;

    /// Told of these messages, withdrawn these, each at this second; message 5 is read at second 10.
    fn balance(told: &[(u64, u64)], withdrawn: &[(u64, u64)], kill: Option<(u64, u64)>) -> WithdrawalBalance {
        let cast = Cast::draw("w", CastSize { users: 2, group_size: 2 }, &mut random_of(7));
        let arrivals = |all: &[(u64, u64)]| {
            let arrival = |(seq, at): &(u64, u64)| Arrival {
                road: OfflineRoad::Fcm,
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
            arrivals: arrivals(told),
            withdrawals: arrivals(withdrawn),
            reads: vec![read],
            ..Records::default()
        };
        records.kills.extend(kill.map(|(from, to)| (from * SECOND, to * SECOND)));
        let all = audit_withdrawals(&cast, &records, SECOND, |_, _, _| {});
        all.into_iter().find(|balance| balance.road == OfflineRoad::Fcm).expect("all vendors are there")
    }

    #[test]
    fn what_a_device_showed_is_withdrawn_once_when_it_is_read() {
        let right = balance(&[(4, 3), (5, 4)], &[(5, 11)], None);
        assert!(right.balances() && right.must == 1 && right.told == 1, "{right:?}");
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
    fn about_the_time_of_the_read_both_are_right() {
        for withdrawn in [&[][..], &[(5, 11)]] {
            assert!(balance(&[(5, 10)], withdrawn, None).balances(), "told at that time: {withdrawn:?}");
            assert!(balance(&[(5, 4)], withdrawn, Some((9, 10))).balances(), "killed: {withdrawn:?}");
        }
    }
}
