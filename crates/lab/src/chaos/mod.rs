//! `bench chaos`: a group run over several nodes while parts of the cluster are killed, restarted, frozen, stopped and cut off.
//!
//! In reading order: [`fault_kind`] has the kinds of faults with their injection and reversal, [`fault_plan`] chooses those of a
//! run, [`fault_injector`] injects and reverts them in time. [`client_monitor`] measures the impact on the group's clients;
//! [`guests`] are users whose devices connect and disconnect meanwhile, [`push_requester`] requests pushes to them, and
//! [`feature_traffic`] has them react, pin and write messages that grow, both by [`nodes`].
//! [`presence_verifier`] (with [`expected_presence`] and [`presence_bounds`]) and [`push_verifier`] verify what nodes answer
//! and deliver; [`step`] is one step with all of it, [`observations`] what is seen of it and what that is held to, [`output`] what is printed.
//! Every step ends with counts that must balance: no acknowledged message is lost, duplicated or reordered for any member,
//! whichever nodes the member was connected to meanwhile.

pub(crate) mod args;
mod client_monitor;
mod expected_presence;
mod fault_injector;
pub(crate) mod fault_kind;
mod fault_plan;
mod feature_traffic;
mod guests;
mod nodes;
mod observations;
mod output;
mod presence_bounds;
mod presence_verifier;
mod push_requester;
mod push_verifier;
mod step;

use crate::{
    LabError,
    message_clients::{GroupSpec, MessageClients},
    options::TargetArgs,
    process, report,
    result::{Check, RunResult, Verdict},
    setup, timeline,
    topology::{Topology, TopologySpec},
};
use args::ChaosArgs;
use feature_traffic::FeatureTraffic;
use guests::{GuestConfig, Guests};
use presence_bounds::PresenceBounds;
use push_verifier::PushVerifier;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use step::ChaosRun;
use tidings_client::http::HttpClient;

pub(crate) use fault_injector::DiskStalls;
pub(crate) use fault_kind::FaultKind;

/// Injects one fault and reverts it; returns when every node is ready again. `choice` is the number of its target.
pub(crate) fn inject_one(
    kind: FaultKind,
    choice: usize,
    topology: &mut Topology,
    lasts: Duration,
) -> Result<(), LabError> {
    let step = fault_plan::ChaosStep::of(kind, choice);
    fault_injector::inject(&step, topology, lasts, lasts).map(|_| ())
}

/// The lowest rate: with several messages between two reports of the load client, a report without progress is a fault.
const RATE_MIN: f64 = 10.0;
/// The most guests: members of one group may watch each other up to this size.
const GUESTS_MAX: usize = 500;

fn check_options(args: &ChaosArgs) -> Result<(), LabError> {
    if args.nodes < 2 || args.members == 0 || args.senders == 0 || args.steps == 0 || args.guests == 0 {
        let what = "--nodes must be at least 2, --members, --senders, --guests and --steps at least 1";
        return Err(LabError::Usage(what.into()));
    }
    if args.rate < RATE_MIN {
        return Err(LabError::Usage(format!("--rate must be at least {RATE_MIN}: otherwise silence says nothing")));
    }
    if args.guests > GUESTS_MAX {
        return Err(LabError::Usage(format!(
            "--guests must be at most {GUESTS_MAX}: they watch each other in one group"
        )));
    }
    if args.pushes.is_nan() || args.pushes <= 0.0 {
        return Err(LabError::Usage("--pushes must be above 0".into()));
    }
    Ok(())
}

pub(crate) fn run(args: &ChaosArgs) -> Result<RunResult, LabError> {
    check_options(args)?;
    let seed = args.seed.unwrap_or_else(rand::random);
    let with_partitions = rustix::process::getuid().is_root();
    let steps = fault_plan::plan_steps(args, with_partitions, seed);
    if steps.is_empty() {
        return Err(LabError::Usage(
            "there is nothing to do: no such pair with --overlap, only cuts without root, or only rollbacks without --from".into(),
        ));
    }
    println!("seed {seed}");
    let bounds = PresenceBounds::of(&args.set);
    // The nodes get the settings from which the bounds are computed.
    let environment = bounds.settings().into_iter().chain(args.set.clone()).collect();
    let (nodes, program) = (args.nodes, args.from.clone());
    let topology_spec = TopologySpec { nodes, with_partitions, environment, program, ..TopologySpec::default() };
    let mut topology = Topology::start(&topology_spec)?;
    let target = topology.target();
    let load = TargetArgs {
        patience: args.patience,
        client_core: args.client_core,
        // Nothing is measured in time here but how soon all is well again.
        lag_max: std::time::Duration::MAX,
        ..TargetArgs::default()
    };
    let spec = GroupSpec { mix: args.mix, ..GroupSpec::of(args.members, args.members, args.senders) };
    let fixture = MessageClients::group(&target, &load, &spec)?;
    let tag = process::run_tag();
    let config = Arc::new(GuestConfig {
        nodes: topology.nodes.iter().map(|node| (node.http(), node.miop())).collect(),
        api_key: topology.api_key.clone(),
        token_key: topology.token_key.clone(),
        guests: setup::numbered_ids(&format!("{tag}-g"), args.guests),
        group: format!("guests-{tag}"),
    });
    let push_verifier = Arc::new(PushVerifier::new(&tag));
    let guests = Guests::connect_all(&config, &push_verifier, args.patience)?;
    let features = FeatureTraffic::set_up(&config, &tag)?;
    let mut run = ChaosRun { args, seed, bounds, fixture, config, push_verifier, guests, features };
    let (mut result, mut step_reports) = (RunResult::of("chaos"), Vec::new());
    for (number, step) in steps.iter().enumerate() {
        let title = format!("{} of {}, {}", number + 1, steps.len(), step.title(args.nodes));
        step_reports.push(run.step(number, step, &title, &mut topology, &mut result)?);
        report::print_new(&mut result);
        if result.verdict() == Verdict::Failed {
            break;
        }
    }
    let conversation = run.fixture.conversations[0].id.clone();
    drop(run);
    let order = compare_timelines(&topology, &conversation)?;
    let value = match &order {
        Ok(entries) => format!("{entries} entries, the same on all nodes"),
        Err(difference) => format!("NO: {difference}"),
    };
    result.note("one order", &*value);
    result.check(Check::of_server("one order", "every node has the same history", order.is_ok()).value(value));
    let skipped = args.kinds().iter().any(|kind| kind.needs_partitions()) && !with_partitions;
    if skipped {
        result.note("skipped", "all cuts of networks: they take root. They have not passed.");
    }
    topology.stop()?;
    result.set_all(json!({
        "seed": seed, "steps": step_reports, "one_order": order.is_ok(), "skipped_cuts": skipped,
        "nodes": args.nodes, "members": args.members, "rate": args.rate, "guests": args.guests, "pushes": args.pushes,
        "overlap": args.overlap, "mix_share": args.mix.to_string(),
    }));
    Ok(result)
}

/// Reads the conversation back through every node; returns the number of entries, or where two nodes differ.
fn compare_timelines(topology: &Topology, conversation: &str) -> Result<Result<usize, String>, LabError> {
    let mut first: Option<Vec<(u64, Option<String>)>> = None;
    for node in &topology.nodes {
        let mut http = HttpClient::new(node.http(), topology.api_key.clone());
        let entries = timeline::read_timeline(&mut http, conversation)?;
        let entries: Vec<_> = entries.into_iter().map(|entry| (entry.seq, entry.client_msg_id)).collect();
        match &first {
            None => first = Some(entries),
            Some(first) if *first == entries => {}
            Some(first) => {
                let place = first.iter().zip(&entries).position(|(one, other)| one != other);
                let place = place.unwrap_or(first.len().min(entries.len()));
                return Ok(Err(format!(
                    "{} has {:?} at place {place} of {}, the first node {:?} of {}",
                    node.url(),
                    entries.get(place),
                    entries.len(),
                    first.get(place),
                    first.len()
                )));
            }
        }
    }
    Ok(Ok(first.map_or(0, |entries| entries.len())))
}
