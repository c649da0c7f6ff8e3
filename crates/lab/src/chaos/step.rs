//! One step: all is well, a harm, all is well again, and the counts of everything that went on meanwhile.

use super::{
    args::ChaosArgs,
    asker::Asker,
    bounds::Bounds,
    guests::{Doors, Guests},
    harm,
    kind::Kind,
    plan::Step,
    presence::{Judge, Presence},
    pushes::{Book, Pushes},
    show,
    truth::{Stand, Truth},
    watch::{Noticed, Watch},
};
use crate::{
    LabError, Verdict,
    group::Stage,
    job::{Outcome, Pace},
    report::outcome_json,
    topology::Topology,
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

/// A step's load goes on until its end is told.
const PHASE: Duration = Duration::from_secs(3600);
/// All must be well within this, before a step and after its harm was undone.
const HEAL_TIMEOUT: Duration = Duration::from_secs(90);
/// Presence is waited for a while longer than it may take: how late it was says more than that it was late.
const LATER: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);
/// The device of a member of the group.
const MEMBERS_DEVICE: &str = "lab";

/// What all steps of a run share.
pub(super) struct Run<'a> {
    pub(super) args: &'a ChaosArgs,
    pub(super) seed: u64,
    pub(super) bounds: Bounds,
    pub(super) stage: Stage,
    pub(super) doors: Arc<Doors>,
    pub(super) book: Arc<Book>,
    pub(super) guests: Guests,
}

/// What went on beside the group.
struct Seen {
    noticed: Noticed,
    healed: bool,
    presence: Presence,
    pushes: Pushes,
    without_pushes: usize,
}

/// What is told to the threads of a step.
#[derive(Default)]
struct Enough {
    whims: AtomicBool,
    pushes: AtomicBool,
    looks: AtomicBool,
}

impl Enough {
    fn of_all(&self) {
        [&self.whims, &self.pushes, &self.looks].into_iter().for_each(|one| one.store(true, Ordering::Relaxed));
    }
}

impl Run<'_> {
    pub(super) fn step(
        &mut self,
        number: usize,
        step: &Step,
        title: &str,
        topology: &mut Topology,
    ) -> Result<(Verdict, Value), LabError> {
        let args = self.args;
        let duration_ms = PHASE.as_millis() as u64;
        let phase = self.stage.phase(Pace::Rate { per_second: args.rate, duration_ms }, args.body_bytes, 1, 1);
        let breaks_before = self.guests.breaks();
        // Who went elsewhere in an earlier step would leave the node that is to be harmed without anybody to notice.
        self.stage.load.spread()?;
        self.guests.spread(step.kinds().any(Kind::may_move_the_lead));
        self.book.begin_step();
        self.stage.load.begin(phase)?;
        let (watch, judge, enough) = (Watch::default(), Judge::new(args.nodes), Enough::default());
        let members = self.stage.online.clone();
        let beside = Beside {
            args,
            bounds: self.bounds,
            doors: &self.doors,
            book: &self.book,
            guests: &self.guests,
            members: &members,
            watch: &watch,
            judge: &judge,
            enough: &enough,
            seed: self.seed.wrapping_add(number as u64),
        };
        let load = &mut self.stage.load;
        let (outcome, seen) = std::thread::scope(|scope| {
            let watching = &watch;
            let clients = scope.spawn(move || load.finish_watched(title, |progress| watching.note(progress)));
            beside.begin(scope);
            // On this thread: processes end with the thread that started them.
            let went = beside.go_through(scope, step, topology, &|| clients.is_finished());
            enough.of_all();
            watch.enough();
            let outcome = clients.join().map_err(|_| LabError::Worker("was not understood".into()))??;
            Ok::<_, LabError>((outcome, went?))
        })?;
        let ended = topology.unexpected_ends();
        let mut breaks = self.guests.breaks();
        breaks.retain(|why, count| {
            *count -= breaks_before.get(why).copied().unwrap_or_default();
            *count > 0
        });
        println!("{title}");
        show::messages(&outcome, &seen.noticed, seen.healed);
        show::presence(&seen.presence);
        show::pushes(&seen.pushes, seen.without_pushes);
        show::guests(&breaks);
        for end in &ended {
            println!("  ! ended: {end}");
        }
        let verdict = verdict(&outcome, &seen, ended.is_empty());
        let acts: Vec<Value> = step
            .acts
            .iter()
            .map(|act| json!({ "kind": act.kind.name(), "choice": act.choice, "begins": act.begins }))
            .collect();
        let value = json!({
            "acts": acts, "noticed": seen.noticed, "healed": seen.healed, "ended": ended, "presence": seen.presence,
            "pushes": seen.pushes, "without_pushes": seen.without_pushes, "guests_lost_connections": breaks,
            "outcome": outcome_json(&outcome),
        });
        Ok((verdict, value))
    }
}

fn verdict(outcome: &Outcome, seen: &Seen, all_run: bool) -> Verdict {
    let of_messages = Verdict::of(outcome);
    let well = seen.healed && all_run && outcome.refused == 0;
    match well && seen.presence.passes() && seen.pushes.passes() {
        true => of_messages,
        false => Verdict::Failed,
    }
}

/// Everything beside the group's own messages.
#[derive(Clone, Copy)]
struct Beside<'a> {
    args: &'a ChaosArgs,
    bounds: Bounds,
    doors: &'a Doors,
    book: &'a Book,
    guests: &'a Guests,
    members: &'a [String],
    watch: &'a Watch,
    judge: &'a Judge,
    enough: &'a Enough,
    seed: u64,
}

impl<'a> Beside<'a> {
    /// Nodes are asked who is there, and to push.
    fn begin<'scope>(self, scope: &'scope std::thread::Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        for node in 0..self.doors.nodes.len() {
            let mut http = HttpClient::new(self.doors.nodes[node].0, self.doors.api_key.clone());
            scope.spawn(move || self.judge.follow(node, &mut http, || self.truth(), &self.enough.looks));
            let asker = Asker {
                doors: self.doors,
                guests: self.guests,
                book: self.book,
                node,
                per_second: self.args.pushes / self.doors.nodes.len() as f64,
                patience: self.args.patience,
            };
            let seed = self.seed.rotate_left(8 + node as u32);
            scope.spawn(move || asker.ask_on(seed, &self.enough.pushes));
        }
    }

    /// Guests, and the members of the group: they are there all the time, and come back at once.
    fn truth(&self) -> Truth {
        let mut truth = self.guests.truth();
        let started = self.watch.started();
        for member in self.members {
            let stand = Stand {
                devices: [MEMBERS_DEVICE.to_owned()].into(),
                since: self.watch.has_nobody_moved().then_some(started),
                ..Stand::default()
            };
            truth.insert(member.clone(), stand);
        }
        truth
    }

    fn go_through<'scope>(
        self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        step: &Step,
        topology: &mut Topology,
        ended: &dyn Fn() -> bool,
    ) -> Result<Seen, LabError>
    where
        'a: 'scope,
    {
        if !self.is_well(HEAL_TIMEOUT, ended) || !self.guests.await_all(HEAL_TIMEOUT) {
            return Err(LabError::Server("was not well before the step".into()));
        }
        if !self.judge.await_right(HEAL_TIMEOUT) {
            let wrong = self.judge.wrong();
            return Err(LabError::Server(format!("did not tell who is there before the step: {wrong:?}")));
        }
        self.watch.begin_harm();
        self.judge.begin_harm();
        scope.spawn(move || self.guests.have_whims(self.seed, &self.enough.whims));
        let times = harm::carry_out(step, topology, self.args.hold, self.args.restart)?;
        self.enough.whims.store(true, Ordering::Relaxed);
        self.watch.ask_again();
        let healed = self.is_well(HEAL_TIMEOUT, ended);
        let noticed = self.watch.noticed(times.harmed, times.mended);

        let bound = self.bounds.presence(step.kinds());
        self.judge.await_right((bound + LATER).saturating_sub(times.undone.elapsed()));
        let nobody_may_be_told_offline = step.kinds().all(Kind::keeps_leases);
        let mut presence = self.judge.presence(&times, bound, nobody_may_be_told_offline);
        presence.told_offline.extend(self.guests.told_offline(times.harmed));
        presence.told_changes = self.guests.told_changes();

        // In the end everybody is there, and gets what came meanwhile.
        self.guests.all_come();
        let all_came = self.guests.await_all(self.args.patience);
        self.enough.pushes.store(true, Ordering::Relaxed);
        let may_repeat = step.kinds().any(Kind::may_move_the_lead);
        let pushes = self.await_pushes(may_repeat);
        Ok(Seen { noticed, healed: healed && all_came, presence, pushes, without_pushes: self.guests.without_pushes() })
    }

    fn is_well(&self, within: Duration, ended: &dyn Fn() -> bool) -> bool {
        let asked = Instant::now();
        while !self.watch.is_well() && !ended() && asked.elapsed() < within {
            std::thread::sleep(LOOK);
        }
        self.watch.is_well()
    }

    /// Until every push has reached everybody, or nothing has for the whole of the patience.
    fn await_pushes(&self, may_repeat: bool) -> Pushes {
        let count = || self.book.pushes(|device| self.guests.is_pushed_to(device), may_repeat);
        let mut last = count();
        let mut changed = Instant::now();
        while (last.lost > 0 || last.accepted < last.asked) && changed.elapsed() < self.args.patience {
            std::thread::sleep(LOOK);
            let now = count();
            if (now.reached, now.accepted) != (last.reached, last.accepted) {
                changed = Instant::now();
            }
            last = now;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        Seen {
            noticed: Watch::default().noticed(Instant::now(), Instant::now()),
            healed: true,
            presence: Presence {
                right_s: Some(20.0),
                since_ready_s: Some(1.0),
                bound_s: 9.5,
                told_offline: Vec::new(),
                told_changes: 0,
                nobody_may_be: true,
                wrong: Vec::new(),
            },
            pushes: Pushes { asked: 1, accepted: 1, expected: 2, reached: 2, ..Pushes::default() },
            without_pushes: 0,
        }
    }

    #[test]
    fn a_step_passes_only_with_everything_right() {
        let outcome = Outcome::default();
        let is_failed = |change: &dyn Fn(&mut Seen)| {
            let mut seen = seen();
            change(&mut seen);
            verdict(&outcome, &seen, true) == Verdict::Failed
        };
        assert!(!is_failed(&|_| {}));
        assert!(is_failed(&|seen| seen.healed = false));
        assert!(is_failed(&|seen| seen.presence.since_ready_s = None), "a wrong answer at the end");
        assert!(is_failed(&|seen| seen.presence.since_ready_s = Some(9.6)), "later than the bound");
        assert!(is_failed(&|seen| seen.presence.told_offline.push("ann".into())));
        assert!(is_failed(&|seen| seen.pushes.lost = 1));
        assert!(is_failed(&|seen| seen.pushes.accepted = 0));
        assert!(is_failed(&|seen| seen.pushes.copies.doubled = 1));
        assert_eq!(verdict(&outcome, &seen(), false), Verdict::Failed, "a process ended");
    }
}
