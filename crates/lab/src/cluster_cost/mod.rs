//! `bench cluster-cost`: the cost of a message for Redis and PostgreSQL, compared with an inbox per member.
//!
//! In reading order: [`counters`] reads the counters of the cluster, [`inbox_per_member`] is the design to compare with, on the
//! same Redis in the same run.

pub(crate) mod args;
mod counters;
mod inbox_per_member;

use crate::{
    LabError,
    message_clients::{GroupSpec, MessageClients},
    options::TargetArgs,
    report,
    result::{RunResult, Table, filled},
    server::Target,
    topology::{Topology, TopologySpec, node_name},
    worker_protocol::{LoadModel, Outcome},
};
use args::ClusterCostArgs;
use counters::ComponentCounters;
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// How long the idle cluster is measured.
const IDLE: Duration = Duration::from_secs(5);
/// The interval at which connections to Redis are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ClusterCostArgs) -> Result<RunResult, LabError> {
    if args.nodes == 0 || args.online == 0 || args.sizes.iter().any(|size| *size < 2) {
        return Err(LabError::Usage("--nodes and --online must be at least 1, each of --sizes at least 2".into()));
    }
    // With an address per node, connections to Redis can be counted by node.
    let with_partitions = rustix::process::getuid().is_root();
    let spec =
        TopologySpec { nodes: args.nodes, with_partitions, folder: None, environment: args.set.clone(), program: None };
    let topology = Topology::start(&spec)?;
    let target = Target::Running {
        addresses: topology.addresses(),
        api_key: topology.api_key.clone(),
        token_key: topology.token_key.clone(),
    };
    let mut result = RunResult::of("cluster-cost");
    let mut groups = Vec::new();
    for size in &args.sizes {
        groups.push(run_size(args, *size, &topology, &target, &mut result)?);
        report::print_new(&mut result);
    }
    topology.stop()?;
    result.set("nodes", args.nodes);
    result.set("groups", groups);
    Ok(result)
}

fn run_size(
    args: &ClusterCostArgs,
    size: usize,
    topology: &Topology,
    target: &Target,
    result: &mut RunResult,
) -> Result<Value, LabError> {
    let online = size.min(args.online);
    let load = TargetArgs { patience: args.patience, client_core: args.client_core, ..TargetArgs::default() };
    let spec = GroupSpec::of(size, online, args.senders);
    let mut fixture = MessageClients::group(target, &load, &spec)?;
    let before = ComponentCounters::read(topology)?;
    std::thread::sleep(IDLE);
    let idle_per_second = ComponentCounters::read(topology)?.cost_since(&before, IDLE.as_secs());
    let model = LoadModel::ClosedLoop { window: args.window, duration_ms: args.duration.as_millis() as u64 };
    let phase = fixture.phase(model, args.body_bytes, args.batch, 1);
    let title = format!("group of {size}, {online} online on {} nodes", args.nodes);
    let before = ComponentCounters::read(topology)?;
    let (outcome, connections) = run_counting_connections(topology, || fixture.load.run(&title, phase))?;
    let cost = ComponentCounters::read(topology)?.cost_since(&before, outcome.committed);
    drop(fixture);
    let before = ComponentCounters::read(topology)?;
    let primaries = topology.redis.primaries_with_slots()?;
    let primaries: Vec<inbox_per_member::Primary> =
        primaries.into_iter().map(|(address, slots)| inbox_per_member::Primary { address, slots }).collect();
    let written = inbox_per_member::write_inboxes(&primaries, size, args.duration)?;
    let plain_cost = ComponentCounters::read(topology)?.cost_since(&before, written.messages);

    let measured = result.record(outcome.measured(&title));
    let ratio = plain_cost.redis_cpu_s / cost.redis_cpu_s.max(1e-9);
    let value = json!({
        "size": size, "online": online, "outcome": measured, "cost": cost, "idle_per_second": idle_per_second,
        "plain": { "messages_per_second": written.messages as f64 / written.seconds, "cost": plain_cost },
        "ratio_per_redis_cpu": ratio, "connections": connections,
    });
    let mut table = Table::of("|here|one by one");
    for (name, here, there) in [
        ("messages/s", outcome.messages_per_second(), written.messages as f64 / written.seconds),
        ("Redis commands", cost.redis_commands, plain_cost.redis_commands),
        ("Redis CPU ms", cost.redis_cpu_s, plain_cost.redis_cpu_s),
    ] {
        table.row(name, [here, there].map(|figure| format!("{figure:.2}")));
    }
    result.table(table);
    let mut lines: Vec<(String, String)> =
        LINES.iter().map(|(name, line)| ((*name).to_owned(), filled(line, &value))).collect();
    lines.extend(
        connections.iter().map(|(name, count)| ("connections".into(), format!("{name} to Redis: {count} at most"))),
    );
    let statements = cost.by_statement.iter().take(STATEMENTS_SHOWN);
    lines.extend(statements.map(|(statement, calls)| ("statement".into(), format!("{calls:.3} × {statement}"))));
    result.lines("the cost of a message", lines, &[]);
    Ok(value)
}

/// What is printed beside the table.
const LINES: [(&str, &str); 3] = [
    ("ratio", "messages per second of Redis' CPU: {ratio_per_redis_cpu:1} times as many"),
    (
        "a message",
        "{cost.transactions:2} transactions, {cost.statements:2} statements; CPU ms: nodes {cost.nodes_cpu_s:2}, database \
         {cost.database_cpu_s:2}",
    ),
    ("idle, 1 s", "{idle_per_second.redis_commands:1} Redis commands, {idle_per_second.statements:1} statements"),
];
const STATEMENTS_SHOWN: usize = 6;

/// Runs `work`; also returns the most connections to Redis that each node had meanwhile.
fn run_counting_connections(
    topology: &Topology,
    work: impl FnOnce() -> Result<Outcome, LabError>,
) -> Result<(Outcome, Vec<(String, usize)>), LabError> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = vec![0; topology.nodes.len() + 1];
            while !done.load(Ordering::Relaxed) {
                for (source, count) in counters::connections(topology)? {
                    let node =
                        topology.nodes.iter().position(|node| topology.can_partition() && node.http().ip() == source);
                    let place = &mut most[node.unwrap_or(topology.nodes.len())];
                    *place = count.max(*place);
                }
                std::thread::sleep(COUNT_INTERVAL);
            }
            Ok::<_, LabError>(most)
        });
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        let most = looking.join().map_err(|_| LabError::Worker("panicked while it counted connections".into()))??;
        let last = most.len() - 1;
        let name =
            |number: usize| if number == last { "all nodes".to_owned() } else { format!("node {}", node_name(number)) };
        let most = most.into_iter().enumerate().filter(|(_, count)| *count > 0);
        Ok((outcome?, most.map(|(number, count)| (name(number), count)).collect()))
    })
}
