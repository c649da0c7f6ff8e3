//! The thread that runs the exchange, and the inbox that the bus fills.

use super::{
    PresenceMessage,
    exchange::{Effect, Exchange, Recipients, StepContext, SyncProgress},
};
use crate::{
    cluster::{ClusterContext, nodes::ClusterNodes, wire::BusMessage},
    presence::deltas::DeltaQueue,
    shards::Signal,
    worker_thread::WorkerThread,
};
use crossbeam_channel::{Receiver, Sender, bounded, select};
use std::{
    convert::Infallible,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_domain::{bus::Bus, function::Function, metrics::Metrics};

/// Messages in the inbox. More are dropped; the exchange then asks for what is missing.
const INBOX_MAX: usize = 512;
/// Messages taken from the inbox before this node sends anything.
const MESSAGES_PER_TURN: usize = 64;
/// Changes are gathered for so long, so that a storm of them costs few messages.
const COALESCE_FOR: Duration = Duration::from_millis(5);
/// How often the nodes of the cluster are looked up.
const VIEW_EVERY: Duration = Duration::from_millis(100);

/// A node that has just started waits so long for silent peers: they may have died with it, or the bus is down. Then it
/// answers with what it knows.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Messages of peers on their way to the thread.
#[derive(Clone)]
pub(crate) struct PresenceInbox {
    messages: Sender<Vec<u8>>,
    has_gap: Arc<AtomicBool>,
}

impl PresenceInbox {
    pub(crate) fn push(&self, bytes: Vec<u8>) {
        if self.messages.try_send(bytes).is_err() {
            self.has_gap.store(true, Ordering::Relaxed);
        }
    }

    /// The bus may have lost messages.
    pub(crate) fn on_gap(&self) {
        self.has_gap.store(true, Ordering::Relaxed);
        // An empty message does nothing but wake the thread.
        let _ = self.messages.try_send(Vec::new());
    }
}

/// The engine's handle of the thread.
pub(crate) struct PresenceThread {
    inbox: PresenceInbox,
    messages: Receiver<Vec<u8>>,
    is_synced: Arc<AtomicBool>,
    running: OnceLock<WorkerThread>,
}

impl Default for PresenceThread {
    fn default() -> Self {
        let (sender, messages) = bounded(INBOX_MAX);
        let inbox = PresenceInbox { messages: sender, has_gap: Arc::default() };
        PresenceThread { inbox, messages, is_synced: Arc::default(), running: OnceLock::new() }
    }
}

impl PresenceThread {
    pub(crate) fn inbox(&self) -> PresenceInbox {
        self.inbox.clone()
    }

    /// Whether this node has heard which sessions its peers have. Before, it would report their users as offline.
    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Relaxed)
    }

    pub(crate) fn start(
        &self,
        context: ClusterContext,
        nodes: Arc<ClusterNodes>,
        bus: Arc<dyn Bus>,
        metrics: Arc<Metrics>,
    ) {
        let (messages, has_gap) = (self.messages.clone(), self.inbox.has_gap.clone());
        let is_synced = self.is_synced.clone();
        let run = move |stopped: Receiver<Infallible>| {
            if let Some(deltas) = &context.presence.deltas {
                let exchange = Exchange::new(nodes.me().clone(), nodes.lease(), Instant::now());
                ExchangeLoop {
                    context: &context,
                    nodes: &nodes,
                    bus: &*bus,
                    metrics: &metrics,
                    deltas,
                    exchange,
                    has_gap: &has_gap,
                    flush_at: None,
                    started: Instant::now(),
                    is_synced: &is_synced,
                }
                .run(&messages, &stopped);
            }
        };
        let _ = self.running.set(WorkerThread::start("presence-nodes", 1, run));
    }

    /// Sends the changes that wait, and ends.
    pub(crate) fn stop(&self) {
        self.running.get().into_iter().for_each(WorkerThread::stop);
    }
}

struct ExchangeLoop<'a> {
    context: &'a ClusterContext,
    nodes: &'a ClusterNodes,
    bus: &'a dyn Bus,
    metrics: &'a Metrics,
    deltas: &'a DeltaQueue,
    exchange: Exchange,
    has_gap: &'a AtomicBool,
    /// When the changes that wait are sent.
    flush_at: Option<Instant>,
    started: Instant,
    is_synced: &'a AtomicBool,
}

impl ExchangeLoop<'_> {
    fn run(mut self, messages: &Receiver<Vec<u8>>, stopped: &Receiver<Infallible>) {
        let woken = self.deltas.wakeups();
        let mut view_at = Instant::now();
        loop {
            let due = self.flush_at.map_or(view_at, |flush_at| flush_at.min(view_at)).min(self.exchange.due());
            select! {
                recv(stopped) -> _ => break,
                recv(woken) -> _ => {
                    self.flush_at.get_or_insert(Instant::now() + COALESCE_FOR);
                }
                recv(messages) -> bytes => {
                    let more = messages.try_iter().take(MESSAGES_PER_TURN);
                    bytes.into_iter().chain(more).for_each(|bytes| self.on_message(&bytes));
                }
                default(due.saturating_duration_since(Instant::now())) => {}
            }
            if self.has_gap.swap(false, Ordering::Relaxed) {
                self.step(|exchange, context| exchange.on_gap(context));
            }
            if Instant::now() >= view_at {
                view_at = Instant::now() + VIEW_EVERY;
                self.update_view();
            }
            self.flush_when_due();
            self.step(Exchange::tick);
        }
        self.flush_at = Some(Instant::now());
        self.flush_when_due();
    }

    fn step(&mut self, step: impl FnOnce(&mut Exchange, &StepContext<'_>)) {
        let context = StepContext {
            presence: &self.context.presence,
            metrics: &self.metrics.cluster,
            now: Instant::now(),
            now_ms: self.context.clock.now_ms(),
            leads: self.nodes.leads(Function::Presence),
            session_limits: self.context.session_limits,
        };
        step(&mut self.exchange, &context);
        for effect in self.exchange.take_effects() {
            match effect {
                Effect::Send(to, message) => self.send(&to, &message),
                Effect::ReplaceSession(user, session) => {
                    self.context.shards.signal(user, Signal::Replaced { session });
                }
            }
        }
    }

    fn send(&self, to: &Recipients, message: &PresenceMessage) {
        let encoded = || BusMessage::Presence(message.encode()).encode();
        match to {
            Recipients::AllPeers => {
                let peers = self.nodes.peers();
                if !peers.is_empty() {
                    self.bus.send(&peers, encoded());
                }
            }
            Recipients::Some(names) => drop(self.bus.send(names, encoded())),
        }
    }

    fn update_view(&mut self) {
        let nodes = self.nodes.all();
        // Before the first heartbeat is answered no node is known, not even this one.
        if !nodes.is_empty() {
            self.step(|exchange, context| exchange.on_view(&nodes, context));
            self.update_synced();
        }
    }

    fn update_synced(&self) {
        if self.is_synced.load(Ordering::Relaxed) {
            return;
        }
        let is_synced = match self.exchange.progress() {
            SyncProgress::Complete => true,
            SyncProgress::Receiving => false,
            SyncProgress::Silent => self.started.elapsed() >= SILENCE_MAX,
        };
        self.is_synced.store(is_synced, Ordering::Relaxed);
    }

    fn on_message(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let Some(message) = PresenceMessage::decode(bytes) else {
            self.metrics.cluster.unknown.inc();
            return;
        };
        if !self.exchange.is_known(&message) {
            self.update_view();
        }
        self.step(|exchange, context| exchange.on_message(message, context));
        self.update_synced();
    }

    /// While the bus is down, changes wait for it, up to the bound of [`DeltaQueue`].
    fn flush_when_due(&mut self) {
        let is_due = self.flush_at.is_some_and(|flush_at| Instant::now() >= flush_at);
        if !is_due {
            return;
        }
        if !self.bus.is_up() {
            self.flush_at = Some(Instant::now() + VIEW_EVERY);
            return;
        }
        self.flush_at = None;
        let taken = self.deltas.take();
        self.step(|exchange, _| exchange.send_changes(taken));
    }
}
