//! Random bytes are answered alike with the fast path and by hyper alone: requests of all kinds, pipelined, mutated, and split at
//! random places. `POPUP_SEED` replays one seed.

use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
};
use tidings_api::ApiConfig;

const CONNECTIONS: u32 = 1_500;
/// Always shown, so that no answer depends on the time.
const POPUP: &str = r#"{"state":"live","placements":["home"],"variants":[{"id":"a","content":{"title":"Hello"}}]}"#;
const ONCE: &str = r#"{"state":"live","placements":["once"],"variants":[{"id":"a","content":{}}],"caps":{"total":1}}"#;

/// A final response, without its date and without what is random in it.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    headers: BTreeSet<(String, String)>,
    body: String,
}

/// What one connection got.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    answers: Vec<Answer>,
    /// Bytes that are no complete response.
    rest: String,
    was_reset: bool,
}

impl Outcome {
    /// Without the refusal of a head that broke off. hyper looks at a head that has begun only once it is complete, and at one that it
    /// is handed whole at once: whether the beginning of an invalid head is refused, or goes unanswered, depends on how it was split.
    fn without_refusal_of_the_last_head(mut self) -> Outcome {
        let is_refusal = |answer: &mut Answer| answer.status == 400 && answer.body.contains("\"malformed\"");
        self.answers.pop_if(is_refusal);
        self
    }
}

/// Whether the last head of these bytes broke off.
fn breaks_off(bytes: &[u8]) -> bool {
    let end = bytes.windows(4).rposition(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    end < bytes.len()
}

/// Splits what a connection got into responses.
fn read_answers(mut bytes: &[u8], was_reset: bool) -> Outcome {
    let mut answers = Vec::new();
    while let Some((answer, rest)) = first_answer(bytes) {
        bytes = rest;
        // Whether a client is told to go on depends on what had arrived by then.
        let is_upgrade = answer.status == 101;
        answers.extend((answer.status != 100).then_some(answer));
        if is_upgrade {
            break;
        }
    }
    // What follows is no HTTP: the gateway has the connection, and what it says depends on whether the client had closed by then.
    if answers.last().is_some_and(|answer: &Answer| answer.status == 101) {
        return Outcome { answers, rest: String::new(), was_reset: false };
    }
    Outcome { answers, rest: String::from_utf8_lossy(bytes).into_owned(), was_reset }
}

fn first_answer(bytes: &[u8]) -> Option<(Answer, &[u8])> {
    let head_bytes = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..head_bytes]).unwrap();
    let status = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().unwrap();
    let lines = head.lines().skip(1).map(|line| line.split_once(':').unwrap());
    let mut headers: BTreeMap<_, _> =
        lines.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
    let dated = headers.remove("date");
    assert!(status == 100 || dated.is_some_and(|date| date.ends_with(" GMT")), "{head}");
    assert!(!headers.contains_key("transfer-encoding"), "{head}");
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let rest = &bytes[head_bytes + 4..];
    let (body, rest) = rest.split_at_checked(length)?;
    let mut body = String::from_utf8(body.to_vec()).unwrap();
    if body.is_empty() {
        // A response without a declared body has an empty one.
        headers.remove("content-length");
    }
    if let Some((before, (_, after))) =
        body.split_once(r#""decision":""#).and_then(|(before, after)| Some((before, after.split_once('"')?)))
    {
        // It is signed with a key of the server, and its length differs.
        body = format!("{before}{after}");
        headers.remove("content-length");
    }
    // The servers have the time of the machine.
    if let Some((before, after)) = body.split_once("\"expires_at\":") {
        body = format!("{before}{}", after.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    }
    Some((Answer { status, headers: headers.into_iter().collect(), body }, rest))
}

/// Both servers: with the fast path, and without.
struct Servers([Server; 2]);

impl Servers {
    fn start() -> Self {
        Servers([true, false].map(|fast_path| {
            let server = Server::with(ApiConfig { fast_path, ..ApiConfig::default() }).with_people();
            expect_status(&mut server.app(), "PUT", "/v1/popups/hello", POPUP, 201);
            expect_status(&mut server.app(), "PUT", "/v1/popups/once", ONCE, 201);
            server
        }))
    }

    /// Sends these parts, each in a packet of its own if the server reads in between, and gives back what either server answers.
    fn exchange(&self, pacers: &mut [Pacer; 2], parts: &[&[u8]]) -> [Outcome; 2] {
        let mut streams = [0, 1].map(|side| {
            let stream = TcpStream::connect(self.0[side].address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        });
        for part in parts {
            for (stream, pacer) in streams.iter_mut().zip(&mut *pacers) {
                // The server may have closed meanwhile.
                let _ = stream.write_all(part);
                pacer.pass_time();
            }
        }
        streams.map(|mut stream| {
            let _ = stream.shutdown(Shutdown::Write);
            let mut bytes = Vec::new();
            match stream.read_to_end(&mut bytes) {
                Ok(_) => read_answers(&bytes, false),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => read_answers(&bytes, true),
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
            }
        })
    }

    /// How many requests of each route, method and status class either server has counted.
    fn counts(&self) -> [Vec<String>; 2] {
        self.0.each_ref().map(|server| {
            let metrics = expect_status(&mut server.app(), "GET", "/metrics", "", 200);
            let counts = metrics.lines().filter(|line| line.starts_with("tidings_http_request_seconds_count"));
            // Pacers ask for their own.
            counts
                .filter(|line| !line.contains("/healthz"))
                .map(str::to_owned)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        })
    }
}

/// A connection whose round trips give the server time to read what was written to another one.
struct Pacer(TcpStream);

impl Pacer {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Pacer(stream)
    }

    fn pass_time(&mut self) {
        self.0.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(self.0.read(&mut [0; 4_096]).unwrap() > 0);
    }
}

/// Makes the bytes of connections.
struct Generator {
    random: StdRng,
    tokens: [String; 2],
}

impl Generator {
    fn one_in(&mut self, count: u32) -> bool {
        self.random.random_range(0..count) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.random_range(0..choices.len())]
    }

    fn body(&mut self) -> String {
        let user = self.pick(&["alice", "bob", "carol", "u1", "u2", "a b", ""]);
        let placement = self.pick(&["home", "home", "once", "nowhere"]);
        match self.random.random_range(0..14) {
            0 => String::new(),
            1 => "{\"user\":".into(),
            2 => format!(r#"{{"user":"{user}","placement":"home","colour":1}}"#),
            3 => r#"{"events":[]}"#.into(),
            4 => r#"{"events":[{"id":"e1","decision":"unknown","type":"click"}]}"#.into(),
            // Longer than one read of either; than what the fast path takes; than the library's buffer.
            5 => {
                let length = self.pick(&[1_000, 3_000, 40_000, 80_000]);
                format!(r#"{{"user":"{user}","placement":"home","attributes":{{"a":"{}"}}}}"#, "x".repeat(length))
            }
            6 => r#"{"to":{"all":true},"type":"t","body":1,"dry_run":true}"#.into(),
            7 => format!(r#"{{"to":{{"users":["{user}"]}},"type":"t","body":1,"client_push_id":"{placement}"}}"#),
            _ => format!(r#"{{"user":"{user}","placement":"{placement}"}}"#),
        }
    }

    /// The body with the headers that frame it, rightly or wrongly.
    fn framed(&mut self) -> (Vec<String>, Vec<u8>) {
        let body = self.body();
        let length = body.len();
        let (one, two) = body.split_at(length / 2);
        let chunks = |end: &str| {
            let part =
                |text: &str| if text.is_empty() { String::new() } else { format!("{:x}\r\n{text}\r\n", text.len()) };
            format!("{}{}{end}", part(one), part(two))
        };
        let says = |length: &str| vec![format!("Content-Length: {length}")];
        let chunked = || vec!["Transfer-Encoding: chunked".to_owned()];
        let text = length.to_string();
        let (headers, bytes) = match self.random.random_range(0..48) {
            0 => (says(&(length + 1).to_string()), body),
            1 => (says(&length.saturating_sub(1).to_string()), body),
            2 => (says("0"), body),
            3 => (says(self.pick(&["+5", "-1", "0x5", "5, 5", "five", "", "99999999999999999999", "2000000"])), body),
            4 => (says(&format!("000{text}")), body),
            5 => (says(&format!(" \t{text} ")), body),
            6 => ([says(&text), says(&text)].concat(), body),
            7 => ([says(&text), says("3")].concat(), body),
            8 => (Vec::new(), body),
            9 => (chunked(), chunks("0\r\n\r\n")),
            10 => (chunked(), chunks("0\r\nSum: 7\r\n\r\n")),
            11 => (chunked(), chunks("zz\r\n")),
            12 => ([chunked(), says(&text)].concat(), chunks("0\r\n\r\n")),
            13 => ([says(&text), chunked()].concat(), body),
            14 => (vec!["Transfer-Encoding: gzip, chunked".into()], chunks("0\r\n\r\n")),
            15 => ([says(&text), vec!["Transfer-Encoding: identity".into()]].concat(), body),
            _ => (says(&text), body),
        };
        (headers, bytes.into_bytes())
    }

    fn request(&mut self) -> Vec<u8> {
        let (mut headers, body) = self.framed();
        let key = API_KEY.to_owned();
        let credential = match self.random.random_range(0..12) {
            0 => None,
            1 => Some("wrong".to_owned()),
            2 => Some(self.tokens[0].clone()),
            3 => Some(self.tokens[1].clone()),
            _ => Some(key.clone()),
        };
        headers.extend(credential.map(|credential| format!("Authorization: Bearer {credential}")));
        headers.extend((!self.one_in(25)).then(|| "Host: x".to_owned()));
        if self.one_in(2) {
            let kinds = ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "text/plain"];
            let kind = if self.one_in(4) { self.pick(&kinds) } else { kinds[0] };
            headers.push(format!("Content-Type: {kind}"));
        }
        if self.one_in(3) {
            let odd = self.random.random_range(0..18);
            headers.extend(match odd {
                0 => vec!["Connection: keep-alive".to_owned()],
                1 => vec!["CONNECTION: Keep-Alive".to_owned()],
                2 => vec!["Connection: close".to_owned()],
                3 => vec!["Connection: keep-alive, x".to_owned()],
                4 => vec!["Connection: keep-alive".to_owned(), "Connection: close".to_owned()],
                5 => vec!["Host: y".to_owned()],
                6 => vec![format!("Authorization: Bearer {key}")],
                7 => vec!["X: folded\r\n line".to_owned()],
                8 => vec!["X : spaced".to_owned()],
                9 => vec!["no colon".to_owned()],
                10 => vec![": no name".to_owned()],
                11 => vec!["X: \u{e4}\u{7f}".to_owned()],
                12 => vec!["X: a\0b".to_owned()],
                13 => (0..self.pick(&[20, 40, 120])).map(|number| format!("X-{number}: {number}")).collect(),
                14 => vec![format!("X: {}", "y".repeat(self.pick(&[1_900, 5_000, 33_000])))],
                15 => vec!["Expect: 100-continue".to_owned()],
                16 => vec!["Origin: https://example.com".to_owned()],
                _ => vec!["Connection: Upgrade".to_owned(), "Upgrade: h2c".to_owned()],
            });
        }
        // Heads in any order.
        for last in (1..headers.len()).rev() {
            headers.swap(last, self.random.random_range(0..=last));
        }
        let (mut method, mut version) = ("POST", "HTTP/1.1");
        let mut target = self.pick(&["/v1/popups/decide", "/v1/popups/decide", "/v1/popup-events", "/v1/push"]);
        if self.one_in(4) {
            method = self.pick(&["POST", "POST", "post", "Post", "PATCH", "P", "POST "]);
            target = self.pick(&[
                target,
                "http://x/v1/popups/decide",
                "HTTP://X/v1/popup-events",
                "/v1/popups/decide?user=u1",
                "/v1/popups/decide/",
                "/v1//popups/decide",
                "/v1/popups/%64ecide",
                "/v1/popups",
                "/v1/messages",
                "/v1/nowhere",
                "/healthz",
                "*",
                "x:80",
                "",
            ]);
            version = self.pick(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", ""]);
        }
        let line_end = if self.one_in(40) { "\n" } else { "\r\n" };
        let mut bytes = format!("{method} {target} {version}{line_end}").into_bytes();
        headers.iter().for_each(|header| bytes.extend_from_slice(format!("{header}{line_end}").as_bytes()));
        bytes.extend_from_slice(line_end.as_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// A handshake of a WebSocket, nearly always with one part missing, doubled or wrong.
    fn handshake(&mut self) -> Vec<u8> {
        let mut headers = vec![
            "Host: x".to_owned(),
            self.pick(&["Connection: Upgrade", "connection: keep-alive,UPGRADE", "Connection: keep-alive"]).into(),
            self.pick(&["Upgrade: websocket", "Upgrade: WebSocket", "Upgrade: h2c"]).into(),
            self.pick(&["Sec-WebSocket-Version: 13", "Sec-WebSocket-Version:13", "Sec-WebSocket-Version: 8"]).into(),
            self.pick(&["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key: x"]).into(),
        ];
        if self.one_in(3) {
            let at = self.random.random_range(0..headers.len());
            if self.one_in(2) { drop(headers.remove(at)) } else { headers.push(headers[at].clone()) }
        }
        if self.one_in(3) {
            let more = [
                "Origin: https://example.com",
                "Authorization: Bearer wrong",
                "Content-Length: 0",
                "Expect: 100-continue",
                "X: y",
            ];
            headers.push(self.pick(&more).into());
        }
        let version = if self.one_in(10) { "HTTP/1.0" } else { "HTTP/1.1" };
        let mut text = format!("GET /v1/connect {version}\r\n");
        headers.iter().for_each(|header| text.push_str(&format!("{header}\r\n")));
        text.push_str("\r\n");
        text.into_bytes()
    }

    /// Everything that one client sends on a connection.
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.one_in(8) {
            bytes.extend(self.handshake());
        }
        for _ in 0..self.random.random_range(1..=4) {
            if self.one_in(30) {
                bytes.extend_from_slice(self.pick(&["\r\n", "\r\n\r\n", "\n", " ", "\x16\x03\x01", "\0"]).as_bytes());
            }
            bytes.extend(self.request());
        }
        if self.one_in(5) {
            for _ in 0..self.random.random_range(1..=3) {
                let at = self.random.random_range(0..bytes.len());
                match self.random.random_range(0..4) {
                    0 => bytes[at] ^= 1 << self.random.random_range(0..8_u8),
                    1 => bytes.insert(at, self.random.random()),
                    2 => drop(bytes.remove(at)),
                    // At least one byte is left.
                    _ => bytes.truncate(at + 1),
                }
            }
        }
        bytes
    }

    /// The parts in which these bytes are sent.
    fn parts<'a>(&mut self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut cuts: BTreeSet<usize> = [0, bytes.len()].into();
        if !self.one_in(3) {
            cuts.extend((0..self.random.random_range(1..=5)).map(|_| self.random.random_range(0..bytes.len())));
        }
        let cuts: Vec<usize> = cuts.into_iter().collect();
        cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect()
    }
}

#[test]
fn the_same_bytes_get_the_same_answers() {
    let seed = std::env::var("POPUP_SEED").map_or(7, |seed| seed.parse().unwrap());
    println!("POPUP_SEED={seed}");
    let servers = Servers::start();
    let mut pacers = servers.0.each_ref().map(|server| Pacer::connect(server.address));
    let mut generator = Generator { random: StdRng::seed_from_u64(seed), tokens: ["alice", "bob"].map(token) };
    let mut statuses: BTreeMap<u16, u32> = BTreeMap::new();
    for number in 0..CONNECTIONS {
        let bytes = generator.bytes();
        let parts = generator.parts(&bytes);
        let [mut fast, mut alone] = servers.exchange(&mut pacers, &parts);
        if fast.answers.len() != alone.answers.len() && breaks_off(&bytes) {
            [fast, alone] = [fast, alone].map(Outcome::without_refusal_of_the_last_head);
        }
        let sent = || parts.iter().map(|part| format!("{:?}\n", String::from_utf8_lossy(part))).collect::<String>();
        assert_eq!(fast, alone, "connection {number} of seed {seed}\n{}", sent());
        fast.answers.iter().for_each(|answer| *statuses.entry(answer.status).or_default() += 1);
    }
    let [fast, alone] = servers.counts();
    assert_eq!(fast, alone);
    // The run has had all that can happen.
    println!("answers by status: {statuses:?}");
    for status in [101, 200, 202, 204, 400, 401, 404, 413, 415, 422, 431] {
        assert!(statuses.contains_key(&status), "no answer was {status}: {statuses:?}");
    }
}
