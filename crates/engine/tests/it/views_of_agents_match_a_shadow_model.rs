//! Random histories of a user's conversation with an account: the user and the account's agents write, edit, recall, read and
//! hand the conversation to each other, and an agent is removed. Every client applies what the lane hands out, goes away now
//! and then, and resumes from its cursor. At the end each view, history as each of them reads it, and the agents' list equal a
//! model in plain maps: the user learns of no agent, and a removed agent of nothing more.
//!
//! `HISTORIES=10000 cargo test -p tidings-engine --test it views_of_agents_match_a_shadow_model --release` runs more of them.

use crate::databases::databases_by_turns;
use crate::postgres::PostgresServer;
use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_domain::{model::*, store::Store};
use tidings_engine::{
    config::{EngineConfig, MessagesConfig},
    delivery::{Recipients, Step},
    lists::account_list::AccountList,
};
use tidings_protocol::{entry::Entry, error::ErrorCode, http::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const AGENTS: [&str; 3] = ["ann", "amy", "art"];
const CUSTOMER: &str = "ben";
const STEPS: usize = 40;

/// A message as an agent sees it; the user sees it without `agent`.
#[derive(Debug, Clone, PartialEq)]
struct Message {
    from: String,
    agent: Option<String>,
    body: Value,
    version: u32,
    recalled: bool,
}

/// What a client knows of the conversation.
#[derive(Debug, Clone, Default, PartialEq)]
struct View {
    messages: BTreeMap<u64, Message>,
    assigned_to: Option<String>,
}

impl View {
    fn apply(&mut self, entry: &Entry) {
        let body: Value = serde_json::from_str(entry.body.get()).unwrap();
        match entry.kind {
            EntryKind::Message => {
                let message = Message {
                    from: entry.from.clone().unwrap(),
                    agent: entry.agent.clone(),
                    body,
                    version: entry.version.unwrap_or(1),
                    recalled: entry.recalled.is_some(),
                };
                self.messages.insert(entry.seq, message);
            }
            EntryKind::Edit => {
                let message = self.messages.get_mut(&entry.target.unwrap()).unwrap();
                if entry.version.unwrap() > message.version && !message.recalled {
                    (message.body, message.version) = (body, entry.version.unwrap());
                }
            }
            EntryKind::Recall => {
                let message = self.messages.get_mut(&entry.target.unwrap()).unwrap();
                (message.body, message.recalled) = (Value::Null, true);
            }
            EntryKind::Assignment => self.assigned_to = body["assigned_to"].as_str().map(str::to_owned),
            EntryKind::Reactions | EntryKind::Pins | EntryKind::MemberChange | EntryKind::ConversationChange => {}
            EntryKind::Opaque(number) => panic!("no test writes the kind {number}"),
        }
    }

    /// What the user sees of it.
    fn without_agents(mut self) -> View {
        self.messages.values_mut().for_each(|message| message.agent = None);
        View { assigned_to: None, ..self }
    }
}

struct Client {
    user: &'static str,
    view: View,
    cursor: Position,
    away: bool,
}

struct Run {
    world: World,
    random: StdRng,
    account: String,
    room: String,
    model: View,
    /// The agents that there are.
    agents: Vec<&'static str>,
    /// How far the user has read, and how far any agent has.
    read: [u64; 2],
    clients: Vec<Client>,
    through: Position,
    sent: usize,
}

impl Run {
    fn actor(&self, user: &str) -> Actor {
        Actor::User(self.world.user(user))
    }

    fn agent(&mut self) -> &'static str {
        self.agents[self.random.random_range(0..self.agents.len())]
    }

    /// The user, or one of the agents.
    fn writer(&mut self) -> &'static str {
        if self.random.random_bool(0.4) { CUSTOMER } else { self.agent() }
    }

    fn pick(&mut self) -> u64 {
        let seqs: Vec<u64> = self.model.messages.keys().copied().collect();
        seqs[self.random.random_range(0..seqs.len())]
    }

    /// As whom a writer writes, and which agent the message names.
    fn sides(&self, writer: &str) -> (String, Option<String>) {
        match writer == CUSTOMER {
            true => (CUSTOMER.into(), None),
            false => (self.account.clone(), Some(writer.into())),
        }
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..40 => self.say(),
            40..52 => self.change(),
            52..70 => self.assign(),
            70..80 => self.mark_read(),
            80..82 if self.agents.len() > 1 => self.remove_agent(),
            82..86 => self.world.clock.advance(Duration::from_millis(500)),
            _ => self.come_and_go(),
        }
    }

    fn say(&mut self) {
        let writer = self.writer();
        self.sent += 1;
        let request = SendRequest { from: None, ..message(writer, &self.room, &format!("m{}", self.sent)) };
        let body: Value = serde_json::from_str(request.body.get()).unwrap();
        let sent = self.world.wait(self.world.engine.send(&self.actor(writer), request)).unwrap();
        let (from, agent) = self.sides(writer);
        self.model.messages.insert(sent.seq, Message { from, agent, body, version: 1, recalled: false });
    }

    /// An edit or a recall: agents change what any of them has written, and nobody changes the other side's.
    fn change(&mut self) {
        let (writer, seq, recalls) = (self.writer(), self.pick(), self.random.random_bool(0.3));
        let (side, _) = self.sides(writer);
        self.sent += 1;
        let (actor, body) = (self.actor(writer), json!({ "edited": self.sent }));
        let edit = EditMessage {
            from: None,
            client_msg_id: None,
            content_type: None,
            body: serde_json::value::to_raw_value(&body).unwrap(),
            mentions: vec![],
            if_version: None,
        };
        let engine = &self.world.engine;
        let answer = match recalls {
            true => self.world.wait(engine.recall_message(&actor, &self.room, seq, None, None)),
            false => self.world.wait(engine.edit_message(&actor, &self.room, seq, edit)),
        };
        let message = self.model.messages.get_mut(&seq).unwrap();
        if message.from != side {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Forbidden);
        } else if recalls {
            assert_eq!(answer.unwrap().duplicate, message.recalled);
            (message.body, message.recalled) = (Value::Null, true);
        } else if message.recalled {
            assert_eq!(answer.unwrap_err().code, ErrorCode::MessageRecalled);
        } else {
            message.version += 1;
            assert_eq!(answer.unwrap().version, message.version);
            message.body = body;
        }
    }

    /// An agent hands the conversation to an agent or to nobody, now and then only if somebody certain has it.
    fn assign(&mut self) {
        let (by, to) = (self.agent(), self.random.random_bool(0.8).then(|| self.agent().to_owned()));
        let expected =
            self.random.random_bool(0.5).then(|| self.random.random_bool(0.5).then(|| self.agent().to_owned()));
        let assign = Assign { assigned_to: to.clone(), if_assigned_to: expected.clone() };
        let answer = self.world.wait(self.world.engine.assign(&self.actor(by), &self.room, assign));
        // A repeated call answers as the first one, whatever it expects.
        let is_repeated = to == self.model.assigned_to;
        if expected.is_some_and(|expected| expected != self.model.assigned_to) && !is_repeated {
            assert_eq!(answer.unwrap_err().code, ErrorCode::AssignmentConflict);
        } else {
            assert_eq!(answer.unwrap().assigned_to, to);
            self.model.assigned_to = to;
        }
        let refused = self.world.wait(self.world.engine.assign(
            &self.actor(CUSTOMER),
            &self.room,
            Assign { assigned_to: None, if_assigned_to: None },
        ));
        assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden, "the user assigns nothing");
    }

    fn mark_read(&mut self) {
        let (reader, seq) = (self.writer(), self.pick());
        let mark = self.world.wait(self.world.engine.mark_read(&self.world.user(reader), &self.room, seq)).unwrap();
        let side = usize::from(reader != CUSTOMER);
        self.read[side] = self.read[side].max(seq);
        assert_eq!((mark.seq, mark.unread), (self.read[side], self.unread(side)));
    }

    fn unread(&self, side: usize) -> u64 {
        let own = [CUSTOMER, &self.account][side];
        let is_unread =
            |(seq, message): &(&u64, &Message)| **seq > self.read[side] && message.from != own && !message.recalled;
        self.model.messages.iter().filter(is_unread).count() as u64
    }

    /// Removes an agent who does not have the conversation.
    fn remove_agent(&mut self) {
        let agent = self.agent();
        if self.model.assigned_to.as_deref() == Some(agent) {
            return;
        }
        self.deliver();
        let update = UpdateDesk { remove: vec![agent.into()], ..UpdateDesk::default() };
        self.world.wait(self.world.engine.update_desk(&Actor::App, &self.account, update)).unwrap();
        self.agents.retain(|other| *other != agent);
        self.clients.retain(|client| client.user != agent);
        let refused = self.world.engine.history(&self.actor(agent), &self.room, &HistoryQuery::default());
        assert!(refused.is_err(), "{agent} is no agent any more");
    }

    fn come_and_go(&mut self) {
        self.deliver();
        let at = self.random.random_range(0..self.clients.len());
        match self.clients[at].away {
            true => self.resume(at),
            false => self.clients[at].away = true,
        }
    }

    fn deliver(&mut self) {
        let room = self.world.engine.directory.require_conversation(&self.room).unwrap().no;
        let last = self.world.engine.store.head(room).unwrap().last_position;
        while self.through < last {
            let fanout = self.world.receivers[0].lanes[Lane::Direct as usize].recv_timeout(PATIENCE).unwrap();
            for step in &fanout.steps {
                let Step::Block { block, .. } = step else { continue };
                let text = [b"[", &block.json[1..], b"]"].concat();
                let entries: Vec<Entry> = serde_json::from_slice(&text).unwrap();
                for client in self.clients.iter_mut().filter(|client| !client.away && client.cursor < fanout.through) {
                    let no = self.world.engine.directory.require_user(client.user).unwrap().no;
                    let is_for = match &block.recipients {
                        Recipients::Users(users) => users.contains(&no),
                        Recipients::Pair(a, b) => *a == no || *b == no,
                        Recipients::Audience => true,
                    };
                    let of_room = entries.iter().filter(|entry| entry.conversation == self.room);
                    of_room.filter(|_| is_for).for_each(|entry| client.view.apply(entry));
                }
            }
            self.through = self.through.max(fanout.through);
            for client in self.clients.iter_mut().filter(|client| !client.away) {
                client.cursor = client.cursor.max(fanout.through);
            }
        }
    }

    fn resume(&mut self, at: usize) {
        self.deliver();
        let (engine, until, client) = (&self.world.engine, self.through, &mut self.clients[at]);
        let cursor = Cursor { epoch: engine.store.epoch(), positions: [client.cursor; LANES] };
        let inbox = engine.read_inbox(self.world.user(client.user).no, Some(&cursor), [until; LANES]).unwrap();
        assert!(inbox.resume.complete);
        let text = [b"[", inbox.json.get(1..).unwrap_or_default(), b"]"].concat();
        let entries: Vec<Entry> = serde_json::from_slice(&text).unwrap();
        entries.iter().filter(|entry| entry.conversation == self.room).for_each(|entry| client.view.apply(entry));
        (client.cursor, client.away) = (until, false);
    }

    fn expected(&self, user: &str) -> View {
        if user == CUSTOMER { self.model.clone().without_agents() } else { self.model.clone() }
    }

    fn check(&mut self) {
        self.deliver();
        for at in 0..self.clients.len() {
            if self.clients[at].away {
                self.resume(at);
            }
        }
        for client in &self.clients {
            assert_eq!(client.view, self.expected(client.user), "the view of {}", client.user);
        }
        let query = HistoryQuery { from_seq: Some(1), limit: Some(200), ..HistoryQuery::default() };
        for user in self.agents.iter().copied().chain([CUSTOMER]) {
            let page = self.world.engine.history(&self.actor(user), &self.room, &query).unwrap();
            let mut view = View::default();
            page.entries.iter().for_each(|entry| view.apply(entry));
            assert_eq!(view, self.expected(user), "history as {user} reads it");
        }
        // The agents' list knows who has the conversation, and what none of them has read.
        let agent = self.agent();
        for assigned_to in [None, Some("@nobody"), Some("@me")] {
            let list = AccountList { account: self.account.clone(), assigned_to: assigned_to.map(str::to_owned) };
            let page = self.world.engine.account_conversations(&self.actor(agent), &list, None, None, 10).unwrap();
            let found: Vec<_> = page.conversations.into_iter().map(|v| (v.id, v.assigned_to, v.unread)).collect();
            let has = match assigned_to {
                None => true,
                Some("@me") => self.model.assigned_to.as_deref() == Some(agent),
                Some(_) => self.model.assigned_to.is_none(),
            };
            let line = (self.room.clone(), self.model.assigned_to.clone(), self.unread(1));
            assert_eq!(found, has.then_some(line).into_iter().collect::<Vec<_>>(), "{assigned_to:?} of {agent}");
        }
    }
}

/// Histories one after the other, each with an account of its own.
fn run(seed: u64, histories: usize, store: Arc<dyn Store>) {
    println!("seed {seed}");
    let messages = MessagesConfig { recall_window: [Duration::MAX; LANES], ..MessagesConfig::default() };
    let world = World::new(EngineConfig { shards: 1, messages, ..EngineConfig::default() }, store);
    world.users(&[CUSTOMER, AGENTS[0], AGENTS[1], AGENTS[2]]);
    let mut run = Run {
        world,
        random: StdRng::seed_from_u64(seed),
        account: String::new(),
        room: String::new(),
        model: View::default(),
        agents: vec![],
        read: [0; 2],
        clients: vec![],
        through: 0,
        sent: 0,
    };
    for history in 0..histories {
        run.account = format!("shop-{history}");
        run.room = format!("{CUSTOMER}~{}", run.account);
        run.world.conversation(ConversationKind::Official, &run.account, &[CUSTOMER]);
        let update = UpdateDesk { add: AGENTS.map(str::to_owned).into(), ..UpdateDesk::default() };
        run.world.wait(run.world.engine.update_desk(&Actor::App, &run.account, update)).unwrap();
        (run.model, run.agents, run.read) = (View::default(), AGENTS.into(), [0; 2]);
        // The user's first message opens the conversation.
        let first = SendRequest { from: None, ..message(CUSTOMER, &run.room, &format!("first-{history}")) };
        run.clients.clear();
        let sent = run.world.wait(run.world.engine.send(&run.actor(CUSTOMER), first)).unwrap();
        let (from, body) = (CUSTOMER.to_owned(), json!(format!("first-{history}")));
        run.model.messages.insert(sent.seq, Message { from, agent: None, body, version: 1, recalled: false });
        run.deliver();
        let (view, cursor) = (run.model.clone(), run.through);
        let client = |user| Client { user, view: view.clone(), cursor, away: false };
        run.clients = AGENTS.into_iter().chain([CUSTOMER]).map(client).collect();
        (0..STEPS).for_each(|_| run.step());
        run.check();
    }
}

#[test]
fn views_over_the_store_in_memory_match_the_model() {
    run_histories(60, 1, run, || Arc::new(MemoryStore::default()));
}

#[test]
fn views_over_the_embedded_store_match_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let opened = AtomicUsize::new(0);
    run_histories(12, 1_000, run, || {
        let folder = folder.path().join(opened.fetch_add(1, Ordering::Relaxed).to_string());
        Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder)).unwrap())
    });
}

#[test]
fn views_over_a_database_match_the_model() {
    let server = PostgresServer::shared();
    run_histories(8, 2_000, run, databases_by_turns(&server));
}
