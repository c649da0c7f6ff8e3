//! `bench leader`: the leader of a cluster is killed again and again under load, with slow disks under PostgreSQL; then the same
//! load goes on without a kill, and the lead must stay where it is. Or nodes are frozen instead, and nobody else may wait.
//!
//! [`load`] opens conversations and sends at every node, and measures what each request waited; [`probe`] asks each node for what
//! only the leader does.

mod load;
mod probe;

use crate::{
    LabError,
    chaos::DiskStalls,
    interrupt,
    options::{parse_duration, parse_setting},
    result::{Check, RunResult},
    setup,
    topology::{Topology, TopologySpec},
};
use clap::Args;
use load::Load;
use probe::Probe;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

#[derive(Debug, Clone, Args)]
pub struct LeaderArgs {
    /// How often the leader is killed
    #[arg(long, default_value_t = 20)]
    pub kills: usize,
    /// How long the load goes on afterwards without a kill
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub watch: Duration,
    /// How often a node is frozen, at any moment of its work
    #[arg(long, default_value_t = 0)]
    pub freezes: usize,
    /// How long a node stays frozen
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    pub hold: Duration,
    /// The disks under PostgreSQL stall again and again, but not while nodes are frozen
    #[arg(long)]
    pub slow_disks: bool,
    #[arg(long, default_value_t = 3)]
    pub nodes: usize,
    /// Requests a second at each node: half of them open a conversation
    #[arg(long, default_value_t = 20.0)]
    pub rate: f64,
    /// Within so long push and popups must be back at every other node
    #[arg(long, default_value = "3s", value_parser = parse_duration)]
    pub back_within: Duration,
    /// So long a request may wait at a node that is not frozen
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub wait_max: Duration,
    /// The program that nodes run; this one unless given
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
    #[arg(long)]
    pub seed: Option<u64>,
    /// A setting of all nodes, such as TIDINGS_LOG_LEVEL=debug
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
}

/// After so long without a leader the run fails.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often the nodes are asked who leads while nobody is killed.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// Between two kills: the one that was killed is ready again, and works for so long.
const PAUSE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &LeaderArgs) -> Result<RunResult, LabError> {
    if args.nodes < 2 {
        return Err(LabError::Usage("--nodes must be at least 2".into()));
    }
    interrupt::install()?;
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let (environment, program) = (args.set.clone(), args.program.clone());
    let spec = TopologySpec { nodes: args.nodes, environment, program, ..TopologySpec::default() };
    let topology = Topology::start(&spec)?;
    let addresses = topology.addresses();
    let users = setup::numbered_ids("user", 2_000);
    setup::create_users(&mut HttpClient::new(addresses[0], topology.api_key.clone()), &users)?;
    let load = Load::start(&addresses, &topology.api_key, args.rate);
    let stalls = DiskStalls::default();
    let probes = addresses.iter().map(|address| Probe::start(*address, &topology.api_key)).collect();
    let mut run = LeaderRun { args, topology, load, probes, stalls, random: StdRng::seed_from_u64(seed) };
    let freezes = run.freeze_nodes()?;
    run.stalls.is_slow = args.slow_disks;
    let kills = run.kill_leaders()?;
    let watched = run.watch_lead()?;
    run.stalls.is_slow = false;
    run.stalls.resume(&run.topology);
    let failures = run.load.stop();
    let ended = run.topology.unexpected_ends();
    run.topology.stop()?;
    let mut result = RunResult::of("leader");
    result.check(
        Check::of_server("processes", "no process ends that was not killed", ended.is_empty()).value(ended.join("; ")),
    );
    ended.iter().for_each(|end| result.problem(format!("ended: {end}")));
    for (name, bound, (figures, passed)) in [
        ("freezes", "no request at another node waits longer than allowed", freezes),
        ("kills", "push and popups are back at every other node in time", kills),
        ("watched", "the lead does not change without a kill", watched),
    ] {
        if !figures.is_null() {
            result.check(
                Check::of_server(name, bound, passed)
                    .value(figures.get("late").or(figures.get("changes")).map_or(String::new(), Value::to_string)),
            );
        }
        result.set(name, figures);
    }
    result.set_all(json!({
        "seed": seed, "nodes": args.nodes, "rate": args.rate, "slow_disks": args.slow_disks, "refused": failures,
    }));
    Ok(result)
}

struct LeaderRun<'a> {
    args: &'a LeaderArgs,
    topology: Topology,
    load: Load,
    probes: Vec<Probe>,
    stalls: DiskStalls,
    random: StdRng,
}

impl LeaderRun<'_> {
    /// Waits until `is_true`, or for `limit`; the disks stall meanwhile. Answers whether it came true.
    fn wait(&mut self, limit: Duration, mut is_true: impl FnMut(&Self) -> bool) -> bool {
        let began = Instant::now();
        while began.elapsed() < limit && !interrupt::requested() {
            self.stalls.advance(&self.topology);
            if is_true(self) {
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }

    /// The number of the node that leads, with its boot id, if all nodes agree.
    fn leader(&self) -> Option<(usize, String)> {
        let mut leaders = self.probes.iter().map(|probe| probe.answers().leader);
        let (address, boot_id) = leaders.next()??;
        let agree = leaders.all(|other| other.as_ref() == Some(&(address.clone(), boot_id.clone())));
        let number = self.topology.nodes.iter().position(|node| node.url() == address)?;
        agree.then_some((number, boot_id))
    }

    fn await_leader(&mut self) -> Result<(usize, String), LabError> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Some(leader) = self.leader() {
                return Ok(leader);
            }
            self.wait(WATCH_INTERVAL, |_| false);
        }
        Err(LabError::Server("has no leader".into()))
    }

    fn kill_leaders(&mut self) -> Result<(Value, bool), LabError> {
        let mut back = Vec::new();
        for number in 1..=self.args.kills {
            if interrupt::requested() {
                break;
            }
            let (leader, _) = self.await_leader()?;
            // At any moment of the stalls.
            let pause = PAUSE + Duration::from_millis(self.random.random_range(0..700));
            self.wait(pause, |_| false);
            let others: Vec<usize> = (0..self.args.nodes).filter(|node| *node != leader).collect();
            self.load.set_silent(leader, true);
            self.topology.kill_node(leader)?;
            let killed = Instant::now();
            let mut since = killed;
            let is_back = self.wait(PATIENCE, |run| {
                let done =
                    others.iter().map(|node| run.probes[*node].answers().done.filter(|(asked, _)| *asked > killed));
                let last = done.map(|done| done.map(|(_, answered)| answered)).collect::<Option<Vec<_>>>();
                last.is_some_and(|times| {
                    times.into_iter().max().is_some_and(|time| {
                        since = time;
                        true
                    })
                })
            });
            let seconds = since.duration_since(killed).as_secs_f64();
            println!("kill {number}: push and popups back after {seconds:.2} s{}", if is_back { "" } else { " NOT" });
            back.push(if is_back { seconds } else { f64::INFINITY });
            self.topology.spawn_node(leader)?;
            let spawned = Instant::now();
            self.wait(PATIENCE, |run| run.probes[leader].answers().done.is_some_and(|(asked, _)| asked > spawned));
            self.load.set_silent(leader, false);
        }
        let longest = back.iter().copied().fold(0.0, f64::max);
        let late = back.iter().filter(|seconds| **seconds > self.args.back_within.as_secs_f64()).count();
        if !back.is_empty() {
            println!("{} kills: back after {longest:.2} s at the longest, {late} later than allowed", back.len());
        }
        Ok((json!({ "back_s": back, "late": late }), late == 0))
    }

    /// Watches who leads while nobody is killed.
    fn watch_lead(&mut self) -> Result<(Value, bool), LabError> {
        let began = Instant::now();
        if self.args.watch.is_zero() {
            return Ok((Value::Null, true));
        }
        let mut leader = self.await_leader()?;
        let count = |run: &Self, of: fn(&probe::Answers) -> u64| {
            run.probes.iter().map(|probe| of(&probe.answers())).sum::<u64>()
        };
        let (asked_before, refused_before) = (count(self, |of| of.asked), count(self, |of| of.refused));
        let mut changes = 0;
        while began.elapsed() < self.args.watch && !interrupt::requested() {
            self.wait(WATCH_INTERVAL, |_| false);
            if let Some(now) = self.leader().filter(|now| *now != leader) {
                println!("after {:.0} s another node leads", began.elapsed().as_secs_f64());
                changes += 1;
                leader = now;
            }
        }
        let asked = count(self, |of| of.asked) - asked_before;
        let refused = count(self, |of| of.refused) - refused_before;
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        println!("{minutes:.1} minutes without a kill: {changes} changes of the lead, {refused} of {asked} refused");
        let value = json!({ "minutes": minutes, "changes": changes, "asked": asked, "refused": refused });
        Ok((value, changes == 0))
    }

    fn freeze_nodes(&mut self) -> Result<(Value, bool), LabError> {
        let (mut waits, mut waits_before) = (Vec::new(), Vec::new());
        for number in 1..=self.args.freezes {
            if interrupt::requested() {
                break;
            }
            let node = self.random.random_range(0..self.args.nodes);
            std::thread::sleep(Duration::from_millis(self.random.random_range(300..600)));
            // As long without a freeze, to compare with: the machine itself makes requests wait.
            self.load.take_longest(None);
            std::thread::sleep(self.args.hold);
            let before = self.load.take_longest(None);
            self.topology.freeze_node(node, true)?;
            std::thread::sleep(self.args.hold);
            let longest = self.load.take_longest(Some(node));
            self.topology.freeze_node(node, false)?;
            let ms = |wait: Duration| wait.as_secs_f64() * 1e3;
            println!(
                "freeze {number}, of node {node}: others waited {:.0} ms, all {:.0} before",
                ms(longest),
                ms(before)
            );
            waits.push(longest);
            waits_before.push(before);
        }
        let longest = waits.iter().max().copied().unwrap_or_default();
        let late = waits.iter().filter(|wait| **wait > self.args.wait_max).count();
        if !waits.is_empty() {
            let ms = longest.as_secs_f64() * 1e3;
            let before = waits_before.iter().max().copied().unwrap_or_default().as_secs_f64() * 1e3;
            println!(
                "{} freezes: others waited {ms:.0} ms at the longest, {late} longer than allowed; without a freeze {before:.0} ms",
                waits.len()
            );
        }
        let waits_ms: Vec<f64> = waits.iter().map(|wait| wait.as_secs_f64() * 1e3).collect();
        Ok((json!({ "waits_ms": waits_ms, "late": late }), late == 0))
    }
}
