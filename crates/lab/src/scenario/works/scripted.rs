//! Scripted clients: sessions that take the steps of a script one after another, each in a thread. A step that does not come
//! true is a fault, told with the session, the step and what came instead.

mod lua_script;
mod script_session;

use super::{Job, Surroundings, WorkResult, figures::Recorder};
use crate::{
    LabError,
    client_engine::{device::DeviceProtocol, session::user_token},
    interrupt,
    live::{LiveBlock, WorkLength},
    lock::lock,
    process,
    process::monotonic_ns,
    sampler::Sampler,
    scenario::{
        plan::script::{Script, Step, Steps},
        script_file::{Action, ExpectFile, Recipient, SendFile},
        trouble::Trouble,
    },
    setup,
};
use lua_script::LuaScript;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use script_session::{Received, ScriptSession};
use serde_json::{json, value::RawValue};
use std::{
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{PushPriority, PushRequest, PushTo};

/// A push of a script outlives the script, and not much else.
const PUSH_TTL_S: u64 = 3600;
/// How long a scripted client waits for the answer to a send, unless it says so.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a thread sleeps at most while no session is open, so that Ctrl-C ends it soon.
const SLEEP: Duration = Duration::from_millis(50);

pub(crate) struct ScriptedWorker {
    name: String,
    script: Script,
    seed: u64,
    addresses: Vec<SocketAddr>,
    http_address: SocketAddr,
    api_key: String,
    tag: String,
    users: Vec<String>,
    tokens: Vec<String>,
    /// The group of all sessions' users.
    everybody: String,
    lag_max: Duration,
}

/// A step that did not come true, in words.
type Fault = String;

impl ScriptedWorker {
    pub(crate) fn open(around: &Surroundings<'_>, name: &str, script: &Script) -> Result<Self, LabError> {
        let addresses =
            around.addresses(if script.over_websocket { DeviceProtocol::Ws } else { DeviceProtocol::Miop })?;
        let tag = process::run_tag();
        let users = setup::numbered_ids(&format!("{tag}-p"), script.sessions);
        let mut http = around.target.http();
        setup::create_users(&mut http, &users)?;
        let everybody = setup::create_group(&mut http, &format!("script-{tag}"), &users)?.id;
        let (api_key, token_key) = around.target.keys();
        let tokens = users.iter().map(|user| user_token(token_key, user)).collect();
        let seed = script.seed.unwrap_or_else(rand::random);
        Ok(ScriptedWorker {
            name: name.to_owned(),
            script: script.clone(),
            seed,
            addresses,
            http_address: around.target.address(),
            api_key: api_key.to_owned(),
            tag,
            users,
            tokens,
            everybody,
            lag_max: around.args.lag_max,
        })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let used = Sampler::start(job.server.clone(), Some(self.http_address), Vec::new());
        let live = LiveBlock::begin(&job.title, WorkLength::Unknown);
        let recorder = Mutex::new(Recorder::new(live, monotonic_ns(), self.lag_max));
        std::thread::scope(|scope| {
            for number in 0..self.script.sessions {
                let (worker, recorder) = (&*self, &recorder);
                scope.spawn(move || worker.play(number, recorder));
            }
        });
        let mut recorder = recorder.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut figures = recorder.figures(&job.title);
        (figures.samples, figures.server_cpu_seconds, figures.server_rss_bytes) = used.finish();
        let trouble = figures.problems.first().cloned().map(Trouble::Balance);
        // Sessions answer to their own clocks: that one begins late is nothing that is measured.
        figures.lag_max_ms = f64::INFINITY;
        let measured = figures.measured("steps").set("seed", self.seed).set("sessions", self.script.sessions);
        Ok(WorkResult { trouble, measured })
    }

    /// One session's steps, until one does not come true.
    fn play(&self, number: usize, recorder: &Mutex<Recorder>) {
        let mut player = Player {
            worker: self,
            number,
            random: StdRng::seed_from_u64(self.seed.wrapping_add(number as u64)),
            session: None,
            cursor: None,
            inbox: Vec::new(),
            unacknowledged: Vec::new(),
            sends: 0,
            http: None,
        };
        let fault = match &self.script.steps {
            Steps::Listed(steps) => steps.iter().try_for_each(|step| player.timed(step, recorder).map(drop)),
            Steps::Lua(program) => player.run(program, recorder),
        };
        if let Err(why) = fault
            && !interrupt::requested()
        {
            let mut recorder = lock(recorder);
            recorder.wrong(format!("script {}, session {number}, {why}", self.name));
        }
    }

    /// The other session of the pair; the last one of an odd number is paired with the one before.
    fn partner(&self, number: usize) -> &str {
        let partner = if number ^ 1 < self.users.len() { number ^ 1 } else { number.saturating_sub(1) };
        &self.users[partner]
    }
}

/// The state of one session between its steps.
struct Player<'a> {
    worker: &'a ScriptedWorker,
    number: usize,
    random: StdRng,
    session: Option<ScriptSession>,
    cursor: Option<String>,
    /// What has come and was not expected yet.
    inbox: Vec<Received>,
    /// Pushes that have come and are not acknowledged.
    unacknowledged: Vec<u64>,
    sends: u64,
    http: Option<HttpClient>,
}

impl Player<'_> {
    fn user(&self) -> &str {
        &self.worker.users[self.number]
    }

    /// Takes the steps of a program, which decides about the next when it knows what came of the one before.
    fn run(&mut self, program: &str, recorder: &Mutex<Recorder>) -> Result<(), Fault> {
        let mut script = LuaScript::new(program, self.number, self.random.random())?;
        let mut came = None;
        while let Some(step) = script.next(came)? {
            came = self.timed(&step, recorder)?;
        }
        Ok(())
    }

    /// Takes a step, and records how long it took; answers with the text that came.
    fn timed(&mut self, step: &Step, recorder: &Mutex<Recorder>) -> Result<Option<String>, Fault> {
        if interrupt::requested() {
            return Err("interrupted".into());
        }
        let began_ns = monotonic_ns();
        let result = self.take(step);
        let now_ns = monotonic_ns();
        let mut recorder = lock(recorder);
        recorder.begun(began_ns, began_ns, 0);
        if result.is_ok() && matches!(step.action, Action::Bind | Action::Send(_) | Action::Expect(_)) {
            recorder.done(began_ns, now_ns);
        }
        result.map_err(|why| format!("{}: {why}", step.name))
    }

    fn take(&mut self, step: &Step) -> Result<Option<String>, Fault> {
        match &step.action {
            Action::Bind => self.bind()?,
            Action::Wait(time) => {
                let (least, most) = (time.least.as_nanos() as u64, time.most.as_nanos() as u64);
                let drawn = self.random.random_range(least..=most);
                self.wait(Duration::from_nanos(drawn))?;
            }
            Action::Send(file) => self.send(file)?,
            Action::Push(file) => self.push(&file.body)?,
            Action::Expect(expected) => return self.expect(expected),
            Action::Acknowledge => {
                let pushes = std::mem::take(&mut self.unacknowledged);
                if pushes.is_empty() {
                    return Err("no push has come that could be acknowledged".into());
                }
                self.open_session()?.acknowledge(&pushes).map_err(|error| error.to_string())?;
            }
            Action::Disconnect => self.cursor = self.session.take().and_then(|session| session.cursor()),
        }
        Ok(None)
    }

    fn open_session(&mut self) -> Result<&mut ScriptSession, Fault> {
        self.session.as_mut().ok_or_else(|| "the client is not bound".into())
    }

    fn bind(&mut self) -> Result<(), Fault> {
        let worker = self.worker;
        let address = worker.addresses[self.number % worker.addresses.len()];
        let token = &worker.tokens[self.number];
        let bound = ScriptSession::open(address, worker.script.over_websocket, token, self.cursor.as_deref());
        self.session = Some(bound.map_err(|error| format!("not bound: {error}"))?);
        Ok(())
    }

    /// Waits, and keeps what comes meanwhile.
    fn wait(&mut self, time: Duration) -> Result<(), Fault> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if interrupt::requested() {
                return Ok(());
            }
            match self.session {
                Some(_) => self.receive(left)?,
                None => std::thread::sleep(left.min(SLEEP)),
            }
        }
        Ok(())
    }

    /// Takes what comes next into the inbox, if anything comes in time.
    fn receive(&mut self, within: Duration) -> Result<(), Fault> {
        let user = self.user().to_owned();
        let received = self.open_session()?.next(within).map_err(|error| format!("the session ended: {error}"))?;
        for one in received {
            if let Received::Push { number, .. } = &one {
                self.unacknowledged.push(*number);
            }
            // Its own messages come back to a session; nobody waits for those.
            if !matches!(&one, Received::Message { from, .. } if *from == user) {
                self.inbox.push(one);
            }
        }
        Ok(())
    }

    fn send(&mut self, SendFile { to, body, within }: &SendFile) -> Result<(), Fault> {
        let within = within.map_or(ANSWER_WITHIN, |within| within.0);
        self.sends += 1;
        let reference = self.sends;
        let id = format!("{}-{}-{reference}", self.worker.tag, self.number);
        let address = match to {
            Recipient::Partner => Ok(self.worker.partner(self.number).to_owned()),
            Recipient::Everybody => Err(self.worker.everybody.clone()),
        };
        self.open_session()?.send(reference, address, &id, text_body(body)?).map_err(|error| error.to_string())?;
        let until = Instant::now() + within;
        let is_answer = |one: &Received| matches!(one, Received::Sent(sent) if *sent == reference);
        let is_refusal =
            |one: &Received| matches!(one, Received::Refused { reference: Some(of), .. } if *of == reference);
        loop {
            if let Some(place) = self.inbox.iter().position(is_answer) {
                self.inbox.remove(place);
                return Ok(());
            }
            if let Some(place) = self.inbox.iter().position(is_refusal) {
                return Err(format!("was {}", self.inbox.remove(place)));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("no answer within {within:?}; instead came {}", self.seen()));
            }
            self.receive(left)?;
        }
    }

    fn push(&mut self, body: &str) -> Result<(), Fault> {
        let user = self.user().to_owned();
        let worker = self.worker;
        let http = self.http.get_or_insert_with(|| HttpClient::new(worker.http_address, worker.api_key.clone()));
        let request = PushRequest {
            to: PushTo { users: vec![user], ..PushTo::default() },
            content_type: "script".into(),
            body: text_body(body)?,
            ttl_s: Some(PUSH_TTL_S),
            collapse_key: None,
            priority: PushPriority::Normal,
            send_at: None,
            dry_run: false,
            client_push_id: None,
            fallback: None,
        };
        let answer: Result<serde_json::Value, _> = http.post("/v1/push", &request);
        answer.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Waits until it has come; answers with the text of the last.
    fn expect(&mut self, expected: &ExpectFile) -> Result<Option<String>, Fault> {
        let wanted = expected.count.unwrap_or(1);
        let until = Instant::now() + expected.within.0;
        let (mut came, mut text) = (0, None);
        loop {
            // Without a count the first is taken, and what comes beside it is left to later steps.
            while (expected.count.is_some() || came == 0)
                && let Some(place) = self.inbox.iter().position(|one| one.is_expected(expected))
            {
                text = self.inbox.remove(place).text();
                came += 1;
            }
            if came > wanted {
                return Err(format!("{came} came instead of {wanted}"));
            }
            if wanted > 0 && came == wanted {
                return Ok(text);
            }
            let left = until.saturating_duration_since(Instant::now());
            match (left.is_zero(), wanted) {
                (true, 0) => return Ok(None),
                (true, _) => {
                    let within = expected.within.0;
                    return Err(format!("{came} of {wanted} came within {within:?}; instead came {}", self.seen()));
                }
                (false, _) => self.receive(left)?,
            }
        }
    }

    /// What has come and was not expected, in words.
    fn seen(&self) -> String {
        if self.inbox.is_empty() {
            "nothing".into()
        } else {
            self.inbox.iter().map(Received::to_string).collect::<Vec<_>>().join(", ")
        }
    }
}

fn text_body(text: &str) -> Result<Box<RawValue>, Fault> {
    RawValue::from_string(json!({ "text": text }).to_string()).map_err(|error| error.to_string())
}
