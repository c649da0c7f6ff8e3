//! Messages that grow, over the wire: live members get the chunks in order, whoever comes later the rest, and nobody waits
//! for a slow reader.

use crate::support;
use crate::support::*;
use std::{collections::HashMap, sync::Arc};
use tidings_client::session::Session;
use tidings_gateway::SessionConfig;
use tidings_protocol::{
    entry::{Entry, StreamMark},
    error::ErrorCode,
    frames::{ClientFrame, Send, ServerFrame},
    http::*,
};
use tidings_testkit::{LocalBus, MemoryStore};

/// What a client has of the messages of `g` that grew, by the rules of docs/websocket.md.
#[derive(Default)]
struct Reader {
    texts: HashMap<u64, String>,
    marks: HashMap<u64, Option<StreamMark>>,
    /// `stream` frames that came.
    chunks: usize,
    /// Messages of which a chunk is missing: a client reads them again.
    gaps: Vec<u64>,
}

fn text_in(entry: &Entry) -> String {
    let body: serde_json::Value = serde_json::from_str(entry.body.get()).unwrap();
    body["text"].as_str().unwrap_or_default().to_owned()
}

impl Reader {
    fn apply(&mut self, frame: ServerFrame) {
        match frame {
            ServerFrame::Messages { entries, .. } => entries.iter().for_each(|entry| self.entry(entry)),
            ServerFrame::History { page, .. } => page.entries.iter().for_each(|entry| self.entry(entry)),
            ServerFrame::Stream { seq, offset, text, .. } => {
                self.chunks += 1;
                let Some(have) = self.texts.get_mut(&seq) else { return self.gaps.push(seq) };
                match (have.len() as u64).checked_sub(offset) {
                    Some(known) => have.push_str(text.get(known as usize..).unwrap_or_default()),
                    None => self.gaps.push(seq),
                }
            }
            _ => {}
        }
    }

    fn entry(&mut self, entry: &Entry) {
        let seq = entry.target.unwrap_or(entry.seq);
        self.texts.insert(seq, text_in(entry));
        self.marks.insert(seq, entry.stream);
    }

    fn text(&self, seq: u64) -> &str {
        self.texts.get(&seq).map_or("", String::as_str)
    }

    /// Reads until the message has this text.
    #[track_caller]
    fn until_text(&mut self, session: &mut Session, seq: u64, text: &str) {
        while self.text(seq) != text {
            assert!(self.gaps.is_empty(), "a gap before {text:?}, with {:?}", self.text(seq));
            let frame = next(session);
            self.apply(frame);
        }
    }

    /// Reads until the message has ended, and answers how.
    #[track_caller]
    fn until_ended(&mut self, session: &mut Session, seq: u64) -> Option<StreamMark> {
        while self.marks.get(&seq).is_none_or(|mark| *mark == Some(StreamMark::Open)) {
            let frame = next(session);
            self.apply(frame);
        }
        self.marks[&seq]
    }
}

fn growing(text: &str) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(&serde_json::json!({ "text": text })).unwrap()
}

fn begin(server: &Server, from: &str) -> u64 {
    let request = SendRequest { body: growing(""), ..message_to(from, "g", "") };
    let receipt: SendReceipt = server.app().post("/v1/streams", &request).unwrap();
    receipt.seq
}

fn append(server: &Server, seq: u64, offset: u64, text: &str) -> u64 {
    let chunk = AppendChunk { offset, text: text.into() };
    let receipt: ChunkReceipt = server.app().post(&format!("/v1/streams/g/{seq}"), &chunk).unwrap();
    receipt.offset
}

fn end(server: &Server, seq: u64, body: Option<&str>) -> ChangeReceipt {
    let body = body.map(growing);
    server.app().post(&format!("/v1/streams/g/{seq}/end"), &EndStream { body }).unwrap()
}

/// Appends words, each with a space; answers the text.
fn say_words(server: &Server, seq: u64, before: &str, count: usize) -> String {
    let mut text = before.to_owned();
    for n in 0..count {
        let word = format!("wörd-{n} ");
        assert_eq!(append(server, seq, text.len() as u64, &word), (text.len() + word.len()) as u64);
        text.push_str(&word);
    }
    text
}

fn with_group() -> Server {
    let server = Server::start();
    server.users(&["ada", "ben", "cleo", "dora"]);
    server.group("g", &["ada", "ben", "cleo", "dora"]);
    server
}

#[test]
fn members_get_the_chunks_and_those_who_come_later_the_rest() {
    let server = with_group();
    let mut ben = server.open("ben", "phone");
    let cleo = server.open("cleo", "phone");
    let dora = server.open("dora", "phone");
    let (cursor, away) = (cleo.cursor.clone().unwrap(), dora.cursor.clone().unwrap());
    drop((cleo, dora));
    let seq = begin(&server, "ada");
    let half = say_words(&server, seq, "", 20);
    let mut early = Reader::default();
    early.until_text(&mut ben, seq, &half);
    assert_eq!(early.marks[&seq], Some(StreamMark::Open));
    // In the middle: by resume, and by a session without a cursor that reads history.
    let mut cleo = server.resume("cleo", "phone", &cursor);
    let mut laptop = server.open("cleo", "laptop");
    let query = HistoryQuery::default();
    laptop.write(&ClientFrame::History { reference: Some(1), conversation: "g".into(), query }).unwrap();
    let (mut resumed, mut read) = (Reader::default(), Reader::default());
    read.until_text(&mut laptop, seq, &half);
    let whole = say_words(&server, seq, &half, 20);
    for (reader, session) in [(&mut early, &mut ben), (&mut resumed, &mut cleo), (&mut read, &mut laptop)] {
        reader.until_text(session, seq, &whole);
    }
    let receipt = end(&server, seq, Some("whole"));
    assert_eq!((receipt.seq, receipt.version), (seq + 1, 2));
    for (reader, session) in [(&mut early, &mut ben), (&mut resumed, &mut cleo), (&mut read, &mut laptop)] {
        assert_eq!(reader.until_ended(session, seq), None);
        assert_eq!((reader.text(seq), &reader.gaps[..]), ("whole", &[][..]));
    }
    // Whoever was away for all of it gets the whole message, and its end.
    let mut dora = server.resume("dora", "phone", &away);
    let missed = entries(&mut dora, 2);
    assert_eq!((text_in(&missed[0]), missed[0].version, missed[0].stream), ("whole".into(), Some(2), None));
    assert_eq!((missed[1].target, text_in(&missed[1])), (Some(seq), "whole".into()));
}

#[test]
fn a_session_begins_appends_and_ends_and_others_may_not() {
    let server = with_group();
    let mut ada = server.open("ada", "phone");
    let mut ben = server.open("ben", "phone");
    let message = NewMessage { body: growing("so "), client_msg_id: Some("1".into()), ..message("") };
    let request = Send { reference: Some(1), conversation: Some("g".into()), to: None, message };
    ada.write(&ClientFrame::StreamBegin(request.clone())).unwrap();
    let (sent, _) = sent_and_entry(&mut ada);
    let seq = sent.receipt.seq;
    let chunk = |offset, text: &str, reference| ClientFrame::StreamAppend {
        reference: Some(reference),
        conversation: "g".into(),
        seq,
        offset,
        text: text.into(),
    };
    let appended = |ada: &mut Session, offset, text: &str, reference| {
        ada.write(&chunk(offset, text, reference)).unwrap();
        loop {
            match next(ada) {
                ServerFrame::Appended { reference: of, offset } if of == reference => return Ok(offset),
                ServerFrame::Error { reference: of, code, .. } if of == Some(reference) => return Err(code),
                ServerFrame::Stream { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(appended(&mut ada, 3, "far", 2), Ok(6));
    assert_eq!(appended(&mut ada, 3, "far", 3), Ok(6), "a retry");
    assert_eq!(appended(&mut ada, 9, "x", 4), Err(ErrorCode::Conflict), "a gap");
    let mut reader = Reader::default();
    reader.until_text(&mut ben, seq, "so far");
    assert_eq!(appended(&mut ben, 6, "x", 5), Err(ErrorCode::Forbidden));
    let end =
        |reference| ClientFrame::StreamEnd { reference: Some(reference), conversation: "g".into(), seq, body: None };
    ben.write(&end(6)).unwrap();
    assert_eq!(error(&mut ben).1, ErrorCode::Forbidden);
    ada.write(&end(7)).unwrap();
    let (ended, _) = sent_and_entry(&mut ada);
    assert_eq!((ended.reference, ended.receipt.seq), (Some(7), seq + 1));
    assert_eq!(reader.until_ended(&mut ben, seq), None);
    assert_eq!(reader.text(seq), "so far");
    assert_eq!(appended(&mut ada, 6, "late", 8), Err(ErrorCode::StreamEnded));
    ada.write(&end(9)).unwrap();
    assert!(support::sent(&mut ada).receipt.duplicate, "a repeated end answers with the first result");
    ada.write(&ClientFrame::StreamBegin(request)).unwrap();
    let again = support::sent(&mut ada).receipt;
    assert_eq!((again.seq, again.duplicate), (seq, true));
}

#[test]
fn an_answer_to_another_message_grows_as_any_message_does() {
    let server = with_group();
    server.say("ben", "g", "how old is the house?");
    let mut ben = server.open("ben", "phone");
    let mut reader = Reader::default();
    let request = SendRequest { body: growing(""), reply_to: Some(1), ..message_to("ada", "g", "") };
    let begun: SendReceipt = server.app().post("/v1/streams", &request).unwrap();
    let whole = say_words(&server, begun.seq, "", 5);
    reader.until_text(&mut ben, begun.seq, &whole);
    assert_eq!(end(&server, begun.seq, None).version, 2);
    assert_eq!((reader.until_ended(&mut ben, begun.seq), reader.text(begun.seq)), (None, &*whole));
    // From a session, and ended with it.
    let mut cleo = server.open("cleo", "phone");
    let message = NewMessage { body: growing("half"), reply_to: Some(1), ..message("") };
    let begin = Send { reference: Some(1), conversation: Some("g".into()), to: None, message };
    cleo.write(&ClientFrame::StreamBegin(begin)).unwrap();
    let seq = sent(&mut cleo).receipt.seq;
    let text = " of it".to_owned();
    let chunk = ClientFrame::StreamAppend { reference: Some(2), conversation: "g".into(), seq, offset: 4, text };
    cleo.write(&chunk).unwrap();
    reader.until_text(&mut ben, seq, "half of it");
    drop(cleo);
    assert_eq!(reader.until_ended(&mut ben, seq), Some(StreamMark::Interrupted));
    let page: EntryPage = server.app().get("/v1/conversations/g/messages/1/replies").unwrap();
    let answers: Vec<_> = page.entries.iter().map(|answer| (answer.seq, text_in(answer))).collect();
    assert_eq!(answers, [(begun.seq, whole), (seq, "half of it".into())]);
}

#[test]
fn a_message_ends_with_the_session_that_began_it() {
    let server = with_group();
    let mut ada = server.open("ada", "phone");
    let mut ben = server.open("ben", "phone");
    let message = NewMessage { body: growing("half"), ..message("") };
    let begin = Send { reference: Some(1), conversation: Some("g".into()), to: None, message };
    ada.write(&ClientFrame::StreamBegin(begin)).unwrap();
    let seq = sent(&mut ada).receipt.seq;
    drop(ada);
    let mut reader = Reader::default();
    assert_eq!(reader.until_ended(&mut ben, seq), Some(StreamMark::Interrupted));
    assert_eq!(reader.text(seq), "half");
}

#[test]
fn a_slow_reader_gets_chunks_joined_and_holds_nobody_up() {
    let config = SessionConfig { session_buffer_bytes: 64 * 1024 * 1024, ..session_config() };
    let server = Server::with(config, Arc::new(MemoryStore::default()));
    server.users(&["ada", "ben", "cleo"]);
    server.group("g", &["ada", "ben", "cleo"]);
    let mut slow = server.open("ben", "phone");
    let mut quick = server.open("cleo", "phone");
    // More than the kernel's buffers hold: from here on the socket of the slow session takes nothing.
    let (large, count) = ("x".repeat(60_000), 400);
    for _ in 0..count {
        server.say("ada", "g", &large);
        entries(&mut quick, 1);
    }
    let seq = begin(&server, "ada");
    let text = say_words(&server, seq, "", 300);
    let mut reader = Reader::default();
    reader.until_text(&mut quick, seq, &text);
    let mut late = Reader::default();
    late.until_text(&mut slow, seq, &text);
    assert_eq!(late.gaps, [0; 0]);
    assert!(late.chunks <= 3, "{} chunks for one that was not reading", late.chunks);
    let more = say_words(&server, seq, &text, 10);
    late.until_text(&mut slow, seq, &more);
    end(&server, seq, None);
    assert_eq!((late.until_ended(&mut slow, seq), late.text(seq)), (None, &*more));
}

/// Two nodes that know each other, with the users and the group.
fn two_nodes() -> (LocalBus, Server, Server) {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let [a, b] = ["a", "b"].map(|name| Server::node(name, &store, &bus));
    until("the nodes know each other", || {
        [&a, &b].iter().all(|server| {
            let nodes = server.engine.cluster.as_ref().unwrap().nodes.all();
            nodes.len() == 2 && nodes.iter().all(|node| !node.address.is_empty())
        })
    });
    a.users(&["ada", "ben", "cleo"]);
    a.group("g", &["ada", "ben", "cleo"]);
    (bus, a, b)
}

#[test]
fn chunks_reach_other_nodes_which_pass_on_appends() {
    let (_bus, a, b) = two_nodes();
    let mut ben = b.open("ben", "phone");
    let seq = begin(&a, "ada");
    let half = say_words(&a, seq, "", 20);
    let mut reader = Reader::default();
    reader.until_text(&mut ben, seq, &half);
    // Through the node that does not take the chunks.
    let whole = say_words(&b, seq, &half, 20);
    reader.until_text(&mut ben, seq, &whole);
    let page: HistoryPage = b.app().get("/v1/conversations/g/messages?limit=1").unwrap();
    assert_eq!(text_in(&page.entries[0]), whole, "every node reads the newest text");
    assert_eq!(end(&b, seq, None).version, 2);
    assert_eq!((reader.until_ended(&mut ben, seq), reader.text(seq)), (None, &*whole));
    assert!(end(&b, seq, None).duplicate);
    // A session's own message is at the session's node.
    let mut cleo = a.open("cleo", "phone");
    let message = NewMessage { body: growing(""), ..message("") };
    let send = Send { reference: Some(1), conversation: Some("g".into()), to: None, message };
    cleo.write(&ClientFrame::StreamBegin(send)).unwrap();
    let own = sent(&mut cleo).receipt.seq;
    reader.until_text(&mut ben, own, "");
    let mut elsewhere = b.open("cleo", "laptop");
    let (conversation, text) = ("g".into(), "x".into());
    elsewhere
        .write(&ClientFrame::StreamAppend { reference: Some(2), conversation, seq: own, offset: 0, text })
        .unwrap();
    assert_eq!(error(&mut elsewhere).1, ErrorCode::StreamElsewhere);
}

#[test]
fn what_the_bus_loses_is_asked_for() {
    let (bus, a, b) = two_nodes();
    let mut ben = b.open("ben", "phone");
    let seq = begin(&a, "ada");
    let first = say_words(&a, seq, "", 5);
    let mut reader = Reader::default();
    reader.until_text(&mut ben, seq, &first);
    bus.set_down(true);
    let lost = say_words(&a, seq, &first, 5);
    until("the lost chunks are on their way to nobody", || {
        a.engine.stream_chunk_from(tidings_domain::model::ConversationNo(1), seq, lost.len() as u64).is_none()
    });
    a.engine.settle_streams();
    bus.set_down(false);
    let whole = say_words(&a, seq, &lost, 1);
    reader.until_text(&mut ben, seq, &whole);
    assert_eq!(reader.gaps, [0; 0]);
}

#[test]
fn a_node_that_is_gone_leaves_no_message_growing() {
    let (store, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let [a, b] = ["a", "b"].map(|name| Server::node(name, &store, &bus));
    until("the nodes know each other", || {
        [&a, &b].iter().all(|server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == 2)
    });
    a.users(&["ada", "ben"]);
    a.group("g", &["ada", "ben"]);
    let mut ben = b.open("ben", "phone");
    let seq = begin(&a, "ada");
    let text = say_words(&a, seq, "", 3);
    let mut reader = Reader::default();
    reader.until_text(&mut ben, seq, &text);
    // In order: it ends what it took, before it leaves.
    drop(a);
    assert_eq!(reader.until_ended(&mut ben, seq), Some(StreamMark::Interrupted));
    assert_eq!(reader.text(seq), text);
}
