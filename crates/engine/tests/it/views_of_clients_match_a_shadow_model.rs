//! Random histories of sends, answers, edits, recalls, reactions, pins and messages that grow by members of a group, and of
//! what they read and set for their lists. Each client keeps a view by the rules of `docs/chat.md`: it applies what the lane
//! hands out, goes away now and then, and resumes from its cursor. At the end of each history every view, what a new client
//! reads from history, every line of a list and the receipts of every message equal a model in plain maps.
//!
//! `HISTORIES=10000 cargo test -p tidings-engine --test it views_of_clients_match_a_shadow_model --release` runs more of them.

use crate::databases::databases_by_turns;
use crate::postgres::PostgresServer;
use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidings_domain::{
    chat_rows,
    model::{Actor, ConversationKind, Cursor, EntryKind, LANES, Lane, Position},
    store::{RowSpace, Store},
};
use tidings_engine::{
    config::{EngineConfig, MessagesConfig},
    delivery::Step,
    streams::StreamsConfig,
};
use tidings_protocol::{
    entry::{Entry, StreamMark},
    error::ErrorCode,
    http::*,
};
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const USERS: [&str; 4] = ["ada", "ben", "cyd", "dan"];
const KEYS: [&str; 3] = ["+1", "-1", "🎉"];
const STEPS: usize = 60;
/// Longer than all the time that passes in a history otherwise.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(3_600);

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
    stream: Option<StreamMark>,
}

impl Message {
    /// The text of a message that grows.
    fn text(&self) -> &str {
        self.body["text"].as_str().unwrap_or_default()
    }
}

/// A chunk of a message that grows.
#[derive(Deserialize)]
struct Chunk {
    conversation: String,
    seq: u64,
    offset: usize,
    text: String,
}

type View = BTreeMap<u64, Message>;

/// An answer to a message that is recalled has nothing of it.
fn check_answer(view: &View, entry: &Entry) {
    if let Some(reply) = entry.reply_to.as_ref() {
        let is_recalled = view.get(&reply.seq).is_some_and(|message| message.recalled_by.is_some());
        assert!(!is_recalled || reply.body.is_none(), "an answer shows a recalled body");
    }
}

/// Applies an entry to a view, as a client does.
fn apply(view: &mut View, entry: &Entry) {
    let body: Value = serde_json::from_str(entry.body.get()).unwrap();
    let reactions = |all: &Value| -> BTreeMap<String, u32> {
        let one = |r: &Value| (r["key"].as_str().unwrap().to_owned(), r["count"].as_u64().unwrap() as u32);
        all.as_array().unwrap().iter().map(one).collect()
    };
    match entry.kind {
        EntryKind::Message => {
            let message = Message {
                from: entry.from.clone().unwrap(),
                body,
                version: entry.version.unwrap_or(1),
                edited_by: entry.edited_by.clone(),
                recalled_by: entry.recalled.as_ref().map(|recalled| recalled.by.clone().unwrap_or_default()),
                reactions: entry.reactions.iter().map(|r| (r.key.clone(), r.count)).collect(),
                pinned: entry.pinned.is_some(),
                reply_to: entry.reply_to.as_ref().map(|reply| reply.seq),
                stream: entry.stream,
            };
            view.insert(entry.seq, message);
        }
        EntryKind::Edit => {
            if let Some(message) = view.get_mut(&entry.target.unwrap())
                && entry.version.unwrap() > message.version
                && message.recalled_by.is_none()
            {
                (message.body, message.version) = (body, entry.version.unwrap());
                // The end of a message that grew comes as an edit, and is none.
                if message.stream != Some(StreamMark::Open) {
                    message.edited_by = entry.from.clone();
                }
                message.stream = entry.stream;
            }
        }
        EntryKind::Recall => {
            if let Some(message) = view.get_mut(&entry.target.unwrap()) {
                (message.body, message.recalled_by) = (Value::Null, Some(entry.from.clone().unwrap_or_default()));
                (message.reactions, message.pinned, message.stream) = (BTreeMap::new(), false, None);
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
        EntryKind::Opaque(number) => panic!("no test writes the kind {number}"),
    }
}

/// Applies a chunk by the table of `docs/websocket.md`; answers whether chunks are missing, so that the message has to be read
/// again.
fn apply_chunk(view: &mut View, chunk: &Chunk) -> bool {
    let Some(message) = view.get_mut(&chunk.seq) else { return true };
    let have = message.text().len();
    if message.stream != Some(StreamMark::Open) {
        return false;
    }
    if chunk.offset > have {
        return true;
    }
    if let Some(rest) = chunk.text.get(have - chunk.offset..) {
        message.body["text"] = (message.text().to_owned() + rest).into();
    }
    false
}

/// A client of one user.
struct Client {
    user: &'static str,
    view: View,
    cursor: Position,
    away: bool,
    /// The user has cleared the conversation up to here.
    cleared: u64,
    /// The newest message when the client was away last: it may have missed chunks of those up to there, and of no others.
    back_at: u64,
    /// Messages that the client has read again for their chunks, and so perhaps as recalled before the recall came. What was
    /// said between both has the body still.
    read_ahead: BTreeSet<u64>,
}

impl Client {
    fn apply(&mut self, entry: &Entry) {
        if entry.kind == EntryKind::Recall {
            self.read_ahead.remove(&entry.target.unwrap());
        }
        if entry.seq > self.cleared {
            if !entry.reply_to.as_ref().is_some_and(|reply| self.read_ahead.contains(&reply.seq)) {
                check_answer(&self.view, entry);
            }
            apply(&mut self.view, entry);
        }
    }
}

/// What a user has set, and how far the user has come.
#[derive(Debug, Default)]
struct Line {
    pinned: bool,
    archived: bool,
    /// The newest message when the conversation was hidden.
    hidden_at: Option<u64>,
    title: Option<String>,
    marked_unread: bool,
    cleared: u64,
    read: u64,
    /// The newest message that a client has stored.
    stored: u64,
}

#[derive(Default)]
struct Model {
    messages: View,
    /// Who gave which reaction to which message.
    reactions: BTreeSet<(u64, &'static str, &'static str)>,
    /// The `seq` and version that each edit with an id of its own was answered with.
    edits: HashMap<(&'static str, String), (u64, u64, Option<u32>)>,
    /// All that was ever appended to each message that grew.
    grown: BTreeMap<u64, String>,
    /// The `seq` of the entry by which the beginner ended a message that grew.
    ends: BTreeMap<u64, u64>,
    lines: BTreeMap<&'static str, Line>,
}

impl Model {
    fn newest(&self) -> u64 {
        self.messages.keys().next_back().copied().unwrap_or(0)
    }

    /// What a user sees.
    fn view_of(&self, user: &str) -> View {
        let cleared = self.lines[user].cleared;
        self.messages.range(cleared + 1..).map(|(seq, message)| (*seq, message.clone())).collect()
    }

    fn open_streams(&self) -> Vec<u64> {
        let is_open = |message: &Message| message.stream == Some(StreamMark::Open);
        self.messages.iter().filter(|(_, message)| is_open(message)).map(|(seq, _)| *seq).collect()
    }
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
    /// Users who send no read receipts, in all conversations.
    receipts_off: BTreeSet<&'static str>,
    /// Chunks that clients appended to their views, and messages that they read again because chunks were missing.
    chunks: (usize, usize),
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
            0..16 => self.send(),
            16..22 => self.begin(),
            22..34 => self.append(),
            34..38 => self.end(),
            38..39 => self.interrupt(),
            39..50 => self.edit(),
            50..55 => self.recall(),
            55..66 => self.react(),
            66..71 => self.pin(),
            71..75 => self.retry_edit(),
            75..81 => self.set(),
            81..84 => self.read(),
            84..86 => self.tell_stored(),
            86..87 => self.turn_receipts(),
            87..90 => self.world.clock.advance(Duration::from_millis(self.random.random_range(0..1_500))),
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
        let message =
            Message { from, body, version, edited_by, recalled_by, reactions, pinned, reply_to, stream: None };
        self.model.messages.insert(receipt.seq, message);
    }

    /// Begins a message that grows, by the user's own token.
    fn begin(&mut self) {
        let (user, _) = self.pick();
        self.sent += 1;
        let body = json!({ "text": "", "n": self.sent });
        let request = SendRequest {
            from: None,
            body: serde_json::value::to_raw_value(&body).unwrap(),
            ..message(user, &self.room, &format!("s{}", self.sent))
        };
        let receipt = self.world.wait(self.world.engine.begin_stream(&self.actor(user), request)).unwrap();
        let message = Message {
            from: user.to_owned(),
            body,
            version: 1,
            edited_by: None,
            recalled_by: None,
            reactions: BTreeMap::new(),
            pinned: false,
            reply_to: None,
            stream: Some(StreamMark::Open),
        };
        self.model.messages.insert(receipt.seq, message);
        self.model.grown.insert(receipt.seq, String::new());
    }

    /// A message that has grown, or still does.
    fn pick_grown(&mut self) -> Option<u64> {
        let open = self.model.open_streams();
        let all: Vec<u64> = self.model.grown.keys().copied().collect();
        let from = if open.is_empty() || self.random.random_bool(0.1) { all } else { open };
        (!from.is_empty()).then(|| from[self.random.random_range(0..from.len())])
    }

    fn append(&mut self) {
        let Some(seq) = self.pick_grown() else { return };
        let message = &self.model.messages[&seq];
        let (from, is_open) = (message.from.clone(), message.stream == Some(StreamMark::Open));
        let grown = self.model.grown[&seq].clone();
        let text = format!("{}é ", self.random.random_range(0..1_000));
        // What fits, a chunk whose answer was lost, and one behind a gap.
        let (offset, chunk, expected) = match self.random.random_range(0..10) {
            0 => (0, grown.clone() + &text, Ok(grown.clone() + &text)),
            1 => (0, grown.clone(), Ok(grown.clone())),
            2 => (grown.len() + 1, text, Err(ErrorCode::Conflict)),
            3 if !grown.is_empty() => (0, "other".into(), Err(ErrorCode::Conflict)),
            _ => (grown.len(), text.clone(), Ok(grown.clone() + &text)),
        };
        let engine = &self.world.engine;
        let user = if self.random.random_bool(0.05) { USERS[self.random.random_range(0..USERS.len())] } else { &from };
        let actor = self.actor(user);
        let answer = match engine.append_to_stream(&actor, &self.room, seq, offset as u64, &chunk) {
            Ok(None) => Err(engine.why_no_stream(&actor, &self.room, seq).code),
            Ok(Some(length)) => Ok(length),
            Err(refusal) => Err(refusal.code),
        };
        match expected {
            _ if !is_open => assert!(answer.is_err(), "message {seq} has ended: {answer:?}"),
            _ if user != from => {
                let is_cleared = seq <= self.model.lines[user].cleared;
                assert_eq!(answer, Err(if is_cleared { ErrorCode::NotFound } else { ErrorCode::Forbidden }));
            }
            Err(code) => assert_eq!(answer, Err(code)),
            Ok(whole) => {
                assert_eq!(answer, Ok(whole.len() as u64));
                self.model.messages.get_mut(&seq).unwrap().body["text"] = whole.clone().into();
                self.model.grown.insert(seq, whole);
            }
        }
    }

    fn end(&mut self) {
        if let Some(seq) = self.pick_grown() {
            let body = self.random.random_bool(0.3).then(|| json!({ "text": "as a whole", "n": self.sent }));
            self.end_with(seq, body);
        }
    }

    fn end_with(&mut self, seq: u64, body: Option<Value>) {
        let message = self.model.messages.get_mut(&seq).unwrap();
        let actor = Actor::User(self.world.user(&message.from));
        let raw = body.as_ref().map(|body| serde_json::value::to_raw_value(body).unwrap());
        let answer = self.world.wait(self.world.engine.end_stream(&actor, &self.room, seq, raw));
        if message.stream == Some(StreamMark::Open) {
            let receipt = answer.unwrap();
            assert_eq!((receipt.version, receipt.duplicate), (2, false));
            (message.version, message.stream) = (2, None);
            message.body = body.unwrap_or(message.body.take());
            self.model.ends.insert(seq, receipt.seq);
        } else if message.recalled_by.is_some() {
            assert_eq!(answer.unwrap_err().code, ErrorCode::MessageRecalled);
        } else if let Some(end) = self.model.ends.get(&seq) {
            match answer {
                Ok(receipt) => assert_eq!((receipt.seq, receipt.duplicate), (*end, true), "that of the first end"),
                Err(refusal) => {
                    assert!(body.is_some(), "an end without a body is a retry of any");
                    assert_eq!(refusal.code, ErrorCode::StreamEnded, "another end");
                }
            }
        } else {
            assert_eq!(answer.unwrap_err().code, ErrorCode::StreamEnded, "it was interrupted");
        }
    }

    /// Nobody appends for so long that the server ends all messages that grow.
    fn interrupt(&mut self) {
        self.world.clock.advance(STREAMS_TIMEOUT + Duration::from_millis(1));
        self.world.engine.settle_streams();
        for seq in self.model.open_streams() {
            let message = self.model.messages.get_mut(&seq).unwrap();
            (message.version, message.stream) = (2, Some(StreamMark::Interrupted));
        }
    }

    /// Sets something for a user's list.
    fn set(&mut self) {
        let (user, seq) = self.pick();
        let newest = self.model.newest();
        let on = self.random.random_bool(0.6);
        let line = self.model.lines.get_mut(user).unwrap();
        let mut update = UpdatePreferences::default();
        match self.random.random_range(0..11) {
            0..2 => (update.pinned, line.pinned) = (Some(on), on),
            2..4 => (update.archived, line.archived) = (Some(on), on),
            4..6 => (update.hidden, line.hidden_at) = (Some(on), on.then_some(newest)),
            6..8 => {
                line.title = on.then(|| format!("title {seq}"));
                update.title = Some(line.title.clone());
            }
            8..10 => (update.marked_unread, line.marked_unread) = (Some(on), on),
            // Seldom: what is cleared is out of sight for good.
            _ if self.model.messages.len() > 3 => {
                let upto = self.model.messages.keys().copied().nth(self.random.random_range(0..3)).unwrap();
                update.clear_to_seq = Some(upto);
                line.cleared = line.cleared.max(upto);
                let cleared = line.cleared;
                for client in self.clients.iter_mut().filter(|client| client.user == user) {
                    client.cleared = cleared;
                    client.view.retain(|seq, _| *seq > cleared);
                }
            }
            _ => {}
        }
        self.world.wait(self.world.engine.set_preferences(&self.world.user(user), &self.room, update)).unwrap();
        self.check_line(user);
    }

    fn read(&mut self) {
        let (user, seq) = self.pick();
        if self.model.messages.is_empty() {
            return;
        }
        let mark = self.world.wait(self.world.engine.mark_read(&self.world.user(user), &self.room, seq)).unwrap();
        let line = self.model.lines.get_mut(user).unwrap();
        (line.read, line.marked_unread) = (line.read.max(seq), false);
        assert_eq!((mark.seq, mark.unread), (line.read, self.unread(user)));
    }

    /// A client says that it has stored all that it was handed.
    fn tell_stored(&mut self) {
        self.deliver();
        let at = self.random.random_range(0..self.clients.len());
        let client = &self.clients[at];
        if !client.away {
            let cursor = Cursor { epoch: self.world.engine.store.epoch(), positions: [client.cursor; LANES] };
            self.world.engine.note_stored(self.world.user(client.user).no, &cursor);
            let newest = self.model.newest();
            self.model.lines.get_mut(client.user).unwrap().stored = newest;
        }
    }

    fn turn_receipts(&mut self) {
        let (user, _) = self.pick();
        let send = !self.receipts_off.insert(user);
        if send {
            self.receipts_off.remove(user);
        }
        self.world.wait(self.world.engine.set_receipts(user, send)).unwrap();
    }

    fn unread(&self, user: &str) -> u64 {
        let line = &self.model.lines[user];
        let counts = |(seq, message): &(&u64, &Message)| {
            **seq > line.read.max(line.cleared) && message.from != user && message.recalled_by.is_none()
        };
        self.model.messages.iter().filter(counts).count() as u64
    }

    /// The user's line in the list is as the model has it, and is in those lists whose filter it passes.
    fn check_line(&mut self, user: &str) {
        let engine = &self.world.engine;
        let (line, unread, user_id) = (&self.model.lines[user], self.unread(user), user);
        let user = self.world.user(user);
        let card = engine.directory.require_conversation(&self.room).unwrap();
        let found = engine.list_view(&user, &card).unwrap();
        let hidden = line.hidden_at.is_some_and(|at| self.model.newest() <= at);
        assert_eq!(
            (found.pinned_at.is_some(), found.archived, found.hidden, found.title, found.marked_unread),
            (line.pinned, line.archived, hidden, line.title.clone(), line.marked_unread),
            "what {user_id} has set"
        );
        assert_eq!((found.read_seq, found.unread, found.cleared_seq), (line.read, unread, line.cleared), "{user_id}");
        let shown = |(seq, message): &(&u64, &Message)| **seq > line.cleared && message.recalled_by.is_none();
        let newest = self.model.messages.iter().filter(shown).map(|(seq, _)| *seq).next_back();
        assert_eq!(found.last_message.map(|message| message.seq), newest, "the newest message for {user_id}");
        let is_in_list = !line.archived && !hidden;
        let (filter, passes) = match self.random.random_range(0..3) {
            0 => (None, is_in_list),
            1 => (Some(ListFilter::Unread), is_in_list && (unread > 0 || line.marked_unread)),
            _ => (Some(ListFilter::Archived), line.archived),
        };
        let page = engine.conversations(&user, filter, None, HISTORIES_PER_STORE).unwrap();
        let is_listed = page.conversations.iter().any(|view| view.id == self.room);
        assert_eq!(is_listed, passes, "{user_id} lists {filter:?}: {line:?}");
    }

    /// Who has each message and who has read it, as an app server and as one of the members learn it.
    fn check_receipts(&mut self) {
        self.world.engine.settle_receipts();
        let asker = self.pick().0;
        for (actor, hides) in [(Actor::App, false), (self.actor(asker), self.receipts_off.contains(asker))] {
            let floor = actor.user().map_or(0, |_| self.model.lines[asker].cleared);
            for (seq, message) in self.model.messages.range(floor + 1..) {
                let others = || self.model.lines.iter().filter(|(user, _)| **user != message.from);
                let read = |user: &str, line: &Line| line.read >= *seq && !self.receipts_off.contains(user) && !hides;
                let expected = (
                    others().filter(|(_, line)| line.stored.max(line.read) >= *seq).count() as u64,
                    others().filter(|(user, line)| read(user, line)).count() as u64,
                    3,
                );
                let found = self.world.engine.message_receipts(&actor, &self.room, *seq).unwrap();
                assert_eq!((found.delivered, found.read, found.members), expected, "receipts of {seq} for {actor:?}");
            }
        }
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
        if seq <= self.model.lines[user].cleared {
            assert_eq!(answer.unwrap_err().code, ErrorCode::NotFound);
        } else if message.from != user && user != USERS[0] {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Forbidden);
        } else if message.recalled_by.is_some() {
            assert_eq!(answer.unwrap_err().code, ErrorCode::MessageRecalled);
        } else if message.stream == Some(StreamMark::Open) {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Conflict);
        } else if if_version.is_some_and(|expected| expected != message.version) {
            assert_eq!(answer.unwrap_err().code, ErrorCode::VersionConflict);
        } else {
            let receipt = answer.unwrap();
            message.version += 1;
            assert_eq!((receipt.version, receipt.duplicate), (message.version, false));
            (message.body, message.edited_by, message.stream) = (body, Some(user.to_owned()), None);
            self.model.edits.insert((user, id), (seq, receipt.seq, if_version));
        }
    }

    /// Repeats an edit whose answer was lost.
    fn retry_edit(&mut self) {
        let mut all: Vec<_> = self.model.edits.iter().map(|(send, place)| (send.clone(), *place)).collect();
        all.sort();
        if all.is_empty() {
            return;
        }
        let ((user, id), (seq, of_edit, if_version)) = all.swap_remove(self.random.random_range(0..all.len()));
        let body = json!({ "edited": id[1..].parse::<u64>().unwrap() });
        let edit_again = EditMessage {
            from: None,
            client_msg_id: Some(id),
            content_type: None,
            body: serde_json::value::to_raw_value(&body).unwrap(),
            mentions: vec![],
            if_version,
        };
        let other = EditMessage { content_type: Some("other".into()), ..edit_again.clone() };
        let edit = |edit| self.world.wait(self.world.engine.edit_message(&self.actor(user), &self.room, seq, edit));
        // Also of a message that the user has cleared since.
        let answer = edit(edit_again).unwrap();
        assert_eq!(edit(other).unwrap_err().code, ErrorCode::ClientMsgIdReused);
        assert_eq!((answer.seq, answer.duplicate), (of_edit, true));
    }

    fn recall(&mut self) {
        let (user, seq) = self.pick();
        let Some(message) = self.model.messages.get_mut(&seq) else { return };
        let actor = Actor::User(self.world.user(user));
        let answer = self.world.wait(self.world.engine.recall_message(&actor, &self.room, seq, None, None));
        if seq <= self.model.lines[user].cleared {
            assert_eq!(answer.unwrap_err().code, ErrorCode::NotFound);
            return;
        }
        if message.from != user && user != USERS[0] {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Forbidden);
            return;
        }
        assert_eq!(answer.unwrap().duplicate, message.recalled_by.is_some());
        if message.recalled_by.is_none() {
            (message.body, message.recalled_by) = (Value::Null, Some(user.to_owned()));
            (message.reactions, message.pinned, message.stream) = (BTreeMap::new(), false, None);
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
        if seq <= self.model.lines[user].cleared {
            assert_eq!(answer.unwrap_err().code, ErrorCode::NotFound);
            return;
        }
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
        } else if seq <= self.model.lines[user].cleared {
            assert_eq!(answer.unwrap_err().code, ErrorCode::NotFound);
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
            let block = match step {
                Step::Block { block, .. } => block,
                Step::Chunk(chunk) => {
                    self.take_chunk(&serde_json::from_slice(&chunk.json).unwrap());
                    continue;
                }
                _ => continue,
            };
            let text = [b"[", &block.json[1..], b"]"].concat();
            let mut entries: Vec<Entry> = serde_json::from_slice(&text).unwrap();
            // Of an earlier group, whose reactions were told only now.
            entries.retain(|entry| entry.conversation == self.room);
            for client in self.clients.iter_mut().filter(|client| !client.away && client.cursor < fanout.through) {
                entries.iter().for_each(|entry| client.apply(entry));
            }
        }
        self.through = self.through.max(fanout.through);
        for client in self.clients.iter_mut().filter(|client| !client.away) {
            client.cursor = client.cursor.max(fanout.through);
        }
    }

    fn take_chunk(&mut self, chunk: &Chunk) {
        if chunk.conversation != self.room {
            return;
        }
        for client in self.clients.iter_mut().filter(|client| !client.away && client.cleared < chunk.seq) {
            if apply_chunk(&mut client.view, chunk) {
                assert!(chunk.seq <= client.back_at, "{} was there, and missed chunks of {}", client.user, chunk.seq);
                let actor = Actor::User(self.world.user(client.user));
                client.apply(&self.world.engine.entry(&actor, &self.room, chunk.seq).unwrap());
                client.read_ahead.insert(chunk.seq);
                self.chunks.1 += 1;
            } else {
                self.chunks.0 += 1;
            }
            let message = &client.view[&chunk.seq];
            if message.stream == Some(StreamMark::Open) {
                let (has, grown) = (message.text(), &self.model.grown[&chunk.seq]);
                assert!(grown.starts_with(has) && has.len() >= chunk.offset + chunk.text.len(), "{has:?} of {grown:?}");
            }
        }
    }

    /// Has a client that was away read what it missed. It is away until then: what is handed out meanwhile is not for it.
    fn resume(&mut self, at: usize) {
        // Others may have got more meanwhile: the teller of reactions commits by itself.
        self.deliver();
        let engine = &self.world.engine;
        let until = self.through;
        let client = &mut self.clients[at];
        client.back_at = self.model.newest();
        let cursor = Cursor { epoch: engine.store.epoch(), positions: [client.cursor; LANES] };
        let inbox = engine.read_inbox(self.world.user(client.user).no, Some(&cursor), [until; LANES]).unwrap();
        assert!(inbox.resume.complete);
        let text = [b"[", inbox.json.get(1..).unwrap_or_default(), b"]"].concat();
        let entries: Vec<Entry> = serde_json::from_slice(&text).unwrap();
        let of_room = entries.iter().filter(|entry| entry.conversation == self.room);
        of_room.for_each(|entry| client.apply(entry));
        client.cursor = until;
        client.away = false;
    }

    fn check(&mut self) {
        for (at, seq) in self.model.open_streams().into_iter().enumerate() {
            if at % 2 == 0 {
                self.end_with(seq, None);
            }
        }
        self.interrupt();
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
        // A batch's rows can be read a moment before the conversation's head moves, by which `deliver` knows what is to come.
        // The answer to a later proposal says that the batch is whole.
        self.world.users(&USERS);
        self.deliver();
        for at in 0..self.clients.len() {
            if self.clients[at].away {
                self.resume(at);
            }
        }
        for client in &self.clients {
            assert_eq!(client.view, self.model.view_of(client.user), "the view of {}", client.user);
        }
        USERS.iter().for_each(|user| self.check_line(user));
        self.check_receipts();
        let query = HistoryQuery { from_seq: Some(1), limit: Some(200), ..HistoryQuery::default() };
        let page = self.world.engine.history(&Actor::App, &self.room, &query).unwrap();
        assert!(!page.more);
        let mut view = View::new();
        for entry in &page.entries {
            check_answer(&view, entry);
            apply(&mut view, entry);
        }
        assert_eq!(view, self.model.messages, "history");
        let user = self.pick().0;
        let own = self.world.engine.history(&self.actor(user), &self.room, &query).unwrap();
        let mut own_view = View::new();
        for entry in &own.entries {
            check_answer(&own_view, entry);
            apply(&mut own_view, entry);
        }
        assert_eq!(own_view, self.model.view_of(user), "history for {user}");
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
    let (edit_window, recall_window) = ([Duration::MAX; LANES], [Duration::MAX; LANES]);
    let messages = MessagesConfig { edit_window, recall_window, edit_history: seed.is_multiple_of(2) };
    let streams = StreamsConfig { timeout: STREAMS_TIMEOUT, ..StreamsConfig::default() };
    let world = World::new(EngineConfig { shards: 1, messages, streams, ..EngineConfig::default() }, store);
    world.users(&USERS);
    let mut run = Run {
        world,
        random: StdRng::seed_from_u64(seed),
        model: Model::default(),
        clients: vec![],
        room: String::new(),
        through: 0,
        sent: 0,
        receipts_off: BTreeSet::new(),
        chunks: (0, 0),
    };
    for history in 0..histories {
        run.room = format!("room-{history}");
        run.world.conversation(ConversationKind::Group, &run.room, &USERS);
        run.clients.clear();
        run.deliver();
        let cursor = run.through;
        let client = |user| {
            let (view, read_ahead) = Default::default();
            Client { user, view, cursor, away: false, cleared: 0, back_at: 0, read_ahead }
        };
        run.clients = USERS.map(client).into();
        run.model = Model { lines: USERS.map(|user| (user, Line::default())).into(), ..Model::default() };
        for _ in 0..STEPS {
            run.step();
        }
        run.check();
    }
    println!("chunks appended and messages read again for them: {:?}", run.chunks);
    assert!(histories < 10 || run.chunks.0 > 0, "no client had a chunk");
    assert!(histories < 100 || run.chunks.1 > 0, "no client missed a chunk");
}

#[test]
fn views_over_the_store_in_memory_match_the_model() {
    run_histories(150, 1, run, || Arc::new(MemoryStore::default()));
}

#[test]
fn views_over_the_embedded_store_match_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let opened = AtomicUsize::new(0);
    run_histories(40, 1_000, run, || {
        let folder = folder.path().join(opened.fetch_add(1, Ordering::Relaxed).to_string());
        Arc::new(EmbeddedStore::open(EmbeddedOptions::new(folder)).unwrap())
    });
}

#[test]
fn views_over_a_database_match_the_model() {
    let server = PostgresServer::shared();
    run_histories(30, 2_000, run, databases_by_turns(&server));
}
