//! Random histories of sends, answers, edits, recalls, reactions and pins by members of a group. Each client keeps a view by
//! the rules of `docs/chat.md`: it applies what the lane hands out, goes away now and then, and resumes from its cursor. At the
//! end of each history every view, and what a new client reads from history, equals a model in plain maps.
//!
//! `HISTORIES=10000 cargo test -p tidings-engine --test views_of_clients_match_a_shadow_model --release` runs more of them.
#![allow(clippy::unwrap_used)]

#[path = "../../store/tests/support/postgres.rs"]
mod postgres;
mod support;

use postgres::{PostgresServer, open_at};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use support::*;
use tidings_domain::{
    chat_rows,
    model::{Actor, ConversationKind, Cursor, EntryKind, LANES, Lane, Position},
    store::{RowSpace, Store},
};
use tidings_engine::{
    config::{EngineConfig, MessagesConfig},
    delivery::Step,
};
use tidings_protocol::{entry::Entry, error::ErrorCode, http::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const USERS: [&str; 4] = ["ada", "ben", "cyd", "dan"];
const KEYS: [&str; 3] = ["+1", "-1", "🎉"];
const STEPS: usize = 40;

/// A message as a client should see it.
#[derive(Debug, Clone, PartialEq)]
struct Message {
    from: String,
    body: Value,
    version: u32,
    edited_by: Option<String>,
    recalled_by: Option<String>,
    /// How many users gave each reaction.
    reactions: BTreeMap<String, u32>,
    pinned: bool,
    reply_to: Option<u64>,
}

type View = BTreeMap<u64, Message>;

/// Applies an entry to a view, as a client does.
fn apply(view: &mut View, entry: &Entry) {
    let body: Value = serde_json::from_str(entry.body.get()).unwrap();
    let reactions = |all: &Value| -> BTreeMap<String, u32> {
        let one = |r: &Value| (r["key"].as_str().unwrap().to_owned(), r["count"].as_u64().unwrap() as u32);
        all.as_array().unwrap().iter().map(one).collect()
    };
    match entry.kind {
        EntryKind::Message => {
            if let Some(reply) = entry.reply_to.as_ref() {
                let is_recalled = view.get(&reply.seq).is_some_and(|message| message.recalled_by.is_some());
                assert!(!is_recalled || reply.body.is_none(), "an answer shows a recalled body");
            }
            let message = Message {
                from: entry.from.clone().unwrap(),
                body,
                version: entry.version.unwrap_or(1),
                edited_by: entry.edited_by.clone(),
                recalled_by: entry.recalled.as_ref().map(|recalled| recalled.by.clone().unwrap_or_default()),
                reactions: entry.reactions.iter().map(|r| (r.key.clone(), r.count)).collect(),
                pinned: entry.pinned.is_some(),
                reply_to: entry.reply_to.as_ref().map(|reply| reply.seq),
            };
            view.insert(entry.seq, message);
        }
        EntryKind::Edit => {
            if let Some(message) = view.get_mut(&entry.target.unwrap())
                && entry.version.unwrap() > message.version
                && message.recalled_by.is_none()
            {
                (message.body, message.version) = (body, entry.version.unwrap());
                message.edited_by = entry.from.clone();
            }
        }
        EntryKind::Recall => {
            if let Some(message) = view.get_mut(&entry.target.unwrap()) {
                (message.body, message.recalled_by) = (Value::Null, Some(entry.from.clone().unwrap_or_default()));
                (message.reactions, message.pinned) = (BTreeMap::new(), false);
            }
        }
        EntryKind::Reactions => {
            for change in body["changes"].as_array().unwrap() {
                if let Some(message) = view.get_mut(&change["seq"].as_u64().unwrap())
                    && message.recalled_by.is_none()
                {
                    message.reactions = reactions(&change["reactions"]);
                }
            }
        }
        EntryKind::Pins => {
            if let Some(message) = view.get_mut(&entry.target.unwrap()) {
                message.pinned = body["pinned"].as_bool().unwrap();
            }
        }
        EntryKind::MemberChange | EntryKind::ConversationChange | EntryKind::Assignment => {}
    }
}

/// A client of one user.
struct Client {
    user: &'static str,
    view: View,
    cursor: Position,
    away: bool,
}

#[derive(Default)]
struct Model {
    messages: View,
    /// Who gave which reaction to which message.
    reactions: BTreeSet<(u64, &'static str, &'static str)>,
    /// The `seq` and version that each edit with an id of its own was answered with.
    edits: HashMap<(&'static str, String), (u64, u64)>,
}

struct Run {
    world: World,
    random: StdRng,
    model: Model,
    clients: Vec<Client>,
    room: String,
    /// The lane has handed out everything up to here.
    through: Position,
    sent: usize,
}

impl Run {
    fn pick(&mut self) -> (&'static str, u64) {
        let user = USERS[self.random.random_range(0..USERS.len())];
        let seqs: Vec<u64> = self.model.messages.keys().copied().collect();
        let seq = if seqs.is_empty() { 1 } else { seqs[self.random.random_range(0..seqs.len())] };
        (user, seq)
    }

    fn actor(&self, user: &str) -> Actor {
        Actor::User(self.world.user(user))
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..30 => self.send(),
            30..45 => self.edit(),
            45..52 => self.recall(),
            52..72 => self.react(),
            72..80 => self.pin(),
            80..84 => self.retry_edit(),
            84..90 => self.world.clock.advance(Duration::from_millis(self.random.random_range(0..1_500))),
            _ => self.come_and_go(),
        }
    }

    fn send(&mut self) {
        let (user, seq) = self.pick();
        let reply_to = (self.random.random_bool(0.3) && !self.model.messages.is_empty()).then_some(seq);
        self.sent += 1;
        let text = format!("m{}", self.sent);
        let request = SendRequest { reply_to, ..message(user, &self.room, &text) };
        let body: Value = serde_json::from_str(request.body.get()).unwrap();
        let receipt = self.world.wait(self.world.engine.send(&Actor::App, request)).unwrap();
        let (version, edited_by, recalled_by, pinned) = (1, None, None, false);
        let (from, reactions) = (user.to_owned(), BTreeMap::new());
        let message = Message { from, body, version, edited_by, recalled_by, reactions, pinned, reply_to };
        self.model.messages.insert(receipt.seq, message);
    }

    fn edit(&mut self) {
        let (user, seq) = self.pick();
        let Some(message) = self.model.messages.get_mut(&seq) else { return };
        self.sent += 1;
        let (id, body) = (format!("e{}", self.sent), json!({ "edited": self.sent }));
        let if_version = self.random.random_bool(0.3).then(|| self.random.random_range(1..4));
        let edit = EditMessage {
            from: None,
            client_msg_id: Some(id.clone()),
            content_type: None,
            body: serde_json::value::to_raw_value(&body).unwrap(),
            mentions: vec![],
            if_version,
        };
        let actor = Actor::User(self.world.user(user));
        let answer = self.world.wait(self.world.engine.edit_message(&actor, &self.room, seq, edit));
        // The first user owns the group.
        if message.from != user && user != USERS[0] {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Forbidden);
        } else if message.recalled_by.is_some() {
            assert_eq!(answer.unwrap_err().code, ErrorCode::MessageRecalled);
        } else if if_version.is_some_and(|expected| expected != message.version) {
            assert_eq!(answer.unwrap_err().code, ErrorCode::VersionConflict);
        } else {
            let receipt = answer.unwrap();
            message.version += 1;
            assert_eq!((receipt.version, receipt.duplicate), (message.version, false));
            (message.body, message.edited_by) = (body, Some(user.to_owned()));
            self.model.edits.insert((user, id), (seq, receipt.seq));
        }
    }

    /// Repeats an edit whose answer was lost.
    fn retry_edit(&mut self) {
        let mut all: Vec<_> = self.model.edits.iter().map(|(send, place)| (send.clone(), *place)).collect();
        all.sort();
        if all.is_empty() {
            return;
        }
        let ((user, id), (seq, of_edit)) = all.swap_remove(self.random.random_range(0..all.len()));
        let edit = EditMessage {
            from: None,
            client_msg_id: Some(id),
            content_type: None,
            body: serde_json::value::to_raw_value(&json!("of the retry")).unwrap(),
            mentions: vec![],
            if_version: None,
        };
        let answer = self.world.wait(self.world.engine.edit_message(&self.actor(user), &self.room, seq, edit)).unwrap();
        assert_eq!((answer.seq, answer.duplicate), (of_edit, true));
    }

    fn recall(&mut self) {
        let (user, seq) = self.pick();
        let Some(message) = self.model.messages.get_mut(&seq) else { return };
        let actor = Actor::User(self.world.user(user));
        let answer = self.world.wait(self.world.engine.recall_message(&actor, &self.room, seq, None, None));
        if message.from != user && user != USERS[0] {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Forbidden);
            return;
        }
        assert_eq!(answer.unwrap().duplicate, message.recalled_by.is_some());
        if message.recalled_by.is_none() {
            (message.body, message.recalled_by) = (Value::Null, Some(user.to_owned()));
            (message.reactions, message.pinned) = (BTreeMap::new(), false);
        }
    }

    fn react(&mut self) {
        let (user, seq) = self.pick();
        let (key, add) = (KEYS[self.random.random_range(0..KEYS.len())], self.random.random_bool(0.7));
        self.react_with(user, seq, key, add);
    }

    fn react_with(&mut self, user: &'static str, seq: u64, key: &'static str, add: bool) {
        let Some(message) = self.model.messages.get_mut(&seq) else { return };
        let actor = Actor::User(self.world.user(user));
        let answer = self.world.wait(self.world.engine.react(&actor, None, &self.room, seq, key, add));
        if message.recalled_by.is_some() {
            assert_eq!(answer.unwrap_err().code, ErrorCode::MessageRecalled);
            return;
        }
        match add {
            true => drop(self.model.reactions.insert((seq, user, key))),
            false => drop(self.model.reactions.remove(&(seq, user, key))),
        }
        message.reactions.clear();
        for (_, _, key) in self.model.reactions.iter().filter(|(of, ..)| *of == seq) {
            *message.reactions.entry((*key).to_owned()).or_default() += 1;
        }
        let answered: BTreeMap<_, _> = answer.unwrap().reactions.into_iter().map(|r| (r.key, r.count)).collect();
        assert_eq!(answered, message.reactions);
    }

    fn pin(&mut self) {
        let (user, seq) = self.pick();
        let pinned = self.random.random_bool(0.6);
        let Some(message) = self.model.messages.get_mut(&seq) else { return };
        let actor = Actor::User(self.world.user(user));
        let answer = self.world.wait(self.world.engine.pin(&actor, None, &self.room, seq, pinned));
        if user != USERS[0] {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Forbidden);
        } else if message.recalled_by.is_some() {
            assert_eq!(answer.unwrap_err().code, ErrorCode::MessageRecalled);
        } else {
            assert_eq!(answer.unwrap().pinned, pinned);
            message.pinned = pinned;
        }
    }

    /// A client goes away, or comes back; those who are there get what the lane has handed out.
    fn come_and_go(&mut self) {
        self.deliver();
        let at = self.random.random_range(0..self.clients.len());
        match self.clients[at].away {
            true => self.resume(at),
            false => self.clients[at].away = true,
        }
    }

    /// Hands what was committed to the clients that are there.
    fn deliver(&mut self) {
        // Not the store's last position: in a database, changes that no lane hands out have positions, too.
        let store = &self.world.engine.store;
        let room = store.conversation_no(&self.room).unwrap().unwrap();
        let last = store.head(room).unwrap().last_position;
        while self.through < last {
            self.take_fanout();
        }
    }

    fn take_fanout(&mut self) {
        let fanout = self.world.receivers[0].lanes[Lane::Group as usize].recv_timeout(PATIENCE).unwrap();
        for step in &fanout.steps {
            let Step::Block(block) = step else { continue };
            let text = [b"[", &block.json[1..], b"]"].concat();
            let mut entries: Vec<Entry> = serde_json::from_slice(&text).unwrap();
            // Of an earlier group, whose reactions were told only now.
            entries.retain(|entry| entry.conversation == self.room);
            for client in self.clients.iter_mut().filter(|client| !client.away && client.cursor < fanout.through) {
                entries.iter().for_each(|entry| apply(&mut client.view, entry));
            }
        }
        self.through = self.through.max(fanout.through);
        for client in self.clients.iter_mut().filter(|client| !client.away) {
            client.cursor = client.cursor.max(fanout.through);
        }
    }

    /// Has a client that was away read what it missed. It is away until then: what is handed out meanwhile is not for it.
    fn resume(&mut self, at: usize) {
        // Others may have got more meanwhile: the teller of reactions commits by itself.
        self.deliver();
        let engine = &self.world.engine;
        let until = self.through;
        let client = &mut self.clients[at];
        let cursor = Cursor { epoch: engine.store.epoch(), positions: [client.cursor; LANES] };
        let inbox = engine.read_inbox(self.world.user(client.user).no, Some(&cursor), [until; LANES]).unwrap();
        assert!(inbox.resume.complete);
        let text = [b"[", inbox.json.get(1..).unwrap_or_default(), b"]"].concat();
        let entries: Vec<Entry> = serde_json::from_slice(&text).unwrap();
        let of_room = entries.iter().filter(|entry| entry.conversation == self.room);
        of_room.for_each(|entry| apply(&mut client.view, entry));
        client.cursor = until;
        client.away = false;
    }

    fn check(&mut self) {
        self.deliver();
        // Reactions that wait to be told are told once their time has come.
        let conversation = self.world.engine.directory.require_conversation(&self.room).unwrap().no;
        let is_untold = |run: &Run| {
            run.world.engine.store.row(RowSpace::Chat, &chat_rows::untold_key(conversation)).unwrap().is_some()
        };
        while is_untold(self) {
            self.world.clock.advance(Duration::from_millis(1_000));
            self.take_fanout();
        }
        self.deliver();
        for at in 0..self.clients.len() {
            if self.clients[at].away {
                self.resume(at);
            }
        }
        for client in &self.clients {
            assert_eq!(client.view, self.model.messages, "the view of {}", client.user);
        }
        let query = HistoryQuery { from_seq: Some(1), limit: Some(200), ..HistoryQuery::default() };
        let page = self.world.engine.history(&Actor::App, &self.room, &query).unwrap();
        assert!(!page.more);
        let mut view = View::new();
        page.entries.iter().for_each(|entry| apply(&mut view, entry));
        assert_eq!(view, self.model.messages, "history");
        for entry in page.entries.iter().filter(|entry| entry.reply_to.is_some()) {
            let reply = entry.reply_to.as_ref().unwrap();
            let answered = &self.model.messages[&reply.seq];
            assert_eq!(reply.recalled, answered.recalled_by.is_some());
            let body = reply.body.as_ref().map(|body| serde_json::from_str::<Value>(body.get()).unwrap());
            assert_eq!(body, answered.recalled_by.is_none().then(|| answered.body.clone()));
        }
    }
}

/// Histories one after the other, each in a group of its own.
fn run(seed: u64, histories: usize, store: Arc<dyn Store>) {
    println!("seed {seed}");
    let messages = MessagesConfig { edit_history: seed.is_multiple_of(2), ..MessagesConfig::default() };
    let world = World::new(EngineConfig { shards: 1, messages, ..EngineConfig::default() }, store);
    world.users(&USERS);
    let mut run = Run {
        world,
        random: StdRng::seed_from_u64(seed),
        model: Model::default(),
        clients: vec![],
        room: String::new(),
        through: 0,
        sent: 0,
    };
    for history in 0..histories {
        run.room = format!("room-{history}");
        run.world.conversation(ConversationKind::Group, &run.room, &USERS);
        run.clients.clear();
        run.deliver();
        let cursor = run.through;
        let client = |user| Client { user, view: View::new(), cursor, away: false };
        run.clients = USERS.map(client).into();
        run.model = Model::default();
        for _ in 0..STEPS {
            run.step();
        }
        run.check();
    }
}

/// Groups of one store. A resume looks at all of them, so that more would make it slow.
const HISTORIES_PER_STORE: usize = 200;

/// Runs as many histories as the variable says, or few enough for every day; each store has a seed of its own.
fn run_all(default: usize, first_seed: u64, store: impl Fn() -> Arc<dyn Store>) {
    let count = std::env::var("HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(default);
    let chunks = (0..count).step_by(HISTORIES_PER_STORE).map(|first| (count - first).min(HISTORIES_PER_STORE));
    for (seed, histories) in (first_seed..).zip(chunks) {
        run(seed, histories, store());
    }
}

#[test]
fn views_over_the_store_in_memory_match_the_model() {
    run_all(150, 1, || Arc::new(MemoryStore::default()));
}

#[test]
fn views_over_the_embedded_store_match_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let opened = std::cell::Cell::new(0);
    run_all(40, 1_000, || {
        opened.set(opened.get() + 1);
        let folder = folder.path().join(opened.get().to_string());
        Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder)).unwrap())
    });
}

#[test]
fn views_over_a_database_match_the_model() {
    let server = PostgresServer::shared();
    run_all(30, 2_000, || Arc::new(open_at(&server.database())));
}
