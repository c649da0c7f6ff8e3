//! Random histories of a group whose members come, go, clear and are shown more or less of the past, and of a direct conversation.
//! After each step every live session is asked what it was handed, and now and then everybody (a member, one who came later, one
//! who has cleared, one who was removed, a stranger) takes every way out: history, single entries, versions, answers, who reacted,
//! receipts, pins, mentions, the list, `sync` and resume, and refers to every message. What they find is compared with a slow
//! evaluator, which says by the words of `docs/chat.md` which messages exist for whom.
//!
//! Each text and each reaction is a word of its own, so that a leak shows wherever it is.

use crate::databases::databases_by_turns;
use crate::postgres::PostgresServer;
use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_domain::{
    model::{Actor, ConversationKind, Cursor, HistoryVisibility, LANES, Lane, Position},
    store::{ConversationFilter, Store},
};
use tidings_engine::{
    config::{EngineConfig, MessagesConfig},
    delivery::{BindOutcome, Block, Chunk, Delivery, SessionKey, Sink, Step},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

/// The first owns the group; the last is never a member of anything.
const USERS: [&str; 5] = ["ada", "ben", "cyd", "dan", "zoe"];
const STEPS: usize = 60;

/// A message, as an app would remember it.
#[derive(Debug, Default)]
struct Said {
    from: &'static str,
    /// Its text as it is now.
    text: String,
    reactions: Vec<String>,
    reply_to: Option<u64>,
    is_recalled: bool,
}

/// A conversation, as the documents tell of it.
struct Room {
    id: String,
    kind: ConversationKind,
    said: BTreeMap<u64, Said>,
    /// Words that nobody may be shown any more: of recalled messages, and texts that were edited.
    gone: Vec<String>,
    history: HistoryVisibility,
    /// The newest entry when each member joined.
    members: BTreeMap<&'static str, u64>,
    cleared: BTreeMap<&'static str, u64>,
}

impl Room {
    /// The slow evaluator: an entry exists for members, behind what they have cleared, and as far back as `history` says.
    fn exists(&self, user: &str, seq: u64) -> bool {
        let Some(joined) = self.members.get(user) else { return false };
        let is_cleared = self.cleared.get(user).is_some_and(|cleared| seq <= *cleared);
        let is_in_history = match self.history {
            HistoryVisibility::All => true,
            HistoryVisibility::Join => seq > *joined,
            HistoryVisibility::Last(count) => seq + count > *joined,
        };
        !is_cleared && is_in_history
    }

    /// The words that the user must find nowhere.
    fn hidden(&self, user: &str) -> Vec<String> {
        let hidden = self.said.iter().filter(|(seq, _)| !self.exists(user, **seq));
        let words = hidden.flat_map(|(_, said)| said.reactions.iter().chain([&said.text])).chain(&self.gone);
        words.filter(|word| !word.is_empty()).cloned().collect()
    }

    fn lane(&self) -> Lane {
        Lane::of(self.kind)
    }
}

/// What each session was handed.
#[derive(Default)]
struct SessionOutput(BTreeMap<SessionKey, String>);

impl Sink for SessionOutput {
    fn block(&mut self, session: SessionKey, block: &Arc<Block>, _: Lane, _: Position) {
        self.0.entry(session).or_default().push_str(&String::from_utf8_lossy(&block.json));
    }

    fn chunk(&mut self, session: SessionKey, chunk: &Arc<Chunk>, _: Lane) {
        self.0.entry(session).or_default().push_str(&String::from_utf8_lossy(&chunk.json));
    }

    fn left(&mut self, _: SessionKey, _: &Arc<str>) {}
}

struct Run {
    world: World,
    random: StdRng,
    rooms: [Room; 2],
    delivery: Delivery,
    words: usize,
    /// Words that were hidden from somebody who was handed, or looked for, something that looks back at them.
    checked: usize,
}

impl Run {
    fn actor(&self, user: &str) -> Actor {
        Actor::User(self.world.user(user))
    }

    fn word(&mut self) -> String {
        self.words += 1;
        format!("<{}>", self.words)
    }

    fn any<T: Clone>(&mut self, all: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = all.into_iter().collect();
        (!all.is_empty()).then(|| all[self.random.random_range(0..all.len())].clone())
    }

    fn last_seq(&self, room: usize) -> u64 {
        let engine = &self.world.engine;
        let card = engine.directory.require_conversation(&self.rooms[room].id).unwrap();
        engine.store.head(card.no).unwrap().last_seq
    }

    fn bind(&mut self, at: usize) {
        let user = self.world.user(USERS[at]);
        if self.delivery.unbind(at, user.no) {
            self.world.engine.forget_cleared(user.no);
        }
        let BindOutcome::NeedsMemberships(number) = self.delivery.bind(at, user.no) else { panic!("a first session") };
        let memberships = self.world.engine.memberships_for_delivery(user.no, self.delivery.positions()).unwrap();
        self.delivery.install(user.no, number, memberships).unwrap();
    }

    /// Hands out what was committed in a room, and with `chunks` what its messages have grown by. What sessions get of it is
    /// what their users may see; each of `told` is a word with the message that it is of, and reaches those for whom that exists.
    fn deliver(&mut self, room: usize, chunks: bool, told: &[(String, u64)]) {
        let (engine, lane) = (self.world.engine.clone(), self.rooms[room].lane());
        let card = engine.directory.require_conversation(&self.rooms[room].id).unwrap();
        let through = engine.store.head(card.no).unwrap().last_position;
        let (mut handed, mut has_chunks) = (SessionOutput::default(), !chunks);
        while self.delivery.positions()[lane as usize] < through || !has_chunks {
            let fanout = self.world.receivers[0].lanes[lane as usize].recv_timeout(PATIENCE).unwrap();
            has_chunks |= fanout.steps.iter().any(|step| matches!(step, Step::Chunk(_)));
            self.delivery.apply(&fanout, &mut handed);
        }
        let room = &self.rooms[room];
        for (at, user) in USERS.iter().enumerate() {
            let heard = handed.0.remove(&at).unwrap_or_default();
            for word in room.hidden(user) {
                assert!(!heard.contains(&word), "{user} of {} was handed {word}: {heard}", room.id);
            }
            for (word, seq) in told {
                let exists = room.exists(user, *seq);
                assert_eq!(heard.contains(word), exists, "{user} and {word} of {seq} in {}: {heard}", room.id);
                self.checked += usize::from(!exists && room.members.contains_key(user));
            }
        }
    }

    fn step(&mut self) {
        let room = usize::from(self.random.random_bool(0.25));
        let Some(user) = self.any(self.rooms[room].members.keys().copied().collect::<Vec<_>>()) else { return };
        let seqs = |room: &Room| room.said.iter().filter(|(_, said)| !said.is_recalled).map(|(seq, _)| *seq).collect();
        let target = self.any::<u64>(Vec::from_iter::<Vec<u64>>(seqs(&self.rooms[room])));
        match (self.random.random_range(0..20), target) {
            (0..4, _) => self.send(room, user, None),
            (4..8, Some(seq)) => self.send(room, user, Some(seq)),
            (8..11, Some(seq)) => self.edit(room, seq),
            (11..14, Some(seq)) => self.react(room, user, seq),
            (14, Some(seq)) => self.recall(room, seq),
            (15, Some(seq)) => self.pin(room, seq),
            (16, _) => self.grow(room, user),
            (17, _) => self.clear(room, user),
            (18, _) if room == 0 => self.change_members(),
            (19, _) if room == 0 => self.change_history(),
            _ => {
                let at = self.random.random_range(0..USERS.len());
                self.bind(at);
            }
        }
    }

    fn send(&mut self, room: usize, user: &'static str, reply_to: Option<u64>) {
        let text = self.word();
        let exists = reply_to.is_none_or(|seq| self.rooms[room].exists(user, seq));
        let mentions = vec![USERS[self.random.random_range(0..USERS.len())].to_owned()];
        let request = SendRequest {
            mentions,
            reply_to,
            from: None,
            client_msg_id: None,
            ..message(user, &self.rooms[room].id, &text)
        };
        let answer = self.world.wait(self.world.engine.send(&self.actor(user), request.clone()));
        let receipt = match answer {
            Ok(receipt) if exists => receipt,
            Err(refusal) if !exists => {
                assert_eq!(refusal.code, ErrorCode::NotFound);
                // An app server reads everything, and so its users may answer with what it passes on.
                let request = SendRequest { from: Some(user.into()), ..request };
                self.world.wait(self.world.engine.send(&Actor::App, request)).unwrap()
            }
            answer => panic!("{user} answers {reply_to:?}: {answer:?}"),
        };
        let mut told = vec![(text.clone(), receipt.seq)];
        told.extend(reply_to.map(|seq| (self.rooms[room].said[&seq].text.clone(), seq)));
        self.rooms[room].said.insert(receipt.seq, Said { from: user, text, reply_to, ..Said::default() });
        self.deliver(room, false, &told);
    }

    fn edit(&mut self, room: usize, seq: u64) {
        let text = self.word();
        let edit = EditMessage {
            from: None,
            client_msg_id: None,
            content_type: None,
            body: serde_json::value::to_raw_value(&text).unwrap(),
            mentions: vec!["ben".into()],
            if_version: None,
        };
        self.world.wait(self.world.engine.edit_message(&Actor::App, &self.rooms[room].id, seq, edit)).unwrap();
        let said = self.rooms[room].said.get_mut(&seq).unwrap();
        let before = std::mem::replace(&mut said.text, text.clone());
        self.rooms[room].gone.push(before);
        self.deliver(room, false, &[(text, seq)]);
    }

    fn react(&mut self, room: usize, user: &'static str, seq: u64) {
        if self.rooms[room].said[&seq].reactions.len() == 20 {
            return;
        }
        let key = self.word();
        self.world.clock.advance(Duration::from_secs(2));
        let (engine, id) = (self.world.engine.clone(), self.rooms[room].id.clone());
        let answer = self.world.wait(engine.react(&self.actor(user), None, &id, seq, &key, true));
        if !self.rooms[room].exists(user, seq) {
            assert_eq!(answer.unwrap_err().code, ErrorCode::NotFound);
            return;
        }
        answer.unwrap();
        self.rooms[room].said.get_mut(&seq).unwrap().reactions.push(key.clone());
        self.deliver(room, false, &[(key, seq)]);
    }

    fn recall(&mut self, room: usize, seq: u64) {
        let (engine, id) = (self.world.engine.clone(), self.rooms[room].id.clone());
        self.world.wait(engine.recall_message(&Actor::App, &id, seq, None, None)).unwrap();
        let said = self.rooms[room].said.get_mut(&seq).unwrap();
        said.is_recalled = true;
        // Entries from before tell of its reactions still.
        said.reactions.clear();
        let text = std::mem::take(&mut said.text);
        self.rooms[room].gone.push(text);
        self.deliver(room, false, &[]);
    }

    fn pin(&mut self, room: usize, seq: u64) {
        let (engine, id) = (self.world.engine.clone(), self.rooms[room].id.clone());
        let pinned = self.random.random_bool(0.7);
        self.world.wait(engine.pin(&Actor::App, None, &id, seq, pinned)).unwrap();
        self.deliver(room, false, &[]);
    }

    /// A message that grows, while somebody may join or clear.
    fn grow(&mut self, room: usize, user: &'static str) {
        let (engine, id, actor) = (self.world.engine.clone(), self.rooms[room].id.clone(), self.actor(user));
        let (first, second) = (self.word(), self.word());
        let body = serde_json::value::to_raw_value(&serde_json::json!({ "text": "" })).unwrap();
        let request = SendRequest { from: None, client_msg_id: None, body, ..message(user, &id, &first) };
        let seq = self.world.wait(engine.begin_stream(&actor, request)).unwrap().seq;
        self.rooms[room].said.insert(seq, Said { from: user, ..Said::default() });
        self.deliver(room, false, &[]);
        engine.append_to_stream(&actor, &id, seq, 0, &first).unwrap().unwrap();
        self.rooms[room].said.get_mut(&seq).unwrap().text.clone_from(&first);
        self.deliver(room, true, &[(first.clone(), seq)]);
        match self.random.random_bool(0.5) {
            true if room == 0 => self.change_members(),
            _ => {
                let other = self.any(self.rooms[room].members.keys().copied().collect::<Vec<_>>());
                other.into_iter().for_each(|other| self.clear(room, other));
            }
        }
        if self.rooms[room].members.contains_key(user) {
            let offset = first.len() as u64;
            engine.append_to_stream(&actor, &id, seq, offset, &second).unwrap().unwrap();
            self.deliver(room, true, &[(second.clone(), seq)]);
            let text = format!("{first}{second}");
            self.rooms[room].said.get_mut(&seq).unwrap().text.clone_from(&text);
            self.world.wait(engine.end_stream(&actor, &id, seq, None)).unwrap();
            self.deliver(room, false, &[(text, seq)]);
        } else {
            self.recall(room, seq);
        }
    }

    fn clear(&mut self, room: usize, user: &'static str) {
        let last = self.last_seq(room);
        let upto = self.random.random_range(0..=last);
        let update = UpdatePreferences { clear_to_seq: Some(upto), ..UpdatePreferences::default() };
        let user_profile = self.world.user(user);
        self.world.wait(self.world.engine.set_preferences(&user_profile, &self.rooms[room].id, update)).unwrap();
        let cleared = self.rooms[room].cleared.entry(user).or_default();
        *cleared = upto.max(*cleared);
    }

    fn change_members(&mut self) {
        let user = USERS[self.random.random_range(1..4)];
        let last = self.last_seq(0);
        let is_member = self.rooms[0].members.contains_key(user);
        let (add, remove) = if is_member { (vec![], vec![user.into()]) } else { (vec![user.into()], vec![]) };
        // Whoever comes may be an admin, who could edit everything.
        let role = (!is_member && self.random.random_bool(0.5)).then_some(Role::Admin);
        let change = ChangeMembers { add, remove, role };
        self.world.wait(self.world.engine.change_members(&Actor::App, &self.rooms[0].id, change)).unwrap();
        match is_member {
            true => drop(self.rooms[0].members.remove(user)),
            false => drop(self.rooms[0].members.insert(user, last)),
        }
        self.deliver(0, false, &[]);
    }

    fn change_history(&mut self) {
        let history = match self.random.random_range(0..4) {
            0 => HistoryVisibility::All,
            1 => HistoryVisibility::Last(self.random.random_range(0..8)),
            _ => HistoryVisibility::Join,
        };
        let update = UpdateConversation { history: Some(history), ..UpdateConversation::default() };
        self.world.wait(self.world.engine.update_conversation(&Actor::App, &self.rooms[0].id, update)).unwrap();
        self.rooms[0].history = history;
        self.deliver(0, false, &[]);
    }

    /// Takes every way out as this user.
    fn check(&mut self, user: &'static str) {
        for room in 0..self.rooms.len() {
            let found = self.look_everywhere(user, room);
            let hidden = self.rooms[room].hidden(user);
            for word in &hidden {
                assert!(!found.contains(word), "{user} found {word} in {}: {found}", self.rooms[room].id);
            }
            self.checked += hidden.len();
            let is_absent = |seq: &u64| !self.rooms[room].exists(user, *seq);
            let absent: Vec<u64> = self.rooms[room].said.keys().copied().filter(is_absent).collect();
            absent.into_iter().for_each(|seq| self.refer_to(user, room, seq));
        }
    }

    /// All that this user finds of a room, as text.
    fn look_everywhere(&mut self, user: &'static str, room: usize) -> String {
        let (engine, actor, person) = (self.world.engine.clone(), self.actor(user), self.world.user(user));
        let room = &self.rooms[room];
        let mut found = String::new();
        let query = HistoryQuery { limit: Some(200), from_seq: Some(1), ..HistoryQuery::default() };
        let history = engine.history(&actor, &room.id, &query);
        assert_eq!(history.is_ok(), room.members.contains_key(user), "{user} reads {}: {history:?}", room.id);
        found.extend(history.iter().map(|page| serde_json::to_string(page).unwrap()));
        for (seq, said) in &room.said {
            let exists = room.exists(user, *seq);
            let entry = engine.entry(&actor, &room.id, *seq);
            let text = entry.as_ref().map(|entry| serde_json::to_string(entry).unwrap()).unwrap_or_default();
            if exists {
                assert!(found.contains(&said.text), "{user} and {seq}: {found}");
                let words = [&said.text].into_iter().chain(&said.reactions);
                words.for_each(|word| assert!(text.contains(word.as_str()), "{user} and {word}: {text}"));
                if let Some(answered) = said.reply_to.filter(|answered| room.exists(user, *answered)) {
                    let preview = &room.said[&answered].text;
                    assert!(text.contains(preview.as_str()), "{user} sees no preview of {answered}: {text}");
                }
            }
            let mut add = |way: &str, result: Result<String, Refusal>| {
                match &result {
                    Ok(_) => assert!(exists, "{user} has {way} of {seq} in {}", room.id),
                    Err(refusal) => assert!(!exists && is_absent(refusal), "{user} and {way} of {seq}: {refusal:?}"),
                }
                found.push_str(&result.unwrap_or_default());
            };
            fn json(value: &impl serde::Serialize) -> String {
                serde_json::to_string(value).unwrap()
            }
            add("the entry", entry.map(|found| json(&found)));
            add("the versions", engine.body_versions(&actor, &room.id, *seq).map(|found| json(&found)));
            add("the answers", engine.replies(&actor, &room.id, *seq, (None, 0)).map(|found| json(&found)));
            add("who reacted", engine.reactors(&actor, &room.id, *seq, None, (None, 0)).map(|found| json(&found)));
            add("the receipts", engine.message_receipts(&actor, &room.id, *seq).map(|found| json(&found)));
        }
        let start = Cursor { epoch: engine.store.epoch(), positions: [0; LANES] };
        let mut add = |way: &str| found.push_str(way);
        add(&engine.pins(&actor, &room.id).map(|pins| serde_json::to_string(&pins).unwrap()).unwrap_or_default());
        add(&serde_json::to_string(&engine.mentions(&person, None, 0).unwrap()).unwrap());
        for filter in [None, Some(ListFilter::Unread)] {
            add(&serde_json::to_string(&engine.conversations(&person, filter, None, 0).unwrap()).unwrap());
        }
        add(&serde_json::to_string(&engine.sync(&person, Some(&start.to_string())).unwrap()).unwrap());
        let inbox = engine.read_inbox(person.no, Some(&start), [Position::MAX >> 1; LANES]).unwrap();
        add(&String::from_utf8(inbox.json).unwrap());
        let states = engine.store.conversation_states(person.no, ConversationFilter::All, 10).unwrap();
        assert_eq!(states.is_empty(), self.rooms.iter().all(|room| !room.members.contains_key(user)));
        found
    }

    /// A user who refers to a message that does not exist for the user is told so, and changes nothing.
    fn refer_to(&mut self, user: &'static str, room: usize, seq: u64) {
        let (engine, actor, id) = (self.world.engine.clone(), self.actor(user), self.rooms[room].id.clone());
        let check = |what: &str, result: Result<(), Refusal>| {
            let refusal = result.expect_err(what);
            // A member without a role pins nothing, whatever there is.
            let may_not = what == "pin" && refusal.code == ErrorCode::Forbidden;
            assert!(may_not || is_absent(&refusal), "{user} and {what} {seq}: {refusal:?}");
        };
        let text = self.word();
        let request = SendRequest { from: None, reply_to: Some(seq), ..message(user, &id, &text) };
        let edit = EditMessage {
            from: None,
            client_msg_id: None,
            content_type: None,
            body: serde_json::value::to_raw_value("of nobody").unwrap(),
            mentions: vec![],
            if_version: None,
        };
        check("answer", self.world.wait(engine.send(&actor, request)).map(drop));
        check("edit", self.world.wait(engine.edit_message(&actor, &id, seq, edit)).map(drop));
        check("recall", self.world.wait(engine.recall_message(&actor, &id, seq, None, None)).map(drop));
        for on in [true, false] {
            check("react", self.world.wait(engine.react(&actor, None, &id, seq, "+1", on)).map(drop));
            check("pin", self.world.wait(engine.pin(&actor, None, &id, seq, on)).map(drop));
        }
        if self.rooms[room].said[&seq].from != user {
            check("end", self.world.wait(engine.end_stream(&actor, &id, seq, None)).map(drop));
            let appended = engine.append_to_stream(&actor, &id, seq, 0, "x");
            let appended = appended.and_then(|done| match done {
                Some(_) => Ok(()),
                None => Err(engine.why_no_stream(&actor, &id, seq)),
            });
            check("append", appended);
        }
    }
}

/// Whether a refusal is that of something that does not exist for the caller.
fn is_absent(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::NotFound | ErrorCode::NotAMember)
}

fn room(id: String, kind: ConversationKind, members: &[&'static str]) -> Room {
    Room {
        id,
        kind,
        said: BTreeMap::new(),
        gone: vec![],
        history: HistoryVisibility::All,
        members: members.iter().map(|member| (*member, 0)).collect(),
        cleared: BTreeMap::new(),
    }
}

fn run(seed: u64, store: Arc<dyn Store>) -> usize {
    println!("seed {seed}");
    let (edit_window, recall_window) = ([Duration::MAX; LANES], [Duration::MAX; LANES]);
    let messages = MessagesConfig { edit_window, recall_window, ..MessagesConfig::default() };
    let world = World::new(EngineConfig { shards: 1, messages, ..EngineConfig::default() }, store.clone());
    world.users(&USERS);
    world.conversation(ConversationKind::Group, "room", &["ada", "ben"]);
    world.conversation(ConversationKind::Direct, "ben~cyd", &["ben", "cyd"]);
    let mut run = Run {
        world,
        random: StdRng::seed_from_u64(seed),
        rooms: [
            room("room".into(), ConversationKind::Group, &["ada", "ben"]),
            room("ben~cyd".into(), ConversationKind::Direct, &["ben", "cyd"]),
        ],
        delivery: Delivery::starting_at([store.last_position(); LANES], None),
        words: 0,
        checked: 0,
    };
    (0..USERS.len()).for_each(|at| run.bind(at));
    for step in 0..STEPS {
        run.step();
        if step % 6 == 5 {
            let user = USERS[run.random.random_range(0..USERS.len())];
            run.check(user);
        }
    }
    USERS.iter().for_each(|user| run.check(user));
    run.checked
}

fn many(default: usize, first_seed: u64, store: impl Fn() -> Arc<dyn Store> + Sync) {
    let count = std::env::var("HISTORIES").ok().map_or(default, |count| count.parse().expect("HISTORIES"));
    // A store for each history: what one leaves behind is not of the next.
    let checked: usize = (first_seed..first_seed + count as u64).map(|seed| run(seed, store())).sum();
    assert!(checked > count * 100, "hardly anything was hidden from anybody: {checked}");
}

#[test]
fn nothing_hidden_is_found_over_the_store_in_memory() {
    many(60, 1, || Arc::new(MemoryStore::default()));
}

#[test]
fn nothing_hidden_is_found_over_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    let opened = AtomicUsize::new(0);
    many(8, 1_000, || {
        let folder = folder.path().join(opened.fetch_add(1, Ordering::Relaxed).to_string());
        Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder)).unwrap())
    });
}

#[test]
fn nothing_hidden_is_found_over_a_database() {
    let server = PostgresServer::shared();
    many(4, 2_000, databases_by_turns(&server));
}
