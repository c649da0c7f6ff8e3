//! `bench direct`: durable direct messages, each to a connected recipient.

use crate::{
    LabError, Verdict,
    args::{DirectArgs, Rate, TargetArgs, Via},
    job::{Content, Pace, Phase, Receiver},
    load::{Crowd, Load},
    process,
    report::{self, outcome_json},
    server::Target,
    setup,
};
use serde_json::json;

/// Pairs of users with a load client connected.
pub(crate) struct Pairs {
    pub(crate) load: Load,
    senders: Vec<String>,
}

impl Pairs {
    pub(crate) fn set(
        target: &Target,
        args: &TargetArgs,
        pairs: usize,
        via: Via,
        connections: usize,
    ) -> Result<Self, LabError> {
        let tag = process::run_tag();
        let mut http = target.http();
        let senders = setup::names(&format!("{tag}-a"), pairs);
        let recipients = setup::names(&format!("{tag}-b"), pairs);
        setup::named_users(&mut http, &senders)?;
        setup::named_users(&mut http, &recipients)?;
        let mut crowd = Crowd::default();
        for (number, (sender, recipient)) in senders.iter().zip(&recipients).enumerate() {
            crowd.conversations.push(setup::direct(&mut http, sender, recipient)?);
            crowd.receivers.push(Receiver { user: recipient.clone(), conversation: number });
        }
        match via {
            Via::Http => crowd.http_senders = connections,
            Via::Ws => crowd.ws_senders = senders.clone(),
        }
        Ok(Pairs { load: Load::open(target, args, crowd)?, senders })
    }

    pub(crate) fn phase(&self, pace: Pace, body_bytes: usize, batch: usize, pipeline: usize) -> Phase {
        Phase {
            retry: matches!(pace, Pace::Window { .. }),
            pace,
            content: Content::Generated { body_bytes, senders: self.senders.clone() },
            batch,
            pipeline,
        }
    }
}

pub(crate) fn run(args: &DirectArgs) -> Result<Verdict, LabError> {
    if args.pairs == 0 || args.connections == 0 || args.pipeline == 0 || args.batch == 0 {
        return Err(LabError::Usage("--pairs, --connections, --pipeline and --batch must be at least 1".into()));
    }
    let target = Target::find(&args.target)?;
    let mut pairs = Pairs::set(&target, &args.target, args.pairs, args.via, args.connections)?;
    let duration_ms = args.duration.as_millis() as u64;
    let pace = match args.rate {
        Rate::Max => Pace::Window { window: args.window, duration_ms },
        Rate::PerSecond(per_second) => Pace::Rate { per_second, duration_ms },
    };
    let phase = pairs.phase(pace, args.body_bytes, args.batch, args.pipeline);
    let outcome = pairs.load.run("direct", phase)?;
    drop(pairs);
    let check = target.finish()?;
    report::print(&format!("direct messages between {} pairs over {}, {}", args.pairs, args.via, args.rate), &outcome);
    report::print_check(&check);
    let mut verdict = Verdict::of(&outcome);
    if check.as_ref().is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    }
    let value = json!({
        "bench": "direct", "via": args.via.to_string(), "pairs": args.pairs,
        "outcome": outcome_json(&outcome), "check": check,
    });
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}
