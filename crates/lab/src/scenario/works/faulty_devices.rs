//! Faults that no device should commit, and the documented answer to each.

use super::{
    Job, Surroundings, WorkResult,
    devices::{
        figures::PresenceCheck,
        set::{ATTEMPT, worker_config},
    },
};
use crate::{
    LabError,
    client_engine::session::user_token,
    devices::{
        device_clients::DeviceClients,
        invalid_frames,
        memory::Memory,
        raw_connection::{RawConnection, ServerAnswer, bind_frame},
        worker_protocol::{DeviceCommand, DeviceWorkerConfig},
    },
    options::AgentsArgs,
    process::{self, ServerProcesses},
    result::{Check, Measurement, RunResult, filled},
    scenario::{plan::population::FaultyDeviceSpec, trouble::Trouble},
    server::{OwnServer, Target},
    setup,
};
use serde::Serialize;
use serde_json::json;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use tidings_protocol::miop::{Frame, HEARTBEAT};

/// The memory that allocators may retain after a load, although it was freed.
const RETAINED_BYTES_MAX: i64 = 32 * 1024 * 1024;
/// The number of users of single connections; each connection takes the next one, so that no session replaces another.
const USERS: usize = 2_000;
/// The interval at which the devices, or the server's gauge of connections, are read again.
const COUNT_INTERVAL: Duration = Duration::from_millis(50);
/// The longest wait for the server's own time-outs: the bind deadline, and the longest silence.
const SERVER_PATIENCE: Duration = Duration::from_secs(120);

/// One kind of fault and its result.
#[derive(Debug, Serialize)]
struct FaultStep {
    name: String,
    passed: bool,
    #[serde(rename = "said")]
    detail: String,
}

/// The devices, and the users of single connections.
pub(crate) struct FaultyDeviceWorker {
    spec: FaultyDeviceSpec,
    config: DeviceWorkerConfig,
    address: SocketAddr,
    api_key: String,
    patience: Duration,
    /// The lab has started the server, and can start another one.
    is_own: bool,
    /// Of the server, and of another one.
    settings: Vec<(String, String)>,
    next_user: usize,
}

impl FaultyDeviceWorker {
    pub(crate) fn open(around: &Surroundings<'_>, spec: &FaultyDeviceSpec) -> Result<Self, LabError> {
        let tag = process::run_tag();
        setup::create_numbered_users(&mut around.target.http(), &tag, USERS.max(spec.silent))?;
        // The server must end the attempts, not this client.
        let attempt_ms = 2 * SERVER_PATIENCE.as_millis() as u64;
        let config = DeviceWorkerConfig { attempt_ms, heartbeat_s: 1, ..worker_config(around, &spec.devices, &tag)? };
        Ok(FaultyDeviceWorker {
            spec: spec.clone(),
            config,
            address: around.target.address(),
            api_key: around.target.keys().0.to_owned(),
            patience: around.args.patience,
            is_own: matches!(around.target, Target::Own(_)),
            settings: around.settings.to_vec(),
            next_user: 0,
        })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        let before = Memory::now(&job.server, &[]);
        let gauge_before = self.connections()?;
        let mut steps = vec![
            self.cut_frames()?,
            self.split_binds()?,
            self.invalid_frames()?,
            self.sockets_that_never_bind()?,
            self.stopped_heartbeats()?,
        ];
        steps.push(self.resources_released(&job.server, &before, gauge_before)?);
        if self.is_own {
            steps.push(self.out_of_descriptors()?);
        }
        let mut measured = Measurement::of(&job.title, &json!({ "steps": steps }));
        for FaultStep { name, passed, detail } in &steps {
            measured = measured
                .remark(format!("{:<13} {name}: {detail}", if *passed { "passed" } else { "FAILED" }))
                .check(Check::of_server(name, "is answered as documented", *passed).value(&**detail));
        }
        let failed = steps.iter().find(|step| !step.passed);
        let trouble = failed.map(|step| Trouble::Balance(format!("{}: {}", step.name, step.detail)));
        Ok(WorkResult { trouble, measured })
    }

    /// A server of the lab's own has no other sessions.
    pub(crate) fn conclude(&self, result: &mut RunResult) -> Result<(), LabError> {
        if self.is_own {
            PresenceCheck::compare(self.http())?.record(result);
        }
        Ok(())
    }

    fn http(&self) -> HttpClient {
        HttpClient::new(self.address, &self.api_key)
    }

    fn connect(&self) -> Result<RawConnection, LabError> {
        Ok(RawConnection::connect(self.config.listeners[0], self.patience)?)
    }

    /// The bind frame of the next user's device.
    fn next_bind(&mut self) -> Vec<u8> {
        let user = format!("{}-{}", self.config.tag, self.next_user % USERS);
        self.next_user += 1;
        bind_frame(&user_token(&self.config.token_key, &user), &user)
    }

    fn bind_new_device(&mut self) -> Result<RawConnection, LabError> {
        let bind = self.next_bind();
        let mut connection = self.connect()?;
        connection.send(&bind);
        match connection.receive(self.patience)? {
            ServerAnswer::Bound => Ok(connection),
            other => Err(LabError::Server(format!("answered a good bind with {other}"))),
        }
    }

    /// Sends each frame cut at every byte, and disconnects.
    fn cut_frames(&mut self) -> Result<FaultStep, LabError> {
        let mut count = 0;
        let bind = self.next_bind();
        for cut in 0..bind.len() {
            self.connect()?.send(&bind[..cut]);
            count += 1;
        }
        let frames = [
            Frame::Heartbeat { interval_s: Some(300) },
            Frame::Ack { pushes: vec![1, 1_000_000] },
            Frame::Chat { json: b"{\"t\":\"ping\"}" },
            Frame::Unbind { reason: Some("bye") },
        ];
        for frame in frames {
            let bytes = frame.to_bytes();
            for cut in 0..bytes.len() {
                self.bind_new_device()?.send(&bytes[..cut]);
                count += 1;
            }
        }
        let detail = format!("{count} connections, each ended within a frame");
        self.step("frames cut at every byte, then gone", true, detail)
    }

    /// Sends binds and heartbeats in two chunks, which must be answered as usual.
    fn split_binds(&mut self) -> Result<FaultStep, LabError> {
        let mut answers = BTreeMap::new();
        for cut in 1..self.next_bind().len() {
            let bind = self.next_bind();
            let mut connection = self.connect()?;
            connection.send(&bind[..cut.min(bind.len())]);
            connection.send(&bind[cut.min(bind.len())..]);
            connection.send(&HEARTBEAT[..1]);
            connection.send(&HEARTBEAT[1..]);
            let answer = (connection.receive(self.patience)?, connection.receive(self.patience)?);
            *answers.entry(format!("{} and {}", answer.0, answer.1)).or_insert(0) += 1;
        }
        let passed = answers.keys().all(|answer| answer == "bound and heartbeat");
        self.step("a bind cut at every byte, then the rest", passed, format_counts(&answers))
    }

    /// Sends invalid frames, and those that no device may send: each must end the connection with the documented code.
    fn invalid_frames(&mut self) -> Result<FaultStep, LabError> {
        let vectors = invalid_frames::load_all(&self.spec.vectors)?;
        let mut wrong = Vec::new();
        for vector in &vectors {
            let mut connection = if vector.bound_first { self.bind_new_device()? } else { self.connect()? };
            connection.send(&vector.bytes);
            let answer = connection.receive(self.patience)?;
            let as_stated = match (&answer, &vector.code) {
                (ServerAnswer::Refused(code), Some(stated)) => code == stated,
                (ServerAnswer::Refused(_), None) => true,
                _ => false,
            };
            // After the refusal the server must close the connection.
            if !as_stated || connection.receive(self.patience)? != ServerAnswer::Closed {
                wrong.push(format!("{}: {answer}", vector.name));
            }
        }
        let detail = if wrong.is_empty() {
            format!("{} vectors, each refused with its code and closed", vectors.len())
        } else {
            format!("{} of {} vectors: {}", wrong.len(), vectors.len(), wrong.join("; "))
        };
        self.step("invalid frames", wrong.is_empty(), detail)
    }

    /// Opens sockets that never send a byte: each must be refused with `bind_timeout`.
    fn sockets_that_never_bind(&mut self) -> Result<FaultStep, LabError> {
        // All connect at once: since none of them binds, a limit on concurrent connects would stop the rest.
        let count = self.spec.devices.devices;
        let config = DeviceWorkerConfig { never_binds: true, connecting_max: count, count, ..self.config.clone() };
        let mut clients = DeviceClients::open(&config, 1, &AgentsArgs::default())?;
        let within_ms = SERVER_PATIENCE.as_millis() as u64;
        let counts = clients.run("never bound", &DeviceCommand::Connect { per_second: None, within_ms })?;
        let timed_out = counts.failures.get("bind_timeout").copied().unwrap_or(0);
        let detail = format!("{} sockets: {}", counts.devices, format_counts(&counts.failures));
        self.step("sockets that never bind", timed_out == counts.devices, detail)
    }

    /// Stops the heartbeats of devices: each must be ended with `heartbeat_timeout`.
    fn stopped_heartbeats(&mut self) -> Result<FaultStep, LabError> {
        let silent = DeviceWorkerConfig { count: self.spec.silent, ..self.config.clone() };
        let mut clients = DeviceClients::open(&silent, 1, &AgentsArgs::default())?;
        let within_ms = SERVER_PATIENCE.as_millis() as u64;
        clients.run("binding", &DeviceCommand::Connect { per_second: None, within_ms })?;
        clients.run("falling silent", &DeviceCommand::StopHeartbeats)?;
        let until = Instant::now() + SERVER_PATIENCE;
        let mut counts = clients.count()?;
        while counts.live > 0 && Instant::now() < until {
            std::thread::sleep(COUNT_INTERVAL);
            counts = clients.count()?;
        }
        let timed_out = counts.disconnects.get("heartbeat_timeout").copied().unwrap_or(0);
        let detail = format!("{} devices: {}", counts.devices, format_counts(&counts.disconnects));
        self.step("heartbeats that stop", timed_out == counts.devices, detail)
    }

    /// Checks that the gauge of connections is back at its first value, and memory close to it.
    fn resources_released(
        &mut self,
        server: &ServerProcesses,
        before: &Memory,
        gauge_before: Option<u64>,
    ) -> Result<FaultStep, LabError> {
        let until = Instant::now() + self.patience;
        let mut gauge = self.connections()?;
        while gauge != gauge_before && Instant::now() < until {
            std::thread::sleep(COUNT_INTERVAL);
            gauge = self.connections()?;
        }
        let after = Memory::now(server, &[]);
        let grown = after.server_bytes() as i64 - before.server_bytes() as i64;
        let number = |gauge: Option<u64>| gauge.map_or("unknown".to_owned(), |count| count.to_string());
        let detail = format!(
            "connections {} -> {}, memory {:+.1} MiB of {:.1}",
            number(gauge_before),
            number(gauge),
            grown as f64 / 1_048_576.0,
            before.server_bytes() as f64 / 1_048_576.0
        );
        self.step("back to where it was", gauge == gauge_before && grown <= RETAINED_BYTES_MAX, detail)
    }

    /// The server's gauge of open connections, if it has one.
    fn connections(&self) -> Result<Option<u64>, LabError> {
        let answer = self.http().exchange("GET", "/metrics", b"")?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("tidings_connections "));
        Ok(line.and_then(|value| value.trim().parse().ok()))
    }

    /// The result of a step, after which the server must be ready and bind a new device.
    fn step(&mut self, name: &str, passed: bool, detail: String) -> Result<FaultStep, LabError> {
        let alive = self.http().is_ready() && self.bind_new_device().is_ok();
        let detail = if alive { detail } else { format!("{detail}; the server does not bind any more") };
        Ok(FaultStep { name: name.to_owned(), passed: passed && alive, detail })
    }

    /// Connects more devices than a server of their own has descriptors. Devices beyond the limit must be refused with `queue_full`,
    /// HTTP must answer, bound devices must stay, and when they have left, others must be bound.
    fn out_of_descriptors(&self) -> Result<FaultStep, LabError> {
        let own = OwnServer::start_with(self.settings.clone(), Some(self.spec.descriptors))?;
        let count = 2 * self.spec.descriptors as usize;
        let tag = process::run_tag();
        let listeners = own.listen_address("miop").into_iter().collect();
        let server = Target::Own(Box::new(own));
        setup::create_numbered_users(&mut server.http(), &tag, count)?;
        let config = DeviceWorkerConfig {
            listeners,
            token_key: server.keys().1.to_owned(),
            tag,
            count,
            attempts_max: 1,
            attempt_ms: ATTEMPT.as_millis() as u64,
            heartbeat_s: self.spec.devices.heartbeat.as_secs().max(1),
            ..self.config.clone()
        };
        let within_ms = SERVER_PATIENCE.as_millis() as u64;
        let connect = DeviceCommand::Connect { per_second: None, within_ms };
        let mut clients = DeviceClients::open(&config, 1, &AgentsArgs::default())?;
        let full = clients.run("more than fit", &connect)?;
        let refused = full.failures.get("queue_full").copied().unwrap_or(0);
        let http = server.http().is_ready();
        let stayed = clients.run("settling", &DeviceCommand::Settle { within_ms })?;
        drop(clients);
        let few = DeviceWorkerConfig { count: (full.live / 2).max(1) as usize, attempts_max: 40, ..config };
        let again = DeviceClients::open(&few, 1, &AgentsArgs::default())?.run("room again", &connect)?;
        let passed = full.live > 0
            && refused > 0
            && full.live + refused == full.devices
            && http
            && stayed.disconnects.is_empty()
            && again.live == again.devices;
        let detail = format!(
            "{} devices at {} descriptors: bound {}, {}; HTTP {}; broken {}; afterwards bound {} of {}",
            full.devices,
            self.spec.descriptors,
            full.live,
            format_counts(&full.failures),
            if http { "answers" } else { "does NOT answer" },
            stayed.disconnects.values().sum::<u64>(),
            again.live,
            again.devices
        );
        let check = server.finish()?;
        let sound = check.is_none_or(|check| check.passed);
        Ok(FaultStep { name: "the limit of descriptors".into(), passed: passed && sound, detail })
    }
}

fn format_counts(causes: &BTreeMap<String, u64>) -> String {
    filled("{causes}", &json!({ "causes": causes }))
}
