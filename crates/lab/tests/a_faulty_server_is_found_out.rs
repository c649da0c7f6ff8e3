//! The lab against a small server that misbehaves on request: each fault must fail the run, and none
//! must pass it. The same binary is the load client: the lab starts it again as `bench worker`.

#![allow(clippy::unwrap_used)]

use clap::Parser;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
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
            let url = serve(fault);
            // What was lost is waited for in vain; for what only comes late, a busy machine gets its time.
            let patience = if matches!(fault, Fault::Lose | Fault::Forget) { "300ms" } else { "20s" };
            let line = format!(
                "lab bench group --url {url} --api-key k --token-key t --members 3 --senders 2 --rate 400 --duration \
                 250ms --patience {patience} --batch {batch}"
            );
            let Command::Bench(args) = Command::parse_from(line.split_whitespace());
            assert_eq!(tidings_lab::run(args), expected, "{fault:?}, batches of {batch}");
        }
    }
}

#[derive(Default)]
struct State {
    seq: u64,
    receivers: Vec<TcpStream>,
    /// An entry that the first receiver gets after the next.
    held: Option<String>,
}

/// Serves one conversation until the process ends; returns its URL.
fn serve(fault: Fault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let state = Arc::new(Mutex::new(State::default()));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let state = state.clone();
            std::thread::spawn(move || connection(stream.unwrap(), fault, &state));
        }
    });
    url
}

/// Answers requests until the client hangs up.
fn connection(mut stream: TcpStream, fault: Fault, state: &Mutex<State>) -> Option<()> {
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
            "/v1/connect" => return session(stream, reader, state),
            "/v1/users" => json!({ "created": 0, "updated": 0 }),
            "/v1/messages" => send(&serde_json::from_slice(&body).ok()?, fault, state),
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
fn session(mut stream: TcpStream, mut reader: BufReader<TcpStream>, state: &Mutex<State>) -> Option<()> {
    stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").ok()?;
    let mut bytes = Vec::new();
    while take_frame(&mut bytes.clone(), true, 1 << 16).ok()?.is_none() {
        let mut part = [0; 1024];
        let count = reader.read(&mut part).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&part[..count]);
    }
    let bound = json!({
        "t": "bound", "session": "s", "user": "u", "heartbeat_ms": 60_000, "cursor": "1.0.0.0",
        "resume": { "complete": true },
    });
    write_frame(&mut stream, &bound.to_string());
    state.lock().unwrap().receivers.push(stream);
    Some(())
}

/// Commits a message and writes it to everyone, with a fault at the twentieth.
fn send(request: &Value, fault: Fault, state: &Mutex<State>) -> Value {
    let mut state = state.lock().unwrap();
    state.seq += 1;
    let seq = state.seq;
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
    for (number, receiver) in state.receivers.iter_mut().enumerate() {
        let mut entries = vec![entry(&body)];
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
    json!({ "conversation": conversation, "seq": seq, "at": 1 })
}

fn write_frame(stream: &mut TcpStream, payload: &str) {
    let mut bytes = Vec::new();
    put_server_frame(&mut bytes, OpCode::Data(Data::Text), payload.as_bytes());
    // Fails when the client has gone, at the end of a case.
    let _ = stream.write_all(&bytes);
}
