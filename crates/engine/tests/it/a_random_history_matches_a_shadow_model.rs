//! Random sends, retries, reads, mutes, joins and leaves. After each round the lists, unread counts, mentions and
//! inboxes from any old position are compared with a simple model in plain lists.
// Slow: left out by `make test-quick`.

use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tidings_domain::{clock::Clock, model::*, store::Store};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    entry::Entry,
    error::ErrorCode,
    http::*,
    ids::direct_id,
    limits::{INBOX_ENTRIES_MAX, UNREAD_COUNT_MAX},
    resume::MissedRange,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const USERS: [&str; 6] = ["ada", "ben", "cyd", "dan", "eve", "fay"];

#[derive(Debug, Clone, PartialEq)]
struct Member {
    joined_seq: u64,
    read_seq: u64,
    muted: bool,
}

#[derive(Debug)]
struct ModelEntry {
    position: Position,
    at: u64,
    /// Absent for a notice.
    from: Option<&'static str>,
    silent: bool,
    mentions: Vec<String>,
}

#[derive(Debug)]
struct ModelConversation {
    id: String,
    kind: ConversationKind,
    members: BTreeMap<&'static str, Member>,
    /// Those who have left, each with the newest `seq` then and with whether the conversation was muted.
    left: BTreeMap<&'static str, (u64, bool)>,
    entries: Vec<ModelEntry>,
}

/// The refusal for a user who is not a member: a direct conversation stays hidden, a group does not.
fn stranger_refusal(conversation: &str) -> ErrorCode {
    if conversation.contains('~') { ErrorCode::NotFound } else { ErrorCode::NotAMember }
}

impl ModelConversation {
    fn last_seq(&self) -> u64 {
        self.entries.len() as u64
    }
}

struct Run {
    world: World,
    random: StdRng,
    /// In the order of their creation.
    conversations: Vec<ModelConversation>,
    sends: HashMap<(usize, &'static str, String), (u64, SendRequest)>,
    /// The number of resumes with more than an inbox holds, and of unread counts that reached their limit.
    beyond: (usize, usize),
    /// Whether no user reads, joins or leaves any more, so that unread counts and inboxes grow long.
    settled: bool,
}

impl Run {
    fn new(seed: u64, store: Arc<dyn Store>) -> Run {
        let world = World::new(EngineConfig::default(), store);
        world.users(&USERS);
        let mut run = Run {
            world,
            random: StdRng::seed_from_u64(seed),
            conversations: vec![],
            sends: HashMap::new(),
            beyond: (0, 0),
            settled: false,
        };
        for (kind, id) in [
            (ConversationKind::Group, "g1"),
            (ConversationKind::Official, "news"),
            (ConversationKind::Group, "g2"),
            (ConversationKind::Group, "empty"),
        ] {
            run.world.conversation(kind, id, &USERS[..4]);
            run.add_conversation(id.into(), kind, &USERS[..4]);
        }
        run
    }

    fn add_conversation(&mut self, id: String, kind: ConversationKind, members: &[&'static str]) -> usize {
        let member = Member { joined_seq: 0, read_seq: 0, muted: false };
        let members = members.iter().map(|user| (*user, member.clone())).collect();
        self.conversations.push(ModelConversation { id, kind, members, left: BTreeMap::new(), entries: vec![] });
        self.conversations.len() - 1
    }

    fn user(&mut self) -> &'static str {
        USERS[self.random.random_range(0..USERS.len())]
    }

    /// A random conversation, except the one that stays empty; the first is the most likely.
    fn pick_conversation(&mut self) -> usize {
        let count = self.conversations.len();
        match self.random.random_bool(0.5) {
            true => 0,
            false => match self.random.random_range(0..count) {
                3 => 1,
                other => other,
            },
        }
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..70 => self.send(),
            70..76 => self.retry(),
            76..84 => self.send_direct(),
            90..94 => self.mute(),
            84.. if self.settled => self.send(),
            84..90 => self.read(),
            _ => self.change_members(),
        }
        self.world.take_fanouts();
    }

    fn append(&mut self, at: usize, from: Option<&'static str>, silent: bool, mentions: Vec<String>) {
        let position = self.world.engine.store.last_position();
        let sent_at = self.world.clock.now_ms();
        self.conversations[at].entries.push(ModelEntry { position, at: sent_at, from, silent, mentions });
    }

    fn send(&mut self) {
        let (at, mut from) = (self.pick_conversation(), self.user());
        if let Some(member) = self.conversations[at].members.keys().next().filter(|_| self.settled) {
            from = member;
        }
        let mut request = message(from, &self.conversations[at].id, &format!("m{}", self.sends.len()));
        request.silent = self.random.random_bool(0.1);
        request.mentions = match self.random.random_range(0..10) {
            0 => vec!["@all".into()],
            2 => vec!["@all".into(), self.user().into()],
            1 => vec![self.user().into(), "nobody".into()],
            _ => vec![],
        };
        self.commit(at, from, request);
    }

    fn send_direct(&mut self) {
        let (from, to) = (self.user(), self.user());
        let id = direct_id(from, to);
        let at = match self.conversations.iter().position(|c| c.id == id) {
            Some(at) => at,
            None => self.add_conversation(id, ConversationKind::Direct, &[from, to]),
        };
        let text = format!("m{}", self.sends.len());
        let request = SendRequest { conversation: None, to: Some(to.into()), ..message(from, "", &text) };
        self.commit(at, from, request);
    }

    fn commit(&mut self, at: usize, from: &'static str, request: SendRequest) {
        let (silent, mentions) = (request.silent, request.mentions.clone());
        let id = request.client_msg_id.clone().unwrap();
        let sent = self.world.wait(self.world.engine.send(&Actor::App, request.clone()));
        if !self.conversations[at].members.contains_key(from) {
            assert_eq!(sent.unwrap_err().code, ErrorCode::NotAMember);
            return;
        }
        let receipt = sent.unwrap();
        let seq = self.conversations[at].last_seq() + 1;
        assert_eq!((&receipt.conversation, receipt.seq), (&self.conversations[at].id, seq));
        assert!(!receipt.duplicate);
        self.sends.insert((at, from, id), (seq, request));
        self.append(at, Some(from), silent, mentions);
    }

    /// Repeats an earlier send, now and then in another conversation, or with another body.
    fn retry(&mut self) {
        if self.sends.is_empty() {
            return;
        }
        let mut keys: Vec<_> = self.sends.keys().cloned().collect();
        keys.sort();
        let (first_at, from, id) = keys.swap_remove(self.random.random_range(0..keys.len()));
        let at = if self.random.random_bool(0.2) { self.pick_conversation() } else { first_at };
        let (_, first) = self.sends[&(first_at, from, id.clone())].clone();
        let conversation = self.conversations[at].id.clone();
        let mut request = SendRequest { conversation: Some(conversation), to: None, ..first };
        let Some(first_seq) = self.sends.get(&(at, from, id)).map(|(seq, _)| *seq) else {
            self.commit(at, from, request);
            return;
        };
        let differs = self.random.random_bool(0.2);
        if differs {
            request.body = serde_json::value::to_raw_value(&"another body").unwrap();
        }
        // Also of a sender who has left since.
        let sent = self.world.wait(self.world.engine.send(&Actor::App, request));
        match differs {
            true => assert_eq!(sent.unwrap_err().code, ErrorCode::ClientMsgIdReused),
            false => {
                let receipt = sent.unwrap();
                assert!(receipt.duplicate && receipt.seq == first_seq, "{receipt:?}");
            }
        }
    }

    fn read(&mut self) {
        let (at, name) = (self.pick_conversation(), self.user());
        let user = self.world.user(name);
        let conversation = &mut self.conversations[at];
        let last_seq = conversation.last_seq();
        let asked = self.random.random_range(0..last_seq + 3);
        let answer = self.world.wait(self.world.engine.mark_read(&user, &conversation.id, asked));
        match conversation.members.get_mut(name) {
            None => assert_eq!(answer.unwrap_err().code, stranger_refusal(&conversation.id)),
            Some(member) => {
                member.read_seq = member.read_seq.max(asked.min(last_seq));
                assert_eq!(answer.unwrap().seq, member.read_seq);
            }
        }
    }

    fn mute(&mut self) {
        let (at, name, muted) = (self.pick_conversation(), self.user(), self.random.random_bool(0.6));
        let user = self.world.user(name);
        let conversation = &mut self.conversations[at];
        let answer = self.world.wait(self.world.engine.set_mute(&user, &conversation.id, Mute { muted, until: None }));
        match conversation.members.get_mut(name) {
            None => assert_eq!(answer.unwrap_err().code, stranger_refusal(&conversation.id)),
            Some(member) => {
                answer.unwrap();
                member.muted = muted;
            }
        }
    }

    fn change_members(&mut self) {
        let at = self.random.random_range(0..3);
        let (joins, leaves) = (self.user(), self.user());
        if joins == leaves {
            return;
        }
        let change = ChangeMembers { add: vec![joins.into()], remove: vec![leaves.into()], role: None };
        let id = self.conversations[at].id.clone();
        let answer = self.world.wait(self.world.engine.change_members(&Actor::App, &id, change)).unwrap();
        let conversation = &mut self.conversations[at];
        let last_seq = conversation.last_seq();
        let removed = conversation.members.remove(leaves);
        let added = !conversation.members.contains_key(joins);
        if added {
            let muted = conversation.left.get(joins).is_some_and(|(_, muted)| *muted);
            conversation.members.insert(joins, Member { joined_seq: last_seq, read_seq: last_seq, muted });
        }
        assert_eq!((answer.added, answer.removed), (usize::from(added), usize::from(removed.is_some())));
        assert_eq!(answer.member_count, conversation.members.len() as u64);
        if (added || removed.is_some()) && conversation.kind == ConversationKind::Group {
            self.append(at, None, true, vec![]);
        }
        if let Some(member) = removed {
            let conversation = &mut self.conversations[at];
            conversation.left.insert(leaves, (conversation.last_seq(), member.muted));
        }
    }

    fn rounds(&mut self, count: usize, steps: usize) {
        for _ in 0..count {
            (0..steps).for_each(|_| self.step());
            self.world.clock.advance(Duration::from_millis(1));
            self.check();
        }
        let entries: usize = self.conversations.iter().map(|c| c.entries.len()).sum();
        println!("  {entries} entries, limits met: {:?}", self.beyond);
    }

    fn check(&mut self) {
        for name in USERS {
            self.check_list(name);
            self.check_mentions(name);
            for _ in 0..4 {
                self.check_missed(name);
            }
        }
    }

    /// (id, last, read, unread, capped, mentions, muted) of each conversation, the latest active first.
    fn check_list(&mut self, name: &str) {
        let mut mine: Vec<(Position, usize)> = Vec::new();
        for (at, conversation) in self.conversations.iter().enumerate() {
            if conversation.members.contains_key(name) {
                mine.push((conversation.entries.last().map_or(0, |e| e.position), at));
            }
        }
        mine.sort_unstable_by(|a, b| b.cmp(a));
        let expected: Vec<_> = mine.iter().map(|(_, at)| self.line(name, &self.conversations[*at])).collect();

        // In pages, as a client reads it.
        let user = self.world.user(name);
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.world.engine.conversations(&user, None, after.as_deref(), 2).unwrap();
            found.extend(page.conversations.into_iter().map(|c| {
                assert_eq!(c.last_entry.map_or(0, |e| e.seq), c.last_seq);
                (c.id, c.last_seq, c.read_seq, c.unread, c.unread_capped, c.mentions, c.muted)
            }));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "the list of {name}");
        self.beyond.1 += found.iter().filter(|(.., capped, _, _)| *capped).count();
    }

    /// The messages that mention the user, the newest first, then by conversation.
    fn check_mentions(&mut self, name: &str) {
        let mut mentions: Vec<(Reverse<u64>, usize, Reverse<u64>)> = Vec::new();
        for (at, conversation) in self.conversations.iter().enumerate() {
            if !conversation.members.contains_key(name) {
                continue;
            }
            for (seq, entry) in (1..).zip(&conversation.entries) {
                let of_all = entry.from != Some(name) && entry.mentions.iter().any(|mention| mention == "@all");
                if of_all || entry.mentions.iter().any(|mention| mention == name) {
                    mentions.push((Reverse(entry.at), at, Reverse(seq)));
                }
            }
        }
        mentions.sort_unstable();
        let expected: Vec<_> =
            mentions.iter().map(|(_, at, Reverse(seq))| (self.conversations[*at].id.clone(), *seq)).collect();
        let limit = if expected.len() > 100 { 200 } else { self.random.random_range(1..5) };
        let user = self.world.user(name);
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.world.engine.mentions(&user, after.as_deref(), limit).unwrap();
            found.extend(page.entries.into_iter().map(|entry| (entry.conversation, entry.seq)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "the mentions of {name}");
    }

    fn line(&self, name: &str, conversation: &ModelConversation) -> (String, u64, u64, u64, bool, u64, bool) {
        let member = &conversation.members[name];
        let unread: Vec<&ModelEntry> = (1..)
            .zip(&conversation.entries)
            .filter(|(seq, e)| {
                *seq > member.read_seq && *seq > member.joined_seq && e.from.is_some_and(|f| f != name) && !e.silent
            })
            .map(|(_, e)| e)
            .collect();
        let counted = &unread[..unread.len().min(UNREAD_COUNT_MAX as usize)];
        let mentions = unread.iter().filter(|e| e.mentions.iter().any(|m| m == "@all" || m == name)).count();
        (
            conversation.id.clone(),
            conversation.last_seq(),
            member.read_seq,
            counted.len() as u64,
            unread.len() > counted.len(),
            mentions as u64,
            member.muted,
        )
    }

    /// Compares the inbox from a random position per lane to a random later one: the newest 800 entries, and exact
    /// ranges of the rest.
    fn check_missed(&mut self, name: &str) {
        let engine = self.world.engine.clone();
        let last = engine.store.last_position();
        let until = [(); LANES].map(|()| match self.random.random_bool(0.7) {
            true => last,
            false => self.random.random_range(0..=last),
        });
        let positions = until.map(|until| self.random.random_range(0..=until));
        let cursor = Cursor { epoch: engine.store.epoch(), positions };
        let mut missed: Vec<(Position, &str, u64)> = Vec::new();
        for conversation in &self.conversations {
            let Some(member) = conversation.members.get(name) else { continue };
            let lane = Lane::of(conversation.kind) as usize;
            // Who has left behind the cursor and joined again misses what came in between, too. No entry tells who leaves an
            // account.
            let has_left = conversation.left.get(name).is_some_and(|(left_seq, _)| {
                let left = left_seq.checked_sub(1).and_then(|index| conversation.entries.get(index as usize));
                conversation.kind == ConversationKind::Official
                    || left.is_some_and(|left| left.position > positions[lane])
            });
            let joined_seq = if has_left { 0 } else { member.joined_seq };
            for (seq, entry) in (1..).zip(&conversation.entries) {
                if seq > joined_seq && positions[lane] < entry.position && entry.position <= until[lane] {
                    missed.push((entry.position, &conversation.id, seq));
                }
            }
        }
        missed.sort_unstable();
        let (left, newest) = missed.split_at(missed.len().saturating_sub(INBOX_ENTRIES_MAX));
        let mut ranges: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (_, id, seq) in left {
            ranges.entry(id).or_insert((*seq, *seq)).1 = *seq;
        }

        let found = engine.read_inbox(self.world.user(name).no, Some(&cursor), until).unwrap();
        let json = [b"[", found.json.get(1..).unwrap_or_default(), b"]"].concat();
        let entries: Vec<Entry> = serde_json::from_slice(&json).unwrap();
        let entries: Vec<(&str, u64)> = entries.iter().map(|e| (e.conversation.as_str(), e.seq)).collect();
        let expected: Vec<(&str, u64)> = newest.iter().map(|(_, id, seq)| (*id, *seq)).collect();
        assert_eq!(entries, expected, "{name} from {positions:?} to {until:?}");
        let ranges: Vec<MissedRange> = ranges
            .into_iter()
            .map(|(id, (from_seq, to_seq))| MissedRange { conversation: id.into(), from_seq, to_seq })
            .collect();
        assert_eq!(found.resume.complete, ranges.is_empty());
        assert_eq!(found.resume.ranges, ranges, "{name} from {positions:?} to {until:?}");
        assert_eq!(found.entries as usize, newest.len());
        assert!(!found.resume.reset);
        self.beyond.0 += usize::from(!found.resume.complete);
    }
}

fn run(seed: u64, store: Arc<dyn Store>, rounds: usize, steps: usize) -> Run {
    println!("seed {seed}");
    let mut run = Run::new(seed, store);
    run.rounds(rounds, steps);
    run
}

#[test]
fn a_random_history_in_memory_matches_the_model() {
    for seed in 1..=4 {
        run(seed, Arc::new(MemoryStore::default()), 40, 25);
    }
}

#[test]
fn a_long_history_matches_the_model_beyond_every_limit() {
    let mut run = run(100, Arc::new(MemoryStore::default()), 4, 100);
    run.settled = true;
    run.rounds(4, 1_500);
    assert!(run.beyond.0 > 0 && run.beyond.1 > 0, "the history was not long enough");
}

#[test]
fn a_random_history_on_disk_matches_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap();
    run(7, Arc::new(store), 8, 60);
}
