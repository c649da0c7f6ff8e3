//! `bench chaos`: a group run over several nodes while parts of the cluster are killed, stopped and cut off.
//!
//! In reading order: [`kind`] is what is done and how it is undone, [`watch`] what the clients notice of it. Every step ends with
//! counts that must balance: nothing that was acknowledged is lost, nothing comes twice or in another
//! order, for any member, on whichever nodes it was meanwhile.

pub(crate) mod args;
pub(crate) mod kind;
mod watch;

use crate::{
    LabError, Verdict,
    args::{ChaosArgs, TargetArgs, Via},
    group::{Shape, Stage},
    job::{Outcome, Pace, Refused},
    report::{self, outcome_json},
    server::Target,
    timeline,
    topology::{Plan, Topology},
};
use kind::{Kind, Step};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tidings_client::http::Http;
use watch::{Noticed, Watch};

/// A step's load goes on until its end is told.
const PHASE: Duration = Duration::from_secs(3600);
/// All must be well within this, before a step and after its harm was undone.
const HEAL_TIMEOUT: Duration = Duration::from_secs(90);
/// Several messages between two reports of the clients, so that a report without one is a fault.
const RATE_MIN: f64 = 10.0;
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &ChaosArgs) -> Result<Verdict, LabError> {
    if args.nodes < 2 || args.members == 0 || args.senders == 0 || args.steps == 0 {
        return Err(LabError::Usage("--nodes must be at least 2, --members, --senders and --steps at least 1".into()));
    }
    if args.rate < RATE_MIN {
        return Err(LabError::Usage(format!("--rate must be at least {RATE_MIN}: otherwise silence says nothing")));
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let with_cuts = rustix::process::getuid().is_root();
    let plan = Plan { nodes: args.nodes, with_cuts, folder: None, environment: args.set.clone() };
    let mut topology = Topology::start(&plan)?;
    let steps = plan_steps(args, topology.can_cut(), seed);
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
    let mut stage = Stage::set(&target, &load, &shape)?;
    let (mut verdict, mut told) = (Verdict::Passed, Vec::new());
    for (number, step) in steps.iter().enumerate() {
        let title = format!("{} of {}, {}", number + 1, steps.len(), step.title(args.nodes));
        let (step_verdict, value) = one(args, *step, &title, &mut topology, &mut stage)?;
        verdict = verdict.and(step_verdict);
        told.push(value);
        if step_verdict == Verdict::Failed {
            break;
        }
    }
    let conversation = stage.conversation.clone();
    drop(stage);
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
        "nodes": args.nodes, "members": args.members, "rate": args.rate,
    });
    report::write_json(args.json.as_deref(), &value)?;
    Ok(verdict)
}

/// Random sequences, or everything once: of each node in turn what is done to nodes.
fn plan_steps(args: &ChaosArgs, can_cut: bool, seed: u64) -> Vec<Step> {
    let kinds: Vec<Kind> = args.kinds().into_iter().filter(|kind| can_cut || !kind.needs_cuts()).collect();
    if args.sequences == 0 {
        let of = |kind: Kind| {
            let choices = if kind == Kind::NodeKilled { args.nodes } else { 1 };
            (0..choices).map(move |choice| Step { kind, choice })
        };
        return kinds.into_iter().flat_map(of).collect();
    }
    let mut random = StdRng::seed_from_u64(seed);
    let count = args.sequences * args.steps;
    let step = |_| {
        let kind = *kinds.choose(&mut random)?;
        Some(Step { kind, choice: random.random_range(0..1000) })
    };
    (0..count).filter_map(step).collect()
}

fn one(
    args: &ChaosArgs,
    step: Step,
    title: &str,
    topology: &mut Topology,
    stage: &mut Stage,
) -> Result<(Verdict, Value), LabError> {
    let duration_ms = PHASE.as_millis() as u64;
    let phase = stage.phase(Pace::Rate { per_second: args.rate, duration_ms }, args.body_bytes, 1, 1);
    let watch = Watch::default();
    // Who went elsewhere in an earlier step would leave the node that is to be harmed without anybody to notice.
    stage.load.spread()?;
    stage.load.begin(phase)?;
    let (outcome, noticed, healed) = std::thread::scope(|scope| {
        let (load, watching) = (&mut stage.load, &watch);
        let clients = scope.spawn(move || load.finish_watched(title, |progress| watching.note(progress)));
        let well = |within: Duration| {
            let asked = Instant::now();
            while !watch.is_well() && !clients.is_finished() && asked.elapsed() < within {
                std::thread::sleep(LOOK);
            }
            watch.is_well()
        };
        // On this thread: processes end with the thread that started them.
        let went = (|| {
            if !well(HEAL_TIMEOUT) {
                return Err(LabError::Server("was not well before the step".into()));
            }
            watch.begin_harm();
            let harmed = Instant::now();
            step.harm(topology, args.hold, args.restart)?;
            let mended = Instant::now();
            step.mend(topology)?;
            watch.ask_again();
            let healed = well(HEAL_TIMEOUT);
            Ok((watch.noticed(harmed, mended), healed))
        })();
        watch.enough();
        let outcome = clients.join().map_err(|_| LabError::Worker("was not understood".into()))??;
        let (noticed, healed) = went?;
        Ok::<_, LabError>((outcome, noticed, healed))
    })?;
    let ended = topology.unexpected_ends();
    print(title, &outcome, &noticed, healed, &ended);
    let mut verdict = Verdict::of(&outcome);
    if !healed || !ended.is_empty() || outcome.refused > 0 {
        verdict = Verdict::Failed;
    }
    let value = json!({
        "kind": step.kind.name(), "choice": step.choice, "noticed": noticed, "healed": healed, "ended": ended,
        "outcome": outcome_json(&outcome),
    });
    Ok((verdict, value))
}

fn print(title: &str, outcome: &Outcome, noticed: &Noticed, healed: bool, ended: &[String]) {
    println!("{title}");
    println!(
        "  messages     committed {}  sent again {}  refused for good {}  refused for the moment {}",
        outcome.committed,
        outcome.retried,
        outcome.refused,
        in_words(&noticed.refused)
    );
    println!(
        "  deliveries   {} of {}  lost {}  doubled {}  out of order {}  altered {}",
        outcome.delivered, outcome.expected, outcome.lost, outcome.doubled, outcome.out_of_order, outcome.altered
    );
    println!(
        "  noticed      longest pause {:.2} s  reconnects {}  disturbed for {:.1} s  {}",
        noticed.pause_ms / 1e3,
        noticed.reconnects,
        noticed.disturbed_s,
        match healed {
            true => format!("well {:.1} s after it was undone", noticed.healed_s),
            false => "NOT well again".to_owned(),
        }
    );
    for problem in outcome.problems.iter().filter(|_| !outcome.balances() || outcome.refused > 0) {
        println!("  ! {problem}");
    }
    for end in ended {
        println!("  ! ended: {end}");
    }
}

fn in_words(refused: &Refused) -> String {
    match refused.is_empty() {
        true => "none".to_owned(),
        false => refused.iter().map(|(code, count)| format!("{code} {count}")).collect::<Vec<_>>().join(", "),
    }
}

/// Reads the conversation back through every node: the entries, or where two differ.
fn one_order(topology: &Topology, conversation: &str) -> Result<Result<usize, String>, LabError> {
    let mut first: Option<Vec<(u64, Option<String>)>> = None;
    for node in &topology.nodes {
        let mut http = Http::new(node.http, topology.api_key.clone());
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
