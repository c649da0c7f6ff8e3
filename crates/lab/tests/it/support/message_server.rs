//! A small server of one conversation on two nodes, with injected faults, that speaks as much of the protocol as the lab needs.

use super::http::{Request, listen, read_request, write_answer, write_frame};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};
use tidings_protocol::ws::take_frame;

/// The server's fault, towards one receiver, once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    LoseEntry,
    DuplicateEntry,
    ReorderEntries,
    AlterEntry,
    /// Acknowledges a message that it delivers to no receiver.
    WithholdFromAll,
    /// One of two nodes closes all its connections, and every session resumes from its cursor, which is no fault.
    Disconnect,
    /// The same, but resumed sessions get only new entries.
    ResumeSkipsEntries,
    /// The same, but resumed sessions get an entry again.
    ResumeRepeatsEntries,
    /// The two nodes deliver two messages in different orders.
    DifferentOrders,
    /// One receiver gets two messages in another order than all others.
    DifferentOrderForOne,
    /// A node commits a repeated send again.
    CommitTwice,
    /// Nothing is answered or delivered for [`STALL`], from the message with this number on.
    Stall(u64),
}

/// How long the server of [`Fault::Stall`] does nothing: longer than a busy machine keeps a process waiting.
pub(crate) const STALL: Duration = Duration::from_millis(500);

impl Fault {
    /// Whether a node closes its connections without the answer to a message that it committed.
    fn disconnects(self) -> bool {
        matches!(self, Fault::Disconnect | Fault::ResumeSkipsEntries | Fault::ResumeRepeatsEntries | Fault::CommitTwice)
    }
}

#[derive(Default)]
struct State {
    seq: u64,
    receivers: Vec<Receiver>,
    /// All committed entries.
    entries: Vec<String>,
    /// The `seq` by `client_msg_id`.
    ids: HashMap<String, u64>,
    /// An entry that the first receiver gets after the next one.
    held: Option<String>,
    tell: Option<Box<dyn Fn(u64) + Send>>,
}

/// A receiver's connection.
struct Receiver {
    node: usize,
    peer: SocketAddr,
    stream: TcpStream,
}

/// Serves one conversation on two nodes until the process ends; returns their URLs.
pub(crate) fn serve(fault: Fault) -> [String; 2] {
    serve_and_tell(fault, |_| {})
}

/// The same, and tells of each message by its number before it is committed.
pub(crate) fn serve_and_tell(fault: Fault, tell: impl Fn(u64) + Send + 'static) -> [String; 2] {
    let state = Arc::new(Mutex::new(State { tell: Some(Box::new(tell)), ..State::default() }));
    [0, 1].map(|node| {
        let state = state.clone();
        format!("http://{}", listen(move |stream| connection(stream, node, fault, &state)))
    })
}

/// Answers requests until the client closes its connection.
fn connection(mut stream: TcpStream, node: usize, fault: Fault, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let Request { path, body, .. } = read_request(&mut reader)?;
        let answer = match path.as_str() {
            "/v1/connect" => return session(stream, reader, node, fault, state),
            "/v1/users" => json!({ "created": 0, "updated": 0 }),
            // Without an answer the connection is closed.
            "/v1/messages" => {
                Some(send(&serde_json::from_slice(&body).ok()?, fault, state)).filter(|a| !a.is_null())?
            }
            "/v1/messages/batch" => {
                let request: Value = serde_json::from_slice(&body).ok()?;
                let results = request["messages"].as_array()?.iter().map(|one| send(one, fault, state));
                json!({ "results": results.collect::<Vec<_>>() })
            }
            path if path.ends_with("/members") => {
                json!({ "added": 0, "removed": 0, "changed": 0, "member_count": 0 })
            }
            _ => json!({ "id": "g", "kind": "group", "created_at": 0, "member_count": 0, "last_seq": 0 }),
        };
        write_answer(&mut stream, "200 OK", "", &answer.to_string())?;
    }
}

/// Upgrades, answers the bind, and leaves the writing to [`send`], until the client closes its connection.
fn session(
    mut stream: TcpStream,
    mut reader: BufReader<TcpStream>,
    node: usize,
    fault: Fault,
    state: &Mutex<State>,
) -> Option<()> {
    stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").ok()?;
    let mut bytes = Vec::new();
    let bind = loop {
        let mut copy = bytes.clone();
        if let Some(frame) = take_frame(&mut copy, true, 1 << 16).ok()? {
            break copy[frame.payload].to_vec();
        }
        let mut part = [0; 1024];
        let count = reader.read(&mut part).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&part[..count]);
    };
    let bind: Value = serde_json::from_slice(&bind).ok()?;
    let cursor = bind["cursor"].as_str().and_then(|cursor| cursor.split('.').nth(2)?.parse::<usize>().ok());
    let bound = json!({
        "t": "bound", "session": "s", "user": "u", "heartbeat_ms": 60_000, "cursor": "1.0.0.0",
        "resume": { "complete": true },
    });
    let peer = stream.peer_addr().ok()?;
    // Locked until the session is among the receivers, so that it gets messages that are sent as soon as it is bound.
    let mut locked = state.lock().unwrap();
    write_frame(&mut stream, &bound.to_string());
    if let Some(cursor) = cursor {
        let from = match fault {
            Fault::ResumeSkipsEntries => locked.entries.len(),
            Fault::ResumeRepeatsEntries => cursor.saturating_sub(1),
            _ => cursor,
        };
        let missed = &locked.entries[from.min(locked.entries.len())..];
        if !missed.is_empty() {
            let (last, missed) = (locked.entries.len(), missed.join(","));
            write_frame(&mut stream, &format!(r#"{{"t":"messages","cursor":"1.0.{last}.0","entries":[{missed}]}}"#));
        }
    }
    locked.receivers.push(Receiver { node, peer, stream });
    drop(locked);
    while reader.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {}
    // The process serves many runs: the connections of those that are over would use up its descriptors.
    state.lock().unwrap().receivers.retain(|receiver| (receiver.node, receiver.peer) != (node, peer));
    Some(())
}

/// Commits a message and writes it to all receivers, with the fault at the twentieth.
fn send(request: &Value, fault: Fault, state: &Mutex<State>) -> Value {
    let mut state = state.lock().unwrap();
    let id = request["client_msg_id"].to_string();
    if let Some(seq) = state.ids.get(&id)
        && fault != Fault::CommitTwice
    {
        return json!({ "conversation": request["conversation"], "seq": seq, "at": 1 });
    }
    state.seq += 1;
    let seq = state.seq;
    if let Some(tell) = &state.tell {
        tell(seq);
    }
    state.ids.insert(id, seq);
    let conversation = request["conversation"].as_str().unwrap();
    let entry = |body: &str| {
        format!(
            r#"{{"conversation":"{conversation}","seq":{seq},"kind":"message","at":1,"from":{},"client_msg_id":{},"type":"text","body":{body}}}"#,
            request["from"], request["client_msg_id"]
        )
    };
    let body = request["body"].to_string();
    let held = state.held.take();
    let faulty = seq == 20;
    if fault == Fault::Stall(seq) {
        // The fault itself. The lock is held, so that all that comes meanwhile waits, too.
        std::thread::sleep(STALL);
    }
    let delivered_entry = entry(&body);
    let before = state.entries.last().cloned().unwrap_or_default();
    state.entries.push(delivered_entry.clone());
    for (number, Receiver { node, stream, .. }) in state.receivers.iter_mut().enumerate() {
        let mut entries = vec![delivered_entry.clone()];
        let is_swapped = match fault {
            Fault::DifferentOrders => *node == 1,
            Fault::DifferentOrderForOne => number == 0,
            _ => false,
        };
        if is_swapped && (faulty || seq == 21) {
            let swapped =
                [delivered_entry.replace(r#""seq":21"#, r#""seq":20"#), before.replace(r#""seq":20"#, r#""seq":21"#)];
            entries = if faulty { Vec::new() } else { swapped.to_vec() };
        }
        if faulty {
            match (fault, number) {
                (Fault::LoseEntry | Fault::ReorderEntries, 0) | (Fault::WithholdFromAll, _) => entries.clear(),
                (Fault::DuplicateEntry, 0) => entries.push(entry(&body)),
                (Fault::AlterEntry, 0) => entries = vec![entry(&body.replace("..", ".,"))],
                _ => {}
            }
        }
        if number == 0 {
            entries.extend(held.clone());
        }
        if !entries.is_empty() {
            let frame = format!(r#"{{"t":"messages","cursor":"1.0.{seq}.0","entries":[{}]}}"#, entries.join(","));
            write_frame(stream, &frame);
        }
    }
    if faulty && fault == Fault::ReorderEntries {
        state.held = Some(entry(&body));
    }
    if faulty && fault.disconnects() {
        for receiver in state.receivers.extract_if(.., |receiver| receiver.node == 0) {
            let _ = receiver.stream.shutdown(Shutdown::Both);
        }
        return Value::Null;
    }
    json!({ "conversation": conversation, "seq": seq, "at": 1 })
}
