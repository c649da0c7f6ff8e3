//! The ledgers of all agents as one: what was acknowledged, and which entry stands where, as the receivers of each agent got it.
//!
//! Each load client has verified its own receivers entry by entry: once, in order, and with the content that the message's number
//! gives. What no load client can know is left for here: whether another's message was acknowledged, and as which `seq`; whether
//! the receivers of all agents got the same entry at the same `seq`; how many deliveries all messages together make.

use crate::{
    phase_part::{LedgerLine, LoggedEntry, Slots},
    verification::{Findings, standing::Standing},
};
use std::collections::{HashMap, hash_map::Entry};

/// The ledgers of one phase.
#[derive(Debug, Default)]
pub(super) struct MergedLedger {
    agents: Vec<AgentPart>,
    conversations: u64,
    /// By conversation and `seq`: the entry, and the first agent whose receivers got it.
    entries: HashMap<(usize, u64), (LoggedEntry, usize)>,
    /// By number of the message.
    standings: HashMap<u64, Standing>,
    findings: Findings,
}

/// An agent's part in the phase.
#[derive(Debug, Clone)]
pub(super) struct AgentPart {
    pub(super) address: String,
    pub(super) slots: Slots,
    /// Receivers by conversation.
    pub(super) receivers: Vec<u64>,
}

/// What all ledgers together say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) committed: u64,
    /// Deliveries that each agent's receivers must have got.
    pub(super) expected: Vec<u64>,
    /// Entries that differ between agents, and acknowledgements that deliveries contradict.
    pub(super) altered: u64,
    pub(super) problems: Vec<String>,
}

impl MergedLedger {
    pub(super) fn new(agents: Vec<AgentPart>, conversations: usize) -> Self {
        MergedLedger { agents, conversations: conversations.max(1) as u64, ..MergedLedger::default() }
    }

    pub(super) fn add(&mut self, agent: usize, line: &LedgerLine) -> Result<(), String> {
        match line {
            LedgerLine::Acknowledged { first, seqs } => {
                let slots = self.agents[agent].slots;
                for (nth, seq) in (*first..).zip(LedgerLine::unpack_acknowledged(seqs)?) {
                    if let Some(number) = slots.number(nth).filter(|_| seq != 0) {
                        self.standings.entry(number).or_default().acknowledge(seq);
                    }
                }
            }
            LedgerLine::Log { conversation, entries } => {
                for entry in LedgerLine::unpack_log(entries)? {
                    self.add_entry(agent, *conversation, entry);
                }
            }
        }
        Ok(())
    }

    fn add_entry(&mut self, agent: usize, conversation: usize, entry: LoggedEntry) {
        match self.entries.entry((conversation, entry.seq)) {
            Entry::Vacant(place) => {
                place.insert((entry, agent));
                self.deliver(entry);
            }
            Entry::Occupied(place) => {
                let (known, other) = place.get();
                if *known != entry {
                    let (one, two) = (&self.agents[*other].address, &self.agents[agent].address);
                    let name =
                        |entry: &LoggedEntry| entry.number.map_or("another entry".into(), |n| format!("message {n}"));
                    let what = format!(
                        "at {} the receivers of agent {one} got {}, those of agent {two} {}{}",
                        entry.seq,
                        name(known),
                        name(&entry),
                        if known.number == entry.number { " with other bytes" } else { "" }
                    );
                    self.findings.altered(what);
                    // A message that only the second agent has there was delivered all the same.
                    let standing = entry.number.and_then(|number| self.standings.get(&number));
                    if standing.is_none_or(|standing| standing.delivered().is_none()) {
                        self.deliver(entry);
                    }
                }
            }
        }
    }

    fn deliver(&mut self, entry: LoggedEntry) {
        if let Some(number) = entry.number {
            let standing = self.standings.entry(number).or_default();
            if let Some(before) = standing.delivered() {
                self.findings.altered(format!("message {number} stands at {before} and at {}", entry.seq));
            }
            standing.deliver(entry.seq);
        }
    }

    /// Judges the phase once every ledger is here. `planned`: how many messages each agent planned.
    pub(super) fn judge(mut self, planned: &[u64]) -> Verdict {
        let mut contradictions = Vec::new();
        let mut committed = vec![0_u64; self.conversations as usize];
        for (number, standing) in &self.standings {
            let is_planned = self
                .agents
                .iter()
                .zip(planned)
                .any(|(agent, planned)| agent.slots.nth(*number).is_some_and(|nth| nth < *planned));
            if let (Some(answer), Some(seq)) = (standing.acknowledged(), standing.delivered())
                && answer != seq
            {
                contradictions.push(format!("message {number} was acknowledged as {answer} and delivered as {seq}"));
            }
            match standing.delivered() {
                Some(seq) if !is_planned => contradictions.push(format!("message {number} at {seq} was never sent")),
                // Without an answer that was lost, or was a refusal, it was committed all the same.
                _ => committed[(number % self.conversations) as usize] += 1,
            }
        }
        // Maps have no order: the same faults are told in the same words in each run.
        contradictions.sort_unstable();
        contradictions.into_iter().for_each(|what| self.findings.altered(what));
        let expected = |agent: &AgentPart| agent.receivers.iter().zip(&committed).map(|(r, c)| r * c).sum();
        Verdict {
            committed: committed.iter().sum(),
            expected: self.agents.iter().map(expected).collect(),
            altered: self.findings.faults.altered,
            problems: self.findings.problems,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two agents with a slot each, and two and three receivers of one conversation.
    fn ledger() -> MergedLedger {
        let agent = |first, receivers| AgentPart {
            address: format!("agent-{first}"),
            slots: Slots { first, count: 1, all: 2 },
            receivers: vec![receivers],
        };
        MergedLedger::new(vec![agent(0, 2), agent(1, 3)], 1)
    }

    fn logged(entries: &[(u64, Option<u64>, u64)]) -> LedgerLine {
        let entries: Vec<LoggedEntry> = entries
            .iter()
            .map(|(seq, number, digest)| LoggedEntry { seq: *seq, number: *number, digest: *digest })
            .collect();
        LedgerLine::log(0, &entries)
    }

    /// Messages 0 to 3 at 11 to 14, acknowledged by their senders; each agent's log as given.
    fn judge(logs: [&[(u64, Option<u64>, u64)]; 2]) -> Verdict {
        let mut ledger = ledger();
        let acknowledged = [[11, 13], [12, 14]];
        for (agent, (log, seqs)) in logs.iter().zip(acknowledged).enumerate() {
            assert_eq!(ledger.add(agent, &LedgerLine::acknowledged(0, &seqs)), Ok(()));
            assert_eq!(ledger.add(agent, &logged(log)), Ok(()));
        }
        ledger.judge(&[2, 2])
    }

    const CLEAN: [(u64, Option<u64>, u64); 4] =
        [(11, Some(0), 7), (12, Some(1), 8), (13, Some(2), 9), (14, Some(3), 9)];

    #[test]
    fn a_clean_phase_balances() {
        let verdict = judge([&CLEAN, &CLEAN]);
        assert_eq!(verdict, Verdict { committed: 4, expected: vec![8, 12], ..Verdict::default() });
    }

    #[test]
    fn what_one_agent_never_got_is_expected_all_the_same() {
        let verdict = judge([&CLEAN, &CLEAN[..2]]);
        assert_eq!((verdict.expected, verdict.altered), (vec![8, 12], 0));
        let nobody = judge([&CLEAN[..3], &CLEAN[..3]]);
        assert_eq!((nobody.committed, nobody.expected), (4, vec![8, 12]), "acknowledged, and delivered to nobody");
    }

    #[test]
    fn two_orders_and_other_bytes_are_found_with_the_agents_names() {
        let mut swapped = CLEAN;
        (swapped[1].1, swapped[2].1) = (swapped[2].1, swapped[1].1);
        let verdict = judge([&CLEAN, &swapped]);
        assert_eq!((verdict.altered, verdict.committed), (2, 4));
        assert_eq!(
            verdict.problems[0],
            "at 12 the receivers of agent agent-0 got message 1, those of agent agent-1 message 2"
        );
        let mut altered = CLEAN;
        altered[3].2 += 1;
        let verdict = judge([&altered, &CLEAN]);
        assert_eq!((verdict.altered, verdict.problems[0].ends_with("message 3 with other bytes")), (1, true));
    }

    #[test]
    fn contradicted_acknowledgements_and_unsent_messages_are_found() {
        let moved = [(11, Some(0), 7), (12, Some(1), 8), (13, None, 1), (14, Some(3), 9), (15, Some(2), 9)];
        let verdict = judge([&moved, &moved]);
        assert_eq!(verdict.problems, ["message 2 was acknowledged as 13 and delivered as 15"]);
        let more = [&CLEAN[..], &[(15, Some(4), 1)]].concat();
        let verdict = judge([&more, &more]);
        assert_eq!((verdict.problems, verdict.committed), (vec!["message 4 at 15 was never sent".to_owned()], 4));
        let twice = [&CLEAN[..], &[(15, Some(3), 9)]].concat();
        assert_eq!(judge([&CLEAN, &twice]).altered, 2, "stands at two places, of which one was acknowledged");
    }

    #[test]
    fn a_delivery_without_an_answer_was_committed() {
        let mut ledger = ledger();
        assert_eq!(ledger.add(0, &LedgerLine::acknowledged(0, &[11, 0])), Ok(()));
        assert_eq!(ledger.add(1, &logged(&[(11, Some(0), 1), (12, Some(2), 1)])), Ok(()));
        let verdict = ledger.judge(&[2, 0]);
        assert_eq!((verdict.committed, verdict.expected, verdict.altered), (2, vec![4, 6], 0));
    }

    #[test]
    fn a_line_that_cannot_be_read_is_an_error() {
        let line = LedgerLine::Log { conversation: 0, entries: "?".into() };
        assert!(ledger().add(0, &line).is_err());
    }
}
