//! A webhook of the lab's own: the server under test tells it of messages to members who are offline, and it counts, for
//! each member, of which messages it was told.

use crate::{
    LabError, interrupt,
    latency::{Percentiles, new_histogram},
    server::random_key,
};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::HashMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The head of a request. The server under test sends a few hundred bytes.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
const HEADERS_MAX: usize = 32;
/// The body of a request: the server under test closes a delivery at a megabyte.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How often a wait looks whether Ctrl-C ended the run.
const POLL: Duration = Duration::from_millis(100);
/// Faults that are named.
const EXAMPLES_MAX: usize = 3;

/// The messages of one conversation that one member was told of: a bit for each `seq`.
#[derive(Debug, Default)]
struct ToldSeqs {
    words: Vec<u64>,
    count: u64,
}

impl ToldSeqs {
    /// Answers whether it is told for the first time.
    fn add(&mut self, seq: u64) -> bool {
        let (word, bit) = ((seq / 64) as usize, 1 << (seq % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(is_new);
        is_new
    }

    fn has(&self, seq: u64) -> bool {
        self.words.get((seq / 64) as usize).is_some_and(|word| word & 1 << (seq % 64) != 0)
    }
}

/// All that was told of one conversation.
struct Ledger {
    members: HashMap<String, ToldSeqs>,
    told: u64,
    doubled: u64,
    calls: u64,
    /// From the message's time stamp to its event, in microseconds.
    delay: Histogram<u64>,
    last_at: Instant,
    problems: Vec<String>,
}

/// What became of the messages for members who are offline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OfflineCounts {
    pub(crate) messages: u64,
    pub(crate) members: u64,
    pub(crate) expected: u64,
    pub(crate) told: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) calls: u64,
    /// From the end of the load to the last event.
    pub(crate) lag_seconds: f64,
    /// From the message's time stamp, which has milliseconds, to its event.
    pub(crate) delay: Percentiles,
    pub(crate) problems: Vec<String>,
}

impl OfflineCounts {
    pub(crate) fn balances(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.told == self.expected && self.problems.is_empty()
    }
}

/// What its threads share.
struct Shared {
    ledger: Mutex<Ledger>,
    changed: Condvar,
    stop: AtomicBool,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The webhook. It ends with this handle.
pub(crate) struct WebhookDouble {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl WebhookDouble {
    pub(crate) fn start() -> Result<WebhookDouble, LabError> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let ledger = Ledger {
            members: HashMap::new(),
            told: 0,
            doubled: 0,
            calls: 0,
            delay: new_histogram(),
            last_at: Instant::now(),
            problems: Vec::new(),
        };
        let shared =
            Arc::new(Shared { ledger: Mutex::new(ledger), changed: Condvar::new(), stop: AtomicBool::new(false) });
        let of_thread = shared.clone();
        std::thread::Builder::new().name("webhook".into()).spawn(move || accept(&listener, &of_thread))?;
        Ok(WebhookDouble { address, shared })
    }

    /// The settings that have a server call this webhook.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        vec![
            ("TIDINGS_WEBHOOK_URL".into(), format!("http://{}/", self.address)),
            ("TIDINGS_WEBHOOK_SECRET".into(), random_key()),
        ]
    }

    /// Waits until each of these members was told of each message from `first` to `last`, or nothing came for `patience`.
    pub(crate) fn finish(&self, members: &[String], first: u64, last: u64, patience: Duration) -> OfflineCounts {
        let (began, messages) = (Instant::now(), (last + 1).saturating_sub(first));
        let expected = messages * members.len() as u64;
        let mut ledger = self.shared.ledger();
        while ledger.told < expected && ledger.last_at.max(began).elapsed() < patience && !interrupt::requested() {
            let waited = self.shared.changed.wait_timeout(ledger, POLL).unwrap_or_else(PoisonError::into_inner);
            ledger = waited.0;
        }
        let mut problems = std::mem::take(&mut ledger.problems);
        let mut lost = 0;
        for member in members {
            let count = ledger.members.get(member).map_or(0, |told| told.count);
            if count < messages {
                lost += messages - count;
                let has = |seq: &u64| ledger.members.get(member).is_none_or(|told| !told.has(*seq));
                let example = (first..=last).find(has).unwrap_or_default();
                problems.push(format!("{member} was told of {count} of {messages} messages; not of {example}"));
            }
        }
        let others = ledger.members.keys().find(|told| !members.contains(told));
        problems.extend(others.map(|other| format!("{other} is online and was told")));
        problems.truncate(EXAMPLES_MAX);
        OfflineCounts {
            messages,
            members: members.len() as u64,
            expected,
            told: ledger.told,
            lost,
            doubled: ledger.doubled,
            calls: ledger.calls,
            lag_seconds: ledger.last_at.saturating_duration_since(began).as_secs_f64(),
            delay: Percentiles::of(&ledger.delay),
            problems,
        }
    }
}

impl Drop for WebhookDouble {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let shared = shared.clone();
        let serve = move || {
            // A connection ends when the server closes it.
            let Err(error) = connection.and_then(|connection| serve(&connection, &shared)) else { return };
            if error.kind() == io::ErrorKind::InvalidData {
                shared.ledger().problems.push(format!("a call of the webhook: {error}"));
            }
        };
        let _ = std::thread::Builder::new().name("webhook-call".into()).spawn(serve);
    }
}

/// Answers the requests of one connection.
fn serve(connection: &TcpStream, shared: &Shared) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::with_capacity(64 * 1024, connection), connection);
    let mut body = Vec::new();
    while let Some(length) = read_head(&mut reader)? {
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
        let events: Call<'_> = serde_json::from_slice(&body)?;
        note(&mut shared.ledger(), events);
        shared.changed.notify_all();
        writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
    }
    Ok(())
}

/// Reads the head of a request and answers the length of its body; `None` at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<usize>> {
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut head = Vec::new();
    loop {
        if reader.by_ref().take(HEAD_BYTES_MAX).read_until(b'\n', &mut head)? == 0 {
            return if head.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        if head.ends_with(b"\r\n\r\n") {
            break;
        }
        if head.len() as u64 > HEAD_BYTES_MAX {
            return Err(wrong("a head without an end"));
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(&head).map_err(|error| wrong(&error.to_string()))?;
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    length.filter(|length| *length <= BODY_BYTES_MAX).map(Some).ok_or_else(|| wrong("a body without a length"))
}

/// What the webhook reads of a call.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    events: Vec<Event<'a>>,
}

#[derive(Deserialize)]
struct Event<'a> {
    entry: EventEntry,
    #[serde(borrow)]
    recipients: Vec<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct EventEntry {
    seq: u64,
    at: u64,
}

fn note(ledger: &mut Ledger, call: Call<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ledger.calls += 1;
    ledger.last_at = Instant::now();
    for event in call.events {
        let delay = now.saturating_sub(Duration::from_millis(event.entry.at));
        ledger.delay.saturating_record((delay.as_micros() as u64).max(1));
        for recipient in &event.recipients {
            let told = match ledger.members.get_mut(&**recipient) {
                Some(told) => told,
                None => ledger.members.entry(recipient.clone().into_owned()).or_default(),
            };
            if told.add(event.entry.seq) {
                ledger.told += 1;
            } else {
                ledger.doubled += 1;
            }
        }
    }
}

/// Prints what became of the messages for members who are offline.
pub(crate) fn print(counts: &OfflineCounts) {
    let OfflineCounts { messages, members, expected, told, lost, doubled, calls, lag_seconds, delay, .. } = counts;
    println!(
        "offline push   {messages} messages for {members} members: told {told} of {expected}  lost {lost}  doubled {doubled}  \
         calls {calls}  the last {lag_seconds:.2} s after the load  ms p50 {:.0} p99 {:.0} p100 {:.0}",
        delay.p50, delay.p99, delay.max
    );
    for problem in &counts.problems {
        println!("  {problem}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A call as a server makes it, with events of these messages for these members.
    fn call(webhook: &WebhookDouble, events: &[(u64, &[&str])]) -> String {
        let event = |(seq, recipients): &(u64, &[&str])| serde_json::json!({ "event": "message", "entry": { "seq": seq, "at": 1, "body": {} }, "recipients": recipients });
        let body = serde_json::json!({ "events": events.iter().map(event).collect::<Vec<_>>() }).to_string();
        let mut connection = TcpStream::connect(webhook.address).unwrap();
        write!(connection, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        connection.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    fn finish(webhook: &WebhookDouble) -> OfflineCounts {
        webhook.finish(&["ben".into(), "cleo".into()], 2, 4, Duration::ZERO)
    }

    #[test]
    fn each_message_counts_once_for_each_member() {
        let webhook = WebhookDouble::start().unwrap();
        assert!(call(&webhook, &[(2, &["ben", "cleo"]), (3, &["cleo"])]).starts_with("HTTP/1.1 204 "));
        call(&webhook, &[(3, &["ben"]), (4, &["cleo", "ben"])]);
        let counts = finish(&webhook);
        assert!(counts.balances(), "{counts:?}");
        assert_eq!((counts.expected, counts.told, counts.calls), (6, 6, 2));
    }

    #[test]
    fn what_is_lost_doubled_or_told_to_others_is_found() {
        let webhook = WebhookDouble::start().unwrap();
        call(&webhook, &[(2, &["ben", "cleo"]), (3, &["ben", "cleo"]), (4, &["ben"])]);
        let lost = finish(&webhook);
        assert_eq!((lost.balances(), lost.lost, lost.doubled), (false, 1, 0));
        assert_eq!(lost.problems, ["cleo was told of 2 of 3 messages; not of 4"]);
        call(&webhook, &[(4, &["cleo"]), (3, &["ben"])]);
        let doubled = finish(&webhook);
        assert_eq!((doubled.balances(), doubled.lost, doubled.doubled), (false, 0, 1));

        let webhook = WebhookDouble::start().unwrap();
        call(&webhook, &[(2, &["ben", "cleo"]), (3, &["ben", "cleo"]), (4, &["ben", "cleo", "ada"])]);
        assert_eq!(finish(&webhook).problems, ["ada is online and was told"]);
    }

    #[test]
    fn a_call_that_cannot_be_read_fails_the_run() {
        let webhook = WebhookDouble::start().unwrap();
        let mut connection = TcpStream::connect(webhook.address).unwrap();
        write!(connection, "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nnope").unwrap();
        assert_eq!(connection.read(&mut [0; 16]).unwrap_or_default(), 0, "the connection ends");
        let end = Instant::now() + Duration::from_secs(60);
        while webhook.shared.ledger().problems.is_empty() {
            assert!(Instant::now() < end, "the call is a problem");
            std::thread::yield_now();
        }
        assert!(!webhook.finish(&[], 1, 0, Duration::ZERO).balances());
    }
}
