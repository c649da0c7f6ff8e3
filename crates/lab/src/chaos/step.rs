//! One step: waits for a healthy cluster, injects and reverts faults, waits for recovery, and verifies the counts of all that
//! happened meanwhile.

use super::{
    args::ChaosArgs,
    client_monitor::ClientMonitor,
    expected_presence::{ExpectedPresence, ExpectedUser},
    fault_injector,
    fault_kind::FaultKind,
    fault_plan::ChaosStep,
    feature_traffic::FeatureTraffic,
    guests::{GuestConfig, Guests},
    observations::{Observations, checks_of},
    output,
    presence_bounds::PresenceBounds,
    presence_verifier::PresenceVerifier,
    push_requester::PushRequester,
    push_verifier::{PushResult, PushVerifier},
};
use crate::{
    LabError, live, message_clients::MessageClients, rate_profile::RateProfile, result::RunResult, topology::Topology,
    worker_protocol::LoadModel,
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Longer than any step: the load is stopped at the end of the step.
const PHASE_DURATION: Duration = Duration::from_secs(3600);
/// The cluster must be healthy within this, before a step and after its faults were reverted.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);
/// Presence is waited for so much longer than its bound, to report by how much the bound was missed.
const EXTRA_WAIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Pushes that have not come within this wait for the step after which all nodes are of one version.
const PATIENCE_WITH_TWO_VERSIONS: Duration = Duration::from_secs(5);
/// The device id of the group's members.
const MEMBERS_DEVICE: &str = "lab";

/// The state that all steps of a run share.
pub(super) struct ChaosRun<'a> {
    pub(super) args: &'a ChaosArgs,
    pub(super) seed: u64,
    pub(super) bounds: PresenceBounds,
    pub(super) fixture: MessageClients,
    pub(super) config: Arc<GuestConfig>,
    pub(super) push_verifier: Arc<PushVerifier>,
    pub(super) guests: Guests,
    pub(super) features: FeatureTraffic,
}

/// Signals that stop the threads of a step.
#[derive(Default)]
struct StopSignals {
    toggles: AtomicBool,
    pushes: AtomicBool,
    presence_polls: AtomicBool,
}

impl StopSignals {
    fn stop_all(&self) {
        [&self.toggles, &self.pushes, &self.presence_polls]
            .into_iter()
            .for_each(|one| one.store(true, Ordering::Relaxed));
    }
}

impl ChaosRun<'_> {
    pub(super) fn step(
        &mut self,
        number: usize,
        step: &ChaosStep,
        title: &str,
        topology: &mut Topology,
        result: &mut RunResult,
    ) -> Result<Value, LabError> {
        let args = self.args;
        let profile = RateProfile::constant(args.rate, PHASE_DURATION.as_secs_f64());
        let phase = self.fixture.phase(LoadModel::OpenLoop { profile }, args.body_bytes, 1, 1);
        let disconnects_before = self.guests.disconnects();
        // Clients that moved to other nodes in an earlier step return, or the faulty node might have no clients.
        self.fixture.load.rebalance()?;
        // Nodes of an earlier version may have devices' sessions on the leader.
        self.guests.reset(topology.may_run_another_version() && step.kinds().any(FaultKind::may_change_leader));
        let has_two_versions = topology.has_two_versions();
        if !has_two_versions {
            self.push_verifier.start_step();
        }
        self.fixture.load.start_phase(live::shown(phase))?;
        let (monitor, presence_verifier, stop) =
            (ClientMonitor::default(), PresenceVerifier::new(args.nodes), StopSignals::default());
        let members = self.fixture.online.clone();
        let step_run = StepRun {
            args,
            bounds: self.bounds,
            config: &self.config,
            push_verifier: &self.push_verifier,
            guests: &self.guests,
            features: &self.features,
            members: &members,
            monitor: &monitor,
            presence_verifier: &presence_verifier,
            stop: &stop,
            seed: self.seed.wrapping_add(number as u64),
        };
        let load = &mut self.fixture.load;
        let (outcome, observations) = std::thread::scope(|scope| {
            let monitor_of_clients = &monitor;
            let clients = scope
                .spawn(move || load.finish_phase_with(title, |progress| monitor_of_clients.record_progress(progress)));
            step_run.spawn_observers(scope);
            // On this thread, since processes end with the thread that started them.
            let result = step_run.run_faults(scope, step, topology, &|| clients.is_finished());
            stop.stop_all();
            monitor.stop();
            let outcome = clients.join().map_err(|_| LabError::Worker("panicked".into()))??;
            Ok::<_, LabError>((outcome, result?))
        })?;
        let ended = topology.unexpected_ends();
        let mut disconnects = self.guests.disconnects();
        disconnects.retain(|why, count| {
            *count -= disconnects_before.get(why).copied().unwrap_or_default();
            *count > 0
        });
        let messages = result.record(output::measured(title, &outcome, &observations));
        output::tell(result, &observations, &disconnects, &ended);
        let checks = checks_of(&outcome, &observations, &ended);
        checks.into_iter().for_each(|check| result.check(check.part(title)));
        let faults: Vec<Value> = step
            .faults
            .iter()
            .map(|fault| json!({ "kind": fault.kind.name(), "choice": fault.choice, "begins": fault.starts_at }))
            .collect();
        Ok(json!({
            "acts": faults, "noticed": observations.impact, "healed": observations.healed, "ended": ended, "presence": observations.presence,
            "pushes": observations.pushes, "without_pushes": observations.without_pushes, "features": observations.features, "guests_lost_connections": disconnects,
            "outcome": messages,
        }))
    }
}

/// The threads of a step beside the group's load, with what they share.
#[derive(Clone, Copy)]
struct StepRun<'a> {
    args: &'a ChaosArgs,
    bounds: PresenceBounds,
    config: &'a GuestConfig,
    push_verifier: &'a PushVerifier,
    guests: &'a Guests,
    features: &'a FeatureTraffic,
    members: &'a [String],
    monitor: &'a ClientMonitor,
    presence_verifier: &'a PresenceVerifier,
    stop: &'a StopSignals,
    seed: u64,
}

impl<'a> StepRun<'a> {
    /// Starts to query presence and to request pushes at every node.
    fn spawn_observers<'scope>(self, scope: &'scope std::thread::Scope<'scope, '_>)
    where
        'a: 'scope,
    {
        for node in 0..self.config.nodes.len() {
            let mut http = self.config.http(node);
            scope.spawn(move || {
                self.presence_verifier.poll_node(
                    node,
                    &mut http,
                    || self.expected_presence(),
                    &self.stop.presence_polls,
                )
            });
            let requester = PushRequester {
                config: self.config,
                guests: self.guests,
                push_verifier: self.push_verifier,
                node,
                per_second: self.args.pushes / self.config.nodes.len() as f64,
                patience: self.args.patience,
            };
            let seed = self.seed.rotate_left(8 + node as u32);
            scope.spawn(move || requester.run(seed, &self.stop.pushes));
        }
    }

    /// The expected presence of the guests, and of the group's members, who are connected all the time.
    fn expected_presence(&self) -> ExpectedPresence {
        let mut expected = self.guests.expected_presence();
        let started = self.monitor.started();
        for member in self.members {
            let user_state = ExpectedUser {
                devices: [MEMBERS_DEVICE.to_owned()].into(),
                since: self.monitor.no_client_reconnected().then_some(started),
                ..ExpectedUser::default()
            };
            expected.insert(member.clone(), user_state);
        }
        expected
    }

    fn run_faults<'scope>(
        self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        step: &ChaosStep,
        topology: &mut Topology,
        ended: &dyn Fn() -> bool,
    ) -> Result<Observations, LabError>
    where
        'a: 'scope,
    {
        if !self.is_healthy(RECOVERY_TIMEOUT, ended) || !self.guests.await_all(RECOVERY_TIMEOUT) {
            return Err(LabError::Server("was not healthy before the step".into()));
        }
        // What nodes only tell each other need not cross between versions.
        if !topology.has_two_versions() && !self.presence_verifier.await_correct(RECOVERY_TIMEOUT) {
            let wrong = self.presence_verifier.wrong();
            return Err(LabError::Server(format!("did not answer rightly about presence before the step: {wrong:?}")));
        }
        self.monitor.start_fault();
        self.presence_verifier.start_fault();
        scope.spawn(move || self.guests.toggle_devices(self.seed, &self.stop.toggles));
        let features = scope.spawn(move || self.features.run(self.config, self.args.patience, &self.stop.pushes));
        let times = fault_injector::inject(step, topology, self.args.hold, self.args.restart)?;
        self.stop.toggles.store(true, Ordering::Relaxed);
        self.monitor.restart_recovery_check();
        let healed = self.is_healthy(RECOVERY_TIMEOUT, ended);
        let impact = self.monitor.impact(times.injected, times.revert_began);

        let bound = self.bounds.presence_bound(step.kinds());
        self.presence_verifier.await_correct((bound + EXTRA_WAIT).saturating_sub(times.reverted.elapsed()));
        let offline_forbidden = step.kinds().all(FaultKind::keeps_leases);
        let mut presence = self.presence_verifier.result(&times, bound, offline_forbidden);
        presence.two_versions = topology.has_two_versions();
        presence.told_offline.extend(self.guests.told_offline(times.injected));
        presence.told_changes = self.guests.told_changes();

        // At the end all guests connect and get the pushes of the meantime.
        self.guests.request_all();
        let all_came = self.guests.await_all(self.args.patience);
        self.stop.pushes.store(true, Ordering::Relaxed);
        let may_repeat = step.kinds().any(FaultKind::may_change_leader);
        let pushes = self.await_pushes(may_repeat, topology.has_two_versions());
        features.join().map_err(|_| LabError::Worker("panicked".into()))?;
        let features = self.features.verify(self.config);
        Ok(Observations {
            impact,
            healed: healed && all_came,
            presence,
            pushes,
            without_pushes: self.guests.without_pushes(),
            features,
        })
    }

    fn is_healthy(&self, within: Duration, ended: &dyn Fn() -> bool) -> bool {
        let asked = Instant::now();
        while !self.monitor.is_healthy() && !ended() && asked.elapsed() < within {
            std::thread::sleep(POLL_INTERVAL);
        }
        self.monitor.is_healthy()
    }

    /// Waits until every push has reached all its devices, or until nothing has changed for the patience. With two versions
    /// pushes may wait for the next step.
    fn await_pushes(&self, may_repeat: bool, two_versions: bool) -> PushResult {
        let patience =
            if two_versions { self.args.patience.min(PATIENCE_WITH_TWO_VERSIONS) } else { self.args.patience };
        let count = || PushResult {
            two_versions,
            ..self.push_verifier.result(|device| self.guests.receives_pushes(device), may_repeat)
        };
        let mut last = count();
        let mut changed = Instant::now();
        while (last.lost > 0 || last.accepted < last.asked) && changed.elapsed() < patience {
            std::thread::sleep(POLL_INTERVAL);
            let now = count();
            if (now.reached, now.accepted) != (last.reached, last.accepted) {
                changed = Instant::now();
            }
            last = now;
        }
        last
    }
}
