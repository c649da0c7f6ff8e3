//! The lab against a small server that misbehaves on request: each fault must fail the run, and none
//! must pass it. The same binary is the load client: the lab starts it again as `bench worker`.
// Slow: left out by `make test-quick`.

#![allow(clippy::unwrap_used)]

use clap::Parser;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::ExitCode,
    sync::{Arc, Mutex},
};
use tidings_protocol::ws::{Data, OpCode, put_server_frame, take_frame};

#[derive(Parser)]
enum Command {
    Bench(tidings_lab::BenchArgs),
}

/// What the server does wrong, to one receiver, once.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Lose,
    Double,
    Swap,
    Alter,
    /// Acknowledges a message that it then keeps from everybody.
    Forget,
    /// Of two nodes: one ends all its connections, and every session goes on where it was.
    Break,
    /// The same, and who comes back gets only what is new.
    BreakAndSkip,
    /// The same, and who comes back gets again what it has.
    BreakAndRepeat,
    /// One of two nodes tells two messages in another order than the other.
    Fork,
    /// A node commits again what was sent again.
    CommitTwice,
}

impl Fault {
    /// A node ends its connections, and a message that it committed has no answer.
    fn breaks(self) -> bool {
        matches!(self, Fault::Break | Fault::BreakAndSkip | Fault::BreakAndRepeat | Fault::CommitTwice)
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let Command::Bench(args) = Command::parse();
        let code = tidings_lab::run(args);
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
    for (fault, expected) in [
        (Fault::None, ExitCode::SUCCESS),
        (Fault::Lose, ExitCode::from(1)),
        (Fault::Double, ExitCode::from(1)),
        (Fault::Swap, ExitCode::from(1)),
        (Fault::Alter, ExitCode::from(1)),
        (Fault::Forget, ExitCode::from(1)),
    ] {
        for batch in ["1", "4"] {
            let url = serve(fault)[0].clone();
            // A message that was lost or altered is waited for in vain; one that only comes late gets its time on a busy machine.
            let patience = match fault {
                Fault::Lose | Fault::Forget => "300ms",
                Fault::Alter => "2s",
                _ => "60s",
            };
            let line = format!(
                "lab bench group --url {url} --api-key k --token-key t --members 3 --senders 2 --rate 400 --duration \
                 250ms --patience {patience} --batch {batch}"
            );
            let Command::Bench(args) = Command::parse_from(line.split_whitespace());
            assert_eq!(ending(tidings_lab::run(args)), expected, "{fault:?}, batches of {batch}");
        }
    }
    for (fault, expected) in [
        (Fault::None, ExitCode::SUCCESS),
        (Fault::Break, ExitCode::SUCCESS),
        (Fault::BreakAndSkip, ExitCode::from(1)),
        (Fault::BreakAndRepeat, ExitCode::from(1)),
        (Fault::Fork, ExitCode::from(1)),
        (Fault::CommitTwice, ExitCode::from(1)),
    ] {
        let urls = serve(fault).join(",");
        let patience = if expected == ExitCode::SUCCESS { "60s" } else { "2s" };
        let line = format!(
            "lab bench group --url {urls} --api-key k --token-key t --members 6 --senders 2 --rate 100 --duration 1s \
             --patience {patience}"
        );
        let Command::Bench(args) = Command::parse_from(line.split_whitespace());
        assert_eq!(ending(tidings_lab::run(args)), expected, "two nodes, {fault:?}");
    }
}

/// That the lab could not keep its schedule on a busy machine says that all counts balance.
fn ending(code: ExitCode) -> ExitCode {
    const FELL_BEHIND: u8 = 3;
    if code == ExitCode::from(FELL_BEHIND) { ExitCode::SUCCESS } else { code }
}

#[derive(Default)]
struct State {
    seq: u64,
    /// With the node that each is on.
    receivers: Vec<(usize, TcpStream)>,
    /// All that was committed, and under which id.
    entries: Vec<String>,
    ids: HashMap<String, u64>,
    /// An entry that the first receiver gets after the next.
    held: Option<String>,
}

/// Serves one conversation on two nodes until the process ends; returns their URLs.
fn serve(fault: Fault) -> [String; 2] {
    let state = Arc::new(Mutex::new(State::default()));
    [0, 1].map(|node| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = state.clone();
                std::thread::spawn(move || connection(stream.unwrap(), node, fault, &state));
            }
        });
        url
    })
}

/// Answers requests until the client hangs up.
fn connection(mut stream: TcpStream, node: usize, fault: Fault, state: &Mutex<State>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            if let Some(value) = header.strip_prefix("Content-Length: ") {
                length = value.trim().parse().ok()?;
            }
            if header == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let answer = match path.as_str() {
            "/v1/connect" => return session(stream, reader, node, fault, state),
            "/v1/users" => json!({ "created": 0, "updated": 0 }),
            // Without an answer the connection ends, too.
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
        let answer = answer.to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// Upgrades, answers the bind, and leaves the writing to [`send`].
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
    // Locked until it is among the receivers: what is sent as soon as it is bound comes to it, too.
    let mut state = state.lock().unwrap();
    write_frame(&mut stream, &bound.to_string());
    if let Some(cursor) = cursor {
        let from = match fault {
            Fault::BreakAndSkip => state.entries.len(),
            Fault::BreakAndRepeat => cursor.saturating_sub(1),
            _ => cursor,
        };
        let missed = &state.entries[from.min(state.entries.len())..];
        if !missed.is_empty() {
            let (last, missed) = (state.entries.len(), missed.join(","));
            write_frame(&mut stream, &format!(r#"{{"t":"messages","cursor":"1.0.{last}.0","entries":[{missed}]}}"#));
        }
    }
    state.receivers.push((node, stream));
    Some(())
}

/// Commits a message and writes it to everyone, with a fault at the twentieth.
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
    let told = entry(&body);
    let before = state.entries.last().cloned().unwrap_or_default();
    state.entries.push(told.clone());
    for (number, (node, receiver)) in state.receivers.iter_mut().enumerate() {
        let mut entries = vec![told.clone()];
        if fault == Fault::Fork && *node == 1 && (faulty || seq == 21) {
            let swapped = [told.replace(r#""seq":21"#, r#""seq":20"#), before.replace(r#""seq":20"#, r#""seq":21"#)];
            entries = if faulty { Vec::new() } else { swapped.to_vec() };
        }
        if faulty {
            match (fault, number) {
                (Fault::Lose | Fault::Swap, 0) | (Fault::Forget, _) => entries.clear(),
                (Fault::Double, 0) => entries.push(entry(&body)),
                (Fault::Alter, 0) => entries = vec![entry(&body.replace("..", ".,"))],
                _ => {}
            }
        }
        if number == 0 {
            entries.extend(held.clone());
        }
        if !entries.is_empty() {
            let frame = format!(r#"{{"t":"messages","cursor":"1.0.{seq}.0","entries":[{}]}}"#, entries.join(","));
            write_frame(receiver, &frame);
        }
    }
    if faulty && fault == Fault::Swap {
        state.held = Some(entry(&body));
    }
    if faulty && fault.breaks() {
        for (_, stream) in state.receivers.extract_if(.., |(node, _)| *node == 0) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        return Value::Null;
    }
    json!({ "conversation": conversation, "seq": seq, "at": 1 })
}

fn write_frame(stream: &mut TcpStream, payload: &str) {
    let mut bytes = Vec::new();
    put_server_frame(&mut bytes, OpCode::Data(Data::Text), payload.as_bytes());
    // Fails when the client has gone, at the end of a case.
    let _ = stream.write_all(&bytes);
}
