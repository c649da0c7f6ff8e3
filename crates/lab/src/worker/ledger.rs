//! What this run sent: when each message was due, what it said, where it was committed.

use super::verify::{EntryView, Judge, NO_MESSAGE};
use crate::{corpus::Corpus, job::Conversation};
use hdrhistogram::Histogram;
use std::io::Write;

/// A latency up to an hour, in microseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("these bounds are valid")
}

/// What messages say.
#[derive(Debug)]
pub(crate) enum Texts {
    /// (length, senders as JSON strings)
    Generated {
        body_bytes: usize,
        senders: Vec<String>,
    },
    Corpus(Corpus),
}

/// Every message of the worker's life, by number; a phase starts at `phase_start`.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Tells this run's messages from those of other runs on the same server.
    tag: String,
    /// Conversation ids as JSON strings.
    conversations: Vec<String>,
    pub(crate) texts: Texts,
    pub(crate) phase_start: u32,
    /// Nanoseconds on the worker's clock.
    planned: Vec<u64>,
    /// Where it was seen first; 0: not yet.
    seen_seq: Vec<u64>,
    /// Where the server said it was committed; 0: not yet.
    acknowledged_seq: Vec<u64>,
    pub(crate) committed: u64,
    pub(crate) delivered: u64,
    pub(crate) last_delivery: u64,
    pub(crate) latency: Histogram<u64>,
    pub(crate) acknowledged: Histogram<u64>,
    /// Answers that contradict each other or what was delivered.
    pub(crate) contradictions: u64,
    scratch: Vec<u8>,
}

impl Ledger {
    pub(crate) fn new(tag: String, conversations: &[Conversation]) -> Self {
        Ledger {
            tag,
            conversations: conversations.iter().map(|c| json_string(&c.id)).collect(),
            texts: Texts::Generated { body_bytes: 0, senders: Vec::new() },
            phase_start: 0,
            planned: Vec::new(),
            seen_seq: Vec::new(),
            acknowledged_seq: Vec::new(),
            committed: 0,
            delivered: 0,
            last_delivery: 0,
            latency: histogram(),
            acknowledged: histogram(),
            contradictions: 0,
            scratch: Vec::new(),
        }
    }

    /// Starts a phase: counts begin anew, numbers go on.
    pub(crate) fn start_phase(&mut self, texts: Texts) {
        self.texts = texts;
        self.phase_start = self.planned.len() as u32;
        self.committed = 0;
        self.delivered = 0;
        self.contradictions = 0;
        self.latency.reset();
        self.acknowledged.reset();
    }

    /// Plans one more message, due at `due`.
    pub(crate) fn plan(&mut self, due: u64) -> u32 {
        self.planned.push(due);
        self.seen_seq.push(0);
        self.acknowledged_seq.push(0);
        self.planned.len() as u32 - 1
    }

    pub(crate) fn planned_in_phase(&self) -> u64 {
        self.planned.len() as u64 - u64::from(self.phase_start)
    }

    pub(crate) fn due(&self, message: u32) -> u64 {
        self.planned[message as usize]
    }

    /// Appends the message as a request's object, or as a WebSocket `send` frame.
    pub(crate) fn put_message(&self, message: u32, out: &mut Vec<u8>, over_websocket: bool) {
        let index = (message - self.phase_start) as usize;
        let conversation = &self.conversations[self.conversation(index)];
        let _ = match over_websocket {
            true => write!(out, r#"{{"t":"send","ref":{message},"conversation":{conversation}"#),
            false => write!(out, r#"{{"conversation":{conversation},"from":{}"#, self.sender(index)),
        };
        let _ = write!(out, r#","client_msg_id":"{}-{message}","type":"text","body":"#, self.tag);
        self.put_body(index, out);
        out.push(b'}');
    }

    fn conversation(&self, index: usize) -> usize {
        match &self.texts {
            Texts::Generated { .. } => index % self.conversations.len(),
            Texts::Corpus(_) => 0,
        }
    }

    fn sender(&self, index: usize) -> std::borrow::Cow<'_, str> {
        match &self.texts {
            Texts::Generated { senders, .. } => senders[index % senders.len()].as_str().into(),
            Texts::Corpus(corpus) => json_string(&corpus.speakers[corpus.messages[index].speaker].id).into(),
        }
    }

    fn put_body(&self, index: usize, out: &mut Vec<u8>) {
        match &self.texts {
            Texts::Generated { body_bytes, .. } => {
                let start = out.len();
                let _ = write!(out, r#"{{"text":"{index} "#);
                let end = start + body_bytes.saturating_sub(2);
                out.resize(end.max(out.len()), b'.');
                out.extend_from_slice(b"\"}");
            }
            Texts::Corpus(corpus) => {
                out.extend_from_slice(b"{\"text\":");
                // A string always serializes.
                let _ = serde_json::to_writer(&mut *out, &corpus.messages[index].text);
                out.push(b'}');
            }
        }
    }

    /// The server answered with a receipt.
    pub(crate) fn acknowledge(&mut self, message: u32, seq: u64, now: u64) {
        let Some(acknowledged) = self.acknowledged_seq.get_mut(message as usize) else { return };
        if *acknowledged == 0 {
            *acknowledged = seq;
            self.committed += 1;
            record(&mut self.acknowledged, self.planned[message as usize], now);
        } else if *acknowledged != seq {
            self.contradictions += 1;
        }
        let seen = self.seen_seq[message as usize];
        if seen != 0 && seen != seq {
            self.contradictions += 1;
        }
    }

    /// Delivered although the send's answer never came: committed all the same.
    pub(crate) fn committed_unanswered(&self) -> u64 {
        let start = self.phase_start as usize;
        let pairs = self.seen_seq[start..].iter().zip(&self.acknowledged_seq[start..]);
        pairs.filter(|(seen, acknowledged)| **seen != 0 && **acknowledged == 0).count() as u64
    }

    fn number(&self, client_msg_id: &str) -> Option<u32> {
        client_msg_id.strip_prefix(self.tag.as_str())?.strip_prefix('-')?.parse().ok()
    }
}

impl Judge for Ledger {
    fn identify(&mut self, entry: &EntryView<'_>) -> Result<u32, String> {
        let Some(message) = entry.client_msg_id.as_deref().and_then(|id| self.number(id)) else {
            return Ok(NO_MESSAGE);
        };
        let index = message.wrapping_sub(self.phase_start) as usize;
        let Some(seen) = self.seen_seq.get_mut(message as usize) else { return Err("was never sent".into()) };
        if *seen != 0 {
            return Err(format!("is the message that stood at {}", *seen));
        }
        *seen = entry.seq;
        let acknowledged = self.acknowledged_seq[message as usize];
        if acknowledged != 0 && acknowledged != entry.seq {
            return Err(format!("was acknowledged as {acknowledged}"));
        }
        // A straggler of an earlier phase: its text is no longer at hand.
        if message < self.phase_start {
            return Ok(NO_MESSAGE);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        self.put_body(index, &mut scratch);
        let same = entry.body.get().as_bytes() == scratch;
        self.scratch = scratch;
        if !same {
            return Err(format!("has another text than was sent: {}", entry.body.get()));
        }
        let sender = self.sender(index);
        if serde_json::from_str::<String>(&sender).ok().as_deref() != entry.from.as_deref() {
            return Err(format!("is from {:?} instead of {sender}", entry.from));
        }
        if self.conversations[self.conversation(index)] != json_string(&entry.conversation) {
            return Err("went to another conversation".into());
        }
        Ok(message)
    }

    fn delivered(&mut self, message: u32, now: u64) {
        if message < self.phase_start {
            return;
        }
        self.delivered += 1;
        self.last_delivery = now;
        record(&mut self.latency, self.planned[message as usize], now);
    }
}

/// Records the time from `start` to `end` (nanoseconds) in microseconds.
pub(crate) fn record(histogram: &mut Histogram<u64>, start: u64, end: u64) {
    histogram.saturating_record((end.saturating_sub(start) / 1_000).max(1));
}

pub(crate) fn json_string(text: &str) -> String {
    // A string always serializes.
    serde_json::to_string(text).unwrap_or_default()
}
