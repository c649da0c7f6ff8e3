//! All that receivers are expected to get: plain messages, and the operations of the mix.

use super::{
    mixed_traffic::MixedTraffic,
    sent_messages::SentMessages,
    verifier::{EntryView, ExpectedMessages, NO_MESSAGE},
};
use crate::mix::form::{Form, Handed};
use tidings_protocol::entry::Entry;

/// Marks the number of an operation among the numbers of messages.
const OPERATION: u32 = 1 << 31;

/// Plain messages and the mix, for the verifier.
pub(crate) struct Traffic<'a> {
    pub(crate) sent: &'a mut SentMessages,
    pub(crate) mix: &'a mut MixedTraffic,
}

fn read(raw: &str) -> Result<(Entry, Handed), String> {
    let entry: Entry = serde_json::from_str(raw).map_err(|error| format!("is no entry: {error}"))?;
    let handed = Handed::of(&entry)?;
    Ok((entry, handed))
}

impl ExpectedMessages for Traffic<'_> {
    fn identify(&mut self, receiver: usize, entry: &EntryView<'_>, raw: &str) -> Result<u32, String> {
        if !self.mix.is_on() {
            return self.sent.identify(entry, false);
        }
        let (whole, handed) = read(raw)?;
        let operation = entry.client_msg_id.as_deref().and_then(|id| self.mix.operation_of(id));
        let identified = match operation {
            Some(number) => self.mix.identify(number, &whole).map(|()| OPERATION | number),
            None => self.mix.check_handed(receiver, entry.seq, &handed).and_then(|()| {
                let is_changed = matches!(&handed, Handed::Message(form) if *form != Form::original(form.body));
                self.sent.identify(entry, is_changed)
            }),
        };
        self.mix.views.record_first(entry.seq, handed);
        identified
    }

    fn compare(&mut self, receiver: usize, entry: &EntryView<'_>, raw: &str, is_same: bool) -> Result<(), String> {
        if !self.mix.is_on() || (is_same && !self.mix.is_answering(receiver)) {
            return if is_same { Ok(()) } else { Err(format!("differs from what others got: {raw}")) };
        }
        let (whole, handed) = read(raw)?;
        let checked = match entry.client_msg_id.as_deref().and_then(|id| self.mix.operation_of(id)) {
            Some(number) => self.mix.check_operation(number, &whole),
            None => self.mix.check_handed(receiver, entry.seq, &handed).and_then(|()| match handed {
                // Who sent it, and where, and an unchanged body, are as they were.
                Handed::Message(ref form) => self.sent.check_again(entry, *form != Form::original(form.body)),
                _ => Ok(()),
            }),
        };
        self.mix.views.record_other(receiver, entry.seq, handed);
        checked
    }

    fn examines_all(&self, receiver: usize) -> bool {
        self.mix.is_on() && self.mix.is_answering(receiver)
    }

    fn record_delivery(&mut self, message: u32, now: u64) {
        match message & OPERATION {
            0 => self.sent.record_delivery(message, now),
            _ if message == NO_MESSAGE => {}
            _ => self.mix.record_delivery(message & !OPERATION),
        }
    }
}
