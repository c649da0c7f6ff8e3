//! `bench chaos`: a group run over several nodes while parts of the cluster are killed, restarted, frozen, stopped and cut off.
//!
//! In reading order: [`kind`] is what is done and how it is undone, [`plan`] which of it a run does, [`harm`] does it in time.
//! [`watch`] is what the group's clients notice; [`guests`] come and go beside them, [`asker`] pushes to them. [`presence`]
//! (with [`truth`] and [`bounds`]) and [`pushes`] judge what nodes say of them and send them; `step` is one step with all of it, [`show`] its figures in words.
//! Every step ends with counts that must balance: nothing that was acknowledged is lost, nothing comes twice or in another
//! order, for any member, on whichever nodes it was meanwhile.

pub(crate) mod args;
mod asker;
mod bounds;
mod guests;
mod harm;
pub(crate) mod kind;
mod plan;
mod presence;
mod pushes;
mod show;
mod step;
mod truth;
mod watch;

use crate::{
    LabError, Verdict,
    args::{ChaosArgs, TargetArgs, Via},
    group::{Shape, Stage},
    process, report,
    server::Target,
    setup, timeline,
    topology::{Plan, Topology},
};
use bounds::Bounds;
use guests::{Doors, Guests};
use pushes::Book;
use serde_json::json;
use std::sync::Arc;
use step::Run;
use tidings_client::http::HttpClient;

/// Several messages between two reports of the clients, so that a report without one is a fault.
const RATE_MIN: f64 = 10.0;
/// The members of a group who may watch each other, and a thread for each of their devices.
const GUESTS_MAX: usize = 500;

fn check(args: &ChaosArgs) -> Result<(), LabError> {
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

pub(crate) fn run(args: &ChaosArgs) -> Result<Verdict, LabError> {
    check(args)?;
    let seed = args.seed.unwrap_or_else(rand::random);
    let with_cuts = rustix::process::getuid().is_root();
    let steps = plan::steps(args, with_cuts, seed);
    if steps.is_empty() {
        return Err(LabError::Usage(
            "there is nothing to do: no such pair with --overlap, or only cuts without root".into(),
        ));
    }
    println!("seed {seed}");
    let bounds = Bounds::of(&args.set);
    // What the bounds rest on is what the nodes have.
    let environment = bounds.settings().into_iter().chain(args.set.clone()).collect();
    let plan = Plan { nodes: args.nodes, with_cuts, folder: None, environment, program: args.from.clone() };
    let mut topology = Topology::start(&plan)?;
    let target = Target::Running {
        addresses: topology.addresses(),
        api_key: topology.api_key.clone(),
        token_key: topology.token_key.clone(),
    };
    let load = TargetArgs { patience: args.patience, client_core: args.client_core, ..TargetArgs::default() };
    let shape = Shape {
        members: args.members,
        group_size: args.members,
        senders: args.senders,
        via: Via::Http,
        yielding: false,
    };
    let stage = Stage::set(&target, &load, &shape)?;
    let tag = process::run_tag();
    let doors = Arc::new(Doors {
        nodes: topology.nodes.iter().map(|node| (node.http(), node.miop())).collect(),
        api_key: topology.api_key.clone(),
        token_key: topology.token_key.clone(),
        guests: setup::names(&format!("{tag}-g"), args.guests),
        group: format!("guests-{tag}"),
    });
    let book = Arc::new(Book::new(&tag));
    let guests = Guests::arrive(&doors, &book, args.patience)?;
    let mut run = Run { args, seed, bounds, stage, doors, book, guests };
    let (mut verdict, mut told) = (Verdict::Passed, Vec::new());
    for (number, step) in steps.iter().enumerate() {
        let title = format!("{} of {}, {}", number + 1, steps.len(), step.title(args.nodes));
        let (step_verdict, value) = run.step(number, step, &title, &mut topology)?;
        verdict = verdict.and(step_verdict);
        told.push(value);
        if step_verdict == Verdict::Failed {
            break;
        }
    }
    let conversation = run.stage.conversation.clone();
    drop(run);
    let order = one_order(&topology, &conversation)?;
    match &order {
        Ok(entries) => println!("one order      {entries} entries, the same on all nodes"),
        Err(difference) => {
            println!("one order      NO: {difference}");
            verdict = Verdict::Failed;
        }
    }
    let skipped = args.kinds().iter().any(|kind| kind.needs_cuts()) && !with_cuts;
    if skipped {
        println!("skipped        all cuts of networks: they take root. They have not passed.");
    }
    topology.stop()?;
    let value = json!({
        "bench": "chaos", "seed": seed, "steps": told, "one_order": order.is_ok(), "skipped_cuts": skipped,
        "nodes": args.nodes, "members": args.members, "rate": args.rate, "guests": args.guests, "pushes": args.pushes,
        "overlap": args.overlap,
    });
    report::write_json(args.json.as_deref(), &value)?;
    Ok(verdict)
}

/// Reads the conversation back through every node: the entries, or where two differ.
fn one_order(topology: &Topology, conversation: &str) -> Result<Result<usize, String>, LabError> {
    let mut first: Option<Vec<(u64, Option<String>)>> = None;
    for node in &topology.nodes {
        let mut http = HttpClient::new(node.http(), topology.api_key.clone());
        let entries = timeline::read_all(&mut http, conversation)?;
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
