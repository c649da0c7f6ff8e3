//! Changes of messages, as plainly as possible: which entries have a body is recomputed from the whole timeline after
//! each change.

use super::{State, index, numbers, send_of};
use tidings_domain::{model::*, store::*};

impl State {
    pub(super) fn change_message(
        &mut self,
        conversation: ConversationNo,
        target: u64,
        change: &MessageChange,
        entry: &NewEntry,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        let stored = self.timelines.get(&conversation).and_then(|timeline| timeline.get(&target)).cloned();
        let version = stored.as_ref().map_or(1, |stored| stored.content.details().body_version());
        if let Some(first) = send_of(entry).and_then(|send| self.first_results.get(&send)) {
            return match first.conversation == conversation {
                true => Ok(Outcome::MessageChanged {
                    appended: Appended { duplicate: true, ..*first },
                    entry: None,
                    version,
                }),
                false => Err(Rejection::ClientMsgIdReused),
            };
        }
        let is_interruption = matches!(change, MessageChange::EndStream { interrupted: true });
        let open_row = (RowSpace::Chat, open_stream_key(conversation, target));
        if let Some(sender) = &entry.sender
            && !is_interruption
            && self.log.is_some()
            && self.left.contains(&conversation)
            && !self.members.contains_key(&(conversation, sender.no))
        {
            return Err(Rejection::NotAMember);
        }
        if self.is_of_stranger(entry) {
            return Err(Rejection::NotAMember);
        }
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let mut message = match stored {
            Some(message) => message,
            None if is_interruption => {
                self.rows.remove(&open_row);
                return Ok(Outcome::Done);
            }
            None => return Err(Rejection::NoSuchEntry(target)),
        };
        if message.content.kind != EntryKind::Message {
            return Err(Rejection::NotAMessage(target));
        }
        let head = self.head(conversation);
        let (seq, at) = (head.last_seq + 1, now_ms.max(head.last_at));
        let mut appended = entry.clone();
        let mut of_entry = EntryDetails { target, ..appended.details().clone() };
        let mut details = message.content.details().clone();
        let listed_for = self.listed.get(&conversation).copied();
        of_entry.desk = details.desk.or(of_entry.desk).or(listed_for);
        of_entry.for_customer = details.for_customer;
        match change {
            MessageChange::Edit { .. } | MessageChange::EndStream { .. } if details.recalled.is_some() => {
                return Err(Rejection::MessageRecalled(target));
            }
            MessageChange::Edit { .. } if details.stream == StreamState::Open => {
                return Err(Rejection::StreamOpen(target));
            }
            MessageChange::EndStream { .. } if details.stream != StreamState::Open => {
                let timeline = &self.timelines[&conversation];
                return match timeline.get(&details.stream_end) {
                    Some(end) if !is_interruption && end.content.details().stream != StreamState::Interrupted => {
                        let (seq, at) = (end.seq, end.at);
                        let appended = Appended { conversation, seq, at, position: 0, duplicate: true };
                        Ok(Outcome::MessageChanged { appended, entry: None, version })
                    }
                    _ => Err(Rejection::StreamEnded(target)),
                };
            }
            MessageChange::EndStream { interrupted } => {
                let ended = if *interrupted { StreamState::Interrupted } else { StreamState::Whole };
                appended.content_type = message.content.content_type.clone();
                appended.mentions = message.content.mentions.clone();
                of_entry.version = version + 1;
                of_entry.stream = ended;
                details = EntryDetails { version: version + 1, stream: ended, stream_end: seq, ..details };
                details.stream_node = 0;
                details.edits.push(seq);
                message.content.body = entry.body.clone();
                self.rows.remove(&open_row);
            }
            MessageChange::Edit { if_version: Some(expected), .. } if *expected != version => {
                return Err(Rejection::VersionConflict { expected: *expected, actual: version });
            }
            MessageChange::Edit { edits_max, .. } if details.edits.len() >= *edits_max => {
                return Err(Rejection::TooManyEdits { limit: *edits_max as u64 });
            }
            MessageChange::Edit { keep_replaced, .. } => {
                let (made_at, by) = match details.edited_at {
                    0 => (message.at, message.content.sender.clone()),
                    _ => (details.edited_at, details.edited_by.clone()),
                };
                let NewEntry { content_type, body, .. } = message.content.clone();
                of_entry.replaced = keep_replaced.then_some(ReplacedBody { content_type, body, at: made_at, by });
                of_entry.version = version + 1;
                details.version = version + 1;
                details.stream = StreamState::Whole;
                details.edited_at = at;
                details.edited_by = entry.sender.clone();
                details.edits.push(seq);
                message.content.content_type = entry.content_type.clone();
                message.content.body = entry.body.clone();
                message.content.mentions = entry.mentions.clone();
            }
            MessageChange::Pin { .. } if details.recalled.is_some() => return Err(Rejection::MessageRecalled(target)),
            MessageChange::Pin { pinned, .. } if *pinned == details.pinned.is_some() => return Ok(Outcome::Done),
            MessageChange::Pin { pinned, pins_max } => {
                let pins = self.pins.entry(conversation).or_default();
                if *pinned && pins.len() >= *pins_max {
                    return Err(Rejection::TooManyPins { limit: *pins_max as u64 });
                }
                details.pinned = pinned.then(|| Pinned { at, by: entry.sender.clone() });
                of_entry.pinned = details.pinned.clone();
                self.put_pins(conversation, target, *pinned);
            }
            MessageChange::Recall => {
                if let Some(Recalled { at, entry, .. }) = details.recalled {
                    let appended = Appended { conversation, seq: entry, at, position: 0, duplicate: true };
                    return Ok(Outcome::MessageChanged { appended, entry: None, version });
                }
                details.recalled = Some(Recalled { at, by: entry.sender.clone(), entry: seq });
                details.reactions.clear();
                if details.pinned.take().is_some() {
                    self.put_pins(conversation, target, false);
                }
                details.stream = StreamState::Whole;
                details.stream_node = 0;
                self.rows.remove(&open_row);
                message.content.body = "null".into();
                message.content.mentions.clear();
            }
        }
        let version = details.version.max(1);
        let is_recalled = details.recalled.is_some();
        let is_edit = matches!(change, MessageChange::Edit { .. });
        message.content.details = Some(Box::new(details));
        appended.details = Some(Box::new(of_entry));
        let place = self.append(conversation, &appended, now_ms)?;
        if *change == MessageChange::Recall {
            let note = [b"R".to_vec(), numbers(&[place.at, conversation.0, target])].concat();
            self.rows.insert((RowSpace::Chat, note), Vec::new());
        }
        let timeline = self.timelines.entry(conversation).or_default();
        timeline.insert(target, message);
        for (seq, other) in timeline.iter_mut() {
            if other.content.kind == EntryKind::Edit && other.content.details().target == target {
                if is_recalled || (is_edit && *seq < place.seq) {
                    other.content.body = "null".into();
                    other.content.mentions.clear();
                }
                if is_recalled {
                    other.content.details_mut().replaced = None;
                }
            }
        }
        Ok(Outcome::MessageChanged { appended: place, entry: Some(Box::new(appended)), version })
    }

    fn put_pins(&mut self, conversation: ConversationNo, seq: u64, pinned: bool) {
        let pins = self.pins.entry(conversation).or_default();
        pins.retain(|known| *known != seq);
        if pinned {
            pins.push(seq);
        }
        let row = (RowSpace::Chat, [b"P".to_vec(), numbers(&[conversation.0])].concat());
        match pins.is_empty() {
            true => drop(self.rows.remove(&row)),
            false => drop(self.rows.insert(row, serde_json::to_vec(pins).unwrap_or_default())),
        }
    }

    /// Replaces the body of a message that grows.
    pub(super) fn checkpoint_stream(
        &mut self,
        conversation: ConversationNo,
        target: u64,
        body: &str,
    ) -> Result<Outcome, Rejection> {
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let message = self.timelines.get_mut(&conversation).and_then(|timeline| timeline.get_mut(&target));
        let message = message.ok_or(Rejection::NoSuchEntry(target))?;
        match message.content.details() {
            details if details.recalled.is_some() => Err(Rejection::MessageRecalled(target)),
            details if details.stream == StreamState::Open => {
                message.content.body = body.into();
                Ok(Outcome::Done)
            }
            _ => Err(Rejection::StreamEnded(target)),
        }
    }
}

/// The key of the row that lists a message as growing.
pub(super) fn open_stream_key(conversation: ConversationNo, seq: u64) -> Vec<u8> {
    [&b"s"[..], &conversation.0.to_be_bytes(), &seq.to_be_bytes()].concat()
}
