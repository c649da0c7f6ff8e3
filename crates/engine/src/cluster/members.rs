//! Who is in the cluster, and who leads: leases in the store, by its clock.
//!
//! A node that cannot reach the store keeps its last view of the others, and leads no longer than its own clock
//! says that its lease runs.

use super::{
    bus::Bus,
    log::{Beat, BeatError, CommitLog, Member},
    wire::Message,
};
use crate::{
    metrics::Metrics,
    store::{StoreError, Term},
};
use parking_lot::{Condvar, Mutex, RwLock};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Leases are renewed so many times before they end.
const BEATS_PER_LEASE: u32 = 5;
/// The leader stops so much before its lease ends, as a part of the lease: clocks do not run alike.
const LEAD_MARGIN: f64 = 0.3;
/// Names that are remembered because they were heard.
const HEARD_MAX: usize = 1_024;

#[derive(Default)]
struct View {
    members: Vec<Member>,
    leader: Option<u64>,
    trouble: Option<String>,
    stopping: bool,
}

/// This node's time as the leader: asked for often, and so without a lock.
struct Tenure {
    began: Instant,
    /// By our own clock, in milliseconds since `began`.
    until_ms: AtomicU64,
    /// 0: this node does not lead.
    term: AtomicU64,
}

impl Default for Tenure {
    fn default() -> Self {
        Tenure { began: Instant::now(), until_ms: AtomicU64::new(0), term: AtomicU64::new(0) }
    }
}

impl Tenure {
    fn set(&self, term: Option<Term>, until: Instant) {
        // Who sees the new end sees its term.
        self.term.store(term.map_or(0, |term| term.0), Ordering::Release);
        let until_ms = until.saturating_duration_since(self.began).as_millis() as u64;
        self.until_ms.store(if term.is_some() { until_ms } else { 0 }, Ordering::Release);
    }

    fn runs(&self) -> bool {
        (self.began.elapsed().as_millis() as u64) < self.until_ms.load(Ordering::Acquire)
    }

    fn term(&self) -> Option<Term> {
        Some(Term(self.term.load(Ordering::Acquire))).filter(|term| *term != Term::ALONE)
    }
}

pub struct Members {
    me: Member,
    /// Where this node's doors are, once they are open: for HTTP, and for links.
    doors: RwLock<Option<(String, String)>>,
    lease: Duration,
    may_lead: bool,
    view: RwLock<View>,
    tenure: Tenure,
    /// The bus' names of the others, ready for use.
    others: RwLock<Arc<[Arc<str>]>>,
    /// Who told of itself over the bus lately.
    heard: Mutex<HashMap<Arc<str>, Instant>>,
    sleep: (Mutex<bool>, Condvar),
    log: Arc<dyn CommitLog>,
    bus: Arc<dyn Bus>,
    metrics: Arc<Metrics>,
}

impl Members {
    pub(crate) fn new(
        me: Member,
        lease: Duration,
        may_lead: bool,
        (log, bus): (Arc<dyn CommitLog>, Arc<dyn Bus>),
        metrics: Arc<Metrics>,
    ) -> Members {
        Members {
            me,
            doors: RwLock::default(),
            lease,
            may_lead,
            view: RwLock::default(),
            tenure: Tenure::default(),
            others: RwLock::new(Arc::new([])),
            heard: Mutex::default(),
            sleep: (Mutex::new(false), Condvar::new()),
            log,
            bus,
            metrics,
        }
    }

    /// How long a node counts that is not heard.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    pub fn me(&self) -> &Member {
        &self.me
    }

    /// The doors are open: others hear where.
    pub fn tell_doors(&self, address: String, link: String) {
        *self.doors.write() = Some((address, link));
        self.wake();
    }

    pub(crate) fn others(&self) -> Arc<[Arc<str>]> {
        self.others.read().clone()
    }

    pub fn all(&self) -> Vec<Member> {
        self.view.read().members.clone()
    }

    /// Whether this node does now what one does for all.
    pub fn leads(&self) -> bool {
        self.tenure.runs()
    }

    /// The term that this node has, as far as it has heard.
    pub(crate) fn term(&self) -> Option<Term> {
        self.tenure.term()
    }

    /// Whether nobody else can have the lead in the place of this term.
    pub(crate) fn holds(&self, term: Term) -> bool {
        self.tenure.runs() && self.tenure.term() == Some(term)
    }

    /// The node that leads, as far as is known.
    pub fn leader(&self) -> Option<Member> {
        let view = self.view.read();
        view.members.iter().find(|member| Some(member.boot_id) == view.leader).cloned()
    }

    /// Why this node is no good member now, if it is not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.view.read().trouble.clone()
    }

    /// A node told of itself, before the store did or because it cannot reach the store.
    pub(crate) fn heard_of(&self, name: &str, boot_id: u64) {
        if name != self.me.name {
            let mut heard = self.heard.lock();
            heard.retain(|_, at| at.elapsed() < self.lease);
            if heard.len() < HEARD_MAX {
                heard.insert(name.into(), Instant::now());
            }
        }
        if self.view.read().members.iter().any(|member| member.name == name && member.boot_id != boot_id) {
            // A successor: the view of it need not wait either.
            self.wake();
        }
        if name != self.me.name && !self.others.read().iter().any(|other| &**other == name) {
            let mut others = self.others.write();
            *others = others.iter().cloned().chain([name.into()]).collect();
            drop(others);
            // The others' view of it comes with the next beat, which need not wait.
            self.wake();
        }
    }

    fn beat(&self, took: bool) -> Result<(), BeatError> {
        let started = Instant::now();
        let mut me = self.me.clone();
        if let Some((address, link)) = self.doors.read().clone() {
            (me.address, me.link) = (address, link);
        }
        let beat = self.log.beat(&me, self.lease.as_millis() as u64, self.may_lead, took)?;
        self.see(beat, started);
        Ok(())
    }

    fn see(&self, beat: Beat, started: Instant) {
        let names = beat.members.iter().filter(|member| member.boot_id != self.me.boot_id);
        let mut names: BTreeSet<Arc<str>> = names.map(|member| member.name.as_str().into()).collect();
        // Cut off from the store and from nothing else: its sessions still get what others commit.
        let heard = self.heard.lock();
        names.extend(heard.iter().filter(|(_, at)| at.elapsed() < self.lease).map(|(name, _)| name.clone()));
        drop(heard);
        let others: Arc<[Arc<str>]> = names.into_iter().collect();
        let known: BTreeSet<Arc<str>> = self.others.read().iter().cloned().collect();
        let new: Vec<Arc<str>> = others.iter().filter(|name| !known.contains(*name)).cloned().collect();
        *self.others.write() = others;
        let mut view = self.view.write();
        let led = view.leader == Some(self.me.boot_id);
        let is_mine = beat.leader == Some(self.me.boot_id);
        self.tenure.set(is_mine.then_some(beat.term), started + self.lease.mul_f64(1.0 - LEAD_MARGIN));
        (view.members, view.leader, view.trouble) = (beat.members, beat.leader, None);
        let leads = view.leader == Some(self.me.boot_id);
        self.metrics.cluster.nodes.set(view.members.len() as i64);
        self.metrics.cluster.leader.set(i64::from(leads));
        drop(view);
        if leads != led {
            tracing::info!(leads, "the lead of the cluster has changed");
        }
        self.say_hello(&new);
    }

    fn say_hello(&self, to: &[Arc<str>]) {
        if !to.is_empty() {
            let hello = Message::Hello { name: self.me.name.clone(), boot_id: self.me.boot_id };
            self.bus.send(to, hello.encode());
        }
    }

    fn wake(&self) {
        *self.sleep.0.lock() = true;
        self.sleep.1.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.view.write().stopping = true;
        self.wake();
    }

    /// Beats, on a thread of its own, until it is stopped or displaced.
    pub(crate) fn run(&self, displaced: impl Fn()) {
        // The first beat takes the name, so that an earlier process of it stops.
        let mut takes_name = true;
        loop {
            if self.view.read().stopping {
                let _ = self.log.goodbye(self.me.boot_id);
                return;
            }
            match self.beat(takes_name) {
                Ok(()) => takes_name = false,
                Err(BeatError::Displaced) => {
                    tracing::error!(name = self.me.name, "another process has taken this node's name: this one drains");
                    let mut view = self.view.write();
                    view.trouble = Some("another process has taken this node's name".into());
                    view.leader = None;
                    self.tenure.set(None, Instant::now());
                    drop(view);
                    displaced();
                    return;
                }
                Err(BeatError::Store(error)) => {
                    self.note(&error);
                    // They see no lease of it any more, and would send nothing.
                    self.say_hello(&self.others());
                }
            }
            let mut awake = self.sleep.0.lock();
            if !std::mem::take(&mut *awake) {
                self.sleep.1.wait_for(&mut awake, self.lease / BEATS_PER_LEASE);
                *awake = false;
            }
        }
    }

    fn note(&self, error: &StoreError) {
        let mut view = self.view.write();
        if view.trouble.is_none() {
            tracing::warn!(%error, "the lease in the cluster could not be renewed");
        }
        view.trouble = Some(format!("the lease in the cluster could not be renewed: {error}"));
    }
}
