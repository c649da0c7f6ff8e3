//! The messages that the worker sent: when each was due, its body, and the `seq` at which it was committed.

use super::{
    shared_phase::{MessageName, OTHERS, SharedPhase},
    verifier::{EntryView, NO_MESSAGE},
};
use crate::{
    corpus::Corpus,
    phase_part::Slots,
    verification::{standing::Standing, tally::Tally},
    worker_protocol::Conversation,
};
use std::io::Write;

/// The bodies of a phase's messages.
#[derive(Debug)]
pub(crate) enum MessageBodies {
    /// Generated texts; senders and recipients are JSON strings. Without recipients a message names its conversation.
    Generated {
        body_bytes: usize,
        senders: Vec<String>,
        recipients: Vec<String>,
    },
    Corpus(Corpus),
}

/// What a body has around its text.
const BODY_FRAME_BYTES: usize = 9;
/// The shortest body: its text is the message's number.
const BODY_BYTES_MIN: usize = 24;

impl Default for MessageBodies {
    fn default() -> Self {
        MessageBodies::generated(0, &[], &[])
    }
}

impl MessageBodies {
    /// Texts of this length, of senders and recipients by their ids.
    pub(crate) fn generated(body_bytes: usize, senders: &[String], recipients: &[String]) -> Self {
        let json_strings = |ids: &[String]| ids.iter().map(|id| json_string(id)).collect();
        MessageBodies::Generated {
            body_bytes: body_bytes.max(BODY_BYTES_MIN) - BODY_FRAME_BYTES,
            senders: json_strings(senders),
            recipients: json_strings(recipients),
        }
    }
}

/// In place of a lateness: the message was sent.
const SENT: u32 = u32::MAX;

/// Every message that the worker has planned, by number; those of the current phase start at `phase_start`.
#[derive(Debug, Default)]
pub(crate) struct SentMessages {
    /// Distinguishes this run's messages from those of other runs on the same server.
    tag: String,
    /// Conversation ids as JSON strings.
    conversations: Vec<String>,
    pub(crate) bodies: MessageBodies,
    pub(crate) phase_start: u32,
    /// The phase's senders that are this load client's.
    slots: Slots,
    /// Set when other load clients take part in the phase.
    pub(super) shared_phase: Option<SharedPhase>,
    /// When each message was due, in nanoseconds of the worker's clock.
    planned: Vec<u64>,
    /// How late each message was planned, in microseconds; [`SENT`] once it was sent for the first time.
    planned_late_us: Vec<u32>,
    standings: Vec<Standing>,
    /// The counts and times of the phase.
    pub(crate) tally: Tally,
    /// Deliveries of messages that this load client sent: all of them, unless others send, too.
    pub(crate) delivered_own: u64,
    /// Acknowledgements that contradict each other or a delivery.
    pub(crate) contradictions: u64,
    scratch: Vec<u8>,
}

impl SentMessages {
    pub(crate) fn new(tag: String, conversations: &[Conversation]) -> Self {
        SentMessages {
            tag,
            conversations: conversations.iter().map(|c| json_string(&c.id)).collect(),
            ..SentMessages::default()
        }
    }

    /// Starts a phase, maybe one that other load clients take part in: counts begin at 0, message numbers go on.
    pub(crate) fn start_phase(&mut self, bodies: MessageBodies, start: u64, shared_phase: Option<SharedPhase>) {
        self.slots = shared_phase.as_ref().map_or(Slots::ALL, |phase| phase.part.slots);
        let before = self.shared_phase.take();
        self.shared_phase = shared_phase.map(|phase| phase.after(before.as_ref()));
        self.tally = Tally::from(start);
        self.bodies = bodies;
        self.phase_start = self.planned.len() as u32;
        (self.delivered_own, self.contradictions) = (0, 0);
    }

    /// The number in the phase of the message that is planned `nth`; `None` if this load client sends nothing.
    pub(super) fn number_of_nth(&self, nth: u64) -> Option<u64> {
        self.slots.number(nth)
    }

    /// The number in the phase of a message of the phase, whoever sent it.
    pub(super) fn number_of(&self, message: u32) -> Option<u64> {
        match &self.shared_phase {
            _ if message == NO_MESSAGE => None,
            Some(shared) if message & OTHERS != 0 => shared.number_of(message),
            _ => self.slots.number(u64::from(message.checked_sub(self.phase_start)?)),
        }
    }

    /// The number of a message of this load client, by which its content is known.
    fn index(&self, message: u32) -> usize {
        self.number_of(message).unwrap_or_default() as usize
    }

    /// Where the messages of the phase stand.
    pub(super) fn standings(&self) -> &[Standing] {
        &self.standings[self.phase_start as usize..]
    }

    /// Plans one more message, due at `due`, which was `late_ns` ago.
    pub(crate) fn plan(&mut self, due: u64, late_ns: u64) -> u32 {
        self.planned.push(due);
        self.planned_late_us.push(u32::try_from(late_ns / 1_000).unwrap_or(SENT).min(SENT - 1));
        self.tally.times.series.planned(due);
        self.standings.push(Standing::default());
        self.planned.len() as u32 - 1
    }

    /// Records that a message is sent now, `waited_ns` after it could have been: it was planned and a sender was free. What is
    /// sent again is not counted again.
    pub(crate) fn record_sent(&mut self, message: u32, now: u64, waited_ns: u64) {
        let Some(late_us) = self.planned_late_us.get_mut(message as usize) else { return };
        let late_us = std::mem::replace(late_us, SENT);
        if late_us != SENT {
            let lag_ns = u64::from(late_us) * 1_000 + waited_ns;
            self.tally.times.sent(now, lag_ns);
        }
    }

    /// The number that the next planned message gets.
    pub(crate) fn next_number(&self) -> u32 {
        self.planned.len() as u32
    }

    pub(crate) fn planned_in_phase(&self) -> u64 {
        self.planned.len() as u64 - u64::from(self.phase_start)
    }

    /// When the message that was planned last is due; 0 without any.
    pub(crate) fn last_due(&self) -> u64 {
        self.planned.last().copied().unwrap_or(0)
    }

    /// Appends the message as the JSON object of an HTTP request, or as a WebSocket `send` frame.
    pub(crate) fn put_message(&self, message: u32, out: &mut Vec<u8>, over_websocket: bool) {
        let index = self.index(message);
        let (name, address) = match &self.bodies {
            MessageBodies::Generated { recipients, .. } if !recipients.is_empty() => {
                ("to", &recipients[index % recipients.len()])
            }
            _ => ("conversation", &self.conversations[self.conversation(index)]),
        };
        let _ = if over_websocket {
            write!(out, r#"{{"t":"send","ref":{message},"{name}":{address}"#)
        } else {
            write!(out, r#"{{"{name}":{address},"from":{}"#, self.sender(index))
        };
        let _ = write!(out, r#","client_msg_id":"{}-"#, self.tag);
        let _ = match &self.shared_phase {
            None => write!(out, "{message}"),
            Some(shared) => {
                shared.put_name(index as u64, self.planned[message as usize], out);
                Ok(())
            }
        };
        out.extend_from_slice(br#"","type":"text","body":"#);
        self.put_body(index, out);
        out.push(b'}');
    }

    fn conversation(&self, index: usize) -> usize {
        match &self.bodies {
            MessageBodies::Generated { .. } => index % self.conversations.len(),
            MessageBodies::Corpus(_) => 0,
        }
    }

    fn sender(&self, index: usize) -> std::borrow::Cow<'_, str> {
        match &self.bodies {
            MessageBodies::Generated { senders, .. } => senders[index % senders.len()].as_str().into(),
            MessageBodies::Corpus(corpus) => json_string(&corpus.authors[corpus.messages[index].author].id).into(),
        }
    }

    fn put_body(&self, index: usize, out: &mut Vec<u8>) {
        match &self.bodies {
            MessageBodies::Generated { body_bytes, .. } => {
                let start = out.len();
                let _ = write!(out, r#"{{"text":"{index} "#);
                let end = start + body_bytes.saturating_sub(2);
                out.resize(end.max(out.len()), b'.');
                out.extend_from_slice(b"\"}");
            }
            MessageBodies::Corpus(corpus) => {
                out.extend_from_slice(b"{\"text\":");
                // A string always serializes.
                let _ = serde_json::to_writer(&mut *out, &corpus.messages[index].text);
                out.push(b'}');
            }
        }
    }

    /// Records the server's acknowledgement of a message. Returns whether it is the first one, of a message of this phase.
    pub(crate) fn acknowledge(&mut self, message: u32, seq: u64, now: u64) -> bool {
        let Some(standing) = self.standings.get_mut(message as usize) else { return false };
        // An answer that was late for the phase of its message is none of this one's.
        let is_first = standing.acknowledged().is_none() && message >= self.phase_start;
        if is_first {
            self.tally.acknowledge(self.planned[message as usize], now);
        }
        self.contradictions += u64::from(!standing.acknowledge(seq));
        is_first
    }

    /// The newest messages of the phase that were acknowledged.
    pub(super) fn newest_acknowledged(&self, count: usize) -> Vec<u32> {
        let messages = (self.phase_start..self.next_number()).rev();
        messages.filter(|message| self.standings[*message as usize].acknowledged().is_some()).take(count).collect()
    }

    /// Messages that were delivered although their answer never came: they were committed all the same.
    pub(crate) fn delivered_unacknowledged(&self) -> u64 {
        let is_only_delivered =
            |standing: &&Standing| standing.delivered().is_some() && standing.acknowledged().is_none();
        self.standings().iter().filter(is_only_delivered).count() as u64
    }

    /// The body of a message of this phase, as JSON.
    pub(crate) fn body_text(&self, message: u32) -> String {
        let mut body = Vec::new();
        self.put_body(self.index(message), &mut body);
        String::from_utf8_lossy(&body).into_owned()
    }

    /// The sender of a message of this phase.
    pub(crate) fn sender_id(&self, message: u32) -> String {
        serde_json::from_str(&self.sender(self.index(message))).unwrap_or_default()
    }

    fn message_of(&self, client_msg_id: &str) -> Option<u32> {
        client_msg_id.strip_prefix(self.tag.as_str())?.strip_prefix('-')?.parse().ok()
    }

    /// The message of a phase that is shared, by its id: one's own, or one of others, which is delivered at `seq` first.
    fn shared_message_of(&mut self, client_msg_id: &str, seq: u64) -> Result<u32, String> {
        let name = client_msg_id.strip_prefix(self.tag.as_str()).and_then(|rest| rest.strip_prefix('-'));
        let (Some(name), Some(shared)) = (name.and_then(MessageName::read), &mut self.shared_phase) else {
            return Ok(NO_MESSAGE);
        };
        // A late delivery of an earlier phase, whose bodies are no longer known.
        if !shared.is_of_phase(name) {
            return Ok(NO_MESSAGE);
        }
        match self.slots.nth(name.number) {
            None => shared.identify(name, seq),
            Some(nth) if nth < self.planned_in_phase() => Ok(self.phase_start + nth as u32),
            Some(_) => Err("was never sent".into()),
        }
    }

    /// Checks an entry that no receiver has got before: the message that it is, or [`NO_MESSAGE`]. With `is_changed` the entry
    /// has another body than was sent.
    pub(crate) fn identify(&mut self, entry: &EntryView<'_>, is_changed: bool) -> Result<u32, String> {
        let id = entry.client_msg_id.as_deref();
        let message = match &self.shared_phase {
            None => id.and_then(|id| self.message_of(id)).unwrap_or(NO_MESSAGE),
            Some(_) => id.map_or(Ok(NO_MESSAGE), |id| self.shared_message_of(id, entry.seq))?,
        };
        if message == NO_MESSAGE {
            return Ok(NO_MESSAGE);
        }
        if message & OTHERS != 0 && self.shared_phase.is_some() {
            self.check_content(message, entry, is_changed)?;
            return Ok(message);
        }
        let standing = self.standings.get_mut(message as usize).ok_or("was never sent")?;
        if let Some(seq) = standing.delivered() {
            return Err(format!("is the message that stood at {seq}"));
        }
        if !standing.deliver(entry.seq) {
            return Err(format!("was acknowledged as {}", standing.acknowledged().unwrap_or(0)));
        }
        // A late delivery of an earlier phase, whose bodies are no longer known.
        if message < self.phase_start {
            return Ok(NO_MESSAGE);
        }
        self.check_content(message, entry, is_changed)?;
        Ok(message)
    }

    /// Checks an entry that other receivers have got, too, and that differs from what they got.
    pub(crate) fn check_again(&mut self, entry: &EntryView<'_>, is_changed: bool) -> Result<(), String> {
        match entry.client_msg_id.as_deref().and_then(|id| self.message_of(id)) {
            Some(message) if message >= self.phase_start => self.check_content(message, entry, is_changed),
            Some(_) => Ok(()),
            None => Err("is not a message of this run, and differs from what others got".into()),
        }
    }

    fn check_content(&mut self, message: u32, entry: &EntryView<'_>, is_changed: bool) -> Result<(), String> {
        let index = self.index(message);
        if let MessageBodies::Corpus(corpus) = &self.bodies
            && index >= corpus.messages.len()
        {
            return Err("was never sent".into());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        self.put_body(index, &mut scratch);
        let same = entry.body.get().as_bytes() == scratch;
        self.scratch = scratch;
        if !same && !is_changed {
            return Err(format!("has another text than was sent: {}", entry.body.get()));
        }
        let sender = self.sender(index);
        if serde_json::from_str::<String>(&sender).ok().as_deref() != entry.from.as_deref() {
            return Err(format!("is from {:?} instead of {sender}", entry.from));
        }
        if self.conversations[self.conversation(index)] != json_string(&entry.conversation) {
            return Err("went to another conversation".into());
        }
        Ok(())
    }

    /// Records the delivery of a message to one receiver.
    pub(crate) fn record_delivery(&mut self, message: u32, now: u64) {
        let due = match &mut self.shared_phase {
            Some(shared) if message & OTHERS != 0 => {
                let Some(due) = shared.due_ns(message) else { return };
                shared.compare_clocks(due, now);
                due
            }
            _ if message < self.phase_start => return,
            _ => {
                self.delivered_own += 1;
                self.planned[message as usize]
            }
        };
        self.tally.deliver(due, now);
    }
}

fn json_string(text: &str) -> String {
    // A string always serializes.
    serde_json::to_string(text).unwrap_or_default()
}
