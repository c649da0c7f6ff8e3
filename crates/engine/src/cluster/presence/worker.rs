//! The thread that says and hears, and the inbox that the bus puts into.

use super::{
    Said,
    exchange::{Act, Around, Exchange, Progress, To},
};
use crate::{
    cluster::{Cluster, wire::BusMessage},
    engine::Engine,
    hub::Signal,
    presence::news::News,
};
use crossbeam_channel::{Receiver, Sender, bounded, select};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Messages that wait to be taken in. Above, they are let go, and what is missing is asked for.
const HEARD_MAX: usize = 512;
/// Messages taken in before anything is said.
const HEARD_PER_TURN: usize = 64;
/// Changes are gathered for so long, so that a storm costs few messages.
const GATHER: Duration = Duration::from_millis(5);
/// Between looks at who is in the cluster.
const SEE_EVERY: Duration = Duration::from_millis(100);

/// A node that has just started waits for so long for those that say nothing: they may have died with it, or the bus is
/// away. Then it answers by what it knows.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Where what was heard waits.
#[derive(Clone)]
pub(crate) struct PresenceInbox {
    heard: Sender<Vec<u8>>,
    lost: Arc<AtomicBool>,
}

impl PresenceInbox {
    pub(crate) fn push(&self, bytes: Vec<u8>) {
        if self.heard.try_send(bytes).is_err() {
            self.lost.store(true, Ordering::Relaxed);
        }
    }

    /// The bus may have lost something.
    pub(crate) fn on_gap(&self) {
        self.lost.store(true, Ordering::Relaxed);
        // It wakes the thread, and says nothing.
        let _ = self.heard.try_send(Vec::new());
    }
}

/// The engine's hold on the thread.
pub(crate) struct PresenceThread {
    inbox: PresenceInbox,
    heard: Receiver<Vec<u8>>,
    knows: Arc<AtomicBool>,
    running: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Default for PresenceThread {
    fn default() -> Self {
        let (sender, heard) = bounded(HEARD_MAX);
        let inbox = PresenceInbox { heard: sender, lost: Arc::default() };
        PresenceThread { inbox, heard, knows: Arc::default(), running: Mutex::default() }
    }
}

impl PresenceThread {
    pub(crate) fn inbox(&self) -> PresenceInbox {
        self.inbox.clone()
    }

    /// Whether this node has heard who is online on the others. Before, it would tell them offline.
    pub(crate) fn is_synced(&self) -> bool {
        self.knows.load(Ordering::Relaxed)
    }

    pub(crate) fn start(&self, engine: &Arc<Engine>) {
        let (engine, heard, lost) = (engine.clone(), self.heard.clone(), self.inbox.lost.clone());
        let knows = self.knows.clone();
        let (stop, stopped) = bounded(1);
        let run = move || {
            if let (Some(cluster), Some(news)) = (&engine.cluster, &engine.presence.news) {
                let me = cluster.nodes.me().clone();
                let exchange = Exchange::new(me, cluster.nodes.lease(), Instant::now());
                let (started, lost, knows) = (Instant::now(), &*lost, &*knows);
                Turns { engine: &engine, cluster, news, exchange, lost, tell: None, started, knows }
                    .run(&heard, &stopped);
            }
        };
        match std::thread::Builder::new().name("presence-nodes".into()).spawn(run) {
            Ok(thread) => *self.running.lock() = Some((stop, thread)),
            Err(error) => tracing::error!(%error, "no thread for presence over nodes"),
        }
    }

    /// Says what is left to say, and ends.
    pub(crate) fn stop(&self) {
        if let Some((stop, thread)) = self.running.lock().take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

struct Turns<'a> {
    engine: &'a Engine,
    cluster: &'a Cluster,
    news: &'a News,
    exchange: Exchange,
    lost: &'a AtomicBool,
    /// When what waits is said.
    tell: Option<Instant>,
    started: Instant,
    knows: &'a AtomicBool,
}

impl Turns<'_> {
    fn run(mut self, heard: &Receiver<Vec<u8>>, stopped: &Receiver<()>) {
        let woken = self.news.woken();
        let mut see = Instant::now();
        loop {
            let due = self.tell.map_or(see, |tell| tell.min(see)).min(self.exchange.due());
            select! {
                recv(stopped) -> _ => break,
                recv(woken) -> _ => {
                    self.tell.get_or_insert(Instant::now() + GATHER);
                }
                recv(heard) -> bytes => {
                    bytes.into_iter().chain(heard.try_iter().take(HEARD_PER_TURN)).for_each(|bytes| self.hear(&bytes));
                }
                default(due.saturating_duration_since(Instant::now())) => {}
            }
            if self.lost.swap(false, Ordering::Relaxed) {
                self.step(|exchange, around| exchange.missed(around));
            }
            if Instant::now() >= see {
                see = Instant::now() + SEE_EVERY;
                self.see();
            }
            self.tell_when_due();
            self.step(Exchange::tick);
        }
        self.tell = Some(Instant::now());
        self.tell_when_due();
    }

    fn step(&mut self, step: impl FnOnce(&mut Exchange, &Around<'_>)) {
        let around = Around {
            presence: &self.engine.presence,
            metrics: &self.engine.metrics.cluster,
            now: Instant::now(),
            now_ms: self.engine.clock.now_ms(),
            leads: self.engine.is_leader(),
            sessions_per_kind: self.engine.config.sessions_per_kind.max(1),
        };
        step(&mut self.exchange, &around);
        for act in self.exchange.take_acts() {
            match act {
                Act::Say(to, said) => self.say(&to, &said),
                Act::Replace(user, session) => {
                    self.engine.lanes.shards().signal(user, Signal::Replaced { session });
                }
            }
        }
    }

    fn say(&self, to: &To, said: &Said) {
        let message = || BusMessage::Presence(said.encode()).encode();
        match to {
            To::All => {
                let others = self.cluster.nodes.peers();
                if !others.is_empty() {
                    self.cluster.bus.send(&others, message());
                }
            }
            To::Some(names) => drop(self.cluster.bus.send(names, message())),
        }
    }

    fn see(&mut self) {
        let nodes = self.cluster.nodes.all();
        // Before the first answer of the store nobody is known, not even ourselves.
        if !nodes.is_empty() {
            self.step(|exchange, around| exchange.see(&nodes, around));
            self.look_whether_all_is_known();
        }
    }

    fn look_whether_all_is_known(&self) {
        if self.knows.load(Ordering::Relaxed) {
            return;
        }
        let knows = match self.exchange.progress() {
            Progress::All => true,
            Progress::Coming => false,
            Progress::Silence => self.started.elapsed() >= SILENCE_MAX,
        };
        self.knows.store(knows, Ordering::Relaxed);
    }

    fn hear(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let Some(said) = Said::decode(bytes) else {
            self.engine.metrics.cluster.unknown.inc();
            return;
        };
        if !self.exchange.knows(&said) {
            self.see();
        }
        self.step(|exchange, around| exchange.hear(said, around));
        self.look_whether_all_is_known();
    }

    /// While the bus is down, what there is to say waits for it, up to its bound.
    fn tell_when_due(&mut self) {
        let is_due = self.tell.is_some_and(|tell| Instant::now() >= tell);
        if !is_due {
            return;
        }
        if !self.cluster.bus.is_up() {
            self.tell = Some(Instant::now() + SEE_EVERY);
            return;
        }
        self.tell = None;
        let taken = self.news.take();
        self.step(|exchange, _| exchange.tell(taken));
    }
}
