//! `bench cluster-cost`: what a message costs Redis and PostgreSQL, beside inboxes written one by one.
//!
//! In reading order: [`gauge`] reads what the parts count, [`plain`] is the design beside, on the same Redis in the
//! same run.

pub(crate) mod args;
mod gauge;
mod plain;

use crate::{
    LabError, Verdict,
    args::{ClusterCostArgs, TargetArgs, Via},
    group::{Shape, Stage},
    job::{Outcome, Pace},
    report::{self, outcome_json},
    server::Target,
    topology::{Plan, Topology, node_name},
};
use gauge::{Cost, Reading};
use plain::Written;
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How long nothing is sent to learn what the nodes ask for by themselves.
const IDLE: Duration = Duration::from_secs(5);
/// Between two looks at the connections.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ClusterCostArgs) -> Result<Verdict, LabError> {
    if args.nodes == 0 || args.online == 0 || args.sizes.iter().any(|size| *size < 2) {
        return Err(LabError::Usage("--nodes and --online must be at least 1, each of --sizes at least 2".into()));
    }
    // Addresses of their own tell whose connections are whose.
    let with_cuts = rustix::process::getuid().is_root();
    let plan = Plan { nodes: args.nodes, with_cuts, folder: None, environment: args.set.clone(), program: None };
    let topology = Topology::start(&plan)?;
    let target = Target::Running {
        addresses: topology.addresses(),
        api_key: topology.api_key.clone(),
        token_key: topology.token_key.clone(),
    };
    let (mut verdict, mut told) = (Verdict::Passed, Vec::new());
    for size in &args.sizes {
        let (one, value) = of_size(args, *size, &topology, &target)?;
        verdict = verdict.and(one);
        told.push(value);
    }
    topology.stop()?;
    let value = json!({ "bench": "cluster-cost", "nodes": args.nodes, "groups": told });
    report::write_json(args.json.as_deref(), &value)?;
    Ok(verdict)
}

fn of_size(
    args: &ClusterCostArgs,
    size: usize,
    topology: &Topology,
    target: &Target,
) -> Result<(Verdict, Value), LabError> {
    let online = size.min(args.online);
    let load = TargetArgs { patience: args.patience, client_core: args.client_core, ..TargetArgs::default() };
    let shape = Shape { members: online, group_size: size, senders: args.senders, via: Via::Http, yielding: false };
    let mut stage = Stage::set(target, &load, &shape)?;
    let before = Reading::take(topology)?;
    std::thread::sleep(IDLE);
    let idle_per_second = Reading::take(topology)?.since(&before, IDLE.as_secs());
    let pace = Pace::Window { window: args.window, duration_ms: args.duration.as_millis() as u64 };
    let phase = stage.phase(pace, args.body_bytes, args.batch, 1);
    let title = format!("group of {size}, {online} online on {} nodes", args.nodes);
    let before = Reading::take(topology)?;
    let (outcome, connections) = watched(topology, || stage.load.run(&title, phase))?;
    let cost = Reading::take(topology)?.since(&before, outcome.committed);
    drop(stage);
    let before = Reading::take(topology)?;
    let primaries = topology.redis.primaries_with_slots()?;
    let primaries: Vec<plain::Primary> =
        primaries.into_iter().map(|(address, slots)| plain::Primary { address, slots }).collect();
    let written = plain::write(&primaries, size, args.duration)?;
    let plain_cost = Reading::take(topology)?.since(&before, written.messages);

    report::print(&title, &outcome);
    print(&outcome, &cost, &written, &plain_cost, &idle_per_second);
    for (name, count) in &connections {
        println!("  connections  {name} to Redis: {count} at most");
    }
    let ratio = plain_cost.redis_cpu_s / cost.redis_cpu_s.max(1e-9);
    let value = json!({
        "size": size, "online": online, "outcome": outcome_json(&outcome), "cost": cost, "idle_per_second": idle_per_second,
        "plain": { "messages_per_second": written.messages as f64 / written.seconds, "cost": plain_cost },
        "ratio_per_redis_cpu": ratio, "connections": connections,
    });
    Ok((Verdict::of(&outcome), value))
}

/// Runs this, and answers how many connections to Redis each node had at most meanwhile.
fn watched(
    topology: &Topology,
    work: impl FnOnce() -> Result<Outcome, LabError>,
) -> Result<(Outcome, Vec<(String, usize)>), LabError> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = vec![0; topology.nodes.len() + 1];
            while !done.load(Ordering::Relaxed) {
                for (source, count) in gauge::connections(topology)? {
                    let node = topology.nodes.iter().position(|node| topology.can_cut() && node.http().ip() == source);
                    let place = &mut most[node.unwrap_or(topology.nodes.len())];
                    *place = count.max(*place);
                }
                std::thread::sleep(LOOK);
            }
            Ok::<_, LabError>(most)
        });
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        let most = looking.join().map_err(|_| LabError::Worker("was not understood".into()))??;
        let last = most.len() - 1;
        let name =
            |number: usize| if number == last { "all nodes".to_owned() } else { format!("node {}", node_name(number)) };
        let most = most.into_iter().enumerate().filter(|(_, count)| *count > 0);
        Ok((outcome?, most.map(|(number, count)| (name(number), count)).collect()))
    })
}

fn print(outcome: &Outcome, cost: &Cost, written: &Written, plain: &Cost, idle: &Cost) {
    println!("                       here    one by one");
    let row = |name: &str, here: f64, there: f64| println!("  {name:<18}{here:>10.2}  {there:>12.2}");
    row("messages/s", outcome.messages_per_second(), written.messages as f64 / written.seconds);
    row("Redis commands", cost.redis_commands, plain.redis_commands);
    row("Redis CPU ms", cost.redis_cpu_s, plain.redis_cpu_s);
    let ratio = plain.redis_cpu_s / cost.redis_cpu_s.max(1e-9);
    println!("  messages per second of Redis' CPU: {ratio:.1} times as many");
    let statements = cost.statements.map_or("not counted".to_owned(), |count| format!("{count:.2}"));
    println!(
        "  a message    {:.2} transactions, {statements} statements; CPU ms: nodes {:.2}, database {:.2}",
        cost.transactions, cost.nodes_cpu_s, cost.database_cpu_s
    );
    let idle_statements = idle.statements.map_or("?".to_owned(), |count| format!("{count:.1}"));
    println!("  idle, 1 s    {:.1} Redis commands, {idle_statements} statements", idle.redis_commands);
    for (statement, calls) in cost.by_statement.iter().take(6) {
        println!("    {calls:>7.3} × {statement}");
    }
}
