//! The lab's devices against a small MIOP server that misbehaves on request: each fault must fail the run, and
//! what the protocol allows must not. The same binary is the device client: the lab starts it again.

#![allow(clippy::unwrap_used)]

use clap::Parser;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
    sync::{Arc, Mutex},
};
use tidings_protocol::http::PushRequest;
use tidings_protocol::miop::{self, Bound, ErrorFrame, Frame, Push};

#[derive(Parser)]
enum Command {
    Bench(tidings_lab::BenchArgs),
}

/// What the server does wrong, or at least unkindly, to one device.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Has it come back later, which is no fault.
    Busy,
    /// Sends it to the other door, which is no fault either.
    Redirect,
    Refuse,
    /// Binds it as somebody else.
    Mistake,
    /// Leaves its heartbeats unanswered.
    Mute,
    /// Closes its connection for no reason.
    Drop,
    Lose,
    /// Hands it a push under a second id, which no device can tell from another push.
    Double,
    Alter,
    /// Says that it has acknowledged what it has not.
    Forget,
    /// Finds a difference between memory and store.
    Differ,
}

/// The device that is treated so.
const VICTIM: &str = "-3";

fn main() {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        let Command::Bench(args) = Command::parse();
        let code = tidings_lab::run(args);
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
    let (passed, failed) = (ExitCode::SUCCESS, ExitCode::from(1));
    let cases = [
        (Fault::None, passed),
        (Fault::Busy, passed),
        (Fault::Redirect, passed),
        (Fault::Refuse, failed),
        (Fault::Mistake, failed),
        (Fault::Mute, failed),
        (Fault::Drop, failed),
        (Fault::Lose, failed),
        (Fault::Double, failed),
        (Fault::Alter, failed),
        (Fault::Forget, failed),
        (Fault::Differ, failed),
    ];
    let cases = cases.map(|(fault, expected)| (fault, std::thread::spawn(move || check(fault, expected == failed))));
    for (fault, case) in cases {
        assert!(case.join().is_ok(), "{fault:?}");
    }
}

fn check(fault: Fault, fails: bool) {
    // What never comes is waited for in vain; for what only comes late, a busy machine gets its time. So do heartbeats, of
    // which the first come at once.
    let (patience, heartbeat_s) = if fails { ("500ms", 2) } else { ("60s", 30) };
    let (url, doors) = serve(fault, heartbeat_s);
    let line = format!(
        "lab bench connect --url {url} --doors {},{} --api-key k --token-key t --devices 10 --clients 2 --hold 2s \
         --heartbeat {heartbeat_s}s --push --patience {patience}",
        doors[0], doors[1]
    );
    let Command::Bench(args) = Command::parse_from(line.split_whitespace());
    let expected = if fails { ExitCode::from(1) } else { ExitCode::SUCCESS };
    assert_eq!(tidings_lab::run(args), expected, "{fault:?}");
}

#[derive(Default)]
struct State {
    /// By user.
    devices: HashMap<String, TcpStream>,
    /// Those that were treated badly once already.
    done: bool,
    acknowledged: u64,
    targets: u64,
}

struct Server {
    fault: Fault,
    state: Mutex<State>,
    doors: Vec<SocketAddr>,
    heartbeat_s: u64,
}

/// Serves until the process ends; returns its URL and its doors.
fn serve(fault: Fault, heartbeat_s: u64) -> (String, Vec<SocketAddr>) {
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let doors = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
    let url = format!("http://{}", http.local_addr().unwrap());
    let addresses: Vec<SocketAddr> = doors.iter().map(|door| door.local_addr().unwrap()).collect();
    let server = Arc::new(Server { fault, state: Mutex::default(), doors: addresses.clone(), heartbeat_s });
    listen(http, server.clone(), |stream, server| {
        request(stream, server);
    });
    for door in doors {
        listen(door, server.clone(), |stream, server| {
            device(stream, server);
        });
    }
    (url, addresses)
}

fn listen(listener: TcpListener, server: Arc<Server>, each: fn(TcpStream, &Server)) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let server = server.clone();
            std::thread::spawn(move || each(stream.unwrap(), &server));
        }
    });
}

/// One device's connection, until it ends.
fn device(mut stream: TcpStream, server: &Server) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut bytes = Vec::new();
    let mut victim = false;
    loop {
        let mut part = [0; 1024];
        let count = stream.read(&mut part).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&part[..count]);
        while let Some(head) = miop::take_head(&bytes, 4096).unwrap() {
            let end = head.payload.end;
            match miop::decode(head.kind, &bytes[head.payload]).unwrap() {
                Frame::Bind(bind) => {
                    let user = bind.device_id.to_owned();
                    victim = user.ends_with(VICTIM);
                    let welcome = welcome(server, &user, victim);
                    // First: once all are welcome, all are pushed to.
                    server.state.lock().unwrap().devices.insert(user, stream.try_clone().ok()?);
                    stream.write_all(&welcome).ok()?;
                }
                Frame::Heartbeat { .. } if victim && server.fault == Fault::Drop => {
                    return stream.shutdown(std::net::Shutdown::Both).ok();
                }
                Frame::Heartbeat { .. } if victim && server.fault == Fault::Mute => {}
                Frame::Heartbeat { .. } => stream.write_all(&miop::HEARTBEAT).ok()?,
                Frame::Ack { pushes } => server.state.lock().unwrap().acknowledged += pushes.len() as u64,
                other => panic!("{other:?}"),
            }
            bytes.drain(..end);
        }
    }
}

/// The answer to a bind.
fn welcome(server: &Server, user: &str, victim: bool) -> Vec<u8> {
    let first = victim && !std::mem::replace(&mut server.state.lock().unwrap().done, victim);
    let refusal = |retry, retry_after_ms| {
        let code = if retry { "queue_full" } else { "unauthorized" };
        Frame::Error(ErrorFrame { code, message: "no", retry, retry_after_ms, fatal: true }).to_bytes()
    };
    let other = server.doors[1].to_string();
    match server.fault {
        Fault::Busy if first => refusal(true, Some(30)),
        Fault::Redirect if first => Frame::Redirect { address: Some(&other), after_ms: 10 }.to_bytes(),
        Fault::Refuse if victim => refusal(false, None),
        fault => {
            let user = if victim && fault == Fault::Mistake { "somebody" } else { user };
            let heartbeat_s = server.heartbeat_s;
            let bound = Bound { version: 1, session: "1", user, heartbeat_s, frame_bytes_max: 9, ..Bound::default() };
            Frame::Bound(bound).to_bytes()
        }
    }
}

/// Answers requests until the client hangs up.
fn request(mut stream: TcpStream, server: &Server) -> Option<()> {
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
            "/v1/users" => json!({ "created": 0, "updated": 0 }),
            "/v1/push" => push(&body, server),
            "/v1/admin/presence/compare" => {
                let ghosts = u64::from(server.fault == Fault::Differ);
                json!({
                    "registered": 10, "held": 10 - ghosts, "ghosts": ghosts, "missing": 0, "wrong_node": 0,
                    "repaired": 0, "differences": [],
                })
            }
            path if path.starts_with("/v1/push/") => {
                let state = server.state.lock().unwrap();
                let forgotten = u64::from(server.fault == Fault::Forget);
                json!({ "counts": { "targets": state.targets, "acknowledged": state.acknowledged.saturating_sub(forgotten) } })
            }
            _ => json!({}),
        };
        let answer = answer.to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// Hands the push to every device, with a fault for one.
fn push(request: &[u8], server: &Server) -> Value {
    let request: PushRequest = serde_json::from_slice(request).unwrap();
    assert!(request.to.all);
    let text = request.body.get();
    let frame = |id: u64, body: &str| {
        let push =
            Push { push: id, expires_at: u64::MAX, content_type: "bench", body: body.as_bytes(), ..Push::default() };
        Frame::Push(push).to_bytes()
    };
    let mut state = server.state.lock().unwrap();
    let State { devices, targets, .. } = &mut *state;
    *targets = devices.len() as u64;
    for (user, stream) in devices {
        let victim = user.ends_with(VICTIM);
        let frames = match server.fault {
            Fault::Lose if victim => Vec::new(),
            Fault::Double if victim => [frame(7, text), frame(8, text)].concat(),
            Fault::Alter if victim => frame(7, &text.replace("\"at\":", "\"at\": ")),
            _ => frame(7, text),
        };
        // A device that was treated badly may be gone.
        let _ = stream.write_all(&frames);
    }
    json!({ "push": 7, "targets": *targets })
}
