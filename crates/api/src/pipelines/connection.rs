//! The task of one connection: it writes all requests that wait in one write, and hands out responses in the order of the requests.

use super::{
    Unanswered,
    response::{self, First, Response},
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    task::yield_now,
    time::{Instant, Sleep, sleep_until, timeout},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests and answers are small: a leader that has not answered by then is not going to.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept: half as long as the leader keeps it, so that no request meets its close.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The port of an address without one.
const PORT: u16 = 80;
/// Requests that are put in one write, in bytes; the last may go beyond.
const WRITE_BYTES: usize = 64 * 1024;
/// The room of a read, in bytes.
const READ_BYTES: usize = 16 * 1024;
/// The pause after a first failure, before the next connection is tried. It doubles with each further failure, up to the longest one.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// When connections to a leader that failed are tried again. Until then requests are refused at once: nothing else would reach a leader that
/// cannot be connected to or is silent, and whoever waits for it takes a place from requests for others.
#[derive(Default)]
pub(super) struct Pause(Mutex<PauseState>);

#[derive(Default)]
struct PauseState {
    until: Option<Instant>,
    length: Duration,
    /// Something between the nodes says responses in a form that pipelines do not read, such as a proxy that chunks them.
    is_unreadable: bool,
}

impl Pause {
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.0.lock().until.is_none_or(|until| now >= until)
    }

    /// Connections that fail together count as one failure.
    fn begin(&self, now: Instant) {
        let mut state = self.0.lock();
        if state.until.is_none_or(|until| now >= until) {
            state.length = (2 * state.length).clamp(PAUSE_FIRST, PAUSE_MAX);
            state.until = Some(now + state.length);
        }
    }

    fn reset(&self) {
        let mut state = self.0.lock();
        *state = PauseState { is_unreadable: state.is_unreadable, ..PauseState::default() };
    }

    /// Whether this leader is to be asked by the HTTP library alone.
    pub(super) fn is_unreadable(&self) -> bool {
        self.0.lock().is_unreadable
    }

    fn note_unreadable(&self) {
        self.0.lock().is_unreadable = true;
    }
}

/// The requests of a connection that have no response.
#[derive(Default)]
pub(super) struct Load(Arc<AtomicUsize>);

impl Load {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// One more, until what is returned is dropped.
    pub(super) fn begin(&self) -> Loaded {
        self.0.fetch_add(1, Ordering::Relaxed);
        Loaded(self.0.clone())
    }
}

pub(super) struct Loaded(Arc<AtomicUsize>);

impl Drop for Loaded {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request, and who waits for its response.
pub(super) struct Job {
    pub(super) bytes: Vec<u8>,
    pub(super) respond: oneshot::Sender<Result<Response, Unanswered>>,
    pub(super) load: Loaded,
    pub(super) permit: OwnedSemaphorePermit,
}

/// A request that was put into the output.
struct Waiting {
    respond: oneshot::Sender<Result<Response, Unanswered>>,
    /// Its end, in bytes since the connection began.
    end: u64,
    since: Instant,
    load: Loaded,
    permit: OwnedSemaphorePermit,
}

impl Waiting {
    /// Who asked may have gone: then the response is dropped. Who sends again at once takes a place again.
    fn end(self, response: Result<Response, Unanswered>) {
        let Waiting { respond, load, permit, .. } = self;
        drop((load, permit));
        let _ = respond.send(response);
    }
}

/// How a connection ended.
#[derive(Debug)]
enum End {
    /// It was idle for long, or nobody sends any more.
    Unused,
    /// The leader has closed it, as it may after any response.
    Closed,
    /// The leader is silent, does not speak HTTP, or has closed before its first response.
    Failed(&'static str),
}

/// Connects and serves the requests of a queue until the connection ends.
pub(super) async fn run(host: String, mut jobs: mpsc::Receiver<Job>, pause: Arc<Pause>) {
    let connected = timeout(CONNECT_TIMEOUT, connect(&host)).await;
    let Ok(Ok(stream)) = connected else {
        tracing::debug!(host, "no connection to a leader");
        pause.begin(Instant::now());
        // Other connections may be fine; where there is none, the pause says so.
        return give_back(&mut jobs).await;
    };
    let mut connection = Connection::new(stream);
    let end = poll_fn(|context| connection.poll(context, &mut jobs, &pause)).await;
    if let End::Failed(why) = end {
        tracing::debug!(host, why, "a connection to a leader failed");
        pause.begin(Instant::now());
    }
    // Before anybody is told: who sends again at once is not to come back here.
    jobs.close();
    connection.give_up();
    give_back(&mut jobs).await;
}

async fn connect(host: &str) -> std::io::Result<TcpStream> {
    // An IPv6 address has colons of its own, within brackets.
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let stream = if has_port {
        TcpStream::connect(host).await?
    } else {
        TcpStream::connect((host.trim_matches(['[', ']']), PORT)).await?
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Ends the queue. What was sent to it meanwhile is given back.
async fn give_back(jobs: &mut mpsc::Receiver<Job>) {
    jobs.close();
    while let Some(job) = jobs.recv().await {
        let Job { respond, load, permit, .. } = job;
        // Before: who sends again at once takes a place again.
        drop((load, permit));
        let _ = respond.send(Err(Unanswered::NotSent));
    }
}

/// A connection, and the requests that were put on it.
struct Connection<S> {
    stream: S,
    /// Requests that are being written, and how many bytes of them are.
    out: Vec<u8>,
    out_written: usize,
    /// Bytes that were put into `out`, and that were written, since the connection began.
    queued: u64,
    written: u64,
    waiting: VecDeque<Waiting>,
    /// What was read and not handed out is at the beginning. What is behind it was zeroed once, not for each read.
    read: Vec<u8>,
    read_bytes: usize,
    has_answered: bool,
    /// The leader has said that it executes nothing more on this connection (RFC 9112, 9.6).
    has_said_last: bool,
    idle_since: Instant,
    /// What waits is written when all tasks that are ready have run: they may send more.
    has_yielded: bool,
    /// Nobody sends any more.
    is_released: bool,
    timer: Pin<Box<Sleep>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    fn new(stream: S) -> Self {
        let now = Instant::now();
        Connection {
            stream,
            out: Vec::new(),
            out_written: 0,
            queued: 0,
            written: 0,
            waiting: VecDeque::new(),
            read: Vec::new(),
            read_bytes: 0,
            has_answered: false,
            has_said_last: false,
            idle_since: now,
            has_yielded: false,
            is_released: false,
            timer: Box::pin(sleep_until(now + ANSWER_TIMEOUT)),
        }
    }

    /// Serves requests until the connection ends.
    fn poll(&mut self, context: &mut Context<'_>, jobs: &mut mpsc::Receiver<Job>, pause: &Pause) -> Poll<End> {
        // Reads first: no request is written to a connection whose close has arrived.
        if let Poll::Ready(end) = self.poll_read(context, pause) {
            return Poll::Ready(end);
        }
        if let Poll::Ready(end) = self.poll_write(context, jobs) {
            // Responses that came before it broke are handed out.
            return Poll::Ready(match self.poll_read(context, pause) {
                Poll::Ready(end) => end,
                Poll::Pending => end,
            });
        }
        if self.is_released && self.waiting.is_empty() {
            return Poll::Ready(End::Unused);
        }
        // The timer is reset when it fires, not for each request.
        loop {
            ready!(self.timer.as_mut().poll(context));
            let now = Instant::now();
            let until = match self.waiting.front() {
                Some(first) => first.since + ANSWER_TIMEOUT,
                None => self.idle_since + IDLE_TIMEOUT,
            };
            if now >= until {
                let is_idle = self.waiting.is_empty();
                return Poll::Ready(if is_idle { End::Unused } else { End::Failed("it is silent") });
            }
            // While it is idle, too: a request may come, whose time is shorter.
            self.timer.as_mut().reset(until.min(now + ANSWER_TIMEOUT));
        }
    }

    /// Reads and hands out responses. Ready: the connection has ended.
    fn poll_read(&mut self, context: &mut Context<'_>, pause: &Pause) -> Poll<End> {
        loop {
            if self.read.len() == self.read_bytes {
                self.read.resize(self.read_bytes + READ_BYTES, 0);
            }
            let mut buffer = ReadBuf::new(&mut self.read[self.read_bytes..]);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.read_bytes += buffer.filled().len(),
                Ok(()) | Err(_) if self.has_answered || self.waiting.is_empty() => return Poll::Ready(End::Closed),
                Ok(()) | Err(_) => return Poll::Ready(End::Failed("it closes without a response")),
            }
            if let Some(end) = self.hand_out(pause) {
                return Poll::Ready(end);
            }
        }
    }

    fn hand_out(&mut self, pause: &Pause) -> Option<End> {
        let mut taken = 0;
        let end = loop {
            match response::first(&self.read[taken..self.read_bytes]) {
                Ok(Some(First { response, length, is_last })) => {
                    // A request that is not written whole has no response.
                    match self.waiting.pop_front() {
                        Some(first) if first.end <= self.written => first.end(Ok(response)),
                        unasked => {
                            self.waiting.extend(unasked);
                            break Some(End::Failed("it answers what it was not asked"));
                        }
                    }
                    taken += length;
                    if !self.has_answered {
                        self.has_answered = true;
                        pause.reset();
                    }
                    if is_last {
                        self.has_said_last = true;
                        break Some(End::Closed);
                    }
                }
                Ok(None) if self.waiting.is_empty() && taken < self.read_bytes => {
                    break Some(End::Failed("it answers what it was not asked"));
                }
                Ok(None) => break None,
                Err(response::Malformed) => {
                    pause.note_unreadable();
                    break Some(End::Failed("its response cannot be read"));
                }
            }
        };
        if taken > 0 {
            self.read.copy_within(taken..self.read_bytes, 0);
            self.read_bytes -= taken;
            if self.read_bytes == 0 {
                // The room for a long response goes with it.
                self.read.truncate(READ_BYTES);
                self.read.shrink_to_fit();
            }
            self.idle_since = Instant::now();
        }
        end
    }

    /// Writes all that waits. Ready: the connection has ended.
    fn poll_write(&mut self, context: &mut Context<'_>, jobs: &mut mpsc::Receiver<Job>) -> Poll<End> {
        loop {
            if self.out_written == self.out.len() {
                self.out.clear();
                self.out_written = 0;
                self.has_yielded = false;
            }
            if self.out_written == 0 {
                self.take(context, jobs);
                if self.out.is_empty() {
                    return Poll::Pending;
                }
                if !std::mem::replace(&mut self.has_yielded, true) {
                    // It wakes this task behind those that are ready.
                    let _ = pin!(yield_now()).poll(context);
                    return Poll::Pending;
                }
            }
            match ready!(Pin::new(&mut self.stream).poll_write(context, &self.out[self.out_written..])) {
                Ok(count) if count > 0 => {
                    self.out_written += count;
                    self.written += count as u64;
                }
                Ok(_) | Err(_) if self.has_answered => return Poll::Ready(End::Closed),
                Ok(_) | Err(_) => return Poll::Ready(End::Failed("it closes without a response")),
            }
        }
    }

    /// Puts all that waits into the output.
    fn take(&mut self, context: &mut Context<'_>, jobs: &mut mpsc::Receiver<Job>) {
        let mut since = None;
        while self.out.len() < WRITE_BYTES {
            let job = match jobs.poll_recv(context) {
                Poll::Ready(Some(job)) => job,
                Poll::Ready(None) => {
                    self.is_released = true;
                    return;
                }
                Poll::Pending => return,
            };
            let Job { bytes, respond, load, permit } = job;
            self.out.extend_from_slice(&bytes);
            self.queued += bytes.len() as u64;
            let since = *since.get_or_insert_with(Instant::now);
            self.waiting.push_back(Waiting { respond, end: self.queued, since, load, permit });
        }
    }

    /// Says to all who wait whether their request may have been executed.
    fn give_up(&mut self) {
        for waiting in self.waiting.drain(..) {
            // The leader executes no request of which a part is missing.
            let was_written = waiting.end <= self.written && !self.has_said_last;
            waiting.end(Err(if was_written { Unanswered::Lost } else { Unanswered::NotSent }));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
        sync::Semaphore,
        task::JoinHandle,
    };

    /// The leader's end of a connection, and the queue of its requests.
    struct World {
        leader: DuplexStream,
        queue: mpsc::Sender<Job>,
        load: Load,
        places: Arc<Semaphore>,
        served: JoinHandle<End>,
    }

    type Answer = oneshot::Receiver<Result<Response, Unanswered>>;

    impl World {
        /// `kernel`: the bytes that the connection takes before the leader reads.
        fn start(kernel: usize) -> World {
            let (ours, leader) = tokio::io::duplex(kernel);
            let (queue, mut jobs) = mpsc::channel(64);
            let served = tokio::spawn(async move {
                let (mut connection, pause) = (Connection::new(ours), Pause::default());
                let end = poll_fn(|context| connection.poll(context, &mut jobs, &pause)).await;
                connection.give_up();
                drop(connection);
                give_back(&mut jobs).await;
                end
            });
            World { leader, queue, load: Load::default(), places: Arc::new(Semaphore::new(64)), served }
        }

        fn ask(&self, request: &str) -> Answer {
            let (respond, answer) = oneshot::channel();
            let permit = self.places.clone().try_acquire_owned().unwrap();
            let job = Job { bytes: request.as_bytes().to_vec(), respond, load: self.load.begin(), permit };
            assert!(self.queue.try_send(job).is_ok());
            answer
        }

        /// Reads what was asked, which is this.
        async fn expect(&mut self, requests: &str) {
            let mut read = vec![0; requests.len()];
            self.leader.read_exact(&mut read).await.unwrap();
            assert_eq!(String::from_utf8(read).unwrap(), requests);
        }

        async fn say(&mut self, text: &str) {
            self.leader.write_all(text.as_bytes()).await.unwrap();
        }
    }

    fn shown(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    async fn body(answer: Answer) -> String {
        let response = answer.await.unwrap().unwrap();
        String::from_utf8(response.bytes[response.body..].to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_has_its_own_response_however_it_is_cut() {
        let mut world = World::start(1 << 20);
        let answers = ["one ", "two ", "three "].map(|request| world.ask(request));
        world.expect("one two three ").await;
        let nothing = "HTTP/1.1 204 No Content\r\n\r\n";
        let text = [shown("1").as_str(), nothing, &shown("3")].concat();
        for byte in text.as_bytes() {
            world.leader.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let [one, two, three] = answers;
        assert_eq!((body(one).await, body(two).await, body(three).await), ("1".into(), String::new(), "3".into()));
        assert_eq!((world.load.count(), world.places.available_permits()), (0, 64));
    }

    #[tokio::test(start_paused = true)]
    async fn the_response_of_who_has_gone_is_dropped_in_its_turn() {
        let mut world = World::start(1 << 20);
        let (one, two, three) = (world.ask("one "), world.ask("two "), world.ask("three "));
        drop(two);
        world.expect("one two three ").await;
        world.say(&["1", "2", "3"].map(shown).concat()).await;
        assert_eq!((body(one).await, body(three).await), ("1".into(), "3".into()));
    }

    /// How the connection ends when the leader closes after this, for the three requests that it was asked.
    async fn outcomes(said: &str) -> (End, Vec<Result<u16, Unanswered>>) {
        let mut world = World::start(1 << 20);
        let answers = ["one ", "two ", "three "].map(|request| world.ask(request));
        world.expect("one two three ").await;
        world.say(said).await;
        let World { leader, served, queue, .. } = world;
        drop(leader);
        let end = served.await.unwrap();
        assert!(queue.is_closed());
        let mut outcomes = Vec::new();
        for answer in answers {
            outcomes.push(answer.await.unwrap().map(|response| response.status));
        }
        (end, outcomes)
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_written_and_not_answered_is_lost() {
        let lost = Err(Unanswered::Lost);
        let close = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
        let one = shown("1");
        for (said, expected) in [
            (one.clone(), [Ok(200), lost, lost]),
            (one[..one.len() - 1].to_owned(), [lost; 3]),
            (String::new(), [lost; 3]),
            (format!("{one}{close}{one}"), [Ok(200), Ok(503), Err(Unanswered::NotSent)]),
            (format!("{one}{chunked}{one}"), [Ok(200), lost, lost]),
            (format!("{one}{one}{one}"), [Ok(200); 3]),
        ] {
            assert_eq!(outcomes(&said).await.1, expected, "{said:?}");
        }
        // What nobody asked for.
        for more in [one.as_str(), "HTTP/1.1 2"] {
            let (end, found) = outcomes(&format!("{one}{one}{one}{more}")).await;
            assert_eq!(found, [Ok(200); 3]);
            assert!(matches!(end, End::Failed(_)), "{end:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_written_whole_is_given_back() {
        // The leader reads nothing.
        let mut world = World::start(6);
        let answers = ["one ", "two ", "three "].map(|request| world.ask(request));
        world.expect("one ").await;
        tokio::task::yield_now().await;
        let World { leader, served, .. } = world;
        drop(leader);
        served.await.unwrap();
        let mut outcomes = Vec::new();
        for answer in answers {
            outcomes.push(answer.await.unwrap().unwrap_err());
        }
        assert_eq!(outcomes[0], Unanswered::Lost);
        assert_eq!(outcomes[2], Unanswered::NotSent);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_silent_in_the_middle_of_a_response_is_left() {
        let mut world = World::start(1 << 20);
        let began = Instant::now();
        let first = world.ask("one ");
        world.expect("one ").await;
        // Half a response is silence, too.
        world.say("HTTP/1.1 200 OK\r\n").await;
        assert_eq!(first.await.unwrap().unwrap_err(), Unanswered::Lost);
        assert_eq!(began.elapsed().as_secs(), ANSWER_TIMEOUT.as_secs());
        assert!(matches!(world.served.await.unwrap(), End::Failed(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_ends_before_the_leader_closes_it() {
        let mut world = World::start(1 << 20);
        let began = Instant::now();
        tokio::time::sleep(Duration::from_secs(29)).await;
        let answer = world.ask("one ");
        world.expect("one ").await;
        world.say(&shown("1")).await;
        assert_eq!(body(answer).await, "1");
        assert!(matches!(world.served.await.unwrap(), End::Unused));
        assert_eq!(began.elapsed().as_secs(), 29 + IDLE_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_nobody_uses_any_more_ends_with_its_last_response() {
        let mut world = World::start(1 << 20);
        let answer = world.ask("one ");
        world.expect("one ").await;
        let (queue, _) = mpsc::channel(1);
        drop(std::mem::replace(&mut world.queue, queue));
        world.say(&shown("1")).await;
        assert_eq!(body(answer).await, "1");
        assert!(matches!(world.served.await.unwrap(), End::Unused));
    }

    #[test]
    fn pauses_grow_to_the_longest_and_end_with_a_response() {
        let pause = Pause::default();
        let mut now = Instant::now();
        let mut lengths = Vec::new();
        for _ in 0..7 {
            assert!(pause.is_over(now));
            pause.begin(now);
            // The other connections fail, too.
            pause.begin(now);
            let from = now;
            while !pause.is_over(now) {
                now += Duration::from_millis(10);
            }
            lengths.push((now - from).as_millis());
        }
        assert_eq!(lengths, [50, 100, 200, 400, 800, 1_000, 1_000]);
        pause.begin(now);
        pause.reset();
        assert!(pause.is_over(now));
    }
}
