//! The devices of one worker: connects, binds, heartbeats, pushes, reconnects. The reactor drives their sockets.

mod receive;
mod visits;

use super::{
    backoff::{ConnectionEnd, RetryTarget, backoff_ms},
    connect_schedule::{ConnectSchedule, DueConnect},
    device::{Device, DeviceState},
    push_verifier::PushVerifier,
};
use crate::{
    LabError,
    client_engine::{
        device::{DeviceBind, DeviceProtocol, put_bind, put_heartbeat},
        reactor::Reactor,
        session::user_token,
        tls::TlsTrust,
    },
    clock::machine_ns,
    devices::{device_counts::DeviceCounts, worker_protocol::DeviceWorkerConfig},
    latency::Latencies,
    problems::Problems,
    process,
    series::SeriesRecorder,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use tidings_client::session::CONNECT_PATH;
use visits::Visits;

/// Connects that are started before events are handled again.
const CONNECTS_PER_TURN_MAX: usize = 64;
/// The first source port on the loopback; device `n` uses this port plus `n`.
const FIRST_PORT: usize = 2_000;
/// The number of source addresses that a device uses in turn, one per connection.
const GENERATIONS: u8 = 250;

pub(crate) struct DevicePool {
    config: DeviceWorkerConfig,
    trust: Option<TlsTrust>,
    devices: Vec<Device>,
    tokens: Tokens,
    /// When the device that is bound just now is to send its first heartbeat, or to go.
    first_timer_ms: Option<u64>,
    pub(crate) schedule: ConnectSchedule,
    connecting: usize,
    /// More devices are due than may connect at a time: late connects are then the server's delay, not the lab's.
    limited_by_server: bool,
    pub(crate) settling: bool,
    pub(crate) heartbeats_stopped: bool,
    /// Devices come and go.
    visits: Option<Visits>,
    pub(crate) counts: DeviceCounts,
    bind: Latencies,
    lateness: Latencies,
    heartbeat: Latencies,
    series: SeriesRecorder,
    pushes: PushVerifier,
}

/// Every device's token, signed before the run: a run must not measure signing.
struct Tokens {
    text: String,
    ends: Vec<u32>,
}

impl Tokens {
    fn get(&self, device: usize) -> &str {
        let start = if device == 0 { 0 } else { self.ends[device - 1] as usize };
        &self.text[start..self.ends[device] as usize]
    }
}

impl DevicePool {
    pub(crate) fn new(config: DeviceWorkerConfig) -> io::Result<Self> {
        let trust = match (config.via, &config.certificate) {
            // Self-signed, and valid for this name.
            (DeviceProtocol::Miops, Some(certificate)) => {
                Some(TlsTrust::of("localhost", certificate.as_bytes()).map_err(io::Error::other)?)
            }
            (DeviceProtocol::Miops, None) => return Err(io::Error::other("miops needs the server's certificate")),
            _ => None,
        };
        let mut tokens = Tokens { text: String::new(), ends: Vec::with_capacity(config.count) };
        for number in 0..config.count {
            tokens.text += &user_token(&config.token_key, &user_id(&config, number));
            tokens.ends.push(tokens.text.len() as u32);
        }
        let devices = (0..config.count).map(|number| Device::new(first_listener(&config, number))).collect();
        Ok(DevicePool {
            trust,
            devices,
            tokens,
            first_timer_ms: None,
            schedule: ConnectSchedule::default(),
            connecting: 0,
            limited_by_server: false,
            settling: false,
            heartbeats_stopped: false,
            visits: None,
            counts: DeviceCounts { devices: config.count as u64, ..DeviceCounts::default() },
            bind: Latencies::default(),
            lateness: Latencies::default(),
            heartbeat: Latencies::default(),
            series: SeriesRecorder::new(machine_ns()),
            pushes: PushVerifier::new(&config.tag),
            config,
        })
    }

    /// Takes the devices without a connection, for a schedule to connect.
    pub(crate) fn take_unconnected(&mut self) -> Vec<u32> {
        let missing: Vec<u32> = (0..self.devices.len() as u32)
            .filter(|device| matches!(self.devices[*device as usize].state, DeviceState::Idle | DeviceState::GivenUp))
            .collect();
        for device in &missing {
            self.devices[*device as usize].state = DeviceState::Queued;
        }
        missing
    }

    /// Starts a new measurement of connects, which begin at this time.
    pub(crate) fn reset_measurement(&mut self, start_ns: u64) {
        self.series = SeriesRecorder::new(start_ns);
        (self.bind, self.lateness) = Default::default();
        self.limited_by_server = false;
        self.counts.given_up = 0;
        (self.counts.attempts, self.counts.bound) = (0, 0);
        (self.counts.first_planned_ns, self.counts.last_bound_ns) = (0, 0);
        self.counts.failures.clear();
    }

    /// Closes every connection.
    pub(crate) fn disconnect_all(&mut self, reactor: &mut Reactor) {
        for (index, device) in self.devices.iter_mut().enumerate() {
            reactor.close(index);
            reactor.clear_timer(index);
            self.counts.heartbeats_cut_off += u64::from(device.heartbeat_sent_ns != 0);
            device.heartbeat_sent_ns = 0;
            device.state = DeviceState::Idle;
            device.attempts = 0;
        }
        self.counts.live = 0;
        self.connecting = 0;
        self.visits = None;
        self.schedule = ConnectSchedule::default();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.counts.live + self.counts.given_up == self.counts.devices
    }

    /// Starts due connects, and has a turn of the reactor.
    pub(crate) fn poll_once(&mut self, reactor: &mut Reactor, timeout_max: Duration) -> Result<(), LabError> {
        let all_started = self.start_due_connects(reactor);
        let now = machine_ns();
        let mut timeout = timeout_max;
        if !all_started {
            timeout = Duration::ZERO;
        } else if !self.is_at_connecting_max()
            && let Some(wait) = self.schedule.wait_ns(now)
        {
            timeout = timeout.min(Duration::from_nanos(wait));
        }
        reactor.turn(timeout, self)
    }

    fn is_at_connecting_max(&self) -> bool {
        self.connecting >= self.config.connecting_max
    }

    /// Starts connects that are due; returns whether no more can be started now.
    fn start_due_connects(&mut self, reactor: &mut Reactor) -> bool {
        for _ in 0..CONNECTS_PER_TURN_MAX {
            let now = machine_ns();
            let is_due = self.schedule.wait_ns(now) == Some(0);
            // A visitor that is kept out by those before it waits for the server, too: they stay from when they are bound.
            self.limited_by_server =
                is_due && (self.limited_by_server || self.is_at_connecting_max()) || self.schedule.lacks_device(now);
            if self.is_at_connecting_max() {
                return true;
            }
            let Some(DueConnect { device, planned_ns }) = self.schedule.take_due(now) else { return true };
            if let Some(planned) = planned_ns {
                self.devices[device as usize].due_ns = planned;
                let is_punctual = !self.limited_by_server && self.schedule.is_open_loop();
                if is_punctual {
                    self.lateness.record(planned, now);
                }
                self.series.planned(planned);
                self.series.sent(now, if is_punctual { now.saturating_sub(planned) } else { 0 });
                if self.counts.first_planned_ns == 0 {
                    self.counts.first_planned_ns = self.schedule.start_ns();
                }
            }
            self.start_connect(reactor, device);
        }
        false
    }

    /// Queued => Opening or Binding.
    fn start_connect(&mut self, reactor: &mut Reactor, number: u32) {
        self.counts.attempts += 1;
        self.connecting += 1;
        let index = number as usize;
        let result = self.try_connect(reactor, index);
        if let Err(error) = result {
            // A missing port or descriptor is the lab's failure; one of the server would show as an event.
            if !matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ) {
                self.counts.client_failures += 1;
                self.counts.problems.note(format!("device {index} could not begin to connect: {error}"));
            }
            self.handle_end(reactor, index, error.into());
        }
    }

    fn try_connect(&mut self, reactor: &mut Reactor, index: usize) -> io::Result<()> {
        let device = &mut self.devices[index];
        device.state = DeviceState::Binding;
        device.received.new_connection();
        reactor.set_timer(index, self.config.attempt_ms);
        device.generation = device.generation % GENERATIONS + 1;
        let listener = self.config.listeners[usize::from(device.listener) % self.config.listeners.len()];
        let (a, b) = self.config.source;
        let source = match listener.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => {
                let from = Ipv4Addr::new(127, a, b, device.generation);
                Some(SocketAddr::from((from, (FIRST_PORT + index) as u16)))
            }
            _ => None,
        };
        reactor.connect_from(index, listener, source, self.trust.as_ref())?;
        if self.config.never_binds {
            return Ok(());
        }
        let out = reactor.out(index);
        if self.config.via == DeviceProtocol::Ws {
            device.state = DeviceState::Opening;
            device.websocket.begin(CONNECT_PATH, out);
        } else {
            self.put_bind(index, out);
        }
        // On the loopback the connection is established already; elsewhere the bytes are kept until it is.
        reactor.flush();
        Ok(())
    }

    fn put_bind(&self, index: usize, out: &mut Vec<u8>) {
        let id = user_id(&self.config, index);
        let bind = DeviceBind {
            token: self.tokens.get(index),
            device_id: &id,
            device_kind: "bench",
            // A visitor's session is that of an app: pushes are for devices that stay, and counted by these.
            pushes: self.visits.is_none(),
            chats: self.visits.is_some(),
            heartbeat_s: Some(self.config.heartbeat_s),
        };
        put_bind(self.config.via, out, &bind);
    }

    /// Opening, Binding or Live => Waiting or GivenUp.
    fn handle_end(&mut self, reactor: &mut Reactor, index: usize, ending: ConnectionEnd) {
        reactor.close(index);
        let device = &mut self.devices[index];
        self.counts.heartbeats_cut_off += u64::from(device.heartbeat_sent_ns != 0);
        device.heartbeat_sent_ns = 0;
        if device.state == DeviceState::Live {
            self.counts.live -= 1;
            device.due_ns = machine_ns();
            *self.counts.disconnects.entry(ending.cause.clone()).or_default() += 1;
        } else {
            self.connecting -= 1;
            *self.counts.failures.entry(ending.cause.clone()).or_default() += 1;
        }
        device.attempts += 1;
        match ending.next {
            RetryTarget::NextListener => device.listener = (device.listener + 1) % self.config.listeners.len() as u16,
            RetryTarget::After { listener: Some(listener), .. } => device.listener = listener,
            _ => {}
        }
        if self.visits.is_some() {
            (device.state, device.attempts) = (DeviceState::Queued, 0);
            reactor.clear_timer(index);
            self.schedule.free(index as u32);
        } else if self.heartbeats_stopped {
            device.state = DeviceState::Idle;
        } else if self.config.never_binds {
            device.state = DeviceState::GivenUp;
            self.counts.given_up += 1;
        } else if ending.next == RetryTarget::Never || u32::from(device.attempts) >= self.config.attempts_max {
            device.state = DeviceState::GivenUp;
            self.counts.given_up += 1;
            self.counts.problems.note(format!("device {index} gave up: {}", ending.cause));
        } else {
            device.state = DeviceState::Waiting;
            reactor.set_timer(index, backoff_ms(device.attempts, ending.next));
        }
    }

    fn handle_timer(&mut self, reactor: &mut Reactor, index: usize) {
        let device = &mut self.devices[index];
        match device.state {
            DeviceState::Waiting => {
                device.state = DeviceState::Queued;
                self.schedule.requeue(index as u32);
            }
            DeviceState::Opening | DeviceState::Binding => {
                self.handle_end(reactor, index, ConnectionEnd::new("timeout", RetryTarget::NextListener))
            }
            DeviceState::Live if self.visits.is_some() && machine_ns() >= device.due_ns => self.leave(reactor, index),
            // The baseline gets no heartbeats.
            DeviceState::Live if self.heartbeats_stopped || self.config.bare => {}
            DeviceState::Live if device.heartbeat_sent_ns != 0 => {
                device.heartbeat_sent_ns = 0;
                self.counts.heartbeats_unanswered += 1;
                let ending = ConnectionEnd::new("heartbeat unanswered", RetryTarget::SameListener);
                self.handle_end(reactor, index, ending);
            }
            DeviceState::Live if self.settling => reactor.set_timer(index, heartbeat_interval_ms(device) / 10),
            DeviceState::Live => {
                let now = machine_ns();
                device.heartbeat_sent_ns = now;
                let mut next = heartbeat_interval_ms(device);
                if self.visits.is_some() {
                    next = next.min(device.due_ns.saturating_sub(now) / 1_000_000);
                }
                reactor.set_timer(index, next);
                self.counts.heartbeats_sent += 1;
                put_heartbeat(self.config.via, reactor.out(index));
            }
            DeviceState::Idle | DeviceState::Queued | DeviceState::GivenUp => {}
        }
    }

    pub(crate) fn heartbeats_pending(&self) -> u64 {
        self.devices.iter().filter(|device| device.heartbeat_sent_ns != 0).count() as u64
    }

    pub(crate) fn devices_with(&self, push: usize) -> u64 {
        self.pushes.devices_with(push)
    }

    /// The counts with the connects over time, which are many.
    pub(crate) fn counts_with_series(&self) -> DeviceCounts {
        DeviceCounts { series: vec![self.series.counts()], ..self.current_counts() }
    }

    pub(crate) fn current_counts(&self) -> DeviceCounts {
        let (pushes, push) = self.pushes.counts();
        DeviceCounts {
            bind: self.bind.counts(),
            lateness: self.lateness.counts(),
            heartbeat: self.heartbeat.counts(),
            heartbeats_pending: self.heartbeats_pending(),
            pushes,
            push,
            altered: self.pushes.altered,
            first_planned_ns: self.of_bench(self.counts.first_planned_ns),
            last_bound_ns: self.of_bench(self.counts.last_bound_ns),
            client_cpu_seconds: process::cpu_seconds(std::process::id()),
            ..self.counts.clone()
        }
    }

    /// A time of this machine's clock by that of the bench; 0 is none.
    pub(crate) fn of_bench(&self, here_ns: u64) -> u64 {
        if here_ns == 0 { 0 } else { here_ns.wrapping_add_signed(-self.config.clock_ahead_ns) }
    }

    /// A time of the bench's clock by that of this machine.
    pub(crate) fn of_here(&self, bench_ns: u64) -> u64 {
        bench_ns.wrapping_add_signed(self.config.clock_ahead_ns)
    }
}

/// The listener that a device connects to first.
fn first_listener(config: &DeviceWorkerConfig, number: usize) -> u16 {
    let (number, listeners) = (config.first + number, config.listeners.len().max(1));
    let listener = match config.first_listener_devices {
        Some(crowd) if number < crowd || listeners == 1 => 0,
        Some(_) => 1 + number % (listeners - 1),
        None => number % listeners,
    };
    listener as u16
}

fn user_id(config: &DeviceWorkerConfig, number: usize) -> String {
    format!("{}-{}", config.tag, config.first + number)
}

/// The interval of heartbeats: a little shorter than the server asks for.
fn heartbeat_interval_ms(device: &Device) -> u64 {
    u64::from(device.heartbeat_ms) * 9 / 10
}
