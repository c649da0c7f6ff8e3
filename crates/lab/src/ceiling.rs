//! `bench ceiling`: the lab measures itself. A load on Tidings, and then several times as much of it on a loop that only writes:
//! only if the lab keeps that up are the figures of the first the server's and not its own.

use crate::{
    LabError,
    bare_load::BareLoad,
    message_clients::{GroupSpec, MessageClients},
    options::{Rate, TargetArgs, parse_duration},
    result::{Check, RunResult},
    server::Target,
    worker_protocol::{LoadModel, Outcome},
};
use clap::Args;
use serde_json::json;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct CeilingArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Members online of the group
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// HTTP connections that send
    #[arg(long, default_value_t = 32)]
    pub senders: usize,
    /// Messages a second to Tidings (open loop), or `max` (closed loop on both)
    #[arg(long, default_value = "1000")]
    pub rate: Rate,
    /// So many times as much must the lab sustain on the loop that only writes
    #[arg(long, default_value_t = 3.0)]
    pub factor: f64,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// With `--rate max`: messages between send and last receiver
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
}

/// A rate is sustained if so much of what was due was delivered in its time: the rest is the way of the last messages.
const DELIVERED_SHARE_MIN: f64 = 0.95;

pub(crate) fn run(args: &CeilingArgs) -> Result<RunResult, LabError> {
    if args.members == 0 || args.senders == 0 || args.window == 0 || args.duration.is_zero() {
        return Err(LabError::Usage("every number must be at least 1, and --duration above 0".into()));
    }
    if !args.factor.is_finite() || args.factor < 1.0 {
        return Err(LabError::Usage("--factor must be at least 1".into()));
    }
    if args.target.url.is_some() {
        let why = "`bench ceiling` measures the lab on this machine, beside a server of its own: it takes no --url";
        return Err(LabError::Usage(why.into()));
    }
    let duration_ms = args.duration.as_millis() as u64;
    let model = |factor: f64| match args.rate {
        Rate::PerSecond(rate) => LoadModel::OpenLoop { per_second: rate * factor, duration_ms },
        Rate::Max => LoadModel::ClosedLoop { window: args.window, duration_ms },
    };
    let target = Target::resolve(&args.target)?;
    let spec = GroupSpec::of(args.members, args.members, args.senders);
    let mut fixture = MessageClients::group(&target, &args.target, &spec)?;
    let phase = fixture.phase(model(1.0), args.body_bytes, 1, 1);
    let tidings = fixture.load.run(&format!("Tidings: a group of {}", args.members), phase)?;
    drop(fixture);
    let check = target.finish()?;
    let bare = BareLoad {
        members: args.members,
        senders: args.senders,
        model: model(args.factor),
        body_bytes: args.body_bytes,
    };
    let bare = Outcome { title: "a loop that only writes".into(), ..bare.run(&args.target)? };

    let mut result = RunResult::of("ceiling");
    result.measure("outcome", tidings.measured(&tidings.title));
    result.measure("bare", bare.measured(&bare.title));
    result.store_check(check);
    let Ceiling { ratio, sustained, sentence } = Ceiling::of(args, &tidings, &bare);
    result.note("the lab", &*sentence);
    let bound = format!("sustains {} times the load of Tidings", args.factor);
    result.check(Check::of_lab("the lab's ceiling", bound, sustained).value(format!("{ratio:.1} times")));
    result.set_all(json!({
        "members": args.members, "factor": args.factor, "ratio": ratio, "sustained": sustained, "sentence": sentence,
    }));
    Ok(result)
}

/// What the two runs say about the lab.
#[derive(Debug, PartialEq)]
struct Ceiling {
    /// The rate on the loop that only writes, by the rate on Tidings.
    ratio: f64,
    sustained: bool,
    sentence: String,
}

impl Ceiling {
    fn of(args: &CeilingArgs, tidings: &Outcome, bare: &Outcome) -> Self {
        let (on_tidings, on_bare) = (tidings.messages_per_second(), bare.messages_per_second());
        let ratio = on_bare / on_tidings.max(1e-9);
        let share = match args.rate {
            Rate::PerSecond(rate) => on_bare / (rate * args.factor),
            Rate::Max => ratio / args.factor,
        };
        let sustained = match args.rate {
            Rate::PerSecond(_) => share >= DELIVERED_SHARE_MIN && bare.balances() && !bare.lab_lagged(),
            Rate::Max => share >= 1.0 && bare.balances(),
        };
        let verified = on_bare * args.members as f64;
        let what = format!(
            "{on_bare:.0} messages/s, {verified:.0} verified deliveries/s, on a loop that only writes: {ratio:.1} times the \
             {on_tidings:.0}/s of Tidings"
        );
        let sentence = if sustained {
            format!("sustains {what}")
        } else {
            format!("does not sustain {} times the load of Tidings: {what}", args.factor)
        };
        Ceiling { ratio, sustained, sentence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(messages: u64, lag_p99_ms: f64) -> Outcome {
        let mut outcome = Outcome {
            planned: messages,
            sent: messages,
            committed: messages,
            expected: messages * 3,
            delivered: messages * 3,
            seconds: 10.0,
            lag_max_ms: 50.0,
            ..Outcome::default()
        };
        outcome.lateness.p99 = lag_p99_ms;
        outcome
    }

    #[test]
    fn a_lab_that_lags_or_delivers_less_does_not_sustain_it() {
        let mut args = CeilingArgs {
            target: TargetArgs::default(),
            members: 3,
            senders: 1,
            rate: Rate::PerSecond(100.0),
            factor: 3.0,
            duration: Duration::from_secs(10),
            body_bytes: 200,
            window: 10,
        };
        let tidings = outcome(1_000, 1.0);
        let sustained = |args: &CeilingArgs, bare: &Outcome| Ceiling::of(args, &tidings, bare).sustained;
        assert!(sustained(&args, &outcome(3_000, 1.0)));
        assert!(!sustained(&args, &outcome(3_000, 80.0)), "sent late");
        assert!(!sustained(&args, &outcome(2_500, 1.0)), "behind the schedule");
        assert!(!sustained(&args, &Outcome { lost: 1, delivered: 8_999, ..outcome(3_000, 1.0) }));
        args.rate = Rate::Max;
        assert!(sustained(&args, &outcome(3_001, 0.0)));
        assert!(!sustained(&args, &outcome(2_990, 0.0)));
    }
}
