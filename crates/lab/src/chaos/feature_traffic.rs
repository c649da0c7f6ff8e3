//! Reactions, pins and messages that grow, in a conversation of the guests while faults last. What a node acknowledged must be on
//! every node in the end, whichever versions of the program have handled it.

use super::{guests::GuestConfig, nodes::Nodes};
use crate::{LabError, lock::lock, problems::Problems, setup, timeline};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidings_client::http::path_segment;
use tidings_protocol::{
    entry::Entry,
    http::{ChangeReceipt, ChunkReceipt, MessageReactions, PinState, SendReceipt},
};

const ROUND_INTERVAL: Duration = Duration::from_millis(500);
const REACTION: &str = "🎉";
/// A conversation has at most 100 pins.
const PINS_MAX: usize = 90;
/// Every so many rounds a message is pinned.
const ROUNDS_PER_PIN: usize = 4;
const CHUNKS: [&str; 3] = ["grown", " in three", " chunks"];

/// What one round did, as far as it was acknowledged.
#[derive(Debug, Clone, Default)]
struct Round {
    message: u64,
    reacted: bool,
    pinned: bool,
    grown: Option<Grown>,
}

#[derive(Debug, Clone, Copy)]
struct Grown {
    seq: u64,
    /// Whether its end was acknowledged. Otherwise its node may have interrupted it.
    whole: bool,
}

/// The figures of all rounds so far, and what does not fit them.
#[derive(Debug, Default, Serialize)]
pub(super) struct FeatureResult {
    pub(super) reactions: usize,
    pub(super) pins: usize,
    pub(super) grown: usize,
    pub(super) cut_short: usize,
    pub(super) problem_count: usize,
    pub(super) problems: Vec<String>,
}

impl FeatureResult {
    pub(super) fn passes(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, problem: String) {
        self.problem_count += 1;
        self.problems.note(problem);
    }
}

/// The conversation, and all rounds of a run.
#[derive(Debug)]
pub(super) struct FeatureTraffic {
    conversation: String,
    rounds: Mutex<(Vec<Round>, Vec<String>)>,
}

impl FeatureTraffic {
    pub(super) fn set_up(config: &GuestConfig, tag: &str) -> Result<Self, LabError> {
        let mut http = config.http(0);
        let conversation = format!("features-{tag}");
        setup::create_group(&mut http, &conversation, &config.guests)?;
        Ok(FeatureTraffic { conversation, rounds: Mutex::default() })
    }

    /// Works, at each node in turn, until it is told to stop and its last round is through.
    pub(super) fn run(&self, config: &GuestConfig, patience: Duration, stop: &AtomicBool) {
        let mut nodes = Nodes::of(config, stop, patience);
        while !stop.load(Ordering::Relaxed) {
            let (number, pins) = {
                let known = lock(&self.rounds);
                (known.0.len(), known.0.iter().filter(|round| round.pinned).count())
            };
            let mut round = Round::default();
            let done = self.round(number, pins, config, &mut nodes, &mut round);
            let mut known = lock(&self.rounds);
            known.0.push(round);
            known.1.extend(done.err());
            drop(known);
            std::thread::sleep(ROUND_INTERVAL);
        }
    }

    fn round(
        &self,
        number: usize,
        pins: usize,
        config: &GuestConfig,
        nodes: &mut Nodes<'_>,
        round: &mut Round,
    ) -> Result<(), String> {
        let author = &config.guests[0];
        let message = |id: String, text: &str| json!({ "conversation": self.conversation, "from": author, "client_msg_id": id, "body": { "text": text } });
        let plain = message(format!("f{number}"), "plain");
        let (_, sent) =
            nodes.until_accepted(number, |http| http.post::<SendReceipt>("/v1/messages", &plain), |_| {})?;
        round.message = sent.seq;
        let at = format!("/v1/conversations/{}/messages/{}", path_segment(&self.conversation), sent.seq);
        let user = path_segment(author);
        let react = format!("{at}/reactions/{}?user={user}", path_segment(REACTION));
        nodes.until_accepted(number, |http| http.call::<MessageReactions>("PUT", &react, None::<&()>), |_| {})?;
        round.reacted = true;
        if number.is_multiple_of(ROUNDS_PER_PIN) && pins < PINS_MAX {
            let pin = format!("{at}/pin?user={user}");
            nodes.until_accepted(number, |http| http.call::<PinState>("PUT", &pin, None::<&()>), |_| {})?;
            round.pinned = true;
        }
        let begin = message(format!("g{number}"), "");
        let (node, begun) =
            nodes.until_accepted(number, |http| http.post::<SendReceipt>("/v1/streams", &begin), |_| {})?;
        let mut grown = Grown { seq: begun.seq, whole: false };
        round.grown = Some(grown);
        let stream = format!("/v1/streams/{}/{}", path_segment(&self.conversation), begun.seq);
        // A message grows at one node, and ends with it.
        let http = &mut nodes.all[node];
        let mut offset = 0;
        for text in CHUNKS {
            let chunk = json!({ "offset": offset, "text": text });
            match http.post::<ChunkReceipt>(&stream, &chunk) {
                Ok(receipt) => offset = receipt.offset,
                Err(_) => return Ok(()),
            }
        }
        grown.whole = http.post::<ChangeReceipt>(&format!("{stream}/end"), &json!({})).is_ok();
        round.grown = Some(grown);
        Ok(())
    }

    /// Reads the conversation at every node, and compares it with what was acknowledged.
    pub(super) fn verify(&self, config: &GuestConfig) -> FeatureResult {
        let (rounds, failures) = lock(&self.rounds).clone();
        let grown = || rounds.iter().filter_map(|round| round.grown);
        let mut result = FeatureResult {
            reactions: rounds.iter().filter(|round| round.reacted).count(),
            pins: rounds.iter().filter(|round| round.pinned).count(),
            grown: grown().filter(|grown| grown.whole).count(),
            cut_short: grown().filter(|grown| !grown.whole).count(),
            ..FeatureResult::default()
        };
        failures.into_iter().for_each(|failure| result.problem(failure));
        for node in 0..config.nodes.len() {
            let mut http = config.http(node);
            let entries = match timeline::read_timeline(&mut http, &self.conversation) {
                Ok(entries) => entries,
                Err(error) => {
                    result.problem(format!("node {node} does not read the conversation of features: {error}"));
                    continue;
                }
            };
            let entries: HashMap<u64, Entry> = entries.into_iter().map(|entry| (entry.seq, entry)).collect();
            for (number, round) in rounds.iter().enumerate() {
                for what in differences(number, round, &config.guests[0], &entries) {
                    result.problem(format!("node {node}, round {number}: {what}"));
                }
            }
        }
        result
    }
}

/// What a node does not show of a round.
fn differences(number: usize, round: &Round, author: &str, entries: &HashMap<u64, Entry>) -> Vec<String> {
    let mut found = Vec::new();
    if round.message > 0 {
        match entries.get(&round.message) {
            Some(entry) if entry.client_msg_id.as_deref() == Some(&format!("f{number}")) => {
                let has_reaction = entry.reactions.iter().any(|given| {
                    given.key == REACTION && given.count == 1 && given.users.iter().any(|user| user == author)
                });
                if round.reacted && !has_reaction {
                    found.push(format!("the reaction is lost: {:?}", entry.reactions));
                }
                if round.pinned && entry.pinned.is_none() {
                    found.push("the pin is lost".into());
                }
            }
            other => found.push(format!("the message {} is lost: {other:?}", round.message)),
        }
    }
    if let Some(grown) = round.grown {
        match entries.get(&grown.seq) {
            Some(entry) => {
                let body: Value = serde_json::from_str(entry.body.get()).unwrap_or_default();
                let (text, whole) = (body["text"].as_str().unwrap_or_default(), CHUNKS.concat());
                if grown.whole && (text != whole || entry.stream.is_some()) {
                    found.push(format!("the grown message is not whole: {text:?} {:?}", entry.stream));
                }
                if !whole.starts_with(text) {
                    found.push(format!("the grown message has another text: {text:?}"));
                }
            }
            None => found.push(format!("the grown message {} is lost", grown.seq)),
        }
    }
    found
}
