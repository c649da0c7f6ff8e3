//! Runs the lab's devices against a small MIOP server with injected faults: each fault must fail the run, and behaviour
//! that the protocol allows must not.

use crate::support::{
    http::{Request, read_request, write_answer},
    lab::{self, FAILED, PASSED},
    trials::trial,
};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::{BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};
use tidings_protocol::http::PushRequest;
use tidings_protocol::miop::{self, Bound, ErrorFrame, Frame, Push};

/// The server's behaviour towards one device.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Refuses the first bind with a retry, which is no fault.
    RetryLater,
    /// Redirects the device to the other listener, which is no fault either.
    Redirect,
    Refuse,
    /// Binds the device as another user.
    BindAsOtherUser,
    /// Does not answer heartbeats.
    IgnoreHeartbeats,
    /// Closes the connection at a heartbeat.
    Disconnect,
    LosePush,
    /// Delivers a push again under a second id, which no device can tell from another push.
    DuplicatePush,
    AlterPush,
    /// Counts one acknowledgement less than it got.
    MiscountAcknowledgements,
    /// Reports a difference of presence.
    PresenceDifference,
}

/// The end of the name of the device that gets the fault.
const FAULTY_DEVICE: &str = "-3";

pub(crate) fn trials() -> Vec<Trial> {
    let faults = [
        Fault::None,
        Fault::RetryLater,
        Fault::Redirect,
        Fault::Refuse,
        Fault::BindAsOtherUser,
        Fault::IgnoreHeartbeats,
        Fault::Disconnect,
        Fault::LosePush,
        Fault::DuplicatePush,
        Fault::AlterPush,
        Fault::MiscountAcknowledgements,
        Fault::PresenceDifference,
    ];
    faults.into_iter().map(|fault| trial!(a_fault_fails_the_run(fault))).collect()
}

fn a_fault_fails_the_run(fault: Fault) {
    let expected = if matches!(fault, Fault::None | Fault::RetryLater | Fault::Redirect) { PASSED } else { FAILED };
    // A failing run waits in vain, so its patience is short; a passing one has time on a busy machine.
    let patience = if expected == FAILED { "500ms" } else { "60s" };
    // A device sends its first heartbeat within the interval, and its second one an interval later: the devices rest for as long
    // as they are held, a second at most, so that a fault of heartbeats shows by the end. Other faults need none.
    let (heartbeat_s, hold) = match fault {
        Fault::IgnoreHeartbeats | Fault::Disconnect => (1, "1s"),
        _ if expected == FAILED => (30, "100ms"),
        _ => (30, "2s"),
    };
    let (url, listeners) = serve(fault, heartbeat_s);
    let ended = lab::run(&format!(
        "connect --url {url} --listeners {},{} --api-key k --token-key t --devices 10 --clients 2 --hold {hold} \
         --heartbeat {heartbeat_s}s --push --patience {patience}",
        listeners[0], listeners[1]
    ));
    assert_eq!(ended.code, expected);
}

#[derive(Default)]
struct State {
    /// The connections by user.
    devices: HashMap<String, TcpStream>,
    /// Whether the faulty device's first bind was already refused or redirected.
    first_bind_refused: bool,
    acknowledged: u64,
    targets: u64,
}

struct Server {
    fault: Fault,
    state: Mutex<State>,
    listeners: Vec<SocketAddr>,
    heartbeat_s: u64,
}

/// Serves until the process ends; returns its URL and its listeners.
fn serve(fault: Fault, heartbeat_s: u64) -> (String, Vec<SocketAddr>) {
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
    let url = format!("http://{}", http.local_addr().unwrap());
    let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let server = Arc::new(Server { fault, state: Mutex::default(), listeners: addresses.clone(), heartbeat_s });
    listen(http, server.clone(), |stream, server| {
        request(stream, server);
    });
    for listener in listeners {
        listen(listener, server.clone(), |stream, server| {
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
    let mut is_faulty = false;
    loop {
        let mut part = [0; 1024];
        let count = stream.read(&mut part).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&part[..count]);
        while let Some(head) = miop::take_head(&bytes, 4096).unwrap() {
            let end = head.payload.end;
            match miop::decode(head.kind, &bytes[head.payload]).unwrap() {
                Frame::Bind(bind) => {
                    let user = bind.device_id.to_owned();
                    is_faulty = user.ends_with(FAULTY_DEVICE);
                    let answer = answer_bind(server, &user, is_faulty);
                    // Before the answer: as soon as all devices are bound, pushes are sent to all.
                    server.state.lock().unwrap().devices.insert(user, stream.try_clone().ok()?);
                    stream.write_all(&answer).ok()?;
                }
                Frame::Heartbeat { .. } if is_faulty && server.fault == Fault::Disconnect => {
                    return stream.shutdown(std::net::Shutdown::Both).ok();
                }
                Frame::Heartbeat { .. } if is_faulty && server.fault == Fault::IgnoreHeartbeats => {}
                Frame::Heartbeat { .. } => stream.write_all(&miop::HEARTBEAT).ok()?,
                Frame::Ack { pushes } => server.state.lock().unwrap().acknowledged += pushes.len() as u64,
                other => panic!("{other:?}"),
            }
            bytes.drain(..end);
        }
    }
}

/// The answer to a bind.
fn answer_bind(server: &Server, user: &str, is_faulty: bool) -> Vec<u8> {
    let first = is_faulty && !std::mem::replace(&mut server.state.lock().unwrap().first_bind_refused, is_faulty);
    let refusal = |retry, retry_after_ms| {
        let code = if retry { "queue_full" } else { "unauthorized" };
        Frame::Error(ErrorFrame { code, message: "no", retry, retry_after_ms, fatal: true }).to_bytes()
    };
    let other = server.listeners[1].to_string();
    match server.fault {
        Fault::RetryLater if first => refusal(true, Some(30)),
        Fault::Redirect if first => Frame::Redirect { address: Some(&other), after_ms: 10 }.to_bytes(),
        Fault::Refuse if is_faulty => refusal(false, None),
        fault => {
            let user = if is_faulty && fault == Fault::BindAsOtherUser { "somebody" } else { user };
            let heartbeat_s = server.heartbeat_s;
            let bound = Bound { version: 1, session: "1", user, heartbeat_s, frame_bytes_max: 9, ..Bound::default() };
            Frame::Bound(bound).to_bytes()
        }
    }
}

/// Answers requests until the client closes its connection.
fn request(mut stream: TcpStream, server: &Server) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let Request { path, body, .. } = read_request(&mut reader)?;
        let answer = match path.as_str() {
            "/v1/users" => json!({ "created": 0, "updated": 0 }),
            "/v1/push" => push(&body, server),
            "/v1/admin/presence/compare" => {
                let ghosts = u64::from(server.fault == Fault::PresenceDifference);
                json!({
                    "registered": 10, "held": 10 - ghosts, "ghosts": ghosts, "missing": 0, "wrong_node": 0,
                    "repaired": 0, "differences": [],
                })
            }
            path if path.starts_with("/v1/push/") => {
                let state = server.state.lock().unwrap();
                let miscounted = u64::from(server.fault == Fault::MiscountAcknowledgements);
                json!({ "counts": { "targets": state.targets, "acknowledged": state.acknowledged.saturating_sub(miscounted) } })
            }
            _ => json!({}),
        };
        write_answer(&mut stream, "200 OK", "", &answer.to_string())?;
    }
}

/// Delivers a push to every device, with the fault for one.
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
        let is_faulty = user.ends_with(FAULTY_DEVICE);
        let frames = match server.fault {
            Fault::LosePush if is_faulty => Vec::new(),
            Fault::DuplicatePush if is_faulty => [frame(7, text), frame(8, text)].concat(),
            Fault::AlterPush if is_faulty => frame(7, &text.replace("\"at\":", "\"at\": ")),
            _ => frame(7, text),
        };
        // The faulty device may have disconnected.
        let _ = stream.write_all(&frames);
    }
    json!({ "push": 7, "targets": *targets })
}
