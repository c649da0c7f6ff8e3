//! Reactions, as plainly as possible: every summary is counted anew from the list of all reactions of the message.

use super::{State, index, numbers};
use tidings_domain::{model::*, store::*};

/// A reaction that a user gives or takes back.
#[derive(Clone, Copy)]
pub(super) struct Reaction<'a> {
    /// The message's `seq`.
    pub target: u64,
    pub user: &'a Sender,
    pub key: &'a str,
    pub add: bool,
}

impl State {
    pub(super) fn react(
        &mut self,
        conversation: ConversationNo,
        reaction: Reaction<'_>,
        keys_max: usize,
        interval_ms: u64,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        let Reaction { target, user, key, add } = reaction;
        let has_left = self.left.contains(&conversation) && !self.members.contains_key(&(conversation, user.no));
        if self.is_shared && has_left {
            return Err(Rejection::NotAMember);
        }
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let message = self.message(conversation, target)?;
        if message.content.is_recalled() {
            return Err(Rejection::MessageRecalled(target));
        }
        let before = message.content.message_details().reactions.clone();
        let given = self.reactions.entry((conversation, target)).or_default();
        // The same reaction under another spelling is that of the message.
        let spelled =
            |keys: Vec<&str>| place_of_reaction(keys.iter().copied(), key).map(|place| keys[place].to_owned());
        let own = given.iter().filter(|(by, _)| by.no == user.no).map(|(_, what)| what.as_str()).collect();
        let known = spelled(own).or_else(|| spelled(before.iter().map(|reaction| reaction.key.as_str()).collect()));
        let key = known.as_deref().unwrap_or(key);
        let reaction = Reaction { key, ..reaction };
        let place = given.iter().position(|(by, what)| by.no == user.no && what == key);
        match place {
            Some(_) if add => return Ok(unchanged(before)),
            None if !add => return Ok(unchanged(before)),
            Some(place) => drop(given.remove(place)),
            None if before.len() >= keys_max && before.iter().all(|reaction| reaction.key != key) => {
                return Err(Rejection::TooManyReactions { limit: keys_max as u64 });
            }
            None => given.push((user.clone(), key.to_owned())),
        }
        let given = given.clone();
        let reactions = summary(&before, &given, reaction);
        let own: Vec<&String> = given.iter().filter(|(by, _)| by.no == user.no).map(|(_, what)| what).collect();
        let row = (RowSpace::Chat, [b"r".to_vec(), numbers(&[conversation.0, target, user.no.0])].concat());
        if own.is_empty() {
            self.rows.remove(&row);
        } else {
            self.rows.insert(row, serde_json::to_vec(&own).unwrap_or_default());
        }
        let message = self.timelines.get_mut(&conversation).and_then(|timeline| timeline.get_mut(&target));
        if let Some(details) = message.and_then(|message| message.content.message_details_mut()) {
            details.reactions = reactions.clone();
        }
        let (told_at, messages) = self.untold.entry(conversation).or_default();
        if !messages.contains(&target) {
            messages.push(target);
        }
        let due = *told_at + interval_ms;
        let told = if now_ms >= due || messages.len() >= 50 { self.tell(conversation, now_ms)? } else { None };
        self.put_untold(conversation);
        let tell_at = told.is_none().then_some(due);
        Ok(Outcome::Reacted { reactions, changed: true, told, tell_at })
    }

    pub(super) fn tell_reactions(&mut self, conversation: ConversationNo, now_ms: u64) -> Result<Outcome, Rejection> {
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let told = self.tell(conversation, now_ms)?;
        if told.is_some() {
            self.put_untold(conversation);
        }
        Ok(Outcome::Reacted { reactions: vec![], changed: false, told, tell_at: None })
    }

    fn tell(
        &mut self,
        conversation: ConversationNo,
        now_ms: u64,
    ) -> Result<Option<(Appended, Box<NewEntry>)>, Rejection> {
        let Some((told_at, messages)) = self.untold.get_mut(&conversation) else { return Ok(None) };
        if messages.is_empty() {
            return Ok(None);
        }
        *told_at = now_ms;
        let messages = std::mem::take(messages);
        let timeline = self.timelines.entry(conversation).or_default();
        let reactions = |seq: u64| Some((seq, timeline.get(&seq)?.content.message_details().reactions.clone()));
        let of_messages = messages.iter().find_map(|seq| Some(timeline.get(seq)?.content.desk()?.account));
        let account = self.listed.get(&conversation).copied().or(of_messages);
        let desk = account.map(EntryDesk::of);
        let of_kind = KindDetails::Reactions(messages.into_iter().filter_map(reactions).collect());
        let entry = NewEntry {
            kind: EntryKind::Reactions,
            sender: None,
            client_msg_id: None,
            content_type: "reactions".into(),
            body: "null".into(),
            mentions: vec![],
            silent: true,
            skip_push: true,
            details: Some(Box::new(EntryDetails { desk, ..of_kind.into() })),
            request: EntryRequest::default(),
        };
        let appended = self.append(conversation, &entry, now_ms)?;
        Ok(Some((appended, Box::new(entry))))
    }

    fn put_untold(&mut self, conversation: ConversationNo) {
        let (told_at, messages) = self.untold[&conversation].clone();
        let row = |kind: &[u8]| (RowSpace::Chat, [kind.to_vec(), numbers(&[conversation.0])].concat());
        if told_at > 0 {
            self.rows.insert(row(b"T"), told_at.to_string().into_bytes());
        }
        if messages.is_empty() {
            self.rows.remove(&row(b"D"));
        } else {
            self.rows.insert(row(b"D"), serde_json::to_vec(&messages).unwrap_or_default());
        }
    }
}

fn unchanged(reactions: Vec<ReactionCount>) -> Outcome {
    Outcome::Reacted { reactions, changed: false, told: None, tell_at: None }
}

/// The summary after one change: counts are counted anew; the newest users are those before with the change.
fn summary(before: &[ReactionCount], given: &[(Sender, String)], reaction: Reaction<'_>) -> Vec<ReactionCount> {
    let Reaction { user, key: changed, add, .. } = reaction;
    let mut keys: Vec<&str> = before.iter().map(|reaction| reaction.key.as_str()).collect();
    if !keys.contains(&changed) {
        keys.push(changed);
    }
    let of_key = |key: &&str| {
        let count = given.iter().filter(|(_, what)| what == key).count() as u32;
        let known = before.iter().find(|reaction| reaction.key == **key);
        let mut newest = known.map(|reaction| reaction.newest.clone()).unwrap_or_default();
        if *key == changed && add {
            newest.insert(0, user.clone());
            newest.truncate(3);
        } else if *key == changed {
            newest.retain(|newest| newest.no != user.no);
        }
        ReactionCount { key: (*key).to_owned(), count, newest }
    };
    keys.iter().map(of_key).filter(|reaction| reaction.count > 0).collect()
}
