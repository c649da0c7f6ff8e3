//! Changes of messages, as plainly as possible: which entries have a body is recomputed from the whole timeline after
//! each change.

use super::{State, index, numbers};
use tidings_domain::{model::*, request_digest::digest_of_end, store::*};

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
        let version = stored.as_ref().map_or(1, |stored| stored.content.message_details().body_version());
        if let Some(appended) = self.first_result(conversation, entry)? {
            let version = self.version_made_at(conversation, appended.seq).unwrap_or(version);
            return Ok(Outcome::MessageChanged { appended, entry: None, version });
        }
        let is_interruption = matches!(change, MessageChange::EndStream { interrupted: true });
        let open_row = (RowSpace::Chat, open_stream_key(conversation, target));
        if let Some(sender) = &entry.sender
            && !is_interruption
            && self.is_shared
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
        let mut details = message.content.message_details().clone();
        let (of_message, of_entry) = (message.content.desk(), entry.desk());
        let listed_for = self.listed.get(&conversation).copied();
        let account = of_message.or(of_entry).map(|desk| desk.account).or(listed_for);
        let desk = account.map(|account| EntryDesk {
            account,
            agent: of_entry.and_then(|desk| desk.agent.clone()),
            for_customer: of_message.is_some_and(|desk| desk.for_customer),
        });
        let of_kind = match change {
            MessageChange::Edit { .. } | MessageChange::EndStream { .. } if details.recalled.is_some() => {
                return Err(Rejection::MessageRecalled(target));
            }
            MessageChange::Edit { .. } if details.stream.is_open() => {
                return Err(Rejection::StreamOpen(target));
            }
            MessageChange::EndStream { .. } if !details.stream.is_open() => {
                let timeline = &self.timelines[&conversation];
                return match details.stream_end.and_then(|end| timeline.get(&end)) {
                    Some(end)
                        if !is_interruption
                            && end.content.edit_details().is_some_and(|end| !end.interrupted)
                            && (&*end.content.body == "null" || is_same_end(entry, &end.content)) =>
                    {
                        let (seq, at) = (end.seq, end.at);
                        let appended = Appended { conversation, seq, at, position: 0, duplicate: true };
                        let version = end.content.edit_details().map_or(0, |end| end.version);
                        Ok(Outcome::MessageChanged { appended, entry: None, version })
                    }
                    _ => Err(Rejection::StreamEnded(target)),
                };
            }
            MessageChange::EndStream { interrupted } => {
                let ended = if *interrupted { StreamState::Interrupted } else { StreamState::Whole };
                appended.content_type = message.content.content_type.clone();
                appended.mentions = message.content.mentions.clone();
                let version = version + 1;
                details = MessageDetails { version, stream: ended, stream_end: Some(seq), ..details };
                details.edits.push(seq);
                message.content.body = entry.body.clone();
                self.rows.remove(&open_row);
                KindDetails::Edit(EditDetails { target, version, replaced: None, interrupted: *interrupted })
            }
            MessageChange::Edit { if_version: Some(expected), .. } if *expected != version => {
                return Err(Rejection::VersionConflict { expected: *expected, actual: version });
            }
            MessageChange::Edit { edits_max, .. } if details.edits.len() >= *edits_max => {
                return Err(Rejection::TooManyEdits { limit: *edits_max as u64 });
            }
            MessageChange::Edit { keep_replaced, .. } => {
                let (made_at, by) = match details.edited {
                    None => (message.at, message.content.sender.clone()),
                    Some(Edited { at, by }) => (at, by),
                };
                let NewEntry { content_type, body, .. } = message.content.clone();
                let replaced = keep_replaced.then_some(ReplacedBody { content_type, body, at: made_at, by });
                details.version = version + 1;
                details.stream = StreamState::Whole;
                details.edited = Some(Edited { at, by: entry.sender.clone() });
                details.edits.push(seq);
                message.content.content_type = entry.content_type.clone();
                message.content.body = entry.body.clone();
                // Who was mentioned all along; `None` if those are all whom the message names now.
                let all_along = details.mentioned.as_ref().unwrap_or(&message.content.mentions);
                let (still, added): (Vec<String>, Vec<String>) =
                    entry.mentions.iter().cloned().partition(|id| all_along.contains(id));
                details.mentioned = if added.is_empty() { None } else { Some(still) };
                message.content.mentions = entry.mentions.clone();
                KindDetails::Edit(EditDetails { target, version: version + 1, replaced, interrupted: false })
            }
            MessageChange::Pin { .. } if details.recalled.is_some() => return Err(Rejection::MessageRecalled(target)),
            MessageChange::Pin { pinned, .. } if *pinned == details.pinned.is_some() => return Ok(Outcome::Done),
            MessageChange::Pin { pinned, pins_max } => {
                let pins = self.pins.entry(conversation).or_default();
                if *pinned && pins.len() >= *pins_max {
                    return Err(Rejection::TooManyPins { limit: *pins_max as u64 });
                }
                details.pinned = pinned.then(|| Pinned { at, by: entry.sender.clone() });
                self.put_pins(conversation, target, *pinned);
                KindDetails::Pins { target, pinned: details.pinned.clone() }
            }
            MessageChange::Recall | MessageChange::Expire => {
                let expired = *change == MessageChange::Expire;
                if let Some(Recalled { at, entry, .. }) = details.recalled {
                    let appended = Appended { conversation, seq: entry, at, position: 0, duplicate: true };
                    return Ok(Outcome::MessageChanged { appended, entry: None, version });
                }
                if expired {
                    let hold = [b"H".to_vec(), numbers(&[conversation.0])].concat();
                    if self.rows.contains_key(&(RowSpace::Chat, hold)) {
                        return Err(Rejection::LegalHold);
                    }
                    appended.content_type = message.content.content_type.clone();
                }
                details.recalled = Some(Recalled { at, by: entry.sender.clone(), entry: seq, expired });
                details.expires = None;
                details.reactions.clear();
                if details.pinned.take().is_some() {
                    self.put_pins(conversation, target, false);
                }
                details.stream = StreamState::Whole;
                self.rows.remove(&open_row);
                message.content.body = "null".into();
                message.content.mentions.clear();
                details.mentioned = None;
                message.content.details_mut().unknown = None;
                KindDetails::Recall { target, expired }
            }
        };
        let version = details.version.max(1);
        let is_recalled = details.recalled.is_some();
        let is_edit = matches!(change, MessageChange::Edit { .. });
        message.content.details_mut().of_kind = KindDetails::Message(details);
        appended.details = Some(Box::new(EntryDetails { desk, hidden: message.content.is_hidden(), ..of_kind.into() }));
        let place = self.append(conversation, &appended, now_ms)?;
        if matches!(change, MessageChange::Recall | MessageChange::Expire) {
            let note = [b"R".to_vec(), numbers(&[place.at, conversation.0, target])].concat();
            self.rows.insert((RowSpace::Chat, note), Vec::new());
        }
        let timeline = self.timelines.entry(conversation).or_default();
        timeline.insert(target, message);
        for (seq, other) in timeline.iter_mut() {
            if other.content.kind == EntryKind::Edit && other.content.target() == Some(target) {
                if is_recalled || (is_edit && *seq < place.seq) {
                    other.content.body = "null".into();
                    other.content.mentions.clear();
                }
                if is_recalled && let KindDetails::Edit(edit) = &mut other.content.details_mut().of_kind {
                    edit.replaced = None;
                }
            }
        }
        Ok(Outcome::MessageChanged { appended: place, entry: Some(Box::new(appended)), version })
    }

    /// The version that the edit with this `seq` has made; `None` for entries that are no edits.
    fn version_made_at(&self, conversation: ConversationNo, seq: u64) -> Option<u32> {
        let entry = self.timelines.get(&conversation)?.get(&seq)?;
        entry.content.edit_details().map(|edit| edit.version)
    }

    fn put_pins(&mut self, conversation: ConversationNo, seq: u64, pinned: bool) {
        let pins = self.pins.entry(conversation).or_default();
        pins.retain(|known| *known != seq);
        if pinned {
            pins.push(seq);
        }
        let row = (RowSpace::Chat, [b"P".to_vec(), numbers(&[conversation.0])].concat());
        if pins.is_empty() {
            self.rows.remove(&row);
        } else {
            self.rows.insert(row, serde_json::to_vec(pins).unwrap_or_default());
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
        match message.content.message_details() {
            details if details.recalled.is_some() => Err(Rejection::MessageRecalled(target)),
            details if details.stream.is_open() => {
                message.content.body = body.into();
                Ok(Outcome::Done)
            }
            _ => Err(Rejection::StreamEnded(target)),
        }
    }
}

/// Whether an end without a body of its own, or with this one, is a retry of `end`.
fn is_same_end(entry: &NewEntry, end: &NewEntry) -> bool {
    entry.request.digest.is_none_or(|again| again == digest_of_end(&end.body))
}

/// The key of the row that lists a message as growing.
pub(super) fn open_stream_key(conversation: ConversationNo, seq: u64) -> Vec<u8> {
    [&b"s"[..], &conversation.0.to_be_bytes(), &seq.to_be_bytes()].concat()
}
