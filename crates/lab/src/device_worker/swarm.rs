//! The devices of one worker and the loop that drives them: connecting, binding, heartbeats, pushes, coming back.

mod hearing;

use super::{
    device::{Device, Stage, Tls, connect},
    plan::{Due, Plan},
    pushes::PushBook,
    retry::{Ending, Next, wait_ms},
    wheel::{TICK_MS, Wheel},
    wire::{put_beat, put_bind, put_greeting},
};
use crate::{
    devices::{
        job::{OpenDevices, Via},
        tally::{PROBLEMS_MAX, Spread, Tally},
    },
    process::monotonic_ns,
    worker::{histogram, record},
};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token, event::Event};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use tidings_client::token;

/// One buffer for all reads.
const BUFFER_BYTES: usize = 256 * 1024;
/// Connects that are begun before events are looked at again.
const BEGIN_MAX: usize = 64;
/// The first port that devices of a loopback client use; device `n` uses the `n`th from here.
const FIRST_PORT: usize = 2_000;
/// Source addresses that a device goes through, connection by connection.
const GENERATIONS: u8 = 250;
/// Tokens outlive any run.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Wakes the loop for a command.
pub(crate) const WAKER: Token = Token(usize::MAX);

pub(crate) struct Swarm {
    poll: Poll,
    events: Option<Events>,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
    open: OpenDevices,
    tls: Option<Tls>,
    devices: Vec<Device>,
    tokens: Tokens,
    wheel: Wheel,
    due: Vec<u32>,
    born_ns: u64,
    pub(crate) plan: Plan,
    under_way: usize,
    /// More devices were due than may be under way: what starts late then is the server's doing.
    held_back: bool,
    pub(crate) settling: bool,
    pub(crate) silent: bool,
    pub(crate) count: Tally,
    bind: Histogram<u64>,
    lateness: Histogram<u64>,
    beat: Histogram<u64>,
    pushes: PushBook,
}

/// Every device's token, made beforehand: signing is not what a run measures.
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

impl Swarm {
    pub(crate) fn new(open: OpenDevices, poll: Poll) -> io::Result<Self> {
        let tls = match (open.via, &open.certificate) {
            (Via::Miops, Some(certificate)) => Some(Tls::trusting(certificate)?),
            (Via::Miops, None) => return Err(io::Error::other("miops needs the server's certificate")),
            _ => None,
        };
        let mut tokens = Tokens { text: String::new(), ends: Vec::with_capacity(open.count) };
        for number in 0..open.count {
            tokens.text += &token::sign(&open.token_key, &name(&open, number), TOKEN_LIFETIME);
            tokens.ends.push(tokens.text.len() as u32);
        }
        let devices = (0..open.count).map(|number| Device::new(first_door(&open, number))).collect();
        Ok(Swarm {
            poll,
            events: Some(Events::with_capacity(4096)),
            buffer: vec![0; BUFFER_BYTES],
            scratch: Vec::new(),
            tls,
            devices,
            tokens,
            wheel: Wheel::new(),
            due: Vec::new(),
            born_ns: monotonic_ns(),
            plan: Plan::default(),
            under_way: 0,
            held_back: false,
            settling: false,
            silent: false,
            count: Tally { devices: open.count as u64, ..Tally::default() },
            bind: histogram(),
            lateness: histogram(),
            beat: histogram(),
            pushes: PushBook::new(&open.tag),
            open,
        })
    }

    /// Devices that have no live connection, all of them to be connected by a plan.
    pub(crate) fn take_missing(&mut self) -> Vec<u32> {
        let missing: Vec<u32> = (0..self.devices.len() as u32)
            .filter(|device| matches!(self.devices[*device as usize].stage, Stage::Idle | Stage::GivenUp))
            .collect();
        for device in &missing {
            self.devices[*device as usize].stage = Stage::Queued;
        }
        missing
    }

    /// A new measurement of connecting begins.
    pub(crate) fn begin_measurement(&mut self) {
        self.bind.reset();
        self.lateness.reset();
        self.held_back = false;
        self.count.given_up = 0;
        (self.count.attempts, self.count.bound) = (0, 0);
        (self.count.first_planned_ns, self.count.last_bound_ns) = (0, 0);
        self.count.failures.clear();
    }

    /// Closes every connection.
    pub(crate) fn drop_all(&mut self) {
        for device in &mut self.devices {
            self.count.beats_cut_off += u64::from(device.beat_ns != 0);
            device.beat_ns = 0;
            device.close();
            device.stage = Stage::Idle;
            device.attempts = 0;
        }
        self.count.live = 0;
        self.under_way = 0;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.count.live + self.count.given_up == self.count.devices
    }

    /// Waits for events and handles them, and does what is due.
    pub(crate) fn turn(&mut self, longest: Duration) -> io::Result<()> {
        let begun_all = self.begin_due();
        self.look_at_wheel();
        let now = monotonic_ns();
        let mut timeout = longest.min(Duration::from_millis(TICK_MS));
        if !begun_all {
            timeout = Duration::ZERO;
        } else if !self.is_full()
            && let Some(wait) = self.plan.wait_ns(now)
        {
            timeout = timeout.min(Duration::from_nanos(wait));
        }
        let Some(mut events) = self.events.take() else { return Ok(()) };
        let polled = self.poll.poll(&mut events, Some(timeout));
        if polled.is_ok() {
            for event in events.iter().filter(|event| event.token() < WAKER) {
                self.handle(event);
            }
        }
        self.events = Some(events);
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn is_full(&self) -> bool {
        self.under_way >= self.open.under_way_max
    }

    /// Begins what is due and has room; answers whether that was all that can be begun now.
    fn begin_due(&mut self) -> bool {
        for _ in 0..BEGIN_MAX {
            let now = monotonic_ns();
            let is_due = self.plan.wait_ns(now) == Some(0);
            self.held_back = is_due && (self.held_back || self.is_full());
            if self.is_full() {
                return true;
            }
            let Some(Due { device, planned_ns }) = self.plan.take(now) else { return true };
            if let Some(planned) = planned_ns {
                self.devices[device as usize].planned_ns = planned;
                if !self.held_back && self.plan.is_paced() {
                    record(&mut self.lateness, planned, now);
                }
                if self.count.first_planned_ns == 0 {
                    self.count.first_planned_ns = self.plan.start_ns();
                }
            }
            self.begin(device);
        }
        false
    }

    /// Queued => Opening or Binding.
    fn begin(&mut self, number: u32) {
        self.count.attempts += 1;
        self.under_way += 1;
        let index = number as usize;
        let result = self.try_begin(index);
        if let Err(error) = result {
            // No port or no descriptor is this client's own trouble; the server's would come as an event.
            if !matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ) {
                self.count.lab_troubles += 1;
                self.problem(format!("device {index} could not begin to connect: {error}"));
            }
            self.ended(index, Ending::of(&error));
        }
    }

    fn try_begin(&mut self, index: usize) -> io::Result<()> {
        let device = &mut self.devices[index];
        device.stage = Stage::Binding;
        device.seen.new_connection();
        device.due = self.wheel.put(index as u32, self.open.attempt_ms);
        device.generation = device.generation % GENERATIONS + 1;
        let door = self.open.doors[usize::from(device.door) % self.open.doors.len()];
        let (a, b) = self.open.source;
        let source = match door.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => {
                let from = Ipv4Addr::new(127, a, b, device.generation);
                Some(SocketAddr::from((from, (FIRST_PORT + index) as u16)))
            }
            _ => None,
        };
        let mut stream = connect(door, source)?;
        self.poll.registry().register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
        device.open(stream, self.tls.as_ref())?;
        self.scratch.clear();
        if self.open.mute {
            return Ok(());
        }
        if put_greeting(self.open.via, &mut self.scratch) {
            device.stage = Stage::Opening;
        } else {
            self.put_bind(index);
        }
        // On loopback the connection stands already; elsewhere the bytes wait for it.
        self.devices[index].send(&self.scratch)
    }

    fn put_bind(&mut self, index: usize) {
        let id = name(&self.open, index);
        put_bind(self.open.via, &mut self.scratch, self.tokens.get(index), &id, self.open.heartbeat_s);
    }

    fn handle(&mut self, event: &Event) {
        let index = event.token().0;
        let Some(device) = self.devices.get_mut(index) else { return };
        if device.stream.is_none() {
            return;
        }
        if let Err(ending) = self.serve(index, event) {
            self.ended(index, ending);
        }
    }

    /// Opening, Binding or Live => Waiting or GivenUp.
    fn ended(&mut self, index: usize, ending: Ending) {
        let device = &mut self.devices[index];
        device.close();
        self.count.beats_cut_off += u64::from(device.beat_ns != 0);
        device.beat_ns = 0;
        if device.stage == Stage::Live {
            self.count.live -= 1;
            device.planned_ns = monotonic_ns();
            *self.count.breaks.entry(ending.cause.clone()).or_default() += 1;
        } else {
            self.under_way -= 1;
            *self.count.failures.entry(ending.cause.clone()).or_default() += 1;
        }
        device.attempts += 1;
        match ending.next {
            Next::Elsewhere => device.door = (device.door + 1) % self.open.doors.len() as u16,
            Next::After { door: Some(door), .. } => device.door = door,
            _ => {}
        }
        if self.silent {
            device.stage = Stage::Idle;
        } else if self.open.mute {
            device.stage = Stage::GivenUp;
            self.count.given_up += 1;
        } else if ending.next == Next::Never || u32::from(device.attempts) >= self.open.attempts_max {
            device.stage = Stage::GivenUp;
            self.count.given_up += 1;
            self.problem(format!("device {index} gave up: {}", ending.cause));
        } else {
            device.stage = Stage::Waiting;
            device.due = self.wheel.put(index as u32, wait_ms(device.attempts, ending.next));
        }
    }

    fn look_at_wheel(&mut self) {
        let now_ms = (monotonic_ns() - self.born_ns) / 1_000_000;
        let mut due = std::mem::take(&mut self.due);
        while let Some(tick) = self.wheel.advance(now_ms, &mut due) {
            for number in due.drain(..) {
                if self.devices[number as usize].due == tick {
                    self.come_up(number);
                }
            }
        }
        self.due = due;
    }

    fn come_up(&mut self, number: u32) {
        let index = number as usize;
        let device = &mut self.devices[index];
        match device.stage {
            Stage::Waiting => {
                device.stage = Stage::Queued;
                self.plan.again(number);
            }
            Stage::Opening | Stage::Binding => self.ended(index, Ending::new("timeout", Next::Elsewhere)),
            Stage::Live if self.silent => {}
            Stage::Live if device.beat_ns != 0 => {
                device.beat_ns = 0;
                self.count.beats_unanswered += 1;
                self.ended(index, Ending::new("heartbeat unanswered", Next::Same));
            }
            Stage::Live if self.settling => device.due = self.wheel.put(number, beat_every_ms(device) / 10),
            Stage::Live => {
                device.beat_ns = monotonic_ns();
                device.due = self.wheel.put(number, beat_every_ms(device));
                self.count.beats_sent += 1;
                self.scratch.clear();
                put_beat(self.open.via, &mut self.scratch);
                if let Err(error) = self.devices[index].send(&self.scratch) {
                    self.ended(index, Ending::of(&error));
                }
            }
            Stage::Idle | Stage::Queued | Stage::GivenUp => {}
        }
    }

    pub(crate) fn beats_pending(&self) -> u64 {
        self.devices.iter().filter(|device| device.beat_ns != 0).count() as u64
    }

    pub(crate) fn devices_with(&self, push: usize) -> u64 {
        self.pushes.devices_with(push)
    }

    pub(crate) fn tally(&self) -> Tally {
        let (pushes, push) = self.pushes.counts();
        Tally {
            bind: Spread::of(&self.bind),
            lateness: Spread::of(&self.lateness),
            beat: Spread::of(&self.beat),
            beats_pending: self.beats_pending(),
            pushes,
            push,
            altered: self.pushes.altered,
            ..self.count.clone()
        }
    }

    fn problem(&mut self, what: String) {
        if self.count.problems.len() < PROBLEMS_MAX {
            self.count.problems.push(what);
        }
    }
}

/// Where a device begins.
fn first_door(open: &OpenDevices, number: usize) -> u16 {
    let (number, doors) = (open.first + number, open.doors.len().max(1));
    let door = match open.crowd_at_first_door {
        Some(crowd) if number < crowd || doors == 1 => 0,
        Some(_) => 1 + number % (doors - 1),
        None => number % doors,
    };
    door as u16
}

fn name(open: &OpenDevices, number: usize) -> String {
    format!("{}-{}", open.tag, open.first + number)
}

/// A little more often than the server asks for.
fn beat_every_ms(device: &Device) -> u64 {
    u64::from(device.heartbeat_ms) * 9 / 10
}
