//! Which agent gets which receivers and senders.

use crate::{LabError, agent::machine::Machine, phase_part::Slots, worker_protocol::Participants};
use std::ops::Range;

/// What each agent has of a population.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Share {
    /// Receivers by their place in the whole.
    pub(super) receivers: Vec<usize>,
    pub(super) http_senders: usize,
    pub(super) ws_senders: Range<usize>,
}

impl Share {
    pub(super) fn senders(&self) -> usize {
        self.http_senders + self.ws_senders.len()
    }
}

/// An agent's weight and what it can hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Capacity {
    pub(crate) weight: f64,
    pub(crate) connections_max: usize,
}

/// The weight of a machine is the least of its descriptors, ports and cores, each as a part of what the best machine has.
pub(crate) fn capacities(machines: &[&Machine], addresses: usize, is_loopback: bool) -> Vec<Capacity> {
    let best = |of: fn(&Machine) -> u64| machines.iter().map(|machine| of(machine)).max().unwrap_or(1).max(1) as f64;
    let (descriptors, ports, cores) = (best(|m| m.descriptors), best(|m| m.ports), best(|m| m.cores));
    let capacity = |machine: &&Machine| {
        let parts = [
            machine.descriptors as f64 / descriptors,
            if is_loopback { 1.0 } else { machine.ports as f64 / ports },
            machine.cores as f64 / cores,
        ];
        Capacity {
            weight: parts.into_iter().fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE),
            connections_max: machine.connections_max(addresses as u64, is_loopback) as usize,
        }
    };
    machines.iter().map(capacity).collect()
}

/// Splits a number in proportion to weights, to the last one: what is left after rounding down goes to those who lost most.
fn split(total: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    if sum <= 0.0 {
        return vec![0; weights.len()];
    }
    let exact: Vec<f64> = weights.iter().map(|weight| total as f64 * weight / sum).collect();
    let mut parts: Vec<usize> = exact.iter().map(|part| *part as usize).collect();
    let mut by_rest: Vec<usize> = (0..parts.len()).filter(|index| weights[*index] > 0.0).collect();
    by_rest.sort_by(|one, other| (exact[*other].fract()).total_cmp(&exact[*one].fract()).then(one.cmp(other)));
    let left = total.saturating_sub(parts.iter().sum());
    by_rest.iter().cycle().take(left).for_each(|index| parts[*index] += 1);
    parts
}

/// The same with bounds; what one cannot hold the others get. `None`: all together cannot hold so many.
pub(crate) fn split_within(total: usize, weights: &[f64], bounds: &[usize]) -> Option<Vec<usize>> {
    let mut weights = weights.to_vec();
    let mut fixed = vec![0; weights.len()];
    loop {
        let left = total.checked_sub(fixed.iter().sum())?;
        let parts = split(left, &weights);
        let over: Vec<usize> = (0..parts.len()).filter(|index| parts[*index] > bounds[*index]).collect();
        if over.is_empty() {
            let sum: Vec<usize> = parts.iter().zip(&fixed).map(|(part, fixed)| part + fixed).collect();
            return (sum.iter().sum::<usize>() == total).then_some(sum);
        }
        for index in over {
            (fixed[index], weights[index]) = (bounds[index], 0.0);
        }
    }
}

fn ranges(parts: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    let range = |part: &usize| {
        start += part;
        start - part..start
    };
    parts.iter().map(range).collect()
}

/// Splits a population. With a conversation for each sender, a conversation's receiver is where its sender is, so that one
/// clock tells its latency; otherwise receivers and senders are split each for themselves.
pub(super) fn shares(participants: &Participants, capacities: &[Capacity]) -> Result<Vec<Share>, LabError> {
    let weights: Vec<f64> = capacities.iter().map(|capacity| capacity.weight).collect();
    let http_senders = split(participants.http_senders, &weights);
    let ws_senders = ranges(&split(participants.ws_senders.len(), &weights));
    let mut shares: Vec<Share> = http_senders
        .into_iter()
        .zip(ws_senders)
        .map(|(http_senders, ws_senders)| Share { receivers: Vec::new(), http_senders, ws_senders })
        .collect();
    let room: Vec<usize> = capacities
        .iter()
        .zip(&shares)
        .map(|(capacity, share)| capacity.connections_max.saturating_sub(share.senders()))
        .collect();
    let conversations = participants.conversations.len();
    if conversations > 1 && shares.iter().any(|share| share.senders() > 0) {
        let slots = slots(&shares, &weights, conversations);
        for (index, receiver) in participants.receivers.iter().enumerate() {
            let owner = slots.iter().position(|slots| slots.nth(receiver.conversation as u64).is_some());
            shares[owner.unwrap_or(0)].receivers.push(index);
        }
    } else {
        let parts = split_within(participants.receivers.len(), &weights, &room);
        let parts = parts.unwrap_or_else(|| split(participants.receivers.len(), &weights));
        for (share, range) in shares.iter_mut().zip(ranges(&parts)) {
            share.receivers = range.collect();
        }
    }
    if shares.iter().zip(&room).all(|(share, room)| share.receivers.len() <= *room) {
        Ok(shares)
    } else {
        let count = participants.connections();
        let bounds: Vec<usize> = capacities.iter().map(|capacity| capacity.connections_max).collect();
        Err(LabError::Usage(format!("{count} connections: the agents hold {bounds:?}")))
    }
}

/// The senders of a phase by agent. An agent without a connection that sends has none.
pub(super) fn slots(shares: &[Share], weights: &[f64], senders: usize) -> Vec<Slots> {
    let by_session = shares.iter().map(|share| share.ws_senders.len()).sum::<usize>() == senders;
    let parts = if by_session {
        shares.iter().map(|share| share.ws_senders.len()).collect()
    } else {
        let sends = shares.iter().zip(weights);
        split(
            senders,
            &sends.map(|(share, weight)| if share.senders() > 0 { *weight } else { 0.0 }).collect::<Vec<_>>(),
        )
    };
    let slot =
        |range: Range<usize>| Slots { first: range.start as u64, count: range.len() as u64, all: senders as u64 };
    ranges(&parts).into_iter().map(slot).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::worker_protocol::{Conversation, Receiver};

    fn config(conversations: usize, receivers: usize, http_senders: usize, ws_senders: usize) -> Participants {
        let receiver = |index: usize| Receiver { user: format!("u{index}"), conversation: index % conversations };
        Participants {
            conversations: (0..conversations)
                .map(|index| Conversation { id: format!("c{index}"), base_seq: 0 })
                .collect(),
            receivers: (0..receivers).map(receiver).collect(),
            http_senders,
            ws_senders: (0..ws_senders).map(|index| format!("s{index}")).collect(),
            ..Participants::default()
        }
    }

    fn capacity(weight: f64, connections_max: usize) -> Capacity {
        Capacity { weight, connections_max }
    }

    fn counts(shares: &[Share]) -> Vec<(usize, usize)> {
        shares.iter().map(|share| (share.receivers.len(), share.senders())).collect()
    }

    #[test]
    fn the_least_of_descriptors_ports_and_cores_counts() {
        let machine = |cores, descriptors, ports| Machine { cores, descriptors, ports, ..Machine::default() };
        let machines = [machine(4, 1_000, 30_000), machine(2, 1_000, 30_000), machine(4, 1_000, 7_500)];
        let weights = |is_loopback| {
            let capacities = capacities(&machines.iter().collect::<Vec<_>>(), 1, is_loopback);
            capacities.iter().map(|capacity| capacity.weight).collect::<Vec<_>>()
        };
        assert_eq!(weights(false), [1.0, 0.5, 0.25]);
        assert_eq!(weights(true), [1.0, 0.5, 1.0]);
    }

    #[test]
    fn a_group_is_split_by_weight_and_bounds_to_the_last_member() {
        let equal = [capacity(1.0, 100); 3];
        assert_eq!(counts(&shares(&config(1, 10, 4, 0), &equal).unwrap()), [(4, 2), (3, 1), (3, 1)]);
        let unequal = [capacity(1.0, 100), capacity(0.5, 100), capacity(0.5, 13)];
        assert_eq!(counts(&shares(&config(1, 80, 4, 0), &unequal).unwrap()), [(45, 2), (23, 1), (12, 1)]);
        let why = shares(&config(1, 210, 4, 0), &unequal).unwrap_err().to_string();
        assert!(why.contains("214 connections") && why.contains("[100, 100, 13]"), "{why}");
    }

    #[test]
    fn every_message_has_one_sender_who_has_a_connection() {
        let three = [capacity(1.0, 100); 3];
        for (http_senders, ws_senders, senders) in [(4, 0, 4), (1, 0, 7), (2, 0, 50), (0, 5, 5), (0, 2, 2), (9, 0, 1)] {
            let shares = shares(&config(1, 9, http_senders, ws_senders), &three).unwrap();
            let slots = slots(&shares, &[1.0; 3], senders);
            for number in 0..100 {
                let owners: Vec<usize> = (0..3).filter(|agent| slots[*agent].nth(number).is_some()).collect();
                assert_eq!(owners.len(), 1);
                assert!(shares[owners[0]].senders() > 0, "{shares:?} {slots:?}");
            }
        }
    }

    #[test]
    fn a_direct_conversation_is_on_one_agent() {
        let config = config(10, 10, 3, 0);
        let shares = shares(&config, &[capacity(1.0, 100); 3]).unwrap();
        let slots = slots(&shares, &[1.0; 3], 10);
        for (share, slots) in shares.iter().zip(slots) {
            assert!(!share.receivers.is_empty());
            for receiver in &share.receivers {
                assert!(slots.nth(config.receivers[*receiver].conversation as u64).is_some());
            }
        }
    }
}
