//! The server asks the app's hook before it stores what users send, by whichever way they send it.

use crate::support::*;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::Duration,
};
use tidings_client::{
    device::{DeviceFrame, DeviceSession},
    http::HttpClient,
    session::Session,
    token::sign,
};
use tidings_protocol::{
    frames::ServerFrame,
    http::{CreateConversation, NewMessage, UserUpsert},
    miop::{Bind, Frame},
};

const PATIENCE: Duration = Duration::from_secs(300);
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What the hook does with a request of these questions: its answer, or `None` to hang up.
pub(crate) type Hook = fn(&[Value]) -> Option<(u16, Value)>;

/// Starts a hook; the receiver gets the headers and questions of each request.
pub(crate) fn hook(answer: Hook) -> (SocketAddr, mpsc::Receiver<(String, Vec<Value>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (told, requests) = mpsc::sync_channel(1_024);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let told = told.clone();
            std::thread::spawn(move || {
                answer_requests(&stream.unwrap(), |headers, mut body| {
                    let questions: Vec<Value> = serde_json::from_value(body["questions"].take()).unwrap();
                    let answered = answer(&questions);
                    let _ = told.try_send((headers, questions));
                    answered
                });
            });
        }
    });
    (address, requests)
}

/// Answers the requests of a kept connection; `None` hangs up.
pub(crate) fn answer_requests(stream: &TcpStream, mut answer: impl FnMut(String, Value) -> Option<(u16, Value)>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut headers = String::new();
        while !headers.ends_with("\r\n\r\n") {
            if reader.read_line(&mut headers).unwrap_or(0) == 0 {
                return;
            }
        }
        let headers = headers.to_lowercase();
        let length = headers.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let Some((status, answer)) = answer(headers, serde_json::from_slice(&body).unwrap()) else { return };
        let body = answer.to_string();
        let head = format!("HTTP/1.1 {status} Answer\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut stream = stream;
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

fn text_of(question: &Value) -> &str {
    question["message"]["body"]["text"].as_str().unwrap_or_default()
}

/// Does what the text of each message says.
fn obey(questions: &[Value]) -> Option<(u16, Value)> {
    let answer = |question: &Value| {
        let mut answer = match text_of(question) {
            "replace" => json!({ "action": "replace", "body": { "text": "***" } }),
            "refuse" => json!({ "action": "refuse", "code": "spam", "text": "Not here." }),
            "hide" => json!({ "action": "hide" }),
            _ => json!({ "action": "allow" }),
        };
        answer["id"] = question["id"].clone();
        answer
    };
    Some((200, json!({ "answers": questions.iter().map(answer).collect::<Vec<_>>() })))
}

fn serve_with(folder: &Folder, hook: SocketAddr, more: &[&str]) -> Server {
    let url = format!("http://{hook}/hook");
    let mut command = folder.program(&[&["serve", "--hook-url", &url], more].concat());
    command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_HOOK_SECRET", SECRET);
    let server = Server::start(&mut command);
    let users = ["ada", "ben"].map(|id| UserUpsert { id: id.into(), ..UserUpsert::default() });
    server.http().upsert_users(users.to_vec()).unwrap();
    let group: CreateConversation =
        serde_json::from_value(json!({ "id": "team", "kind": "group", "owner": "ada", "members": ["ben"] })).unwrap();
    server.http().create_conversation(&group).unwrap();
    server
}

fn new(text: &str) -> NewMessage {
    serde_json::from_str(&json!({ "body": { "text": text } }).to_string()).unwrap()
}

/// The answer to a send: its `seq`, or the code, the hook's code and the text of its refusal.
type Answer = Result<u64, (String, Option<String>, String)>;
/// Sends a text.
type Way<'a> = &'a dyn Fn(&str) -> Answer;

fn over_http(server: &Server, text: &str) -> Answer {
    let mut http = HttpClient::new(server.address, sign(TOKEN_KEY, "ada", Duration::from_secs(600)));
    let body = json!({ "conversation": "team", "body": { "text": text } }).to_string();
    let answer = http.exchange("POST", "/v1/messages", body.as_bytes()).unwrap();
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    let field = |name: &str| answer[name].as_str().map(str::to_owned);
    answer["seq"]
        .as_u64()
        .ok_or_else(|| (field("code").unwrap_or_default(), field("reason"), field("detail").unwrap_or_default()))
}

fn answer_of(frame: ServerFrame) -> Option<Answer> {
    match frame {
        ServerFrame::Sent { results } => results.first().map(|sent| Ok(sent.receipt.seq)),
        ServerFrame::Error { code, reason, message, .. } => Some(Err((code.as_str().into(), reason, message))),
        _ => None,
    }
}

fn over_websocket(server: &Server, text: &str) -> Answer {
    let mut session = server.session("ada", None);
    session.send(1, "team", new(text)).unwrap();
    loop {
        if let Some(answer) = answer_of(session.next(PATIENCE).unwrap().unwrap()) {
            return answer;
        }
    }
}

fn over_miop(address: SocketAddr, text: &str) -> Answer {
    let token = sign(TOKEN_KEY, "ada", Duration::from_secs(600));
    let bind = Bind { version: 1, token: &token, device_id: "phone", ..Bind::default() };
    let mut device = DeviceSession::open(address, &bind).unwrap();
    let frame = json!({ "t": "send", "ref": 1, "conversation": "team", "body": { "text": text } });
    device.write(&Frame::Chat { json: frame.to_string().as_bytes() }).unwrap();
    loop {
        if let DeviceFrame::Chat(frame) = device.next(PATIENCE).unwrap().unwrap()
            && let Some(answer) = answer_of(frame)
        {
            return answer;
        }
    }
}

fn bodies(server: &Server) -> Vec<String> {
    let history = server.http().history("team", &Default::default()).unwrap();
    history.entries.iter().map(|entry| entry.body.get().to_owned()).collect()
}

#[test]
fn whichever_way_a_message_comes_the_hook_is_asked() {
    let (address, requests) = hook(obey);
    let folder = Folder::new();
    let server = serve_with(&folder, address, &[]);
    let miop = server.listener(&folder, "miop");
    let ways: [(&str, Way<'_>); 3] = [
        ("HTTP", &|text| over_http(&server, text)),
        ("WebSocket", &|text| over_websocket(&server, text)),
        ("MIOP", &|text| over_miop(miop, text)),
    ];
    let refused = || Err(("refused_by_hook".to_owned(), Some("spam".to_owned()), "Not here.".to_owned()));
    let mut seq = 0;
    for (way, send) in ways {
        assert_eq!((send("allow"), send("refuse"), send("replace")), (Ok(seq + 1), refused(), Ok(seq + 2)), "{way}");
        seq += 2;
    }
    assert_eq!(bodies(&server), [r#"{"text":"allow"}"#, r#"{"text":"***"}"#].repeat(3));
    // An app server is not asked about, unless that is set.
    let by_app = json!({ "from": "ada", "conversation": "team", "body": { "text": "refuse" } });
    let sent: Value = server.http().post("/v1/messages", &by_app).unwrap();
    assert_eq!(sent["seq"], 7);
    for _ in 0..9 {
        let (headers, questions) = requests.recv_timeout(PATIENCE).unwrap();
        assert_eq!((questions.len(), &questions[0]["user"]), (1, &json!("ada")));
        for name in ["webhook-id: msg_", "webhook-timestamp: 1", "webhook-signature: v1,"] {
            assert!(headers.contains(name), "no {name:?} in {headers}");
        }
    }
    assert!(requests.try_recv().is_err());
}

/// The next message that a session is handed: its `seq`, body, type and whether it is shown as hidden.
fn handed(session: &mut Session) -> (u64, String, String, bool) {
    loop {
        if let ServerFrame::Messages { entries, .. } = session.next(PATIENCE).unwrap().unwrap()
            && let Some(entry) = entries.first()
        {
            return (entry.seq, entry.body.get().into(), entry.content_type.clone(), entry.hidden);
        }
    }
}

#[test]
fn a_hidden_message_reaches_other_devices_of_its_sender_and_others_without_a_body() {
    let (address, _requests) = hook(obey);
    let folder = Folder::new();
    let server = serve_with(&folder, address, &[]);
    let token = sign(TOKEN_KEY, "ada", Duration::from_secs(600));
    let mut own = Session::open(server.address, &token, "tablet", None).unwrap();
    let mut other = server.session("ben", None);
    assert_eq!(over_http(&server, "hide"), Ok(1));
    assert_eq!(handed(&mut own), (1, r#"{"text":"hide"}"#.into(), "text".into(), false));
    assert_eq!(handed(&mut other), (1, "null".into(), "hidden".into(), true));
    assert_eq!(over_http(&server, "allow"), Ok(2));
    for session in [&mut own, &mut other] {
        assert_eq!(handed(session), (2, r#"{"text":"allow"}"#.into(), "text".into(), false));
    }
}

#[test]
fn a_hook_that_fails_hangs_or_is_away_is_answered_for_by_what_is_set() {
    let failing: [(&str, Hook); 3] = [
        ("500", |_| Some((500, json!({})))),
        ("no answer", |_| None),
        ("hangs", |_| {
            std::thread::park();
            None
        }),
    ];
    for (way, answer) in failing {
        let (address, _requests) = hook(answer);
        let folder = Folder::new();
        // The answer is waited for until then; nothing is measured.
        let server = serve_with(&folder, address, &["--hook-timeout-ms", "200", "--hook-closed", "send:group"]);
        // So often that the circuit breaker opens, too.
        for _ in 0..8 {
            let refused = over_http(&server, "x").unwrap_err();
            assert_eq!(refused.0, "hook_unavailable", "{way}");
        }
        let mut http = HttpClient::new(server.address, sign(TOKEN_KEY, "ada", Duration::from_secs(600)));
        let direct = json!({ "to": "ben", "body": { "text": "x" } }).to_string();
        assert_eq!(http.exchange("POST", "/v1/messages", direct.as_bytes()).unwrap().status, 200, "{way}: open");
    }
    // Nobody listens there any more.
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = Folder::new();
    let server = serve_with(&folder, away, &["--hook-closed", "send"]);
    assert_eq!(over_http(&server, "x").unwrap_err().0, "hook_unavailable");
}

#[test]
fn a_hook_without_a_good_secret_or_with_unknown_words_is_refused_at_the_start() {
    let folder = Folder::new();
    for (arguments, secret, names) in [
        (&[][..], None, "[hook] url needs a secret"),
        (&[], Some("short"), "[hook] secret must be whsec_"),
        (&["--hook-on", "send:room"], Some(SECRET), "[hook] on"),
        (&["--hook-closed", "everything"], Some(SECRET), "[hook] closed"),
    ] {
        let mut command = folder.program(&[&["serve", "--hook-url", "http://127.0.0.1:1/"], arguments].concat());
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
        if let Some(secret) = secret {
            command.env("TIDINGS_HOOK_SECRET", secret);
        }
        let output = command.output().unwrap();
        let printed = text(&output.stderr);
        assert!(!output.status.success() && printed.contains(names), "{names}: {printed}");
    }
}
