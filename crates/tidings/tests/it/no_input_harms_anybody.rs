//! No value of any field of any operation ends the server, breaks it, or leaves a request without its answer.
//!
//! The inputs come from the documents that describe the operations, so that a new operation is among them by itself. A text
//! stands in for each field in turn: around the limits of ids, around the longest key that the embedded store can look up
//! (65,535 bytes), and near the longest frame. So does JSON of another kind: numbers that no field takes, text that is not
//! Unicode, and JSON nested around the deepest that is stored and far deeper.
//!
//! `FUZZ_ROUNDS=20 FUZZ_SEED=7` draws 20 times as many values for the fields of which not all are tried, with another seed.

use crate::described_inputs::{
    HttpInput, Input,
    fillings::{ENVELOPE_BYTES, Filled, Fillings, LENGTHS, Share},
    frame_inputs, http_inputs,
};
use crate::postgres::PostgresServer;
use crate::support::*;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};
use tidings_client::{
    device::{DeviceFrame, DeviceSession},
    session::Session,
    token::sign,
};
use tidings_protocol::{
    frames::ServerFrame,
    limits::FRAME_BYTES_MAX,
    miop::{Bind, Frame},
};

const PATIENCE: Duration = Duration::from_secs(300);
/// What an answer may have of the caller's own text.
const ERROR_BYTES_MAX: usize = 4 * 1024;
/// A head of a request may have half as much.
const LONGEST_IN_A_HEAD: usize = 40 * 1024;

/// What an answer never says of a client's request.
const DEFECTS: [&str; 2] = ["internal", STALLED];
/// What it says while a database is slow, as on a busy machine: then the same request is answered a little later.
const STALLED: &str = "store_unavailable";

/// All texts go into the operation's own fields, which are this deep, and the lengths again beside other fields; parts of bodies are many.
fn share_of(input: &Input, depth: usize, before: &str) -> Share {
    match input.depth() > depth {
        true => Share::Random,
        false if input.place == before => Share::Lengths,
        false => Share::All,
    }
}

/// The beginning of a long text, for a failure that a person reads.
fn shortened(text: &str) -> String {
    text.chars().take(300).collect()
}

/// A session, over whichever protocol.
trait Asked {
    fn say(&mut self, frame: &str) -> Result<(), String>;
    /// The server's next frame.
    fn next_frame(&mut self) -> Result<Value, String>;

    /// Reads until a frame has this `ref`.
    fn answer_to(&mut self, reference: u64) -> Result<Value, String> {
        loop {
            let frame = self.next_frame()?;
            let results = frame["results"].as_array().into_iter().flatten();
            if frame["ref"] == reference || results.into_iter().any(|result| result["ref"] == reference) {
                return Ok(frame);
            }
        }
    }
}

impl Asked for Session {
    fn say(&mut self, frame: &str) -> Result<(), String> {
        self.write_text(frame.as_bytes()).map_err(|error| error.to_string())
    }

    fn next_frame(&mut self) -> Result<Value, String> {
        let frame = self.next(PATIENCE).map_err(|error| error.to_string())?;
        Ok(serde_json::to_value(frame.ok_or("no answer")?).unwrap())
    }
}

impl Asked for DeviceSession {
    fn say(&mut self, frame: &str) -> Result<(), String> {
        self.write(&Frame::Chat { json: frame.as_bytes() }).map_err(|error| error.to_string())
    }

    fn next_frame(&mut self) -> Result<Value, String> {
        loop {
            match self.next(PATIENCE).map_err(|error| error.to_string())?.ok_or("no answer")? {
                DeviceFrame::Chat(frame) => return Ok(serde_json::to_value(frame).unwrap()),
                DeviceFrame::Error { message, .. } => return Err(message),
                _ => {}
            }
        }
    }
}

/// A session over an event stream: one response that does not end, and a request for each frame.
struct EventStream {
    address: SocketAddr,
    events: TcpStream,
    read: String,
    stream: String,
    secret: String,
    number: u64,
}

impl EventStream {
    fn open(address: SocketAddr, token: &str) -> Self {
        let mut events = TcpStream::connect(address).unwrap();
        let path = "/v1/stream?device_id=tab";
        write!(events, "GET {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
        events.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut opened = EventStream {
            address,
            events,
            read: String::new(),
            stream: String::new(),
            secret: String::new(),
            number: 0,
        };
        let open = opened.next_where(|event| event["secret"].is_string()).unwrap();
        opened.stream = open["stream"].as_str().unwrap().to_owned();
        opened.secret = open["secret"].as_str().unwrap().to_owned();
        opened.next_where(|event| event["t"] == "bound").unwrap();
        opened
    }

    fn next_where(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Result<Value, String> {
        loop {
            while let Some(end) = self.read.find('\n') {
                let line: String = self.read.drain(..=end).collect();
                let event = line.strip_prefix("data: ").and_then(|data| serde_json::from_str(data.trim_end()).ok());
                if let Some(event) = event.filter(|event| wanted(event)) {
                    return Ok(event);
                }
            }
            let mut part = [0; 16 * 1024];
            match self.events.read(&mut part) {
                Ok(0) => return Err("the stream has ended".into()),
                Ok(count) => self.read.push_str(&String::from_utf8_lossy(&part[..count])),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Asked for EventStream {
    fn say(&mut self, frame: &str) -> Result<(), String> {
        self.number += 1;
        let path = format!("/v1/stream/{}?number={}", self.stream, self.number);
        let request = Request { credential: &self.secret, content_type: "application/x-ndjson", ..Request::DEFAULT };
        let (status, answer) = request.send(self.address, "POST", &path, frame)?;
        if status == 202 { Ok(()) } else { Err(format!("{status} {answer}")) }
    }

    fn next_frame(&mut self) -> Result<Value, String> {
        self.next_where(|_| true)
    }
}

/// The content types of answers that may have no end.
const STREAMS: [&str; 2] = ["text/event-stream", "application/x-ndjson"];

/// What a request has besides its method, path and body.
struct Request<'a> {
    credential: &'a str,
    content_type: &'a str,
    headers: String,
}

impl Request<'_> {
    const DEFAULT: Request<'static> =
        Request { credential: API_KEY, content_type: "application/json", headers: String::new() };

    /// Answers status and body; of a stream without end the status alone.
    fn send(&self, address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String), String> {
        let Request { credential, content_type, headers } = self;
        let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer {credential}\r\n\
             Content-Type: {content_type}\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        // Refused by its head alone, a request has its answer while its body is still written.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        let mut answer = Vec::new();
        let mut part = [0; 16 * 1024];
        loop {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&part[..count]),
                Err(_) if !answer.is_empty() => break,
                Err(error) => return Err(error.to_string()),
            }
            let head = String::from_utf8_lossy(&answer[..answer.len().min(1_024)]);
            if STREAMS.iter().any(|content_type| head.contains(content_type)) {
                break;
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status.ok_or("no status")?, body.to_owned()))
    }
}

/// Asks again as long as the store is slow. A store that fails because of what is asked fails each time.
fn until_the_store_answers<T>(mut ask: impl FnMut() -> (bool, T)) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (has_stalled, answer) = ask();
        if !has_stalled || Instant::now() > deadline {
            return answer;
        }
        std::thread::yield_now();
    }
}

/// The credentials of a sample are none: puts a user's token in.
fn with_token(frame: &str, token: &str) -> String {
    frame.replace(r#""token":"token""#, &format!(r#""token":"{token}""#))
}

/// Every field of every frame, in one session. Answers how many frames were sent.
fn try_frames(protocol: &str, document: &Value, (token, epoch): (&str, u64), session: &mut dyn Asked) -> usize {
    let mut fillings = Fillings::new(epoch);
    let mut reference = 0;
    for (kind, is_answered, inputs) in frame_inputs(document) {
        // The first frame and the last of a session.
        if ["bind", "unbind"].contains(&&*kind) {
            continue;
        }
        let mut before = "";
        for input in &inputs {
            let share = share_of(input, 1, before);
            before = &input.place;
            for frame in fillings.of(input, share) {
                reference += 1;
                let frame = frame.whole();
                let frame = format!(r#"{{"ref":{reference},{}"#, &with_token(&frame, token)[1..]);
                let place = || format!("{protocol}: {kind}{}: {}", input.place, shortened(&frame));
                // Longer frames end the session, as documented.
                if frame.len() > FRAME_BYTES_MAX - ENVELOPE_BYTES {
                    continue;
                }
                let mut exchange = || {
                    session.say(&frame)?;
                    if !is_answered && input.place != ".t" {
                        // What follows it is answered.
                        session.say(&format!(r#"{{"t":"ping","ref":{reference}}}"#))?;
                    }
                    session.answer_to(reference)
                };
                let answer = until_the_store_answers(|| {
                    let answer = exchange().unwrap_or_else(|why| panic!("{}: {why}", place()));
                    (answer["code"] == STALLED, answer)
                });
                let length = answer.to_string().len();
                assert!(!DEFECTS.contains(&answer["code"].as_str().unwrap_or("")), "{}: {answer}", place());
                assert!(answer["t"] != "error" || length < ERROR_BYTES_MAX, "{}: {length} bytes", place());
            }
        }
    }
    fillings.tried
}

/// Every field of a bind. Each needs a connection of its own, which the server answers or closes.
fn try_binds(document: &Value, (token, epoch): (&str, u64), address: SocketAddr) -> usize {
    let mut fillings = Fillings::new(epoch);
    let frames = frame_inputs(document);
    let (_, _, inputs) = frames.iter().find(|(kind, ..)| kind == "bind").unwrap();
    for input in inputs {
        for frame in fillings.of(input, Share::All) {
            let frame = with_token(&frame.whole(), token);
            let mut session = Session::connect(address).unwrap();
            session.write_text(frame.as_bytes()).unwrap();
            let ended = session.next_frame().map(|frame| frame.to_string()).unwrap_or_else(|why| why);
            let place = || format!("bind{}: {}", input.place, shortened(&frame));
            assert!(!DEFECTS.iter().any(|code| ended.contains(code)), "{}: {ended}", place());
            assert!(ended != "no answer" && ended.len() < ERROR_BYTES_MAX, "{}: {ended}", place());
        }
    }
    fillings.tried
}

/// Every text of a bind over MIOP, and of the frame that ends a session.
fn try_device_binds((token, epoch): (&str, u64), address: SocketAddr) -> usize {
    let fillings = Fillings::new(epoch);
    let sample = Bind { version: 1, token, device_id: "phone", ..Bind::default() };
    for text in &fillings.texts {
        let binds = [
            Bind { token: text, ..sample.clone() },
            Bind { device_id: text, ..sample.clone() },
            Bind { device_kind: Some(text), ..sample.clone() },
            Bind { app_version: Some(text), ..sample.clone() },
            Bind { cursor: Some(text), ..sample.clone() },
        ];
        for bind in binds {
            let mut session = DeviceSession::connect(address).unwrap();
            // The server may close while a long frame is still written.
            let _ = session.write(&Frame::Bind(bind.clone()));
            let ended = match session.next(PATIENCE) {
                Ok(Some(DeviceFrame::Error { code, message, .. })) => format!("{code}: {message}"),
                Ok(Some(_)) => String::new(),
                Ok(None) => panic!("no answer to {}", shortened(&format!("{bind:?}"))),
                Err(why) => why.to_string(),
            };
            let place = || shortened(&format!("{bind:?}"));
            assert!(!DEFECTS.iter().any(|code| ended.contains(code)), "{}: {ended}", place());
            assert!(ended.len() < ERROR_BYTES_MAX, "{}: {ended}", place());
        }
        let mut session = DeviceSession::open(address, &sample).unwrap();
        let _ = session.write(&Frame::Unbind { reason: Some(text) });
        while let Ok(Some(_)) = session.next(PATIENCE) {}
    }
    fillings.texts.len() * 6
}

/// Every field of every operation over HTTP, by the app server and by a user.
fn try_requests(document: &Value, (token, epoch): (&str, u64), address: SocketAddr) -> usize {
    let mut fillings = Fillings::new(epoch);
    let (mut tried, mut failed) = (BTreeSet::new(), Vec::new());
    let mut callers = [API_KEY, token].map(|credential| (credential, BTreeMap::new()));
    let mut count = 0;
    let inputs = http_inputs(document);
    let mut before = "";
    for HttpInput { operation, method, content_type, input } in &inputs {
        tried.insert(operation.clone());
        let share = share_of(input, 2, before);
        before = &input.place;
        for (at, filled) in fillings.of(input, share).into_iter().enumerate() {
            let parts: Value = serde_json::from_str(&filled.input).unwrap();
            let Some((target, headers)) = target_of(operation, &parts, &filled) else { continue };
            let body = match &parts["body"] {
                Value::Null => String::new(),
                Value::String(text) if content_type != "application/json" => filled.part(text),
                body => filled.part(&body.to_string()),
            };
            for (credential, may) in &mut callers {
                let may = may.entry(operation.clone()).or_insert(true);
                // A user's request takes the app server's way once the user is known to be allowed.
                if !*may || (*credential != API_KEY && at >= LENGTHS) {
                    continue;
                }
                let request = Request { credential, content_type, headers: headers.clone() };
                let place = || format!("{operation} {} {} {}", input.place, shortened(&target), shortened(&body));
                let (status, answer) = until_the_store_answers(|| {
                    let answer = request.send(address, method, &target, &body);
                    let (status, answer) = answer.unwrap_or_else(|why| panic!("{}: {why}", place()));
                    (status == 503 && answer.contains(STALLED), (status, answer))
                });
                // The first request has no hole: whoever may not send that may send none.
                *may = !input.place.is_empty() || status != 403;
                count += 1;
                if status >= 500 {
                    failed.push(format!("{}: {status} {}", place(), shortened(&answer)));
                }
                if status >= 400 && answer.len() > ERROR_BYTES_MAX {
                    failed.push(format!("{}: {status} with {} bytes", place(), answer.len()));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), count, failed.join("\n"));
    // An operation without any field has nothing to try.
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let operation = format!("{} {path}", method.to_uppercase());
            let has_fields = described["parameters"].is_array() || described["requestBody"].is_object();
            assert!(!has_fields || tried.contains(&operation), "{operation} was not tried");
        }
    }
    count
}

/// The target and the headers of a request. `None`: a head so long is refused before anybody reads it, or a value that no header can
/// have.
fn target_of(operation: &str, parts: &Value, filled: &Filled) -> Option<(String, String)> {
    let fields = |part: &str| parts[part].as_object().cloned().unwrap_or_default().into_iter();
    let text = |value: Value| filled.part(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let mut target = operation.split_once(' ')?.1.to_owned();
    for (name, value) in fields("path") {
        target = target.replace(&format!("{{{name}}}"), &escaped(&text(value)));
    }
    for (at, (name, value)) in fields("query").enumerate() {
        target += &format!("{}{name}={}", if at == 0 { '?' } else { '&' }, escaped(&text(value)));
    }
    let mut headers = String::new();
    for (name, value) in fields("header") {
        let value = text(value);
        if value.contains(char::is_control) {
            return None;
        }
        headers += &format!("{name}: {value}\r\n");
    }
    (target.len() + headers.len() <= LONGEST_IN_A_HEAD).then_some((target, headers))
}

fn escaped(text: &str) -> String {
    if text.len() > LONGEST_IN_A_HEAD {
        return text.to_owned();
    }
    let escaped = |byte: u8| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escaped).collect()
}

fn check(store_url: Option<&str>) {
    let began = Instant::now();
    let folder = Folder::new();
    let log = folder.path().join("log");
    let mut command = folder.program(&["serve", "--drain-deadline-ms", "30000", "--backup-dir", "backups"]);
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
    command.stderr(File::create(&log).unwrap());
    // One user does all of it, within a minute; no limit is to come before what is tried.
    for (limit, value) in [
        ("ENGINE_SENDS_PER_SECOND", "0"),
        ("STREAMS_APPENDS_PER_SECOND", "0"),
        // The witness says nothing meanwhile.
        ("SESSION_HEARTBEAT_MS", "600000"),
        ("STREAMS_OPEN_MAX", "1000000"),
        ("STREAMS_OPEN_PER_USER_MAX", "1000000"),
        ("STREAMS_OPEN_PER_CONVERSATION_MAX", "1000000"),
    ] {
        command.env(format!("TIDINGS_{limit}"), value);
    }
    command.env("TIDINGS_LIMITS_FAILURES_EXEMPT", "127.0.0.0/8");
    if let Some(url) = store_url {
        command.env("TIDINGS_STORE_URL", url);
    }
    let mut server = Server::start(&mut command);
    let mut app = server.http();
    // Popups are read from the store after the start.
    let deadline = Instant::now() + PATIENCE;
    while app.exchange("GET", "/v1/popups", b"").unwrap().status != 200 {
        assert!(Instant::now() < deadline, "popups are not read");
        std::thread::yield_now();
    }
    let users = ["alice", "bob", "carol", "witness", "friend"].map(|id| json!({ "id": id }));
    app.put::<Value>("/v1/users", &json!({ "users": users })).unwrap();
    for (id, kind, owner, member) in [
        ("demo", "group", "alice", "bob"),
        ("calm", "group", "witness", "friend"),
        ("shop", "official", "alice", "carol"),
    ] {
        let conversation = json!({"id": id, "kind": kind, "owner": owner, "members": [member]});
        app.post::<Value>("/v1/conversations", &conversation).unwrap();
    }
    let desk = json!({"add": ["alice", "bob"]});
    app.call::<Value>("PATCH", "/v1/conversations/shop/desk", Some(&desk)).unwrap();
    for (path, conversation, from) in [
        ("/v1/messages", "demo", "alice"),
        ("/v1/streams", "demo", "alice"),
        ("/v1/messages", "demo", "alice"),
        ("/v1/messages", "carol~shop", "carol"),
    ] {
        let message = json!({"conversation": conversation, "from": from, "body": {"text": "hello"}});
        app.post::<Value>(path, &message).unwrap();
    }
    let mut witness = server.session("witness", None);

    let [openapi, asyncapi] = ["openapi.json", "asyncapi.json"].map(|name| {
        let document = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_slice::<Value>(&std::fs::read(document).unwrap()).unwrap()
    });
    let token = sign(TOKEN_KEY, "alice", Duration::from_secs(3_600));
    let cursor = witness.cursor.clone().unwrap();
    let of_alice = (&*token, u64::from_str_radix(cursor.split('.').next().unwrap(), 16).unwrap());
    let devices = server.listener(&folder, "miop");
    let bind = Bind { version: 1, token: &token, device_id: "phone", ..Bind::default() };
    let mut counts = Vec::new();
    let mut note = |name, tried: usize| counts.push(format!("{name} {tried} after {:?}", began.elapsed()));
    note("WebSocket", try_frames("WebSocket", &asyncapi, of_alice, &mut server.session("alice", None)));
    let mut device = DeviceSession::open(devices, &bind).unwrap();
    note("MIOP", try_frames("MIOP", &asyncapi, of_alice, &mut device));
    let mut stream = EventStream::open(server.address, &token);
    note("event stream", try_frames("event stream", &asyncapi, of_alice, &mut stream));
    note("binds", try_binds(&asyncapi, of_alice, server.address) + try_device_binds(of_alice, devices));
    note("HTTP", try_requests(&openapi, of_alice, server.address));

    let message = json!({"conversation": "calm", "from": "friend", "body": {"text": "all is well"}});
    app.post::<Value>("/v1/messages", &message).unwrap();
    let is_message = |frame: &ServerFrame| matches!(frame, ServerFrame::Messages { .. });
    assert!(witness.next_where(PATIENCE, is_message).unwrap().is_some());
    server.signal("TERM");
    assert!(server.wait().0.success());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("a defect ended"), "{log}");
    println!("inputs: {}", counts.join(", "));
}

#[test]
fn no_input_harms_anybody_on_the_embedded_store() {
    check(None);
}

#[test]
fn no_input_harms_anybody_on_postgres() {
    let database = PostgresServer::shared();
    check(Some(&database.database()));
}
